"""Programming problems of the known sets, CHAMP, and copies of known sets on the disk."""

from __future__ import annotations

import base64
import importlib.util
import json
import pickle
import sys
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from apprentice.config.schema import DataConfig, ProblemSetConfig
from apprentice.data.benchmarks import BENCHMARKS
from apprentice.data.code import CodeTests, code_tests, guru_code_row, livecodebench_row, plain_code_row
from apprentice.data.load import load_data, load_problems, load_reported
from apprentice.data.problem import Problem
from apprentice.errors import DataError
from tests.shared import shared_path

pytestmark = pytest.mark.unit


def load(source: Path | str, **changes: Any) -> list[Problem]:
    return load_problems(ProblemSetConfig(name="s", source=str(source), **changes))


def read_tests(problem: Problem) -> CodeTests:
    found = code_tests(problem)
    assert found is not None
    return found


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def guru(question: str, truth: object, index: int, source: str = "taco") -> dict[str, Any]:
    return {
        "data_source": f"codegen__{source}",
        "prompt": [{"role": "user", "content": question}],
        "reward_model": {"ground_truth": json.dumps(truth), "style": "rule"},
        "extra_info": {"index": index, "split": "train"},
    }


STDIN = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]}
CHECK = "def check(candidate):\n    assert candidate(1) == 2\n\ncheck(Solution().step)"


def test_a_folder_of_gurus_code_files_gives_both_kinds_and_leaves_livecodebench_out(tmp_path: Path) -> None:
    for name, rows in {
        "codegen__leetcode2k_1.3k": [guru("Step.", {"functional": CHECK}, 0, "leetcode2k")],
        "codegen__taco_8.8k": [guru("Add.", STDIN, 0), guru("add. ", STDIN, 1)],
        "codegen__livecodebench_440": [guru("A test problem.", STDIN, 0, "livecodebench")],
    }.items():
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{name}.parquet")
    problems, report = load_reported(ProblemSetConfig(name="guru", source=str(tmp_path)))
    assert [p.problem_id for p in problems] == ["codegen__leetcode2k/0", "codegen__taco/0"]
    assert (report.rows, report.duplicates) == (3, 1)
    assert read_tests(problems[0]) == CodeTests("program", program=CHECK)
    assert read_tests(problems[1]) == CodeTests("stdin", ("1 2\n", "3 4\n"), ("3\n", "7\n"))
    assert not problems[0].answer


def test_gurus_code_is_fetched_as_three_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []
    pq.write_table(pa.Table.from_pylist([guru("Add.", STDIN, 0)]), tmp_path / "f.parquet")

    def fetch(repo: str, files: tuple[str, ...]) -> list[Path]:
        assert repo == "LLM360/guru-RL-92k"
        asked.extend(files)
        return [tmp_path / "f.parquet"]

    monkeypatch.setattr("apprentice.data.hub.fetch_files", fetch)
    assert len(load("LLM360/guru-RL-92k")) == 1
    assert asked == [
        "train/codegen__leetcode2k_1.3k.parquet",
        "train/codegen__primeintellect_7.5k.parquet",
        "train/codegen__taco_8.8k.parquet",
    ]


@pytest.mark.parametrize(
    "truth", [{"functional": " "}, {"inputs": ["1"], "outputs": []}, STDIN | {"inputs": []}]
)
def test_a_programming_problem_whose_tests_test_nothing_is_refused(truth: object) -> None:
    with pytest.raises(DataError, match="tests"):
        guru_code_row(guru("Q", truth, 0))


def livecodebench(kind: str, number: int, packed: bool = True) -> dict[str, Any]:
    public = [{"input": "1\n2", "output": "3", "testtype": kind}]
    private = json.dumps([{"input": "5\n6", "output": "11", "testtype": kind}])
    hidden = base64.b64encode(zlib.compress(pickle.dumps(private))).decode() if packed else private
    return {
        "question_id": f"abc{number}_a",
        "question_content": f"Problem {number}: add two numbers.",
        "starter_code": "class Solution:\n    def add(self, a, b):" if kind == "functional" else "",
        "difficulty": "easy",
        "public_test_cases": json.dumps(public),
        "private_test_cases": hidden,
        "metadata": json.dumps({"func_name": "add"} if kind == "functional" else {}),
    }


