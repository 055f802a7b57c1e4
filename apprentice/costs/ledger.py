"""The ledger: every call is reserved before it is sent and settled after, within hard budgets.

What stands against a budget is the cost of attempts whose usage is known and the reservation of all others,
so nothing that the provider may still charge is ever spent twice. Charges exceed a budget only where a
provider bills more than the cap it was given; that is counted (:attr:`.book.AccountTotals.over_reservation`).

One process owns a ledger. Its methods may be called from any thread. What a method wrote is in the kernel
when it returns and outlives the process; a reservation is on the disk before anything is sent, so that it
outlives the machine too. A settlement that a machine takes with it leaves the reservation charged: too much,
never too little.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from apprentice.costs.append_file import AppendFile
from apprentice.costs.book import AccountTotals, Book, Call
from apprentice.costs.limits import Limits
from apprentice.costs.prices import Prices
from apprentice.costs.records import (
    CallId,
    Fail,
    KeptAnswer,
    Open,
    Record,
    Refuse,
    Reserve,
    Settle,
    read_record,
    write_record,
)
from apprentice.costs.usage import Usage
from apprentice.errors import AdvisorError, DataError

__all__ = ["Known", "Ledger", "Refused", "read_book"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Refused:
    """No room: ``budget`` is ``trajectory``, ``run`` or ``key``."""

    budget: str


@dataclass(frozen=True, slots=True)
class Known:
    """What the ledger knows of a call: how many attempts it had, and how it ended if it did.

    ``state``: ``new``, ``open`` (attempts were made and none was answered), ``answered`` (then ``answer`` is
    there), ``failed`` or ``refused`` (then ``kind`` says how or by which budget). ``cost``: of all attempts
    together, None where it is not known.
    """

    state: str
    attempts: int = 0
    kind: str = ""
    message: str = ""
    answer: KeptAnswer | None = None
    cost: float | None = None


class Ledger:
    """Opens the ledger at ``path``, or begins it.

    What an earlier owner left under way stays charged with its reservation, as an upper bound, until somebody
    settles it with a usage.

    Args:
        path: the file; on a disk of the machine that runs the owner.
        prices: account -> prices. An account without prices is metered in tokens and has no cost (H13).
        limits: the budgets.
        lock_timeout_s: how long to wait for an earlier owner to end.
        clock: Unix seconds, for the file.

    Raises:
        AdvisorError: kind ``ledger_locked``: another process owns it.
        DataError: the file is not a ledger, or is damaged.
    """

    def __init__(
        self,
        path: str | Path,
        prices: Mapping[str, Prices],
        limits: Limits,
        *,
        lock_timeout_s: float = 10.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._file = AppendFile(path, lock_timeout_s=lock_timeout_s)
        try:
            self._prices, self._limits = dict(prices), limits
            self._book = _replay(self._file.path)
            self._lock = threading.Lock()
            self.repeated_settlements = 0
            """Settlements of attempts that were settled already; they change nothing."""
            opened = Open(
                epoch=self._book.epoch + 1,
                time=clock(),
                prices={
                    account: [str(p.input), str(p.output), str(p.cached_input)]
                    for account, p in self._prices.items()
                },
                limits=limits.to_json(),
                dropped=self._file.dropped,
            )
            self._write(opened)
            self._file.commit()
        except BaseException:
            self._file.close()
            raise

    @property
    def epoch(self) -> int:
        """How often the ledger has been opened."""
        return self._book.epoch

    @property
    def broken(self) -> str:
        """Why it accepts nothing any more; empty while all is well."""
        return self._file.broken

    def look_up(self, call: CallId, digest: str) -> Known:
        """What is known of a call.

        Args:
            digest: of everything that decides the answer.

        Raises:
            AdvisorError: kind ``call_id_reused``: another request had this name.
        """
        with self._lock:
            found = self._book.calls.get(call)
            if found is None:
                return Known("new")
            self._same(call, found, digest)
            cost = found.cost
            known = Known(found.state, len(found.attempts), found.kind, found.message)
            known = dataclasses.replace(known, cost=None if cost is None else float(cost))
            at = found.answer_at
        if at < 0:
            return known
        settled = read_record(self._file.read_line(at))
        assert isinstance(settled, Settle)
        return dataclasses.replace(known, answer=settled.answer)

    def reserve(
        self,
        call: CallId,
        *,
        key: str,
        digest: str,
        prompt_bound: int,
        max_tokens: int,
        commit: bool = True,
    ) -> int | Refused:
        """Reserve the worst case of one more attempt. Send nothing before this returned the attempt's number.

        A refusal of the first attempt is the call's answer for good, so that a request which comes twice is
        not paid for after it was refused. Later attempts that find no room are refused without a record.

        Args:
            prompt_bound: the most prompt tokens that the provider may count.
            max_tokens: the response cap.
            commit: wait for the disk. Else the caller does (:meth:`commit`), before it sends anything.

        Raises:
            AdvisorError: kind ``call_id_reused``; ``under_way``: an attempt of this owner is not settled yet;
                ``closed_call``: the call has ended; ``ledger``.
        """
        prices = self._prices.get(call.account)
        amount = None if prices is None else prices.worst_case(prompt_bound, max_tokens)
        with self._lock:
            found = self._book.calls.get(call)
            if found is not None:
                self._same(call, found, digest)
                if found.state != "open":
                    raise AdvisorError(f"the call {tuple(call)} has ended: {found.state}", kind="closed_call")
                if any(attempt.open and attempt.epoch == self._book.epoch for attempt in found.attempts):
                    raise AdvisorError(f"the call {tuple(call)} is under way already", kind="under_way")
                key = found.key
            number = 1 if found is None else len(found.attempts) + 1
            budget = "" if amount is None else self._book.refusal(call, key, amount, self._limits)
            if budget:
                if found is None:
                    assert amount is not None
                    self._write(Refuse(call, key, digest, budget, amount))
            else:
                self._write(Reserve(call, key, digest, number, prompt_bound, max_tokens, amount))
        if commit:
            self._file.commit()
        return Refused(budget) if budget else number

    def commit(self) -> None:
        """Wait until everything written so far is on the disk; one wait serves all who wait together.

        Raises:
            AdvisorError: kind ``ledger``.
        """
        self._file.commit()

    def settle(
        self, call: CallId, attempt: int, usage: Usage, outcome: str, answer: KeptAnswer | None = None
    ) -> None:
        """Record what an attempt came to.

        An attempt of unknown usage stays charged with its reservation, and may be settled again once the
        usage is known. Settling one that is settled changes nothing.

        Args:
            usage: by the provider; unknown where it did not say.
            outcome: ``ok``, or the kind of failure.
            answer: what the asker gets; it ends the call.

        Raises:
            AdvisorError: kind ``ledger``.
            KeyError, IndexError: no such attempt was reserved.
        """
        with self._lock:
            found = self._book.calls[call]
            entry = found.attempts[attempt - 1]
            if not entry.open and (entry.usage.known or not usage.known):
                self.repeated_settlements += 1
                return
            prices = self._prices.get(call.account)
            charged = None if entry.reserved is None or prices is None else prices.cost(usage)
            if charged is None:
                charged = entry.reserved
            elif entry.reserved is not None and charged > entry.reserved:
                _log.warning(
                    "attempt %d of %s was billed %s, above its worst case %s: the provider does not hold the "
                    "cap it was given, or counts more prompt tokens than the text can have",
                    *(attempt, tuple(call), float(charged), float(entry.reserved)),
                )
            self._write(Settle(call, attempt, outcome, usage, charged, answer))

    def fail(self, call: CallId, kind: str, message: str) -> None:
        """Give a call up. Who sends it again gets the same failure, and pays nothing.

        Raises:
            AdvisorError: kind ``ledger``.
            KeyError: nothing was ever reserved for it.
        """
        with self._lock:
            if self._book.calls[call].state != "open":
                return
            self._write(Fail(call, kind, message))

    def cost(self, call: CallId) -> float | None:
        """What all attempts of a call cost together; None where that of one is not known."""
        with self._lock:
            cost = self._book.calls[call].cost
        return None if cost is None else float(cost)

    def totals(self) -> dict[str, AccountTotals]:
        """Account -> sums since the ledger was begun."""
        with self._lock:
            return {
                account: dataclasses.replace(t, refused_by=t.refused_by.copy(), outcomes=t.outcomes.copy())
                for account, t in self._book.totals.items()
            }

    def book(self) -> Book:
        """The books, to read; not while calls are under way."""
        return self._book

    def close(self) -> None:
        """Write everything to the disk and release the file."""
        if not self._file.broken:
            self._file.commit()
        self._file.close()

    def _write(self, record: Record) -> None:
        at = self._file.append(write_record(record))
        self._book.apply(record, at)

    @staticmethod
    def _same(call: CallId, found: Call, digest: str) -> None:
        if found.digest != digest:
            raise AdvisorError(
                f"call {call.call_index} of trajectory {call.trajectory_id!r} (scope {call.scope!r}) was "
                "made before with another query: a call's name is used once; give the trajectories of each "
                "stage and step ids or a scope of their own",
                kind="call_id_reused",
            )


def read_book(path: str | Path) -> Book:
    """The books of a ledger's file, read without owning it; a torn last line is left out.

    Raises:
        DataError: there is no such file, or it is damaged.
    """
    return _replay(Path(path))


def _replay(path: Path) -> Book:
    book = Book()
    offset = 0
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n"):
                    break  # somebody is writing it, or was killed meanwhile
                try:
                    record = read_record(line)
                    if number == 1 and not isinstance(record, Open):
                        raise ValueError("a ledger begins with an open record")
                    book.apply(record, offset)
                except (ValueError, KeyError, IndexError, TypeError) as error:
                    raise DataError(
                        f"{path}: line {number} is no ledger record that fits those before it ({error!r}); "
                        "restore the file from a copy, or begin a new ledger under another name"
                    ) from error
                offset += len(line)
    except OSError as error:
        raise DataError(f"{path}: cannot be read as a ledger: {error.strerror}") from error
    return book
