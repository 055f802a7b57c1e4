"""Demonstrations of the tool protocol for models that do not know it: calls are taught, solutions are not.

A demonstration is a real collaborative episode in which a script plays the controller: it makes one call, a
real expert and the real sandbox answer, and it copies the answer that the tool shows into the final line.
Only the controller's tokens are targets; what experts and Python wrote is context.

* Calls are spread evenly over all experts and both tools, so no routing is taught: every (tool, expert) pair
  has the same quota, and pairs walk through the problems.
* Demonstrations whose shown answer is not the gold are left out. Where an expert is weak in a family, that
  family has fewer demonstrations with it; the quota is filled from other families.
* One more pair shows ``code_interpreter`` with ``self``, so that the form is known when experts are removed.
  The program in it is the problem's worked one, and its text is no target.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from apprentice.config.schema import Config, SamplingConfig
from apprentice.data.problem import Problem
from apprentice.episodes.actions import Generate, Generated
from apprentice.episodes.collaborative import available_experts
from apprentice.episodes.factory import make_episode
from apprentice.episodes.tools import CODE_INTERPRETER, SELF, THINK
from apprentice.errors import DataError
from apprentice.learning.batch import SftExample
from apprentice.rollout.ports import ExpertClient, PythonRunner
from apprentice.rollout.runner import run_episode
from apprentice.stage2.masks import encode_flags
from apprentice.tokens import IM_END, ChatCodec, Part
from apprentice.trajectory import Owner, Status, Trajectory

__all__ = ["Demonstration", "ScriptedController", "build_demonstrations", "shown_answer", "warmup_examples"]

_log = logging.getLogger(__name__)

_CONCURRENT = 32
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:[./]\d+)?(?!\w)")


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A scripted episode and what is learned from it."""

    trajectory: Trajectory
    example: SftExample


def warmup_examples(
    problems: Sequence[Problem],
    count: int,
    *,
    codec: ChatCodec,
    config: Config,
    experts: ExpertClient,
    python: PythonRunner,
    on_wave: Callable[[], None] = lambda: None,
) -> list[SftExample]:
    """:func:`build_demonstrations` from synchronous code, examples only."""
    found = asyncio.run(
        build_demonstrations(
            problems, count, codec=codec, config=config, experts=experts, python=python, on_wave=on_wave
        )
    )
    return [demonstration.example for demonstration in found]


