"""Programs with a standard input, and functions with arguments: verdicts on a real sandbox."""

# ruff: noqa: E501  (programs and tests that are one string)

from __future__ import annotations

from collections.abc import Iterator

import pytest

from apprentice.data.code import CodeTests
from tests.execution_kit import JudgeBench, judge_bench

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def bench() -> Iterator[JudgeBench]:
    with judge_bench() as made:
        yield made


SUM = "3\n1 2 3\n"
READERS = {
    "input": "n = int(input())\nprint(sum(map(int, input().split())))",
    "sys.stdin.read": "import sys\nprint(sum(map(int, sys.stdin.read().split()[1:])))",
    "sys.stdin as lines": "import sys\nlines = list(sys.stdin)\nprint(sum(map(int, lines[1].split())))",
    "readline alias": "import sys\ninput = sys.stdin.readline\nn = int(input())\nprint(sum(map(int, input().split())))",
    "open(0)": "print(sum(map(int, open(0).read().split()[1:])))",
    "os.read": "import os\nprint(sum(map(int, os.read(0, 1 << 20).split()[1:])))",
    "buffer": "import sys\nprint(sum(map(int, sys.stdin.buffer.read().split()[1:])))",
    "no import": "print(sum(map(int, sys.stdin.read().split()[1:])))",
    "main guard": "def main():\n    input()\n    print(sum(map(int, input().split())))\n"
    "if __name__ == '__main__':\n    main()",
    "in a thread": "import sys, threading\ndef main():\n    input()\n    print(sum(map(int, input().split())))\n"
    "threading.stack_size(1 << 26)\nt = threading.Thread(target=main)\nt.start()\nt.join()",
    "fence": "```python\nn = int(input())\nprint(sum(map(int, input().split())))\n```",
    "without a newline": "import sys\ninput()\nsys.stdout.write(str(sum(map(int, input().split()))))",
    "bytes out": "import sys\nsys.stdout.buffer.write(b'6\\n')",
    "os.write": "import os\nos.write(1, b'6')",
    "exit()": "print(6)\nexit()\nprint(7)",
    "quit(0)": "print(6)\nquit(0)",
    "sys.exit(0)": "import sys\nprint(6)\nsys.exit(0)",
    "raise SystemExit": "print(6)\nraise SystemExit",
    "at exit": "import atexit, sys\nout = []\natexit.register(lambda: sys.stdout.write(''.join(out)))\nout.append('6')",
    "own stdout": "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer)\nprint(6)",
    "to stderr too": "import sys\nprint('debug', file=sys.stderr)\nprint(6)",
}


@pytest.mark.parametrize("name", READERS)
def test_what_programs_take_for_granted_is_there(bench: JudgeBench, name: str) -> None:
    judged = bench.stdin(READERS[name], SUM, "6\n")
    assert judged.passed, judged.tests


