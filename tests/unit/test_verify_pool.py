"""Workers that can be killed: any thread, any loop; a bad sample costs that sample only."""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from apprentice.data.problem import Problem
from apprentice.rollout.ports import Verdict, Verifier
from apprentice.verify import RuleVerifier
from apprentice.verify.pool import WorkerPool
from apprentice.verify.problems import ProblemVerifier

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def verifier() -> Iterator[RuleVerifier]:
    made = RuleVerifier(workers=2, timeout_s=5)
    yield made
    made.close()


def test_it_is_a_verifier(verifier: RuleVerifier) -> None:
    port: Verifier = ProblemVerifier(verifier)
    problem = Problem("p", "half?", "0.5")
    assert asyncio.run(port.verify(r"so \boxed{\frac{2}{4}}", problem)) == Verdict(
        "correct", r"\frac{2}{4}", "by value"
    )


@pytest.mark.parametrize(
    ("response", "gold", "verdict"),
    [
        (r"\boxed{5}", "5", "correct"),
        (r"\boxed{x=5}", "5", "correct"),
        (r"\boxed{6}", "5", "wrong"),
        (r"\boxed{\frac{1}{", "5", "no_answer"),
        (r"\boxed{}", "5", "no_answer"),
        ("<think> 5", "5", "no_answer"),
        (r"\boxed{x \foo{3} +}", "5", "unparseable"),
        (r"\boxed{2}", "taking the empty card", "unparseable"),
        (r"\boxed{\int_0^1 x \, dx}", r"\frac{1}{2}", "correct"),
        (r"\boxed{\int_0^1 x \, dx}", r"\frac{1}{3}", "wrong"),
        (r"\boxed{\sum_{k=1}^{4} k}", "10", "correct"),
    ],
)
def test_verdicts(verifier: RuleVerifier, response: str, gold: str, verdict: str) -> None:
    found = verifier.verify_batch([(response, gold)])[0]
    assert found.verdict == verdict
    assert found.reason
    assert found.correct == (verdict == "correct")


def test_a23_works_from_any_thread_and_from_several_loops(verifier: RuleVerifier) -> None:
    cases = [(r"The answer is \boxed{\frac{1}{3}}", r"\frac{1}{3}"), (r"\boxed{7.41\%}", r"7.41\%")]
    results: list[Verdict] = []

    def in_a_thread() -> None:
        results.extend(verifier.verify_batch(cases))
        results.extend(asyncio.run(both()))

    async def both() -> list[Verdict]:
        return list(await asyncio.gather(*(verifier.verify(*case) for case in cases)))

    threads = [threading.Thread(target=in_a_thread) for _ in range(4)]
    for thread in threads:
        thread.start()
    in_a_thread()
    for thread in threads:
        thread.join()
    assert len(results) == 5 * 4
    assert all(r.correct for r in results)


def test_a25_huge_powers_are_wrong_within_the_limit(verifier: RuleVerifier) -> None:
    start = time.monotonic()
    hostile = ["(13/10)^{6472416997}", "10^{10^{10}}", "9^{9^{9^{9}}}", "10^{10}!!"]
    verdicts = verifier.verify_batch([(rf"\boxed{{{answer}}}", "7") for answer in hostile])
    assert [v.verdict for v in verdicts] == ["wrong"] * 4
    assert time.monotonic() - start < 5


def test_order_of_a_batch_is_kept(verifier: RuleVerifier) -> None:
    pairs = [(rf"\boxed{{\frac{{{i}}}{{7}}}}", rf"\frac{{{2 * (i + i % 2)}}}{{14}}") for i in range(300)]
    assert [v.correct for v in verifier.verify_batch(pairs)] == [i % 2 == 0 for i in range(300)]


def slow_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timeout_s: float) -> WorkerPool:
    """A pool whose worker hangs on ``hang``, eats memory on ``eat`` and dies on ``die``."""
    (tmp_path / "stub_worker.py").write_text(
        "import json, os, resource, sys, time\n"
        "resource.setrlimit(resource.RLIMIT_AS, (256 << 20, 256 << 20))\n"
        "print('ready', flush=True)\n"
        "for line in sys.stdin:\n"
        "    request = json.loads(line)\n"
        "    if request['answer'] == 'hang': time.sleep(60)\n"
        "    if request['answer'] == 'die': os._exit(3)\n"
        "    if request['answer'] == 'eat': bytearray(1 << 30)\n"
        "    reply = {'verdict': 'correct', 'answer': request['answer'], 'reason': 'r'}\n"
        "    print(json.dumps(reply), flush=True)\n"
    )
    import subprocess
    import sys

    real = subprocess.Popen

    def start(command: list[str], **settings: object) -> subprocess.Popen[bytes]:
        stub = [sys.executable, str(tmp_path / "stub_worker.py")]
        return real(stub, **settings)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr("apprentice.verify.pool.subprocess.Popen", start)
    return WorkerPool(1, timeout_s, 256)


