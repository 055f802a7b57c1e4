"""``summary.json``: what each stage did, in numbers that a script can check, and the same as a table.

::

    {"name": ..., "seed": ..., "controller": ..., "k": 4, "confidence": 0.95,
     "wall_seconds": ..., "peak_memory_bytes": ...,
     "modes": {"internalized": {"label": ..., "accuracy": 0.91, "low": 0.87, "high": 0.94, "n": 160, "k": 4,
                                "groups": {"main": {"accuracy": ..., ..., "families": {"gcd": {...}}},
                                           "apart": {...}}}},
     "gains": {"internalized - experts_removed": {"difference": 0.4, "low": ..., "high": ..., "n": 160}}}

Accuracies are fractions of 1; ``n`` counts problems. A mode's own figure is that of its first group (``main``
where there is one): problem sets of other groups are reported apart and never averaged in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from apprentice.config.schema import Config
from apprentice.results import ItemResult
from apprentice.run_folder import RunFolder

__all__ = ["MODE_LABELS", "Interval", "format_table", "mode_label", "summarize", "write_summary"]

MODE_LABELS: dict[str, tuple[str, str]] = {
    "base": ("Base model", ""),
    "collaborative": ("Stage I", "with experts"),
    "experts_removed": ("Stage I", "experts removed"),
    "internalized": ("Stage II", "internalized"),
}
"""Evaluation mode -> what a reader calls it, in two lines, in the order of the table."""


class Interval(Protocol):
    """An estimate with a confidence interval."""

    @property
    def value(self) -> float:
        """The estimate."""
        ...

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        ...

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        ...


ScoreFunction = Callable[[Sequence[Sequence[bool]]], Interval]
"""Mean@k of problems (rows) by attempts, with an interval over problems."""

GainFunction = Callable[[Sequence[Sequence[bool]], Sequence[Sequence[bool]]], Interval]
"""Mean@k of the first less that of the second on the same problems, with a paired interval."""


def mode_label(mode: str) -> str:
    """One line for ``mode``, e.g. ``Stage I, experts removed``."""
    return ", ".join(part for part in MODE_LABELS.get(mode, (mode, "")) if part)


def summarize(
    config: Config, items: Iterable[ItemResult], score: ScoreFunction, gain: GainFunction | None = None
) -> dict[str, Any]:
    """The ``modes`` and ``gains`` of a summary.

    Args:
        config: names the groups of the problem sets.
        items: per-item results of every mode and set.
        score: estimates one set of items.
        gain: estimates a paired difference; without it there are no ``gains``.
    """
    groups = {s.name: s.group for s in config.data.test}
    cells: dict[str, dict[str, list[ItemResult]]] = {}
    for item in items:
        group = groups.get(item.set_name, "main")
        cells.setdefault(item.mode, {}).setdefault(group, []).append(item)
    modes: dict[str, Any] = {}
    for mode in _ordered(cells, MODE_LABELS):
        by_group = {}
        for group in _ordered(cells[mode], ["main", *groups.values()]):
            members = cells[mode][group]
            families = dict.fromkeys(item.family or item.set_name for item in members)
            by_group[group] = {
                **_cell(members, score),
                "families": {
                    family: _cell([i for i in members if (i.family or i.set_name) == family], score)
                    for family in families
                },
            }
        head = next(iter(by_group.values()))
        modes[mode] = {
            "label": mode_label(mode),
            **{key: head[key] for key in ("accuracy", "low", "high", "n", "k")},
            "groups": by_group,
        }
    summary: dict[str, Any] = {"modes": modes}
    if gain is not None:
        summary["gains"] = _gains(cells, gain)
    return summary


def write_summary(
    run: RunFolder,
    items: Iterable[ItemResult],
    score: ScoreFunction,
    gain: GainFunction | None = None,
    *,
    wall_seconds: float,
    peak_memory_bytes: int,
) -> dict[str, Any]:
    """Write ``summary.json`` of a run and return it. See the module's docstring for its form."""
    config = run.config
    summary = {
        "name": config.name,
        "seed": config.seed,
        "controller": config.controller.model,
        "k": config.evaluation.k,
        "confidence": config.evaluation.confidence,
        "wall_seconds": round(wall_seconds, 1),
        "peak_memory_bytes": peak_memory_bytes,
        **summarize(config, items, score, gain),
    }
    run.write_json("summary.json", summary)
    return summary


