"""An evaluation scores exactly its problems, and goes on after a crash without sampling anything twice."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from apprentice.config.load import load_config
from apprentice.data.problem import Problem
from apprentice.errors import DataError, InfrastructureError
from apprentice.result_journal import ResultJournal
from apprentice.results import ItemResult, read_all_results, read_results
from apprentice.rollout.types import RolloutCounters, RolloutResult, merge_results, split_rollouts
from apprentice.run_folder import RunFolder
from apprentice.trajectory import SCHEMA, Owner, Status, TrajectoryBuilder, trajectories_to_table
from driver import run as runs
from driver.evaluation import evaluate_mode

pytestmark = pytest.mark.unit

TINY = Path(__file__).resolve().parents[2] / "configs" / "tiny.yaml"
WORKERS, PROBLEMS = 4, 30


class Fleet:
    """Four engines that answer at once; in call ``fails_at`` one dies, and ``drops`` is a dropped problem."""

    def __init__(
        self, fails_at: int | None = None, drops: str = "", version: int = 0, before_failing: int = 0
    ) -> None:
        self.version, self.fails_at, self.drops = version, fails_at, drops
        self.before_failing = before_failing  # groups of the failing call that become whole before
        self.sampled: list[str] = []
        self.calls = 0

    def client_metrics(self) -> dict[str, float]:
        return {"sandbox/cells": 7.0}

    def sample(
        self, problems: Sequence[Problem], *, mode: str, samples: int, sampling: Any, step: int, what: str,
        max_rollout_tokens: int, on_progress: Any, on_groups: Any,
    ) -> RolloutResult:  # fmt: skip
        self.calls += 1
        if self.calls == self.fails_at and not self.before_failing:
            raise InfrastructureError("an engine died")
        results = []
        for request in split_rollouts(
            problems, WORKERS, mode=mode, samples=samples, sampling=sampling, seed=0, step=step
        ):
            found = []
            for problem, group_id in zip(request.problems, request.group_ids, strict=True):
                self.sampled.append(problem.problem_id)
                for sample in range(samples if problem.problem_id != self.drops else 0):
                    builder = TrajectoryBuilder()
                    builder.append([1, 2], Owner.PROMPT, "prompt")
                    builder.append_sampled([3], [-0.5], self.version)
                    found.append(
                        builder.build(
                            trajectory_id=f"{group_id}/{sample}.0", problem_id=problem.problem_id,
                            group_id=group_id, mode=mode, status=Status.COMPLETE, answer=problem.answer,
                            verdict="correct" if sample % 2 else "wrong", reward=1.0 if sample % 2 else -1.0,
                        )
                    )  # fmt: skip
                if found and problem.problem_id != self.drops:
                    on_groups(trajectories_to_table(found[-samples:]))
                    self.before_failing -= self.calls == self.fails_at
                    if self.calls == self.fails_at and self.before_failing == 0:
                        raise InfrastructureError("an engine died")
            results.append(RolloutResult(trajectories_to_table(found), RolloutCounters(wall_s=1.0)))
        on_progress(len(problems) * samples, len(problems) * samples)
        return merge_results(results)


class Bar:
    def __init__(self, total: int, initial: int) -> None:
        self.total, self.done = total, initial

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, error: object, *other: object) -> None:
        assert error or self.done == self.total

    def update(self, n: int, **shown: float) -> None:
        self.done += n


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    # 4 times 1 engine with 4 episodes at a time, 2 samples a problem: batches of 8 problems.
    changes = [f"run_dir={tmp_path}", "rollout.max_concurrent_episodes=4", "evaluation.k=2"]
    return RunFolder.create(load_config(TINY, changes))


def evaluate(folder: RunFolder, fleet: Fleet, label: str | None = None, first: int = 0) -> dict[str, Any]:
    """Evaluate the tiny recipe's set, with 30 problems of ours in its place; what was logged."""
    logged: dict[str, Any] = {}

    def log(stage: str, step: int, metrics: Mapping[str, float]) -> None:
        logged.update(metrics)

    problems = [Problem(f"p{i}", f"{i} + {i}?", str(2 * i)) for i in range(first, first + PROBLEMS)]
    run: Any = SimpleNamespace(
        config=folder.config, folder=folder, fleet=fleet, tests={"held_out": problems}, log=log,
        progress=lambda total, label, unit, initial=0: Bar(total, initial),
    )  # fmt: skip
    evaluate_mode(run, "collaborative", label=label)
    return logged


def scored(folder: RunFolder, label: str = "collaborative") -> list[ItemResult]:
    return read_results(folder.results_path(label, "held_out"))


def test_h17_thirty_problems_on_four_workers_are_thirty_results(folder: RunFolder) -> None:
    fleet = Fleet()
    logged = evaluate(folder, fleet)
    expected = [f"p{i}" for i in range(PROBLEMS)]
    assert [item.problem_id for item in scored(folder)] == expected
    assert sorted(fleet.sampled) == sorted(expected)
    assert [item.problem_id for item in read_all_results(folder.path / "results")] == expected
    trajectories = folder.read_trajectories("evaluate_collaborative")
    assert len(trajectories) == len({t.trajectory_id for t in trajectories}) == 2 * PROBLEMS
    assert fleet.calls == 4  # 8 + 8 + 8 + 6
    assert logged["accuracy"] == 0.5
    assert logged["sandbox/cells"] == 7.0


