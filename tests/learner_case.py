"""A small training case: random sequences with known masks, advantages and owners, and a tiny scorer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from apprentice.learning.batch import TrainingBatch
from apprentice.trajectory import Owner

__all__ = ["make_batch", "tiny_config", "tiny_scorer"]

VOCABULARY = 384


def make_batch(
    lengths: Sequence[int] = (30, 41, 20, 52, 60),
    *,
    trained: Sequence[int] | None = None,
    seed: int = 0,
    vocabulary: int = VOCABULARY,
) -> TrainingBatch:
    """Random sequences. ``trained``: number of trained tokens of each sequence; about 60 % when left out."""
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    n = int(offsets[-1])
    mask = np.zeros(n, np.uint8)
    for i, length in enumerate(lengths):
        count = int(0.6 * length) if trained is None else trained[i]
        mask[offsets[i] + rng.choice(np.arange(1, length), count, replace=False)] = 1
    owner = np.where(mask, rng.choice([Owner.CONTROLLER, Owner.EXPERT], n), Owner.PROMPT).astype(np.uint8)
    return TrainingBatch(
        offsets=offsets,
        token_ids=rng.integers(1, vocabulary, n).astype(np.int32),
        trained=mask,
        format=(mask & (rng.random(n) < 0.3)).astype(np.uint8),
        owner=owner,
        advantage=np.repeat(rng.normal(size=len(lengths)), lengths).astype(np.float32),
        sampling_logprob=np.where(owner == Owner.CONTROLLER, -6.0, np.nan).astype(np.float32),
    )


def tiny_config(*, tied: bool = False, layers: int = 2, hidden: int = 32) -> Any:
    """Config of a tiny random Qwen3."""
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=4096,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )


def tiny_scorer(*, tied: bool = False, dtype: Any = None, logits_chunk: int = 1024, seed: int = 0) -> Any:
    """A :class:`apprentice.learning.model.TokenScorer` around a tiny random Qwen3, float64 by default."""
    import torch

    from apprentice.learning.model import TokenScorer, random_causal_lm

    model = random_causal_lm(tiny_config(tied=tied), dtype=torch.float32, seed=seed)
    return TokenScorer(model.to(dtype or torch.float64), logits_chunk=logits_chunk)
