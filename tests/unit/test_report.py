"""The report and the summary: right numbers, nothing from the network, no text that becomes markup."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from apprentice.config.schema import TrackingConfig
from apprentice.metrics.judged import judgement_path
from apprentice.metrics.logger import MetricRow, MetricsLogger
from apprentice.metrics.scores import mean_at_k
from apprentice.report.bars import Bar, bar_chart, funnel
from apprentice.report.build import FUNNEL_FILE, build_report
from apprentice.report.scale import format_number, moving_mean, nice_ticks
from apprentice.report.sections import sft_charts, stage1_charts
from apprentice.report.summary import attempts, format_table, summarize, write_summary
from apprentice.report.svg import Series, line_chart, stacked_chart
from apprentice.report.trajectories import choose, json_for_script, viewer_data
from apprentice.results import ItemResult, write_results
from apprentice.run_folder import RunFolder
from apprentice.stage2.review import CANDIDATE_STAGE
from apprentice.trajectory import Owner, Status, Trajectory, TrajectoryBuilder
from tests.ask_episode_kit import ADVICE, ANSWER, AskWorld, asks, new_ask, qmaker_text
from tests.episode_kit import tiny_codec
from tests.unit.test_run_folder import make_config

pytestmark = pytest.mark.unit

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)><!-- & \u2028"


class Page(HTMLParser):
    """Elements of a page as a browser would see them (script content is text)."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.scripts: dict[str, str] = {}
        self.text = ""
        self._script: str | None = None
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag == "script":
            self._script = dict(attrs).get("id") or "code"

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._script = None

    def handle_data(self, data: str) -> None:
        if self._script is not None:
            self.scripts[self._script] = self.scripts.get(self._script, "") + data
        else:
            self.text += data


def make_trajectory(
    name: str, *, mode: str = "collaborative", verdict: str = "correct", text: str = "ok"
) -> Trajectory:
    builder = TrajectoryBuilder()
    builder.append([ord(c) for c in "Q: "], Owner.PROMPT, "prompt")
    builder.append_sampled([ord(c) for c in text], [-0.25] * len(text), 5)
    builder.append([33], Owner.EXPERT, EVIL)
    return builder.build(
        trajectory_id=name,
        problem_id="p" + EVIL,
        group_id="g",
        mode=mode,
        status=Status.UNUSABLE if verdict == "" else Status.COMPLETE,
        status_reason=EVIL,
        answer=EVIL,
        reward={"correct": 1.0, "wrong": -1.0}.get(verdict),
        verdict=verdict,
    )


def item(mode: str, i: int, correct: str, family: str = "gcd", set_name: str = "held-out") -> ItemResult:
    verdicts = tuple("correct" if c == "1" else "wrong" for c in correct)
    return ItemResult(
        f"p{i}", family, "4", ("4",) * len(verdicts), verdicts, mode, set_name, {"think": 2}, {"e": 1}
    )


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    config = make_config(
        data={
            "train": {"name": "t", "source": "reasoning_gym"},
            "test": [
                {"name": "held-out", "source": "reasoning_gym"},
                {"name": "words", "source": "reasoning_gym", "group": "apart"},
            ],
        },
        evaluation={"k": 2, "bootstrap_samples": 500},
    )
    return RunFolder.create(config, path=tmp_path / "demo", command=["apprentice", EVIL])


ITEMS = [
    item("internalized", 0, "11"),
    item("internalized", 1, "10"),
    item("internalized", 2, "11", family="lcm"),
    item("internalized", 3, "00", family="gsm", set_name="words"),
    item("experts_removed", 0, "10"),
    item("experts_removed", 1, "00"),
    item("experts_removed", 2, "01", family="lcm"),
    item("base", 0, "00"),
]


