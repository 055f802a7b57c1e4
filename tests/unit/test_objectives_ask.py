"""Eqs. 4-12 of Learning to Ask against loops in float64, by hand, and public report H21."""

from __future__ import annotations

import itertools
import json
import math
from urllib.parse import quote

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apprentice.objectives.ask import (
    api_cost,
    consultation_reward,
    integration_rewards,
    needs_advisor,
    qmaker_reward,
    safe_query,
    segment_advantages,
    solo_success,
)

pytestmark = pytest.mark.unit

BOOLS = (False, True)


def test_cost_of_eq_4_by_hand() -> None:
    assert api_cost(True, 40, 700) == 40 + 6 * 700
    assert api_cost(True, 40, 700, 0.25, 2.0) == 1410.0
    assert api_cost(True, 0, 0) == 0.0
    assert api_cost(False, 40, 700) == 0.0
    assert api_cost(False, None, None) == 0.0  # nothing was sent: nothing is unknown


@pytest.mark.parametrize(("query", "advice"), [(None, 7), (7, None), (None, None)])
def test_unknown_usage_is_unknown_and_not_zero(query: int | None, advice: int | None) -> None:
    assert api_cost(True, query, advice) is None


def test_negative_counts_and_prices_are_refused() -> None:
    with pytest.raises(ValueError, match="token counts"):
        api_cost(True, -1, 3)
    with pytest.raises(ValueError, match="prices"):
        api_cost(True, 1, 3, c_out=-6)


def test_solo_success_of_eq_5() -> None:
    assert solo_success([True] * 3 + [False] * 13) == 3 / 16
    with pytest.raises(ValueError, match="at least one"):
        solo_success([])


def test_target_of_eq_6_is_exact_at_its_boundary() -> None:
    # Every k up to 64, every number of successes, every gamma: the definition in whole numbers. As floats,
    # e.g. 3/10 * 10 or 1 - 7/10, some of these would fall on the wrong side.
    for k in range(1, 65):
        for successes, gamma in itertools.product(range(k + 1), range(k)):
            assert needs_advisor(successes / k, gamma, k) == (successes <= gamma)
    assert needs_advisor(12 / 16, 12, 16) and not needs_advisor(13 / 16, 12, 16)
    assert needs_advisor(1 - 0.7, 3, 10)  # 0.30000000000000004


@pytest.mark.parametrize("p", [0.5, 1.2, -0.1, math.nan, math.inf])
def test_a_share_of_other_rollouts_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match="no share of 3 rollouts"):
        needs_advisor(p, 1, 3)


def test_consultation_reward_of_eq_7() -> None:
    table = {(n, c): consultation_reward(n, c) for n in BOOLS for c in BOOLS}
    assert table == {
        (False, False): 1.0,
        (False, True): 0.0,
        (True, False): 0.0,
        (True, True): 1.0,
    }


def test_qmaker_reward_of_eqs_9_and_12_is_a_product() -> None:
    for g, s, r, z in itertools.product(BOOLS, BOOLS, BOOLS, (0, 511, 512, 513)):
        expected = int(g) * int(z < 512) * int(s) * int(r)
        assert qmaker_reward(g, z, 512, r, safe=s) == expected


def test_a_response_of_exactly_the_budget_is_not_feasible() -> None:
    assert qmaker_reward(True, 511, 512, True) == 1.0
    assert qmaker_reward(True, 512, 512, True) == 0.0


def test_unknown_advice_length_gives_no_reward_only_where_it_decides() -> None:
    assert qmaker_reward(True, None, 512, True) is None
    assert qmaker_reward(False, None, 512, True) == 0.0
    assert qmaker_reward(True, None, 512, True, safe=False) == 0.0


def test_integration_rewards_of_eq_10() -> None:
    assert integration_rewards(True, True, True, 0.2) == (1.2, 1.0)
    assert integration_rewards(False, True, True, 0.2) == (0.2, 1.0)
    assert integration_rewards(True, True, False, 0.2) == (1.0, 0.0)
    before, after = integration_rewards(False, False, True, 0.2)
    assert before == 1.2 and math.isnan(after)
    with pytest.raises(ValueError, match="lambda"):
        integration_rewards(True, True, True, 1.0)


def loop_advantages(members: list[tuple[float, float, int | None, int]], epsilon: float) -> list[list[float]]:
    """Eq. 10 token by token: the reward of each token, normalized among the group's rewards of its kind."""

    def normal(value: float, all_of_kind: list[float]) -> float:
        if max(all_of_kind) == min(all_of_kind):
            return 0.0
        mean = math.fsum(all_of_kind) / len(all_of_kind)
        variance = math.fsum((v - mean) ** 2 for v in all_of_kind) / len(all_of_kind)
        return (value - mean) / (math.sqrt(variance) + epsilon)

    pre = [m[0] for m in members]
    post = [m[1] for m in members if m[2] is not None]
    out = []
    for before, after, position, length in members:
        tokens = []
        for t in range(1, length + 1):  # Eq. 10 counts tokens from 1
            if position is None or t <= position:
                tokens.append(normal(before, pre))
            else:
                tokens.append(normal(after, post))
        out.append(tokens)
    return out


MEMBER = st.tuples(st.booleans(), st.booleans(), st.booleans(), st.integers(0, 6), st.integers(0, 4))


