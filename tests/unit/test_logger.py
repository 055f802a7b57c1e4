"""Metrics, progress, phase times and memory: what is written can be read back, and bad input is survived."""

from __future__ import annotations

import io
import json
import logging
import math
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from apprentice.config.schema import TrackingConfig
from apprentice.errors import ConfigError
from apprentice.metrics import memory
from apprentice.metrics.logger import MetricsLogger, PhaseTimer, Progress, read_metrics
from apprentice.metrics.progress import format_seconds
from apprentice.run_folder import RunFolder
from tests.unit.test_run_folder import make_config

pytestmark = pytest.mark.unit

PLAIN = TrackingConfig(tensorboard=False)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(make_config(), path=tmp_path / "demo")


def test_rows_are_flat_json_lines_on_disk_at_once(run: RunFolder) -> None:
    clock = Clock()
    logger = MetricsLogger(run, PLAIN, clock=clock)
    clock.now = 102.5
    logger.log(1, "stage1", {"reward/mean": -0.25, "groups/zero_signal": 3})
    assert json.loads(run.metrics_path.read_text()) == {
        "stage": "stage1",
        "step": 1,
        "time": 102.5,
        "wall_s": 2.5,
        "reward/mean": -0.25,
        "groups/zero_signal": 3.0,
    }
    logger.close()
    logger.close()


def test_nan_and_infinity_become_null_with_one_warning(
    run: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), MetricsLogger(run, PLAIN) as logger:
        logger.log(1, "stage1", {"loss": math.nan, "grad_norm": math.inf, "accuracy": 0.5})
        logger.log(2, "stage1", {"loss": math.nan, "grad_norm": 1.0, "accuracy": 0.5})
    first = json.loads(run.metrics_path.read_text().splitlines()[0])
    assert first["loss"] is None and first["grad_norm"] is None and first["accuracy"] == 0.5
    assert [r.getMessage() for r in caplog.records] == [
        "loss is nan at step 1 of stage1; logged as null",
        "grad_norm is inf at step 1 of stage1; logged as null",
    ]
    assert read_metrics(run.metrics_path)[0].values == {"accuracy": 0.5}


def test_a_reserved_name_is_refused(run: RunFolder) -> None:
    with MetricsLogger(run, PLAIN) as logger, pytest.raises(ValueError, match="'step'"):
        logger.log(1, "stage1", {"step": 1.0})


