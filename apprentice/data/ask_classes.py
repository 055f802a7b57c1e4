"""Which training problems stage 1 learns from, and which select its checkpoints (Learning to Ask)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from apprentice.data.problem import Problem
from apprentice.errors import DataError

__all__ = ["balance_classes", "train_validation_split"]

P = TypeVar("P", bound=Problem)


def balance_classes(problems: Sequence[P], needs: Sequence[bool], seed: int) -> list[P]:
    """As many problems that need the advisor as problems that do not (section 6.1).

    The larger class is sampled down, by ``seed`` and the problems' order alone; what is kept stays in order.

    Args:
        problems: the training problems.
        needs: n(x) of Eq. 6, one a problem.

    Raises:
        DataError: one class is empty: then nothing can be learned about when to ask.
        ValueError: lengths differ.
    """
    if len(problems) != len(needs):
        raise ValueError(f"{len(needs)} consultation targets for {len(problems)} problems")
    classes: tuple[list[int], list[int]] = ([], [])
    for index, need in enumerate(needs):
        classes[bool(need)].append(index)
    size = min(map(len, classes))
    if size == 0:
        which = "no problem needs" if not classes[True] else "every problem needs"
        raise DataError(
            f"{which} the advisor ({len(classes[True])} of {len(problems)} by ask.solo.gamma), so stage 1 "
            "has nothing to tell apart: change ask.solo.gamma, or take training problems of mixed difficulty"
        )
    rng = random.Random(f"balance {seed}")
    kept = {index for members in classes for index in rng.sample(members, size)}
    return [problem for index, problem in enumerate(problems) if index in kept]


def train_validation_split(problems: Sequence[P], share: float, seed: int) -> tuple[list[P], list[P]]:
    """A held-out part of the training set, which selects the checkpoint of each stage (appendix D.2).

    Args:
        problems: the training set. Split before stages draw states from it: states of one problem must not
            stand on both sides.
        share: of the validation problems, in (0, 1); at least one problem is left on either side.
        seed: the same problems and seed give the same split.

    Returns:
        (training, validation), both in the order of ``problems``.

    Raises:
        DataError: fewer than two problems.
        ValueError: share is not between 0 and 1.
    """
    if not 0 < share < 1:
        raise ValueError(f"the validation share must lie between 0 and 1, got {share}")
    total = len(problems)
    if total < 2:
        raise DataError(f"{total} training problems cannot be split into training and validation problems")
    size = min(total - 1, max(1, round(share * total)))
    held = set(random.Random(f"validation {seed}").sample(range(total), size))
    return (
        [problem for index, problem in enumerate(problems) if index not in held],
        [problem for index, problem in enumerate(problems) if index in held],
    )
