"""Backend ``vllm``: the same prompt, put to an inference engine of our own.

The engine itself is started by ``serve/expert.py``; this module sees it as an async function of chat
messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from apprentice.episodes.actions import CallExpert
from apprentice.experts.prompt import Message, build_messages, split_reasoning
from apprentice.experts.types import BackendFailure, ExpertAnswer, Usage

__all__ = ["Completion", "EngineExpert", "Generate"]


@dataclass(frozen=True, slots=True)
class Completion:
    """What the engine generated. ``finish_reason``: ``stop`` or ``length``."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str


Generate = Callable[[Sequence[Message], int], Awaitable[Completion]]
"""``generate(messages, max_tokens)``."""


class EngineExpert:
    """Backend ``vllm``.

    Args:
        name: the expert's name.
        model: of the engine, for the cache key.
        generate: puts messages through the chat template and the engine.
        include_transcript: show the expert the episode so far.
    """

    def __init__(self, name: str, model: str, generate: Generate, *, include_transcript: bool = True) -> None:
        self._name, self._model, self._generate = name, model, generate
        self._include_transcript = include_transcript

    @property
    def model(self) -> str:
        """The engine's model."""
        return self._model

    async def answer(self, request: CallExpert, *, timeout_s: float) -> ExpertAnswer:
        """One generation.

        Raises:
            BackendFailure: ``timeout``, ``lost_to_reasoning``, ``empty``.
        """
        messages = build_messages(request, include_transcript=self._include_transcript)
        try:
            done = await asyncio.wait_for(self._generate(messages, request.max_tokens), timeout_s)
        except TimeoutError:
            raise self._failure(f"no answer within {timeout_s:g} s", "timeout", True) from None
        usage = Usage(done.prompt_tokens, done.completion_tokens, None)
        reasoning, text, closed = split_reasoning(done.text)
        if not text.strip():
            lost = done.finish_reason == "length" and (bool(reasoning) or not closed)
            kind = "lost_to_reasoning" if lost else "empty"
            raise self._failure(f"no text (finish reason {done.finish_reason})", kind, not lost, usage)
        return ExpertAnswer(text=text, usage=usage, finish_reason=done.finish_reason, reasoning=reasoning)

    async def close(self) -> None:
        """The engine belongs to the deployment."""

    def _failure(self, what: str, kind: str, retryable: bool, usage: Usage | None = None) -> BackendFailure:
        return BackendFailure(
            f"expert {self._name!r}: {what}", kind=kind, expert=self._name, retryable=retryable, usage=usage
        )
