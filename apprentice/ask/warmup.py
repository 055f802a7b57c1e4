"""Demonstrations of reasoning with an advisor, for models that know neither: forms are taught, no judgement.

A demonstration is a real episode in which a script plays the reasoner and the real advisor answers:

* The script works a chain sum out, one step a line, and ends with the answer.
* Half of the demonstrations are ``solo``. Of the others a share ``ask.warmup.ask_share`` asks, drawn
  without a look at the problem: most of them before the first step, so that problems of many steps are asked
  about as often as short ones, the others before any step. So call rate and call position have nothing to do
  with difficulty, and what stage 1 teaches can be told from what the model started with.
* What is asked is drawn from three kinds: what remains, the whole problem, and a question that nobody can
  answer who does not see the problem; half of the first two ask for nothing but the result.
* When the reply shows the right result, the script takes it; otherwise it goes on by itself.

Everything that the reasoner wrote is a target, its query included. Which demonstrations are made depends on
``config.seed`` and the problems alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from apprentice.ask.chains import Chain, chain_of
from apprentice.config.schema import Config, SamplingConfig
from apprentice.data.problem import Problem
from apprentice.episodes.actions import CallExpert, Generate, Generated
from apprentice.episodes.factory import Mode, make_episode
from apprentice.episodes.tools import ASK_ADVISOR
from apprentice.errors import ConfigError, DataError
from apprentice.learning.batch import SftExample
from apprentice.rollout.ports import AdvisorClient, AskPorts
from apprentice.rollout.runner import run_episode
from apprentice.stage2.warmup import Demonstration, shown_answer
from apprentice.tokens import IM_END, ChatCodec, Part
from apprentice.trajectory import Owner, Status

__all__ = ["ScriptedReasoner", "build_ask_demonstrations", "reasoner_examples"]

_log = logging.getLogger(__name__)

_CONCURRENT = 32
_SOLO_SHARE = 1 / 2
_AT_ONCE = 0.7  # of those that ask do so before the first step; the others before any step
_MOST_FAILURES = 4  # demonstrations tried for one that is wanted, before fewer are accepted
INCOMPLETE = ("What is the total?", "What is the result?", "What do I get in the next step?")
"""Questions that cannot be answered without the problem."""
_BARE = " Give only the result."


def reasoner_examples(
    problems: Sequence[Problem],
    count: int,
    *,
    codec: ChatCodec,
    config: Config,
    advisor: AdvisorClient,
    on_wave: Callable[[], None] = lambda: None,
) -> list[SftExample]:
    """:func:`build_ask_demonstrations` from synchronous code, examples only."""
    found = asyncio.run(
        build_ask_demonstrations(
            problems, count, codec=codec, config=config, advisor=advisor, on_wave=on_wave
        )
    )
    return [demonstration.example for demonstration in found]


async def build_ask_demonstrations(
    problems: Sequence[Problem],
    count: int,
    *,
    codec: ChatCodec,
    config: Config,
    advisor: AdvisorClient,
    on_wave: Callable[[], None] = lambda: None,
) -> list[Demonstration]:
    """``count`` demonstrations; fewer where the advisor fails, refuses or misleads too often.

    Args:
        problems: training problems; those that are no chain sums are passed over.
        on_wave: called whenever some demonstrations more have been tried.

    Raises:
        ConfigError: the recipe has no section ``ask``.
        DataError: no problem is a chain sum, or not one demonstration ended with the right answer.
    """
    if config.ask is None:
        raise ConfigError("the warm-up of the reasoner needs the section ask of the recipe")
    draw = random.Random(f"ask warm-up {config.seed}")
    known = [(problem, chain) for problem in problems if (chain := chain_of(problem)) is not None]
    if not known:
        raise DataError(
            "ask warm-up: the scripts work chain sums out, and no training problem is one: add the "
            "procedural family chain_sum to data.train, or leave the stage ask_warmup out and start from a "
            "model that knows tools"
        )
    draw.shuffle(known)
    found: list[Demonstration] = []
    tried = 0
    while len(found) < count and tried < _MOST_FAILURES * count:
        wave = []
        for _ in range(min(_CONCURRENT, count - len(found))):
            problem, chain = known[tried % len(known)]
            wave.append(_demonstrate(tried, problem, _plan(draw, chain, config), codec, config, advisor))
            tried += 1
        found += [made for made in await asyncio.gather(*wave) if made is not None]
        on_wave()
    if not found:
        raise DataError(
            f"ask warm-up: none of {tried} demonstrations ended with the right answer: is the advisor up, "
            "has its budget room, and do protocol.max_rollout_tokens hold a worked problem?"
        )
    if len(found) < count:
        _log.warning("ask warm-up: %d of %d demonstrations", len(found), count)
    return found


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a script does. ``before``: the step before which it asks; None: it does not ask."""

    mode: Mode
    chain: Chain
    before: int | None = None
    query: str = ""


