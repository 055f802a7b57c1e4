"""What our own reader does not read: math-verify and its LaTeX parser, gold first. For the worker process.

Slow and unbounded by nature: never call this outside a process that can be killed.
"""

from __future__ import annotations

import logging

__all__ = ["equal_by_math_verify"]


def equal_by_math_verify(gold: str, answer: str) -> bool | None:
    """Whether math-verify finds the two clean LaTeX expressions equal; ``None`` if it cannot read one."""
    from math_verify import LatexExtractionConfig, parse, verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    # Both sides are delimited here, so that a bare expression is never searched for a number; no signal-based
    # timeouts, which only work in a main thread: the process around this call has its own.
    config = [LatexExtractionConfig(boxed_match_priority=-1)]
    parsed = [
        parse(f"${text}$", config, fallback_mode="no_fallback", parsing_timeout=None)
        for text in (gold, answer)
    ]
    if not parsed[0] or not parsed[1]:
        return None
    return bool(verify(parsed[0], parsed[1], timeout_seconds=None, numeric_precision=50))