FAILURES = {
    "wrong": ("print(7)", "wrong_answer", "'7' instead of '6'"),
    "nothing": ("pass", "wrong_answer", "instead of '6'"),
    "exception after output": ("print(6)\n1 / 0", "runtime_error", "ZeroDivisionError"),
    "exit code": ("import sys\nprint(6)\nsys.exit(3)", "runtime_error", "exit code 3"),
    "exit with a message": ("import sys\nprint(6)\nsys.exit('no')", "runtime_error", "exit code 1"),
    "os._exit": ("import os\nprint(6, flush=True)\nos._exit(0)", "runtime_error", "early"),
    "syntax": ("print(6", "compile_error", "SyntaxError"),
    "signal": (
        "import os, signal\nprint(6, flush=True)\nos.kill(os.getpid(), signal.SIGSEGV)\n1/0",
        "runtime_error",
        "",
    ),
    "too much output": ("while True: print('x' * 10000)", "output_limit", "MiB"),
    "too much memory": ("x = bytearray(3 << 30)\nprint(6)", "memory", "MiB"),
    "reads too far": ("input(); input(); input()\nprint(6)", "runtime_error", "EOFError"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_each_failure_has_its_name_and_reason(bench: JudgeBench, name: str) -> None:
    source, verdict, reason = FAILURES[name]
    judged = bench.stdin(source, SUM, "6\n", output_mib=1)
    assert [str(t.verdict) for t in judged.tests] == [verdict]
    assert reason in judged.tests[0].reason


@pytest.mark.parametrize("source", ["while True: pass", "import time\ntime.sleep(60)", "10 ** 10 ** 9"])
def test_a_program_that_does_not_end_is_stopped(bench: JudgeBench, source: str) -> None:
    assert [str(t.verdict) for t in bench.stdin(source, "", "x", test_cpu_s=1, test_wall_s=2).tests] == [
        "timeout"
    ]


def test_e05_binary_standard_input(bench: JudgeBench) -> None:
    assert bench.stdin("import sys; print(sys.stdin.buffer.read().decode().strip())", "5", "5").passed


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("print(0.333333)", "0.333333333333"),
        ("print(0.333333333333)", "0.333333"),
        ("import sys\nsys.stdout.buffer.write(b'1\\n')", "1"),
        ("print(10**5000)", "1" + "0" * 5000),
        ("print(*[0.1 + 0.2, 1e-9])", "0.3 0.0"),
    ],
)
def test_e07_right_output_in_another_spelling_passes(bench: JudgeBench, source: str, expected: str) -> None:
    assert bench.stdin(source, "", expected).passed


def test_e07_lists_of_floats_pass_as_results(bench: JudgeBench) -> None:
    tests = CodeTests("call", ("[1, 2]",), ("[0.333333, 0.666667]",), entry_point="f")
    assert bench.judge("def f(x): return [v / 3 for v in x]", tests).passed
    assert bench.verdicts("def f(x): return [0.33, 0.67]", tests) == ["wrong_answer"]


def test_e09_deep_recursion_fails_alone_and_is_named(bench: JudgeBench) -> None:
    deep = "import sys\nsys.setrecursionlimit(6 * 10**7)\nclass A:\n    def __repr__(self): return repr(self)\nrepr(A())"
    judged = bench.stdin(deep, "", "x")
    assert (str(judged.tests[0].verdict), judged.tests[0].reason) == ("runtime_error", "SIGSEGV")
    both = "def a():\n    try:\n        a()\n    except RecursionError:\n        a()\na()"
    assert not bench.stdin(both, "", "x", test_cpu_s=1, test_wall_s=10).passed
    assert bench.stdin("print(1)", "", "1").passed


def test_e09_recursion_that_is_deep_and_right_passes(bench: JudgeBench) -> None:
    plain = "def f(n): return 0 if n == 0 else 1 + f(n - 1)\nprint(f(10**5))"
    cached = "from functools import lru_cache\n@lru_cache(None)\n" + plain
    for source in (plain, cached):
        judged = bench.stdin(source, "", "100000")
        assert judged.passed, judged.tests


def test_several_megabytes_in_and_out(bench: JudgeBench) -> None:
    text = "\n".join(map(str, range(700_000)))
    judged = bench.stdin("import sys\nsys.stdout.write(sys.stdin.read())", text, text)
    assert len(text) > 4_000_000
    assert judged.passed, judged.tests


ECHO = CodeTests("stdin", ("1", "2", "3"), ("1", "2", "3"))


def test_going_on_or_stopping_after_a_failure(bench: JudgeBench) -> None:
    source = "x = input()\nprint('no' if x == '2' else x)"
    judged = bench.judge(source, ECHO)
    assert [str(t.verdict) for t in judged.tests] == ["passed", "wrong_answer", "passed"]
    assert (judged.count, judged.passed, judged.runs) == (2, False, 3)
    stopped = bench.judge(source, ECHO, stop_at_first_failure=True)
    assert [str(t.verdict) for t in stopped.tests] == ["passed", "wrong_answer", "not_run"]
    assert stopped.runs == 2
    assert stopped.first_failure is not None
    assert stopped.first_failure[0] == 2