def _plan(draw: random.Random, chain: Chain, config: Config) -> _Plan:
    # Everything is drawn always, so that one decision does not shift the others.
    assert config.ask is not None
    solo, asks = draw.random() < _SOLO_SHARE, draw.random() < config.ask.warmup.ask_share
    before = 0 if draw.random() < _AT_ONCE else draw.randrange(len(chain))
    kind, bare, words = draw.randrange(3), draw.random() < 0.5, draw.choice(INCOMPLETE)
    if solo:
        return _Plan("solo", chain)
    if not asks or not config.ask.max_asks:
        return _Plan("ask", chain)
    if kind == 2:
        return _Plan("ask", chain, before, words)
    expression = chain.remaining(before if kind == 0 else 0)
    return _Plan("ask", chain, before, f"What is {expression}?" + (_BARE if bare else ""))


@dataclass(slots=True)
class ScriptedReasoner:
    """Plays the reasoner. A :class:`apprentice.rollout.ports.Sampler`.

    The script is deterministic, so the probability of each of its tokens is 1 and the logprob 0; as a policy
    version it says 0.
    """

    codec: ChatCodec
    plan: _Plan
    turns: int = 0

    async def generate(
        self, request: Generate, sampling: SamplingConfig, *, seed: int | None = None
    ) -> Generated:
        """The next turn of the script."""
        parts = self._answer(request) if self.turns or self.plan.before is None else self._call()
        self.turns += 1
        ids = [i for part in self.codec.encode_parts(parts) for i in part][: request.max_tokens]
        reason = "length" if len(ids) == request.max_tokens else "stop"
        return Generated(ids, [0.0] * len(ids), 0, reason)

    def _steps(self, first: int, last: int) -> str:
        return "".join(self.plan.chain.step(number) + "\n" for number in range(first, last))

    def _call(self) -> list[Part]:
        assert self.plan.before is not None
        query = json.dumps(self.plan.query, ensure_ascii=False)
        return [
            Part(self._steps(0, self.plan.before), trusted=False),
            Part("<tool_call>", trusted=True),
            Part(f'\n{{"name": "{ASK_ADVISOR}", "arguments": {{"query": {query}}}}}\n', trusted=False),
            Part("</tool_call>", trusted=True),
        ]

    def _answer(self, request: Generate) -> list[Part]:
        chain, steps = self.plan.chain, ""
        result = str(chain.value(len(chain)))
        if self.plan.before is None or self._shown(request) != result:
            steps = self._steps(self.plan.before or 0, len(chain))
        return [
            Part(f"{steps}Answer: \\boxed{{{result}}}", trusted=False),
            Part(IM_END, trusted=True),
        ]

    def _shown(self, request: Generate) -> str | None:
        context = self.codec.decode(request.prompt_ids)
        return shown_answer(context.rpartition("<tool_response>")[2].partition("</tool_response>")[0])


class _Nobody:
    """Stands in for experts and sandbox, which ask episodes do not have."""

    async def ask(self, request: CallExpert) -> NoReturn:
        raise AssertionError("an ask episode has no experts")

    async def run(self, code: str) -> NoReturn:
        raise AssertionError("an ask episode runs no code")


async def _demonstrate(
    number: int,
    problem: Problem,
    plan: _Plan,
    codec: ChatCodec,
    config: Config,
    advisor: AdvisorClient,
) -> Demonstration | None:
    """One demonstration; None when a call was refused, the advisor failed, or it did not end as it should."""
    trajectory = await run_episode(
        make_episode(
            plan.mode,
            problem,
            codec,
            config.protocol,
            (),
            seed=0,
            trajectory_id=f"ask-warmup/{number}/{problem.problem_id}",
            group_id=problem.problem_id,
            ask=config.ask,
        ),
        sampler=ScriptedReasoner(codec, plan),
        experts=_Nobody(),
        python=_Nobody(),
        sampling=SamplingConfig(temperature=0.0),
        ask=AskPorts(advisor=advisor),
    )
    right = trajectory.final_text.endswith(f"Answer: \\boxed{{{problem.answer.strip()}}}")
    answered = len(trajectory.calls) == int(plan.before is not None)
    if trajectory.status is not Status.COMPLETE or not right or not answered:
        return None
    if any(call.error for call in trajectory.calls):
        return None
    target = trajectory.owner == Owner.CONTROLLER
    return Demonstration(trajectory, SftExample(trajectory.token_ids, target, np.zeros(len(target), bool)))
