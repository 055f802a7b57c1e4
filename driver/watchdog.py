"""Ends a run that makes no progress: loudly, with every thread's stack, and a non-zero exit code."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

__all__ = ["EXIT_STALLED", "Watchdog"]

EXIT_STALLED = 70
"""Exit code of a run that the watchdog ended."""


class Watchdog:
    """A thread that wants to hear :meth:`beat` at least every ``stall_s`` seconds.

    The driver beats when something moved: an episode finished, an optimizer step ended, an actor came up.
    Waiting is not progress, so a wedged actor cannot hide behind a polling loop. Where a deadline inside
    :func:`driver.remote.gather` is shorter, it fires first, and its message says who did not answer.

    Args:
        stall_s: seconds without progress after which the process ends with :data:`EXIT_STALLED`.
        log: file to which the stacks are written as well.
    """

    def __init__(self, stall_s: float, log: Path | None = None) -> None:
        self._stall_s = stall_s
        self._log = log
        self._last = (time.monotonic(), "start")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def beat(self, what: str) -> None:
        """Something moved; ``what`` is named in the message if nothing ever moves again."""
        self._last = (time.monotonic(), what)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(timeout=5.0)

    def _watch(self) -> None:
        while not self._stop.wait(min(1.0, self._stall_s / 4)):
            since, what = self._last
            silent = time.monotonic() - since
            if silent > self._stall_s:
                self._end(silent, what)

    def _end(self, silent: float, what: str) -> None:
        message = (
            f"watchdog: no progress for {silent:.0f} s (last: {what}); ending the run with exit code "
            f"{EXIT_STALLED}. Stacks of all threads follow; raise deadlines.stall_s if it was working.\n"
        )
        streams = [sys.stderr]
        if self._log is not None:
            streams.append(self._log.open("a"))
        for stream in streams:
            stream.write(message)
            faulthandler.dump_traceback(stream, all_threads=True)
            stream.flush()
        os._exit(EXIT_STALLED)
