"""Verification: cases right against the rules of other projects, and verifications a second on one core."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import resource
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from apprentice.verify import RuleVerifier
from driver.bench.verification_cases import CASES, Case
from driver.bench.verification_rules import RULES

__all__ = ["measure_verification"]

Pairs = list[tuple[str, str]]
_DEADLINE_S = 10.0  # of one case with another project's rule
_START_S = 120.0
_MEMORY_BYTES = 2 << 30
_REPEATS = 3
_HOSTILE = (r"\boxed{10^{10^{10}}}", r"\boxed{(13/10)^{6472416997}}", "{" * 1_000_000, r"\boxed{" * 150_000)
_REASONING = (
    "First we add what is known, then we divide it by the number of parts, which gives the next step. " * 15
)


def measure_verification() -> list[dict[str, Any]]:
    """Rows of the benchmark's table."""
    return [*_cases_right(), *_speeds()]


# ---------------------------------------------------------------- cases


def _cases_right() -> list[dict[str, Any]]:
    verifier = RuleVerifier()
    verdicts = verifier.verify_batch([(case.text(), case.gold) for case in CASES])
    verifier.close()
    ours = sum(v.correct == case.right for v, case in zip(verdicts, CASES, strict=True))
    rows = []
    for name in RULES:
        answers = run_rule(name, CASES)
        theirs = sum(answer is case.right for answer, case in zip(answers, CASES, strict=True))
        rows.append(
            {
                "name": f"verification: cases right, against {name}",
                "value": ours,
                "unit": f"of {len(CASES)}",
                "reference": theirs,
                "ratio": ours / theirs if theirs else None,
                "target": 1.0,
                "meets": ours >= theirs,
            }
        )
    return rows


def run_rule(name: str, cases: Sequence[Case], deadline_s: float = _DEADLINE_S) -> list[bool | None]:
    """What a rule says of each case; None where it raised, or was killed at its limit of time or memory.

    Raises:
        RuntimeError: its process does not start: nothing can be said of the rule.
    """
    answers: list[bool | None] = []
    context = multiprocessing.get_context("spawn")
    while len(answers) < len(cases):
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, name, cases[len(answers) :]), daemon=True)
        process.start()
        theirs.close()
        try:
            if not ours.poll(_START_S):
                raise RuntimeError(f"{name}: its process did not start within {_START_S:g} s")
            ours.recv()
        except EOFError as error:
            raise RuntimeError(f"{name}: its process ended before its first case") from error
        try:
            while len(answers) < len(cases):
                if not ours.poll(deadline_s):
                    raise EOFError
                answers.append(ours.recv())
        except EOFError:  # hung, or dead; the next process goes on with the next case
            answers.append(None)
        process.kill()
        process.join()
        ours.close()
    return answers


def _serve(connection: Connection, name: str, cases: Sequence[Case]) -> None:
    import math_verify  # noqa: F401  # seconds that are no case's

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    connection.send("ready")
    for case in cases:
        try:
            connection.send(bool(RULES[name](case)))
        # Whatever a rule raises for an answer, it gave no verdict on it.
        except Exception:  # noqa: BLE001
            connection.send(None)


# ---------------------------------------------------------------- speed


def _speeds() -> list[dict[str, Any]]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})  # the verifier's worker inherits it: everything on one core
    try:
        golds, where = _math_golds()
        normal = _math_pairs(golds, 2000)
        rng = random.Random(0)
        hostile = list(normal)
        for number, place in enumerate(rng.sample(range(len(normal)), len(normal) // 100)):
            hostile[place] = (_HOSTILE[number % len(_HOSTILE)], "7")
        small = _gsm8k_pairs(4000)
        # The first run of each: later ones find texts in the caller's caches.
        seconds_small, seconds = _seconds(small, repeats=1), _seconds(normal, repeats=1)
        slower = _seconds(hostile) / _seconds(normal)
    finally:
        os.sched_setaffinity(0, before)
    return [
        _rate("verification: GSM8K-style answers on one core", len(small) / seconds_small, 2000.0),
        _rate(f"verification: {where} on one core", len(normal) / seconds, 200.0),
        {
            "name": "verification: batch with 1 % hostile samples, times slower",
            "value": slower,
            "unit": "x",
            "reference": 1.0,
            "ratio": slower,
            "target": 1.5,
            "meets": slower <= 1.5,
        },
    ]


def _rate(name: str, value: float, target: float) -> dict[str, Any]:
    return {
        "name": name,
        "value": value,
        "unit": "1/s",
        "reference": None,
        "ratio": None,
        "target": target,
        "meets": value >= target,
    }


def _seconds(pairs: Pairs, repeats: int = _REPEATS) -> float:
    """The fastest of a few runs, each with a worker that has seen none of the pairs."""
    best = float("inf")
    for _ in range(repeats):
        verifier = RuleVerifier()
        verifier.verify_batch([(rf"\boxed{{q^{{{i}}} + 1}}", f"1+q^{i}") for i in range(20)])  # imports
        began = time.perf_counter()
        verifier.verify_batch(pairs)
        best = min(best, time.perf_counter() - began)
        verifier.close()
    return best


def _gsm8k_pairs(count: int) -> Pairs:
    """Numbers as in grade-school problems: mostly right and bare, some wrong, some with money or a unit."""
    rng = random.Random(0)
    pairs = []
    for _ in range(count):
        gold = rng.choice((rng.randint(1, 99), rng.randint(100, 9_999), rng.randint(10_000, 500_000)))
        form = rng.choices(("{}", "{:,}", r"\${}", "{}.00", r"{} \text{{ dollars}}"), (70, 10, 8, 4, 8))[0]
        answer = form.format(gold if rng.random() < 0.7 else gold + rng.randint(1, 9))
        pairs.append((f"{_REASONING}The answer is $\\boxed{{{answer}}}$.", str(gold)))
    return pairs


def _math_pairs(golds: Sequence[str], count: int) -> Pairs:
    """Each gold against itself, another spelling, an expression of its value and another gold, in turn."""
    pairs = []
    for number in range(count):
        gold, other = golds[number // 4 % len(golds)], golds[(number * 7 + 1) % len(golds)]
        spelled = gold.replace(r"\frac", r"\dfrac").replace("+", " + ").replace(",", ", ")
        # Prose, lists and relations have no sum; for them this is one more wrong answer.
        answer = (gold, spelled if spelled != gold else f"{gold} ", f"{gold} + 5 - 5", other)[number % 4]
        pairs.append((f"{_REASONING}The answer is $\\boxed{{{answer}}}$.", gold))
    return pairs


def _math_golds() -> tuple[list[str], str]:
    """The golds of MATH-500 where the development files are at hand; else those of the cases."""
    folder = os.environ.get("APPRENTICE_SHARED") or Path(__file__).resolve().parents[3] / "shared"
    path = Path(folder) / "data" / "math500.jsonl"
    if path.is_file():
        lines = path.read_text(encoding="utf-8").split("\n")
        return [str(json.loads(line)["answer"]) for line in lines if line], "golds of MATH-500"
    return [case.gold for case in CASES], "golds in MATH's style (MATH-500 is not at hand)"
