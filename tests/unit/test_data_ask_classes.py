"""Balanced classes and the validation split: counts, order, seeds, and what cannot be split."""

from __future__ import annotations

import pytest

from apprentice.data.ask_classes import balance_classes, train_validation_split
from apprentice.data.problem import Problem
from apprentice.errors import DataError

pytestmark = pytest.mark.unit

PROBLEMS = [Problem(f"p{i}", f"{i}?", str(i)) for i in range(50)]
NEEDS = [i % 5 == 0 for i in range(50)]  # ten need the advisor


def ids(problems: list[Problem]) -> list[int]:
    return [int(p.problem_id[1:]) for p in problems]


@pytest.mark.parametrize("flip", [False, True])
def test_the_larger_class_is_sampled_down_to_the_smaller(flip: bool) -> None:
    needs = [n != flip for n in NEEDS]
    kept = ids(balance_classes(PROBLEMS, needs, seed=3))
    assert len(kept) == 20 and kept == sorted(set(kept))
    assert [i for i in kept if i % 5 == 0] == list(range(0, 50, 5))  # the smaller class is whole


def test_the_seed_decides_what_is_kept() -> None:
    assert balance_classes(PROBLEMS, NEEDS, 3) == balance_classes(PROBLEMS, NEEDS, 3)
    assert balance_classes(PROBLEMS, NEEDS, 3) != balance_classes(PROBLEMS, NEEDS, 4)


@pytest.mark.parametrize(("need", "message"), [(True, "every problem needs"), (False, "no problem needs")])
def test_an_empty_class_says_what_to_do(need: bool, message: str) -> None:
    with pytest.raises(DataError, match=rf"{message} the advisor .*gamma"):
        balance_classes(PROBLEMS, [need] * 50, 0)


def test_targets_must_fit_the_problems() -> None:
    with pytest.raises(ValueError, match="49 consultation targets for 50"):
        balance_classes(PROBLEMS, NEEDS[:-1], 0)


@pytest.mark.parametrize(("share", "held"), [(0.05, 2), (0.2, 10), (0.001, 1), (0.999, 49)])
def test_a_split_is_a_partition_of_the_stated_size(share: float, held: int) -> None:
    train, validation = train_validation_split(PROBLEMS, share, 1)
    assert len(validation) == held
    assert ids(train) == sorted(ids(train)) and ids(validation) == sorted(ids(validation))
    assert sorted(ids(train) + ids(validation)) == list(range(50))


def test_the_split_follows_the_seed() -> None:
    assert train_validation_split(PROBLEMS, 0.2, 1) == train_validation_split(PROBLEMS, 0.2, 1)
    assert train_validation_split(PROBLEMS, 0.2, 1) != train_validation_split(PROBLEMS, 0.2, 2)


def test_what_cannot_be_split() -> None:
    with pytest.raises(DataError, match="1 training problems"):
        train_validation_split(PROBLEMS[:1], 0.5, 0)
    with pytest.raises(ValueError, match="between 0 and 1"):
        train_validation_split(PROBLEMS, 1.0, 0)
