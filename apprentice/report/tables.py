"""A table that a terminal and the report show alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Table"]


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as text. ``left`` columns are names, set flush left; the others are numbers.

    Raises:
        ValueError: a row has not as many cells as the head.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    left: int = 1

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.head):
                raise ValueError(f"{self.title}: {len(row)} cells under {len(self.head)} heads: {row}")

    def text(self) -> str:
        """For a terminal."""
        lines: Sequence[tuple[str, ...]] = (self.head, *self.rows)
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.head))]
        text = [
            "  ".join(
                cell.ljust(width) if i < self.left else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        rule = "-" * max(map(len, text))
        return "\n".join([self.title, "", text[0], rule, *text[1:], *self.notes])
