"""Copies of the known sets' repositories, as the hub lays them out: read as the hub's own, rows counted.

The rows are invented. Names of files, columns and their types are those that the sets have.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from apprentice.config.schema import DataConfig, ProblemSetConfig
from apprentice.data.benchmarks import BENCHMARKS, check_size_in_name, find_file
from apprentice.data.info import describe_data
from apprentice.data.layout import find_copy, split_files
from apprentice.data.load import load_problems, load_reported
from apprentice.errors import DataError

pytestmark = pytest.mark.unit

Row = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]


def chat(i: int, index: str = "id", split: str = "train") -> Row:
    return {
        "data_source": "math_dapo",
        "prompt": [{"content": f"What is {i} + {i}?", "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": str(2 * i), "style": "rule"},
        "extra_info": {index: f"u-{i}", "split": split},
    }


def gpqa(i: int) -> Row:
    return {
        "Record ID": f"r{i}", "Question": f"Which thing is number {i}?", "Correct Answer": f"right {i}",
        **{f"Incorrect Answer {n}": f"wrong {n} of {i}" for n in (1, 2, 3)},
        "High-level domain": "Physics", "Subdomain": "x", "Explanation": "because",
    }  # fmt: skip


def plain(question: str, answer: str, **rest: Any) -> Callable[[int], Row]:
    return lambda i: {**rest, question: f"What is {i} + {i}?", answer: str(2 * i)}


def livecodebench(i: int) -> Row:
    case = json.dumps([{"input": "1", "output": "2", "testtype": "stdin"}])
    return {
        "question_title": "t", "question_content": f"Double {i}.", "platform": "x", "question_id": f"q{i}",
        "contest_id": "c", "contest_date": "2025-01-01", "starter_code": "", "difficulty": "easy",
        "public_test_cases": case, "private_test_cases": case, "metadata": "{}",
    }  # fmt: skip


def humaneval(i: int) -> Row:
    return {
        "task_id": f"HumanEval/{i}", "prompt": f"def f{i}(x):\n    ", "canonical_solution": "return x\n",
        "test": "def check(candidate):\n    assert candidate(1) == 1\n", "entry_point": f"f{i}",
    }  # fmt: skip


def mbpp(i: int) -> Row:
    return {
        "task_id": i, "text": f"Write f{i}.", "code": "", "test_list": [f"assert f{i}(1) == 1"],
        "test_setup_code": "", "challenge_test_list": [],
    }  # fmt: skip


def mbpp_plus(i: int) -> Row:
    return {
        "task_id": i, "code": "", "prompt": f"Write f{i}.", "source_file": "", "test_imports": [],
        "test_list": [f"assert f{i}(1) == 1"], "test": f"assert f{i}(1) == 1",
    }  # fmt: skip


SHARD = "{split}-00000-of-00001.parquet"
COPIES: Mapping[str, tuple[str, int, Callable[[int], Row]]] = {
    "openai/gsm8k": ("main/test-00000-of-00001.parquet", 1319,
                     lambda i: {"question": f"What is {i} + {i}?", "answer": f"so <<1+1=2>>\n#### {2 * i}"}),
    "HuggingFaceH4/MATH-500": ("test.jsonl", 500, plain("problem", "answer", solution="s", subject="Algebra",
                                                       level=2, unique_id="")),
    "math-ai/aime24": ("data/test-00000-of-00001.parquet", 30, lambda i: {
        "id": i, "problem": f"What is {i} + {i}?", "solution": rf"\boxed{{{2 * i}}}", "url": "u"}),
    "math-ai/aime25": ("test.jsonl", 30, plain("problem", "answer")),
    "math-ai/aime26": ("data/test-00000-of-00001.parquet", 30, plain("problem", "answer")),
    "math-ai/amc23": ("data/test-00000-of-00001.parquet", 40, plain("question", "answer", url="")),
    "MathArena/aime_2025": ("data/train-00000-of-00001.parquet", 30,
                            plain("problem", "answer", problem_type=["A"])),
    "MathArena/aime_2026": ("data/train-00000-of-00001.parquet", 30, plain("problem", "answer")),
    "MathArena/hmmt_feb_2025": ("data/train-00000-of-00001.parquet", 30, plain("problem", "answer")),
    "MathArena/apex_2025": ("data/train-00000-of-00001.parquet", 12, lambda i: {
        "problem_idx": i + 1, "problem": f"What is {i} + {i}?", "answer": str(2 * i), "source": "contest"}),
    "ByteDance-Seed/BeyondAIME": ("data/test-00000-of-00001.parquet", 100, plain("problem", "answer")),
    "OpenEvals/IMO-AnswerBench": ("data/train-00000-of-00001.parquet", 400, lambda i: {
        "Problem ID": f"imo-bench-algebra-{i:03d}", "Problem": f"What is {i} + {i}?",
        "Short Answer": str(2 * i), "Category": "Algebra", "Subcategory": "x", "Source": "IMO"}),
    "Idavidrein/gpqa": ("gpqa_diamond.csv", 198, gpqa),
    "open-r1/DAPO-Math-17k-Processed": ("en/train-00000-of-00001.parquet", 14116, lambda i: {
        **chat(i), "prompt": f"What is {i} + {i}?", "solution": str(2 * i),
        "source_prompt": [{"content": "x", "role": "user"}], "extra_info": {"index": f"i{i}"}}),
    "livecodebench/code_generation_lite": ("test6.jsonl", 175, livecodebench),
    "openai/openai_humaneval": ("openai_humaneval/test-00000-of-00001.parquet", 164, humaneval),
    "google-research-datasets/mbpp": ("full/test-00000-of-00001.parquet", 500, mbpp),
    "evalplus/mbppplus": ("data/test-00000-of-00001.parquet", 378, mbpp_plus),
}  # fmt: skip
"""Known set -> (data file of its repository, rows, how row i looks)."""


def write(path: Path, rows: list[Row]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def copy_of(root: Path, name: str, count: int | None = None) -> str:
    file, rows, row = COPIES[name]
    write(root / name / file, [row(i) for i in range(rows if count is None else count)])
    (root / name / "README.md").write_text("card")
    return str(root / name)


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_gives_all_problems_with_golds_or_tests(tmp_path: Path, name: str) -> None:
    problems, report = load_reported(ProblemSetConfig(name="s", source=copy_of(tmp_path, name)))
    assert report.rows == report.kept == len(problems) == COPIES[name][1]
    assert report.warnings == ()
    kind = BENCHMARKS[name.lower()].kind
    if kind == "math":
        assert {p.answer for p in problems} == {str(2 * i) for i in range(len(problems))}
        assert all(p.question == f"What is {int(p.answer) // 2} + {int(p.answer) // 2}?" for p in problems)
    elif kind == "choice":
        for p in problems:
            assert f"({p.answer}) right" in p.question
    else:
        assert all(p.metadata["code_tests"] for p in problems)


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_with_a_row_too_few_is_refused(tmp_path: Path, name: str) -> None:
    rows = COPIES[name][1]
    with pytest.raises(DataError, match=f"{rows - 1} rows instead of {rows}"):
        load_problems(ProblemSetConfig(name="s", source=copy_of(tmp_path, name, rows - 1)))


def test_every_known_set_has_its_copy_tested_or_a_reason() -> None:
    elsewhere = {"champ", "gair-nlp/torl", "bytedtsinghua-sia/dapo-math-17k", "llm360/guru-rl-92k"}
    assert {name.lower() for name in COPIES} | elsewhere == set(BENCHMARKS)
    assert all(item.rows or item.about for item in BENCHMARKS.values())  # no set goes unchecked


def test_gpqas_other_tables_and_gsm8ks_other_configuration_are_not_mixed_in(tmp_path: Path) -> None:
    source = copy_of(tmp_path, "Idavidrein/gpqa")
    for other in ("gpqa_main", "gpqa_extended"):
        write(Path(source) / f"{other}.csv", [gpqa(i) for i in range(500)])
    assert len(load_problems(ProblemSetConfig(name="s", source=source))) == 198
    letters = {
        seed: [p.answer for p in load_problems(ProblemSetConfig(name="s", source=source, seed=seed))]
        for seed in (0, 1)
    }
    assert letters[0] != letters[1] and set(letters[0]) == set("ABCD")
    source = copy_of(tmp_path, "openai/gsm8k")
    row = COPIES["openai/gsm8k"][2]
    write(Path(source) / "main/train-00000-of-00001.parquet", [row(i) for i in range(7473)])
    write(Path(source) / "socratic/test-00000-of-00001.parquet", [row(i) for i in range(7)])
    assert len(load_problems(ProblemSetConfig(name="s", source=source))) == 1319
    assert len(load_problems(ProblemSetConfig(name="s", source=source, split="train"))) == 7473
    # Another configuration has rows of another number, which is not known.
    assert len(load_problems(ProblemSetConfig(name="s", source=f"{source}:socratic"))) == 7


def test_a_copy_is_known_by_its_folder_or_its_place_in_the_hubs_cache(tmp_path: Path) -> None:
    hashed = tmp_path / "datasets--math-ai--amc23" / "snapshots" / "0a1b"
    rows = [COPIES["math-ai/amc23"][2](i) for i in range(40)]
    write(hashed / "data/test-00000-of-00001.parquet", rows)
    for source in (hashed, hashed.parents[1]):
        assert find_copy(source) is BENCHMARKS["math-ai/amc23"]
        assert len(load_problems(ProblemSetConfig(name="s", source=str(source)))) == 40
    assert find_copy(tmp_path) is None
    info = describe_data(DataConfig(train=ProblemSetConfig(name="s", source=str(hashed))))
    assert "licence    MAA" in info.text()


def test_a_layout_that_does_not_fit_names_what_is_there(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / f"{name}.jsonl", [{"problem": "P", "answer": "1"}])
    with pytest.raises(DataError, match=r"'default' and split 'test' among a\.jsonl, b\.jsonl"):
        split_files(tmp_path, "", "test")
    shards = [write(tmp_path / f"data/test-0000{i}-of-00002.parquet", [{"a": i}]) for i in (1, 0)]
    assert split_files(tmp_path, "", "test") == shards[::-1]


# -- sets whose size is known roughly ------------------------------------------------------------------------


def test_torl_is_read_from_its_repository_or_file_and_an_odd_size_is_said(tmp_path: Path) -> None:
    root = tmp_path / "GAIR-NLP" / "ToRL"
    train = write(root / "data/torl_data/train.parquet", [chat(i) for i in range(28_740)])
    write(root / "data/torl_data/test.parquet", [chat(i, split="test") for i in range(374)])
    for source in (root, train):
        problems, report = load_reported(ProblemSetConfig(name="s", source=str(source)))
        assert (len(problems), report.warnings) == (28_740, ())
    assert problems[7].problem_id == "u-7"
    assert len(load_problems(ProblemSetConfig(name="s", source=str(root), split="test"))) == 374
    write(train, [chat(i) for i in range(100)])
    for source in (root, train):
        warnings = load_reported(ProblemSetConfig(name="s", source=str(source)))[1].warnings
        assert len(warnings) == 1 and "100 rows, where 27500 to 28999 are expected" in warnings[0]
    assert find_file("train.parquet") is None  # the name alone says nothing


def test_gurus_files_have_the_number_of_rows_that_their_names_say(tmp_path: Path) -> None:
    assert check_size_in_name("codegen__leetcode2k_1.3k", 1250) == ()
    assert check_size_in_name("codegen__leetcode2k_1.3k", 1350) == ()
    assert check_size_in_name("codegen__primeintellect_7.5k", 7451) == ()
    for stem, count in (("taco_8.8k", 8700), ("taco_8.8k", 8900), ("livecodebench_440", 441)):
        assert "are expected" in check_size_in_name(f"codegen__{stem}", count)[0]
    assert check_size_in_name("train_100", 3) == ()

    def row(i: int) -> Row:
        truth = json.dumps({"inputs": ["1\n"], "outputs": [f"{i}\n"]})
        return {**chat(i, "index"), "reward_model": {"ground_truth": truth, "style": "rule"}}

    sizes = {"leetcode2k_1.3k": 1300, "primeintellect_7.5k": 7500, "taco_8.8k": 8000}
    at = 0
    for stem, count in sizes.items():
        write(
            tmp_path / "LLM360/guru-RL-92k/train" / f"codegen__{stem}.parquet",
            [row(at + i) for i in range(count)],
        )
        at += count
    warnings = load_reported(ProblemSetConfig(name="s", source=str(tmp_path / "LLM360/guru-RL-92k")))[
        1
    ].warnings
    assert len(warnings) == 2  # the sum, and the file that is short
    assert "16800 rows, where 17450 to 17747" in warnings[0] and "codegen__taco_8.8k: 8000" in warnings[1]


# -- a set that repeats its rows -----------------------------------------------------------------------------

MEASURE = """
import resource, sys
from apprentice.config.schema import ProblemSetConfig
from apprentice.data.load import load_reported
import pyarrow.parquet
def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak_mib()
problems, report = load_reported(ProblemSetConfig(name="s", source=sys.argv[1]))
print(len(problems), report.rows, report.duplicates, report.conflicting, peak_mib() - before)
"""


def repeated(path: Path, questions: int, times: int) -> Path:
    """Chat rows of about 700 bytes, the whole set again and again, as DAPO-Math-17k has it."""
    rows = [chat(i) for i in range(questions)]
    for i, row in enumerate(rows):
        row["prompt"][0]["content"] = f"Problem {i}. " + f"Let x_{i} be a number of the kind {i % 7}. " * 16
    rows[1] = {
        **rows[0],
        "reward_model": {"ground_truth": "999", "style": "rule"},
    }  # in conflict with rows[0]
    table = pa.Table.from_pylist(rows)
    with pq.ParquetWriter(path, table.schema) as writer:
        for _ in range(times):
            writer.write_table(table, row_group_size=1000)
    return path


def test_rows_that_repeat_a_hundred_times_are_never_in_memory_together(tmp_path: Path) -> None:
    memory = {}
    for times in (2, 20):
        path = repeated(tmp_path / f"{times}.parquet", 2000, times)
        command = [sys.executable, "-c", MEASURE, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        kept, rows, duplicates, conflicting, mib = done.stdout.split()
        assert [int(n) for n in (kept, rows, duplicates, conflicting)] == [
            1998, 2000 * times, 1998 * (times - 1), 2 * times,
        ]  # fmt: skip
        memory[times] = float(mib)
    # 36,000 rows more. As Python objects together they would take 70 MB and more.
    assert memory[20] - memory[2] < 25, memory


# -- IMO-AnswerBench's second table --------------------------------------------------------------------------

HEAD = "Problem ID,Problem,Short Answer,Category,Subcategory,Source\n"
WHOLE = 'imo-bench-algebra-035,"Find $x$ in\n\\[\nx = 1, 2\n\\]\n","1, 2",Algebra,Operation,IMO\n'
MISQUOTED = (
    'imo-bench-algebra-036,"Find all functions $Y$ such that, for all $a, b$,\n\\[\nY(a) = b\n\\]\n'
    ',"$Y(x)=A+\\frac{B}{x}-x$",Algebra,Functional Equation,Somewhere 2002\n'
)


def test_a_row_whose_quotation_mark_is_missing_is_read_as_it_was_meant(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "answerbench_v2.csv"
    path.write_text(HEAD + WHOLE + MISQUOTED + WHOLE.replace("035", "037").replace("x = 1", "x = 3"))
    problems = load_problems(ProblemSetConfig(name="s", source=str(path)))
    assert [p.problem_id[-3:] for p in problems] == ["035", "036", "037"]
    assert problems[1].answer == "$Y(x)=A+\\frac{B}{x}-x$"
    assert problems[1].question.endswith("\\]\n") and problems[1].family == "Algebra"
    assert "a quotation mark is missing" in caplog.text


def test_a_csv_row_that_cannot_be_understood_is_an_error_and_no_gold(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("problem,answer,kind\nP,1,a\nQ,2\n")
    with pytest.raises(DataError, match=r"t\.csv, row that ends in line 3: 2 fields instead of 3"):
        load_problems(ProblemSetConfig(name="s", source=str(path)))
