"""What an expert answers, and what every backend looks like."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from apprentice.costs.usage import Usage
from apprentice.episodes.actions import CallExpert, ExpertReply
from apprentice.errors import ExpertError

__all__ = ["Backend", "BackendFailure", "ExpertAnswer", "Usage"]


@dataclass(frozen=True, slots=True)
class ExpertAnswer:
    """An expert's answer to one call.

    ``text`` is never empty: advice for ``think``, a bare program for ``code_interpreter``. ``reasoning`` is
    what a reasoning model thought before it; kept apart, never shown to the controller. ``usage`` is that of
    the answer; ``spent`` is that of all ``attempts`` together, failed ones included. ``seconds`` covers all
    of them.
    """

    text: str
    usage: Usage = field(default_factory=Usage)
    spent: Usage = field(default_factory=Usage)
    finish_reason: str = "stop"
    reasoning: str = ""
    attempts: int = 1
    cached: bool = False
    seconds: float = 0.0

    def reply(self, expert: str) -> ExpertReply:
        """The event that the episode gets."""
        return ExpertReply(
            text=self.text,
            expert=expert,
            prompt_tokens=self.usage.prompt_tokens,
            completion_tokens=self.usage.completion_tokens,
            seconds=self.seconds,
        )


class BackendFailure(ExpertError):
    """One attempt failed.

    Args:
        kind: ``timeout``, ``connection``, ``http_429``, ``empty``, ``lost_to_reasoning``, ...
        retryable: whether the same request may succeed later.
        retry_after_s: how long the endpoint asks to wait.
        usage: tokens that the attempt cost all the same; unknown unless the backend said.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: str,
        expert: str = "",
        retryable: bool = False,
        retry_after_s: float = 0.0,
        usage: Usage | None = None,
    ) -> None:
        super().__init__(message, kind=kind, expert=expert)
        self.retryable, self.retry_after_s, self.usage = retryable, retry_after_s, usage or Usage()


class Backend(Protocol):
    """Makes one attempt at an answer."""

    @property
    def model(self) -> str:
        """Name of the model behind it; part of the cache key."""
        ...

    async def answer(self, request: CallExpert, *, timeout_s: float) -> ExpertAnswer:
        """One attempt.

        Raises:
            BackendFailure: it failed; says whether to try again.
        """
        ...

    async def close(self) -> None:
        """Release connections."""
        ...
