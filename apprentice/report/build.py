"""One self-contained HTML file that shows what a run did. It needs no network and no server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import yaml
from markupsafe import Markup, escape

from apprentice.metrics.logger import MetricRow, read_metrics
from apprentice.metrics.progress import format_seconds
from apprentice.report.ask import ask_section
from apprentice.report.bars import Bar, bar_chart, funnel
from apprentice.report.sections import sft_charts, stage1_charts
from apprentice.report.summary import advisor_alone, as_evaluated, attempts, mode_label
from apprentice.report.trajectories import OWNER_NAMES, DecodeToken, choose, json_for_script, viewer_data
from apprentice.results import ItemResult, read_all_results
from apprentice.run_folder import RunFolder
from apprentice.stage2.review import decisions
from apprentice.trajectory import Owner

__all__ = ["FUNNEL_FILE", "build_report"]

FUNNEL_FILE = "stage2_filters.json"
"""A JSON list of ``{"name": ..., "count": ...}``: what was sampled, and what each filter left, in order."""

_HERE = Path(__file__).parent
_MODE_COLOURS = {"base": "c7", "collaborative": "c1", "experts_removed": "c7", "internalized": "c0"}
_OWNER_TEXTS = {
    Owner.PROMPT: "instructions and the problem",
    Owner.CONTROLLER: "sampled by the model in training",
    Owner.EXPERT: "returned by an expert",
    Owner.OBSERVATION: "written by the environment: Python output, error texts",
    Owner.WRAPPER: "structure that the protocol inserts",
}


def build_report(
    run: RunFolder, decode_token: DecodeToken | None = None, *, max_trajectories: int = 40
) -> Path:
    """Write ``report.html`` from what the run folder holds; what it lacks is said, not shown empty.

    Args:
        run: the run folder.
        decode_token: text of a token id (function or table); ids are shown without it.
        max_trajectories: how many trajectories the viewer gets, right and wrong ones of each stage and mode.

    Returns:
        The file's path. Text of models, problems and users is escaped: it cannot become markup.
    """
    rows = read_metrics(run.metrics_path)
    stages = {stage: [row for row in rows if row.stage == stage] for stage in ("warmup", "stage1", "stage2")}
    summary: Mapping[str, Any] = run.read_json("summary.json") or {}
    if summary:
        summary = as_evaluated(run, summary)
    drawn = _funnel(run)
    chosen = choose(run, max_trajectories)
    results = read_all_results(run.path / "results")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["breakable"] = _breakable
    html = environment.get_template("page.html.j2").render(
        css=_asset("page.css"),
        js=_asset("page.js"),
        name=run.config.name,
        lead=_lead(run, stages),
        facts=_facts(run, summary),
        mode_bars=_mode_bars(summary),
        table=_table(summary),
        gains=_gains(summary),
        confidence=f"{100 * summary.get('confidence', run.config.evaluation.confidence):g} %",
        attempts=attempts(summary) if summary else "",
        sets=_sets(summary),
        data=summary.get("data"),
        costs=_costs(results, list(summary.get("modes") or ())),
        warmup=sft_charts(stages["warmup"]),
        has_stage1="stage1" in run.config.stages or bool(stages["stage1"]),
        has_stage2="stage2" in run.config.stages or bool(stages["stage2"]) or drawn is not None,
        stage1=stage1_charts(stages["stage1"]),
        stage1_steps=len(stages["stage1"]),
        stage2=sft_charts(stages["stage2"]),
        funnel=drawn,
        asking=ask_section(run, rows),
        trajectory_count=len(chosen),
        trajectories=json_for_script(viewer_data(chosen, decode_token)),
        owners=[(name, _OWNER_TEXTS[Owner(i)]) for i, name in enumerate(OWNER_NAMES)],
        provenance=run.provenance,
        config=yaml.safe_dump(
            yaml.safe_load((run.path / "config.yaml").read_text(encoding="utf-8")), sort_keys=False
        ),
    )
    path = run.path / "report.html"
    partial = run.path / "report.html.partial"
    partial.write_text(html, encoding="utf-8")
    partial.replace(path)
    return path


def _breakable(name: str) -> Markup:
    """A name whose line may break behind an underscore: a table of many modes fits into the page."""
    return escape(name).replace("_", Markup("_<wbr>"))


def _asset(name: str) -> Markup:
    return Markup((_HERE / name).read_text(encoding="utf-8"))


def _lead(run: RunFolder, stages: Mapping[str, list[MetricRow]]) -> str:
    """One sentence on what was run."""
    names = {
        "warmup": "protocol warm-up",
        "stage1": f"Stage I ({len(stages['stage1'])} steps)",
        "stage2": "Stage II",
        "evaluate": "evaluation",
        "ask_warmup": "warm-up of the forms",
        "ask_stage1": "whether to ask",
        "ask_stage2": "how to ask",
        "ask_stage3": "how to use the answer",
    }
    done = ", ".join(names[stage] for stage in run.config.stages)
    if run.config.ask is not None:
        return f"{run.config.controller.model}: {done}. Advisor: {run.config.ask.advisor.name}."
    experts = ", ".join(expert.name for expert in run.config.experts) or "none"
    return f"{run.config.controller.model}: {done}. Experts: {experts}."


def _facts(run: RunFolder, summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    provenance = run.provenance
    git = provenance.get("git") or {}
    revision = (git.get("revision") or "unknown")[:10] + (" (changed)" if git.get("dirty") else "")
    gpus = ", ".join(provenance.get("gpus") or ()) or "no GPU"
    memory = provenance.get("memory_bytes")
    machine = f"{provenance.get('cpus', '?')} cores, {f'{memory / 2**30:.0f} GiB, ' if memory else ''}{gpus}"
    wall, peak = summary.get("wall_seconds"), summary.get("peak_memory_bytes")
    return [
        ("Seed", str(run.config.seed)),
        ("Started", str(provenance.get("started", "unknown")).replace("T", " ").replace("Z", " UTC")),
        ("Wall time", format_seconds(wall) if wall is not None else "not recorded"),
        ("Peak memory", f"{peak / 2**30:.1f} GiB" if peak else "not recorded"),
        ("Machine", machine),
        ("Revision", revision),
    ]


def _mode_bars(summary: Mapping[str, Any]) -> Any:
    modes = summary.get("modes") or {}
    if not modes:
        return None
    bars = [
        Bar(
            mode_label(mode),
            100 * cell["accuracy"],
            100 * cell["low"],
            100 * cell["high"],
            f"n {cell['n']}",
            _MODE_COLOURS.get(mode, "c7"),
        )
        for mode, cell in modes.items()
        if cell["accuracy"] is not None
    ]
    if not bars:
        return None
    return bar_chart(bars, title="Accuracy by mode", unit="%", maximum=100.0)


def _table(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """Rows of the result table: every group, then its families, with one cell a mode (or None)."""
    modes = summary.get("modes") or {}
    if not modes:
        return None
    rows = []
    for number, group in enumerate(dict.fromkeys(g for mode in modes.values() for g in mode["groups"])):
        members = [mode["groups"].get(group) for mode in modes.values()]
        families = list(dict.fromkeys(f for m in members if m for f in m["families"]))
        if len(families) != 1:
            label = "All problems" if number == 0 else f"All of {group}"
            rows.append({"label": label, "kind": "group", "cells": members, "apart": number > 0})
        for family in families:
            cells = [m["families"].get(family) if m else None for m in members]
            kind = "family" if len(families) != 1 else "group"
            rows.append({"label": family, "kind": kind, "cells": cells, "apart": number and kind == "group"})
    return {"modes": [mode_label(mode) for mode in modes], "rows": rows}


def _sets(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """One row a mode and set: what rules check, what is prose, what repeats."""
    found = summary.get("sets")
    if not found:
        return None
    sizes = sorted({int(k) for row in found for k in row["pass"]})
    rows = [
        {
            **row,
            "label": mode_label(row["mode"]),
            "passes": [row["pass"].get(str(k)) for k in sizes],
            "judged": [(model, cell) for model, cell in row["prose"]["judged"].items()],
            **({"identical": None, "repeated": None} if advisor_alone(row["mode"]) else {}),
        }
        for row in found
    ]
    return {
        "sizes": sizes,
        "rows": rows,
        "prose": any(row["prose"]["n"] for row in found),
        "identical": [row for row in rows if row["identical"] and row["k"] > 1],
    }


def _gains(summary: Mapping[str, Any]) -> list[str]:
    out = []
    for name, gain in (summary.get("gains") or {}).items():
        first, _, second = name.partition(" - ")
        out.append(
            f"{mode_label(first)} is {abs(100 * gain['difference']):.1f} points "
            f"{'above' if gain['difference'] >= 0 else 'below'} {mode_label(second)} "
            f"({100 * gain['low']:+.1f} to {100 * gain['high']:+.1f}; paired over {gain['n']} problems)."
        )
    return out


def _costs(results: Iterable[ItemResult], order: Sequence[str]) -> dict[str, Any] | None:
    """Calls and tokens per attempt, by mode in this ``order``. Of an advisor alone no token was kept."""
    by_mode: dict[str, list[ItemResult]] = {}
    for item in results:
        by_mode.setdefault(item.mode, []).append(item)
    if not by_mode:
        return None
    first = [m for m in dict.fromkeys((*_MODE_COLOURS, *order)) if m in by_mode]
    modes = [*first, *(m for m in by_mode if m not in first)]
    tools = sorted({tool for items in by_mode.values() for i in items for tool in i.calls_by_tool})
    experts = sorted({expert for items in by_mode.values() for i in items for expert in i.calls_by_expert})
    rows = []
    for mode in modes:
        items = by_mode[mode]
        attempts = max(1, sum(len(i.verdicts) for i in items))
        rows.append(
            {
                "label": mode_label(mode),
                "tools": [sum(i.calls_by_tool.get(t, 0) for i in items) / attempts for t in tools],
                "experts": [sum(i.calls_by_expert.get(e, 0) for i in items) / attempts for e in experts],
                "controller": sum(i.tokens.get("controller", 0) for i in items) / attempts,
                "expert": None
                if advisor_alone(mode)
                else sum(i.tokens.get("expert", 0) for i in items) / attempts,
                "unusable": sum(i.unusable for i in items),
            }
        )
    return {"tools": tools, "experts": experts, "rows": rows}


def _funnel(run: RunFolder) -> Any:
    steps = run.read_json(FUNNEL_FILE)
    if not steps:
        return None
    named = [(str(step["name"]), int(step["count"])) for step in steps]
    if made := decisions(run):
        named.append(("approved in review", sum(decision == "approve" for decision in made.values())))
    return funnel(named, title="From samples to training data")
