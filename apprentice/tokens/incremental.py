"""Ids to text as they arrive."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from apprentice.tokens.codec import ChatCodec

__all__ = ["IncrementalDecoder"]


class IncrementalDecoder:
    """Decodes a growing list of ids in time linear in its length.

    Bytes of a character that is not complete yet are held back, so the text only ever grows; after
    :meth:`finish` it equals :meth:`ChatCodec.decode` of all ids.
    """

    def __init__(self, codec: ChatCodec) -> None:
        self._codec = codec
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._pieces: list[str] = []

    def append(self, ids: Sequence[int]) -> str:
        """Take more ids; return the text that they complete (perhaps empty)."""
        piece = self._utf8.decode(b"".join(map(self._codec.token_bytes, ids)))
        self._pieces.append(piece)
        return piece

    def finish(self) -> str:
        """Return the text of what was held back: U+FFFD for an incomplete character, else nothing."""
        piece = self._utf8.decode(b"", final=True)
        self._pieces.append(piece)
        return piece

    @property
    def text(self) -> str:
        """The text so far."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""
