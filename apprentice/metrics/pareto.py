"""The accuracy-cost Pareto front (Learning to Ask, section 6): cost is minimized, accuracy maximized."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

__all__ = ["pareto_front"]

T = TypeVar("T")


def pareto_front(points: Iterable[T], cost: Callable[[T], float], accuracy: Callable[[T], float]) -> list[T]:
    """The points that no other point beats, by rising cost.

    A point is dominated when another costs no more and is at least as accurate, and is better in one of the
    two. Of points that are equal in both the first is kept.

    Args:
        points: with finite numbers; leave out what has no known cost.
        cost, accuracy: of a point. Minimize both with ``accuracy=lambda p: -other_cost(p)``.

    Raises:
        ValueError: a cost or accuracy is NaN.
    """
    ordered = sorted(points, key=lambda point: (cost(point), -accuracy(point)))
    front: list[T] = []
    for point in ordered:
        if cost(point) != cost(point) or accuracy(point) != accuracy(point):
            raise ValueError(f"a point without a known cost or accuracy has no place on a front: {point!r}")
        if not front or accuracy(point) > accuracy(front[-1]):
            front.append(point)
    return front
