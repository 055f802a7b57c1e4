"""Reads a stream: the turn that is being written, and the places in it where the runtime acts."""

from __future__ import annotations

from dataclasses import dataclass, field

from apprentice.tokens import IncrementalDecoder

__all__ = ["Opened", "PythonBlock", "ResponseScanner", "StreamTurn"]


@dataclass(frozen=True, slots=True)
class Opened:
    """The ``index``-th ``<tool_response>`` of the turn was opened (from 0)."""

    index: int


@dataclass(frozen=True, slots=True)
class PythonBlock:
    """``<python>`` ``code`` ``</python>`` was completed in the ``index``-th response."""

    index: int
    code: str


class ResponseScanner:
    """Fed with text as it comes; :meth:`next` gives the next place, or None when more text is needed.

    Tags count only where they mean something: ``<python>`` inside a response, ``</tool_response>`` outside a
    program. Time is linear in the text.
    """

    def __init__(self) -> None:
        self._text = ""
        self._from = 0  # where to go on searching in _text
        self._inside = False
        self._in_code = False
        self.opened = 0
        """Responses opened so far."""

    @property
    def rest(self) -> str:
        """Text that came after the last place given."""
        return self._text

    def feed(self, text: str) -> None:
        """Take more text."""
        self._text += text

    def next(self) -> Opened | PythonBlock | None:
        """The next place in the text fed so far."""
        while True:
            if self._in_code:
                code = self._until("</python>")
                if code is None:
                    return None
                self._in_code = False
                return PythonBlock(self.opened - 1, code.removeprefix("\n").removesuffix("\n"))
            if not self._inside:
                if self._until("<tool_response>", keep=False) is None:
                    return None
                self._inside = True
                self.opened += 1
                return Opened(self.opened - 1)
            python, end = self._text.find("<python>"), self._text.find("</tool_response>")
            if python < 0 and end < 0:
                self._text = self._text[-len("</tool_response>") :]
                return None
            self._in_code = python >= 0 and (end < 0 or python < end)
            self._inside = self._in_code
            self._until("<python>" if self._in_code else "</tool_response>")

    def _until(self, tag: str, *, keep: bool = True) -> str | None:
        """Text before ``tag``, consumed with it; None when it has not come. ``keep``: the text matters."""
        found = self._text.find(tag, self._from)
        if found >= 0:
            before, self._text = self._text[:found], self._text[found + len(tag) :]
            self._from = 0
            return before
        if keep:
            self._from = max(0, len(self._text) - len(tag) + 1)
        else:
            self._text, self._from = self._text[-(len(tag) - 1) :], 0
        return None


@dataclass(slots=True)
class StreamTurn:
    """The turn being written. ``role``: None until a marker says it. ``header``: one is being written."""

    role: str | None
    decoder: IncrementalDecoder
    start: int
    header: bool = False
    body: int = 0
    scanner: ResponseScanner = field(default_factory=ResponseScanner)

    @property
    def text(self) -> str:
        """What the turn says so far, without its role marker."""
        return "" if self.header else self.decoder.text[self.body :]

    @property
    def is_response(self) -> bool:
        """Whether it is a tool response: by its role, or without one because it opens a response."""
        return self.scanner.opened > 0 if self.role is None else self.role != "assistant"
