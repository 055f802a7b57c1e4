"""Warm-up demonstrations: real episodes, right answers, calls as targets and nothing else."""

from __future__ import annotations

import logging
from collections import Counter

import pytest

from apprentice.config.schema import (
    Config,
    ControllerConfig,
    DataConfig,
    ProblemSetConfig,
    ProtocolConfig,
    Stage1Config,
)
from apprentice.data.problem import Problem, WorkedSolution
from apprentice.episodes.actions import CallExpert, ExpertReply, PythonResult
from apprentice.errors import DataError, ExpertError
from apprentice.stage2.warmup import build_demonstrations, shown_answer, warmup_examples
from apprentice.trajectory import Owner
from tests.episode_kit import EXPERTS, plain_codec, qwen_codec, tiny_codec

pytestmark = pytest.mark.unit

PROBLEMS = [
    Problem(
        f"p{i}",
        f"What is {i} + 10?",
        str(i + 10),
        worked=WorkedSolution(f"It is {i + 10}.", f"print({i} + 10)"),
    )
    for i in range(40)
]


class Experts:
    """Knows the problems; ``ada`` is wrong for odd numbers, ``cyd`` always fails when ``broken``."""

    def __init__(self, broken: bool = False) -> None:
        self.broken = broken

    async def ask(self, request: CallExpert) -> ExpertReply:
        number = int(request.problem_id[1:])
        if self.broken and request.expert == "cyd":
            raise ExpertError("down", kind="timeout", expert="cyd")
        answer = number + 10 + (request.expert == "ada" and number % 2)
        text = f"Add: {number} + 10 = {answer}." if request.tool == "think" else f"print({answer})"
        return ExpertReply(text, request.expert)


class Python:
    async def run(self, code: str) -> PythonResult:
        return PythonResult(str(eval(code.removeprefix("print"))), "ok")


def recipe(**changes: object) -> Config:
    fields: dict = {
        "name": "x",
        "controller": ControllerConfig(model="m"),
        "experts": EXPERTS,
        "data": DataConfig(train=ProblemSetConfig(name="a", source="b")),
        "protocol": ProtocolConfig(instructions="compact"),
    }
    return Config(**{**fields, **changes})


async def build(count: int, codec=None, problems=PROBLEMS, experts=None, **changes: object):
    return await build_demonstrations(
        problems,
        count,
        codec=codec or tiny_codec(),
        config=recipe(**changes),
        experts=experts or Experts(),
        python=Python(),
    )


@pytest.mark.parametrize("make", [qwen_codec, tiny_codec, plain_codec])
async def test_targets_are_the_controllers_calls_and_final_lines(make) -> None:
    codec = make()
    for demonstration in await build(14, codec):
        trajectory, example = demonstration.trajectory, demonstration.example
        assert example.token_ids.tolist() == trajectory.token_ids.tolist()
        text = codec.decode(example.token_ids[example.target_mask].tolist())
        (call,) = trajectory.calls
        number = int(trajectory.problem_id[1:])
        head = f'<tool_call>\n{{"name": "{call.tool}", "arguments": {{"model": "{call.model}"'
        code = ', "code": ""' if call.tool == "code_interpreter" else ""
        final = f"Answer: \\boxed{{{number + 10}}}<|im_end|>"
        if call.model == "self":
            # The program is no target; a token that also carries structure may.
            assert text.startswith(head) and text.endswith("}}\n</tool_call><|im_end|>" + final)
            assert "print" not in text and f"{number} + 10" not in text
        else:
            assert text == f"{head}{code}}}}}\n</tool_call><|im_end|>{final}"
        assert not example.target_mask[trajectory.owner != Owner.CONTROLLER].any()
        assert not example.format_mask.any()


async def test_calls_are_spread_evenly_over_experts_and_both_tools() -> None:
    found = await build(35)
    pairs = Counter((d.trajectory.calls[0].tool, d.trajectory.calls[0].model) for d in found)
    assert len(found) == 35 and set(pairs.values()) == {5}
    assert len(pairs) == 7 and ("code_interpreter", "self") in pairs and ("think", "self") not in pairs


async def test_only_right_answers_are_demonstrated_and_the_tool_shows_them() -> None:
    codec = tiny_codec()
    for demonstration in await build(35, codec):
        trajectory = demonstration.trajectory
        gold = str(int(trajectory.problem_id[1:]) + 10)
        assert trajectory.final_text == f"Answer: \\boxed{{{gold}}}"
        shown = codec.decode(
            trajectory.token_ids[(trajectory.owner == Owner.EXPERT) | (trajectory.owner == Owner.OBSERVATION)]
            .tolist()
        )  # fmt: skip
        assert gold in shown
        if trajectory.calls[0].model == "ada":
            assert int(trajectory.problem_id[1:]) % 2 == 0


async def test_the_same_seed_gives_the_same_demonstrations() -> None:
    first, again = [[d.trajectory.trajectory_id for d in await build(10)] for _ in range(2)]
    other = [d.trajectory.trajectory_id for d in await build(10, seed=1)]
    assert first == again != other


async def test_a_failing_expert_and_too_few_problems_give_fewer_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        found = await build(70, problems=PROBLEMS[:4], experts=Experts(broken=True))
    assert 0 < len(found) < 70 and "used up" in caplog.text
    assert all(d.trajectory.calls[0].model != "cyd" for d in found)


async def test_without_experts_only_own_code_is_shown() -> None:
    found = await build(5, experts=Experts(), stage1=Stage1Config(use_experts=False))
    assert len(found) == 5 and {d.trajectory.calls[0].model for d in found} == {"self"}


async def test_routing_to_one_expert_demonstrates_only_that_one() -> None:
    found = await build(6, protocol=ProtocolConfig(instructions="compact", routing="bob"))
    assert {d.trajectory.calls[0].model for d in found} == {"bob", "self"}


async def test_random_routing_is_demonstrated_by_name() -> None:
    for d in await build(14, protocol=ProtocolConfig(instructions="compact", routing="random")):
        text = tiny_codec().decode(d.example.token_ids[d.example.target_mask].tolist())
        assert f'"model": "{d.trajectory.calls[0].model}"' in text


async def test_nothing_right_is_an_error_that_says_what_is_needed() -> None:
    wrong = [Problem(p.problem_id, p.question, "none", worked=p.worked) for p in PROBLEMS[:3]]
    with pytest.raises(DataError, match="Experts must solve"):
        await build(3, problems=wrong)


def test_examples_come_from_synchronous_code() -> None:
    examples = warmup_examples(
        PROBLEMS, 3, codec=tiny_codec(), config=recipe(), experts=Experts(), python=Python()
    )
    assert len(examples) == 3 and all(example.target_mask.any() for example in examples)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Work from left to right: 3 + 4 = 7, 7 - 9 = -2.", "-2"),
        ("It is x = 4.", "4"),
        ("<output>\n12\n</output>", "12"),
        ("First 3/4, so \\boxed{x + 1} and 5.", "x + 1"),
        ("It is 2.50 m2", "2.50"),
        ("nothing", None),
    ],
)
def test_the_answer_that_a_response_shows(text: str, answer: str | None) -> None:
    assert shown_answer(text) == answer
