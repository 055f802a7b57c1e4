"""The Stage I loss: dual-clipped surrogate on controller and expert tokens (RIVET, section 3.3, Eqs. 3-6)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["PolicyLoss", "policy_loss", "truncated_importance_weights"]

_MAX_LOG_RATIO = 20.0
"""exp(20) is 5e8: far outside every clip range, and still finite in float32 together with its gradient."""


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """Loss of some of a batch's tokens, and what to log about them. Tensors of shape ``[N]`` are detached.

    ``loss`` is this part's share of Eq. 6: the parts of a batch add up to it.
    """

    loss: Tensor
    ratio: Tensor
    """pi_theta / pi_old, Eq. 3; 1 where the mask is 0."""
    clipped: Tensor
    """bool: the clip of Eq. 4 holds the gradient at zero."""
    dual_clipped: Tensor
    """bool: the lower bound c * A of Eq. 5 holds the gradient at zero."""


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    n_train: int | float,
    clip_epsilon: float = 0.2,
    dual_clip: float = 3.0,
    token_weights: Tensor | None = None,
) -> PolicyLoss:
    """Eqs. 3-6, for any part of a global batch.

    ``rho = pi_theta / pi_old``; ``s = min(rho A, clip(rho, 1 - eps, 1 + eps) A)``; ``g = s`` where
    ``A >= 0``, else ``max(s, c A)``; ``loss = -sum(mask g) / n_train``. No KL term.

    Masked positions never enter the arithmetic: whatever stands there (NaN, infinities) changes neither
    the loss nor a gradient. Log ratios are bounded to +-20 before the exponential; outside the gradient is
    zero by the clip already, or (ratio below 2e-9, advantage >= 0) smaller than that.

    Args:
        logprobs: ``[N]`` log pi_theta of the tokens, requires grad.
        old_logprobs: ``[N]`` the same tokens under the frozen pre-update controller, expert tokens too.
        advantages: ``[N]`` advantage of every token.
        mask: ``[N]`` bool, the tokens that are trained: m_ctrl + m_exp.
        n_train: trained tokens of the *whole* global batch over all micro-batches and ranks, Eq. 6's
            N_train. With 0 the loss is 0.
        clip_epsilon: epsilon of Eq. 4.
        dual_clip: c of Eq. 5, > 1.
        token_weights: ``[N]`` optional constant factors on g (:func:`truncated_importance_weights`).

    Returns:
        The loss (a scalar, float32) and per-token statistics.
    """
    mask = mask.bool()
    new = torch.where(mask, logprobs.float(), 0.0)
    old = torch.where(mask, old_logprobs.detach().float(), 0.0)
    advantage = torch.where(mask, advantages.detach().float(), 0.0)
    ratio = torch.exp(torch.clamp(new - old, -_MAX_LOG_RATIO, _MAX_LOG_RATIO))
    surrogate = torch.minimum(
        ratio * advantage, torch.clamp(ratio, 1.0 - clip_epsilon, 1.0 + clip_epsilon) * advantage
    )
    negative = advantage < 0
    gain = torch.where(negative, torch.maximum(surrogate, dual_clip * advantage), surrogate)
    if token_weights is not None:
        gain = gain * torch.where(mask, token_weights.detach().float(), 0.0)
    loss = -torch.where(mask, gain, 0.0).sum() / max(n_train, 1)
    with torch.no_grad():
        constant = ratio.detach()
        clipped = ((advantage > 0) & (constant > 1.0 + clip_epsilon)) | (
            negative & (constant < 1.0 - clip_epsilon)
        )
        dual_clipped = negative & (constant > dual_clip)
    return PolicyLoss(loss, constant, clipped, dual_clipped)


def truncated_importance_weights(
    old_logprobs: Tensor, sampling_logprobs: Tensor, sampled: Tensor, cap: float
) -> Tensor:
    """``min(pi_old / pi_sampling, cap)`` where the policy sampled the token, 1 elsewhere.

    Corrects for an engine whose probabilities differ from the learner's. Tokens that an expert wrote have
    no sampling probability under the policy and keep weight 1.

    Args:
        old_logprobs: ``[N]`` under the learner before the update.
        sampling_logprobs: ``[N]`` from the engine; NaN where not sampled.
        sampled: ``[N]`` bool.
        cap: upper bound of a weight, > 0.

    Returns:
        ``[N]`` float32, detached.
    """
    gap = torch.where(sampled.bool(), (old_logprobs - sampling_logprobs).detach().float(), 0.0)
    return torch.where(sampled.bool(), torch.exp(gap.clamp(max=_MAX_LOG_RATIO)).clamp(max=cap), 1.0)
