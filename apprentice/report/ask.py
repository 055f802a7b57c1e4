"""The section "Asking" of a run's report: charts and tables of Learning to Ask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from apprentice.advisors.judge import QueryType
from apprentice.errors import ConfigError
from apprentice.metrics.ask import C_OUT_SWEEP, charged, sweep
from apprentice.metrics.ask_difficulty import Difficulty, difficulty
from apprentice.metrics.ask_queries import TypedQueries, score_qmaker, type_counts, typed_queries
from apprentice.metrics.ask_run import (
    EVALUATION_FILE,
    Evaluation,
    read_evaluations,
    read_planted,
    read_qmaker_validations,
    read_solo,
)
from apprentice.metrics.logger import MetricRow
from apprentice.metrics.pareto import pareto_front
from apprentice.metrics.resample import Resampling
from apprentice.report.ask_tables import (
    Point,
    change_tables,
    difficulty_table,
    front_points,
    front_table,
    leakage_table,
    oracle_points,
    qmaker_table,
    query_table,
    summary_table,
    sweep_table,
    utility_table,
)
from apprentice.report.svg import Series, line_chart
from apprentice.report.tables import Table
from apprentice.report.trajectories import spread
from apprentice.run_folder import RunFolder

__all__ = ["ASKING", "AskSection", "ask_section", "stage_pairs", "tables_of"]

ASKING = ("ask", "ask_qmaker")
"""Modes in which the reasoner may ask."""

_ORACLE_ROWS = 10  # of the oracle's curve in the table; the chart has all of it
_SOLO_HINT = (
    "Solo success: the share of attempts at a problem that the reasoner got right at the start, without the "
    "advisor; the lower, the harder. Bins of one problem stand in the table only."
)
_FEWEST = 2  # problems of a bin in a chart: one problem is no rate

_BOOTSTRAP = 1000  # resamples of each interval: a report has about a hundred


@dataclass(frozen=True, slots=True)
class AskSection:
    """``training``: charts of the stages; ``charts``, a ``hint`` on them, ``tables``: of evaluations."""

    training: tuple[Markup, ...]
    charts: tuple[Markup, ...]
    tables: tuple[Table, ...]
    hint: str = ""


def ask_section(run: RunFolder, rows: Sequence[MetricRow]) -> AskSection | None:
    """The section, or None for a run that never had an advisor to ask.

    Args:
        run: its folder.
        rows: its metrics.
    """
    training = _training_charts(rows)
    if run.read_json(EVALUATION_FILE) is None:
        return AskSection(training, (), ()) if training else None
    how = Resampling(run.config.evaluation.confidence, _BOOTSTRAP, run.config.seed)
    found = read_evaluations(run)
    charts = _charts(run, found, how)
    hint = _SOLO_HINT if any("solo success" in chart for chart in charts) else ""
    return AskSection(training, charts, tuple(tables_of(run, found, how)), hint)


def tables_of(run: RunFolder, found: Sequence[Evaluation], how: Resampling) -> list[Table]:
    """Every table that the run has the data for."""
    points, left_out = front_points(found, charged, how)
    oracle, notes = oracle_points(found)
    notes += [f"{name}: no cost is known; it has no place here" for name in left_out]
    shown = spread(oracle, _ORACLE_ROWS)
    if len(shown) < len(oracle):
        notes.append(
            f"{len(shown)} of the {len(oracle)} points of the oracle's curve are shown; "
            '"apprentice ask pareto" prints all.'
        )
    front = front_table([*points, *oracle], notes, shown=[*points, *shown])
    tables = [summary_table(found, how), front]
    asking = [one for one in found if one.mode in ASKING]
    try:
        solo = read_solo(run, found)
    except ConfigError:
        solo = {}
    if asking:
        tables.append(sweep_table(asking, how))
        if solo:
            tables += [difficulty_table(asking, solo, how), utility_table(asking, solo, how)]
    if validations := read_qmaker_validations(run):
        scores = [
            (
                f"b = {v.budget}, {'trained' if v.trained else 'at the start'}",
                score_qmaker(v.trajectories, how),
            )
            for v in validations
        ]
        tables.append(qmaker_table(scores, how))
    for before, after in stage_pairs(found):
        tables += change_tables(before, after, solo, how)
    if (queries := query_table(found, typed_queries(run))) is not None:
        tables.append(queries)
    if planted := read_planted(run):
        tables.append(leakage_table([one for one in found if one.mode != "solo"], planted, how))
    return [table for table in tables if table.rows]


def stage_pairs(found: Sequence[Evaluation]) -> list[tuple[Evaluation, Evaluation]]:
    """(after stage 2, after stage 3) of each budget and set: what integration changed."""
    by_key = {(one.label, one.set_name): one for one in found}
    pairs = []
    for one in found:
        before = by_key.get((one.label.replace("stage3_", "stage2_", 1), one.set_name))
        if one.label.startswith("stage3_") and before is not None:
            pairs.append((before, one))
    return pairs


def _charts(run: RunFolder, found: Sequence[Evaluation], how: Resampling) -> tuple[Markup, ...]:
    charts = [_front_chart(found, how)]
    asking = [one for one in found if one.mode in ASKING]
    try:
        solo = read_solo(run, found)
    except ConfigError:
        solo = {}
    if solo:
        few = Resampling(how.confidence, 1, how.seed)  # the bins alone, no interval
        by_label = {_title(one, found): difficulty(one.attempts, solo, few) for one in asking}
        charts += [
            _bins_chart(by_label, "call_rate", "Call rate by solo success", "%", 100.0),
            _bins_chart(by_label, "position", "Call position by solo success", "tokens", 1.0),
        ]
    charts += [_sweep_chart(asking, found), _types_chart(type_counts(found, typed_queries(run)))]
    return tuple(chart for chart in charts if chart is not None)


def _title(one: Evaluation, found: Sequence[Evaluation]) -> str:
    """Name of its line in a chart: the label without the mode that all after stage 1 have."""
    name = one.label.removesuffix("_ask_qmaker")
    return name if len({e.set_name for e in found}) == 1 else f"{name}, {one.set_name}"


def _front_chart(found: Sequence[Evaluation], how: Resampling) -> Markup | None:
    """Fronts of asking (with SLM only), of the oracle, and the advisor alone."""
    few = Resampling(how.confidence, 1, how.seed)
    groups: dict[str, list[Point]] = {
        "asking": front_points([one for one in found if one.mode in (*ASKING, "solo")], charged, few)[0],
        "oracle": oracle_points(found)[0],
        "advisor": front_points([one for one in found if one.mode.startswith("llm_")], charged, few)[0],
    }
    series = []
    for number, (name, points) in enumerate(groups.items()):
        front = pareto_front(points, lambda p: p[1], lambda p: p[2])
        if front:
            x, y = [cost for _, cost, _ in front], [100 * accuracy for _, _, accuracy in front]
            series.append(Series(name, x, y, f"c{number}"))
    if not series:
        return None
    return line_chart(series, title="Pareto front: Avg@k", unit="%", x_label="cost", dots=True)


def _bins_chart(
    by_label: Mapping[str, Difficulty], field: str, title: str, unit: str, scale: float
) -> Markup | None:
    series = []
    for number, (label, found) in enumerate(by_label.items()):
        points = [(50 * (b.low + b.high), getattr(b, field)) for b in found.bins if b.problems >= _FEWEST]
        known = [(x, scale * y) for x, y in points if y is not None]
        if known:
            series.append(Series(label, [x for x, _ in known], [y for _, y in known], f"c{number % 8}"))
    if not series:
        return None
    return line_chart(series, title=title, unit=unit, zero=True, x_label="% solo", dots=True)


def _sweep_chart(asking: Sequence[Evaluation], found: Sequence[Evaluation]) -> Markup | None:
    few, series = Resampling(samples=1), []
    for number, one in enumerate(asking):
        costs = sweep(one.attempts, C_OUT_SWEEP, how=few)
        known = [(c, v) for c in C_OUT_SWEEP if (v := costs[f"c_out={c:g}"][0].value) is not None]
        if known:
            line = Series(_title(one, found), [c for c, _ in known], [v for _, v in known], f"c{number % 8}")
            series.append(line)
    if not series:
        return None
    return line_chart(
        series, title="Cost per trajectory", unit="c_in = 1", zero=True, x_label="c_out", dots=True
    )


def _types_chart(counted: Sequence[TypedQueries]) -> Markup | None:
    judged = sorted(
        (row for row in counted if row.judged and row.budget is not None),
        key=lambda row: row.budget or 0,
    )
    if not judged:
        return None
    last = {row.budget: row for row in judged}  # of one budget the latest stage
    series = [
        Series(
            kind.lower(),
            [float(budget or 0) for budget in last],
            [100 * row.shares[kind] for row in last.values()],
            f"c{number}",
        )
        for number, kind in enumerate(QueryType)
    ]
    return line_chart(series, title="Query types by budget", unit="%", zero=True, x_label="b", dots=True)


_CURVES = {
    "ask/reward": "Reward",
    "ask/call_rate": "Call rate",
    "ask/correct": "Right answers",
    "ask/complete": "Complete queries",
    "ask/feasible": "Replies within budget",
    "ask/safe": "Queries without a secret",
    "validation/score": "Validation score",
}
_WARMUPS = ("ask_warmup", "qmaker_warmup")


def _training_charts(rows: Sequence[MetricRow]) -> tuple[Markup, ...]:
    """Each curve over the steps of every stage that logged it, and the warm-ups' losses."""
    logged = list(dict.fromkeys(row.stage for row in rows))
    stages = [stage for stage in logged if stage.startswith("ask_stage")]
    warmups = [stage for stage in logged if stage in _WARMUPS]
    charts = []
    for name, title, where in (
        ("loss", "Loss of the warm-ups", warmups),
        *((name, title, stages) for name, title in _CURVES.items()),
    ):
        series = []
        for number, stage in enumerate(where):
            points = [(r.step, r.values[name]) for r in rows if r.stage == stage and name in r.values]
            if points:
                label = stage.removeprefix("ask_")
                series.append(Series(label, [x for x, _ in points], [y for _, y in points], f"c{number % 8}"))
        if series:  # a single line has no label: the caption says whose it is
            charts.append(line_chart(series, title=title, unit=series[0].label if len(series) == 1 else ""))
    return tuple(charts)
