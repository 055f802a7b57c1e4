"""Drives one episode: performs what it asks for, and hands back what came of it."""

from __future__ import annotations

import time

from apprentice.config.schema import SamplingConfig
from apprentice.episodes.actions import (
    Action,
    AdvisorFailed,
    AskAdvisor,
    CallExpert,
    EngineFailed,
    Episode,
    Event,
    ExpertFailed,
    Finish,
    Generate,
    JudgeFailed,
    JudgeQuery,
    PythonFailed,
    RunPython,
)
from apprentice.errors import AdvisorError, EngineError, ExpertError, SandboxError
from apprentice.rollout.ports import AskPorts, ExpertClient, PythonRunner, Sampler
from apprentice.rollout.seeds import derive_seed
from apprentice.rollout.types import RolloutCounters
from apprentice.trajectory import Trajectory

__all__ = ["run_episode"]


async def run_episode(
    episode: Episode,
    *,
    sampler: Sampler,
    experts: ExpertClient,
    python: PythonRunner,
    sampling: SamplingConfig,
    ask: AskPorts | None = None,
    seed: int | None = None,
    counters: RolloutCounters | None = None,
) -> Trajectory:
    """Play a fresh episode to its end.

    A failure of the expert, the sandbox or the engine becomes an event: the episode ends UNUSABLE and keeps
    what it had. Nothing is retried here: the ports have retried, and a fresh sample is the caller's decision
    (:func:`apprentice.rollout.groups.sample_group`).

    Args:
        ask: advisor, judge and frozen models, for episodes of Learning to Ask.
        seed: of this episode; generation ``i`` draws with ``derive_seed(seed, "generation", i)``.
            None: unseeded.
        counters: raised in place.

    Raises:
        asyncio.CancelledError: passes through; the ports release what they hold.
    """
    player = _Player(
        sampler, experts, python, sampling, ask or AskPorts(), seed, counters or RolloutCounters()
    )
    action = episode.start()
    while not isinstance(action, Finish):
        action = episode.step(await player.perform(action))
    return episode.result()


class _Player:
    def __init__(
        self,
        sampler: Sampler,
        experts: ExpertClient,
        python: PythonRunner,
        sampling: SamplingConfig,
        ask: AskPorts,
        seed: int | None,
        counters: RolloutCounters,
    ) -> None:
        self._sampler, self._experts, self._python, self._ports = sampler, experts, python, ask
        self._sampling, self._seed, self._counters = sampling, seed, counters
        self._generations = 0

    async def perform(self, action: Action) -> Event:
        start = time.perf_counter()
        match action:
            case Generate():
                try:
                    return await self._generate(action)
                finally:
                    self._counters.generate_s += time.perf_counter() - start
            case CallExpert():
                try:
                    return await self._ask(action)
                finally:
                    self._counters.expert_s += time.perf_counter() - start
            case RunPython():
                try:
                    return await self._run(action)
                finally:
                    self._counters.python_s += time.perf_counter() - start
            case AskAdvisor():
                try:
                    return await self._advise(action)
                finally:
                    self._counters.advisor_s += time.perf_counter() - start
            case JudgeQuery():
                try:
                    return await self._judge(action)
                finally:
                    self._counters.judge_s += time.perf_counter() - start
            case Finish():
                raise ValueError("the episode is over: there is nothing to perform")

    async def _generate(self, action: Generate) -> Event:
        seed = None if self._seed is None else derive_seed(self._seed, "generation", self._generations)
        self._generations += 1
        sampler, sampling = self._sampler, self._sampling
        if action.model:
            frozen = self._ports.frozen.get(action.model)
            if frozen is None:
                raise ValueError(f"the episode asks the frozen model {action.model!r}, which this run lacks")
            sampler, sampling = frozen.sampler, frozen.sampling
        try:
            generated = await sampler.generate(action, sampling, seed=seed)
        except EngineError as error:
            return EngineFailed(str(error))
        if action.model:
            self._counters.frozen_tokens += len(generated.token_ids)
            return generated
        self._counters.generations += 1
        self._counters.prompt_tokens += len(action.prompt_ids)
        self._counters.sampled_tokens += len(generated.token_ids)
        return generated

    async def _ask(self, action: CallExpert) -> Event:
        try:
            return await self._experts.ask(action)
        except ExpertError as error:
            expert = error.expert or action.expert
            self._counters.expert_failures[f"{expert}:{error.kind}"] += 1
            return ExpertFailed(expert, error.kind, str(error))

    async def _run(self, action: RunPython) -> Event:
        try:
            return await self._python.run(action.code)
        except SandboxError as error:
            return PythonFailed(str(error))

    async def _advise(self, action: AskAdvisor) -> Event:
        if self._ports.advisor is None:
            raise ValueError("the episode asks the advisor, which this run lacks: set ask.advisor")
        try:
            return await self._ports.advisor.ask(action)
        except AdvisorError as error:
            self._counters.expert_failures[f"advisor:{error.kind}"] += 1
            return AdvisorFailed(error.kind, str(error))

    async def _judge(self, action: JudgeQuery) -> Event:
        if self._ports.judge is None:
            raise ValueError("the episode has a query judged, and this run has no judge: set ask.judge")
        try:
            return await self._ports.judge.judge(action)
        except AdvisorError as error:
            self._counters.expert_failures[f"judge:{error.kind}"] += 1
            return JudgeFailed(str(error))
