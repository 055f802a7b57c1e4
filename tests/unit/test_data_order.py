"""The order of training problems across epochs and resumes (reports F01, F03)."""

import pytest

from apprentice.data.order import ProblemStream
from apprentice.data.problem import Problem
from apprentice.errors import DataError

pytestmark = pytest.mark.unit

PROBLEMS = [Problem(str(i), f"q{i}", "0") for i in range(10)]


def ids(problems: list[Problem]) -> list[str]:
    return [p.problem_id for p in problems]


def test_every_problem_once_an_epoch_in_another_order() -> None:
    stream = ProblemStream(PROBLEMS, seed=66)
    first, second = ids(stream.take(10)), ids(stream.take(10))
    assert sorted(first) == sorted(second) == sorted(ids(PROBLEMS))
    assert first != second


def test_resume_continues_the_unbroken_run_f03() -> None:
    unbroken = ProblemStream(PROBLEMS, seed=66)
    whole = [ids(unbroken.take(4)) for _ in range(8)]
    for steps in (0, 1, 2, 3, 5):  # step 5 ends exactly at an epoch's end (F01)
        resumed = ProblemStream(PROBLEMS, seed=66, position=4 * steps)
        assert [ids(resumed.take(4)) for _ in range(8 - steps)] == whole[steps:]


def test_seed_decides_the_order() -> None:
    assert ids(ProblemStream(PROBLEMS, 1).take(10)) != ids(ProblemStream(PROBLEMS, 2).take(10))


def test_empty_set_is_an_error() -> None:
    with pytest.raises(DataError, match="training set is empty"):
        ProblemStream([], 1)
