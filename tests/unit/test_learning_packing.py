"""Packing: every sequence once, capacity, the same number of micro-batches on every rank, determinism."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apprentice.learning.batch import sft_examples
from apprentice.learning.microbatch import MULTIPLE, make_micro_batch
from apprentice.learning.packing import pack, pack_batch, used_lengths
from tests.learner_case import make_batch

pytestmark = pytest.mark.unit


@given(st.lists(st.integers(0, 120), max_size=40), st.integers(1, 100), st.integers(1, 4))
def test_invariants(lengths: list[int], capacity: int, ranks: int) -> None:
    packed = pack(lengths, capacity, ranks)
    assert len(packed) == ranks
    assert len({len(rank) for rank in packed}) == 1  # collectives match
    flat = sorted(i for rank in packed for micro in rank for i in micro)
    assert flat == [i for i, length in enumerate(lengths) if length > 0]
    for rank in packed:
        for micro in rank:
            assert sum(lengths[i] for i in micro) <= capacity or len(micro) == 1
    assert packed == pack(list(lengths), capacity, ranks)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60))
def test_no_more_micro_batches_than_first_fit_decreasing_needs(lengths: list[int]) -> None:
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        fit = next((k for k, room in enumerate(rooms) if room >= length), None)
        if fit is None:
            rooms.append(64 - length)
        else:
            rooms[fit] -= length
    assert len(pack(lengths, 64)[0]) == len(rooms)


def test_work_is_spread_evenly() -> None:
    # First-fit alone would give micro-batches of 96 and 32 tokens, and all the work to one rank.
    packed = pack([32, 32, 32, 32], 96, 2)
    assert [[len(micro) for micro in rank] for rank in packed] == [[2], [2]]


def test_a_rank_short_of_work_gets_an_empty_micro_batch() -> None:
    assert pack([10], 64, 2) == [[[0]], [[]]]
    assert pack([100, 10], 64, 2) == [[[0]], [[1]]]
    assert pack([], 64, 2) == [[], []]


def test_errors() -> None:
    with pytest.raises(ValueError, match="micro_batch_tokens"):
        pack([1], 0)
    with pytest.raises(ValueError, match="negative"):
        pack([-1], 4)


def test_sequences_are_cut_before_the_last_trained_token() -> None:
    batch = make_batch((10, 8, 6), trained=(3, 0, 1))
    lengths = used_lengths(batch)
    for i, used in enumerate(lengths):
        part = batch.trained[batch.offsets[i] : batch.offsets[i + 1]]
        assert part[used] == (1 if used else 0) and part[used + 1 :].sum() == 0
    assert lengths[1] == 0
    assert pack_batch(batch, 64) == [[0, 2]]


def test_micro_batch_rows_point_one_before_their_targets() -> None:
    batch = make_batch((10, 8, 6), trained=(3, 0, 2))
    micro = make_micro_batch(batch, [0, 1, 2])
    ids = micro.input_ids[0].tolist()
    for row, target, index in zip(
        micro.rows.tolist(), micro.targets.tolist(), micro.index.tolist(), strict=True
    ):
        assert batch.trained[index] == 1
        assert target == batch.token_ids[index]
        assert ids[row] == batch.token_ids[index - 1]
    lengths = micro.document_lengths
    assert micro.position_ids[0].tolist() == [i for length in lengths for i in range(length)]
    assert len(micro.rows) == batch.n_train
    assert sum(lengths) == len(ids) == MULTIPLE  # filled up by a document of padding
    assert micro.tokens == lengths[0] + lengths[1] == MULTIPLE - lengths[2]
    assert micro.rows.max() < micro.tokens


def test_empty_micro_batch() -> None:
    micro = make_micro_batch(sft_examples([]), [])
    assert micro.is_empty and micro.tokens == 0 and micro.input_ids.shape == (1, 1) and len(micro.index) == 0
