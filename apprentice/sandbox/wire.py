"""Messages between a pool and its zygotes, over a Unix stream socket, both ways.

4-byte big-endian lengths of a JSON head and of a body, then both. A request's body is the standard input; a
report's body is the raw output. An empty request during a run cancels it. End of file (the pool is gone) ends
the cell and the zygote.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

__all__ = ["HEADER", "Gone", "receive", "send"]

HEADER = struct.Struct(">II")
_CHUNK = 1 << 16


class Gone(Exception):
    """The other end is closed."""


def receive(sock: socket.socket) -> tuple[dict[str, Any], bytes]:
    """One message: head and body.

    Raises:
        Gone: end of file.
    """

    def exactly(n: int) -> bytes:
        parts = bytearray()
        while len(parts) < n:
            part = sock.recv(min(n - len(parts), _CHUNK))
            if not part:
                raise Gone
            parts += part
        return bytes(parts)

    head, body = HEADER.unpack(exactly(HEADER.size))
    return json.loads(exactly(head) or b"{}"), exactly(body)


def send(sock: socket.socket, head: dict[str, Any], body: bytes = b"") -> None:
    """Send one message.

    Raises:
        OSError: the other end is closed.
    """
    raw = json.dumps(head).encode()
    sock.sendall(HEADER.pack(len(raw), len(body)) + raw + body)
