"""Driving one episode against ports."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from apprentice.config.schema import SamplingConfig
from apprentice.episodes.actions import CallExpert, Generate, Generated
from apprentice.errors import EngineError, ExpertError, SandboxError, StaleEngineError
from apprentice.rollout.runner import run_episode
from apprentice.rollout.seeds import derive_seed
from apprentice.rollout.types import RolloutCounters
from apprentice.trajectory import Owner, Status
from tests.rollout_fakes import EchoExpert, EchoPython, FakeSampler, TurnsEpisode, problem

pytestmark = pytest.mark.unit


def episode(**options: object) -> TurnsEpisode:
    fields = {"trajectory_id": "t", "group_id": "g", "seed": 0, "max_rollout_tokens": None}
    return TurnsEpisode(problem("p"), mode="collaborative", **fields, **options)  # type: ignore[arg-type]


async def play(**ports: object):
    counters = RolloutCounters()
    given = {"sampler": FakeSampler(), "experts": EchoExpert(), "python": EchoPython(), "seed": 9} | ports
    trajectory = await run_episode(
        episode(),
        sampling=SamplingConfig(),
        counters=counters,
        **given,  # type: ignore[arg-type]
    )
    return trajectory, counters


async def test_an_episode_keeps_the_sampled_ids_logprobs_and_version_exactly() -> None:
    """C01: what the engine sampled is what the trajectory holds and what the next prompt starts with."""
    sampler = FakeSampler()
    trajectory, counters = await play(sampler=sampler)
    assert trajectory.status is Status.COMPLETE
    sampled = trajectory.owner == Owner.CONTROLLER
    assert trajectory.token_ids[sampled].tolist() == [11, 5] * 3
    assert trajectory.logprob[sampled].tolist() == [-0.5, -0.25] * 3
    assert trajectory.policy_version[sampled].tolist() == [3] * 6
    assert np.isnan(trajectory.logprob[~sampled]).all()
    # prompt 1 2 3, then after each turn its ids and the reply's: next = prompt + completion + suffix
    assert [tuple(r.prompt_ids) for r in sampler.requests] == [
        (1, 2, 3),
        (1, 2, 3, 11, 5, 7, 8),
        (1, 2, 3, 11, 5, 7, 8, 11, 5, 7, 8),
    ]
    assert (counters.generations, counters.sampled_tokens, counters.prompt_tokens) == (3, 6, 3 + 7 + 11)


async def test_every_generation_draws_with_its_own_seed() -> None:
    sampler = FakeSampler()
    await play(sampler=sampler)
    assert sampler.seeds == [derive_seed(9, "generation", i) for i in range(3)]
    assert len(set(sampler.seeds)) == 3


async def test_an_unseeded_run_draws_unseeded() -> None:
    sampler = FakeSampler()
    await play(sampler=sampler, seed=None)
    assert sampler.seeds == [None, None, None]


async def test_a_failed_expert_ends_the_episode_unusable_and_is_counted_by_kind() -> None:
    def fails(request: CallExpert) -> None:
        raise ExpertError("no answer", kind="timeout", expert="wise")

    trajectory, counters = await play(experts=EchoExpert(fails))
    assert trajectory.status is Status.UNUSABLE
    assert trajectory.status_reason == "expert wise: timeout"
    assert counters.expert_failures == {"wise:timeout": 1}
    assert trajectory.reward is None


async def test_a_failed_sandbox_ends_the_episode_unusable() -> None:
    def fails(code: str) -> None:
        raise SandboxError("pool is gone")

    trajectory, _ = await play(python=EchoPython(fails))
    assert (trajectory.status, trajectory.status_reason) == (Status.UNUSABLE, "sandbox: pool is gone")
    assert len(trajectory) == 3 + 2 + 2 + 2  # what it had until then stays


@pytest.mark.parametrize("error", [EngineError("dead"), StaleEngineError("stale")])
async def test_a_failed_engine_ends_the_episode_unusable(error: EngineError) -> None:
    def reply(request: Generate, seed: int | None) -> Generated:
        raise error

    trajectory, counters = await play(sampler=FakeSampler(reply))
    assert (trajectory.status, trajectory.status_reason) == (Status.UNUSABLE, f"engine: {error}")
    assert counters.generations == 0


async def test_a_fault_of_our_own_is_not_dressed_up_as_infrastructure() -> None:
    def fails(code: str) -> None:
        raise TypeError("a bug")

    with pytest.raises(TypeError, match="a bug"):
        await play(python=EchoPython(fails))


async def test_cancelling_passes_through_to_the_port() -> None:
    seen = []

    class Slow:
        async def run(self, code: str):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                seen.append("released")
                raise

    task = asyncio.create_task(play(python=Slow()))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["released"]


def test_seeds_are_fixed_numbers_and_separate_their_parts() -> None:
    """SHA-256 of length-prefixed parts, computed here by hand; the same in every process."""
    import hashlib

    data = b"".join(len(t).to_bytes(8, "big") + t for t in (b"int:66", b"str:p"))
    assert derive_seed(66, "p") == int.from_bytes(hashlib.sha256(data).digest()[:8], "big") >> 1
    assert derive_seed(1, "23") != derive_seed(12, "3")
    assert derive_seed(1, 2) != derive_seed("1", "2")
    assert 0 <= derive_seed("x") < 2**63
