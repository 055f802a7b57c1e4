"""Reasoning states just before a call, collected from rollouts: what Qmaker is trained on (section 5.2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from apprentice.data.ask_state import AskState
from apprentice.data.problem import Problem
from apprentice.episodes.ask_call import call_site, check_query
from apprentice.episodes.calls import Refusal
from apprentice.episodes.parser import Repairs, parse_turn
from apprentice.episodes.tools import ASK_ADVISOR
from apprentice.errors import DataError
from apprentice.tokens import ChatCodec
from apprentice.trajectory import CallRecord, Owner, Status, Trajectory

__all__ = ["ask_states"]

_MODES = ("ask", "ask_stop")
_REPAIRS = Repairs(extra_braces=True, raw_newlines=True, missing_close=True)
"""The episode has let the call through, by whatever rules: it is only to be found again."""


def ask_states(
    trajectories: Iterable[Trajectory], problems: Iterable[Problem], codec: ChatCodec
) -> list[AskState]:
    """The states h_tau of all valid calls, in order; trajectories without one, or UNUSABLE, give none.

    Args:
        trajectories: of mode ``ask`` or ``ask_stop``, in which the reasoner's own query is kept.
        problems: those that they belong to; metadata (tests of a program, planted secrets) stays with the
            state.
        codec: the reasoner's.

    Raises:
        DataError: a trajectory is of another mode, belongs to no problem, or was not sampled with ``codec``.
    """
    known = {problem.problem_id: problem for problem in problems}
    states = []
    for trajectory in trajectories:
        if trajectory.mode not in _MODES:
            raise _unfit(trajectory, f"its mode is {trajectory.mode}, not one of {', '.join(_MODES)}")
        if trajectory.problem_id not in known:
            raise _unfit(trajectory, f"its problem {trajectory.problem_id!r} is not among those given")
        if trajectory.status is Status.UNUSABLE:
            continue
        for call in trajectory.calls:
            if call.tool == ASK_ADVISOR and not call.error:
                states.append(_state(trajectory, call, known[trajectory.problem_id], codec))
    return states


def _state(trajectory: Trajectory, call: CallRecord, problem: Problem, codec: ChatCodec) -> AskState:
    ids = trajectory.token_ids.tolist()
    end = call.start
    while end < len(ids) and trajectory.owner[end] == Owner.CONTROLLER:
        end += 1
    ends = (codec.im_end_id, codec.added_id("<|endoftext|>"))
    text = codec.decode([i for i in ids[call.start : end] if i not in ends])
    turn = parse_turn(text, _REPAIRS, thinking=codec.template.opens_thinking)
    if not turn.calls or isinstance(check_query(turn.calls[0]), Refusal):
        raise _unfit(trajectory, f"there is no call to the advisor in the turn at token {call.start}")
    site = call_site(codec, ids, call.start, text, turn.calls[0])
    if site.position != call.position:
        raise _unfit(trajectory, f"its call stands at token {site.position}, not at {call.position}")
    own = {field.name: getattr(problem, field.name) for field in dataclasses.fields(problem)}
    own["problem_id"] = f"{trajectory.trajectory_id}@{site.position}"
    return AskState(
        **own,
        token_ids=tuple(ids[: site.position]),
        base_id=problem.problem_id,
        prompt_tokens=int((trajectory.owner == Owner.PROMPT).sum()),
        lead=site.lead,
        tail=site.tail,
        nested=site.nested,
    )


def _unfit(trajectory: Trajectory, why: str) -> DataError:
    return DataError(
        f"trajectory {trajectory.trajectory_id} gives no state: {why}; collect states from rollouts of the "
        "reasoner with its own tokenizer"
    )
