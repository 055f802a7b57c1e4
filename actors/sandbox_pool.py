"""The sandbox pool as a Ray actor, and the client that spreads cells over several of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import time
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import ray

from apprentice.config.schema import SandboxConfig
from apprentice.episodes.actions import PythonResult
from apprentice.errors import SandboxError
from apprentice.sandbox.format import model_text
from apprentice.sandbox.isolation import Limits
from apprentice.sandbox.outcome import CellResult, Entry, Outcome
from apprentice.sandbox.pool import SandboxPool

__all__ = ["SandboxPoolActor", "SandboxPoolClient", "limits_of"]

_log = logging.getLogger(__name__)
_QUEUE_S = 300.0
_RESTART_S = 60.0
"""How long a pool that failed may take to answer again: Ray notices a lost node after half a minute."""
_SHARED_FROM = 64 << 10
_SHARED_BYTES = 256 << 20  # of inputs whose references a client keeps
_Call = Callable[[Any], Any]  # starts a remote call on a pool; gives its reference
_SHY_S = 5.0
"""How long a pool that failed a cell comes after the others; a restarted one is back within seconds."""


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
        self._pool = SandboxPool(
            config.cells_at_once,
            limits=limits_of(config),
            level=config.level,
            max_retries=config.max_retries,
        )
        self._starting = asyncio.Lock()
        self._closed = False

    async def ready(self) -> dict[str, Any]:
        """Start the workers if they are not; level, number of workers, and the actor's pid and node.

        Raises:
            SandboxError: a worker did not come up.
        """
        async with self._starting:
            if not self._closed:
                await self._pool.start()
        return {
            "level": str(self._pool.level),
            "workers": len(self._pool.pids),
            "pid": os.getpid(),
            "node": ray.get_runtime_context().get_node_id(),
        }

    async def run(self, code: str) -> CellResult:
        """Run one cell under the recipe's limits. After :meth:`close` it is ``cancelled``."""
        await self.ready()  # a restarted actor has no workers yet
        return await self._pool.run(code)

    async def run_program(self, code: str, entry: Entry, stdin: bytes, limits: Limits) -> CellResult:
        """Run a program, calls of a solution or tests, under limits of their own."""
        await self.ready()
        return await self._pool.run(code, stdin=stdin, limits=limits, entry=entry)

    async def metrics(self) -> dict[str, int]:
        """See :meth:`apprentice.sandbox.pool.SandboxPool.metrics`."""
        return self._pool.metrics()

    async def health(self) -> dict[str, float]:
        """Numbers that add up over pools: zygotes restarted since this process began, pools by isolation
        level (``pools/none``), and whether Ray has restarted this process (``pools/restarted``)."""
        return {
            "restarts": float(self._pool.metrics()["restarts"]),
            f"pools/{self._pool.level}": 1.0,
            "pools/restarted": float(_restarted()),
        }

    async def close(self) -> None:
        """End every worker and cell, for good."""
        self._closed = True
        async with self._starting:
            await self._pool.close()


