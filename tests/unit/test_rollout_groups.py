"""Groups: n usable samples of one problem instance, or none."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from apprentice.config.schema import SamplingConfig
from apprentice.data.problem import Problem
from apprentice.errors import SandboxError
from apprentice.rollout.groups import GroupSpec, sample_group, score
from apprentice.rollout.ports import Verdict
from apprentice.rollout.types import (
    RolloutCounters,
    RolloutRequest,
    RolloutResult,
    merge_results,
    number_groups,
    split_rollouts,
)
from apprentice.trajectory import SCHEMA, Owner, Status, Trajectory, TrajectoryBuilder
from tests.rollout_fakes import EqualityVerifier, problem

pytestmark = pytest.mark.unit


class Stub:
    """Stands for an episode: remembers its id and seed."""

    def __init__(self, trajectory_id: str, seed: int) -> None:
        self.trajectory_id, self.seed = trajectory_id, seed


def trajectory(
    stub: Stub, status: Status = Status.COMPLETE, reason: str = "", text: str = "so 2"
) -> Trajectory:
    builder = TrajectoryBuilder()
    builder.append([1], Owner.PROMPT, "prompt")
    return builder.build(
        trajectory_id=stub.trajectory_id,
        problem_id="p",
        group_id="g",
        mode="collaborative",
        status=status,
        status_reason=reason,
        final_text=text,
    )


async def sample(
    play, *, samples=4, replacements=2, limit=8, verifier=None, seed=66, group_id="0:p#0", done=None
):
    counters = RolloutCounters()
    limiter = asyncio.Semaphore(limit)
    group = await asyncio.wait_for(
        sample_group(
            GroupSpec(problem("p"), group_id, samples, replacements, seed, step=1),
            new_episode=Stub,  # type: ignore[arg-type]
            play=play,
            limiter=limiter,
            counters=counters,
            verifier=verifier or EqualityVerifier(),
            on_episode=(lambda: done.append(1)) if done is not None else (lambda: None),
        ),
        timeout=10,
    )
    assert not limiter.locked(), "every place was given back"
    assert limiter._value == limit
    return group, counters


async def test_one_unusable_rollout_is_replaced_by_a_fresh_sample() -> None:
    """F09: 16 rollouts, one fails."""
    seen: list[str] = []

    async def play(episode, seed):
        seen.append(episode.trajectory_id)
        if episode.trajectory_id == "0:p#0/5.0":
            return trajectory(episode, Status.UNUSABLE, "expert wise: timeout: no answer")
        return trajectory(episode)

    group, counters = await sample(play, samples=16)
    assert [t.trajectory_id for t in group] == [f"0:p#0/{i}.{1 if i == 5 else 0}" for i in range(16)]
    assert len(seen) == 17
    assert (counters.episodes, counters.replaced, counters.dropped_groups) == (16, 1, 0)
    assert counters.unusable == {"expert": 1}
    assert [t.reward for t in group] == [1.0] * 16


async def test_a_rollout_that_raises_is_replaced_and_counted_by_type() -> None:
    """F09: whatever one rollout raises, the step goes on; the type shows in the counters."""
    failures = {"0:p#0/0.0"}

    async def play(episode, seed):
        if episode.trajectory_id in failures:
            raise IndexError("odd sample")
        return trajectory(episode)

    group, counters = await sample(play)
    assert len(group) == 4
    assert counters.unusable == {"error:IndexError": 1}


async def test_a_sample_past_its_budget_drops_its_whole_group_and_releases_everything() -> None:
    """F09, F11: never a short group, never an endless one, and no place is kept."""
    tried: Counter[str] = Counter()
    cancelled = []

    async def play(episode, seed):
        index = episode.trajectory_id.split("/")[1].split(".")[0]
        tried[index] += 1
        if index == "0":
            return trajectory(episode, Status.UNUSABLE, "sandbox: gone")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(index)
            raise

    done: list[int] = []
    group, counters = await sample(play, done=done)
    assert group == ()
    assert tried["0"] == 3  # one sample and two replacements
    assert sorted(cancelled) == ["1", "2", "3"]
    assert (counters.groups, counters.dropped_groups, counters.replaced) == (1, 1, 2)
    assert counters.unusable == {"sandbox": 3}
    assert len(done) == 4, "progress counts a dropped group as done"


async def test_no_more_episodes_run_at_a_time_than_there_are_places() -> None:
    now = peak = 0

    async def play(episode, seed):
        nonlocal now, peak
        now += 1
        peak = max(peak, now)
        await asyncio.sleep(0.001)
        now -= 1
        return trajectory(episode)

    group, _ = await sample(play, samples=12, limit=3)
    assert len(group) == 12
    assert peak == 3


async def test_seeds_differ_by_sample_attempt_group_and_run_and_by_nothing_else() -> None:
    async def seeds(**options) -> list[tuple[int | None, int]]:
        seen = []

        async def play(episode, seed):
            seen.append((seed, episode.seed))
            if episode.trajectory_id.endswith("1.0"):
                return trajectory(episode, Status.UNUSABLE, "engine: x")
            return trajectory(episode)

        await sample(play, **options)
        return seen

    first = await seeds()
    assert len({seed for pair in first for seed in pair}) == 10  # 5 plays, two seeds each
    assert await seeds() == first
    assert not set(await seeds(seed=67)) & set(first)
    assert not set(await seeds(group_id="0:p#1")) & set(first), "a twin is sampled, not copied"
    assert [seed for seed, _ in await seeds(seed=None)] == [None] * 5


async def test_rewards_are_plus_and_minus_one_and_a_timeout_is_wrong_but_visible() -> None:
    async def play(episode, seed):
        text = {"0": "so 2", "1": "so 3", "2": "never"}[episode.trajectory_id.split("/")[1][0]]
        return trajectory(episode, text=text)

    group, counters = await sample(play, samples=3)
    assert [(t.reward, t.verdict, t.answer) for t in group] == [
        (1.0, "correct", "2"),
        (-1.0, "wrong", "3"),
        (-1.0, "timeout", None),
    ]
    assert counters.verdicts == {"correct": 1, "wrong": 1, "timeout": 1}


async def test_a_truncated_rollout_is_scored_as_it_stands() -> None:
    """G11: a length cut is no failure of infrastructure; an answer given at the limit keeps its reward."""

    async def play(episode, seed):
        text = "so 2" if "/0." in episode.trajectory_id else ""
        return trajectory(episode, Status.TRUNCATED, "truncated_length", text=text or "cut")

    group, counters = await sample(play, samples=2)
    assert [t.reward for t in group] == [1.0, -1.0]
    assert not counters.unusable


async def test_a_verifier_that_breaks_makes_the_rollout_unusable_not_wrong() -> None:
    class Broken:
        async def verify(self, response: str, problem: Problem) -> Verdict:
            raise SandboxError("no verifier")

    async def play(episode, seed):
        return trajectory(episode)

    group, counters = await sample(play, samples=2, verifier=Broken())
    assert group == ()
    assert counters.unusable["verifier"] >= 3
    assert counters.episodes == 0


async def test_unverified_rollouts_have_no_reward() -> None:
    scored = await score(trajectory(Stub("t", 0)), problem("p"), EqualityVerifier(), RolloutCounters())
    assert scored.reward == 1.0
    assert trajectory(Stub("t", 0)).reward is None


def test_twins_are_groups_of_their_own() -> None:
    """D21: 4 prompts, two of them the same text and even the same id."""
    twins = [problem("a"), problem("b", "same"), problem("c", "same"), problem("a")]
    assert number_groups(twins, "7:") == ("7:a#0", "7:b#0", "7:c#0", "7:a#1")
    with pytest.raises(ValueError, match="group ids repeat"):
        RolloutRequest(tuple(twins), ("x", "y", "z", "x"), "collaborative", 4, SamplingConfig())


def test_groups_are_dealt_whole_and_keep_their_ids_whatever_the_number_of_workers() -> None:
    problems = [problem(str(i)) for i in range(5)] + [problem("0")]

    def ids(workers: int) -> list[list[str]]:
        requests = split_rollouts(
            problems, workers, mode="collaborative", samples=4, sampling=SamplingConfig(), seed=1, step=3
        )
        assert all([p.problem_id for p in r.problems] == [g[2:-2] for g in r.group_ids] for r in requests)
        return [list(r.group_ids) for r in requests]

    assert ids(1) == [["3:0#0", "3:1#0", "3:2#0", "3:3#0", "3:4#0", "3:0#1"]]
    assert ids(4) == [["3:0#0", "3:4#0"], ["3:1#0", "3:0#1"], ["3:2#0"], ["3:3#0"]]
    assert len(ids(9)) == 6, "no worker gets an empty request"


def test_results_of_workers_add_up_and_wall_time_is_the_longest() -> None:
    first, second = RolloutCounters(groups=2, wall_s=3.0), RolloutCounters(groups=1, wall_s=2.0, replaced=1)
    first.unusable["expert"] = 1
    second.unusable["expert"] = 2
    merged = merge_results(
        [RolloutResult(SCHEMA.empty_table(), first), RolloutResult(SCHEMA.empty_table(), second)]
    )
    assert (merged.counters.groups, merged.counters.wall_s, merged.counters.replaced) == (3, 3.0, 1)
    assert merged.counters.unusable == {"expert": 3}
    assert merged.table.num_rows == 0
    assert "expert 3" in merged.counters.describe()
    assert merge_results([]).table.schema == SCHEMA
