"""Reference solutions of known sets pass, and wrong ones do not."""

from __future__ import annotations

import ast
import json
import os
from typing import Any

import pytest

from apprentice.data.code import CodeTests, plain_code_row
from apprentice.verify.execution_plan import plan_of
from tests.execution_kit import JudgeBench, judge_bench
from tests.shared import shared_path

pytestmark = pytest.mark.unit


def rows_of(name: str) -> list[dict[str, Any]]:
    text = shared_path(f"data/{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line]


def reference(row: dict[str, Any]) -> str:
    head = row["prompt"] if row["id"].startswith("HumanEval") else ""
    return str(head + row["canonical_solution"])


def failures(bench: JudgeBench, rows: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    found = []
    for row in rows:
        tests = CodeTests.from_text(plain_code_row(row)["code_tests"])
        # One reference of MBPP takes five seconds on a quiet machine.
        judged = bench.judge(reference(row), tests, test_cpu_s=30, test_wall_s=120)
        if not judged.passed:
            found.append((row["id"], judged.first_failure))
    return found


@pytest.mark.parametrize(
    ("name", "count", "step"), [("humaneval", 164, 4), ("mbpp", 974, 40), ("mbpp_plus", 378, 16)]
)
def test_a_sample_of_the_reference_solutions_passes(name: str, count: int, step: int) -> None:
    rows = rows_of(name)
    assert len(rows) == count
    with judge_bench() as bench:
        assert failures(bench, rows[::step]) == []


@pytest.mark.skipif(
    "APPRENTICE_ALL_REFERENCES" not in os.environ, reason="minutes: APPRENTICE_ALL_REFERENCES=1"
)
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("name", "count"), [("humaneval", 164), ("mbpp", 974), ("mbpp_plus", 378)])
def test_every_reference_solution_passes(name: str, count: int) -> None:
    rows = rows_of(name)
    assert len(rows) == count
    with judge_bench() as bench:
        assert failures(bench, rows) == []


class _Spoil(ast.NodeTransformer):
    """Every ``return x`` gives something else."""

    def visit_Return(self, node: ast.Return) -> ast.AST:
        if node.value is None:
            return node
        return ast.Return(ast.Tuple([ast.Constant("spoiled"), node.value], ast.Load()))


@pytest.mark.parametrize("name", ["humaneval", "mbpp", "mbpp_plus"])
def test_spoiled_solutions_fail(name: str) -> None:
    rows = [row for row in rows_of(name) if "return" in row["canonical_solution"]][::25]
    with judge_bench() as bench:
        for row in rows:
            source = ast.unparse(ast.fix_missing_locations(_Spoil().visit(ast.parse(reference(row)))))
            tests = CodeTests.from_text(plain_code_row(row)["code_tests"])
            assert not bench.judge(source, tests).passed, row["id"]


def test_how_tests_need_the_solutions_own_classes() -> None:
    """The count of docs/code-tasks.md: set-up in the solution's process, and its classes in the arguments."""
    plans = {row["id"]: plan_of(plain_code_row(row)["code_tests"]) for row in rows_of("mbpp")}
    assert [name for name, plan in plans.items() if plan.remote] == ["mbpp-367", "mbpp-927"]
    assert [name for name, plan in plans.items() if len(plan.names) > 1] == ["mbpp-601"]
    for name in ("humaneval", "mbpp_plus"):
        assert not [r for r in rows_of(name) if len(plan_of(plain_code_row(r)["code_tests"]).names) > 1]


SOLUTIONS = {
    "lcb-smoke-stdin-1": """
import sys
def main():
    data = sys.stdin.buffer.read().split()
    at = 1
    for _ in range(int(data[0])):
        n = int(data[at])
        a = list(map(int, data[at + 1 : at + 1 + n]))
        b = list(map(int, data[at + 1 + n : at + 1 + 2 * n]))
        at += 1 + 2 * n
        print(sum(max(x - min(a), y - min(b)) for x, y in zip(a, b)))
if __name__ == "__main__":
    main()
""",
    "lcb-smoke-stdin-2": "n = int(input())\nprint(min(input().count('8'), n // 11))",
    "lcb-smoke-func-1": """
class Solution:
    def unequalTriplets(self, nums: List[int]) -> int:
        left, total, seen = len(nums), 0, 0
        for count in Counter(nums).values():
            left -= count
            total += seen * count * left
            seen += count
        return total
""",
    "lcb-smoke-func-2": """
class Solution:
    def appendCharacters(self, s: str, t: str) -> int:
        rest = iter(s)
        matched = 0
        for want in t:
            if all(have != want for have in rest):
                break
            matched += 1
        return len(t) - matched
""",
}


def test_livecodebenchs_smoke_rows_pass_by_hand_and_fail_when_spoiled() -> None:
    rows = rows_of("lcb_format_smoke")
    assert len(rows) == 4
    with judge_bench() as bench:
        for row in rows:
            tests = CodeTests.from_text(plain_code_row(row)["code_tests"])
            judged = bench.judge(SOLUTIONS[row["id"]], tests)
            assert judged.passed, (row["id"], judged.tests)
            wrong = SOLUTIONS[row["id"]].replace("max(", "min(").replace("// 11", "// 12")
            wrong = wrong.replace("+= seen", "-= seen").replace("matched += 1", "matched += 2")
            assert wrong != SOLUTIONS[row["id"]]
            assert not bench.judge(wrong, tests).passed, row["id"]
