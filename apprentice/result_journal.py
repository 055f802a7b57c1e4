"""What an evaluation has paid for so far, so that one that was interrupted goes on where it stopped.

A journal is a text file beside the results it becomes: a head line with a fingerprint of what is evaluated,
then one line a finished batch of problems. A line is written and synced after its trajectories are on disk.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from apprentice.errors import DataError
from apprentice.results import ItemResult, item_from_row

__all__ = ["ResultJournal", "fingerprint"]


def fingerprint(value: Any) -> str:
    """A short hash of anything that is JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:32]


class ResultJournal:
    """Opens the journal at ``path``, or begins it.

    One of another fingerprint (other weights, problems or settings) is begun anew; a last line that was being
    written when the process ended is dropped.

    Args:
        path: its file. The suffix must not be ``.jsonl``, which is for finished results.
        head: fingerprint of everything that the results depend on.
        resume: False begins anew whatever is there.
    """

    def __init__(self, path: Path, head: str, *, resume: bool = True) -> None:
        if path.suffix == ".jsonl":
            raise ValueError(f"{path}: a journal is no file of finished results")
        self.path = path
        self.items: list[ItemResult] = []
        self.parts: list[str] = []
        """Names of the batches, as given to :meth:`append`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_bytes().split(b"\n") if resume and path.is_file() else []
        whole = lines[:-1]  # what stands after the last newline was cut off
        if whole and whole[0] == head.encode():
            for line in whole[1:]:
                self._read(line)
            with path.open("r+b") as file:
                file.truncate(sum(len(line) + 1 for line in whole))
        else:
            path.write_bytes(head.encode() + b"\n")

    def append(self, part: str, items: Sequence[ItemResult]) -> None:
        """Record a finished batch; it is on the disk when this returns."""
        line = json.dumps({"part": part, "items": [asdict(item) for item in items]}, ensure_ascii=False)
        with self.path.open("ab") as file:
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.parts.append(part)
        self.items.extend(items)

    def _read(self, line: bytes) -> None:
        try:
            row = json.loads(line)
            items = [item_from_row(item) for item in row["items"]]
            self.parts.append(str(row["part"]))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{self.path}: damaged ({error}); delete it and evaluate this set again"
            ) from error
        self.items.extend(items)
