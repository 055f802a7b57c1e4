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
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import apprentice
from apprentice.errors import SandboxError
from apprentice.sandbox.format import split_streams
from apprentice.sandbox.isolation import Level, Limits
from apprentice.sandbox.outcome import CellResult, Outcome, Report, classify
from apprentice.sandbox.zygote import HEADER

__all__ = ["SandboxPool"]

_GRACE_S = 5.0
_START_S = 60.0
_IMPORTS = ("numpy", "numpy.random", "sympy", "math", "itertools", "fractions", "decimal", "collections")
_BOOT = (
    "import sys; sys.path.insert(0, {root!r}); from apprentice.sandbox.zygote import main; "
    "sys.path.remove({root!r}); main({fd}, {level!r}, {scratch!r}, {imports!r})"
)


class _Died(Exception):
    """The zygote died or did not answer: nothing is known of the cell."""


class _Worker:
    """A zygote process and the pool's end of its socket."""

    def __init__(self, level: Level, imports: tuple[str, ...]) -> None:
        self._level, self._imports = level, imports
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._scratch = ""
        self._report: asyncio.Task[tuple[dict[str, Any], bytes]] | None = None

    @property
    def pid(self) -> int | None:
        """Pid of the zygote, if one was started."""
        return self._process.pid if self._process else None

    @property
    def alive(self) -> bool:
        """Whether the zygote runs."""
        return self._process is not None and self._process.poll() is None

    async def start(self) -> None:
        """Start a fresh zygote and wait until it serves.

        Raises:
            SandboxError: it did not come up.
        """
        await self.stop()
        ours, theirs = socket.socketpair()
        self._scratch = tempfile.mkdtemp(prefix="apprentice-cell-")
        root = str(Path(apprentice.__file__).resolve().parent.parent)
        boot = _BOOT.format(
            root=root,
            fd=theirs.fileno(),
            level=str(self._level),
            scratch=self._scratch,
            imports=list(self._imports),
        )
        with theirs, tempfile.TemporaryFile() as log:
            self._process = subprocess.Popen(
                # -s -P: no user site, no folder of a script; a fixed hash seed makes set order repeat.
                [sys.executable, "-s", "-P", "-c", boot],
                env={
                    "PATH": "/usr/bin:/bin",
                    "LANG": "C.UTF-8",
                    "HOME": "/tmp",
                    "PYTHONHASHSEED": "0",
                    "OMP_NUM_THREADS": "1",
                    "OPENBLAS_NUM_THREADS": "1",
                    "MKL_NUM_THREADS": "1",
                },
                cwd=self._scratch,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
            self._reader, self._writer = await asyncio.open_connection(sock=ours)
            theirs.close()
            try:
                await asyncio.wait_for(self._receive(), _START_S)
            except (_Died, TimeoutError) as error:
                await self.stop()
                log.seek(0)
                said = log.read()[-2000:].decode("utf-8", "replace").strip()
                raise SandboxError(
                    f"a sandbox worker did not start at isolation level {self._level}: {said or error!r}"
                ) from None

    async def _receive(self) -> tuple[dict[str, Any], bytes]:
        assert self._reader is not None
        try:
            head, body = HEADER.unpack(await self._reader.readexactly(HEADER.size))
            return json.loads(await self._reader.readexactly(head)), await self._reader.readexactly(body)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise _Died(str(error)) from None

    async def _send(self, head: dict[str, Any], body: bytes = b"") -> None:
        assert self._writer is not None
        raw = json.dumps(head).encode()
        try:
            self._writer.write(HEADER.pack(len(raw), len(body)) + raw + body)
            await self._writer.drain()
        except (ConnectionError, RuntimeError) as error:
            raise _Died(str(error)) from None

    async def run(self, code: str, stdin: bytes, limits: Limits) -> tuple[Report, bytes, str]:
        """One cell: what the zygote saw, the raw output, and the nonce of its marks.

        Raises:
            _Died: the zygote died or missed the hard deadline.
        """
        nonce = secrets.token_hex(8)
        request = {"code": code, "limits": asdict(limits), "nonce": nonce}
        try:
            async with asyncio.timeout(limits.wall_s + _GRACE_S):
                await self._send(request, stdin)
                # A task of its own: a caller that is cancelled must not leave half a report in the stream.
                self._report = asyncio.create_task(self._receive())
                head, output = await asyncio.shield(self._report)
        except TimeoutError:
            raise _Died(f"no report {_GRACE_S:g} s after the wall limit") from None
        self._report = None
        return Report(**head), output, nonce

    async def cancel(self) -> None:
        """End the cell whose caller went away; the zygote lives on if it answers, else it is ended too."""
        report = self._report
        try:
            if report is None:
                raise _Died("cancelled between start and run")
            await self._send({})
            async with asyncio.timeout(_GRACE_S):
                await report
            self._report = None
        except (_Died, TimeoutError):
            await self.stop()

    async def stop(self) -> None:
        """End the zygote and its cell; returns when they are gone."""
        process, self._process = self._process, None
        report, self._report = self._report, None
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(ConnectionError):
                await self._writer.wait_closed()
        self._reader = self._writer = None
        if report is not None:
            await asyncio.gather(report, return_exceptions=True)  # ended by the closed stream
        if process is not None:
            # The zygote sees the end of file, ends its cell, then itself; only a stuck one is killed.
            try:
                await asyncio.to_thread(process.wait, 2.0)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await asyncio.to_thread(process.wait)
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = ""


class SandboxPool:
    """Runs cells on ``workers`` zygotes. Use from one event loop; ``async with`` starts and closes it.

    Args:
        workers: cells that run at one time; at most the cores given to the pool.
        limits: of each cell, unless a call says otherwise.
        level: isolation level; a level that cannot be reached is an error, never lowered.
        max_retries: further attempts for a cell whose zygote died.
        max_queued: cells that may wait; past it a cell is ``overloaded`` at once. 0: no bound.
        imports: modules that every zygote imports before its first cell.
    """

    def __init__(
        self,
        workers: int = 2,
        *,
        limits: Limits | None = None,
        level: Level | str = Level.NONE,
        max_retries: int = 2,
        max_queued: int = 0,
        imports: tuple[str, ...] = _IMPORTS,
    ) -> None:
        if workers < 1:
            raise ValueError(f"a sandbox pool needs at least one worker, not {workers}")
        self.limits = limits or Limits()
        self.level = Level(level)
        self._workers = [_Worker(self.level, imports) for _ in range(workers)]
        self._idle: asyncio.LifoQueue[_Worker] = asyncio.LifoQueue()
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
        """Start every worker.

        Raises:
            SandboxError: one did not come up.
        """
        if self._open:
            return
        try:
            await asyncio.gather(*(worker.start() for worker in self._workers))
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
        deadline = time.monotonic() + _START_S
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
        self, code: str, *, stdin: bytes = b"", timeout: float | None = None, limits: Limits | None = None
    ) -> CellResult:
        """Run one cell; a cell whose zygote died is run again, up to ``max_retries`` times.

        Args:
            code: the cell, as a model wrote it.
            stdin: its standard input; empty means end of file at once.
            timeout: wall limit in seconds from the start of the run, in place of ``limits.wall_s``.
            limits: in place of the pool's.

        Returns:
            The result. Infrastructure outcomes (``sandbox_error``, ``overloaded``, ``cancelled``) are
            returned, not raised: see :attr:`~apprentice.sandbox.outcome.Outcome.from_infrastructure`.
        """
        limits = limits or self.limits
        if timeout is not None:
            limits = replace(limits, wall_s=timeout)
        result = await self._run(code, stdin, limits)
        self._outcomes[result.outcome] += 1
        return result

    def _closed(self) -> bool:
        return not self._open

    async def _recover(self, worker: _Worker) -> None:
        if worker.alive:
            await worker.cancel()
        self._idle.put_nowait(worker)

    async def _run(self, code: str, stdin: bytes, limits: Limits) -> CellResult:
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
                    report, raw, nonce = await worker.run(code, stdin, limits)
                except (_Died, SandboxError) as error:
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
