"""``summary.json``: what each stage did, in numbers that a script can check, and the same as a table.

::

    {"name": ..., "seed": ..., "controller": ..., "k": 4, "confidence": 0.95,
     "wall_seconds": ..., "peak_memory_bytes": ...,
     "modes": {"internalized": {"label": ..., "accuracy": 0.91, "low": 0.87, "high": 0.94, "n": 160, "k": 4,
                                "groups": {"main": {"accuracy": ..., ..., "families": {"gcd": {...}}},
                                           "apart": {...}}}},
     "gains": {"internalized - experts_removed": {"difference": 0.4, "low": ..., "high": ..., "n": 160}},
     "sets": [{"mode": ..., "set": ..., "n": 160, "k": 4, "mean": {"value": ..., "low": ..., "high": ...},
               "pass": {"2": {...}, "4": {...}}, "identical": [ids], "repeated": 3,
               "prose": {"n": 5, "word_for_word": 0, "judged": {"<model>": {"value": ..., ...}}}}],
     "data": {...}}

Accuracies are fractions of 1; ``n`` counts problems. A mode's own figure is that of its first group (``main``
where there is one): problem sets of other groups are reported apart and never averaged in. Problems with
golds in prose are in no figure of ``modes`` and ``gains``: ``sets`` counts them and has what a judge said
(:mod:`apprentice.metrics.set_scores`). ``data`` is what the run's sets held
(:func:`apprentice.data.info.data_record`). A figure without a problem is null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from apprentice.config.schema import Config
from apprentice.metrics.ask_run import EVALUATION_FILE
from apprentice.metrics.scores import mean_at_k
from apprentice.metrics.set_scores import by_rules, score_sets
from apprentice.results import ItemResult
from apprentice.run_folder import RunFolder

__all__ = [
    "MODE_LABELS", "advisor_alone", "as_evaluated", "attempts", "format_table", "mode_label", "summarize",
    "write_summary",
]  # fmt: skip

MODE_LABELS: dict[str, tuple[str, str]] = {
    "base": ("Base model", ""),
    "collaborative": ("Stage I", "with experts"),
    "experts_removed": ("Stage I", "experts removed"),
    "internalized": ("Stage II", "internalized"),
}
"""Evaluation mode -> what a reader calls it, in two lines, in the order of the table."""


def mode_label(mode: str) -> str:
    """One line for ``mode``, e.g. ``Stage I, experts removed``."""
    return ", ".join(part for part in MODE_LABELS.get(mode, (mode, "")) if part)


def advisor_alone(mode: str) -> bool:
    """Whether ``mode`` is a baseline of Learning to Ask in which the advisor solves the problems alone.

    The controller writes nothing there: its attempts have no text that could repeat, and no tokens.
    """
    return mode.startswith("llm_")


def as_evaluated(run: RunFolder, summary: Mapping[str, Any]) -> dict[str, Any]:
    """``summary`` with its modes and sets in the order in which a run of Learning to Ask evaluated them.

    Modes that the run did not list come last. Another run's summary stays as it is.
    """
    order = [row["label"] for row in run.read_json(EVALUATION_FILE) or ()]
    modes, sets = summary.get("modes") or {}, summary.get("sets") or ()
    if not order:
        return dict(summary)
    by_mode = {mode: [row for row in sets if row["mode"] == mode] for mode in (row["mode"] for row in sets)}
    return {
        **summary,
        "modes": {mode: modes[mode] for mode in _ordered(modes, order)},
        "sets": [row for mode in _ordered(by_mode, order) for row in by_mode[mode]],
    }


def summarize(config: Config, items: Iterable[ItemResult], run: Path | None = None) -> dict[str, Any]:
    """The ``modes``, ``gains`` and ``sets`` of a summary, with intervals as ``config.evaluation`` says.

    A set's score is Mean@k over its problems; a group of several sets is the mean of its sets' scores (as in
    the paper's last column), however many problems each has.

    Args:
        config: names the groups of the problem sets, and how intervals are made.
        items: per-item results of every mode and set.
        run: the folder that may hold judgements.
    """
    items = list(items)
    groups = {s.name: s.group for s in config.data.test}
    cells: dict[str, dict[str, list[ItemResult]]] = {}
    for item in items:
        group = groups.get(item.set_name, "main")
        cells.setdefault(item.mode, {}).setdefault(group, []).append(item)
    modes: dict[str, Any] = {}
    for mode in _ordered(cells, MODE_LABELS):
        by_group = {}
        for group in _ordered(cells[mode], ["main", *groups.values()]):
            members = by_rules(cells[mode][group])
            families = _by(members, lambda item: item.family or item.set_name)
            by_group[group] = {
                **_cell(members, config),
                "families": {family: _cell(found, config) for family, found in families.items()},
            }
        head = next(iter(by_group.values()))
        modes[mode] = {
            "label": mode_label(mode),
            **{key: head[key] for key in ("accuracy", "low", "high", "n", "k")},
            "groups": by_group,
        }
    how = config.evaluation
    sets = score_sets(
        items, run, confidence=how.confidence, bootstrap_samples=how.bootstrap_samples, seed=config.seed
    )
    return {"modes": modes, "gains": _gains(cells, config), "sets": [found.row() for found in sets]}


def write_summary(
    run: RunFolder, items: Iterable[ItemResult], *, wall_seconds: float, peak_memory_bytes: int
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
        **summarize(config, items, run.path),
        "data": run.read_json("data.json"),
    }
    summary = as_evaluated(run, summary)
    run.write_json("summary.json", summary)
    return summary


def attempts(summary: Mapping[str, Any]) -> str:
    """How many attempts a problem had, e.g. ``mean of 4 attempts`` or ``mean of 1 to 16 attempts``."""
    cells = [group for mode in summary["modes"].values() for group in mode["groups"].values()]
    counts = sorted(
        {k for cell in cells for k in (cell["k"] if isinstance(cell["k"], list) else [cell["k"]]) if k}
    )
    if not counts:  # a run without an evaluation
        return ""
    if counts == [1]:
        return "one attempt each"
    return f"mean of {counts[0] if len(counts) == 1 else f'{counts[0]} to {counts[-1]}'} attempts"


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
    lines.append("")
    lines.append(f"Accuracy in % [{confidence} interval over problems], {attempts(summary)}; n problems.")
    for name, gain in summary.get("gains", {}).items():
        first, _, second = name.partition(" - ")
        lines.append(
            f"{mode_label(first)} less {mode_label(second)}: {100 * gain['difference']:+.1f} points "
            f"[{100 * gain['low']:+.1f}, {100 * gain['high']:+.1f}], paired, n {gain['n']}."
        )
    for found in summary.get("sets", ()):
        where = f"{mode_label(found['mode'])}, {found['set']}"
        if found["prose"]["n"]:
            lines.append(
                f"{where}: {found['prose']['n']} golds are prose, which no rule checks; they are in no "
                "figure above. `apprentice evaluate judge` asks a model about them."
            )
        if found["identical"] and found["k"] > 1 and not advisor_alone(found["mode"]):
            lines.append(
                f"{where}: all {found['k']} attempts are one text at {len(found['identical'])} of "
                f"{found['n'] + found['prose']['n']} problems; `apprentice evaluate scores` names them."
            )
    return "\n".join(lines)


def _table_row(label: str, cells: Sequence[Mapping[str, Any] | None]) -> list[str]:
    counts = {str(cell["n"]) for cell in cells if cell}
    return [label, "/".join(sorted(counts)), *(_percent(cell) for cell in cells)]


def _percent(cell: Mapping[str, Any] | None) -> str:
    if cell is None or cell["accuracy"] is None:
        return "-"
    return f"{100 * cell['accuracy']:5.1f} [{100 * cell['low']:.1f}, {100 * cell['high']:.1f}]"


def _cell(items: Sequence[ItemResult], config: Config) -> dict[str, Any]:
    if not items:
        return {"accuracy": None, "low": None, "high": None, "n": 0, "k": 0}
    how = config.evaluation
    sets = list(_by(items, lambda item: item.set_name).values())
    attempts = sorted({len(item.verdicts) for item in items})
    if len(sets) == 1 and len(attempts) == 1:
        score = mean_at_k([i.correct for i in items], how.confidence, how.bootstrap_samples, config.seed)
        value, low, high = score.value, score.low, score.high
    else:
        value, low, high = _mean_of_sets([[i.accuracy for i in one] for one in sets], config)
    k = attempts[0] if len(attempts) == 1 else attempts
    return {"accuracy": value, "low": low, "high": high, "n": len(items), "k": k}


def _gains(cells: Mapping[str, Mapping[str, Sequence[ItemResult]]], config: Config) -> dict[str, Any]:
    """Paired differences between modes over the problems of the first group that both have."""
    gains = {}
    for first, second in (("internalized", "experts_removed"), ("experts_removed", "base")):
        if first not in cells or second not in cells:
            continue
        group = _ordered(cells[first], ["main"])[0]
        before = {(i.set_name, i.problem_id): i.accuracy for i in cells[second].get(group, ())}
        pairs = [i for i in by_rules(cells[first][group]) if (i.set_name, i.problem_id) in before]
        if pairs:
            sets = _by(pairs, lambda item: item.set_name).values()
            differences = [[i.accuracy - before[i.set_name, i.problem_id] for i in one] for one in sets]
            value, low, high = _mean_of_sets(differences, config)
            gains[f"{first} - {second}"] = {"difference": value, "low": low, "high": high, "n": len(pairs)}
    return gains


def _mean_of_sets(sets: Sequence[Sequence[float]], config: Config) -> tuple[float, float, float]:
    """Mean of the sets' means, with a percentile bootstrap that resamples problems within each set."""
    rng = np.random.default_rng(config.seed)
    means = np.zeros(config.evaluation.bootstrap_samples)
    for one in sets:
        values = np.asarray(one, np.float64)
        for i in range(len(means)):
            means[i] += values[rng.integers(0, len(values), len(values))].mean() / len(sets)
    tail = (1 - config.evaluation.confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(np.mean([np.mean(one) for one in sets])), float(low), float(high)


def _by(items: Iterable[ItemResult], key: Callable[[ItemResult], str]) -> dict[str, list[ItemResult]]:
    """Items by key, in order of first appearance."""
    found: dict[str, list[ItemResult]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def _ordered(names: Iterable[str], first: Iterable[str]) -> list[str]:
    """``names``, those that ``first`` lists before the others."""
    rank = {name: i for i, name in reversed(list(enumerate(first)))}
    return sorted(names, key=lambda name: rank.get(name, len(rank)))
