"""Known sets: row formats, row counts, corrections; and training problems that stand in test sets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from apprentice.config.schema import DataConfig, ProblemSetConfig
from apprentice.data.benchmarks import BENCHMARKS, corrected_answer, find_benchmark
from apprentice.data.contamination import find_contamination
from apprentice.data.formats import chat_row, gpqa_row, gsm8k_row, solution_row
from apprentice.data.load import load_data, load_problems
from apprentice.data.problem import Problem
from apprentice.errors import DataError
from tests.shared import shared_path

pytestmark = pytest.mark.unit

CHAT = {
    "data_source": "aime24",
    "prompt": [
        {"role": "system", "content": "Please reason step by step."},
        {"role": "user", "content": "What is 1 + 1?"},
    ],
    "reward_model": {"ground_truth": "2", "stype": "rule"},
    "extra_info": {"id": "57e9", "split": "train"},
}


def test_chat_rows_give_the_last_user_message_and_the_ground_truth() -> None:
    assert chat_row(CHAT) == {
        "problem_id": "57e9", "question": "What is 1 + 1?", "answer": "2", "source": "aime24",
        "split": "train",
    }  # fmt: skip
    with pytest.raises(DataError, match="user message"):
        chat_row({"prompt": [{"role": "system", "content": "x"}], "reward_model": {"ground_truth": "2"}})


def test_instructions_around_a_chat_problem_are_removed() -> None:
    around = (
        "Solve the following math problem step by step. The last line of your response should be of the form "
        "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
        "Step 1, what is 2?"
        '\n\nRemember to put your answer on its own line after "Answer:".'
    )
    row: Mapping[str, Any] = {
        "prompt": [{"role": "user", "content": around}],
        "reward_model": {"ground_truth": "2"},
    }
    first, again = chat_row(row), chat_row(row)
    assert first["question"] == "Step 1, what is 2?"
    assert first["problem_id"] == again["problem_id"]


def test_repeated_chat_prompts_become_one_problem_and_conflicting_ones_none(tmp_path: Path) -> None:
    def row(question: str, gold: str, index: int) -> dict[str, Any]:
        return {
            "prompt": [{"role": "user", "content": question}],
            "reward_model": {"ground_truth": gold},
            "extra_info": {"index": f"i{index}"},
        }

    rows = [row("Q1", "1", i) for i in range(100)] + [
        row("Q2", "2", 200),
        row("Q2", "3", 201),
        row("Q3", "4", 300),
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "dapo.parquet")
    problems = load_problems(ProblemSetConfig(name="d", source=str(tmp_path / "dapo.parquet")))
    assert [(p.question, p.answer) for p in problems] == [("Q1", "1"), ("Q3", "4")]


def test_gsm8k_and_solution_rows() -> None:
    assert gsm8k_row({"question": "Q", "answer": "5*2=<<5*2=10>>10\n#### 1,010"}) == {
        "question": "Q",
        "answer": "1,010",
    }
    with pytest.raises(DataError, match="####"):
        gsm8k_row({"question": "Q", "answer": "10"})
    solved = solution_row({"id": 3, "problem": "P", "solution": r"so $\boxed{\frac{1}{2}}$"})
    assert solved["answer"] == r"\frac{1}{2}"
    with pytest.raises(DataError, match="boxed"):
        solution_row({"id": 3, "problem": "P", "solution": "no"})


def invented(number: int) -> dict[str, str]:
    return {
        "Question": f"Which of these letters is number {number}?",
        "Correct Answer": " right ",
        "Incorrect Answer 1": "w1",
        "Incorrect Answer 2": "w2",
        "Incorrect Answer 3": "w3",
    }


def test_gpqa_options_are_shuffled_by_seed_and_the_letter_follows() -> None:
    letters = []
    for number in range(200):
        made = gpqa_row(invented(number), seed=7)
        assert f"({made['answer']}) right\n" in made["question"]
        assert made == gpqa_row(invented(number), seed=7)
        letters.append(made["answer"])
    assert all(30 <= letters.count(letter) <= 70 for letter in "ABCD")
    assert letters != [gpqa_row(invented(n), seed=8)["answer"] for n in range(200)]


def test_known_sets_are_read_with_their_split_configuration_and_row_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, str | None]] = []

    def fetch(source: str, split: str | None) -> list[dict[str, Any]]:
        asked.append((source, split))
        return [{"question": f"Q{i}", "answer": f"#### {i}"} for i in range(1319)]

    monkeypatch.setattr("apprentice.data.hub.fetch_rows", fetch)
    problems = load_problems(ProblemSetConfig(name="gsm8k", source="openai/gsm8k"))
    assert asked == [("openai/gsm8k:main", "test")]
    assert (len(problems), problems[5].answer) == (1319, "5")
    with pytest.raises(DataError, match="1319 rows instead of 7473"):
        load_problems(ProblemSetConfig(name="gsm8k", source="openai/gsm8k", split="train"))


def test_a_set_that_is_not_on_the_hub_says_what_to_do() -> None:
    with pytest.raises(DataError, match=r"torl_data/train\.parquet"):
        load_problems(ProblemSetConfig(name="torl", source="GAIR-NLP/ToRL"))


def test_known_sets_have_a_licence_and_are_found_in_any_case() -> None:
    assert all(item.licence for item in BENCHMARKS.values())
    assert find_benchmark("huggingfaceh4/math-500") is find_benchmark("HuggingFaceH4/MATH-500")
    assert find_benchmark("openai/gsm8k:socratic") is not None
    assert find_benchmark("nobody/nothing") is None


def test_h19_aime_2024_i_12_is_385() -> None:
    for line in shared_path("data/aime2024.jsonl").read_text(encoding="utf-8").split("\n"):
        if line and json.loads(line)["url"].endswith("2024_AIME_I_Problems/Problem_12"):
            question = json.loads(line)["problem"]
    assert corrected_answer(question, "384") == "385"
    assert corrected_answer(question, "385") == "385"
    assert corrected_answer("Another question", "384") == "384"


def problem(identity: str, question: str) -> Problem:
    return Problem(identity, question, "1")


def test_h05_exact_copies_are_removed_and_number_swapped_ones_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = shared_path("data/aime2024.jsonl").read_text(encoding="utf-8").split("\n")
    test = [json.loads(line) for line in lines if line]
    tetrahedron = next(row for row in test if "sqrt{41}" in row["problem"])
    swapped = tetrahedron["problem"].replace("41", "28").replace("80", "44").replace("89", "52")
    train = [
        {"id": "exact", "problem": test[3]["problem"].upper(), "answer": "1"},
        {"id": "near", "problem": swapped, "answer": "2"},
        {
            "id": "other",
            "problem": "Find the number of positive integers below 1000 that have no 7.",
            "answer": "3",
        },
    ]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in train))
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in test))
    sets = load_data(
        DataConfig(
            train=ProblemSetConfig(name="train", source=str(tmp_path / "train.jsonl")),
            test=(ProblemSetConfig(name="AIME 2024", source=str(tmp_path / "test.jsonl")),),
        )
    )
    assert [p.problem_id for p in sets.train] == ["near", "other"]
    assert any(
        "near" in record.getMessage() and tetrahedron["id"] in record.getMessage()
        for record in caplog.records
    )
    found = find_contamination(
        [problem(row["id"], row["problem"]) for row in train],
        [problem(row["id"], row["problem"]) for row in test],
    )
    assert found.exact == (("exact", test[3]["id"]),)
    assert [(c.train_id, c.test_id) for c in found.near] == [("near", tetrahedron["id"])]
    assert found.near[0].share == pytest.approx(1.0)


def test_wording_that_many_test_problems_share_is_no_contamination() -> None:
    tail = "where m and n are relatively prime positive integers. Find m plus n, the sum that is asked for."
    test = [
        problem(f"t{i}", f"A fair {shape} is thrown {i} times by a child and {tail}")
        for i, shape in enumerate(("coin", "die", "cube"))
    ]
    train = [problem("a", f"Eleven frogs sit around a pond with many lilies and {tail}")]
    assert find_contamination(train, test).near == ()
    assert len(find_contamination([problem("b", test[1].question.replace("1", "7"))], test).near) == 1
