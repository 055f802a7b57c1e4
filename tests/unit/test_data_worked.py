"""Worked solutions print the gold; perturbed ones are plausible and wrong."""

from __future__ import annotations

import contextlib
import io
from random import Random
from typing import Any

import pytest
import reasoning_gym

from apprentice.data._whitelist import run_whitelisted
from apprentice.data.problem import WorkedSolution
from apprentice.data.word_problems import word_problem
from apprentice.data.worked import WORKED_FAMILIES, perturb, worked_solution

pytestmark = pytest.mark.unit

PER_FAMILY = 300


def executed(program: str) -> str:
    """What Python itself prints: the independent reference for the in-process runner."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(program, {"__name__": "__main__"})
    return out.getvalue().strip()


def entries(family: str) -> list[tuple[dict[str, Any], WorkedSolution]]:
    dataset = reasoning_gym.create_dataset(family, seed=2024, size=2 * PER_FAMILY)
    pairs = []
    for index in range(2 * PER_FAMILY):
        entry = dataset[index]
        worked = worked_solution(family, entry["answer"], entry["metadata"])
        if worked is not None:
            pairs.append((entry, worked))
    return pairs[:PER_FAMILY]


@pytest.mark.parametrize("family", WORKED_FAMILIES)
def test_every_worked_program_prints_the_gold_and_every_perturbed_one_does_not(family: str) -> None:
    pairs = entries(family)
    assert len(pairs) == PER_FAMILY
    ends_right = 0
    for index, (entry, worked) in enumerate(pairs):
        assert executed(worked.program) == entry["answer"] == run_whitelisted(worked.program)
        assert len(worked.program.splitlines()) <= 8
        assert len(worked.program) <= 160
        assert worked.derivation.endswith(".")
        assert "input(" not in worked.program
        assert "split" not in worked.program
        wrong = perturb(worked, Random(index))
        assert executed(wrong.program) not in (entry["answer"], "")
        assert wrong.derivation != worked.derivation
        ends_right += entry["answer"] in worked.derivation.replace(",", "")
    assert ends_right == PER_FAMILY


def test_perturbation_is_decided_by_the_rng() -> None:
    _, worked = entries("lcm")[0]
    assert perturb(worked, Random(5)) == perturb(worked, Random(5))
    assert len({perturb(worked, Random(seed)).program for seed in range(20)}) > 5


def test_perturbed_derivation_ends_in_what_the_perturbed_program_prints() -> None:
    worked = WorkedSolution(
        "The smallest number that 4 and 6 divide is their lcm. It is 12.",
        "from math import lcm\nprint(lcm(4, 6))",
    )
    for seed in range(10):
        wrong = perturb(worked, Random(seed))
        assert wrong.derivation == worked.derivation.replace("12", executed(wrong.program))


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        ("import os\nprint(len(os.getcwd()))", "import"),
        ("print('a' * 3)", "string"),
        ("x = (1", "syntax error"),
    ],
)
def test_programs_outside_the_small_language_are_never_run(program: str, kind: str) -> None:
    wrong = perturb(WorkedSolution("It is 7.", program), Random(0))
    assert wrong.program != program, kind
    assert wrong.derivation != "It is 7."
    assert run_whitelisted(program) is None


@pytest.mark.parametrize(
    "program",
    [
        "print((1).__class__)",
        "print(().__class__)",
        "__import__('os')",
        "from os import system",
        "print(10 ** 10 ** 10)",
        "a = 9 ** 9\nprint(a ** a)",
        "for i in range(10 ** 9):\n    print(i)",
        "print = 3",
        "range = print\nprint(1)",
        "while True:\n    pass",
        "print(max(1, 2))",
        "open('x')",
    ],
)
def test_the_small_language_has_no_way_out(program: str) -> None:
    assert run_whitelisted(program) is None


def test_word_problem_programs_name_intermediate_results() -> None:
    text = "He drank 7*6=42 ounces of tea.\nSo he drank 42*3=126 calories of tea\n#### 126"
    worked = word_problem(text, "126")
    assert worked is not None
    assert worked.program == "a = 7 * 6\nprint(a * 3)"
    assert worked.derivation == "He drank 7*6=42 ounces of tea. So he drank 42*3=126 calories of tea."


@pytest.mark.parametrize(
    ("line", "answer", "program"),
    [
        ("294 pages x 2/3 = 196 pages", "196", "print(round(294 * 2 / 3))"),
        ("On Friday, 53 x €13 = €689", "689", "print(53 * 13)"),
        ("240 cars ÷ 12 = 20", "20", "print(round(240 / 12))"),
        ("104 spools / 260 spools * 100% = 40%", "40", "print(round(104 / 260 * 100))"),
        ("$936 * 25% = $234", "234", "print(round(936 * 25 / 100))"),
        ("perimeter is 2(27+21) = 96", "96", "print(2 * (27 + 21))"),
        ("half * 186 ladybugs = 93", "93", "print(round(0.5 * 186))"),
    ],
)
def test_equations_are_read_through_units_currencies_and_percent(
    line: str, answer: str, program: str
) -> None:
    worked = word_problem(line, answer)
    assert worked is not None
    assert worked.program == program


def test_a_text_whose_working_does_not_reach_the_gold_has_no_program() -> None:
    assert word_problem("She needs 81 / 18 = 4 racks.", "4") is None
    assert word_problem("Of them 3 and (4) + (5) (6) = 30.", "30") is None


def test_an_equation_that_lost_its_unknown_is_not_a_problem() -> None:
    assert worked_solution("simple_equations", "83", {"equation": "0 = 0", "variable": "i"}) is None
    assert worked_solution("unknown_family", "83", {}) is None
