"""Scores of one set: by rules, by a judge, and what repeats, each apart."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import pytest

from apprentice.metrics.judged import judgement_path
from apprentice.metrics.set_scores import score_set, score_sets, scores_table
from apprentice.results import ItemResult, write_results
from apprentice.run_folder import RunFolder
from driver.cli import main
from tests.unit.test_run_folder import make_config

pytestmark = pytest.mark.unit

PROSE = "the empty card is taken first and then any other one"


def item(name: str, attempts: str, *, gold: str = "7", distinct: int | None = None) -> ItemResult:
    verdicts = tuple("correct" if a == "1" else "wrong" for a in attempts)
    return ItemResult(name, "f", gold, ("7",) * len(verdicts), verdicts, "base", "s", distinct=distinct)


def test_pass_at_k_is_the_share_of_draws_with_a_right_one_over_problems_that_rules_check() -> None:
    attempts = ["101000", "000000", "111111", "000001"]
    found = score_set(
        [item(f"p{i}", text) for i, text in enumerate(attempts)] + [item("q", "0" * 6, gold=PROSE)]
    )
    assert sorted(found.passes) == [2, 4, 6]
    for k, score in found.passes.items():
        # By counting: every draw of k attempts without putting back, for each problem.
        shares = []
        for text in attempts:
            draws = list(combinations(text, k))
            shares.append(sum("1" in draw for draw in draws) / len(draws))
        assert score.value == pytest.approx(sum(shares) / 4)
        assert score.low < score.value < score.high
    assert found.mean is not None and found.mean.value == pytest.approx((2 + 0 + 6 + 1) / 24)
    assert (found.problems, found.prose, found.k) == (4, 1, 6)


def test_one_attempt_has_no_pass_at_more_and_repeats_nothing() -> None:
    found = score_set([item("p0", "1", distinct=1), item("p1", "0", distinct=1)])
    assert (dict(found.passes), found.identical, found.repeated) == ({}, (), 0)


def test_identical_attempts_are_named_and_the_temperature_explains_them() -> None:
    items = [item("p0", "11", distinct=1), item("p1", "10", distinct=2), item("p2", "00", distinct=1)]
    found = score_set(items)
    assert (found.identical, found.repeated) == (("p0", "p2"), 2)
    table = scores_table([found], temperature=0.7)
    assert "all 2 attempts are one text at 2 of 3 problems (p0, p2): a sharp model" in table
    assert "as it must be at temperature 0" in scores_table([found], temperature=0.0)
    unknown = scores_table([score_set([item("p0", "11")])])
    assert "not recorded" in unknown and "one text" not in unknown


def test_the_command_shows_rules_and_judges_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunFolder.create(make_config(evaluation={"k": 2, "bootstrap_samples": 200}), path=tmp_path / "r")
    assert main(["evaluate", "scores", str(run.path)]) == 2  # nothing was evaluated
    items = [
        item("p0", "11", distinct=1),
        item("p1", "10", distinct=2),
        item("q", "00", gold=PROSE, distinct=2),
    ]
    write_results(run.results_path("base", "s"), items)
    path = judgement_path(run.path, "base", "s")
    path.parent.mkdir(parents=True)
    rows = [{"problem_id": "q", "answer": "7", "gold": PROSE, "model": f"m{i}", "verdict": v, "reply": ""}
            for i, v in enumerate(("correct", "wrong"))]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["evaluate", "scores", str(run.path)]) == 0
    out = capsys.readouterr().out
    assert "mean@k" in out and "pass@2" in out
    (line,) = [line for line in out.splitlines() if line.startswith("base  s")]
    assert line.split()[:4] == ["base", "s", "2", "2"]
    assert "75.0" in line and "100.0" in line
    assert "1 golds are prose" in out
    assert "judged by m0: 100.0" in out and "judged by m1: 0.0" in out  # never averaged, not even together
    assert "all 2 attempts are one text at 1 of 3 problems (p0)" in out
    (only,) = score_sets(items, run.path)
    assert only.judged["m0"].judged is not None and only.judged["m0"].judged.value == 1.0