def test_after_a_crash_only_what_is_missing_is_sampled(folder: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError):
        evaluate(folder, Fleet(fails_at=3))
    assert not folder.results_path("collaborative", "held_out").exists()
    again = Fleet()
    logged = evaluate(folder, again)
    assert sorted(again.sampled) == sorted(f"p{i}" for i in range(16, PROBLEMS))
    other = RunFolder.create(folder.config, path=tmp_path / "unbroken")
    assert logged["accuracy"] == evaluate(other, Fleet())["accuracy"]
    assert scored(folder) == scored(other)
    stage = "evaluate_collaborative"
    assert {t.trajectory_id for t in folder.read_trajectories(stage)} == {
        t.trajectory_id for t in other.read_trajectories(stage)
    }
    finished = Fleet()
    evaluate(folder, finished)
    assert finished.sampled == []
    assert scored(folder) == scored(other)


def test_what_was_finished_within_a_batch_is_kept(folder: RunFolder) -> None:
    first = Fleet(fails_at=2, before_failing=3)
    with pytest.raises(InfrastructureError):
        evaluate(folder, first)
    assert len(first.sampled) == 8 + 3
    again = Fleet()
    evaluate(folder, again)
    assert sorted(first.sampled + again.sampled) == sorted(f"p{i}" for i in range(PROBLEMS))
    assert [item.problem_id for item in scored(folder)] == [f"p{i}" for i in range(PROBLEMS)]
    assert len(folder.read_trajectories("evaluate_collaborative")) == 2 * PROBLEMS


class SlowFleet(Fleet):
    """Says which problem it has finished, and takes its time."""

    def sample(self, problems: Sequence[Problem], **rest: Any) -> RolloutResult:
        given = rest.pop("on_groups")

        def slowly(table: Any) -> None:
            given(table)
            print(table.column("problem_id")[0], flush=True)
            time.sleep(0.05)

        return super().sample(problems, on_groups=slowly, **rest)


def evaluate_slowly(path: str) -> None:
    """In a process that is to be killed."""
    evaluate(RunFolder.open(path, resume=True), SlowFleet())


def test_after_sigkill_only_the_unfinished_are_sampled(folder: RunFolder) -> None:
    folder.close()
    command = f"from tests.unit.test_driver_evaluation import *; evaluate_slowly({str(folder.path)!r})"
    process = subprocess.Popen([sys.executable, "-c", command], cwd=TINY.parents[1], stdout=subprocess.PIPE)
    assert process.stdout is not None
    told = [process.stdout.readline().decode().strip() for _ in range(11)]  # amid the second batch of 8
    process.kill()
    told += process.stdout.read().decode().split()
    process.wait()
    process.stdout.close()
    assert 11 <= len(told) < PROBLEMS
    again = Fleet()
    evaluate(folder, again)
    # Everything it told of is kept, and at most one more that it did not come to tell of.
    assert not set(told) & set(again.sampled)
    assert PROBLEMS - len(told) - 1 <= len(again.sampled) <= PROBLEMS - len(told)
    assert [item.problem_id for item in scored(folder)] == [f"p{i}" for i in range(PROBLEMS)]
    found = folder.read_trajectories("evaluate_collaborative")
    assert len(found) == len({t.trajectory_id for t in found}) == 2 * PROBLEMS


def test_samples_that_are_one_text_are_counted(folder: RunFolder) -> None:
    evaluate(folder, Fleet())  # whose samples are all one token
    assert {item.distinct for item in scored(folder)} == {1}
    assert all(item.all_identical for item in scored(folder))
    assert not ItemResult("p", "", "1", ("1",), ("correct",), distinct=1).all_identical  # k = 1
    assert not ItemResult("p", "", "1", ("1", "1"), ("correct",) * 2, distinct=2).all_identical


def test_after_the_end_the_journal_keeps_the_results_and_the_trajectories_lie_in_their_file(
    folder: RunFolder,
) -> None:
    evaluate(folder, Fleet())
    journal = ResultJournal(
        path := folder.results_path("collaborative", "held_out").with_suffix(".journal"),
        path.read_text().split("\n")[0],
    )
    assert journal.settled and journal.trajectories.num_rows == 0
    assert sorted(i.problem_id for i in journal.items) == sorted(i.problem_id for i in scored(folder))
    assert folder.trajectory_path("evaluate_collaborative", "held_out").is_file()


