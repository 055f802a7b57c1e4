"""The rollout actor: one vLLM engine, and many episodes in flight in it.

| who              | waits for                                 | is released by                           |
|------------------|-------------------------------------------|------------------------------------------|
| `run`            | its episodes                              | their end, `cancel`, the engine's death  |
| an episode       | a free place of `max_concurrent_episodes` | another episode's end                    |
| a generation     | a weight update that is under way         | its end or failure (the engine is stale) |
| `update_weights` | generations in flight, other updates      | their end, its own deadline              |
"""

from __future__ import annotations

import asyncio
import functools
import time
import uuid
from typing import Any

import pyarrow as pa

from actors._engine import Engine, engine_env, sampling_arguments
from actors._rollout_spec import RolloutWorkerSpec, WorkerState, load_engine
from actors.weight_transfer import WeightManifest, staged
from apprentice.config.schema import SamplingConfig
from apprentice.episodes.actions import Generate, Generated
from apprentice.errors import EngineError, InfrastructureError, WeightSyncError
from apprentice.rollout.groups import GroupSpec, sample_group
from apprentice.rollout.runner import run_episode
from apprentice.rollout.types import EpisodeFactory, Progress, RolloutCounters, RolloutRequest, RolloutResult
from apprentice.rollout.version_gate import VersionGate
from apprentice.trajectory import Trajectory, trajectories_to_table

__all__ = ["RolloutWorker", "RolloutWorkerSpec", "WorkerState", "engine_env"]


