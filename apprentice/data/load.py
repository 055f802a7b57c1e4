"""Problem sets by configuration, and the checks that keep training and test problems apart."""

from __future__ import annotations

import dataclasses
import logging
import random
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from apprentice.config.schema import DataConfig, ProblemSetConfig
from apprentice.data.benchmarks import corrected_answer
from apprentice.data.contamination import Contamination, find_contamination
from apprentice.data.problem import Problem, WorkedSolution
from apprentice.data.procedural import generate
from apprentice.data.rows import Rows
from apprentice.data.sources import read_rows
from apprentice.data.text import question_key
from apprentice.errors import ConfigError, DataError

__all__ = ["LoadReport", "ProblemSets", "load_data", "load_problems", "load_reported", "problems_from_rows"]

_log = logging.getLogger(__name__)

_COLUMNS: dict[str, tuple[str, ...]] = {
    "problem_id": ("problem_id", "id", "unique_id", "problem_idx", "Problem ID"),
    "question": ("question", "problem", "prompt", "Problem"),
    "answer": ("answer", "gold", "expected_answer", "Short Answer", "short_answer"),
    "family": ("family", "subject", "type", "Category"),
    "source": ("source", "data_source"),
    "split": ("split",),
    "derivation": ("derivation",),
    "program": ("program",),
    "code_tests": ("code_tests",),
}
"""Our field -> columns it is looked for in, in this order, unless ``fields`` names one."""

_DEFAULT_PROCEDURAL_SIZE = 500


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What became of the rows of a source; counts of rows except ``kept``."""

    rows: int = 0
    kept: int = 0
    empty_answers: int = 0
    duplicates: int = 0
    conflicting: int = 0
    excluded: int = 0
    copies: tuple[tuple[str, str], ...] = ()
    """(id, question key) of the excluded, each question once."""
    warnings: tuple[str, ...] = ()
    """What is odd about the source."""

    def __str__(self) -> str:
        dropped = {
            "without an answer": self.empty_answers,
            "repeated": self.duplicates,
            "with conflicting answers": self.conflicting,
            "equal to a test problem": self.excluded,
        }
        parts = [f"{count} {what}" for what, count in dropped.items() if count]
        return f"{self.kept} problems of {self.rows} rows" + (
            f"; dropped {', '.join(parts)}" if parts else ""
        )


@dataclass(frozen=True, slots=True)
class ProblemSets:
    """A run's training and test problems; no test question stands in the training set."""

    train: list[Problem]
    test: dict[str, list[Problem]] = field(default_factory=dict)
    train_report: LoadReport = LoadReport()
    test_reports: Mapping[str, LoadReport] = field(default_factory=dict)
    contamination: Mapping[str, Contamination] = field(default_factory=dict)
    """By test set: exact copies, which are not in ``train``, and near ones, which are. Generated problems
    share their wording by design: near copies of them are not looked for."""


def load_data(config: DataConfig) -> ProblemSets:
    """Load the test sets, then the training set without any question that a test set holds.

    Raises:
        ConfigError: two test sets of one name, or a generated test set with the training set's seed.
        DataError: a set cannot be read, or is empty.
    """
    test: dict[str, list[Problem]] = {}
    reports: dict[str, LoadReport] = {}
    for item in config.test:
        if item.name in test:
            raise ConfigError(f"data.test: two sets are named {item.name!r}; names must differ")
        same_source = item.source == config.train.source == "reasoning_gym"
        if same_source and item.seed == config.train.seed and set(item.families) & set(config.train.families):
            raise ConfigError(
                f"data.test: {item.name!r} has the training set's seed {item.seed} and families; "
                "held-out problems need another seed"
            )
        test[item.name], reports[item.name] = load_reported(item)
    held_out = {question_key(p.question) for problems in test.values() for p in problems}
    train, report = load_reported(config.train, exclude=held_out)
    near = config.train.source != "reasoning_gym"
    found = {name: _contamination(train, report.copies, problems, near) for name, problems in test.items()}
    for name, copies in found.items():
        if copies.near:
            _log.warning(
                "%d training problems are nearly problems of %s, e.g. %s and %s (%.0f %% of its 10-grams)",
                len(copies.near), name, copies.near[0].train_id, copies.near[0].test_id,
                100 * copies.near[0].share,
            )  # fmt: skip
    return ProblemSets(train, test, report, reports, found)


def _contamination(
    train: Sequence[Problem], copies: Iterable[tuple[str, str]], test: Sequence[Problem], near: bool
) -> Contamination:
    ids = {question_key(p.question): p.problem_id for p in test}
    exact = tuple((identity, ids[key]) for identity, key in copies if key in ids)
    return Contamination(exact, find_contamination(train, test).near if near else ())


def load_problems(config: ProblemSetConfig, exclude: Set[str] = frozenset()) -> list[Problem]:
    """The problems of one set, in an order that depends on the configuration alone.

    Args:
        config: where they come from. With ``size``, files and hub sets are sampled by ``seed``.
        exclude: :func:`~apprentice.data.text.question_key` of questions to leave out.

    Raises:
        ConfigError: an unknown family, option or field name.
        DataError: the source cannot be read, or holds fewer problems than ``size``.
    """
    return load_reported(config, exclude)[0]


