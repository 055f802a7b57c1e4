"""The sandbox pool as a Ray actor, and the client that spreads cells over several of them."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import ray

from apprentice.config.schema import SandboxConfig
from apprentice.episodes.actions import PythonResult
from apprentice.errors import SandboxError
from apprentice.sandbox.format import model_text
from apprentice.sandbox.isolation import Limits
from apprentice.sandbox.outcome import CellResult, Outcome
from apprentice.sandbox.pool import SandboxPool

__all__ = ["SandboxPoolActor", "SandboxPoolClient", "limits_of"]

_log = logging.getLogger(__name__)
_QUEUE_S = 300.0


def limits_of(config: SandboxConfig) -> Limits:
    """A cell's limits as the recipe gives them."""
    return Limits(
        wall_s=config.wall_s,
        cpu_s=config.cpu_s,
        memory_bytes=config.memory_mib << 20,
        output_bytes=config.output_kib << 10,
    )


class SandboxPoolActor:
    """One sandbox pool in its own process. Async: all its calls share one event loop.

    Spawn with ``max_restarts=-1`` and a ``max_concurrency`` above the number of episodes that may wait at
    once, so that the pool, not Ray, queues the cells.
    """

    def __init__(self, config: SandboxConfig) -> None:
        self._pool = SandboxPool(config.workers, limits=limits_of(config), max_retries=config.max_retries)
        self._starting = asyncio.Lock()
        self._closed = False

    async def ready(self) -> dict[str, Any]:
        """Start the workers if they are not; isolation level, number of workers, and pid of the actor.

        Raises:
            SandboxError: a worker did not come up.
        """
        async with self._starting:
            await self._pool.start()
        return {"level": str(self._pool.level), "workers": len(self._pool.pids), "pid": os.getpid()}

    async def run(self, code: str) -> CellResult:
        """Run one cell under the recipe's limits. After :meth:`close` it is ``cancelled``."""
        if not self._closed:
            await self.ready()  # a restarted actor has no workers yet
        return await self._pool.run(code)

    async def metrics(self) -> dict[str, int]:
        """See :meth:`apprentice.sandbox.pool.SandboxPool.metrics`."""
        return self._pool.metrics()

    async def close(self) -> None:
        """End every worker and cell, for good."""
        self._closed = True
        async with self._starting:
            await self._pool.close()


class SandboxPoolClient:
    """Runs cells on the pool actor with the fewest of this client's cells; a :class:`PythonRunner`.

    A cell whose pool died, did not answer in time or reported an infrastructure outcome is run again, on
    another pool where there is one. Picklable; every process that holds a copy counts for itself.

    Args:
        pools: handles of :class:`SandboxPoolActor`.
        config: limits and retries.
        max_chars: length of the text a model sees.
        queue_s: how long a cell may wait for a worker before its pool counts as dead.
    """

    def __init__(
        self,
        pools: Sequence[Any],
        config: SandboxConfig,
        *,
        max_chars: int = 4000,
        queue_s: float = _QUEUE_S,
    ) -> None:
        if not pools:
            raise ValueError("a sandbox client needs at least one pool")
        self._pools, self._config, self._max_chars = list(pools), config, max_chars
        self._deadline_s = queue_s + (config.max_retries + 1) * (config.wall_s + 10.0)
        self._inflight = [0] * len(self._pools)
        self._failed_at = [0.0] * len(self._pools)
        self._counts: Counter[str] = Counter()
        self._seconds: Counter[str] = Counter()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (self._pools, self._config, self._max_chars, self._deadline_s))

    def metrics(self) -> dict[str, float]:
        """Cells by outcome (``outcome/ok``), ``failures``; queue, wall and CPU seconds, summed."""
        return {**self._counts, **{f"{k}_s": v for k, v in self._seconds.items()}}

    async def run(self, code: str) -> PythonResult:
        """Run one cell; the text is exactly what a model sees (:mod:`apprentice.sandbox.format`).

        Raises:
            SandboxError: no pool ran it within its retries; says nothing of the code.
        """
        result = await self.run_cell(code)
        return PythonResult(model_text(result, self._max_chars), str(result.outcome), result.wall_s)

    async def run_cell(self, code: str) -> CellResult:
        """Run one cell; the whole result.

        Raises:
            SandboxError: no pool ran it within its retries; says nothing of the code.
        """
        why = ""
        tried: set[int] = set()
        for attempt in range(self._config.max_retries + 1):
            if attempt:
                await asyncio.sleep(min(0.2 * 2**attempt, 5.0))  # a restarted pool takes a second to be back
            index = self._choose(tried)
            tried.add(index)
            self._inflight[index] += 1
            try:
                result = await asyncio.wait_for(self._call(index, code), self._deadline_s)
            except (ray.exceptions.RayError, SandboxError, TimeoutError) as error:
                why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no answer'}"
            else:
                if not result.outcome.from_infrastructure:
                    self._count(result)
                    return result
                why = f"{result.outcome}: {result.detail}"
            finally:
                self._inflight[index] -= 1
            self._counts["failures"] += 1
            self._failed_at[index] = time.monotonic()
            _log.warning("sandbox pool %d failed a cell (attempt %d): %s", index, attempt + 1, why)
        raise SandboxError(f"no sandbox pool ran a cell in {self._config.max_retries + 1} attempts: {why}")

    async def _call(self, index: int, code: str) -> CellResult:
        ref = self._pools[index].run.remote(code)
        try:
            result: CellResult = await ref
            return result
        except asyncio.CancelledError:
            ray.cancel(ref)  # reaches the pool as a cancellation: it ends the cell and frees the worker
            raise

    def _choose(self, tried: set[int]) -> int:
        """Untried before tried, then fewest cells in flight, then longest without a failure."""
        return min(range(len(self._pools)), key=lambda i: (i in tried, self._inflight[i], self._failed_at[i]))

    def _count(self, result: CellResult) -> None:
        self._counts[f"outcome/{result.outcome}"] += 1
        self._counts["truncated"] += result.outcome is Outcome.OUTPUT_LIMIT
        for name in ("queue", "wall", "cpu"):
            self._seconds[name] += getattr(result, f"{name}_s")


def _rebuild(pools: list[Any], config: SandboxConfig, max_chars: int, deadline_s: float) -> SandboxPoolClient:
    client = SandboxPoolClient(pools, config, max_chars=max_chars)
    client._deadline_s = deadline_s
    return client
