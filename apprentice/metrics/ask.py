"""What trajectories with an advisor say: accuracy, cost and call rate (Learning to Ask, 6.1, C.3, C.4).

Everything here is computed from stored trajectories; nothing is generated anew. A cost that is not known is
left out and counted, never taken as 0. Intervals are over problems.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from apprentice.metrics.resample import DEFAULT, Interval, Resampling, bootstrap
from apprentice.metrics.scores import mean_at_k
from apprentice.objectives.ask import api_cost
from apprentice.trajectory import CallRecord, Owner, Status, Trajectory

__all__ = [
    "ASK_TOOL", "C_OUT_SWEEP", "Attempt", "CostOf", "Summary", "attempt", "attempts", "calls_cost", "charged",
    "grouped", "mean_cost", "mean_over_problems", "priced", "share_over_problems", "summarize_attempts",
    "sweep",
]  # fmt: skip

ASK_TOOL = "ask_advisor"
C_OUT_SWEEP = (1.0, 2.0, 4.0, 6.0, 8.0, 16.0)
"""Prices of an output token in appendix C.3, at c_in = 1."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One trajectory, as the analyses see it.

    ``sent`` are the calls that reached the advisor, ``refused`` counts those that the protocol or a budget
    refused. ``position`` is the number of generated tokens (prompt excluded) up to and including the decision
    to ask, of the first call; None without one.
    """

    trajectory_id: str
    problem_id: str
    correct: bool
    sent: tuple[CallRecord, ...]
    refused: int
    position: int | None

    @property
    def called(self) -> bool:
        """1[tau is not empty]: whether the advisor was asked."""
        return bool(self.sent)


CostOf = Callable[[Attempt], float | None]
"""Cost of an attempt, None when it is not known."""


def attempt(trajectory: Trajectory) -> Attempt:
    """The facts of one trajectory."""
    asks = [call for call in trajectory.calls if call.tool == ASK_TOOL]
    sent = tuple(call for call in asks if not call.error)
    position = None
    if sent and sent[0].position >= 0:
        before = trajectory.owner[: sent[0].position]
        position = int((before != int(Owner.PROMPT)).sum())
    return Attempt(
        trajectory_id=trajectory.trajectory_id,
        problem_id=trajectory.problem_id,
        correct=trajectory.verdict == "correct",
        sent=sent,
        refused=len(asks) - len(sent),
        position=position,
    )


def attempts(trajectories: Iterable[Trajectory]) -> list[Attempt]:
    """The facts of every trajectory that can be scored: not of those that infrastructure lost."""
    return [attempt(t) for t in trajectories if t.status is not Status.UNUSABLE]


def grouped(found: Iterable[Attempt]) -> dict[str, list[Attempt]]:
    """Attempts by problem, in order of first appearance."""
    groups: dict[str, list[Attempt]] = {}
    for one in found:
        groups.setdefault(one.problem_id, []).append(one)
    return groups


# ---------------------------------------------------------------------- cost of an attempt


def charged(one: Attempt) -> float | None:
    """What the ledger charged for all calls of the attempt, retries included."""
    return _total(call.cost for call in one.sent)


def priced(c_out: float, c_in: float = 1.0) -> CostOf:
    """Eq. 4 at other prices, from the stored token counts. Tokens of retries are not stored."""

    def cost(one: Attempt) -> float | None:
        # Usage that the provider did not report has no cost either, while its token count reads 0.
        return _total(
            None if call.cost is None else api_cost(True, call.query_tokens, call.expert_tokens, c_in, c_out)
            for call in one.sent
        )

    return cost


def calls_cost(one: Attempt) -> float | None:
    """Cost by calls: every call costs 1 (appendix C.4)."""
    return float(len(one.sent))


def _total(costs: Iterable[float | None]) -> float | None:
    total = 0.0
    for cost in costs:
        if cost is None:
            return None
        total += cost
    return total


# ---------------------------------------------------------------------- means over problems


def share_over_problems(flags: Sequence[Sequence[bool]], how: Resampling = DEFAULT) -> Interval:
    """Mean over problems of the share of true flags; Mean@k where all problems have k attempts."""
    if not flags:
        return Interval(None, None, None, 0, 0, how.confidence)
    if len({len(row) for row in flags}) == 1:
        score = mean_at_k(flags, how.confidence, how.samples, how.seed)
        return Interval(score.value, score.low, score.high, score.problems, 0, how.confidence)
    return mean_over_problems([[float(flag) for flag in row] for row in flags], how)


def mean_over_problems(values: Sequence[Sequence[float]], how: Resampling = DEFAULT) -> Interval:
    """Mean over problems of the mean of each; problems without a value are left out."""
    means = np.asarray([np.mean(row) for row in values if len(row)], np.float64)

    def mean(chosen: np.ndarray[tuple[int], np.dtype[np.int64]]) -> float | None:
        return float(means[chosen].mean())

    return bootstrap(mean, len(means), how)


def mean_cost(
    found: Sequence[Attempt], cost: CostOf = charged, how: Resampling = DEFAULT
) -> tuple[Interval, int]:
    """Cost per trajectory, mean over problems, and how many trajectories have no known cost."""
    rows = [[cost(one) for one in members] for members in grouped(found).values()]
    mean = mean_over_problems([[c for c in row if c is not None] for row in rows], how)
    return mean, sum(c is None for row in rows for c in row)


@dataclass(frozen=True, slots=True)
class Summary:
    """One evaluation in numbers; all but the counts are means over problems.

    ``k`` is the number of attempts a problem, as text where it varies. ``cost`` is a trajectory's;
    ``unknown_costs`` counts the trajectories left out of it. ``query_tokens`` and ``advice_tokens`` are means
    of the calls whose usage is known.
    """

    problems: int
    k: str
    trajectories: int
    accuracy: Interval
    cost: Interval
    unknown_costs: int
    call_rate: Interval
    calls: int
    refused: int
    query_tokens: float | None
    advice_tokens: float | None


def summarize_attempts(
    found: Sequence[Attempt], cost: CostOf = charged, how: Resampling = DEFAULT
) -> Summary:
    """Avg@k, cost per trajectory and call rate (section 6.1), each with its interval over problems."""
    groups = grouped(found)
    mean, unknown = mean_cost(found, cost, how)
    counts = sorted({len(members) for members in groups.values()})
    calls = [call for one in found for call in one.sent]
    known = [call for call in calls if call.cost is not None and call.query_tokens is not None]
    return Summary(
        problems=len(groups),
        k="-".join(str(n) for n in (counts[:1] + counts[-1:] if len(counts) > 1 else counts)),
        trajectories=len(found),
        accuracy=share_over_problems([[one.correct for one in m] for m in groups.values()], how),
        cost=mean,
        unknown_costs=unknown,
        call_rate=share_over_problems([[one.called for one in m] for m in groups.values()], how),
        calls=len(calls),
        refused=sum(one.refused for one in found),
        query_tokens=_mean([call.query_tokens or 0 for call in known]),
        advice_tokens=_mean([call.expert_tokens for call in known]),
    )


def _mean(values: Sequence[int]) -> float | None:
    return float(np.mean(values)) if values else None


def sweep(
    found: Sequence[Attempt],
    c_outs: Sequence[float] = C_OUT_SWEEP,
    c_in: float = 1.0,
    how: Resampling = DEFAULT,
) -> dict[str, tuple[Interval, int]]:
    """Cost per trajectory under each price of an output token (C.3), and by calls (C.4).

    Returns:
        ``c_out=6`` ... and ``calls`` -> the mean cost and the number of trajectories whose cost is not known.
    """
    bases: dict[str, CostOf] = {f"c_out={c:g}": priced(c, c_in) for c in c_outs} | {"calls": calls_cost}
    return {name: mean_cost(found, cost, how) for name, cost in bases.items()}
