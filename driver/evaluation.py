"""Evaluation of the current weights in one mode on the test sets; per-item results go to the run folder."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from apprentice.config.schema import ProblemSetConfig
from apprentice.data.problem import Problem
from apprentice.metrics.rollouts import call_counts, counter_metrics, trajectory_metrics
from apprentice.results import ItemResult, write_results
from apprentice.trajectory import Trajectory, trajectories_from_table
from driver.context import Run

__all__ = ["evaluate_mode", "item_results"]

_SEED_STEP = {
    "base": 2_000_000,
    "collaborative": 2_100_000,
    "experts_removed": 2_200_000,
    "internalized": 2_300_000,
}


def evaluate_mode(run: Run, mode: str, *, label: str | None = None) -> list[ItemResult]:
    """Score every test set in ``mode``; ``label`` names the results folder (default: the mode)."""
    items: list[ItemResult] = []
    for problem_set in run.config.data.test:
        items.extend(_evaluate_set(run, mode, label or mode, problem_set))
    return items


def _evaluate_set(run: Run, mode: str, label: str, problem_set: ProblemSetConfig) -> list[ItemResult]:
    config = run.config.evaluation
    problems = run.tests[problem_set.name]
    k = problem_set.k or config.k
    name = f"evaluate {label}: {problem_set.name}"
    with run.progress(len(problems) * k, name, "rollout") as bar:
        result = run.fleet.sample(
            problems,
            mode=mode,
            samples=k,
            sampling=config.sampling,
            step=_SEED_STEP[mode],
            what=name,
            max_rollout_tokens=config.max_rollout_tokens,
            on_progress=lambda done, _: bar.update(done - bar.done),
        )
    trajectories = trajectories_from_table(result.table)
    items = item_results(problems, trajectories, mode=label, set_name=problem_set.name)
    write_results(run.folder.results_path(label, problem_set.name), items)
    run.folder.write_trajectories(f"evaluate_{label}", problem_set.name, trajectories)
    metrics = {**trajectory_metrics(trajectories), **counter_metrics(result.counters)}
    run.log(f"evaluate/{label}/{problem_set.name}", run.fleet.version, metrics)
    return items


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
            )
        )
    return items