@pytest.mark.parametrize("packed", [True, False])
def test_livecodebench_rows_give_public_and_private_tests(tmp_path: Path, packed: bool) -> None:
    rows = [livecodebench("stdin", 1, packed), livecodebench("functional", 2, packed)]
    first, second = load(write_jsonl(tmp_path / "test6.jsonl", rows))
    assert read_tests(first) == CodeTests("stdin", ("1\n2", "5\n6"), ("3", "11"))
    assert read_tests(second) == CodeTests("call", ("1\n2", "5\n6"), ("3", "11"), entry_point="add")
    assert (first.problem_id, first.family, "def add" in second.question) == ("abc1_a", "easy", True)


def test_a_livecodebench_row_of_mixed_styles_or_without_a_name_is_refused() -> None:
    row = livecodebench("functional", 1)
    with pytest.raises(DataError, match="func_name"):
        livecodebench_row({**row, "metadata": "{}"})
    with pytest.raises(DataError, match="test types"):
        livecodebench_row({**row, "public_test_cases": livecodebench("stdin", 1)["public_test_cases"]})


@pytest.mark.parametrize(("release", "files"), [("", 1), (":v6", 1), (":release_v6", 6)])
def test_a_livecodebench_release_is_its_files_and_its_row_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, release: str, files: int
) -> None:
    rows = [livecodebench("stdin", i) for i in range(175)]
    path = write_jsonl(tmp_path / "test6.jsonl", rows)
    asked: list[tuple[str, ...]] = []

    def fetch(repo: str, names: tuple[str, ...]) -> list[Path]:
        asked.append(names)
        return [path]

    monkeypatch.setattr("apprentice.data.hub.fetch_files", fetch)
    source = f"livecodebench/code_generation_lite{release}"
    if files == 1:
        assert len(load(source)) == 175
    else:
        with pytest.raises(DataError, match="175 rows instead of 1055"):
            load(source)
    assert len(asked[0]) == files
    with pytest.raises(DataError, match="release_v6"):
        load("livecodebench/code_generation_lite:v9")


def test_humaneval_and_mbpp_rows_of_the_hub(tmp_path: Path) -> None:
    human = {
        "task_id": "HumanEval/0", "prompt": "def f(x):\n", "canonical_solution": "    return x\n",
        "test": "def check(candidate):\n    assert candidate(1) == 1\n", "entry_point": "f",
    }  # fmt: skip
    mbpp = {
        "task_id": 11, "text": "Write f.", "code": "def f(): pass",
        "test_list": ["assert f(1) == 1", "assert f(2)"],
        "test_setup_code": "import math", "challenge_test_list": [],
    }  # fmt: skip
    [first] = load(write_jsonl(tmp_path / "human.jsonl", [human]))
    [second] = load(write_jsonl(tmp_path / "mbpp.jsonl", [mbpp]))
    run: dict[str, Any] = {}
    exec(human["prompt"] + human["canonical_solution"] + read_tests(first).program, run)
    with pytest.raises(AssertionError):
        exec("def f(x):\n    return 2\n" + read_tests(first).program, {})
    assert (second.problem_id, read_tests(second).setup) == ("11", "import math")
    assert read_tests(second).program == "assert f(1) == 1\nassert f(2)"
    assert second.question == "Write f.\n\nYour code should pass this test:\nassert f(1) == 1"


@pytest.mark.parametrize(("name", "rows"), [("humaneval", 164), ("mbpp", 974), ("mbpp_plus", 378)])
def test_the_stored_solutions_pass_the_tests_that_were_read(name: str, rows: int) -> None:
    path = shared_path(f"data/{name}.jsonl")
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    problems, report = load_reported(ProblemSetConfig(name=name, source=str(path)))
    assert report.rows == rows
    assert report.kept == len(problems) == rows - report.duplicates
    solutions = {row["id"]: row for row in lines}
    for problem in problems[:40]:
        row = solutions[problem.problem_id]
        tests = read_tests(problem)
        solution = row["canonical_solution"]
        if name == "humaneval":
            solution = row["prompt"] + solution
        exec("\n".join((tests.setup, solution, tests.program)), {})


def test_livecodebenchs_smoke_rows() -> None:
    problems = load(shared_path("data/lcb_format_smoke.jsonl"))
    assert [read_tests(p).style for p in problems] == ["stdin", "stdin", "call", "call"]
    assert read_tests(problems[2]).entry_point == "unequalTriplets"


def test_tests_survive_their_text_and_other_texts_are_refused() -> None:
    made = CodeTests("call", ("1\n2",), ("3",), entry_point="é", setup="import math")
    assert CodeTests.from_text(made.text()) == made
    for text in ("", "[]", '{"style": "call"}', made.text().replace("call", "guess")):
        with pytest.raises(DataError):
            CodeTests.from_text(text)
    assert code_tests(Problem("a", "Q", "1")) is None


