"""The sandbox's rows of the benchmark, with few cells: their shape and their reference, not their speed."""

from __future__ import annotations

import pytest

from apprentice.sandbox.isolation import Limits
from driver.bench import sandbox as bench

pytestmark = pytest.mark.unit


def test_every_row_is_measured_and_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    async def right_of(workers: int) -> int:
        asked.append(workers)
        return 8 if workers == 2 else 3

    monkeypatch.setattr(bench, "_LATENCIES", 6)
    monkeypatch.setattr(bench, "_WARM_UP", 2)
    monkeypatch.setattr(bench, "_CELLS", 12)
    monkeypatch.setattr(bench, "_right_of", right_of)
    rows = {row["name"].removeprefix("sandbox: "): row for row in bench.measure_sandbox()}
    assert list(rows) == [
        "isolation level",
        "p50 of a warm cell, against a bare fork with rlimits",
        "p95 of a warm cell, against a bare fork with rlimits",
        "p50 of a warm cell",
        "cells a second with two workers",
        "right verdicts of 8 cells of 0.5 s under 1.5 s",
    ]
    level, half, most, absolute, rate, verdicts = rows.values()
    assert level["value"] in ("A", "B", "none") and level["meets"] == (level["value"] == "A")
    assert half["value"] > half["reference"] > 0.5, "a fork takes a millisecond or two; a cell more"
    assert half["ratio"] == pytest.approx(half["value"] / half["reference"])
    assert half["meets"] == (half["ratio"] <= 3.0)
    assert most["value"] >= half["value"] and most["meets"] is None
    assert absolute["value"] == half["value"] and absolute["meets"] == (half["value"] <= 12.0)
    assert rate["value"] > 1.0 and rate["meets"] == (rate["value"] >= 150.0)
    assert asked == [2, 8], "gated to the cores, and all at once"
    assert (verdicts["value"], verdicts["reference"], verdicts["meets"]) == (8, 3, True)


def test_quantiles() -> None:
    assert bench._quantiles([float(i) for i in range(101)]) == (50.0, 95.0)


def test_the_bare_fork_runs_the_cell_under_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench._BareZygote(Limits(memory_bytes=64 << 20)) as zygote:
        assert 0.0 < zygote.run(bench._CELL) < 10.0
        with pytest.raises(RuntimeError, match="not '42"):
            zygote.run("x = 6\nx * 8")
        with pytest.raises(RuntimeError, match="printed ''"):
            zygote.run("x = bytearray(200 << 20)\n42")
