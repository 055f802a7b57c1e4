"""A run's analyses from its files: evaluations, queries, leakage, baselines, tables and the demo's table."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from apprentice.advisors.judge import QueryType
from apprentice.advisors.types import AttemptFailure, AttemptReply, AttemptRequest, AttemptResult
from apprentice.data.problem import Problem
from apprentice.data.secrets import plant_secrets, secrets_of
from apprentice.episodes.actions import AdvisorRefused, AdvisorReply, AskAdvisor
from apprentice.errors import AdvisorError, ConfigError, DataError
from apprentice.metrics.ask import attempts, charged
from apprentice.metrics.ask_baselines import llm_only, llm_query, oracle_curve
from apprentice.metrics.ask_judging import judge_queries
from apprentice.metrics.ask_leakage import leakage
from apprentice.metrics.ask_queries import (
    QUERY_TYPES_FILE,
    code_before_call,
    score_qmaker,
    sent_queries,
    type_counts,
    typed_queries,
)
from apprentice.metrics.ask_run import (
    SECRETS_FILE,
    Evaluation,
    add_evaluation,
    read_evaluations,
    read_planted,
    read_qmaker_validations,
    read_solo,
    select,
    write_planted,
)
from apprentice.metrics.logger import MetricRow
from apprentice.metrics.resample import Resampling
from apprentice.report.ask import ask_section, tables_of
from apprentice.report.ask_demo import demo_table
from apprentice.report.ask_tables import front_points, front_table, oracle_points
from apprentice.report.build import build_report
from apprentice.report.tables import Table
from apprentice.rollout.ports import Verdict
from apprentice.run_folder import RunFolder
from apprentice.trajectory import Status, Trajectory
from driver.cli import main
from tests.ask_trajectories import ask_call, ask_trajectory
from tests.unit.test_run_folder import make_config

pytestmark = pytest.mark.unit

FEW = Resampling(samples=50)


def evaluation(
    label: str, mode: str, trajectories: Sequence[Trajectory], budget: int | None = None
) -> Evaluation:
    return Evaluation(label, mode, budget, "s", tuple(trajectories))


def put(
    run: RunFolder, label: str, mode: str, trajectories: Sequence[Trajectory], budget: int | None = None
) -> None:
    run.write_trajectories(f"evaluate_{label}", "s", trajectories)
    add_evaluation(run, label, mode, budget, ["s"])


def asking(rate_of: dict[str, int], right: int, mode: str = "ask") -> list[Trajectory]:
    """Four attempts a problem, the first ``rate_of[p]`` call and the first ``right`` are right."""
    return [
        ask_trajectory(
            p,
            i,
            correct=i < right,
            mode=mode,
            calls=[ask_call(61.0, query=f"About {p}?")] if i < rate else [],
        )
        for p, rate in rate_of.items()
        for i in range(4)
    ]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Eight problems, p0 hardest; a start that always calls twice, a stage 1 that calls by difficulty."""
    made = RunFolder.create(make_config(seed=5), path=tmp_path / "run")
    names = [f"p{i}" for i in range(8)]
    solo = [
        ask_trajectory(p, j, correct=j < i // 2, mode="solo") for i, p in enumerate(names) for j in range(4)
    ]
    put(made, "start_solo", "solo", solo)
    put(made, "start_ask", "ask", asking(dict.fromkeys(names, 2), 2))
    put(made, "stage1_ask", "ask", asking({p: 4 - i // 2 for i, p in enumerate(names)}, 3))
    for stage, rate in (("stage2", 4), ("stage3", 2)):
        put(
            made,
            f"{stage}_b64_ask_qmaker",
            "ask_qmaker",
            asking(dict.fromkeys(names, rate), 3, "ask_qmaker"),
            64,
        )
    for stage, complete in (("start_b64", 0), ("b64", 1)):
        tags = {"budget": "64", "complete": str(complete), "advice_tokens": "10"}
        made.write_trajectories(
            f"validate/qmaker_{stage}", "held_out",
            [ask_trajectory(f"{p}@{j}", 0, mode="qmaker", calls=[ask_call()], tags={**tags, "base_id": p})
             for p in names for j in range(2)],
        )  # fmt: skip
    made.write_json("ask/solo.json", {"k": 16, "gamma": 12, "successes": {"train1": 4, "p0": 16}})
    return made


def test_evaluations_are_read_back_in_order(run: RunFolder) -> None:
    found = read_evaluations(run)
    assert [(e.label, e.mode, e.budget, e.set_name, len(e.trajectories)) for e in found] == [
        ("start_solo", "solo", None, "s", 32),
        ("start_ask", "ask", None, "s", 32),
        ("stage1_ask", "ask", None, "s", 32),
        ("stage2_b64_ask_qmaker", "ask_qmaker", 64, "s", 32),
        ("stage3_b64_ask_qmaker", "ask_qmaker", 64, "s", 32),
    ]
    assert select(found, "stage1_ask") is found[2]
    with pytest.raises(ConfigError, match="no evaluation 'x'; there are start_solo, start_ask"):
        select(found, "x")


def test_what_is_missing_is_named(run: RunFolder, tmp_path: Path) -> None:
    run.trajectory_path("evaluate_start_ask", "s").unlink()
    with pytest.raises(DataError, match=r"lists start_ask on s, and .*s\.parquet is missing"):
        read_evaluations(run)
    empty = RunFolder.create(make_config(), path=tmp_path / "empty")
    with pytest.raises(ConfigError, match=r"no evaluation of Learning to Ask \(ask/evaluation\.json"):
        read_evaluations(empty)
    with pytest.raises(ConfigError, match=r"neither ask/solo\.json nor an evaluation 'start_solo'"):
        read_solo(empty, [])
    assert read_planted(empty) == {} and read_qmaker_validations(empty) == []


def test_solo_success_of_held_out_and_training_problems(run: RunFolder) -> None:
    solo = read_solo(run, read_evaluations(run))
    assert solo["train1"] == 0.25
    assert [solo[f"p{i}"] for i in range(8)] == [0, 0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75]  # not 16/16 for p0


def test_qmaker_by_hand() -> None:
    rows = [
        ask_trajectory("a@0", tags={"budget": "64", "complete": "1", "advice_tokens": "63", "base_id": "a"},
                       calls=[ask_call()]),
        ask_trajectory("a@1", tags={"budget": "64", "complete": "1", "advice_tokens": "64", "base_id": "a"},
                       calls=[ask_call()]),
        ask_trajectory("b@0", tags={"budget": "64", "complete": "0", "advice_tokens": "5", "base_id": "b"},
                       calls=[ask_call()], correct=False),
        ask_trajectory("b@1", tags={"budget": "64", "complete": "1", "base_id": "b"}, calls=[ask_call(None)]),
        ask_trajectory("c@0", tags={"budget": "64", "base_id": "c"}, correct=False),  # wrote no request
        ask_trajectory("c@1", tags={"budget": "64", "complete": "1", "advice_tokens": "9",
                       "advice_finish": "length", "base_id": "c"}, calls=[ask_call()]),
    ]  # fmt: skip
    score = score_qmaker(rows, FEW)
    assert (score.trajectories, score.unknown, score.complete.n) == (6, 1, 3)
    assert score.complete.value == pytest.approx((1 + 0.5 + 0.5) / 3)
    # 64 tokens are too many, b@1 is unknown, c@1 was cut.
    assert score.within.value == pytest.approx((0.5 + 1 + 0) / 3)
    assert score.both.value == score.reward.value == pytest.approx((0.5 + 0 + 0) / 3)


def test_code_before_the_call() -> None:
    text = "So:\n```python\nx=1\n```\nask"
    own = [ord(c) for c in text]
    early, late = ask_call(position=3 + 4), ask_call(position=3 + len(text))
    rows = [
        ask_trajectory("a", 0, own=own, calls=[early]),
        ask_trajectory("a", 1, own=own, calls=[late]),
        ask_trajectory("b", 0, own=own, calls=[late]),
        ask_trajectory("c", 0, own=own),  # did not call
    ]
    share = code_before_call(rows, lambda ids: "".join(map(chr, ids)), FEW)
    assert share.value == pytest.approx((0.5 + 1) / 2) and share.n == 2


class Judge:
    """Answers by the query; keeps what it was asked."""

    def __init__(self, words: dict[str, str]) -> None:
        self.words, self.asked = words, list[str]()

    async def attempt(self, request: AttemptRequest, *, timeout_s: float) -> AttemptResult:
        text = str(request.messages[0]["content"])
        self.asked.append(text)
        word = next(word for part, word in self.words.items() if part in text)
        return AttemptFailure("http_500", "no", True) if word == "500" else AttemptReply(word)

    async def close(self) -> None: ...


def test_queries_are_judged_once_and_counted(run: RunFolder) -> None:
    found = read_evaluations(run)
    queries = sent_queries(found)
    assert len(queries) == 16 + 20 + 32 + 16
    questions = {f"p{i}": f"Question {i}" for i in range(8)}
    words = {"About p0?": "FULL_TASK", "About p1?": "maybe", "About p2?": "500", "About": "TRANSFORM"}
    judge = Judge(words)
    failures = asyncio.run(judge_queries(run, queries, questions, judge, "m"))
    per_problem = len(queries) // 8  # p1 has one more: 2 + 4 + 4 + 2
    assert failures == {"unparsable": 12, "http_500": 2 + 3 + 4 + 2} and per_problem == 10
    assert len(judge.asked) == 6 + 2 * 3  # equal queries about one problem once; failures three times
    assert all("Question" in text for text in judge.asked)
    again = Judge({**words, "About p1?": "**Hint.**", "About p2?": "INCOMPLETE"})
    assert asyncio.run(judge_queries(run, queries, questions, again, "m")) == {}
    assert len(again.asked) == 2
    [_, stage1, *_] = type_counts(found, typed_queries(run))
    assert (stage1.queries, stage1.judged) == (20, 20)
    assert stage1.counts == {
        QueryType.INCOMPLETE: 3, QueryType.TRANSFORM: 9, QueryType.HINT: 4, QueryType.FULL_TASK: 4,
    }  # fmt: skip
    assert stage1.shares[QueryType.TRANSFORM] == 0.45
    assert typed_queries(run, "other model") == {}
    with (run.path / QUERY_TYPES_FILE).open("a") as file:
        file.write('{"label": "cut')
    assert len(typed_queries(run)) == len(queries)  # a killed writer's half line is no error
    with (run.path / QUERY_TYPES_FILE).open("a") as file:
        file.write("\n")
    with pytest.raises(DataError, match="not a judged query"):
        typed_queries(run)


def test_planted_values_are_kept_as_they_are(run: RunFolder) -> None:
    planted = plant_secrets([Problem(f"p{i}", f"What is {i}?", "1") for i in range(60)], 1.0, 1, "all")
    write_planted(run, planted)
    kept = read_planted(run)
    assert {p.problem_id: secrets_of(p) for p in planted} == {name: one.spans for name, one in kept.items()}
    assert len({one.entity for one in kept.values()}) == 6  # of all types, database passwords too


def test_leakage_by_hand(run: RunFolder) -> None:
    problems = [Problem(f"p{i}", f"What is {i}?", "1") for i in range(4)]
    planted = plant_secrets(problems[:2], 1.0, 1) + plant_secrets(problems[2:3], 1.0, 1, "held_out")
    write_planted(run, [*planted, problems[3]])
    kept = read_planted(run)
    assert list(kept) == ["p0", "p1", "p2"] and kept["p2"].spans == secrets_of(planted[2])
    say = {p.problem_id: f'{{"q": {json.dumps(secrets_of(p)[0])}}}' for p in planted}
    rows = [
        ask_trajectory("p0", 0, calls=[ask_call(query=say["p0"])], correct=False),
        ask_trajectory(
            "p0", 1, calls=[ask_call(query=say["p1"])]
        ),  # another problem's value is none of its own
        ask_trajectory("p1", 0),
        ask_trajectory("p1", 1, calls=[ask_call(query=say["p1"], error="budget_spent")]),  # was not sent
        ask_trajectory("p2", 0, calls=[ask_call(query="hello"), ask_call(query=say["p2"])]),
        ask_trajectory("p2", 1, status=Status.UNUSABLE, calls=[ask_call(query=say["p2"])]),
        ask_trajectory("p3", 0, calls=[ask_call(query=say["p0"])]),
    ]
    found = leakage(rows, kept, FEW)
    assert (found.leaked, found.trajectories) == (2, 5)
    assert found.everywhere.value == pytest.approx((0.5 + 0 + 1) / 3)
    assert found.seen.value == pytest.approx(0.25) and found.held_out.value == 1.0
    assert found.calling.value == pytest.approx((0.5 + 1) / 2) and found.calling.n == 2
    assert found.accuracy.value == pytest.approx((0.5 + 1 + 1) / 3) and found.accuracy_clean.value == 1.0
    assert json.loads((run.path / SECRETS_FILE).read_text())["p0"]["template"].startswith("T")


def test_oracle_by_hand() -> None:
    right = {"a": 0, "b": 1, "c": 2, "d": 1, "e": 0, "only": 2}
    slm = attempts(
        [ask_trajectory(p, i, correct=i < n, mode="solo") for p, n in right.items() for i in range(2)]
    )

    def llm(problem: str, right: int, costs: tuple[float | None, float | None]) -> list[Trajectory]:
        return [
            ask_trajectory(problem, i, correct=i < right, mode="llm_only", calls=[ask_call(cost)])
            for i, cost in enumerate(costs)
        ]

    large = attempts([
        *llm("a", 2, (100.0, 300.0)), *llm("b", 2, (10.0, 30.0)), *llm("c", 0, (1.0, 1.0)),
        *llm("d", 1, (1.0, 1.0)), *llm("e", 2, (None, None)),
    ])  # fmt: skip
    curve = oracle_curve(slm, large, charged)
    # Five shared: SLM 0, .5, 1, .5, 0. Gains: b (20, +.5), a (200, +1); d is no gain, e has no known cost.
    assert (curve.problems, curve.unpaired, curve.unknown_cost) == (5, 1, 1)
    assert [(p.routed, p.cost, p.accuracy) for p in curve.points] == [
        (0, 0.0, pytest.approx(0.4)), (1, pytest.approx(4.0), pytest.approx(0.5)),
        (2, pytest.approx(44.0), pytest.approx(0.7)),
    ]  # fmt: skip
    assert oracle_curve(slm, []).points == ()


class Advisor:
    def __init__(self) -> None:
        self.requests: list[AskAdvisor] = []

    async def ask(self, request: AskAdvisor) -> AdvisorReply | AdvisorRefused:
        self.requests.append(request)
        if "bad" in request.query:
            raise AdvisorError("gone", kind="timeout")
        if "dear" in request.query:
            return AdvisorRefused("per_run")
        known = "dark" not in request.query
        cut = request.max_tokens == 16
        return AdvisorReply(
            "The answer is 42", 7 if known else None, 9 if known else None, "length" if cut else "stop",
            61.0 if known else None,
        )  # fmt: skip


def test_llm_only_gives_trajectories_like_any_other() -> None:
    names = ("good", "dark", "bad", "dear")
    problems = [Problem(name, f"{name}: what is 6 * 7?", "42") for name in names]

    async def verify(problem: Problem, reply: str) -> Verdict:
        return Verdict("correct" if problem.answer in reply else "wrong", "42")

    advisor, done = Advisor(), list[int]()
    rows = asyncio.run(
        llm_only(problems, advisor, verify, k=2, max_tokens=512, concurrency=3, on_progress=done.append)
    )
    assert done == list(range(1, 9)) and len({r.trajectory_id for r in advisor.requests}) == 8
    assert all(r.max_tokens == 512 and r.call_index == 0 for r in advisor.requests)
    by_problem = {name: [t for t in rows if t.problem_id == name] for name in names}
    assert [t.trajectory_id.rpartition(".")[2] for t in rows] == ["0"] * 8
    found = attempts(by_problem["good"])
    assert [(a.called, a.correct, charged(a)) for a in found] == [(True, True, 61.0)] * 2
    assert [charged(a) for a in attempts(by_problem["dark"])] == [None, None]
    assert all(
        t.status is Status.UNUSABLE and t.reward is None for n in ("bad", "dear") for t in by_problem[n]
    )
    capped = asyncio.run(llm_only(problems[:1], advisor, verify, k=1, max_tokens=512, budget=16))
    assert (capped[0].mode, capped[0].status, advisor.requests[-1].max_tokens) == (
        "llm_capped",
        "truncated",
        16,
    )
    assert "shorter than 16 tokens" in advisor.requests[-1].query
    assert "6 * 7" in llm_query(problems[0]) and "advisor" not in llm_query(problems[0])


def test_baselines_show_the_oracle(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    put(run, "llm_only", "llm_only", asking({f"p{i}": 4 for i in range(8)}, 4, "llm_only"))
    assert main(["ask", "baselines", str(run.path), "--samples", "30"]) == 0
    shown = capsys.readouterr().out
    assert "llm_only" in shown and "oracle, 8 routed" in shown and "stage1_ask" not in shown


def test_fronts_leave_out_what_has_no_cost() -> None:
    found = [
        evaluation("solo", "solo", [ask_trajectory("a", mode="solo", correct=False)]),
        evaluation("llm", "llm_only", [ask_trajectory("a", mode="llm_only", calls=[ask_call(90.0)])]),
        evaluation("dark", "ask", [ask_trajectory("a", calls=[ask_call(None)])]),
        evaluation("dear", "ask", [ask_trajectory("a", calls=[ask_call(500.0)])]),
    ]
    points, left_out = front_points(found, charged, FEW)
    assert points == [("solo", 0.0, 0.0), ("llm", 90.0, 1.0), ("dear", 500.0, 1.0)] and left_out == ["dark"]
    oracle, _ = oracle_points(found)
    assert oracle == [("oracle, 0 routed", 0.0, 0.0), ("oracle, 1 routed", 90.0, 1.0)]
    rows = front_table(points).rows
    assert [(row[0], row[3]) for row in rows] == [("solo", "*"), ("llm", "*"), ("dear", "")]


def test_tables_say_what_the_analyses_found(run: RunFolder) -> None:
    tables = {t.title.split(" [")[0]: t for t in tables_of(run, read_evaluations(run), FEW)}
    summary = {row[0]: row for row in tables["Accuracy, cost and call rate"].rows}
    assert summary["stage1_ask"][3:5] == ("8", "4") and summary["stage1_ask"][7].startswith("62.5 [")
    assert summary["stage3_b64_ask_qmaker"][2] == "64" and summary["start_solo"][6].startswith("0 [")
    calling = {row[0]: row for row in tables["Calling against standalone success"].rows}
    assert calling["stage1_ask"][2].startswith("-1.00") and calling["start_ask"][2] == "-"
    assert calling["stage1_ask"][4:] == ("100 (2)", "75 (2)", "50 (2)", "25 (2)")
    qmaker = tables["Qmaker on held-out states"].rows
    assert [row[0] for row in qmaker] == ["b = 64, at the start", "b = 64, trained"]
    assert qmaker[0][4].startswith("0.0 [") and qmaker[1][4].startswith("100.0 [")
    changes = tables["stage2_b64_ask_qmaker against stage3_b64_ask_qmaker"].rows
    assert [row[0] for row in changes] == ["accuracy, %", "call rate, %", "cost"]
    assert changes[1][2].startswith("100.0") and changes[1][4].startswith("-50.0")
    by_bin = tables["Change of the call rate by difficulty"].rows
    assert [row[4].split(" ")[0] for row in by_bin] == ["-50.0"] * 4


def test_demo_table(run: RunFolder) -> None:
    text = demo_table(run.path)
    rows = {line.split("  ")[0].strip(): line for line in text.splitlines()}
    assert "seed 5" in text and "95 % interval" in text
    assert "-1.00 [-1.00, -1.00]" in rows["stage 1: Spearman of solo success with calling"]
    assert "100 / 25" in rows["stage 1: call rate on hardest / easiest quarter, %"]
    claim = rows["stage 2, b = 64: complete and within budget, %"]
    assert claim.index("0.0 [") < claim.index("100.0 [")
    assert "-50.0 [-50.0, -50.0]" in rows["stage 3, b = 64: call rate, %"]
    for low, high in ((0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1)):
        change = rows[f"stage 3, b = 64: call rate at solo success {low:g} to {high:g}, %"]
        assert change.split()[-8:] == ["100.0", "50.0", "-50", "[-50,", "-50]", "%", "of", "it"]
    assert "not measured" in rows["leakage on planted problems, %"]


def test_demo_table_on_secrets(run: RunFolder) -> None:
    planted = plant_secrets([Problem("p0", "x", "1"), Problem("p1", "y", "1")], 1.0, 3, "held_out")
    write_planted(run, planted)
    spans = {problem.problem_id: secrets_of(problem)[0] for problem in planted}
    for name, leaking in (("qmaker_start", ("p0", "p1")), ("stage2", ("p0",)), ("stage3", ())):
        label = f"{name}_b64_ask_qmaker"
        rows = [
            ask_trajectory(p, 0, mode="ask_qmaker", calls=[ask_call(query=span if p in leaking else "?")])
            for p, span in spans.items()
        ]
        put(run, label, "ask_qmaker", rows, 64)
    for name, leaking in (("start_b64", ("p0", "p1")), ("b64", ())):
        tags = {"budget": "64", "complete": "1", "advice_tokens": "10"}
        run.write_trajectories(
            f"validate/qmaker_{name}", "held_out",
            [ask_trajectory(f"{p}@{j}", 0, mode="qmaker", tags={**tags, "base_id": p},
                            calls=[ask_call(query=span if p in leaking and j else "?")])
             for p, span in spans.items() for j in range(2)],
        )  # fmt: skip
    rows = {line.split(", %")[0].strip(): line for line in demo_table(run.path).splitlines() if ", %" in line}
    held_out = "held-out templates and types"
    for name, before, after in (
        ("stage 2, b = 64: leakage on held-out states", "50.0 [", "0.0 ["),
        (f"stage 2, b = 64: leakage, {held_out}", "100.0 [", "50.0 ["),
        (f"stage 3, b = 64: leakage, {held_out}", "100.0 [", "0.0 ["),
        ("stage 2, b = 64: leakage, all planted problems", "100.0 [", "50.0 ["),
    ):
        cells = [cell for cell in rows[name].split(", %")[1].split("  ") if cell.strip()]
        assert cells[0].strip().startswith(before) and cells[1].strip().startswith(after), rows[name]
    assert f"stage 1, own queries: leakage, {held_out}" in rows


def test_demo_table_says_what_was_not_measured(tmp_path: Path) -> None:
    made = RunFolder.create(make_config(), path=tmp_path / "r")
    put(made, "start_ask", "ask", asking({"a": 1}, 1))
    text = demo_table(made.path)
    assert "no solo success" in text and text.count("not measured") >= 4


def test_report_has_a_section(run: RunFolder, tmp_path: Path) -> None:
    rows = [MetricRow("ask_warmup", step, 0.0, 0.0, {"loss": 2.0}) for step in (1, 2)]
    rows += [MetricRow("ask_stage1", step, 0.0, 0.0, {"ask/call_rate": 0.5, "loss": 1.0}) for step in (1, 2)]
    section = ask_section(run, rows)
    assert section is not None and len(section.training) == 2 and len(section.charts) == 4
    assert '>Loss of the warm-ups<span class="unit">warmup<' in section.training[0]
    assert '>Call rate<span class="unit">stage1<' in section.training[1]
    html = build_report(run).read_text(encoding="utf-8")
    assert 'id="asking"' in html and "Calling against standalone success" in html
    assert "Pareto front: Avg@k" in html and "stage3_b64_ask_qmaker" in html
    plain = RunFolder.create(make_config(), path=tmp_path / "plain")
    assert ask_section(plain, []) is None
    assert 'id="asking"' not in build_report(plain).read_text(encoding="utf-8")


def test_a_table_for_a_terminal() -> None:
    table = Table("T", ("name", "x"), (("a", "10"), ("long", "2")), ("note",))
    assert table.text() == "T\n\nname   x\n--------\na     10\nlong   2\nnote"
    with pytest.raises(ValueError, match="1 cells under 2 heads"):
        Table("T", ("name", "x"), (("a",),))


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["summary"], "stage1_ask"),
        (["pareto"], "on the front"),
        (["pareto", "--c-out", "2"], "c_in = 1, c_out = 2"),
        (["pareto", "--by-calls"], "(calls)"),
        (["sweep", "--labels", "stage1_ask"], "c_out = 16"),
        (["difficulty"], "-1.00 [-1.00, -1.00]"),
        (["utility"], "utility, points"),
        (["change"], "Change of the call rate"),
        (["change", "--labels", "start_ask,stage1_ask"], "start_ask against stage1_ask"),
        (["table"], "seed 5"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_commands(
    run: RunFolder, capsys: pytest.CaptureFixture[str], command: list[str], expected: str
) -> None:
    extra = [] if command == ["table"] else ["--samples", "30"]
    assert main(["ask", command[0], str(run.path), *command[1:], *extra]) == 0
    assert expected in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["summary", "--labels", "nope"], "no evaluation 'nope'"),
        (["summary", "--confidence", "2"], "confidence 2.0 must lie"),
        (["pareto", "--by-calls", "--c-out", "2"], "give one of them"),
        (["change", "--labels", "start_ask"], "with one comma"),
        (["leakage"], "no secret was planted"),
        (["baselines"], "no evaluation of the advisor alone"),
        (["difficulty", "--solo", "nope", "--labels", "start_solo"], "no evaluation 'start_solo'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_mistakes_are_named(
    run: RunFolder, capsys: pytest.CaptureFixture[str], command: list[str], expected: str
) -> None:
    assert main(["ask", command[0], str(run.path), *command[1:]]) == 2
    assert expected in capsys.readouterr().err
