"""The order in which training visits its problems: every problem once an epoch, resumable to the item."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from apprentice.data.problem import Problem
from apprentice.errors import DataError

__all__ = ["ProblemStream"]


class ProblemStream:
    """An endless, seeded stream over a problem set.

    Epoch ``e`` is a permutation drawn from ``(seed, e)`` alone, and ``position`` counts the problems taken so
    far, so that a resumed run continues with exactly the problems an unbroken one would have seen.

    Args:
        problems: the training set, at least one problem.
        seed: of the run.
        position: problems already taken; 0 for a new run.
    """

    def __init__(self, problems: Sequence[Problem], seed: int, position: int = 0) -> None:
        if not problems:
            raise DataError("the training set is empty: check data.train and its size")
        self._problems = list(problems)
        self._seed = seed
        self._epoch, self._order = -1, np.empty(0, np.int64)
        self.position = position

    def take(self, count: int) -> list[Problem]:
        """The next ``count`` problems. A problem repeats within one batch only if the set is smaller."""
        taken = []
        size = len(self._problems)
        for _ in range(count):
            epoch, index = divmod(self.position, size)
            if epoch != self._epoch:
                self._order = np.random.default_rng([self._seed, epoch]).permutation(size)
                self._epoch = epoch
            taken.append(self._problems[int(self._order[index])])
            self.position += 1
        return taken
