"""Keeps a heap that never shrinks by itself from filling with holes."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["HeapTrimmer"]


class HeapTrimmer:
    """Gives free memory back to the system when the process has grown.

    On a CPU the learner keeps large tensors on the heap (:func:`actors.learner.learner_env`), which saves a
    third of a step. But batches of all lengths leave holes that nothing fits: 6 GB grew to 12 GB within 60
    updates. A trim costs a second of page faults, so it waits for ``slack`` bytes to gather. Linux only.
    """

    def __init__(self, slack: int = 5 * 2**30) -> None:
        self._slack = slack
        self._floor = 0

    def check(self) -> None:
        """Trim if the process holds ``slack`` bytes more than after the last trim; else it costs nothing."""
        if sys.platform != "linux":
            return
        if self._floor and _rss() - self._floor > self._slack:
            ctypes.CDLL(None).malloc_trim(0)
            self._floor = 0
        self._floor = self._floor or _rss()


def _rss() -> int:
    import psutil

    return int(psutil.Process().memory_info().rss)
