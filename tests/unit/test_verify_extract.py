"""The one extractor: the last box, the Answer line, never inside unfinished thinking."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apprentice.verify.extract import extract_answer, last_boxed

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"So \boxed{7}.", "7"),
        (r"First \boxed{1}, then \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{\text{a } \{1, 2\}}", r"\text{a } \{1, 2\}"),
        (r"\fbox{3}", "3"),
        (r"\boxed 5", "5"),
        (r"\boxed{  -3 }", "  -3 "),
        (r"\boxed{2} and an unfinished \boxed{3", "2"),
        (r"\boxed{a{b}c} \boxed{{x}", "a{b}c"),
    ],
)
def test_last_balanced_box(response: str, answer: str) -> None:
    for mode in ("strict", "fallback"):
        found = extract_answer(response, mode)  # type: ignore[arg-type]
        assert (found.answer, found.how) == (answer, "boxed")


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("The answer is 42.", "42"),
        ("Answer: 42", "42"),
        ("**Answer:** 42", "42"),
        ("**Final Answer: 42**", "42"),
        ("Final answer:\n\n$42$", "$42$"),
        ("#### Answer: $\\frac{1}{2}$", "$\\frac{1}{2}$"),
        ("The final answer is $x = 5$. I hope it is correct.", "$x = 5$"),
        ("The answer is \\(3\\).", "\\(3\\)"),
        ("Answer: 3\nLet me check.\nAnswer: 4", "4"),
        ("The answer: **B**", "B"),
        ("My answer is (C) 12", "(C) 12"),
        ("The answer is 1,234 dollars.", "1,234 dollars"),
        ("answer = 12.5", "12.5"),
    ],
)
def test_answer_line_without_a_box(response: str, answer: str) -> None:
    assert extract_answer(response, "fallback").answer == answer
    assert extract_answer(response, "strict").answer is None


def test_a15_repeated_box_is_one_answer() -> None:
    text = (
        r"I think the answer is \boxed{1}. Yeah so the reason why the answer is \boxed{1} is because of xxx."
    )
    assert extract_answer(text, "strict").answer == "1"
    assert extract_answer(text, "fallback").answer == "1"


def test_a17_bold_final_answer_and_never_an_earlier_number() -> None:
    tail = "Left: ... = 437 + 2*234 = 437 + 468 = 905 ... Final Answer: **73**"
    assert extract_answer(tail, "strict").answer is None
    assert extract_answer(tail, "strict").how == "no_answer"
    assert extract_answer(tail, "fallback").answer == "73"


def test_a21_a_long_box_keeps_its_opening() -> None:
    expression = "+".join(f"x_{{{i}}}" for i in range(30))
    assert len(expression) > 150
    assert extract_answer("t" * 3000 + r"\boxed{" + expression + "}" + " bye" * 200).answer == expression


def test_a27_an_answer_after_the_box_wins_in_fallback_mode() -> None:
    text = r"Since \boxed{\langle H\rangle \ll \Delta E} holds, we choose. **Answer: D**"
    assert extract_answer(text, "fallback").answer == "D"
    assert extract_answer(text, "strict").answer == r"\langle H\rangle \ll \Delta E"


@pytest.mark.parametrize(
    ("response", "answer", "how"),
    [
        (r"<think>It is \boxed{3}", None, "unfinished_thinking"),
        (r"<think>a</think>\boxed{4}<think>no \boxed{5}", None, "unfinished_thinking"),
        (r"<think>It is \boxed{3}</think> So \boxed{4}.", "4", "boxed"),
        (r"It is \boxed{3}</think> So \boxed{4}.", "4", "boxed"),
        (r"<think>It is \boxed{3}</think> Done.", None, "no_answer"),
        (r"\boxed{}", None, "empty_box"),
        ("", None, "no_answer"),
        ("no maths here", None, "no_answer"),
    ],
)
def test_thinking_and_missing_answers(response: str, answer: str | None, how: str) -> None:
    found = extract_answer(response, "fallback")
    assert (found.answer, found.how) == (answer, how)


@pytest.mark.parametrize("unit", ["{", "}", r"\boxed{", r"\boxed", "{}", r"\{", "answer: ", "**"])
def test_a_megabyte_of_anything_is_searched_in_linear_time(unit: str) -> None:
    text = unit * (1_000_000 // len(unit))
    start = time.perf_counter()
    extract_answer(text, "fallback")
    assert time.perf_counter() - start < 1
    assert extract_answer(text + r" \boxed{7}", "strict").answer in ("7", None)


@settings(deadline=None)
@given(st.text(max_size=200))
def test_extraction_never_fails_and_returns_a_part_of_the_response(text: str) -> None:
    found = extract_answer(text, "fallback")
    assert found.answer is None or found.answer in text


@settings(deadline=None)
@given(st.text(alphabet="ab{}\\x1 ", max_size=60))
def test_a_box_content_is_always_balanced(text: str) -> None:
    found = last_boxed(r"\boxed{" + text + "}")
    if found is not None and r"\boxed" not in text:
        level = 0
        import re

        for token in re.findall(r"\\[\\{}]|[{}]", found[0]):
            level += {"{": 1, "}": -1}.get(token, 0)
            assert level >= 0
        assert level == 0
