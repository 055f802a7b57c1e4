"""The ledger as a state machine: any order of calls, settlements and crashes, against a model of it."""

from __future__ import annotations

import shutil
import tempfile
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from apprentice.config.ask import PricesConfig
from apprentice.costs.book import ADVISOR
from apprentice.costs.ledger import Ledger, Refused, read_book
from apprentice.costs.limits import Limits
from apprentice.costs.prices import Prices
from apprentice.costs.records import CallId, KeptAnswer
from apprentice.costs.usage import Usage

pytestmark = pytest.mark.unit

C_IN, C_OUT = Fraction("1.5"), Fraction("6.25")
PRICES = {ADVISOR: Prices.of(PricesConfig(input=1.5, output=6.25))}
LIMITS = Limits(Fraction(900), Fraction(3000), {"a": Fraction(1500)})
NAMES = st.tuples(st.sampled_from("xyz"), st.integers(0, 2))


class LedgerMachine(RuleBasedStateMachine):
    """The model knows only what was sent and what came back; sums are made afresh at every step."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.path = self.folder / "ledger.jsonl"
        self.ledger = Ledger(self.path, PRICES, LIMITS)
        self.keys: dict[CallId, str] = {}
        self.weights: dict[CallId, list[Fraction]] = {}
        self.open: dict[tuple[CallId, int], Fraction] = {}
        self.unknown: dict[tuple[CallId, int], Fraction] = {}
        self.ended: dict[CallId, str] = {}
        self.born: dict[tuple[CallId, int], int] = {}
        self.caps: dict[tuple[CallId, int], tuple[int, int]] = {}
        self.tokens = [0, 0]

    def standing(self, keep: object) -> Fraction:
        assert callable(keep)
        return sum((sum(w) for c, w in self.weights.items() if keep(c)), Fraction(0))

    @rule(name=NAMES, key=st.sampled_from("ab"), prompt=st.integers(0, 60), cap=st.integers(1, 100))
    def reserve(self, name: tuple[str, int], key: str, prompt: int, cap: int) -> None:
        call = CallId(ADVISOR, "", *name)
        under_way = any(c == call and self.born[c, n] == self.ledger.epoch for c, n in self.open)
        if call in self.ended or under_way:
            return
        key = self.keys.get(call, key)
        amount = C_IN * prompt + C_OUT * cap
        fits = (
            self.standing(lambda c: c.trajectory_id == call.trajectory_id) + amount <= 900
            and self.standing(lambda c: True) + amount <= 3000
            and (key != "a" or self.standing(lambda c: self.keys[c] == "a") + amount <= 1500)
        )
        got = self.ledger.reserve(call, key=key, digest="d", prompt_bound=prompt, max_tokens=cap)
        assert isinstance(got, Refused) is not fits
        if isinstance(got, Refused):
            if call not in self.weights:
                self.ended[call] = "refused"
            return
        self.keys[call] = key
        self.weights.setdefault(call, []).append(amount)
        assert got == len(self.weights[call])
        self.open[call, got] = amount
        self.born[call, got], self.caps[call, got] = self.ledger.epoch, (prompt, cap)

    @precondition(lambda self: self.open or self.unknown)
    @rule(data=st.data(), answered=st.booleans())
    def settle(self, data: st.DataObject, answered: bool) -> None:
        call, attempt = data.draw(st.sampled_from(sorted([*self.open, *self.unknown])))
        bound, cap = self.caps[call, attempt]
        prompt = data.draw(st.none() | st.integers(0, bound))
        completion = data.draw(st.none() | st.integers(0, cap))
        was_open = (call, attempt) in self.open
        answer = KeptAnswer(f"{call}", "stop", prompt, completion) if answered else None
        usage = Usage(prompt, completion)
        self.ledger.settle(call, attempt, usage, "ok", answer)
        if not was_open and not usage.known:
            return
        reserved = self.open.pop((call, attempt), None) or self.unknown.pop((call, attempt), Fraction(0))
        if prompt is None or completion is None:
            self.unknown[call, attempt] = reserved
        else:
            self.weights[call][attempt - 1] = C_IN * prompt + C_OUT * completion
            self.tokens[0] += prompt
            self.tokens[1] += completion
        if answered:
            self.ended.setdefault(call, "answered")

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        call, _ = data.draw(st.sampled_from(sorted(self.open)))
        self.ledger.fail(call, "timeout", "m")
        self.ended.setdefault(call, "failed")

    @rule(torn=st.binary(max_size=40).filter(lambda b: b"\n" not in b))
    def crash(self, torn: bytes) -> None:
        """The owner dies, perhaps while it writes; a successor opens the file."""
        self.ledger.close()
        with self.path.open("ab") as file:
            file.write(torn)
        self.ledger = Ledger(self.path, PRICES, LIMITS)

    @invariant()
    def books_are_right(self) -> None:
        for book in (self.ledger.book(), read_book(self.path)):
            assert book.standing("run") == self.standing(lambda c: True)
            for name in "xyz":
                mine = self.standing(lambda c, name=name: c.trajectory_id == name)
                assert book.standing("trajectory", "", name) == mine
            for key in "ab":
                assert book.standing("key", key) == self.standing(lambda c, key=key: self.keys[c] == key)
            totals = book.totals.get(ADVISOR)
            if totals is None:
                assert not self.weights and not self.ended
                continue
            assert totals.cost + totals.upper_bound == self.standing(lambda c: True)
            assert totals.unknown_usage == len(self.open) + len(self.unknown)
            assert totals.under_way == len(self.open)
            assert [totals.prompt_tokens, totals.completion_tokens] == self.tokens
            assert totals.calls == len(set(self.weights) | set(self.ended))
            for state in ("answered", "failed", "refused"):
                assert getattr(totals, state) == sum(e == state for e in self.ended.values())

    @invariant()
    def ended_calls_stay_ended(self) -> None:
        for call, state in self.ended.items():
            known = self.ledger.look_up(call, "d")
            assert known.state == state
            if state == "answered":
                assert known.answer is not None and known.answer.text == f"{call}"

    @invariant()
    def never_over_budget(self) -> None:
        """What is spent, and whatever may still be charged for, fits the limits at every moment."""
        assert self.standing(lambda c: True) <= 3000
        assert all(self.standing(lambda c, n=n: c.trajectory_id == n) <= 900 for n in "xyz")
        assert self.standing(lambda c: self.keys[c] == "a") <= 1500

    def teardown(self) -> None:
        self.ledger.close()
        shutil.rmtree(self.folder)


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
