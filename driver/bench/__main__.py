"""``make bench``: the ratios that the project promises, measured in one run on this machine.

Prints a table and writes ``runs/bench.json``: a list of rows with ``name``, ``value``, ``unit``,
``reference`` (what it is compared with, measured in the same run), ``ratio``, ``target`` and ``meets``. Each
measurement runs in a process of its own, so that none inherits another's memory or threads. Rows that a run
does not measure (``python -m driver.bench learner``) are kept from the file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from apprentice.run_folder import write_json_atomic

__all__ = ["main"]

Rows = list[dict[str, Any]]
_DEADLINE_S = 1800.0


def _learner() -> Rows:
    from driver.bench.learner import bench_learner

    return bench_learner()


def _rollout() -> Rows:
    from driver.bench.rollout import measure_rollout

    with _private_ray():
        return measure_rollout()


def _sandbox() -> Rows:
    from driver.bench.sandbox import measure_sandbox

    return measure_sandbox()


def _verification() -> Rows:
    from driver.bench.verification import measure_verification

    return measure_verification()


def _weight_sync() -> Rows:
    from driver.bench.weight_sync import measure_weight_sync

    with _private_ray():
        return measure_weight_sync()


@contextlib.contextmanager
def _private_ray() -> Iterator[None]:
    import ray

    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


_BENCHES: dict[str, Callable[[], Rows]] = {
    "sandbox": _sandbox,
    "verification": _verification,
    "weight_sync": _weight_sync,
    "rollout": _rollout,
    "learner": _learner,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write; 1 when a target is missed or a measurement failed."""
    parser = argparse.ArgumentParser(prog="python -m driver.bench", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(_BENCHES)}; all without one")
    parser.add_argument("--out", default="runs/bench.json", help="file to write (default: %(default)s)")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # Ray reads it when it is imported
    unknown = [name for name in arguments.names if name not in _BENCHES]
    if unknown:
        parser.error(f"there is no measurement {unknown[0]!r}; there are {', '.join(_BENCHES)}")
    if arguments.child:
        write_json_atomic(Path(arguments.out), _BENCHES[arguments.names[0]]())
        return 0
    out = Path(arguments.out)
    rows: dict[str, dict[str, Any]] = {}
    if out.exists():
        rows = {row["name"]: row for row in json.loads(out.read_text())}
    failed = []
    for name in arguments.names or _BENCHES:
        began = time.monotonic()
        print(f"{name}: measuring", file=sys.stderr, flush=True)
        measured = _in_child(name, out)
        if measured is None:
            failed.append(name)
            continue
        rows |= {row["name"]: {**row, "bench": name} for row in measured}
        write_json_atomic(out, list(rows.values()))
        print(f"{name}: took {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    print(_table(list(rows.values())))
    missed = [row["name"] for row in rows.values() if row.get("meets") is False]
    for name in failed:
        print(f"failed: {name}", file=sys.stderr)
    return 1 if missed or failed else 0


def _in_child(name: str, out: Path) -> Rows | None:
    part = out.with_name(f"{out.stem}.{name}.json")
    command = [sys.executable, "-m", "driver.bench", name, "--child", "--out", str(part)]
    try:
        done = subprocess.run(command, timeout=_DEADLINE_S, check=False)
        rows: Rows | None = json.loads(part.read_text()) if done.returncode == 0 else None
    except subprocess.TimeoutExpired:
        rows = None
    part.unlink(missing_ok=True)
    return rows


def _table(rows: Rows) -> str:
    head = ("measurement", "value", "unit", "reference", "ratio", "target", "meets")
    lines = [head, *(tuple(_cell(row.get(key)) for key in ("name", *head[1:])) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    text = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([text[0], "-" * len(text[0]), *text[1:]])


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
