"""Sequences into micro-batches: deterministic, balanced, and as many on every rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from apprentice.learning.batch import TrainingBatch

__all__ = ["pack", "pack_batch", "used_lengths"]


def used_lengths(batch: TrainingBatch) -> list[int]:
    """Tokens that a forward pass needs of each sequence.

    Attention is causal and ``logprob[i]`` comes from position ``i - 1``, so everything from the last trained
    token on changes nothing; a sequence without trained tokens needs no forward pass at all (0).
    """
    out = []
    for start, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        trained = np.flatnonzero(batch.trained[start:end])
        out.append(int(trained[-1]) if trained.size else 0)
    return out


def pack(lengths: Sequence[int], micro_batch_tokens: int, world_size: int = 1) -> list[list[list[int]]]:
    """Distribute sequences over ranks and micro-batches.

    Every rank gets the same number of micro-batches, since each one is a collective under ZeRO; a rank short
    of work gets empty ones. No micro-batch exceeds ``micro_batch_tokens`` except one that holds a single
    longer sequence. First-fit decreasing finds how few micro-batches will do, then the sequences are spread
    over that many as evenly as the capacity allows.

    Args:
        lengths: tokens of each sequence; 0 leaves the sequence out.
        micro_batch_tokens: capacity, >= 1.
        world_size: number of ranks, >= 1.

    Returns:
        ``[rank][micro_batch]`` -> sequence indices, ascending. A function of the arguments alone, so ranks
        agree without talking.

    Raises:
        ValueError: capacity or world size below 1, or a negative length.
    """
    if micro_batch_tokens < 1 or world_size < 1:
        raise ValueError(
            f"micro_batch_tokens ({micro_batch_tokens}) and world_size ({world_size}) must be >= 1"
        )
    if any(length < 0 for length in lengths):
        raise ValueError("a sequence length is negative")
    order = sorted((i for i, length in enumerate(lengths) if length > 0), key=lambda i: (-lengths[i], i))
    tight = _first_fit(order, lengths, micro_batch_tokens)
    count = -(-len(tight) // world_size) * world_size
    bins = _spread(order, lengths, micro_batch_tokens, count) or tight
    bins += [[] for _ in range(count - len(bins))]
    # Deal heaviest to the lightest rank that still has room for one more micro-batch.
    ranks: list[list[list[int]]] = [[] for _ in range(world_size)]
    load = [0] * world_size
    for content in sorted(bins, key=lambda b: (-sum(lengths[i] for i in b), b)):
        free = [r for r in range(world_size) if len(ranks[r]) < count // world_size]
        rank = min(free, key=lambda r: (load[r], r))
        ranks[rank].append(sorted(content))
        load[rank] += sum(lengths[i] for i in content)
    return ranks


def pack_batch(
    batch: TrainingBatch, micro_batch_tokens: int, rank: int = 0, world_size: int = 1
) -> list[list[int]]:
    """The micro-batches of one rank, as sequence indices (:func:`pack` of :func:`used_lengths`)."""
    return pack(used_lengths(batch), micro_batch_tokens, world_size)[rank]


def _first_fit(order: Sequence[int], lengths: Sequence[int], capacity: int) -> list[list[int]]:
    bins: list[list[int]] = []
    room: list[int] = []
    for i in order:
        for b, free in enumerate(room):
            if lengths[i] <= free:
                bins[b].append(i)
                room[b] -= lengths[i]
                break
        else:
            bins.append([i])
            room.append(capacity - lengths[i])
    return bins


def _spread(
    order: Sequence[int], lengths: Sequence[int], capacity: int, count: int
) -> list[list[int]] | None:
    """Longest first to the emptiest of ``count`` bins; None where that overfills one."""
    bins: list[list[int]] = [[] for _ in range(count)]
    load = [0] * count
    for i in order:
        b = min(range(count), key=lambda k: (load[k], k))
        if load[b] and load[b] + lengths[i] > capacity:
            return None
        bins[b].append(i)
        load[b] += lengths[i]
    return bins
