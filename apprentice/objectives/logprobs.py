"""Log-probabilities of selected positions from hidden states, in bounded memory for any vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["chunked_logprobs", "temperature_divisor"]


def temperature_divisor(temperature: float) -> float:
    """What logits are divided by. Temperatures 0 (greedy) and 1 leave them unchanged.

    Raises:
        ValueError: the temperature is negative.
    """
    if temperature < 0:
        raise ValueError(f"temperature must be >= 0, got {temperature}")
    return 1.0 if temperature == 0 else float(temperature)


def chunked_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    chunk: int = 1024,
    with_entropy: bool = False,
) -> tuple[Tensor, Tensor]:
    """``log softmax((h W^T + b) / T)[target]`` of every row, and the entropy of every row's distribution.

    Logits exist for at most ``chunk`` rows at a time, in the forward and in the backward pass, where they
    are computed again instead of kept: beside inputs and gradients, peak memory is a few ``[chunk, V]``
    float32 matrices whatever ``N`` is. The matrix product runs in the dtype of ``hidden``, softmax and sums
    in float32 (float64 for float64 inputs). Call it with the rows that matter only.

    Args:
        hidden: ``[N, D]`` last hidden states, each at the position *before* its target.
        weight: ``[V, D]`` of the language-model head (the tied embedding, where tied), dtype of ``hidden``.
        targets: ``[N]`` int64 token ids.
        bias: ``[V]`` of the head, where it has one.
        temperature: sampling temperature; see :func:`temperature_divisor`.
        chunk: rows whose logits exist at one time, >= 1.
        with_entropy: compute the entropy (natural log); it never carries a gradient.

    Returns:
        ``(logprobs [N], entropy [N])``, float32; the entropy is NaN when not asked for.

    Raises:
        ValueError: ``chunk`` < 1 or a negative temperature.
    """
    if chunk < 1:
        raise ValueError(f"chunk must be >= 1, got {chunk}")
    divisor = temperature_divisor(temperature)
    logprobs, entropy = _ChunkedLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, targets, divisor, chunk, with_entropy
    )
    return logprobs, entropy


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, divisor: float) -> Tensor:
    """``[n, V]`` in at least float32, owned by the caller."""
    product = torch.nn.functional.linear(hidden, weight, bias)
    logits = product.to(torch.promote_types(product.dtype, torch.float32))
    return logits.div_(divisor) if divisor != 1.0 else logits


def _fill(rows: Tensor, chunk: int) -> Tensor:
    """``[n, k]`` filled with zero rows to a multiple of 64, so that kernels made for a shape serve again."""
    missing = -len(rows) % min(64, chunk)
    return torch.nn.functional.pad(rows, (0, 0, 0, missing)) if missing else rows


class _ChunkedLogprobs(torch.autograd.Function):
    """Saves the inputs and one log-normalizer a row; recomputes logits chunk by chunk in backward."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        divisor: float,
        chunk: int,
        with_entropy: bool,
    ) -> tuple[Tensor, Tensor]:
        rows = hidden.shape[0]
        accumulate = torch.promote_types(hidden.dtype, torch.float32)
        logprobs = torch.zeros(rows, dtype=accumulate, device=hidden.device)
        normalizer = torch.zeros_like(logprobs)
        entropy = torch.full_like(logprobs, float("nan"))
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, rows, chunk):
                part = slice(start, start + chunk)
                count = len(targets[part])
                logits = _logits(_fill(hidden[part], chunk), weight, bias, divisor)[:count]
                chosen = logits.gather(-1, targets[part, None]).squeeze(-1)
                top = logits.amax(-1, keepdim=True)
                logits.sub_(top)
                exps = logits.exp() if with_entropy else logits.exp_()
                total = exps.sum(-1)
                normalizer[part] = total.log() + top.squeeze(-1)
                logprobs[part] = chosen - normalizer[part]
                if with_entropy:  # H = log Z - E[logit]; logits are finite
                    entropy[part] = total.log() - torch.linalg.vecdot(exps, logits) / total
                del logits, exps
        ctx.save_for_backward(hidden, weight, bias, targets, normalizer)
        ctx.divisor, ctx.chunk = divisor, chunk
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad = grads[0]  # of the logprobs; the entropy has none
        hidden, weight, bias, targets, normalizer = ctx.saved_tensors
        need_hidden, need_weight, need_bias = ctx.needs_input_grad[:3]
        need_bias = need_bias and bias is not None
        # A row without a gradient (clipped, zero advantage, masked) costs nothing and, whatever stands in
        # it, touches nothing: 0 * NaN would be NaN.
        alive = (grad != 0).nonzero().squeeze(-1)
        grad_hidden = torch.zeros_like(hidden) if need_hidden else None
        grad_weight: Tensor | None = None
        grad_bias: Tensor | None = None
        # Sums over chunks are kept in float32: bfloat16 would lose the small ones.
        one_chunk = len(alive) <= ctx.chunk
        accumulate = weight.dtype if one_chunk else torch.promote_types(weight.dtype, torch.float32)
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, len(alive), ctx.chunk):
                rows = alive[start : start + ctx.chunk]
                states = _fill(hidden[rows], ctx.chunk)
                d_logits = _logits(states, weight, bias, ctx.divisor)
                d_logits.sub_(_fill(normalizer[rows, None], ctx.chunk)).exp_().neg_()  # - softmax
                ones = torch.ones(len(states), 1, dtype=d_logits.dtype, device=d_logits.device)
                d_logits.scatter_add_(-1, _fill(targets[rows, None], ctx.chunk), ones)
                d_logits.mul_(_fill(grad[rows, None] / ctx.divisor, ctx.chunk))  # rows of filling: times 0
                small = d_logits.to(hidden.dtype)
                if grad_hidden is not None:
                    grad_hidden[rows] = (small @ weight)[: len(rows)]
                if need_weight:
                    grad_weight = _add(grad_weight, small.T @ states, accumulate)
                if need_bias:
                    grad_bias = _add(grad_bias, d_logits.sum(0), accumulate)
                del d_logits, small
        if need_weight:
            grad_weight = torch.zeros_like(weight) if grad_weight is None else grad_weight.to(weight.dtype)
        if need_bias:
            grad_bias = torch.zeros_like(bias) if grad_bias is None else grad_bias.to(bias.dtype)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None


def _add(total: Tensor | None, term: Tensor, dtype: torch.dtype) -> Tensor:
    return term.to(dtype) if total is None else total.add_(term)
