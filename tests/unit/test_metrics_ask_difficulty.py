"""Calling against difficulty: correlations, utility and changes, by hand and against plain loops."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from apprentice.metrics.ask import Attempt, attempts
from apprentice.metrics.ask_difficulty import (
    before_after,
    calling_utility,
    difficulty,
    rate_change,
    spearman_interval,
)
from apprentice.metrics.resample import Resampling
from tests.ask_trajectories import ask_call, ask_trajectory

pytestmark = pytest.mark.unit

FEW = Resampling(samples=200)


def loop_spearman(x: list[float], y: list[float]) -> float:
    """Pearson's correlation of ranks counted one by one, from smaller and equal values."""

    def ranks(values: list[float]) -> list[float]:
        return [sum(b < a for b in values) + (sum(b == a for b in values) + 1) / 2 for a in values]

    a, b = ranks(x), ranks(y)
    ma, mb = math.fsum(a) / len(a), math.fsum(b) / len(b)
    top = math.fsum((i - ma) * (j - mb) for i, j in zip(a, b, strict=True))
    return top / math.sqrt(math.fsum((i - ma) ** 2 for i in a) * math.fsum((j - mb) ** 2 for j in b))


def test_spearman_by_hand() -> None:
    # No ties: 1 - 6 sum d^2 / (n (n^2 - 1)); ranks of y are 2 1 4 3 5, sum d^2 = 4.
    assert spearman_interval([1, 2, 3, 4, 5], [20, 10, 40, 30, 50], FEW).value == pytest.approx(1 - 24 / 120)
    # Ties at their mean rank: x has ranks 1.5 1.5 3 4, y has 4 3 2 1.
    # Deviations -1 -1 .5 1.5 and 1.5 .5 -.5 -1.5: -4.5 / sqrt(4.5 * 5).
    tied = spearman_interval([7, 7, 8, 9], [4, 3, 2, 1], FEW)
    assert tied.value == pytest.approx(-4.5 / math.sqrt(22.5))


def test_spearman_matches_a_loop_with_many_ties() -> None:
    rng = random.Random(5)
    for _ in range(20):
        x = [rng.randint(0, 4) / 4 for _ in range(30)]
        y = [rng.randint(0, 8) / 8 - 0.3 * a for a in x]
        found = spearman_interval(x, y, Resampling(samples=1))
        assert found.value == pytest.approx(loop_spearman(x, y), abs=1e-12)


def test_nan_pairs_are_left_out_and_a_constant_side_has_no_correlation() -> None:
    found = spearman_interval([1, 2, math.nan, 4, 3], [4, 3, 1, math.nan, 2], FEW)
    assert found.value == pytest.approx(-1.0) and found.n == 3
    assert spearman_interval([1, 2, 3], [5, 5, 5]).value is None
    assert spearman_interval([math.nan], [1.0]).value is None
    with pytest.raises(ValueError, match="2 against 1"):
        spearman_interval([1, 2], [1])


def test_interval_covers_a_strong_relation_and_leaves_out_zero() -> None:
    rng = random.Random(1)
    x = [rng.random() for _ in range(80)]
    y = [-a + rng.gauss(0, 0.2) for a in x]
    found = spearman_interval(x, y, Resampling(samples=500))
    assert found.value is not None and found.low is not None and found.high is not None
    assert found.low < found.value < found.high < -0.4


def run(rates: dict[str, str], right: dict[str, str] | None = None, position: int = 5) -> list[Attempt]:
    """``{"p": "110"}``: three attempts at p, of which two call; ``right`` alike."""
    trajectories = []
    for problem, flags in rates.items():
        answers = (right or {}).get(problem, "1" * len(flags))
        for number, (flag, answer) in enumerate(zip(flags, answers, strict=True)):
            calls = [ask_call(10.0, position=position + number)] if flag == "1" else []
            trajectories.append(ask_trajectory(problem, number, correct=answer == "1", calls=calls))
    return attempts(trajectories)


SOLO = {"a": 0.0, "b": 0.25, "c": 0.6, "d": 1.0, "unseen": 0.5}


def test_difficulty_by_hand() -> None:
    found = difficulty(run({"a": "1111", "b": "1100", "c": "1100", "d": "0000", "x": "1000"}), SOLO, FEW)
    assert found.without_solo == 1
    assert found.points == ((0.0, 1.0), (0.25, 0.5), (0.6, 0.5), (1.0, 0.0))
    assert found.call.value == pytest.approx(loop_spearman([0, 0.25, 0.6, 1], [1, 0.5, 0.5, 0]))
    # d never called and has no position: three problems are left, of mean positions 3.5, 2.5, 2.5.
    assert found.position.n == 3
    assert found.position.value == pytest.approx(loop_spearman([0, 0.25, 0.6], [3.5, 2.5, 2.5]))
    assert [(b.low, b.high, b.problems, b.call_rate) for b in found.bins] == [
        (0.0, 0.25, 1, 1.0),
        (0.25, 0.5, 1, 0.5),
        (0.5, 0.75, 1, 0.5),
        (0.75, 1.0, 1, 0.0),
    ]
    assert [b.position for b in found.bins] == [3.5, 2.5, 2.5, None]