def test_summary_keeps_groups_apart_and_pairs_gains(run: RunFolder) -> None:
    summary = write_summary(run, ITEMS, wall_seconds=90.04, peak_memory_bytes=2**30)
    assert json.loads((run.path / "summary.json").read_text()) == summary
    assert (summary["seed"], summary["wall_seconds"], summary["peak_memory_bytes"]) == (7, 90.0, 2**30)
    assert list(summary["modes"]) == ["base", "experts_removed", "internalized"]
    internalized = summary["modes"]["internalized"]
    assert internalized["accuracy"] == pytest.approx(2.5 / 3)  # the word problem is not averaged in
    assert (internalized["n"], internalized["k"]) == (3, 2)
    expected = mean_at_k([[1, 1], [1, 0], [1, 1]], 0.95, 500, seed=7)
    assert (internalized["low"], internalized["high"]) == (expected.low, expected.high)
    assert internalized["groups"]["main"]["families"]["gcd"]["accuracy"] == 0.75
    assert internalized["groups"]["apart"]["accuracy"] == 0.0
    gain = summary["gains"]["internalized - experts_removed"]
    # By problem: 1 - 0.5, 0.5 - 0, 1 - 0.5: always 0.5, so any resampling gives 0.5.
    assert (gain["difference"], gain["low"], gain["high"], gain["n"]) == (0.5, 0.5, 0.5, 3)
    assert summary["gains"]["experts_removed - base"]["n"] == 1  # only what both saw


def test_a_group_is_the_mean_of_its_sets_whatever_their_sizes_and_attempts(run: RunFolder) -> None:
    items = [item("base", i, "1", set_name="small") for i in range(2)]
    items += [item("base", i, "1000", set_name="large") for i in range(8)]
    (cell,) = summarize(run.config, items)["modes"]["base"]["groups"].values()
    assert (cell["accuracy"], cell["low"], cell["high"]) == (0.625, 0.625, 0.625)
    assert (cell["n"], cell["k"]) == (10, [1, 4])
    assert attempts(summarize(run.config, items)) == "mean of 1 to 4 attempts"


def test_a_mean_of_sets_has_the_interval_of_a_stratified_bootstrap(run: RunFolder) -> None:
    # Two sets, half of the problems right: the mean's deviation is sqrt(1/4 (0.25/n + 0.25/m)).
    items = [item("base", i, "1" if i % 2 else "0", set_name="a") for i in range(100)]
    items += [item("base", i, "1" if i % 2 else "0", set_name="b") for i in range(400)]
    (cell,) = summarize(run.config, items)["modes"]["base"]["groups"].values()
    half = 1.96 * math.sqrt(0.25 * (0.25 / 100 + 0.25 / 400))
    assert cell["accuracy"] == 0.5
    assert cell["high"] - cell["low"] == pytest.approx(2 * half, rel=0.15)


def test_terminal_table_shows_percent_with_intervals(run: RunFolder) -> None:
    summary = write_summary(run, ITEMS, wall_seconds=1, peak_memory_bytes=1)
    lines = format_table(summary).splitlines()
    assert lines[0].split() == ["n", "Base", "model", "Stage", "I", "Stage", "II"]
    assert lines[1].split() == ["experts", "removed", "internalized"]
    cell = summary["modes"]["internalized"]
    (everything,) = [line for line in lines if line.startswith("all problems")]
    assert f"83.3 [{100 * cell['low']:.1f}, 100.0]" in everything
    (gcd,) = [line for line in lines if line.startswith("  gcd")]
    assert "75.0 [50.0, 100.0]" in gcd and "25.0 [0.0, 50.0]" in gcd
    (gsm,) = [line for line in lines if line.startswith("gsm")]
    assert gsm.split()[:5] == ["gsm", "1", "-", "-", "0.0"]
    assert "Accuracy in % [95 % interval over problems], mean of 2 attempts; n problems." in lines
    assert lines[-2] == (
        "Stage II, internalized less Stage I, experts removed: +50.0 points [+50.0, +50.0], paired, n 3."
    )


def test_a_summary_without_results_is_empty(run: RunFolder) -> None:
    assert summarize(run.config, []) == {"modes": {}, "gains": {}, "sets": []}
    assert format_table({"modes": {}}) == "no results"


DATA = {
    "sets": [
        {
            "name": "t", "use": "training", "source": "a/b", "licence": EVIL, "problems": 98,
            "read": "98 problems of 200 rows; dropped 102 repeated", "golds": {"rules": 98},
            "warnings": ["98 rows, where 100 to 110 are expected"],
        }
    ],
    "contamination": [
        {
            "set": "held-out", "exact": 3, "near": 1,
            "examples": [
                {"train": "t1", "test": "p1", "share": None},
                {"train": "t2", "test": "p2", "share": 0.75},
            ],
        },
        {"set": "words", "exact": 0, "near": None, "examples": []},
    ],
}  # fmt: skip


