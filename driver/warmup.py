"""Protocol warm-up: a short SFT in the collaborative format for models that do not know the tool protocol.

It teaches calls, not solutions: only the controller's own tokens are trained, experts and tools are chosen
evenly, and what an expert answered is context.
"""

from __future__ import annotations

from apprentice.stage2.warmup import warmup_examples
from driver.context import Run
from driver.sft import train_sft

__all__ = ["run_warmup"]

STAGE = "warmup"


def run_warmup(run: Run) -> None:
    """Build the demonstrations with the run's own experts and sandbox, and train on them."""
    config = run.config.warmup
    assert run.fleet.experts is not None and run.fleet.python is not None  # a fleet that is up has both
    examples = warmup_examples(
        run.train,
        config.examples,
        codec=run.codec,
        config=run.config,
        experts=run.fleet.experts,
        python=run.fleet.python,
        on_wave=lambda: run.watchdog.beat("warm-up demonstrations"),
    )
    train_sft(
        run,
        STAGE,
        examples,
        batch_size=config.batch_size,
        epochs=config.epochs,
        optimizer=config.optimizer,
        lambda_fmt=0.0,
    )
