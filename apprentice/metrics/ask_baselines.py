"""Endpoint baselines that need no training (Learning to Ask, 6.1 and appendix E).

SLM only is an evaluation in mode ``solo``. LLM only and LLM capped at b send the whole problem to the advisor
(:func:`llm_only`); the problem-level oracle (:func:`oracle_curve`) is computed from those two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np

from apprentice.data.problem import Problem
from apprentice.episodes.actions import AdvisorRefused, AskAdvisor
from apprentice.episodes.ask_prompts import solo_prompt
from apprentice.episodes.prompts import Instructions
from apprentice.errors import AdvisorError, InfrastructureError
from apprentice.metrics.ask import ASK_TOOL, Attempt, CostOf, charged, grouped
from apprentice.rollout.groups import verdict_tags
from apprentice.rollout.ports import AdvisorClient, Verdict
from apprentice.trajectory import CallRecord, Status, Trajectory, TrajectoryBuilder

__all__ = ["OracleCurve", "OraclePoint", "llm_only", "llm_query", "oracle_curve"]

Verify = Callable[[Problem, str], Awaitable[Verdict]]
"""Judges a response to a problem."""


def llm_query(problem: Problem, instructions: Instructions = "paper", budget: int | None = None) -> str:
    """The whole problem as one query: the reasoner's prompt without the advisor, and the limit."""
    text = "\n\n".join(message["content"] for message in solo_prompt(problem, instructions).messages)
    if budget is not None:
        text += f"\n\nYour whole reply must be shorter than {budget} tokens: it is cut off there."
    return text


async def llm_only(
    problems: Sequence[Problem],
    advisor: AdvisorClient,
    verify: Verify,
    *,
    k: int,
    max_tokens: int,
    budget: int | None = None,
    instructions: Instructions = "paper",
    concurrency: int = 64,
    on_progress: Callable[[int], None] = lambda done: None,
) -> list[Trajectory]:
    """The advisor solves every problem k times, alone. Samples differ only if the advisor is not greedy.

    Args:
        verify: judges a reply; ``problem`` says how (gold or tests).
        max_tokens: response cap of LLM only.
        budget: b of the capped baseline: stated in the prompt, and the cap instead of ``max_tokens``.
        concurrency: calls at a time.
        on_progress: told how many trajectories are done.

    Returns:
        Trajectories without tokens, one call each, of mode ``llm_only`` or ``llm_capped``: the analyses take
        them like any other. UNUSABLE where the advisor or the sandbox of its program failed, or a budget
        refused the call.
    """
    mode = "llm_only" if budget is None else "llm_capped"
    limit, done = asyncio.Semaphore(concurrency), 0

    async def one(problem: Problem, number: int) -> Trajectory:
        nonlocal done
        async with limit:
            query = llm_query(problem, instructions, budget)
            name = f"{mode}{budget or ''}:{problem.problem_id}#0/{number}.0"
            request = AskAdvisor(query, name, 0, budget or max_tokens)
            try:
                reply = await advisor.ask(request)
            except AdvisorError as error:
                return _lost(problem, name, mode, f"advisor: {error}")
            finally:
                done += 1
                on_progress(done)
            if isinstance(reply, AdvisorRefused):
                return _lost(problem, name, mode, f"advisor: refused: {reply.reason}")
            try:
                verdict = await verify(problem, reply.text)
            except InfrastructureError as error:  # says nothing of the program
                return _lost(problem, name, mode, f"verifier: {error}")
        call = CallRecord(
            ASK_TOOL,
            "advisor",
            instruction=query,
            expert_tokens=reply.completion_tokens or 0,
            query_tokens=reply.prompt_tokens,
            cost=None if reply.completion_tokens is None else reply.cost,
            seconds=reply.seconds,
            position=0,
        )
        return TrajectoryBuilder().build(
            trajectory_id=name,
            problem_id=problem.problem_id,
            group_id=problem.problem_id,
            mode=mode,
            status=Status.TRUNCATED if reply.finish_reason == "length" else Status.COMPLETE,
            calls=(call,),
            final_text=reply.text,
            answer=verdict.answer,
            reward=1.0 if verdict.correct else -1.0,
            verdict=verdict.verdict,
            tags=verdict_tags(verdict),
        )

    return list(await asyncio.gather(*(one(problem, i) for problem in problems for i in range(k))))


def _lost(problem: Problem, name: str, mode: str, reason: str) -> Trajectory:
    return TrajectoryBuilder().build(
        trajectory_id=name,
        problem_id=problem.problem_id,
        group_id=problem.problem_id,
        mode=mode,
        status=Status.UNUSABLE,
        status_reason=reason,
    )


@dataclass(frozen=True, slots=True)
class OraclePoint:
    """``routed`` problems go to the LLM: mean cost per trajectory and accuracy over all problems."""

    routed: int
    cost: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class OracleCurve:
    """From SLM only (cost 0) to every problem that gains. Problems that are left out are counted.

    ``unpaired``: only one side has the problem; ``unknown_cost``: its LLM runs have no known cost, so it is
    never routed.
    """

    points: tuple[OraclePoint, ...]
    problems: int
    unpaired: int
    unknown_cost: int


def oracle_curve(slm: Sequence[Attempt], llm: Sequence[Attempt], cost: CostOf = charged) -> OracleCurve:
    """The problem-level oracle (6.1): route where LLM Avg@k > SLM Avg@k, cheapest API cost first.

    A routed problem has the LLM's Avg@k and its mean cost (appendix E); the others the SLM's, at no cost.
    """
    small, large = grouped(slm), grouped(llm)
    shared = [name for name in small if name in large]
    unpaired = len(set(small) | set(large)) - len(shared)
    if not shared:
        return OracleCurve((), 0, unpaired, 0)
    before = {name: _accuracy(small[name]) for name in shared}
    after = {name: _accuracy(large[name]) for name in shared}
    known = {name: [c for one in large[name] if (c := cost(one)) is not None] for name in shared}
    gains = [name for name in shared if after[name] > before[name]]
    routed = sorted((name for name in gains if known[name]), key=lambda name: (np.mean(known[name]), name))
    total, spent, n = sum(before.values()), 0.0, len(shared)
    points = [OraclePoint(0, 0.0, total / n)]
    for number, name in enumerate(routed, 1):
        total += after[name] - before[name]
        spent += float(np.mean(known[name]))
        points.append(OraclePoint(number, spent / n, total / n))
    return OracleCurve(tuple(points), n, unpaired, len(gains) - len(routed))


def _accuracy(members: Sequence[Attempt]) -> float:
    return sum(one.correct for one in members) / len(members)
