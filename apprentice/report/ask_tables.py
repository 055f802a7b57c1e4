"""The tables of Learning to Ask: what each analysis found, one row an evaluation."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from apprentice.advisors.judge import QueryType
from apprentice.metrics.ask import C_OUT_SWEEP, CostOf, charged, mean_cost, priced, summarize_attempts, sweep
from apprentice.metrics.ask_baselines import oracle_curve
from apprentice.metrics.ask_difficulty import (
    BIN_EDGES,
    before_after,
    calling_utility,
    difficulty,
    rate_change,
)
from apprentice.metrics.ask_leakage import leakage
from apprentice.metrics.ask_queries import Key as QueryKey
from apprentice.metrics.ask_queries import QmakerScore, type_counts
from apprentice.metrics.ask_run import Evaluation, Planted
from apprentice.metrics.pareto import pareto_front
from apprentice.metrics.resample import DEFAULT, Interval, Resampling, interval_text
from apprentice.report.tables import Table

__all__ = [
    "Point", "change_tables", "difficulty_table", "front_points", "front_table", "leakage_table",
    "oracle_points", "priced_at",
    "qmaker_table", "query_table", "summary_table", "sweep_table", "utility_table",
]  # fmt: skip

Point = tuple[str, float, float]
"""(label, cost per trajectory, accuracy)"""


def _percent(interval: Interval, sign: bool = False) -> str:
    return interval_text(interval, 100, 1, sign=sign)


def _name(one: Evaluation, several_sets: bool) -> str:
    return f"{one.label}, {one.set_name}" if several_sets else one.label


def _several(found: Sequence[Evaluation]) -> bool:
    return len({one.set_name for one in found}) > 1


def _confidence(how: Resampling) -> str:
    return f"[{100 * how.confidence:g} % interval over problems]"


def summary_table(found: Sequence[Evaluation], how: Resampling = DEFAULT) -> Table:
    """Avg@k, cost per trajectory and call rate (6.1)."""
    rows, notes = [], []
    for one in found:
        s = summarize_attempts(one.attempts, charged, how)
        rows.append((
            _name(one, _several(found)), one.mode, "-" if one.budget is None else str(one.budget),
            str(s.problems), s.k, _percent(s.accuracy), interval_text(s.cost, 1, 0), _percent(s.call_rate),
            _number(s.query_tokens), _number(s.advice_tokens), str(s.refused),
        ))  # fmt: skip
        if s.unknown_costs:
            notes.append(
                f"{one.label}: the cost of {s.unknown_costs} of {s.trajectories} trajectories is not known; "
                "they are left out of the cost, not counted as 0."
            )
        if lost := len(one.trajectories) - s.trajectories:
            notes.append(
                f"{one.label}: {lost} trajectories were lost to infrastructure and are in no number."
            )
    head = (
        "evaluation", "mode", "b", "n", "k", "Avg@k, %", "cost/trajectory", "call rate, %", "|q|", "|z|",
        "refused",
    )  # fmt: skip
    return Table(f"Accuracy, cost and call rate {_confidence(how)}", head, tuple(rows), tuple(notes), left=2)


def sweep_table(found: Sequence[Evaluation], how: Resampling = DEFAULT) -> Table:
    """Cost per trajectory at other prices, and by calls (C.3, C.4)."""
    rows, notes = [], []
    for one in found:
        costs = sweep(one.attempts, how=how)
        rows.append((
            _name(one, _several(found)),
            *(_number(interval.value) if name != "calls" else _number(interval.value, 2)
              for name, (interval, _) in costs.items()),
        ))  # fmt: skip
        if unknown := costs["c_out=1"][1]:
            notes.append(f"{one.label}: {unknown} trajectories of unknown usage are left out.")
    head = ("evaluation", *(f"c_out = {c:g}" for c in C_OUT_SWEEP), "calls")
    return Table("Cost per trajectory at c_in = 1 (recomputed), and calls", head, tuple(rows), tuple(notes))


def front_points(
    found: Sequence[Evaluation], cost: CostOf = charged, how: Resampling = DEFAULT
) -> tuple[list[Point], list[str]]:
    """A point an evaluation, and what has no place because none of its costs is known."""
    points, left_out = [], []
    for one in found:
        found_here = one.attempts
        if not found_here:
            continue
        mean, _ = mean_cost(found_here, cost, how)
        accuracy = summarize_attempts(found_here, cost, how).accuracy
        name = _name(one, _several(found))
        if mean.value is None or accuracy.value is None:
            left_out.append(name)
        else:
            points.append((name, mean.value, accuracy.value))
    return points, left_out


def oracle_points(found: Sequence[Evaluation], cost: CostOf = charged) -> tuple[list[Point], list[str]]:
    """The problem-level oracle's curve, where the run has SLM only and LLM only."""
    slm = [a for one in found if one.mode == "solo" for a in one.attempts]
    llm = [a for one in found if one.mode == "llm_only" for a in one.attempts]
    if not slm or not llm:
        return [], []
    curve = oracle_curve(slm, llm, cost)
    notes = [
        f"problem-level oracle: {count} problems {why}"
        for count, why in (
            (curve.unpaired, "have no run on one side and are left out"),
            (curve.unknown_cost, "gain at an unknown cost and are not routed"),
        )
        if count
    ]
    return [(f"oracle, {p.routed} routed", p.cost, p.accuracy) for p in curve.points], notes


