"""Learning rates."""

from __future__ import annotations

import math

from apprentice.config.schema import OptimizerConfig

__all__ = ["learning_rate"]


def learning_rate(config: OptimizerConfig, step: int, total_steps: int | None = None) -> float:
    """The rate of optimizer step ``step`` (counted from 0).

    Linear warm-up over ``warmup_steps`` (the first step already has a rate above 0), then constant, or
    linear or cosine decay that reaches 0 just after the last of ``total_steps``.

    Raises:
        ValueError: a decaying schedule without ``total_steps``, or a negative step.
    """
    if step < 0:
        raise ValueError(f"step must be >= 0, got {step}")
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.learning_rate
    if total_steps is None:
        raise ValueError(f"the {config.schedule} schedule needs the total number of steps")
    span = max(total_steps - config.warmup_steps, 1)
    progress = min((step - config.warmup_steps) / span, 1.0)
    if config.schedule == "linear":
        return config.learning_rate * (1.0 - progress)
    return config.learning_rate * 0.5 * (1.0 + math.cos(math.pi * progress))
