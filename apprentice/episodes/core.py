"""What every episode shares: tokens, the budget, the end. Knows no protocol."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NoReturn

from apprentice.data.problem import Problem
from apprentice.episodes.actions import Action, Event, Finish, Generate, Generated
from apprentice.episodes.responses import Fitted
from apprentice.tokens import ChatCodec
from apprentice.trajectory import CallRecord, Owner, Status, Trajectory, TrajectoryBuilder

__all__ = ["ANSWER_RESERVE", "CUT_RESPONSES", "TRUNCATED_LENGTH", "EpisodeCore", "EpisodeSpec"]

ANSWER_RESERVE = 64
"""Tokens that a shortened response leaves for the answer (at most a quarter of what is left)."""

CUT_RESPONSES = "cut_responses"
"""Tag: how many tool responses were shortened to fit the token budget."""

TRUNCATED_LENGTH = "truncated_length"
"""Status reason of an episode that ran out of tokens."""


@dataclasses.dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """What names an episode and bounds it.

    ``max_rollout_tokens`` counts every token after the prompt, whoever wrote it (Table 9: 8k).
    """

    mode: str
    problem: Problem
    trajectory_id: str
    group_id: str
    max_rollout_tokens: int
    seed: int = 0
    tags: dict[str, str] = dataclasses.field(default_factory=dict)


class EpisodeCore:
    """Builder, budget and life cycle of one episode."""

    def __init__(self, codec: ChatCodec, spec: EpisodeSpec, prompt_ids: Sequence[int]) -> None:
        self._codec = codec
        self._spec = spec
        self._builder = TrajectoryBuilder()
        self._builder.append(prompt_ids, Owner.PROMPT, "prompt")
        self._prompt_length = len(prompt_ids)
        self._opens_thinking = codec.template.generation_prompt.rstrip().endswith("<think>")
        self._end = len(prompt_ids) + spec.max_rollout_tokens
        # Engines of the Qwen family also stop at <|endoftext|>: it ends a turn too.
        ends = (codec.im_end_id, codec.added_id("<|endoftext|>"))
        self._end_ids = frozenset(i for i in ends if i is not None)
        self._turn_closed = True  # the last turn ended with <|im_end|>
        self._calls: list[CallRecord] = []
        self._pending: Action | None = None
        self._final_text = ""
        self._tags = {"family": spec.problem.family, **spec.tags}

    # -- life cycle -----------------------------------------------------------------------------------------

    def _act(self, action: Action) -> Action:
        self._pending = action
        return action

    def _begin(self) -> None:
        if self._pending is not None:
            raise ValueError("the episode has started already: call start() once")

    def _finish(self, status: Status, reason: str = "") -> Action:
        return self._act(Finish(status, reason))

    def _unusable(self, reason: str) -> Action:
        self._final_text = ""
        return self._finish(Status.UNUSABLE, reason)

    def _reject(self, event: Event) -> NoReturn:
        pending = "nothing: call start() first" if self._pending is None else type(self._pending).__name__
        raise ValueError(f"{type(event).__name__} does not answer the pending action, which is {pending}")

    def result(self) -> Trajectory:
        """The trajectory, after :class:`Finish`.

        Raises:
            ValueError: the episode is not over.
        """
        if not isinstance(self._pending, Finish):
            raise ValueError("the episode is not over: step() has not returned Finish")
        return self._builder.build(
            trajectory_id=self._spec.trajectory_id,
            problem_id=self._spec.problem.problem_id,
            group_id=self._spec.group_id,
            mode=self._spec.mode,
            status=self._pending.status,
            status_reason=self._pending.reason,
            calls=tuple(self._calls),
            final_text=self._final_text,
            tags=dict(self._tags),
        )

    # -- tokens ---------------------------------------------------------------------------------------------

    @property
    def _remaining(self) -> int:
        """Tokens that may still be appended."""
        return self._end - len(self._builder)

    def _generate(self, stop: tuple[str, ...] = ()) -> Action:
        """Ask for more of the current turn, or end the episode when nothing is left to ask with."""
        if self._remaining < 1:
            return self._finish(Status.TRUNCATED, TRUNCATED_LENGTH)
        # A copy: the list grows while the driver may still hold the action.
        ids = tuple(self._builder.token_ids)
        return self._act(Generate(ids, self._remaining, stop, (self._codec.im_end_id,)))

    def _room(self, growth: int = 0) -> int:
        """Tokens that a tool response may have: what is left, but for a reserve to answer with.

        ``growth``: tokens by which the sequence will have grown until then.
        """
        left = self._remaining - growth
        return left - min(ANSWER_RESERVE, left // 4)

    def _append_fitted(self, fitted: Fitted) -> None:
        """Append a response, and note when it was shortened."""
        if fitted.cut:
            self._tags[CUT_RESPONSES] = str(int(self._tags.get(CUT_RESPONSES, "0")) + 1)
        for piece, ids in zip(fitted.pieces, fitted.ids, strict=True):
            self._builder.append(ids, piece.owner, piece.producer)

    def _find_end(self, event: Generated) -> tuple[int, bool]:
        """How many of the sampled tokens belong to the turn, and whether the turn ends with them."""
        ids = event.token_ids[: self._remaining]
        for position, token_id in enumerate(ids):
            if token_id in self._end_ids:
                self._turn_closed = token_id == self._codec.im_end_id
                return position + 1, True
        self._turn_closed = False
        # An engine may know further ids that end a text; it says so by "stop".
        return len(ids), event.finish_reason == "stop" and len(ids) == len(event.token_ids)

    def _stopped_by(self, tags: Sequence[str], sampled: int) -> bool:
        """Whether the last of ``sampled`` new tokens ends a turn or completes one of ``tags``: a stop that
        the engine was asked for, even where it means nothing to the episode."""
        if not sampled:
            return False
        ids = self._builder.token_ids
        if ids[-1] == self._codec.im_end_id:
            return True
        text = self._codec.decode(ids[-max(map(len, tags)) :])
        last = len(self._codec.decode(ids[-1:]))
        return any((at := text.rfind(tag)) >= 0 and at + len(tag) > len(text) - last for tag in tags)

    def _text(self, start: int) -> str:
        """Text of the sequence from ``start`` on, without the ids that end a turn."""
        return self._codec.decode([i for i in self._builder.token_ids[start:] if i not in self._end_ids])

    def _append_sampled(self, event: Generated, count: int) -> None:
        """Append the first ``count`` sampled tokens of ``event``; what follows is dropped."""
        self._builder.append_sampled(event.token_ids[:count], event.logprobs[:count], event.policy_version)
