"""Attention over packed documents that never crosses from one into the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from apprentice.learning.blocked_attention import blocked_attention

__all__ = ["DOCUMENTS", "document_attention", "register"]

DOCUMENTS = "apprentice_documents"
"""Name under which :func:`register` makes :func:`document_attention` known to transformers."""


def register() -> None:
    """Make :data:`DOCUMENTS` an attention implementation of transformers. Calling it twice is harmless.

    An implementation that has no mask function gets no mask, so nothing of size ``[T, T]`` is built.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(DOCUMENTS, document_attention)


def document_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    document_lengths: Sequence[int],
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each document, one document after the other.

    For documents of some hundred tokens this beats both a block mask over the pack and padding by a
    factor of two on a CPU, and needs no mask. On a GPU each document is one fused kernel (not run on a GPU
    yet); bfloat16 on a CPU takes :func:`apprentice.learning.blocked_attention.blocked_attention`.

    Args:
        module: the attention module (part of transformers' interface, unused).
        query: ``[1, H, T, D]``.
        key: ``[1, K, T, D]``, where K divides H.
        value: ``[1, K, T, D]``.
        attention_mask: must be None.
        document_lengths: tokens of each document; they sum to T.
        scaling: factor on scores; ``D ** -0.5`` when None.
        dropout: dropout probability on attention weights.

    Returns:
        ``([1, T, H, D], None)``, transformers' layout.
    """
    if attention_mask is not None:
        raise ValueError("packed documents are kept apart by their lengths; no attention mask is taken")
    if query.device.type == "cpu" and query.dtype is torch.bfloat16 and dropout == 0.0:
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        output = blocked_attention(query[0], key[0], value[0], document_lengths, scale)
        return output.transpose(0, 1)[None], None
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key = key.repeat_interleave(groups, dim=1)
        value = value.repeat_interleave(groups, dim=1)
    lengths = list(document_lengths)
    parts = [
        torch.nn.functional.scaled_dot_product_attention(
            q, k, v, dropout_p=dropout, is_causal=True, scale=scaling
        )
        for q, k, v in zip(
            torch.split(query, lengths, 2),
            torch.split(key, lengths, 2),
            torch.split(value, lengths, 2),
            strict=True,
        )
    ]
    output = torch.cat(parts, 2) if len(parts) > 1 else parts[0]
    return output.transpose(1, 2), None
