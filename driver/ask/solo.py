"""Standalone success of the reasoner, p_SLM (Learning to Ask, Eq. 5), estimated once and kept."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path

import pyarrow as pa

from apprentice.config.ask import AskConfig
from apprentice.objectives.ask import needs_advisor
from apprentice.result_journal import fingerprint, problem_key
from apprentice.trajectory import trajectories_from_table
from driver.ask.session import AskSession
from driver.ask.units import Unit

__all__ = ["SOLO_FILE", "SOLO_STAGE", "consultation_targets", "run_solo"]

_log = logging.getLogger(__name__)

SOLO_FILE = "ask/solo.json"
SOLO_STAGE = "ask_solo"
_SEED_STEP = 3_000_000  # apart from the seeds of training steps and evaluations


def run_solo(session: AskSession, unit: Unit) -> None:
    """k rollouts without the advisor of every training and validation problem; writes :data:`SOLO_FILE`.

    Estimates lie in ``<run_dir>/solo_cache`` by model, prompt and sampling, problem by problem as they come
    in: a run that is interrupted, or a second one with the same reasoner, pays only for what is missing. The
    trajectories of what this run sampled are kept as :data:`SOLO_STAGE`.
    """
    config = _ask(session)
    problems = session.learning_problems()[: config.solo.max_problems]
    cache = _Cache(_cache_file(session, unit))
    todo = [p for p in problems if p.problem_id not in cache.successes]
    k = config.solo.samples
    _log.info("solo: %d of %d problems are known", len(problems) - len(todo), len(problems))
    size = max(1, 4 * session.recipe.rollout.workers * session.recipe.rollout.max_concurrent_episodes // k)
    with session.run.progress(len(problems) * k, "solo", "rollout") as bar:
        bar.update((len(problems) - len(todo)) * k)
        for first in range(0, len(todo), size):
            chunk, done = todo[first : first + size], bar.done
            result = session.run.fleet.sample(
                chunk,
                mode="solo",
                samples=k,
                sampling=config.solo.sampling,
                step=_SEED_STEP,
                what="standalone success",
                on_progress=lambda n, _, done=done: bar.update(done + n - bar.done),
                on_groups=cache.record,
            )
            cache.record(result.table)
            session.run.folder.write_trajectories(
                SOLO_STAGE, problems.index(chunk[0]), trajectories_from_table(result.table)
            )
    known = {p.problem_id: cache.successes[p.problem_id] for p in problems if p.problem_id in cache.successes}
    session.run.folder.write_json(SOLO_FILE, {"k": k, "gamma": config.solo.gamma, "successes": known})
    mean = sum(known.values()) / max(1, k * len(known))
    targets = list(consultation_targets(session).values())
    session.run.log(
        "ask_solo", 0, {"problems": float(len(known)), "success": mean, "needs_advisor": _share(targets)}
    )


def consultation_targets(session: AskSession) -> dict[str, bool]:
    """n(x) of Eq. 6 by problem id, for every problem whose standalone success is known."""
    config, found = _ask(session), session.run.folder.read_json(SOLO_FILE)
    k = int(found["k"])
    return {
        identity: needs_advisor(successes / k, config.solo.gamma, k)
        for identity, successes in found["successes"].items()
    }


class _Cache:
    """Successes by problem id, appended line by line."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.successes: dict[str, int] = {}
        if file.is_file():
            for line in file.read_text(encoding="utf-8").splitlines():
                try:
                    row = json.loads(line)
                except ValueError:
                    continue  # the last line of a process that was killed
                self.successes[row["problem_id"]] = row["successes"]

    def record(self, table: pa.Table) -> None:
        found: dict[str, int] = {}
        for trajectory in trajectories_from_table(table):
            won = trajectory.reward is not None and trajectory.reward > 0
            found[trajectory.problem_id] = found.get(trajectory.problem_id, 0) + won
        new = {key: value for key, value in found.items() if key not in self.successes}
        if not new:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as file:
            for key, value in new.items():
                file.write(json.dumps({"problem_id": key, "successes": value}) + "\n")
        self.successes |= new


def _cache_file(session: AskSession, unit: Unit) -> Path:
    config = _ask(session)
    key = fingerprint(
        {
            "model": _model_key(session.weights(unit.model)),
            "problems": [problem_key(problem) for problem in session.learning_problems()],
            "programs": session.recipe.programs.model_dump(mode="json"),
            "prompt": config.instructions,
            "max_rollout_tokens": session.recipe.protocol.max_rollout_tokens,
            "solo": config.solo.model_dump(mode="json", exclude={"gamma", "max_problems"}),
            "seed": session.recipe.seed,
        }
    )
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return Path(session.recipe.run_dir) / "solo_cache" / f"{digest}.jsonl"


def _model_key(model: str) -> object:
    """A local model by its weight files, a hub id by itself."""
    folder = Path(model)
    if not folder.is_dir():
        return model
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))
    return [(str(f.absolute()), f.stat().st_size, f.stat().st_mtime_ns) for f in files]


def _share(flags: list[bool]) -> float:
    return sum(flags) / len(flags) if flags else float("nan")


def _ask(session: AskSession) -> AskConfig:
    assert session.recipe.ask is not None
    return session.recipe.ask
