"""The one trajectory type: token ids with, per token, who wrote it, under which weights, how likely it was.

Nothing here is a mask. Masks are derived from ownership by the objective that needs them
(:mod:`apprentice.objectives`), so that "what is trained" is decided in one place and never stored.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from apprentice.errors import DataError

__all__ = [
    "NOT_SAMPLED",
    "SCHEMA",
    "CallRecord",
    "Owner",
    "Status",
    "Trajectory",
    "TrajectoryBuilder",
    "read_parquet",
    "trajectories_from_table",
    "trajectories_to_table",
    "write_parquet",
]

NOT_SAMPLED = -1
"""Policy version of a token that no policy sampled."""


class Owner(IntEnum):
    """Who a token belongs to (RIVET, section 3.3 and appendix A.5)."""

    PROMPT = 0
    """System and user prompt, including the problem."""
    CONTROLLER = 1
    """Sampled by the controller."""
    EXPERT = 2
    """Reasoning or code returned by an external expert."""
    OBSERVATION = 3
    """Written by the environment: Python output, protocol error texts."""
    WRAPPER = 4
    """Structure that the protocol inserts: role markers, ``<tool_response>`` and ``<python>`` tags."""


class Status(StrEnum):
    """How an episode ended."""

    COMPLETE = "complete"
    """The controller ended its final turn."""
    TRUNCATED = "truncated"
    """The token budget ran out first. Scored as it stands."""
    UNUSABLE = "unusable"
    """Infrastructure or an expert failed. Never scored, never trained; replaced by a fresh sample."""


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One tool call as the protocol saw it.

    ``error`` is a :class:`apprentice.episodes.actions.CallError` value when the protocol refused the call
    (the rollout went on), else empty. ``outcome`` is the sandbox outcome name where Python ran, else empty.
    ``start`` is the index of the first token of the turn that made the call.

    A call to the advisor (tool ``ask_advisor``) has its query in ``instruction``, |z| in ``expert_tokens``,
    and: ``position``, tau of Eq. 10: the number of tokens up to and including the decision to ask, so that
    tokens ``[:position]`` are before the call and the others after it; ``query_tokens``, |q| by the provider;
    ``cost`` in units of the prices. None: unknown, which is not zero.
    """

    tool: str
    model: str
    error: str = ""
    outcome: str = ""
    code: str = ""
    instruction: str = ""
    start: int = 0
    expert_tokens: int = 0
    seconds: float = 0.0
    position: int = -1
    query_tokens: int | None = None
    cost: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """One episode, token in, token out.

    Arrays all have shape ``[T]``:

    * ``token_ids`` int32; sampled ids exactly as the engine returned them, never re-tokenized;
    * ``owner`` uint8, an :class:`Owner`;
    * ``producer`` int16, index into ``producers`` (e.g. ``("prompt", "controller", "Qwen3-8B", "python")``);
    * ``policy_version`` int32, :data:`NOT_SAMPLED` where no policy sampled the token;
    * ``logprob`` float32, natural log of the *sampling* probability (after temperature), NaN where the
      policy did not sample the token. It is never 0.0 as a stand-in.
    """

    trajectory_id: str
    problem_id: str
    group_id: str
    mode: str
    token_ids: npt.NDArray[np.int32]
    owner: npt.NDArray[np.uint8]
    producer: npt.NDArray[np.int16]
    policy_version: npt.NDArray[np.int32]
    logprob: npt.NDArray[np.float32]
    producers: tuple[str, ...]
    status: Status
    status_reason: str = ""
    calls: tuple[CallRecord, ...] = ()
    final_text: str = ""
    answer: str | None = None
    reward: float | None = None
    verdict: str = ""
    tags: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n = len(self.token_ids)
        for name in ("owner", "producer", "policy_version", "logprob"):
            if len(getattr(self, name)) != n:
                raise ValueError(f"{name} has {len(getattr(self, name))} entries for {n} token ids")
        sampled = self.policy_version != NOT_SAMPLED
        if not np.array_equal(sampled, ~np.isnan(self.logprob)):
            raise ValueError("a token has a logprob exactly where the policy sampled it (NaN elsewhere)")

    def __len__(self) -> int:
        return len(self.token_ids)

    def tokens_by_owner(self) -> dict[str, int]:
        """Number of tokens of each owner, by lower-case owner name."""
        counts = np.bincount(self.owner, minlength=len(Owner))
        return {owner.name.lower(): int(counts[owner]) for owner in Owner}

    def spans(self) -> Iterable[tuple[int, int, Owner, str]]:
        """Maximal runs of one owner and producer as ``(start, end, owner, producer name)``."""
        n = len(self)
        if n == 0:
            return
        change = np.flatnonzero((np.diff(self.owner) != 0) | (np.diff(self.producer) != 0)) + 1
        bounds = [0, *change.tolist(), n]
        for start, end in itertools.pairwise(bounds):
            yield start, end, Owner(int(self.owner[start])), self.producers[int(self.producer[start])]


