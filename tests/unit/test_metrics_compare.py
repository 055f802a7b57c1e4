"""`apprentice evaluate compare`: paired by problem, and only where the problems are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from apprentice.errors import ConfigError
from apprentice.metrics.compare import compare_runs
from apprentice.results import ItemResult, read_results, write_results
from driver.cli import main

pytestmark = pytest.mark.unit


def run(
    folder: Path, results: Mapping[str, Sequence[str]], mode: str = "collaborative", set_name: str = "s",
    gold: str = "7",
) -> Path:  # fmt: skip
    """A run whose attempts are written as 1 and 0: ``{"p1": "101"}``; the order of the problems is kept."""
    items = [
        ItemResult(
            problem_id=problem_id, family="", gold=gold, answers=tuple("7" for _ in attempts),
            verdicts=tuple("correct" if a == "1" else "wrong" for a in attempts),
            mode=mode, set_name=set_name,
        )
        for problem_id, attempts in results.items()
    ]  # fmt: skip
    write_results(folder / "results" / mode / f"{set_name}.jsonl", items)
    return folder


def test_problems_are_paired_by_id_whatever_their_order(tmp_path: Path) -> None:
    a = run(tmp_path / "a", {"p1": "10", "p2": "00", "p3": "11", "p4": "11"})
    b = run(tmp_path / "b", {"p4": "01", "p3": "11", "p2": "11", "p1": "11"})
    [row] = compare_runs(a, b).rows
    # By hand: A 0.5 0 1 1, B 1 1 1 0.5; differences +0.5 +1 0 -0.5, mean 0.25.
    assert (row.a.value, row.b.value) == (0.625, 0.875)
    assert row.difference.value == pytest.approx(0.25)
    assert (row.better, row.worse, row.same, row.difference.problems) == (2, 1, 1, 4)
    assert row.difference.low < 0 < row.difference.high
    back = compare_runs(b, a).rows[0]
    assert back.difference.value == pytest.approx(-0.25)


def test_pairing_sees_what_two_separate_intervals_would_not(tmp_path: Path) -> None:
    a = run(tmp_path / "a", {f"p{i}": "1" if i < 40 else "0" for i in range(100)})
    b = run(tmp_path / "b", {f"p{i}": "1" if i < 50 else "0" for i in range(100)})
    [row] = compare_runs(a, b).rows
    assert row.a.high > row.b.low  # separate intervals overlap
    # Ten of a hundred differ, all one way: the standard error of the mean is sqrt(0.1 * 0.9 / 100) = 0.03.
    assert row.difference.value == pytest.approx(0.1)
    assert row.difference.low == pytest.approx(0.1 - 1.96 * 0.03, abs=0.015)
    assert "*" in compare_runs(a, b).table().splitlines()[-2]


def test_other_problems_are_refused_unless_the_shared_ones_are_asked_for(tmp_path: Path) -> None:
    a = run(tmp_path / "a", {"p1": "1", "p2": "0", "p3": "1"})
    b = run(tmp_path / "b", {"p2": "1", "p3": "1", "p4": "0", "p5": "0"})
    with pytest.raises(ConfigError, match=r"A has 3 problems and B 4, and they share 2; --shared"):
        compare_runs(a, b)
    found = compare_runs(a, b, shared_only=True)
    [row] = found.rows
    assert (row.difference.problems, row.only_a, row.only_b, row.difference.value) == (2, 1, 2, 0.5)
    assert "left out of collaborative, s: 1 only in A, 2 only in B" in found.table()
    with pytest.raises(ConfigError, match="share 0; there is nothing to compare"):
        compare_runs(a, run(tmp_path / "c", {"q": "1"}), shared_only=True)


def test_one_id_with_two_golds_is_not_one_problem(tmp_path: Path) -> None:
    a, b = run(tmp_path / "a", {"p1": "1"}), run(tmp_path / "b", {"p1": "1"}, gold="8")
    with pytest.raises(ConfigError, match=r"'p1' has the gold '7' in A and '8' in B"):
        compare_runs(a, b, shared_only=True)


def test_several_sets_are_shown_each_and_together_and_a_missing_one_is_said(tmp_path: Path) -> None:
    a = run(tmp_path / "a", {"p1": "1", "p2": "1"}, set_name="one")
    run(a, {"p1": "0"}, set_name="two")
    run(a, {"p1": "0"}, set_name="three")
    b = run(tmp_path / "b", {"p1": "0", "p2": "1"}, set_name="one")
    run(b, {"p1": "0"}, set_name="two")
    found = compare_runs(a, b)
    values = [(row.set_name, row.difference.problems, row.difference.value) for row in found.rows]
    assert values == [("one", 2, -0.5), ("two", 1, 0.0), ("all sets", 3, pytest.approx(-1 / 3))]
    assert found.missing == ("collaborative, three: only in A",)
    assert "no problem differs" in found.table()


def test_two_modes_of_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = run(tmp_path / "a", {"p1": "1", "p2": "1"}, mode="collaborative")
    run(a, {"p1": "0", "p2": "1"}, mode="internalized")
    assert main(["evaluate", "compare", str(a), str(a), "--modes", "collaborative", "internalized"]) == 0
    assert "-50.0" in capsys.readouterr().out
    assert main(["evaluate", "compare", str(a), str(a), "--modes", "base", "internalized"]) == 2
    assert "no results of mode 'base'" in capsys.readouterr().err


def test_what_cannot_be_compared_says_why(tmp_path: Path) -> None:
    a = run(tmp_path / "a", {"p1": "1"})
    with pytest.raises(ConfigError, match="has no results"):
        compare_runs(a, tmp_path)
    with pytest.raises(ConfigError, match="none is common"):
        compare_runs(a, run(tmp_path / "b", {"p1": "1"}, mode="internalized"))
    with pytest.raises(ConfigError, match="no problem set in common"):
        compare_runs(a, run(tmp_path / "c", {"p1": "1"}, set_name="t"))
    with pytest.raises(ConfigError, match="between 0 and 1"):
        compare_runs(a, a, confidence=95)
    twice = run(tmp_path / "d", {"p1": "1"})
    file = twice / "results" / "collaborative" / "s.jsonl"
    file.write_text(file.read_text() * 2)
    with pytest.raises(ConfigError, match="stands twice"):
        compare_runs(a, twice)


def test_golds_in_prose_are_left_out_and_said(tmp_path: Path) -> None:
    prose = "the empty card is taken first and then any other one"

    def with_prose(folder: Path, checked: Mapping[str, Sequence[str]]) -> Path:
        path = run(folder, checked)
        file = path / "results" / "collaborative" / "s.jsonl"
        item = ItemResult("q", "", prose, ("x",), ("unparseable",), "collaborative", "s")
        write_results(file, [*read_results(file), item])
        return path

    a = with_prose(tmp_path / "a", {"p1": "1", "p2": "0"})
    b = with_prose(tmp_path / "b", {"p1": "1", "p2": "1"})
    found = compare_runs(a, b)
    assert found.rows[0].difference.value == 0.5  # over two problems; over three it would be a third
    assert "left out of collaborative, s: 1 golds in prose" in found.table()
    alone = [run(tmp_path / name, {"q": "0"}, gold=prose) for name in ("c", "d")]
    with pytest.raises(ConfigError, match="only golds in prose"):
        compare_runs(*alone)
