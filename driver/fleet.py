"""All actors of a run behind named, typed methods. Stages talk to this, never to an actor."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import ray
from ray.util.placement_group import PlacementGroup, remove_placement_group

from apprentice.config.schema import Config, OptimizerConfig, SamplingConfig
from apprentice.data.problem import Problem
from apprentice.errors import ApprenticeError, InfrastructureError
from apprentice.learning.batch import TrainingBatch
from apprentice.metrics.rollouts import merge_client_metrics
from apprentice.rollout.ports import ExpertClient, PythonRunner
from apprentice.rollout.types import Progress, RolloutResult, merge_results, split_rollouts
from driver.remote import gather
from driver.weight_sync import SyncReport, sync_weights

__all__ = ["Fleet"]

_POOL_HEALTH_S = 5.0


@dataclass(slots=True)
class Fleet:
    """Handles by name, and the policy version that every engine serves.

    ``scope`` begins the ids of trajectories. ``on_progress(done, total)`` hears of finished episodes about
    once a second; ``beat(what)`` is the watchdog's: it is called only when something moved.
    """

    config: Config
    learners: dict[str, Any] = field(default_factory=dict)
    workers: dict[str, Any] = field(default_factory=dict)
    pools: dict[str, Any] = field(default_factory=dict)
    frozen: dict[str, Any] = field(default_factory=dict)
    experts: ExpertClient | None = None
    python: PythonRunner | None = None
    reservation: PlacementGroup | None = None
    version: int = 0
    scope: str = ""
    beat: Callable[[str], None] = lambda what: None

    # ---- rollouts ----

    def sample(
        self,
        problems: Sequence[Problem],
        *,
        mode: str,
        samples: int,
        sampling: SamplingConfig,
        step: int,
        what: str,
        max_rollout_tokens: int | None = None,
        on_progress: Callable[[int, int], None] | None = None,
        on_groups: Callable[[pa.Table], None] | None = None,
    ) -> RolloutResult:
        """Sample and verify ``samples`` trajectories of every problem, spread over the engines.

        ``on_groups`` gets groups that are whole about once a second, while others are still sampled; the
        result has all of them. Where sampling fails it still gets what was whole by then, as far as the
        engines' actors live.

        Raises:
            InfrastructureError: an engine died, nothing answered in time, or every group was dropped.
        """
        requests = split_rollouts(
            problems,
            len(self.workers),
            mode=mode,
            samples=samples,
            sampling=sampling,
            seed=self.config.seed,
            step=step,
            max_rollout_tokens=max_rollout_tokens,
            scope=self.scope,
        )
        handles = list(self.workers.items())[: len(requests)]
        refs = {name: worker.run.remote(r) for (name, worker), r in zip(handles, requests, strict=True)}
        watch = _ProgressWatch(dict(handles), what, self.beat, on_progress, on_groups)
        try:
            results = gather(refs, timeout_s=self.config.deadlines.step_s, what=what, on_wait=watch)
        except (ApprenticeError, ray.exceptions.RayError):
            watch.rescue()
            raise
        merged = merge_results(results.values())
        watch.finish(merged.counters.episodes, len(problems) * samples)
        if problems and merged.counters.dropped_groups == merged.counters.groups:
            raise InfrastructureError(
                f"{what}: every group was dropped: {merged.counters.describe()}. Repair the experts or the "
                "sandbox (see the log of the rollout actors): nothing can be trained or scored on that"
            )
        self.beat(what)
        return merged

    def client_metrics(self) -> dict[str, float]:
        """Calls, failures, queue and latency of experts and sandbox since the start, over all engines; and
        the sandbox pools' isolation levels and restarts."""
        refs = {name: worker.client_metrics.remote() for name, worker in self.workers.items()}
        answers = gather(refs, timeout_s=60.0, what="metrics of experts and sandbox")
        return merge_client_metrics([*answers.values(), *self._pool_health()])

    def _pool_health(self) -> list[dict[str, dict[str, float]]]:
        """What each pool says of itself. A pool that is just being restarted is silent: it ends no run."""
        refs = [pool.health.remote() for pool in self.pools.values()]
        ready, _ = ray.wait(refs, num_returns=len(refs), timeout=_POOL_HEALTH_S) if refs else ([], [])
        answers: list[dict[str, float]] = []
        for ref in ready:
            with contextlib.suppress(ray.exceptions.RayError):
                answers.append(ray.get(ref, timeout=1.0))
        silent = {"pools/silent": float(len(refs) - len(answers))}
        return [{"sandbox": numbers} for numbers in (*answers, silent)] if refs else []

    # ---- learning ----

    def train_policy(self, batch: TrainingBatch, objective: Any, what: str) -> Any:
        """One batch of Stage I on all ranks; the statistics of its last optimizer step."""
        return self._on_ranks("train_policy", ray.put(batch), objective, what=what)[-1]

    def train_sft(self, batch: TrainingBatch, objective: Any, what: str) -> Any:
        """One optimizer step of supervised fine-tuning on all ranks."""
        return self._on_ranks("train_sft", ray.put(batch), objective, what=what)

    def reset_optimizer(self, optimizer: OptimizerConfig, total_steps: int) -> None:
        """A new stage begins: forget moments and step count."""
        self._on_ranks("reset_optimizer", optimizer, total_steps, what="reset the optimizer")

    def save(self, folder: str) -> None:
        """Write a checkpoint in Hugging Face format."""
        self._on_ranks("save", folder, what=f"save {folder}")

    def sync_weights(self) -> SyncReport:
        """Give every engine the learners' weights under the next policy version."""
        dtype = self.config.rollout.dtype
        report = sync_weights(
            self.learners,
            self.workers,
            self.version + 1,
            self.config.weight_sync.timeout_s,
            bucket_mib=self.config.weight_sync.bucket_mib,
            dtype=None if dtype == "auto" else dtype,
        )
        self.version += 1
        self.beat(f"weight sync to version {self.version}")
        return report

    def _on_ranks(self, method: str, *arguments: Any, what: str) -> Any:
        refs = {name: getattr(learner, method).remote(*arguments) for name, learner in self.learners.items()}
        answers = gather(refs, timeout_s=self.config.deadlines.step_s, what=what)
        self.beat(what)
        return next(iter(answers.values()))  # statistics are equal on all ranks

    # ---- end ----

    def stop(self) -> None:
        """End every actor. Best effort: what does not answer is killed."""
        engines = [*self.workers.values(), *self.frozen.values()]
        closing = [worker.stop.remote() for worker in engines]
        closing += [pool.close.remote() for pool in self.pools.values()]
        closing += [learner.close.remote() for learner in self.learners.values()]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=20.0)
        for handle in [*engines, *self.pools.values(), *self.learners.values()]:
            ray.kill(handle)
        if self.reservation is not None:
            remove_placement_group(self.reservation)


