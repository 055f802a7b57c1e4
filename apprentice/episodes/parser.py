"""Tool calls in the Hermes/Qwen form, found in the text of a controller turn.

A turn is text, thinking (``<think>...</think>``) and calls::

    <tool_call>
    {"name": "code_interpreter", "arguments": {"model": "self", "code": "print(1)"}}
    </tool_call>

The rules, each of them tested:

* Tags inside a JSON string belong to the string. A block ends at the first ``</tool_call>`` outside of one.
* A block that is broken JSON ends at the first ``</tool_call>`` or ``<tool_call>`` after its opening (after
  its value, where brackets balance), in a string or not: broken JSON has no strings to trust. So a bad block
  does not swallow the good one after it.
* A block without an end is TRUNCATED.
* Calls inside thinking are thoughts. Thinking that is never closed runs to the end of the turn.
* Every refusal has a :class:`CallError`, a message for the controller, and the position of what is wrong.
* JSON is strict: no trailing commas, single quotes, NaN, raw newlines in strings or lone surrogates. What
  :class:`Repairs` switches on is the only exception. A repeated key takes its last value.

The incremental :class:`TurnParser` is the parser; :func:`parse_turn` feeds it once. Both take linear time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from apprentice.episodes._call_json import (
    CLOSE,
    OPEN,
    BodyScan,
    ParsedCall,
    Repairs,
    Seen,
    partial_tag,
    read_call,
)
from apprentice.episodes._code_fence import strip_code_fence
from apprentice.episodes.actions import CallError

__all__ = [
    "DEFAULT",
    "STRICT",
    "ParsedCall",
    "ParsedTurn",
    "Repairs",
    "TurnParser",
    "parse_turn",
    "repairs_of",
    "strip_code_fence",
]

DEFAULT: Final = Repairs()
"""Strict JSON; arguments may be an object or a string that holds one."""
STRICT: Final = Repairs(string_arguments=False)
"""Strict JSON; arguments must be an object."""

_THINK: Final = "<think>"
_THINK_END: Final = "</think>"
_LEAVES_CONTENT: Final = re.compile(f"{OPEN}|{_THINK}")
_LEAVES_THINKING: Final = re.compile(_THINK_END)
_TAG: Final = re.compile(f"{OPEN}|{CLOSE}")


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """A turn taken apart.

    ``content``: the text outside of calls and thinking. ``thinking``: the text inside of ``<think>`` blocks.
    ``missing_wrapper``: JSON objects that look like calls but have no tags; no calls (unless
    ``Repairs.bare_json``), but counted, each with the error MISSING_WRAPPER.
    ``thinking_unfinished``: a ``<think>`` was not closed.
    """

    content: str
    calls: tuple[ParsedCall, ...]
    thinking: str = ""
    missing_wrapper: tuple[ParsedCall, ...] = ()
    thinking_unfinished: bool = False


def repairs_of(names: Iterable[str]) -> Repairs:
    """The repairs that a recipe names (``protocol.repairs``), and no others."""
    chosen = set(names)
    return Repairs(**{name: name in chosen for name in Repairs.__slots__})


def parse_turn(text: str, repairs: Repairs = DEFAULT, *, thinking: bool = False) -> ParsedTurn:
    """Take a whole turn apart. ``text`` is without the closing ``<|im_end|>``.

    ``thinking``: the prompt already opened a ``<think>`` block. Never raises for any text.
    """
    parser = TurnParser(repairs, thinking=thinking)
    parser.feed(text)
    return parser.finish()


class _Block:
    """A ``<tool_call>`` block whose end has not been found. Indices are into the turn's text."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.body = start + len(OPEN)
        self.head: list[str] = []
        """Text of the block that came in earlier pieces."""
        self.scan = BodyScan()
        self.broken = False
        self.ended = False