def load_reported(
    config: ProblemSetConfig, exclude: Set[str] = frozenset()
) -> tuple[list[Problem], LoadReport]:
    """:func:`load_problems`, and what became of the rows. ``kept`` counts before ``size`` takes a sample."""
    if config.source == "reasoning_gym":
        size = config.size or _DEFAULT_PROCEDURAL_SIZE
        made = generate(config.name, config.families, size, config.seed, config.split or "", exclude)
        return made, LoadReport(rows=len(made), kept=len(made))
    if config.families:
        raise ConfigError(f"{config.name}: families belong to source reasoning_gym, not {config.source!r}")
    source = read_rows(config)
    problems, report = problems_from_rows(source.rows, config, source.name, exclude)
    report = dataclasses.replace(report, warnings=source.warnings)
    _log.info("%s: %s", config.name, report)
    for warning in source.warnings:
        _log.warning("%s: %s", config.name, warning)
    if not problems:
        raise DataError(f"{config.name}: no problems left from {config.source} ({report})")
    if config.size is not None:
        if config.size > len(problems):
            raise DataError(f"{config.name}: size {config.size} asked for, but there are {report}")
        chosen = sorted(random.Random(config.seed).sample(range(len(problems)), config.size))
        problems = [problems[i] for i in chosen]
    return problems, report


def problems_from_rows(
    rows: Rows, config: ProblemSetConfig, source: str, exclude: Set[str] = frozenset()
) -> tuple[list[Problem], LoadReport]:
    """Turn rows into problems; drop empty golds, repeats, questions with conflicting golds and excluded ones.

    Rows are taken one at a time, and only the problems that are kept stay in memory.

    Raises:
        ConfigError: ``fields`` names a field or column that does not exist.
        DataError: a column is missing or an id stands twice.
    """
    columns = _resolve_columns(rows, config)
    by_question: dict[str, Problem] = {}
    conflicts: set[str] = set()
    copies: dict[str, str] = {}
    counts: dict[str, Any] = dict.fromkeys(
        ("rows", "empty_answers", "duplicates", "conflicting", "excluded"), 0
    )
    for index, row in enumerate(rows):
        if config.split and "split" in columns and str(row[columns["split"]]) != config.split:
            continue
        counts["rows"] += 1
        problem = _problem(row, columns, config.name, source, index)
        key = question_key(problem.question)
        if not problem.answer.strip() and "code_tests" not in problem.metadata:
            counts["empty_answers"] += 1
        elif key in exclude:
            counts["excluded"] += 1
            copies.setdefault(key, problem.problem_id)
        elif key in conflicts:
            counts["conflicting"] += 1
        elif key not in by_question:
            by_question[key] = problem
        elif by_question[key].answer.strip() == problem.answer.strip():
            counts["duplicates"] += 1
        else:
            conflicts.add(key)
            del by_question[key]
            counts["conflicting"] += 2
    problems = list(by_question.values())
    _check_ids(problems, config.name)
    found = tuple((identity, key) for key, identity in copies.items())
    report = LoadReport(kept=len(problems), **counts)
    return problems, dataclasses.replace(report, copies=found)


def _resolve_columns(rows: Rows, config: ProblemSetConfig) -> dict[str, str]:
    """Our field -> the column it stands in, for the fields that exist."""
    unknown = sorted(set(config.fields) - set(_COLUMNS))
    if unknown:
        raise ConfigError(f"{config.name}.fields: unknown field {unknown[0]!r}; known are {sorted(_COLUMNS)}")
    first = next(iter(rows), None)
    if first is None:
        raise DataError(f"{config.name}: {config.source} has no rows")
    present = first.keys()
    columns: dict[str, str] = {}
    for name, candidates in _COLUMNS.items():
        if name in config.fields:
            if config.fields[name] not in present:
                raise ConfigError(
                    f"{config.name}.fields.{name}: no column {config.fields[name]!r}; "
                    f"columns are {sorted(present)}"
                )
            columns[name] = config.fields[name]
        else:
            found = next((c for c in candidates if c in present), None)
            if found is not None:
                columns[name] = found
    for name in ("question", "answer"):
        if name not in columns:
            raise DataError(
                f"{config.name}: no column for {name!r} among {sorted(present)}; "
                f"name it with fields: {{{name}: <column>}}"
            )
    return columns


def _problem(
    row: Mapping[str, Any], columns: Mapping[str, str], name: str, source: str, index: int
) -> Problem:
    def text(key: str, default: str = "") -> str:
        value = row.get(columns[key]) if key in columns else None
        return default if value is None else str(value)

    worked = None
    if text("derivation") and text("program"):
        worked = WorkedSolution(text("derivation"), text("program"))
    return Problem(
        problem_id=text("problem_id") or f"{name}/{index:05d}",
        question=text("question"),
        answer=corrected_answer(text("question"), text("answer")),
        family=text("family"),
        source=text("source") or source,
        split=text("split"),
        worked=worked,
        metadata={"code_tests": text("code_tests")} if text("code_tests") else {},
    )


def _check_ids(problems: Iterable[Problem], name: str) -> None:
    seen: set[str] = set()
    for problem in problems:
        if problem.problem_id in seen:
            raise DataError(f"{name}: the id {problem.problem_id!r} stands on two different problems")
        seen.add(problem.problem_id)