def test_a_torn_row_is_skipped_and_a_resumed_run_starts_a_fresh_line(
    run: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    with MetricsLogger(run, PLAIN) as logger:
        for step in (1, 2, 3):
            logger.log(step, "stage1", {"loss": float(step)})
    run.metrics_path.write_text(run.metrics_path.read_text() + '{"stage": "stage1", "st')
    with MetricsLogger(run, PLAIN) as logger:  # resumes from step 2
        logger.log(3, "stage1", {"loss": 30.0})
        logger.log(1, "stage2", {"loss": 7.0})
        logger.log(4, "stage1", {"loss": 40.0})
    with caplog.at_level(logging.WARNING):
        rows = read_metrics(run.metrics_path)
    assert [(r.stage, r.step, r.values["loss"]) for r in rows] == [
        ("stage1", 1, 1.0),
        ("stage1", 2, 2.0),
        ("stage1", 3, 30.0),
        ("stage1", 4, 40.0),
        ("stage2", 1, 7.0),
    ]
    assert "line 4 is torn" in caplog.text


def test_no_metrics_file_has_no_rows(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "none.jsonl") == []


def test_tensorboard_receives_the_finite_values(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    scalars: list[tuple[str, float, int]] = []

    class SummaryWriter:
        def __init__(self, log_dir: str) -> None:
            assert log_dir == str(run.events_path)

        def add_scalar(self, name: str, value: float, step: int) -> None:
            scalars.append((name, value, step))

        def flush(self) -> None: ...

        def close(self) -> None: ...

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    with MetricsLogger(run, TrackingConfig(tensorboard=True)) as logger:
        logger.log(4, "stage1", {"loss": 0.5, "grad_norm": math.nan})
    assert scalars == [("stage1/loss", 0.5, 4)]


def test_real_tensorboard_events_can_be_read_back(run: RunFolder) -> None:
    code = (
        "import sys; from apprentice.run_folder import RunFolder;"
        "from apprentice.metrics.logger import MetricsLogger;"
        "from apprentice.config.schema import TrackingConfig;"
        "run = RunFolder.open(sys.argv[1]); log = MetricsLogger(run, TrackingConfig());"
        "log.log(3, 'stage1', {'loss': 0.5}); log.close();"
        "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator as A;"
        "a = A(str(run.events_path)); a.Reload(); e = a.Scalars('stage1/loss'); print(e[0].step, e[0].value)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(run.path)], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["3", "0.5"], done.stderr


@pytest.mark.parametrize(
    ("tracking", "module", "remedy"),
    [
        (TrackingConfig(tensorboard=True), "torch.utils.tensorboard", "tracking.tensorboard=false"),
        (TrackingConfig(tensorboard=False, wandb_project="p"), "wandb", r"apprentice\[wandb\]"),
    ],
)
def test_a_missing_sink_names_its_remedy(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, tracking: TrackingConfig, module: str, remedy: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=remedy):
        MetricsLogger(run, tracking)


def test_wandb_receives_stages_on_their_own_axes(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    wandb = types.ModuleType("wandb")
    fake = types.SimpleNamespace(
        define_metric=lambda name, step_metric: seen.append(("axis", name, step_metric)),
        log=lambda row: seen.append(row),
        finish=lambda: seen.append("finish"),
    )
    wandb.init = lambda **kwargs: (seen.append((kwargs["project"], kwargs["name"])), fake)[1]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    with MetricsLogger(run, TrackingConfig(tensorboard=False, wandb_project="p")) as logger:
        logger.log(1, "stage1", {"loss": 2.0})
        logger.log(2, "stage1", {"loss": 1.0})
    assert seen == [
        ("p", "demo"),
        ("axis", "stage1/*", "stage1/step"),
        {"stage1/step": 1, "stage1/loss": 2.0},
        {"stage1/step": 2, "stage1/loss": 1.0},
        "finish",
    ]


def test_progress_without_a_terminal_prints_a_line_at_most_every_interval() -> None:
    clock, out = Clock(), io.StringIO()
    with Progress(50, "stage1", unit="step", stream=out, clock=clock, interval_s=10) as progress:
        for _ in range(12):
            clock.now += 4.0
            progress.update(reward=0.3)
    lines = out.getvalue().splitlines()
    # 4 s a step: lines at 12, 24, 36 and 48 s, and one at the end.
    assert len(lines) == 5
    assert lines[0] == "stage1: 3/50 step (6 %), 0.25 step/s, 3:08 left, reward=0.3"
    assert lines[-1].startswith("stage1: 12/50 step (24 %), 0.25 step/s, 2:32 left")


def test_progress_of_a_resumed_run_rates_its_own_items_only() -> None:
    clock = Clock()
    progress = Progress(10, "x", initial=8, enabled=False, clock=clock)
    clock.now += 20.0
    progress.update()
    assert progress.line() == "x: 9/10 it (90 %), 20 s/it, 20 s left"
    progress.update()
    assert progress.line() == "x: 10/10 it (100 %), 0.1 it/s, took 20 s"


def test_progress_is_a_bar_on_a_terminal_and_nothing_when_disabled() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    with Progress(4, "verify", stream=out) as progress:
        progress.update(4)
    assert "verify: 100%" in out.getvalue() and "4/4" in out.getvalue()
    quiet = Terminal()
    with Progress(4, "verify", stream=quiet, enabled=False) as progress:
        progress.update(4)
    assert quiet.getvalue() == ""


def test_progress_of_unknown_length_has_no_remaining_time() -> None:
    clock = Clock()
    progress = Progress(None, "x", enabled=False, clock=clock)
    clock.now += 2.0
    progress.update(10)
    assert progress.line() == "x: 10 it, 5 it/s, took 2.0 s"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.44, "0.4 s"), (42, "42 s"), (123, "2:03"), (3723, "1:02:03"), (59.6, "1:00")]
)
def test_seconds_are_written_for_people(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_phase_timer_adds_up_and_survives_errors() -> None:
    clock = Clock()
    timer = PhaseTimer(clock)
    with timer("rollout"):
        clock.now += 2.0
    with pytest.raises(RuntimeError), timer("train"):
        clock.now += 1.0
        raise RuntimeError
    with timer("rollout"):
        clock.now += 0.5
    assert timer.reset() == {"time/rollout": 2.5, "time/train": 1.0}
    assert timer.metrics() == {}


def fake_proc(root: Path, processes: dict[int, tuple[int, int, int]]) -> Path:
    """pid -> (parent, PSS KiB, shared-memory PSS KiB)."""
    for pid, (parent, pss, shared) in processes.items():
        folder = root / str(pid)
        folder.mkdir(parents=True)
        (folder / "stat").write_text(f"{pid} (a (b) c) S {parent} 1 1")
        (folder / "smaps_rollup").write_text(
            f"0-1 ---p 0 00:00 0 [rollup]\nRss: 9999 kB\nPss: {pss} kB\nPss_Shmem: {shared} kB\n"
        )
    return root


def test_memory_counts_the_tree_once_and_shared_memory_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc = fake_proc(
        tmp_path / "proc", {10: (1, 100, 40), 11: (10, 200, 60), 12: (11, 50, 0), 99: (1, 5000, 0)}
    )
    assert memory.descendants([10], proc) == {10, 11, 12}
    monkeypatch.setattr(memory, "shm_used", lambda _shm: 80 * 1024)
    # 60 + 140 + 50 private KiB; shared: mapped 100 KiB exceeds the 80 of /dev/shm.
    assert memory.memory_now([10], 0, proc) == (250 + 100) * 1024
    # An unmapped 500 KiB object counts too; what was there before the run does not.
    monkeypatch.setattr(memory, "shm_used", lambda _shm: 600 * 1024)
    assert memory.memory_now([10], 100 * 1024, proc) == (250 + 500) * 1024


def test_memory_falls_back_to_rss_where_pss_may_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc = fake_proc(tmp_path / "proc", {10: (1, 1, 0)})
    (proc / "10" / "smaps_rollup").unlink()
    (proc / "10" / "status").write_text("Name:\tx\nVmRSS:\t  300 kB\nRssShmem:\t  100 kB\n")
    monkeypatch.setattr(memory, "shm_used", lambda _shm: 0)
    assert memory.memory_now([10], 0, proc) == 300 * 1024


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_sampler_sees_memory_of_a_child_process() -> None:
    code = "import sys; block = bytearray(200 << 20); print('up', flush=True); sys.stdin.read()"
    sampler = memory.MemorySampler(interval_s=0.05).start()
    before = sampler.sample()
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stdin is not None
        assert child.stdout.readline() == "up\n"
        assert child.pid in memory.descendants([os.getpid()])
        during = sampler.sample()
        child.stdin.close()
    peak = sampler.stop()
    assert 190 << 20 < during - before < 260 << 20
    assert peak >= during and sampler.stop() == peak


def test_quick_samples_are_corrected_by_the_last_full_one(monkeypatch: pytest.MonkeyPatch) -> None:
    full, quick = iter([1000, 1300]), iter([900, 1500, 1100, 800])
    monkeypatch.setattr(memory, "memory_now", lambda *_: next(full))
    monkeypatch.setattr(memory, "quick_memory_now", lambda *_: next(quick))
    sampler = memory.MemorySampler()
    samples = [sampler.sample(), sampler.sample(full=False), sampler.sample(), sampler.sample(full=False)]
    assert samples == [1000, 1600, 1300, 1000]
    assert sampler.peak_bytes == 1600


def test_quick_memory_is_anonymous_memory_and_growth_of_shm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc = fake_proc(tmp_path / "proc", {10: (1, 1, 0), 11: (10, 1, 0), 99: (1, 1, 0)})
    for pid, kib in ((10, 300), (11, 20), (99, 5000)):
        (proc / str(pid) / "status").write_text(f"Name:\tx\nVmRSS:\t 9999 kB\nRssAnon:\t  {kib} kB\n")
    monkeypatch.setattr(memory, "shm_used", lambda _shm: 600 * 1024)
    assert memory.quick_memory_now([10], 100 * 1024, proc) == (300 + 20 + 500) * 1024


def test_full_samples_take_a_bounded_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()

    def slow(*_: object) -> int:
        clock.now += 0.5
        return 1

    monkeypatch.setattr(memory, "memory_now", slow)
    monkeypatch.setattr(memory.time, "monotonic", clock)
    sampler = memory.MemorySampler(full_share=0.02)
    sampler.sample()
    assert sampler._next_full == pytest.approx(100.5 + 0.5 / 0.02)
