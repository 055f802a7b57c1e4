"""The judge of programs: runs a solution on a problem's tests and says of each what became of it.

Ray-free. It needs something that runs code in a sandbox's child (:class:`ProgramRunner`): a pool, or the
client of pool actors. The rules are written down in docs/code-tasks.md. What holds for all of them:

* expected answers never enter the process in which the solution runs; they are compared with what came out
  of it, here (standard output), or in a second child in which nothing of the solution runs (values, tests
  as code);
* what the solution's process says of itself decides nothing but which failure a failure is called;
* a failure of the sandbox raises, and is never a verdict.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from apprentice.config.programs import ProgramsConfig
from apprentice.errors import SandboxError
from apprentice.sandbox.isolation import Limits
from apprentice.sandbox.outcome import CellResult, Entry, Outcome
from apprentice.sandbox.program import STACK_BYTES
from apprentice.verify.execution_plan import MARK, Plan, asserts_request, calls_request, plan_of
from apprentice.verify.stdout import stdout_agrees

__all__ = ["ExecutionJudge", "Judgement", "PoolRunner", "ProgramRunner", "TestResult", "TestVerdict"]

_MAX_ROUNDS = 64
_TESTS_WALL_S, _TESTS_CPU_S = 60.0, 30.0  # of the child that runs tests as code
_LOAD_CALLS = 1  # loading a solution may take as long as a call


class TestVerdict(StrEnum):
    """What became of one test."""

    __test__ = False  # not a test case, whatever its name says to pytest

    PASSED = "passed"
    WRONG_ANSWER = "wrong_answer"
    RUNTIME_ERROR = "runtime_error"
    """An exception, a signal, an exit code other than 0, or an end by ``os._exit``."""
    COMPILE_ERROR = "compile_error"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    OUTPUT_LIMIT = "output_limit"
    NOT_RUN = "not_run"
    """An earlier test failed, or the problem's time was used up."""
    TEST_ERROR = "test_error"
    """The test itself cannot be run: no solution can pass it."""


@dataclass(frozen=True, slots=True)
class TestResult:
    """One test: its verdict, why, and CPU and wall seconds where they are known."""

    __test__ = False

    verdict: TestVerdict
    reason: str = ""
    cpu_s: float = 0.0
    wall_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Judgement:
    """All tests of a problem. ``runs``: children that were started."""

    tests: tuple[TestResult, ...]
    runs: int = 0

    @property
    def passed(self) -> bool:
        """Whether there are tests and all passed."""
        return bool(self.tests) and self.count == len(self.tests)

    @property
    def count(self) -> int:
        """Tests that passed."""
        return sum(test.verdict is TestVerdict.PASSED for test in self.tests)

    @property
    def first_failure(self) -> tuple[int, TestResult] | None:
        """Number, from 1, and result of the first test that did not pass."""
        return next(
            ((i, t) for i, t in enumerate(self.tests, 1) if t.verdict is not TestVerdict.PASSED), None
        )


class ProgramRunner(Protocol):
    """Runs code in a sandbox's child."""

    async def run_program(self, code: str, *, entry: Entry, stdin: bytes, limits: Limits) -> CellResult:
        """One run, with a deadline of its own.

        Raises:
            SandboxError: the sandbox failed past its retries; says nothing of the code.
        """
        ...


