"""The one place where a mode becomes an episode."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal, get_args

from apprentice.config.ask import AskConfig
from apprentice.config.schema import ExpertConfig, ProtocolConfig
from apprentice.data.ask_state import AskState
from apprentice.data.problem import Problem
from apprentice.episodes.actions import Episode
from apprentice.episodes.ask import AskEpisode
from apprentice.episodes.ask_prompts import ask_prompt, solo_prompt
from apprentice.episodes.collaborative import CollaborativeEpisode, available_experts
from apprentice.episodes.core import EpisodeSpec
from apprentice.episodes.internalized import InternalizedEpisode
from apprentice.episodes.parser import Repairs, repairs_of
from apprentice.episodes.prompts import Prompt, collaborative_prompt, problem_prompt
from apprentice.episodes.qmaker import QmakerEpisode
from apprentice.episodes.single_turn import SingleTurnEpisode
from apprentice.errors import ConfigError
from apprentice.tokens import ChatCodec

__all__ = ["ASK_MODES", "MODES", "Mode", "internalized_prompt", "make_episode"]

Mode = Literal[
    "base",
    "collaborative",
    "experts_removed",
    "internalized",
    "solo",
    "ask",
    "ask_stop",
    "ask_qmaker",
    "qmaker",
]
"""RIVET. ``base``: the bare problem, no tools. ``collaborative``: experts and Python. ``experts_removed``:
the same prompt and tools, every call to an expert refused, Python works. ``internalized``: one stream, Python
only.

Learning to Ask (:data:`ASK_MODES`). ``solo``: the ask prompt without any word of the advisor, one turn.
``ask``: the reasoner may ask the advisor. ``ask_stop``: the same, over at the first valid call.
``ask_qmaker``: the same, with queries by Qmaker. ``qmaker``: Qmaker writes a query at an
:class:`apprentice.data.ask_state.AskState`."""

ASK_MODES: tuple[Mode, ...] = ("solo", "ask", "ask_stop", "ask_qmaker", "qmaker")
"""Modes that need the section ``ask`` of a recipe."""

MODES: tuple[Mode, ...] = get_args(Mode)


def internalized_prompt(
    question: str, protocol: ProtocolConfig, experts: Sequence[ExpertConfig], *, code: bool = False
) -> Prompt:
    """Prompt of the internalized episode and of Stage-II sequences (``protocol.internalized_prompt``).

    A programming problem (``code``) has the bare prompt in any case: Table 7 asks for a boxed answer.
    """
    if protocol.internalized_prompt == "collaborative" and not code:
        offered = available_experts(experts, protocol.routing)
        return collaborative_prompt(question, offered, protocol.instructions)
    return problem_prompt(question, protocol.instructions, code=code)


def make_episode(
    mode: Mode,
    problem: Problem,
    codec: ChatCodec,
    protocol: ProtocolConfig,
    experts: Sequence[ExpertConfig],
    *,
    seed: int,
    trajectory_id: str,
    group_id: str,
    max_rollout_tokens: int | None = None,
    ask: AskConfig | None = None,
    partner: ChatCodec | None = None,
) -> Episode:
    """A fresh episode.

    Args:
        mode: see :data:`Mode`.
        codec: of the model that is trained or evaluated.
        protocol: limits and wordings.
        experts: all experts of the recipe, in its order; empty for training without experts.
        seed: of the episode's own draws (random routing); sampling has its own.
        max_rollout_tokens: tokens after the prompt, instead of the protocol's (evaluation gives more).
        ask: the recipe's section, for :data:`ASK_MODES`.
        partner: codec of the frozen model beside it, Qmaker's in ``ask_qmaker`` and the reasoner's in
            ``qmaker``; None: it has the same tokenizer.

    Raises:
        ConfigError: the mode needs ``ask``.
        ValueError: there is no such mode, or ``qmaker`` is given a problem that is no reasoning state.
    """
    spec = EpisodeSpec(
        mode=mode,
        problem=problem,
        trajectory_id=trajectory_id,
        group_id=group_id,
        max_rollout_tokens=protocol.max_rollout_tokens if max_rollout_tokens is None else max_rollout_tokens,
        seed=seed,
    )
    code = "code_tests" in problem.metadata
    match mode:
        case "collaborative" | "experts_removed":
            removed = mode == "experts_removed"
            return CollaborativeEpisode(codec, spec, protocol, experts, experts_removed=removed)
        case "internalized":
            prompt = internalized_prompt(problem.question, protocol, experts, code=code)
            return InternalizedEpisode(
                codec, spec, protocol, codec.encode_prompt(prompt.messages, prompt.tools)
            )
        case "base":
            prompt = problem_prompt(problem.question, protocol.instructions, code=code)
            return SingleTurnEpisode(codec, spec, codec.encode_prompt(prompt.messages, prompt.tools))
        case "solo" | "ask" | "ask_stop" | "ask_qmaker" | "qmaker":
            if ask is None:
                raise ConfigError(f"mode {mode!r} needs the section ask of the recipe (ask.advisor at least)")
            return _ask_episode(mode, problem, codec, spec, ask, partner, repairs_of(protocol.repairs))
    raise ValueError(f"there is no mode {mode!r}; modes are {', '.join(MODES)}")


def _ask_episode(
    mode: Mode,
    problem: Problem,
    codec: ChatCodec,
    spec: EpisodeSpec,
    ask: AskConfig,
    partner: ChatCodec | None,
    repairs: Repairs,
) -> Episode:
    if mode == "qmaker":
        if not isinstance(problem, AskState):
            raise ValueError(
                f"mode 'qmaker' needs a reasoning state, and {problem.problem_id} is a problem: collect "
                "states with apprentice.episodes.ask_states"
            )
        return QmakerEpisode(codec, partner or codec, spec, ask, problem, repairs)
    if mode == "solo":
        prompt = solo_prompt(problem, ask.instructions)
        return SingleTurnEpisode(codec, spec, codec.encode_prompt(prompt.messages))
    prompt = ask_prompt(problem, ask.max_asks, ask.instructions)
    prompt_ids = codec.encode_prompt(prompt.messages, prompt.tools)
    make = functools.partial(AskEpisode, codec, spec, ask, prompt_ids, repairs=repairs)
    match mode:
        case "ask_stop":
            return make(query="stop")
        case "ask_qmaker":
            return make(query="qmaker", qmaker=partner)
    return make()
