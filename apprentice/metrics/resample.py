"""Percentile bootstrap of any statistic over problems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["DEFAULT", "Interval", "Resampling", "bootstrap", "interval_text"]

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Resampling:
    """How intervals are made; equal data and settings give equal intervals.

    Raises:
        ValueError: confidence is not between 0 and 1, or there is no resample.
    """

    confidence: float = 0.95
    samples: int = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1:
            raise ValueError(f"confidence {self.confidence} must lie between 0 and 1")
        if self.samples < 1:
            raise ValueError(f"a bootstrap needs at least one resample, got {self.samples}")


DEFAULT = Resampling()
"""95 %, 2,000 resamples, seed 0."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its interval over ``n`` problems.

    ``value`` is None where the statistic does not exist (no data, a constant side of a correlation), ``low``
    and ``high`` also where it exists in too few resamples to speak of an interval. ``undefined`` counts
    resamples in which it does not exist: they are in no quantile.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int
    undefined: int = 0
    confidence: float = 0.95


def bootstrap(statistic: Callable[[Indices], float | None], n: int, how: Resampling = DEFAULT) -> Interval:
    """The statistic over all problems, and the percentile interval of its value over resampled problems.

    Problems are resampled whole, with all their trajectories: attempts at one problem are not independent.

    Args:
        statistic: of the problems with these indices (int64, with repeats); None where it does not exist.
        n: number of problems.
        how: with a value in fewer than half of the resamples there is no interval.
    """
    value = statistic(np.arange(n)) if n else None
    if value is None:
        return Interval(None, None, None, n, 0, how.confidence)
    rng = np.random.default_rng(how.seed)
    drawn = [statistic(rng.integers(0, n, n)) for _ in range(how.samples)]
    found = [x for x in drawn if x is not None]
    undefined = how.samples - len(found)
    if 2 * len(found) < how.samples or n < 2:
        return Interval(value, None, None, n, undefined, how.confidence)
    tail = (1 - how.confidence) / 2
    low, high = np.quantile(found, [tail, 1 - tail])
    return Interval(value, float(low), float(high), n, undefined, how.confidence)


def interval_text(interval: Interval, scale: float = 1.0, digits: int = 2, sign: bool = False) -> str:
    """``0.31 [0.22, 0.40]``; ``-`` where there is no value."""
    if interval.value is None:
        return "-"
    plus = "+" if sign else ""
    text = f"{scale * interval.value:{plus}.{digits}f}"
    if interval.low is None or interval.high is None:
        return f"{text} [no interval]"
    return f"{text} [{scale * interval.low:{plus}.{digits}f}, {scale * interval.high:{plus}.{digits}f}]"
