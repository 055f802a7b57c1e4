"""What ``apprentice data info`` says of problem sets: source, licence, counts, contamination."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apprentice.config.schema import DataConfig, ProblemSetConfig
from apprentice.data.benchmarks import BENCHMARKS, Benchmark, find_benchmark, find_file
from apprentice.data.code import code_tests
from apprentice.data.contamination import Contamination, find_contamination
from apprentice.data.layout import find_copy
from apprentice.data.load import LoadReport, ProblemSets, load_reported
from apprentice.data.problem import Problem
from apprentice.errors import DataError
from apprentice.verify.structure import is_prose

__all__ = ["DataInfo", "SetInfo", "data_record", "describe_data", "describe_set", "known_sets_table"]

_SHOWN = 5  # copies listed for each pair of sets


@dataclass(frozen=True, slots=True)
class SetInfo:
    """One set. ``golds`` counts what its problems are checked by; ``error`` says why it could not be read."""

    name: str
    source: str
    licence: str
    report: LoadReport
    problems: int
    golds: Mapping[str, int]
    error: str = ""

    def text(self) -> str:
        """A few lines for a terminal."""
        lines = [self.name, f"  source     {self.source}", f"  licence    {self.licence}"]
        if self.error:
            return "\n".join([*lines, f"  NOT READ   {self.error}"])
        sampled = "" if self.problems == self.report.kept else f", of which {self.problems} are used (size)"
        lines.append(f"  problems   {self.report}{sampled}")
        lines.append("  checked    " + ", ".join(f"{count} by {how}" for how, count in self.golds.items()))
        lines += [f"  WARNING    {warning}" for warning in self.report.warnings]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class DataInfo:
    """Training set first, then the test sets; ``contamination`` by the name of the test set."""

    sets: tuple[SetInfo, ...]
    contamination: Mapping[str, Contamination]
    generated: bool = False

    @property
    def complete(self) -> bool:
        """Whether every set could be read."""
        return not any(item.error for item in self.sets)

    def text(self) -> str:
        """Everything, for a terminal."""
        blocks = [item.text() for item in self.sets]
        if self.contamination:
            lines = [
                f"contamination of {self.sets[0].name}",
                "  exact: the same question, left out of training; near: half of a test problem's word",
                "  10-grams with numbers masked, reported only",
            ]
            for name, found in self.contamination.items():
                near = "not looked for (generated)" if self.generated else f"{len(found.near)} near"
                lines.append(f"  {name}: {len(found.exact)} exact, {near}")
                lines += [f"    exact  {train} = {test}" for train, test in found.exact[:_SHOWN]]
                lines += [
                    f"    near   {c.train_id} ~ {c.test_id}, {100 * c.share:.0f} %"
                    for c in found.near[:_SHOWN]
                ]
                left = max(len(found.exact) - _SHOWN, 0) + max(len(found.near) - _SHOWN, 0)
                lines += [f"    and {left} more"] if left else []
            blocks.append("\n".join(lines))
        return "\n\n".join(blocks)


def describe_data(config: DataConfig) -> DataInfo:
    """Read every set of a recipe and compare the training set with the test sets.

    A set that cannot be read is described with the reason; the others are described all the same.
    """
    train, train_info = describe_set(config.train)
    generated = config.train.source == "reasoning_gym"
    sets, contamination = [train_info], {}
    for item in config.test:
        problems, info = describe_set(item)
        sets.append(info)
        if train and problems:
            found = find_contamination(train, problems)
            contamination[item.name] = Contamination(found.exact, ()) if generated else found
    return DataInfo(tuple(sets), contamination, generated)


def describe_set(config: ProblemSetConfig) -> tuple[list[Problem], SetInfo]:
    """Read one set: its problems (none if it cannot be read) and what there is to say of it."""
    source = _source(config)
    try:
        problems, report = load_reported(config)
    except DataError as error:
        return [], SetInfo(config.name, source, _licence(config), LoadReport(), 0, {}, str(error))
    return problems, SetInfo(config.name, source, _licence(config), report, len(problems), _golds(problems))


def data_record(config: DataConfig, sets: ProblemSets) -> dict[str, Any]:
    """What a run's sets hold, for ``data.json`` in its folder::

        {"sets": [{"name": ..., "use": "training", "source": ..., "licence": ..., "problems": 500,
                   "read": "500 problems of 512 rows; dropped 12 repeated", "golds": {"rules": 500},
                   "warnings": []}],
         "contamination": [{"set": ..., "exact": 1, "near": 3, "examples": [{"train": ..., "test": ...,
                            "share": 0.9}]}]}

    ``near`` is null where the training problems are generated; ``share`` is null for an exact copy.
    """
    rows = []
    parts = [(config.train, "training", sets.train, sets.train_report)]
    parts += [(item, "test", sets.test[item.name], sets.test_reports[item.name]) for item in config.test]
    for item, use, problems, report in parts:
        rows.append(
            {
                "name": item.name,
                "use": use,
                "source": _source(item),
                "licence": _licence(item),
                "problems": len(problems),
                "read": str(report),
                "golds": dict(_golds(problems)),
                "warnings": list(report.warnings),
            }
        )
    generated = config.train.source == "reasoning_gym"
    contamination = [
        {
            "set": name,
            "exact": len(found.exact),
            "near": None if generated else len(found.near),
            "examples": [
                *({"train": train, "test": test, "share": None} for train, test in found.exact[:_SHOWN]),
                *({"train": c.train_id, "test": c.test_id, "share": c.share} for c in found.near[:_SHOWN]),
            ],
        }
        for name, found in sets.contamination.items()
    ]
    return {"sets": rows, "contamination": contamination}


def _source(config: ProblemSetConfig) -> str:
    split = config.split or getattr(find_benchmark(config.source), "split", None)
    return f"{config.source}, split {split}" if split else config.source


def known_sets_table() -> str:
    """The known sets with licence and number of rows; nothing is read."""
    rows = [("source", "kind", "rows", "licence")]
    for item in BENCHMARKS.values():
        counts = ", ".join(
            [
                *(f"{split} {count}" if split else str(count) for split, count in item.rows.items()),
                *(f"{split} about {(low + high) // 2}" for split, (low, high) in item.about.items()),
            ]
        )
        rows.append((item.source, item.kind, counts or "not checked", item.licence))
    rows.append(("reasoning_gym", "math", "any number", "Apache-2.0"))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def _licence(config: ProblemSetConfig) -> str:
    if config.source == "reasoning_gym":
        return "Apache-2.0 (the generators)"
    known = find_benchmark(config.source) or _known_copy(Path(config.source).expanduser())
    if known is not None:
        return known.licence
    if Path(config.source).expanduser().exists():
        return "not stated: a local file has the licence of where it came from"
    return "not known here: see the card of the set"


def _known_copy(path: Path) -> Benchmark | None:
    if path.is_dir():
        return find_copy(path)
    found = find_file(str(path.absolute())) if path.is_file() else None
    return found[0] if found else None


def _golds(problems: Sequence[Problem]) -> Mapping[str, int]:
    """How many problems are checked by rules, by a reader (prose), and by tests of which style."""
    counts: Counter[str] = Counter()
    for problem in problems:
        tests = code_tests(problem)
        if tests is not None:
            counts[f"tests ({tests.style})"] += 1
        else:
            counts["a reader or judge (prose gold)" if is_prose(problem.answer) else "rules"] += 1
    return dict(sorted(counts.items(), key=lambda item: (item[0] != "rules", item[0])))
