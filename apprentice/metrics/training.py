"""Flat metric names of optimizer steps, as logged, plotted and documented (docs/metrics.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from apprentice.learning.stats import PolicyStats, SftStats

__all__ = ["policy_metrics", "sft_metrics"]


def policy_metrics(stats: PolicyStats) -> dict[str, float]:
    """Metrics of one Stage I update. Ratios and clip fractions are NaN (logged as null) without tokens."""
    metrics = {
        "loss": stats.loss,
        "grad_norm": stats.grad_norm,
        "learning_rate": stats.learning_rate,
        "entropy/controller": stats.entropy,
        "policy/clip_fraction": stats.clip_fraction,
        "policy/dual_clip_fraction": stats.dual_clip_fraction,
        "logprob_gap/mean": stats.logprob_gap_mean,
        "logprob_gap/max": stats.logprob_gap_max,
        "tokens_per_s/train": stats.tokens_per_second,
        "trained_tokens": float(stats.trained_tokens),
        "skipped_micro_batches": float(stats.skipped_micro_batches),
        "empty_step": float(stats.is_empty),
    }
    for owner, values in stats.owners.items():
        if values.tokens:
            metrics |= {
                f"ratio/{owner}/mean": values.ratio_mean,
                f"ratio/{owner}/std": values.ratio_std,
                f"ratio/{owner}/min": values.ratio_min,
                f"ratio/{owner}/max": values.ratio_max,
                f"nll/{owner}": values.nll,
                f"trained_tokens/{owner}": float(values.tokens),
            }
    return metrics


def sft_metrics(stats: SftStats) -> dict[str, float]:
    """Metrics of one supervised update: L_II, its two terms, and what it was computed on."""
    return {
        "loss": stats.loss,
        "loss/ce": stats.cross_entropy,
        "loss/fmt": stats.format_loss,
        "grad_norm": stats.grad_norm,
        "learning_rate": stats.learning_rate,
        "trained_tokens": float(stats.trained_tokens),
        "format_tokens": float(stats.format_tokens),
        "skipped_micro_batches": float(stats.skipped_micro_batches),
        "tokens_per_s/train": stats.input_tokens / stats.seconds if stats.seconds else 0.0,
    }
