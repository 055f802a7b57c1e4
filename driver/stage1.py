"""Stage I: expert-augmented GRPO (RIVET, section 3.3, Eqs. 1-6). A step is one page: sample, train, sync."""

from __future__ import annotations

import functools
import logging

from apprentice.learning.updates import PolicyObjective
from apprentice.objectives.advantage import group_relative_advantages, zero_signal_share
from apprentice.trajectory import Trajectory
from driver.context import Run
from driver.evaluation import evaluate_mode
from driver.policy_step import PolicyStep, Signal, policy_step

__all__ = ["run_stage1", "stage1_step"]

_log = logging.getLogger(__name__)

STAGE = "stage1"


def run_stage1(run: Run, first_step: int = 0) -> None:
    """All steps of Stage I; ends with a checkpoint, C_RL."""
    config = run.config.stage1
    if first_step and (config.optimizer.schedule != "constant" or config.optimizer.warmup_steps):
        _log.warning("stage 1 goes on at step %d, but its learning-rate schedule begins anew", first_step + 1)
    run.fleet.reset_optimizer(config.optimizer, config.steps * config.updates_per_step)
    with run.progress(config.steps, STAGE, "step", initial=first_step) as bar:
        for step in range(first_step, config.steps):
            metrics = stage1_step(run, step)
            run.log(STAGE, step + 1, metrics)
            done = step + 1
            if config.save_every and done % config.save_every == 0 and done < config.steps:
                run.checkpoint(STAGE, done)
            if config.evaluate_every and done % config.evaluate_every == 0 and done < config.steps:
                evaluate_mode(run, "collaborative", label=f"stage1_step_{done}")
            bar.update(
                1,
                accuracy=metrics.get("accuracy", float("nan")),
                calls=metrics.get("calls/mean", float("nan")),
                entropy=metrics.get("entropy/controller", float("nan")),
            )
    run.checkpoint(STAGE, config.steps)


def stage1_step(run: Run, step: int) -> dict[str, float]:
    """One step; returns its metrics."""
    config = run.config.stage1
    plan = PolicyStep(
        stage=STAGE,
        mode="collaborative",
        samples=config.rollouts_per_prompt,
        sampling=run.config.rollout.sampling,
        objective=PolicyObjective(
            clip_epsilon=config.clip_epsilon,
            dual_clip=config.dual_clip,
            temperature=run.config.rollout.sampling.temperature,
            updates=config.updates_per_step,
        ),
        train_owners=config.train_owners,
        signal=functools.partial(_signal, epsilon=config.epsilon_advantage),
    )
    return policy_step(run, plan, run.stream.take(config.prompts_per_step), step)


def _signal(trajectories: list[Trajectory], epsilon: float) -> Signal:
    """Group-relative advantages of the verified rewards (Eq. 2)."""
    # Every trajectory was scored; one without a reward is a NaN here, which the advantage refuses.
    rewards = [float("nan") if t.reward is None else t.reward for t in trajectories]
    groups = [t.group_id for t in trajectories]
    return Signal(
        group_relative_advantages(rewards, groups, epsilon),
        {"groups/zero_signal": zero_signal_share(rewards, groups)},
    )
