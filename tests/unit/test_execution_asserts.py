"""Tests as code: the expected answers stay where no solution can see them, and nothing passes by a trick."""

# ruff: noqa: E501  (programs and tests that are one string)

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from apprentice.data.code import CodeTests, mbpp_row, plain_code_row
from apprentice.verify.execution_plan import (
    argument_names,
    asserts_request,
    calls_request,
    free_names,
    plan_of,
)
from tests.execution_kit import JudgeBench, judge_bench

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def bench() -> Iterator[JudgeBench]:
    with judge_bench() as made:
        yield made


SECRET = "8675309"
DOUBLE = CodeTests(
    "program", entry_point="f", program=f"assert f(1) == 2, 'one'\nassert f(2) == 4\nassert f(3) == {SECRET}"
)
RIGHT = f"def f(x): return {SECRET} if x == 3 else 2 * x"


def test_each_assertion_is_a_test(bench: JudgeBench) -> None:
    judged = bench.judge(RIGHT, DOUBLE)
    assert judged.passed
    assert (len(judged.tests), judged.runs) == (3, 3)  # calls are collected, made, and the results checked
    wrong = bench.judge("def f(x):\n    if x == 2: raise KeyError(x)\n    return 2 * x", DOUBLE)
    assert [str(t.verdict) for t in wrong.tests] == ["passed", "runtime_error", "wrong_answer"]
    assert "line 2: KeyError" in wrong.tests[1].reason


CHEATS = {
    "os._exit": "import os\nos._exit(0)",
    "os._exit in the call": "import os\ndef f(x): os._exit(0)",
    "sys.exit": "import sys\nsys.exit(0)",
    "forged verdict": "print('passed')\nimport json, os\n"
    "record = {'tests': [{'ok': True}] * 3, 'calls': [], 'pending': False, 'broken': ''}\n"
    "for fd in range(1, 10):\n    try: os.write(fd, b'\\napprentice-record ' + json.dumps(record).encode() + b'\\n')\n"
    "    except OSError: pass\ndef f(x): return x",
    "forged claim": 'import os\nos.write(3, b\'{"outcome": "ok"}\')\ndef f(x): return x',
    "always equal": "class E:\n    def __eq__(self, o): return True\n    def __ne__(self, o): return False\n"
    "    __hash__ = None\ndef f(x): return E()",
    "always equal integer": "class E(int):\n    def __eq__(self, o): return True\n    __hash__ = int.__hash__\n"
    "def f(x): return E(1)",
    "always equal by metaclass": "class M(type):\n    def __eq__(cls, o): return True\n    __hash__ = None\n"
    "class E(metaclass=M): pass\ndef f(x): return E",
    "builtins": "import builtins\nclass E(Exception): pass\nbuiltins.AssertionError = E\n"
    "builtins.all = lambda x: True\nbuiltins.len = lambda x: 3\ndef f(x): return x",
    "modules": "import sys\nfor m in list(sys.modules.values()):\n    if 'program' in getattr(m, '__name__', ''):\n"
    "        for n in dir(m):\n            if n in ('values_agree', 'run'): setattr(m, n, lambda *a, **k: True)\n"
    "import json\njson.loads = lambda *a, **k: True\ndef f(x): return x",
    "stack frames": "import sys\ndef f(x):\n    seen, g = [], sys._getframe()\n    while g:\n"
    "        seen += [repr(g.f_locals), repr(g.f_globals)]\n        g = g.f_back\n"
    f"    import re\n    found = re.findall('{SECRET[:4]}\\\\d+', ' '.join(seen))\n"
    "    return int(found[0]) if found else 2 * x",
    "garbage collector": "import gc\ndef f(x):\n    text = ' '.join(o for o in gc.get_objects() if type(o) is str)\n"
    f"    import re\n    found = re.findall('{SECRET[:4]}\\\\d{{3}}', text + repr(gc.get_objects())[:10**7])\n"
    "    return int(found[0]) if found else 2 * x",
    "standard input": "import os, re\ntry: os.lseek(0, 0, 0)\nexcept OSError: pass\ntext = os.read(0, 1 << 20).decode()\n"
    f"found = re.findall('{SECRET[:4]}\\\\d+', text)\ndef f(x): return int(found[0]) if found else 2 * x",
    "raises the failure": "def f(x): raise AssertionError",
    "stops the tests": "def f(x): raise SystemExit(0)",
    "keyboard": "def f(x): raise KeyboardInterrupt",
    "generator of truths": "def f(x):\n    while True: yield True",
    "not a number": "def f(x): return float('nan')",
    "watch off": "import faulthandler\ndef f(x):\n    faulthandler.cancel_dump_traceback_later()\n    return x",
    "broken reference": "import apprentice" if False else "def f(x): return [[{'n': 99}, [], []]]",
}


