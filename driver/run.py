"""Whole runs: what `apprentice train`, `evaluate` and `trajectories collect` do."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from apprentice.config.schema import Config, OptimizerConfig
from apprentice.data.info import data_record
from apprentice.data.load import load_data
from apprentice.data.order import ProblemStream
from apprentice.errors import ConfigError, DataError
from apprentice.hardware import with_dtypes
from apprentice.metrics.logger import MetricsLogger
from apprentice.metrics.memory import MemorySampler
from apprentice.models import resolve_model
from apprentice.report.build import build_report
from apprentice.report.summary import format_table, write_summary
from apprentice.results import read_all_results
from apprentice.run_folder import Checkpoint, RunFolder
from apprentice.tokens.codec import ChatCodec
from driver.cluster import cluster
from driver.context import Run
from driver.evaluation import evaluate_mode
from driver.spawn import spawn_fleet
from driver.stage1 import run_stage1
from driver.stage2 import collect as collect_trajectories
from driver.stage2 import run_stage2
from driver.warmup import run_warmup
from driver.watchdog import Watchdog

__all__ = ["collect", "evaluate", "last_checkpoint", "train", "units"]

_log = logging.getLogger(__name__)


def units(config: Config) -> list[str]:
    """What a run does, in order: stages, and the evaluations at the point where their weights exist."""
    modes = config.evaluation.modes if "evaluate" in config.stages else ()
    out = ["evaluate/base"] if "base" in modes else []
    out += [stage for stage in ("warmup", "stage1") if stage in config.stages]
    out += [f"evaluate/{mode}" for mode in ("collaborative", "experts_removed") if mode in modes]
    if "stage2" in config.stages and config.stage2.enabled:
        out.append("stage2")
    return out + (["evaluate/internalized"] if "internalized" in modes else [])


def train(config: Config, *, address: str | None = None, resume: str | None = None) -> int:
    """Run every stage of a recipe; 0 when all of it is done.

    Args:
        address: of an existing Ray cluster; None: see :func:`driver.cluster.cluster`.
        resume: folder of an unfinished run: goes on after the last unit (or checkpoint of Stage I) that was
            finished, with that run's own configuration. Optimizer moments start anew.
    """
    config = with_dtypes(config)
    # A new run has the plain name; an older one of that name is kept beside it.
    folder = (
        RunFolder.open(resume, resume=True) if resume else RunFolder.create(config, on_existing="archive")
    )
    config = with_dtypes(folder.config if resume else config)
    if config.ask is not None:
        return _train_ask(config, folder, address)
    state = folder.read_state() or {}
    completed: list[str] = list(state.get("completed", []))
    todo = [unit for unit in units(config) if unit not in completed]
    if not todo:
        print(f"{folder.path}: nothing is left to do; all of {', '.join(units(config))} is finished")
        return 0
    checkpoint = last_checkpoint(folder, completed)
    with _running(config, folder, address, checkpoint, learner=_needs_learner(todo)) as run:
        run.seconds = {**state.get("seconds", {}), "start": run.seconds["start"]}
        run.earlier_peak_bytes = int(state.get("peak_memory_bytes", 0))
        for unit in todo:
            _log.info("%s begins", unit)
            began = time.monotonic()
            _UNITS[unit](run)
            run.seconds[unit] = time.monotonic() - began
            completed.append(unit)
            folder.write_state(
                unit,
                0,
                completed=completed,
                seconds=run.seconds,
                position=run.stream.position,
                peak_memory_bytes=run.peak_memory_bytes,
            )
    _finish(folder, run)
    return 0


def _train_ask(config: Config, folder: RunFolder, address: str | None) -> int:
    """Learning to Ask has stages and models of its own, and the same folder, summary and report."""
    from driver.ask.run import run_ask
    from driver.ask.units import ask_units

    completed = set((folder.read_state() or {}).get("completed", []))
    if completed >= {unit.name for unit in ask_units(config)}:
        print(f"{folder.path}: nothing is left to do; all of its units are finished")
        return 0
    run = run_ask(config, folder, address)
    _finish(folder, run)
    if "ask_stage1" in config.stages and "evaluate" in config.stages:
        from apprentice.report.ask_demo import demo_table

        print(demo_table(folder.path))
    return 0


def evaluate(
    config: Config,
    *,
    checkpoint: str | None = None,
    modes: Sequence[str] | None = None,
    address: str | None = None,
) -> int:
    """Score one set of weights in some modes, without a learner; 0 when done."""
    chosen = tuple(modes or config.evaluation.modes)
    known = [unit.split("/")[1] for unit in _UNITS if unit.startswith("evaluate/")]
    if config.ask is not None:
        known = ["solo", "ask", "ask_qmaker"]
    unknown = [mode for mode in chosen if mode not in known]
    if unknown:
        raise ConfigError(f"evaluation mode {unknown[0]!r} does not exist; modes are {', '.join(known)}")
    if not config.data.test:
        raise ConfigError("there is nothing to evaluate on: the recipe has no test problems (data.test)")
    config = with_dtypes(_with_weights(config, checkpoint)).model_copy(
        update={
            "name": f"{config.name}-evaluate",
            "stages": ("evaluate",),
            "evaluation": config.evaluation.model_copy(update={"modes": chosen}),
        }
    )
    folder = RunFolder.create(config)
    if config.ask is not None:
        return _train_ask(config, folder, address)
    with _running(config, folder, address, None, learner=False) as run:
        for mode in chosen:
            began = time.monotonic()
            evaluate_mode(run, mode)
            run.seconds[f"evaluate/{mode}"] = time.monotonic() - began
    _finish(folder, run)
    return 0


def collect(config: Config, *, checkpoint: str | None = None, address: str | None = None) -> int:
    """Only Stage II's collection: sample, filter and select verified trajectories for a review.

    The new run's recipe has what is left to do: after the review, ``train --resume`` trains Stage II on these
    trajectories, from these weights, and scores it.
    """
    modes = tuple(mode for mode in config.evaluation.modes if mode == "internalized")
    config = with_dtypes(_with_weights(config, checkpoint)).model_copy(
        update={
            "name": f"{config.name}-collect",
            "stages": ("stage2", *(("evaluate",) if "evaluate" in config.stages else ())),
            "stage2": config.stage2.model_copy(update={"enabled": True}),
            "evaluation": config.evaluation.model_copy(update={"modes": modes}),
        }
    )
    folder = RunFolder.create(config)
    with _running(config, folder, address, None, learner=False) as run:
        collect_trajectories(run)
    print(
        f"candidates are in {folder.path}; read them with `apprentice trajectories review {folder.path}`, "
        f"train on them with `apprentice train --resume {folder.path}`"
    )
    return 0


def _with_weights(config: Config, checkpoint: str | None) -> Config:
    """The recipe with a checkpoint's weights as its controller."""
    if checkpoint is None:
        return config
    model = str(Path(checkpoint).absolute())
    controller = config.controller.model_copy(update={"model": model, "revision": None})
    return config.model_copy(update={"controller": controller})


