"""Learning to Ask through the command line: a model from random weights, and every real part."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from apprentice.costs.ledger import read_book
from apprentice.metrics.logger import read_metrics
from apprentice.run_folder import RunFolder
from apprentice.trajectory import NOT_SAMPLED, Owner, Trajectory

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "configs" / "ask-demo.yaml"

# Sums that a short warm-up teaches by heart, and problems that it never shows: both classes of stage 1 exist.
FAMILIES = (
    "{chain_sum@easy: {min_terms: 2, max_terms: 2, min_digits: 1, max_digits: 1}, "
    "gcd: {}}"
)
OVERRIDES = [
    "controller.model=random:64x2",
    "ask.secrets.share=0",
    "protocol.max_rollout_tokens=160",
    "evaluation.max_rollout_tokens=160",
    f"data.train.families={FAMILIES}",
    f"data.test.0.families={FAMILIES}",
    "data.train.size=24",
    "data.test.0.size=8",
    "ask.warmup.problems=null",
    "ask.warmup.examples=360",
    "ask.warmup.epochs=8",
    "ask.warmup.batch_size=12",
    "ask.qmaker_warmup.examples=96",
    "ask.solo.samples=4",
    "ask.solo.gamma=1",
    "ask.validation_share=0.34",
    "ask.validation_samples=2",
    *(
        f"ask.stage{n}.{key}"
        for n in (1, 2, 3)
        for key in ("steps=2", "prompts_per_step=4", "rollouts_per_prompt=4", "validate_every=1")
    ),
    "evaluation.k=2",
    "evaluation.bootstrap_samples=200",
    "tracking.progress=false",
]


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "driver", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=580,
        env=os.environ | {"OMP_NUM_THREADS": "2", "XDG_CACHE_HOME": str(folder / "cache")},
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[RunFolder, str]:
    folder = tmp_path_factory.mktemp("ask")
    done = _run(folder, "train", str(RECIPE), f"run_dir={folder / 'runs'}", *OVERRIDES)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    return RunFolder.open(folder / "runs" / "ask-demo"), done.stdout


def _trajectories(run: RunFolder, stage: str) -> list[Trajectory]:
    found = run.read_trajectories(stage)
    assert found, stage
    return found


def test_every_unit_is_done_and_the_table_is_printed(finished) -> None:
    run, said = finished
    state = run.read_state()
    assert state["completed"][-1] == "evaluate/stage3_b64_ask_qmaker"
    assert "Learning to Ask, seed 7" in said
    assert "not measured" not in said
    assert (run.path / "report.html").read_text().count("Asking") >= 1


def test_stage_1_is_rewarded_for_asking_where_it_is_needed(finished) -> None:
    run, _ = finished
    solo = run.read_json("ask/solo.json")
    needs = {name: wins <= 1 for name, wins in solo["successes"].items()}
    assert set(needs.values()) == {True, False}
    rows = [row for row in read_metrics(run.metrics_path) if row["stage"] == "ask_stage1"]
    assert [row["step"] for row in rows] == [1, 2]
    for step in (1, 2):
        batch = _trajectories(run, "ask_stage1")
        here = [t for t in batch if t.trajectory_id.startswith(f"ask_stage1/{step - 1}:")]
        reward = np.mean([bool(t.calls and not t.calls[-1].error) == needs[t.problem_id] for t in here])
        assert rows[step - 1]["ask/reward"] == pytest.approx(reward)


def test_in_stage_3_the_query_is_qmakers_and_nobody_is_trained_on_it(finished) -> None:
    run, _ = finished
    asked = [t for t in _trajectories(run, "ask_stage3_b64") if any(not c.error for c in t.calls)]
    assert asked
    for trajectory in asked:
        call = next(c for c in trajectory.calls if not c.error)
        sampled = trajectory.policy_version != NOT_SAMPLED
        assert np.array_equal(sampled, trajectory.owner == Owner.CONTROLLER)
        producers = {
            trajectory.producers[p] for p in trajectory.producer[trajectory.owner == Owner.EXPERT].tolist()
        }
        assert "advisor" in producers
        if "qmaker_format_error" not in trajectory.tags:
            assert "qmaker" in producers
            assert not sampled[call.position]  # the query begins there
        assert sampled[call.position - 1]  # the decision to ask is the reasoner's


def test_the_ledger_agrees_with_the_trajectories(finished) -> None:
    run, _ = finished
    paid = {
        (call.trajectory_id, call.call_index): found.cost
        for call, found in read_book(run.path / "ask" / "ledger.jsonl").calls.items()
        if call.account == "advisor"
    }
    seen = 0
    for stage in ("evaluate_stage3_b64_ask_qmaker", "ask_stage3_b64"):
        for trajectory in _trajectories(run, stage):
            for index, call in enumerate(trajectory.calls):
                if not call.error:
                    assert paid[trajectory.trajectory_id, index] == pytest.approx(call.cost)
                    assert call.cost == call.query_tokens + 6 * call.expert_tokens  # Eq. 4
                    seen += 1
    assert seen


def test_the_best_checkpoint_of_each_stage_is_kept(finished) -> None:
    run, _ = finished
    selected, scores = run.read_json("ask/selected.json"), run.read_json("ask/validation.json")
    for stage in ("ask_stage1", "ask_stage2_b64", "ask_stage3_b64"):
        rows = scores[stage]
        assert [row["step"] for row in rows] == [1, 2]
        best = max(rows, key=lambda row: (row["score"], -row["step"]))["step"]
        assert selected[stage] == best
        assert run.checkpoint_at(stage, best) is not None


def test_another_advisor_is_evaluated_without_training(finished, tmp_path: Path) -> None:
    run, _ = finished
    selected = run.read_json("ask/selected.json")
    reasoner, qmaker = (
        run.checkpoint_path(stage, selected[stage]) for stage in ("ask_stage3_b64", "ask_stage2_b64")
    )
    done = _run(
        run.path.parents[1],
        "evaluate",
        str(run.path),
        "--checkpoint",
        str(reasoner),
        "--modes",
        "ask_qmaker",
        f"run_dir={tmp_path}",
        f"ask.qmaker.model={qmaker}",
        "ask.advisor.backend.error_rate=1.0",
        "ask.advisor.max_tokens=64",
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    again = RunFolder.open(tmp_path / "ask-demo-evaluate")
    before = run.read_trajectories("evaluate_stage3_b64_ask_qmaker")
    after = again.read_trajectories("evaluate_ask_qmaker")
    assert len(after) == len(before)
    assert json.loads((again.path / "summary.json").read_text())["modes"]
