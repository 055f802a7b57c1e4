"""Texts of tool responses as owned pieces, and how they are made to fit the token budget.

Python output has one form in the collaborative episode, in conversion and when the internalized episode
runs code: ``<output>``, the text, ``</output>``, each tag on a line of its own, with a hard token boundary
before it. What the runtime appends never merges with what the model wrote.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from apprentice.tokens import ChatCodec, Part
from apprentice.trajectory import Owner

__all__ = [
    "CUT_NOTE",
    "PROTOCOL",
    "PYTHON",
    "Fitted",
    "Piece",
    "appended_error",
    "appended_output",
    "cut_head",
    "error_pieces",
    "fit",
    "markup",
    "observation",
    "output_pieces",
    "python_pieces",
    "response_turn",
]

PYTHON = "python"
"""Producer of what the sandbox wrote."""
PROTOCOL = "protocol"
"""Producer of what the protocol itself wrote."""

CUT_NOTE = "\n[... cut to fit the token budget ...]\n"


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a response with its owner and producer."""

    part: Part
    owner: Owner
    producer: str


def markup(text: str, *, hard: bool = False) -> Piece:
    """Structure that the protocol inserts."""
    return Piece(Part(text, trusted=True, hard=hard), Owner.WRAPPER, PROTOCOL)


def observation(text: str, producer: str = PYTHON, *, trusted: bool = False, hard: bool = False) -> Piece:
    """Something the environment wrote."""
    return Piece(Part(text, trusted=trusted, hard=hard), Owner.OBSERVATION, producer)


def error_pieces(message: str) -> list[Piece]:
    """The response to a refused call."""
    return [observation(f"Error: {message}", PROTOCOL)]


def output_pieces(text: str, *, opening: str = "<output>\n", closing: str = "\n</output>") -> list[Piece]:
    """Python output between its tags.

    ``opening`` and ``closing`` may carry the neighbouring newline where the environment writes it.
    """
    return [
        observation(opening, trusted=True, hard=True),
        observation(text),
        observation(closing, trusted=True),
    ]


def python_pieces(code: str, expert: str, output: str) -> list[Piece]:
    """The response to a code call that an expert answered: its code, then what the code printed."""
    return [
        markup("<python>\n"),
        Piece(Part(code, trusted=False), Owner.EXPERT, expert),
        markup("\n</python>"),
        *output_pieces(output, opening="\n<output>\n"),
    ]


def appended_output(text: str, *, newline: bool = True) -> list[Piece]:
    """What the runtime appends in an internalized stream, right behind ``</python>`` or ``<tool_response>``.

    ``newline``: begin with the line break; False where the controller's last token has brought it.
    """
    opening = "\n<output>\n" if newline else "<output>\n"
    return output_pieces(text, opening=opening, closing="\n</output>\n")


def appended_error(message: str, *, newline: bool = True) -> list[Piece]:
    """What the runtime appends behind the ``<tool_response>`` of a refused call."""
    return [
        observation("\n" if newline else "", PROTOCOL, trusted=True, hard=True),
        *error_pieces(message),
        observation("\n", PROTOCOL, trusted=True),
    ]


def response_turn(codec: ChatCodec, responses: Sequence[Sequence[Piece]], *, closed: bool) -> list[Piece]:
    """The user turn that holds all responses, and the prefix of the controller's next turn.

    ``closed``: the controller's turn ended with ``<|im_end|>``; otherwise the missing one is written first.
    """
    parts = codec.tool_response_parts(
        [[piece.part for piece in response] for response in responses], turn_closed=closed
    )
    # The codec puts one trusted part before, between and after the responses.
    pieces: list[Piece] = []
    position = 0
    for response in responses:
        pieces.append(Piece(parts[position], Owner.WRAPPER, PROTOCOL))
        pieces.extend(response)
        position += 1 + len(response)
    pieces.append(Piece(parts[position], Owner.WRAPPER, PROTOCOL))
    assert position == len(parts) - 1, "the codec's response turn has another form than its documentation"
    return pieces


@dataclass(frozen=True, slots=True)
class Fitted:
    """Pieces with the ids of each; ``cut``: a text was shortened."""

    pieces: list[Piece]
    ids: list[list[int]]
    cut: bool

    def __len__(self) -> int:
        return sum(map(len, self.ids))


def fit(codec: ChatCodec, pieces: Sequence[Piece], room: int) -> Fitted | None:
    """Encode pieces in at most ``room`` tokens, shortening the longest texts when they do not fit.

    A text that is cut keeps two thirds of its share at the head and one third at the tail, with
    :data:`CUT_NOTE` (an OBSERVATION) between. Tags are never cut.

    Returns:
        None when even the tags and notes do not fit.
    """
    whole = _encode(codec, pieces)
    if len(whole) <= room:
        return whole
    texts = {i: codec.encode_text(p.part.text) for i, p in enumerate(pieces) if not p.part.trusted}
    note = len(codec.encode_text(CUT_NOTE))
    budget = room - (len(whole) - sum(map(len, texts.values())))
    # Tokens at seams may merge or split, so the sum is off by a few: correct and try again.
    for _ in range(8):
        share = _share([len(ids) for ids in texts.values()], budget, note)
        if share is None:
            return None
        shortened = itertools.chain.from_iterable(
            _shorten(codec, piece, texts[i], share) if len(texts.get(i, ())) > share + note else [piece]
            for i, piece in enumerate(pieces)
        )
        fitted = _encode(codec, list(shortened), cut=True)
        if len(fitted) <= room:
            return fitted
        budget -= len(fitted) - room
    return None


def cut_head(codec: ChatCodec, text: str, max_tokens: int) -> tuple[str, int]:
    """The head of ``text`` that encodes to at most ``max_tokens`` tokens, and how many it has.

    A head that is cut ends neither in blank space nor within a character.
    """
    ids = codec.encode_text(text)
    keep = max_tokens
    while len(ids) > max_tokens:
        text = codec.decode(ids[:keep]).rstrip("\ufffd").rstrip()
        ids = codec.encode_text(text)
        keep -= 1
    return text, len(ids)


def _encode(codec: ChatCodec, pieces: Sequence[Piece], *, cut: bool = False) -> Fitted:
    return Fitted(list(pieces), codec.encode_parts([piece.part for piece in pieces]), cut)


def _share(sizes: Iterable[int], budget: int, note: int) -> int | None:
    """The most tokens that every text may keep such that all of them fit ``budget``; None: none does."""
    sizes = list(sizes)

    def cost(share: int) -> int:
        return sum(min(size, share + note) for size in sizes)

    if cost(0) > budget:
        return None
    low, high = 0, max(sizes, default=0)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if cost(middle) <= budget else (low, middle - 1)
    return low


def _shorten(codec: ChatCodec, piece: Piece, ids: Sequence[int], share: int) -> list[Piece]:
    tail_size = share // 3
    head = codec.decode(ids[: share - tail_size]).rstrip("\ufffd")
    tail = codec.decode(ids[len(ids) - tail_size :]).lstrip("\ufffd")
    return [
        Piece(Part(head, trusted=False, hard=piece.part.hard), piece.owner, piece.producer),
        observation(CUT_NOTE, PROTOCOL),
        Piece(Part(tail, trusted=False), piece.owner, piece.producer),
    ]
