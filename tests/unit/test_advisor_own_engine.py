"""An engine of our own behind the advisor: what its outputs and its failures become. No engine runs here."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from apprentice.advisors.backends import EngineAdvisor
from apprentice.advisors.judge import read_judgement
from apprentice.advisors.prompt import advisor_messages
from apprentice.advisors.service import AdvisorService, open_ledger
from apprentice.advisors.thinking import shown
from apprentice.advisors.types import AttemptFailure, AttemptReply, AttemptRequest, AttemptResult
from apprentice.config.ask import AdvisorConfig, AskConfig
from apprentice.config.parts import VllmBackend
from apprentice.costs.usage import Usage
from apprentice.episodes.actions import JudgeQuery
from apprentice.errors import AdvisorError
from apprentice.experts.engine import Completion
from apprentice.experts.types import BackendFailure
from serve._expert_engine import _encoder, completion
from tests.tiny import CHAT_TEMPLATE, make_tiny_tokenizer

pytestmark = pytest.mark.unit

REQUEST = AttemptRequest(advisor_messages("What is 3 + 4?"), 10, "id")
OTHER = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}[assistant]"


def output(text: str, finish: str | None, tokens: int = 3) -> Any:
    """As vLLM's RequestOutput."""
    choice = SimpleNamespace(text=text, finish_reason=finish, token_ids=[7] * tokens)
    return SimpleNamespace(outputs=[choice], prompt_token_ids=[1] * 20)


async def attempt(done: Completion | BackendFailure) -> AttemptResult:
    async def generate(messages: Any, max_tokens: int) -> Completion:
        if isinstance(done, BackendFailure):
            raise done
        return done

    return await EngineAdvisor(generate).attempt(REQUEST, timeout_s=1.0)


def test_an_output_is_taken_with_the_engines_counts() -> None:
    assert completion("a", output("7", "stop"), opened=False) == Completion("7", 20, 3, "stop")
    assert completion("a", output("3 and", "length", 10), opened=True) == Completion(
        "<think>3 and", 20, 10, "length"
    )


@pytest.mark.parametrize("output", [output("3 a", "abort"), output("3 a", "error"), output("3", None), None])
def test_a_generation_that_ended_otherwise_is_no_answer(output: Any) -> None:
    with pytest.raises(BackendFailure, match=r"'a': a generation ended with") as caught:
        completion("a", output, opened=False)
    failure = caught.value
    assert (failure.kind, failure.retryable, failure.usage) == ("engine_failed", True, Usage())


@pytest.mark.parametrize("family", [CHAT_TEMPLATE, OTHER])
@pytest.mark.parametrize("opens", [False, True])
def test_a_thought_that_the_template_opens_is_known(tmp_path: Path, family: str, opens: bool) -> None:
    """ChatML or not; an engine's prompt is that of the tokenizer's own template."""
    tokenizer = make_tiny_tokenizer()
    tokenizer.chat_template = family + "{% if think %}{{ '<think>\n' }}{% endif %}"
    tokenizer.save_pretrained(tmp_path)
    encode, opened = _encoder(str(tmp_path), {"think": opens})
    assert opened is opens
    messages = [dict(message) for message in REQUEST.messages]
    own = tokenizer.apply_chat_template(messages, add_generation_prompt=True, think=opens, return_dict=False)
    assert encode(REQUEST.messages) == list(own)


async def test_a_thought_that_the_template_opened_is_no_advice_of_an_advisor_that_is_not_to_think() -> None:
    cut = await attempt(completion("a", output("3 and 4", "length", 10), opened=True))
    assert cut == AttemptReply("", Usage(20, 10), "length", "3 and 4", thought_open=True)
    lost = shown(cut, "off")
    assert isinstance(lost, AttemptFailure) and (lost.kind, lost.usage) == (
        "lost_to_reasoning",
        Usage(20, 10),
    )
    whole = await attempt(completion("a", output("3 and 4</think>\n\n7", "stop", 9), opened=True))
    assert whole == AttemptReply("7", Usage(20, 9), "stop", "3 and 4")


async def test_an_answer_that_the_context_cut_below_its_cap_is_charged_and_no_answer() -> None:
    got = await attempt(Completion("3 and", 20, 9, "length"))
    assert isinstance(got, AttemptFailure)
    assert (got.kind, got.retryable, got.usage) == ("context_full", False, Usage(20, 9))
    assert isinstance(await attempt(Completion("3 and", 20, 10, "length")), AttemptReply)
    assert isinstance(await attempt(Completion("7", 20, 9, "stop")), AttemptReply)


@pytest.mark.parametrize("usage", [Usage(), Usage(0, 0, 0, 0)], ids=["may have run", "never ran"])
async def test_a_failure_of_the_engine_keeps_what_is_known_of_its_cost(usage: Usage) -> None:
    died = BackendFailure("gone", kind="engine_died", retryable=True, retry_after_s=10.0, usage=usage)
    assert await attempt(died) == AttemptFailure("engine_died", "gone", True, usage, 10.0)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("COMPLETE", "COMPLETE"),
        ("**INCOMPLETE**\n\nIt refers to a total that", "INCOMPLETE"),
        ("To decide whether it is COMPLETE, I", None),
        ("Is it INCOMPLETE? It says what is\nCOMPLETE", None),
        ("<think>Perhaps</think>\nCOMPLETE", "COMPLETE"),
    ],
)
def test_a_judgement_that_the_cap_cut_counts_only_if_it_began_with_the_word(
    text: str, verdict: str | None
) -> None:
    read = read_judgement(AttemptReply(text, Usage(50, 16), "length"))
    assert (
        read.text == verdict
        if isinstance(read, AttemptReply)
        else (read.kind == "unparsable") > bool(verdict)
    )
    if verdict is None:  # said to the end, each of them names one word
        assert isinstance(read_judgement(AttemptReply(text, Usage(50, 16), "stop")), AttemptReply)


@pytest.mark.parametrize("thinking", ["withheld", "passed_on"])
async def test_a_thinking_judge_whose_thought_was_cut_has_not_judged(tmp_path: Path, thinking: Any) -> None:
    """Its template opened the thought, so that nothing in the text says that it is one."""
    advisor = AdvisorConfig(backend=VllmBackend(model="m"), thinking=thinking, max_retries=0)
    config = AskConfig(advisor=advisor)
    ledger = open_ledger(config, tmp_path / "ledger.jsonl")

    async def send(request: AttemptRequest, timeout_s: float) -> AttemptResult:
        return AttemptReply("COMPLETE\nor not? Let me see", Usage(50, 16), "length")

    service = AdvisorService(config, ledger, send)
    with pytest.raises(AdvisorError, match="if it thinks first") as caught:
        await service.judge(JudgeQuery("What is 3 + 4?", "", "t", 0))
    assert caught.value.kind == "unparsable"
    await service.close()
