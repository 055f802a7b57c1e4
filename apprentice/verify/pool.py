"""Worker processes that can be killed: a hung, huge or crashing sample costs that sample only.

Works from any thread and under any event loop: no signals, no fork of the caller, no multiprocessing start
method. Each worker is a plain child process (:mod:`apprentice.verify.worker`) behind two pipes.
"""

from __future__ import annotations

import collections
import json
import os
import queue
import select
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

__all__ = ["WorkerPool"]

_START_S = 60.0  # until a new worker says that it is ready
_WINDOW_ITEMS, _WINDOW_BYTES = 16, 32_000  # in flight to one worker: less than a pipe holds
_CLOSED = {"verdict": "timeout", "answer": None, "reason": "the verifier was closed"}


class _Worker:
    """One child process; used by one thread at a time."""

    def __init__(self, memory_mib: int) -> None:
        self._memory_mib = memory_mib
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._fresh = True

    def _start(self) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(p for p in sys.path if p)
        env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        command = [sys.executable, "-m", "apprentice.verify.worker", str(self._memory_mib)]
        self._buffer, self._fresh = b"", True
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env
        )

    def send(self, line: bytes) -> bool:
        """Whether the request was taken. Starts a process if there is none, not in place of a dead one."""
        if self._process is None:
            self._process = self._start()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except (OSError, ValueError):  # ValueError: closed by close() meanwhile
            return False
        return True

    def receive(self, timeout_s: float) -> dict[str, Any] | None:
        """The next reply; ``None`` when the process has ended.

        Raises:
            TimeoutError: there is none within ``timeout_s``; a new process first gets :data:`_START_S`.
        """
        if self._fresh:
            if self._line(_START_S) is None:
                return None
            self._fresh = False
        line = self._line(timeout_s)
        return None if line is None else dict(json.loads(line))

    def _line(self, timeout_s: float) -> bytes | None:
        deadline = time.monotonic() + timeout_s
        process = self._process
        if process is None or process.stdout is None:  # killed by close()
            return None
        while b"\n" not in self._buffer:
            try:
                descriptor = process.stdout.fileno()
                ready, _, _ = select.select([descriptor], [], [], max(deadline - time.monotonic(), 0))
                chunk = os.read(descriptor, 65536) if ready else b""
            except (OSError, ValueError):  # closed by close() meanwhile
                return None
            if not ready:
                raise TimeoutError
            if not chunk:
                return None
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def kill(self) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:  # an unsent request in the buffer of a dead process
                    continue
        process.wait()


class WorkerPool:
    """A fixed number of workers, started when first needed.

    Args:
        workers: processes.
        timeout_s: longest time one request may take.
        memory_mib: address space of one process.
    """

    def __init__(self, workers: int, timeout_s: float, memory_mib: int) -> None:
        self.timeout_s = timeout_s
        self._workers = [_Worker(memory_mib) for _ in range(workers)]
        self._idle: queue.Queue[_Worker] = queue.Queue()
        for worker in self._workers:
            self._idle.put(worker)
        self._closed = False
        # A verifier that is dropped, and the end of the interpreter, must not leave processes behind.
        self._end = weakref.finalize(self, _kill_all, self._workers)

    def run(self, requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Replies in the order of the requests. Blocks; call it from a thread of its own under an event loop.

        Raises:
            RuntimeError: the pool is closed.
        """
        if self._closed:
            raise RuntimeError("the verifier is closed")
        if not requests:
            return []
        replies: list[dict[str, Any]] = [dict(_CLOSED) for _ in requests]
        waiting = collections.deque(enumerate(requests))
        lock = threading.Lock()

        def serve() -> None:
            worker = self._idle.get()
            try:
                self._serve(worker, waiting, lock, replies)
            finally:
                if self._closed:
                    worker.kill()
                self._idle.put(worker)

        threads = [threading.Thread(target=serve, daemon=True) for _ in range(self._share(len(requests)) - 1)]
        for thread in threads:
            thread.start()
        serve()
        for thread in threads:
            thread.join()
        return replies

    def _share(self, count: int) -> int:
        return max(1, min(len(self._workers), count // _WINDOW_ITEMS))

    def _serve(
        self,
        worker: _Worker,
        waiting: collections.deque[tuple[int, dict[str, Any]]],
        lock: threading.Lock,
        replies: list[dict[str, Any]],
    ) -> None:
        """Keep a window of requests in flight; after a kill, send the ones behind the culprit again."""
        flying: collections.deque[tuple[int, dict[str, Any], int]] = collections.deque()
        again: collections.deque[tuple[int, dict[str, Any]]] = collections.deque()
        size = 0
        while not self._closed:
            while len(flying) < _WINDOW_ITEMS and size < _WINDOW_BYTES:
                with lock:
                    item = again.popleft() if again else waiting.popleft() if waiting else None
                if item is None:
                    break
                line = json.dumps(item[1]).encode() + b"\n"
                if flying and size + len(line) > _WINDOW_BYTES:
                    again.appendleft(item)
                    break
                if not worker.send(line):
                    # The process is dead. What is in flight is settled first; an idle one is replaced.
                    again.appendleft(item)
                    if flying:
                        break
                    worker.kill()
                    continue
                flying.append((*item, len(line)))
                size += len(line)
            if not flying:
                return
            try:
                reply, reason = worker.receive(self.timeout_s), "the worker ran out of memory or crashed"
            except TimeoutError:
                reply, reason = None, f"no verdict within {self.timeout_s:g} s"
            index, request, length = flying.popleft()
            size -= length
            if reply is not None:
                replies[index] = reply
                continue
            replies[index] = {"verdict": "timeout", "answer": request.get("answer"), "reason": reason}
            worker.kill()
            again.extendleft([(i, r) for i, r, _ in reversed(flying)])
            flying.clear()
            size = 0

    def close(self) -> None:
        """End all workers. Idempotent; a batch that is under way gets ``timeout`` verdicts."""
        self._closed = True
        self._end()


def _kill_all(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.kill()
