"""Eq. 2 against plain Python, and the public reports about groups: D05, D07, D21."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apprentice.objectives.advantage import group_relative_advantages, normalize_group, zero_signal_share

pytestmark = pytest.mark.unit


def reference(rewards: list[float], epsilon: float) -> list[float]:
    mean = math.fsum(rewards) / len(rewards)
    std = math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / len(rewards))
    return [(r - mean) / (std + epsilon) for r in rewards]


def test_paper_example_by_hand() -> None:
    # Rewards +1 once of four: mean -0.5, population std sqrt(0.75).
    out = normalize_group([1, -1, -1, -1], 1e-6)
    assert out == pytest.approx([1.5 / (math.sqrt(0.75) + 1e-6)] + [-0.5 / (math.sqrt(0.75) + 1e-6)] * 3)
    assert np.mean(out**2) == pytest.approx(1.0, abs=1e-5)  # population std: mean square 1


@given(
    st.lists(st.sampled_from([-1.0, 1.0, 0.25]), min_size=2, max_size=12).filter(lambda r: len(set(r)) > 1)
)
def test_matches_plain_python(rewards: list[float]) -> None:
    assert normalize_group(rewards, 1e-6) == pytest.approx(reference(rewards, 1e-6), rel=1e-12)


@pytest.mark.parametrize("rewards", [[1.0], [-1.0] * 8, [0.1] * 3, [0.1 + 0.2, 0.3 + 5e-17]])
def test_equal_rewards_give_exactly_zero_even_where_the_mean_rounds(rewards: list[float]) -> None:
    rewards = [rewards[0]] * len(rewards)
    assert normalize_group(rewards, 1e-6).tolist() == [0.0] * len(rewards)


def test_d05_scalar_std_and_as_many_advantages_as_rewards() -> None:
    out = group_relative_advantages([1, -1, 1, 1], ["a"] * 4)
    assert out.shape == (4,) and out.dtype == np.float32
    assert out == pytest.approx(np.float32(reference([1, -1, 1, 1], 1e-6)))


@pytest.mark.parametrize(("size", "share"), [(2, 0.702), (8, 0.201)])
def test_d07_share_of_groups_without_signal(size: int, share: float) -> None:
    p = 0.1819  # probability of a right answer; every outcome of a group, weighted by its probability
    expected = 0.0
    for outcome in itertools.product([1.0, -1.0], repeat=size):
        weight = math.prod(p if r > 0 else 1 - p for r in outcome)
        expected += weight * zero_signal_share(outcome, [0] * size)
    assert expected == pytest.approx(share, abs=5e-4)


def test_zero_signal_share_counts_groups_not_samples() -> None:
    assert zero_signal_share([1, 1, 1, -1, 1], ["a", "a", "a", "b", "b"]) == 0.5
    assert math.isnan(zero_signal_share([], []))


def test_d21_groups_follow_ids_through_a_reorder_and_twins_stay_apart() -> None:
    rng = np.random.default_rng(0)
    prompts = ["p0", "p1", "same text", "same text"]  # two instances of one text: ids differ
    rewards = [[1, -1, -1, -1], [1, 1, 1, -1], [1, 1, 1, 1], [-1, -1, -1, 1]]
    rows = []
    for i, group in enumerate(rewards):
        solved_alike = len(set(group)) == 1
        want = [0.0] * 4 if solved_alike else reference([float(r) for r in group], 1e-6)
        rows += [(f"{i}:{prompts[i]}", r, w) for r, w in zip(group, want, strict=True)]
    order = rng.permutation(16)
    out = group_relative_advantages([rows[k][1] for k in order], [rows[k][0] for k in order])
    assert out == pytest.approx(np.float32([rows[k][2] for k in order]))


@pytest.mark.parametrize(
    ("rewards", "ids", "message"),
    [([1.0], ["a", "b"], "2 group ids"), ([float("nan"), 1.0], ["a", "a"], "finite")],
)
def test_errors_name_the_cause(rewards: list[float], ids: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        group_relative_advantages(rewards, ids)
