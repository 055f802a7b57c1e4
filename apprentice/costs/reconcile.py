"""The ledger against the advisor's own log, to the token."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from apprentice.costs.book import Attempt, Book
from apprentice.costs.ledger import Ledger
from apprentice.costs.records import CallId
from apprentice.costs.usage import Usage
from apprentice.errors import DataError

__all__ = ["AdvisorLog", "LogEntry", "Reconciliation", "read_advisor_log", "reconcile", "settle_from_log"]

_FIELDS = ("prompt_tokens", "completion_tokens", "reasoning_tokens", "cached_tokens")


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One execution, as the advisor wrote it down. ``request_id``: :meth:`CallId.request_id`."""

    request_id: str
    usage: Usage


class AdvisorLog:
    """The log of advisors that we serve ourselves: a line for every execution, written before it is answered.

    Several replicas on one machine may share a file.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def append(self, request_id: str, usage: Usage) -> None:
        """Write one line, durable against the death of this process.

        Raises:
            OSError: the file cannot be written.
        """
        row = {"request_id": request_id, **{name: getattr(usage, name) for name in _FIELDS}}
        line = json.dumps(row).encode() + b"\n"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            os.write(fd, line)
        finally:
            os.close(fd)


def read_advisor_log(path: str | Path) -> list[LogEntry]:
    """A log of JSON lines with ``request_id`` and token counts; a provider's export needs these names.

    Raises:
        DataError: the file is not there, or a whole line is something else.
    """
    out = []
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path}: cannot be read as an advisor's log: {error.strerror}") from error
    lines = text.split("\n")
    for number, line in enumerate(lines[:-1], 1):  # what follows the last newline was cut off by a kill
        try:
            row = json.loads(line)
            out.append(LogEntry(str(row["request_id"]), Usage(*(row.get(name) for name in _FIELDS))))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path}: line {number} is no entry with request_id and tokens ({error!r})"
            ) from error
    return out


@dataclass(slots=True)
class Reconciliation:
    """How a ledger and a log agree. Lists hold request ids.

    Prompt and completion tokens of the log are ``log_tokens``; of the attempts that the ledger knows,
    ``ledger_tokens``; ``recovered_tokens`` is what the log says of attempts that the ledger does not know.
    """

    matched: int
    differing: list[str]
    """Both know the usage, and do not agree."""
    recovered: list[str]
    """The ledger holds an upper bound, and the log knows the usage: the reply was lost."""
    above_bound: list[str]
    """Of these, those whose true usage exceeds what was reserved. None, where the provider keeps the cap."""
    never_executed: list[str]
    """The ledger holds an upper bound, and the log has nothing: charged too much, never too little."""
    missing_in_log: list[str]
    """The ledger knows a usage above zero, and the log has nothing."""
    unreserved: list[str]
    """Executed without a reservation."""
    executed_twice: list[str]
    """Executed more than once for one reservation."""
    ledger_tokens: tuple[int, int]
    log_tokens: tuple[int, int]
    recovered_tokens: tuple[int, int]

    @property
    def exact(self) -> bool:
        """Whether every token of the log was reserved and is accounted for, once."""
        clean = not (
            self.differing
            or self.above_bound
            or self.missing_in_log
            or self.unreserved
            or self.executed_twice
        )
        together = tuple(a + b for a, b in zip(self.ledger_tokens, self.recovered_tokens, strict=True))
        return clean and together == self.log_tokens


def reconcile(book: Book, log: Iterable[LogEntry]) -> Reconciliation:
    """Compare the books with the advisor's log, attempt by attempt."""
    entries: dict[str, LogEntry] = {}
    out = Reconciliation(0, [], [], [], [], [], [], [], (0, 0), (0, 0), (0, 0))
    for entry in log:
        out.log_tokens = _add(out.log_tokens, entry.usage)
        if entry.request_id in entries:
            out.executed_twice.append(entry.request_id)
        entries[entry.request_id] = entry
    for request_id, _, _, attempt, bound in _attempts(book):
        logged = entries.pop(request_id, None)
        if attempt.usage.known:
            out.ledger_tokens = _add(out.ledger_tokens, attempt.usage)
        if logged is None:
            if not attempt.usage.known:
                out.never_executed.append(request_id)
            elif attempt.usage.prompt_tokens or attempt.usage.completion_tokens:
                out.missing_in_log.append(request_id)
        elif not attempt.usage.known:
            out.recovered.append(request_id)
            out.recovered_tokens = _add(out.recovered_tokens, logged.usage)
            if (logged.usage.prompt_tokens or 0) > bound[0] or (logged.usage.completion_tokens or 0) > bound[
                1
            ]:
                out.above_bound.append(request_id)
        elif _tokens(attempt.usage) != _tokens(logged.usage):
            out.differing.append(request_id)
        else:
            out.matched += 1
    out.unreserved = list(entries)
    return out


def settle_from_log(ledger: Ledger, log: Iterable[LogEntry]) -> int:
    """Settle attempts of unknown usage by what the advisor's log says of them; returns how many.

    Their upper bounds become their costs, and room in the budgets comes free.

    Raises:
        AdvisorError: kind ``ledger``.
    """
    known = {entry.request_id: entry.usage for entry in log if entry.usage.known}
    waiting = [
        (call, number, known[request_id])
        for request_id, call, number, attempt, _ in _attempts(ledger.book())
        if not attempt.usage.known and request_id in known
    ]
    for call, number, usage in waiting:
        ledger.settle(call, number, usage, "lost_reply")
    return len(waiting)


def _attempts(book: Book) -> Iterator[tuple[str, CallId, int, Attempt, tuple[int, int]]]:
    for call, entry in book.calls.items():
        for number, attempt in enumerate(entry.attempts, 1):
            yield call.request_id(number), call, number, attempt, (attempt.prompt_bound, attempt.max_tokens)


def _tokens(usage: Usage) -> tuple[int, int]:
    return usage.prompt_tokens or 0, usage.completion_tokens or 0


def _add(total: tuple[int, int], usage: Usage) -> tuple[int, int]:
    prompt, completion = _tokens(usage)
    return total[0] + prompt, total[1] + completion
