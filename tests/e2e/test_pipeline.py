"""The whole pipeline through the command line, with a tiny random Qwen3 and every real part."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

from apprentice.config.load import load_config
from apprentice.data.load import load_data
from apprentice.metrics.logger import read_metrics
from apprentice.run_folder import RunFolder
from apprentice.trajectory import NOT_SAMPLED, Owner, Status
from tests.tiny import make_tiny_model

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "configs" / "tiny.yaml"


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[RunFolder, subprocess.CompletedProcess[str], float]:
    folder = tmp_path_factory.mktemp("e2e")
    problems = load_data(load_config(RECIPE, []).data).train
    corpus = [p.question for p in problems] + [p.worked.program for p in problems if p.worked]
    arguments = '{"model": "worked", "code": ""}'
    call = f'<tool_call>\n{{"name": "code_interpreter", "arguments": {arguments}}}\n</tool_call>'
    corpus += [call, "Answer: \\boxed{12}", "<python>\n</python>\n<output>\n</output>"] * 8
    model = make_tiny_model(folder / "model", corpus=corpus, vocab_size=1024, hidden=128, layers=2)
    # Enough warm-up for the random model to know its eight demonstrations by heart: it then makes real calls,
    # and some trajectories reach Stage II.
    overrides = [
        f"controller.model={model}",
        f"run_dir={folder / 'runs'}",
        "warmup.epochs=80",
        "warmup.batch_size=8",
        "warmup.optimizer.learning_rate=0.003",
        "rollout.sampling.temperature=0.7",
        "stage2.max_problems=8",
    ]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "driver", "train", str(RECIPE), *overrides],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
        env=os.environ | {"OMP_NUM_THREADS": "2"},
    )
    seconds = time.monotonic() - began
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    return RunFolder.open(folder / "runs" / "tiny"), done, seconds


def test_it_takes_less_than_two_minutes(finished) -> None:
    assert finished[2] < 120


def test_the_table_and_the_summary_agree(finished) -> None:
    run, done, _ = finished
    summary = json.loads((run.path / "summary.json").read_text())
    assert list(summary["modes"]) == ["base", "collaborative", "experts_removed", "internalized"]
    for mode in summary["modes"].values():
        assert mode["n"] == 4
        assert 0 <= mode["low"] <= mode["accuracy"] <= mode["high"] <= 1
    assert summary["seed"] == 66
    assert summary["wall_seconds"] > 0
    assert summary["peak_memory_bytes"] > 2**28
    assert "Stage II" in done.stdout
    assert (run.path / "report.html").stat().st_size > 10_000


def test_stage1_steps_are_on_policy_and_logged(finished) -> None:
    run = finished[0]
    rows = [row for row in read_metrics(run.metrics_path) if row.stage == "stage1"]
    assert [row.step for row in rows] == [1, 2]
    warm = 1  # the warm-up's own sync
    for step, row in enumerate(rows):
        trajectories = [t for t in run.read_trajectories("stage1") if t.group_id.startswith(f"{step}:")]
        assert len(trajectories) == 4
        for trajectory in trajectories:
            versions = set(trajectory.policy_version.tolist()) - {NOT_SAMPLED}
            assert versions == {warm + step}  # every token of the step came from the weights before it
            assert trajectory.reward in (1.0, -1.0)
        assert row.values["policy_version"] == warm + step + 1
        assert row.values["logprob_gap/max"] < 1e-3  # float32: engine and learner agree
        assert row.values["ratio/controller/max"] == 1.0  # one update a batch
        assert row.values["calls/mean"] > 0.5  # the warm-up taught it to call
        rewards = [t.reward for t in trajectories]
        assert row.values["reward/mean"] == pytest.approx(np.mean(rewards))


def test_experts_wrote_tokens_and_python_ran(finished) -> None:
    run = finished[0]
    trajectories = run.read_trajectories("stage1") + run.read_trajectories("stage2_sampled")
    assert any((t.owner == Owner.EXPERT).any() for t in trajectories)
    assert any(call.outcome == "ok" for t in trajectories for call in t.calls)
    assert all(t.status is not Status.UNUSABLE for t in trajectories)


def test_checkpoints_load_with_transformers(finished) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run = finished[0]
    for stage in ("warmup", "stage1", "stage2"):
        checkpoint = run.latest_complete(stage)
        assert checkpoint is not None, stage
        model = AutoModelForCausalLM.from_pretrained(checkpoint.path)
        assert model.config.vocab_size == 1024
        assert AutoTokenizer.from_pretrained(checkpoint.path).convert_tokens_to_ids("<|im_end|>") > 0


def test_a_finished_run_has_nothing_left_to_resume(finished) -> None:
    run = finished[0]
    done = subprocess.run(
        [sys.executable, "-m", "driver", "train", "--resume", str(run.path)],
        cwd=ROOT, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0
    assert "nothing is left to do" in done.stdout


def test_the_run_folder_tells_how_it_was_made(finished) -> None:
    run = finished[0]
    assert yaml.safe_load((run.path / "config.yaml").read_text())["seed"] == 66
    assert {"ray", "torch", "transformers", "deepspeed"} <= set(run.provenance["versions"])
    funnel = json.loads((run.path / "stage2_filters.json").read_text())
    assert funnel[0] == {"name": "sampled", "count": 16}
    assert funnel[-1]["count"] >= 1
