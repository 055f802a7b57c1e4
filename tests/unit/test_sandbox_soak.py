"""The soak, briefly; `make soak` runs it long. And that it would notice what it looks for."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from apprentice.sandbox.pool import SandboxPool
from driver.bench import soak as soaking
from driver.bench.soak import KINDS, Kind, Snapshot, growth, soak

pytestmark = pytest.mark.unit

SNAPSHOT = Snapshot(10, 44, 4, 0, 30 << 20, 75 << 20, 0)


async def test_mixed_cells_and_killed_zygotes_leave_nothing_behind() -> None:
    report = await soak(200, kill_every=70)
    assert report.problems == []
    assert (report.cells, report.killed) == (200, 2)
    assert report.restarts >= 1
    counted = {"ok", "error", "syntax_error", "exit", "early_exit", "crash", "output_limit", "memory_limit"}
    assert counted | {"timeout_wall", "abandoned"} <= set(report.outcomes)
    assert sum(report.outcomes.values()) == 200


def test_weights_are_shares_of_a_hundred() -> None:
    assert sum(kind.weight for kind in KINDS) == 100


@pytest.mark.parametrize(
    ("changes", "problems"),
    [
        ({}, []),
        ({"memory": 45 << 20, "memory_below": 90 << 20}, []),
        ({"descriptors": 11}, ["descriptors grew from 10 to 11"]),
        ({"descriptors_below": 45}, ["descriptors_below grew from 44 to 45"]),
        ({"processes": 5, "zombies": 1}, ["processes grew from 4 to 5", "zombies grew from 0 to 1"]),
        ({"folders": 1}, ["folders grew from 0 to 1"]),
        ({"memory": 47 << 20}, [f"memory grew from {30 << 20} to {47 << 20}"]),
        ({"memory_below": 92 << 20}, [f"memory_below grew from {75 << 20} to {92 << 20}"]),
        ({"descriptors": 9, "processes": 3}, []),
    ],
)
def test_growth_is_named(changes: dict[str, int], problems: list[str]) -> None:
    assert growth(SNAPSHOT, replace(SNAPSHOT, **changes)) == problems


async def test_a_wrong_verdict_and_a_leak_are_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = (Kind("right", 1, "1", ("ok",), "1\n"), Kind("wrong", 1, "2", ("ok",), "1\n"))
    monkeypatch.setattr(soaking, "KINDS", wrong)
    leaked = []
    run = SandboxPool._run

    async def leaking(self, *arguments):  # type: ignore[no-untyped-def]
        leaked.append(await asyncio.to_thread(open, "/dev/null"))
        return await run(self, *arguments)

    monkeypatch.setattr(SandboxPool, "_run", leaking)
    try:
        report = await soak(60, workers=1, kill_every=0)
    finally:
        for file in leaked:
            file.close()
    assert any(
        problem.startswith("wrong: ok '' after") and "'2\\n'" in problem for problem in report.problems
    )
    assert not any(problem.startswith("right") for problem in report.problems)
    assert any(problem.startswith("descriptors grew from") for problem in report.problems)
