"""The three reinforcement-learning stages of Learning to Ask (section 5): one loop, three signals.

A stage samples, learns and syncs by :func:`driver.policy_step.policy_step`, like RIVET's Stage I. At every
validation it writes a checkpoint and scores it on the held-out part of the training set; the best one is what
later units use (appendix D.2), and the last one is what an interrupted stage goes on from.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from apprentice.ask.signals import (
    asked,
    consultation_rewards,
    integration_advantages,
    is_correct,
    qmaker_parts,
    qmaker_rewards,
)
from apprentice.config.ask import AskConfig, AskStageConfig
from apprentice.data.ask_classes import balance_classes
from apprentice.data.ask_state import AskState
from apprentice.data.order import ProblemStream
from apprentice.data.problem import Problem
from apprentice.data.secrets import secrets_of
from apprentice.learning.updates import PolicyObjective
from apprentice.objectives.advantage import group_relative_advantages, zero_signal_share
from apprentice.trajectory import Trajectory, trajectories_from_table
from driver.ask.session import AskSession
from driver.ask.solo import consultation_targets
from driver.ask.states import read_states
from driver.ask.units import Unit
from driver.policy_step import PolicyStep, Signal, policy_step

__all__ = ["VALIDATION_FILE", "first_step", "run_stage", "stage_config", "validate_states"]

_log = logging.getLogger(__name__)

VALIDATION_FILE = "ask/validation.json"
"""Stage -> list of ``{step, score}``."""
_SEED_STEP = 3_200_000

Score = Callable[[list[Trajectory]], float]


def stage_config(config: AskConfig, unit: Unit) -> AskStageConfig:
    """The configuration of a stage's unit."""
    return {"stage1": config.stage1, "stage2": config.stage2, "stage3": config.stage3}[unit.kind]


def first_step(session: AskSession, unit: Unit) -> int:
    """Steps of an interrupted stage that need not be done again."""
    last = session.run.folder.latest_complete(unit.name)
    return last.step if last else 0


def run_stage(session: AskSession, unit: Unit) -> None:
    """All steps of a stage, and the selection of its checkpoint."""
    assert session.recipe.ask is not None
    config = stage_config(session.recipe.ask, unit)
    problems, held_out, signal, score = _PARTS[unit.kind](session, config)
    plan = PolicyStep(
        stage=unit.name,
        mode=unit.mode,
        samples=config.rollouts_per_prompt,
        sampling=config.sampling,
        objective=PolicyObjective(
            clip_epsilon=config.clip_epsilon,
            dual_clip=config.dual_clip,
            temperature=config.sampling.temperature,
            updates=config.updates_per_step,
        ),
        train_owners=("controller",),
        signal=signal,
    )
    run, begin = session.run, first_step(session, unit)
    last = run.folder.checkpoint_at(unit.name, begin) if begin else None
    run.stream = ProblemStream(
        problems, run.config.seed, int(last.info.get("position", 0)) if last is not None else 0
    )
    run.fleet.reset_optimizer(config.optimizer, config.steps * config.updates_per_step)
    selection = _Selection(session, unit)
    with run.progress(config.steps, unit.name, "step", initial=begin) as bar:
        for step in range(begin, config.steps):
            metrics = policy_step(run, plan, run.stream.take(config.prompts_per_step), step)
            done, every = step + 1, config.validate_every
            if every and (done % every == 0 or done == config.steps):
                metrics["validation/score"] = value = _validate(session, unit, held_out, score, done)
                selection.offer(done, value)
            run.log(unit.name, done, metrics)
            bar.update(
                1,
                reward=metrics.get("ask/reward", math.nan),
                calls=metrics.get("ask/call_rate", math.nan),
                entropy=metrics.get("entropy/controller", math.nan),
            )
    if not config.validate_every:
        run.checkpoint(unit.name, config.steps)
    best = selection.best if config.validate_every else config.steps
    session.select(unit.name, best, serving=best == config.steps)