def full_run(run: RunFolder) -> Page:
    with MetricsLogger(run, TrackingConfig(tensorboard=False)) as log:
        for step in range(1, 4):
            log.log(
                step,
                "stage1",
                {
                    "accuracy": 0.25 * step,
                    "calls/tool/think": 1.0,
                    f"calls/expert/{EVIL}": 1.0,
                    "time/rollout": 9.0,
                    "time/train": 5.0,
                },
            )
            log.log(step, "stage2", {"loss": 1.0 / step})
    for mode in ("internalized", "experts_removed"):
        write_results(run.results_path(mode, "held-out"), [i for i in ITEMS if i.mode == mode])
    run.write_json("data.json", DATA)
    write_summary(run, ITEMS, wall_seconds=3723, peak_memory_bytes=3 * 2**30)
    review_file = run.path / "review.jsonl"
    review_file.write_text(
        json.dumps({"stage": CANDIDATE_STAGE, "trajectory_id": "a", "decision": "approve"}) + "\n"
    )
    run.write_json(FUNNEL_FILE, [{"name": "sampled", "count": 1024}, {"name": EVIL, "count": 700}])
    run.write_trajectories(
        "evaluate", 0, [make_trajectory("a", text=EVIL), make_trajectory("b", verdict="wrong")]
    )
    path = build_report(run, chr)
    assert path == run.path / "report.html"
    return Page(path.read_text(encoding="utf-8"))


def test_the_page_says_what_happened(run: RunFolder) -> None:
    page = full_run(run)
    for text in (
        "demo",
        "1:02:03",
        "3.0 GiB",
        "Stage II, internalized is 50.0 points above Stage I, experts removed (+50.0 to +50.0; paired over 3",
        "83.3 %",
        "Right answers and zero-signal groups",
        "By phase",
        "1,024",
        "−324",
        "approved in review",
        "−699",
        "2 trajectories",
        "98 problems of 200 rows; dropped 102 repeated",
        "98 rows, where 100 to 110 are expected",
        "t1 = p1",
        "t2 ~ p2 (75 %)",
        "not looked for (generated)",
    ):
        assert text in page.text, text
    assert page.text.count("This run") == 0


PROSE = "taking the empty card first and then any other card of the deck"


def prose_items() -> list[ItemResult]:
    right, wrong = ("correct", "wrong"), ("wrong", "wrong")
    return [
        ItemResult("p0", "a", "4", ("4", "5"), right, "internalized", "held-out", distinct=2),
        ItemResult("p1", "a", "4", ("5", "5"), wrong, "internalized", "held-out", distinct=1),
        ItemResult(
            "q0", "a", PROSE, ("x", "y"), ("unparseable",) * 2, "internalized", "held-out", distinct=2
        ),
        ItemResult("q1", "a", PROSE, (PROSE, "y"), ("correct", "unparseable"), "internalized", "held-out"),
        ItemResult("q2", "w", PROSE, ("x", "y"), ("unparseable",) * 2, "internalized", "words"),
    ]


def judge_answers(run: RunFolder) -> None:
    path = judgement_path(run.path, "internalized", "held-out")
    path.parent.mkdir(parents=True)
    rows = [("q0", "x", "correct"), ("q0", "y", "wrong"), ("q1", "y", "undecided")]
    path.write_text("".join(
        json.dumps({"problem_id": p, "answer": a, "model": "judge-1", "verdict": v}) + "\n"
        for p, a, v in rows
    ))  # fmt: skip


