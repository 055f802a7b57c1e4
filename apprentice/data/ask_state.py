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
    sequence, up to and including its decision to ask (``[:position]`` of
    :class:`apprentice.trajectory.CallRecord`), exactly as sampled; the first ``prompt_tokens`` of them are
    the prompt.

    ``lead``, ``tail`` and ``nested`` say how a query completes the call that ``token_ids`` break off in
    (:class:`apprentice.episodes.ask_call.CallSite`).
    """

    token_ids: tuple[int, ...] = ()
    base_id: str = ""
    prompt_tokens: int = 0
    lead: str = ""
    tail: str = '"}}\n</tool_call>'
    nested: bool = False
