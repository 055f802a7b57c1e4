"""What an advisor is shown: a fixed system prompt and the query, nothing else (Learning to Ask, section 3).

The paper does not print the advisor's prompt (appendix F.3); the words are ours.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from apprentice.config.ask import AdvisorConfig, ArithmeticBackend, RecordedBackend
from apprentice.experts.prompt import Message

__all__ = ["advisor_messages", "count_tokens", "cut_tokens", "prompt_bound"]

_SYSTEM = (
    "You are an expert advisor. You get one question and nothing else: answer exactly what it asks, "
    "correctly and to the point, and follow what it says about the length and form of your answer. If "
    "something that is needed to answer is missing, say briefly what it is."
)
_TOKEN = re.compile(r"[^\W\d_]+|\d{1,3}|[^\w\s]|_")
_TEMPLATE_TOKENS = 256  # role markers, dates and default instructions that a chat template may add


def advisor_messages(query: str) -> tuple[Message, ...]:
    """The chat of one call."""
    return {"role": "system", "content": _SYSTEM}, {"role": "user", "content": query}


def count_tokens(text: str) -> int:
    """Tokens of an advisor without a model: words, groups of up to three digits, single signs."""
    return sum(1 for _ in _TOKEN.finditer(text))


def cut_tokens(text: str, limit: int) -> tuple[str, int, bool]:
    """The text up to its ``limit``-th token, how many tokens that is, and whether something was cut off."""
    end, count = 0, 0
    for token in _TOKEN.finditer(text):
        if count == limit:
            return text[:end], count, True
        end, count = token.end(), count + 1
    return text, count, False


def prompt_bound(config: AdvisorConfig, messages: Sequence[Message]) -> int:
    """The most prompt tokens that the provider may count for ``messages``, without its tokenizer.

    A token of any byte-level vocabulary covers at least one byte of the text, as it stands or normalized
    (NFKC may lengthen it); a chat template adds some. Advisors without a model count the query exactly.
    """
    if isinstance(config.backend, ArithmeticBackend | RecordedBackend):
        return count_tokens(messages[-1]["content"])
    contents = [message["content"] for message in messages]
    longest = (max(len(c.encode()), len(unicodedata.normalize("NFKC", c).encode())) for c in contents)
    return sum(longest) + _TEMPLATE_TOKENS