async def build_demonstrations(
    problems: Sequence[Problem],
    count: int,
    *,
    codec: ChatCodec,
    config: Config,
    experts: ExpertClient,
    python: PythonRunner,
    on_wave: Callable[[], None] = lambda: None,
) -> list[Demonstration]:
    """At most ``count`` demonstrations, in an order that depends on ``config.seed`` alone.

    Args:
        problems: training problems; with ``worked`` solutions for calls to ``self``.
        on_wave: called whenever some demonstrations more have been tried.

    Raises:
        DataError: not one demonstration ended with the right answer.
    """
    pairs = _pairs(config)
    quota = -(-count // len(pairs))
    order = list(problems)
    random.Random(f"warm-up {config.seed}").shuffle(order)
    found: list[Demonstration] = []
    have: Counter[tuple[str, str]] = Counter()
    plan = _plan(order, pairs)
    while len(found) < count:
        wave: list[tuple[Problem, tuple[str, str]]] = []
        planned = have.copy()
        for problem, pair in plan:
            if planned[pair] < quota:
                planned[pair] += 1
                wave.append((problem, pair))
            # The plan is consumed as it is read: stop as soon as nothing more is wanted of it.
            if len(wave) == _CONCURRENT or all(planned[p] >= quota for p in pairs):
                break
        if not wave:
            break
        tasks = (_demonstrate(problem, *pair, codec, config, experts, python) for problem, pair in wave)
        for (_, pair), demonstration in zip(wave, await asyncio.gather(*tasks), strict=True):
            if demonstration is not None and len(found) < count:
                have[pair] += 1
                found.append(demonstration)
        on_wave()
    if not found:
        raise DataError(
            "warm-up: no demonstration ended with the right answer. Experts must solve some training "
            "problems, and show the answer as a number or in \\boxed{}"
        )
    if len(found) < count:
        _log.warning("warm-up: %d of %d demonstrations; the problems are used up", len(found), count)
    _log.info("warm-up: demonstrations by tool and model: %s", {"/".join(p): n for p, n in have.items()})
    return found


def shown_answer(text: str) -> str | None:
    """The answer that a tool response shows: the last ``\\boxed{}``, else the last number."""
    boxed = _BOXED.findall(text)
    if boxed:
        return str(boxed[-1]).strip()
    numbers = _NUMBER.findall(text)
    return numbers[-1] if numbers else None


@dataclass(slots=True)
class ScriptedController:
    """Plays the controller: one call, then the answer that the tool response shows.

    A :class:`apprentice.rollout.ports.Sampler`. The script is deterministic, so the probability of each of
    its tokens is 1 and the logprob 0; as a policy version it says 0.
    """

    codec: ChatCodec
    tool: str
    model: str
    code: str = ""
    target: list[bool] = field(default_factory=list)
    """One flag a token written so far: whether it is learned (the program of a ``self`` call is not)."""

    async def generate(
        self, request: Generate, sampling: SamplingConfig, *, seed: int | None = None
    ) -> Generated:
        """The next turn of the script."""
        pieces = self._final(request) if self.target else self._call()
        ids, (target,) = encode_flags(
            self.codec, [part for part, _ in pieces], [learned for _, learned in pieces]
        )
        ids, target = ids[: request.max_tokens], target[: request.max_tokens]
        self.target.extend(target.tolist())
        reason = "stop" if ids[-1] == self.codec.im_end_id else "length"
        return Generated(ids.tolist(), [0.0] * len(ids), 0, reason)

    def _call(self) -> list[tuple[Part, bool]]:
        head = (
            f'\n{{"name": "{self.tool}", "arguments": {{"model": {json.dumps(self.model, ensure_ascii=False)}'
        )
        pieces = [(Part("<tool_call>", trusted=True), True), (Part(head, trusted=False), True)]
        if self.tool == CODE_INTERPRETER:
            code = json.dumps(self.code, ensure_ascii=False)[1:-1]
            pieces += [
                (Part(', "code": "', trusted=False), True),
                (Part(code, trusted=False), False),
                (Part('"', trusted=False), True),
            ]
        end = (Part("</tool_call>" + IM_END, trusted=True), True)
        return [*pieces, (Part("}}\n", trusted=False), True), end]

    def _final(self, request: Generate) -> list[tuple[Part, bool]]:
        context = self.codec.decode(request.prompt_ids)
        response = context.rpartition("<tool_response>")[2].partition("</tool_response>")[0]
        answer = shown_answer(response) or "unknown"
        return [
            (Part(f"Answer: \\boxed{{{answer}}}", trusted=False), True),
            (Part(IM_END, trusted=True), True),
        ]


def _pairs(config: Config) -> list[tuple[str, str]]:
    experts = config.experts if config.stage1.use_experts else ()
    names = [expert.name for expert in available_experts(experts, config.protocol.routing)]
    if config.protocol.max_expert_calls == 0:
        names = []
    return [*((tool, name) for name in names for tool in (THINK, CODE_INTERPRETER)), (CODE_INTERPRETER, SELF)]


def _plan(
    problems: Sequence[Problem], pairs: Sequence[tuple[str, str]]
) -> Iterator[tuple[Problem, tuple[str, str]]]:
    """Every problem with every pair; in each pass over the problems the pairs take turns."""
    for shift in range(len(pairs)):
        for index, problem in enumerate(problems):
            yield problem, pairs[(index + shift) % len(pairs)]


async def _demonstrate(
    problem: Problem,
    tool: str,
    model: str,
    codec: ChatCodec,
    config: Config,
    experts: ExpertClient,
    python: PythonRunner,
) -> Demonstration | None:
    """One demonstration; None when its answer is wrong, or it did not end as it should."""
    code = ""
    if model == SELF:
        if problem.worked is None:
            return None
        code = problem.worked.program
    # A random router would answer in another's name than the call says.
    routing = config.protocol.routing
    protocol = config.protocol.model_copy(update={"routing": "learned" if routing == "random" else routing})
    script = ScriptedController(codec, tool, model, code)
    trajectory = await run_episode(
        make_episode(
            "collaborative",
            problem,
            codec,
            protocol,
            config.experts if config.stage1.use_experts else (),
            seed=0,
            trajectory_id=f"warmup/{problem.problem_id}/{tool}/{model}",
            group_id=problem.problem_id,
        ),
        sampler=script,
        experts=experts,
        python=python,
        sampling=SamplingConfig(temperature=0.0),
    )
    right = trajectory.final_text == f"Answer: \\boxed{{{problem.answer.strip()}}}"
    valid = all(not call.error and call.outcome in ("", "ok") for call in trajectory.calls)
    if trajectory.status is not Status.COMPLETE or not right or not valid:
        return None
    target = np.zeros(len(trajectory), bool)
    target[trajectory.owner == Owner.CONTROLLER] = script.target
    return Demonstration(trajectory, SftExample(trajectory.token_ids, target, np.zeros(len(target), bool)))
