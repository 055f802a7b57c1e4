"""Verdicts on responses to problems of any kind: answers by rules, programs by their tests."""

from __future__ import annotations

from apprentice.data.problem import Problem
from apprentice.errors import SandboxError
from apprentice.rollout.ports import Verdict
from apprentice.verify.execution import ExecutionJudge, TestVerdict
from apprentice.verify.program_text import extract_program
from apprentice.verify.verifier import RuleVerifier

__all__ = ["ProblemVerifier"]

_NAMES = {TestVerdict.TIMEOUT: "timeout", TestVerdict.COMPILE_ERROR: "unparseable"}


class ProblemVerifier:
    """A :class:`apprentice.rollout.ports.Verifier`. Picklable where its parts are.

    Args:
        rules: for problems with a gold answer.
        programs: for programming problems; None: there are none.
    """

    def __init__(self, rules: RuleVerifier, programs: ExecutionJudge | None = None) -> None:
        self._rules, self._programs = rules, programs

    async def verify(self, response: str, problem: Problem) -> Verdict:
        """The verdict. A program is ``correct`` when it passes every test.

        Else it is ``timeout`` or ``unparseable`` where its first failure is a time limit or a syntax error,
        and ``wrong`` in all other cases; ``no_answer`` without a program.

        Raises:
            SandboxError: the sandbox failed past its retries, or there is no judge of programs.
            DataError: the problem's tests cannot be read.
        """
        tests = problem.metadata.get("code_tests")
        if tests is None:
            return await self._rules.verify(response, problem.answer)
        if self._programs is None:
            raise SandboxError(f"{problem.problem_id} needs a judge of programs, and none is connected")
        program, how = extract_program(response)
        if program is None:
            return Verdict("no_answer", None, how)
        judged = await self._programs.judge(program, tests)
        counts = (judged.count, len(judged.tests))
        if judged.passed or judged.first_failure is None:
            return Verdict("correct" if judged.passed else "wrong", program, "all tests passed", counts)
        number, failed = judged.first_failure
        reason = f"test {number}: {failed.verdict}" + (f": {failed.reason}" if failed.reason else "")
        return Verdict(_NAMES.get(failed.verdict, "wrong"), program, reason, counts)
