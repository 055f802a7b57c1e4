"""Problem sets: deterministic, balanced, apart from each other, honest about what was dropped."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from apprentice.config.schema import DataConfig, ProblemSetConfig
from apprentice.data.load import load_data, load_problems, problems_from_rows
from apprentice.data.procedural import interleave
from apprentice.data.text import question_key
from apprentice.errors import ConfigError, DataError

pytestmark = pytest.mark.unit

DEMO_FAMILIES: dict[str, dict[str, object]] = {
    "chain_sum": {},
    "gcd": {},
    "lcm": {},
    "simple_equations": {},
    "count_primes": {},
}


def gym(name: str = "train", **changes: Any) -> ProblemSetConfig:
    settings: dict[str, Any] = {"source": "reasoning_gym", "families": DEMO_FAMILIES, "size": 53, "seed": 1}
    return ProblemSetConfig(name=name, **{**settings, **changes})


def test_generated_problems_are_balanced_interleaved_and_decided_by_the_seed() -> None:
    problems = load_problems(gym())
    assert [p.family for p in problems[:10]] == [*DEMO_FAMILIES, *DEMO_FAMILIES]
    assert Counter(p.family for p in problems) == dict(zip(DEMO_FAMILIES, (11, 11, 11, 10, 10), strict=True))
    assert load_problems(gym()) == problems
    assert len({p.problem_id for p in problems}) == len({question_key(p.question) for p in problems}) == 53
    assert all(p.worked is not None and p.source == "reasoning_gym" for p in problems)


def test_neighbouring_seeds_share_no_questions() -> None:
    # The library's own seeding shifts: entry i of seed s is entry i - 1 of seed s + 1.
    first, second = (
        {question_key(p.question) for p in load_problems(gym(size=250, seed=seed))} for seed in (1, 2)
    )
    assert len(first & second) <= 2


def test_training_problems_never_contain_a_test_question() -> None:
    # One-digit sums of two terms: 200 different questions, so that a test set is hit for certain.
    narrow: dict[str, dict[str, object]] = {
        "chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    }
    train, test = gym(families=narrow, size=60, seed=1), gym("held-out", families=narrow, size=60, seed=2)
    alone = {question_key(p.question) for p in load_problems(train)}
    sets = load_data(DataConfig(train=train, test=(test,)))
    held_out = {question_key(p.question) for p in sets.test["held-out"]}
    assert alone & held_out
    assert not {question_key(p.question) for p in sets.train} & held_out
    assert len(sets.train) == len(held_out) == 60


def test_same_seed_and_same_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="another seed"):
        load_data(DataConfig(train=gym(), test=(gym("held-out"),)))
    with pytest.raises(ConfigError, match="names must differ"):
        load_data(DataConfig(train=gym(), test=(gym("t", seed=3), gym("t", seed=4))))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"families": {"gdc": {}}}, "did you mean 'gcd'"),
        ({"families": {}}, "at least one"),
        ({"families": {"gcd": {"max_valeu": 3}}}, "max_valeu"),
        ({"families": {"gcd": {"seed": 3}}}, "on the problem set instead"),
    ],
)
def test_a_wrong_family_or_option_names_itself(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_problems(gym(**changes))


def test_a_family_with_too_few_questions_is_an_error() -> None:
    with pytest.raises(DataError, match="different questions"):
        load_problems(gym(families={"gcd": {"min_value": 1, "max_value": 3}}, size=50))


def test_interleave_keeps_every_problem() -> None:
    problems = load_problems(gym(size=10))
    groups = [problems[:5], problems[5:7], problems[7:]]
    mixed = interleave(groups)
    assert sorted(p.problem_id for p in mixed) == sorted(p.problem_id for p in problems)
    assert mixed[:3] == [groups[0][0], groups[1][0], groups[2][0]]


ROWS: list[dict[str, Any]] = [
    {"id": "a", "problem": "What is 1+1?", "answer": 2, "source": "s", "split": "test"},
    {"id": "b", "problem": "what is  1+1?", "answer": "2", "source": "s", "split": "test"},
    {"id": "c", "problem": "Name a number.", "answer": "7", "source": "s", "split": "test"},
    {"id": "d", "problem": "Name a number.", "answer": "8", "source": "s", "split": "test"},
    {"id": "e", "problem": "Name a number.", "answer": "7", "source": "s", "split": "test"},
    {"id": "f", "problem": "Nothing", "answer": " ", "source": "s", "split": "test"},
    {"id": "g", "problem": "What is 2+2?", "answer": "4", "source": "s", "split": "train"},
    {"id": "h", "problem": "What is 3+3?", "answer": "6", "source": "s", "split": "test"},
]


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_repeats_conflicts_and_empty_golds_are_dropped_and_counted(tmp_path: Path) -> None:
    config = ProblemSetConfig(name="s", source=write_jsonl(tmp_path / "s.jsonl", ROWS), split="test")
    problems, report = problems_from_rows(ROWS, config, "s", exclude={question_key("What is 3+3?")})
    assert [p.problem_id for p in problems] == ["a"]
    assert (report.rows, report.kept, report.duplicates, report.conflicting) == (7, 1, 1, 3)
    assert (report.empty_answers, report.excluded) == (1, 1)
    assert (
        report.rows
        == report.kept + report.duplicates + report.conflicting + report.empty_answers + report.excluded
    )
    assert [p.problem_id for p in load_problems(config)] == ["a", "h"]
    assert load_problems(config)[0].answer == "2"


def test_parquet_and_json_lines_give_the_same_problems(tmp_path: Path) -> None:
    rows = [
        {"q": f"Question {i}", "a": str(i), "derivation": "d", "program": f"print({i})"} for i in range(9)
    ]
    fields = {"question": "q", "answer": "a"}
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    jsonl = ProblemSetConfig(name="x", source=write_jsonl(tmp_path / "x.jsonl", rows), fields=fields)
    parquet = ProblemSetConfig(name="x", source=str(tmp_path / "x.parquet"), fields=fields)
    problems = load_problems(jsonl)
    assert problems == load_problems(parquet)
    assert problems[3].problem_id == "x/00003"
    assert problems[3].worked is not None
    assert problems[3].worked.program == "print(3)"


def test_size_samples_by_seed_without_changing_the_order(tmp_path: Path) -> None:
    source = write_jsonl(
        tmp_path / "x.jsonl", [{"id": str(i), "problem": f"Q{i}", "answer": "1"} for i in range(40)]
    )
    chosen = [p.problem_id for p in load_problems(ProblemSetConfig(name="x", source=source, size=10, seed=3))]
    again = [p.problem_id for p in load_problems(ProblemSetConfig(name="x", source=source, size=10, seed=3))]
    other = [p.problem_id for p in load_problems(ProblemSetConfig(name="x", source=source, size=10, seed=4))]
    assert chosen == again == sorted(chosen, key=int) != other
    with pytest.raises(DataError, match="size 41"):
        load_problems(ProblemSetConfig(name="x", source=source, size=41))


@pytest.mark.parametrize(
    ("text", "fields", "error", "message"),
    [
        ('{"problem": "Q", "answer": "1"}\nnot json\n', {}, DataError, r":2: not JSON"),
        ("[1]\n", {}, DataError, r":1: expected a JSON object"),
        ("", {}, DataError, "no rows"),
        ('{"problem": "Q"}\n', {}, DataError, "no column for 'answer'"),
        ('{"problem": "Q", "answer": "1"}\n', {"answer": "gold"}, ConfigError, "no column 'gold'"),
        ('{"problem": "Q", "answer": "1"}\n', {"answr": "answer"}, ConfigError, "unknown field 'answr'"),
        (
            '{"id": 1, "problem": "Q", "answer": "1"}\n{"id": 1, "problem": "R", "answer": "1"}\n',
            {},
            DataError,
            "two different problems",
        ),
    ],
)
def test_a_file_that_cannot_be_read_says_where(
    tmp_path: Path, text: str, fields: dict[str, str], error: type[Exception], message: str
) -> None:
    (tmp_path / "x.jsonl").write_text(text)
    with pytest.raises(error, match=message):
        load_problems(ProblemSetConfig(name="x", source=str(tmp_path / "x.jsonl"), fields=fields))


@pytest.mark.parametrize("source", ["/no/such.jsonl", "./folder", "/no/such"])
def test_a_missing_file_is_not_taken_for_a_hub_id(source: str) -> None:
    with pytest.raises(DataError):
        load_problems(ProblemSetConfig(name="x", source=source))


def test_hub_sets_say_that_the_hub_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def offline(*_: object, **__: object) -> list[str]:
        raise huggingface_hub.errors.OfflineModeIsEnabled("offline")

    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", offline)
    with pytest.raises(DataError, match="local file"):
        load_problems(ProblemSetConfig(name="x", source="math-ai/aime25"))


def test_hub_rows_come_from_the_named_configuration_and_split(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import huggingface_hub

    files = ["main/train/0000.parquet", "main/test/0000.parquet", "socratic/test/0000.parquet", "README.md"]
    pq.write_table(pa.Table.from_pylist([{"question": "Q", "answer": "1"}]), tmp_path / "f.parquet")
    asked: list[str] = []

    def download(repo: str, file: str, **_: object) -> str:
        asked.append(file)
        return str(tmp_path / "f.parquet")

    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda *_a, **_k: files)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    for source in ("someone/words", "someone/words:socratic"):
        assert load_problems(ProblemSetConfig(name="x", source=source, split="test"))[0].answer == "1"
    assert asked == ["main/test/0000.parquet", "socratic/test/0000.parquet"]
    with pytest.raises(DataError, match=r"^someone/words: split None .* one of \['test', 'train'\]"):
        load_problems(ProblemSetConfig(name="x", source="someone/words"))
    with pytest.raises(DataError, match="no configuration 'other'"):
        load_problems(ProblemSetConfig(name="x", source="someone/words:other", split="test"))
