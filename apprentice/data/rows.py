"""Rows of files, as many at a time as are needed: a set of millions of rows is never in memory whole."""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from apprentice.errors import DataError

__all__ = ["SUFFIXES", "Mapped", "ParquetRows", "Row", "Rows", "chain_rows", "read_file"]

_log = logging.getLogger(__name__)

Row = Mapping[str, Any]
SUFFIXES = (".jsonl", ".parquet", ".csv")
_BATCH = 1024  # rows of a Parquet file that are Python objects at a time
_BUFFER = 1 << 20  # bytes of a column that are read at a time


class Rows(Protocol):
    """A number of rows that can be gone through more than once. A list is one."""

    def __len__(self) -> int:
        """Number of rows; costs nothing."""
        ...

    def __iter__(self) -> Iterator[Row]:
        """From the first row."""
        ...


class ParquetRows:
    """The rows of one Parquet file, read batch by batch.

    Raises:
        DataError: it is none. Also while it is read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._errors():
            import pyarrow.parquet as pq

            self._count = int(pq.ParquetFile(path).metadata.num_rows)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Row]:
        import pyarrow.parquet as pq

        with self._errors(), pq.ParquetFile(self._path, buffer_size=_BUFFER, pre_buffer=False) as file:
            for batch in file.iter_batches(batch_size=_BATCH):
                yield from batch.to_pylist()

    def _errors(self) -> _ParquetErrors:
        return _ParquetErrors(self._path)


class _ParquetErrors:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        import pyarrow as pa

        if isinstance(error, pa.ArrowInvalid | OSError):
            raise DataError(f"{self._path} is not a Parquet file: {error}") from error


class Mapped:
    """Rows, each changed by a function when its turn comes."""

    def __init__(self, rows: Rows, change: Callable[[Row], Row]) -> None:
        self._rows, self._change = rows, change

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return map(self._change, self._rows)


class _Chained:
    def __init__(self, parts: Sequence[Rows]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(len(part) for part in self._parts)

    def __iter__(self) -> Iterator[Row]:
        for part in self._parts:
            yield from part


def chain_rows(parts: Iterable[Rows]) -> Rows:
    """The rows of several sources, one after the other."""
    found = list(parts)
    return found[0] if len(found) == 1 else _Chained(found)


def read_file(path: Path) -> Rows:
    """The rows of a ``.jsonl``, ``.parquet`` or ``.csv`` file.

    Raises:
        DataError: there is no such file, or a row of it cannot be read; names file and line.
    """
    if not path.is_file():
        raise DataError(f"no problem set at {path}")
    if path.suffix == ".parquet":
        return ParquetRows(path)
    return _read_csv(path) if path.suffix == ".csv" else _read_jsonl(path)


def _read_jsonl(path: Path) -> list[Row]:
    rows: list[Row] = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise DataError(f"{path}:{number}: not JSON ({error})") from error
            if not isinstance(row, dict):
                raise DataError(f"{path}:{number}: expected a JSON object, found {type(row).__name__}")
            rows.append(row)
    return rows


def _read_csv(path: Path) -> list[Row]:
    rows: list[Row] = []
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file)
        try:
            head = next(reader)
        except StopIteration:
            return []
        for values in reader:
            if not values:
                continue
            if len(values) != len(head):
                repaired = _closed_quote(values, len(head))
                if repaired is None:
                    raise DataError(
                        f"{path}, row that ends in line {reader.line_num}: {len(values)} fields instead of "
                        f"{len(head)}; is a quotation mark missing?"
                    )
                _log.warning(
                    "%s, row that ends in line %d: a quotation mark is missing before %r; read as if it were "
                    "there",
                    path, reader.line_num, repaired[1][:40],
                )  # fmt: skip
                values = repaired[0]
            rows.append(dict(zip(head, values, strict=True)))
    return rows


def _closed_quote(values: Sequence[str], fields: int) -> tuple[list[str], str] | None:
    r"""A row in which one field swallowed the next, since its closing quote is missing: ``"text\n,next",``.

    The mark that should have opened the next field ended the first one, which therefore ends in a newline, a
    comma, the next field and a quotation mark. Only where exactly one field can be cut so.
    """
    if len(values) != fields - 1:
        return None
    found = [(i, value) for i, value in enumerate(values) if value.endswith('"') and "\n," in value]
    if len(found) != 1:
        return None
    index, value = found[0]
    head, _, tail = value[:-1].rpartition("\n,")
    return [*values[:index], head + "\n", tail, *values[index + 1 :]], tail
