"""A pool of sandbox workers for one asyncio loop.

=====================  ===================  ==========================================================
who waits              for what             who ends the wait
=====================  ===================  ==========================================================
``run``                a free worker        a finished cell; ``close``
``run`` with a worker  the zygote's report  the zygote, at its wall limit; or the hard deadline here: the
zygote
                                            is killed and the cell retried
a zygote               the next request     the pool; end of file when the pool is gone
=====================  ===================  ==========================================================

At most ``workers`` cells run at one time, because a wall limit means nothing on a crowded core; time in the
queue is counted apart from the time of the run.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import replace

from apprentice.errors import SandboxError
from apprentice.sandbox.format import split_streams
from apprentice.sandbox.isolation import LADDER, Level, Limits
from apprentice.sandbox.levels import reach
from apprentice.sandbox.outcome import CellResult, Entry, Outcome, Report, classify
from apprentice.sandbox.worker import START_S, Worker, ZygoteDied

__all__ = ["IMPORTS", "SandboxPool"]

IMPORTS = ("numpy", "numpy.random", "sympy", "math", "itertools", "fractions", "decimal", "collections")


class SandboxPool:
    """Runs cells on ``workers`` zygotes. Use from one event loop; ``async with`` starts and closes it.

    Args:
        workers: cells that run at one time; at most the cores given to the pool.
        limits: of each cell, unless a call says otherwise.
        level: lowest isolation level accepted. The highest that this machine gives is taken, the same for
            every worker; none at or above it is an error.
        highest: highest level tried; to test and measure a lower one.
        max_retries: further attempts for a cell whose zygote died.
        max_queued: cells that may wait; past it a cell is ``overloaded`` at once. 0: no bound.
        imports: modules that every zygote imports before its first cell.
    """

    def __init__(
        self,
        workers: int = 2,
        *,
        limits: Limits | None = None,
        level: Level | str = Level.B,
        highest: Level | str = Level.A,
        max_retries: int = 2,
        max_queued: int = 0,
        imports: tuple[str, ...] = IMPORTS,
    ) -> None:
        if workers < 1:
            raise ValueError(f"a sandbox pool needs at least one worker, not {workers}")
        self.limits = limits or Limits()
        lowest, top = LADDER.index(Level(level)), LADDER.index(Level(highest))
        if lowest < top:
            raise ValueError(f"the lowest level accepted ({level}) is above the highest tried ({highest})")
        self._levels = LADDER[top : lowest + 1]
        self.level = Level(level)
        """The level reached; before the start the lowest accepted."""
        self._workers = [Worker(imports) for _ in range(workers)]
        self._idle: asyncio.LifoQueue[Worker] = asyncio.LifoQueue()
        self._max_retries, self._max_queued = max_retries, max_queued
        self._outcomes: Counter[str] = Counter()
        self._queued = self._running = self._restarts = 0
        self._recovering: set[asyncio.Task[None]] = set()
        self._open = False

    async def __aenter__(self) -> SandboxPool:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start every worker at the highest level that this machine gives, and try the attacks on each.

        Raises:
            SandboxError: one did not come up, or no accepted level can be reached or stops its attacks.
        """
        if self._open:
            return
        try:
            self.level = await reach(self._workers, self._levels)
        except BaseException:
            await asyncio.gather(*(worker.stop() for worker in self._workers), return_exceptions=True)
            raise
        self._idle = asyncio.LifoQueue()
        for worker in self._workers:
            self._idle.put_nowait(worker)
        self._open = True

    async def close(self) -> None:
        """End every worker and cell. Cells still running or queued end as ``cancelled``. Idempotent."""
        self._open = False
        await asyncio.gather(*(worker.stop() for worker in self._workers))
        for worker in self._workers:
            self._idle.put_nowait(worker)  # whoever still waits wakes up and finds the pool closed
        # A cell may just have been restarting its zygote: let it see that the pool is closed, then stop that
        # one too.
        deadline = time.monotonic() + START_S
        while (self._running or self._queued) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        await asyncio.gather(*self._recovering, return_exceptions=True)
        await asyncio.gather(*(worker.stop() for worker in self._workers))

    @property
    def pids(self) -> list[int]:
        """Pids of the zygotes."""
        return [worker.pid for worker in self._workers if worker.pid is not None]

    def metrics(self) -> dict[str, int]:
        """Cells queued and running now, zygotes restarted, and finished cells by outcome (``outcome/ok``)."""
        counts = {"queued": self._queued, "running": self._running, "restarts": self._restarts}
        return counts | {f"outcome/{name}": n for name, n in sorted(self._outcomes.items())}

    async def run(
        self,
        code: str,
        *,
        stdin: bytes = b"",
        timeout: float | None = None,
        limits: Limits | None = None,
        entry: Entry = "cell",
    ) -> CellResult:
        """Run one cell; a cell whose zygote died is run again, up to ``max_retries`` times.

        Args:
            code: the cell, as a model wrote it.
            stdin: its standard input; empty means end of file at once.
            timeout: wall limit in seconds from the start of the run, in place of ``limits.wall_s``.
            limits: in place of the pool's.
            entry: what runs it in the child: as a cell, or as code tasks need it
                (:mod:`apprentice.sandbox.program`).

        Returns:
            The result. Infrastructure outcomes (``sandbox_error``, ``overloaded``, ``cancelled``) are
            returned, not raised: see :attr:`~apprentice.sandbox.outcome.Outcome.from_infrastructure`.
        """
        limits = limits or self.limits
        if timeout is not None:
            limits = replace(limits, wall_s=timeout)
        result = await self._run(code, stdin, limits, entry)
        self._outcomes[result.outcome] += 1
        return result

    def _closed(self) -> bool:
        return not self._open

    async def _recover(self, worker: Worker) -> None:
        if worker.alive:
            await worker.cancel()
        self._idle.put_nowait(worker)

    async def _run(self, code: str, stdin: bytes, limits: Limits, entry: Entry) -> CellResult:
        entered = time.monotonic()
        if not self._open:
            return self._failed(Outcome.CANCELLED, "pool is closed", limits)
        if self._max_queued and self._queued >= self._max_queued:
            return self._failed(Outcome.OVERLOADED, f"{self._queued} cells wait", limits)
        self._queued += 1
        try:
            worker = await self._idle.get()
        finally:
            self._queued -= 1
        queue_s = time.monotonic() - entered
        self._running += 1
        clean, why, attempt = False, "", 0
        try:
            for attempt in range(1, self._max_retries + 2):
                if self._closed():
                    return self._failed(Outcome.CANCELLED, "pool is closed", limits, queue_s, attempt)
                try:
                    if not worker.alive:
                        self._restarts += 1
                        await worker.start()
                    report, raw, nonce = await worker.run(code, stdin, limits, entry)
                except (ZygoteDied, SandboxError) as error:
                    why = str(error)
                    await worker.stop()
                    continue
                clean = True
                return self._result(report, raw, nonce, limits, queue_s, attempt)
            return self._failed(Outcome.SANDBOX_ERROR, why, limits, queue_s, attempt)
        finally:
            self._running -= 1
            if clean:
                self._idle.put_nowait(worker)
            else:  # e.g. the caller was cancelled in mid-run: the zygote still has the cell
                task = asyncio.create_task(self._recover(worker))
                self._recovering.add(task)
                task.add_done_callback(self._recovering.discard)

    def _failed(
        self, outcome: Outcome, why: str, limits: Limits, queue_s: float = 0.0, attempts: int = 1
    ) -> CellResult:
        return CellResult(outcome, why, queue_s=queue_s, level=self.level, attempts=attempts, limits=limits)

    def _result(
        self, report: Report, raw: bytes, nonce: str, limits: Limits, queue_s: float, attempt: int
    ) -> CellResult:
        outcome, detail = classify(report, cpu_limit_s=limits.cpu_s, memory_bytes=limits.memory_bytes)
        output, stdout, stderr = split_streams(raw, nonce)
        finished = outcome in (Outcome.ERROR, Outcome.SYNTAX_ERROR, Outcome.EXIT, Outcome.MEMORY_LIMIT)
        return CellResult(
            outcome=outcome,
            detail=detail,
            output=output,
            stdout=stdout,
            stderr=stderr,
            traceback=report.claim.get("traceback", "") if finished else "",
            truncated=outcome is Outcome.OUTPUT_LIMIT,
            queue_s=queue_s,
            wall_s=report.wall_s,
            cpu_s=report.cpu_s,
            max_rss=report.max_rss,
            level=self.level,
            attempts=attempt,
            limits=limits,
        )
