"""What an episode asks of the world, and what the world answers. Plain data, no I/O.

An episode is a state machine: :meth:`Episode.start` gives the first action, :meth:`Episode.step` takes the
event that answers the last action and gives the next one, until :class:`Finish`. Whoever drives it
(a rollout actor, an evaluation, a server, a test) performs the actions. All drivers share the episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from apprentice.trajectory import Status, Trajectory

__all__ = [
    "Action",
    "AdvisorFailed",
    "AdvisorRefused",
    "AdvisorReply",
    "AskAdvisor",
    "CallError",
    "CallExpert",
    "EngineFailed",
    "Episode",
    "Event",
    "ExpertFailed",
    "ExpertReply",
    "Finish",
    "Generate",
    "Generated",
    "JudgeFailed",
    "JudgeQuery",
    "PythonFailed",
    "PythonResult",
    "QueryJudged",
    "RunPython",
]


class CallError(StrEnum):
    """Why the protocol refused a call. The controller reads an error text and the rollout goes on."""

    BAD_JSON = "bad_json"
    NOT_AN_OBJECT = "not_an_object"
    MISSING_NAME = "missing_name"
    UNKNOWN_TOOL = "unknown_tool"
    BAD_ARGUMENTS = "bad_arguments"
    UNKNOWN_MODEL = "unknown_model"
    MISSING_CODE = "missing_code"
    CODE_NOT_EMPTY = "code_not_empty"
    BUDGET_SPENT = "budget_spent"
    THINK_TWICE = "think_twice"
    EXPERTS_REMOVED = "experts_removed"
    TRUNCATED = "truncated"
    MISSING_WRAPPER = "missing_wrapper"
    QUERY_FORMAT = "query_format"


@dataclass(frozen=True, slots=True)
class Generate:
    """Sample a continuation of ``prompt_ids``.

    ``model``: empty for the model that this episode trains or evaluates, else the name of a frozen one
    (``qmaker``, ``reasoner``), whose tokens are never trained.
    ``stop``: strings that end the turn; the engine keeps the stop string's tokens in its output ids.
    ``stop_token_ids``: ids that end the turn; kept in the output ids as well.
    ``max_tokens``: at least 1.
    """

    prompt_ids: Sequence[int]
    max_tokens: int
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    model: str = ""


@dataclass(frozen=True, slots=True)
class CallExpert:
    """Ask a frozen expert. ``transcript`` is the episode so far as text, for experts that want it."""

    expert: str
    tool: str
    problem_id: str
    question: str
    instruction: str
    transcript: str
    max_tokens: int
    call_index: int


@dataclass(frozen=True, slots=True)
class RunPython:
    """Run one stateless Jupyter-like cell."""

    code: str
    call_index: int


@dataclass(frozen=True, slots=True)
class AskAdvisor:
    """Ask the metered advisor. It sees ``query`` and nothing else of this (Learning to Ask, section 3).

    ``trajectory_id`` and ``call_index`` name the call to the ledger: the same pair is the same call, however
    often it is sent. ``max_tokens`` is the response cap b.
    """

    query: str
    trajectory_id: str
    call_index: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class JudgeQuery:
    """Ask whether a query is answerable as it is (the completeness gate G of Eq. 9). ``question``: the
    original problem, for judges that compare; the paper's judge sees the query alone."""

    query: str
    question: str
    trajectory_id: str
    call_index: int


@dataclass(frozen=True, slots=True)
class Finish:
    """The episode is over; read :meth:`Episode.result`."""

    status: Status
    reason: str = ""


Action = Generate | CallExpert | RunPython | AskAdvisor | JudgeQuery | Finish


@dataclass(frozen=True, slots=True)
class Generated:
    """Answer to :class:`Generate`.

    ``finish_reason``: ``stop`` (a stop string or stop id was produced, kept in the ids), ``length``, or
    ``None`` for a part of a turn (token-by-token driving: the episode itself finds where the turn ends).
    """

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    policy_version: int
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class ExpertReply:
    """Answer to :class:`CallExpert`: the text the expert wrote, and how many tokens it says it used."""

    text: str
    expert: str
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ExpertFailed:
    """The expert failed past its retries: the episode ends UNUSABLE."""

    expert: str
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class PythonResult:
    """Answer to :class:`RunPython`: the exact text that the model sees, and the sandbox's outcome name."""

    text: str
    outcome: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class PythonFailed:
    """The sandbox (not the code) failed past its retries: the episode ends UNUSABLE."""

    message: str


@dataclass(frozen=True, slots=True)
class EngineFailed:
    """The engine failed or is stale: the episode ends UNUSABLE. Answers :class:`Generate`."""

    message: str


@dataclass(frozen=True, slots=True)
class AdvisorReply:
    """Answer to :class:`AskAdvisor`.

    Tokens are the provider's usage; ``None`` is unknown, never zero. ``completion_tokens`` is |z| of Eqs. 4
    and 9, reasoning included; it reaches ``max_tokens`` where ``finish_reason`` is ``length``. ``cost`` is
    what the ledger charged, in units of the prices, all attempts of the call together; None when unknown.
    ``text`` may be empty: a thinking advisor spent the cap on reasoning that is withheld.
    """

    text: str
    prompt_tokens: int | None
    completion_tokens: int | None
    finish_reason: str = "stop"
    cost: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class AdvisorRefused:
    """The budget has no room for this call: the reasoner reads so and goes on. ``reason``: which one."""

    reason: str


@dataclass(frozen=True, slots=True)
class AdvisorFailed:
    """The advisor failed past its retries: the episode ends UNUSABLE."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class QueryJudged:
    """Answer to :class:`JudgeQuery`. ``label``: the judge's own word."""

    complete: bool
    label: str = ""


@dataclass(frozen=True, slots=True)
class JudgeFailed:
    """The judge failed past its retries: the episode ends UNUSABLE."""

    message: str


Event = (
    Generated
    | ExpertReply
    | ExpertFailed
    | PythonResult
    | PythonFailed
    | EngineFailed
    | AdvisorReply
    | AdvisorRefused
    | AdvisorFailed
    | QueryJudged
    | JudgeFailed
)


class Episode(Protocol):
    """A sans-I/O episode."""

    def start(self) -> Action:
        """The first action. Call once."""
        ...

    def step(self, event: Event) -> Action:
        """The action that follows ``event``.

        Raises:
            ValueError: the event does not answer the pending action.
        """
        ...

    def result(self) -> Trajectory:
        """The trajectory; only after :class:`Finish`."""
        ...
