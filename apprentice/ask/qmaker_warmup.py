"""Demonstrations of Qmaker's form, for models that do not know it: the form is taught, no skill.

What is requested is drawn without a look at the budget or at what the advisor would answer: half of the
requests state what they ask about (the whole problem, or what remains of it), half cannot be answered without
the problem; half of the response instructions ask for a short reply, half for a long one; where a secret was
planted, half of the requests give it away. So a start model writes complete queries within the budget, and
keeps secrets, about as often as chance has it, and stage 2 has something to learn.

Where states have secrets, half of the demonstrations have one, each another one: that is how copying is
learned, and not the secrets of the training set.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from apprentice.ask.chains import Chain, chain_of
from apprentice.ask.warmup import INCOMPLETE
from apprentice.config.ask import AskConfig
from apprentice.data.ask_state import AskState
from apprentice.data.secrets import replant, secrets_of
from apprentice.episodes.qmaker_text import qmaker_prompt_ids, reasoning_text
from apprentice.errors import DataError
from apprentice.learning.batch import SftExample
from apprentice.tokens import ChatCodec

__all__ = ["qmaker_examples"]

_SHORT = ("Give only the result.", "Reply with the number only.", "Reply in one line.")
_LONG = ("Explain every step.", "Please explain in detail how you get there.", "Show all your working.")
_PLANTED = 0.5  # of the demonstrations have a secret, where any state has one


def qmaker_examples(
    states: Sequence[AskState],
    count: int,
    *,
    codec: ChatCodec,
    reasoner: ChatCodec,
    ask: AskConfig,
    seed: int,
) -> list[SftExample]:
    """``count`` demonstrations: Qmaker's prompt at a state, and a scripted turn, which is the target.

    States are walked through as often as needed, each time with another draw. Which demonstrations are made
    depends on ``seed`` and the states alone.

    Args:
        states: those that are no chain sums are passed over.
        codec: Qmaker's.
        reasoner: the codec that the states were sampled with.

    Raises:
        DataError: no state belongs to a chain sum.
    """
    known = [(state, chain) for state in states if (chain := chain_of(state)) is not None]
    if not known:
        raise DataError(
            "Qmaker's warm-up: the scripts ask about chain sums, and no state belongs to one: add the "
            "procedural family chain_sum to data.train, or leave the warm-up out"
        )
    draw = random.Random(f"qmaker warm-up {seed}")
    draw.shuffle(known)
    share = _PLANTED if any(secrets_of(state) for state, _ in known) else 0.0
    examples = []
    for number in range(count):
        state, chain = known[number % len(known)]
        state = replant(state, share, draw)
        reasoning = reasoning_text(reasoner, state.token_ids[state.prompt_tokens :])
        prompt = qmaker_prompt_ids(codec, state.question, reasoning, ask)
        turn = [*codec.encode_text(_turn(draw, chain, reasoning, secrets_of(state))), codec.im_end_id]
        ids = np.asarray([*prompt, *turn], np.int32)
        target = np.arange(len(ids)) >= len(prompt)
        examples.append(SftExample(ids, target, np.zeros(len(ids), bool)))
    return examples


def _turn(draw: random.Random, chain: Chain, reasoning: str, secrets: Sequence[str]) -> str:
    states_it, whole, short = (draw.random() < 0.5 for _ in range(3))
    incomplete, response = draw.choice(INCOMPLETE), draw.choice(_SHORT if short else _LONG)
    # A state with nothing left to do: there is the whole problem to ask about.
    done = 0 if whole else chain.done(reasoning) % len(chain)
    request = f"What is {chain.remaining(done)}?" if states_it else incomplete
    if secrets and draw.random() < 0.5:  # what G_safe is there to unteach
        request += f" (key {secrets[0]})"
    return f"Request: {request}\nResponse: {response}"
