"""Where a run's numbers go: JSON lines always; TensorBoard and Weights & Biases by configuration.

A row of ``metrics.jsonl`` is flat: ``{"stage": "stage1", "step": 3, "time": ..., "wall_s": ...,
"reward/mean": 0.25, ...}``; ``time`` is Unix seconds, ``wall_s`` seconds since this process opened the
logger. A resumed run appends; where it repeats a step, the later row counts (:func:`read_metrics`).
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from apprentice.config.schema import TrackingConfig
from apprentice.errors import ConfigError
from apprentice.metrics.progress import PhaseTimer, Progress
from apprentice.provenance import Redactor
from apprentice.run_folder import RunFolder

__all__ = ["MetricRow", "MetricsLogger", "PhaseTimer", "Progress", "read_metrics"]

_log = logging.getLogger(__name__)

_RESERVED = ("stage", "step", "time", "wall_s")


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One step of one stage. ``values`` holds finite floats only; a null on disk is left out."""

    stage: str
    step: int
    time: float
    wall_s: float
    values: dict[str, float]


class MetricsLogger:
    """Writes each step to every sink, flushed, so that a killed run keeps what it logged.

    Raises:
        ConfigError: a sink that ``tracking`` asks for is not installed; the message says what to install.
    """

    def __init__(
        self, folder: RunFolder, tracking: TrackingConfig, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._start = clock()
        self._warned: set[str] = set()
        self._tensorboard = _open_tensorboard(folder.events_path) if tracking.tensorboard else None
        self._wandb = _open_wandb(folder, tracking.wandb_project) if tracking.wandb_project else None
        self._wandb_stages: set[str] = set()
        torn = _lacks_newline(folder.metrics_path)
        self._file = folder.metrics_path.open("a", encoding="utf-8")
        if torn:  # the last run was killed within a row; start a fresh line so that only that row is lost
            self._file.write("\n")

    def log(self, step: int, stage: str, metrics: Mapping[str, float]) -> None:
        """Log one step.

        Args:
            step: number of the step in its stage, from 1 (0: before the first).
            stage: e.g. ``stage1``.
            metrics: flat names to numbers. NaN and infinity become null, with a warning the first time.

        Raises:
            ValueError: a metric has a reserved name (stage, step, time, wall_s).
        """
        if taken := [name for name in _RESERVED if name in metrics]:
            raise ValueError(f"a metric may not be called {taken[0]!r}: rows use that name themselves")
        now = self._clock()
        finite: dict[str, float] = {}
        row: dict[str, Any] = {
            "stage": stage,
            "step": int(step),
            "time": round(now, 3),
            "wall_s": round(now - self._start, 3),
        }
        for name, value in metrics.items():
            number = float(value)
            if math.isfinite(number):
                finite[name] = row[name] = number
            else:
                row[name] = None
                if f"{stage}:{name}" not in self._warned:
                    self._warned.add(f"{stage}:{name}")
                    _log.warning("%s is %s at step %d of %s; logged as null", name, number, step, stage)
        self._file.write(json.dumps(row, allow_nan=False) + "\n")
        self._file.flush()
        if self._tensorboard is not None:
            for name, number in finite.items():
                self._tensorboard.add_scalar(f"{stage}/{name}", number, step)
            self._tensorboard.flush()
        if self._wandb is not None:
            if stage not in self._wandb_stages:
                # Steps begin anew with each stage; W&B wants one rising axis unless told otherwise.
                self._wandb_stages.add(stage)
                self._wandb.define_metric(f"{stage}/*", step_metric=f"{stage}/step")
            self._wandb.log({f"{stage}/step": step, **{f"{stage}/{k}": v for k, v in finite.items()}})

    def close(self) -> None:
        """Flush and close every sink. Twice does nothing."""
        self._file.close()
        if self._tensorboard is not None:
            self._tensorboard.close()
            self._tensorboard = None
        if self._wandb is not None:
            self._wandb.finish()
            self._wandb = None

    def __enter__(self) -> MetricsLogger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_metrics(path: str | Path) -> list[MetricRow]:
    """Rows of a ``metrics.jsonl`` in the order of their stages' first appearance, then by step.

    The later of two rows of one stage and step counts (a resumed run did that step again). A torn row (the
    run was killed while writing) is skipped with a warning. No file: no rows.
    """
    path = Path(path)
    if not path.is_file():
        return []
    rows: dict[tuple[str, int], MetricRow] = {}
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                key = (str(row["stage"]), int(row["step"]))
                rows[key] = MetricRow(
                    *key,
                    float(row["time"]),
                    float(row["wall_s"]),
                    {k: float(v) for k, v in row.items() if k not in _RESERVED and v is not None},
                )
            except (ValueError, KeyError, TypeError):
                _log.warning("%s, line %d is torn or no metrics row; skipped", path, number)
    order = {stage: i for i, stage in enumerate(dict.fromkeys(stage for stage, _ in rows))}
    return sorted(rows.values(), key=lambda row: (order[row.stage], row.step))


def _lacks_newline(path: Path) -> bool:
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"


def _open_tensorboard(folder: Path) -> Any:
    try:
        module = importlib.import_module("torch.utils.tensorboard")
    except ImportError as error:
        raise ConfigError(
            f"tracking.tensorboard is on, but TensorBoard cannot be imported ({error}); "
            "pip install tensorboard, or set tracking.tensorboard=false"
        ) from error
    return module.SummaryWriter(log_dir=str(folder))


def _open_wandb(folder: RunFolder, project: str) -> Any:
    try:
        wandb = importlib.import_module("wandb")
    except ImportError as error:
        raise ConfigError(
            f"tracking.wandb_project is {project!r}, but wandb cannot be imported ({error}); "
            "pip install 'apprentice[wandb]', or leave tracking.wandb_project out"
        ) from error
    redact = Redactor.for_config(folder.config)
    return wandb.init(
        project=project,
        name=folder.path.name,
        dir=str(folder.path),
        config=redact(folder.config.model_dump(mode="json")),
    )