def test_programming_problems_can_be_trained_and_scored_on(tmp_path: Path) -> None:
    math = write_jsonl(tmp_path / "math.jsonl", [{"id": "a", "problem": "1 + 1?", "answer": "2"}])
    code = write_jsonl(tmp_path / "code.jsonl", [livecodebench("stdin", 1)])
    sets = {name: ProblemSetConfig(name=name, source=str(path)) for name, path in (("m", math), ("c", code))}
    for train, test in (("m", "c"), ("c", "m")):
        found = load_data(DataConfig(train=sets[train], test=(sets[test],)))
        code_set = found.train if train == "c" else found.test["c"]
        assert read_tests(code_set[0]).style == "stdin"


def test_long_tests_are_packed(tmp_path: Path) -> None:
    made = CodeTests("stdin", ("1 " * 100_000,), ("\ud800",))
    assert len(made.text()) < 2000
    assert CodeTests.from_text(made.text()) == made
    with pytest.raises(DataError):
        CodeTests.from_text(made.text()[:-20])


def test_arguments_that_are_values_become_lines_of_json() -> None:
    truth = {"fn_name": "f", "inputs": [[1, "a"], [[2], "b"]], "outputs": ["x", [3]]}
    tests = CodeTests.from_text(
        plain_code_row({"id": "p", "prompt": "Q", "entry_point": "f", "tests": truth})["code_tests"]
    )
    assert tests == CodeTests("call", ('1\n"a"', '[2]\n"b"'), ('"x"', "[3]"), entry_point="f")


def test_copies_of_known_sets_on_the_disk_are_read_like_the_hubs(tmp_path: Path) -> None:
    gsm = write_jsonl(tmp_path / "g.jsonl", [{"question": "Q", "answer": "1+1=<<1+1=2>>2\n#### 2"}])
    aime = write_jsonl(tmp_path / "a.jsonl", [{"id": 60, "problem": "P", "solution": r"so \boxed{204}"}])
    both = write_jsonl(tmp_path / "m.jsonl", [{"problem": "P", "solution": r"so \boxed{5}", "answer": "7"}])
    gpqa = write_jsonl(tmp_path / "q.jsonl", [
        {"Question": "Which?", "Correct Answer": "r", **{f"Incorrect Answer {i}": f"w{i}" for i in (1, 2, 3)}}
    ])  # fmt: skip
    assert [load(path)[0].answer for path in (gsm, aime, both)] == ["2", "204", "7"]
    assert load(gpqa)[0].answer in "ABCD"
    assert {load(gpqa, seed=seed)[0].answer for seed in range(20)} == set("ABCD")
    assert load(gsm, fields={"question": "question", "answer": "answer"})[0].answer.endswith("#### 2")


def test_champ_is_read_from_its_package_without_running_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="pip install champ-dataset"):
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        load("champ")
    monkeypatch.undo()
    package = tmp_path / "champ_dataset"
    (package / "dataset_files").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    problems = {
        f"P_Algebra_{i}": {
            "identifier": f"P_Algebra_{i}",
            "_text": f"Q{i}",
            "_answer": str(i),
            "category": "Algebra",
        }
        for i in range(270)
    }
    file = package / "dataset_files" / "v0.json"
    file.write_text(json.dumps({"problems": problems, "concepts": {}, "hints": {}}))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "champ_dataset", raising=False)
    found = load("champ")
    assert (len(found), found[3].answer, found[3].family) == (270, "3", "Algebra")
    file.write_text(json.dumps({"problems": {"a": problems["P_Algebra_0"]}}))
    with pytest.raises(DataError, match="1 rows instead of 270"):
        load("champ")


@pytest.mark.skipif(
    importlib.util.find_spec("champ_dataset") is None, reason="the extra `champ` is not installed"
)
def test_champ_of_the_installed_package() -> None:
    problems, report = load_reported(ProblemSetConfig(name="s", source="champ"))
    assert (report.rows, report.empty_answers, report.warnings) == (270, 0, ())
    assert len(problems) == 270 - report.duplicates - report.conflicting >= 268
    assert all(p.question and p.answer and p.family for p in problems)


def test_every_set_of_the_paper_is_known() -> None:
    kinds = [item.kind for item in BENCHMARKS.values()]
    assert (kinds.count("code"), kinds.count("choice")) == (5, 1)
