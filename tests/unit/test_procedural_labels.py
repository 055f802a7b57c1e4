"""Several families of one procedural dataset, told apart by a label."""

import pytest

from apprentice.data.procedural import generate
from apprentice.errors import ConfigError

pytestmark = pytest.mark.unit


def _terms(question: str) -> int:
    expression = question.split(":")[-1]
    return expression.count("+") + expression.count(" - ") + 1


def test_labels_make_families_of_one_dataset() -> None:
    families = {
        "chain_sum@easy": {"min_terms": 2, "max_terms": 2},
        "chain_sum@hard": {"min_terms": 6, "max_terms": 6},
    }
    problems = generate("set", families, 8, seed=1)
    assert [p.family for p in problems] == ["chain_sum@easy", "chain_sum@hard"] * 4
    assert {_terms(p.question) for p in problems if p.family == "chain_sum@easy"} == {2}
    assert {_terms(p.question) for p in problems if p.family == "chain_sum@hard"} == {6}
    assert all(p.worked is not None for p in problems)  # the worked solution is that of the dataset


def test_an_unknown_dataset_with_a_label_is_named_without_it() -> None:
    with pytest.raises(ConfigError, match="no dataset 'chain_sun'; did you mean 'chain_sum'"):
        generate("set", {"chain_sun@easy": {}}, 2, seed=1)