@pytest.mark.parametrize("culprit", ["hang", "die", "eat"])
def test_a_sample_that_hangs_dies_or_eats_memory_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, culprit: str
) -> None:
    pool = slow_pool(tmp_path, monkeypatch, timeout_s=1.0)
    answers = [f"a{i}" for i in range(40)]
    answers[5] = answers[6] = answers[30] = culprit
    replies = pool.run([{"gold": "g", "answer": a} for a in answers])
    pool.close()
    assert [r["verdict"] for r in replies] == ["timeout" if a == culprit else "correct" for a in answers]
    assert [r["answer"] for r in replies] == answers
    reason = replies[5]["reason"]
    assert ("no verdict within 1 s" in reason) if culprit == "hang" else ("memory or crashed" in reason)


def test_big_requests_do_not_deadlock_the_pipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = slow_pool(tmp_path, monkeypatch, timeout_s=20.0)
    requests = [{"gold": "g", "answer": "x" * (300_000 if i % 3 == 0 else 20_000)} for i in range(30)]
    replies = pool.run(requests)
    pool.close()
    assert [len(r["answer"]) for r in replies] == [len(str(r["answer"])) for r in requests]


def test_a_real_worker_is_killed_at_its_time_limit() -> None:
    verifier = RuleVerifier(workers=1, timeout_s=0.4)
    verifier.verify_batch([(r"\boxed{\int_0^1 x \, dx}", "2")])  # imports done
    start = time.monotonic()
    # Read by math-verify only, and far too much work for sympy.
    hostile = r"\boxed{\int_0^1 \frac{x^{97} \sin^{40} x}{(x^3+1)^{17} (x^5+x+1)^{13}} \, dx}"
    verdicts = verifier.verify_batch([(hostile, "2"), (r"\boxed{\frac{4}{2}}", "2")])
    verifier.close()
    assert [v.verdict for v in verdicts] == ["timeout", "correct"]
    assert time.monotonic() - start < 10


def test_a_closed_verifier_refuses_and_leaves_no_process() -> None:
    verifier = RuleVerifier(workers=1)
    verifier.verify_batch([(r"\boxed{\frac{1}{2}}", "0.5")])
    worker = verifier._pool._workers[0]._process
    assert worker is not None
    verifier.close()
    verifier.close()
    assert worker.returncode is not None
    with pytest.raises(RuntimeError, match="closed"):
        verifier.verify_batch([(r"\boxed{\frac{1}{2}}", "0.5")])


def test_closing_ends_a_batch_that_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = slow_pool(tmp_path, monkeypatch, timeout_s=60.0)
    replies: list[dict[str, object]] = []
    thread = threading.Thread(
        target=lambda: replies.extend(pool.run([{"gold": "g", "answer": a} for a in ("a", "hang", "b")]))
    )
    thread.start()
    time.sleep(1.0)
    pool.close()
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert [r["verdict"] for r in replies] == ["correct", "timeout", "timeout"]
    assert pool._workers[0]._process is None


def test_a_verifier_that_is_dropped_takes_its_workers_along() -> None:
    verifier = RuleVerifier(workers=1)
    verifier.verify_batch([(r"\boxed{\frac{1}{2}}", "0.5")])
    process = verifier._pool._workers[0]._process
    assert process is not None
    del verifier
    gc.collect()
    assert process.wait(timeout=10) is not None


def test_starting_is_light_and_verdicts_cross_processes() -> None:
    start = time.monotonic()
    verifier = RuleVerifier(workers=8)
    assert asyncio.run(verifier.verify(r"\boxed{72}", "72")).correct
    assert time.monotonic() - start < 0.5
    assert all(w._process is None for w in verifier._pool._workers)  # plain numbers need no worker
    verifier.close()
    verdict = Verdict("wrong", "3", "numbers")
    assert pickle.loads(pickle.dumps(verdict)) == verdict


@pytest.mark.parametrize("settings", [{"workers": 0}, {"timeout_s": 0}])
def test_impossible_settings_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        RuleVerifier(**settings)
