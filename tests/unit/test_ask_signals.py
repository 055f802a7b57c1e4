"""From trajectories of Learning to Ask to rewards and advantages, against the equations worked by hand."""

import dataclasses
import math

import numpy as np
import pytest

from apprentice.ask.signals import (
    asked,
    consultation_rewards,
    integration_advantages,
    is_correct,
    qmaker_parts,
    qmaker_rewards,
)
from apprentice.trajectory import Trajectory
from tests.ask_trajectories import ask_call, ask_trajectory

pytestmark = pytest.mark.unit


def _qmaker(number: int, *, correct: bool = True, **tags: str) -> Trajectory:
    full = {"query": "What is 6 * 7?", "complete": "1", "advice_tokens": "10", "budget": "64", **tags}
    return ask_trajectory("p", number, mode="qmaker", correct=correct, tags=full)


def test_a_refused_call_is_no_invocation() -> None:
    assert asked(ask_trajectory("p", calls=[ask_call()]))
    assert not asked(ask_trajectory("p", calls=[ask_call(error="budget_spent")]))
    assert not asked(ask_trajectory("p"))


def test_rewards_of_stage_1_are_eq_7() -> None:
    needs = {"hard": True, "easy": False}
    batch = [
        ask_trajectory("hard", 0, calls=[ask_call()], correct=False),
        ask_trajectory("hard", 1),
        ask_trajectory("easy", 0, calls=[ask_call()]),
        ask_trajectory("easy", 1, correct=False),
    ]
    assert consultation_rewards(batch, needs).tolist() == [1.0, 0.0, 0.0, 1.0]


def test_rewards_of_stage_2_are_eq_9_and_with_secrets_eq_12() -> None:
    batch = [
        _qmaker(0),
        _qmaker(1, complete="0"),
        _qmaker(2, advice_tokens="64"),  # b tokens are already too many
        _qmaker(3, advice_tokens="63"),
        _qmaker(4, correct=False),
        _qmaker(5, query="The key is sk-cn-1, what is 6 * 7?"),
    ]
    assert qmaker_rewards(batch).tolist() == [1.0, 0.0, 0.0, 1.0, 0.0, 1.0]
    assert qmaker_rewards(batch, {"p": ("sk-cn-1",)}).tolist() == [1.0, 0.0, 0.0, 1.0, 0.0, 0.0]


def test_an_answer_that_a_limit_of_the_providers_own_cut_does_not_fit_the_budget() -> None:
    batch = [
        _qmaker(0, advice_tokens="40", advice_finish="length"),
        _qmaker(1, advice_tokens="40", advice_finish="stop"),
        _qmaker(2, advice_tokens="", advice_finish="length"),  # cut, so what it used need not be known
    ]
    assert qmaker_rewards(batch).tolist() == [0.0, 1.0, 0.0]
    assert qmaker_parts(batch).feasible.tolist() == [0.0, 1.0, 0.0]


def test_a_reward_that_hangs_on_unknown_usage_is_unknown() -> None:
    rewards = qmaker_rewards([_qmaker(0, advice_tokens=""), _qmaker(1, advice_tokens="", correct=False)])
    assert math.isnan(rewards[0])
    assert rewards[1] == 0.0  # wrong whatever |z| was
    assert math.isnan(qmaker_parts([_qmaker(0, advice_tokens="")]).feasible[0])


def test_a_trajectory_that_was_not_scored_has_no_task_reward() -> None:
    with pytest.raises(ValueError, match="was not verified"):
        is_correct(dataclasses.replace(ask_trajectory("p"), reward=None))


def test_advantages_of_stage_3_are_eq_10_normalized_a_segment_at_a_time() -> None:
    """Four trajectories of a problem that needs the advisor; positions count the prompt's three tokens."""
    group = [
        ask_trajectory("p", 0, calls=[ask_call(position=5)], correct=True),  # before: 1.2, after: 1
        ask_trajectory("p", 1, calls=[ask_call(position=7)], correct=False),  # before: 1.0, after: 0
        ask_trajectory("p", 2, correct=True),  # before: 0.2
        ask_trajectory("p", 3, correct=False),  # before: 0.0
    ]
    before = np.array([1.2, 1.0, 0.2, 0.0])
    expected = (before - before.mean()) / before.std()
    # Another group in between must not matter.
    batch = [group[0], ask_trajectory("q", 0), group[1], ask_trajectory("q", 1), group[2], group[3]]
    found = integration_advantages(batch, {"p": True, "q": False}, lambda_task=0.2, epsilon=1e-9)
    first, second, third, fourth = (found[i] for i in (0, 2, 4, 5))
    assert first[:5] == pytest.approx(expected[0], rel=1e-5)
    assert first[5:] == pytest.approx(1.0)  # rewards 1 and 0 of the two that called
    assert second[:7] == pytest.approx(expected[1], rel=1e-5)
    assert second[7:] == pytest.approx(-1.0)
    assert third == pytest.approx(np.full(13, expected[2]), rel=1e-5)
    assert fourth == pytest.approx(np.full(13, expected[3]), rel=1e-5)
    assert not found[1].any()  # both right, neither called: nothing to learn