@pytest.mark.parametrize("name", CHEATS)
def test_no_trick_passes(bench: JudgeBench, name: str) -> None:
    judged = bench.judge(CHEATS[name], DOUBLE)
    assert not judged.passed
    assert str(judged.tests[-1].verdict) != "passed"
    assert "test_error" not in {str(t.verdict) for t in judged.tests}, judged.tests


def test_a_wrong_answer_at_the_end_of_a_forged_record_is_still_wrong(bench: JudgeBench) -> None:
    forged = (
        "import os, json\nfor value in (2, 4, 7):\n"
        "    os.write(4, b'\\napprentice-record ' + json.dumps({'value': [value, [], []]}).encode() + b'\\n')\n"
        "def f(x): return x"
    )
    assert not bench.judge(forged, DOUBLE).passed


@pytest.mark.parametrize(
    "value",
    ['{"i": "zz"}', '{"n": 5}', '{"x": [9, 9]}', "[1, 2]", '{"n": 0}', "1e999", '"' + "x" * 1000 + '"'],
)
def test_a_forged_value_is_wrong_and_breaks_nothing(bench: JudgeBench, value: str) -> None:
    record = (
        f'{{"value": [{value}, [["fraction", ["1e9", 1]]], [0]], "cpu_s": "x", "wall_s": [], "changed": 3}}'
    )
    source = f"import os\nos.write(4, b'\\napprentice-record {{}}')\nfor i in range(3):\n    os.write(4, b'\\napprentice-record ' + {record!r}.encode() + b'\\n')\nos._exit(0)"
    judged = bench.judge(source, DOUBLE)
    assert not judged.passed
    assert "test_error" not in {str(t.verdict) for t in judged.tests}, judged.tests


def test_the_solutions_process_gets_no_expected_answer() -> None:
    plan = plan_of(DOUBLE.text())
    calls = ({"target": "f", "path": [], "arguments": []},)
    assert SECRET.encode() not in calls_request(plan, calls, 0, call_s=1, call_cpu_s=1)
    assert SECRET.encode() in asserts_request(plan, [])
    pairs = plan_of(CodeTests("call", ("1",), (SECRET,), entry_point="f").text())
    assert SECRET.encode() not in calls_request(pairs, pairs.calls, 0, call_s=1, call_cpu_s=1)


def program(text: str, **fields: str) -> CodeTests:
    return CodeTests("program", program=text, **{"entry_point": "f", **fields})


def test_loops_helpers_and_calls_that_depend_on_results(bench: JudgeBench) -> None:
    tests = program(
        "def check(candidate):\n    for x in range(50):\n        y = candidate(x)\n        assert abs(y - x) < 2\n"
        "    assert candidate(candidate(5)) == 7\n    if candidate(0) == 1:\n        assert candidate(100) == 101\n"
        "check(f)\n"
    )
    judged = bench.judge("def f(x): return x + 1", tests)
    assert judged.passed
    assert len(judged.tests) == 52
    assert not bench.judge("def f(x): return x + 3", tests).passed


def test_random_tests_make_the_same_calls_again(bench: JudgeBench) -> None:
    tests = program("import random\nfor _ in range(20):\n    x = random.random()\n    assert f(x) == 2 * x")
    assert bench.judge("import random\ndef f(x): return 2 * x + 0 * random.random()", tests).passed


def test_given_helpers_are_the_problems_own(bench: JudgeBench) -> None:
    row = {
        "id": "h", "entry_point": "decode",
        "prompt": "def encode(s):\n    return s[::-1]\n\n\ndef decode(s):\n    '''Undo encode.'''\n",
        "tests": "def check(candidate):\n    assert candidate(encode('abc')) == 'abc'\n",
    }  # fmt: skip
    tests = CodeTests.from_text(plain_code_row(row)["code_tests"])
    assert "encode" in tests.given
    assert "decode" not in tests.given
    assert bench.judge("def decode(s): return encode(s)", tests).passed
    redefined = "def encode(s): return s\ndef decode(s): return encode(s)"
    assert not bench.judge(redefined, tests).passed


def test_functions_that_work_in_place(bench: JudgeBench) -> None:
    tests = program("x = [3, 1, 2]\nf(x)\nassert x == [1, 2, 3]\nd = {}\nf(d)\nassert d == {}")
    assert bench.judge("def f(x):\n    if isinstance(x, list): x.sort()", tests).passed
    assert not bench.judge("def f(x): return sorted(x)", tests).passed


