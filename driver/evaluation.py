"""Evaluation of the current weights in one mode on the test sets; per-item results go to the run folder."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from apprentice.config.schema import ProblemSetConfig
from apprentice.data.problem import Problem
from apprentice.metrics.progress import Progress
from apprentice.metrics.rollouts import call_counts, counter_metrics, trajectory_metrics
from apprentice.result_journal import ResultJournal, fingerprint, problem_key
from apprentice.results import ItemResult, write_results
from apprentice.rollout.types import RolloutCounters
from apprentice.run_folder import COMPLETE
from apprentice.trajectory import (
    Owner,
    Trajectory,
    read_parquet,
    trajectories_from_table,
    trajectories_to_table,
    write_parquet,
)
from driver.context import Run

__all__ = ["evaluate_mode", "item_results"]

_log = logging.getLogger(__name__)

_SEED_STEP = {
    "base": 2_000_000,
    "collaborative": 2_100_000,
    "experts_removed": 2_200_000,
    "internalized": 2_300_000,
    "solo": 2_400_000,
    "ask": 2_500_000,
    "ask_qmaker": 2_600_000,
}


_ROUNDS = 4  # of full engines in one batch


def evaluate_mode(
    run: Run,
    mode: str,
    *,
    label: str | None = None,
    resume: bool | None = None,
    weights: Mapping[str, str] | None = None,
) -> list[ItemResult]:
    """Score every test set in ``mode``; ``label`` names the results folder (default: the mode).

    Without a ``label`` an interrupted evaluation goes on where it stopped: a resumed run comes here with the
    same weights. An evaluation amid a stage (with a ``label``) begins anew, as the steps before it do;
    ``resume`` says otherwise.

    Args:
        weights: models of the evaluation beside the run's own checkpoints: results of others do not count.
    """
    items: list[ItemResult] = []
    go_on = label is None if resume is None else resume
    for problem_set in run.config.data.test:
        items.extend(_evaluate_set(run, mode, label or mode, problem_set, resume=go_on, weights=weights))
    return items


def _evaluate_set(
    run: Run,
    mode: str,
    label: str,
    problem_set: ProblemSetConfig,
    *,
    resume: bool,
    weights: Mapping[str, str] | None,
) -> list[ItemResult]:
    config = run.config.evaluation
    problems = run.tests[problem_set.name]
    k = problem_set.k or config.k
    stage, name = f"evaluate_{label}", f"evaluate {label}: {problem_set.name}"
    results = run.folder.results_path(label, problem_set.name)
    head = _head(run, mode, label, k, problems, weights)
    ledger = _Ledger(
        ResultJournal(results.with_suffix(".journal"), head, resume=resume),
        run.folder.trajectory_path(stage, problem_set.name),
        problems,
        mode=label,
        set_name=problem_set.name,
    )
    todo = [problem for problem in problems if problem.problem_id not in ledger.scored]
    if ledger.scored:
        _log.info("%s: %d of %d problems are scored already", name, len(ledger.scored), len(problems))
    counters: RolloutCounters | None = None
    batch_size = max(
        1, _ROUNDS * run.config.rollout.workers * run.config.rollout.max_concurrent_episodes // k
    )
    with run.progress(len(problems) * k, name, "rollout", initial=len(ledger.scored) * k) as bar:
        for first in range(0, len(todo), batch_size):
            result = run.fleet.sample(
                todo[first : first + batch_size],
                mode=mode,
                samples=k,
                sampling=config.sampling,
                step=_SEED_STEP[mode],
                what=name,
                max_rollout_tokens=config.max_rollout_tokens,
                on_progress=_advance(bar),
                on_groups=ledger.record,
            )
            ledger.record(result.table)
            counters = result.counters if counters is None else _one_after_another(counters, result.counters)
    trajectories = ledger.settle()
    by_id = {item.problem_id: item for item in ledger.items}
    items = [by_id[problem.problem_id] for problem in problems if problem.problem_id in by_id]
    write_results(results, items)
    metrics = {**trajectory_metrics(trajectories), **(counter_metrics(counters) if counters else {})}
    metrics |= run.fleet.client_metrics()
    run.log(f"evaluate/{label}/{problem_set.name}", run.fleet.version, metrics)
    return items


class _Ledger:
    """Takes in whole groups while others are still sampled, each once, and keeps them through a crash."""

    def __init__(
        self, journal: ResultJournal, file: Path, problems: Sequence[Problem], *, mode: str, set_name: str
    ) -> None:
        self._journal, self._file = journal, file
        self._problems = {problem.problem_id: problem for problem in problems}
        self._mode, self._set_name = mode, set_name
        self.scored = {item.problem_id for item in journal.items}
        if not journal.settled:
            file.unlink(missing_ok=True)  # of other weights

    @property
    def items(self) -> Sequence[ItemResult]:
        return self._journal.items

    def record(self, table: pa.Table) -> None:
        """The groups of ``table`` that have not come before; they are on the disk when this returns."""
        new = [t for t in trajectories_from_table(table) if t.problem_id not in self.scored]
        if not new:
            return
        problems = [self._problems[identity] for identity in dict.fromkeys(t.problem_id for t in new)]
        items = item_results(problems, new, mode=self._mode, set_name=self._set_name)
        self._journal.append(items, trajectories_to_table(new))
        self.scored.update(item.problem_id for item in items)

    def settle(self) -> list[Trajectory]:
        """Move the trajectories from the journal to their file; all of the set's."""
        earlier = read_parquet(self._file) if self._file.is_file() else []
        found = {t.trajectory_id: t for t in (*earlier, *trajectories_from_table(self._journal.trajectories))}
        write_parquet(list(found.values()), self._file)
        self._journal.settle()
        return list(found.values())


