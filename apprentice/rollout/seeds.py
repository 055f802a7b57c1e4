"""Seeds that depend on what is sampled and on nothing else: not on order, process or worker count."""

from __future__ import annotations

import hashlib

__all__ = ["derive_seed"]


def derive_seed(*parts: int | str) -> int:
    """A seed in ``[0, 2**63)`` from what identifies a draw, e.g. ``(run seed, step, problem, sample)``.

    SHA-256 of the parts, each with its type and length, so that ``(1, "23")`` and ``(12, "3")`` differ.
    Python's own ``hash`` would change from process to process.
    """
    digest = hashlib.sha256()
    for part in parts:
        text = f"{type(part).__name__}:{part}".encode()
        digest.update(len(text).to_bytes(8, "big") + text)
    return int.from_bytes(digest.digest()[:8], "big") >> 1
