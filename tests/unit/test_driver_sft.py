"""Supervised steps of the driver: which examples are in which batch."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from apprentice.config.parts import OptimizerConfig
from apprentice.learning.batch import SftExample
from driver.sft import train_sft

pytestmark = pytest.mark.unit


def example(number: int) -> SftExample:
    return SftExample(np.array([number, number], np.int32), np.array([False, True]), np.zeros(2, bool))


def train(monkeypatch: pytest.MonkeyPatch, examples: int, lead: int, *, batch_size: int, epochs: int):
    """The batches, as the numbers of their examples (those of the lead from 100 on), and what was logged."""
    batches, logged, done = [], [], []
    stats = SimpleNamespace(loss=0.0)
    monkeypatch.setattr("driver.sft.sft_metrics", lambda stats: {})
    monkeypatch.setattr("driver.sft.sft_examples", lambda chosen: [int(e.token_ids[0]) for e in chosen])
    run = SimpleNamespace(
        config=SimpleNamespace(seed=3),
        fleet=SimpleNamespace(
            reset_optimizer=lambda optimizer, total: done.append(("reset", total)),
            train_sft=lambda batch, objective, what: batches.append(batch) or stats,
            sync_weights=lambda: done.append("sync"),
        ),
        progress=lambda *_: nullcontext(SimpleNamespace(update=lambda *_, **__: None)),
        log=lambda stage, step, values: logged.append((stage, step, values["epoch"])),
        checkpoint=lambda stage, step: done.append(("checkpoint", stage, step)),
    )
    steps = train_sft(
        run,
        "warmup",
        [example(n) for n in range(examples)],
        batch_size=batch_size,
        epochs=epochs,
        optimizer=OptimizerConfig(learning_rate=1e-3),
        lambda_fmt=0.0,
        lead=[example(100 + n) for n in range(lead)],
    )
    assert done == [("reset", steps), "sync", ("checkpoint", "warmup", steps)]
    return steps, batches, logged


def test_the_lead_is_seen_once_in_its_order_then_every_example_once_an_epoch(monkeypatch) -> None:
    steps, batches, logged = train(monkeypatch, 5, 3, batch_size=2, epochs=2)
    assert steps == 2 + 3 * 2 == len(batches)
    assert batches[:2] == [[100, 101], [102]]
    for epoch in (batches[2:5], batches[5:]):
        assert sorted(n for batch in epoch for n in batch) == [0, 1, 2, 3, 4] and [len(b) for b in epoch] == [
            2,
            2,
            1,
        ]
    assert batches[2:5] != batches[5:]
    assert [step for _, step, _ in logged] == list(range(1, 9))
    assert [epoch for *_, epoch in logged] == [0, 0, 0, 0, 0, 1, 1, 1]


def test_without_a_lead_the_order_is_that_of_the_seed(monkeypatch) -> None:
    steps, batches, _ = train(monkeypatch, 4, 0, batch_size=4, epochs=1)
    assert steps == 1
    assert batches == [np.random.default_rng([3, 0]).permutation(4).tolist()]
