"""From the trajectories of a stage of Learning to Ask to rewards and advantages (section 5).

Pure: the equations are in :mod:`apprentice.objectives.ask`, the facts in the trajectories.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from apprentice.objectives.ask import (
    consultation_reward,
    integration_rewards,
    qmaker_reward,
    safe_query,
    segment_advantages,
)
from apprentice.trajectory import CallRecord, Trajectory

__all__ = [
    "ASK_TOOL",
    "QmakerParts",
    "asked",
    "consultation_rewards",
    "first_ask",
    "integration_advantages",
    "is_correct",
    "qmaker_parts",
    "qmaker_rewards",
    "reply_tokens",
]

ASK_TOOL = "ask_advisor"


def first_ask(trajectory: Trajectory) -> CallRecord | None:
    """The first call that reached the advisor (in mode ``ask_stop``: that would have); None without one.

    Refused calls are none: tau of Eq. 7 is an invocation.
    """
    return next((call for call in trajectory.calls if call.tool == ASK_TOOL and not call.error), None)


def asked(trajectory: Trajectory) -> bool:
    """``1[tau != none]`` of Eqs. 4 and 7."""
    return first_ask(trajectory) is not None


def is_correct(trajectory: Trajectory) -> bool:
    """R_task of a scored trajectory: rewards are +1 and -1 there, 1 and 0 in the paper's equations.

    Raises:
        ValueError: it was not scored.
    """
    if trajectory.reward is None:
        raise ValueError(f"trajectory {trajectory.trajectory_id} has no reward: it was not verified")
    return trajectory.reward > 0


def consultation_rewards(
    trajectories: Sequence[Trajectory], needs: Mapping[str, bool]
) -> npt.NDArray[np.float64]:
    """R_C (Eq. 7) of every trajectory. ``needs``: problem id -> n(x). Shape ``[B]``."""
    return np.array([consultation_reward(needs[t.problem_id], asked(t)) for t in trajectories], np.float64)


class QmakerParts:
    """The factors of R_Q (Eqs. 9 and 12) over a batch: arrays of shape ``[B]``.

    ``feasible`` is ``1[|z| < b]``, and 0 for an answer that was cut; NaN where there was no answer to
    measure or its usage is unknown.
    """

    def __init__(self, trajectories: Sequence[Trajectory], secrets: Mapping[str, Sequence[str]]) -> None:
        self.complete = np.array([t.tags.get("complete") == "1" for t in trajectories], np.float64)
        self.correct = np.array([is_correct(t) for t in trajectories], np.float64)
        self.safe = np.array(
            [safe_query(t.tags.get("query", ""), secrets.get(t.problem_id, ())) for t in trajectories],
            np.float64,
        )
        self.feasible = np.array([_feasible(t) for t in trajectories], np.float64)


def _feasible(trajectory: Trajectory) -> float:
    tokens = reply_tokens(trajectory)
    return math.nan if tokens is None else float(tokens < int(trajectory.tags["budget"]))


def reply_tokens(trajectory: Trajectory) -> int | None:
    """|z| of an episode of Qmaker, for the comparison with b; None: not known, or there was no reply."""
    if trajectory.tags.get("advice_finish") == "length":
        # Cut, by b or by a lower limit of the provider's own: what is missing did not fit.
        return int(trajectory.tags["budget"])
    text = trajectory.tags.get("advice_tokens", "")
    return int(text) if text else None


def qmaker_parts(
    trajectories: Sequence[Trajectory], secrets: Mapping[str, Sequence[str]] | None = None
) -> QmakerParts:
    """The factors of R_Q. ``secrets``: problem id -> its sensitive spans; none for a problem not named."""
    return QmakerParts(trajectories, secrets or {})


def qmaker_rewards(
    trajectories: Sequence[Trajectory], secrets: Mapping[str, Sequence[str]] | None = None
) -> npt.NDArray[np.float64]:
    """R_Q of every trajectory: Eq. 9, and with ``secrets`` Eq. 12. Shape ``[B]``.

    A trajectory whose reward hangs on a usage that the provider did not report gets NaN: leave its group out.
    """
    parts = qmaker_parts(trajectories, secrets)
    out = []
    for i, trajectory in enumerate(trajectories):
        reward = qmaker_reward(
            bool(parts.complete[i]),
            reply_tokens(trajectory),
            int(trajectory.tags["budget"]),
            bool(parts.correct[i]),
            safe=bool(parts.safe[i]),
        )
        out.append(math.nan if reward is None else reward)
    return np.array(out, np.float64)


def integration_advantages(
    trajectories: Sequence[Trajectory], needs: Mapping[str, bool], lambda_task: float, epsilon: float
) -> list[npt.NDArray[np.float32]]:
    """Advantages of Stage 3 (Eq. 10), one array ``[T]`` a trajectory, in the order given.

    Args:
        trajectories: of mode ``ask_qmaker``, whole groups in any order.
        needs: problem id -> n(x).
        lambda_task: weight of the task reward before the call.
        epsilon: the stabilizer of the advantage.
    """
    groups: dict[str, list[int]] = defaultdict(list)
    for index, trajectory in enumerate(trajectories):
        groups[trajectory.group_id].append(index)
    out: list[npt.NDArray[np.float32]] = [np.empty(0, np.float32)] * len(trajectories)
    for members in groups.values():
        calls = [first_ask(trajectories[i]) for i in members]
        rewards = [
            integration_rewards(
                needs[trajectories[i].problem_id],
                call is not None,
                is_correct(trajectories[i]),
                lambda_task,
            )
            for i, call in zip(members, calls, strict=True)
        ]
        positions = [None if call is None else call.position for call in calls]
        lengths = [len(trajectories[i]) for i in members]
        for i, advantages in zip(
            members, segment_advantages(rewards, positions, lengths, epsilon), strict=True
        ):
            out[i] = advantages
    return out
