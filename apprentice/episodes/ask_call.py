"""A call of ``ask_advisor`` in the reasoner's tokens: what it asks, where its query begins, how another one
takes its place.

A call ends the turn, so it is the turn's last text::

    ... so far. <tool_call>
    {"name": "ask_advisor", "arguments": {"query": "What is 7 * 8?"}}
    </tool_call>
                                          kept     | replaced

The cut lies before the token that holds the first character of the query. A token may hold more than that
(``"W``, or the quote with the first escape): then it is replaced as a whole and its first characters are
written anew with the query (``lead``). Behind the query stands what the reasoner wrote there (``tail``).
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from apprentice.episodes._call_json import CLOSE, OPEN
from apprentice.episodes.actions import CallError
from apprentice.episodes.calls import Refusal
from apprentice.episodes.parser import ParsedCall
from apprentice.episodes.responses import Piece, markup
from apprentice.episodes.tools import ASK_ADVISOR
from apprentice.tokens import ChatCodec, Part
from apprentice.trajectory import Owner

__all__ = ["QMAKER", "CallSite", "call_site", "check_query", "completed_call"]

QMAKER = "qmaker"
"""Producer of a query that Qmaker wrote; the name of its model in ``Generate``."""


def check_query(parsed: ParsedCall) -> str | Refusal:
    """The query of a parsed call, or why it is none. Arguments that the schema does not name are ignored."""
    if parsed.error is not None:
        return Refusal(parsed.error, parsed.message, parsed.name)
    if parsed.name != ASK_ADVISOR:
        shown = parsed.name if len(parsed.name) <= 60 else parsed.name[:60] + "..."
        message = f"there is no tool {shown!r}; the only tool is {ASK_ADVISOR}."
        return Refusal(CallError.UNKNOWN_TOOL, message, parsed.name)
    arguments = parsed.arguments or {}
    query = arguments.get("query")
    if isinstance(query, str) and query.strip():
        return query
    if "query" not in arguments:
        what = "is missing"
    else:
        what = "is empty" if isinstance(query, str) else "is not a string"
    message = f'the argument "query" {what}: write the question to the advisor there.'
    return Refusal(CallError.BAD_ARGUMENTS, message, parsed.name)


@dataclass(frozen=True, slots=True)
class CallSite:
    """Where a query stands in a sequence.

    ``position``: tokens before the cut (tau of Eq. 10). ``lead``: characters between the cut and the query.
    ``tail``: what stands behind the query, to the end of the call. ``nested``: the arguments are a JSON
    string, so that the query is escaped twice.
    """

    position: int
    lead: str
    tail: str
    nested: bool = False


def call_site(codec: ChatCodec, ids: Sequence[int], start: int, text: str, parsed: ParsedCall) -> CallSite:
    """The site of a call that :func:`check_query` let through. A tail that is not well-formed JSON and the
    closing tag (only repairs let it through) is put right.

    Args:
        ids: the sequence.
        start: index of the turn's first token.
        text: the turn, as decoded from ``ids[start:]`` and given to the parser.
        parsed: the call in it.
    """
    raw = text[: parsed.end]
    body = _skip(raw, parsed.start + len(OPEN))
    begin, end, nested = _query_span(raw, body)
    skipped, left = _token_at(codec, ids[start:], begin)
    json_end = _end(raw, body)
    closing = raw[json_end:] if raw[json_end:].strip() == CLOSE else f"\n{CLOSE}"
    return CallSite(start + skipped, raw[begin - left : begin], raw[end:json_end] + closing, nested)


def completed_call(codec: ChatCodec, site: CallSite, query: str) -> list[tuple[Piece, list[int]]]:
    """What follows the ``position`` kept tokens when ``query`` is asked there: pieces with their ids.

    The query is EXPERT (producer :data:`QMAKER`), a lead with it; the end of the call is WRAPPER. A token
    over the seam belongs to the query. Parsing the call gives ``query`` back exactly, as the vocabulary can
    hold it (:meth:`apprentice.tokens.ChatCodec.representable`).
    """
    written = _escape(codec.representable(query), site.nested)
    tail, tag = (site.tail[: -len(CLOSE)], CLOSE) if site.tail.endswith(CLOSE) else (site.tail, "")
    pieces = [
        Piece(Part(site.lead + written, trusted=False, hard=True), Owner.EXPERT, QMAKER),
        Piece(Part(tail, trusted=False), Owner.WRAPPER, markup("").producer),
        markup(tag),
    ]
    return list(zip(pieces, codec.encode_parts([piece.part for piece in pieces]), strict=True))


def _escape(text: str, nested: bool) -> str:
    written = json.dumps(text, ensure_ascii=False)[1:-1]
    return json.dumps(written, ensure_ascii=False)[1:-1] if nested else written


# -- where the query stands -----------------------------------------------------------------------------

_JSON = json.JSONDecoder(strict=False)
"""As lenient as the parser is with every repair: what it let through is read."""


def _query_span(text: str, body: int) -> tuple[int, int, bool]:
    """Begin and end of the query's characters in the JSON object at ``text[body:]``, and whether it lies in a
    string of JSON."""
    arguments = _member(text, body, "arguments")
    if text[arguments] != '"':
        query = _member(text, arguments, "query")
        return query + 1, _end(text, query) - 1, False
    inner = str(_JSON.raw_decode(text, arguments)[0])
    query = _member(inner, _skip(inner, 0), "query")
    places = list(_characters(text, arguments + 1))
    return places[query + 1], places[_end(inner, query) - 1], True


def _member(text: str, position: int, key: str) -> int:
    """Index of the value of ``key`` in the JSON object at ``position``; of the last one, as JSON reads it."""
    found = -1
    position = _skip(text, position + 1)
    while text[position] != "}":
        name, position = _JSON.raw_decode(text, position)
        position = _skip(text, _skip(text, position) + 1)  # the colon
        if name == key:
            found = position
        position = _skip(text, _end(text, position))
        if text[position] == ",":
            position = _skip(text, position + 1)
    assert found >= 0, "the call was let through without its query"
    return found


def _end(text: str, position: int) -> int:
    return int(_JSON.raw_decode(text, position)[1])


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _characters(text: str, position: int) -> Iterator[int]:
    """Index of each character of a JSON string whose first one is at ``position``, and of its end."""
    while text[position] != '"':
        yield position
        if text[position] != "\\":
            position += 1
        elif text[position + 1] != "u":
            position += 2
        else:
            pair = text[position + 2].lower() == "d" and text[position + 3].lower() in "89ab"
            position += 12 if pair else 6
    yield position


def _token_at(codec: ChatCodec, ids: Sequence[int], index: int) -> tuple[int, int]:
    """Where to cut decoded ids so that character ``index`` lies behind the cut: the latest token with whole
    characters before it, and how many characters then stand between the cut and ``index``.

    The character before ``index`` is a quote. Counted in bytes, since a token may hold a part of a character,
    and what is no UTF-8 decodes to U+FFFD.
    """
    utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
    seen = cut = cut_seen = 0
    for number, token_id in enumerate(ids):
        data = codec.token_bytes(token_id)
        if data and not utf8.getstate()[0]:
            cut, cut_seen = number, seen
            if seen == index:
                return cut, 0
        seen += sum(len(utf8.decode(data[i : i + 1])) for i in range(len(data)))
        if seen > index or (seen == index and utf8.getstate()[0]):
            return cut, index - cut_seen
    raise ValueError(f"the ids hold no character {index}")
