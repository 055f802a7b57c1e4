"""Texts to repeat: what a model from random weights must learn before it can quote anything.

A model that cannot copy keeps every secret, so screening has nothing to teach it. A text states a secret,
made up as those of Table 2, and the target is the secret once more. Whether one may be given away is not
shown.
"""

from __future__ import annotations

import random

import numpy as np

from apprentice.data.secrets import stated_secret
from apprentice.learning.batch import SftExample
from apprentice.tokens import ChatCodec

__all__ = ["copy_examples"]


def copy_examples(count: int, codec: ChatCodec, seed: int) -> list[SftExample]:
    """``count`` texts to repeat, each with a secret of its own; which ones depends on ``seed`` alone."""
    draw = random.Random(f"copies {seed}")
    examples = []
    for _ in range(count):
        statement, value = stated_secret(draw)
        prompt = codec.encode_text(f"{statement}\nRequest:")
        ids = np.asarray([*prompt, *codec.encode_text(f" (key {value})"), codec.im_end_id], np.int32)
        target = np.arange(len(ids)) >= len(prompt)
        examples.append(SftExample(ids, target, np.zeros(len(ids), bool)))
    return examples
