"""Accuracy, cost and call rate of stored trajectories, by hand; public report H13; Pareto fronts: H15."""

from __future__ import annotations

import pytest

from apprentice.metrics.ask import (
    attempts,
    calls_cost,
    charged,
    priced,
    share_over_problems,
    summarize_attempts,
    sweep,
)
from apprentice.metrics.pareto import pareto_front
from apprentice.metrics.resample import Interval, Resampling, bootstrap, interval_text
from apprentice.metrics.scores import mean_at_k
from apprentice.trajectory import Status
from tests.ask_trajectories import ask_call, ask_trajectory

pytestmark = pytest.mark.unit

FOUND = attempts(
    [
        ask_trajectory("a", 0, calls=[ask_call(61.0, 1, 10)]),
        ask_trajectory("a", 1, correct=False),
        ask_trajectory("b", 0, correct=False, calls=[ask_call(None, None, 0)]),  # the provider said nothing
        ask_trajectory("b", 1, calls=[ask_call(20.0, 8, 2), ask_call(30.0, 6, 4)]),
        ask_trajectory("c", 0, calls=[ask_call(error="budget_spent")]),
        ask_trajectory("c", 1),
        ask_trajectory("c", 2, status=Status.UNUSABLE),
    ]
)


def test_summary_by_hand() -> None:
    summary = summarize_attempts(FOUND)
    assert (summary.problems, summary.k, summary.trajectories) == (3, "2", 6)
    assert summary.accuracy.value == pytest.approx((0.5 + 0.5 + 1) / 3)
    assert summary.call_rate.value == pytest.approx((0.5 + 1 + 0) / 3)
    assert (summary.calls, summary.refused) == (4, 1)
    # a: 61 and 0; b: 50, the other unknown and not 0; c: a refused call was not sent and costs nothing.
    assert summary.cost.value == pytest.approx((30.5 + 50 + 0) / 3)
    assert summary.unknown_costs == 1
    assert summary.query_tokens == pytest.approx((1 + 8 + 6) / 3)
    assert summary.advice_tokens == pytest.approx((10 + 2 + 4) / 3)


def test_h13_what_has_no_price_is_excluded_and_counted() -> None:
    found = attempts(
        [ask_trajectory("a", 0, calls=[ask_call(None)]), ask_trajectory("b", 0, calls=[ask_call(None)])]
    )
    summary = summarize_attempts(found)
    assert summary.cost.value is None and summary.unknown_costs == 2 and summary.call_rate.value == 1.0
    assert interval_text(summary.cost) == "-"


def test_a_call_of_two_of_which_one_is_unknown_is_unknown() -> None:
    [one] = attempts([ask_trajectory("a", calls=[ask_call(5.0), ask_call(None)])])
    assert charged(one) is None and priced(6)(one) is None and calls_cost(one) == 2


def test_position_counts_generated_tokens_only() -> None:
    [one] = attempts([ask_trajectory("a", calls=[ask_call(position=3 + 4)])])
    assert one.position == 4
    [none] = attempts([ask_trajectory("a", calls=[ask_call(error="bad_arguments")])])
    assert none.position is None and not none.called and none.refused == 1


def test_sweep_by_hand() -> None:
    found = sweep(FOUND)
    assert list(found) == ["c_out=1", "c_out=2", "c_out=4", "c_out=6", "c_out=8", "c_out=16", "calls"]
    for c in (1, 2, 4, 6, 8, 16):
        a, b = (1 + c * 10) / 2, (8 + 2 * c) + (6 + 4 * c)
        interval, unknown = found[f"c_out={c}"]
        assert interval.value == pytest.approx((a + b + 0) / 3) and unknown == 1
    calls, unknown = found["calls"]
    assert calls.value == pytest.approx((0.5 + 1.5 + 0) / 3) and unknown == 0


def test_sweep_at_other_input_prices() -> None:
    found = sweep(FOUND[:2], (3.0,), c_in=0.5)["c_out=3"][0]
    assert found.value == pytest.approx((0.5 * 1 + 3 * 10) / 2)


