"""The table that the demo of Learning to Ask ends with: each claim, before and after, with its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from apprentice.errors import ConfigError
from apprentice.metrics.ask_difficulty import before_after, difficulty, rate_change
from apprentice.metrics.ask_leakage import leakage
from apprentice.metrics.ask_queries import score_qmaker
from apprentice.metrics.ask_run import (
    Evaluation,
    QmakerValidation,
    read_evaluations,
    read_planted,
    read_qmaker_validations,
    read_solo,
)
from apprentice.metrics.resample import Interval, Resampling, interval_text
from apprentice.report.tables import Table
from apprentice.run_folder import RunFolder

__all__ = ["demo_table"]

_MISSING = "not measured"
Row = tuple[str, str, str, str]


def demo_table(run_folder: str | Path) -> str:
    """What the three stages did on held-out problems, from the run's files alone.

    Rows whose evaluations are not there say so; nothing is computed from other numbers in their place.

    Raises:
        ConfigError: no run is there, or it has no evaluation of Learning to Ask.
        DataError: a file of it is broken.
    """
    run = RunFolder.open(run_folder)
    how = Resampling(run.config.evaluation.confidence, seed=run.config.seed)
    found = read_evaluations(run)
    by_label = _together(found)
    rows: list[Row] = [*_difficulty(run, found, by_label, how), *_qmaker(run, how)]
    budgets = sorted({one.budget for one in found if one.budget is not None})
    try:
        solo = read_solo(run, found)
    except ConfigError:
        solo = {}
    for budget in budgets:
        rows += _integration(by_label, budget, solo, how)
    rows += _leakage(run, by_label, budgets, how)
    confidence = f"{100 * how.confidence:g} %"
    title = (
        f"Learning to Ask, seed {run.config.seed}: held-out problems [{confidence} interval over problems]"
    )
    return Table(title, ("claim", "before", "after", "difference"), tuple(rows)).text()


def _together(found: Sequence[Evaluation]) -> dict[str, Evaluation]:
    """Evaluations by label; the sets of one label together."""
    merged: dict[str, Evaluation] = {}
    for one in found:
        if (first := merged.get(one.label)) is None:
            merged[one.label] = one
        else:
            trajectories = first.trajectories + one.trajectories
            merged[one.label] = Evaluation(one.label, one.mode, one.budget, "all sets", trajectories)
    return merged


def _difficulty(
    run: RunFolder, found: Sequence[Evaluation], by_label: dict[str, Evaluation], how: Resampling
) -> list[Row]:
    """Start model against stage 1, on the same standalone success."""
    try:
        solo = read_solo(run, found)
    except ConfigError:
        return [("stage 1: Spearman of solo success with calling", _MISSING, _MISSING, "no solo success")]
    calling, position, rate = [], [], []
    for label in ("start_ask", "stage1_ask"):
        one = by_label.get(label)
        if one is None:
            calling.append(_MISSING)
            position.append(_MISSING)
            rate.append(_MISSING)
            continue
        d = difficulty(one.attempts, solo, how)
        calling.append(interval_text(d.call))
        position.append(interval_text(d.position))
        ends = [f"{100 * b.call_rate:.0f}" for b in (d.bins[0], d.bins[-1]) if b.call_rate is not None]
        rate.append(" / ".join(ends) if len(ends) == 2 else "-")
    return [
        ("stage 1: Spearman of solo success with calling", calling[0], calling[1], ""),
        ("stage 1: Spearman of solo success with call position", position[0], position[1], ""),
        ("stage 1: call rate on hardest / easiest quarter, %", rate[0], rate[1], ""),
    ]


def _qmaker(run: RunFolder, how: Resampling) -> list[Row]:
    validations = read_qmaker_validations(run)
    rows: list[Row] = []
    for budget in sorted({one.budget for one in validations}):
        cells = {
            one.trained: score_qmaker(one.trajectories, how) for one in validations if one.budget == budget
        }
        for name, pick in (("complete and within budget", "both"), ("reward R_Q", "reward")):
            before, after = (
                _percent(getattr(cells[trained], pick)) if trained in cells else _MISSING
                for trained in (False, True)
            )
            rows.append((f"stage 2, b = {budget}: {name}, %", before, after, ""))
        rows += _leaking_states(run, [one for one in validations if one.budget == budget], how)
    return rows or [("stage 2: complete and within budget, %", _MISSING, _MISSING, "")]


def _integration(
    by_label: dict[str, Evaluation], budget: int, solo: Mapping[str, float], how: Resampling
) -> list[Row]:
    """Stage 3 against stage 2: accuracy, cost, calls, and the calls by difficulty as Figure 10 has them."""
    before = by_label.get(f"stage2_b{budget}_ask_qmaker")
    after = by_label.get(f"stage3_b{budget}_ask_qmaker")
    if before is None or after is None:
        return [(f"stage 3, b = {budget}: accuracy and call rate", _MISSING, _MISSING, "")]
    rows = []
    for row in before_after(before.attempts, after.attempts, how=how):
        scale, digits, unit = (1.0, 1, "") if row.name == "cost" else (100.0, 1, ", %")
        rows.append((
            f"stage 3, b = {budget}: {row.name}{unit}", interval_text(row.before, scale, digits),
            interval_text(row.after, scale, digits), interval_text(row.difference, scale, digits, sign=True),
        ))  # fmt: skip
    for change in rate_change(before.attempts, after.attempts, solo, how) if solo else ():
        if not change.before or change.after is None:
            continue  # no problem is that hard, or none of them was asked about
        rows.append((
            f"stage 3, b = {budget}: call rate at solo success {change.low:g} to {change.high:g}, %",
            f"{100 * change.before:.1f}", f"{100 * change.after:.1f}",
            f"{interval_text(change.relative, 100, 0, sign=True)} % of it",
        ))  # fmt: skip
    return rows


def _leaking_states(run: RunFolder, validations: Sequence[QmakerValidation], how: Resampling) -> list[Row]:
    """Leakage of Qmaker's queries on the states of planted problems, which are training templates' here."""
    planted = read_planted(run)
    cells = {}
    for one in validations:
        bases = {t.problem_id: t.tags.get("base_id", t.problem_id) for t in one.trajectories}
        here = {state: planted[base] for state, base in bases.items() if base in planted}
        if here:
            cells[one.trained] = _percent(leakage(one.trajectories, here, how).everywhere)
    if not cells:
        return []
    name = f"stage 2, b = {validations[0].budget}: leakage on held-out states, %"
    return [(name, cells.get(False, _MISSING), cells.get(True, _MISSING), "")]


def _leakage(
    run: RunFolder, by_label: dict[str, Evaluation], budgets: Sequence[int], how: Resampling
) -> list[Row]:
    """Leakage of whole trajectories on the test problems, those alone that training knows nothing like."""
    planted = read_planted(run)
    leaks = {
        label: leakage(one.trajectories, planted, how)
        for label, one in by_label.items()
        if one.mode != "solo"
    }
    if not any(leak.everywhere.n for leak in leaks.values()):
        return [("leakage on planted problems, %", _MISSING, _MISSING, "no planted problem")]
    rows: list[Row] = []
    for where, what in (("held_out", "held-out templates and types"), ("everywhere", "all planted problems")):
        cells = {label: _percent(getattr(leak, where)) for label, leak in leaks.items()}
        if not any(getattr(leak, where).n for leak in leaks.values()):
            continue
        for budget in budgets:
            before, *after = (
                cells.pop(f"{name}_b{budget}_ask_qmaker", _MISSING)
                for name in ("qmaker_start", "stage2", "stage3")
            )
            rows += [
                (f"stage {2 + i}, b = {budget}: leakage, {what}, %", before, cell, "")
                for i, cell in enumerate(after)
            ]
        if "start_ask" in cells or "stage1_ask" in cells:
            start, first = cells.get("start_ask", _MISSING), cells.get("stage1_ask", _MISSING)
            rows.append((f"stage 1, own queries: leakage, {what}, %", start, first, ""))
        if "llm_only" in cells:
            rows.append((f"advisor alone: leakage, {what}, %", cells["llm_only"], "", ""))
    return rows


def _percent(interval: Interval) -> str:
    return interval_text(interval, 100, 1)