# ---------------------------------------------------------------- units


def _stage1(run: Run) -> None:
    last = run.folder.latest_complete("stage1")
    run_stage1(run, first_step=last.step if last else 0)


_UNITS: dict[str, Callable[[Run], object]] = {
    "evaluate/base": lambda run: evaluate_mode(run, "base"),
    "warmup": run_warmup,
    "stage1": _stage1,
    "evaluate/collaborative": lambda run: evaluate_mode(run, "collaborative"),
    "evaluate/experts_removed": lambda run: evaluate_mode(run, "experts_removed"),
    "stage2": run_stage2,
    "evaluate/internalized": lambda run: evaluate_mode(run, "internalized"),
}


def _needs_learner(todo: Sequence[str]) -> bool:
    return any(not unit.startswith("evaluate/") for unit in todo)


def _without_training(config: Config) -> Config:
    return config if config.stages == ("evaluate",) else config.model_copy(update={"stages": ()})


def _first_optimizer(config: Config) -> OptimizerConfig:
    stage = {"warmup": config.warmup, "stage1": config.stage1, "stage2": config.stage2}
    return next(stage[s].optimizer for s in ("warmup", "stage1", "stage2") if s in config.stages)


def last_checkpoint(folder: RunFolder, completed: Sequence[str]) -> Checkpoint | None:
    """The weights that a resumed run goes on from; None: those it began with.

    They are those of the last stage that is completed, or of an unfinished Stage I, which can go on within. A
    checkpoint of a supervised stage that was not recorded as completed does not count: that stage is done
    again, and must not start from its own end.

    Raises:
        DataError: the checkpoint of a completed stage is missing or damaged.
    """
    for stage in ("stage2", "stage1", "warmup"):
        if stage in completed or stage == "stage1":
            found = folder.latest_complete(stage)
            if found is None and stage in completed:
                raise DataError(
                    f"{folder.path}: {stage} is completed but its checkpoint is missing or damaged; restore "
                    "it, or start a new run"
                )
            if found is not None:
                return found
    return None


# ---------------------------------------------------------------- around them


@contextlib.contextmanager
def _running(
    config: Config, folder: RunFolder, address: str | None, checkpoint: Checkpoint | None, *, learner: bool
) -> Iterator[Run]:
    """Data, actors, watchdog, logger and memory sampler of a run, up within the block."""
    began = time.monotonic()
    sets = load_data(config.data)
    folder.write_json("data.json", data_record(config.data, sets))
    source = str(checkpoint.path) if checkpoint else config.controller.model
    revision = None if checkpoint else config.controller.revision
    resolved = resolve_model(source, revision)
    model = str(resolved.absolute()) if isinstance(resolved, Path) else resolved
    position = int(checkpoint.info.get("position", 0)) if checkpoint else 0
    with (
        Watchdog(config.deadlines.stall_s, folder.path / "watchdog.log") as watchdog,
        MetricsLogger(folder, config.tracking) as logger,
        MemorySampler() as memory,
        # Without a learner the cluster need not hold one.
        cluster(config if learner else _without_training(config), address),
    ):
        everything = [*sets.train, *(p for problems in sets.test.values() for p in problems)]
        fleet = spawn_fleet(
            config,
            model,
            everything,
            optimizer=_first_optimizer(config) if learner else None,
            version=int(checkpoint.info.get("version", 0)) if checkpoint else 0,
            beat=watchdog.beat,
        )
        run = Run(
            config=config,
            folder=folder,
            logger=logger,
            watchdog=watchdog,
            fleet=fleet,
            codec=ChatCodec.from_pretrained(
                model, revision=revision, template_kwargs=dict(config.controller.template_kwargs)
            ),
            train=sets.train,
            tests=sets.test,
            stream=ProblemStream(sets.train, config.seed, position),
            memory=memory,
            seconds={"start": time.monotonic() - began},
        )
        try:
            yield run
        finally:
            fleet.stop()


def _finish(folder: RunFolder, run: Run) -> None:
    """Summary, table and report; they need no actor any more."""
    items = read_all_results(folder.path / "results")
    summary = write_summary(
        folder,
        items,
        wall_seconds=sum(run.seconds.values()),
        peak_memory_bytes=run.peak_memory_bytes,
    )
    folder.write_json("timing.json", {unit: round(seconds, 1) for unit, seconds in run.seconds.items()})
    print(format_table(summary))
    path = build_report(folder, run.codec.token_bytes)
    print(f"report: {path}")
