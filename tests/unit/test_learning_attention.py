"""Attention over packed documents against the textbook formula in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from apprentice.learning.attention import document_attention
from apprentice.learning.blocked_attention import blocked_attention

pytestmark = pytest.mark.unit

HEADS, KV_HEADS, WIDTH = 6, 2, 8
# Around the block size of 128: shorter, exact, one more, several blocks, a single token.
LENGTHS = (5, 128, 129, 300, 1)


def textbook(query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int], scale: float) -> Tensor:
    """Softmax over the whole pack with everything outside the document or in the future at -inf."""
    document = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    position = torch.arange(len(document))
    seen = (document[:, None] == document[None]) & (position[:, None] >= position[None])
    out = []
    for h in range(query.shape[0]):
        k = h // (query.shape[0] // key.shape[0])
        scores = (query[h] @ key[k].T * scale).masked_fill(~seen, -math.inf)
        out.append(torch.softmax(scores, -1) @ value[k])
    return torch.stack(out)


def through_transformers(q: Tensor, k: Tensor, v: Tensor, lengths: Sequence[int], scale: float) -> Tensor:
    out, _ = document_attention(
        torch.nn.Identity(), q[None], k[None], v[None], document_lengths=lengths, scaling=scale
    )
    return out[0].transpose(0, 1)


@pytest.mark.parametrize("attention", [blocked_attention, through_transformers])
def test_values_and_gradients_are_the_textbook_ones(attention: Callable[..., Tensor]) -> None:
    generator = torch.Generator().manual_seed(0)
    tokens = sum(LENGTHS)
    q, k, v = (
        torch.randn(heads, tokens, WIDTH, generator=generator, dtype=torch.float64).requires_grad_()
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    upstream = torch.randn(HEADS, tokens, WIDTH, generator=generator, dtype=torch.float64)
    want = textbook(q, k, v, LENGTHS, 0.3)
    got = attention(q, k, v, LENGTHS, 0.3)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)
    for a, b in zip(
        torch.autograd.grad((got * upstream).sum(), (q, k, v)),
        torch.autograd.grad((want * upstream).sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


def test_bfloat16_on_a_cpu_takes_the_blocks_and_stays_near() -> None:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (
        torch.randn(heads, 200, WIDTH, generator=generator).bfloat16()
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    got = through_transformers(q, k, v, (150, 50), 0.3)
    assert torch.equal(got, blocked_attention(q, k, v, (150, 50), 0.3))
    torch.testing.assert_close(
        got.float(), textbook(q.float(), k.float(), v.float(), (150, 50), 0.3), rtol=0, atol=0.03
    )


def test_a_mask_is_refused() -> None:
    q = torch.zeros(1, 2, 4, WIDTH)
    with pytest.raises(ValueError, match="no attention mask"):
        document_attention(torch.nn.Identity(), q, q, q, torch.zeros(1), document_lengths=(4,))
