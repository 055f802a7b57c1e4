"""Scores against values computed by hand, by exact fractions or by brute force."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from apprentice.metrics.scores import (
    avg_at_n,
    internalization_rate,
    mean_at_k,
    paired_difference,
    pass_at_k,
    retention_rate,
    solved,
    spearman,
    wilson_interval,
)

pytestmark = pytest.mark.unit


def test_mean_at_k_is_the_mean_over_problems_of_the_share_of_right_samples() -> None:
    correct = [[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 0, 0]]
    score = mean_at_k(correct)
    assert score.value == pytest.approx(float(Fraction(1, 2) + 1 + 0 + Fraction(1, 4)) / 4)
    assert (score.problems, score.samples, score.method) == (4, 4, "bootstrap over problems")
    assert score.low < score.value < score.high


def test_bootstrap_interval_matches_the_exact_resampling_distribution() -> None:
    # Three problems: all 27 resamples can be listed. Their 5 % and 95 % points are known exactly.
    correct = [[1, 1], [1, 0], [0, 0]]
    shares = [1.0, 0.5, 0.0]
    means = sorted(np.mean(c) for c in itertools.product(shares, repeat=3))
    score = mean_at_k(correct, confidence=0.9, bootstrap_samples=60_000)
    assert score.low == pytest.approx(float(np.quantile(means, 0.05)), abs=1e-9)
    assert score.high == pytest.approx(float(np.quantile(means, 0.95)), abs=1e-9)


def test_bootstrap_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    hits = 0
    for trial in range(200):
        chance = rng.beta(2, 2, size=60)
        correct = (rng.random((60, 8)) < chance[:, None]).astype(int)
        score = mean_at_k(correct, bootstrap_samples=500, seed=trial)
        hits += score.low <= 0.5 <= score.high
    assert 0.90 <= hits / 200 <= 0.99


def test_intervals_depend_on_the_seed_alone() -> None:
    correct = np.random.default_rng(0).integers(0, 2, (50, 4))
    assert mean_at_k(correct, seed=1) == mean_at_k(correct, seed=1)
    assert mean_at_k(correct, seed=1).low != mean_at_k(correct, seed=2).low


def test_one_sample_a_problem_gets_wilsons_interval() -> None:
    # 50 of 164 solved, by the formula written out with the 97.5 % point of the normal distribution.
    score = mean_at_k([[1]] * 50 + [[0]] * 114)
    assert score.method == "wilson"
    assert score.value == pytest.approx(50 / 164)
    z, p, n = 1.959963984540054, 50 / 164, 164
    root = z * (p * (1 - p) / n + z**2 / (4 * n**2)) ** 0.5
    assert score.low == pytest.approx((p + z**2 / (2 * n) - root) / (1 + z**2 / n), abs=1e-12)
    assert score.high == pytest.approx((p + z**2 / (2 * n) + root) / (1 + z**2 / n), abs=1e-12)


def test_all_right_or_all_wrong_still_has_an_interval() -> None:
    assert mean_at_k([[1, 1]] * 20).high == 1.0
    assert 0.8 < mean_at_k([[1, 1]] * 20).low < 0.9
    assert mean_at_k([[0, 0]] * 20).low == 0.0
    assert wilson_interval(0, 10)[1] == pytest.approx(0.2775327, abs=1e-6)


def test_h01_pass_at_k_beyond_the_samples_is_refused() -> None:
    correct = [[1]] * 50 + [[0]] * 114
    assert pass_at_k(correct, 1).value == pytest.approx(0.3049, abs=1e-4)
    for k in (10, 100):
        with pytest.raises(ValueError, match=f"pass@{k} needs at least {k} samples"):
            pass_at_k(correct, k)


def test_pass_at_k_equals_the_average_over_all_subsets() -> None:
    rng = np.random.default_rng(3)
    correct = rng.integers(0, 2, (6, 7))
    for k in range(1, 8):
        brute = np.mean([np.mean([any(c) for c in itertools.combinations(row, k)]) for row in correct])
        assert pass_at_k(correct, k).value == pytest.approx(float(brute), abs=1e-12)


def test_h03_avg_at_8_of_two_right_samples() -> None:
    assert avg_at_n([1, 0, 0, 0, 0, 0, 0, 1]) == 0.25
    assert mean_at_k([[1, 0, 0, 0, 0, 0, 0, 1]]).value == 0.25


def test_paired_difference_is_narrower_than_the_scores_themselves() -> None:
    rng = np.random.default_rng(5)
    chance = rng.random(100)
    first = (rng.random((100, 16)) < chance[:, None] * 0.9).astype(int)
    second = (rng.random((100, 16)) < chance[:, None]).astype(int)
    difference = paired_difference(first, second)
    assert difference.value == pytest.approx(second.mean() - first.mean())
    alone = mean_at_k(second)
    assert difference.high - difference.low < 0.6 * (alone.high - alone.low)
    assert paired_difference(first, first).value == 0
    with pytest.raises(ValueError, match="same problems"):
        paired_difference(first, second[:50])


def test_retention_and_internalization_condition_on_table_6s_sets() -> None:
    with_experts = [1, 1, 1, 1, 0, 0]
    alone = [1, 1, 0, 0, 0, 1]
    after = [1, 0, 1, 0, 1, 1]
    assert retention_rate(alone, after) == pytest.approx(2 / 3)
    assert internalization_rate(with_experts, alone, after) == pytest.approx(1 / 2)
    assert retention_rate([0, 0], [1, 1]) is None
    assert internalization_rate([1, 0], [1, 0], [1, 1]) is None
    with pytest.raises(ValueError, match="same cases"):
        retention_rate([1], [1, 0])
    assert solved([[1, 0], [0, 0], [1, 1]]).tolist() == [True, False, True]


def test_spearman_with_ties_and_constant_sides() -> None:
    # Ranks (1, 2.5, 2.5, 4) and (2, 1, 3, 4); the correlation is that of the ranks, written out.
    x, y = [10.0, 20.0, 20.0, 30.0], [2.0, 1.0, 3.0, 4.0]
    a, b = np.array([1, 2.5, 2.5, 4]) - 2.5, np.array([2, 1, 3, 4]) - 2.5
    assert spearman(x, y) == pytest.approx(float(a @ b / np.sqrt((a @ a) * (b @ b))))
    assert spearman([1, 2, 3], [10, 100, 1000]) == pytest.approx(1)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert spearman([1, 1], [1, 2]) is None
    assert spearman([1], [1]) is None


@pytest.mark.parametrize(
    ("correct", "message"),
    [
        ([], "at least one problem"),
        ([[]], "at least one"),
        ([[1], [1, 0]], "different numbers"),
        ([[2]], "right"),
    ],
)
def test_scores_refuse_what_is_not_a_table_of_right_and_wrong(correct: list[list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mean_at_k(correct)


def test_confidence_outside_0_1_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        mean_at_k([[1], [0]], confidence=95)
