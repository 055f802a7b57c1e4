"""The Stage II loss: masked cross-entropy plus weight on format tokens (RIVET, section 3.4, Eqs. 7-9)."""

from __future__ import annotations

import itertools
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["Normalization", "sft_loss", "sft_token_weights"]

Normalization = Literal["batch", "sequence"]


def sft_token_weights(
    target_mask: npt.NDArray[np.bool_],
    format_mask: npt.NDArray[np.bool_],
    offsets: npt.NDArray[np.int64],
    lambda_fmt: float,
    normalization: Normalization = "batch",
) -> npt.NDArray[np.float32]:
    """Per-token weights ``w`` such that ``L_CE + lambda_fmt * L_fmt = -sum(w * logprob)``.

    Eqs. 7 and 8 are written for one sequence. ``batch`` (the default) reads both sums and both counts over
    the global batch, the token mean that Stage I uses as well: every target token counts the same whatever
    sequence it stands in. ``sequence`` takes the equations word for word and averages L_II over sequences;
    a sequence without format tokens has L_fmt = 0 and stays in that average.

    Args:
        target_mask: ``[N]`` m_sft of all tokens of the global batch, sequence after sequence.
        format_mask: ``[N]`` membership in Omega_fmt, a subset of the targets.
        offsets: ``[B + 1]`` bounds of the sequences.
        lambda_fmt: weight of the format loss, >= 0.
        normalization: see above.

    Returns:
        ``[N]`` float32, zero outside the target mask.

    Raises:
        ValueError: a format token is not a target, or lambda_fmt is negative.
    """
    target, fmt = np.asarray(target_mask, bool), np.asarray(format_mask, bool)
    if bool((fmt & ~target).any()):
        raise ValueError("format tokens must be targets (Omega_fmt is a subset of the SFT mask)")
    if lambda_fmt < 0:
        raise ValueError(f"lambda_fmt must be >= 0, got {lambda_fmt}")
    bounds = [(0, len(target))]
    if normalization == "sequence":
        bounds = [(int(a), int(b)) for a, b in itertools.pairwise(offsets)]
        # Sequences without a target have no cross-entropy to average.
        bounds = [(a, b) for a, b in bounds if target[a:b].any()]
    weights = np.zeros(len(target), np.float64)
    for start, end in bounds:
        part = slice(start, end)
        weights[part] += target[part] / max(int(target[part].sum()), 1)
        weights[part] += lambda_fmt * fmt[part] / max(int(fmt[part].sum()), 1)
    return (weights / max(len(bounds), 1)).astype(np.float32)


def sft_loss(logprobs: Tensor, weights: Tensor) -> Tensor:
    """Eq. 9 for any part of a global batch: ``-sum(w * logprob)``; the parts of a batch add up to L_II.

    Positions of weight zero never enter the arithmetic: NaN or infinities there change nothing.

    Args:
        logprobs: ``[N]``, requires grad.
        weights: ``[N]`` from :func:`sft_token_weights`.

    Returns:
        A scalar, float32.
    """
    used = weights != 0
    return -(torch.where(used, logprobs.float(), 0.0) * torch.where(used, weights.float(), 0.0)).sum()