def test_every_success_falls_in_one_bin() -> None:
    solo = {f"p{i}": i / 16 for i in range(17)}
    found = difficulty(run(dict.fromkeys(solo, "1")), solo, FEW)
    assert [b.problems for b in found.bins] == [4, 4, 4, 5]


def test_utility_matches_each_calling_trajectory_with_its_problem() -> None:
    found = run(
        {"a": "110", "b": "100", "d": "000", "x": "100"}, {"a": "101", "b": "000", "d": "111", "x": "111"}
    )
    utility = calling_utility(found, SOLO, FEW)
    # Calling: a right, a wrong, b wrong. Alone: 0, 0, 0.25. d never called; x has no standalone success.
    assert utility.with_call == pytest.approx(1 / 3) and utility.alone == pytest.approx(0.25 / 3)
    assert utility.gain.value == pytest.approx(0.25) and utility.gain.n == 2
    assert (utility.problems, utility.trajectories, utility.without_solo) == (2, 3, 1)


def test_utility_without_calls() -> None:
    utility = calling_utility(run({"a": "00"}), SOLO)
    assert utility.with_call is None and utility.gain.value is None and utility.trajectories == 0


def test_utility_interval_resamples_whole_problems() -> None:
    # 40 problems of 10 calling attempts each, all right or all wrong by problem: the standard error comes
    # from 40 problems, sqrt(0.25 / 40) = 0.079, not from 400 attempts.
    rates = {f"p{i}": "1" * 10 for i in range(40)}
    right = {f"p{i}": ("1" if i % 2 else "0") * 10 for i in range(40)}
    utility = calling_utility(run(rates, right), dict.fromkeys(rates, 0.5), Resampling(samples=1000))
    assert utility.gain.value == pytest.approx(0.0)
    assert utility.gain.high == pytest.approx(1.96 * 0.079, abs=0.03)


def test_rate_change_by_hand() -> None:
    before = run({"a": "11", "b": "11", "c": "10", "d": "10", "only": "11"})
    after = run({"a": "11", "b": "10", "c": "00", "d": "11"})
    found = rate_change(before, after, {**SOLO, "only": 0.1}, FEW)
    assert [(r.before, r.after) for r in found] == [(1.0, 1.0), (1.0, 0.5), (0.5, 0.0), (0.5, 1.0)]
    assert [r.relative.value for r in found] == [0.0, -0.5, -1.0, 1.0]
    nothing = rate_change(run({"a": "00"}), run({"a": "10"}), SOLO)
    assert nothing[0].relative.value is None  # no rate to compare with
    assert nothing[1].before is None and nothing[1].relative.n == 0


def test_before_and_after_are_paired_by_problem() -> None:
    before = run({"a": "11", "b": "10", "gone": "11"}, {"a": "10", "b": "00", "gone": "11"})
    after = run({"b": "00", "a": "10", "new": "11"}, {"b": "10", "a": "11", "new": "00"})
    rows = {row.name: row for row in before_after(before, after, how=FEW)}
    assert rows["accuracy"].before.value == 0.25 and rows["accuracy"].after.value == 0.75
    assert rows["accuracy"].difference.value == pytest.approx(0.5)
    assert rows["accuracy"].difference.low == rows["accuracy"].difference.high == pytest.approx(0.5)
    assert rows["call rate"].difference.value == pytest.approx(0.25 - 0.75)
    assert rows["cost"].before.value == pytest.approx((10 + 5) / 2)
    assert rows["cost"].after.value == pytest.approx((5 + 0) / 2)


def test_bins_cover_the_unit_interval() -> None:
    found = difficulty([], {}).bins
    assert [b.low for b in found] == [0.0, 0.25, 0.5, 0.75] and found[-1].high == 1.0
    assert all(a.high == b.low for a, b in itertools.pairwise(found))


def test_utility_weighs_calls_within_each_resample() -> None:
    found = run({"a": "1", "d": "1" * 9}, {"a": "1", "d": "1" * 9})
    gain = calling_utility(found, SOLO, FEW).gain
    # A resample holds a twice in a quarter of the cases: then every call gained 1, and 0 with d twice.
    assert gain.value == pytest.approx(0.1) and (gain.low, gain.high) == (0.0, 1.0)
