"""Per-item results of an evaluation: one row a problem, in ``results/<mode>/<set>.jsonl``."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from apprentice.errors import DataError

__all__ = ["ItemResult", "item_from_row", "read_all_results", "read_results", "write_results"]


@dataclass(frozen=True, slots=True)
class ItemResult:
    """What k attempts at one problem gave.

    ``answers`` and ``verdicts`` have one entry an attempt (``correct``, ``wrong``, ``unparseable``,
    ``no_answer`` or ``timeout``); ``calls_by_tool``, ``calls_by_expert`` and ``tokens`` (by owner, lower
    case) are sums over the attempts. ``unusable`` counts samples that infrastructure lost and that were
    replaced: they are in none of the other fields. ``distinct`` counts attempts that differ in what the
    controller wrote; None where nobody looked.
    """

    problem_id: str
    family: str
    gold: str
    answers: tuple[str | None, ...]
    verdicts: tuple[str, ...]
    mode: str = ""
    set_name: str = ""
    calls_by_tool: dict[str, int] = field(default_factory=dict)
    calls_by_expert: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    unusable: int = 0
    distinct: int | None = None

    def __post_init__(self) -> None:
        if len(self.answers) != len(self.verdicts):
            raise ValueError(f"{self.problem_id}: {len(self.answers)} answers, {len(self.verdicts)} verdicts")

    @property
    def correct(self) -> tuple[bool, ...]:
        """Per attempt, whether the answer was verified."""
        return tuple(verdict == "correct" for verdict in self.verdicts)

    @property
    def accuracy(self) -> float:
        """Mean over the attempts (this problem's term of Mean@k); NaN without an attempt."""
        return sum(self.correct) / len(self.verdicts) if self.verdicts else float("nan")

    @property
    def all_identical(self) -> bool:
        """Whether all of several attempts are one text: then they were hardly sampled."""
        return self.distinct == 1 and len(self.verdicts) > 1


_FIELDS = {item.name for item in fields(ItemResult)}


def write_results(path: Path, items: Sequence[ItemResult]) -> None:
    """Write one JSON row an item (beside and renamed, so that a reader never sees half)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(item), ensure_ascii=False) + "\n" for item in items)
    partial.replace(path)


def item_from_row(row: dict[str, Any]) -> ItemResult:
    """The item of a JSON row; fields that it does not know are left out.

    Raises:
        ValueError, KeyError, TypeError: it is no such row.
    """
    known = {key: value for key, value in row.items() if key in _FIELDS}
    return ItemResult(**{**known, "answers": tuple(row["answers"]), "verdicts": tuple(row["verdicts"])})


def read_results(path: Path) -> list[ItemResult]:
    """Read a file of :func:`write_results`.

    Raises:
        DataError: a row is no result; the message names file and line.
    """
    items = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                items.append(item_from_row(json.loads(line)))
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(f"{path}, line {number}: not a per-item result ({error})") from error
    return items


def read_all_results(folder: Path) -> list[ItemResult]:
    """Every item below a ``results`` folder; a row without mode or set name takes them from its path."""
    items: list[ItemResult] = []
    for path in sorted(folder.glob("*/*.jsonl")):
        for item in read_results(path):
            if item.mode and item.set_name:
                items.append(item)
                continue
            filled = asdict(item)
            filled["mode"] = item.mode or path.parent.name
            filled["set_name"] = item.set_name or path.stem
            items.append(ItemResult(**filled))
    return items