class TurnParser:
    """The parser, fed piece by piece (characters, tokens, turns): the pieces do not change the result."""

    def __init__(self, repairs: Repairs = DEFAULT, *, thinking: bool = False) -> None:
        self._repairs = repairs
        self._thinking = thinking
        self._text = ""  # what came and is not dealt with
        self._base = 0  # index of its first character in the turn
        self._block: _Block | None = None
        self._content: list[tuple[int, str]] = []
        self._thoughts: list[str] = []
        self._calls: list[ParsedCall] = []

    def feed(self, text: str) -> list[ParsedCall]:
        """Take more text; return the calls that it completes, in order."""
        known = len(self._calls)
        self._run(text, final=False)
        return self._calls[known:]

    def finish(self) -> ParsedTurn:
        """The turn has ended; return all of it. Call once."""
        self._run("", final=True)
        segments = _joined(self._content)
        bare = _bare_calls(segments, self._repairs)
        calls, missing = self._calls, bare
        if self._repairs.bare_json:
            calls, missing = sorted([*calls, *bare], key=lambda call: call.start), []
            segments = _cut(segments, bare)
        return ParsedTurn(
            content="".join(text for _, text in segments),
            calls=tuple(calls),
            thinking="".join(self._thoughts),
            missing_wrapper=tuple(missing),
            thinking_unfinished=self._thinking,
        )

    # `_text` is sliced once a piece, never once a block: that keeps a turn of many blocks linear.
    def _run(self, text: str, *, final: bool) -> None:
        self._text += text
        position = 0
        while True:
            if self._block is None:
                position = self._outside(position, final=final)
                if self._block is None:
                    break
            block = self._block
            position = self._inside(block, position, final=final)
            if not block.ended:
                block.head.append(self._text[max(0, block.start - self._base) : position])
                break
        self._text = self._text[position:]
        self._base += position

    def _outside(self, position: int, *, final: bool) -> int:
        """Deal with text up to the body of the next block; return where that begins, or where to go on."""
        text = self._text
        while True:
            pattern = _LEAVES_THINKING if self._thinking else _LEAVES_CONTENT
            match = pattern.search(text, position)
            if match is None:
                tags = (_THINK_END,) if self._thinking else (OPEN, _THINK)
                end = len(text) - (0 if final else partial_tag(text, position, tags))
                self._keep(position, end)
                return end
            self._keep(position, match.start())
            position = match.end()
            if match.group() == OPEN:
                self._block = _Block(self._base + match.start())
                return position
            self._thinking = not self._thinking

    def _keep(self, begin: int, end: int) -> None:
        piece = self._text[begin:end]
        if piece and self._thinking:
            self._thoughts.append(piece)
        elif piece:
            self._content.append((self._base + begin, piece))

    def _inside(self, block: _Block, position: int, *, final: bool) -> int:
        """Deal with a block from ``position``; return where its end is, or where to go on."""
        scan = block.scan
        if not block.broken:
            seen, at = scan.advance(self._text, position, self._base, final=final)
            if seen is Seen.TAG and (self._text.startswith(CLOSE, at) or scan.complete):
                return self._end(block, self._base + at)
            if seen is Seen.MORE and not final:
                return at
            if seen is Seen.MORE and not scan.in_string:
                return self._end(block, self._base + len(self._text))
            block.broken = True
            self._rebase(block)
            position = (scan.complete_at if scan.complete else block.body) - self._base
        match = _TAG.search(self._text, position)
        if match is not None:
            return self._end(block, self._base + match.start())
        if final:
            return self._end(block, self._base + len(self._text))
        return len(self._text) - partial_tag(self._text, position, (OPEN, CLOSE))

    def _rebase(self, block: _Block) -> None:
        """Put the block's earlier pieces back in front of the text, so that all of the block is in it."""
        head = "".join(block.head)
        block.head = []
        self._text = head + self._text
        self._base -= len(head)

    def _end(self, block: _Block, end: int) -> int:
        """The block's body ends at ``end``: read the call; return the index behind the block."""
        self._rebase(block)
        closed = self._text.startswith(CLOSE, end - self._base)
        begin = block.start - self._base
        behind = end - self._base + (len(CLOSE) if closed else 0)
        raw = self._text[begin:behind]
        body = (len(OPEN), end - block.start)
        self._calls.append(read_call(raw, block.start, body, closed=closed, repairs=self._repairs))
        block.ended = True
        self._block = None
        return behind


# -- calls without tags ---------------------------------------------------------------------------------

_BARE: Final = re.compile(r"^[ \t]*(\{)", re.MULTILINE)
_MOST_BARE: Final = 8  # candidates looked at in one turn: each costs up to the length of the turn


def _joined(pieces: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Pieces of content, where neighbours in the turn become one segment however the text was fed."""
    segments: list[tuple[int, list[str]]] = []
    end = -1
    for start, text in pieces:
        if start != end:
            segments.append((start, []))
        segments[-1][1].append(text)
        end = start + len(text)
    return [(start, "".join(texts)) for start, texts in segments]


def _bare_calls(segments: list[tuple[int, str]], repairs: Repairs) -> list[ParsedCall]:
    """JSON objects with ``name`` and ``arguments`` at the start of a line of content.

    With ``Repairs.bare_json`` they are calls, otherwise they carry the error MISSING_WRAPPER.
    """
    out: list[ParsedCall] = []
    looked_at = 0
    for start, text in segments:
        position = 0
        while looked_at < _MOST_BARE and (match := _BARE.search(text, position)) is not None:
            looked_at += 1
            begin = position = match.start(1)
            position += 1
            try:
                value, end = json.JSONDecoder(strict=not repairs.raw_newlines).raw_decode(text, begin)
            except (ValueError, RecursionError):  # no JSON, or none that Python reads: no call
                continue
            if not isinstance(value, dict) or "name" not in value or "arguments" not in value:
                continue
            position = end
            call = read_call(text[begin:end], start + begin, (0, end - begin), closed=True, repairs=repairs)
            if not repairs.bare_json:
                call = replace(
                    call,
                    arguments=None,
                    error=CallError.MISSING_WRAPPER,
                    message=f"a tool call must stand between {OPEN} and {CLOSE}",
                    position=call.start,
                )
            out.append(call)
    return out


def _cut(segments: list[tuple[int, str]], calls: list[ParsedCall]) -> list[tuple[int, str]]:
    """Content without the text of bare calls."""
    out = []
    for start, text in segments:
        position = start
        for call in calls:
            if start <= call.start < start + len(text):
                out.append((position, text[position - start : call.start - start]))
                position = call.end
        out.append((position, text[position - start :]))
    return out
