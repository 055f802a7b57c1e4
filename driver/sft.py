"""Supervised fine-tuning of the controller: the protocol warm-up and Stage II (RIVET, section 3.4)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from apprentice.config.schema import OptimizerConfig
from apprentice.learning.batch import SftExample, sft_examples
from apprentice.learning.updates import SftObjective
from apprentice.metrics.progress import PhaseTimer
from apprentice.metrics.training import sft_metrics
from driver.context import Run

__all__ = ["train_sft"]


def train_sft(
    run: Run,
    stage: str,
    examples: Sequence[SftExample],
    *,
    batch_size: int,
    epochs: int,
    optimizer: OptimizerConfig,
    lambda_fmt: float,
    lead: Sequence[SftExample] = (),
) -> int:
    """``lead`` once, then ``epochs`` passes over ``examples`` in seeded order; then sync and checkpoint.

    The last batch of an epoch is as small as it must be: every example is seen once an epoch.

    Returns:
        The number of steps.
    """
    lead_steps, per_epoch = (-(-len(part) // batch_size) for part in (lead, examples))
    total = lead_steps + per_epoch * epochs
    run.fleet.reset_optimizer(optimizer, total)
    objective = SftObjective(lambda_fmt=lambda_fmt)
    with run.progress(total, stage, "step") as bar:
        for step in range(total):
            if step < lead_steps:
                epoch, chosen = 0, lead[step * batch_size : (step + 1) * batch_size]
            else:
                epoch, index = divmod(step - lead_steps, per_epoch)
                order = np.random.default_rng([run.config.seed, epoch]).permutation(len(examples))
                chosen = [examples[i] for i in order[index * batch_size : (index + 1) * batch_size]]
            timer = PhaseTimer()
            with timer("train"):
                batch = sft_examples(chosen)
                stats = run.fleet.train_sft(batch, objective, what=f"{stage} step {step + 1}")
            run.log(stage, step + 1, {**sft_metrics(stats), **timer.metrics(), "epoch": float(epoch)})
            bar.update(1, loss=stats.loss)
    run.fleet.sync_weights()
    run.checkpoint(stage, total)
    return total