def front_table(
    points: Sequence[Point],
    notes: Sequence[str] = (),
    title: str = "",
    shown: Sequence[Point] | None = None,
) -> Table:
    """Points by cost; those on the Pareto front of all ``points`` are marked.

    Args:
        shown: those of ``points`` that get a row; None: all.
    """
    front = pareto_front(points, lambda p: p[1], lambda p: p[2])
    rows = tuple(
        (name, _number(cost, 1), f"{100 * accuracy:.1f}", "*" if (name, cost, accuracy) in front else "")
        for name, cost, accuracy in sorted(points if shown is None else shown, key=lambda p: (p[1], -p[2]))
    )
    head = ("point", "cost/trajectory", "Avg@k, %", "on the front")
    return Table(title or "Accuracy against cost; * is not dominated", head, rows, tuple(notes))


def difficulty_table(
    found: Sequence[Evaluation], solo: Mapping[str, float], how: Resampling = DEFAULT
) -> Table:
    """Spearman of standalone success with call rate and call position, and the call rate in its bins."""
    rows, notes = [], []
    for one in found:
        d = difficulty(one.attempts, solo, how)
        rows.append((
            _name(one, _several(found)), str(len(d.points)), interval_text(d.call), interval_text(d.position),
            *("-" if b.call_rate is None else f"{100 * b.call_rate:.0f} ({b.problems})" for b in d.bins),
        ))  # fmt: skip
        if d.without_solo:
            notes.append(f"{one.label}: {d.without_solo} problems without a standalone success are left out.")
    heads = [f"{100 * low:.0f}-{100 * high:.0f} %" for low, high in itertools.pairwise(BIN_EDGES)]
    notes.append(
        "Standalone success: the lower, the harder. A negative correlation: harder problems call more."
    )
    notes.append("Bins of standalone success: call rate in % (problems).")
    head = ("evaluation", "n", "rho of calling", "rho of call position", *heads)
    return Table(f"Calling against standalone success {_confidence(how)}", head, tuple(rows), tuple(notes))


def utility_table(found: Sequence[Evaluation], solo: Mapping[str, float], how: Resampling = DEFAULT) -> Table:
    """Calling utility against matched solo runs (section 4)."""
    rows, notes = [], []
    for one in found:
        u = calling_utility(one.attempts, solo, how)
        rows.append((
            _name(one, _several(found)), str(u.problems), str(u.trajectories), _share(u.with_call),
            _share(u.alone), _percent(u.gain, sign=True),
        ))  # fmt: skip
        if u.without_solo:
            notes.append(f"{one.label}: {u.without_solo} calls without a matched solo run are left out.")
    head = ("evaluation", "problems", "calling", "with call, %", "alone, %", "utility, points")
    return Table(f"Calling utility {_confidence(how)}", head, tuple(rows), tuple(notes))