class _Selection:
    """Checkpoints of a stage by their score on held-out problems; keeps the best and the last."""

    def __init__(self, session: AskSession, unit: Unit) -> None:
        self._session, self._stage = session, unit.name
        found: Mapping[str, Any] = session.run.folder.read_json(VALIDATION_FILE) or {}
        self._scores: list[dict[str, float]] = list(found.get(unit.name, []))

    @property
    def best(self) -> int:
        """Step of the best checkpoint; the earlier one of equals."""
        return int(max(self._scores, key=lambda row: (row["score"], -row["step"]))["step"])

    def offer(self, step: int, score: float) -> None:
        """Write the checkpoint of this step, and drop the one that it makes superfluous."""
        run = self._session.run
        run.checkpoint(self._stage, step)
        kept = {int(row["step"]) for row in self._scores}
        self._scores = [row for row in self._scores if row["step"] != step] + [{"step": step, "score": score}]
        found = dict(run.folder.read_json(VALIDATION_FILE) or {})
        run.folder.write_json(VALIDATION_FILE, {**found, self._stage: self._scores})
        for other in kept - {self.best, step}:
            run.folder.drop_checkpoint(self._stage, other)
        _log.info("%s, step %d: %.4f on held-out problems, best %d", self._stage, step, score, self.best)


def _validate(session: AskSession, unit: Unit, problems: Sequence[Problem], score: Score, step: int) -> float:
    """Mean score of the weights after ``step`` steps on held-out problems, always the same ones."""
    assert session.recipe.ask is not None
    result = session.run.fleet.sample(
        problems,
        mode=unit.mode,
        samples=session.recipe.ask.validation_samples,
        sampling=session.recipe.evaluation.sampling,
        step=_SEED_STEP + step,
        what=f"{unit.name}: validation",
    )
    return score(trajectories_from_table(result.table))


# ---------------------------------------------------------------- what a stage learns from

_Parts = tuple[Sequence[Problem], Sequence[Problem], Callable[[list[Trajectory]], Signal], Score]


def _stage1(session: AskSession, config: AskStageConfig) -> _Parts:
    """Whether to ask: R_C (Eq. 7)."""
    needs = consultation_targets(session)
    train, held_out = _balanced(session, needs)

    def signal(trajectories: list[Trajectory]) -> Signal:
        rewards = consultation_rewards(trajectories, needs)
        return _grouped(trajectories, rewards, config.epsilon_advantage, _call_metrics(trajectories, needs))

    return train, held_out, signal, lambda ts: _balanced_reward(ts, needs)


def _stage2(session: AskSession, config: AskStageConfig) -> _Parts:
    """How to ask: R_Q (Eq. 9; Eq. 12 with ``ask.qmaker.privacy``)."""
    assert session.recipe.ask is not None
    train, held_out = read_states(session)
    secrets = _secrets([*train, *held_out]) if session.recipe.ask.qmaker.privacy else {}

    def signal(trajectories: list[Trajectory]) -> Signal:
        rewards = qmaker_rewards(trajectories, secrets)
        parts = qmaker_parts(trajectories, _secrets([*train, *held_out]))
        metrics = {
            "ask/complete": float(parts.complete.mean()),
            "ask/feasible": _nanmean(parts.feasible),
            "ask/correct": float(parts.correct.mean()),
            "ask/safe": float(parts.safe.mean()),
            "ask/unknown_usage": float(np.isnan(rewards).mean()),
        }
        return _grouped(trajectories, rewards, config.epsilon_advantage, metrics)

    return train, held_out, signal, lambda ts: _nanmean(qmaker_rewards(ts, secrets))


def _stage3(session: AskSession, config: AskStageConfig) -> _Parts:
    """How to use it: Eq. 10, before and after the call apart."""
    assert session.recipe.ask is not None
    weight = session.recipe.ask.lambda_task
    needs = consultation_targets(session)
    train, held_out = _balanced(session, needs)

    def signal(trajectories: list[Trajectory]) -> Signal:
        advantages = integration_advantages(trajectories, needs, weight, config.epsilon_advantage)
        correct = float(np.mean([is_correct(t) for t in trajectories]))
        metrics = {**_call_metrics(trajectories, needs), "ask/correct": correct}
        return Signal(advantages, metrics)

    def score(trajectories: list[Trajectory]) -> float:
        # Both aims of Eq. 10 with equal weight: a policy that asks always must not win by accuracy alone.
        right = np.mean([is_correct(t) for t in trajectories])
        return float((right + _balanced_reward(trajectories, needs)) / 2)

    return train, held_out, signal, score


