"""From a provider's usage to a cost, against numbers worked out by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest

from apprentice.config.ask import BudgetConfig, PricesConfig
from apprentice.costs.limits import Limits
from apprentice.costs.prices import Prices, amount_text, exact
from apprentice.costs.summary import summarize
from apprentice.costs.usage import Usage, parse_usage

pytestmark = pytest.mark.unit

PAPER = Prices.of(PricesConfig())


@pytest.mark.parametrize(
    ("query", "advice", "c_in", "c_out", "cost"),
    [
        (100, 50, 1, 6, 400),  # 1*100 + 6*50
        (0, 0, 1, 6, 0),
        (37, 512, 1, 6, 3109),  # 37 + 3072
        (37, 512, 1, 16, 8229),  # 37 + 8192
        (37, 512, 1, 1, 549),
        (10, 3, 0.5, 2.5, 12.5),
    ],
)
def test_eq_4_is_input_plus_output_tokens_at_their_prices(
    query: int, advice: int, c_in: float, c_out: float, cost: float
) -> None:
    prices = Prices.of(PricesConfig(input=c_in, output=c_out))
    assert prices.cost(Usage(query, advice)) == Fraction(str(cost))


def test_the_papers_prices_are_the_defaults() -> None:
    assert (PAPER.input, PAPER.output, PAPER.cached_input) == (1, 6, 1)


def test_h07_hidden_reasoning_is_billed_as_output_and_missing_usage_is_unknown() -> None:
    hidden = parse_usage({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 100})
    assert hidden == Usage(10, 90, 85)
    assert PAPER.cost(hidden) == 10 + 6 * 90
    for nothing in (None, {}, {"prompt_tokens": 10}, {"completion_tokens": 5}, {"prompt_tokens": "10"}):
        assert PAPER.cost(parse_usage(nothing)) is None
    assert PAPER.cost(Usage(0, 0)) == 0, "a known zero is a zero"


@pytest.mark.parametrize(
    ("usage", "reasoning", "completion"),
    [
        # inside the completion, with and without a total
        ({"completion_tokens": 90, "completion_tokens_details": {"reasoning_tokens": 85}}, 85, 90),
        (
            {
                "completion_tokens": 90,
                "total_tokens": 100,
                "completion_tokens_details": {"reasoning_tokens": 85},
            },
            85,
            90,
        ),
        # beside it, and the total says so
        (
            {
                "completion_tokens": 5,
                "total_tokens": 100,
                "completion_tokens_details": {"reasoning_tokens": 85},
            },
            85,
            90,
        ),
        # beside it, and nothing says so but the numbers
        ({"completion_tokens": 5, "completion_tokens_details": {"reasoning_tokens": 85}}, 85, 90),
    ],
)
def test_reasoning_tokens_are_counted_once(usage: dict[str, object], reasoning: int, completion: int) -> None:
    parsed = parse_usage({"prompt_tokens": 10} | usage)
    assert parsed == Usage(10, completion, reasoning)
    assert PAPER.cost(parsed) == 10 + 6 * completion


def test_h09_cached_prompt_tokens_are_charged_once_at_their_price() -> None:
    first = parse_usage(
        {
            "prompt_tokens": 2006,
            "completion_tokens": 300,
            "total_tokens": 2306,
            "prompt_tokens_details": {"cached_tokens": 1920},
        }
    )
    assert first == Usage(2006, 300, None, 1920)
    unit = Prices(input=Fraction(100), output=Fraction(10**6), cached_input=Fraction(1))
    assert unit.cost(first) == 86 * 100 + 1920 * 1 + 300 * 10**6
    second = Usage(262_960, 1744, None, 257_955)
    real = Prices.of(PricesConfig(input=1.25e-6, cached_input=0.625e-6, output=10e-6))
    cost = real.cost(second)
    assert cost == Fraction("0.184918125")  # 5005*1.25 + 257955*0.625 + 1744*10, per million
    assert round(float(cost), 4) == 0.1849


def test_a_cached_part_larger_than_the_prompt_is_beside_it() -> None:
    usage = {"prompt_tokens": 86, "completion_tokens": 300, "total_tokens": 2306}
    details = {"prompt_tokens_details": {"cached_tokens": 1920}}
    assert parse_usage(usage | details) == Usage(2006, 300, None, 1920)
    assert parse_usage({"prompt_tokens": 50, "completion_tokens": 1, "prompt_cache_hit_tokens": 20}) == Usage(
        50, 1, None, 20
    )


def test_who_does_not_say_what_was_cached_gave_no_discount() -> None:
    prices = Prices.of(PricesConfig(input=2, cached_input=1, output=6))
    assert prices.cost(Usage(10, 1)) == 26
    assert prices.cost(Usage(10, 1, None, 4)) == 6 * 2 + 4 + 6


def test_h13_an_unpriced_model_is_excluded_and_counted_not_free() -> None:
    calls = [("advisor", Usage(10, 5)), ("stranger", Usage(1000, 1000)), ("advisor", Usage(None, 5))]
    total = summarize(calls, {"advisor": PAPER})
    assert (total.cost, total.priced_calls, total.unknown_usage) == (40, 1, 1)
    assert dict(total.unpriced) == {"stranger": 1}
    assert not total.complete
    assert summarize(calls[:1], {"advisor": PAPER}).complete


def test_the_worst_case_is_never_below_a_cost_within_it() -> None:
    dear_cache = Prices.of(
        PricesConfig(input=1, cached_input=1.25, output=6)
    )  # writing to a cache costs more
    worst = dear_cache.worst_case(100, 50)
    assert worst == 425
    for cached in (0, 40, 100):
        cost = dear_cache.cost(Usage(100, 50, 50, cached))
        assert cost is not None and cost <= worst


def test_amounts_are_exact_decimals() -> None:
    assert exact(0.1) + exact(0.2) == exact(0.3)
    assert sum([exact(1e-3)] * 1000) == 1
    for text in ("0.184918125", "12300", "0", "0.0000001", "123456789012.000000625"):
        assert amount_text(exact(text)) == text
    with pytest.raises(ValueError, match="no decimal"):
        amount_text(Fraction(1, 3))


def test_sums_of_usage_are_unknown_where_a_part_is() -> None:
    assert Usage(1, 2, 3, 4).plus(Usage(10, 20, 30, 40)) == Usage(11, 22, 33, 44)
    assert Usage(1, 2).plus(Usage(None, 3)) == Usage(None, 5)


def test_limits_are_read_exactly() -> None:
    limits = Limits.of(BudgetConfig(per_trajectory=0.1, per_run=1e6, per_key={"a": 2.5}))
    assert limits == Limits(Fraction(1, 10), Fraction(10**6), {"a": Fraction(5, 2)})
    assert limits.to_json() == {"per_trajectory": "0.1", "per_run": "1000000", "per_key": {"a": "2.5"}}
