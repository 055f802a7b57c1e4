"""Scores over a problem set, with intervals. Pure functions; training and evaluation share them.

``correct`` is always P problems x K samples of 0/1. Intervals are over *problems*: samples of one problem are
not independent, so more samples a problem never make up for few problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

__all__ = [
    "Score", "avg_at_n", "internalization_rate", "mean_at_k", "paired_difference", "pass_at_k",
    "pass_chance", "retention_rate", "solved", "spearman", "wilson_interval",
]  # fmt: skip

_CHUNK = 4_000_000  # numbers drawn at one time: 32 MB

Correct = Sequence[Sequence[bool | int | float]] | npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Score:
    """A value in [0, 1] (or a difference in [-1, 1]) with its interval; ``method`` says how it was made."""

    value: float
    low: float
    high: float
    problems: int
    samples: int
    confidence: float
    method: str


def mean_at_k(
    correct: Correct, confidence: float = 0.95, bootstrap_samples: int = 10_000, seed: int = 0
) -> Score:
    """Mean@k: the mean over problems of the share of right samples (RIVET section 4.1; also called avg@k).

    Percentile bootstrap over problems; Wilson's interval where each problem is plainly solved or not (k = 1,
    or all shares 0, or all 1), since resampling equal problems would give an interval of width 0.

    Args:
        correct: P x K of 0/1.
        confidence: of the interval, in (0, 1).
        bootstrap_samples: resamples.
        seed: the same input and seed give the same interval.

    Raises:
        ValueError: no problems, or problems with different numbers of samples.
    """
    array = _matrix(correct)
    shares = array.mean(axis=1)
    value = float(shares.mean())
    n, k = array.shape
    if k == 1 or value in (0.0, 1.0):
        low, high = wilson_interval(float(shares.sum()), n, confidence)
        return Score(value, low, high, n, k, confidence, "wilson")
    low, high = _bootstrap(shares, confidence, bootstrap_samples, seed)
    return Score(value, low, high, n, k, confidence, "bootstrap over problems")


def avg_at_n(correct: Sequence[bool | int | float]) -> float:
    """avg@n of one problem: the share of right samples.

    Raises:
        ValueError: no samples.
    """
    if len(correct) == 0:
        raise ValueError("avg@n needs at least one sample")
    return float(np.mean(np.asarray(correct, np.float64)))


def pass_chance(samples: int, correct: int, k: int) -> float:
    """Unbiased estimate of pass@k of one problem: ``1 - C(n - c, k) / C(n, k)`` for c right samples of n.

    Raises:
        ValueError: k is not in 1..n.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} needs at least {k} samples a problem (and k >= 1); there are {samples}")
    return 1 - comb(samples - correct, k) / comb(samples, k)


def pass_at_k(
    correct: Correct, k: int, confidence: float = 0.95, bootstrap_samples: int = 10_000, seed: int = 0
) -> Score:
    """pass@k, unbiased: mean over problems of ``1 - C(n - c, k) / C(n, k)`` for c right samples of n.

    Raises:
        ValueError: k is not in 1..n: with n samples a problem, pass@k for larger k cannot be estimated.
    """
    array = _matrix(correct)
    problems, n = array.shape
    chances = np.asarray([pass_chance(n, int(c), k) for c in array.sum(axis=1)])
    value = float(chances.mean())
    if k == n == 1 or value in (0.0, 1.0):
        low, high = wilson_interval(float(chances.sum()), problems, confidence)
        return Score(value, low, high, problems, n, confidence, "wilson")
    low, high = _bootstrap(chances, confidence, bootstrap_samples, seed)
    return Score(value, low, high, problems, n, confidence, "bootstrap over problems")


