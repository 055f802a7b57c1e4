"""What a resumed run goes on from, and how a recipe becomes actors. No actor is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from apprentice.config.load import load_config
from apprentice.data.problem import Problem
from apprentice.errors import ConfigError, DataError
from apprentice.rollout.types import RolloutCounters, RolloutResult
from apprentice.run_folder import RunFolder
from apprentice.stage2.select import SelectionReport
from apprentice.trajectory import Owner, Status, TrajectoryBuilder, trajectories_to_table
from driver import run as runs
from driver import stage1, stage2
from driver.spawn import _transport

pytestmark = pytest.mark.unit

TINY = Path(__file__).resolve().parents[2] / "configs" / "tiny.yaml"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(load_config(TINY, [f"run_dir={tmp_path}"]))


def checkpoint(folder: RunFolder, stage: str, step: int) -> Path:
    path = folder.checkpoint_path(stage, step)
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    folder.mark_complete(stage, step, version=step)
    return path


def test_a_new_run_goes_on_from_its_model(folder: RunFolder) -> None:
    assert runs.last_checkpoint(folder, []) is None


def test_an_unfinished_stage_1_goes_on_from_its_own_checkpoint(folder: RunFolder) -> None:
    checkpoint(folder, "warmup", 4)
    half = checkpoint(folder, "stage1", 5)
    found = runs.last_checkpoint(folder, ["evaluate/base", "warmup"])
    assert found is not None
    assert (found.path, found.step) == (half, 5)


def test_a_supervised_stage_never_starts_from_its_own_end(folder: RunFolder) -> None:
    """Killed between the checkpoint of Stage II and the record that it is done: Stage II is done again."""
    trained = checkpoint(folder, "stage1", 2)
    checkpoint(folder, "stage2", 9)
    found = runs.last_checkpoint(folder, ["warmup", "stage1"])
    assert found is not None
    assert found.path == trained
    warm = RunFolder.create(folder.config)
    checkpoint(warm, "warmup", 4)
    assert runs.last_checkpoint(warm, ["evaluate/base"]) is None


def test_a_finished_stage_without_its_checkpoint_is_an_error(folder: RunFolder) -> None:
    """Older weights must not be scored under the name of the stage that is lost."""
    checkpoint(folder, "warmup", 4)
    (checkpoint(folder, "stage1", 2) / "config.json").unlink()
    with pytest.raises(DataError, match="stage1 is completed but its checkpoint is missing or damaged"):
        runs.last_checkpoint(folder, ["warmup", "stage1"])


@pytest.mark.parametrize(
    ("overrides", "transport"),
    [
        ([], "object_store"),
        (["learner.num_gpus=1"], "object_store"),
        (["learner.num_gpus=1", "rollout.num_gpus=1"], "nccl"),
        (["learner.num_gpus=0.5", "rollout.num_gpus=0.5"], "ipc"),
        (["learner.num_gpus=0.5", "rollout.num_gpus=0.5", "rollout.workers=2"], "nccl"),
        (["learner.num_gpus=1", "rollout.num_gpus=1", "weight_sync.transport=object_store"], "object_store"),
    ],
)
def test_the_transport_follows_from_where_learner_and_engines_stand(
    overrides: list[str], transport: str
) -> None:
    assert _transport(load_config(TINY, overrides)) == transport


# ---------------------------------------------------------------- collecting


class Fleet:
    """Answers with one trajectory a problem and sample; remembers the steps it was asked for."""

    def __init__(self, reward: float | None = 1.0) -> None:
        self.steps: list[int] = []
        self.reward = reward

    def client_metrics(self) -> dict[str, float]:
        return {"sandbox/cells": 7.0}

    def sample(self, problems: Sequence[Problem], *, samples: int, step: int, **other: Any) -> RolloutResult:
        self.steps.append(step)
        found = []
        for problem in problems:
            for sample in range(samples):
                builder = TrajectoryBuilder()
                builder.append([1, 2], Owner.PROMPT, "prompt")
                builder.append_sampled([3], [-0.5], 0)
                found.append(
                    builder.build(
                        trajectory_id=f"{step}:{problem.problem_id}#0/{sample}.0",
                        problem_id=problem.problem_id,
                        group_id=f"{step}:{problem.problem_id}#0",
                        mode="collaborative",
                        status=Status.COMPLETE,
                        verdict="correct",
                        reward=self.reward,
                    )
                )
        return RolloutResult(trajectories_to_table(found), RolloutCounters())


class Bar:
    done = 0

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None: ...

    def update(self, n: int, **shown: float) -> None:
        self.done += n


def run_of(folder: RunFolder, fleet: Fleet, problems: Sequence[Problem]) -> Any:
    def log(stage: str, step: int, metrics: Mapping[str, float]) -> None: ...

    return SimpleNamespace(
        config=folder.config,
        folder=folder,
        fleet=fleet,
        codec=None,
        train=list(problems),
        stream=SimpleNamespace(take=lambda n: list(problems[:n])),
        progress=lambda *arguments, **options: Bar(),
        log=log,
    )


def test_collecting_again_samples_only_what_is_missing(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def all_of_them(trajectories: list[Any], codec: Any, config: Any) -> tuple[list[Any], SelectionReport]:
        seen.append([t.trajectory_id for t in trajectories])
        return trajectories, SelectionReport()

    monkeypatch.setattr(stage2, "select", all_of_them)
    monkeypatch.setattr(stage2, "_CHUNK", 2)
    problems = [Problem(f"p{i}", "q", "1") for i in range(4)]  # tiny.yaml: two samples of four problems
    fleet = Fleet()
    stage2.collect(run_of(folder, fleet, problems))
    assert fleet.steps == [1_000_000, 1_000_002]
    folder.trajectory_path(stage2.SAMPLED_STAGE, 2).unlink()  # killed before the second part was written
    fleet = Fleet()
    stage2.collect(run_of(folder, fleet, problems))
    assert fleet.steps == [1_000_002]
    assert seen[0] == seen[1]
    assert len(seen[0]) == 8


def test_a_trajectory_without_a_reward_is_never_trained(folder: RunFolder) -> None:
    run = run_of(folder, Fleet(reward=None), [Problem("p", "q", "1")])
    with pytest.raises(ValueError, match="unusable rollout has no reward"):
        stage1.stage1_step(run, 0)


# ---------------------------------------------------------------- commands without a learner


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, RunFolder]]:
    """Recipes and folders with which a run would have started its actors."""
    found: list[tuple[Any, RunFolder]] = []

    class Enough(Exception):
        pass

    def running(config: Any, folder: RunFolder, *other: Any, **options: Any) -> Any:
        found.append((config, folder))
        raise Enough

    monkeypatch.setattr(runs, "_running", running)
    monkeypatch.setattr(runs, "__enough__", Enough, raising=False)
    return found


def test_a_collection_leaves_a_run_that_resume_finishes(
    tmp_path: Path, started: list[tuple[Any, RunFolder]]
) -> None:
    config = load_config(TINY, [f"run_dir={tmp_path}"])
    with pytest.raises(runs.__enough__):  # type: ignore[attr-defined]
        runs.collect(config, checkpoint="some/checkpoint")
    folder = RunFolder.open(started[0][1].path)
    assert runs.units(folder.config) == ["stage2", "evaluate/internalized"]  # neither warm-up nor Stage I
    assert folder.config.controller.model == str(Path("some/checkpoint").absolute())


def test_an_evaluation_says_what_it_scores(tmp_path: Path, started: list[tuple[Any, RunFolder]]) -> None:
    config = load_config(TINY, [f"run_dir={tmp_path}"])
    with pytest.raises(runs.__enough__):  # type: ignore[attr-defined]
        runs.evaluate(config, modes=["internalized"])
    config, folder = started[0]
    assert (config.stages, config.evaluation.modes) == (("evaluate",), ("internalized",))
    assert folder.path.name == "tiny-evaluate"
    assert RunFolder.open(folder.path).config == config
    nothing = config.model_copy(update={"data": config.data.model_copy(update={"test": ()})})
    with pytest.raises(ConfigError, match="nothing to evaluate on"):
        runs.evaluate(nothing)
