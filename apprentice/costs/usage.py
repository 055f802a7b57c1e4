"""Token counts as a provider reports them. What it does not say is unknown, which is not zero."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

__all__ = ["Usage", "parse_usage"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one attempt as the backend reports them. ``None``: it did not say, which is not zero.

    ``reasoning_tokens`` are part of ``completion_tokens``, ``cached_tokens`` part of ``prompt_tokens``.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None

    @property
    def known(self) -> bool:
        """Whether a price can be put on it: prompt and completion are known."""
        return self.prompt_tokens is not None and self.completion_tokens is not None

    def plus(self, other: Usage) -> Usage:
        """Sum of two attempts; unknown where either is unknown."""

        def add(name: str) -> int | None:
            a, b = getattr(self, name), getattr(other, name)
            return None if a is None or b is None else a + b

        return Usage(*(add(field.name) for field in fields(self)))


def parse_usage(usage: Any) -> Usage:
    """Token counts of a response's ``usage``, an object or a mapping; what it does not say stays None (H07).

    Reasoning is billed as completion, once: where the details leave it out of the completion but the total
    includes it (total > prompt + completion), or where it exceeds the completion it should be part of, it is
    added. A prompt count smaller than its cached part leaves that part out, and gets it added.
    """
    if usage is None:
        return Usage()
    prompt, completion = _number(usage, "prompt_tokens"), _number(usage, "completion_tokens")
    total = _number(usage, "total_tokens")
    reasoning = _number(_part(usage, "completion_tokens_details"), "reasoning_tokens")
    cached = _number(_part(usage, "prompt_tokens_details"), "cached_tokens")
    if cached is None:
        cached = _number(usage, "prompt_cache_hit_tokens")
    if prompt is not None and cached is not None and cached > prompt:
        prompt += cached
    if prompt is not None and completion is not None and total is not None and total > prompt + completion:
        hidden = total - prompt - completion
        completion += hidden
        reasoning = (reasoning or 0) + hidden if reasoning != hidden else hidden
    if completion is not None and reasoning is not None and reasoning > completion:
        completion += reasoning
    return Usage(prompt, completion, reasoning, cached)


def _part(source: Any, name: str) -> Any:
    return source.get(name) if isinstance(source, dict) else getattr(source, name, None)


def _number(source: Any, name: str) -> int | None:
    value = _part(source, name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
