"""What an episode needs from the outside, as typed interfaces.

Actors implement them over Ray, tests by hand. Every call has a deadline of its own and raises an
:class:`apprentice.errors.InfrastructureError` (never returns a stand-in) when it cannot answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from apprentice.config.schema import SamplingConfig
from apprentice.data.problem import Problem
from apprentice.episodes.actions import (
    AdvisorRefused,
    AdvisorReply,
    AskAdvisor,
    CallExpert,
    ExpertReply,
    Generate,
    Generated,
    JudgeQuery,
    PythonResult,
    QueryJudged,
)

__all__ = [
    "AdvisorClient",
    "AskPorts",
    "ExpertClient",
    "FrozenModel",
    "PythonRunner",
    "QueryJudge",
    "Sampler",
    "Verdict",
    "Verifier",
]


class Sampler(Protocol):
    """The controller's inference engine."""

    async def generate(
        self, request: Generate, sampling: SamplingConfig, *, seed: int | None = None
    ) -> Generated:
        """Sample one continuation.

        Raises:
            EngineError: the engine failed or is stale.
        """
        ...


class ExpertClient(Protocol):
    """All experts behind one client."""

    async def ask(self, request: CallExpert) -> ExpertReply:
        """Ask the expert that ``request`` names.

        Raises:
            ExpertError: it failed past its retries.
        """
        ...


class PythonRunner(Protocol):
    """A sandbox."""

    async def run(self, code: str) -> PythonResult:
        """Run one cell.

        Raises:
            SandboxError: the sandbox failed past its retries.
        """
        ...


class AdvisorClient(Protocol):
    """The metered advisor."""

    async def ask(self, request: AskAdvisor) -> AdvisorReply | AdvisorRefused:
        """Ask, within the budgets. Sending one call twice charges it once and gives one answer.

        Raises:
            AdvisorError: it failed past its retries.
        """
        ...


class QueryJudge(Protocol):
    """The completeness gate."""

    async def judge(self, request: JudgeQuery) -> QueryJudged:
        """Whether the query is answerable as it is.

        Raises:
            AdvisorError: the judge failed past its retries.
        """
        ...


@dataclass(frozen=True, slots=True)
class FrozenModel:
    """A model that an episode asks but does not train, and how it is sampled."""

    sampler: Sampler
    sampling: SamplingConfig


@dataclass(frozen=True, slots=True)
class AskPorts:
    """What episodes of Learning to Ask need on top. ``frozen``: by name (``qmaker``, ``reasoner``)."""

    advisor: AdvisorClient | None = None
    judge: QueryJudge | None = None
    frozen: Mapping[str, FrozenModel] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier says of a response. ``verdict``: correct, wrong, unparseable, no_answer or timeout.

    ``tests``: of a program, how many tests passed and how many there are.
    """

    verdict: str
    answer: str | None
    reason: str = ""
    tests: tuple[int, int] | None = None

    @property
    def correct(self) -> bool:
        """Whether the answer was verified."""
        return self.verdict == "correct"


class Verifier(Protocol):
    """Checks a final response to a problem."""

    async def verify(self, response: str, problem: Problem) -> Verdict:
        """Extract the answer of ``response`` and check it. Never raises for bad input.

        Raises:
            InfrastructureError: nothing can be said of the response, e.g. the sandbox failed.
        """
        ...
