"""What an evaluation has paid for so far, so that one that was interrupted goes on where it stopped.

A journal is a text file beside the results it becomes: a head line with a fingerprint of what is evaluated,
then one line for some problems whose attempts are complete, with their results and their trajectories. A line
counts when its newline is on the disk, so that a process that is killed leaves each problem either paid for
and kept, or to be sampled again.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from apprentice.data.problem import Problem
from apprentice.errors import DataError
from apprentice.results import ItemResult, item_from_row
from apprentice.trajectory import SCHEMA

__all__ = ["ResultJournal", "fingerprint", "problem_key"]


def fingerprint(value: Any) -> str:
    """A short hash of anything that is JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:32]


def problem_key(problem: Problem) -> tuple[str, ...]:
    """What a verdict on a problem depends on; its tests, which can have megabytes, by their hash."""
    key = (problem.problem_id, problem.question, problem.answer)
    tests = problem.metadata.get("code_tests")
    return key if tests is None else (*key, hashlib.sha256(tests.encode()).hexdigest())


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
        self.settled = False
        """The trajectories were moved elsewhere (:meth:`settle`)."""
        self._head = head
        self._tables: list[pa.Table] = []
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

    @property
    def trajectories(self) -> pa.Table:
        """The trajectories that the journal holds (:data:`apprentice.trajectory.SCHEMA`)."""
        return pa.concat_tables([SCHEMA.empty_table(), *self._tables])

    def append(self, items: Sequence[ItemResult], trajectories: pa.Table) -> None:
        """Record finished problems; they are on the disk when this returns."""
        with self.path.open("ab") as file:
            file.write(_line(items, trajectories))
            file.flush()
            os.fsync(file.fileno())
        self.items.extend(items)
        self._tables.append(trajectories)

    def settle(self) -> None:
        """The trajectories are safe elsewhere: keep only the results."""
        partial = self.path.with_name(f"{self.path.name}.partial")
        with partial.open("wb") as file:
            file.write(self._head.encode() + b"\n" + _line(self.items, None))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self.path)
        self._tables, self.settled = [], True

    def _read(self, line: bytes) -> None:
        try:
            row = json.loads(line)
            self.items.extend([item_from_row(item) for item in row["items"]])
            if row["trajectories"] is None:
                self.settled = True
            else:
                stream = base64.b64decode(row["trajectories"], validate=True)
                self._tables.append(pa.ipc.open_stream(stream).read_all())
        except (ValueError, KeyError, TypeError, binascii.Error, pa.ArrowInvalid, OSError) as error:
            raise DataError(
                f"{self.path}: damaged ({error}); delete it and evaluate this set again"
            ) from error


def _line(items: Sequence[ItemResult], trajectories: pa.Table | None) -> bytes:
    packed = None
    if trajectories is not None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(trajectories.cast(SCHEMA))
        packed = base64.b64encode(sink.getvalue()).decode()
    row = {"items": [asdict(item) for item in items], "trajectories": packed}
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"
