"""The lines of a ledger's file. docs/advisor.md describes the format."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from apprentice.costs.prices import amount_text, exact
from apprentice.costs.usage import Usage

__all__ = [
    "CallId",
    "Fail",
    "KeptAnswer",
    "Open",
    "Record",
    "Refuse",
    "Reserve",
    "Settle",
    "read_record",
    "write_record",
]


class CallId(NamedTuple):
    """Names one call. The same four are the same call, however often it is sent.

    ``account``: what the call is for, ``advisor`` or ``judge``. ``scope`` keeps apart trajectories of one
    name, such as those of two stages. ``call_index`` counts the calls of a trajectory.
    """

    account: str
    scope: str
    trajectory_id: str
    call_index: int

    def request_id(self, attempt: int) -> str:
        """What the advisor's log knows an attempt by. It tells the advisor nothing of the trajectory."""
        named = json.dumps(list(self), ensure_ascii=True)
        return f"{hashlib.sha256(named.encode()).hexdigest()[:24]}-{attempt}"


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """What the first asker got, kept for whoever sends the call again."""

    text: str
    finish_reason: str
    prompt_tokens: int | None
    completion_tokens: int | None


@dataclass(frozen=True, slots=True)
class Open:
    """An owner opened the ledger: what holds from here on. ``dropped``: bytes of a torn last line."""

    epoch: int
    time: float
    prices: dict[str, list[str]]
    limits: dict[str, Any]
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Reserve:
    """An attempt may be sent. ``amount``: the most it may cost; None for an account without prices."""

    call: CallId
    key: str
    digest: str
    attempt: int
    prompt_bound: int
    max_tokens: int
    amount: Fraction | None


@dataclass(frozen=True, slots=True)
class Settle:
    """What an attempt came to. ``charged`` is its cost, or its reservation where the usage is not known."""

    call: CallId
    attempt: int
    outcome: str
    usage: Usage
    charged: Fraction | None
    answer: KeptAnswer | None = None


@dataclass(frozen=True, slots=True)
class Fail:
    """The call was given up."""

    call: CallId
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """The call was refused before anything was sent: ``budget`` had no room for ``amount``."""

    call: CallId
    key: str
    digest: str
    budget: str
    amount: Fraction


Record = Open | Reserve | Settle | Fail | Refuse
_OPS: dict[str, type[Any]] = {t.__name__.lower(): t for t in (Open, Reserve, Settle, Fail, Refuse)}
_AMOUNTS = ("amount", "charged")


def write_record(record: Record) -> bytes:
    """One line with its newline."""
    row: dict[str, Any] = {"op": type(record).__name__.lower()}
    for name in record.__slots__:
        value = getattr(record, name)
        if isinstance(value, Fraction):
            value = amount_text(value)
        elif isinstance(value, CallId):
            value = list(value)
        elif isinstance(value, Usage | KeptAnswer):
            value = {field: getattr(value, field) for field in value.__slots__}
        row[name] = value
    return json.dumps(row, ensure_ascii=True).encode() + b"\n"


def read_record(line: bytes) -> Record:
    """The record of one line.

    Raises:
        ValueError, KeyError, TypeError: it is none.
    """
    row = json.loads(line)
    kind = _OPS[row.pop("op")]
    if "call" in row:
        account, scope, trajectory_id, index = row["call"]
        row["call"] = CallId(account, scope, trajectory_id, index)
    for name in _AMOUNTS:
        if row.get(name) is not None:
            row[name] = exact(row[name])
    if "usage" in row:
        row["usage"] = Usage(**row["usage"])
    if row.get("answer") is not None:
        row["answer"] = KeptAnswer(**row["answer"])
    record: Record = kind(**row)
    return record
