"""Verdicts on responses, by kind of problem, and the prompt that asks for a program."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from apprentice.data.code import CodeTests
from apprentice.data.problem import Problem
from apprentice.episodes.prompts import problem_prompt
from apprentice.errors import SandboxError
from apprentice.sandbox.isolation import Limits
from apprentice.sandbox.outcome import CellResult, Entry, Outcome
from apprentice.verify import RuleVerifier
from apprentice.verify.execution import ExecutionJudge
from apprentice.verify.problems import ProblemVerifier

pytestmark = pytest.mark.unit

TESTS = CodeTests("stdin", ("1", "2", "3"), ("1", "2", "3"))
PROBLEM = Problem("p", "Echo.", "", metadata={"code_tests": TESTS.text()})
ANSWER = "```python\nprint(input())\n```"


class Scripted:
    """Answers runs from a list."""

    def __init__(self, *results: CellResult) -> None:
        self.results, self.stdin = list(results), list[bytes]()

    async def run_program(self, code: str, *, entry: Entry, stdin: bytes, limits: Limits) -> CellResult:
        self.stdin.append(stdin)
        return self.results.pop(0)


@pytest.fixture
def rules() -> Iterator[RuleVerifier]:
    made = RuleVerifier()
    yield made
    made.close()


def ok(stdout: str, cpu_s: float = 0.1) -> CellResult:
    return CellResult(Outcome.OK, stdout=stdout, cpu_s=cpu_s)


@pytest.mark.parametrize(
    ("results", "verdict", "tests", "reason"),
    [
        ([ok("1"), ok("2"), ok("3")], "correct", (3, 3), "all tests passed"),
        ([ok("1"), ok("9")], "wrong", (1, 3), "test 2: wrong_answer: line 1: '9' instead of '2'"),
        ([ok("1"), CellResult(Outcome.TIMEOUT_CPU)], "timeout", (1, 3), "test 2: timeout: more than 6 s"),
        ([ok("1", cpu_s=6.5)], "timeout", (0, 3), "test 1: timeout"),
        ([CellResult(Outcome.SYNTAX_ERROR, "SyntaxError")], "unparseable", (0, 3), "test 1: compile_error"),
        ([CellResult(Outcome.KILLED_OOM)], "wrong", (0, 3), "test 1: memory"),
        ([CellResult(Outcome.CRASH, "SIGSEGV", stdout="1")], "wrong", (0, 3), "runtime_error: SIGSEGV"),
    ],
)
async def test_verdicts_of_programs(
    rules: RuleVerifier,
    results: list[CellResult],
    verdict: str,
    tests: tuple[int, int],
    reason: str,
) -> None:
    runner = Scripted(*results)
    found = await ProblemVerifier(rules, ExecutionJudge(runner)).verify(ANSWER, PROBLEM)
    assert (found.verdict, found.tests, found.answer) == (verdict, tests, "print(input())\n")
    assert reason in found.reason
    assert runner.stdin == [b"1", b"2", b"3"][: len(results)]


async def test_without_a_program_nothing_runs(rules: RuleVerifier) -> None:
    judge = ProblemVerifier(rules, ExecutionJudge(Scripted()))
    for response in (f"<think>{ANSWER}", "print(input())", ANSWER[:-3]):
        assert (await judge.verify(response, PROBLEM)).verdict == "no_answer"


async def test_a_sandbox_that_fails_and_a_missing_judge_are_no_verdicts(rules: RuleVerifier) -> None:
    for outcome in (Outcome.SANDBOX_ERROR, Outcome.OVERLOADED, Outcome.CANCELLED):
        with pytest.raises(SandboxError):
            judge = ExecutionJudge(Scripted(CellResult(outcome)))
            await ProblemVerifier(rules, judge).verify(ANSWER, PROBLEM)
    with pytest.raises(SandboxError, match="judge of programs"):
        await ProblemVerifier(rules).verify(ANSWER, PROBLEM)
    assert (await ProblemVerifier(rules).verify("\\boxed{4}", Problem("m", "2+2?", "4"))).correct


@pytest.mark.parametrize("instructions", ["paper", "compact"])
def test_the_prompt_of_a_program_asks_for_one_and_for_no_box(instructions: str) -> None:
    [message] = problem_prompt("Echo <PROBLEM> it.", instructions, code=True).messages  # type: ignore[arg-type]
    assert "complete Python program" in message["content"]
    assert "```python" in message["content"]
    assert "boxed" not in message["content"]
    assert "Echo <PROBLEM> it." in message["content"]
