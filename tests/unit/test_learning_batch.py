"""What crosses to the learner: ownership to masks, Arrow without copies, refusals (C13, C17, C19)."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest

from apprentice.errors import DataError
from apprentice.learning.batch import SCHEMA, SftExample, TrainingBatch, rl_examples, sft_examples
from apprentice.trajectory import Owner, Status, Trajectory, TrajectoryBuilder
from tests.learner_case import make_batch

pytestmark = pytest.mark.unit

ARRAYS = ("token_ids", "trained", "format", "owner", "advantage", "sampling_logprob", "offsets")


def trajectory(status: Status = Status.COMPLETE) -> Trajectory:
    """A call in the middle: prompt, controller, wrapper, expert, observation, wrapper, controller."""
    builder = TrajectoryBuilder()
    builder.append([1, 2, 3], Owner.PROMPT, "prompt")
    builder.append_sampled([10, 11, 12], [-0.5, -1.0, -0.1], 4)
    builder.append([20, 21], Owner.WRAPPER, "template")
    builder.append([30, 31, 32], Owner.EXPERT, "Qwen3-8B")
    builder.append([40, 41], Owner.OBSERVATION, "python")
    builder.append([20, 22], Owner.WRAPPER, "template")
    builder.append_sampled([13, 14], [-0.2, -0.3], 4)
    return builder.build(
        trajectory_id="t",
        problem_id="p",
        group_id="g",
        mode="collaborative",
        status=status,
        status_reason="x",
    )


def test_c13_c17_masks_come_from_ownership_at_training_time() -> None:
    batch = rl_examples([trajectory()], [0.5])
    #                                 prompt   sampled  wrap  expert   obs   wrap  sampled
    assert batch.trained.tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1]
    assert batch.n_train == 8
    assert batch.trained_by_owner() == {
        "prompt": 0, "controller": 5, "expert": 3, "observation": 0, "wrapper": 0,
    }  # fmt: skip
    assert batch.token_ids.tolist() == trajectory().token_ids.tolist()
    assert batch.advantage.tolist() == [0.5] * 17
    assert batch.sampling_logprob[3:6].tolist() == pytest.approx([-0.5, -1.0, -0.1])
    assert np.isnan(batch.sampling_logprob[8:11]).all()


def test_controller_only_is_a_choice_of_owners() -> None:
    batch = rl_examples([trajectory()], [0.5], train_owners=("controller",))
    assert np.flatnonzero(batch.trained).tolist() == [3, 4, 5, 15, 16]


def test_advantages_may_differ_between_segments_of_a_trajectory() -> None:
    values = np.linspace(-1, 1, 17).astype(np.float32)
    batch = rl_examples([trajectory(), trajectory()], [values, 2.0])
    assert batch.advantage[:17].tolist() == values.tolist()
    assert batch.advantage[17:].tolist() == [2.0] * 17


def test_c19_the_first_token_is_never_trained() -> None:
    builder = TrajectoryBuilder()
    builder.append_sampled([5, 6], [-0.1, -0.2], 0)
    only = builder.build(trajectory_id="t", problem_id="p", group_id="g", mode="m", status=Status.COMPLETE)
    assert rl_examples([only], [1.0]).trained.tolist() == [0, 1]
    example = SftExample(np.asarray([5, 6], np.int32), np.ones(2, bool), np.ones(2, bool))
    batch = sft_examples([example])
    assert batch.trained.tolist() == batch.format.tolist() == [0, 1]


def test_unusable_trajectories_and_other_owners_are_refused() -> None:
    with pytest.raises(ValueError, match="unusable"):
        rl_examples([trajectory(Status.UNUSABLE)], [1.0])
    with pytest.raises(ValueError, match="'observation' tokens are never trained"):
        rl_examples([trajectory()], [1.0], train_owners=("observation",))
    with pytest.raises(ValueError, match="2 advantages for 1"):
        rl_examples([trajectory()], [1.0, 2.0])
    with pytest.raises(ValueError, match="not finite"):
        rl_examples([trajectory()], [float("nan")])


def test_sft_examples_keep_masks_apart_by_sequence() -> None:
    a = SftExample(
        np.arange(4, dtype=np.int32), np.asarray([0, 0, 1, 1], bool), np.asarray([0, 0, 1, 0], bool)
    )
    b = SftExample(np.arange(3, dtype=np.int32), np.asarray([1, 1, 0], bool), np.zeros(3, bool))
    batch = sft_examples([a, b])
    assert batch.offsets.tolist() == [0, 4, 7]
    assert batch.trained.tolist() == [0, 0, 1, 1, 0, 1, 0]
    assert batch.format.tolist() == [0, 0, 1, 0, 0, 0, 0]
    with pytest.raises(ValueError, match="as many"):
        SftExample(np.arange(4, dtype=np.int32), np.ones(3, bool), np.ones(4, bool))


def test_arrow_round_trip_shares_memory_both_ways() -> None:
    batch = make_batch()
    table = batch.to_table()
    assert table.schema.equals(SCHEMA)
    back = TrainingBatch.from_table(table)
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(back, name), getattr(batch, name))
    assert np.shares_memory(back.token_ids, batch.token_ids)
    assert np.shares_memory(back.sampling_logprob, batch.sampling_logprob)
    # A slice keeps its own offsets, and the round trip of nothing is nothing.
    assert TrainingBatch.from_table(table.slice(1, 2)).token_ids.tolist() == batch.token_ids[30:91].tolist()
    assert len(TrainingBatch.from_table(table.slice(0, 0))) == len(rl_examples([], [])) == 0
    with pytest.raises(DataError, match="'trained' is missing"):
        TrainingBatch.from_table(pa.table({"token_ids": [[1]]}))


def test_pickle_round_trip() -> None:
    batch = make_batch()
    back = pickle.loads(pickle.dumps(batch, protocol=5))
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(back, name), getattr(batch, name))
