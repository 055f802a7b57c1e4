"""The folder of one run: everything that it read, did and found, in files that other tools can read.

::

    runs/<name>/
    ├── config.yaml                       resolved configuration, secrets taken out
    ├── data.json                        what the problem sets held, and contamination (apprentice.data.info)
    ├── provenance.json                   versions, git revision, machine, command line, seed, start time
    ├── state.json                        how far it got (stage, step); what --resume reads
    ├── metrics.jsonl                     one row a step (apprentice.metrics.logger)
    ├── events/                           the same for TensorBoard
    ├── checkpoints/<stage>/step_<N>/     Hugging Face format; COMPLETE.json is written last
    ├── trajectories/<stage>/*.parquet    apprentice.trajectory
    ├── results/<mode>/<set>.jsonl        one row a problem (apprentice.results)
    ├── review.jsonl                      decisions of `apprentice trajectories review`
    ├── summary.json                      accuracy, interval and n by mode; wall seconds; peak memory
    └── report.html
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import shutil
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from apprentice.config.load import dump_yaml, load_config
from apprentice.config.schema import Config
from apprentice.errors import ConfigError, DataError
from apprentice.provenance import Redactor, collect_provenance
from apprentice.trajectory import Trajectory, read_parquet, write_parquet

__all__ = ["COMPLETE", "Checkpoint", "OnExisting", "RunFolder", "file_slug", "write_json_atomic"]

_log = logging.getLogger(__name__)

COMPLETE = "COMPLETE.json"
"""Finish marker of a checkpoint. Written last; lists every file with its size in bytes."""

OnExisting = Literal["number", "archive", "error"]
"""What to do when the folder is taken: take ``<name>-2``, move the old one to ``<name>.old-1``, or fail."""

_STEP = re.compile(r"^step_(\d+)$")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A finished checkpoint. ``info`` is what :meth:`RunFolder.mark_complete` was given."""

    path: Path
    stage: str
    step: int
    info: dict[str, Any]