def test_prose_golds_are_in_no_figure_and_judged_apart(run: RunFolder) -> None:
    items = prose_items()
    for name in ("held-out", "words"):
        write_results(run.results_path("internalized", name), [i for i in items if i.set_name == name])
    summary = write_summary(run, items, wall_seconds=1, peak_memory_bytes=1)
    head = summary["modes"]["internalized"]
    # Two problems that rules check: a half and none. With prose golds as wrong it would be 1/4 * 1/2.
    assert (head["accuracy"], head["n"]) == (0.25, 2)
    apart = head["groups"]["apart"]
    assert (apart["accuracy"], apart["n"]) == (None, 0)  # nothing there that a rule checks
    held_out, words = summary["sets"]
    assert held_out["pass"]["2"]["value"] == 0.5
    assert held_out["prose"] == {"n": 2, "word_for_word": 1, "judged": {}}
    assert words["mean"] is None and words["prose"]["n"] == 1
    assert "-" in format_table(summary) and "2 golds are prose" in format_table(summary)

    judge_answers(run)
    summary = write_summary(run, items, wall_seconds=1, peak_memory_bytes=1)
    assert summary["modes"]["internalized"]["accuracy"] == 0.25  # a judge changes no figure of the rules
    judged = summary["sets"][0]["prose"]["judged"]["judge-1"]
    # q0: x right, y wrong; q1: the gold word for word is right by the rules, y undecided.
    assert (judged["value"], judged["undecided"], judged["not_judged"]) == (0.5, 1, 0)
    page = Page(build_report(run, chr).read_text(encoding="utf-8"))
    assert "Golds in prose, which no rule checks" in page.text
    assert "judge-1" in page.text and "nobody yet" in page.text  # the second set was not judged
    assert "25.0 %" in page.text


def test_attempts_that_are_one_text_are_flagged(run: RunFolder) -> None:
    items = prose_items()
    write_results(run.results_path("internalized", "held-out"), items)
    summary = write_summary(run, items, wall_seconds=1, peak_memory_bytes=1)
    assert summary["sets"][0]["identical"] == ["p1"]
    assert summary["sets"][0]["repeated"] == 1
    assert summary["sets"][1]["identical"] is None  # nobody looked
    assert "all 2 attempts are one text at 1 of 4 problems" in format_table(summary)
    page = Page(build_report(run, chr).read_text(encoding="utf-8"))
    assert "all 2 attempts are one text at 1 of 4 problems (p1)" in page.text
    once = [ItemResult("p", "", "4", ("4",), ("correct",), "base", "held-out", distinct=1)]
    assert "one text" not in format_table(summarize(run.config, once))  # one attempt repeats nothing


def test_text_never_becomes_markup(run: RunFolder) -> None:
    page = full_run(run)
    assert page.tags.count("script") == 3 and "img" not in page.tags
    assert not [a for a in page.attributes if a[1].startswith("on")]
    assert EVIL in page.text  # the command and the funnel show it, as text
    shown = json.loads(page.scripts["data-trajectories"])
    assert "".join(shown[0]["text"]) == "Q: " + EVIL + "!"
    assert shown[0]["problem"] == "p" + EVIL
    assert "innerHTML" not in page.scripts["code"]


def test_the_page_needs_no_network(run: RunFolder) -> None:
    page = full_run(run)
    loaded = [a for a in page.attributes if a[1] in ("src", "href", "srcset", "data", "action")]
    assert all(value.startswith("#") for _, _, value in loaded)
    html = (run.path / "report.html").read_text()
    assert "default-src 'none'" in html
    assert not re.search(r"@import|url\(", html)


def test_missing_parts_are_said_in_a_sentence(run: RunFolder) -> None:
    page = Page(build_report(run).read_text())
    for text in (
        "This run was not evaluated",
        "This run has no Stage I",
        "This run has no Stage II",
        "This run kept no trajectories",
        "not recorded",
    ):
        assert text in page.text
    assert "svg" not in page.tags and "Protocol warm-up" not in page.text


def test_a_token_carries_what_the_viewer_shows() -> None:
    (data,) = viewer_data([("stage1", make_trajectory("a", text="hi"))], chr)
    assert data["text"] == ["Q", ":", " ", "h", "i", "!"]
    assert data["ids"] == [81, 58, 32, 104, 105, 33]
    assert data["producers"] == ["prompt", "controller", EVIL]
    assert data["runs"] == [(3, 0, 0, None), (2, 1, 1, 5), (1, 2, 2, None)]
    assert data["logprob"] == [None, None, None, -0.25, -0.25, None]
    assert viewer_data([("s", make_trajectory("a", text="h"))], None)[0]["text"][3] == "104 "
    assert viewer_data([("s", make_trajectory("a", text="h"))], ["x"])[0]["text"][3] == "⟨104⟩"


