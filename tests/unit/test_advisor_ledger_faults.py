"""64 callers, an advisor that misbehaves, and an owner that is killed: the books stay right to the token."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from fractions import Fraction
from pathlib import Path

import pytest

from apprentice.advisors.metered import CallAnswer
from apprentice.advisors.service import AdvisorService, open_ledger
from apprentice.advisors.types import AttemptRequest, AttemptResult
from apprentice.costs.book import ADVISOR, Book
from apprentice.costs.ledger import read_book
from apprentice.costs.reconcile import LogEntry, read_advisor_log, reconcile, settle_from_log
from apprentice.costs.records import CallId
from apprentice.costs.usage import Usage
from apprentice.errors import AdvisorError
from tests.advisor_kit import CAP, FAULTS, PER_TRAJECTORY, PaidInProcess, config_for, question

pytestmark = pytest.mark.unit

CALLERS = 64


def paid_cost(log: list[LogEntry]) -> int:
    return sum((e.usage.prompt_tokens or 0) + 6 * (e.usage.completion_tokens or 0) for e in log)


def check_against_the_log(book: Book, log: list[LogEntry], per_run: float) -> None:
    """What the provider billed, against the limits and the ledger, from the provider's side."""
    result = reconcile(book, log)
    assert result.exact, result
    assert paid_cost(log) <= book.standing("run") <= per_run - 1
    by_id = {e.request_id: e for e in log}
    assert len(by_id) == len(log), "no attempt ran twice"
    billed: dict[str, int] = defaultdict(int)
    for call, entry in book.calls.items():
        for attempt in range(1, len(entry.attempts) + 1):
            if (logged := by_id.get(call.request_id(attempt))) is not None:
                billed[call.trajectory_id] += paid_cost([logged])
    assert sum(billed.values()) == paid_cost(log)
    assert all(cost <= PER_TRAJECTORY for cost in billed.values())


async def test_h11_64_callers_with_faults_never_overspend_and_reconcile_to_the_token(tmp_path: Path) -> None:
    """Late answers, lost connections, refusals, no usage, every request sent twice, callers that leave."""
    per_run, paid = 70_000.0, PaidInProcess()
    config = config_for(per_run=per_run)
    ledger = open_ledger(config, tmp_path / "ledger.jsonl")
    rng = random.Random(5)
    service = AdvisorService(config, ledger, paid.send, rng=rng)
    answers: dict[int, set[str]] = defaultdict(set)

    async def once(number: int) -> None:
        try:
            got = await service.ask(question(number))
        except AdvisorError as error:
            answers[number].add(f"failed {error.kind}")
            return
        answers[number].add(got.text if isinstance(got, CallAnswer) else f"refused {got.budget}")

    async def caller(number: int) -> None:
        for mine in range(number, 2 * CALLERS, CALLERS):
            leaves = asyncio.create_task(once(mine))
            again = asyncio.create_task(once(mine))
            await asyncio.sleep(rng.uniform(0, 0.05))
            leaves.cancel()  # its answer goes nowhere
            await again
            await once(mine)  # and somebody asks again after the end
            assert ledger.book().standing("run") <= per_run - 1

    await asyncio.wait_for(asyncio.gather(*(caller(number) for number in range(CALLERS))), 120)
    assert paid.seen == set(FAULTS)
    assert all(len(answers[number]) == 1 for number in range(2 * CALLERS)), "one call has one end"
    ends = [end.split()[0] for found in answers.values() for end in found]
    assert {"execution", "failed", "refused"} == set(ends), "the budget was reached on the way"
    totals = ledger.totals()[ADVISOR]
    assert totals.calls == 2 * CALLERS and totals.under_way == 0
    assert totals.attempts > totals.answered, "some calls took several attempts"
    assert service.calls.repeated >= 2 * CALLERS
    check_against_the_log(ledger.book(), paid.log, per_run)
    await service.close()

    # The file says the same, and with the provider's log no cost is unknown where something ran.
    check_against_the_log(read_book(tmp_path / "ledger.jsonl"), paid.log, per_run)
    successor = open_ledger(config, tmp_path / "ledger.jsonl")
    assert settle_from_log(successor, paid.log) > 0
    totals = successor.totals()[ADVISOR]
    assert totals.cost == paid_cost(paid.log)
    result = reconcile(successor.book(), paid.log)
    assert result.exact and not result.recovered
    assert totals.unknown_usage == len(result.never_executed)
    successor.close()


async def test_one_call_sent_by_64_callers_at_once_runs_once(tmp_path: Path) -> None:
    paid = PaidInProcess(faults=("ok",), work_s=0.1)
    ledger = open_ledger(config_for(per_run=1e6), tmp_path / "ledger.jsonl")
    service = AdvisorService(config_for(per_run=1e6), ledger, paid.send)
    got = await asyncio.gather(*(service.ask(question(0)) for _ in range(CALLERS)))
    assert len(paid.log) == 1 and {a.text for a in got if isinstance(a, CallAnswer)} == {"execution 1"}
    assert ledger.totals()[ADVISOR].attempts == 1
    await service.close()


