"""What a run of Learning to Ask needs for programming problems beside the stages themselves."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from apprentice.config.load import load_config
from apprentice.data.code import CodeTests
from apprentice.data.problem import Problem
from apprentice.episodes.actions import AdvisorReply, AskAdvisor
from apprentice.errors import DataError, PlacementError, SandboxError
from apprentice.metrics.ask_baselines import llm_only
from apprentice.provenance import Redactor
from apprentice.result_journal import problem_key
from apprentice.rollout.ports import Verdict
from apprentice.rollout.types import RolloutCounters, RolloutResult
from apprentice.run_folder import RunFolder
from apprentice.trajectory import Status, TrajectoryBuilder, trajectories_to_table
from driver.ask.run import learner_for
from driver.ask.solo import SOLO_STAGE, run_solo
from driver.ask.units import Unit, ask_units
from driver.plan import check_fits, placement_plan
from driver.sandbox_places import pool_nodes

pytestmark = pytest.mark.unit

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
RECIPE = CONFIGS / "ask-7b-code.yaml"
MIB = 1024**2


def coded(name: str, expected: str = "2") -> Problem:
    tests = CodeTests("stdin", ("1\n",), (f"{expected}\n",))
    return Problem(name, f"{name}: double n.", "", metadata={"code_tests": tests.text()})


# ---- the plan


def test_the_plan_counts_the_memory_of_programs() -> None:
    """1 GiB and a stack of 512 MiB each (docs/code-tasks.md), sixteen at a time, beside the pool itself."""
    actor = placement_plan(load_config(RECIPE)).actors[-1]
    assert (actor.role, actor.host_bytes) == ("sandbox", 256 * MIB + 16 * 1536 * MIB)
    assert actor.note == "16 at one time, programs of at most 1536 MiB"
    math = placement_plan(load_config(CONFIGS / "ask-7b-math.yaml", ["sandbox.num_cpus=16"])).actors[-1]
    assert math.host_bytes == 256 * MIB + 16 * 512 * MIB


def test_the_code_recipe_goes_onto_two_nodes() -> None:
    """Eight GPUs in all. A pool is on every node that still has sixteen CPUs beside the others' eight."""
    config = load_config(RECIPE)
    plan, node = placement_plan(config), {"CPU": 32.0, "GPU": 4.0}
    assert plan.wanted() == {"CPU": 24.0, "GPU": 8.0}
    check_fits(plan, [node, node])
    others = [actor.bundle for actor in plan.actors if actor.role != "sandbox" for _ in range(actor.count)]
    assert sorted(pool_nodes(config.sandbox, others, [node, node])) == [0, 1]
    assert pool_nodes(config.sandbox, others, [{"CPU": 24.0, "GPU": 8.0}, {"CPU": 8.0}]) == (0,)
    with pytest.raises(PlacementError, match="wanted CPU 24, GPU 8, free CPU 64, GPU 7"):
        check_fits(plan, [node, {"CPU": 32.0, "GPU": 3.0}])


@pytest.mark.parametrize("name", ["ask-7b-math", "ask-7b-code"])
def test_no_call_waits_for_a_place_and_the_longest_answer_has_time(name: str) -> None:
    """A call waits two minutes for a place, and then it is lost: there are as many as there are episodes."""
    config = load_config(CONFIGS / f"{name}.yaml")
    assert config.ask is not None
    advisor, rollout = config.ask.advisor, config.rollout
    assert (
        advisor.replicas * advisor.max_ongoing_requests >= rollout.workers * rollout.max_concurrent_episodes
    )
    longest = max(*config.ask.qmaker.budgets, config.ask.llm_max_tokens, advisor.max_tokens)
    assert advisor.timeout_s >= longest / 10  # tokens a second, with all places taken


def test_the_first_fleet_has_the_learner_of_stage_1() -> None:
    """The capped baseline between them plays no episode, so its budget asks for no fleet of its own."""
    units = ask_units(load_config(RECIPE))
    soon = {unit.name: (learner := learner_for(units[i:])) and learner.name for i, unit in enumerate(units)}
    assert [name for name in soon if soon[name] == "ask_stage1"] == [
        "evaluate/start_solo", "evaluate/start_ask", "evaluate/llm_only",
        *(f"evaluate/llm_capped_b{b}" for b in (512, 1024, 2048, 4096, 8192, 16384)),
        "ask_solo", "ask_stage1",
    ]  # fmt: skip
    assert soon["evaluate/stage1_ask"] is None and soon["evaluate/stage2_b512_ask_qmaker"] is None


# ---- what results depend on


def test_the_tests_are_part_of_what_a_verdict_depends_on() -> None:
    keys = {
        problem_key(coded("p")),
        problem_key(coded("p", "3")),
        problem_key(Problem("p", "p: double n.", "")),
    }
    assert len(keys) == 3 and problem_key(coded("p")) == problem_key(coded("p"))
    packed = dataclasses.replace(coded("p"), metadata={"code_tests": "x" * 10_000_000})
    assert sum(map(len, problem_key(packed))) < 200