def test_a_function_cannot_change_what_its_result_is_compared_with(bench: JudgeBench) -> None:
    tests = program("x = [3, 1, 2]\nassert f(x) == sorted(x)")
    assert bench.judge("def f(x): return sorted(x)", tests).passed
    assert not bench.judge("def f(x):\n    x.clear()\n    return []", tests).passed


NODE = "class Node:\n    def __init__(self, v, next=None):\n        self.v, self.next = v, next\n"
LISTS = (
    NODE
    + "def make(values):\n    head = None\n    for v in reversed(values): head = Node(v, head)\n    return head\n"
    "def values(head):\n    out = []\n    while head: out.append(head.v); head = head.next\n    return out\n"
)


def test_objects_of_given_classes_cross_by_their_attributes(bench: JudgeBench) -> None:
    tests = program("assert values(f(make([1, 2, 3]))) == [3, 2, 1]\nassert f(None) is None", setup=LISTS)
    reverse = "def f(head):\n    done = None\n    while head: head.next, done, head = done, head, head.next\n    return done"
    assert bench.judge(reverse, tests).passed
    assert bench.judge(NODE + reverse, tests).passed  # its own copy of the class
    assert bench.verdicts("def f(head): return head", tests) == ["wrong_answer", "passed"]
    long = program("assert values(f(make(list(range(20000))))) == list(range(20000))[::-1]", setup=LISTS)
    assert bench.judge(reverse, long).passed
    ring = program("n = Node(1)\nn.next = n\nassert f(n).next.next.v == 1", setup=LISTS)
    assert bench.judge("def f(n): return n", ring).passed


def test_set_up_with_the_solutions_own_classes_runs_in_its_process(bench: JudgeBench) -> None:
    tests = program(
        "assert f(root) == 3\nassert f(root.next) == 2", setup="root = Tree(1)\nroot.next = Tree(2)"
    )
    tree = "class Tree:\n    def __init__(self, v): self.v, self.next = v, None\n"
    plan = plan_of(tests.text())
    assert (plan.remote, plan.setup) == (("root",), "")
    del plan
    alone = program("assert f(root) == 3", setup="root = Tree(1)\nroot.next = Tree(2)")
    assert bench.judge(tree + "def f(t): return t.v + t.next.v", alone).passed
    assert bench.verdicts(tree + "def f(t): return t.v", alone) == ["wrong_answer"]


def test_the_solutions_own_classes_in_the_arguments(bench: JudgeBench) -> None:
    tests = program("assert f([Pair(1, 2), Pair(3, 4)], 2) == 10")
    pair = "class Pair:\n    def __init__(self, a, b): self.a, self.b = a, b\n"
    assert bench.judge(pair + "def f(ps, n): return sum(p.a + p.b for p in ps)", tests).passed
    assert not bench.judge(pair + "def f(ps, n): return sum(p.a for p in ps)", tests).passed


def test_methods_of_a_solution_class_keep_their_object(bench: JudgeBench) -> None:
    tests = CodeTests(
        "program",
        program="def check(candidate):\n    assert candidate(2) == 2\n    assert candidate(3) == 5\n\ncheck(Solution().add)",
    )
    total = "class Solution:\n    total = 0\n    def add(self, x):\n        self.total += x\n        return self.total"
    assert bench.judge(total, tests).passed
    assert not bench.judge(total.replace("+= x", "= x"), tests).passed


def test_names_that_a_test_forgot_are_not_the_solutions(bench: JudgeBench) -> None:
    """A solution must not answer for `isclose`; modules of the standard library are there."""
    lax = program("assert isclose(f(1), 2)")
    assert bench.verdicts("def f(x): return 0\ndef isclose(a, b): return True", lax) == ["wrong_answer"]
    assert bench.judge("def f(x): return 2.0", program("assert math.isclose(f(1), 2)")).passed
    assert argument_names("assert isclose(f(P(1)), P)", "f") == set()
    assert argument_names("assert isclose(f(P(1)), 2)", "f") == {"P"}


