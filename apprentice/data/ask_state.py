"""A reasoning state just before a call to the advisor: what Qmaker is trained on (Learning to Ask, 5.2)."""

from __future__ import annotations

from dataclasses import dataclass

from apprentice.data.problem import Problem

__all__ = ["AskState"]


@dataclass(frozen=True, slots=True)
class AskState(Problem):
    """h_tau = (x, r_1 .. r_tau): a problem, and how far the reasoner had come when it decided to ask.

    A problem to whoever counts, groups and verifies (``answer`` is the gold of the whole problem).
    ``problem_id`` names the state, ``base_id`` the problem it belongs to. ``token_ids`` are the reasoner's
    sequence, prompt included, up to and including its decision to ask (``[:position]`` of
    :class:`apprentice.trajectory.CallRecord`), exactly as sampled.
    """

    token_ids: tuple[int, ...] = ()
    base_id: str = ""