class Fleet:
    """Solves the problem ``easy`` always and every other one once."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def sample(self, problems: Any, *, samples: int, on_groups: Any, **others: Any) -> RolloutResult:
        found = []
        for problem in problems:
            self.asked.append(problem.problem_id)
            for number in range(samples):
                right = problem.problem_id == "easy" or number == 0
                found.append(
                    TrajectoryBuilder().build(
                        trajectory_id=f"{problem.problem_id}/{number}.0", problem_id=problem.problem_id,
                        group_id=problem.problem_id, mode="solo", status=Status.COMPLETE,
                        reward=1.0 if right else -1.0, verdict="correct" if right else "wrong",
                    )
                )  # fmt: skip
        table: pa.Table = trajectories_to_table(found)
        on_groups(table)
        return RolloutResult(table, RolloutCounters())


class Bar:
    done = 0

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def update(self, n: int) -> None:
        self.done += n


def estimate(folder: Path, problems: list[Problem], *changes: str) -> tuple[Fleet, RunFolder]:
    """One run's estimate of standalone success, with k = 4; the cache lies in ``folder``."""
    recipe = load_config(RECIPE, [f"run_dir={folder}", "ask.solo={samples: 4, gamma: 1}", *changes])
    run_folder, fleet = RunFolder.create(recipe), Fleet()
    run = SimpleNamespace(
        fleet=fleet, folder=run_folder, progress=lambda *_: Bar(), log=lambda *_: None, config=recipe
    )
    session: Any = SimpleNamespace(
        run=run, recipe=recipe, learning_problems=lambda: problems, weights=lambda reference: "some/model"
    )
    run_solo(session, Unit("ask_solo", "solo", "controller", "solo"))
    return fleet, run_folder


def test_standalone_success_is_estimated_anew_for_other_tests(tmp_path: Path) -> None:
    fleet, first = estimate(tmp_path, [coded("easy"), coded("hard")])
    assert fleet.asked == ["easy", "hard"]
    kept = first.read_json("ask/solo.json")
    assert kept == {"k": 4, "gamma": 1, "successes": {"easy": 4, "hard": 1}}
    stored = first.read_trajectories(SOLO_STAGE)
    assert [t.problem_id for t in stored if t.verdict == "correct"] == ["easy"] * 4 + ["hard"]
    fleet, second = estimate(tmp_path, [coded("easy"), coded("hard")])
    assert fleet.asked == [] and second.read_json("ask/solo.json") == kept
    assert second.read_trajectories(SOLO_STAGE) == []  # it sampled nothing
    assert estimate(tmp_path, [coded("easy"), coded("hard", "3")])[0].asked == ["easy", "hard"]
    fleet, _ = estimate(tmp_path, [coded("easy"), coded("hard")], "programs.test_cpu_s=1")
    assert fleet.asked == ["easy", "hard"]


# ---- the advisor alone


class Advisor:
    async def ask(self, request: AskAdvisor) -> AdvisorReply:
        return AdvisorReply("```python\nprint(2)\n```", 7, 9, "stop", 61.0)


def test_a_lost_sandbox_loses_an_attempt_of_the_advisor_and_not_the_run() -> None:
    async def verify(problem: Problem, reply: str) -> Verdict:
        if problem.problem_id == "lost":
            raise SandboxError("no pool ran it")
        return Verdict("wrong", "print(2)", "test 2: wrong_answer", (1, 3))

    problems = [coded("lost"), coded("kept")]
    lost, kept = asyncio.run(llm_only(problems, Advisor(), verify, k=1, max_tokens=64))
    assert (lost.status, lost.reward, lost.verdict, lost.calls) == (Status.UNUSABLE, None, "", ())
    assert lost.status_reason == "verifier: no pool ran it"
    assert (kept.reward, kept.verdict) == (-1.0, "wrong")
    assert kept.tags == {"tests_passed": "1", "tests": "3", "verdict_reason": "test 2: wrong_answer"}


def test_tests_that_cannot_be_read_end_the_run() -> None:
    async def verify(problem: Problem, reply: str) -> Verdict:
        raise DataError("not the tests of a problem")

    with pytest.raises(DataError):
        asyncio.run(llm_only([coded("p")], Advisor(), verify, k=1, max_tokens=64))


# ---- secrets of the run itself


def test_keys_of_advisor_and_judge_are_taken_out() -> None:
    endpoint = "{kind: openai, base_url: 'https://h', model: m, api_key_env: %s}"
    changes = [
        f"ask.advisor.backend={endpoint % 'ONE_SECRET_OF_OURS'}",
        f"ask.judge={{kind: openai, endpoint: {endpoint % 'MY_OTHER'}}}",
    ]
    environment = {"ONE_SECRET_OF_OURS": "abc-1", "MY_OTHER": "xyz-2"}
    redact = Redactor.for_config(load_config(RECIPE, changes), environment)
    assert redact.text("abc-1 and xyz-2") == "*** and ***"