class RunFolder:
    """Paths, atomic writes and the rules of one run folder. Make one with :meth:`create` or :meth:`open`."""

    def __init__(self, path: Path, config: Config, lock: int | None) -> None:
        self.path = path
        self.config = config
        # Closed with this object, or with the process however it ends.
        self._unlock = None if lock is None else weakref.finalize(self, os.close, lock)
        self._redact = Redactor.for_config(config)

    # ------------------------------------------------------------------ opening

    @classmethod
    def create(
        cls,
        config: Config,
        *,
        path: str | Path | None = None,
        command: Sequence[str] | None = None,
        on_existing: OnExisting = "number",
    ) -> RunFolder:
        """Make the folder of a new run and write its configuration and provenance. Overwrites nothing, ever.

        Args:
            config: the resolved configuration.
            path: the folder; ``<run_dir>/<name>`` of the configuration when left out.
            command: command line for the provenance; ``sys.argv`` when left out.
            on_existing: ``number`` (default) takes the first free ``<name>-2``, ``<name>-3``...;
                ``archive`` renames the older run to ``<name>.old-1``... so that the new one has the plain
                name; ``error`` fails.

        Raises:
            ConfigError: the folder is taken and ``on_existing`` is ``error``, or the run in it is alive.
        """
        target = Path(path) if path is not None else Path(config.run_dir) / file_slug(config.name)
        if _taken(target):
            if on_existing == "error" or not target.is_dir():
                raise ConfigError(
                    f"{target} already holds a run; choose another name, continue it with --resume, "
                    "or move it away"
                )
            if on_existing == "archive":
                os.close(_lock_folder(target))  # refuses to move a run from under a live process
                target.rename(_first_free(target, ".old-", 1))
            else:
                target = _first_free(target, "-", 2)
        target.mkdir(parents=True, exist_ok=True)
        run = cls(target, config, _lock_folder(target))
        for name in ("events", "checkpoints", "trajectories", "results"):
            (target / name).mkdir(exist_ok=True)
        text = dump_yaml(run._redact(config.model_dump(mode="json")))
        _write_text_atomic(target / "config.yaml", text)
        run.write_json("provenance.json", collect_provenance(config, command))
        return run

    @classmethod
    def open(cls, path: str | Path, *, resume: bool = False) -> RunFolder:
        """Open an existing run: to read it, or with ``resume`` to go on with it (then alone).

        Raises:
            ConfigError: no run is there, its configuration is broken, or (``resume``) a live process has it.
        """
        path = Path(path)
        file = path / "config.yaml"
        if not file.is_file():
            raise ConfigError(f"{path} is not a run folder: it has no config.yaml")
        config = load_config(file)
        return cls(path, config, _lock_folder(path) if resume else None)

    def close(self) -> None:
        """Let go of the run, so that another process may resume it. Ends by itself with the process."""
        if self._unlock is not None:
            self._unlock()

    # ------------------------------------------------------------------ small files

    def write_json(self, name: str, value: Any, *, redact: bool = True) -> Path:
        """Write a JSON file of the folder atomically. ``name`` may hold folders.

        Args:
            redact: take keys and passwords out.
        """
        path = self.path / name
        write_json_atomic(path, self._redact(value) if redact else value)
        return path

    def read_json(self, name: str) -> Any:
        """Read a JSON file of the folder; None when it does not exist.

        Raises:
            DataError: it is not JSON.
        """
        path = self.path / name
        if not path.is_file():
            return None
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DataError(f"{path} is not JSON ({error}); restore or delete it") from error

    @property
    def provenance(self) -> dict[str, Any]:
        """``provenance.json``; empty when it is missing."""
        return dict(self.read_json("provenance.json") or {})

    def write_state(self, stage: str, step: int, **extra: Any) -> None:
        """Record that ``step`` steps of ``stage`` are done (atomic; ``extra`` must be JSON)."""
        self.write_json("state.json", {"stage": stage, "step": step, **extra, "time": time.time()})

    def read_state(self) -> dict[str, Any] | None:
        """The last :meth:`write_state` (keys ``stage``, ``step``, ``time`` and extras), or None."""
        state = self.read_json("state.json")
        return None if state is None else dict(state)

    # ------------------------------------------------------------------ checkpoints

    def checkpoint_path(self, stage: str, step: int) -> Path:
        """Where the checkpoint after ``step`` steps of ``stage`` goes. Not created here."""
        return self.path / "checkpoints" / file_slug(stage) / f"step_{step}"

    def mark_complete(self, stage: str, step: int, **info: Any) -> Checkpoint:
        """Write the finish marker, after every rank has written its files.

        Raises:
            DataError: there is nothing to mark.
        """
        path = self.checkpoint_path(stage, step)
        files = _sizes(path)
        if not files:
            raise DataError(f"checkpoint {path} is empty; write its files before it is marked complete")
        for name in files:
            _fsync(path / name)
        write_json_atomic(
            path / COMPLETE,
            {"stage": stage, "step": step, "info": info, "files": files, "time": time.time()},
        )
        return Checkpoint(path, stage, step, info)

    def latest_complete(self, stage: str) -> Checkpoint | None:
        """The newest finished checkpoint of ``stage``, or None.

        A newer one that lacks its marker, or a file that the marker lists, is skipped with a warning: the run
        was interrupted while it was written.
        """
        folder = self.path / "checkpoints" / file_slug(stage)
        found = [(int(m.group(1)), p) for p in folder.glob("step_*") if (m := _STEP.match(p.name))]
        for step, path in sorted(found, reverse=True):
            problem, marker = _incomplete(path)
            if not problem:
                return Checkpoint(path, stage, step, dict(marker.get("info", {})))
            _log.warning("skipping half-written checkpoint %s: %s", path, problem)
        return None

    def checkpoint_at(self, stage: str, step: int) -> Checkpoint | None:
        """The finished checkpoint after ``step`` steps of ``stage``; None when it is missing or not whole."""
        path = self.checkpoint_path(stage, step)
        problem, marker = _incomplete(path)
        return None if problem else Checkpoint(path, stage, step, dict(marker.get("info", {})))

    def drop_checkpoint(self, stage: str, step: int) -> None:
        """Remove a checkpoint that nothing needs any more; its marker first, so that no half is taken for
        whole."""
        path = self.checkpoint_path(stage, step)
        (path / COMPLETE).unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)

    # ------------------------------------------------------------------ trajectories

    def trajectory_path(self, stage: str, part: int | str = 0) -> Path:
        """File of one part (a step number, or a name) of a stage's trajectories; parts sort by step."""
        name = f"step_{part:06d}" if isinstance(part, int) else file_slug(part)
        return self.path / "trajectories" / file_slug(stage) / f"{name}.parquet"

    def write_trajectories(self, stage: str, part: int | str, trajectories: Sequence[Trajectory]) -> Path:
        """Write one part of a stage's trajectories (atomic)."""
        path = self.trajectory_path(stage, part)
        write_parquet(trajectories, path)
        return path

    def read_trajectories(self, stage: str) -> list[Trajectory]:
        """All trajectories of a stage in order of their parts; empty when there are none."""
        folder = self.path / "trajectories" / file_slug(stage)
        return read_parquet(folder) if any(folder.glob("*.parquet")) else []

    # ------------------------------------------------------------------ other paths

    @property
    def metrics_path(self) -> Path:
        """``metrics.jsonl``."""
        return self.path / "metrics.jsonl"

    @property
    def events_path(self) -> Path:
        """TensorBoard folder."""
        return self.path / "events"

    def results_path(self, mode: str, set_name: str) -> Path:
        """Per-item results of one mode on one problem set."""
        return self.path / "results" / file_slug(mode) / f"{file_slug(set_name)}.jsonl"


