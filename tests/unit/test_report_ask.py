"""The report of a run of Learning to Ask: its order, its room for names, what it leaves out."""

from __future__ import annotations

import html
import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from apprentice.config.schema import TrackingConfig
from apprentice.metrics.ask_run import add_evaluation, read_evaluations
from apprentice.metrics.logger import MetricsLogger
from apprentice.metrics.resample import Resampling
from apprentice.report.ask import ask_section, tables_of
from apprentice.report.ask_tables import front_table
from apprentice.report.bars import Bar, bar_chart
from apprentice.report.build import build_report
from apprentice.report.scale import shorten, text_width
from apprentice.report.summary import format_table, write_summary
from apprentice.report.svg import Series, line_chart
from apprentice.results import ItemResult, read_all_results, write_results
from apprentice.run_folder import RunFolder
from driver.cli import main
from tests.ask_trajectories import ask_call, ask_trajectory
from tests.unit.test_run_folder import make_config

pytestmark = pytest.mark.unit

LABELS = {
    "start_solo": "solo",
    "start_ask": "ask",
    "llm_only": "llm_only",
    "llm_capped_b64": "llm_capped",
    "stage1_ask": "ask",
    "qmaker_start_b64_ask_qmaker": "ask_qmaker",
    "stage2_b64_ask_qmaker": "ask_qmaker",
    "stage3_b64_ask_qmaker": "ask_qmaker",
}
"""In the order of a run, which is not the alphabet's."""

PROBLEMS = [f"p{i:02}" for i in range(40)]
DEJAVU_CHARACTER = 0.59  # of the font size: the mean over "qmaker_start_b64_ask_qmaker" in a browser


