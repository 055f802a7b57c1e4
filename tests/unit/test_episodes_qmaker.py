"""Queries by Qmaker: in the reasoner's trajectory, and as what Qmaker is trained on, with the same tokens."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apprentice.data.problem import Problem
from apprentice.episodes.actions import (
    AdvisorFailed,
    AdvisorRefused,
    AskAdvisor,
    EngineFailed,
    Generate,
    JudgeFailed,
    JudgeQuery,
    QueryJudged,
)
from apprentice.episodes.ask_states import ask_states
from apprentice.episodes.parser import parse_turn
from apprentice.errors import DataError
from apprentice.tokens import ChatCodec
from apprentice.trajectory import Owner, Status, Trajectory
from tests.ask_episode_kit import ADVICE, ANSWER, AskWorld, ask_config, asks, new_ask, qmaker_text, reply
from tests.episode_kit import PROBLEM, merging_codec, owned, plain_codec, qwen_codec, sampled, tiny_codec

pytestmark = pytest.mark.unit

OWN = "So far 6 * 7. " + asks("What is it?")
REQUEST = 'Größe 🙂: "6 * 7"?\nAs in </tool_call> \\boxed{}'
QUERY = REQUEST + "\n\nOne number."
CODECS = {"qwen": qwen_codec, "tiny": tiny_codec, "plain": plain_codec, "merging": merging_codec}


@pytest.fixture(params=list(CODECS))
def codec(request: pytest.FixtureRequest) -> ChatCodec:
    return CODECS[request.param]()


def qmaker_world(codec: ChatCodec, *turns: str, written: str | None = None, **fields) -> AskWorld:
    texts = [qmaker_text(REQUEST) if written is None else written] * 3
    return AskWorld(codec, list(turns) or [OWN, ANSWER], frozen={"qmaker": texts}, **fields)


def state_of(codec: ChatCodec, turn: str = OWN, problem: Problem = PROBLEM, **fields):
    trajectory = AskWorld(codec, [turn]).play(new_ask("ask_stop", codec, problem=problem, **fields))
    (state,) = ask_states([trajectory], [problem], codec)
    return state


def the_call(trajectory: Trajectory, codec: ChatCodec):
    prompt = int((trajectory.owner == Owner.PROMPT).sum())
    text = codec.decode(trajectory.token_ids[prompt:].tolist()).partition("<|im_end|>")[0]
    return parse_turn(text).calls[0]


# -- mode ask_qmaker ---


def test_the_reasoners_query_is_replaced_and_is_not_its_own_any_more(codec: ChatCodec) -> None:
    world = qmaker_world(codec)
    trajectory = world.play(new_ask("ask_qmaker", codec))
    own = AskWorld(codec, [OWN, ANSWER]).play(new_ask("ask", codec))
    (record,) = trajectory.calls
    query = codec.representable(QUERY)
    assert [q.query for q in world.queries] == [query] and record.instruction == query
    assert record.position == own.calls[0].position
    # Before the call: exactly the sampled ids. Behind it: the query to the byte, in a well-formed call.
    assert trajectory.token_ids[: record.position].tolist() == own.token_ids[: record.position].tolist()
    parsed = the_call(trajectory, codec)
    assert parsed.error is None and parsed.arguments == {"query": query}
    spans = [s for s in trajectory.spans() if s[0] >= record.position]
    assert (spans[0][0], spans[0][2], spans[0][3]) == (record.position, Owner.EXPERT, "qmaker")
    assert [(s[2], s[3]) for s in spans[1:]] == [
        (Owner.WRAPPER, "protocol"),
        (Owner.EXPERT, "oracle"),
        (Owner.WRAPPER, "protocol"),
        (Owner.CONTROLLER, "controller"),
    ]
    assert "What is it" not in codec.decode(trajectory.token_ids.tolist())


def test_logprobs_and_versions_are_exactly_where_the_policy_sampled(codec: ChatCodec) -> None:
    world = qmaker_world(codec)
    trajectory = world.play(new_ask("ask_qmaker", codec))
    (record,) = trajectory.calls
    mine = trajectory.owner == Owner.CONTROLLER
    prompt = int((trajectory.owner == Owner.PROMPT).sum())
    last = world.turn_ids(ANSWER)
    expected = np.zeros(len(trajectory), bool)
    expected[prompt : record.position] = True
    expected[len(trajectory) - len(last) :] = True
    assert mine.tolist() == expected.tolist()
    assert np.isfinite(trajectory.logprob).tolist() == expected.tolist()
    assert (trajectory.policy_version >= 0).tolist() == expected.tolist()
    assert trajectory.token_ids[len(trajectory) - len(last) :].tolist() == last
    # The frozen engine was asked with the sequence as it is in the end.
    assert tuple(world.prompts[-1].prompt_ids) == tuple(trajectory.token_ids[: -len(last)].tolist())


def test_qmaker_reads_the_state_and_never_the_reasoners_query(codec: ChatCodec) -> None:
    world = qmaker_world(codec)
    world.play(new_ask("ask_qmaker", codec, ask=ask_config(instructions="paper")))
    generate = world.prompts[1]
    assert (generate.model, generate.max_tokens, generate.stop) == ("qmaker", 512, ())
    text = codec.decode(generate.prompt_ids)
    assert PROBLEM.question in text and "# Reasoning so far\nSo far 6 * 7.<|im_end|>" in text.replace(
        "\n\n# Budget\nThe advisor's reply must stay below 64 tokens.", ""
    )
    assert "What is it" not in text and "64 tokens" in text and "confidential" not in text
    assert "<tool_call>" not in text and text.endswith("<|im_start|>assistant\n")


@given(request=st.text(min_size=1).map(str.strip).filter(bool), own=st.text(min_size=1).filter(str.strip))
@settings(deadline=None, max_examples=60)
def test_any_request_arrives_as_it_was_written(request: str, own: str) -> None:
    codec = qwen_codec()
    if any(line.startswith(("Request:", "Response:")) for line in f"{request}".split("\n")):
        return
    world = qmaker_world(codec, "Hm. " + asks(own), ANSWER, written=qmaker_text(request))
    trajectory = world.play(new_ask("ask_qmaker", codec))
    if "<think>" in request or "<tool_call>" in request:  # not the form
        return
    query = f"{request}\n\nOne number."
    assert world.queries[0].query == query
    assert the_call(trajectory, codec).arguments == {"query": query}


def test_qmaker_may_have_another_tokenizer(codec: ChatCodec) -> None:
    other = qwen_codec()
    world = qmaker_world(codec, partner=other)
    trajectory = world.play(new_ask("ask_qmaker", codec, partner=other))
    assert "product" in trajectory.tags["family"]
    assert PROBLEM.question in other.decode(world.prompts[1].prompt_ids)
    assert world.prompts[1].stop_token_ids == (other.im_end_id,)
    assert the_call(trajectory, codec).arguments == {"query": codec.representable(QUERY)}


@pytest.mark.parametrize("written", ["6 * 7?", "Request: 6 * 7?", "Request: a\nResponse: b\nResponse: c"])
def test_without_its_form_the_reasoners_own_query_is_asked_and_stays_its_own(
    written: str, codec: ChatCodec
) -> None:
    world = qmaker_world(codec, written=written)
    trajectory = world.play(new_ask("ask_qmaker", codec))
    own = AskWorld(codec, [OWN, ANSWER]).play(new_ask("ask", codec))
    assert trajectory.token_ids.tolist() == own.token_ids.tolist()
    assert trajectory.owner.tolist() == own.owner.tolist() and trajectory.calls == own.calls
    assert trajectory.tags["qmaker_format_error"] == "1" and world.queries[0].query == "What is it?"


def test_with_privacy_nothing_unscreened_leaves(codec: ChatCodec) -> None:
    world = qmaker_world(codec, written="no form")
    trajectory = world.play(new_ask("ask_qmaker", codec, ask=ask_config(qmaker={"privacy": True})))
    assert not world.queries and [c.error for c in trajectory.calls] == ["query_format"]
    assert trajectory.status is Status.COMPLETE and trajectory.final_text == ANSWER
    assert trajectory.tags["asked"] == "0" and trajectory.tags["qmaker_format_error"] == "1"
    assert "confidential" in codec.decode(world.prompts[1].prompt_ids)


def test_a_cut_answer_of_qmaker_is_no_answer() -> None:
    codec = tiny_codec()
    episode = new_ask("ask_qmaker", codec, ask=ask_config(qmaker={"max_query_tokens": 40}))
    action = episode.start()
    action = episode.step(sampled(codec.encode_markup(OWN), "stop"))
    assert isinstance(action, Generate) and (action.model, action.max_tokens) == ("qmaker", 40)
    text = qmaker_text("6 * 7?", "One number, and " + "more " * 20)
    ids = codec.encode_text(text)
    # In parts, as a server may send them, up to the limit.
    part = episode.step(sampled(ids[:15], None))
    assert isinstance(part, Generate) and (part.model, part.max_tokens) == ("qmaker", 25)
    assert tuple(part.prompt_ids) == (*action.prompt_ids, *ids[:15])
    asked = episode.step(sampled(ids[15:40], "length"))
    assert isinstance(asked, AskAdvisor) and asked.query == "What is it?"


def test_a_failed_qmaker_makes_the_episode_unusable() -> None:
    episode = new_ask("ask_qmaker", tiny_codec())
    episode.start()
    assert isinstance(episode.step(sampled(tiny_codec().encode_markup(OWN), "stop")), Generate)
    episode.step(EngineFailed("gone"))
    trajectory = episode.result()
    assert (trajectory.status, trajectory.status_reason) == (Status.UNUSABLE, "engine: qmaker: gone")


def test_a_query_that_leaves_no_room_for_its_answer_is_not_asked() -> None:
    codec = tiny_codec()
    world = qmaker_world(codec, written=qmaker_text("long " * 60))
    trajectory = world.play(new_ask("ask_qmaker", codec, max_rollout_tokens=330))
    assert trajectory.status is Status.TRUNCATED and not world.queries
    assert [c.error for c in trajectory.calls] == ["truncated"]
    assert (trajectory.owner != Owner.EXPERT).all()  # the reasoner's tokens are as they were sampled


def test_a_budget_that_ends_anywhere_is_respected_with_qmaker() -> None:
    codec = tiny_codec()
    lengths = set()
    for limit in range(100, 420, 3):
        world = qmaker_world(codec)
        trajectory = world.play(new_ask("ask_qmaker", codec, max_rollout_tokens=limit))
        prompt = int((trajectory.owner == Owner.PROMPT).sum())
        assert len(trajectory) <= prompt + limit
        assert bool(world.queries) == bool([c for c in trajectory.calls if not c.error])
        if world.queries:
            assert the_call(trajectory, codec).arguments == {"query": QUERY}
        lengths.add(trajectory.status)
    assert lengths == {Status.TRUNCATED, Status.COMPLETE}


def test_several_queries_each_replaced_and_qmaker_reads_what_was_said_before(codec: ChatCodec) -> None:
    world = qmaker_world(codec, OWN, "Now. " + asks("And?"), ANSWER)
    trajectory = world.play(new_ask("ask_qmaker", codec, ask=ask_config(max_asks=2)))
    first, second = trajectory.calls
    assert first.position < second.start < second.position and not first.error and not second.error
    text = codec.decode(world.prompts[3].prompt_ids)
    assert "So far 6 * 7." in text and ADVICE in text and "Now." in text and "And?" not in text
    assert text.count("<|im_start|>") == codec.decode(world.prompts[1].prompt_ids).count("<|im_start|>")


def test_a_refusal_by_the_ledger_keeps_the_query_that_was_tried(codec: ChatCodec) -> None:
    world = qmaker_world(codec, advisor=lambda r: AdvisorRefused("per_trajectory"))
    trajectory = world.play(new_ask("ask_qmaker", codec))
    assert [c.error for c in trajectory.calls] == ["budget_spent"] and trajectory.final_text == ANSWER
    assert the_call(trajectory, codec).arguments == {"query": codec.representable(QUERY)}


REPAIRED = {
    "extra_braces": '<tool_call>\n{"name": "ask_advisor", "arguments": {"query": "What?"}}}}\n</tool_call>',
    "raw_newlines": '<tool_call>\n{"name": "ask_advisor", "arguments": {"query": "What\n?"}}\n</tool_call>',
    "missing_close": '<tool_call>\n{"name": "ask_advisor", "arguments": {"query": "What?"}}',
    "string_arguments": '<tool_call>\n{"name": "ask_advisor", "arguments": "{\\"query\\": \\"What?\\"}"}'
    "\n</tool_call>",
}


@pytest.mark.parametrize("repair", list(REPAIRED))
def test_a_repaired_call_becomes_a_well_formed_one(repair: str, codec: ChatCodec) -> None:
    """Whatever the recipe lets through, the completed call is strict, and both modes complete it alike."""
    turn = "So. " + REPAIRED[repair]
    refused = AskWorld(codec, [turn, ANSWER]).play(new_ask("ask", codec, repairs=()))
    assert [c.error == "" for c in refused.calls] == [False]
    world = qmaker_world(codec, turn, ANSWER)
    trajectory = world.play(new_ask("ask_qmaker", codec, repairs=(repair,)))
    assert [c.error for c in trajectory.calls] == [""]
    parsed = the_call(trajectory, codec)
    assert parsed.error is None
    assert parsed.arguments == {"query": codec.representable(QUERY)}
    stopped = AskWorld(codec, [turn]).play(new_ask("ask_stop", codec, repairs=(repair,)))
    (state,) = ask_states([stopped], [PROBLEM], codec)
    again = stage2_world(codec)
    again.play(new_ask("qmaker", codec, problem=state, repairs=(repair,)))
    assert tuple(again.prompts[1].prompt_ids) == tuple(world.prompts[2].prompt_ids)


def test_json_without_tags_is_counted_but_no_call() -> None:
    codec = tiny_codec()
    text = '{"name": "ask_advisor", "arguments": {"query": "What?"}}'
    trajectory = AskWorld(codec, [text]).play(new_ask("ask", codec, repairs=("bare_json",)))
    assert [c.error for c in trajectory.calls] == ["missing_wrapper"] and trajectory.final_text == text


# -- states ---


def test_a_state_is_the_exact_prefix_of_what_was_sampled(codec: ChatCodec) -> None:
    problem = replace(PROBLEM, metadata={"code_tests": "{}", "secret": "s"}, family="f")
    for mode in ("ask", "ask_stop"):
        trajectory = AskWorld(codec, [OWN, ANSWER]).play(new_ask(mode, codec, problem=problem))
        (state,) = ask_states([trajectory], [problem], codec)
        position = trajectory.calls[0].position
        assert state.token_ids == tuple(trajectory.token_ids[:position].tolist())
        assert (state.problem_id, state.base_id) == (f"t@{position}", "p1")
        assert state.prompt_tokens == int((trajectory.owner == Owner.PROMPT).sum())
        for name in ("question", "answer", "family", "metadata", "source", "split", "worked"):
            assert getattr(state, name) == getattr(problem, name)
        assert pickle.loads(pickle.dumps(state)) == state


def test_only_valid_calls_give_states() -> None:
    codec = tiny_codec()
    made = [
        AskWorld(codec, turns).play(new_ask("ask_stop", codec))
        for turns in ([ANSWER], [asks(3), ANSWER], [asks(3), OWN])
    ]
    episode = new_ask("ask", codec)
    episode.start()
    episode.step(sampled(codec.encode_markup(OWN), "stop"))
    episode.step(reply())
    episode.step(EngineFailed("gone"))
    lost = episode.result()
    assert lost.status is Status.UNUSABLE and [c.error for c in lost.calls] == [""]
    (state,) = ask_states([*made, lost], [PROBLEM], codec)
    assert state.token_ids == tuple(made[2].token_ids[: made[2].calls[1].position].tolist())
    assert "Error: " in codec.decode(state.token_ids)


def test_states_need_the_right_mode_problem_and_tokenizer() -> None:
    codec = tiny_codec()
    stop = AskWorld(codec, [OWN]).play(new_ask("ask_stop", codec))
    with pytest.raises(DataError, match="its problem 'p1' is not among those given"):
        ask_states([stop], [], codec)
    with pytest.raises(DataError, match="no call to the advisor in the turn"):
        ask_states([stop], [PROBLEM], qwen_codec())
    replaced = qmaker_world(codec).play(new_ask("ask_qmaker", codec))
    with pytest.raises(DataError, match="its mode is ask_qmaker"):
        ask_states([replaced], [PROBLEM], codec)


# -- mode qmaker ---


def stage2_world(codec: ChatCodec, *qmaker: str, **fields) -> AskWorld:
    fields.setdefault("frozen", {"reasoner": ["Thanks. " + ANSWER]})
    return AskWorld(codec, list(qmaker) or [qmaker_text(REQUEST)], **fields)


def test_qmakers_trajectory_is_its_prompt_and_its_turn(codec: ChatCodec) -> None:
    world = stage2_world(codec)
    trajectory = world.play(new_ask("qmaker", codec, problem=state_of(codec)))
    turn = world.turn_ids(qmaker_text(REQUEST))
    assert trajectory.token_ids[-len(turn) :].tolist() == turn
    assert trajectory.owner.tolist() == [0] * (len(trajectory) - len(turn)) + [1] * len(turn)
    assert trajectory.final_text == "Thanks. " + ANSWER and trajectory.status is Status.COMPLETE
    query = codec.representable(QUERY)
    position = len(state_of(codec).token_ids)
    assert trajectory.tags == {
        "family": "product", "query": query, "format_ok": "1", "complete": "1",
        "judge_label": "COMPLETE", "advice_tokens": "7", "advice_finish": "stop", "budget": "64",
        "state": f"t@{position}", "base_id": "p1", "continuation": "complete",
    }  # fmt: skip
    (record,) = trajectory.calls
    assert (record.instruction, record.expert_tokens, record.cost, record.query_tokens) == (
        query,
        7,
        53.0,
        11,
    )
    assert (record.position, record.start) == (-1, 0)
    assert trajectory.problem_id == f"t@{position}"


def test_judge_advisor_and_reasoner_are_asked_in_order(codec: ChatCodec) -> None:
    world = stage2_world(codec)
    world.play(new_ask("qmaker", codec, problem=state_of(codec)))
    query = codec.representable(QUERY)
    assert world.judged == [JudgeQuery(query, PROBLEM.question, "t", 0)]
    assert world.queries == [AskAdvisor(query, "t", 0, 64)]
    assert [p.model for p in world.prompts] == ["", "reasoner"]
    assert world.prompts[0].max_tokens == 512


@pytest.mark.parametrize("own", ["What is it?", "$x$?", "\\alpha", "\n", "🙂"])
@pytest.mark.parametrize("limit", [None, 300])
def test_both_modes_put_the_same_tokens_before_the_reasoner(own: str, limit, codec: ChatCodec) -> None:
    """The same h_tau, q and z: token for token, when it fits and when the reply is shortened."""
    if not own.strip():
        own = "a" + own
    turn = "So far \u2211. " + asks(own)
    advice = ADVICE if limit is None else "Multiply. " * 100
    fields = {"advisor": lambda r: reply(advice)}
    eval_world = qmaker_world(codec, turn, ANSWER, **fields)
    eval_world.play(new_ask("ask_qmaker", codec, max_rollout_tokens=limit))
    state = state_of(codec, turn)
    world = stage2_world(codec, **fields)
    world.play(new_ask("qmaker", codec, problem=state, max_rollout_tokens=limit))
    assert tuple(world.prompts[0].prompt_ids) == tuple(eval_world.prompts[1].prompt_ids)  # Qmaker's
    if len(eval_world.prompts) == 2:
        assert not eval_world.queries and not world.queries  # no room in either
        return
    mine, other = world.prompts[1], eval_world.prompts[2]
    assert tuple(mine.prompt_ids) == tuple(other.prompt_ids)
    assert (mine.max_tokens, mine.stop, mine.stop_token_ids) == (
        other.max_tokens,
        other.stop,
        other.stop_token_ids,
    )


def test_qmaker_and_reasoner_may_have_different_tokenizers(codec: ChatCodec) -> None:
    qmaker = qwen_codec()
    state = state_of(codec)
    world = stage2_world(qmaker, partner=codec)
    world.codec = qmaker
    reasoner_ids: list[tuple[int, ...]] = []

    original = world.perform

    def perform(action):
        if isinstance(action, Generate) and action.model == "reasoner":
            reasoner_ids.append(tuple(action.prompt_ids))
            return sampled(codec.encode_markup(ANSWER + "<|im_end|>"), "stop")
        return original(action)

    world.perform = perform  # type: ignore[method-assign]
    trajectory = world.play(new_ask("qmaker", qmaker, problem=state, partner=codec))
    assert trajectory.final_text == ANSWER
    assert reasoner_ids[0][: len(state.token_ids)] == state.token_ids


@pytest.mark.parametrize("written", ["6 * 7?", "Request: 6 * 7?\nResponse:"])
def test_a_format_failure_asks_nobody(written: str, codec: ChatCodec) -> None:
    world = stage2_world(codec, written)
    trajectory = world.play(new_ask("qmaker", codec, problem=state_of(codec)))
    assert not world.judged and not world.queries and len(world.prompts) == 1
    assert (trajectory.tags["format_ok"], trajectory.tags["query"]) == ("0", "")
    assert trajectory.tags["advice_tokens"] == ""
    assert trajectory.final_text == "" and trajectory.status is Status.COMPLETE


def test_a_cut_turn_is_a_format_failure() -> None:
    codec = tiny_codec()
    ask = ask_config(qmaker={"max_query_tokens": 30})
    world = stage2_world(codec)
    trajectory = world.play(new_ask("qmaker", codec, problem=state_of(codec), ask=ask))
    assert trajectory.status is Status.TRUNCATED and not world.judged
    assert trajectory.tags["format_ok"] == "0" and int((trajectory.owner == Owner.CONTROLLER).sum()) == 30


def test_an_incomplete_query_is_asked_all_the_same_and_tagged() -> None:
    codec = tiny_codec()
    world = stage2_world(codec, judge=lambda r: QueryJudged(False, "INCOMPLETE"))
    trajectory = world.play(new_ask("qmaker", codec, problem=state_of(codec)))
    assert (trajectory.tags["complete"], trajectory.tags["judge_label"]) == ("0", "INCOMPLETE")
    assert trajectory.final_text == "Thanks. " + ANSWER


def test_advice_of_unknown_length_is_not_measured() -> None:
    codec = tiny_codec()
    event = reply(prompt_tokens=None, completion_tokens=None, cost=None)
    world = stage2_world(codec, advisor=lambda r: event)
    trajectory = world.play(new_ask("qmaker", codec, problem=state_of(codec)))
    assert trajectory.tags["advice_tokens"] == "" and trajectory.calls[0].cost is None


def test_a_reply_that_reached_the_budget_has_its_count() -> None:
    codec = tiny_codec()
    event = reply("", prompt_tokens=3, completion_tokens=64, finish_reason="length")
    world = stage2_world(codec, advisor=lambda r: event)
    tags = world.play(new_ask("qmaker", codec, problem=state_of(codec))).tags
    assert (tags["advice_tokens"], tags["advice_finish"]) == ("64", "length")  # |z| < b is strict: it fails


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"judge": lambda r: JudgeFailed("down")}, "judge: down"),
        ({"advisor": lambda r: AdvisorFailed("timeout", "60 s")}, "advisor: timeout: 60 s"),
        ({"advisor": lambda r: AdvisorRefused("per_run")}, "advisor: refused: per_run"),
    ],
)
def test_what_is_not_qmakers_fault_makes_the_episode_unusable(fields: dict, reason: str) -> None:
    codec = tiny_codec()
    trajectory = stage2_world(codec, **fields).play(new_ask("qmaker", codec, problem=state_of(codec)))
    assert (trajectory.status, trajectory.status_reason) == (Status.UNUSABLE, reason)
    assert trajectory.final_text == ""


def test_failed_engines_are_named() -> None:
    codec = tiny_codec()
    episode = new_ask("qmaker", codec, problem=state_of(codec))
    episode.start()
    episode.step(EngineFailed("gone"))
    assert episode.result().status_reason == "engine: gone"
    episode = new_ask("qmaker", codec, problem=state_of(codec))
    episode.start()
    episode.step(sampled(codec.encode_markup(qmaker_text("q") + "<|im_end|>"), "stop"))
    episode.step(QueryJudged(True))
    assert isinstance(episode.step(reply()), Generate)
    episode.step(EngineFailed("gone"))
    assert (episode.result().status, episode.result().status_reason) == (Status.UNUSABLE, "engine: gone")


def test_a_further_call_of_the_reasoner_is_refused() -> None:
    codec = tiny_codec()
    world = stage2_world(codec, frozen={"reasoner": [asks("again"), ANSWER]})
    trajectory = world.play(new_ask("qmaker", codec, problem=state_of(codec), ask=ask_config(max_asks=3)))
    assert [c.error for c in trajectory.calls] == ["", "budget_spent"] and len(world.queries) == 1
    assert trajectory.final_text == ANSWER


def test_a_reasoner_that_runs_out_of_tokens_is_scored_as_it_stands() -> None:
    codec = tiny_codec()
    state = state_of(codec)
    world = stage2_world(codec)
    limit = len(state.token_ids) - state.prompt_tokens + len(codec.encode_text(QUERY)) + 200
    trajectory = world.play(new_ask("qmaker", codec, problem=state, max_rollout_tokens=limit - 100))
    assert trajectory.status is Status.COMPLETE
    assert trajectory.tags["continuation"] in ("truncated", "complete")
    tight = stage2_world(codec).play(new_ask("qmaker", codec, problem=state, max_rollout_tokens=150))
    assert tight.tags["continuation"] == "truncated" and tight.final_text == ""
    assert [c.error for c in tight.calls] == ["truncated"] and tight.tags["format_ok"] == "1"


def test_the_colours_of_a_replaced_query() -> None:
    """The report shows spans by owner and producer: the query is Qmaker's, the advice the advisor's."""
    codec = qwen_codec()
    trajectory = qmaker_world(codec).play(new_ask("ask_qmaker", codec))
    shown = [(owner, text) for owner, text in owned(trajectory, codec) if owner == "EXPERT"]
    assert [text.strip() for _, text in shown][1] == ADVICE and shown[0][1].startswith("Größe")
