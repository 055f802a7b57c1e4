"""Experts without a network: worked answers, prompts, retries."""

from __future__ import annotations

import contextlib
import io
import pickle
import random
import subprocess
import sys

import pytest

from apprentice.config.schema import ExpertConfig, VllmBackend, WorkedBackend
from apprentice.data.problem import Problem, WorkedSolution
from apprentice.episodes.actions import CallExpert
from apprentice.errors import ConfigError, ExpertError
from apprentice.experts.engine import Completion, EngineExpert
from apprentice.experts.expert import Expert, make_backend
from apprentice.experts.prompt import Message, build_messages, extract_program, split_reasoning
from apprentice.experts.retry import RetryPolicy, is_retryable_status, total_deadline_s, with_retries
from apprentice.experts.types import BackendFailure, ExpertAnswer, Usage
from apprentice.experts.worked import WorkedExpert

pytestmark = pytest.mark.unit


def problem(i: int, family: str = "sum") -> Problem:
    a, b = 10 + i, 20 + 3 * i
    return Problem(
        f"p{i}",
        f"{a} + {b}?",
        str(a + b),
        family=family,
        worked=WorkedSolution(f"Adding, {a} + {b} = {a + b}.", f"print({a} + {b})"),
    )


PROBLEMS = {p.problem_id: p for p in (problem(i, "sum" if i % 2 else "lcm") for i in range(2000))}


def call(problem_id: str = "p1", tool: str = "think", expert: str = "e") -> CallExpert:
    return CallExpert(expert, tool, problem_id, "Q?", "", "", 128, 0)


def run(program: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(program, "program", "exec"), {})
    return out.getvalue().strip()


# -- worked -------------------------------------------------------------------------------------------------


async def test_a_worked_expert_gives_the_derivation_or_the_program() -> None:
    expert = WorkedExpert("e", WorkedBackend(), PROBLEMS)
    assert (await expert.answer(call(), timeout_s=1)).text == "Adding, 11 + 23 = 34."
    assert (await expert.answer(call(tool="code_interpreter"), timeout_s=1)).text == "print(11 + 23)"


def test_error_rate_and_strengths_are_met_by_family() -> None:
    expert = WorkedExpert("e", WorkedBackend(error_rate=0.3, strengths={"lcm": 0.95}), PROBLEMS)
    for family, right in (("sum", 0.7), ("lcm", 0.95)):
        knows = [expert.knows(p) for p in PROBLEMS.values() if p.family == family]
        # 1000 draws: four standard deviations are 0.058 and 0.028.
        assert abs(sum(knows) / len(knows) - right) < 4 * (right * (1 - right) / len(knows)) ** 0.5


async def test_an_expert_may_be_weaker_at_thinking_than_at_programs() -> None:
    expert = WorkedExpert("e", WorkedBackend(error_rate=0.2, think_strength=0.5), PROBLEMS)
    think, code = (
        {i for i, p in PROBLEMS.items() if expert.knows(p, t)} for t in ("think", "code_interpreter")
    )
    assert think < code, "what it derives it can program, and not the other way round"
    assert abs(len(code) / 2000 - 0.8) < 0.04 and abs(len(think) / 2000 - 0.4) < 0.045
    p = PROBLEMS[min(code - think)]
    assert (await expert.answer(call(p.problem_id, "code_interpreter"), timeout_s=1)).text == p.worked.program
    assert (await expert.answer(call(p.problem_id), timeout_s=1)).text != p.worked.derivation


async def test_ability_is_fixed_per_expert_problem_and_seed() -> None:
    def profile(name: str, seed: int) -> list[bool]:
        expert = WorkedExpert(name, WorkedBackend(error_rate=0.5), PROBLEMS, seed=seed)
        return [expert.knows(p) for p in PROBLEMS.values()]

    assert profile("a", 1) == profile("a", 1)
    for other in (profile("b", 1), profile("a", 2)):
        same = sum(x == y for x, y in zip(profile("a", 1), other, strict=True)) / len(other)
        assert 0.45 < same < 0.55, "another expert or seed is independent"
    one, two = (WorkedExpert("a", WorkedBackend(error_rate=0.5), PROBLEMS, seed=1) for _ in range(2))
    for tool in ("think", "code_interpreter"):
        texts = [(await e.answer(call("p7", tool), timeout_s=1)).text for e in (one, one, two)]
        assert len(set(texts)) == 1, "all rollouts of a group get the same answer"


