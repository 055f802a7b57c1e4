"""The four things an episode needs from the outside, as typed interfaces.

Actors implement them over Ray, tests by hand. Every call has a deadline of its own and raises an
:class:`apprentice.errors.InfrastructureError` (never returns a stand-in) when it cannot answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from apprentice.config.schema import SamplingConfig
from apprentice.episodes.actions import CallExpert, ExpertReply, Generate, Generated, PythonResult

__all__ = ["ExpertClient", "PythonRunner", "Sampler", "Verdict", "Verifier"]


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


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier says of a response. ``verdict``: correct, wrong, unparseable, no_answer or timeout."""

    verdict: str
    answer: str | None
    reason: str = ""

    @property
    def correct(self) -> bool:
        """Whether the answer was verified."""
        return self.verdict == "correct"


class Verifier(Protocol):
    """Checks a final response against a gold."""

    async def verify(self, response: str, gold: str) -> Verdict:
        """Extract the answer of ``response`` and compare it with ``gold``. Never raises for bad input."""
        ...