_PARTS: Mapping[str, Callable[[AskSession, AskStageConfig], _Parts]] = {
    "stage1": _stage1,
    "stage2": _stage2,
    "stage3": _stage3,
}


def _grouped(
    trajectories: list[Trajectory], rewards: np.ndarray[Any, Any], epsilon: float, metrics: dict[str, float]
) -> Signal:
    """Group-relative advantages. A group with an unknown reward teaches nothing: its advantages are zero."""
    groups = [t.group_id for t in trajectories]
    unknown = {g for g, r in zip(groups, rewards, strict=True) if math.isnan(r)}
    known = np.array([0.0 if g in unknown else r for g, r in zip(groups, rewards, strict=True)])
    return Signal(
        group_relative_advantages(known.tolist(), groups, epsilon),
        {
            **metrics,
            "ask/reward": _nanmean(rewards),
            "groups/zero_signal": zero_signal_share(known.tolist(), groups),
        },
    )


def _call_metrics(trajectories: list[Trajectory], needs: Mapping[str, bool]) -> dict[str, float]:
    called = np.array([asked(t) for t in trajectories], np.float64)
    wanted = np.array([needs[t.problem_id] for t in trajectories])
    return {
        "ask/call_rate": float(called.mean()),
        "ask/call_rate_needed": _nanmean(called[wanted]),
        "ask/call_rate_not_needed": _nanmean(called[~wanted]),
        "ask/reward": float((called == wanted).mean()),
    }


def _balanced(session: AskSession, needs: Mapping[str, bool]) -> tuple[list[Problem], list[Problem]]:
    """Training problems with their classes balanced (section 6.1), and the validation problems."""
    train = [p for p in session.train if p.problem_id in needs]
    held_out = [p for p in session.validation if p.problem_id in needs]
    return balance_classes(train, [needs[p.problem_id] for p in train], session.recipe.seed), held_out


def _balanced_reward(trajectories: list[Trajectory], needs: Mapping[str, bool]) -> float:
    """Mean R_C with both classes of equal weight, as in training.

    Where most problems need the advisor, a policy that always asks must not win.
    """
    rewards = consultation_rewards(trajectories, needs)
    wanted = np.array([needs[t.problem_id] for t in trajectories])
    return float(np.mean([rewards[wanted == one].mean() for one in np.unique(wanted)]))


def _secrets(states: Sequence[AskState]) -> dict[str, tuple[str, ...]]:
    return {state.problem_id: secrets_of(state) for state in states}


def _nanmean(values: np.ndarray[Any, Any]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def validate_states(session: AskSession, unit: Unit) -> None:
    """Qmaker on the held-out states, as it is: the trajectories that the report compares."""
    assert session.recipe.ask is not None
    _, held_out = read_states(session)
    config = session.recipe.ask
    result = session.run.fleet.sample(
        held_out,
        mode=unit.mode,
        samples=config.validation_samples,
        sampling=session.recipe.evaluation.sampling,
        step=_SEED_STEP,
        what=unit.name,
    )
    trajectories = trajectories_from_table(result.table)
    session.run.folder.write_trajectories(unit.name, "held_out", trajectories)
    parts = qmaker_parts(trajectories, _secrets(held_out))
    session.run.log(
        unit.name,
        0,
        {
            "ask/reward": _nanmean(qmaker_rewards(trajectories)),
            "ask/complete": float(parts.complete.mean()),
            "ask/feasible": _nanmean(parts.feasible),
            "ask/correct": float(parts.correct.mean()),
            "ask/safe": float(parts.safe.mean()),
        },
    )
