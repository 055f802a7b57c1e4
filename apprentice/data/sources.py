"""Rows of a problem set: from a file, a folder, a package or the hub, with our columns where known."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apprentice.config.schema import ProblemSetConfig
from apprentice.data.benchmarks import (
    BENCHMARKS,
    Benchmark,
    check_size_in_name,
    find_benchmark,
    find_file,
)
from apprentice.data.code import (
    guru_code_row,
    humaneval_row,
    is_guru_code,
    livecodebench_row,
    mbpp_row,
    plain_code_row,
)
from apprentice.data.formats import RowAdapter, chat_row, gpqa_row, gsm8k_row, solution_row
from apprentice.data.layout import find_copy, split_files
from apprentice.data.rows import SUFFIXES, Mapped, Rows, chain_rows, read_file
from apprentice.errors import DataError

__all__ = ["Source", "find_adapter", "read_rows"]

_LEFT_OUT = "codegen__livecodebench_440"
"""A file of guru's code split that holds a test set's problems; the paper leaves it out."""


def read_rows(config: ProblemSetConfig) -> Source:
    """The rows of a set, with our columns where its format is known.

    A folder gives the rows of all its ``.jsonl``, ``.parquet`` and ``.csv`` files; one that is a copy of a
    known set's repository gives that set.

    Raises:
        DataError: the source cannot be read.
    """
    path = Path(config.source).expanduser()
    base, _, release = config.source.rpartition(":")
    copy = path if path.is_dir() else Path(base).expanduser() if base and Path(base).is_dir() else None
    known = find_copy(copy) if copy else None
    if copy and known and (path.is_dir() or release):
        return _known(config, known, "" if path.is_dir() else release, _Copy(copy))
    if path.suffix in SUFFIXES:
        rows, name = read_file(path), path.stem
        warnings = check_size_in_name(path.stem, len(rows))
        if found := find_file(str(path.absolute())):
            warnings += found[0].check_rows(found[1], len(rows))
    elif path.is_dir():
        rows, warnings = _read_folder(path, config.name)
        name = path.name
    elif path.exists() or path.is_absolute() or config.source.startswith("."):
        raise DataError(
            f"{config.name}: {config.source} is not a .jsonl, .parquet or .csv file, nor a folder"
        )
    elif config.source.lower() == "champ":
        rows, name = _champ_rows(), "champ"
        warnings = BENCHMARKS["champ"].check_rows(None, len(rows))
    elif (known := find_benchmark(config.source)) is not None:
        return _known(config, known, config.source.partition(":")[2], _Hub())
    else:
        from apprentice.data.hub import fetch_rows

        rows, name, warnings = fetch_rows(config.source, config.split), config.source, ()
    return Source(_adapted(rows, config, None), name, warnings)


@dataclass(frozen=True, slots=True)
class Source:
    """Rows with our columns where the format is known, a name for where they come from, and what is odd."""

    rows: Rows
    name: str
    warnings: tuple[str, ...] = ()


class _Hub:
    """Files and splits of a known set on the hub."""

    def files(self, known: Benchmark, names: Sequence[str]) -> list[Path]:
        from apprentice.data.hub import fetch_files

        if known.by_hand:
            raise DataError(f"{known.source}: {known.by_hand} and give that file as source")
        return fetch_files(known.source, names)

    def split(self, known: Benchmark, release: str, split: str | None) -> Rows:
        from apprentice.data.hub import fetch_rows

        return fetch_rows(f"{known.source}:{release}" if release else known.source, split)


class _Copy:
    """The same in a folder."""

    def __init__(self, root: Path) -> None:
        snapshots = sorted((root / "snapshots").glob("*")) if root.name.startswith("datasets--") else []
        self._root = snapshots[-1] if snapshots else root

    def files(self, known: Benchmark, names: Sequence[str]) -> list[Path]:
        missing = [name for name in names if not (self._root / name).is_file()]
        if missing:
            raise DataError(f"{self._root}: this copy of {known.source} lacks {', '.join(missing)}")
        return [self._root / name for name in names]

    def split(self, known: Benchmark, release: str, split: str | None) -> Rows:
        return chain_rows(read_file(path) for path in split_files(self._root, release, split))


def _known(config: ProblemSetConfig, known: Benchmark, release: str, place: _Hub | _Copy) -> Source:
    """A known set with its split, row count and adapter, from the hub or from a copy of it."""
    release = release or known.config
    if known.files:
        chosen = config.split if config.split and config.split in known.files else release
        if chosen not in known.files:
            raise DataError(
                f"{config.name}: {known.source} has no {release!r}; there are {sorted(known.files)}"
            )
        paths = place.files(known, known.files[chosen])
        parts = [read_file(path) for path in paths]
        rows = chain_rows(parts)
        warnings = known.check_rows(chosen, len(rows))
        for path, part in zip(paths, parts, strict=True):
            warnings += check_size_in_name(path.stem, len(part))
    else:
        split = config.split or known.split
        rows = place.split(known, release, split)
        # Another configuration than the usual one has other rows, whose number is not known.
        warnings = known.check_rows(split, len(rows)) if release == known.config else ()
    return Source(_adapted(rows, config, known), known.source, warnings)


def _adapted(rows: Rows, config: ProblemSetConfig, known: Benchmark | None) -> Rows:
    first = next(iter(rows), None)
    adapter = (known.adapter if known else None) or (
        find_adapter(first, config.fields) if first is not None else None
    )
    if adapter is None:
        return rows
    change = adapter  # for the type checker: it is not None within the function below
    return Mapped(rows, lambda row: change(row, config.seed))


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


def _champ_rows() -> list[dict[str, Any]]:
    """CHAMP's problems, read from the data file of its package; nothing of the package is imported or run."""
    spec = importlib.util.find_spec("champ_dataset")
    if spec is None or not spec.submodule_search_locations:
        raise DataError(
            "champ: the data lies in the package champ-dataset, which the extra `champ` brings: "
            "`pip install champ-dataset`"
        )
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


def _read_folder(path: Path, name: str) -> tuple[Rows, tuple[str, ...]]:
    files = [f for f in sorted(path.iterdir()) if f.suffix in SUFFIXES and not f.stem.startswith(_LEFT_OUT)]
    if not files:
        raise DataError(f"{name}: the folder {path} holds no .jsonl, .parquet or .csv file")
    parts = [read_file(file) for file in files]
    warnings = [w for f, p in zip(files, parts, strict=True) for w in check_size_in_name(f.stem, len(p))]
    return chain_rows(parts), tuple(warnings)
