"""One step of GRPO, whatever is learned: sample groups, score them, train, sync. A step is one page.

RIVET's Stage I and the three stages of Learning to Ask all run this; they differ in the problems, the mode of
the episodes and the advantages (:class:`Signal`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from apprentice.config.parts import SamplingConfig
from apprentice.data.problem import Problem
from apprentice.learning.batch import rl_examples
from apprentice.learning.updates import PolicyObjective
from apprentice.metrics.progress import PhaseTimer
from apprentice.metrics.rollouts import counter_metrics, trajectory_metrics
from apprentice.metrics.training import policy_metrics
from apprentice.trajectory import Trajectory, trajectories_from_table
from driver.context import Run

__all__ = ["PolicyStep", "Signal", "policy_step"]


@dataclass(frozen=True, slots=True)
class Signal:
    """What a batch of trajectories teaches.

    ``advantages``: one number a trajectory, or one float32 array ``[T]`` a trajectory.
    """

    advantages: Sequence[float | npt.NDArray[np.float32]] | npt.NDArray[np.float32]
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PolicyStep:
    """What a stage's steps have in common.

    Args:
        stage: name in folders, logs and messages.
        mode: of the episodes (:data:`apprentice.episodes.factory.Mode`).
        samples: rollouts of every problem.
        sampling: of the rollouts; its temperature is that of the log-probabilities too.
        objective: clipping and the number of updates that share the batch.
        train_owners: whose tokens are trained.
        signal: scores a batch. Every trajectory in it has a reward and a verdict.
    """

    stage: str
    mode: str
    samples: int
    sampling: SamplingConfig
    objective: PolicyObjective
    train_owners: tuple[str, ...]
    signal: Callable[[list[Trajectory]], Signal]


def policy_step(run: Run, plan: PolicyStep, problems: Sequence[Problem], step: int) -> dict[str, float]:
    """One step; returns its metrics."""
    timer, name = PhaseTimer(), f"{plan.stage} step {step + 1}"
    with timer("rollout"):
        result = run.fleet.sample(
            problems,
            mode=plan.mode,
            samples=plan.samples,
            sampling=plan.sampling,
            step=step,
            what=f"{name}: rollouts",
        )
        trajectories = trajectories_from_table(result.table)
    with timer("batch"):
        signal = plan.signal(trajectories)
        batch = rl_examples(trajectories, signal.advantages, plan.train_owners)
        run.folder.write_trajectories(plan.stage, step + 1, trajectories)
    with timer("train"):
        stats = run.fleet.train_policy(batch, plan.objective, what=f"{name}: update")
    with timer("sync"):
        run.fleet.sync_weights()
    return {
        **trajectory_metrics(trajectories),
        **counter_metrics(result.counters),
        **policy_metrics(stats),
        **timer.metrics(),
        **run.fleet.client_metrics(),
        **signal.metrics,
        "policy_version": float(run.fleet.version),
    }
