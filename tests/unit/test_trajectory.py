"""The trajectory type: what it refuses, and what survives Arrow, Parquet and pickle."""

import pickle

import numpy as np
import pyarrow as pa
import pytest

from apprentice.errors import DataError
from apprentice.trajectory import (
    NOT_SAMPLED,
    SCHEMA,
    CallRecord,
    Owner,
    Status,
    Trajectory,
    TrajectoryBuilder,
    read_parquet,
    trajectories_from_table,
    trajectories_to_table,
    write_parquet,
)

pytestmark = pytest.mark.unit


def example(tail: int = 0) -> Trajectory:
    builder = TrajectoryBuilder()
    builder.append([11, 12, 13], Owner.PROMPT, "prompt")
    builder.append_sampled([21, 22], [-0.5, 0.0], policy_version=7)
    builder.append([31], Owner.WRAPPER, "protocol")
    builder.append([41, 42, 43], Owner.EXPERT, "Qwen3-8B")
    builder.append([51], Owner.OBSERVATION, "python")
    builder.append_sampled([61] * tail, [-1.0] * tail, policy_version=8)
    return builder.build(
        trajectory_id="t0",
        problem_id="p0",
        group_id="g0",
        mode="collaborative",
        status=Status.COMPLETE,
        calls=(CallRecord("think", "Qwen3-8B", instruction="x", expert_tokens=3),),
        final_text="Answer: \\boxed{6}",
        answer="6",
        reward=1.0,
        verdict="correct",
        tags={"family": "gcd"},
    )


def assert_same(a: Trajectory, b: Trajectory) -> None:
    for name in ("token_ids", "owner", "producer", "policy_version", "logprob"):
        assert getattr(a, name).dtype == getattr(b, name).dtype
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    for name in ("trajectory_id", "problem_id", "group_id", "mode", "producers", "status", "calls", "tags"):
        assert getattr(a, name) == getattr(b, name)
    for name in ("status_reason", "final_text", "answer", "reward", "verdict"):
        assert getattr(a, name) == getattr(b, name)


def test_logprob_exists_exactly_where_the_policy_sampled() -> None:
    t = example()
    sampled = t.policy_version != NOT_SAMPLED
    assert sampled.tolist() == [False] * 3 + [True] * 2 + [False] * 5
    assert np.isnan(t.logprob[~sampled]).all()
    np.testing.assert_array_equal(t.logprob[sampled], np.float32([-0.5, 0.0]))


def test_a_stand_in_logprob_is_refused() -> None:
    t = example()
    logprob = t.logprob.copy()
    logprob[0] = 0.0  # a prompt token pretending to have been sampled with certainty
    with pytest.raises(ValueError, match="exactly where the policy sampled"):
        Trajectory(**{**{f: getattr(t, f) for f in t.__slots__}, "logprob": logprob})


@pytest.mark.parametrize("logprobs", [[float("nan")], [0.3], []])
def test_sampled_tokens_need_a_real_logprob(logprobs: list[float]) -> None:
    with pytest.raises(ValueError, match="logprob"):
        TrajectoryBuilder().append_sampled([1], logprobs, 0)


def test_arrow_parquet_and_pickle_round_trips(tmp_path) -> None:
    batch = [example(), example(tail=2)]
    for i, t in enumerate(trajectories_from_table(trajectories_to_table(batch))):
        assert_same(t, batch[i])
    write_parquet(batch, tmp_path / "a" / "part.parquet")
    for i, t in enumerate(read_parquet(tmp_path / "a")):
        assert_same(t, batch[i])
    assert_same(pickle.loads(pickle.dumps(batch[1])), batch[1])


def test_absent_logprobs_are_null_on_disk() -> None:
    table = trajectories_to_table([example()])
    assert table.schema.equals(SCHEMA)
    assert table.column("logprob").to_pylist()[0][:4] == [None, None, None, -0.5]


def test_token_columns_are_read_without_a_copy() -> None:
    table = trajectories_to_table([example(), example(tail=3)])
    ids = trajectories_from_table(table)[1].token_ids
    buffer = table.column("token_ids").chunk(0).values.buffers()[1]
    assert buffer.address <= ids.__array_interface__["data"][0] < buffer.address + buffer.size


def test_empty_batch_and_empty_trajectory() -> None:
    assert trajectories_from_table(trajectories_to_table([])) == []
    empty = TrajectoryBuilder().build(
        trajectory_id="e", problem_id="p", group_id="g", mode="base", status=Status.UNUSABLE
    )
    assert len(trajectories_from_table(trajectories_to_table([empty]))[0]) == 0
    assert list(empty.spans()) == []


def test_spans_and_counts() -> None:
    t = example()
    assert [(s, e, o.name, p) for s, e, o, p in t.spans()] == [
        (0, 3, "PROMPT", "prompt"),
        (3, 5, "CONTROLLER", "controller"),
        (5, 6, "WRAPPER", "protocol"),
        (6, 9, "EXPERT", "Qwen3-8B"),
        (9, 10, "OBSERVATION", "python"),
    ]
    assert t.tokens_by_owner() == {"prompt": 3, "controller": 2, "expert": 3, "observation": 1, "wrapper": 1}


def test_bad_files_are_named(tmp_path) -> None:
    with pytest.raises(DataError, match="no trajectories at"):
        read_parquet(tmp_path)
    (tmp_path / "x.parquet").write_text("not parquet")
    with pytest.raises(DataError, match=r"x\.parquet is not a Parquet file"):
        read_parquet(tmp_path / "x.parquet")
    with pytest.raises(DataError, match="column 'trajectory_id' is missing"):
        trajectories_from_table(pa.table({"a": [1]}))