async def test_nothing_is_sent_before_its_reservation_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "ledger.jsonl", [0]
    real = os.fdatasync

    def sync(fd: int) -> None:
        size = os.fstat(fd).st_size
        real(fd)
        synced.append(size)

    monkeypatch.setattr(os, "fdatasync", sync)
    paid = PaidInProcess(faults=("ok", "busy"))

    async def send(request: AttemptRequest, timeout_s: float) -> AttemptResult:
        on_disk = path.read_bytes()[: max(synced)].decode()
        reserved = [json.loads(line) for line in on_disk.splitlines()]
        ids = {CallId(*row["call"]).request_id(row["attempt"]) for row in reserved if row["op"] == "reserve"}
        assert request.request_id in ids
        return await paid.send(request, timeout_s)

    ledger = open_ledger(config_for(per_run=1e6), path)
    service = AdvisorService(config_for(per_run=1e6), ledger, send, rng=random.Random(0))
    got = await asyncio.gather(*(service.ask(question(i)) for i in range(CALLERS)), return_exceptions=True)
    assert all(isinstance(a, CallAnswer) or getattr(a, "kind", "") == "http_429" for a in got)
    assert len(synced) - 2 < ledger.totals()[ADVISOR].attempts, "those who wait together share a sync"
    await service.close()


OWNER = """
import asyncio, json, random, sys
from tests.advisor_kit import PaidInProcess, config_for, question
from apprentice.advisors.metered import CallAnswer
from apprentice.advisors.service import AdvisorService, open_ledger
from apprentice.errors import AdvisorError
async def main(path, log, seed, per_run):
    config = config_for(per_run=float(per_run))
    ledger = open_ledger(config, path)
    paid = PaidInProcess(log_path=log, work_s=0.1)
    service = AdvisorService(config, ledger, paid.send, rng=random.Random(int(seed)))
    async def one(number):
        try:
            got = await service.ask(question(number))
            said = got.text if isinstance(got, CallAnswer) else "refused " + got.budget
        except AdvisorError as error:
            said = "failed " + error.kind
        print(json.dumps([number, said]), flush=True)
    await asyncio.gather(*(one(number) for number in range(64)))
    await service.close()
asyncio.run(main(*sys.argv[1:]))
"""


def test_the_owner_may_be_killed_at_any_moment(tmp_path: Path) -> None:
    """SIGKILL of the ledger's owner with 64 calls in flight, twice; then all calls come to their end."""
    per_run = 400_000.0
    said: dict[int, set[str]] = defaultdict(set)
    path, log, root = tmp_path / "ledger.jsonl", tmp_path / "log.jsonl", Path(__file__).resolve().parents[2]
    log.touch()
    for round_ in range(3):
        command = [sys.executable, "-c", OWNER, str(path), str(log), str(round_), str(per_run)]
        owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root)
        if round_ < 2:
            begun, deadline = len(read_advisor_log(log)), time.monotonic() + 120
            while len(read_advisor_log(log)) < begun + 10 and time.monotonic() < deadline:
                time.sleep(0.02)
            assert owner.poll() is None, "it was not killed in the middle"
            owner.send_signal(signal.SIGKILL)
        output, _ = owner.communicate(timeout=120)
        for line in output.splitlines():
            if line.endswith("]"):
                number, text = json.loads(line)
                said[number].add(text)
        check_against_the_log(read_book(path), read_advisor_log(log), per_run)
    assert owner.returncode == 0
    assert sorted(said) == list(range(CALLERS))
    assert all(len(texts) == 1 for texts in said.values()), "what was said once is said again"
    book = read_book(path)
    assert book.epoch == 3
    # What the dead owners had under way is charged as an upper bound; the provider's log says the rest.
    assert reconcile(book, read_advisor_log(log)).recovered
    ledger = open_ledger(config_for(per_run=per_run), path)
    settle_from_log(ledger, read_advisor_log(log))
    assert ledger.totals()[ADVISOR].cost == paid_cost(read_advisor_log(log))
    ledger.close()


def test_reconciliation_names_what_does_not_agree(tmp_path: Path) -> None:
    config = config_for(per_run=1e6)
    ledger = open_ledger(config, tmp_path / "ledger.jsonl")
    names = [CallId(ADVISOR, "", f"t{i}", 0) for i in range(5)]
    for name in names:
        ledger.reserve(name, key="k", digest="d", prompt_bound=20, max_tokens=CAP)
    for name in names[:3]:
        ledger.settle(name, 1, Usage(10, 5), "ok")
    ids = [name.request_id(1) for name in names]
    right = [LogEntry(i, Usage(10, 5)) for i in ids[:3]]
    assert reconcile(ledger.book(), right).exact
    assert reconcile(ledger.book(), right).never_executed == ids[3:]
    wrong = [LogEntry(ids[0], Usage(10, 6)), *right[1:]]
    assert reconcile(ledger.book(), wrong).differing == [ids[0]]
    assert reconcile(ledger.book(), right[1:]).missing_in_log == [ids[0]]
    assert reconcile(ledger.book(), [*right, right[0]]).executed_twice == [ids[0]]
    assert reconcile(ledger.book(), [*right, LogEntry("x", Usage(1, 1))]).unreserved == ["x"]
    lost = reconcile(ledger.book(), [*right, LogEntry(ids[3], Usage(20, CAP))])
    assert lost.exact and lost.recovered == [ids[3]] and lost.recovered_tokens == (20, CAP)
    above = reconcile(ledger.book(), [*right, LogEntry(ids[3], Usage(20, CAP + 1))])
    assert above.above_bound == [ids[3]] and not above.exact
    for bad in (wrong, right[1:], [*right, right[0]], [*right, LogEntry("x", Usage(1, 1))]):
        assert not reconcile(ledger.book(), bad).exact
    assert ledger.book().standing("run") == 3 * 40 + 2 * 320 and Fraction(320) == 20 + 6 * CAP
    ledger.close()