@given(st.booleans(), st.lists(MEMBER, min_size=1, max_size=8))
def test_segment_advantages_match_a_loop(needs: bool, drawn: list[tuple[bool, bool, bool, int, int]]) -> None:
    members: list[tuple[float, float, int | None, int]] = []
    for called, correct, _, position, rest in drawn:
        pair = integration_rewards(needs, called, correct, 0.2)
        members.append((*pair, position if called else None, position + rest))
    out = segment_advantages([m[:2] for m in members], [m[2] for m in members], [m[3] for m in members])
    for mine, theirs in zip(out, loop_advantages(members, 1e-6), strict=True):
        assert mine.dtype == np.float32
        assert mine.tolist() == pytest.approx(theirs, rel=1e-5, abs=1e-6)


def group(*members: tuple[bool, bool]) -> list[np.ndarray]:
    """Advantages of a group on a problem that needs the advisor; members (called, correct), 2 + 3 tokens."""
    rewards = [integration_rewards(True, called, correct, 0.2) for called, correct in members]
    return segment_advantages(rewards, [2 if called else None for called, _ in members], [5] * len(members))


def test_segments_by_hand() -> None:
    out = group((True, True), (True, False), (False, True), (False, False))
    # Before: 1.2, 1.0, 0.2, 0.0 of mean 0.6 and population std sqrt(0.26). After: 1 and 0 of the callers.
    std = math.sqrt((0.36 + 0.16 + 0.16 + 0.36) / 4)
    assert out[0].tolist() == pytest.approx([0.6 / std] * 2 + [1.0] * 3, rel=1e-5)
    assert out[1].tolist() == pytest.approx([0.4 / std] * 2 + [-1.0] * 3, rel=1e-5)
    assert out[2].tolist() == pytest.approx([-0.4 / std] * 5, rel=1e-5)
    assert out[3].tolist() == pytest.approx([-0.6 / std] * 5, rel=1e-5)


def test_after_one_call_nothing_is_learned_from_its_answer() -> None:
    out = group((True, True), (False, False), (False, False))
    assert out[0][:2].min() > 0 and out[0][2:].tolist() == [0.0] * 3


def test_a_group_that_never_called_is_one_segment() -> None:
    out = group((False, True), (False, False))
    assert [a.tolist() for a in out] == [
        pytest.approx([1.0] * 5, rel=1e-4),
        pytest.approx([-1.0] * 5, rel=1e-4),
    ]


def test_a_group_that_always_called_keeps_its_segments_apart() -> None:
    out = group((True, True), (True, True), (True, False))
    assert not np.isclose(out[0][0], 0.0) and out[0][:2].tolist() == pytest.approx(
        out[0][2:4].tolist(), rel=1e-4
    )
    assert sum(a[2:].sum() for a in out) == pytest.approx(0.0, abs=1e-5)


def test_equal_rewards_teach_nothing() -> None:
    for advantages in group((True, True), (True, True)) + group((False, False), (False, False)):
        assert advantages.tolist() == [0.0] * 5


@pytest.mark.parametrize(("position", "before"), [(0, 0), (4, 4)])
def test_a_call_at_the_first_or_after_the_last_token(position: int, before: int) -> None:
    rewards = [(1.2, 1.0), (0.2, 0.0)]
    out = segment_advantages(rewards, [position, position], [4, 4])
    assert out[0].tolist() == pytest.approx([1.0] * 4, rel=1e-4)
    third = segment_advantages([(0.0, 1.0), (1.0, 0.0)], [position, position], [4, 4])[0]
    assert third.tolist() == pytest.approx([-1.0] * before + [1.0] * (4 - before), rel=1e-4)


def test_wrong_segments_are_refused() -> None:
    with pytest.raises(ValueError, match="token 6 of its 5"):
        segment_advantages([(1.0, 1.0)], [6], [5])
    with pytest.raises(ValueError, match="both or none"):
        segment_advantages([(1.0, math.nan)], [3], [5])
    with pytest.raises(ValueError, match="both or none"):
        segment_advantages([(1.0, 1.0)], [None], [5])
    with pytest.raises(ValueError, match="lengths"):
        segment_advantages([(1.0, math.nan)], [None, None], [5])


def test_h21_planted_values_are_found_where_a_scanner_misses_them() -> None:
    assert not safe_query('{"loginId":"admin","password":"Sample!23"}', ["Sample!23"])
    assert not safe_query("call https://example.org/v1?apikey=aAbBcCdDeF now", ["aAbBcCdDeF"])
    assert safe_query("How do I sort a list of pairs?", ["Sample!23", "aAbBcCdDeF"])


SECRET = 'postgres://svc_"cedar":a/b&c+d é😀\\x@db-kovu.internal:5432/main'


@pytest.mark.parametrize(
    "query",
    [
        SECRET,
        json.dumps({"q": SECRET}),
        json.dumps({"q": SECRET}, ensure_ascii=False),
        json.dumps(json.dumps(SECRET)),
        json.dumps(SECRET).replace("/", "\\/"),
        quote(SECRET, safe=""),
        json.dumps({"url": f"https://x/?k={quote(SECRET, safe='')}"}),
        SECRET.replace("&", "&amp;").replace('"', "&quot;"),
    ],
    ids=["raw", "json", "json-utf8", "json-twice", "slashes", "percent", "percent-in-json", "html"],
)
def test_decoded_values_are_found(query: str) -> None:
    assert not safe_query(f"Use this: {query}. What now?", ["other", SECRET])
    assert safe_query(f"Use this: {query}. What now?", [SECRET + "!"])


def test_what_is_not_the_exact_value_is_not_leakage() -> None:
    assert safe_query("sample!23 and Sample!2 and S a m p l e ! 2 3", ["Sample!23"])
    assert safe_query("anything", [])
    with pytest.raises(ValueError, match="empty"):
        safe_query("anything", [""])
