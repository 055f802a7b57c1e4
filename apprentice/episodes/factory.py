"""The one place where a mode becomes an episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from apprentice.config.schema import ExpertConfig, ProtocolConfig
from apprentice.data.problem import Problem
from apprentice.episodes.actions import Episode
from apprentice.episodes.collaborative import CollaborativeEpisode, available_experts
from apprentice.episodes.core import EpisodeSpec
from apprentice.episodes.internalized import InternalizedEpisode
from apprentice.episodes.prompts import Prompt, collaborative_prompt, problem_prompt
from apprentice.episodes.single_turn import SingleTurnEpisode
from apprentice.tokens import ChatCodec

__all__ = ["MODES", "Mode", "internalized_prompt", "make_episode"]

Mode = Literal["base", "collaborative", "experts_removed", "internalized"]
"""``base``: the bare problem, no tools. ``collaborative``: experts and Python. ``experts_removed``: the same
prompt and tools, every call to an expert refused, Python works. ``internalized``: one stream, Python only."""

MODES: tuple[Mode, ...] = get_args(Mode)


def internalized_prompt(question: str, protocol: ProtocolConfig, experts: Sequence[ExpertConfig]) -> Prompt:
    """Prompt of the internalized episode and of Stage-II sequences (``protocol.internalized_prompt``)."""
    if protocol.internalized_prompt == "collaborative":
        offered = available_experts(experts, protocol.routing)
        return collaborative_prompt(question, offered, protocol.instructions)
    return problem_prompt(question, protocol.instructions)


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
) -> Episode:
    """A fresh episode.

    Args:
        mode: see :data:`Mode`.
        protocol: limits and wordings.
        experts: all experts of the recipe, in its order; empty for training without experts.
        seed: of the episode's own draws (random routing); sampling has its own.
        max_rollout_tokens: tokens after the prompt, instead of the protocol's (evaluation gives more).

    Raises:
        ValueError: there is no such mode.
    """
    spec = EpisodeSpec(
        mode=mode,
        problem=problem,
        trajectory_id=trajectory_id,
        group_id=group_id,
        max_rollout_tokens=protocol.max_rollout_tokens if max_rollout_tokens is None else max_rollout_tokens,
        seed=seed,
    )
    match mode:
        case "collaborative" | "experts_removed":
            removed = mode == "experts_removed"
            return CollaborativeEpisode(codec, spec, protocol, experts, experts_removed=removed)
        case "internalized":
            prompt = internalized_prompt(problem.question, protocol, experts)
            return InternalizedEpisode(
                codec, spec, protocol, codec.encode_prompt(prompt.messages, prompt.tools)
            )
        case "base":
            prompt = problem_prompt(problem.question, protocol.instructions)
            return SingleTurnEpisode(codec, spec, codec.encode_prompt(prompt.messages, prompt.tools))
    raise ValueError(f"there is no mode {mode!r}; modes are {', '.join(MODES)}")
