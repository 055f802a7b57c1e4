"""Trajectories with an advisor, written by hand, and a run folder that holds them."""

from __future__ import annotations

from collections.abc import Sequence

from apprentice.trajectory import CallRecord, Owner, Status, Trajectory, TrajectoryBuilder

__all__ = ["ask_call", "ask_trajectory"]

PROMPT_TOKENS = 3


def ask_call(
    cost: float | None = 61.0,
    query_tokens: int | None = 1,
    advice_tokens: int = 10,
    *,
    query: str = "What is 6 * 7?",
    position: int = PROMPT_TOKENS + 2,
    error: str = "",
) -> CallRecord:
    """A call to the advisor; the position counts the prompt's three tokens."""
    return CallRecord(
        tool="ask_advisor", model="advisor", error=error, instruction=query, start=PROMPT_TOKENS,
        expert_tokens=advice_tokens, position=position, query_tokens=query_tokens, cost=cost,
    )  # fmt: skip


def ask_trajectory(
    problem_id: str,
    number: int = 0,
    *,
    correct: bool = True,
    calls: Sequence[CallRecord] = (),
    mode: str = "ask",
    own: Sequence[int] = tuple(range(65, 75)),
    tags: dict[str, str] | None = None,
    status: Status = Status.COMPLETE,
) -> Trajectory:
    """Three prompt tokens, ten (or ``own``) that the controller wrote."""
    builder = TrajectoryBuilder()
    builder.append(list(range(PROMPT_TOKENS)), Owner.PROMPT, "prompt")
    builder.append_sampled(list(own), [-0.5] * len(own), 0)
    return builder.build(
        trajectory_id=f"0:{problem_id}#0/{number}.0",
        problem_id=problem_id,
        group_id=f"0:{problem_id}#0",
        mode=mode,
        status=status,
        calls=tuple(calls),
        final_text="Answer: 42",
        answer="42",
        reward=1.0 if correct else -1.0,
        verdict="correct" if correct else "wrong",
        tags=dict(tags or {}),
    )
