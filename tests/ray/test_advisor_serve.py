"""The metered advisor on Ray Serve: budgets, duplicates, and the death of a replica and of the meter."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import ray

from apprentice.config.ask import AdvisorConfig, ArithmeticBackend, AskConfig, BudgetConfig, JudgeConfig
from apprentice.costs.ledger import read_book
from apprentice.costs.reconcile import read_advisor_log, reconcile
from apprentice.episodes.actions import AdvisorRefused, AdvisorReply, AskAdvisor, JudgeQuery, QueryJudged
from apprentice.errors import AdvisorError, ConfigError, PlacementError
from serve.advisor import ServeAdvisorClient, app_name, build_advisor_app, deploy_advisor, shutdown_advisor
from tests.advisor_kit import PaidAdvisor, config_for, question

pytestmark = pytest.mark.ray

CALLS = 64


def arithmetic(name: str, **options: object) -> AskConfig:
    advisor = {"name": name, "backend": ArithmeticBackend(), "num_cpus": 0.1, "max_tokens": 64}
    budget = options.pop("budget", BudgetConfig())
    return AskConfig(
        advisor=AdvisorConfig(**advisor | options),  # type: ignore[arg-type]
        judge=JudgeConfig(kind="rule"),
        budget=budget,  # type: ignore[arg-type]
    )


def sums(trajectory: str, index: int = 0, query: str = "What is 3 + 4 * 5? Only the result.") -> AskAdvisor:
    return AskAdvisor(query, trajectory, index, 64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("advisor")


@pytest.fixture(scope="module")
def client(ray_cluster: None, folder: Path) -> Iterator[ServeAdvisorClient]:
    config = arithmetic(
        "two replicas",
        replicas=2,
        backend=ArithmeticBackend(latency_s=0.5),
        budget=BudgetConfig(per_trajectory=500.0),
    )
    yield deploy_advisor(
        config, ledger_path=folder / "ledger.jsonl", log_path=folder / "log.jsonl", timeout_s=240
    )
    shutdown_advisor(config)


async def test_an_answer_its_repetition_and_a_refusal(client: ServeAdvisorClient) -> None:
    first, again = await client.ask(sums("t1")), await client.ask(sums("t1"))
    assert isinstance(first, AdvisorReply) and isinstance(again, AdvisorReply)
    # What is 3 + 4 * 5 ? Only the result . -> 12 tokens in, 1 out; at most 12 + 6 * 64 = 396
    assert (first.text, first.prompt_tokens, first.completion_tokens, first.cost) == ("23", 12, 1, 18.0)
    assert (again.text, again.cost) == ("23", 18.0)
    at_once = await asyncio.gather(*(client.ask(sums("t1", 1)) for _ in range(8)))
    assert len({reply.text for reply in at_once if isinstance(reply, AdvisorReply)}) == 1
    # 36 are spent: 396 fit a third time and not beside one that is under way
    both = await asyncio.gather(client.ask(sums("t1", 2)), client.ask(sums("t1", 3)))
    assert sorted(type(reply).__name__ for reply in both) == ["AdvisorRefused", "AdvisorReply"]
    (refused,) = [reply for reply in both if isinstance(reply, AdvisorRefused)]
    assert "budget" in refused.reason
    other = await client.scoped("stage2").ask(sums("t1", 0, "What is 1 + 1? Only the result."))
    assert isinstance(other, AdvisorReply) and other.text == "2"
    with pytest.raises(AdvisorError) as caught:
        await client.ask(sums("t1", 0, "What is 1 + 1? Only the result."))
    assert caught.value.kind == "call_id_reused"
    numbers = client.metrics()
    assert (numbers["refused"], numbers["inflight"], numbers["peak"]) == (1, 0, 8)
    totals = await asyncio.to_thread(client.totals)
    assert (totals["advisor"].calls, totals["advisor"].refused, totals["advisor"].attempts) == (5, 1, 4)
    assert await client.judge_client().judge(JudgeQuery("What is it?", "", "t", 0)) == QueryJudged(
        False, "INCOMPLETE"
    )


def test_a_pickled_client_asks_from_another_process(client: ServeAdvisorClient) -> None:
    class Caller:
        def __init__(self, advisor: ServeAdvisorClient) -> None:
            self._advisor = advisor

        async def ask(self) -> str:
            reply = await self._advisor.ask(sums("elsewhere"))
            assert isinstance(reply, AdvisorReply)
            return reply.text

    again = pickle.loads(pickle.dumps(client))
    assert again.scope == client.scope and again.metrics()["calls"] == 0
    actor = ray.remote(Caller).options(num_cpus=0).remote(client)
    assert ray.get(actor.ask.remote(), timeout=120) == "23"


async def test_killed_replica_and_killed_meter_lose_no_call_and_no_token(
    client: ServeAdvisorClient, folder: Path
) -> None:
    """SIGKILL of a replica, then of the ledger's owner, with 64 calls in flight."""
    asking = [asyncio.create_task(client.ask(sums(f"k{i}"))) for i in range(CALLS)]
    await asyncio.sleep(0.4)
    await asyncio.to_thread(_kill, "advisor")
    await asyncio.sleep(0.3)
    await asyncio.to_thread(_kill, "meter")
    replies = await asyncio.wait_for(asyncio.gather(*asking, return_exceptions=True), 240)
    # A lost attempt may have taken its trajectory's budget: the call fails then, and is not paid twice.
    for reply in replies:
        if isinstance(reply, AdvisorError):
            assert reply.kind == "retry_over_budget"
        else:
            assert isinstance(reply, AdvisorReply) and reply.text == "23"
    assert client.metrics()["resent"] >= 1
    repeated = await asyncio.gather(*(client.ask(sums(f"k{i}")) for i in range(8)), return_exceptions=True)
    for before, after in zip(replies, repeated, strict=False):
        assert type(before) is type(after) and getattr(before, "text", "") == getattr(after, "text", "")
    book, log = read_book(folder / "ledger.jsonl"), read_advisor_log(folder / "log.jsonl")
    assert book.epoch == 2
    result = reconcile(book, log)
    assert result.exact, result
    for i in range(CALLS):
        assert book.standing("trajectory", client.scope, f"k{i}") <= 500