def file_slug(name: str) -> str:
    """``name`` as one safe file name: ``math-ai/aime25`` gives ``math-ai_aime25``; never ``..`` or empty."""
    slug = re.sub(r"[^A-Za-z0-9._-]+", "_", name).lstrip(".")
    return slug or "_"


def write_json_atomic(path: Path, value: Mapping[str, Any] | Sequence[Any]) -> None:
    """Write JSON beside ``path`` and rename it, so that a reader sees the old file or the new, never half."""
    _write_text_atomic(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _write_text_atomic(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _taken(path: Path) -> bool:
    return path.exists() and (not path.is_dir() or any(path.iterdir()))


def _first_free(path: Path, separator: str, first: int) -> Path:
    number = first
    while _taken(candidate := path.with_name(f"{path.name}{separator}{number}")):
        number += 1
    return candidate


def _lock_folder(path: Path) -> int:
    """Hold the folder until the returned descriptor is closed."""
    lock = os.open(path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise ConfigError(
            f"{path} belongs to a run that is still alive; stop that run or choose another name"
        ) from error
    return lock


def _sizes(path: Path) -> dict[str, int]:
    return {
        str(file.relative_to(path)): file.stat().st_size
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name != COMPLETE and not file.name.endswith(".partial")
    }


def _incomplete(path: Path) -> tuple[str, dict[str, Any]]:
    """Why a checkpoint must not be used (empty: it may be), and its marker."""
    try:
        marker = dict(json.loads((path / COMPLETE).read_text(encoding="utf-8")))
    except OSError:
        return f"{COMPLETE} is missing", {}
    except (ValueError, TypeError):
        return f"{COMPLETE} is not a JSON object", {}
    sizes = _sizes(path)
    for name, size in dict(marker.get("files", {})).items():
        if name not in sizes:
            return f"{name} is missing", {}
        if sizes[name] != size:
            return f"{name} has {sizes[name]} bytes instead of {size}", {}
    return "", marker


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