class TrajectoryBuilder:
    """Appends spans; the only way in which an episode writes tokens."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._owner: list[int] = []
        self._producer: list[int] = []
        self._version: list[int] = []
        self._logprob: list[float] = []
        self._producers: list[str] = []

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def token_ids(self) -> list[int]:
        """The ids so far. Do not modify."""
        return self._ids

    def _index(self, producer: str) -> int:
        if producer not in self._producers:
            self._producers.append(producer)
        return self._producers.index(producer)

    def cut(self, length: int) -> None:
        """Keep the first ``length`` tokens."""
        for column in (self._ids, self._owner, self._producer, self._version, self._logprob):
            del column[length:]

    def append(self, ids: Sequence[int], owner: Owner, producer: str) -> None:
        """Append tokens that no policy sampled."""
        n = len(ids)
        self._ids.extend(int(i) for i in ids)
        self._owner.extend([int(owner)] * n)
        self._producer.extend([self._index(producer)] * n)
        self._version.extend([NOT_SAMPLED] * n)
        self._logprob.extend([float("nan")] * n)

    def append_sampled(
        self, ids: Sequence[int], logprobs: Sequence[float], policy_version: int, producer: str = "controller"
    ) -> None:
        """Append tokens that the policy sampled, with their sampling logprobs.

        Raises:
            ValueError: lengths differ, a logprob is NaN or positive, or the version is negative.
        """
        if len(ids) != len(logprobs):
            raise ValueError(f"{len(ids)} sampled ids but {len(logprobs)} logprobs")
        if policy_version < 0:
            raise ValueError(f"policy version {policy_version} of sampled tokens must be >= 0")
        if any(not (lp <= 1e-4) for lp in logprobs):
            raise ValueError("a sampled token needs a logprob <= 0 (got NaN or a positive number)")
        n = len(ids)
        self._ids.extend(int(i) for i in ids)
        self._owner.extend([int(Owner.CONTROLLER)] * n)
        self._producer.extend([self._index(producer)] * n)
        self._version.extend([policy_version] * n)
        self._logprob.extend(float(lp) for lp in logprobs)

    def build(self, **fields: Any) -> Trajectory:
        """The finished trajectory; ``fields`` are the remaining fields of :class:`Trajectory`."""
        return Trajectory(
            token_ids=np.asarray(self._ids, np.int32),
            owner=np.asarray(self._owner, np.uint8),
            producer=np.asarray(self._producer, np.int16),
            policy_version=np.asarray(self._version, np.int32),
            logprob=np.asarray(self._logprob, np.float32),
            producers=tuple(self._producers),
            **fields,
        )


SCHEMA = pa.schema(
    [
        pa.field("trajectory_id", pa.string(), nullable=False),
        pa.field("problem_id", pa.string(), nullable=False),
        pa.field("group_id", pa.string(), nullable=False),
        pa.field("mode", pa.string(), nullable=False),
        pa.field("token_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("owner", pa.list_(pa.uint8()), nullable=False),
        pa.field("producer", pa.list_(pa.int16()), nullable=False),
        pa.field("policy_version", pa.list_(pa.int32()), nullable=False),
        pa.field("logprob", pa.list_(pa.float32()), nullable=False),  # null where not sampled
        pa.field("producers", pa.list_(pa.string()), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("status_reason", pa.string(), nullable=False),
        pa.field("calls", pa.string(), nullable=False),  # JSON list of CallRecord
        pa.field("final_text", pa.string(), nullable=False),
        pa.field("answer", pa.string()),
        pa.field("reward", pa.float64()),
        pa.field("verdict", pa.string(), nullable=False),
        pa.field("tags", pa.string(), nullable=False),  # JSON object of strings
    ],
    metadata={"format": "apprentice.trajectory", "version": "1"},
)
"""Arrow schema of a batch of trajectories. Per-token columns are lists; their child buffers are flat
NumPy-compatible arrays, so a table read from the object store is viewed without a copy."""

_TOKEN_COLUMNS = {
    "token_ids": np.int32,
    "owner": np.uint8,
    "producer": np.int16,
    "policy_version": np.int32,
}


def trajectories_to_table(trajectories: Sequence[Trajectory]) -> pa.Table:
    """Pack trajectories into one Arrow table with :data:`SCHEMA`."""
    lengths = np.asarray([len(t) for t in trajectories], np.int64)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))

    def ragged(name: str, dtype: Any) -> pa.Array:
        flat = (
            np.concatenate([getattr(t, name) for t in trajectories]) if trajectories else np.empty(0, dtype)
        )
        # from_pandas turns NaN into null: a logprob that does not exist is absent on disk, not a number.
        return pa.ListArray.from_arrays(offsets, pa.array(flat.astype(dtype), from_pandas=name == "logprob"))

    columns: list[Any] = []
    for item in SCHEMA:
        if item.name in _TOKEN_COLUMNS:
            columns.append(ragged(item.name, _TOKEN_COLUMNS[item.name]))
        elif item.name == "logprob":
            columns.append(ragged("logprob", np.float32))
        elif item.name == "calls":
            columns.append([json.dumps([_call_to_dict(c) for c in t.calls]) for t in trajectories])
        elif item.name == "tags":
            columns.append([json.dumps(t.tags, sort_keys=True) for t in trajectories])
        elif item.name == "producers":
            columns.append(pa.array([list(t.producers) for t in trajectories], pa.list_(pa.string())))
        else:
            columns.append(pa.array([getattr(t, item.name) for t in trajectories], item.type))
    return pa.Table.from_arrays([pa.array(c) if isinstance(c, list) else c for c in columns], schema=SCHEMA)


def trajectories_from_table(table: pa.Table) -> list[Trajectory]:
    """Unpack a table written by :func:`trajectories_to_table`; token arrays are views where Arrow allows.

    Raises:
        DataError: the table does not have :data:`SCHEMA`'s columns.
    """
    missing = [name for name in SCHEMA.names if name not in table.column_names]
    if missing:
        raise DataError(f"not a trajectory table: column {missing[0]!r} is missing; expected {SCHEMA.names}")
    table = table.combine_chunks()
    scalar = {
        name: table.column(name).to_pylist()
        for name in SCHEMA.names
        if name not in _TOKEN_COLUMNS and name != "logprob"
    }
    if table.num_rows == 0:
        return []
    ragged: dict[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]] = {}
    for name in [*_TOKEN_COLUMNS, "logprob"]:
        chunk = table.column(name).chunk(0)
        ragged[name] = (chunk.values.to_numpy(zero_copy_only=False), chunk.offsets.to_numpy())
    out = []
    for i in range(table.num_rows):
        arrays = {name: values[offsets[i] : offsets[i + 1]] for name, (values, offsets) in ragged.items()}
        fields: dict[str, Any] = {name: values[i] for name, values in scalar.items()}
        fields.update(arrays)
        fields["calls"] = tuple(CallRecord(**c) for c in json.loads(fields["calls"]))
        fields["tags"] = json.loads(fields["tags"])
        fields["producers"] = tuple(fields["producers"])
        fields["status"] = Status(fields["status"])
        out.append(Trajectory(**fields))
    return out


def _call_to_dict(call: CallRecord) -> dict[str, Any]:
    return {name: getattr(call, name) for name in CallRecord.__slots__}


def write_parquet(trajectories: Sequence[Trajectory], path: str | Path) -> None:
    """Write trajectories to one Parquet file (written beside and renamed, so a reader never sees half)."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    pq.write_table(trajectories_to_table(trajectories), partial, compression="zstd")
    partial.replace(path)


def read_parquet(path: str | Path) -> list[Trajectory]:
    """Read trajectories from a Parquet file, or from every ``*.parquet`` file of a folder in name order.

    Raises:
        DataError: nothing is there, or it is not a trajectory file.
    """
    path = Path(path)
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files or not all(f.exists() for f in files):
        raise DataError(f"no trajectories at {path}: give a Parquet file, or a folder that holds some")
    out: list[Trajectory] = []
    for file in files:
        try:
            table = pq.read_table(file)
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"{file} is not a Parquet file: {error}") from error
        out.extend(trajectories_from_table(table))
    return out
