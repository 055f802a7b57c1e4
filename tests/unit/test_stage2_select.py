"""Every filter by itself, their counts, and which trajectories are kept."""

from __future__ import annotations

import dataclasses
import json

import pytest

from apprentice.config.schema import Config, ControllerConfig, DataConfig, ProblemSetConfig, ProtocolConfig
from apprentice.data.problem import Problem
from apprentice.episodes.actions import CallExpert, ExpertReply, PythonResult
from apprentice.stage2.filters import FILTERS, repetition
from apprentice.stage2.select import select
from apprentice.trajectory import Trajectory
from tests.episode_kit import EXPERTS, World, call, code, new, think, tiny_codec

pytestmark = pytest.mark.unit

CODEC = tiny_codec()
ANSWER = "Answer: \\boxed{42}"


def recipe(**stage2: object) -> Config:
    return Config(
        name="x",
        controller=ControllerConfig(model="m"),
        experts=EXPERTS,
        data=DataConfig(train=ProblemSetConfig(name="a", source="b")),
        protocol=ProtocolConfig(instructions="compact"),
        stage2=stage2,  # type: ignore[arg-type]
    )


def trajectory(
    *turns: str,
    says: str = "Six sevens.",
    program: str = "print(42)",
    outcome: str = "ok",
    problem_id: str = "p1",
    name: str = "t",
    changes: dict | None = None,
    **protocol: object,
) -> Trajectory:
    def answer(request: CallExpert) -> ExpertReply:
        numbered = f"{program}  # {request.call_index}" if program.strip() else program
        return ExpertReply(says if request.tool == "think" else f"```python\n{numbered}\n```", request.expert)

    world = World(
        CODEC,
        turns or (think(), ANSWER),
        expert=answer,
        python=lambda c: PythonResult("42", outcome),
    )
    problem = Problem(problem_id, f"Question {problem_id}?", "42")
    played = world.play(new("collaborative", CODEC, problem=problem, **protocol))
    fields = {"verdict": "correct", "answer": "42", "reward": 1.0, "trajectory_id": name, **(changes or {})}
    return dataclasses.replace(played, **fields)


GOOD = {
    "with a thought": lambda: trajectory(),
    "with an expert's code": lambda: trajectory(code("bob"), ANSWER),
    "with own code": lambda: trajectory(code("self", "6*7"), ANSWER),
    "alone": lambda: trajectory(ANSWER),
    "two identical calls": lambda: trajectory(think(), code("self", "1"), think(), ANSWER),
    "a list of numbers": lambda: trajectory(says="1, 1, 1, 1, 1, 1, 1, 1"),
    "closed thinking": lambda: trajectory("<think>Hm.</think>" + think(), ANSWER),
}

BAD = {
    "complete": [
        lambda: trajectory("x" * 300, max_rollout_tokens=100),
        lambda: trajectory(says="".join(map(chr, range(200, 900))), max_rollout_tokens=700),  # response cut
    ],
    "protocol_valid": [
        lambda: trajectory(call("search", q="x"), ANSWER),
        lambda: trajectory(think(), think(), ANSWER),
        lambda: trajectory(json.dumps({"name": "think", "arguments": {"model": "ada"}}) + "\n" + ANSWER),
    ],
    "correct": [
        lambda: trajectory(changes={"verdict": "wrong", "reward": -1.0}),
        lambda: trajectory(changes={"verdict": "", "reward": None}),
    ],
    "parseable": [
        lambda: trajectory(changes={"answer": None}),
        lambda: trajectory(changes={"answer": " "}),
    ],
    "valid_execution": [
        lambda: trajectory(code("bob"), ANSWER, outcome="error"),
        lambda: trajectory(code("self", "1"), ANSWER, outcome="timeout_wall"),
        lambda: trajectory(code("bob"), ANSWER, program=" "),  # no program
    ],
    "not_repetitive": [
        lambda: trajectory(says="and so it goes, " * 30),
        lambda: trajectory("Well, " * 30 + ANSWER),
    ],
    "well_formed": [
        lambda: trajectory(says="A broken \ufffd character."),
        lambda: trajectory(says="It ends here.<|im_end|>"),
        lambda: trajectory(says="I call <tool_call> now."),
        lambda: trajectory(code("bob"), ANSWER, program="print('</python>')"),
        lambda: trajectory(think(), "So <output>42</output>. " + ANSWER),
        lambda: trajectory(think(), "<think>never closed " + ANSWER),
    ],
    "no_call_loops": [
        lambda: trajectory(*[t for _ in range(3) for t in (think(), code("self", "1"))], ANSWER),
        lambda: trajectory(*[code("bob")] * 3, ANSWER),  # whatever the expert wrote each time
    ],
}


@pytest.mark.parametrize("name", list(GOOD))
def test_a_good_trajectory_passes_every_filter(name: str) -> None:
    good = GOOD[name]()
    assert [rule for rule, keeps in FILTERS.items() if not keeps(good, CODEC, recipe())] == []


@pytest.mark.parametrize(("rule", "number"), [(r, n) for r, makes in BAD.items() for n in range(len(makes))])
def test_each_filter_drops_what_it_names(rule: str, number: int) -> None:
    bad = BAD[rule][number]()
    assert not FILTERS[rule](bad, CODEC, recipe())


