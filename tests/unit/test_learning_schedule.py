"""Learning rates by hand."""

from __future__ import annotations

import pytest

from apprentice.config.schema import OptimizerConfig
from apprentice.learning.schedule import learning_rate

pytestmark = pytest.mark.unit


def rates(schedule: str, warmup: int, steps: int) -> list[float]:
    config = OptimizerConfig(learning_rate=8.0, schedule=schedule, warmup_steps=warmup)  # type: ignore[arg-type]
    return [learning_rate(config, step, steps) for step in range(steps + 1)]


def test_shapes() -> None:
    assert rates("constant", 0, 3) == [8.0] * 4
    assert rates("constant", 4, 5) == [2.0, 4.0, 6.0, 8.0, 8.0, 8.0]
    assert rates("linear", 0, 4) == [8.0, 6.0, 4.0, 2.0, 0.0]
    assert rates("linear", 2, 6) == [4.0, 8.0, 8.0, 6.0, 4.0, 2.0, 0.0]
    assert rates("cosine", 0, 4) == pytest.approx([8.0, 6.828427, 4.0, 1.171573, 0.0])


def test_a_decaying_schedule_needs_its_end() -> None:
    with pytest.raises(ValueError, match="total number of steps"):
        learning_rate(OptimizerConfig(schedule="cosine"), 0)
    with pytest.raises(ValueError, match="step must be"):
        learning_rate(OptimizerConfig(), -1)