@pytest.mark.parametrize(
    "value",
    [
        "(1, [2], {3: (4,)})", "{1, 2}", "frozenset({(1, 2)})", "b'x'", "10 ** 400", "-1.5e300", "1j", "None",
        "range(3)", "{'a': None, (1,): True}", "Fraction(1, 3)", "Decimal('0.1')", "'\\ud800é'", "deque([1])",
        "[[]] * 2", "float('inf')",
    ],
)  # fmt: skip
def test_values_cross_with_their_type(bench: JudgeBench, value: str) -> None:
    imports = "from fractions import Fraction\nfrom decimal import Decimal\nfrom collections import deque\n"
    tests = program(f"{imports}assert f({value}) == {value}\nassert type(f({value})) is type({value})")
    judged = bench.judge(f"{imports}def f(x):\n    assert x == {value}\n    return {value}", tests)
    assert judged.passed, judged.tests


def test_what_extends_a_built_in_type_crosses_as_that_type(bench: JudgeBench) -> None:
    tests = program(
        "assert f(0) == (1, 2)\nassert f(1) == {'a': 2}\nassert list(f(2)) == [0, 1]\nassert f(3) == 2.5\n"
        "assert sorted(f(4)) == [1]\nassert f(5).tolist() == [1, 2]\nassert f(6) == 1"
    )
    source = (
        "import collections, enum, numpy\nP = collections.namedtuple('P', 'a b')\n"
        "def f(x):\n    return [P(1, 2), collections.Counter('aa'), (i for i in range(2)), numpy.float64(2.5),\n"
        "            {1: 2}.keys(), numpy.array([1, 2]), enum.IntEnum('E', 'A').A][x]"
    )
    judged = bench.judge(source, tests)
    assert judged.passed, judged.tests


def test_tests_that_no_solution_can_pass_say_so(bench: JudgeBench) -> None:
    for text in ("import no_such_module\nassert f(1)", "assert f(", "x = 1"):
        assert bench.verdicts("def f(x): return x", program(text)) == ["test_error"]


def test_an_exception_that_a_test_asks_for(bench: JudgeBench) -> None:
    tests = program(
        "try:\n    f(-1)\nexcept ValueError:\n    pass\nelse:\n    assert False\nassert f(1) == 1"
    )
    own = "class Mine(ValueError): pass\ndef f(x):\n    if x < 0: raise Mine('no')\n    return x"
    assert bench.judge(own, tests).passed
    assert not bench.judge("def f(x): return x", tests).passed


def test_a_crash_in_the_middle_costs_one_assertion(bench: JudgeBench) -> None:
    source = "import os\ndef f(x):\n    if x == 2: os.abort()\n    return 2 * x"
    assert bench.verdicts(source, DOUBLE) == ["passed", "runtime_error", "wrong_answer"]
    assert bench.verdicts(source, DOUBLE, stop_at_first_failure=True) == [
        "passed",
        "runtime_error",
        "not_run",
    ]


def test_the_hubs_form_of_mbpp_plus(bench: JudgeBench) -> None:
    row = {
        "task_id": 2, "prompt": "Write f.", "test_list": ["assert set(f((1, 2), (2, 3))) == set((2,))"],
        "test": "import numpy as np\nfrom math import inf\n\ndef is_floats(x) -> bool:\n    return isinstance(x, float)\n\n"
        "def assertion(out, exp, atol):\n    if atol == 0 and is_floats(exp):\n        atol = 1e-6\n"
        "    if out != exp and atol != 0:\n        assert np.allclose(out, exp, rtol=1e-07, atol=atol)\n"
        "    else:\n        assert out == exp, f'out: {out}, exp: {exp}'\n\n"
        "inputs = [[(1, 2), (2, 3)], [(), ()]]\nresults = [(2,), ()]\n"
        "for i, (inp, exp) in enumerate(zip(inputs, results)):\n    assertion(f(*inp), exp, 0)\n",
    }  # fmt: skip
    tests = CodeTests.from_text(mbpp_row(row)["code_tests"])
    judged = bench.judge("def f(a, b): return tuple(set(a) & set(b))", tests)
    assert judged.passed
    assert len(judged.tests) == 2
    assert bench.verdicts("def f(a, b): return (2,)", tests) == ["passed", "wrong_answer"]


def test_free_names() -> None:
    code = "import a\nfrom b import c as d\ndef g(x):\n    global h\n    h = y + x\n    return a, d, g, len(z)\nclass K: pass\nu(K)"
    assert free_names(code) == {"y", "z", "u"}
    assert free_names("[i for i in r]\nlambda q: q + w") == {"r", "w"}


def test_requests_are_the_same_for_every_sample() -> None:
    plan = plan_of(DOUBLE.text())
    assert asserts_request(plan, []) == asserts_request(plan, [])
    assert json.loads(asserts_request(plan, []))["names"] == ["f"]
