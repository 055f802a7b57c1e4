"""One turn, no tools: the ``base`` mode, in which the bare problem prompt is answered directly."""

from __future__ import annotations

from collections.abc import Sequence

from apprentice.episodes.actions import Action, EngineFailed, Event, Generate, Generated
from apprentice.episodes.core import TRUNCATED_LENGTH, EpisodeCore, EpisodeSpec
from apprentice.episodes.parser import parse_turn
from apprentice.tokens import ChatCodec
from apprentice.trajectory import Status

__all__ = ["SingleTurnEpisode"]


class SingleTurnEpisode(EpisodeCore):
    """The controller's first turn is its answer. ``prompt_ids`` end with the generation prompt."""

    def __init__(self, codec: ChatCodec, spec: EpisodeSpec, prompt_ids: Sequence[int]) -> None:
        super().__init__(codec, spec, prompt_ids)

    def start(self) -> Action:
        """Ask for the answer."""
        self._begin()
        return self._generate()

    def step(self, event: Event) -> Action:
        """See :meth:`apprentice.episodes.actions.Episode.step`."""
        match self._pending, event:
            case Generate(), Generated():
                return self._on_generated(event)
            case Generate(), EngineFailed():
                return self._unusable(f"engine: {event.message}")
            case _:
                self._reject(event)

    def _on_generated(self, event: Generated) -> Action:
        count, ended = self._find_end(event)
        self._append_sampled(event, count)
        cut = event.finish_reason == "length" or self._remaining < 1
        if not ended and not cut:
            return self._generate()
        turn = parse_turn(self._text(self._prompt_length), thinking=self._opens_thinking)
        self._final_text = turn.content.strip()
        if ended:
            return self._finish(Status.COMPLETE)
        return self._finish(Status.TRUNCATED, TRUNCATED_LENGTH)
