"""`apprentice data info`: what it says of sets that were read, and of sets that could not be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from apprentice.config.schema import DataConfig, ProblemSetConfig
from apprentice.data.info import describe_data, known_sets_table
from driver.cli import main
from tests.shared import shared_path

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
LONG = "A red fox runs over {} green hills and then sleeps for {} hours beside the quiet river. How many?"
TRAIN = [
    {"id": "copy", "problem": "What is 1 + 1?", "answer": "2"},
    {"id": "again", "problem": "what is  1 + 1?", "answer": "2"},
    {"id": "near", "problem": LONG.format(7, 8), "answer": "3"},
    {"id": "prose", "problem": "When does it hold?", "answer": "whenever the number n is a prime"},
    {"id": "empty", "problem": "Nothing", "answer": ""},
]
TEST = [
    {"id": "t1", "problem": "What is 1 + 1?", "answer": "2"},
    {"id": "t2", "problem": LONG.format(1, 2), "answer": "5"},
]


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture
def sets(tmp_path: Path) -> tuple[str, str]:
    return write(tmp_path / "train.jsonl", TRAIN), write(tmp_path / "test.jsonl", TEST)


def test_counts_golds_and_contamination(sets: tuple[str, str]) -> None:
    info = describe_data(
        DataConfig(
            train=ProblemSetConfig(name="mine", source=sets[0]),
            test=(ProblemSetConfig(name="held out", source=sets[1]),),
        )
    )
    mine, held_out = info.sets
    assert (mine.report.rows, mine.report.kept, mine.report.duplicates, mine.report.empty_answers) == (
        5,
        3,
        1,
        1,
    )
    assert mine.golds == {"rules": 2, "a reader or judge (prose gold)": 1}
    assert (held_out.problems, info.complete) == (2, True)
    found = info.contamination["held out"]
    assert found.exact == (("copy", "t1"),)
    assert [(c.train_id, c.test_id) for c in found.near] == [("near", "t2")]


def test_the_command_prints_it(sets: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "info", sets[0], "--test", sets[1]]) == 0
    out = capsys.readouterr().out
    for text in (
        "3 problems of 5 rows; dropped 1 without an answer, 1 repeated",
        "2 by rules, 1 by a reader or judge (prose gold)",
        "test.jsonl: 1 exact, 1 near",
        "exact  copy = t1",
        "near   near ~ t2, 100 %",
        "licence    not stated: a local file",
    ):
        assert text in out, text


def test_a_set_that_cannot_be_read_is_named_and_the_others_are_described(
    sets: tuple[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    class Disconnected(Exception):
        """As an HTTP library raises it: no OSError."""

    def fail(*_: object, **__: object) -> list[str]:
        raise Disconnected("name or service not known")

    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", fail)
    assert main(["data", "info", sets[0], "--test", "math-ai/aime24", sets[1]]) == 2
    out = capsys.readouterr().out
    assert "NOT READ   math-ai/aime24: cannot reach the hub (name or service not known)" in out
    assert "licence    MAA" in out
    assert "test.jsonl: 1 exact, 1 near" in out


def test_a_recipe_is_described_with_its_overrides(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = str(ROOT / "configs" / "tiny.yaml")
    assert main(["data", "info", recipe, "data.train.size=5"]) == 0
    out = capsys.readouterr().out
    assert "5 problems of 5 rows" in out
    assert "held_out: 0 exact, not looked for (generated)" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{recipe}", "--split", "test"], "is a recipe"),
        (["{set}", "data.train.size=3"], "is a problem set"),
    ],
)
def test_arguments_that_do_not_belong_together_are_refused(
    sets: tuple[str, str], capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    recipe = str(ROOT / "configs" / "tiny.yaml")
    assert main(["data", "info", *(word.format(recipe=recipe, set=sets[0]) for word in words)]) == 2
    assert message in capsys.readouterr().err


def test_known_sets_are_listed_with_licence_and_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "info"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "\n".join(lines) == known_sets_table()
    [line] = [line for line in lines if line.startswith("HuggingFaceH4/MATH-500")]
    assert line.split() == ["HuggingFaceH4/MATH-500", "math", "test", "500", "MIT"]


def test_every_shared_set_has_its_row_count(capsys: pytest.CaptureFixture[str]) -> None:
    """The counts of the sets' own papers, before repeats are dropped."""
    rows = {
        "gsm8k_train": 7473, "gsm8k_test": 1319, "math500": 500, "aime2024": 30, "aime2025": 30,
        "aime2026": 30, "hmmt_feb_2025": 30, "amc23": 40, "beyondaime": 100, "imo_answerbench": 400,
        "olympiadbench": 675,
        "minerva_math": 272, "svamp": 1000, "mawps": 2065, "train_deepscaler_sub1209": 1209,
        "train_deepmath_sub4994": 4994, "humaneval": 164, "mbpp": 974, "mbpp_plus": 378,
        "lcb_format_smoke": 4,
    }  # fmt: skip
    for name, count in rows.items():
        config = ProblemSetConfig(name=name, source=str(shared_path(f"data/{name}.jsonl")))
        [info] = describe_data(DataConfig(train=config)).sets
        assert info.report.rows == count, name
        dropped = info.report.duplicates + info.report.conflicting + info.report.empty_answers
        assert info.report.kept + dropped == count, name
        assert sum(info.golds.values()) == info.problems == info.report.kept
