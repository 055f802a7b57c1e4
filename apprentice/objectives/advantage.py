"""Group-relative advantage (RIVET, section 3.3, Eq. 2). NumPy only, so the driver needs no torch."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["group_relative_advantages", "normalize_group", "zero_signal_share"]


def normalize_group(rewards: npt.ArrayLike, epsilon: float) -> npt.NDArray[np.float64]:
    """``(R - mean) / (std + epsilon)`` within one group (Eq. 2).

    ``std`` is the *population* standard deviation (ddof 0): the paper does not say which, and with it the
    advantages of a group have mean square 1 whatever the group's size. A group whose rewards are all equal
    (a group of one included) gets exactly zero.

    This is the one place that normalises. A reward per *segment* of a trajectory (before and after a call)
    is normalised by calling it once a segment kind; the learner takes advantages per token already.

    Args:
        rewards: shape ``[G]``, finite.
        epsilon: the stabilizer epsilon_A, > 0.

    Returns:
        Shape ``[G]``, float64.

    Raises:
        ValueError: ``rewards`` is not a non-empty finite vector, or epsilon is not positive.
    """
    values = np.asarray(rewards, np.float64)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"rewards of one group must be a non-empty vector, got shape {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError(f"rewards must be finite, got {values.tolist()}; an unusable rollout has no reward")
    if not epsilon > 0:
        raise ValueError(f"epsilon_A must be positive, got {epsilon}")
    if (values == values[0]).all():  # the rounding of the mean must not leave a spurious signal
        return np.zeros_like(values)
    advantages: npt.NDArray[np.float64] = (values - values.mean()) / (values.std(ddof=0) + epsilon)
    return advantages


def group_relative_advantages(
    rewards: Sequence[float], group_ids: Sequence[Hashable], epsilon: float = 1e-6
) -> npt.NDArray[np.float32]:
    """Eq. 2 over a batch of trajectories in any order.

    Groups are formed by ``group_ids``, one id per *instance* of a prompt in the batch: the same text sampled
    twice makes two groups, and reordering a batch never moves a sample to another group.

    Args:
        rewards: length ``B``.
        group_ids: length ``B``.
        epsilon: the stabilizer epsilon_A.

    Returns:
        Shape ``[B]``, float32; to be broadcast over the trained tokens of each trajectory.

    Raises:
        ValueError: lengths differ, or a reward is not finite.
    """
    if len(rewards) != len(group_ids):
        raise ValueError(f"{len(rewards)} rewards for {len(group_ids)} group ids")
    values = np.asarray(rewards, np.float64)
    out = np.zeros(len(rewards), np.float32)
    for members in _members(group_ids):
        out[members] = normalize_group(values[members], epsilon)
    return out


def zero_signal_share(rewards: Sequence[float], group_ids: Sequence[Hashable]) -> float:
    """Share of groups whose rewards are all equal: they carry no gradient. NaN when there is no group."""
    values = np.asarray(rewards, np.float64)
    groups = _members(group_ids)
    if not groups:
        return float("nan")
    return sum(bool((values[m] == values[m[0]]).all()) for m in groups) / len(groups)


def _members(group_ids: Sequence[Hashable]) -> list[list[int]]:
    groups: dict[Hashable, list[int]] = {}
    for index, group in enumerate(group_ids):
        groups.setdefault(group, []).append(index)
    return list(groups.values())
