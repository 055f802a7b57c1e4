"""Whether and when the advisor is asked, against difficulty (Learning to Ask, sections 4 and 7, C.1, C.5).

Difficulty is standalone success (Eq. 5): the lower, the harder. A negative correlation of calling with it
means that harder problems are asked about more often.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from apprentice.metrics.ask import Attempt, CostOf, charged, grouped
from apprentice.metrics.resample import DEFAULT, Interval, Resampling, bootstrap
from apprentice.metrics.scores import spearman

__all__ = [
    "BIN_EDGES", "BeforeAfter", "Bin", "Difficulty", "RateChange", "Utility", "before_after",
    "calling_utility", "difficulty", "rate_change", "spearman_interval",
]  # fmt: skip

BIN_EDGES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Standalone success; each bin holds its lower edge, the last one both."""

Indices = npt.NDArray[np.int64]


def spearman_interval(x: Sequence[float], y: Sequence[float], how: Resampling = DEFAULT) -> Interval:
    """Spearman's rank correlation (ties at their mean rank) with a bootstrap interval over problems.

    Pairs with a NaN on either side are left out: ``n`` counts the others. None where a side is constant.

    Raises:
        ValueError: different lengths.
    """
    if len(x) != len(y):
        raise ValueError(f"{len(x)} against {len(y)} values")
    pairs = [(a, b) for a, b in zip(x, y, strict=True) if not (math.isnan(a) or math.isnan(b))]
    first, second = np.asarray([a for a, _ in pairs]), np.asarray([b for _, b in pairs])

    def rho(chosen: Indices) -> float | None:
        return spearman(first[chosen].tolist(), second[chosen].tolist())

    return bootstrap(rho, len(pairs), how)


@dataclass(frozen=True, slots=True)
class Bin:
    """Problems whose standalone success lies in ``[low, high)``, and means over them; None without any."""

    low: float
    high: float
    problems: int
    call_rate: float | None
    position: float | None
    accuracy: float | None


@dataclass(frozen=True, slots=True)
class Difficulty:
    """Spearman correlations of per-problem standalone success with call rate and mean call position.

    ``without_solo`` counts problems that are left out because nobody estimated their standalone success.
    ``points`` are (standalone success, call rate) of each problem.
    """

    call: Interval
    position: Interval
    bins: tuple[Bin, ...]
    points: tuple[tuple[float, float], ...]
    without_solo: int


def difficulty(found: Sequence[Attempt], solo: Mapping[str, float], how: Resampling = DEFAULT) -> Difficulty:
    """Call rate (Figures 2, 5b) and call position (Figure 6) against standalone success.

    Args:
        found: attempts of one evaluation.
        solo: problem id -> standalone success of Eq. 5.
    """
    groups = grouped(found)
    shared = [problem for problem in groups if problem in solo]
    p = [solo[problem] for problem in shared]
    rate = [float(np.mean([one.called for one in groups[problem]])) for problem in shared]
    position = [
        _mean([one.position for one in groups[problem] if one.position is not None]) for problem in shared
    ]
    right = [float(np.mean([one.correct for one in groups[problem]])) for problem in shared]
    bins = []
    for low, high in _edges():
        inside = [i for i, value in enumerate(p) if _in(value, low, high)]
        asked = [position[i] for i in inside if not math.isnan(position[i])]
        bins.append(
            Bin(
                low,
                high,
                len(inside),
                _mean_or_none([rate[i] for i in inside]),
                _mean_or_none(asked),
                _mean_or_none([right[i] for i in inside]),
            )
        )
    return Difficulty(
        call=spearman_interval(p, rate, how),
        position=spearman_interval(p, position, how),
        bins=tuple(bins),
        points=tuple(zip(p, rate, strict=True)),
        without_solo=len(groups) - len(shared),
    )


@dataclass(frozen=True, slots=True)
class Utility:
    """Calling utility (section 4, Figure 2c) over the trajectories that called.

    ``with_call`` is their accuracy, ``alone`` that of the matched runs without the advisor: each calling
    trajectory is matched with its own problem's standalone success. ``gain`` is the difference.
    """

    with_call: float | None
    alone: float | None
    gain: Interval
    problems: int
    trajectories: int
    without_solo: int


