"""The ledger's rules, its file, and what survives a crash."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from fractions import Fraction
from pathlib import Path

import pytest

from apprentice.config.ask import PricesConfig
from apprentice.costs.append_file import AppendFile
from apprentice.costs.book import ADVISOR, JUDGE
from apprentice.costs.ledger import Ledger, Refused, read_book
from apprentice.costs.limits import Limits
from apprentice.costs.prices import Prices
from apprentice.costs.records import CallId, KeptAnswer
from apprentice.costs.usage import Usage
from apprentice.errors import AdvisorError, DataError

pytestmark = pytest.mark.unit

PRICES = {ADVISOR: Prices.of(PricesConfig())}
ANSWER = KeptAnswer("42", "stop", 10, 5)


def call(trajectory: str = "t", index: int = 0, account: str = ADVISOR, scope: str = "s") -> CallId:
    return CallId(account, scope, trajectory, index)


def reserve(
    ledger: Ledger, name: CallId, *, key: str = "k", digest: str = "d", cap: int = 100
) -> int | Refused:
    return ledger.reserve(name, key=key, digest=digest, prompt_bound=40, max_tokens=cap)


def open_ledger(path: Path, **limits: object) -> Ledger:
    exact = {k: Fraction(v) if isinstance(v, int) else v for k, v in limits.items()}
    return Ledger(path / "ledger.jsonl", PRICES, Limits(**exact), lock_timeout_s=0.0)  # type: ignore[arg-type]


def test_a_call_is_reserved_at_its_worst_case_and_settled_at_its_usage(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    assert reserve(ledger, call()) == 1
    assert ledger.book().standing("run") == 40 + 6 * 100
    assert ledger.look_up(call(), "d").state == "open"
    ledger.settle(call(), 1, Usage(10, 5, 2, 4), "ok", ANSWER)
    assert ledger.book().standing("run") == 10 + 6 * 5
    known = ledger.look_up(call(), "d")
    assert (known.state, known.answer, known.cost) == ("answered", ANSWER, 40.0)
    totals = ledger.totals()[ADVISOR]
    assert (totals.calls, totals.answered, totals.attempts, totals.under_way) == (1, 1, 1, 0)
    assert (totals.prompt_tokens, totals.completion_tokens, totals.reasoning_tokens) == (10, 5, 2)
    assert (totals.cached_tokens, totals.cost, totals.upper_bound, totals.unknown_usage) == (4, 40, 0, 0)
    numbers = totals.numbers()
    assert (numbers["cost"], numbers["answered"], numbers["outcome/ok"]) == (40.0, 1.0, 1.0)
    assert json.loads(json.dumps(numbers)) == numbers


def test_unknown_usage_stays_charged_as_an_upper_bound_and_is_reported_so(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    reserve(ledger, call())
    ledger.settle(call(), 1, Usage(10, None), "ok", ANSWER)
    totals = ledger.totals()[ADVISOR]
    assert (totals.cost, totals.upper_bound, totals.unknown_usage) == (0, 640, 1)
    assert ledger.book().standing("run") == 640
    assert ledger.look_up(call(), "d").cost is None
    ledger.settle(call(), 1, Usage(10, 5), "ok")  # the provider says so later
    totals = ledger.totals()[ADVISOR]
    assert (totals.cost, totals.upper_bound, totals.unknown_usage) == (40, 0, 0)
    assert ledger.look_up(call(), "d").cost == 40.0


def test_h11_every_attempt_of_a_call_is_reserved_and_charged_to_the_one_call(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, per_trajectory=1300)
    assert reserve(ledger, call()) == 1
    ledger.settle(call(), 1, Usage(), "timeout")  # it may have run: 640 stay charged
    assert reserve(ledger, call()) == 2
    assert ledger.book().standing("trajectory", "s", "t") == 1280
    ledger.settle(call(), 2, Usage(10, 5), "ok", ANSWER)
    assert ledger.book().standing("trajectory", "s", "t") == 680
    totals = ledger.totals()[ADVISOR]
    assert (totals.calls, totals.attempts, totals.cost, totals.upper_bound) == (1, 2, 40, 640)
    # A third attempt would be the third execution of a call that has room for two.
    assert reserve(ledger, call("u")) == 1
    ledger.settle(call("u"), 1, Usage(), "timeout")
    assert reserve(ledger, call("u")) == 2
    ledger.settle(call("u"), 2, Usage(), "timeout")
    assert reserve(ledger, call("u")) == Refused("trajectory")
    ledger.fail(call("u"), "retry_over_budget", "no room")
    assert ledger.look_up(call("u"), "d").kind == "retry_over_budget"


@pytest.mark.parametrize(
    ("limits", "budget"),
    [
        ({"per_trajectory": 1279}, "trajectory"),
        ({"per_run": 1279}, "run"),
        ({"per_key": {"k": Fraction(1279)}}, "key"),
    ],
)
def test_a_call_whose_worst_case_does_not_fit_is_refused_for_good(
    tmp_path: Path, limits: dict[str, object], budget: str
) -> None:
    ledger = open_ledger(tmp_path, **limits)
    assert reserve(ledger, call(index=0)) == 1
    assert reserve(ledger, call(index=1)) == Refused(budget)
    assert ledger.look_up(call(index=1), "d").kind == budget
    ledger.settle(call(index=0), 1, Usage(10, 5), "ok", ANSWER)  # makes room, but not for what was refused
    assert ledger.look_up(call(index=1), "d").state == "refused"
    with pytest.raises(AdvisorError, match="refused"):
        reserve(ledger, call(index=1))
    assert reserve(ledger, call(index=2)) == 1
    assert dict(ledger.totals()[ADVISOR].refused_by) == {budget: 1}


def test_a_budget_can_be_used_to_the_last_token(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, per_run=1280)
    assert (reserve(ledger, call("a")), reserve(ledger, call("b"))) == (1, 1)
    assert reserve(ledger, call("c")) == Refused("run")


def test_each_trajectory_scope_and_key_has_its_own_budget(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, per_trajectory=640, per_key={"poor": Fraction(640)})
    assert reserve(ledger, call("a"), key="poor") == 1
    assert reserve(ledger, call("a", 1), key="rich") == Refused("trajectory")
    assert reserve(ledger, call("b"), key="poor") == Refused("key")
    assert reserve(ledger, call("b", 1), key="rich") == 1
    assert reserve(ledger, call("a", scope="other"), key="rich") == 1


def test_judge_calls_are_metered_apart_and_limited_by_their_key_alone(tmp_path: Path) -> None:
    prices = PRICES | {JUDGE: PRICES[ADVISOR]}
    limits = Limits(Fraction(640), Fraction(640), {"judge": Fraction(1280)})
    ledger = Ledger(tmp_path / "l", prices, limits)
    for index in range(2):
        assert reserve(ledger, call(index=index, account=JUDGE), key="judge") == 1
    assert reserve(ledger, call(index=2, account=JUDGE), key="judge") == Refused("key")
    assert ledger.book().standing("run") == 0
    assert reserve(ledger, call()) == 1, "the advisor's call of the same name and place is another call"


def test_h13_an_account_without_prices_is_metered_without_a_cost_and_counted(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, per_run=1)
    judge = call(account=JUDGE)
    assert reserve(ledger, judge, key="judge") == 1
    ledger.settle(judge, 1, Usage(10, 5), "ok", ANSWER)
    totals = ledger.totals()[JUDGE]
    assert (totals.unpriced, totals.prompt_tokens, totals.completion_tokens, totals.cost) == (1, 10, 5, 0)
    assert ledger.look_up(judge, "d").cost is None


def test_a_name_is_used_for_one_query(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    reserve(ledger, call(), digest="one")
    for use in (lambda: ledger.look_up(call(), "two"), lambda: reserve(ledger, call(), digest="two")):
        with pytest.raises(AdvisorError, match="another query") as caught:
            use()
        assert caught.value.kind == "call_id_reused"
    with pytest.raises(AdvisorError) as caught:
        reserve(ledger, call(), digest="one")
    assert caught.value.kind == "under_way"


def test_settling_twice_changes_nothing(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    reserve(ledger, call())
    ledger.settle(call(), 1, Usage(10, 5), "ok", ANSWER)
    size = (tmp_path / "ledger.jsonl").stat().st_size
    ledger.settle(call(), 1, Usage(10, 5), "ok", ANSWER)
    ledger.settle(call(), 1, Usage(99, 99), "ok", KeptAnswer("other", "stop", 99, 99))
    ledger.settle(call(), 1, Usage(), "timeout")
    assert ledger.repeated_settlements == 3
    assert (tmp_path / "ledger.jsonl").stat().st_size == size
    assert ledger.look_up(call(), "d").answer == ANSWER
    assert ledger.book().standing("run") == 40


def test_a_provider_that_exceeds_its_cap_is_charged_in_full_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = open_ledger(tmp_path)
    reserve(ledger, call())
    ledger.settle(call(), 1, Usage(10, 1000), "ok", ANSWER)
    assert ledger.book().standing("run") == 6010
    assert ledger.totals()[ADVISOR].over_reservation == 1 and "above its worst case" in caplog.text


def test_a_successor_finds_everything_as_it_was(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, per_run=2000)
    reserve(ledger, call("a"))
    ledger.settle(call("a"), 1, Usage(10, 5), "ok", ANSWER)
    reserve(ledger, call("b"))  # under way when the owner dies
    reserve(ledger, call("c"))
    ledger.settle(call("c"), 1, Usage(), "timeout")
    ledger.fail(call("c"), "timeout", "no answer")
    assert reserve(ledger, call("d"), cap=1000) == Refused("run")
    before = ledger.totals()
    ledger.close()
    after = open_ledger(tmp_path, per_run=2000)
    assert after.epoch == 2
    assert after.totals() == before
    assert after.book().standing("run") == 40 + 640 + 640
    assert after.look_up(call("a"), "d").answer == ANSWER
    assert after.look_up(call("b"), "d").attempts == 1
    assert after.look_up(call("c"), "d").message == "no answer"
    assert after.look_up(call("d"), "d").kind == "run"
    assert reserve(after, call("b")) == 2, "the lost attempt stays charged, and the call goes on"
    after.settle(call("b"), 2, Usage(10, 5), "ok", ANSWER)
    after.settle(call("b"), 1, Usage(10, 6), "ok")  # and the lost attempt's usage is found after all
    assert after.book().standing("run") == 40 + 640 + 40 + 46


def test_a_torn_last_line_is_cut_off_at_every_byte(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    reserve(ledger, call("a"))
    whole = (tmp_path / "ledger.jsonl").stat().st_size
    ledger.settle(call("a"), 1, Usage(10, 5), "ok", ANSWER)
    ledger.close()
    data = (tmp_path / "ledger.jsonl").read_bytes()
    for cut in {whole, whole + 1, (whole + len(data)) // 2, len(data) - 1}:
        (tmp_path / "ledger.jsonl").write_bytes(data[:cut])
        assert read_book(tmp_path / "ledger.jsonl").standing("run") == 640
        again = open_ledger(tmp_path)
        assert again.look_up(call("a"), "d").state == "open"
        assert reserve(again, call("b")) == 1
        again.close()
        rows = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
        assert [row["op"] for row in rows] == ["open", "reserve", "open", "reserve"]
        assert rows[2]["dropped"] == cut - whole


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: [lines[0], b"{not json}", *lines[1:]],
        lambda lines: lines[1:],  # without its head
        lambda lines: [lines[0], lines[2], lines[1]],  # settled before it was reserved
        lambda lines: [*lines, lines[1]],  # reserved twice
        lambda lines: [*lines, lines[2]],  # settled twice
    ],
)
def test_a_damaged_ledger_is_named_with_its_line(tmp_path: Path, damage: object) -> None:
    ledger = open_ledger(tmp_path)
    reserve(ledger, call())
    ledger.settle(call(), 1, Usage(10, 5), "ok", ANSWER)
    ledger.close()
    path = tmp_path / "ledger.jsonl"
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join(damage(lines)) + b"\n")  # type: ignore[operator]
    with pytest.raises(DataError, match=r"line \d"):
        open_ledger(tmp_path)
    path.write_bytes(b"\n".join(lines) + b"\n")
    open_ledger(tmp_path).close()  # the refusal left no lock behind


def test_there_is_one_writer(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    with pytest.raises(AdvisorError, match="another process") as caught:
        open_ledger(tmp_path)
    assert caught.value.kind == "ledger_locked"
    ledger.close()
    open_ledger(tmp_path).close()


def test_a_line_that_cannot_be_written_reserves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = open_ledger(tmp_path)
    real = os.write
    written: list[int] = []

    def full(fd: int, data: memoryview) -> int:
        if written:
            raise OSError(28, "No space left on device")
        written.append(real(fd, data[:10]))  # half a line, then the disk is full
        return written[0]

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(AdvisorError, match="No space left") as caught:
        reserve(ledger, call())
    assert caught.value.kind == "ledger"
    monkeypatch.setattr(os, "write", real)
    assert ledger.look_up(call(), "d").state == "new" and ledger.book().standing("run") == 0
    assert reserve(ledger, call()) == 1
    ledger.close()
    assert read_book(tmp_path / "ledger.jsonl").standing("run") == 640


def test_a_failed_sync_ends_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = open_ledger(tmp_path)

    def fails(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fails)
    with pytest.raises(AdvisorError, match="Input/output error"):
        reserve(ledger, call())
    monkeypatch.undo()
    assert "synced" in ledger.broken
    with pytest.raises(AdvisorError):
        reserve(ledger, call("u"))


def test_threads_that_wait_together_share_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = AppendFile(tmp_path / "f")
    syncs: list[int] = []
    held, go = threading.Event(), threading.Event()

    def slow(fd: int) -> None:
        syncs.append(fd)
        held.set()
        assert go.wait(30)

    monkeypatch.setattr(os, "fdatasync", slow)

    def write() -> None:
        file.append(b"line\n")
        file.commit()

    first = threading.Thread(target=write)
    first.start()
    assert held.wait(30)
    others = [threading.Thread(target=write) for _ in range(20)]
    for thread in others:
        thread.start()
    while (tmp_path / "f").stat().st_size < 21 * 5:
        pass
    go.set()
    for thread in (first, *others):
        thread.join(30)
    assert len(syncs) == 2, "one for the first line, one for the twenty that came meanwhile"
    file.close()


_WRITER = """
import sys
from pathlib import Path
from tests.unit.test_costs_ledger import ANSWER, call, open_ledger, reserve
from apprentice.costs.usage import Usage
ledger = open_ledger(Path(sys.argv[1]))
for i in range(100000):
    assert reserve(ledger, call(f"{sys.argv[2]}-{i}")) == 1
    print("r", i, flush=True)
    ledger.settle(call(f"{sys.argv[2]}-{i}"), 1, Usage(10, 5), "ok", ANSWER)
    print("s", i, flush=True)
"""


def test_what_was_acknowledged_survives_sigkill(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    reserved = settled = 0
    for round_ in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(tmp_path), str(round_)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
        )
        assert writer.stdout is not None
        seen = [writer.stdout.readline() for _ in range(25 + 8 * round_)]
        writer.send_signal(signal.SIGKILL)
        seen += writer.stdout.readlines()
        writer.wait(30)
        writer.stdout.close()
        reserved += sum(line.startswith("r") for line in seen)
        settled += sum(line.startswith("s") and line.endswith("\n") for line in seen)
        ledger = open_ledger(tmp_path)  # the lock went with the process
        totals = ledger.totals()[ADVISOR]
        assert totals.attempts >= reserved and totals.answered >= settled
        assert totals.attempts <= reserved + round_ + 1, "at most one a kill was written and not acknowledged"
        assert ledger.book().standing("run") == 40 * totals.answered + 640 * totals.under_way
        ledger.close()
        reserved, settled = totals.attempts, totals.answered
    assert settled > 30