def test_calls_to_the_advisor_show_query_cost_and_whose_query_it_is() -> None:
    codec = tiny_codec()
    world = AskWorld(
        codec,
        ["Hm. " + asks("own?"), ANSWER],
        frozen={"qmaker": [qmaker_text("What is 6 * 7?")]},
    )
    (data,) = viewer_data([("ask_stage3_64", world.play(new_ask("ask_qmaker", codec)))], codec.token_bytes)
    assert data["calls"] == [
        {
            "tool": "ask_advisor",
            "model": "oracle",
            "error": "",
            "outcome": "",
            "query": "What is 6 * 7?\n\nOne number.",
            "cost": 53.0,
        }
    ]
    assert data["notes"] == {}
    by: dict[str, str] = {}
    place = 0
    for length, _, producer, _ in data["runs"]:
        name = data["producers"][producer]
        by[name] = by.get(name, "") + "".join(data["text"][place : place + length])
        place += length
    assert by["qmaker"] == "What is 6 * 7?\\n\\nOne number." and by["oracle"] == ADVICE
    written = dataclasses.replace(make_trajectory("a"), tags={"format_ok": "1", "complete": "0", "x": "y"})
    assert viewer_data([("s", written)], None)[0]["notes"] == {"format_ok": "1", "complete": "0"}


def test_bytes_of_a_split_character_are_shown_whole() -> None:
    def token_bytes(token: int) -> bytes:
        return bytes([token])

    text = "".join(map(chr, "é🎉".encode()))
    (data,) = viewer_data([("s", make_trajectory("a", text=text))], token_bytes)
    assert data["text"][3:-1] == ["", "é", "", "", "", "🎉"]


def test_long_trajectories_are_cut_and_say_so() -> None:
    (data,) = viewer_data([("s", make_trajectory("a", text="x" * 7000))], chr)
    assert (len(data["text"]), data["total"]) == (6000, 7004)


def test_choice_is_bounded_and_has_right_and_wrong_of_each_mode(run: RunFolder) -> None:
    for mode in ("base", "internalized"):
        run.write_trajectories(
            "evaluate",
            mode,
            [
                make_trajectory(f"{mode}{i}", mode=mode, verdict="correct" if i % 10 == 0 else "wrong")
                for i in range(40)
            ],
        )
    run.write_trajectories("stage1", 1, [make_trajectory("u", verdict="")])
    chosen = choose(run, 13)
    assert [t.trajectory_id for _, t in chosen] == [t.trajectory_id for _, t in choose(run, 13)]
    assert len(chosen) == 13
    kinds = [(stage, t.mode, t.verdict) for stage, t in chosen]
    assert {k: kinds.count(k) for k in kinds} == {
        ("evaluate", "internalized", "correct"): 3,
        ("evaluate", "internalized", "wrong"): 3,
        ("evaluate", "base", "correct"): 3,
        ("evaluate", "base", "wrong"): 3,
        ("stage1", "collaborative", ""): 1,
    }
    assert kinds[0] == ("evaluate", "internalized", "correct")
    assert len(choose(run, 1000)) == 81


def test_json_in_a_script_element_is_unchanged_for_its_reader() -> None:
    text = json_for_script({"t": EVIL})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"t": EVIL}


def rows(*values: dict[str, float]) -> list[MetricRow]:
    return [MetricRow("stage1", i + 1, 0.0, 0.0, v) for i, v in enumerate(values)]


def test_charts_appear_for_logged_metrics_only() -> None:
    groups = stage1_charts(
        rows(
            {"policy/clip_fraction": 0.02, "calls/error/bad_json": 0.5, "calls/mean": 3.0},
            {"policy/clip_fraction": 0.04, "policy/dual_clip_fraction": 0.001, "time/sync": 1.0},
        )
    )
    assert [(g.heading, len(g.charts)) for g in groups] == [("Episodes", 1), ("Optimisation", 1), ("Time", 1)]
    clip = groups[1].charts[0]
    assert "clip 4" in clip and "dual clip 0.1" in clip and "% of trained tokens" in clip
    assert "Refused calls by kind" in groups[0].charts[0] and ">0.5<" in groups[0].charts[0]
    assert stage1_charts([]) == [] and sft_charts([]) == ()


def test_means_are_no_part_of_a_stack() -> None:
    groups = stage1_charts(rows({"time/rollout": 9.0, "time/expert_mean": 2.0, "tokens/mean": 7.0}))
    assert [(g.heading, len(g.charts)) for g in groups] == [("Time", 2)]
    data = json.loads(re.findall(r'data-chart="([^"]*)"', groups[0].charts[0])[0].replace("&#34;", '"'))
    assert [s["label"] for s in data["series"]] == ["rollout"]