def test_every_filter_has_a_bad_case_and_is_counted_by_name() -> None:
    assert set(BAD) == set(FILTERS)
    sampled = [make() for makes in BAD.values() for make in makes] + [trajectory(problem_id="good")]
    kept, report = select(sampled, CODEC, recipe())
    assert [t.problem_id for t in kept] == ["good"]
    assert report.sampled == len(sampled) and report.kept == 1
    assert sum(report.dropped.values()) == len(sampled) - 1
    assert all(report.broken[rule] >= len(BAD[rule]) for rule in FILTERS)
    assert all(report.dropped[rule] <= report.broken[rule] for rule in FILTERS)


def test_limits_of_repetition_and_identical_calls_are_configured() -> None:
    loop = BAD["no_call_loops"][0]()
    assert FILTERS["no_call_loops"](loop, CODEC, recipe(max_identical_calls=3))
    repeated = BAD["not_repetitive"][0]()
    assert FILTERS["not_repetitive"](repeated, CODEC, recipe(max_repetition=1.0))


def test_repetition_is_the_share_of_repeated_4_grams() -> None:
    assert repetition(list(range(100))) == 0.0
    assert repetition([1] * 100) == pytest.approx(96 / 97)
    assert repetition(list(range(50)) * 2) == pytest.approx(1 - 50 / 97)
    assert repetition([1] * 34) == 0.0  # 31 grams: too short to judge


def ids(kept: list[Trajectory]) -> list[str]:
    return [t.trajectory_id for t in kept]


def test_fewer_calls_come_first_then_shorter_sequences() -> None:
    sampled = [
        trajectory(code("bob"), think(), ANSWER, name="two"),
        trajectory(think(), "Long. " + ANSWER, name="one-long"),
        trajectory(think(), ANSWER, name="one"),
        trajectory(ANSWER, name="none"),
    ]
    kept, report = select(sampled, CODEC, recipe(max_per_problem=3))
    assert ids(kept) == ["none", "one", "one-long"]
    assert (report.over_problem_limit, report.kept_by_calls) == (1, {0: 1, 1: 2})


def test_duplicates_differ_only_in_instructions_and_blank_space() -> None:
    sampled = [
        trajectory(think(instruction="Plan it."), ANSWER, name="a"),
        trajectory(think(instruction="Please plan."), ANSWER, name="b"),
        trajectory(think(), ANSWER + "\n", name="c"),
        trajectory(think("bob"), ANSWER, name="other expert"),
    ]
    kept, report = select(sampled, CODEC, recipe(max_per_problem=4))
    assert ids(kept) == ["a", "other expert"] and report.duplicates == 2


def test_the_same_text_on_two_problems_is_no_duplicate() -> None:
    sampled = [trajectory(problem_id=p, name=p) for p in ("p1", "p2")]
    assert ids(select(sampled, CODEC, recipe())[0]) == ["p1", "p2"]


def test_a_total_limit_costs_second_trajectories_before_problems() -> None:
    sampled = [
        trajectory("x" * n + ANSWER, problem_id=p, name=f"{p}{n}") for p in ("p", "q", "r") for n in (1, 2)
    ]
    kept, report = select(sampled, CODEC, recipe(max_trajectories=4))
    assert ids(kept) == ["p1", "p2", "q1", "r1"]
    assert (report.over_total_limit, report.problems_kept) == (2, 3)
    assert ids(select(sampled, CODEC, recipe(max_trajectories=2))[0]) == ["p1", "q1"]


def test_the_order_of_samples_does_not_matter_within_a_problem() -> None:
    sampled = [trajectory("x" * n + ANSWER, name=f"n{n}") for n in range(5)]
    assert ids(select(sampled, CODEC, recipe())[0]) == ids(select(sampled[::-1], CODEC, recipe())[0])


def test_what_is_too_long_or_not_convertible_is_counted_with_its_reason() -> None:
    kept, report = select([trajectory()], CODEC, recipe(max_sequence_tokens=50))
    assert kept == [] and report.too_long == 1
    other = recipe().model_copy(update={"experts": EXPERTS[:1]})
    kept, report = select([trajectory()], CODEC, other)
    assert kept == [] and report.not_convertible == 1
    assert "prompt is not what this recipe writes" in next(iter(report.not_convertible_reasons))


def test_the_funnel_falls_from_sampled_to_kept() -> None:
    sampled = [make() for makes in BAD.values() for make in makes]
    sampled += [trajectory("x" * n + ANSWER, name=f"n{n}") for n in range(5)]
    _, report = select(sampled, CODEC, recipe())
    steps = report.funnel()
    counts = [step["count"] for step in steps]
    assert steps[0] == {"name": "sampled", "count": len(sampled)} and steps[-1] == {
        "name": "kept",
        "count": 2,
    }
    assert counts == sorted(counts, reverse=True)
    json.dumps([steps, report.to_dict()])


def test_nothing_sampled_is_nothing_kept() -> None:
    kept, report = select([], CODEC, recipe())
    assert kept == [] and report.funnel()[-1]["count"] == 0
