"""The sandbox: a warm cell against a bare fork, cells a second, verdicts while cells compete for cores."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

import apprentice
from apprentice.sandbox.isolation import Limits
from apprentice.sandbox.pool import IMPORTS, SandboxPool

__all__ = ["measure_sandbox"]

_LATENCIES = 400
_CELLS = 1500
_WARM_UP = 40
_CELL = "x = 6\nx * 7"
_SHOWN = "42\n"
_BUSY = "import time\nwhile time.process_time() < {cpu_s}: pass\nprint('done')"
_BUSY_S, _BUSY_LIMIT_S, _BUSY_CELLS, _CORES = 0.5, 1.5, 8, 2

# What a zygote of the sandbox is, without supervision and isolation: the same imports, one fork a line of
# standard input, rlimits, the cell, its output read to the end, the child reaped. Answers with the seconds.
_BARE = """
import gc, json, os, resource, sys, time
sys.path.insert(0, {root!r})
from apprentice.sandbox import zygote
for name in {imports!r}:
    __import__(name)
zygote._warm()
gc.collect(); gc.freeze(); gc.disable()
base = zygote._address_space()
limits = {limits!r}
for line in sys.stdin:
    code = json.loads(line)
    began = time.perf_counter()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(write, 1)
        sys.stdout = open(1, "w", closefd=False)
        for what, value in (
            (resource.RLIMIT_CORE, 0), (resource.RLIMIT_CPU, int(limits["cpu_s"])),
            (resource.RLIMIT_FSIZE, limits["file_bytes"]), (resource.RLIMIT_NOFILE, limits["open_files"]),
            (resource.RLIMIT_AS, base + limits["memory_bytes"]),
        ):
            resource.setrlimit(what, (value, value))
        *body, last = code.splitlines()
        exec(compile("\\n".join(body), "<cell>", "exec"), names := {{}})
        exec(compile(last, "<cell>", "single"), names)
        sys.stdout.flush()
        os._exit(0)
    os.close(write)
    output = bytearray()
    while part := os.read(read, 65536):
        output += part
    os.close(read)
    os.waitpid(pid, 0)
    seconds = time.perf_counter() - began
    print(json.dumps([seconds, output.decode()]), flush=True)
"""


class _BareZygote:
    """A process that forks for every cell and does nothing else; the reference of the latency rows."""

    def __init__(self, limits: Limits) -> None:
        root = str(Path(apprentice.__file__).resolve().parent.parent)
        code = _BARE.format(root=root, imports=list(IMPORTS), limits=asdict(limits))
        self._process = subprocess.Popen(
            [sys.executable, "-s", "-P", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                "PATH": "/usr/bin:/bin",
                "PYTHONHASHSEED": "0",
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
            },
        )

    def __enter__(self) -> _BareZygote:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30.0)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def run(self, code: str) -> float:
        """Seconds from before the fork to after the reaping, as the forking process sees them."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()
        seconds, output = json.loads(self._process.stdout.readline())
        if output != _SHOWN:
            raise RuntimeError(f"the bare fork printed {output!r}, not {_SHOWN!r}")
        return float(seconds)


def measure_sandbox() -> list[dict[str, Any]]:
    """Rows of the benchmark's table, at the highest isolation level that this machine gives."""
    return asyncio.run(_measure())


async def _measure() -> list[dict[str, Any]]:
    level, rows = await _latency()
    return [
        {
            "name": "sandbox: isolation level",
            "value": level,
            "unit": "level",
            "reference": None,
            "ratio": None,
            "target": "A",
            "meets": level == "A",
        },
        *rows,
        await _throughput(),
        await _verdicts(),
    ]


async def _latency() -> tuple[str, list[dict[str, Any]]]:
    """One cell after another, each beside a bare fork, so that both meet the same machine."""
    bare, ours = [], []
    async with SandboxPool(1, level="none") as pool:
        with _BareZygote(pool.limits) as zygote:
            for i in range(_WARM_UP + _LATENCIES):
                reference = zygote.run(_CELL)
                began = time.perf_counter()
                result = await pool.run(_CELL)
                seconds = time.perf_counter() - began
                if result.output != _SHOWN:
                    raise RuntimeError(f"a cell ended with {result}")
                if i >= _WARM_UP:
                    bare.append(1000 * reference)
                    ours.append(1000 * seconds)
        level = str(pool.level)
    (half, most), (bare_half, bare_most) = _quantiles(ours), _quantiles(bare)
    return level, [
        _latency_row("p50 of a warm cell, against a bare fork with rlimits", half, bare_half, 3.0),
        _latency_row("p95 of a warm cell, against a bare fork with rlimits", most, bare_most, None),
        {
            "name": "sandbox: p50 of a warm cell",
            "value": half,
            "unit": "ms",
            "reference": None,
            "ratio": None,
            "target": 12.0,
            "meets": half <= 12.0,
        },
    ]


def _quantiles(values: list[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(values, n=20, method="inclusive")
    return cuts[9], cuts[18]


def _latency_row(what: str, value: float, reference: float, target: float | None) -> dict[str, Any]:
    return {
        "name": f"sandbox: {what}",
        "value": value,
        "unit": "ms",
        "reference": reference,
        "ratio": value / reference,
        "target": target,
        "meets": None if target is None else value / reference <= target,
    }


async def _throughput() -> dict[str, Any]:
    async with SandboxPool(2, level="none") as pool:
        await asyncio.gather(*(pool.run(_CELL) for _ in range(_WARM_UP)))
        began = time.perf_counter()
        results = await asyncio.gather(*(pool.run(_CELL) for _ in range(_CELLS)))
        rate = _CELLS / (time.perf_counter() - began)
    if any(result.output != _SHOWN for result in results):
        raise RuntimeError("a cell gave another answer under load")
    return {
        "name": "sandbox: cells a second with two workers",
        "value": rate,
        "unit": "1/s",
        "reference": None,
        "ratio": None,
        "target": 150.0,
        "meets": rate >= 150.0,
    }


async def _verdicts() -> dict[str, Any]:
    """Cells that need 0.5 s of a core, all at one time, with a wall limit of 1.5 s; the reference lets every
    one of them start at once."""
    gated, ungated = await _right_of(_CORES), await _right_of(_BUSY_CELLS)
    return {
        "name": f"sandbox: right verdicts of {_BUSY_CELLS} cells of {_BUSY_S} s under {_BUSY_LIMIT_S} s",
        "value": gated,
        "unit": f"of {_BUSY_CELLS}",
        "reference": ungated,
        "ratio": None,
        "target": _BUSY_CELLS,
        "meets": gated == _BUSY_CELLS,
    }


async def _right_of(workers: int) -> int:
    code = _BUSY.format(cpu_s=_BUSY_S)
    async with SandboxPool(workers, level="none") as pool:
        results = await asyncio.gather(*(pool.run(code, timeout=_BUSY_LIMIT_S) for _ in range(_BUSY_CELLS)))
    return sum(result.ok and result.output == "done\n" for result in results)