class PoolRunner:
    """A :class:`ProgramRunner` on a pool in this process."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    async def run_program(self, code: str, *, entry: Entry, stdin: bytes, limits: Limits) -> CellResult:
        """See :class:`ProgramRunner`."""
        result: CellResult = await self._pool.run(code, stdin=stdin, limits=limits, entry=entry)
        if result.outcome.from_infrastructure:
            raise SandboxError(f"{result.outcome}: {result.detail}")
        return result


class ExecutionJudge:
    """Judges programs by tests.

    Args:
        runner: where they run.
        config: limits, and whether to go on after a failure.
    """

    def __init__(self, runner: ProgramRunner, config: ProgramsConfig | None = None) -> None:
        self._runner, self._config = runner, config or ProgramsConfig()

    async def judge(self, source: str, tests: str) -> Judgement:
        """Run ``source`` on the tests of a problem (:meth:`apprentice.data.code.CodeTests.text`).

        Raises:
            SandboxError: the sandbox failed past its retries.
            DataError: ``tests`` is no such text.
        """
        case = _Case(self._runner, self._config, plan_of(tests), source)
        match case.plan.tests.style:
            case "stdin":
                results = await case.by_stdin()
            case "call":
                results = await case.by_calls()
            case "program":
                results = await case.by_asserts()
        return Judgement(tuple(results), case.runs)


class _Case:
    """One solution on one problem."""

    def __init__(self, runner: ProgramRunner, config: ProgramsConfig, plan: Plan, source: str) -> None:
        self.plan, self.runs = plan, 0
        self._runner, self._config, self._source = runner, config, source
        self._spent_s = 0.0

    # ---- standard input and output ----

    async def by_stdin(self) -> list[TestResult]:
        results: list[TestResult] = []
        for stdin, expected in zip(self.plan.inputs, self.plan.tests.outputs, strict=True):
            if self._over(results):
                break
            done = await self._run(self._source, "program", stdin, self._limits())
            failure = self._failure(done)
            if failure is None:
                agrees, why = stdout_agrees(expected, done.stdout)
                failure = None if agrees else TestResult(TestVerdict.WRONG_ANSWER, why)
            verdict, reason = (
                (TestVerdict.PASSED, "") if failure is None else (failure.verdict, failure.reason)
            )
            results.append(TestResult(verdict, reason, done.cpu_s, done.wall_s))
        return results + self._not_run(self.plan.count - len(results))

    # ---- arguments and results ----

    async def by_calls(self) -> list[TestResult]:
        known = await self._call(self.plan.calls)
        if all("value" not in item["result"] for item in known):
            record = {"tests": [{"ok": False, "call": i} for i in range(len(known))]}
        else:
            done, found = await self._run_tests(known)
            if found is None:  # e.g. comparing the results takes all memory
                return [_unchecked(done), *self._not_run(self.plan.count - 1)]
            record = found
        return [self._test(item, known) for item in record["tests"]]

    # ---- tests as code ----

    async def by_asserts(self) -> list[TestResult]:
        known: list[dict[str, Any]] = []
        for _ in range(_MAX_ROUNDS):
            done, record = await self._run_tests(known)
            if record is None:
                return [_unchecked(done) if known else _broken(f"the tests end in {done.outcome}")]
            if not record["pending"]:
                return self._asserted(record, known)
            if record["calls"] == [item["call"] for item in known]:
                break
            known = await self._call(tuple(record["calls"]))
        return [_broken("the tests do not make the same calls each time")]

    def _asserted(self, record: dict[str, Any], known: list[dict[str, Any]]) -> list[TestResult]:
        results = [self._test(item, known) for item in record["tests"]]
        if record["broken"]:
            if not record["calls"]:
                return [_broken(record["broken"])]
            results.append(TestResult(TestVerdict.WRONG_ANSWER, f"the tests ended in {record['broken']}"))
        return results or [_broken("the tests test nothing")]

    def _test(self, item: dict[str, Any], known: Sequence[dict[str, Any]]) -> TestResult:
        number = item.get("call")
        line = f"line {item['line']}: " if item.get("line") else ""
        used = known[number]["result"] if number is not None and number < len(known) else {}
        times = (used.get("cpu_s", 0.0), used.get("wall_s", 0.0))
        if item["ok"]:
            return TestResult(TestVerdict.PASSED)
        if number is None:
            return TestResult(TestVerdict.WRONG_ANSWER, line + item.get("why", ""))
        if "ended" in used:
            return TestResult(TestVerdict(used["ended"]), line + used["reason"], *times)
        kind, message = str(used.get("type", "")), str(used.get("message", ""))
        verdict = TestVerdict.MEMORY if kind == "MemoryError" else TestVerdict.RUNTIME_ERROR
        return TestResult(verdict, f"{line}{kind}: {message}"[:300], *times)

    async def _run_tests(self, known: list[dict[str, Any]]) -> tuple[CellResult, dict[str, Any] | None]:
        limits = self._limits(cpu_s=_TESTS_CPU_S, wall_s=_TESTS_WALL_S)
        done = await self._run("", "asserts", asserts_request(self.plan, known), limits)
        records = _records(done.stdout)
        return done, records[0] if records else None

    # ---- calls in the solution's process ----

    async def _call(self, calls: tuple[dict[str, Any], ...]) -> list[dict[str, Any]]:
        """Make the calls, in one process as long as it lives; each with its result, or what ended the
        process."""
        config = self._config
        results: list[dict[str, Any]] = []
        while len(results) < len(calls):
            left = len(calls) - len(results)
            budget = config.problem_s - self._spent_s
            if budget <= 0 or (results and config.stop_at_first_failure):
                why = "the time for the problem is used up" if budget <= 0 else "an earlier test failed"
                results += [{"ended": TestVerdict.NOT_RUN, "reason": why}] * left
                break
            share = left + _LOAD_CALLS
            limits = self._limits(
                cpu_s=min(config.test_cpu_s * share, budget), wall_s=min(config.test_wall_s * share, budget)
            )
            stdin = calls_request(
                self.plan, calls, len(results), call_s=config.test_wall_s, call_cpu_s=config.test_cpu_s
            )
            done = await self._run(self._source, "calls", stdin, limits)
            loaded, *records = _records(done.stdout) or [None]
            records = [_clean(record) for record in records]
            results += [self._result(record) for record in records[:left]]
            if loaded is None:
                results += [self._ended(done, 0.0)] * left
            elif len(records) < left and not (records and records[-1]["stopped"]):
                used = _number(loaded.get("wall_s")) + sum(r["wall_s"] for r in records)
                results.append(self._ended(done, used))
        return [{"call": call, "result": result} for call, result in zip(calls, results, strict=True)]

    def _result(self, record: dict[str, Any]) -> dict[str, Any]:
        if record["cpu_s"] > self._config.test_cpu_s:
            return {"ended": TestVerdict.TIMEOUT, "reason": self._over_time(), **_times(record)}
        return record

    def _ended(self, done: CellResult, before_s: float) -> dict[str, Any]:
        """What ended the process in the middle of a call, or while the solution was loaded."""
        failure = self._failure(done) or TestResult(TestVerdict.RUNTIME_ERROR, "the process ended early")
        # The watch within the process ends it with exit code 1.
        if done.outcome is Outcome.EARLY_EXIT and done.wall_s - before_s >= 0.95 * self._config.test_wall_s:
            failure = TestResult(TestVerdict.TIMEOUT, f"longer than {self._config.test_wall_s:g} s")
        return {"ended": failure.verdict, "reason": failure.reason}

    # ---- runs ----

    async def _run(self, code: str, entry: Entry, stdin: bytes, limits: Limits) -> CellResult:
        self.runs += 1
        started = time.monotonic()
        done = await self._runner.run_program(code, entry=entry, stdin=stdin, limits=limits)
        # Time in a queue is nobody's fault.
        self._spent_s += max(0.0, min(done.wall_s, time.monotonic() - started))
        return done

    def _limits(self, cpu_s: float | None = None, wall_s: float | None = None) -> Limits:
        config = self._config
        return Limits(
            wall_s=config.test_wall_s if wall_s is None else wall_s,
            cpu_s=config.test_cpu_s if cpu_s is None else cpu_s,
            memory_bytes=(config.memory_mib << 20) + STACK_BYTES,
            output_bytes=config.output_mib << 20,
        )

    def _failure(self, done: CellResult) -> TestResult | None:
        """What the sandbox says of a run that did not end well."""
        config, detail = self._config, done.detail
        if done.cpu_s > config.test_cpu_s and done.outcome in (Outcome.OK, Outcome.EXIT, Outcome.ERROR):
            return TestResult(TestVerdict.TIMEOUT, self._over_time())
        match done.outcome:
            case Outcome.OK:
                return None
            case Outcome.EXIT:
                return None if detail == "0" else TestResult(TestVerdict.RUNTIME_ERROR, f"exit code {detail}")
            case Outcome.ERROR:
                last = done.traceback.rstrip().rpartition("\n")[2]
                return TestResult(TestVerdict.RUNTIME_ERROR, (last or detail)[:300])
            case Outcome.SYNTAX_ERROR:
                return TestResult(TestVerdict.COMPILE_ERROR, detail)
            case Outcome.EARLY_EXIT:
                return TestResult(
                    TestVerdict.RUNTIME_ERROR, f"the process ended early with exit code {detail}"
                )
            case Outcome.TIMEOUT_CPU:
                return TestResult(TestVerdict.TIMEOUT, self._over_time())
            case Outcome.TIMEOUT_WALL:
                return TestResult(TestVerdict.TIMEOUT, f"longer than {done.limits.wall_s:g} s")
            case Outcome.MEMORY_LIMIT | Outcome.KILLED_OOM:
                return TestResult(TestVerdict.MEMORY, f"more than {config.memory_mib} MiB")
            case Outcome.OUTPUT_LIMIT:
                return TestResult(TestVerdict.OUTPUT_LIMIT, f"more than {config.output_mib} MiB")
            case Outcome.CRASH:
                return TestResult(TestVerdict.RUNTIME_ERROR, detail)
        raise SandboxError(f"{done.outcome}: {detail}")

    def _over_time(self) -> str:
        return f"more than {self._config.test_cpu_s:g} s of CPU time"

    def _over(self, results: list[TestResult]) -> bool:
        """Whether the remaining tests are left out."""
        if self._spent_s >= self._config.problem_s:
            return True
        failed = bool(results) and results[-1].verdict is not TestVerdict.PASSED
        # A program that does not compile does so on no input.
        return failed and (
            self._config.stop_at_first_failure or results[-1].verdict is TestVerdict.COMPILE_ERROR
        )

    def _not_run(self, count: int) -> list[TestResult]:
        used_up = self._spent_s >= self._config.problem_s
        why = "the time for the problem is used up" if used_up else "an earlier test failed"
        return [TestResult(TestVerdict.NOT_RUN, why)] * count


def _records(output: str) -> list[Any]:
    """The records in what a child printed; lines that are none are left out."""
    found = []
    for line in output.split("\n"):
        if line.startswith(MARK):
            try:
                record = json.loads(line[len(MARK) :])
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict):
                found.append(record)
    return found


def _number(value: Any) -> float:
    return float(value) if type(value) in (int, float) and 0 <= value < 1e6 else 0.0


def _clean(record: dict[str, Any]) -> dict[str, Any]:
    """A record of a call with what it may have; a solution can have written it."""
    clean: dict[str, Any] = {name: _number(record.get(name)) for name in ("cpu_s", "wall_s")}
    clean["stopped"] = record.get("stopped") is True  # by its own watch: the last one of its process
    if "value" in record:
        changed = record.get("changed")
        return clean | {"value": record["value"], "changed": changed if isinstance(changed, dict) else {}}
    texts = {name: str(record.get(name, ""))[:500] for name in ("error", "type", "message")}
    return clean | texts


def _times(record: dict[str, Any]) -> dict[str, Any]:
    return {name: record[name] for name in ("cpu_s", "wall_s") if name in record}


def _broken(reason: str) -> TestResult:
    return TestResult(TestVerdict.TEST_ERROR, reason)


def _unchecked(done: CellResult) -> TestResult:
    return TestResult(
        TestVerdict.WRONG_ANSWER, f"checking the results ended in {done.outcome} {done.detail}".strip()
    )
