"""Programming problems from the rollout actor to the sandbox pool and back: rewards, counts, failures."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from actors.sandbox_pool import SandboxPoolActor, SandboxPoolClient
from apprentice.config.load import load_config
from apprentice.config.programs import ProgramsConfig
from apprentice.config.schema import SamplingConfig, SandboxConfig
from apprentice.data.code import CodeTests
from apprentice.data.problem import Problem
from apprentice.errors import SandboxError
from apprentice.rollout.types import split_rollouts
from apprentice.trajectory import trajectories_from_table
from apprentice.verify import RuleVerifier
from apprentice.verify.execution import ExecutionJudge
from apprentice.verify.problems import ProblemVerifier
from driver.spawn import problem_verifier
from tests.ray.rollout_actors import long_prompt, spawn
from tests.rollout_fakes import TurnsFactory
from tests.tiny import make_tiny_model

pytestmark = pytest.mark.ray

START_S = 240.0
CONFIG = SandboxConfig(workers=1, max_retries=1)
BIG = "7 " * 200_000
LONG = CodeTests("stdin", (BIG, "1 2", "3"), ("1400000", "3", "3"))
DOUBLE = CodeTests("program", entry_point="f", program="assert f(1) == 2\nassert f(5) == 10")
SUM = "print(sum(map(int, input().split())))"


def coded(name: str, program: str, tests: CodeTests = LONG) -> Problem:
    """Scripted episodes end in ``answer <gold>``: the gold is a whole answer here."""
    return Problem(
        name, f"{name}?", f"is\n```python\n{program}\n```\n", metadata={"code_tests": tests.text()}
    )


@pytest.fixture(scope="module")
def pool(ray_cluster: None) -> Iterator[Any]:
    actor = ray.remote(SandboxPoolActor).options(num_cpus=0, max_concurrency=64).remote(CONFIG)
    ray.get(actor.ready.remote(), timeout=START_S)
    yield actor
    ray.get(actor.close.remote(), timeout=START_S)
    ray.kill(actor)


def test_a_rollout_actor_rewards_programs_by_their_tests(pool: Any, tmp_path: Path) -> None:
    recipe = load_config(Path(__file__).resolve().parents[2] / "configs" / "tiny.yaml")
    client = SandboxPoolClient([pool], CONFIG)
    factory = TurnsFactory(turns=1, prompt_ids=long_prompt(), turn_tokens=4)
    model = make_tiny_model(tmp_path, corpus=["a tiny corpus of words"] * 20)
    worker = spawn(model, factory=factory, verifier=problem_verifier(recipe, client))
    ray.get(worker.start.remote(), timeout=START_S)
    problems = [
        coded("right", SUM),
        coded("wrong", SUM.replace("sum", "max")),
        coded("crash", "1 / 0"),
        coded("cut", "x = 1\n```\n```python\nprint("),
        coded("function", "def f(x): return 2 * x", DOUBLE),
        coded("cheat", "import os\nos._exit(0)", DOUBLE),
        Problem("math", "1+1?", r"\boxed{2}"),
    ]
    [request] = split_rollouts(
        problems, 1, mode="base", samples=2, sampling=SamplingConfig(), seed=1, max_rollout_tokens=4
    )
    result = ray.get(worker.run.remote(request), timeout=START_S)
    ray.get(worker.stop.remote(), timeout=START_S)
    ray.kill(worker)
    found = {t.problem_id: t for t in trajectories_from_table(result.table)}
    assert len(result.table) == 14
    verdicts = {name: (t.reward, t.verdict, t.tags.get("tests_passed")) for name, t in found.items()}
    assert verdicts == {
        "right": (1.0, "correct", "3"),
        "wrong": (-1.0, "wrong", "0"),
        "crash": (-1.0, "wrong", "0"),
        "cut": (-1.0, "unparseable", "0"),
        "function": (1.0, "correct", "2"),
        "cheat": (-1.0, "wrong", "0"),
        "math": (1.0, "correct", None),
    }
    assert found["crash"].tags["verdict_reason"].startswith("test 1: runtime_error: ZeroDivisionError")
    assert found["right"].answer == SUM + "\n"


async def test_a_long_input_is_put_once_and_the_client_travels(pool: Any) -> None:
    client = SandboxPoolClient([pool], CONFIG)
    verifier = pickle.loads(pickle.dumps(ProblemVerifier(RuleVerifier(), ExecutionJudge(client))))
    problem = coded("p", SUM)
    for _ in range(3):
        assert (await verifier.verify(problem.answer, problem)).correct
    assert len(verifier._programs._runner._inputs._references) == 1


async def test_a_lost_sandbox_is_no_verdict(ray_cluster: None) -> None:
    actor = ray.remote(SandboxPoolActor).options(num_cpus=0).remote(CONFIG)
    ray.get(actor.ready.remote(), timeout=START_S)
    client = SandboxPoolClient([actor], CONFIG)
    ray.kill(actor)
    judge = ProblemVerifier(RuleVerifier(), ExecutionJudge(client, ProgramsConfig()))
    problem = coded("p", SUM)
    with pytest.raises(SandboxError):
        await judge.verify(problem.answer, problem)