def test_a_crash_between_the_trajectories_file_and_the_end_of_the_journal_doubles_nothing(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(journal: ResultJournal) -> None:
        raise InfrastructureError("the disk is full")

    # Once with nothing settled yet, and once with a problem that came after the others were.
    for first, then in ((Fleet(drops="p3"), Fleet(drops="p3")), (Fleet(), Fleet())):
        with monkeypatch.context() as patch, pytest.raises(InfrastructureError):
            patch.setattr(ResultJournal, "settle", crash)
            evaluate(folder, first)
        evaluate(folder, then)
    assert (first.sampled, then.sampled) == (["p3"], [])
    found = folder.read_trajectories("evaluate_collaborative")
    assert len(found) == len({t.trajectory_id for t in found}) == 2 * PROBLEMS


def test_a_line_that_the_crash_cut_off_is_sampled_again(folder: RunFolder) -> None:
    with pytest.raises(InfrastructureError):
        evaluate(folder, Fleet(fails_at=3))
    journal = folder.results_path("collaborative", "held_out").with_suffix(".journal")
    journal.write_bytes(journal.read_bytes()[:-40])
    again = Fleet()
    evaluate(folder, again)
    (lost,) = {f"p{i}" for i in range(16)} & set(again.sampled)
    assert sorted(again.sampled) == sorted([lost, *(f"p{i}" for i in range(16, PROBLEMS))])
    assert len(scored(folder)) == PROBLEMS
    assert len(folder.read_trajectories("evaluate_collaborative")) == 2 * PROBLEMS


def test_a_problem_that_was_dropped_is_tried_again_on_the_next_time(folder: RunFolder) -> None:
    evaluate(folder, Fleet(drops="p3"))
    assert len(scored(folder)) == PROBLEMS - 1
    again = Fleet()
    evaluate(folder, again)
    assert again.sampled == ["p3"]
    assert [item.problem_id for item in scored(folder)] == [f"p{i}" for i in range(PROBLEMS)]


def test_other_weights_and_other_problems_are_never_mixed_with_what_is_there(folder: RunFolder) -> None:
    evaluate(folder, Fleet())
    for fleet, first in ((Fleet(version=1), 0), (Fleet(version=1), 5)):
        evaluate(folder, fleet, first=first)
        assert len(fleet.sampled) == PROBLEMS
    checkpoint = folder.checkpoint_path("stage1", 3)
    checkpoint.mkdir(parents=True)
    (checkpoint / "config.json").write_text("{}")
    folder.mark_complete("stage1", 3)
    trained = Fleet(version=1)
    evaluate(folder, trained, first=5)
    assert len(trained.sampled) == PROBLEMS
    assert len(scored(folder)) == PROBLEMS
    assert len(folder.read_trajectories("evaluate_collaborative")) == 2 * PROBLEMS


def test_an_evaluation_amid_a_stage_begins_anew(folder: RunFolder) -> None:
    evaluate(folder, Fleet(), label="stage1_step_2")
    again = Fleet()
    evaluate(folder, again, label="stage1_step_2")
    assert len(again.sampled) == PROBLEMS


def test_a_journal_is_no_results_file_and_a_damaged_one_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="finished results"):
        ResultJournal(tmp_path / "s.jsonl", "head")
    journal = ResultJournal(tmp_path / "s.journal", "head")
    journal.append([ItemResult("p", "", "1", ("1",), ("correct",))], SCHEMA.empty_table())
    assert ResultJournal(tmp_path / "s.journal", "head").items == journal.items
    assert ResultJournal(tmp_path / "s.journal", "head", resume=False).items == []
    (tmp_path / "s.journal").write_text('head\n{"items": []}\n')
    with pytest.raises(DataError, match="damaged"):
        ResultJournal(tmp_path / "s.journal", "head")


def test_an_evaluation_that_crashed_is_finished_by_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``apprentice evaluate`` leaves a run that ``apprentice train --resume`` goes on with."""
    changes = [f"run_dir={tmp_path}", "rollout.max_concurrent_episodes=2", "evaluation.k=2"]
    config = load_config(TINY, changes)
    fleets = [Fleet(fails_at=3), Fleet()]
    finished: list[Path] = []

    @contextlib.contextmanager
    def running(config: Any, folder: RunFolder, *_: object, **__: object) -> Iterator[Any]:
        problems = [Problem(f"p{i}", f"{i} + {i}?", str(2 * i)) for i in range(PROBLEMS)]
        yield SimpleNamespace(
            config=config, folder=folder, fleet=fleets[int(crashed)],
            tests={"held_out": problems}, log=lambda *_: None, seconds={"start": 0.0}, peak_memory_bytes=0,
            stream=SimpleNamespace(position=0),
            progress=lambda total, label, unit, initial=0: Bar(total, initial),
        )  # fmt: skip

    crashed = False
    monkeypatch.setattr(runs, "_running", running)
    monkeypatch.setattr(runs, "_finish", lambda folder, run: finished.append(folder.path))
    with pytest.raises(InfrastructureError):
        runs.evaluate(config, modes=["internalized"])
    crashed = True
    path = tmp_path / "tiny-evaluate"
    assert runs.train(config, resume=str(path)) == 0
    assert finished == [path]
    assert len(fleets[0].sampled) + len(fleets[1].sampled) == PROBLEMS
    assert not set(fleets[0].sampled) & set(fleets[1].sampled)
    assert len(read_results(path / "results" / "internalized" / "held_out.jsonl")) == PROBLEMS
