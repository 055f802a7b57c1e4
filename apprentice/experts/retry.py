"""Bounded retries with exponential backoff and full jitter, under one total deadline."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from apprentice.experts.types import BackendFailure, ExpertAnswer, Usage

__all__ = ["RetryPolicy", "is_retryable_status", "total_deadline_s", "with_retries"]

_BASE_S, _CAP_S = 0.5, 8.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, how far apart, and until when.

    The pause before retry ``n`` (from 1) is drawn from ``[0, min(cap_s, base_s * 2**(n-1))]`` (full jitter:
    clients that failed together do not come back together), or is what the endpoint asked for if that is
    longer.
    ``deadline_s`` bounds the whole call, pauses included; ``attempt_s`` bounds one attempt.
    """

    max_retries: int
    attempt_s: float
    deadline_s: float
    base_s: float = _BASE_S
    cap_s: float = _CAP_S


def total_deadline_s(timeout_s: float, max_retries: int) -> float:
    """The bound on a whole call: every attempt may use its timeout, every pause its longest."""
    pauses = sum(min(_CAP_S, _BASE_S * 2.0**n) for n in range(max_retries))
    return timeout_s * (max_retries + 1) + pauses


def is_retryable_status(status: int) -> bool:
    """Whether an HTTP status may pass: 408, 409, 425, 429 and 5xx do; 400, 401, 403, 404, 422 do not."""
    return status in (408, 409, 425, 429) or 500 <= status <= 599


async def with_retries(
    attempt: Callable[[float], Awaitable[ExpertAnswer]],
    policy: RetryPolicy,
    *,
    on_failure: Callable[[BackendFailure], None] | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
    rng: random.Random | None = None,
) -> ExpertAnswer:
    """Call ``attempt(timeout_s)`` until it answers, fails for good, or the policy is used up.

    Returns:
        The answer, with ``attempts``, ``seconds`` and what all attempts together have ``spent``.

    Raises:
        BackendFailure: the last one; its ``usage`` is what all attempts together have spent.
    """
    draw = (rng or random.Random()).uniform
    started = clock()
    spent: Usage | None = None
    number = 0
    while True:
        number += 1
        left = policy.deadline_s - (clock() - started)
        try:
            answer = await attempt(min(policy.attempt_s, left))
        except BackendFailure as failure:
            spent = failure.usage if spent is None else spent.plus(failure.usage)
            failure.usage = spent
            if on_failure is not None:
                on_failure(failure)
            if not failure.retryable or number > policy.max_retries:
                raise
            ceiling = min(policy.cap_s, policy.base_s * 2.0 ** (number - 1))
            pause = max(draw(0.0, ceiling), failure.retry_after_s)
            if clock() - started + pause >= policy.deadline_s:
                raise
            await sleep(pause)
            continue
        spent = answer.usage if spent is None else spent.plus(answer.usage)
        return replace(answer, spent=spent, attempts=number, seconds=clock() - started)
