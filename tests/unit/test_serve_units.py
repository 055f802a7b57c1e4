"""What the Serve apps are built from. Nothing is deployed."""

import pytest

from apprentice.data.problem import Problem
from apprentice.errors import ConfigError
from serve.expert import _by_id

pytestmark = pytest.mark.unit


def test_worked_experts_refuse_two_problems_of_one_id() -> None:
    """Ids are unique in a set only: a test problem would get the training problem's solution."""
    train, test = Problem("7", "What is 1 + 1?", "2"), Problem("7", "What is 2 + 2?", "4")
    with pytest.raises(ConfigError, match="the id '7' stands on two different problems"):
        _by_id([train, test], unique=True)
    assert _by_id([train, train], unique=True) == {"7": train}
    assert _by_id([train, test], unique=False) == {"7": train}  # nobody looks a problem up
