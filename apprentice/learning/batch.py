"""The one type that crosses to the learner. NumPy and Arrow only: building a batch needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from apprentice.errors import DataError
from apprentice.trajectory import Owner, Status, Trajectory

__all__ = ["SCHEMA", "SftExample", "TrainingBatch", "rl_examples", "sft_examples"]

SCHEMA = pa.schema(
    [
        pa.field("token_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("trained", pa.list_(pa.uint8()), nullable=False),
        pa.field("format", pa.list_(pa.uint8()), nullable=False),
        pa.field("owner", pa.list_(pa.uint8()), nullable=False),
        pa.field("advantage", pa.list_(pa.float32()), nullable=False),
        pa.field("sampling_logprob", pa.list_(pa.float32()), nullable=False),  # NaN where not sampled
    ],
    metadata={"format": "apprentice.training_batch", "version": "1"},
)
"""One row a sequence. Masks are uint8, not packed bits, so that every column is read without a copy."""

_DTYPES = {
    "token_ids": np.int32,
    "trained": np.uint8,
    "format": np.uint8,
    "owner": np.uint8,
    "advantage": np.float32,
    "sampling_logprob": np.float32,
}


@dataclass(frozen=True, slots=True, eq=False)
class TrainingBatch:
    """The global batch of one optimizer step; every rank gets the whole and takes its part.

    ``offsets`` int64 ``[B + 1]``; sequence ``i`` is ``offsets[i]:offsets[i + 1]`` of the flat arrays,
    all of shape ``[N]``:

    * ``token_ids`` int32;
    * ``trained`` uint8, 1 where the token's log-probability enters the loss. ``logprob[i]`` is
      log P(id[i] given id[<i]), so the first token of a sequence is never trained;
    * ``format`` uint8, 1 for a format token of Eq. 8, a subset of ``trained``;
    * ``owner`` uint8, an :class:`apprentice.trajectory.Owner`;
    * ``advantage`` float32, per token, so that segments of a trajectory may differ;
    * ``sampling_logprob`` float32, NaN where the policy did not sample the token.

    Raises:
        ValueError: arrays disagree in length, a mask is not a subset, a first token is trained, or a
            trained token's advantage is not finite.
    """

    offsets: npt.NDArray[np.int64]
    token_ids: npt.NDArray[np.int32]
    trained: npt.NDArray[np.uint8]
    format: npt.NDArray[np.uint8]
    owner: npt.NDArray[np.uint8]
    advantage: npt.NDArray[np.float32]
    sampling_logprob: npt.NDArray[np.float32]

    def __post_init__(self) -> None:
        n = len(self.token_ids)
        for name in _DTYPES:
            if len(getattr(self, name)) != n:
                raise ValueError(f"{name} has {len(getattr(self, name))} entries for {n} token ids")
        if len(self.offsets) == 0 or self.offsets[0] != 0 or self.offsets[-1] != n:
            raise ValueError(f"offsets must run from 0 to {n}, got {self.offsets[:1]}..{self.offsets[-1:]}")
        first = self.offsets[:-1][np.diff(self.offsets) > 0]
        if self.trained[first].any():
            raise ValueError("the first token of a sequence has no prefix and cannot be trained")
        if bool((self.format > self.trained).any()):
            raise ValueError("a format token that is not trained")
        if not np.isfinite(self.advantage[self.trained != 0]).all():
            raise ValueError("the advantage of a trained token is not finite")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def n_train(self) -> int:
        """N_train of Eq. 6 (N_sft of Eq. 7): trained tokens of the global batch."""
        return int(self.trained.sum(dtype=np.int64))

    def trained_by_owner(self) -> dict[str, int]:
        """Trained tokens of each owner, by lower-case owner name."""
        counts = np.bincount(self.owner[self.trained != 0], minlength=len(Owner))
        return {owner.name.lower(): int(counts[owner]) for owner in Owner}

    def to_table(self) -> pa.Table:
        """As an Arrow table with :data:`SCHEMA`; the arrays are shared, not copied."""
        offsets = pa.array(self.offsets.astype(np.int32))
        columns = [pa.ListArray.from_arrays(offsets, pa.array(getattr(self, name))) for name in SCHEMA.names]
        return pa.Table.from_arrays(columns, schema=SCHEMA)

    @classmethod
    def from_table(cls, table: pa.Table) -> TrainingBatch:
        """From :meth:`to_table`; the arrays are views of the table's buffers.

        Raises:
            DataError: a column is missing.
        """
        missing = [name for name in SCHEMA.names if name not in table.column_names]
        if missing:
            raise DataError(
                f"not a training batch: column {missing[0]!r} is missing; expected {SCHEMA.names}"
            )
        if table.num_rows == 0:
            return _from_parts([])
        arrays: dict[str, Any] = {}
        for name, dtype in _DTYPES.items():
            column = table.column(name)
            chunk = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
            bounds = chunk.offsets.to_numpy()
            values = chunk.values.to_numpy(zero_copy_only=True)[bounds[0] : bounds[-1]]
            arrays[name] = values.astype(dtype, copy=False)
            arrays["offsets"] = (bounds - bounds[0]).astype(np.int64)
        return cls(**arrays)


@dataclass(frozen=True, slots=True, eq=False)
class SftExample:
    """One supervised sequence; arrays of shape ``[T]``.

    ``target_mask`` is m_sft of Eq. 7, ``format_mask`` membership in Omega_fmt of Eq. 8.
    """

    token_ids: npt.NDArray[np.int32]
    target_mask: npt.NDArray[np.bool_]
    format_mask: npt.NDArray[np.bool_]

    def __post_init__(self) -> None:
        if not len(self.token_ids) == len(self.target_mask) == len(self.format_mask):
            raise ValueError(
                f"{len(self.token_ids)} ids, {len(self.target_mask)} target and {len(self.format_mask)} "
                "format flags: they must be as many"
            )

    def __len__(self) -> int:
        return len(self.token_ids)


def rl_examples(
    trajectories: Sequence[Trajectory],
    advantages: Sequence[float | npt.NDArray[np.float32]] | npt.NDArray[np.float32],
    train_owners: Sequence[str] = ("controller", "expert"),
) -> TrainingBatch:
    """The batch of a Stage I step. What is trained follows from ownership, here and now (section 3.3).

    Args:
        trajectories: scored trajectories; their tokens are taken as they are.
        advantages: one number a trajectory (broadcast, Eq. 2), or one float32 array ``[T]`` a trajectory.
        train_owners: lower-case owner names whose tokens are trained: m_ctrl + m_exp of Eq. 6.

    Raises:
        ValueError: lengths differ, a trajectory is unusable, or an owner is neither controller nor expert.
    """
    if len(trajectories) != len(advantages):
        raise ValueError(f"{len(advantages)} advantages for {len(trajectories)} trajectories")
    owners = [_trainable(name) for name in train_owners]
    parts: list[dict[str, Any]] = []
    for trajectory, advantage in zip(trajectories, advantages, strict=True):
        if trajectory.status is Status.UNUSABLE:
            raise ValueError(
                f"trajectory {trajectory.trajectory_id} is unusable ({trajectory.status_reason}) and must "
                "not be trained: leave it out or replace it by a fresh sample"
            )
        n = len(trajectory)
        values = np.asarray(advantage, np.float32)
        if values.ndim and values.shape != (n,):
            raise ValueError(f"{values.shape} advantages for the {n} tokens of {trajectory.trajectory_id}")
        trained = np.isin(trajectory.owner, owners).astype(np.uint8)
        trained[:1] = 0
        parts.append(
            {
                "token_ids": trajectory.token_ids,
                "trained": trained,
                "format": np.zeros(n, np.uint8),
                "owner": trajectory.owner,
                "advantage": np.broadcast_to(values, (n,)),
                "sampling_logprob": trajectory.logprob,
            }
        )
    return _from_parts(parts)


def sft_examples(examples: Sequence[SftExample]) -> TrainingBatch:
    """The batch of a supervised step. Targets count as controller tokens: the controller is to write them."""
    parts: list[dict[str, Any]] = []
    for example in examples:
        trained = np.asarray(example.target_mask).astype(np.uint8)
        trained[:1] = 0
        parts.append(
            {
                "token_ids": example.token_ids,
                "trained": trained,
                "format": np.asarray(example.format_mask).astype(np.uint8) & trained,
                "owner": np.where(trained != 0, Owner.CONTROLLER, Owner.PROMPT).astype(np.uint8),
                "advantage": np.zeros(len(example), np.float32),
                "sampling_logprob": np.full(len(example), np.nan, np.float32),
            }
        )
    return _from_parts(parts)


def _trainable(name: str) -> int:
    if name not in ("controller", "expert"):
        raise ValueError(f"{name!r} tokens are never trained; train_owners may name controller and expert")
    return int(Owner[name.upper()])


def _from_parts(parts: Sequence[dict[str, Any]]) -> TrainingBatch:
    lengths = [len(part["token_ids"]) for part in parts]
    arrays = {
        name: np.concatenate([np.asarray(part[name], dtype) for part in parts])
        if parts
        else np.empty(0, dtype)
        for name, dtype in _DTYPES.items()
    }
    return TrainingBatch(offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), **arrays)
