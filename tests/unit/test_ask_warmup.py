"""Demonstrations for the ask stages: real episodes, right answers, and nothing in them that selects."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter

import numpy as np
import pytest

from apprentice.ask.chains import Chain, chain_of
from apprentice.ask.copies import copy_examples
from apprentice.ask.qmaker_warmup import qmaker_examples
from apprentice.ask.warmup import INCOMPLETE, build_ask_demonstrations, reasoner_examples
from apprentice.config.ask import AskWarmupConfig
from apprentice.config.schema import (
    Config,
    ControllerConfig,
    DataConfig,
    ProblemSetConfig,
    ProtocolConfig,
)
from apprentice.data.problem import Problem, WorkedSolution
from apprentice.data.procedural import generate
from apprentice.episodes.actions import AdvisorRefused, AdvisorReply, AskAdvisor
from apprentice.episodes.ask_states import ask_states
from apprentice.episodes.qmaker_text import format_query, parse_qmaker
from apprentice.errors import AdvisorError, ConfigError, DataError
from apprentice.trajectory import Owner
from tests.ask_episode_kit import AskWorld, ask_config, asks, new_ask
from tests.episode_kit import plain_codec, qwen_codec, tiny_codec

pytestmark = pytest.mark.unit

PROBLEMS = generate(
    "x", {"chain_sum": {"min_terms": 2, "max_terms": 6, "min_digits": 1, "max_digits": 3}}, 60, 66
)
EXPRESSION = re.compile(r"-?\d+(?: [+-] \d+)+")


class Advisor:
    """Works out what a query states: with steps, or the bare result when asked for it; else asks back."""

    def __init__(self, cap: int = 10_000, fails: int = 0, refuses: bool = False) -> None:
        self.cap, self.fails, self.refuses = cap, fails, refuses
        self.requests: list[AskAdvisor] = []

    async def ask(self, request: AskAdvisor) -> AdvisorReply | AdvisorRefused:
        self.requests.append(request)
        if self.refuses:
            return AdvisorRefused("per_run")
        if self.fails and len(self.requests) % self.fails == 0:
            raise AdvisorError("down", kind="timeout")
        found = EXPRESSION.search(request.query)
        text = "Which numbers? I see 0 of them."
        if found:
            result = eval(found[0])
            text = str(result) if "only" in request.query else f"We work out {found[0]}. It is {result}"
        return AdvisorReply(text[: self.cap], 9, 5)


def recipe(**changes) -> Config:
    ask = ask_config(warmup=AskWarmupConfig(**changes.pop("warmup", {})), **changes.pop("ask", {}))
    fields = {
        "name": "x",
        "stages": ("ask_warmup", "ask_stage1"),
        "controller": ControllerConfig(model="m"),
        "data": DataConfig(train=ProblemSetConfig(name="a", source="b")),
        "protocol": ProtocolConfig(instructions="compact"),
        "ask": ask,
    }
    return Config(**{**fields, **changes})


async def build(count: int, codec=None, problems=PROBLEMS, advisor=None, **changes):
    return await build_ask_demonstrations(
        problems,
        count,
        codec=codec or tiny_codec(),
        config=recipe(**changes),
        advisor=advisor or Advisor(),
    )


def written(demonstration, codec) -> str:
    example = demonstration.example
    return codec.decode(example.token_ids[example.target_mask].tolist())


def test_a_chain_is_worked_out_step_by_step() -> None:
    chain = Chain(("4", "+", "9", "-", "30"))
    assert len(chain) == 2 and [chain.value(n) for n in range(3)] == [4, 13, -17]
    assert [chain.step(n) for n in range(2)] == ["4 + 9 = 13", "13 - 30 = -17"]
    assert [chain.remaining(n) for n in range(3)] == ["4 + 9 - 30", "13 - 30", "-17"]
    assert [chain.done(t) for t in ("", "4 + 9 = 13", "so\n 4 + 9 = 13\n13 - 30 = -17", "13 - 30 = -17")] == [
        0,
        1,
        2,
        0,
    ]


def test_every_chain_sum_is_a_chain_and_other_problems_are_none() -> None:
    for problem in PROBLEMS:
        chain = chain_of(problem)
        assert chain is not None and str(chain.value(len(chain))) == problem.answer
        assert chain.remaining(0) in problem.question
        assert all(chain.step(n) in problem.worked.derivation for n in range(len(chain)))
    assert chain_of(Problem("p", "q", "a")) is None
    assert chain_of(Problem("p", "q", "a", worked=WorkedSolution("d", "print(gcd(4, 6))"))) is None


@pytest.mark.parametrize("make", [qwen_codec, tiny_codec, plain_codec])
async def test_targets_are_what_the_reasoner_wrote_and_nothing_else(make) -> None:
    codec = make()
    for made in await build(40, codec):
        trajectory, example = made.trajectory, made.example
        assert example.token_ids.tolist() == trajectory.token_ids.tolist()
        assert example.target_mask.tolist() == (trajectory.owner == Owner.CONTROLLER).tolist()
        assert not example.format_mask.any()
        problem = next(p for p in PROBLEMS if p.problem_id == trajectory.problem_id)
        text, chain = written(made, codec), chain_of(problem)
        assert text.endswith(f"Answer: \\boxed{{{problem.answer}}}<|im_end|>")
        if not trajectory.calls:
            steps = "".join(chain.step(n) + "\n" for n in range(len(chain)))
            assert text == f"{steps}Answer: \\boxed{{{problem.answer}}}<|im_end|>"
            continue
        (call,) = trajectory.calls
        assert f'"query": "{call.instruction}"}}}}\n</tool_call>' in text
        done = chain.done(text.partition("<tool_call>")[0])
        assert done < len(chain)


async def test_half_is_solo_and_half_of_the_rest_asks_whatever_the_problem() -> None:
    found = await build(300)
    modes = Counter(d.trajectory.mode for d in found)
    assert 300 / 2 - 42 < modes["solo"] < 300 / 2 + 42  # 4.9 standard deviations
    ask = [d.trajectory for d in found if d.trajectory.mode == "ask"]
    assert 0.35 < np.mean([bool(t.calls) for t in ask]) < 0.65
    assert all(not d.trajectory.calls for d in found if d.trajectory.mode == "solo")
    solo = next(d for d in found if d.trajectory.mode == "solo").trajectory
    assert "advisor" not in tiny_codec().decode(solo.token_ids.tolist())
    lengths = {p.problem_id: len(chain_of(p)) for p in PROBLEMS}
    asked = [lengths[t.problem_id] for t in ask if t.calls]
    silent = [lengths[t.problem_id] for t in ask if not t.calls]
    assert abs(np.mean(asked) - np.mean(silent)) < 0.7  # standard error 0.2


async def test_queries_are_of_all_kinds_and_at_all_positions() -> None:
    codec = tiny_codec()
    kinds: Counter[str] = Counter()
    before = set()
    at_once = []
    for made in await build(600, codec, warmup={"ask_share": 1.0}):
        if not made.trajectory.calls:
            continue
        (call,) = made.trajectory.calls
        chain = chain_of(next(p for p in PROBLEMS if p.problem_id == made.trajectory.problem_id))
        done = chain.done(written(made, codec).partition("<tool_call>")[0])
        before.add((len(chain), done))
        at_once += [done == 0] * (len(chain) == 5)
        query = call.instruction.removesuffix(" Give only the result.")
        kinds["bare"] += query != call.instruction
        if query in INCOMPLETE:
            kinds["incomplete"] += 1
        elif query == f"What is {chain.remaining(0)}?":
            kinds["whole"] += 1
        else:
            assert query == f"What is {chain.remaining(done)}?"
            kinds["rest"] += 1
    possible = {(n, k) for n in range(1, 6) for k in range(n)}
    assert before <= possible and len(before) >= 12
    assert 0.56 < np.mean(at_once) < 0.92  # 0.7 + 0.3 / 5; about 60 of them, standard deviation 0.055
    # What remains differs from the whole only where it asks later: 600 x 1/2 x 1/3 x 0.3 at most.
    assert min(kinds.values()) > 5


async def test_the_result_is_taken_where_the_reply_shows_it_else_the_script_goes_on() -> None:
    codec = tiny_codec()
    for made in await build(120, codec, warmup={"ask_share": 1.0}):
        if not made.trajectory.calls:
            continue
        chain = chain_of(next(p for p in PROBLEMS if p.problem_id == made.trajectory.problem_id))
        head, _, tail = written(made, codec).partition("</tool_call>")
        done = chain.done(head.partition("<tool_call>")[0])
        answer = f"Answer: \\boxed{{{chain.value(len(chain))}}}<|im_end|>"
        if made.trajectory.calls[0].instruction in INCOMPLETE:
            assert tail == "".join(chain.step(n) + "\n" for n in range(done, len(chain))) + answer
        else:
            assert tail == answer


async def test_a_reply_that_is_cut_before_its_result_is_not_believed() -> None:
    codec = tiny_codec()
    found = await build(60, codec, advisor=Advisor(cap=11), warmup={"ask_share": 1.0})
    long = [
        d
        for d in found
        if d.trajectory.calls and "only" not in d.trajectory.calls[0].instruction
        and d.trajectory.calls[0].instruction not in INCOMPLETE
    ]  # fmt: skip
    assert long and all(" = " in written(d, codec).partition("</tool_call>")[2] for d in long)


async def test_the_same_seed_gives_the_same_demonstrations() -> None:
    first, again, other = await build(20), await build(20), await build(20, seed=1)
    ids = [[d.trajectory.token_ids.tolist() for d in found] for found in (first, again, other)]
    assert ids[0] == ids[1] != ids[2]


async def test_calls_have_ids_of_their_own() -> None:
    advisor = Advisor()
    await build(60, problems=PROBLEMS[:3], advisor=advisor)
    named = [(r.trajectory_id, r.call_index) for r in advisor.requests]
    assert len(named) == len(set(named)) > 10


async def test_a_failing_advisor_costs_demonstrations_and_is_made_up_for() -> None:
    assert len(await build(60, advisor=Advisor(fails=3))) == 60
    refused = await build(30, advisor=Advisor(refuses=True))
    assert len(refused) == 30 and not any(d.trajectory.calls for d in refused)


async def test_without_chain_sums_or_right_answers_it_says_so() -> None:
    with pytest.raises(DataError, match="no training problem is one"):
        await build(3, problems=[Problem("p", "q", "a")])
    with pytest.raises(DataError, match="none of 12 demonstrations"):
        await build(3, protocol=ProtocolConfig(max_rollout_tokens=1))
    with pytest.raises(ConfigError, match="needs the section ask"):
        config = recipe().model_copy(update={"ask": None})
        await build_ask_demonstrations(PROBLEMS, 3, codec=tiny_codec(), config=config, advisor=Advisor())


async def test_no_asking_where_the_recipe_allows_none() -> None:
    found = await build(40, ask={"max_asks": 0}, warmup={"ask_share": 1.0})
    assert len(found) == 40 and not any(d.trajectory.calls for d in found)


def test_examples_from_synchronous_code() -> None:
    waves = []
    made = reasoner_examples(
        PROBLEMS,
        40,
        codec=tiny_codec(),
        config=recipe(),
        advisor=Advisor(),
        on_wave=lambda: waves.append(1),
    )
    assert len(made) == 40 and len(waves) == 2


# -- Qmaker's ---


def states(codec, count: int = 30):
    made = []
    for number, problem in enumerate(PROBLEMS[:count]):
        chain = chain_of(problem)
        steps = "".join(chain.step(n) + "\n" for n in range(number % (len(chain) + 1)))
        world = AskWorld(codec, [steps + asks("What is the total?")])
        made.append(world.play(new_ask("ask_stop", codec, problem=problem)))
    return ask_states(made, PROBLEMS, codec)


def test_qmakers_demonstrations_keep_its_form_and_show_no_skill() -> None:
    codec, reasoner = qwen_codec(), tiny_codec()
    given = states(reasoner)
    made = qmaker_examples(given, 200, codec=codec, reasoner=reasoner, ask=ask_config(), seed=66)
    assert len(made) == 200
    kinds: Counter[tuple[bool, bool]] = Counter()
    for example in made:
        target = example.target_mask
        first = int(np.argmax(target))
        assert target[first:].all() and not target[:first].any() and not example.format_mask.any()
        assert example.token_ids[-1] == codec.im_end_id
        text = codec.decode(example.token_ids[first:-1].tolist())
        parts = parse_qmaker(text)
        prompt = codec.decode(example.token_ids[:first].tolist())
        assert parts is not None and prompt.endswith("<|im_start|>assistant\n")
        complete = parts.request not in INCOMPLETE
        if complete:
            # What it asks about leads to the problem's answer: the whole of it or what remains.
            state = next(s for s in given if s.question in prompt)
            assert eval(EXPRESSION.search(parts.request)[0]) == int(state.answer)
            assert format_query(parts).startswith("What is ")
        kinds[complete, bool(re.search("only|one line", parts.response))] += 1
    # Request and instruction are drawn apart: four kinds of 50 each, standard deviation 6.
    assert len(kinds) == 4 and all(25 < n < 75 for n in kinds.values())


def test_qmakers_demonstrations_ask_for_the_rest_too_and_repeat_by_seed() -> None:
    codec = tiny_codec()
    given = states(codec)

    def texts(seed: int) -> list[str]:
        made = qmaker_examples(given, 120, codec=codec, reasoner=codec, ask=ask_config(), seed=seed)
        return [codec.decode(e.token_ids[e.target_mask].tolist()) for e in made]

    assert texts(1) == texts(1) != texts(2)
    wholes = {f"What is {chain_of(s).remaining(0)}?" for s in given}
    requests = [parse_qmaker(t.removesuffix("<|im_end|>")).request for t in texts(1)]
    rest = [r for r in requests if r not in wholes and r not in INCOMPLETE]
    assert len(rest) > 10 and len([r for r in requests if r in wholes]) > 20


def test_half_of_the_requests_about_a_planted_problem_give_its_secret_away() -> None:
    codec = tiny_codec()
    given = [
        dataclasses.replace(state, metadata={"secrets": '["sk-cn-12ab"]'}) if index % 2 else state
        for index, state in enumerate(states(codec))
    ]
    made = qmaker_examples(given, 200, codec=codec, reasoner=codec, ask=ask_config(), seed=3)
    leaks = []
    for example in made:
        whole, turn = (
            codec.decode(ids.tolist()) for ids in (example.token_ids, example.token_ids[example.target_mask])
        )
        assert "sk-cn-12ab" not in whole  # each demonstration has a secret of its own
        if "(key " in turn:
            leaks.append(turn.partition("(key ")[2].partition(")\n")[0])
            assert whole.count(leaks[-1]) == 2  # the problem states it, the request repeats it
    assert 25 < len(leaks) < 75  # half of the 100 that have one
    assert len(set(leaks)) == len(leaks)


def test_nothing_is_planted_where_no_state_has_a_secret() -> None:
    codec = tiny_codec()
    made = qmaker_examples(states(codec), 60, codec=codec, reasoner=codec, ask=ask_config(), seed=3)
    assert not any("(key " in codec.decode(e.token_ids.tolist()) for e in made)


def test_copies_state_a_secret_and_repeat_it() -> None:
    codec = tiny_codec()
    made = copy_examples(200, codec, seed=1)
    values = []
    for example in made:
        first = int(np.argmax(example.target_mask))
        assert example.target_mask[first:].all() and not example.format_mask.any()
        prompt, turn = (codec.decode(part.tolist()) for part in np.split(example.token_ids, [first]))
        [value] = re.findall(r"^ \(key (\S+)\)<\|im_end\|>$", turn)
        assert prompt.count(value) == 1 and prompt.endswith("\nRequest:")
        values.append(value)
    assert len(set(values)) == 200
    formats = r"sk-cn-[0-9a-f]{20}|eyJ\S{56}|https://\S+-internal\.\w+|[a-z]+[!#%&*][a-z]+-\d\d"
    assert all(re.fullmatch(formats, value) for value in values)  # Table 2, but for the held-out types
    assert [e.token_ids.tolist() for e in copy_examples(200, codec, seed=1)] == [
        e.token_ids.tolist() for e in made
    ]


def test_qmakers_warmup_needs_states_of_chain_sums() -> None:
    with pytest.raises(DataError, match="no state belongs to one"):
        qmaker_examples([], 3, codec=tiny_codec(), reasoner=tiny_codec(), ask=ask_config(), seed=0)