async def test_h11_64_callers_of_an_endpoint_that_misbehaves(ray_cluster: None, tmp_path: Path) -> None:
    """One process, an HTTP advisor: lost connections, refusals, missing usage; every call sent twice."""
    paid = PaidAdvisor(faults=("ok", "ok", "cut", "busy", "no_usage", "late"))
    config = config_for(paid.url, per_run=70_000.0, timeout_s=60.0)
    client = await asyncio.to_thread(
        deploy_advisor, config, ledger_path=tmp_path / "ledger.jsonl", timeout_s=240
    )
    twice = [question(number) for number in range(CALLS)] * 2
    replies = await asyncio.wait_for(
        asyncio.gather(*(client.ask(q) for q in twice), return_exceptions=True), 280
    )
    for first, second in zip(replies[:CALLS], replies[CALLS:], strict=True):
        assert type(first) is type(second)
        if isinstance(first, AdvisorReply) and isinstance(second, AdvisorReply):
            assert first.text == second.text
    totals = (await asyncio.to_thread(client.totals))["advisor"]
    await asyncio.to_thread(shutdown_advisor, config)
    book = read_book(tmp_path / "ledger.jsonl")
    result = reconcile(book, paid.log)
    assert result.exact, result
    assert totals.calls == CALLS and book.standing("run") <= 70_000 - 1
    paid.close()


def test_what_cannot_start_is_named(client: ServeAdvisorClient, folder: Path) -> None:
    taken = arithmetic("second owner")
    with pytest.raises(PlacementError, match=r"(?s)'second owner'.*in use by another process"):
        deploy_advisor(taken, ledger_path=folder / "ledger.jsonl", timeout_s=240)
    shutdown_advisor(taken)
    with pytest.raises(ConfigError, match=r"ask\.judge\.kind"):
        build_advisor_app(AskConfig(advisor=taken.advisor), ledger_path=folder / "l")
    with pytest.raises(ConfigError, match="absolute"):
        build_advisor_app(taken, ledger_path="ledger.jsonl")


def _kill(deployment: str) -> None:
    app = app_name("two replicas")
    for process in psutil.process_iter(["cmdline"]):
        title = " ".join(process.info["cmdline"] or [])
        if f":{app}:{deployment}" in title and "ServeReplica" in title:
            process.kill()
            return
    raise AssertionError(f"no replica of {deployment} found")
