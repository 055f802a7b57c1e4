"""Causal attention over documents as blocks of plain matrix products, for bfloat16 on a CPU.

PyTorch's fused attention spends most of its time outside the CPU's matrix units; blocks of ordinary
batched products take half the time, forward and backward. Probabilities are computed again in the backward
pass, so nothing quadratic in a document's length is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["blocked_attention"]

_BLOCK = 128
"""Queries of one block. A block sees keys up to its own end, so smaller blocks skip more of the triangle."""


def blocked_attention(
    query: Tensor, key: Tensor, value: Tensor, document_lengths: Sequence[int], scale: float
) -> Tensor:
    """Causal softmax attention within each document.

    Scores are rounded to the dtype of the inputs, as every product is; softmax sums in float32.

    Args:
        query: ``[H, T, D]``.
        key: ``[K, T, D]``, where K divides H; query heads ``h * H / K`` and on share key head ``h``.
        value: ``[K, T, D]``.
        document_lengths: tokens of each document; they sum to T.
        scale: factor on scores.

    Returns:
        ``[H, T, D]``.
    """
    out: Tensor = _BlockedAttention.apply(  # type: ignore[no-untyped-call]
        query, key, value, tuple(document_lengths), scale
    )
    return out


def _blocks(document_lengths: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """``(document start, block start, queries of the document in the block)`` of every block.

    Every block is computed with :data:`_BLOCK` queries, the last of a document reaching into what follows it:
    causality keeps that out of the document's own rows, and the extra rows are thrown away. So matrix shapes
    are multiples of the block whatever the lengths are, and kernels compiled for a shape serve again.
    """
    start = 0
    for length in document_lengths:
        for first in range(0, length, _BLOCK):
            yield start, start + first, min(_BLOCK, length - first)
        start += length


def _probabilities(query: Tensor, key: Tensor, future: Tensor) -> Tensor:
    """``[K, G * B, E]`` of scaled queries ``[K, G * B, D]`` at the last B of the keys ``[K, E, D]``."""
    scores = torch.bmm(query, key.transpose(1, 2))
    by_group = scores.view(key.shape[0], -1, _BLOCK, key.shape[1])
    by_group[..., key.shape[1] - _BLOCK :].masked_fill_(future, float("-inf"))
    return torch.softmax(scores, -1)


def _future(device: torch.device) -> Tensor:
    return torch.ones(_BLOCK, _BLOCK, dtype=torch.bool, device=device).triu_(1)


class _BlockedAttention(torch.autograd.Function):
    """Saves its inputs only."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, lengths: tuple[int, ...], scale: float
    ) -> Tensor:
        heads, tokens, width = query.shape
        kv_heads = key.shape[0]
        # Room for the last block to reach into; zeros, since a NaN would spread even through weight zero.
        query, key, value = (torch.nn.functional.pad(x, (0, 0, 0, _BLOCK)) for x in (query, key, value))
        grouped = query.view(kv_heads, heads // kv_heads, -1, width)
        out = query.new_empty(kv_heads, heads // kv_heads, tokens, width)
        future = _future(query.device)
        for start, first, used in _blocks(lengths):
            end = first + _BLOCK
            rows = (grouped[:, :, first:end] * scale).view(kv_heads, -1, width)
            weights = _probabilities(rows, key[:, start:end], future)
            block = torch.bmm(weights, value[:, start:end]).view(kv_heads, -1, _BLOCK, width)
            out[:, :, first : first + used] = block[:, :, :used]
        ctx.save_for_backward(query, key, value)
        ctx.lengths, ctx.scale, ctx.tokens = lengths, scale, tokens
        return out.view(heads, tokens, width)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value = ctx.saved_tensors
        heads, _, width = query.shape
        tokens, kv_heads = ctx.tokens, key.shape[0]
        grouped = query.view(kv_heads, heads // kv_heads, -1, width)
        grad = grads[0].reshape(kv_heads, heads // kv_heads, tokens, width)
        d_query = torch.empty_like(grad)
        # Keys gather from many blocks: summed in float32.
        wide = torch.promote_types(key.dtype, torch.float32)
        d_key, d_value = torch.zeros_like(key, dtype=wide), torch.zeros_like(value, dtype=wide)
        future = _future(query.device)
        for start, first, used in _blocks(ctx.lengths):
            end = first + _BLOCK
            keys, values = key[:, start:end], value[:, start:end]
            rows = (grouped[:, :, first:end] * ctx.scale).view(kv_heads, -1, width)
            d_block = grad.new_zeros(*grad.shape[:2], _BLOCK, width)
            d_block[:, :, :used] = grad[:, :, first : first + used]
            d_rows = d_block.view(kv_heads, -1, width)
            weights = _probabilities(rows, keys, future)
            d_value[:, start:end] += torch.bmm(weights.transpose(1, 2), d_rows)
            d_weights = torch.bmm(d_rows, values.transpose(1, 2))
            d_scores = torch._softmax_backward_data(d_weights, weights, -1, weights.dtype)
            part = torch.bmm(d_scores, keys).view(kv_heads, -1, _BLOCK, width)
            torch.mul(part[:, :, :used], ctx.scale, out=d_query[:, :, first : first + used])
            d_key[:, start:end] += torch.bmm(d_scores.transpose(1, 2), rows)
        return (
            d_query.view(heads, tokens, width),
            d_key[:, :tokens].to(key.dtype),
            d_value[:, :tokens].to(value.dtype),
            None,
            None,
        )
