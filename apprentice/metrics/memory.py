"""Peak memory of a whole run: this process and all its descendants, shared pages counted once.

The figure is, at the worst sample,

    sum over processes of (PSS without shared memory) + max(PSS of shared memory, growth of /dev/shm)

PSS (``/proc/<pid>/smaps_rollup``) divides a page by the number of processes that map it, so summing it counts
libraries once, where a sum of RSS would count them once a process. Pages of ``/dev/shm`` (Ray's object store,
weight-sync files) take memory whether or not a process of ours maps them, so they are counted by the file
system's own use since the sampler started; mapped ones are in both terms of the max, so not added twice.
Reading PSS makes the kernel walk page tables (some 10 to 50 ms a GiB), so full samples take at most 2 % of
the time. Between them every second a quick one (anonymous memory and ``/dev/shm``, which are mere counters)
is corrected by the difference that the last full sample showed.

What this misses: peaks between two samples, page cache, and processes that are not descendants (workers of a
Ray cluster that was already running: pass their raylet's pid as a further root).

Linux only; elsewhere the peak is 0.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

__all__ = ["MemorySampler", "descendants", "memory_now", "quick_memory_now"]

_PROC = Path("/proc")
_SHM = Path("/dev/shm")


def descendants(roots: Iterable[int], proc: Path = _PROC) -> set[int]:
    """``roots`` and every process below them that exists now."""
    children: dict[int, list[int]] = {}
    for entry in proc.iterdir() if proc.is_dir() else ():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:  # ended meanwhile
            continue
        # The command name may hold spaces and parentheses; the fields after the last ')' are fixed.
        parent = int(stat.rpartition(")")[2].split()[1])
        children.setdefault(parent, []).append(int(entry.name))
    found: set[int] = set()
    queue = list(roots)
    while queue:
        pid = queue.pop()
        if pid not in found:
            found.add(pid)
            queue.extend(children.get(pid, ()))
    return found


def memory_now(roots: Iterable[int], shm_baseline: int = 0, proc: Path = _PROC, shm: Path = _SHM) -> int:
    """Bytes in use now by the process trees of ``roots`` (see the module's docstring).

    Args:
        roots: process ids.
        shm_baseline: bytes of ``/dev/shm`` that were in use before the run and are not its own.
        proc, shm: where to look; for tests.
    """
    private = shared = 0
    for pid in descendants(roots, proc):
        pss, pss_shared = _pss(proc / str(pid))
        private += pss - pss_shared
        shared += pss_shared
    return private + max(shared, shm_used(shm) - shm_baseline)


def shm_used(shm: Path = _SHM) -> int:
    """Bytes in use of the file system at ``/dev/shm``, deleted but open files included; 0 without one."""
    try:
        stat = os.statvfs(shm)
    except OSError:
        return 0
    return (stat.f_blocks - stat.f_bfree) * stat.f_frsize


def _pss(process: Path) -> tuple[int, int]:
    """PSS and its shared-memory part, in bytes; RSS where PSS may not be read; zeros when it ended."""
    try:
        values = _kib_fields((process / "smaps_rollup").read_text())
        return values["Pss"] * 1024, values.get("Pss_Shmem", 0) * 1024
    except (OSError, KeyError):  # ended, or another user's process
        pass
    try:
        values = _kib_fields((process / "status").read_text())
    except OSError:
        return 0, 0
    return values.get("VmRSS", 0) * 1024, values.get("RssShmem", 0) * 1024


def _kib_fields(text: str) -> dict[str, int]:
    fields = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if rest.endswith(" kB"):
            fields[name] = int(rest[:-3])
    return fields


def quick_memory_now(
    roots: Iterable[int], shm_baseline: int = 0, proc: Path = _PROC, shm: Path = _SHM
) -> int:
    """Like :func:`memory_now` without files, and with pages shared after a fork counted in each process.

    Costs about 10 ms, whatever the size of the processes. By itself off by about the libraries' size.
    """
    anonymous = 0
    for pid in descendants(roots, proc):
        try:
            anonymous += _kib_fields((proc / str(pid) / "status").read_text()).get("RssAnon", 0) * 1024
        except OSError:  # ended meanwhile
            continue
    return anonymous + max(0, shm_used(shm) - shm_baseline)


class MemorySampler:
    """Samples in a background thread until :meth:`stop`.

    Args:
        roots: process ids whose trees are counted; this process when left out.
        interval_s: seconds between samples.
        full_share: largest share of the time that full samples may take.
    """

    def __init__(
        self, roots: Iterable[int] | None = None, interval_s: float = 1.0, full_share: float = 0.02
    ) -> None:
        self._roots = [os.getpid()] if roots is None else list(roots)
        self._interval = interval_s
        self._full_share = full_share
        self._baseline = shm_used()
        self._peak = 0
        self._correction = 0  # full less quick, at the last full sample
        self._next_full = 0.0
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-sampler", daemon=True)

    @property
    def peak_bytes(self) -> int:
        """The highest sample so far."""
        return self._peak

    def start(self) -> MemorySampler:
        """Take a first sample and go on in the background."""
        self.sample()
        self._thread.start()
        return self

    def add_root(self, pid: int) -> None:
        """Count the tree of one more process from now on (e.g. a raylet that is no child of ours)."""
        self._roots = [*self._roots, pid]

    def sample(self, *, full: bool = True) -> int:
        """Take one sample now; returns it in bytes."""
        if not _PROC.is_dir():
            return 0
        now = quick_memory_now(self._roots, self._baseline)
        if full:
            began = time.monotonic()
            exact = memory_now(self._roots, self._baseline)
            ended = time.monotonic()
            self._next_full = ended + (ended - began) / self._full_share
            self._correction = exact - now
        now += self._correction
        self._peak = max(self._peak, now)
        return now

    def _run(self) -> None:
        while not self._wake.wait(self._interval):
            self.sample(full=time.monotonic() >= self._next_full)

    def stop(self) -> int:
        """Take a last sample, end the thread and return the peak in bytes. Twice gives the same."""
        if not self._wake.is_set():
            self._wake.set()
            if self._thread.is_alive():
                self._thread.join(timeout=10.0)  # it is a daemon: a stuck read must not hold the run
            self.sample()
        return self._peak

    def __enter__(self) -> MemorySampler:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
