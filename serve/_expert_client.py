"""The typed client of all experts."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray import serve
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle

from apprentice.config.schema import ExpertConfig
from apprentice.episodes.actions import CallExpert, ExpertReply
from apprentice.errors import ExpertError
from apprentice.experts.retry import total_deadline_s
from apprentice.experts.types import ExpertAnswer

__all__ = ["ServeExpertClient", "app_name"]

_log = logging.getLogger(__name__)
_QUEUE_S = 120.0  # how long a call may wait for a free replica on top of its own deadline


def app_name(expert: str) -> str:
    """Name of an expert's Serve application. Expert names are free text; two never share an application."""
    safe = re.sub(r"[^A-Za-z0-9_.-]", "-", expert)
    if safe != expert:
        safe += "-" + hashlib.sha256(expert.encode()).hexdigest()[:8]
    return f"expert-{safe}"


@dataclass(slots=True)
class _Tally:
    """What a client saw of one expert."""

    calls: int = 0
    ok: int = 0
    cached: int = 0
    lost_replies: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    inflight: int = 0
    peak: int = 0
    seconds: float = 0.0
    queue_s: float = 0.0
    attempts: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    unknown_usage: int = 0


class ServeExpertClient:
    """All experts behind one client; an :class:`apprentice.rollout.ports.ExpertClient`.

    Picklable; handles are looked up in the process that uses them, which must be part of the Ray cluster.
    Every process that holds a copy counts for itself.

    Args:
        configs: of the experts that are deployed.
        queue_s: seconds that a call may wait for a free replica, on top of its own deadline.
    """

    def __init__(self, configs: Sequence[ExpertConfig], *, queue_s: float = _QUEUE_S) -> None:
        self._configs = {config.name: config for config in configs}
        self._queue_s = queue_s
        self._handles: dict[str, DeploymentHandle[Any]] = {}
        self._tallies = {name: _Tally() for name in self._configs}

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild_client, (list(self._configs.values()), self._queue_s))

    def metrics(self) -> dict[str, dict[str, float]]:
        """Expert -> numbers since the start of this client.

        ``calls``, ``ok``, ``cached``, ``failed/<kind>``, ``lost_replies`` (attempts that a replica's death
        or a full queue ended), ``inflight`` and its ``peak``; mean ``seconds`` a call and mean ``queue_s``
        of them outside the replica; backend ``attempts``; tokens where known, and calls of ``unknown_usage``.
        """
        out: dict[str, dict[str, float]] = {}
        for name, t in self._tallies.items():
            done = max(1, t.ok)
            out[name] = {
                "calls": t.calls,
                "ok": t.ok,
                "cached": t.cached,
                "lost_replies": t.lost_replies,
                "inflight": t.inflight,
                "peak": t.peak,
                "seconds": t.seconds / done,
                "queue_s": t.queue_s / done,
                "attempts": t.attempts,
                "prompt_tokens": t.prompt_tokens,
                "completion_tokens": t.completion_tokens,
                "unknown_usage": t.unknown_usage,
                **{f"failed/{kind}": n for kind, n in sorted(t.failures.items())},
            }
        return out

    async def ask(self, request: CallExpert) -> ExpertReply:
        """Ask the expert that ``request`` names.

        Raises:
            ExpertError: it failed past its retries, is unknown, or did not answer by the deadline.
        """
        config = self._configs.get(request.expert)
        if config is None:
            raise ExpertError(
                f"no expert {request.expert!r} is deployed; there are {sorted(self._configs)}",
                kind="unknown_expert",
                expert=request.expert,
            )
        tally = self._tallies[config.name]
        tally.calls += 1
        tally.inflight += 1
        tally.peak = max(tally.peak, tally.inflight)
        started = time.monotonic()
        try:
            answer = await self._ask(config, request, tally)
        except ExpertError as error:
            tally.failures[error.kind] += 1
            raise
        finally:
            tally.inflight -= 1
        took = time.monotonic() - started
        self._count(tally, answer, took)
        return ExpertReply(
            text=answer.text,
            expert=config.name,
            prompt_tokens=answer.usage.prompt_tokens,
            completion_tokens=answer.usage.completion_tokens,
            seconds=took,
        )

    async def _ask(self, config: ExpertConfig, request: CallExpert, tally: _Tally) -> ExpertAnswer:
        limit = total_deadline_s(config.timeout_s, config.max_retries) + self._queue_s
        deadline = time.monotonic() + limit
        kind, why = "timeout", "no answer"
        for attempt in range(config.max_retries + 1):
            if attempt:
                pause = random.uniform(0.0, min(8.0, 0.5 * 2.0 ** (attempt - 1)))
                await asyncio.sleep(max(0.0, min(pause, deadline - time.monotonic())))
            left = deadline - time.monotonic()
            if left <= 0:
                break
            try:
                return await self._call(config.name, request, left)
            except TimeoutError:
                kind, why = "timeout", f"no answer within {limit:.0f} s"
                break
            except BackPressureError:
                kind, why = "overloaded", f"{config.max_queued_requests} calls wait already"
            except (ray.exceptions.RayError, RayServeException) as error:
                cause = getattr(error, "cause", None)
                if isinstance(cause, ExpertError):  # the replica's own verdict, past its own retries
                    raise ExpertError(str(cause), kind=cause.kind, expert=config.name) from None
                if isinstance(error, ray.exceptions.RayTaskError):
                    what = f"{type(cause).__name__}: {cause}"
                    raise ExpertError(
                        f"expert {config.name!r} broke on a call: {what}", kind="broken", expert=config.name
                    ) from error
                kind, why = "replica_died", type(error).__name__
                self._handles.pop(config.name, None)
            tally.lost_replies += 1
            _log.warning("expert %s, attempt %d: %s (%s)", config.name, attempt + 1, kind, why)
        raise ExpertError(f"expert {config.name!r} gave up a call: {why}", kind=kind, expert=config.name)

    async def _call(self, name: str, request: CallExpert, timeout_s: float) -> ExpertAnswer:
        handle = self._handles.get(name)
        if handle is None:
            handle = self._handles[name] = serve.get_app_handle(app_name(name))
        response = handle.ask.remote(request)
        try:
            answer: ExpertAnswer = await asyncio.wait_for(_result(response), timeout_s)
            return answer
        except (TimeoutError, asyncio.CancelledError):
            response.cancel()  # frees the replica's slot
            raise

    @staticmethod
    def _count(tally: _Tally, answer: ExpertAnswer, took: float) -> None:
        tally.ok += 1
        tally.cached += answer.cached
        tally.seconds += took
        tally.queue_s += max(0.0, took - answer.seconds)
        tally.attempts += 0 if answer.cached else answer.attempts
        if answer.spent.prompt_tokens is None or answer.spent.completion_tokens is None:
            tally.unknown_usage += 1
        tally.prompt_tokens += answer.spent.prompt_tokens or 0
        tally.completion_tokens += answer.spent.completion_tokens or 0


async def _result(response: Any) -> Any:
    return await response


def _rebuild_client(configs: list[ExpertConfig], queue_s: float) -> ServeExpertClient:
    return ServeExpertClient(configs, queue_s=queue_s)