class RolloutWorker:
    """Undecorated: ``ray.remote(RolloutWorker)`` at the spawn site, with :func:`engine_env` around it."""

    def __init__(self, spec: RolloutWorkerSpec) -> None:
        self._spec = spec
        self._gate = VersionGate(spec.name, spec.version)
        self._places = asyncio.Semaphore(spec.rollout.max_concurrent_episodes)
        self._runs: dict[asyncio.Task[RolloutResult], _Run] = {}
        self._engine: Engine | None = None
        self._episodes: EpisodeFactory | None = None
        self._load_s = 0.0

    # ---- life ----

    async def start(self) -> WorkerState:
        """Load the engine. Call once, and wait for it with a deadline.

        Raises:
            EngineError: the engine did not load.
        """
        begin = time.perf_counter()
        self._episodes = self._spec.build_episodes()
        self._engine = await load_engine(self._spec)
        if self._spec.version is not None:
            await self._engine.label(self._spec.version)
        self._load_s = time.perf_counter() - begin
        return self.state_now()

    async def state(self) -> WorkerState:
        """What is served, and whether the engine lives."""
        return self.state_now()

    def state_now(self) -> WorkerState:
        """The same, without a turn of the event loop."""
        fatal = self._engine.fatal if self._engine is not None else "the engine is not loaded"
        return WorkerState(self._spec.name, self._gate.version, self._gate.stale, fatal, self._load_s)

    async def stop(self) -> None:
        """Cancel what runs, and end the engine."""
        await self.cancel()
        if self._engine is not None:
            await self._engine.close()

    # ---- sampling ----

    async def generate(
        self, request: Generate, sampling: SamplingConfig, *, seed: int | None = None
    ) -> Generated:
        """Sample one continuation: the :class:`apprentice.rollout.ports.Sampler` port.

        ``logprobs`` are of the distribution that was sampled from: the log-softmax of
        ``logits / temperature``, with top-k and top-p renormalized over the tokens that they keep. At
        temperature 0 they are those of temperature 1. ``max_tokens`` is lowered where prompt and answer would
        not fit the window (G09); with no room left the answer is empty and ends by ``length``.

        Raises:
            StaleEngineError: the engine missed a sync.
            EngineError: it failed.
        """
        room = self._spec.max_context - len(request.prompt_ids)
        async with self._gate.sampling() as version:
            if room < 1:
                return Generated((), (), version, "length")
            engine = self._living()
            done = await engine.generate(
                uuid.uuid4().hex,
                request.prompt_ids,
                sampling_arguments(
                    sampling,
                    max_tokens=min(request.max_tokens, room),
                    stop=request.stop,
                    stop_token_ids=request.stop_token_ids,
                    seed=seed,
                ),
            )
            if done.version != str(version):
                raise EngineError(
                    f"{self._spec.name} sampled with weights {done.version!r} while it serves {version}"
                )
            return Generated(done.token_ids, done.logprobs, version, done.finish_reason)

    async def run(self, request: RolloutRequest) -> RolloutResult:
        """Sample, replace and verify whole groups.

        Raises:
            StaleEngineError: before anything is sampled, when the engine is stale.
            EngineError: the engine died; nothing of the run is returned.
            InfrastructureError: the run was cancelled (:meth:`cancel`).
        """
        self._living()
        self._gate.check()
        run = _Run(total=len(request.problems) * request.samples)
        task = asyncio.create_task(self._run(request, run))
        self._runs[task] = run
        try:
            return await task
        except asyncio.CancelledError:
            if not run.cancelled:
                task.cancel()
                raise
            raise InfrastructureError(
                f"{self._spec.name}: the rollouts of step {request.step} were cancelled"
            ) from None
        finally:
            del self._runs[task]

    async def _run(self, request: RolloutRequest, run: _Run) -> RolloutResult:
        assert self._episodes is not None
        begin = time.perf_counter()
        counters, spec = run.counters, self._spec
        play = functools.partial(
            run_episode,
            sampler=self,
            experts=spec.experts,
            python=spec.python,
            sampling=request.sampling,
            ask=spec.ask,
            counters=counters,
        )
        async with asyncio.TaskGroup() as tasks:
            groups = [
                tasks.create_task(
                    sample_group(
                        GroupSpec(
                            problem,
                            group_id,
                            request.samples,
                            spec.rollout.max_replacements,
                            request.seed,
                            request.step,
                        ),
                        new_episode=functools.partial(
                            _new_episode, self._episodes, request, problem, group_id
                        ),
                        play=lambda episode, seed: play(episode, seed=seed),
                        limiter=self._places,
                        counters=counters,
                        verifier=spec.verifier if request.verify else None,
                        on_episode=run.one_more,
                        on_group=run.groups.append,
                    )
                )
                for problem, group_id in zip(request.problems, request.group_ids, strict=True)
            ]
        self._living()
        counters.wall_s = time.perf_counter() - begin
        return RolloutResult(trajectories_to_table([t for group in groups for t in group.result()]), counters)

    async def progress(self) -> Progress:
        """Episodes done and asked for, over the runs under way."""
        runs = list(self._runs.values())
        return Progress(
            sum(run.done for run in runs),
            sum(run.total for run in runs),
            sum(run.counters.sampled_tokens for run in runs),
        )

    async def take_groups(self) -> pa.Table:
        """Groups that became whole since this was last asked, of the runs under way.

        The result of a run has them too, so that what is lost on its way from here is not lost.
        """
        taken = [trajectory for run in self._runs.values() for group in run.groups for trajectory in group]
        for run in self._runs.values():
            run.groups.clear()
        return trajectories_to_table(taken)

    async def client_metrics(self) -> dict[str, dict[str, float]]:
        """What this actor's clients of experts and sandbox counted since the start, by service."""
        out: dict[str, dict[str, float]] = {}
        if (metrics := getattr(self._spec.experts, "metrics", None)) is not None:
            out |= {f"expert/{name}": numbers for name, numbers in metrics().items()}
        if (metrics := getattr(self._spec.python, "metrics", None)) is not None:
            out["sandbox"] = metrics()
        return out

    async def cancel(self) -> None:
        """End the runs under way; their callers get an error."""
        for task, run in list(self._runs.items()):
            run.cancelled = True
            task.cancel()

    # ---- weights ----

    async def adopt_version(self, version: int) -> int:
        """The engine has loaded the checkpoint of this version (e.g. on resume): serve it."""
        await self._living().label(version)
        self._gate.adopt(version)
        return version

    async def mark_stale(self, reason: str) -> None:
        """Serve nothing until the next sync succeeds."""
        self._gate.mark_stale(reason)

    async def update_weights(self, manifest: WeightManifest, timeout_s: float) -> int:
        """Take the weights of a manifest, and serve them (pull transport).

        Generations in flight end first; the prefix cache is reset with the weights, so no later request meets
        keys and values of the old ones (C11). Calls that overlap take turns (F13).

        Returns:
            The version that is served now.

        Raises:
            WeightSyncError: it failed or missed the deadline; the engine is stale.
        """
        if manifest.delivered:
            raise ValueError(f"{manifest.transport} delivers while it publishes; there is nothing to take")
        engine = self._living()
        try:
            async with self._gate.updating(manifest.version, timeout_s):
                await engine.begin_update()
                for bucket in manifest.buckets:
                    # Held until the engine has loaded it: the arrays are views of the object store's memory.
                    arrays = await bucket.data
                    with staged(bucket, arrays, in_process=self._spec.rollout.in_process) as info:
                        await engine.receive_update(info)
                await engine.end_update(manifest.version)
        except EngineError as error:
            raise WeightSyncError(f"{self._spec.name}: {error}") from error
        except WeightSyncError:
            raise
        except Exception as error:
            raise WeightSyncError(f"{self._spec.name} could not read the weights: {error!r}") from error
        return self._gate.check()

    async def init_transfer(self, init_info: dict[str, Any]) -> None:
        """Rendezvous of a push transport."""
        await self._living().init_transfer(init_info)

    async def begin_update(self, version: int, timeout_s: float) -> None:
        """Push transports: drain and close, ready to receive. :meth:`end_update` must follow in time."""
        await self._gate.begin(version, timeout_s)
        self._pushed = version
        await self._failing(self._living().begin_update())

    async def receive_update(self, update_info: dict[str, Any]) -> None:
        """Push transports: receive one bucket."""
        await self._failing(self._living().receive_update(update_info))

    async def end_update(self) -> int:
        """Push transports: serve what was received; returns its version."""
        await self._failing(self._living().end_update(self._pushed))
        return self._gate.commit()

    async def _failing(self, step: Any) -> None:
        try:
            await step
        except BaseException as error:
            self._gate.fail(f"the weight update failed: {error!r}")
            raise

    def _living(self) -> Engine:
        fatal = self.state_now().fatal
        if self._engine is None or fatal:
            raise EngineError(f"{self._spec.name}: {fatal}")
        return self._engine


class _Run:
    """One call of :meth:`RolloutWorker.run`."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self.cancelled = False
        self.counters = RolloutCounters()
        self.groups: list[tuple[Trajectory, ...]] = []

    def one_more(self) -> None:
        self.done += 1


def _new_episode(
    episodes: EpisodeFactory,
    request: RolloutRequest,
    problem: Any,
    group_id: str,
    trajectory_id: str,
    seed: int,
) -> Any:
    return episodes(
        problem,
        mode=request.mode,
        trajectory_id=trajectory_id,
        group_id=group_id,
        seed=seed,
        max_rollout_tokens=request.max_rollout_tokens,
    )
