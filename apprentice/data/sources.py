"""Rows of a problem set: from a file, a folder, a package or the hub, with our columns where known."""

from __future__ import annotations

import csv
import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from apprentice.config.schema import ProblemSetConfig
from apprentice.data.benchmarks import find_benchmark
from apprentice.data.code import (
    guru_code_row,
    humaneval_row,
    is_guru_code,
    livecodebench_row,
    mbpp_row,
    plain_code_row,
)
from apprentice.data.formats import RowAdapter, chat_row, gpqa_row, gsm8k_row, solution_row
from apprentice.errors import DataError

__all__ = ["find_adapter", "read_rows"]

Rows = Sequence[Mapping[str, Any]]
_SUFFIXES = (".jsonl", ".parquet", ".csv")
_LEFT_OUT = "codegen__livecodebench_440"
"""A file of guru's code split that holds a test set's problems; the paper leaves it out."""


def read_rows(config: ProblemSetConfig) -> tuple[Rows, str]:
    """The rows of a set, and the name of their source.

    A folder gives the rows of all its ``.jsonl``, ``.parquet`` and ``.csv`` files.

    Raises:
        DataError: the source cannot be read.
    """
    path = Path(config.source).expanduser()
    if path.suffix in _SUFFIXES:
        rows: Rows = _read_file(path)
        source = path.stem
    elif path.is_dir():
        rows, source = _read_folder(path, config.name), path.name
    elif path.exists() or path.is_absolute() or config.source.startswith("."):
        raise DataError(
            f"{config.name}: {config.source} is not a .jsonl, .parquet or .csv file, nor a folder"
        )
    elif config.source.lower() == "champ":
        rows, source = _champ_rows(), "champ"
        _check_rows("champ", None, len(rows))
    else:
        return _from_hub(config), config.source
    adapter = find_adapter(rows[0], config.fields) if rows else None
    return ([adapter(row, config.seed) for row in rows] if adapter else rows), source


def find_adapter(row: Mapping[str, Any], fields: Mapping[str, str]) -> RowAdapter | None:
    """Which of the known formats a row has; None: plain columns, or columns that ``fields`` names."""
    if isinstance(row.get("prompt"), list):
        return guru_code_row if is_guru_code(row) else chat_row
    if fields:
        return None
    known: list[tuple[tuple[str, ...], RowAdapter]] = [
        (("question_content", "public_test_cases", "private_test_cases"), livecodebench_row),
        (("task_id", "entry_point", "test", "prompt"), humaneval_row),
        (("task_id", "test_list"), mbpp_row),
        (("prompt", "entry_point", "tests"), plain_code_row),
        (("Question", "Correct Answer", "Incorrect Answer 3"), gpqa_row),
    ]
    for columns, adapter in known:
        if all(column in row for column in columns):
            return adapter
    if "question" in row and "####" in str(row.get("answer")):
        return gsm8k_row
    if {"problem", "solution"} <= row.keys() and not {"answer", "gold", "expected_answer"} & row.keys():
        return solution_row
    return None


def _from_hub(config: ProblemSetConfig) -> Rows:
    """Rows of a hub set; for a known one with its split, row count and adapter."""
    from apprentice.data.hub import fetch_files, fetch_rows

    known = find_benchmark(config.source)
    if known is None:
        rows: Rows = fetch_rows(config.source, config.split)
        adapter = find_adapter(rows[0], config.fields) if rows else None
        return [adapter(row, config.seed) for row in rows] if adapter else rows
    if known.by_hand:
        raise DataError(f"{config.name}: {known.source}: {known.by_hand} and give that file as source")
    release = config.source.partition(":")[2] or known.config
    if known.files:
        if release not in known.files:
            raise DataError(
                f"{config.name}: {known.source} has no {release!r}; there are {sorted(known.files)}"
            )
        rows = [row for path in fetch_files(known.source, known.files[release]) for row in _read_file(path)]
        known.check_rows(release, len(rows))
    else:
        split = config.split or known.split
        rows = fetch_rows(f"{known.source}:{release}" if release else known.source, split)
        # Another configuration than the usual one has other rows, whose number is not known.
        if release == known.config:
            known.check_rows(split, len(rows))
    adapter = known.adapter or (find_adapter(rows[0], config.fields) if rows else None)
    return [adapter(row, config.seed) for row in rows] if adapter else rows


def _check_rows(source: str, split: str | None, count: int) -> None:
    known = find_benchmark(source)
    if known is not None:
        known.check_rows(split, count)


def _champ_rows() -> list[dict[str, Any]]:
    """CHAMP's problems, read from the data file of its package; nothing of the package is imported or run."""
    spec = importlib.util.find_spec("champ_dataset")
    if spec is None or not spec.submodule_search_locations:
        raise DataError("champ: the data lies in the package champ-dataset; `pip install champ-dataset`")
    path = Path(next(iter(spec.submodule_search_locations))) / "dataset_files" / "v0.json"
    try:
        problems = json.loads(path.read_text(encoding="utf-8"))["problems"].values()
        return [
            {
                "problem_id": p["identifier"],
                "question": p["_text"],
                "answer": p["_answer"],
                "family": p["category"],
            }
            for p in problems
        ]
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"champ: {path} has another form than version 1.0.0 of champ-dataset ({error})"
        ) from error


def _read_folder(path: Path, name: str) -> list[dict[str, Any]]:
    files = [f for f in sorted(path.iterdir()) if f.suffix in _SUFFIXES and not f.stem.startswith(_LEFT_OUT)]
    if not files:
        raise DataError(f"{name}: the folder {path} holds no .jsonl, .parquet or .csv file")
    return [row for file in files for row in _read_file(file)]


def _read_file(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise DataError(f"no problem set at {path}")
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"{path} is not a Parquet file: {error}") from error
        return rows
    rows = []
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