def _restarted() -> bool:
    """Whether Ray has started this actor's process again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray 2.60 warns of a property that this one uses itself
        return bool(ray.get_runtime_context().was_current_actor_reconstructed)


class SandboxPoolClient:
    """Runs cells on the pool actor with the fewest of this client's cells; a :class:`PythonRunner`.

    Among pools with equally many cells the one on the caller's own node is taken. A cell whose pool died, did
    not answer in time or reported an infrastructure outcome is run again, on another pool where there is one.
    A call that is cancelled ends its cell and frees the worker at once. Picklable; every process that holds a
    copy counts for itself.

    Args:
        pools: handles of :class:`SandboxPoolActor`.
        config: limits and retries.
        nodes: id of the node on which each pool was placed; empty: no pool is nearer than another.
        max_chars: length of the text a model sees.
        queue_s: how long a cell may wait for a worker before its pool counts as dead.
    """

    def __init__(
        self,
        pools: Sequence[Any],
        config: SandboxConfig,
        *,
        nodes: Sequence[str] = (),
        max_chars: int = 4000,
        queue_s: float = _QUEUE_S,
    ) -> None:
        if not pools:
            raise ValueError("a sandbox client needs at least one pool")
        if nodes and len(nodes) != len(pools):
            raise ValueError(
                f"{len(pools)} pools cannot lie on {len(nodes)} nodes: give one node a pool, or none"
            )
        self._pools, self._config, self._max_chars = list(pools), config, max_chars
        self._nodes, self._queue_s = list(nodes), queue_s
        self._deadline_s = queue_s + (config.max_retries + 1) * (config.wall_s + 10.0)
        self._inflight = [0] * len(self._pools)
        self._failed_at = [-math.inf] * len(self._pools)
        self._far: list[bool] | None = None
        self._inputs = _Inputs()
        self._counts: Counter[str] = Counter()
        self._seconds: Counter[str] = Counter()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (self._pools, self._config, self._nodes, self._max_chars, self._queue_s))

    def metrics(self) -> dict[str, float]:
        """``cells`` and the same by outcome (``outcome/ok``), attempts that failed (``failures``), cells
        whose caller was ``cancelled``; ``queue_s``, ``wall_s`` and ``cpu_s``, summed over the cells."""
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
        return await self._counted(lambda pool: pool.run.remote(code), self._deadline_s)

    async def run_program(self, code: str, *, entry: Entry, stdin: bytes, limits: Limits) -> CellResult:
        """A :class:`apprentice.verify.execution.ProgramRunner`: run a program, calls or tests.

        A long standard input is put into the object store once, and serves every program tested on it.

        Raises:
            SandboxError: no pool ran it within its retries; says nothing of the code.
        """
        shared = self._inputs.reference(stdin) if len(stdin) > _SHARED_FROM else stdin
        deadline_s = self._deadline_s + (self._config.max_retries + 1) * limits.wall_s
        return await self._counted(
            lambda pool: pool.run_program.remote(code, entry, shared, limits), deadline_s
        )

    async def _counted(self, call: _Call, deadline_s: float) -> CellResult:
        try:
            return await self._with_retries(call, deadline_s)
        except asyncio.CancelledError:
            self._counts["cancelled"] += 1
            raise

    async def _with_retries(self, call: _Call, deadline_s: float) -> CellResult:
        why = ""
        tried: set[int] = set()
        for attempt in range(self._config.max_retries + 1):
            index = self._choose(tried)
            if attempt:
                await asyncio.sleep(min(0.2 * 2**attempt, 5.0))
            if index in tried:
                await self._answers(index)
            tried.add(index)
            self._inflight[index] += 1
            try:
                result = await asyncio.wait_for(self._call(index, call), deadline_s)
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

    async def _answers(self, index: int) -> None:
        """Wait until a pool that failed is back: no attempt is spent on one that is being restarted."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_RESTART_S):
                while True:
                    try:
                        await self._pools[index].ready.remote()
                        return
                    except ray.exceptions.ActorUnavailableError:
                        await asyncio.sleep(0.5)
                    except (ray.exceptions.RayError, SandboxError):
                        return  # it is dead for good, or its workers do not start: the attempt will say so

    async def _call(self, index: int, call: _Call) -> CellResult:
        ref = call(self._pools[index])
        try:
            result: CellResult = await ref
            return result
        except asyncio.CancelledError:
            ray.cancel(ref)  # reaches the pool as a cancellation: it ends the cell and frees the worker
            raise

    def _choose(self, tried: set[int]) -> int:
        """Untried before tried, then those that did not just fail, then the fewest cells in flight, then the
        own node, then the longest without a failure."""
        if self._far is None:  # here, since the client may have been made in another process
            here = ray.get_runtime_context().get_node_id() if self._nodes else ""
            self._far = [bool(self._nodes) and self._nodes[i] != here for i in range(len(self._pools))]
        far, shy_since = self._far, time.monotonic() - _SHY_S

        def order(i: int) -> tuple[bool, bool, int, bool, float]:
            failed_at = self._failed_at[i]
            return i in tried, failed_at > shy_since, self._inflight[i], far[i], failed_at

        return min(range(len(self._pools)), key=order)

    def _count(self, result: CellResult) -> None:
        self._counts["cells"] += 1
        self._counts[f"outcome/{result.outcome}"] += 1
        self._counts["truncated"] += result.outcome is Outcome.OUTPUT_LIMIT
        for name in ("queue", "wall", "cpu"):
            self._seconds[name] += getattr(result, f"{name}_s")


class _Inputs:
    """Object references of the inputs that were used last."""

    def __init__(self) -> None:
        self._references: OrderedDict[bytes, Any] = OrderedDict()

    def reference(self, data: bytes) -> Any:
        if data not in self._references:
            self._references[data] = ray.put(data)
            while len(self._references) > 1 and sum(map(len, self._references)) > _SHARED_BYTES:
                self._references.popitem(last=False)
        self._references.move_to_end(data)
        return self._references[data]


def _rebuild(
    pools: list[Any], config: SandboxConfig, nodes: list[str], max_chars: int, queue_s: float
) -> SandboxPoolClient:
    return SandboxPoolClient(pools, config, nodes=nodes, max_chars=max_chars, queue_s=queue_s)
