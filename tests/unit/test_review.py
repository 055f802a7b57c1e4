"""The review step: decisions are kept, replayed and never lost, and text cannot drive the terminal."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from apprentice.errors import ConfigError
from apprentice.run_folder import RunFolder
from apprentice.stage2.review import (
    CANDIDATE_STAGE,
    ReviewCounts,
    accept_all,
    accepted,
    decisions,
    reject,
    render,
    review,
)
from apprentice.trajectory import CallRecord, Owner, Status, Trajectory, TrajectoryBuilder
from tests.unit.test_run_folder import make_config

pytestmark = pytest.mark.unit


def decode(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))


def make_trajectory(name: str, expert_text: str = "use gcd") -> Trajectory:
    builder = TrajectoryBuilder()
    builder.append([ord(c) for c in "Find gcd(8, 12)."], Owner.PROMPT, "prompt")
    builder.append_sampled([ord(c) for c in "call"], [-0.5] * 4, 3)
    builder.append([ord(c) for c in expert_text], Owner.EXPERT, "wise")
    builder.append_sampled([ord(c) for c in "4"], [-0.1], 3)
    return builder.build(
        trajectory_id=name,
        problem_id="p-" + name,
        group_id="g",
        mode="collaborative",
        status=Status.COMPLETE,
        calls=(CallRecord(tool="think", model="wise"),),
        answer="4",
        verdict="correct",
    )


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = RunFolder.create(make_config(), path=tmp_path / "demo")
    run.write_trajectories(CANDIDATE_STAGE, 0, [make_trajectory("t1"), make_trajectory("t2")])
    run.write_trajectories(CANDIDATE_STAGE, 1, [make_trajectory("t3")])
    return run


def answer(run: RunFolder, keys: str, page_lines: int = 100) -> tuple[ReviewCounts, str]:
    out = io.StringIO()
    return review(run, decode, stdin=io.StringIO(keys), stdout=out, page_lines=page_lines), out.getvalue()


def test_nothing_reviewed_names_the_command(run: RunFolder) -> None:
    with pytest.raises(ConfigError, match=r"none of the 3 .*`apprentice trajectories review .*demo`"):
        accepted(run)


def test_decisions_are_kept_and_a_later_review_goes_on(
    run: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    counts, _ = answer(run, "a\nq\n")
    assert counts == ReviewCounts(approved=1, rejected=0, pending=2)
    with caplog.at_level(logging.WARNING):
        assert accepted(run) == ["t1"]
    assert "2 of 3 candidate trajectories were not reviewed" in caplog.text
    counts, shown = answer(run, "r\ns\n")
    assert "trajectory t1" not in shown and "trajectory t2" in shown
    assert str(counts) == "1 approved, 1 rejected, 1 not reviewed"
    counts, shown = answer(run, "a\n")
    assert "1 of 1 to review" in shown and counts.pending == 0
    assert accepted(run) == ["t1", "t3"]


def test_end_of_input_quits_and_keeps_what_was_decided(run: RunFolder) -> None:
    counts, _ = answer(run, "r\n")
    assert counts == ReviewCounts(approved=0, rejected=1, pending=2)
    assert decisions(run) == {"t1": "reject"}


def test_accept_all_keeps_a_persons_rejection(run: RunFolder) -> None:
    reject(run, ["t2"], note="guessed")
    assert accept_all(run) == ReviewCounts(approved=2, rejected=1, pending=0)
    assert accepted(run) == ["t1", "t3"]
    rows = [json.loads(line) for line in (run.path / "review.jsonl").read_text().splitlines()]
    assert [(r["trajectory_id"], r["decision"], r["by"]) for r in rows] == [
        ("t2", "reject", "id"),
        ("t1", "approve", "accept-all"),
        ("t3", "approve", "accept-all"),
    ]
    assert rows[0]["note"] == "guessed"
    accept_all(run)
    assert len((run.path / "review.jsonl").read_text().splitlines()) == 3


def test_the_later_decision_counts_and_all_rejected_is_an_empty_list(run: RunFolder) -> None:
    accept_all(run)
    assert reject(run, ["t1", "t2", "t3"]).rejected == 3
    assert accepted(run) == []


def test_an_unknown_id_is_refused_and_nothing_is_written(run: RunFolder) -> None:
    with pytest.raises(ConfigError, match="'t9'; ids look like t1"):
        reject(run, ["t1", "t9"])
    assert not (run.path / "review.jsonl").exists()


def test_a_torn_row_loses_only_itself(run: RunFolder, caplog: pytest.LogCaptureFixture) -> None:
    reject(run, ["t1"])
    path = run.path / "review.jsonl"
    path.write_text(path.read_text() + '{"time": 1, "stage": "stage2_cand')
    reject(run, ["t3"])
    with caplog.at_level(logging.WARNING):
        assert decisions(run) == {"t1": "reject", "t3": "reject"}
    assert "line 2 is torn" in caplog.text


def test_decisions_of_another_stage_do_not_count(run: RunFolder) -> None:
    run.write_trajectories("other", 0, [make_trajectory("t1")])
    accept_all(run, "other")
    assert decisions(run) == {}


def test_no_candidates_says_so(tmp_path: Path) -> None:
    run = RunFolder.create(make_config(), path=tmp_path / "empty")
    with pytest.raises(ConfigError, match="no candidate trajectories"):
        answer(run, "")
    assert accepted(run) == []


def test_text_shows_each_span_under_its_owner() -> None:
    assert render(make_trajectory("t1"), decode, colour=False).splitlines() == [
        "trajectory t1  problem p-t1  28 tokens",
        "verdict correct  answer 4  calls: think(wise)",
        "--- prompt (16 tokens)",
        "Find gcd(8, 12).",
        "--- controller (4 tokens)",
        "call",
        "--- expert wise (7 tokens)",
        "use gcd",
        "--- controller (1 tokens)",
        "4",
    ]


def test_a_terminal_gets_colours_but_text_cannot_send_escapes() -> None:
    text = render(make_trajectory("t1", "\x1b[2Jgone\r\x9b1m"), decode, colour=True)
    assert "\x1b[33m␛[2Jgone␍\\u009b1m\x1b[0m" in text
    assert "\x1b[34mcall\x1b[0m" in text
    assert "\x1b" not in render(make_trajectory("t1", "\x1b[2J"), decode, colour=False)


def test_long_text_is_paged_back_and_forth(tmp_path: Path) -> None:
    run = RunFolder.create(make_config(), path=tmp_path / "long")
    run.write_trajectories(
        CANDIDATE_STAGE, 0, [make_trajectory("t1", "\n".join(f"line{i}" for i in range(12)))]
    )
    _, shown = answer(run, "\n\n\nb\nx\na\n", page_lines=8)
    # 2 header lines + 3 owner lines + prompt + call + 12 + owner line + 4 = 20 lines: 3 pages.
    pages = [part.split(" --")[0] for part in shown.split("-- page ")[1:]]
    assert pages == ["1/3", "2/3", "3/3", "3/3", "2/3", "2/3"]
    assert shown.count("line11") == 1 and shown.count("line5\n") == 2
    assert accepted(run) == ["t1"]