def result(label: str, problem: str, distinct: int) -> ItemResult:
    tokens = (
        {"controller": 20, "expert": 6} if not label.startswith("llm_") else {"controller": 0, "expert": 0}
    )
    right = ("correct", "wrong")
    return ItemResult(
        problem,
        "sum",
        "4",
        ("4", "5"),
        right,
        label,
        "s",
        {"ask_advisor": 1},
        {"advisor": 1},
        tokens,
        0,
        distinct,
    )


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Forty problems, two attempts each; those of three are one text, of the baselines all."""
    config = make_config(
        experts=[],
        stages=["ask_warmup", "ask_stage1", "ask_stage2", "ask_stage3", "evaluate"],
        data={
            "train": {"name": "t", "source": "reasoning_gym"},
            "test": [{"name": "s", "source": "reasoning_gym"}],
        },
        evaluation={"k": 2, "bootstrap_samples": 20},
        ask={"advisor": {"backend": {"kind": "arithmetic"}}},
    )
    made = RunFolder.create(config, path=tmp_path / "ask")
    for label, mode in LABELS.items():
        calls = [] if mode == "solo" else [ask_call(100.0 if mode.startswith("llm_") else 61.0)]
        trajectories = [
            # Solo gets the first half wrong: the advisor gains there, and the oracle's curve has 21 points.
            ask_trajectory(p, j, mode=mode, calls=calls, correct=mode.startswith("llm_") or i >= 20)
            for i, p in enumerate(PROBLEMS)
            for j in range(2)
        ]
        made.write_trajectories(f"evaluate_{label}", "s", trajectories)
        add_evaluation(made, label, mode, 64 if "b64" in label else None, ["s"])
        alone = mode.startswith("llm_")
        write_results(
            made.results_path(label, "s"),
            [result(label, p, 1 if alone or i < 3 else 2) for i, p in enumerate(PROBLEMS)],
        )
    return made


def summarized(run: RunFolder) -> dict[str, Any]:
    return write_summary(run, read_all_results(run.path / "results"), wall_seconds=1, peak_memory_bytes=1)


def order_in(text: str, names: Sequence[str]) -> list[str]:
    return sorted(names, key=lambda name: text.index(f">{name}<"))


def figures(page: str) -> dict[str, str]:
    found = re.findall(r"<figure[^>]*><figcaption>([^<]*)(.*?)</figure>", page, re.DOTALL)
    return dict(found)


def test_modes_stand_in_the_order_of_the_run(run: RunFolder) -> None:
    summary = summarized(run)
    names = list(LABELS)
    assert list(summary["modes"]) == names != sorted(names)
    assert [row["mode"] for row in summary["sets"]] == names
    # A summary of before, in the order of the alphabet.
    old = {**summary, "modes": {name: summary["modes"][name] for name in sorted(names)}}
    run.write_json("summary.json", old)
    page = build_report(run).read_text(encoding="utf-8").replace("<wbr>", "")
    results = page[page.index('id="results"') : page.index('id="asking"')]
    chart, *tables = re.split(r"<table", results)
    assert len(tables) == 3  # by family, by set, by what an attempt used
    for part in (chart, *tables):
        assert order_in(part, names) == names


def test_names_of_modes_have_the_room_they_need() -> None:
    def place(label: str) -> tuple[float, str]:
        chart = bar_chart([Bar(label, 50.0, 40.0, 60.0)], title="t", unit="%", maximum=100.0)
        ((x, text),) = re.findall(r'<text class="label" x="([\d.]+)"[^>]*>([^<]*)<', chart)
        return float(x), html.unescape(text)

    x, text = place("qmaker_start_b64_ask_qmaker")
    assert text == "qmaker_start_b64_ask_qmaker" and x >= 27 * 13 * DEJAVU_CHARACTER
    assert place("Stage I, experts removed") == (178.0, "Stage I, experts removed")  # as before
    x, text = place("qmaker_start_b64_ask_qmaker_of_another_run_b128")
    assert text.startswith("qmaker_") and text.endswith("_b128") and "…" in text
    assert x >= len(text) * 13 * DEJAVU_CHARACTER


def test_what_is_too_long_loses_its_middle_and_no_more_than_it_must() -> None:
    name = "qmaker_start_b64_ask_qmaker"
    assert shorten(name, 10, text_width(name, 10)) == name
    short = shorten(name, 10, text_width(name, 10) - 1)
    head, tail = short.split("…")
    assert name.startswith(head) and name.endswith(tail) and abs(len(head) - len(tail)) <= 1
    assert len(name) - 4 <= len(short) < len(name)
    assert shorten(name, 10, 0.0) == "…"


def test_labels_at_the_ends_of_lines_stay_in_the_picture(run: RunFolder) -> None:
    drawn = figures(build_report(run).read_text(encoding="utf-8"))
    for title in ("Call rate by solo success", "Cost per trajectory"):
        labels = re.findall(r'<text class="end c\d" x="([\d.]+)"[^>]*>([^<]*)<', drawn[title])
        names = [text.rsplit(" ", 1)[0] for _, text in labels]
        assert sorted(names) == sorted(
            ["start_ask", "stage1_ask", "qmaker_start_b64", "stage2_b64", "stage3_b64"]
        )
        for x, text in labels:
            assert float(x) + len(text) * 11 * DEJAVU_CHARACTER <= 356
    long = "a_name_that_no_chart_has_room_for_at_its_end_b64"
    chart = line_chart(
        [Series(long, [1, 2], [0.0, 1234.0], "c0"), Series("b", [1, 2], [0.0, 1.0], "c1")], title="t"
    )
    x, text = re.findall(r'<text class="end c0" x="([\d.]+)"[^>]*>([^<]*)<', chart)[0]
    assert text.startswith("a_na") and text.endswith("b64 1,234") and "…" in text
    assert float(x) + len(text) * 11 * DEJAVU_CHARACTER <= 356
    assert long in chart  # the tooltip has the whole name


def test_identical_samples_are_one_block_without_the_advisor_alone(run: RunFolder) -> None:
    summary = summarized(run)
    page = build_report(run).read_text(encoding="utf-8")
    lines = re.findall(r"<li>([^<]*)</li>", page)
    said = "all 2 attempts are one text at 3 of 40 problems (p00, p01, …)"
    assert lines == [f"{name}, s: {said}" for name in LABELS if not name.startswith("llm_")]
    assert page.count("look for greedy decoding or a repeated seed") == 1
    terminal = format_table(summary)
    assert terminal.count("attempts are one text at 3 of 40") == 6 and "one text at 40" not in terminal
    # The controller wrote nothing there: no token of it or of the advisor is known to repeat or to count.
    row = re.findall(r'<tr><th scope="row">llm_only</th>(.*?)</tr>', page, re.DOTALL)
    assert re.findall(r">([^<>\s]+)</td>", row[0])[-1] == "–"  # repeated attempts
    assert re.findall(r">([^<>\s]+)</td>", row[1])[-3:] == ["0", "–", "0"]  # own, expert, replaced
    row = re.findall(r'<tr><th scope="row">stage1_ask</th>(.*?)</tr>', page, re.DOTALL)
    assert re.findall(r">([^<>\s]+)</td>", row[0])[-1] == "3"
    assert re.findall(r">([^<>\s]+)</td>", row[1])[-3:] == ["10", "3", "0"]


def test_sections_are_those_of_the_recipe(run: RunFolder, tmp_path: Path) -> None:
    def sections(folder: RunFolder) -> list[str]:
        page = build_report(folder).read_text(encoding="utf-8")
        there, linked = re.findall(r'<section id="(\w+)"', page), re.findall(r'<a href="#(\w+)"', page)
        assert there == linked
        return there

    end = ["trajectories", "data", "provenance"]
    assert sections(run) == ["results", "asking", *end]
    rivet = RunFolder.create(make_config(), path=tmp_path / "rivet")
    assert sections(rivet) == ["results", "stage1", "stage2", *end]
    first = RunFolder.create(make_config(stages=["stage1"]), path=tmp_path / "first")
    assert sections(first) == ["results", "stage1", *end]
    with MetricsLogger(first, TrackingConfig(tensorboard=False)) as log:
        log.log(1, "stage2", {"loss": 1.0})  # of an earlier recipe in the same folder: shown, as it is there
    assert sections(first) == ["results", "stage1", "stage2", *end]


def test_the_report_has_ten_points_of_the_oracle_and_the_command_all(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    found = read_evaluations(run)
    (table,) = [
        t for t in tables_of(run, found, Resampling(samples=2)) if t.title.startswith("Accuracy against")
    ]
    names = [row[0] for row in table.rows]
    assert set(LABELS) <= set(names)
    routed = [int(name.split()[1]) for name in names if name.startswith("oracle")]
    assert len(routed) == 10 and (routed[0], routed[-1]) == (0, 20)
    assert {b - a for a, b in itertools.pairwise(routed)} <= {2, 3}  # 20 / 9 apart
    assert table.notes == ("10 of the 21 points of the oracle's curve are shown; "
                           '"apprentice ask pareto" prints all.',)  # fmt: skip
    for command in ("pareto", "baselines"):
        assert main(["ask", command, str(run.path), "--samples", "2"]) == 0
        shown = capsys.readouterr().out
        assert all(f"oracle, {i} routed" in shown for i in range(21))


def test_the_front_is_that_of_all_points_though_few_are_shown() -> None:
    points = [("a", 0.0, 0.1), ("hidden", 1.0, 0.9), ("b", 2.0, 0.8), ("c", 3.0, 1.0)]
    rows = front_table(points, shown=[points[0], *points[2:]]).rows
    assert [(row[0], row[3]) for row in rows] == [("a", "*"), ("b", ""), ("c", "*")]


def test_a_bin_of_one_problem_draws_no_line(run: RunFolder) -> None:
    # One problem at a solo success of a half, between the twenty that always fail and the others.
    solo = [
        ask_trajectory(p, j, mode="solo", correct=j == 0 if i == 20 else i > 20)
        for i, p in enumerate(PROBLEMS)
        for j in range(2)
    ]
    run.write_trajectories("evaluate_start_solo", "s", solo)
    section = ask_section(run, [])
    assert section is not None and "Bins of one problem" in section.hint
    (chart,) = [chart for chart in section.charts if "Call rate by solo success" in chart]
    data = json.loads(html.unescape(re.findall(r'data-chart="([^"]*)"', chart)[0]))
    assert data["axis"] == "% solo"  # the tooltip's word for x
    assert {tuple(line["x"]) for line in data["series"]} == {(12.5, 87.5)}
