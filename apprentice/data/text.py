"""When two questions count as the same."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

__all__ = ["question_key"]


@lru_cache(maxsize=32_768)  # sets repeat their questions, one of them each a hundred times
def question_key(question: str) -> str:
    """The question without differences of case, Unicode form and white space."""
    return re.sub(r"\s+", " ", unicodedata.normalize("NFKC", question)).strip().casefold()