def test_a_program_that_does_not_compile_runs_once(bench: JudgeBench) -> None:
    assert bench.judge("print(", ECHO).runs == 1


def test_the_time_of_a_problem_is_bounded(bench: JudgeBench) -> None:
    verdicts = bench.verdicts("import time\ntime.sleep(1.2)\nprint(input())", ECHO, problem_s=1.0)
    assert verdicts == ["passed", "not_run", "not_run"]


ADD = CodeTests("call", ("1\n2", "[1]\n[2]", '"a"\n"b"'), ("3", "[1, 2]", '"ab"'), entry_point="add")


@pytest.mark.parametrize(
    "source",
    [
        "class Solution:\n    def add(self, a: List[int], b: int) -> int:\n        print('debug')\n        return a + b",
        "def add(a, b): return a + b",
        "class Solution:\n    def other(self): pass\ndef add(a, b): return a + b",
        "def add(a, b): return a + b\nif __name__ == '__main__':\n    add(input())",
        "import sys, os\ndef add(a, b):\n    os.write(1, b'noise')\n    sys.stdout.buffer.write(b'x')\n    return a + b",
    ],
)
def test_methods_of_solution_and_plain_functions(bench: JudgeBench, source: str) -> None:
    judged = bench.judge(source, ADD)
    assert judged.passed, judged.tests
    assert judged.runs == 2


def test_results_of_functions_are_judged_one_by_one(bench: JudgeBench) -> None:
    source = "def add(a, b):\n    if a == [1]: raise KeyError('k')\n    return a + b if a == 1 else (a, b)"
    judged = bench.judge(source, ADD)
    assert [str(t.verdict) for t in judged.tests] == ["passed", "runtime_error", "wrong_answer"]
    assert "KeyError" in judged.tests[1].reason
    assert "('a', 'b')" in judged.tests[2].reason


@pytest.mark.parametrize(
    ("hang", "wall_s", "reason"),
    [("while True: pass", 60, "CPU"), ("import time; time.sleep(60)", 3, "longer"), ("10 ** 10 ** 9", 3, "")],
)
def test_a_call_that_hangs_costs_that_test_only(
    bench: JudgeBench, hang: str, wall_s: float, reason: str
) -> None:
    source = f"def add(a, b):\n    if a == [1]:\n        {hang}\n    return a + b"
    judged = bench.judge(source, ADD, test_cpu_s=1, test_wall_s=wall_s)
    assert [str(t.verdict) for t in judged.tests] == ["passed", "timeout", "passed"]
    assert reason in judged.tests[1].reason
    stopped = bench.verdicts(source, ADD, test_cpu_s=1, test_wall_s=wall_s, stop_at_first_failure=True)
    assert stopped == ["passed", "timeout", "not_run"]


@pytest.mark.parametrize(
    ("source", "verdict"),
    [
        ("import os\ndef add(a, b): os._exit(0)", "runtime_error"),
        ("raise ImportError('gone')", "runtime_error"),
        ("def add(a, b): return [0] * (1 << 30)", "memory"),
        ("def add(a, b", "compile_error"),
        ("def other(a, b): return a + b", "runtime_error"),
        ("import sys\nsys.exit(0)", "runtime_error"),
    ],
)
def test_functions_that_fail_on_every_test(bench: JudgeBench, source: str, verdict: str) -> None:
    assert bench.verdicts(source, ADD) == [verdict] * 3


def test_tuples_are_lists_and_floats_have_a_tolerance(bench: JudgeBench) -> None:
    tests = CodeTests("call", ("1",) * 4, ("[1, [2]]", "0.1", "true", "3"), entry_point="f")
    source = "r = iter([(1, (2,)), 0.1000000001, True, 3.0])\ndef f(x): return next(r)"
    assert bench.verdicts(source, tests) == ["passed"] * 4
    wrong = "r = iter([(1, 2), 0.1001, 0, 3.0000001])\ndef f(x): return next(r)"
    assert bench.verdicts(wrong, tests) == ["wrong_answer"] * 4
