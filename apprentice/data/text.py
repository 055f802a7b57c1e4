"""When two questions count as the same."""

from __future__ import annotations

import re
import unicodedata

__all__ = ["question_key"]


def question_key(question: str) -> str:
    """The question without differences of case, Unicode form and white space."""
    return re.sub(r"\s+", " ", unicodedata.normalize("NFKC", question)).strip().casefold()
