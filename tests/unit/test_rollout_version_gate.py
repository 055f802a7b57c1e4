"""The order of sampling and weight updates."""

from __future__ import annotations

import asyncio

import pytest

from apprentice.errors import StaleEngineError, WeightSyncError
from apprentice.rollout.version_gate import VersionGate

pytestmark = pytest.mark.unit


async def sample(gate: VersionGate, seconds: float = 0.0) -> int:
    async with gate.sampling() as version:
        await asyncio.sleep(seconds)
        return version


async def test_a_fresh_engine_is_stale_until_its_first_sync() -> None:
    gate = VersionGate("rollout-0")
    with pytest.raises(StaleEngineError, match=r"rollout-0 is stale.*not been synchronized"):
        await sample(gate)
    async with gate.updating(4, 5.0):
        pass
    assert await sample(gate) == 4


async def test_an_engine_told_its_checkpoints_version_serves() -> None:
    gate = VersionGate("rollout-0")
    gate.adopt(0)
    assert await sample(gate) == 0
    assert await sample(VersionGate("rollout-1", 7)) == 7


async def test_a_failed_update_leaves_the_engine_stale_until_one_succeeds() -> None:
    gate = VersionGate("w", 0)
    with pytest.raises(RuntimeError, match="boom"):
        async with gate.updating(1, 5.0):
            raise RuntimeError("boom")
    assert gate.version is None
    with pytest.raises(StaleEngineError, match="boom"):
        await sample(gate)
    async with gate.updating(1, 5.0):
        pass
    assert await sample(gate) == 1


async def test_an_update_waits_for_generations_in_flight_and_holds_back_new_ones() -> None:
    gate = VersionGate("w", 0)
    order: list[str] = []
    running = asyncio.create_task(sample(gate, 0.05))
    await asyncio.sleep(0.01)

    async def update() -> None:
        async with gate.updating(1, 5.0):
            order.append(f"update with {gate.in_flight} in flight")
            await asyncio.sleep(0.02)

    updating = asyncio.create_task(update())
    await asyncio.sleep(0.01)
    while_draining = asyncio.create_task(sample(gate))
    assert await running == 0
    await asyncio.sleep(0.005)
    assert order, "the update is loading"
    assert gate.version is None
    while_loading = asyncio.create_task(sample(gate))
    assert (await while_draining, await while_loading) == (1, 1)
    await updating
    assert order == ["update with 0 in flight"]


async def test_overlapping_updates_take_turns_and_both_finish() -> None:
    """F13."""
    gate = VersionGate("w", 0)
    inside = 0

    async def update(version: int) -> None:
        nonlocal inside
        async with gate.updating(version, 5.0):
            inside += 1
            assert inside == 1
            await asyncio.sleep(0.01)
            inside -= 1

    await asyncio.gather(update(1), update(2))
    assert gate.version == 2


async def test_a_generation_that_never_ends_fails_the_update_by_its_deadline() -> None:
    gate = VersionGate("rollout-0", 0)
    stuck = asyncio.create_task(sample(gate, 60))
    await asyncio.sleep(0.01)
    with pytest.raises(WeightSyncError, match=r"rollout-0 did not take policy version 1 .*1 generations"):
        async with gate.updating(1, 0.05):
            pytest.fail("the update must not begin")
    assert gate.version is None, "an engine that missed a sync serves nothing"
    stuck.cancel()
    async with gate.updating(2, 1.0):
        pass
    assert await sample(gate) == 2


async def test_loading_past_the_deadline_is_cut_and_leaves_the_engine_stale() -> None:
    gate = VersionGate("w", 0)
    with pytest.raises(WeightSyncError, match=r"within 0\.05 s"):
        async with gate.updating(1, 0.05):
            await asyncio.sleep(60)
    assert gate.version is None


async def test_an_update_that_nobody_ends_fails_by_itself_and_waiters_hear_of_it() -> None:
    """A learner that dies between begin and commit must not park the engine forever."""
    gate = VersionGate("w", 0)
    await gate.begin(1, 0.05)
    waiting = asyncio.create_task(sample(gate))
    with pytest.raises(StaleEngineError):
        await asyncio.wait_for(waiting, 5.0)
    with pytest.raises(WeightSyncError, match="no update is under way"):
        gate.commit()
    async with gate.updating(2, 1.0):
        pass
    assert gate.version == 2


async def test_a_cancelled_update_leaves_the_gate_usable() -> None:
    gate = VersionGate("w", 0)
    stuck = asyncio.create_task(sample(gate, 60))
    await asyncio.sleep(0.01)

    async def update() -> None:
        async with gate.updating(1, 60.0):
            pass

    task = asyncio.create_task(update())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    stuck.cancel()
    assert gate.version is None
    async with gate.updating(1, 1.0):
        pass
    assert gate.version == 1


async def test_an_engine_marked_stale_serves_nothing() -> None:
    gate = VersionGate("w", 3)
    gate.mark_stale("the driver says so")
    with pytest.raises(StaleEngineError, match="the driver says so"):
        await sample(gate)
    with pytest.raises(ValueError, match="versions start at 0"):
        gate.adopt(-1)
