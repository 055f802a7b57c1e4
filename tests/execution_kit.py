"""A judge on a real sandbox pool, for tests of the judge: one pool for a test module, one loop for a call."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from apprentice.config.programs import ProgramsConfig
from apprentice.data.code import CodeTests
from apprentice.sandbox.pool import SandboxPool
from apprentice.verify.execution import ExecutionJudge, Judgement, PoolRunner

__all__ = ["JudgeBench", "judge_bench"]


class JudgeBench:
    """Judges from synchronous tests; the pool lives in a loop of its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pool: SandboxPool) -> None:
        self._loop, self.pool = loop, pool

    def judge(self, source: str, tests: CodeTests, **config: Any) -> Judgement:
        judge = ExecutionJudge(
            PoolRunner(self.pool), ProgramsConfig(**{"stop_at_first_failure": False, **config})
        )
        return self._loop.run_until_complete(judge.judge(source, tests.text()))

    def verdicts(self, source: str, tests: CodeTests, **config: Any) -> list[str]:
        return [str(test.verdict) for test in self.judge(source, tests, **config).tests]

    def stdin(self, source: str, stdin: str, expected: str, **config: Any) -> Judgement:
        return self.judge(source, CodeTests("stdin", (stdin,), (expected,)), **config)


@contextmanager
def judge_bench(workers: int = 2) -> Iterator[JudgeBench]:
    loop = asyncio.new_event_loop()
    pool = SandboxPool(workers)
    loop.run_until_complete(pool.start())
    try:
        yield JudgeBench(loop, pool)
    finally:
        loop.run_until_complete(pool.close())
        loop.close()