def calling_utility(
    found: Sequence[Attempt], solo: Mapping[str, float], how: Resampling = DEFAULT
) -> Utility:
    """Accuracy where the advisor was asked, less the standalone accuracy on the same problems.

    The interval resamples problems with all their calling trajectories. ``without_solo`` counts calling
    trajectories of problems whose standalone success is not known; they are left out.
    """
    callers = grouped(one for one in found if one.called)
    shared = [problem for problem in callers if problem in solo]
    counts = np.asarray([len(callers[problem]) for problem in shared], np.float64)
    right = np.asarray([sum(one.correct for one in callers[problem]) for problem in shared], np.float64)
    alone = np.asarray([solo[problem] for problem in shared], np.float64) * counts

    def gain(chosen: Indices) -> float | None:
        return float((right[chosen] - alone[chosen]).sum() / counts[chosen].sum())

    total = float(counts.sum())
    return Utility(
        with_call=float(right.sum()) / total if shared else None,
        alone=float(alone.sum()) / total if shared else None,
        gain=bootstrap(gain, len(shared), how),
        problems=len(shared),
        trajectories=int(total),
        without_solo=sum(len(members) for problem, members in callers.items() if problem not in solo),
    )


@dataclass(frozen=True, slots=True)
class RateChange:
    """Relative change of the call rate in one bin of standalone success (Figure 10): ``after / before - 1``.

    None where nothing was asked before.
    """

    low: float
    high: float
    before: float | None
    after: float | None
    relative: Interval


def rate_change(
    before: Sequence[Attempt],
    after: Sequence[Attempt],
    solo: Mapping[str, float],
    how: Resampling = DEFAULT,
) -> tuple[RateChange, ...]:
    """How a training stage changed the call rate, by standalone success, over the problems of both."""
    first, second = _per_problem(before, _called), _per_problem(after, _called)
    shared = [problem for problem in first if problem in second and problem in solo]
    out = []
    for low, high in _edges():
        inside = [problem for problem in shared if _in(solo[problem], low, high)]
        a, b = np.asarray([first[p] for p in inside]), np.asarray([second[p] for p in inside])

        def relative(
            chosen: Indices, a: npt.NDArray[np.float64] = a, b: npt.NDArray[np.float64] = b
        ) -> float | None:
            base = float(a[chosen].mean())
            return float(b[chosen].mean()) / base - 1 if base > 0 else None

        out.append(
            RateChange(
                low,
                high,
                float(a.mean()) if inside else None,
                float(b.mean()) if inside else None,
                bootstrap(relative, len(inside), how),
            )
        )
    return tuple(out)


@dataclass(frozen=True, slots=True)
class BeforeAfter:
    """One number before and after a stage over the problems that both have, and its paired difference."""

    name: str
    before: Interval
    after: Interval
    difference: Interval


def before_after(
    before: Sequence[Attempt],
    after: Sequence[Attempt],
    cost: CostOf = charged,
    how: Resampling = DEFAULT,
) -> tuple[BeforeAfter, ...]:
    """Accuracy, call rate and cost before and after a stage (Figure 9), paired by problem."""
    names: dict[str, Callable[[Attempt], float | None]] = {
        "accuracy": lambda one: float(one.correct),
        "call rate": _called,
        "cost": cost,
    }
    out = []
    for name, value in names.items():
        first, second = _per_problem(before, value), _per_problem(after, value)
        shared = [problem for problem in first if problem in second]
        a, b = np.asarray([first[p] for p in shared]), np.asarray([second[p] for p in shared])
        columns = [
            bootstrap(
                lambda chosen, v=values: float(v[chosen].mean()),  # type: ignore[misc]
                len(shared),
                how,
            )
            for values in (a, b, b - a)
        ]
        out.append(BeforeAfter(name, *columns))
    return tuple(out)


def _called(one: Attempt) -> float:
    return float(one.called)


def _per_problem(found: Sequence[Attempt], value: Callable[[Attempt], float | None]) -> dict[str, float]:
    """Mean of what is known, by problem; a problem of which nothing is known is left out."""
    out = {}
    for problem, members in grouped(found).items():
        known = [x for one in members if (x := value(one)) is not None]
        if known:
            out[problem] = float(np.mean(known))
    return out


def _edges() -> list[tuple[float, float]]:
    return list(itertools.pairwise(BIN_EDGES))


def _in(value: float, low: float, high: float) -> bool:
    return low <= value < high or value == high == BIN_EDGES[-1]


def _mean(values: Sequence[int]) -> float:
    return float(np.mean(values)) if values else math.nan


def _mean_or_none(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