def format_table(summary: Mapping[str, Any]) -> str:
    """The summary as a table for a terminal: modes across, all problems and each family down, in percent.

    Groups after the first are set off by a rule: they are not part of ``all``.
    """
    modes: Mapping[str, Any] = summary["modes"]
    if not modes:
        return "no results"
    confidence = f"{100 * summary.get('confidence', 0.95):g} %"
    heads = [MODE_LABELS.get(mode, (mode, "")) for mode in modes]
    rows: list[list[str] | None] = [["", "n", *(a for a, _ in heads)], ["", "", *(b for _, b in heads)], None]
    group_names = list(dict.fromkeys(g for mode in modes.values() for g in mode["groups"]))
    for number, group in enumerate(group_names):
        if number:
            rows.append(None)
        members = [mode["groups"].get(group) for mode in modes.values()]
        families = list(dict.fromkeys(f for m in members if m for f in m["families"]))
        if len(families) != 1:
            rows.append(_table_row("all problems" if number == 0 else f"all of {group}", members))
        indent = "  " if len(families) != 1 else ""
        rows.extend(
            _table_row(indent + family, [m["families"].get(family) if m else None for m in members])
            for family in families
        )
    full = [row for row in rows if row is not None]
    widths = [max(len(row[i]) for row in full) for i in range(len(full[0]))]
    total = sum(widths) + 2 * (len(widths) - 1)
    lines = [
        "─" * total
        if row is None
        else "  ".join(
            cell.rjust(width) if i == 1 else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    k = summary.get("k")
    lines.append("")
    lines.append(f"Accuracy in % [{confidence} interval over problems], mean of {k} attempts; n problems.")
    for name, gain in summary.get("gains", {}).items():
        first, _, second = name.partition(" - ")
        lines.append(
            f"{mode_label(first)} less {mode_label(second)}: {100 * gain['difference']:+.1f} points "
            f"[{100 * gain['low']:+.1f}, {100 * gain['high']:+.1f}], paired, n {gain['n']}."
        )
    return "\n".join(lines)


def _table_row(label: str, cells: Sequence[Mapping[str, Any] | None]) -> list[str]:
    counts = {str(cell["n"]) for cell in cells if cell}
    return [label, "/".join(sorted(counts)), *(_percent(cell) for cell in cells)]


def _percent(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return "-"
    return f"{100 * cell['accuracy']:5.1f} [{100 * cell['low']:.1f}, {100 * cell['high']:.1f}]"


def _cell(items: Sequence[ItemResult], score: ScoreFunction) -> dict[str, Any]:
    estimate = score([item.correct for item in items])
    attempts = {len(item.verdicts) for item in items}
    return {
        "accuracy": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "n": len(items),
        "k": max(attempts),
    }


def _gains(cells: Mapping[str, Mapping[str, Sequence[ItemResult]]], gain: GainFunction) -> dict[str, Any]:
    gains = {}
    for first, second in (("internalized", "experts_removed"), ("experts_removed", "base")):
        if first not in cells or second not in cells:
            continue
        group = next(iter(_ordered(cells[first], ["main"])))
        a = {(i.set_name, i.problem_id): i.correct for i in cells[first][group]}
        b = {(i.set_name, i.problem_id): i.correct for i in cells[second].get(group, ())}
        common = [key for key in a if key in b]
        if common:
            estimate = gain([a[key] for key in common], [b[key] for key in common])
            gains[f"{first} - {second}"] = {
                "difference": estimate.value,
                "low": estimate.low,
                "high": estimate.high,
                "n": len(common),
            }
    return gains


def _ordered(names: Iterable[str], first: Iterable[str]) -> list[str]:
    """``names``, those that ``first`` lists before the others."""
    rank = {name: i for i, name in reversed(list(enumerate(first)))}
    return sorted(names, key=lambda name: rank.get(name, len(rank)))
