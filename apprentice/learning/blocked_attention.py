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
    """``(document start, block start, block end)`` of every block of queries."""
    start = 0
    for length in document_lengths:
        for first in range(start, start + length, _BLOCK):
            yield start, first, min(first + _BLOCK, start + length)
        start += length


def _probabilities(query: Tensor, key: Tensor, groups: int) -> Tensor:
    """``[K, G * B, E]`` of scaled queries ``[K, G * B, D]`` at the last B of the keys ``[K, E, D]``."""
    scores = torch.bmm(query, key.transpose(1, 2))
    block = query.shape[1] // groups
    future = torch.ones(block, block, dtype=torch.bool, device=query.device).triu_(1)
    by_group = scores.view(-1, groups, block, key.shape[1])
    by_group[..., key.shape[1] - block :].masked_fill_(future, float("-inf"))
    return torch.softmax(scores, -1)


class _BlockedAttention(torch.autograd.Function):
    """Saves its inputs only."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, lengths: tuple[int, ...], scale: float
    ) -> Tensor:
        heads, tokens, width = query.shape
        kv_heads = key.shape[0]
        groups = heads // kv_heads
        grouped = query.view(kv_heads, groups, tokens, width)
        out = torch.empty_like(grouped)
        for start, first, end in _blocks(lengths):
            rows = (grouped[:, :, first:end] * scale).view(kv_heads, -1, width)
            weights = _probabilities(rows, key[:, start:end], groups)
            out[:, :, first:end] = torch.bmm(weights, value[:, start:end]).view(kv_heads, groups, -1, width)
        ctx.save_for_backward(query, key, value)
        ctx.lengths, ctx.scale = lengths, scale
        return out.view(heads, tokens, width)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value = ctx.saved_tensors
        heads, tokens, width = query.shape
        kv_heads = key.shape[0]
        groups = heads // kv_heads
        grouped = query.view(kv_heads, groups, tokens, width)
        grad = grads[0].reshape(kv_heads, groups, tokens, width)
        d_query = torch.empty_like(grouped)
        # Keys gather from many blocks: summed in float32.
        wide = torch.promote_types(key.dtype, torch.float32)
        d_key, d_value = torch.zeros_like(key, dtype=wide), torch.zeros_like(value, dtype=wide)
        for start, first, end in _blocks(ctx.lengths):
            keys, values = key[:, start:end], value[:, start:end]
            rows = (grouped[:, :, first:end] * ctx.scale).view(kv_heads, -1, width)
            d_rows = grad[:, :, first:end].reshape(kv_heads, -1, width)
            weights = _probabilities(rows, keys, groups)
            d_value[:, start:end] += torch.bmm(weights.transpose(1, 2), d_rows)
            d_weights = torch.bmm(d_rows, values.transpose(1, 2))
            d_scores = torch._softmax_backward_data(d_weights, weights, -1, weights.dtype)
            part = torch.bmm(d_scores, keys).view(kv_heads, groups, -1, width)
            torch.mul(part, ctx.scale, out=d_query[:, :, first:end])
            d_key[:, start:end] += torch.bmm(d_scores.transpose(1, 2), rows)
        return d_query.view(heads, tokens, width), d_key.to(key.dtype), d_value.to(value.dtype), None, None
