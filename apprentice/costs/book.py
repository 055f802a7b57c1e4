"""What a ledger's records add up to. Pure: no file, no clock, no lock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from fractions import Fraction

from apprentice.costs.limits import Limits
from apprentice.costs.records import CallId, Fail, Open, Record, Refuse, Reserve, Settle
from apprentice.costs.usage import Usage

__all__ = ["ADVISOR", "JUDGE", "AccountTotals", "Attempt", "Book", "Call"]

ADVISOR, JUDGE = "advisor", "judge"
"""The accounts. Judge calls are no part of C (Eq. 4) and are metered apart."""


@dataclass(slots=True)
class Attempt:
    """One request to the provider, of at most ``prompt_bound`` and ``max_tokens`` tokens.

    ``reserved`` is None in an account without prices; ``epoch``: the opening of the ledger that made it.
    """

    prompt_bound: int
    max_tokens: int
    reserved: Fraction | None
    epoch: int
    outcome: str = ""
    usage: Usage = field(default_factory=Usage)
    charged: Fraction | None = None

    @property
    def open(self) -> bool:
        """Not settled yet; it is charged with what was reserved."""
        return not self.outcome

    @property
    def standing(self) -> Fraction:
        """What it weighs in the budgets: its cost, or its reservation as long as the cost is not known."""
        return (self.reserved if self.open else self.charged) or Fraction(0)


@dataclass(slots=True)
class Call:
    """One call with all its attempts. ``state``: ``open``, ``answered``, ``failed`` or ``refused``."""

    key: str
    digest: str
    attempts: list[Attempt] = field(default_factory=list)
    state: str = "open"
    kind: str = ""
    """The budget that refused it, or the kind of its failure."""
    message: str = ""
    answer_at: int = -1
    """Where in the file its answer is."""

    @property
    def standing(self) -> Fraction:
        """What all its attempts weigh in the budgets."""
        return sum((attempt.standing for attempt in self.attempts), Fraction(0))

    @property
    def cost(self) -> Fraction | None:
        """What all its attempts cost together; None where that of one is not known."""
        for attempt in self.attempts:
            if attempt.open or not attempt.usage.known or attempt.charged is None:
                return None
        return self.standing


@dataclass(slots=True)
class AccountTotals:
    """Sums over one account. Tokens and ``cost`` are those of attempts whose usage is known.

    ``upper_bound`` is what stays reserved for the others: the true cost lies between ``cost`` and
    ``cost + upper_bound``. ``unknown_usage`` counts them, those still under way (``under_way``) included.
    """

    calls: int = 0
    answered: int = 0
    failed: int = 0
    refused: int = 0
    attempts: int = 0
    under_way: int = 0
    unknown_usage: int = 0
    unpriced: int = 0
    over_reservation: int = 0
    """Attempts that the provider billed above their worst case: it did not hold the cap it was given."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int = 0
    cost: Fraction = Fraction(0)
    upper_bound: Fraction = Fraction(0)
    refused_by: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    """Settled attempts by what became of them: ``ok``, ``timeout``, ``lost_to_reasoning``, ..."""

    def numbers(self) -> dict[str, float]:
        """For logs and JSON: every sum, ``refused/<budget>`` and ``outcome/<name>``."""
        sums = {field.name: float(getattr(self, field.name)) for field in fields(self)[:-2]}
        refused = {f"refused/{budget}": float(n) for budget, n in sorted(self.refused_by.items())}
        outcomes = {f"outcome/{name}": float(n) for name, n in sorted(self.outcomes.items())}
        return sums | refused | outcomes


