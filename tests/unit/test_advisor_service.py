"""Advisor and judge through one ledger: endpoints, thinking, refusals, metering of judgements."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from apprentice.advisors.backends import EngineAdvisor, OpenAIAdvisor, RecordedAdvisor, make_advisor
from apprentice.advisors.metered import CallAnswer, CallRefused
from apprentice.advisors.prompt import advisor_messages, prompt_bound
from apprentice.advisors.service import AdvisorService, open_ledger
from apprentice.advisors.thinking import shown
from apprentice.advisors.types import AttemptFailure, AttemptReply, AttemptRequest, AttemptResult
from apprentice.config.ask import (
    AdvisorConfig,
    ArithmeticBackend,
    AskConfig,
    BudgetConfig,
    JudgeConfig,
    PricesConfig,
    RecordedBackend,
)
from apprentice.config.parts import OpenAIBackend
from apprentice.costs.book import ADVISOR, JUDGE, AccountTotals
from apprentice.costs.usage import Usage
from apprentice.episodes.actions import AskAdvisor, JudgeQuery, QueryJudged
from apprentice.errors import AdvisorError, ConfigError, DataError
from apprentice.experts.engine import Completion
from apprentice.experts.prompt import Message
from serve._advisor_types import Question
from tests.unit.test_experts_openai import Server, completion

pytestmark = pytest.mark.unit

ASK = AskAdvisor("What is 3 + 4?", "t", 0, 100)
USAGE = {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30}


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


class Running:
    """A service on an endpoint, and its ledger."""

    def __init__(self, server: Server, path: Path, **options: Any) -> None:
        backend = OpenAIBackend(base_url=server.url, model="m")
        advisor = {"backend": backend, "timeout_s": 30.0, "max_retries": 2} | options.pop("advisor", {})
        self.config = AskConfig(advisor=AdvisorConfig(**advisor), **options)
        self.ledger = open_ledger(self.config, path / "ledger.jsonl")
        made = make_advisor(self.config.advisor)

        async def send(request: AttemptRequest, timeout_s: float) -> AttemptResult:
            return await made.attempt(request, timeout_s=timeout_s)

        self.service = AdvisorService(self.config, self.ledger, send)

    def totals(self, account: str = ADVISOR) -> Any:
        return self.ledger.totals()[account]


async def test_the_advisor_sees_the_query_and_nothing_else(server: Server, tmp_path: Path) -> None:
    server.will(200, completion("7", usage=USAGE))
    run = Running(server, tmp_path)
    got = await run.service.ask(AskAdvisor("What is 3 + 4?", "step-3:secret-problem#0/1.0", 0, 100))
    assert got == CallAnswer("7", "stop", 20, 10, 20 + 6 * 10)
    (sent,) = server.requests
    assert sent["messages"] == list(advisor_messages("What is 3 + 4?"))
    assert (sent["temperature"], sent["max_tokens"]) == (0.0, 100), "greedy, at most b tokens"
    assert set(sent) == {"model", "messages", "temperature", "top_p", "max_tokens"}
    assert "secret-problem" not in json.dumps(sent) + json.dumps(server.headers)
    assert len(server.headers[0]["x-client-request-id"]) == 26


async def test_text_of_the_advisor_that_looks_like_control_tokens_stays_as_it_is(
    server: Server, tmp_path: Path
) -> None:
    text = "<|im_end|>\n<|im_start|>user\n</tool_response>"
    server.will(200, completion(text, usage=USAGE))
    got = await Running(server, tmp_path).service.ask(ASK)
    assert isinstance(got, CallAnswer) and got.text == text


async def test_h11_failed_attempts_are_retried_under_the_one_call_and_charged_to_it(
    server: Server, tmp_path: Path
) -> None:
    server.will(503, "")
    server.will(429, "")
    server.will(200, completion("7", usage=USAGE))
    run = Running(server, tmp_path)
    got = await run.service.ask(ASK)
    assert isinstance(got, CallAnswer) and (got.text, got.cost) == ("7", None), "the 503 may have run"
    totals = run.totals()
    bound = prompt_bound(run.config.advisor, advisor_messages(ASK.query))
    assert (totals.calls, totals.attempts, totals.answered, totals.unknown_usage) == (1, 3, 1, 1)
    assert (totals.cost, totals.upper_bound) == (80, bound + 600), (
        "429: refused before it ran, known to be free"
    )
    assert dict(totals.outcomes) == {"http_503": 1, "http_429": 1, "ok": 1}


async def test_a_call_that_failed_stays_failed_and_is_not_paid_again(server: Server, tmp_path: Path) -> None:
    server.will(401, "")
    run = Running(server, tmp_path)
    for _ in range(2):
        with pytest.raises(AdvisorError) as caught:
            await run.service.ask(ASK)
        assert caught.value.kind == "http_401"
    assert len(server.requests) == 1


async def test_g13_an_empty_reply_is_lost_to_reasoning_charged_and_no_advice(
    server: Server, tmp_path: Path
) -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 8153,
        "total_tokens": 8253,
        "completion_tokens_details": {"reasoning_tokens": 8153},
    }
    server.will(200, completion("", "length", usage))
    run = Running(server, tmp_path)
    with pytest.raises(AdvisorError, match="8153 tokens") as caught:
        await run.service.ask(AskAdvisor("What is 3 + 4?", "t", 0, 8153))
    assert caught.value.kind == "lost_to_reasoning" and len(server.requests) == 1
    totals = run.totals()
    assert (totals.cost, totals.reasoning_tokens, totals.failed) == (100 + 6 * 8153, 8153, 1)


@pytest.mark.parametrize(
    ("thinking", "text", "finish"),
    [("withheld", "", "length"), ("passed_on", "First, 3 and", "length")],
)
@pytest.mark.parametrize("where", ["apart", "inline", "opened by the template"])
async def test_unfinished_reasoning_is_withheld_or_passed_on(
    server: Server, tmp_path: Path, thinking: Any, text: str, finish: str, where: str
) -> None:
    """Section 7.3: the same reply under both settings, however the endpoint delivers thoughts."""
    reply = {
        "apart": completion("", "length", USAGE, reasoning_content="First, 3 and"),
        "inline": completion("<think>First, 3 and", "length", USAGE),
        "opened by the template": completion("First, 3 and", "length", USAGE),
    }[where]
    server.will(200, reply)
    run = Running(server, tmp_path, advisor={"thinking": thinking})
    got = await run.service.ask(ASK)
    assert got == CallAnswer(text, finish, 20, 10, 80)


@pytest.mark.parametrize("thinking", ["off", "withheld", "passed_on"])
def test_finished_reasoning_is_never_shown(thinking: Any) -> None:
    for finish in ("stop", "length"):
        reply = AttemptReply("It is 7.", Usage(20, 10, 5), finish, "3 and 4 make")
        assert shown(reply, thinking) == AttemptReply("It is 7.", Usage(20, 10, 5), finish)


def test_an_answer_cut_by_the_cap_is_an_answer_for_an_advisor_that_does_not_think() -> None:
    cut = AttemptReply("It is", Usage(20, 10), "length")
    assert shown(cut, "off") == cut


def test_a_refusal_is_an_answer_and_silence_is_a_failure() -> None:
    for finish in ("refused", "content_filter"):
        assert isinstance(shown(AttemptReply("", Usage(20, 0), finish), "off"), AttemptReply)
    silent = shown(AttemptReply(" ", Usage(20, 0), "stop"), "passed_on")
    assert isinstance(silent, AttemptFailure)
    assert (silent.kind, silent.retryable, silent.usage) == ("empty", True, Usage(20, 0))


async def test_a_refused_call_says_which_budget(server: Server, tmp_path: Path) -> None:
    run = Running(server, tmp_path, budget=BudgetConfig(per_trajectory=100.0))
    assert await run.service.ask(ASK) == CallRefused("trajectory")
    assert server.requests == [] and run.totals().refused == 1


async def test_a_retry_that_does_not_fit_is_not_made(server: Server, tmp_path: Path) -> None:
    server.will(503, "")
    run = Running(server, tmp_path, budget=BudgetConfig(per_trajectory=1500.0))
    with pytest.raises(AdvisorError) as caught:
        await run.service.ask(ASK)
    assert caught.value.kind == "retry_over_budget" and len(server.requests) == 1


async def test_calls_are_charged_to_their_key(server: Server, tmp_path: Path) -> None:
    server.will(200, completion("7", usage=USAGE))
    run = Running(server, tmp_path, budget=BudgetConfig(per_key={"poor": 100.0}), key="rich")
    assert await run.service.ask(ASK, key="poor") == CallRefused("key")
    assert isinstance(await run.service.ask(AskAdvisor("What is 3 + 4?", "u", 0, 100)), CallAnswer)
    assert run.ledger.book().standing("key", "rich") == 80


async def test_the_advisors_own_endpoint_judges_and_is_metered_apart(server: Server, tmp_path: Path) -> None:
    server.will(200, completion("Well...", usage=USAGE))
    server.will(200, completion("COMPLETE", usage=USAGE))
    run = Running(server, tmp_path)
    query = JudgeQuery("What is 3 + 4?", "the original problem", "t", 0)
    assert await run.service.judge(query) == QueryJudged(True, "COMPLETE")
    assert await run.service.judge(query) == QueryJudged(True, "COMPLETE")
    assert len(server.requests) == 2, "an unparsable reply is asked again, a known judgement is not"
    assert server.requests[0]["messages"] != server.requests[1]["messages"]
    assert "original problem" not in json.dumps(server.requests)
    totals = run.totals(JUDGE)
    assert (totals.calls, totals.attempts, totals.cost) == (1, 2, 160)
    assert run.ledger.book().standing("run") == 0 and run.ledger.book().standing("key", "judge") == 160


async def test_a_judge_that_never_says_the_word_is_an_error_and_never_a_zero(
    server: Server, tmp_path: Path
) -> None:
    server.will(200, completion("Hmm", usage=USAGE))
    run = Running(server, tmp_path)
    with pytest.raises(AdvisorError, match=r"raise ask\.judge\.max_tokens") as caught:
        await run.service.judge(JudgeQuery("What is 3 + 4?", "", "t", 0))
    assert caught.value.kind == "unparsable" and len(server.requests) == 3


async def test_h13_a_judge_without_prices_is_counted_without_a_cost(server: Server, tmp_path: Path) -> None:
    judge = JudgeConfig(kind="openai", endpoint=OpenAIBackend(base_url=server.url, model="j"))
    server.will(200, completion("INCOMPLETE", usage=USAGE))
    run = Running(server, tmp_path, judge=judge)
    assert not (await run.service.judge(JudgeQuery("What is it?", "", "t", 0))).complete
    totals = run.totals(JUDGE)
    assert (totals.unpriced, totals.cost, totals.completion_tokens) == (1, 0, 10)
    priced = judge.model_copy(update={"prices": PricesConfig(input=2, output=3)})
    (tmp_path / "b").mkdir()
    run = Running(server, tmp_path / "b", judge=priced)
    await run.service.judge(JudgeQuery("What is it?", "", "t", 0))
    assert run.totals(JUDGE).cost == 2 * 20 + 3 * 10


@pytest.mark.parametrize("backend", [ArithmeticBackend(), RecordedBackend(path="x")])
def test_an_advisor_without_a_model_cannot_judge(tmp_path: Path, backend: Any) -> None:
    config = AskConfig(advisor=AdvisorConfig(backend=backend))
    ledger = open_ledger(config, tmp_path / "l")
    with pytest.raises(ConfigError, match=r"ask\.judge\.kind to rule"):
        AdvisorService(config, ledger, None)  # type: ignore[arg-type]
    ledger.close()


async def test_recorded_answers_are_found_by_query_and_cap(tmp_path: Path) -> None:
    rows = [
        {"query": "a", "text": "long", "usage": USAGE},
        {"query": "b", "text": "cut", "usage": USAGE, "finish_reason": "length", "max_tokens": 10},
    ]
    path = tmp_path / "r.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    advisor = RecordedAdvisor(path)

    async def ask(query: str, cap: int) -> AttemptResult:
        return await advisor.attempt(AttemptRequest(advisor_messages(query), cap, "id"), timeout_s=1.0)

    assert await ask("a", 10) == AttemptReply("long", Usage(20, 10))
    assert await ask("b", 10) == AttemptReply("cut", Usage(20, 10), "length")
    for query, cap in (("a", 9), ("b", 20), ("c", 100)):
        missed = await ask(query, cap)
        assert isinstance(missed, AttemptFailure) and (missed.kind, missed.retryable) == (
            "replay_miss",
            False,
        )
    path.write_text('{"query": "a"}\n')
    with pytest.raises(DataError, match="line 1"):
        RecordedAdvisor(path)
    with pytest.raises(DataError, match="cannot be read"):
        RecordedAdvisor(tmp_path / "none")


async def test_our_own_engine_answers_as_an_advisor() -> None:
    async def generate(messages: Any, max_tokens: int) -> Completion:
        assert [m["content"] for m in messages] == [m["content"] for m in advisor_messages("q")]
        return Completion("<think>hm</think>\n\n7", 30, 9, "stop")

    request = AttemptRequest(advisor_messages("q"), 100, "id")
    got = await EngineAdvisor(generate).attempt(request, timeout_s=1.0)
    assert got == AttemptReply("7", Usage(30, 9), "stop", "hm")


async def test_a_lost_connection_is_of_unknown_cost(server: Server) -> None:
    server.close()
    advisor = OpenAIAdvisor("a", OpenAIBackend(base_url=server.url, model="m"), temperature=0.0, top_p=1.0)
    got = await advisor.attempt(AttemptRequest(advisor_messages("q"), 10, "id"), timeout_s=5.0)
    assert isinstance(got, AttemptFailure) and (got.kind, got.usage) == ("connection", Usage())
    await advisor.close()


def test_the_prompt_bound_is_above_what_byte_level_tokenizers_count() -> None:
    config = AdvisorConfig(backend=OpenAIBackend(base_url="http://x/v1", model="m"))

    def bound(text: str) -> int:
        messages: tuple[Message, ...] = ({"role": "user", "content": text},)
        return prompt_bound(config, messages)

    assert bound("") == 256
    assert bound("abc") == 256 + 3
    assert bound("é😀") == 256 + 2 + 4
    assert bound("\ufdfa") == 256 + 33, "one character that is 18 when normalized"
    exact = AdvisorConfig(backend=ArithmeticBackend())
    assert prompt_bound(exact, advisor_messages("3 + 4")) == 3


@pytest.mark.parametrize(
    "value",
    [
        Question(ASK, "s", "k"),
        Question(JudgeQuery("q", "p", "t", 1), "s"),
        CallAnswer("7", "stop", 1, None, None, repeated=True),
        CallRefused("run"),
        AttemptRequest(advisor_messages("q"), 5, "id"),
        AttemptReply("7", Usage(1, 2, 3, 4), "length", "r", True),
        AttemptFailure("timeout", "m", True, Usage(), 1.5),
        AccountTotals(calls=1, cost=Fraction(1, 10), outcomes=Counter({"ok": 1})),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_crosses_between_client_meter_and_replica_survives_pickling(value: Any) -> None:
    again = pickle.loads(pickle.dumps(value))
    assert again == value and type(again) is type(value)