def paired_difference(
    first: Correct, second: Correct, confidence: float = 0.95, bootstrap_samples: int = 10_000, seed: int = 0
) -> Score:
    """Mean@k of ``second`` minus that of ``first`` over the same problems in the same order; K may differ.

    Raises:
        ValueError: different numbers of problems.
    """
    a, b = _matrix(first), _matrix(second)
    if len(a) != len(b):
        raise ValueError(f"paired scores need the same problems; there are {len(a)} and {len(b)}")
    differences = b.mean(axis=1) - a.mean(axis=1)
    low, high = _bootstrap(differences, confidence, bootstrap_samples, seed)
    return Score(
        float(differences.mean()), low, high, len(a), b.shape[1], confidence, "paired bootstrap over problems"
    )


def wilson_interval(successes: float, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a share.

    Raises:
        ValueError: n < 1, successes outside 0..n, or confidence outside (0, 1).
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n} is not a share")
    z = _normal_quantile(confidence)
    share = successes / n
    centre = share + z * z / (2 * n)
    spread = z * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    low = 0.0 if successes == 0 else max(0.0, float((centre - spread) / scale))
    return low, 1.0 if successes == n else min(1.0, float((centre + spread) / scale))


def solved(correct: Correct, threshold: float = 0.5) -> npt.NDArray[np.bool_]:
    """Per problem: whether at least ``threshold`` of its samples are right. Shape [P]."""
    return np.asarray(_matrix(correct).mean(axis=1) >= threshold)


def retention_rate(alone_before: Sequence[bool], after: Sequence[bool]) -> float | None:
    """Share of the cases solved without experts before Stage II that stay solved (RIVET Table 6).

    A case is one problem (see :func:`solved`); ``None`` when no case was solved before.
    """
    before, later = _cases(alone_before, after)
    return float(later[before].mean()) if before.any() else None


def internalization_rate(
    with_experts: Sequence[bool], alone_before: Sequence[bool], after: Sequence[bool]
) -> float | None:
    """Share solved by Stage II of the cases that Stage I solves only with experts (RIVET Table 6).

    ``None`` when there is no such case.
    """
    helped, alone, later = _cases(with_experts, alone_before, after)
    rescued = helped & ~alone
    return float(later[rescued].mean()) if rescued.any() else None


def spearman(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Spearman's rank correlation, ties at their mean rank; ``None`` if a side is constant or n < 2.

    Raises:
        ValueError: different lengths.
    """
    if len(x) != len(y):
        raise ValueError(f"{len(x)} against {len(y)} values")
    if len(x) < 2:
        return None
    a, b = _ranks(np.asarray(x, np.float64)), _ranks(np.asarray(y, np.float64))
    if a.std() == 0 or b.std() == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse], np.float64)


def _bootstrap(
    values: npt.NDArray[np.float64], confidence: float, samples: int, seed: int
) -> tuple[float, float]:
    """Percentile interval of the mean of ``values`` [P] under resampling of problems."""
    _normal_quantile(confidence)
    n = len(values)
    rng = np.random.default_rng(seed)
    means = np.empty(samples)
    step = max(1, _CHUNK // n)
    for start in range(0, samples, step):
        stop = min(samples, start + step)
        means[start:stop] = values[rng.integers(0, n, size=(stop - start, n))].mean(axis=1)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def _normal_quantile(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence} must lie between 0 and 1")
    return NormalDist().inv_cdf((1 + confidence) / 2)


def _matrix(correct: Correct) -> npt.NDArray[np.float64]:
    lengths = {len(row) for row in correct}
    if not lengths or 0 in lengths:
        raise ValueError("a score needs at least one problem, and every problem at least one sample")
    if len(lengths) > 1:
        raise ValueError(f"problems have different numbers of samples: {sorted(lengths)}")
    array = np.asarray(correct, np.float64)
    if not np.isin(array, (0.0, 1.0)).all():
        raise ValueError("samples must be right (1) or wrong (0)")
    return array


def _cases(*columns: Sequence[bool]) -> list[npt.NDArray[np.bool_]]:
    arrays = [np.asarray(column, np.bool_) for column in columns]
    if len({len(a) for a in arrays}) > 1:
        raise ValueError(f"the same cases are needed on every side; got {[len(a) for a in arrays]}")
    return arrays
