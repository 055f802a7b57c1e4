"""The verifier that rewards and scores are made of: extract, compare, and never take the caller down."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from apprentice.rollout.ports import Verdict
from apprentice.verify.compare import compare_quickly
from apprentice.verify.extract import Mode, extract_answer
from apprentice.verify.pool import WorkerPool

__all__ = ["RuleVerifier"]


class RuleVerifier:
    """Checks responses against golds by the rules of docs/verification.md.

    Plain numbers and equal texts are decided at once in the caller; everything else in ``workers`` child
    processes with limits on time and memory, which start when first needed. Usable from any thread.

    Args:
        workers: child processes.
        timeout_s: longest time for one comparison; then the verdict is ``timeout``.
        mode: ``fallback`` also takes an ``Answer:`` line, ``strict`` only a box.
        memory_mib: address space of a worker.
    """

    def __init__(
        self, workers: int = 1, timeout_s: float = 5.0, mode: Mode = "fallback", memory_mib: int = 2048
    ) -> None:
        if workers < 1 or timeout_s <= 0:
            raise ValueError(f"workers must be >= 1 and timeout_s > 0, got {workers} and {timeout_s}")
        self._arguments = (workers, timeout_s, mode, memory_mib)
        self._mode: Mode = mode
        self._pool = WorkerPool(workers, timeout_s, memory_mib)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="verify")

    def __reduce__(self) -> tuple[Any, ...]:
        """Picklable: the copy starts workers of its own when it is first asked."""
        return (RuleVerifier, self._arguments)

    async def verify(self, response: str, gold: str) -> Verdict:
        """Extract the answer of ``response`` and compare it with ``gold``. Never raises for bad input."""
        verdict, request = self._at_once(response, gold)
        if verdict is not None:
            return verdict
        loop = asyncio.get_running_loop()
        replies = await loop.run_in_executor(self._threads, self._pool.run, [request])
        return _verdict(replies[0])

    def verify_batch(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        """Verdicts of (response, gold) pairs, in order. Blocks; no event loop needed."""
        verdicts: list[Verdict | None] = []
        requests: list[dict[str, Any]] = []
        for response, gold in pairs:
            verdict, request = self._at_once(response, gold)
            verdicts.append(verdict)
            if verdict is None:
                requests.append(request)
        replies = iter(self._pool.run(requests))
        return [v if v is not None else _verdict(next(replies)) for v in verdicts]

    def _at_once(self, response: str, gold: str) -> tuple[Verdict | None, dict[str, Any]]:
        """A verdict that costs nothing, or the request for a worker."""
        extraction = extract_answer(response, self._mode)
        answer = extraction.answer
        if answer is None:
            return Verdict("no_answer", None, extraction.how), {}
        quick = compare_quickly(gold, answer)
        if quick is not None:
            return Verdict(quick.verdict, answer, quick.reason), {}
        return None, {"gold": gold, "answer": answer}

    def close(self) -> None:
        """End the workers. Verdicts can no longer be asked for."""
        self._pool.close()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _verdict(reply: dict[str, Any]) -> Verdict:
    return Verdict(reply["verdict"], reply["answer"], reply["reason"])
