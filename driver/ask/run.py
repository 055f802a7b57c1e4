"""Whole runs of Learning to Ask: what `apprentice train` does for a recipe with an ``ask`` part."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from apprentice.config.parts import OptimizerConfig
from apprentice.config.schema import Config
from apprentice.data.ask_classes import train_validation_split
from apprentice.data.info import data_record
from apprentice.data.load import ProblemSets, load_data
from apprentice.data.order import ProblemStream
from apprentice.data.problem import Problem
from apprentice.data.secrets import plant_secrets
from apprentice.errors import ConfigError
from apprentice.metrics.ask_run import write_planted
from apprentice.metrics.logger import MetricsLogger
from apprentice.metrics.memory import MemorySampler
from apprentice.run_folder import RunFolder
from driver.ask.baselines import run_baseline
from driver.ask.evaluation import evaluate_unit
from driver.ask.session import SELECTED_FILE, AskSession
from driver.ask.solo import run_solo
from driver.ask.states import collect_states
from driver.ask.training import first_step, run_stage, stage_config, validate_states
from driver.ask.units import Unit, ask_units
from driver.ask.warmup import run_warmup
from driver.cluster import cluster
from driver.context import Run
from driver.fleet import Fleet
from driver.watchdog import Watchdog
from serve.advisor import ServeAdvisorClient, deploy_advisor

__all__ = ["learner_for", "run_ask"]

_log = logging.getLogger(__name__)

LEDGER_FILE = "ask/ledger.jsonl"
TOTALS_FILE = "ask/advisor.json"


def run_ask(config: Config, folder: RunFolder, address: str | None) -> Run:
    """Do every unit that is not done yet, each with the models that it needs; the run, for its report.

    A unit that was interrupted begins anew, but for what it has kept: a stage goes on from its last
    validation, an estimate of standalone success and an evaluation from the last finished problem.
    """
    state = folder.read_state() or {}
    completed: list[str] = list(state.get("completed", []))
    todo = [unit for unit in ask_units(config) if unit.name not in completed]
    with _running(config, folder, address, learner=any(unit.learns for unit in todo)) as session:
        run = session.run
        run.seconds = {**state.get("seconds", {}), "start": run.seconds["start"]}
        run.earlier_peak_bytes = int(state.get("peak_memory_bytes", 0))
        for position, unit in enumerate(todo):
            _log.info("%s begins", unit.name)
            began = time.monotonic()
            optimizer = _optimizer(config, learner_for(todo[position:]))
            session.enter(unit, optimizer, start=_unfinished(session, unit))
            _KINDS[unit.kind](session, unit)
            run.seconds[unit.name] = time.monotonic() - began
            completed.append(unit.name)
            folder.write_state(
                unit.name,
                0,
                completed=completed,
                seconds=run.seconds,
                peak_memory_bytes=run.peak_memory_bytes,
            )
    return run


_KINDS: Mapping[str, Callable[[AskSession, Unit], object]] = {
    "warmup": run_warmup,
    "evaluate": evaluate_unit,
    "baseline": run_baseline,
    "solo": run_solo,
    "states": collect_states,
    "stage1": run_stage,
    "stage2": run_stage,
    "stage3": run_stage,
    "validate": validate_states,
}


def learner_for(units: Sequence[Unit]) -> Unit | None:
    """The unit that the fleet of the first one needs a learner for, if any.

    That is the first one, or one that follows it with the same models: an evaluation of what a stage begins
    with needs no learner, but starting the same models once more would cost more than having one early.
    """
    served = _served(units[0])
    for unit in units:
        if _served(unit) != served:
            return None
        if unit.learns:
            return unit
    return None


def _served(unit: Unit) -> tuple[object, ...]:
    """What a fleet for the unit serves. A baseline plays no episode, so its budget does not matter."""
    return unit.model, unit.frozen, None if unit.kind == "baseline" else unit.budget


def _optimizer(config: Config, unit: Unit | None) -> OptimizerConfig | None:
    assert config.ask is not None
    if unit is None:
        return None
    if unit.kind == "warmup":
        return (config.ask.warmup if unit.name == "ask_warmup" else config.ask.qmaker_warmup).optimizer
    return stage_config(config.ask, unit).optimizer


def _unfinished(session: AskSession, unit: Unit) -> str | None:
    """The weights that an interrupted stage goes on from."""
    if unit.kind not in ("stage1", "stage2", "stage3") or not (step := first_step(session, unit)):
        return None
    return str(session.run.folder.checkpoint_path(unit.name, step).absolute())


@contextlib.contextmanager
def _running(
    config: Config, folder: RunFolder, address: str | None, *, learner: bool
) -> Iterator[AskSession]:
    """Data, advisor, watchdog, logger and memory sampler of a run, up within the block."""
    assert config.ask is not None
    began = time.monotonic()
    sets = load_data(config.data)
    folder.write_json("data.json", data_record(config.data, sets))
    train, tests = _planted(config, sets)
    everything = [*train, *(p for problems in tests.values() for p in problems)]
    write_planted(folder, everything)
    train, validation = _split(config, train)
    _check_ids(everything)
    with (
        Watchdog(config.deadlines.stall_s, folder.path / "watchdog.log") as watchdog,
        MetricsLogger(folder, config.tracking) as logger,
        MemorySampler() as memory,
        cluster(config if learner else config.model_copy(update={"stages": ("evaluate",)}), address),
    ):
        advisor = deploy_advisor(
            config.ask,
            ledger_path=str((folder.path / LEDGER_FILE).absolute()),
            seed=config.seed,
            timeout_s=config.deadlines.start_s,
        )
        watchdog.beat("the advisor is up")
        run = Run(
            config=config,
            folder=folder,
            logger=logger,
            watchdog=watchdog,
            fleet=Fleet(config=config),
            codec=None,  # type: ignore[arg-type]  # every unit brings its model's
            train=train,
            tests=tests,
            stream=ProblemStream(train, config.seed),
            memory=memory,
            seconds={"start": time.monotonic() - began},
        )
        session = AskSession(
            run=run,
            recipe=config,
            train=train,
            validation=validation,
            everything=everything,
            advisor=advisor,
            judge=advisor.judge_client(),
            selected=dict(folder.read_json(SELECTED_FILE) or {}),
        )
        try:
            yield session
        finally:
            run.fleet.stop()
            run.config = config
            _keep_totals(folder, advisor)


def _keep_totals(folder: RunFolder, advisor: ServeAdvisorClient) -> None:
    """The ledger's sums by account: calls, tokens, cost, and what is unknown."""
    try:
        totals = {account: found.numbers() for account, found in advisor.totals().items()}
    except (
        TimeoutError,
        RayError,
        RayServeException,
    ) as error:  # the file itself stands: `apprentice.costs.ledger.read_book` reads it
        _log.warning("the ledger's owner does not answer, so %s is not written: %s", TOTALS_FILE, error)
        return
    folder.write_json(TOTALS_FILE, totals)


def _planted(config: Config, sets: ProblemSets) -> tuple[list[Problem], dict[str, list[Problem]]]:
    """The problem sets with synthetic secrets: training templates in the training set, any in the tests."""
    assert config.ask is not None
    share, seed = config.ask.secrets.share, config.ask.secrets.seed
    if not share:
        return sets.train, dict(sets.test)
    tests = {name: plant_secrets(problems, share, seed, "all") for name, problems in sets.test.items()}
    return plant_secrets(sets.train, share, seed, "train"), tests


def _split(config: Config, problems: list[Problem]) -> tuple[list[Problem], list[Problem]]:
    assert config.ask is not None
    if config.stages == ("evaluate",):
        return problems, []
    return train_validation_split(problems, config.ask.validation_share, config.seed)


def _check_ids(problems: list[Problem]) -> None:
    """States, standalone success and results are known by id."""
    seen: dict[str, str] = {}
    for problem in problems:
        if seen.setdefault(problem.problem_id, problem.question) != problem.question:
            raise ConfigError(
                f"the id {problem.problem_id!r} stands on two different problems of this run's sets: rename "
                "the ids in one of the files"
            )