def query_table(found: Sequence[Evaluation], typed: Mapping[QueryKey, QueryType]) -> Table | None:
    """Query types (F.5); None where nothing was judged."""
    counted = type_counts(found, typed)
    if not any(row.judged for row in counted):
        return None
    rows = tuple(
        (
            row.label, "-" if row.budget is None else str(row.budget), str(row.queries), str(row.judged),
            *(_share(row.shares.get(kind)) for kind in QueryType),
        )
        for row in counted
    )  # fmt: skip
    head = ("evaluation", "b", "queries", "judged", *(f"{kind.lower()}, %" for kind in QueryType))
    return Table("Query types, in % of the judged queries", head, rows)


def qmaker_table(scores: Sequence[tuple[str, QmakerScore]], how: Resampling = DEFAULT) -> Table:
    """Qmaker on held-out states: complete queries, replies within budget, and both."""
    rows = tuple(
        (name, str(s.trajectories), _percent(s.complete), _percent(s.within), _percent(s.both),
         _percent(s.reward))
        for name, s in scores
    )  # fmt: skip
    notes = tuple(f"{name}: |z| of {s.unknown} replies is not known." for name, s in scores if s.unknown)
    head = ("Qmaker", "queries", "complete, %", "within budget, %", "both, %", "reward, %")
    return Table(f"Qmaker on held-out states {_confidence(how)}", head, rows, notes)


def leakage_table(
    found: Sequence[Evaluation], planted: Mapping[str, Planted], how: Resampling = DEFAULT
) -> Table:
    """Leakage per trajectory on problems with a planted secret (C.2, Table 4)."""
    rows = []
    for one in found:
        leak = leakage(one.trajectories, planted, how)
        if not leak.trajectories:
            continue
        rows.append((
            _name(one, _several(found)), str(leak.trajectories), str(leak.leaked), _percent(leak.everywhere),
            _percent(leak.seen), _percent(leak.held_out), _percent(leak.calling), _percent(leak.accuracy),
            _percent(leak.accuracy_clean),
        ))  # fmt: skip
    head = (
        "evaluation", "trajectories", "leaked", "leakage, %", "seen, %", "held out, %", "of calling, %",
        "Avg@k planted, %", "clean, %",
    )  # fmt: skip
    notes = (
        "Held out: the template or the entity type is in no training problem. Leakage: the exact value.",
    )
    return Table(f"Leakage per trajectory {_confidence(how)}", head, tuple(rows), notes)


def change_tables(
    before: Evaluation, after: Evaluation, solo: Mapping[str, float], how: Resampling = DEFAULT
) -> tuple[Table, Table]:
    """What a stage changed, paired; and the call rate by difficulty (Figures 9, 10)."""
    rows = []
    for row in before_after(before.attempts, after.attempts, charged, how):
        scale, digits = (1.0, 1) if row.name == "cost" else (100.0, 1)
        rows.append((
            row.name + ("" if row.name == "cost" else ", %"), str(row.difference.n),
            interval_text(row.before, scale, digits), interval_text(row.after, scale, digits),
            interval_text(row.difference, scale, digits, sign=True),
        ))  # fmt: skip
    title = f"{before.label} against {after.label} {_confidence(how)}"
    first = Table(title, ("", "n", "before", "after", "difference, paired"), tuple(rows))
    bins = tuple(
        (f"{100 * r.low:.0f}-{100 * r.high:.0f} %", str(r.relative.n), _share(r.before), _share(r.after),
         _percent(r.relative, sign=True))
        for r in rate_change(before.attempts, after.attempts, solo, how)
    )  # fmt: skip
    head = ("standalone success", "n", "call rate before, %", "after, %", "relative change, %")
    return first, Table(f"Change of the call rate by difficulty {_confidence(how)}", head, bins)


def priced_at(c_out: float | None, c_in: float) -> CostOf:
    """What the ledger charged, or Eq. 4 at other prices."""
    return charged if c_out is None else priced(c_out, c_in)


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"
