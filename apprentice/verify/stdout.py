"""Whether what a program printed is what its test expects. The rules are written down in docs/code-tasks.md.

1. White space at the start and end of the whole text and of each line does not count; the number of lines
does. 2. Lines that are equal as text agree. 3. Other lines agree when they have as many words, and each
pair of words agrees: as text, or as numbers. 4. An expected integer is matched by its own value only, in
any spelling without leading zeros (``3``, ``3.0``). 5. An expected decimal number (with a point or an
exponent) is matched within 1e-6, absolute or relative to it.
"""

from __future__ import annotations

import re
from decimal import Decimal

__all__ = ["stdout_agrees"]

_TOLERANCE = Decimal("1e-6")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?\Z")
_INTEGER = re.compile(r"[+-]?\d+\Z")
_LEADING_ZEROS = re.compile(r"[+-]?0\d")
_MAX_DIGITS = 400  # of a number that is compared as a number; longer ones are compared as text


def stdout_agrees(expected: str, actual: str) -> tuple[bool, str]:
    """Whether they agree, and if not, where: the number of the line and both words or lines, shortened."""
    wanted, got = expected.strip().split("\n"), actual.strip().split("\n")
    for number, (want, have) in enumerate(zip(wanted, got, strict=False), 1):
        want, have = want.strip(), have.strip()
        if want == have:
            continue
        words, others = want.split(), have.split()
        if len(words) != len(others):
            return False, f"line {number}: {_short(have)} instead of {_short(want)}"
        for word, other in zip(words, others, strict=True):
            if not _words_agree(word, other):
                return False, f"line {number}: {_short(other)} instead of {_short(word)}"
    if len(wanted) != len(got):
        return False, f"{len(got)} lines instead of {len(wanted)}"
    return True, ""


def _words_agree(want: str, have: str) -> bool:
    if want == have:
        return True
    if len(want) > _MAX_DIGITS or len(have) > _MAX_DIGITS:
        return False
    if not (_NUMBER.match(want) and _NUMBER.match(have)):
        return False
    if _LEADING_ZEROS.match(want) or _LEADING_ZEROS.match(have):
        return False  # `0011` is a row of digits, not the number 11
    x, y = Decimal(want), Decimal(have)
    if _INTEGER.match(want):
        return x == y
    return abs(x - y) <= _TOLERANCE * max(Decimal(1), abs(x))


def _short(text: str, length: int = 60) -> str:
    return repr(text if len(text) <= length else text[:length] + "...")
