"""What Qmaker writes, and what it reads: its form, Format(u, s) of Eq. 8, and the reasoning before a call.

Its form is two labels, each at the beginning of a line, each with text behind it::

    Request: what the advisor is asked (u); may have several lines
    Response: how long and how detailed its reply should be (s)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from apprentice.config.ask import AskConfig
from apprentice.episodes.actions import Generate, Generated
from apprentice.episodes.ask_prompts import qmaker_prompt
from apprentice.episodes.parser import parse_turn
from apprentice.tokens import IM_END, IM_START, ChatCodec

__all__ = [
    "QmakerText",
    "QmakerTurn",
    "format_query",
    "parse_qmaker",
    "qmaker_prompt_ids",
    "reasoning_text",
]

_LABEL: Final = re.compile(r"^(Request|Response):", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class QmakerText:
    """``request`` u and response instruction ``response`` s (Eq. 8), neither of them empty."""

    request: str
    response: str


def parse_qmaker(text: str) -> QmakerText | None:
    """The two parts of Qmaker's answer; None when it does not keep to the form.

    Strict: nothing stands before ``Request:``, each label begins a line exactly once, in this order, and has
    text. Blank space around the whole and around the parts does not matter.
    """
    text = text.strip()
    labels = list(_LABEL.finditer(text))
    if [label[1] for label in labels] != ["Request", "Response"] or labels[0].start() != 0:
        return None
    request = text[labels[0].end() : labels[1].start()].strip()
    response = text[labels[1].end() :].strip()
    return QmakerText(request, response) if request and response else None


def format_query(parts: QmakerText) -> str:
    """Format(u, s): the query q that the advisor sees, the request and the response instruction below it."""
    return f"{parts.request}\n\n{parts.response}"


def reasoning_text(codec: ChatCodec, ids: Sequence[int]) -> str:
    """The reasoner's text before a call, for Qmaker.

    Args:
        codec: the reasoner's.
        ids: its sequence without the prompt, up to its decision to ask: the opening of the call, which they
            end in, is left out. Where tools have answered before, the answers are in it.
    """
    text = codec.decode(ids).rpartition("<tool_call>")[0]
    opening = f"{IM_END}\n{IM_START}user\n<tool_response>\n"
    closing = f"\n</tool_response>{IM_END}\n{codec.template.generation_prompt}"
    return text.replace(opening, "\n[reply]\n").replace(closing, "\n[end of the reply]\n").strip()


def qmaker_prompt_ids(codec: ChatCodec, question: str, reasoning: str, ask: AskConfig) -> tuple[int, ...]:
    """Qmaker's prompt in its own ``codec``. The budget b is the advisor's response cap."""
    prompt = qmaker_prompt(
        question, reasoning, ask.advisor.max_tokens, ask.instructions, privacy=ask.qmaker.privacy
    )
    return tuple(codec.encode_prompt(prompt.messages))


class QmakerTurn:
    """Qmaker's one turn, which may come in parts.

    Args:
        codec: Qmaker's.
        limit: tokens that it may have.
    """

    def __init__(self, codec: ChatCodec, prompt_ids: Sequence[int], limit: int) -> None:
        self._codec, self._prompt, self._limit = codec, tuple(prompt_ids), limit
        self._ids: list[int] = []
        ends = (codec.im_end_id, codec.added_id("<|endoftext|>"))
        self._ends = frozenset(i for i in ends if i is not None)
        self.ended = False
        """It came to its own end."""
        self.over = False
        """It has ended, or its tokens are spent."""

    def action(self, model: str = "") -> Generate:
        """What to sample next, from the model of this name."""
        left = self._limit - len(self._ids)
        return Generate((*self._prompt, *self._ids), left, (), (self._codec.im_end_id,), model)

    def add(self, event: Generated) -> int:
        """Take what was sampled; return how many of its tokens belong to the turn."""
        taken = list(event.token_ids[: self._limit - len(self._ids)])
        end = next((n for n, i in enumerate(taken) if i in self._ends), None)
        if end is not None:
            taken = taken[: end + 1]
        self._ids += taken
        whole = event.finish_reason == "stop" and len(taken) == len(event.token_ids)
        self.ended = end is not None or whole
        self.over = self.ended or event.finish_reason == "length" or len(self._ids) >= self._limit
        return len(taken)

    def parse(self) -> QmakerText | None:
        """What it says, thinking left out; None for a turn that was cut or does not keep to the form."""
        text = self._codec.decode([i for i in self._ids if i not in self._ends])
        turn = parse_turn(text, thinking=self._codec.template.opens_thinking)
        return parse_qmaker(turn.content) if self.ended and not turn.calls else None