def _advance(bar: Progress) -> Callable[[int, int], None]:
    """Moves a bar on by the episodes of one batch, from where it stands now."""
    before = bar.done
    return lambda done, _: bar.update(before + done - bar.done)


def _one_after_another(first: RolloutCounters, second: RolloutCounters) -> RolloutCounters:
    """The counters of two batches; their wall seconds add up, other than those of two workers."""
    wall_s = first.wall_s + second.wall_s
    first.add(second)
    first.wall_s = wall_s
    return first


def _head(
    run: Run,
    mode: str,
    label: str,
    k: int,
    problems: Sequence[Problem],
    weights: Mapping[str, str] | None = None,
) -> str:
    """Fingerprint of what the results of a set depend on."""
    config = run.config
    trained = [found for s in ("warmup", "stage1", "stage2") if (found := run.folder.latest_complete(s))]
    return fingerprint(
        {
            "journal": 2,  # form of its lines
            "mode": mode,
            "label": label,
            "k": k,
            "seed": config.seed,
            "version": run.fleet.version,
            "checkpoints": [(c.stage, c.step, (c.path / COMPLETE).stat().st_mtime_ns) for c in trained],
            "problems": [problem_key(problem) for problem in problems],
            **{
                part: getattr(config, part).model_dump(mode="json")
                for part in ("controller", "evaluation", "protocol", "programs")
            },
            "experts": [expert.model_dump(mode="json") for expert in config.experts],
            "ask": config.ask and config.ask.model_dump(mode="json"),
            "weights": dict(weights or {}),
        }
    )


def item_results(
    problems: Sequence[Problem], trajectories: Sequence[Trajectory], *, mode: str, set_name: str
) -> list[ItemResult]:
    """One row a problem that was scored, in the order of the set; attempts in the order of their ids.

    A problem whose group was dropped (infrastructure failed past its replacements) has no row: it is neither
    right nor wrong.
    """
    attempts: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        attempts[trajectory.problem_id].append(trajectory)
    items = []
    for problem in problems:
        mine = attempts.pop(problem.problem_id, [])
        if not mine:
            continue
        tools, experts, _ = call_counts(mine)
        texts = {_own_tokens(t) for t in mine}
        tokens: dict[str, int] = defaultdict(int)
        for trajectory in mine:
            for owner, count in trajectory.tokens_by_owner().items():
                tokens[owner] += count
        items.append(
            ItemResult(
                problem_id=problem.problem_id,
                family=problem.family,
                gold=problem.answer,
                answers=tuple(t.answer for t in mine),
                verdicts=tuple(t.verdict for t in mine),
                mode=mode,
                set_name=set_name,
                calls_by_tool=dict(tools),
                calls_by_expert=dict(experts),
                tokens=dict(tokens),
                # An id ends in the number of samples that it took the place of (rollout/groups.py).
                unusable=sum(int(t.trajectory_id.rpartition(".")[2]) for t in mine),
                distinct=len(texts) if any(texts) else None,  # an advisor alone: nobody wrote
            )
        )
    return items


def _own_tokens(trajectory: Trajectory) -> bytes:
    """What the controller itself wrote. Samples with the same seed agree in it, whatever experts answer."""
    own = np.asarray(trajectory.owner) == int(Owner.CONTROLLER)
    return np.asarray(trajectory.token_ids, np.int32)[own].tobytes()
