"""Hand-written stand-ins for what an episode asks of the world, and a driver that performs its actions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from unittest import mock

from apprentice.config.schema import ExpertConfig, ProtocolConfig, WorkedBackend
from apprentice.data.problem import Problem
from apprentice.episodes.actions import (
    Action,
    CallExpert,
    Episode,
    Event,
    ExpertReply,
    Finish,
    Generate,
    Generated,
    PythonResult,
    RunPython,
)
from apprentice.episodes.factory import Mode, make_episode
from apprentice.tokens import ChatCodec
from apprentice.trajectory import Trajectory
from tests import tiny
from tests.shared import shared_path

EXPERTS = tuple(ExpertConfig(name=name, backend=WorkedBackend()) for name in ("ada", "bob", "cyd"))
PROBLEM = Problem("p1", "What is 6 times 7?", "42", family="product")


@cache
def qwen_codec() -> ChatCodec:
    """The real Qwen vocabulary, in which ``<tool_call>`` and its kin are single tokens."""
    return ChatCodec.from_pretrained(str(shared_path("tokenizers/qwen3-instruct-2507")))


@cache
def tiny_codec() -> ChatCodec:
    """A byte-level vocabulary of 384 ids with the tags as single tokens."""
    return ChatCodec(tiny.make_tiny_tokenizer())


@cache
def plain_codec() -> ChatCodec:
    """A small vocabulary in which the tags are plain text, as in SmolLM2."""
    corpus = ['<tool_call>\n{"name": "think", "arguments": {"model": "ada"}}\n</tool_call>'] * 4
    corpus += ["<python>\nprint(1)\n</python>\n<output>\n1\n</output>\n"] * 4
    with mock.patch.object(tiny, "ADDED", ()):
        return ChatCodec(tiny.make_tiny_tokenizer(corpus))


@cache
def merging_codec() -> ChatCodec:
    """A vocabulary whose tokens span words, tags and line breaks: every seam can be straddled."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    seams = [
        "\n\n",
        "\n</",
        "\n<tool",
        ">\n<",
        ")\n</",
        ".\n</",
        '"}}\n<',
        "\n<output>\n",
        "</output>\n</",
        "a\n",
    ]
    raw.train_from_iterator([seam for seam in seams for _ in range(4)], trainer)
    raw.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in tiny.SPECIALS])
    return ChatCodec(
        PreTrainedTokenizerFast(
            tokenizer_object=raw,
            eos_token="<|im_end|>",
            pad_token="<|endoftext|>",
            chat_template=tiny.CHAT_TEMPLATE,
        )
    )


def call(tool: str, **arguments: object) -> str:
    """One tool call as text."""
    body = json.dumps({"name": tool, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def think(model: str = "ada", **more: object) -> str:
    return call("think", model=model, **more)


def code(model: str = "ada", code: object = "", **more: object) -> str:
    return call("code_interpreter", model=model, code=code, **more)


def engine_output(codec: ChatCodec, ids: Sequence[int], request: Generate) -> Generated:
    """What an engine that would write ``ids`` returns: up to a stop id or string, kept, or to the length."""
    for n in range(1, min(len(ids), request.max_tokens) + 1):
        text = codec.decode(ids[:n])
        if ids[n - 1] in request.stop_token_ids or any(stop in text for stop in request.stop):
            return sampled(ids[:n], "stop")
    n = min(len(ids), request.max_tokens)
    return sampled(ids[:n], "length" if n == request.max_tokens else None)


def sampled(ids: Sequence[int], finish_reason: str | None = "stop", version: int = 3) -> Generated:
    return Generated(list(ids), [-0.5] * len(ids), version, finish_reason)


@dataclass
class World:
    """Answers actions from scripts and keeps what was asked.

    ``turns``: what the controller samples, as text (closed by ``<|im_end|>`` unless ``raw``).
    ``chunks``: how many tokens an event carries; None: whole turns.
    """

    codec: ChatCodec
    turns: Iterable[str | Sequence[int]] = ()
    expert: Callable[[CallExpert], Event] = lambda request: ExpertReply("Six sevens are 42.", request.expert)
    python: Callable[[str], Event] = lambda code: PythonResult("42", "ok", 0.25)
    chunks: Callable[[], int] | None = None
    close: bool = True
    asked: list[CallExpert] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    prompts: list[Generate] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._turns = iter(self.turns)
        self._left: list[int] = []

    def turn_ids(self, turn: str | Sequence[int]) -> list[int]:
        if not isinstance(turn, str):
            return list(turn)
        return self.codec.encode_markup(turn + ("<|im_end|>" if self.close else ""))

    def perform(self, action: Action) -> Event:
        match action:
            case Generate():
                self.prompts.append(action)
                return self._generate(action)
            case CallExpert():
                self.asked.append(action)
                return self.expert(action)
            case RunPython():
                self.ran.append(action.code)
                return self.python(action.code)
        raise AssertionError(action)

    def _generate(self, action: Generate) -> Generated:
        if not self._left:
            self._left = self.turn_ids(next(self._turns))
        size = len(self._left) if self.chunks is None else self.chunks()
        ids, self._left = self._left[:size], self._left[size:]
        if len(ids) >= action.max_tokens:
            self._left = []
            return sampled(ids[: action.max_tokens], "stop" if len(ids) == action.max_tokens else "length")
        return sampled(ids, None if self._left or self.chunks else "stop")

    def play(self, episode: Episode) -> Trajectory:
        action = episode.start()
        while not isinstance(action, Finish):
            action = episode.step(self.perform(action))
        return episode.result()


def new(
    mode: Mode,
    codec: ChatCodec,
    *,
    problem: Problem = PROBLEM,
    experts: Sequence[ExpertConfig] = EXPERTS,
    seed: int = 0,
    max_rollout_tokens: int | None = None,
    **protocol: object,
) -> Episode:
    """An episode with the compact wording and generous limits unless told otherwise."""
    return make_episode(
        mode,
        problem,
        codec,
        ProtocolConfig(**{"instructions": "compact", **protocol}),  # type: ignore[arg-type]
        experts,
        seed=seed,
        trajectory_id="t",
        group_id="g",
        max_rollout_tokens=max_rollout_tokens,
    )


def owned(trajectory: Trajectory, codec: ChatCodec) -> list[tuple[str, str]]:
    """``(owner, text)`` of each run of tokens with one owner and producer, the prompt left out."""
    return [
        (owner.name, codec.decode(trajectory.token_ids[start:end].tolist()))
        for start, end, owner, _ in trajectory.spans()
        if owner.name != "PROMPT"
    ]