def test_a_line_runs_through_its_points() -> None:
    chart = line_chart([Series("a", [0, 10], [0.0, 1.0], "c0")], title="t", y_range=(0, 1))
    (points,) = re.findall(r'<polyline class="line c0" points="([^"]*)"', chart)
    (x0, y0), (x1, y1) = (tuple(map(float, p.split(","))) for p in points.split())
    assert (x0, y0, y1) == (44.0, 168.0, 10.0) and x1 == pytest.approx(316.0)


def test_a_single_step_is_a_dot_and_constant_values_do_not_break_the_axis() -> None:
    assert "<circle" in line_chart([Series("a", [1], [0.5], "c0")], title="t")
    chart = line_chart([Series("a", [1, 2], [0.5, 0.5], "c0")], title="t")
    assert "nan" not in chart and "inf" not in chart
    assert "nan" not in stacked_chart([Series("a", [1], [0.0], "c0")], title="t")


@pytest.mark.parametrize("steps", [5, 60])
def test_a_stack_puts_series_on_top_of_each_other(steps: int) -> None:
    x = list(range(1, steps + 1))
    chart = stacked_chart(
        [Series("a", x, [6.0] * steps, "c0"), Series("b", x, [4.0] * steps, "c1")], title="t"
    )
    heights = []
    for shape in re.findall(r'<path class="fill c\d" d="([^"]*)"', chart):
        ys = {float(y) for y in re.findall(r"[\d.]+ ([\d.]+)|V([\d.]+)", shape) for y in y if y}
        heights.append((min(ys), max(ys)))
    # The axis runs from 0 (y 168) to 10 (y 10): 15.8 a unit.
    assert heights == [
        (pytest.approx(73.2), pytest.approx(168.0)),
        (pytest.approx(10.0), pytest.approx(73.2)),
    ]


@pytest.mark.parametrize("place", [-5.0, 0.0])
def test_end_labels_never_cover_each_other(place: float) -> None:
    series = [Series(f"s{i}", [1, 2], [0.0, 5.0 + place + 0.001 * i], "c0") for i in range(6)]
    chart = line_chart([*series, Series("top", [1, 2], [0.0, 10.0], "c1")], title="t", y_range=(0, 10))
    ys = sorted(float(y) for y in re.findall(r'<text class="end c0" x="[\d.]+" y="([\d.]+)"', chart))
    assert len(ys) == 6 and all(b - a >= 12.4 for a, b in itertools.pairwise(ys))
    assert max(ys) <= 190 - 22 + 4


def test_bars_and_funnel_are_to_scale() -> None:
    chart = bar_chart([Bar("m", 50.0, 40.0, 60.0, "n 9")], title="t", unit="%", maximum=100.0)
    assert 'width="200.0"' in chart  # half of 760 - 190 - 170
    assert "M350.0" in chart and "H430.0" in chart and "50.0 %" in chart and "n 9" in chart
    picture = funnel([("sampled", 100), ("kept", 25)], title="t")
    assert 'width="360.0"' in picture and 'width="90.0"' in picture and "−75" in picture


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 1, [0, 0.5, 1]), (0, 100, [0, 50, 100]), (-1, 1, [-1, -0.5, 0, 0.5, 1]), (3, 3, [2.4, 2.6])],
)
def test_ticks_are_round_and_enclose(low: float, high: float, ticks: list[float]) -> None:
    found = nice_ticks(low, high, 4)
    assert found[0] <= low and found[-1] >= high
    if low != high:
        assert found == ticks


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.12345, "0.123"),
        (1234.5, "1,234"),
        (2.5e7, "2.50e+07"),
        (0.0000123, "1e-05"),
        (-3.0, "-3"),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert format_number(value) == text


def test_moving_mean_is_the_mean_of_its_window() -> None:
    assert moving_mean([0.0, 3.0, 6.0, 0.0], share=0.1) == [1.5, 3.0, 3.0, 3.0]
    values = [math.sin(i) for i in range(40)]
    assert moving_mean(values)[20] == pytest.approx(sum(values[17:24]) / 7)


def test_a_run_without_an_evaluation_has_no_attempts_to_count() -> None:
    assert attempts({"modes": {}}) == ""
    assert format_table({"modes": {}}) == "no results"