class Book:
    """Calls, totals and what stands against each budget, from records applied in order."""

    def __init__(self) -> None:
        self.calls: dict[CallId, Call] = {}
        self.totals: dict[str, AccountTotals] = {}
        self.epoch = 0
        self._standing: dict[tuple[str, ...], Fraction] = {}

    def standing(self, budget: str, *of: str) -> Fraction:
        """What weighs on a budget: ``("run")``, ``("trajectory", scope, id)`` or ``("key", key)``."""
        return self._standing.get((budget, *of), Fraction(0))

    def refusal(self, call: CallId, key: str, amount: Fraction, limits: Limits) -> str:
        """The budget that has no room for ``amount``: ``trajectory``, ``run``, ``key``; empty if all have."""
        for name, *of in _budgets(call, key):
            limit = {
                "trajectory": limits.per_trajectory,
                "run": limits.per_run,
                "key": limits.per_key.get(key),
            }[name]
            if limit is not None and self.standing(name, *of) + amount > limit:
                return name
        return ""

    def apply(self, record: Record, at: int = -1) -> None:
        """Take in a record that stands at offset ``at`` of the file.

        Raises:
            ValueError, KeyError, IndexError: it contradicts what came before.
        """
        if isinstance(record, Open):
            self.epoch = record.epoch
            return
        totals = self.totals.setdefault(record.call.account, AccountTotals())
        if isinstance(record, Reserve):
            self._reserve(record, totals)
        elif isinstance(record, Settle):
            self._settle(record, totals, at)
        elif isinstance(record, Fail):
            call = self.calls[record.call]
            call.state, call.kind, call.message = "failed", record.kind, record.message
            totals.failed += 1
        else:
            self._refuse(record, totals)

    def _reserve(self, record: Reserve, totals: AccountTotals) -> None:
        call = self.calls.get(record.call)
        if call is None:
            call = self.calls[record.call] = Call(record.key, record.digest)
            totals.calls += 1
        if record.attempt != len(call.attempts) + 1 or call.state != "open":
            raise ValueError(f"attempt {record.attempt} of a call with {len(call.attempts)}, {call.state}")
        call.attempts.append(Attempt(record.prompt_bound, record.max_tokens, record.amount, self.epoch))
        totals.attempts += 1
        totals.under_way += 1
        totals.unknown_usage += 1
        totals.unpriced += record.amount is None
        totals.upper_bound += record.amount or 0
        self._weigh(record.call, call.key, record.amount or Fraction(0))

    def _settle(self, record: Settle, totals: AccountTotals, at: int) -> None:
        call = self.calls[record.call]
        attempt = call.attempts[record.attempt - 1]
        before = attempt.standing
        if not attempt.open and attempt.usage.known:
            raise ValueError(f"attempt {record.attempt} of {record.call} is settled already")
        if attempt.open:
            totals.under_way -= 1
            totals.outcomes[record.outcome] += 1
        attempt.outcome = attempt.outcome or record.outcome
        attempt.usage, attempt.charged = record.usage, record.charged
        self._weigh(record.call, call.key, attempt.standing - before)
        if record.usage.known:
            totals.unknown_usage -= 1
            totals.upper_bound -= before
            totals.cost += attempt.standing
            totals.over_reservation += attempt.standing > (attempt.reserved or attempt.standing)
            totals.prompt_tokens += record.usage.prompt_tokens or 0
            totals.completion_tokens += record.usage.completion_tokens or 0
            totals.reasoning_tokens += record.usage.reasoning_tokens or 0
            totals.cached_tokens += record.usage.cached_tokens or 0
        if record.answer is not None and call.state == "open":
            call.state, call.answer_at = "answered", at
            totals.answered += 1

    def _refuse(self, record: Refuse, totals: AccountTotals) -> None:
        self.calls[record.call] = Call(record.key, record.digest, state="refused", kind=record.budget)
        totals.calls += 1
        totals.refused += 1
        totals.refused_by[record.budget] += 1

    def _weigh(self, call: CallId, key: str, amount: Fraction) -> None:
        for budget in _budgets(call, key):
            self._standing[budget] = self._standing.get(budget, Fraction(0)) + amount


def _budgets(call: CallId, key: str) -> Iterator[tuple[str, ...]]:
    """The budgets that a call weighs on."""
    if call.account == ADVISOR:
        yield "trajectory", call.scope, call.trajectory_id
        yield ("run",)
    yield "key", key
