"""Metrics of a batch of trajectories, against counts made by hand."""

import pytest

from apprentice.metrics.rollouts import (
    call_counts,
    counter_metrics,
    merge_client_metrics,
    trajectory_metrics,
)
from apprentice.rollout.types import RolloutCounters
from apprentice.trajectory import CallRecord, Owner, Status, Trajectory, TrajectoryBuilder

pytestmark = pytest.mark.unit


def trajectory(calls: tuple[CallRecord, ...], verdict: str, status: Status = Status.COMPLETE) -> Trajectory:
    builder = TrajectoryBuilder()
    builder.append([1, 2], Owner.PROMPT, "prompt")
    builder.append_sampled([3, 4, 5], [-1.0, -1.0, -1.0], 0)
    builder.append([6], Owner.EXPERT, "A")
    reward = None if not verdict else (1.0 if verdict == "correct" else -1.0)
    return builder.build(
        trajectory_id="t", problem_id="p", group_id="g", mode="collaborative", status=status,
        calls=calls, verdict=verdict, reward=reward,
    )  # fmt: skip


BATCH = [
    trajectory((CallRecord("think", "A"), CallRecord("code_interpreter", "B")), "correct"),
    trajectory(
        (CallRecord("code_interpreter", "self"), CallRecord("think", "A", error="think_twice")), "wrong"
    ),
    trajectory((), "wrong", Status.TRUNCATED),
    trajectory((), ""),  # not scored
]


def test_calls_that_ran_and_calls_refused_are_apart() -> None:
    tools, experts, errors = call_counts(BATCH)
    assert tools == {"think": 1, "code_interpreter": 2}
    assert experts == {"A": 1, "B": 1}
    assert errors == {"think_twice": 1}


def test_means_over_trajectories() -> None:
    metrics = trajectory_metrics(BATCH)
    assert metrics["calls/mean"] == 3 / 4
    assert metrics["calls/tool/code_interpreter"] == 2 / 4
    assert metrics["calls/expert/A"] == 1 / 4
    assert metrics["calls/error/think_twice"] == 1 / 4
    assert metrics["accuracy"] == pytest.approx(1 / 3)  # of the three that were scored
    assert metrics["reward/mean"] == pytest.approx(-1 / 3)
    assert metrics["truncated"] == 1 / 4
    assert metrics["tokens/controller"] == 3.0
    assert metrics["tokens/prompt"] == 2.0
    assert metrics["tokens/observation"] == 0.0


def test_nothing_gives_nothing() -> None:
    assert trajectory_metrics([]) == {}


def test_counters() -> None:
    counters = RolloutCounters(
        groups=4, dropped_groups=1, episodes=8, replaced=2, sampled_tokens=300, wall_s=1.5
    )
    counters.unusable["expert"] = 3
    metrics = counter_metrics(counters)
    assert metrics["groups/dropped"] == 1
    assert metrics["samples/replaced"] == 2
    assert metrics["tokens_per_s/rollout"] == 200
    assert metrics["unusable/expert"] == 3


def test_clients_of_one_service_are_merged() -> None:
    first = {"expert/A": {"calls": 3, "ok": 3, "seconds": 2.0, "peak": 4}, "sandbox": {"failures": 1}}
    second = {"expert/A": {"calls": 2, "ok": 1, "seconds": 6.0, "peak": 2}, "sandbox": {"failures": 2}}
    assert merge_client_metrics([first, second]) == {
        "expert/A/calls": 5,
        "expert/A/ok": 4,
        "expert/A/seconds": (3 * 2.0 + 1 * 6.0) / 4,
        "expert/A/peak": 4,
        "sandbox/failures": 3,
    }
    assert merge_client_metrics([]) == {}
