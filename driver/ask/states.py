"""Reasoning states h_tau just before a call: what Qmaker learns from (Learning to Ask, section 5.2)."""

from __future__ import annotations

import logging

from apprentice.data.ask_state import AskState
from apprentice.episodes.ask_states import ask_states
from apprentice.errors import ConfigError
from apprentice.trajectory import trajectories_from_table
from driver.ask.session import AskSession
from driver.ask.units import Unit

__all__ = ["STATES_STAGE", "collect_states", "read_states"]

_log = logging.getLogger(__name__)

STATES_STAGE = "ask_states"
_SEED_STEP = 3_100_000


def collect_states(session: AskSession, unit: Unit) -> None:
    """Roll out the invocation policy of stage 1 on the training set, up to the call; writes trajectories."""
    assert session.recipe.ask is not None
    config = session.recipe.ask
    problems = session.learning_problems()[: config.solo.max_problems]
    size = max(1, 4 * session.recipe.rollout.workers * session.recipe.rollout.max_concurrent_episodes)
    with session.run.progress(len(problems) * config.states_per_problem, unit.name, "rollout") as bar:
        for first in range(0, len(problems), size):
            done = bar.done
            result = session.run.fleet.sample(
                problems[first : first + size],
                mode="ask_stop",
                samples=config.states_per_problem,
                sampling=config.solo.sampling,
                step=_SEED_STEP,
                what="reasoning states",
                on_progress=lambda n, _, done=done: bar.update(done + n - bar.done),
            )
            session.run.folder.write_trajectories(STATES_STAGE, first, trajectories_from_table(result.table))
    train, held_out = read_states(session)
    session.run.log(unit.name, 0, {"states": float(len(train)), "states/held_out": float(len(held_out))})


def read_states(session: AskSession) -> tuple[list[AskState], list[AskState]]:
    """States of training problems, and of validation problems.

    Raises:
        ConfigError: one part has none: the policy of stage 1 does not ask.
    """
    states = ask_states(
        session.run.folder.read_trajectories(STATES_STAGE),
        session.learning_problems(),
        session.codec("ask_stage1"),
    )
    held = {problem.problem_id for problem in session.validation}
    train = [state for state in states if state.base_id not in held]
    held_out = [state for state in states if state.base_id in held]
    for part, found in (("training", train), ("validation", held_out)):
        if not found:
            raise ConfigError(
                f"stage 2: the policy of stage 1 never asked on the {part} problems, so there is nothing for "
                "Qmaker to learn from: train stage 1 longer, raise ask.solo.gamma, or take harder problems"
            )
    return train, held_out
