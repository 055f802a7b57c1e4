"""What a run does in which order, and what an evaluation writes down. No actor is started."""

from pathlib import Path

import pytest

from apprentice.config.load import load_config
from apprentice.data.problem import Problem
from apprentice.trajectory import CallRecord, Owner, Status, Trajectory, TrajectoryBuilder
from driver.evaluation import item_results
from driver.run import units

pytestmark = pytest.mark.unit

TINY = Path(__file__).resolve().parents[2] / "configs" / "tiny.yaml"


def test_evaluations_stand_where_their_weights_exist() -> None:
    assert units(load_config(TINY, [])) == [
        "evaluate/base",
        "warmup",
        "stage1",
        "evaluate/collaborative",
        "evaluate/experts_removed",
        "stage2",
        "evaluate/internalized",
    ]


def test_stages_left_out_are_left_out() -> None:
    config = load_config(TINY, ["stages=[stage1]"])
    assert units(config) == ["stage1"]
    config = load_config(TINY, ["stages=[stage1,stage2]", "stage2.enabled=false"])
    assert units(config) == ["stage1"]


def attempt(
    problem: str,
    sample: int,
    verdict: str,
    calls: tuple[CallRecord, ...] = (),
    replaced: int = 0,
    own: tuple[int, ...] = (3,),
) -> Trajectory:
    builder = TrajectoryBuilder()
    builder.append([1, 2], Owner.PROMPT, "prompt")
    builder.append_sampled(list(own), [-0.5] * len(own), 0)
    return builder.build(
        trajectory_id=f"0:{problem}#0/{sample}.{replaced}",
        problem_id=problem,
        group_id=f"0:{problem}#0",
        mode="collaborative",
        status=Status.COMPLETE,
        calls=calls,
        answer=str(sample),
        verdict=verdict,
        reward=1.0 if verdict == "correct" else -1.0,
    )


def test_one_row_a_scored_problem_in_the_order_of_the_set() -> None:
    problems = [Problem("a", "q", "0", family="f"), Problem("b", "q", "1"), Problem("c", "q", "2")]
    trajectories = [
        attempt("c", 0, "wrong", replaced=2),
        attempt("a", 0, "correct", (CallRecord("think", "X"), CallRecord("code_interpreter", "self"))),
        attempt("a", 1, "wrong", (CallRecord("think", "X", error="think_twice"),)),
    ]
    items = item_results(problems, trajectories, mode="collaborative", set_name="held_out")
    assert [item.problem_id for item in items] == ["a", "c"]  # b's group was dropped: neither right nor wrong
    assert items[0].correct == (True, False)
    assert items[0].answers == ("0", "1")
    assert items[0].calls_by_tool == {"think": 1, "code_interpreter": 1}
    assert items[0].calls_by_expert == {"X": 1}
    assert items[0].tokens["prompt"] == 4
    assert items[0].tokens["controller"] == 2
    assert items[1].correct == (False,)
    assert [item.unusable for item in items] == [0, 2]


def test_attempts_are_told_apart_by_what_the_controller_wrote_and_not_where_it_wrote_nothing() -> None:
    for texts, distinct in ((((3,), (3,)), 1), (((3,), (4,)), 2), (((3,), ()), 2), (((), ()), None)):
        attempts = [attempt("a", n, "wrong", own=own) for n, own in enumerate(texts)]
        [item] = item_results([Problem("a", "q", "0")], attempts, mode="ask", set_name="held_out")
        assert item.distinct == distinct
        assert item.all_identical == (distinct == 1)
