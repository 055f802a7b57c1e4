"""A model that is asked but not trained: rollout actors behind one client (Learning to Ask)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import ray

from apprentice.config.parts import SamplingConfig
from apprentice.episodes.actions import Generate, Generated
from apprentice.errors import EngineError

__all__ = ["FrozenModelClient"]

_log = logging.getLogger(__name__)


class FrozenModelClient:
    """Samples on the engine with the fewest of this client's requests: a Sampler port. Picklable.

    Every process that holds a copy counts for itself. A request whose engine died or did not answer in time
    is sent to another one.

    Args:
        name: for messages, e.g. ``qmaker``.
        workers: handles of :class:`actors.rollout_worker.RolloutWorker` that have started.
        timeout_s: deadline of one request.
        attempts: engines that are asked before the request fails.
    """

    def __init__(self, name: str, workers: Sequence[Any], *, timeout_s: float, attempts: int = 3) -> None:
        if not workers:
            raise ValueError(f"the frozen model {name!r} needs at least one engine")
        self._name, self._workers = name, list(workers)
        self._timeout_s, self._attempts = timeout_s, attempts
        self._inflight = [0] * len(self._workers)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (self._name, self._workers, self._timeout_s, self._attempts))

    async def generate(
        self, request: Generate, sampling: SamplingConfig, *, seed: int | None = None
    ) -> Generated:
        """Sample one continuation.

        Raises:
            EngineError: no engine answered.
        """
        why, tried = "", set[int]()
        for _ in range(self._attempts):
            index = min(range(len(self._workers)), key=lambda i: (i in tried, self._inflight[i]))
            tried.add(index)
            self._inflight[index] += 1
            try:
                return await asyncio.wait_for(self._call(index, request, sampling, seed), self._timeout_s)
            except (ray.exceptions.RayError, TimeoutError) as error:
                why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no answer'}"
                _log.warning("%s, engine %d: %s", self._name, index, why)
            finally:
                self._inflight[index] -= 1
        raise EngineError(f"no engine of the frozen model {self._name!r} answered: {why}")

    async def _call(
        self, index: int, request: Generate, sampling: SamplingConfig, seed: int | None
    ) -> Generated:
        ref = self._workers[index].generate.remote(request, sampling, seed=seed)
        try:
            generated: Generated = await ref
            return generated
        except asyncio.CancelledError:
            ray.cancel(ref)  # frees the engine's place
            raise


def _rebuild(name: str, workers: list[Any], timeout_s: float, attempts: int) -> FrozenModelClient:
    return FrozenModelClient(name, workers, timeout_s=timeout_s, attempts=attempts)
