"""One tool call's JSON: where it ends, and what it says. Private to :mod:`apprentice.episodes.parser`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NoReturn

from apprentice.episodes.actions import CallError

__all__ = ["CLOSE", "OPEN", "BodyScan", "ParsedCall", "Repairs", "Seen", "partial_tag", "read_call"]

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"

_EXCERPT: Final = 20


@dataclass(frozen=True, slots=True)
class Repairs:
    """What is accepted beyond strict JSON. A repair never guesses at the content of a string.

    ``string_arguments``: ``"arguments": "{\\"x\\": 1}"``, a JSON object written as a JSON string, is that
    object. On by default: it has one reading, loses nothing, and is how OpenAI-style interfaces write them.
    ``extra_braces``: closing braces after the complete object are dropped.
    ``raw_newlines``: line breaks, tabs and other control characters may stand unescaped in strings.
    ``missing_close``: a complete JSON object whose ``</tool_call>`` is missing is a call.
    ``bare_json``: a JSON object with ``name`` and ``arguments`` at the start of a line, without tags, is a
    call.

    Single quotes are never repaired: what they delimit cannot be known.
    """

    string_arguments: bool = True
    extra_braces: bool = False
    raw_newlines: bool = False
    missing_close: bool = False
    bare_json: bool = False


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """One call, good or refused.

    Good: ``error`` is None and ``arguments`` is a dict. Refused: ``error`` says how, ``message`` says it in
    words with an excerpt, ``position`` is the index of the offending character in the turn's text.
    ``name`` is the tool's name where it could be read, else empty. ``raw`` is the turn's text from ``start``
    to ``end``, tags included.
    """

    name: str
    arguments: dict[str, Any] | None
    error: CallError | None
    message: str
    start: int
    end: int
    raw: str
    position: int | None = None


# -- where a body ends ----------------------------------------------------------------------------------


class Seen(Enum):
    """What ended a scan."""

    MORE = "the text ran out"
    TAG = "a tag outside of any string"
    BROKEN = "something that cannot stand there in JSON"


_STRING: Final = re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_SPACE: Final = re.compile(r"[ \t\r\n]*+")
_WORD: Final = re.compile(r"[-+.\w]*+")
_TAGS: Final = (OPEN, CLOSE)


def partial_tag(text: str, begin: int, tags: tuple[str, ...]) -> int:
    """Length of the longest end of ``text[begin:]`` that is a proper beginning of one of ``tags``."""
    for length in range(min(len(text) - begin, max(map(len, tags)) - 1), 0, -1):
        if any(tag.startswith(text[-length:]) and len(tag) > length for tag in tags):
            return length
    return 0


class BodyScan:
    """Reads a body only as closely as its end needs: strings exactly, the rest by what may follow what.

    It accepts some texts that are no JSON (the JSON decoder refuses them later, and says where), but it
    notices a quote too few or too many at once: a value cannot directly follow a value.

    Going back to the end of a broken block keeps the whole parse linear: of two scans that cover the same
    text, one began outside of a string where the other was inside of one, so they stay opposite, and at the
    next tag the one that is outside ends. No text is covered by more than two.
    """

    def __init__(self) -> None:
        self._in_string = False
        self._after_value = False
        self._in_word = False
        self._depth = 0
        self.complete = False
        """The brackets were balanced at ``complete_at`` (an index relative to what the caller passes)."""
        self.complete_at = 0

    @property
    def in_string(self) -> bool:
        """Whether the scan stands inside a string."""
        return self._in_string

    def advance(self, text: str, position: int, base: int, *, final: bool) -> tuple[Seen, int]:
        """Scan ``text`` from ``position``; return what was seen and the index where.

        With ``MORE`` the index is where to go on when there is more text: a few characters may be left over.
        ``base`` is added to ``complete_at``.
        """
        n = len(text)
        while position < n:
            if self._in_string:
                position = _match_end(_STRING, text, position)
                if position == n or text[position] == "\\":  # a backslash here is the last character
                    return Seen.MORE, position
                position += 1
                self._in_string, self._after_value = False, True
                continue
            if self._in_word:
                end = _match_end(_WORD, text, position)
                self._in_word = end == n
                position = end
                continue
            c = text[position]
            if c in " \t\r\n":
                position = _match_end(_SPACE, text, position)
            elif c in ",:":
                self._after_value = False
                position += 1
            elif c in "}]":
                self._after_value = True
                self._depth -= 1
                position += 1
                if self._depth == 0 and not self.complete:
                    self.complete, self.complete_at = True, base + position
            elif c == "<":
                if text.startswith(_TAGS, position):
                    return Seen.TAG, position
                if not final and partial_tag(text, position, _TAGS) == n - position:
                    return Seen.MORE, position
                return Seen.BROKEN, position
            elif self._after_value:
                return Seen.BROKEN, position
            elif c in "{[":
                self._depth += 1
                position += 1
            elif c == '"':
                self._in_string = True
                position += 1
            elif _match_end(_WORD, text, position) > position:
                self._in_word = self._after_value = True
            else:
                return Seen.BROKEN, position
        return Seen.MORE, position


def _match_end(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    return position if match is None else match.end()


# -- what a body says -----------------------------------------------------------------------------------


class _Refused(Exception):
    def __init__(self, error: CallError, message: str, position: int, name: str = "") -> None:
        super().__init__(message)
        self.error, self.message, self.position, self.name = error, message, position, name


def read_call(raw: str, start: int, body: tuple[int, int], *, closed: bool, repairs: Repairs) -> ParsedCall:
    """Read one call.

    Args:
        raw: the block's text, tags included.
        start: index of the block in the turn.
        body: begin and end of the JSON in ``raw``.
        closed: the block has its closing tag.
    """
    begin, end = body
    try:
        if not closed and not repairs.missing_close:
            raise _unclosed(raw, begin, end)
        name, arguments = _read(raw[begin:end], repairs, closed=closed)
    except _Refused as refused:
        position = start + begin + refused.position
        error, message, name = refused.error, refused.message, refused.name
        return ParsedCall(name, None, error, message, start, start + len(raw), raw, position)
    return ParsedCall(name, arguments, None, "", start, start + len(raw), raw)


def _unclosed(raw: str, begin: int, end: int) -> _Refused:
    excerpt = raw[max(begin, end - 2 * _EXCERPT) : end]
    return _Refused(
        CallError.TRUNCATED, f"the call has no closing {CLOSE}; it ends with {excerpt!r}", end - begin
    )


def _read(body: str, repairs: Repairs, *, closed: bool) -> tuple[str, dict[str, Any]]:
    first = _match_end(_SPACE, body, 0)
    if first == len(body):
        raise _Refused(CallError.BAD_JSON, "the call is empty: a JSON object is needed", 0)
    try:
        value, end = _decode(body, first, repairs)
    except _Refused:
        if closed:
            raise
        raise _unclosed(body, 0, len(body)) from None
    rest = _match_end(_SPACE, body, end)
    if rest < len(body) and not (repairs.extra_braces and not body[rest:].strip("} \t\r\n")):
        message = f"invalid JSON at character {rest}: text after the complete value; near {_near(body, rest)}"
        raise _Refused(CallError.BAD_JSON, message, rest)
    return _name_and_arguments(value, first, repairs)


def _decode(body: str, first: int, repairs: Repairs) -> tuple[Any, int]:
    decoder = json.JSONDecoder(strict=not repairs.raw_newlines, parse_constant=_no_constant)
    try:
        value, end = decoder.raw_decode(body, first)
        surrogate = _LONE_ESCAPE.search(body, first, end)
        is_text = surrogate is None or _is_text(value)
    except json.JSONDecodeError as error:
        message = f"invalid JSON at character {error.pos}: {error.msg}; near {_near(body, error.pos)}"
        raise _Refused(CallError.BAD_JSON, message, error.pos) from None
    except ValueError as error:  # NaN and Infinity, and integers of more digits than Python reads
        raise _Refused(CallError.BAD_JSON, f"invalid JSON: {error}", first) from None
    except RecursionError:
        raise _Refused(CallError.BAD_JSON, "invalid JSON: nested too deeply", first) from None
    if surrogate is not None and not is_text:
        at = surrogate.start()
        message = f"invalid JSON: half of a \\u surrogate pair, which no text has; near {_near(body, at)}"
        raise _Refused(CallError.BAD_JSON, message, at)
    return value, end


_LONE_ESCAPE: Final = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")


def _is_text(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _no_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _near(body: str, position: int) -> str:
    return repr(body[max(0, position - _EXCERPT) : position + _EXCERPT])


def _name_and_arguments(value: Any, first: int, repairs: Repairs) -> tuple[str, dict[str, Any]]:
    if not isinstance(value, dict):
        message = f"the call is {_kind(value)}: a JSON object with name and arguments is needed"
        raise _Refused(CallError.NOT_AN_OBJECT, message, first)
    name = value.get("name")
    if not isinstance(name, str) or not name:
        what = "has no name" if "name" not in value else f"has {_kind(name)} as its name"
        message = f'the call {what}: "name" must be the name of a tool'
        raise _Refused(CallError.MISSING_NAME, message, first)
    arguments = value.get("arguments")
    if isinstance(arguments, str) and repairs.string_arguments:
        arguments = _from_string(arguments, name, first, repairs)
    if not isinstance(arguments, dict):
        what = "are missing" if "arguments" not in value else f"are {_kind(arguments)}"
        message = f'the arguments of {name} {what}: "arguments" must be a JSON object'
        raise _Refused(CallError.BAD_ARGUMENTS, message, first, name)
    return name, arguments


def _from_string(text: str, name: str, first: int, repairs: Repairs) -> Any:
    try:
        value, end = _decode(text, _match_end(_SPACE, text, 0), repairs)
    except _Refused as refused:
        message = f"the arguments of {name} are a string that holds no JSON object: {refused.message}"
        raise _Refused(CallError.BAD_ARGUMENTS, message, first, name) from None
    return value if not text[end:].strip() else text


def _kind(value: Any) -> str:
    names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string"}
    return names.get(type(value), "a list" if isinstance(value, list) else "an object")
