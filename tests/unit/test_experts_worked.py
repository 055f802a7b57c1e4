"""Worked experts of different strength on the two tools."""

import pytest

from apprentice.config.schema import WorkedBackend
from apprentice.data.problem import Problem
from apprentice.experts.worked import WorkedExpert

pytestmark = pytest.mark.unit


def test_thinking_is_weaker_than_a_program_where_the_recipe_says_so() -> None:
    expert = WorkedExpert("a", WorkedBackend(error_rate=0.2, think_strength=0.5), {}, seed=3)
    problems = [Problem(f"p{i}", "q", "1", family="gcd") for i in range(4000)]
    program = [expert.knows(p, "code_interpreter") for p in problems]
    thinking = [expert.knows(p, "think") for p in problems]
    assert sum(program) / 4000 == pytest.approx(0.8, abs=0.02)
    assert sum(thinking) / 4000 == pytest.approx(0.4, abs=0.02)
    assert all(p or not t for p, t in zip(program, thinking, strict=True))
