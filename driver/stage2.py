"""Stage II: verified trajectory internalization (RIVET, section 3.4). Collect, review, convert, train."""

from __future__ import annotations

import logging

from apprentice.errors import ConfigError
from apprentice.metrics.rollouts import counter_metrics, trajectory_metrics
from apprentice.report.build import FUNNEL_FILE
from apprentice.stage2.convert import convert
from apprentice.stage2.review import CANDIDATE_STAGE, accept_all, accepted
from apprentice.stage2.select import select
from apprentice.trajectory import Trajectory, read_parquet, trajectories_from_table
from driver.context import Run
from driver.sft import train_sft

__all__ = ["collect", "run_stage2"]

_log = logging.getLogger(__name__)

STAGE = "stage2"
SAMPLED_STAGE = "stage2_sampled"
"""Folder below ``trajectories/`` that holds all samples, before any filter."""
_CHUNK = 64  # problems sampled between two writes: what a crash costs at most


def run_stage2(run: Run) -> None:
    """Collect verified trajectories from the frozen controller, train on them; ends with C_int.

    Raises:
        ConfigError: nothing survived the filters, or the review has not been done yet (the message names the
            command that does it; ``--resume`` then goes on from there).
    """
    config = run.config.stage2
    if run.folder.read_trajectories(CANDIDATE_STAGE):
        _log.info("stage 2: trajectories are there already; not collected again")
    else:
        collect(run)
    if config.accept_all:
        accept_all(run.folder)
    chosen = set(accepted(run.folder))
    kept = [t for t in run.folder.read_trajectories(CANDIDATE_STAGE) if t.trajectory_id in chosen]
    if not kept:
        raise ConfigError(
            f"stage 2: no trajectory survived filters and review; {FUNNEL_FILE} of the run has the counts. A "
            "controller that solves nothing with its experts needs more of stage 1, or stronger experts"
        )
    examples = [convert(t, run.codec, run.config) for t in kept]
    train_sft(
        run,
        STAGE,
        examples,
        batch_size=config.batch_size,
        epochs=config.epochs,
        optimizer=config.optimizer,
        lambda_fmt=config.lambda_fmt,
    )


def collect(run: Run) -> None:
    """Sample the frozen controller on the training problems, filter and select; write the candidates."""
    config = run.config.stage2
    problems = run.train[: config.max_problems]
    sampled: list[Trajectory] = []
    total = len(problems) * config.samples_per_problem
    with run.progress(total, "stage2: collect", "rollout") as bar:
        for start in range(0, len(problems), _CHUNK):
            done = bar.done
            # The controller is frozen and seeds are fixed: what an interrupted run has sampled still stands.
            if (file := run.folder.trajectory_path(SAMPLED_STAGE, start)).is_file():
                sampled.extend(read_parquet(file))
                bar.update(len(problems[start : start + _CHUNK]) * config.samples_per_problem)
                continue
            result = run.fleet.sample(
                problems[start : start + _CHUNK],
                mode="collaborative",
                samples=config.samples_per_problem,
                sampling=run.config.rollout.sampling,
                step=1_000_000 + start,  # seeds apart from those of training steps
                what=f"stage 2: trajectories from problem {start + 1}",
                on_progress=lambda n, _, done=done: bar.update(done + n - bar.done),
            )
            chunk = trajectories_from_table(result.table)
            run.folder.write_trajectories(SAMPLED_STAGE, start, chunk)
            metrics = {**trajectory_metrics(chunk), **counter_metrics(result.counters)}
            run.log("stage2_collect", start, {**metrics, **run.fleet.client_metrics()})
            sampled.extend(chunk)
    candidates, report = select(sampled, run.codec, run.config)
    run.folder.write_trajectories(CANDIDATE_STAGE, 0, candidates)
    run.folder.write_json(FUNNEL_FILE, report.funnel())
    run.folder.write_json("stage2_selection.json", report.to_dict())
