"""One packed forward pass as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from apprentice.learning.batch import TrainingBatch
from apprentice.learning.packing import used_lengths

__all__ = ["MULTIPLE", "MicroBatch", "make_micro_batch"]

MULTIPLE = 64
"""Tokens of a micro-batch are a multiple of this."""


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """``T`` input tokens of some documents, one after the other, and ``N`` of their trained positions.

    * ``input_ids``, ``position_ids`` int64 ``[1, T]``; positions restart at 0 with every document;
    * ``document_lengths`` sum to ``T``; the last document may be padding, which fills ``T`` up to a multiple
      of :data:`MULTIPLE`, so that kernels and buffers made for one shape serve again;
    * ``tokens``: how many of the ``T`` are no padding;
    * ``rows`` int64 ``[N]``: which hidden state predicts each trained token (the one before it);
    * ``targets`` int64 ``[N]``: ids of the trained tokens;
    * ``index`` int64 ``[N]``: where each trained token stands in the flat arrays of the batch.

    An empty micro-batch (a rank without work still takes part in collectives) has one token and one row,
    and ``is_empty`` set: its loss is multiplied by zero.
    """

    input_ids: Tensor
    position_ids: Tensor
    document_lengths: tuple[int, ...]
    rows: Tensor
    targets: Tensor
    index: Tensor
    tokens: int
    is_empty: bool

    def to(self, device: torch.device) -> MicroBatch:
        """The same on another device; ``index`` stays on the host."""
        return MicroBatch(
            input_ids=self.input_ids.to(device, non_blocking=True),
            position_ids=self.position_ids.to(device, non_blocking=True),
            document_lengths=self.document_lengths,
            rows=self.rows.to(device, non_blocking=True),
            targets=self.targets.to(device, non_blocking=True),
            index=self.index,
            tokens=self.tokens,
            is_empty=self.is_empty,
        )


def make_micro_batch(batch: TrainingBatch, sequences: Sequence[int]) -> MicroBatch:
    """Pack the given sequences of ``batch``; each is cut before its last trained token.

    ``sequences`` without any trained token gives an empty micro-batch.
    """
    lengths = used_lengths(batch)
    kept = [i for i in sequences if lengths[i] > 0]
    if not kept:
        zero = torch.zeros(1, 1, dtype=torch.int64)
        row = torch.zeros(1, dtype=torch.int64)
        return MicroBatch(zero, zero, (1,), row, row, torch.zeros(0, dtype=torch.int64), 0, is_empty=True)
    ids, positions, rows, index = [], [], [], []
    start = 0
    for i in kept:
        offset, n = int(batch.offsets[i]), lengths[i]
        ids.append(batch.token_ids[offset : offset + n])
        positions.append(np.arange(n))
        trained = np.flatnonzero(batch.trained[offset : offset + n + 1])  # the last one is at n
        rows.append(start + trained - 1)
        index.append(offset + trained)
        start += n
    documents = [lengths[i] for i in kept]
    if padding := -start % MULTIPLE:
        ids.append(np.zeros(padding, np.int32))
        positions.append(np.arange(padding))
        documents.append(padding)
    flat = np.concatenate(index)
    return MicroBatch(
        input_ids=torch.from_numpy(np.concatenate(ids).astype(np.int64))[None],
        position_ids=torch.from_numpy(np.concatenate(positions).astype(np.int64))[None],
        document_lengths=tuple(documents),
        rows=torch.from_numpy(np.concatenate(rows).astype(np.int64)),
        targets=torch.from_numpy(batch.token_ids[flat].astype(np.int64)),
        index=torch.from_numpy(flat.astype(np.int64)),
        tokens=start,
        is_empty=False,
    )