def test_shares_with_equal_attempts_are_mean_at_k() -> None:
    flags = [[True, False], [True, True], [False, False]]
    score = mean_at_k(flags, 0.9, 500, 3)
    found = share_over_problems(flags, Resampling(0.9, 500, 3))
    assert (found.value, found.low, found.high, found.n) == (score.value, score.low, score.high, 3)


def test_shares_with_unequal_attempts_weigh_problems_alike() -> None:
    assert share_over_problems([[True], [False, False, False]]).value == 0.5


def test_bootstrap_resamples_problems_and_counts_what_is_undefined() -> None:
    values = [0.0, 1.0, 2.0, 3.0, 4.0] * 40

    def mean(chosen) -> float | None:  # type: ignore[no-untyped-def]
        return sum(values[i] for i in chosen) / len(chosen)

    found = bootstrap(mean, 200, Resampling(0.95, 2000, 1))
    # Standard error of the mean: sqrt(2 / 200) = 0.1.
    assert found.value == 2.0 and found.low == pytest.approx(1.804, abs=0.03)
    assert found.high == pytest.approx(2.196, abs=0.03)
    assert found == bootstrap(mean, 200, Resampling(0.95, 2000, 1))

    few = bootstrap(lambda chosen: 1.0 if 0 in chosen else None, 3, Resampling(samples=300))
    # One of three problems is missing from a resample with probability (2/3)^3 = 0.296.
    assert few.undefined == pytest.approx(300 * 0.296, abs=35) and few.low == 1.0
    rare = bootstrap(lambda chosen: 1.0 if set(chosen) == {0, 1, 2} else None, 3)
    assert (rare.value, rare.low, rare.high) == (1.0, None, None)  # 6 of 27 resamples only
    assert bootstrap(lambda chosen: None, 5).value is None
    assert bootstrap(mean, 0).value is None


def test_resampling_settings_are_checked() -> None:
    with pytest.raises(ValueError, match=r"confidence 1\.5"):
        Resampling(confidence=1.5)
    with pytest.raises(ValueError, match="at least one resample"):
        Resampling(samples=0)


def test_intervals_as_text() -> None:
    assert interval_text(Interval(0.314, 0.2, 0.401, 9)) == "0.31 [0.20, 0.40]"
    assert interval_text(Interval(0.314, -0.2, 0.401, 9), 100, 1, sign=True) == "+31.4 [-20.0, +40.1]"
    assert interval_text(Interval(1.0, None, None, 1)) == "1.00 [no interval]"


def test_h15_fronts_keep_what_nothing_dominates() -> None:
    points = [("A", 1.0, 0.8), ("B", 2.0, 0.6), ("C", 3.0, 0.4)]
    assert pareto_front(points, lambda p: p[1], lambda p: p[2]) == [("A", 1.0, 0.8)]
    both = [(1, 0.5), (1, 0.4), (1, 0.3), (2, 0.45), (2, 0.2), (3, 0.1)]
    least = pareto_front(both, lambda p: p[0], lambda p: -p[1])
    assert least == [(1, 0.3), (2, 0.2), (3, 0.1)]


def test_front_drops_duplicates_and_equal_accuracy_at_higher_cost() -> None:
    points = [("a", 2, 0.5), ("b", 1, 0.5), ("c", 1, 0.5), ("d", 0, 0.1), ("e", 3, 0.9), ("f", 3, 0.7)]
    assert [p[0] for p in pareto_front(points, lambda p: p[1], lambda p: p[2])] == ["d", "b", "e"]
    assert pareto_front([], float, float) == []
    with pytest.raises(ValueError, match="no place on a front"):
        pareto_front([float("nan")], float, float)


def test_a_call_whose_position_nobody_recorded_has_none() -> None:
    [one] = attempts([ask_trajectory("a", calls=[ask_call(position=-1)])])
    assert one.called and one.position is None
