"""The deployment that the Ray tests of the advisor's own engine share, and another recipe on its replica."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ray import serve

from apprentice.advisors.backends import OpenAIAdvisor
from apprentice.advisors.judge import completeness_messages
from apprentice.advisors.prompt import advisor_messages
from apprentice.advisors.service import AdvisorService, open_ledger
from apprentice.advisors.types import AttemptRequest, AttemptResult
from apprentice.config.ask import AdvisorConfig, AskConfig, JudgeConfig
from apprentice.config.parts import OpenAIBackend, VllmBackend
from apprentice.costs.book import Book, Call
from apprentice.costs.ledger import read_book
from apprentice.costs.reconcile import Reconciliation, read_advisor_log, reconcile
from serve.advisor import ServeAdvisorClient, app_name, deploy_advisor
from tests.taught_model import Expected, Reference, teach

__all__ = [
    "ADVICE",
    "COUNT",
    "CUT",
    "JUDGED",
    "LONG",
    "NUMBERS",
    "PROBLEM",
    "SQUARE",
    "SUM",
    "THOUGHT",
    "Beside",
    "Engine",
]

_NAME = "own engine"
PROBLEM = "A baker packs 144 loaves into boxes of twelve. How many boxes are full?"
SQUARE, COUNT, SUM, VAGUE = "What is 12 * 12?", "Count to twenty.", "What is 7 + 8?", "What is the total?"
LONG = "Count to twenty. " + "Please. " * 64
NUMBERS = (
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty"
)
THOUGHT = "<think>Seven and three are ten, and five more are fifteen.</think>\n\n"
ADVICE = {SQUARE: "Twelve twelves are 144.", COUNT: NUMBERS, LONG: NUMBERS, SUM: f"{THOUGHT}15"}
JUDGED = {  # what the judge says first, and to the second wording
    SQUARE: ("COMPLETE",),
    VAGUE: ("INCOMPLETE",),
    COUNT: ("Well, that depends.", "COMPLETE"),
    SUM: ("Hm.", "COMPLETE or INCOMPLETE"),
}
CUT = 8  # tokens, within SUM's thought


class Engine:
    """The deployment, its files, and what Hugging Face foresees."""

    def __init__(self, folder: Path) -> None:
        lessons = [(advisor_messages(query), reply) for query, reply in ADVICE.items()]
        for query, replies in JUDGED.items():
            lessons += zip(completeness_messages(query), replies, strict=False)
        self.folder = folder
        self.reference = Reference(teach(folder / "model", lessons))
        self.room = self.advice(LONG, 1).prompt_tokens + 5
        """The engine's context: LONG and five tokens of its answer."""
        backend = VllmBackend(
            model=str(folder / "model"), dtype="float32", max_model_len=self.room, kv_cache_gib=0.0625
        )
        advisor = AdvisorConfig(name=_NAME, backend=backend, num_cpus=1, timeout_s=60.0, max_retries=1)
        self.config = AskConfig(advisor=advisor, judge=JudgeConfig(kind="advisor"))
        self.client: ServeAdvisorClient = deploy_advisor(
            self.config, ledger_path=folder / "ledger.jsonl", log_path=folder / "log.jsonl", timeout_s=240
        )

    def advice(self, query: str, cap: int) -> Expected:
        return self.reference.reply(advisor_messages(query), cap)

    def calls(self, scope: str) -> tuple[Book, dict[str, Call]]:
        """The ledger, and the calls of a scope in it by trajectory."""
        book = read_book(self.folder / "ledger.jsonl")
        scope = f"{self.client.scope}/{scope}"
        return book, {call.trajectory_id: c for call, c in book.calls.items() if call.scope == scope}

    def reconciled(self, book: Book) -> Reconciliation:
        """A ledger against what the engine reported of its attempts; all ledgers share the engine's log."""
        ids = {call.request_id(n) for call, c in book.calls.items() for n in range(1, len(c.attempts) + 1)}
        log = read_advisor_log(self.folder / "log.jsonl")
        return reconcile(book, [entry for entry in log if entry.request_id in ids])

    async def attempt(self, request: AttemptRequest, timeout_s: float = 60.0) -> AttemptResult:
        """One attempt at the replica, past the meter."""
        handle = serve.get_deployment_handle("advisor", app_name(_NAME))
        result: AttemptResult = await handle.attempt.remote(request, timeout_s)
        return result


class Beside:
    """Another recipe with a ledger of its own on the same replica; keeps what it sent there."""

    def __init__(
        self, engine: Engine, folder: Path, other: OpenAIBackend | None = None, **advisor: Any
    ) -> None:
        changed = engine.config.advisor.model_copy(update=advisor)
        judge = JudgeConfig(kind="openai", endpoint=other) if other else engine.config.judge
        config = AskConfig(advisor=changed, judge=judge)
        self.sent: list[AttemptRequest] = []
        self.ledger = open_ledger(config, folder / "ledger.jsonl")
        self.judge = other and OpenAIAdvisor("judge", other, temperature=0.0, top_p=1.0)

        async def send(request: AttemptRequest, timeout_s: float) -> AttemptResult:
            self.sent.append(request)
            return await engine.attempt(request, timeout_s)

        async def elsewhere(request: AttemptRequest, timeout_s: float) -> AttemptResult:
            assert self.judge is not None
            return await self.judge.attempt(request, timeout_s=timeout_s)

        self.service = AdvisorService(config, self.ledger, send, send_judge=elsewhere if other else None)

    async def close(self) -> None:
        await self.service.close()
        if self.judge is not None:
            await self.judge.close()
