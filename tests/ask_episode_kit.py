"""Stand-ins for what an ask episode asks of the world: engines that stop as real ones do, advisor, judge."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from apprentice.config.ask import AdvisorConfig, ArithmeticBackend, AskConfig, QmakerConfig
from apprentice.config.schema import ProtocolConfig
from apprentice.data.problem import Problem
from apprentice.episodes.actions import (
    Action,
    AdvisorReply,
    AskAdvisor,
    Event,
    Generate,
    Generated,
    JudgeQuery,
    QueryJudged,
)
from apprentice.episodes.factory import Mode, make_episode
from apprentice.tokens import ChatCodec
from tests.episode_kit import PROBLEM, World, call, engine_output, sampled

ANSWER = "Answer: \\boxed{42}"
ADVICE = "It is 42."


def ask_config(
    *, advisor: dict[str, Any] | None = None, qmaker: dict[str, Any] | None = None, **changes: Any
):
    """The compact wording, an arithmetic advisor ``oracle`` that is never called here, b = 64."""
    fields = {"name": "oracle", "backend": ArithmeticBackend(), "max_tokens": 64, **(advisor or {})}
    return AskConfig(
        **{"instructions": "compact", "qmaker": QmakerConfig(**(qmaker or {})), **changes},
        advisor=AdvisorConfig(**fields),
    )


def asks(query: object, **more: object) -> str:
    return call("ask_advisor", query=query, **more)


def qmaker_text(request: str, response: str = "One number.") -> str:
    return f"Request: {request}\nResponse: {response}"


def reply(text: str = ADVICE, **fields: Any) -> AdvisorReply:
    return dataclasses.replace(AdvisorReply(text, 11, 7, "stop", 53.0, 0.25), **fields)


@dataclass
class AskWorld(World):
    """``frozen``: turns of frozen models by name; ``partner``: their codec where it is another one.

    ``shards``: an event carries so many tokens; None: engines stop at stop strings and ids by themselves.
    """

    advisor: Callable[[AskAdvisor], Event] = lambda request: reply()
    judge: Callable[[JudgeQuery], Event] = lambda request: QueryJudged(True, "COMPLETE")
    frozen: dict[str, list[str]] = field(default_factory=dict)
    partner: ChatCodec | None = None
    shards: int | None = None
    queries: list[AskAdvisor] = field(default_factory=list)
    judged: list[JudgeQuery] = field(default_factory=list)
    _follows: tuple[int, ...] = ()

    def perform(self, action: Action) -> Event:
        match action:
            case Generate(model=model) if model:
                self.prompts.append(action)
                codec = self.codec if model == "reasoner" else self.partner or self.codec
                ids = codec.encode_markup(self.frozen[model].pop(0) + "<|im_end|>")
                return engine_output(codec, ids, action)
            case AskAdvisor():
                self.queries.append(action)
                return self.advisor(action)
            case JudgeQuery():
                self.judged.append(action)
                return self.judge(action)
        return super().perform(action)

    def _generate(self, action: Generate) -> Generated:
        if tuple(action.prompt_ids) != self._follows:  # not the same turn any more: its rest is forgotten
            self._left = self.turn_ids(next(self._turns))
        made = engine_output(self.codec, self._left, action)
        if self.shards is not None:
            ids = self._left[: min(self.shards, action.max_tokens)]
            made = sampled(ids, "length" if len(ids) == action.max_tokens else None)
        self._left = self._left[len(made.token_ids) :]
        self._follows = (*action.prompt_ids, *made.token_ids)
        return made


def new_ask(
    mode: Mode,
    codec: ChatCodec,
    *,
    problem: Problem = PROBLEM,
    ask: AskConfig | None = None,
    partner: ChatCodec | None = None,
    max_rollout_tokens: int | None = None,
    **protocol: Any,
):
    return make_episode(
        mode,
        problem,
        codec,
        ProtocolConfig(**{"instructions": "compact", **protocol}),
        (),
        seed=0,
        trajectory_id="t",
        group_id="g",
        max_rollout_tokens=max_rollout_tokens,
        ask=ask or ask_config(),
        partner=partner,
    )
