"""The advisor without a model: what it reads, what it answers, and how long."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest

from apprentice.advisors.arithmetic import ArithmeticAdvisor, advice
from apprentice.advisors.expression import evaluate, find_expressions, format_number
from apprentice.advisors.prompt import advisor_messages, count_tokens, cut_tokens
from apprentice.advisors.types import AttemptFailure, AttemptReply, AttemptRequest
from apprentice.config.ask import ArithmeticBackend
from apprentice.costs.usage import Usage

pytestmark = pytest.mark.unit

QUERY = "What is 12 + 5 * (3 - 1) - 4?"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (QUERY, ["18"]),
        ("Compute 10 - (3 - 2) - 4.", ["5"]),
        ("8 - -3", ["11"]),
        ("-3 + 4", ["1"]),
        ("- 3 + 4", ["7"]),  # a bullet
        ("1) 3+4", ["7"]),
        ("1. 3 + 4 = ?", ["7"]),
        ("(4 + 3),", ["7"]),
        ("**12 + 5**", ["17"]),
        ("$12 \\times 5$", ["60"]),
        ("\\(12 \\div 5\\)", ["2.4"]),
        ("3 x 4", ["12"]),
        ("6 × 7 − 2", ["40"]),
        ("1,234 + 5", ["1239"]),
        ("3.5*2, then 4+4", ["7", "8"]),
        ("10/(4/5)", ["12.5"]),
        ("1/3 + 1/3", ["2/3"]),
        ("Calculate -(3+4)*2", ["-14"]),
        ("((1+2)*3", ["9"]),
        ("What is (3+4)*2 step by step?", ["14"]),
        ("3 + 4 and again 3 + 4", ["7"]),
    ],
)
def test_expressions_are_found_and_evaluated(text: str, values: list[str]) -> None:
    assert [format_number(evaluate(e)[0]) for e in find_expressions(text)] == values


@pytest.mark.parametrize(
    "text",
    [
        "What is the total?",
        "What is 7?",
        "Reply with 5–7 lines of prose.",
        "Answer in 10-15 words",
        "x + 3 + 4",
        "3 + x",
        "3 + x = 7 - 2",
        "2x = 3 + 4",
        "2(3+4)",
        "2**3",
        "2^3 + 1",
        "5! + 3",
        "5 + 3y",
        "on 2024-05-01",
        "version v1.2+3",
        "a_1+2",
        "",
    ],
)
def test_half_a_formula_a_count_or_a_name_is_no_expression(text: str) -> None:
    assert find_expressions(text) == []


@pytest.mark.parametrize("text", ["(" * 20000, "1+" * 20000, "1+2 " * 5000, "-" * 5000 + "1", "(1+" * 20000])
def test_hostile_text_is_read_in_bounded_time(text: str) -> None:
    for expression in find_expressions(text):
        evaluate(expression)


def test_an_expression_as_text_means_the_same() -> None:
    for text in (
        "10 - (3 - 2) - 4",
        "10 / (4 / 5)",
        "2 * (3 + 4) * (5 - 6)",
        "7 - (8 + 2 * 3)",
        "(-5) * (-6)",
    ):
        (expression,) = find_expressions(text)
        (again,) = find_expressions(str(expression))
        assert str(expression) == text and evaluate(again)[0] == evaluate(expression)[0]


def test_steps_lead_to_the_result_in_the_order_of_precedence() -> None:
    value, steps = evaluate(find_expressions(QUERY)[0])
    assert value == 18
    assert [(int(s.left), s.operator, int(s.right), int(s.result)) for s in steps] == [
        (3, "-", 1, 2),
        (5, "*", 2, 10),
        (12, "+", 10, 22),
        (22, "-", 4, 18),
    ]
    assert evaluate(find_expressions("0.1 + 0.2")[0])[0] == Fraction(3, 10)


@pytest.mark.parametrize(
    ("instruction", "answer"),
    [
        ("Only the result.", "18"),
        ("Give just the final number.", "18"),
        ("Reply with the answer only, no words.", "18"),
        ("No explanation.", "18"),
        ("Answer in one line.", "12 + 5 * (3 - 1) - 4 = 18"),
        ("Be brief.", "12 + 5 * (3 - 1) - 4 = 18"),
        ("in three lines", "12 + 5 * (3 - 1) - 4 = 18"),
        ("Answer in at most 10 words.", "18"),
        ("Within 40 tokens.", "3 - 1 = 2\n5 * 2 = 10\n12 + 10 = 22\n22 - 4 = 18\nResult: 18"),
        ("Show each step.", "3 - 1 = 2\n5 * 2 = 10\n12 + 10 = 22\n22 - 4 = 18\nResult: 18"),
        ("Reply with 4-5 lines.", "3 - 1 = 2\n5 * 2 = 10\n12 + 10 = 22\n22 - 4 = 18\nResult: 18"),
    ],
)
def test_the_response_instruction_governs_the_length(instruction: str, answer: str) -> None:
    assert advice(f"{QUERY}\n{instruction}") == answer


def test_without_an_instruction_the_answer_is_long_and_grows_with_the_expression() -> None:
    lengths = [count_tokens(advice("What is " + " + ".join(["7"] * n) + "?")) for n in (2, 4, 8, 16)]
    assert lengths[0] > 100 and lengths[-1] > 512
    assert all(later > 1.4 * earlier for earlier, later in itertools.pairwise(lengths))
    assert advice(QUERY).endswith("Result: 18"), "the result stands where a small cap cuts"
    assert count_tokens(advice(f"{QUERY} Within 400 tokens.")) == count_tokens(advice(QUERY)) < 400


def test_a_query_without_an_expression_gets_a_short_answer_that_says_so() -> None:
    said = advice("What is the total?")
    assert "no arithmetic expression" in said and count_tokens(said) < 30
    assert "undefined" in advice("What is 12 / 0?") and advice("12 / (3 - 3) only the result") == "undefined"


def test_tokens_are_words_digits_by_three_and_signs() -> None:
    assert count_tokens("Result: 12345 a_b, ok.") == 2 + 2 + 3 + 1 + 1 + 1
    assert cut_tokens("ab cd, 12345", 4) == ("ab cd, 123", 4, True)
    assert cut_tokens("ab cd, 12345", 5) == ("ab cd, 12345", 5, False)
    assert cut_tokens("ab", 0) == ("", 0, True)


async def answer(query: str, cap: int = 64, *, seed: int = 0, **options: float) -> object:
    backend = ArithmeticAdvisor(ArithmeticBackend(**options), seed=seed)
    request = AttemptRequest(advisor_messages(query), cap, "id")
    return await backend.attempt(request, timeout_s=0.05)


async def test_the_cap_cuts_the_answer_and_counts_to_the_token() -> None:
    cut = await answer(QUERY, 64)
    assert isinstance(cut, AttemptReply)
    assert (cut.finish_reason, cut.usage) == ("length", Usage(count_tokens(QUERY), 64, 0, 0))
    assert advice(QUERY).startswith(cut.text) and "18" not in cut.text
    whole = await answer(f"{QUERY} Only the result.", 64)
    assert isinstance(whole, AttemptReply)
    assert (whole.text, whole.finish_reason, whole.usage.completion_tokens) == ("18", "stop", 1)
    exact = await answer(f"{QUERY} Only the result.", 1)
    assert isinstance(exact, AttemptReply) and exact.finish_reason == "stop", "|z| = b, which is not below b"


async def test_errors_are_fixed_for_a_text_and_a_seed_and_as_frequent_as_asked() -> None:
    queries = [f"What is {a} + {b} * 2? Only the result." for a in range(3, 23) for b in range(2, 12)]
    wrong = []
    for query in queries:
        first, again = await answer(query, error_rate=0.3), await answer(query, 99, error_rate=0.3)
        assert isinstance(first, AttemptReply) and isinstance(again, AttemptReply)
        assert first.text == again.text
        wrong.append(first.text != advice(query))
    assert 0.2 < sum(wrong) / len(wrong) < 0.4
    other = [await answer(query, seed=1, error_rate=0.3) for query in queries]
    assert wrong != [
        isinstance(a, AttemptReply) and a.text != advice(q) for a, q in zip(other, queries, strict=True)
    ]
    always = [await answer(query, error_rate=1.0) for query in queries]
    assert all(
        isinstance(a, AttemptReply) and a.text != advice(q) for a, q in zip(always, queries, strict=True)
    )


async def test_latency_and_injected_failures_end_before_any_token() -> None:
    slow = await answer(QUERY, latency_s=1.0)
    assert isinstance(slow, AttemptFailure) and (slow.kind, slow.retryable) == ("timeout", True)
    failed = await answer(QUERY, failure_rate=1.0)
    assert isinstance(failed, AttemptFailure)
    assert (failed.kind, failed.usage) == ("injected", Usage(0, 0, 0, 0)), "a known zero"


def test_a_whole_problem_is_answered_in_the_form_that_it_asks_for() -> None:
    """What the baseline without a reasoner sends: its replies are verified like the reasoner's."""
    query = "End with: Answer: \\boxed{answer}\n\nState the final answer to: 5 - 4 + 5 ="
    assert advice(query).endswith("\nResult: 6\nAnswer: \\boxed{6}")
    assert advice(f"{query} Give only the result.") == "6\nAnswer: \\boxed{6}"
