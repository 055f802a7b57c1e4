"""What an advisor is asked and what it answers, between the ledger and the backends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from apprentice.costs.usage import Usage
from apprentice.experts.prompt import Message

__all__ = ["AdvisorBackend", "AttemptFailure", "AttemptReply", "AttemptRequest", "AttemptResult"]


@dataclass(frozen=True, slots=True)
class AttemptRequest:
    """One attempt at one call. ``messages``: all that the advisor sees. ``max_tokens``: the cap b.

    ``request_id`` names the attempt in the advisor's log and says nothing of the trajectory.
    """

    messages: tuple[Message, ...]
    max_tokens: int
    request_id: str


@dataclass(frozen=True, slots=True)
class AttemptReply:
    """What came back. ``reasoning``: thoughts before the text. ``thought_open``: they did not end.

    ``finish_reason``: ``stop``, ``length``, ``content_filter`` or ``refused`` (``text`` may be empty then).
    """

    text: str
    usage: Usage = field(default_factory=Usage)
    finish_reason: str = "stop"
    reasoning: str = ""
    thought_open: bool = False


@dataclass(frozen=True, slots=True)
class AttemptFailure:
    """Why nothing came back. ``usage`` is what it cost all the same, unknown unless the backend said."""

    kind: str
    message: str
    retryable: bool = False
    usage: Usage = field(default_factory=Usage)
    retry_after_s: float = 0.0


AttemptResult = AttemptReply | AttemptFailure


class AdvisorBackend(Protocol):
    """Makes attempts. It is given nothing but the messages, the cap and the attempt's name."""

    async def attempt(self, request: AttemptRequest, *, timeout_s: float) -> AttemptResult:
        """One attempt; failures are values, since they cross processes. Cancelled, it stops."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...