def test_ability_is_the_same_in_another_process() -> None:
    code = (
        "from apprentice.experts.worked import WorkedExpert, _draw\n"
        "print(repr(_draw('ability', 'a', 'p7', 1)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    from apprentice.experts.worked import _draw

    assert float(done.stdout) == _draw("ability", "a", "p7", 1)


async def test_a_wrong_answer_is_plausible_and_wrong_in_both_tools_alike() -> None:
    expert = WorkedExpert("e", WorkedBackend(error_rate=1.0), PROBLEMS)
    for i in range(200):
        p = PROBLEMS[f"p{i}"]
        assert p.worked is not None
        derivation = (await expert.answer(call(p.problem_id), timeout_s=1)).text
        program = (await expert.answer(call(p.problem_id, "code_interpreter"), timeout_s=1)).text
        printed = run(program)
        assert printed != p.answer and int(printed) >= -1000
        assert derivation.startswith("Adding, ") and derivation.split()[-1].strip(".") == printed


async def test_failures_latency_and_unknown_problems() -> None:
    flaky = WorkedExpert("e", WorkedBackend(failure_rate=0.25), PROBLEMS, seed=3)
    kinds = []
    for _ in range(2000):
        try:
            await flaky.answer(call(), timeout_s=1)
        except BackendFailure as failure:
            assert failure.retryable
            kinds.append(failure.kind)
    assert set(kinds) == {"injected"} and 420 < len(kinds) < 580
    with pytest.raises(BackendFailure) as caught:
        await flaky.answer(call("nope"), timeout_s=1)
    assert (caught.value.kind, caught.value.retryable) == ("no_worked_solution", False)
    slow = WorkedExpert("e", WorkedBackend(latency_s=5.0), PROBLEMS)
    with pytest.raises(BackendFailure) as caught:
        await slow.answer(call(), timeout_s=0.01)
    assert caught.value.kind == "timeout"


# -- prompt -------------------------------------------------------------------------------------------------


def test_the_prompt_of_each_tool() -> None:
    request = CallExpert("e", "think", "p", " What is 2+2? ", "Check the sum.", "I guess 5.", 3072, 1)
    system, user = build_messages(request)
    assert system["content"].startswith("You are an expert") and "3072" in system["content"]
    assert "reasoning or planning step" in system["content"]
    assert (
        user["content"] == "# Problem\nWhat is 2+2?\n\n# Work so far\nI guess 5.\n\n# Request\nCheck the sum."
    )
    assert build_messages(request, include_transcript=False)[1]["content"] == (
        "# Problem\nWhat is 2+2?\n\n# Request\nCheck the sum."
    )
    code = build_messages(CallExpert("e", "code_interpreter", "p", "Q?", "", "", 100, 0))
    assert "```python" in code[0]["content"] and code[1]["content"] == "# Problem\nQ?"
    with pytest.raises(ExpertError, match="search"):
        build_messages(CallExpert("e", "search", "p", "Q?", "", "", 100, 0))


@pytest.mark.parametrize(
    ("reply", "program"),
    [
        ("print(1)", "print(1)"),
        ("```python\nprint(1)\n```", "print(1)"),
        ("Sure:\n```py\nprint(1)\n```\nDone.", "print(1)"),
        ("```\nprint(1)\n```", "print(1)"),
        ("```python\nprint(1)", "print(1)"),
        ("```python\na\n```\nbetter:\n```python\nb\n```", "b"),
        ("```python\nprint(1)\n```\nOutput:\n```\n1\n```", "print(1)"),
        ("```python\nprint('```')\n```", "print('```')"),
        ("  ```python\n  x = 1\n  ```", "  x = 1"),
        ("", ""),
    ],
)
def test_the_program_in_a_reply(reply: str, program: str) -> None:
    assert extract_program(reply) == program
    assert extract_program(extract_program(reply)) == program


def test_reasoning_inside_a_reply() -> None:
    assert split_reasoning("plain") == ("", "plain", True)
    assert split_reasoning("<think>a</think>\n\nb") == ("a", "b", True)
    assert split_reasoning("<think>a") == ("a", "", False)
    assert split_reasoning("a</think>b") == ("a", "b", True)


# -- retries ------------------------------------------------------------------------------------------------


def fail(kind: str = "http_503", retryable: bool = True, after: float = 0.0) -> BackendFailure:
    return BackendFailure("x", kind=kind, retryable=retryable, retry_after_s=after, usage=Usage(1, 2, None))


class Script:
    """Fails as told, then answers; a clock that only its own sleeps and attempts move."""

    def __init__(self, *failures: BackendFailure, attempt_s: float = 0.0) -> None:
        self.failures, self.attempt_s = list(failures), attempt_s
        self.now = 0.0
        self.pauses: list[float] = []
        self.timeouts: list[float] = []

    async def attempt(self, timeout_s: float) -> ExpertAnswer:
        self.timeouts.append(timeout_s)
        self.now += self.attempt_s
        if self.failures:
            raise self.failures.pop(0)
        return ExpertAnswer("ok", usage=Usage(10, 20, 5))

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    async def run(self, policy: RetryPolicy) -> ExpertAnswer:
        return await with_retries(
            self.attempt, policy, sleep=self.sleep, clock=lambda: self.now, rng=random.Random(1)
        )


async def test_pauses_are_full_jitter_below_an_exponential_ceiling() -> None:
    ceilings = [0.5, 1.0, 2.0, 4.0, 8.0, 8.0]
    all_pauses = []
    for seed in range(50):
        script = Script(*(fail() for _ in range(6)))
        answer = await with_retries(
            script.attempt,
            RetryPolicy(6, 10.0, 1000.0),
            sleep=script.sleep,
            clock=lambda s=script: s.now,
            rng=random.Random(seed),
        )
        assert answer.attempts == 7
        all_pauses.append(script.pauses)
    for i, ceiling in enumerate(ceilings):
        drawn = [pauses[i] for pauses in all_pauses]
        assert 0 <= min(drawn) < 0.25 * ceiling and 0.75 * ceiling < max(drawn) <= ceiling


async def test_all_attempts_are_charged_and_unknown_stays_unknown() -> None:
    answer = await Script(fail(), fail()).run(RetryPolicy(3, 10.0, 100.0))
    assert (answer.usage, answer.spent) == (Usage(10, 20, 5), Usage(12, 24, None))
    with pytest.raises(BackendFailure) as caught:
        await Script(fail(), fail(), fail()).run(RetryPolicy(2, 10.0, 100.0))
    assert caught.value.usage == Usage(3, 6, None)


async def test_what_lasts_is_not_retried() -> None:
    script = Script(fail("http_400", retryable=False))
    with pytest.raises(BackendFailure):
        await script.run(RetryPolicy(5, 10.0, 100.0))
    assert len(script.timeouts) == 1
    retried = {status for status in range(400, 600) if is_retryable_status(status)}
    assert retried == {408, 409, 425, 429, *range(500, 600)}


async def test_the_total_deadline_holds_and_the_endpoint_s_wish_is_respected() -> None:
    script = Script(*(fail() for _ in range(50)), attempt_s=3.0)
    with pytest.raises(BackendFailure):
        await script.run(RetryPolicy(50, 10.0, 20.0))
    assert script.now < 20.0 + 3.0
    assert min(script.timeouts) < 10.0, "the last attempts only get what is left"
    wish = Script(fail(after=7.0))
    await wish.run(RetryPolicy(1, 10.0, 100.0))
    assert wish.pauses == [7.0]
    too_long = Script(fail(after=700.0))
    with pytest.raises(BackendFailure):
        await too_long.run(RetryPolicy(1, 10.0, 100.0))
    assert too_long.pauses == []
    assert total_deadline_s(10.0, 3) == 4 * 10.0 + 0.5 + 1.0 + 2.0


# -- engine backend and assembly ----------------------------------------------------------------------------


async def test_an_engine_expert_uses_the_same_prompt_and_failure_kinds() -> None:
    seen: list[list[Message]] = []
    replies = [
        Completion("<think>a</think>It is 2.", 10, 5, "stop"),
        Completion("<think>a", 10, 64, "length"),
        Completion("", 10, 1, "stop"),
    ]

    async def generate(messages: list[Message], max_tokens: int) -> Completion:
        seen.append(messages)
        assert max_tokens == 128
        return replies.pop(0)

    expert = EngineExpert("e", "m", generate)  # type: ignore[arg-type]
    answer = await expert.answer(call(), timeout_s=1)
    assert (answer.text, answer.reasoning, answer.usage) == ("It is 2.", "a", Usage(10, 5, None))
    assert seen[0] == build_messages(call())
    for kind in ("lost_to_reasoning", "empty"):
        with pytest.raises(BackendFailure) as caught:
            await expert.answer(call(), timeout_s=1)
        assert caught.value.kind == kind


async def test_an_expert_retries_its_backend_and_takes_the_program_out_of_the_reply() -> None:
    config = ExpertConfig(name="e", backend=WorkedBackend(failure_rate=0.5), max_retries=60, timeout_s=1.0)
    expert = Expert(config, make_backend(config, problems=PROBLEMS, seed=1))
    expert._policy = RetryPolicy(60, 1.0, 60.0, base_s=0.0)
    answers = [await expert.answer(call(tool="code_interpreter")) for _ in range(50)]
    assert {a.text for a in answers} == {"print(11 + 23)"}
    assert max(a.attempts for a in answers) > 1
    assert expert.failed_attempts["injected"] == sum(a.attempts - 1 for a in answers)
    assert answers[0].reply("e").completion_tokens is None


def test_wrong_configurations_are_refused_at_construction() -> None:
    config = ExpertConfig(name="e", backend=WorkedBackend(), cache="record")
    with pytest.raises(ConfigError, match="problem set"):
        make_backend(config)
    with pytest.raises(ConfigError, match="cache"):
        Expert(config, make_backend(config, problems={}))
    with pytest.raises(ValueError, match="engine"):
        make_backend(ExpertConfig(name="v", backend=VllmBackend(model="m")))


def test_what_crosses_processes_survives_pickling() -> None:
    answer = ExpertAnswer("t", usage=Usage(1, None, None), attempts=2)
    assert pickle.loads(pickle.dumps(answer)) == answer
    error = pickle.loads(pickle.dumps(fail("timeout")))
    assert isinstance(error, ExpertError) and error.kind == "timeout"