class _ProgressWatch:
    """Asks the rollout actors how far they are, and tells the bar and the watchdog when that moved."""

    def __init__(
        self,
        workers: Mapping[str, Any],
        what: str,
        beat: Callable[[str], None],
        on_progress: Callable[[int, int], None] | None,
        on_groups: Callable[[pa.Table], None] | None,
    ) -> None:
        self._workers, self._what, self._beat, self._on_progress = workers, what, beat, on_progress
        self._on_groups = on_groups
        self._groups: list[ray.ObjectRef] = []
        self._asked: list[ray.ObjectRef] = []
        self._last = (-1, -1)

    def __call__(self) -> None:
        self._take_groups(timeout_s=0)
        if self._asked:
            ready, _ = ray.wait(self._asked, num_returns=len(self._asked), timeout=0)
            if len(ready) < len(self._asked):
                return  # an actor is busy within one engine step; ask again later
            try:
                answers: list[Progress] = ray.get(self._asked, timeout=1.0)
            except ray.exceptions.RayError:
                return  # the run's own reference reports a dead actor, with a better message
            moved = (sum(a.done for a in answers), sum(a.sampled_tokens for a in answers))
            if moved != self._last:
                self._last = moved
                self._beat(self._what)
            if self._on_progress is not None:
                self._on_progress(moved[0], sum(a.total for a in answers))
        self._asked = [worker.progress.remote() for worker in self._workers.values()]

    def _take_groups(self, timeout_s: float) -> None:
        """Hand on what the actors sent, and ask those again that answered."""
        if self._on_groups is None:
            return
        ready: list[ray.ObjectRef] = []
        if self._groups:
            ready, self._groups = ray.wait(self._groups, num_returns=len(self._groups), timeout=timeout_s)
        for ref in ready:
            try:
                self._on_groups(ray.get(ref, timeout=10.0))
            except ray.exceptions.RayError:
                continue  # as above
        if not self._groups:
            self._groups = [worker.take_groups.remote() for worker in self._workers.values()]

    def rescue(self) -> None:
        """Sampling failed: hand on what was finished before, if the actors still answer."""
        for _ in range(2):  # what was asked for already, then what came since
            self._take_groups(timeout_s=5.0)

    def finish(self, done: int, total: int) -> None:
        if self._on_progress is not None:
            self._on_progress(done, total)
