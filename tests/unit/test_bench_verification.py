"""The cases and reference rules behind the verification rows of `make bench`."""

from __future__ import annotations

import time

import pytest

from apprentice.verify import RuleVerifier
from driver.bench import verification
from driver.bench.verification import run_rule
from driver.bench.verification_cases import CASES, Case
from driver.bench.verification_rules import RULES

pytestmark = pytest.mark.unit


def test_our_verifier_is_right_in_every_case() -> None:
    verifier = RuleVerifier()
    verdicts = verifier.verify_batch([(case.text(), case.gold) for case in CASES])
    verifier.close()
    wrong = [(c, v) for c, v in zip(CASES, verdicts, strict=True) if v.correct != c.right]
    assert not wrong
    reports = {case.group for case in CASES if case.group[0] == "A" and case.group[1:].isdigit()}
    assert reports == {f"A{number:02}" for number in range(1, 30, 2)}


def box(gold: str, answer: str) -> Case:
    return Case("", gold, answer, True)


@pytest.mark.parametrize(
    ("gold", "answer", "equal"),
    [
        (r"\frac{1}{2}", "0.5", True),
        (r"\frac{1}{2}", "1/2", True),
        (r"\frac12", r"\dfrac{1}{2}", True),
        (r"\sqrt2", r"\sqrt{2}", True),
        (r"3", r"3 \text{ cm}", True),
        ("5", "x=5", True),
        (r"30^\circ", "30", True),
        ("(1,2)", r"\left( 1, 2 \right)", True),
        ("x+1", "1+x", False),  # text is compared, not value
        ("0.25", r"\frac{1}{4}", False),
        ("11", "711", False),
    ],
)
def test_the_rule_for_math_compares_normalized_text(gold: str, answer: str, equal: bool) -> None:
    assert RULES["verl's rule for MATH"](box(gold, answer)) is equal


@pytest.mark.parametrize(
    ("gold", "answer", "equal"),
    [
        ("10,080", "10080", True),
        ("5", "5 dollars", True),
        (r"\frac12", r"\frac{1}{2}", True),
        ("5", "x = 5", True),
        ("11", "711", False),
        ("x+1", "1+x", False),
    ],
)
def test_the_rule_for_dapo_reads_the_answer_line(gold: str, answer: str, equal: bool) -> None:
    assert RULES["verl's rule for DAPO"](box(gold, answer)) is equal
    late = Case("", gold, answer, True, f"Answer: {answer}" + " and so on" * 40)
    assert not RULES["verl's rule for DAPO"](late)


@pytest.mark.parametrize(
    ("gold", "response", "equal"),
    [
        ("7", r"It is \boxed{7}.", True),
        ("7", r"First $5$, then the final answer is $7$. I hope it is correct.", True),
        ("7", "We have 3 and then 7", True),
        (r"\frac{1}{2}", r"So $x=0.5$", True),
        ("D", "The answer is D", True),
        ("7", r"It is \boxed{8}, not 7", False),
    ],
)
def test_the_extractive_match_takes_the_best_placed_mathematics(
    gold: str, response: str, equal: bool
) -> None:
    assert RULES["lighteval's extractive match"](Case("", gold, "", True, response)) is equal


def test_a_rule_that_raises_hangs_or_dies_costs_only_its_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "_serve", _serve)
    began = time.monotonic()
    words = ["yes", "raise", "no", "hang", "yes", "die", "no"]
    answers = run_rule("any", [Case("", word, word, True) for word in words], deadline_s=0.5)
    assert answers == [True, None, False, None, True, None, False]
    assert time.monotonic() - began < 90


def test_a_rule_whose_process_does_not_start_is_not_counted_as_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "_serve", _never)
    with pytest.raises(RuntimeError, match="any: its process ended before its first case"):
        run_rule("any", [Case("", "yes", "yes", True)])


def _never(connection: object, name: str, cases: list[Case]) -> None: ...


def _serve(connection: object, name: str, cases: list[Case]) -> None:
    connection.send("ready")  # type: ignore[attr-defined]
    for case in cases:
        if case.gold == "hang" and case is not cases[0]:
            time.sleep(600)
        if case.gold in ("die", "hang"):
            raise SystemExit(3)
        connection.send(None if case.gold == "raise" else case.gold == "yes")  # type: ignore[attr-defined]
