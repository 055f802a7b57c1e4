"""``make soak``: many mixed cells on one sandbox pool, with zygotes killed meanwhile, and nothing may grow.

Every cell's outcome is checked against the one its kind must have. Open descriptors, memory, processes,
zombies and scratch folders are counted when a tenth of the cells is done and again at the end, each time with
no cell running; the second count must not exceed the first. Where a zygote is killed, whatever it had started
must be gone within a second.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from apprentice.sandbox.isolation import Limits
from apprentice.sandbox.pool import SandboxPool

__all__ = ["KINDS", "Kind", "Snapshot", "SoakReport", "growth", "main", "soak"]

_LIMITS = Limits(wall_s=30.0, cpu_s=10.0, memory_bytes=128 << 20)
_MEMORY_SLACK = 16 << 20
"""Heaps settle: what a process may weigh more at the end than at the first count."""
_GONE_S = 1.0
_SETTLE_S = 10.0


@dataclass(frozen=True, slots=True)
class Kind:
    """Cells of one kind. ``outcomes``: those that are right; ``output``: what it must show, if that is fixed.

    ``weight``: of a hundred cells, so many are of this kind. ``cancel_s``: the caller gives up after so long.
    """

    name: str
    weight: int
    code: str
    outcomes: tuple[str, ...]
    output: str | None = None
    stdin: bytes = b""
    limits: Limits = _LIMITS
    cancel_s: float | None = None


_ORPHAN = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(20)
    os._exit(0)
"""
KINDS = (
    Kind("value", 30, "x = 2 ** 10\nx", ("ok",), "1024\n"),
    Kind("sympy", 6, "import sympy\nx = sympy.Symbol('x')\nsympy.solve(x**2 - 4, x)", ("ok",), "[-2, 2]\n"),
    Kind("numpy", 6, "import numpy as np\nnp.arange(10).sum()", ("ok",), "np.int64(45)\n"),
    Kind("printing", 8, "for i in range(2000): print(i, 'x' * 20)", ("ok",)),
    Kind("input", 4, "import sys\nlen(sys.stdin.read())", ("ok",), "200000\n", stdin=b"x" * 200_000),
    Kind("exception", 10, "print('a')\n1 / 0", ("error",), "a\n"),
    Kind("syntax", 4, "x = (1,", ("syntax_error",), ""),
    Kind("exit", 3, "import sys\nsys.exit(3)", ("exit",), ""),
    Kind("early exit", 3, "import os\nos._exit(0)", ("early_exit",), ""),
    Kind("crash", 4, "import ctypes\nctypes.string_at(0)", ("crash",), ""),
    Kind("flood", 5, "while True: print('x' * 10_000)", ("output_limit",)),
    Kind("memory", 4, "x = []\nwhile True: x.append(bytearray(10**7))", ("memory_limit",), ""),
    Kind(
        "sleep", 4, "import time\ntime.sleep(60)", ("timeout_wall",), "", limits=replace(_LIMITS, wall_s=0.3)
    ),
    Kind("loop", 1, "while True: pass", ("timeout_cpu",), "", limits=replace(_LIMITS, cpu_s=1.0)),
    # A level without forks refuses it; one with forks ends what it left.
    Kind("orphan", 4, _ORPHAN, ("ok", "error")),
    Kind("abandoned", 4, "import time\ntime.sleep(60)", (), cancel_s=0.05),
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the pool's process and all below it hold. ``memory`` in bytes: its own; the heaviest below it."""

    descriptors: int
    descriptors_below: int
    processes: int
    zombies: int
    memory: int
    memory_below: int
    folders: int


@dataclass(slots=True)
class SoakReport:
    """What a soak did, and everything that was wrong, in words; empty when all is well."""

    cells: int = 0
    level: str = ""
    seconds: float = 0.0
    killed: int = 0
    restarts: int = 0
    retried: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    before: Snapshot | None = None
    after: Snapshot | None = None
    problems: list[str] = field(default_factory=list)


def growth(before: Snapshot, after: Snapshot) -> list[str]:
    """What grew from one count to the next, in words."""
    slack = {"memory": _MEMORY_SLACK, "memory_below": _MEMORY_SLACK}
    return [
        f"{name} grew from {old} to {new}"
        for name, old in asdict(before).items()
        if (new := asdict(after)[name]) > old + slack.get(name, 0)
    ]


def _snapshot(folder: Path, others: Collection[psutil.Process]) -> Snapshot:
    """``others``: processes below this one that are none of the pool's."""
    me = psutil.Process()
    fds, zombies, weights = 0, 0, [0]
    below = [process for process in me.children(recursive=True) if process not in others]
    for process in below:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() == psutil.STATUS_ZOMBIE:
                zombies += 1
                continue
            fds += process.num_fds()
            weights.append(process.memory_info().rss)
    folders = len(list(folder.iterdir()))
    return Snapshot(me.num_fds(), fds, len(below), zombies, me.memory_info().rss, max(weights), folders)


def _alive(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    out = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                out.append(process)
    return out


class _Soak:
    def __init__(
        self, pool: SandboxPool, rng: random.Random, report: SoakReport, count: Callable[[], Snapshot]
    ) -> None:
        self._pool, self._rng, self._report, self._snapshot = pool, rng, report, count

    async def run(self, cells: int, at_once: int, kill_every: int) -> None:
        """That many cells, ``at_once`` of them at one time."""
        kinds = iter(self._rng.choices(KINDS, [kind.weight for kind in KINDS], k=cells))

        async def feed() -> None:
            for kind in kinds:
                self._report.cells += 1
                kills = bool(kill_every) and self._report.cells % kill_every == 0
                await asyncio.gather(self._cell(kind), *([self._kill_a_zygote()] if kills else []))

        await asyncio.gather(*(feed() for _ in range(at_once)))

    async def _cell(self, kind: Kind) -> None:
        call = asyncio.create_task(self._pool.run(kind.code, stdin=kind.stdin, limits=kind.limits))
        if kind.cancel_s is not None:
            await asyncio.sleep(kind.cancel_s)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            self._count("abandoned")
            return
        result = await call
        self._count(str(result.outcome))
        self._report.retried += result.attempts > 1
        wrong = kind.output is not None and result.output != kind.output
        if result.outcome not in kind.outcomes or wrong:
            self._report.problems.append(
                f"{kind.name}: {result.outcome} {result.detail!r} after {result.wall_s:.2f} s with output "
                f"{result.output[:80]!r} and traceback {result.traceback[-200:]!r}"
            )

    def _count(self, outcome: str) -> None:
        self._report.outcomes[outcome] = self._report.outcomes.get(outcome, 0) + 1

    async def _kill_a_zygote(self) -> None:
        if not (pids := self._pool.pids):
            return
        victim = self._rng.choice(pids)
        try:
            below = psutil.Process(victim).children(recursive=True)
            os.kill(victim, signal.SIGKILL)
        except (psutil.NoSuchProcess, ProcessLookupError):
            return
        self._report.killed += 1
        if self._report.level == "none":
            return  # a daemon of a cell lives on there: nothing but its zygote knew of it
        deadline = time.monotonic() + _GONE_S
        while left := _alive(below):
            if time.monotonic() > deadline:
                self._report.problems.append(f"{left} outlived a killed zygote by {_GONE_S:g} s")
                return
            await asyncio.sleep(0.02)

    async def settled(self, processes: int, workers: int) -> Snapshot:
        """A count once every zygote is up and nothing else is below, as far as that comes about in time."""
        deadline = time.monotonic() + _SETTLE_S
        while True:
            snapshot = self._snapshot()
            if (snapshot.processes == processes and not snapshot.zombies) or time.monotonic() > deadline:
                return snapshot
            # A zygote that was killed while idle is started again by the next cell it gets.
            await asyncio.gather(*(self._pool.run("1") for _ in range(workers)))


async def soak(
    cells: int, *, workers: int = 2, level: str = "none", seed: int = 0, kill_every: int = 150
) -> SoakReport:
    """Run ``cells`` mixed cells and report.

    Args:
        level: lowest isolation level accepted; the highest that the machine gives is taken.
        kill_every: after that many cells a zygote is killed; 0: never.
    """
    report, began = SoakReport(), time.monotonic()
    with _scratch() as folder:
        count = partial(_snapshot, folder, psutil.Process().children(recursive=True))
        empty = count()
        async with SandboxPool(workers, limits=_LIMITS, level=level) as pool:
            report.level = str(pool.level)
            soaking = _Soak(pool, random.Random(seed), report, count)
            processes = count().processes
            first = max(cells // 10, 8 * workers)
            await soaking.run(first, 4 * workers, kill_every)
            report.before = await soaking.settled(processes, workers)
            await soaking.run(cells - first, 4 * workers, kill_every)
            report.after = await soaking.settled(processes, workers)
            report.restarts = pool.metrics()["restarts"]
        closed = count()
    report.problems += growth(report.before, report.after)
    if report.after.zombies or report.after.processes != processes:
        report.problems.append(f"{processes} processes at the start, at the end {report.after}")
    if closed.processes > empty.processes or closed.folders:
        report.problems.append(f"the closed pool left {closed}")
    report.seconds = time.monotonic() - began
    return report


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """A folder of our own for temporary ones, so that only this pool's are counted."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="apprentice-soak-") as folder:
        tempfile.tempdir = folder
        try:
            yield Path(folder)
        finally:
            tempfile.tempdir = before


def main(argv: Sequence[str] | None = None) -> int:
    """Soak, print the report as JSON; 1 where anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m driver.bench.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=12_000, help="cells to run (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="cells at one time (default: %(default)s)")
    parser.add_argument(
        "--level", default="none", help="lowest isolation level accepted (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the order of kinds (default: %(default)s)")
    arguments = parser.parse_args(argv)
    report: dict[str, Any] = asdict(
        asyncio.run(
            soak(arguments.cells, workers=arguments.workers, level=arguments.level, seed=arguments.seed)
        )
    )
    print(json.dumps(report, indent=2))
    return 1 if report["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
