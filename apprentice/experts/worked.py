"""An expert without a model: it answers from the worked solutions that a problem set carries.

How good it is, is decided once per (expert, problem, seed) with a hash, so all rollouts of a group, all
retries and all processes meet the same ability: an expert that errs on a problem gives the same wrong answer
every time. It errs on both tools, or, with ``think_strength`` below 1, on ``think`` alone. A wrong answer is
a plausible one (:func:`apprentice.data.worked.perturb`), never empty.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Mapping

from apprentice.config.schema import WorkedBackend
from apprentice.data.problem import Problem, WorkedSolution
from apprentice.data.worked import perturb
from apprentice.episodes.actions import CallExpert
from apprentice.experts.types import BackendFailure, ExpertAnswer

__all__ = ["WorkedExpert"]


def _draw(*parts: object) -> float:
    """A number in [0, 1) that depends on nothing but ``parts``."""
    digest = hashlib.sha256("\x1f".join(str(p) for p in parts).encode()).digest()
    return int.from_bytes(digest[:7], "big") / 2.0**56


class WorkedExpert:
    """Backend ``worked``.

    Args:
        name: the expert's name; part of what decides its ability.
        config: error rate, strengths by family, latency, failure rate.
        problems: problem id -> problem; a problem without a worked solution cannot be answered.
        seed: of the run.
    """

    def __init__(
        self, name: str, config: WorkedBackend, problems: Mapping[str, Problem], *, seed: int = 0
    ) -> None:
        self._name, self._config, self._problems, self._seed = name, config, problems, seed
        self._failures = random.Random(f"{name}:{seed}")
        self._errors: dict[str, WorkedSolution] = {}

    @property
    def model(self) -> str:
        """``worked``: there is no model."""
        return "worked"

    def knows(self, problem: Problem, tool: str = "code_interpreter") -> bool:
        """Whether this expert gets this problem right with this tool; always the same for one seed.

        What it gets right by thinking it gets right with a program too (``think_strength``).
        """
        right = self._config.strengths.get(problem.family, 1.0 - self._config.error_rate)
        if tool == "think":
            right *= self._config.think_strength
        return _draw("ability", self._name, problem.problem_id, self._seed) < right

    async def answer(self, request: CallExpert, *, timeout_s: float) -> ExpertAnswer:
        """The worked derivation or program, or a wrong one, after the configured latency.

        Raises:
            BackendFailure: kinds ``no_worked_solution``, ``unknown_tool``, ``timeout``, ``injected``.
        """
        if request.tool not in ("think", "code_interpreter"):
            raise self._failure(f"knows no tool {request.tool!r}", "unknown_tool")
        problem = self._problems.get(request.problem_id)
        if problem is None or problem.worked is None:
            what = "does not know problem" if problem is None else "has no worked solution of problem"
            raise self._failure(f"{what} {request.problem_id!r}", "no_worked_solution")
        if self._config.latency_s:
            await asyncio.sleep(min(self._config.latency_s, timeout_s))
            if self._config.latency_s > timeout_s:
                raise self._failure(f"no answer within {timeout_s:g} s", "timeout", retryable=True)
        if self._config.failure_rate and self._failures.random() < self._config.failure_rate:
            raise self._failure("injected failure", "injected", retryable=True)
        worked = problem.worked
        if not self.knows(problem, request.tool):
            worked = self._wrong(problem.problem_id, worked)
        return ExpertAnswer(text=worked.derivation if request.tool == "think" else worked.program)

    def _wrong(self, problem_id: str, worked: WorkedSolution) -> WorkedSolution:
        if problem_id not in self._errors:  # finding a wrong one may run some programs
            rng = random.Random(f"error:{self._name}:{problem_id}:{self._seed}")
            self._errors[problem_id] = perturb(worked, rng)
        return self._errors[problem_id]

    async def close(self) -> None:
        """Nothing to release."""

    def _failure(self, what: str, kind: str, *, retryable: bool = False) -> BackendFailure:
        message = f"worked expert {self._name!r}: {what}"
        return BackendFailure(message, kind=kind, expert=self._name, retryable=retryable)
