"""Tables 7, 8 and 10: the paper's own text is the reference."""

from __future__ import annotations

import html
import json
import re

import pytest

from apprentice.config.schema import ExpertConfig, WorkedBackend
from apprentice.episodes.prompts import collaborative_prompt, problem_prompt
from apprentice.episodes.tools import think_schema, tool_schemas
from tests.shared import shared_path

pytestmark = pytest.mark.unit


def experts(*pairs: tuple[str, str]) -> list[ExpertConfig]:
    return [ExpertConfig(name=name, description=text, backend=WorkedBackend()) for name, text in pairs]


PAPER_EXPERTS = experts(
    ("Qwen3.5-9B", "reasoning and planning"), ("Qwen2.5-Coder-7B-Instruct", "code"), ("Qwen3-8B", "")
)


@pytest.fixture
def paper() -> str:
    return shared_path("seeds/000_ac480766e2843010.txt").read_text(encoding="utf-8")


def cell(paper: str, start: str, end: str) -> str:
    """A listing of the paper: entities decoded, typographic quotes back to ASCII."""
    found = re.search(re.escape(start) + "(.*?)" + re.escape(end), paper, re.DOTALL)
    assert found, start
    text = html.unescape(start + found[1])
    return text.replace("\u2018", "`").replace("\u2019", "'")


def flat(text: str) -> str:
    return " ".join(text.split())


def test_table_7_user_message_is_the_papers(paper: str) -> None:
    expected = cell(paper, "You are a tool-using math controller.", " |\n")
    prompt = collaborative_prompt("<PROBLEM>", PAPER_EXPERTS)
    assert [m["role"] for m in prompt.messages] == ["user"]
    assert flat(prompt.messages[0]["content"]) == flat(expected)


def test_table_8_tool_definitions_are_the_papers_with_the_same_key_order(paper: str) -> None:
    row = cell(paper, '{ "type": "function", "function": { "name": "think"', " |\n")
    think, code = (part.strip(" |⬇\n") for part in row.split(" | ⬇ "))
    schemas = tool_schemas(PAPER_EXPERTS)
    # Compared as text: the order of keys is part of what the model reads.
    assert json.dumps(schemas[0]) == json.dumps(json.loads(think))
    assert json.dumps(schemas[1]) == json.dumps(json.loads(code))


def test_table_10_input_is_the_papers(paper: str) -> None:
    expected = cell(
        paper,
        "Solve the following math problem step by step. The last line of your response "
        "should be exactly of the form Answer: \\boxed{answer}, where answer is the answer to the "
        "problem. Determine",
        " |",
    )
    question = cell(paper, "Determine how many right triangles exist", " Remember to put")
    prompt = problem_prompt(question)
    assert prompt.tools is None
    assert flat(prompt.messages[0]["content"]) == flat(expected)


def test_lists_and_headings_stand_on_lines_of_their_own() -> None:
    lines = collaborative_prompt("What is 1+1?", PAPER_EXPERTS).messages[0]["content"].split("\n")
    assert sum(line.startswith("- ") for line in lines) == 7 + 3
    assert lines.count("Answer: \\boxed{answer}") == 2
    assert "# Problem" in lines and "What is 1+1?" in lines


def test_enum_follows_the_recipe_and_self_only_runs_code() -> None:
    think, code = tool_schemas(experts(("b", ""), ("a", "")))
    assert think["function"]["parameters"]["properties"]["model"]["enum"] == ["b", "a"]
    assert code["function"]["parameters"]["properties"]["model"]["enum"] == ["self", "b", "a"]


@pytest.mark.parametrize(
    ("pairs", "sentence"),
    [
        ((("a", ""), ("b", "")), ""),
        ((("a", "sums."), ("b", "")), " a is especially strong at sums."),
        ((("a", "x"), ("b", "y")), " b is especially strong at y, while a is especially strong at x."),
        (
            (("a", "x"), ("b", "y"), ("c", "z")),
            " c is especially strong at z, b is especially strong at y, while a is especially strong at x.",
        ),
    ],
)
def test_strong_at_sentence(pairs: tuple[tuple[str, str], ...], sentence: str) -> None:
    description = think_schema(experts(*pairs))["function"]["description"]
    assert description.endswith(
        "The returned text is appended to the trajectory for the controller to use next." + sentence
    )


def test_without_experts_only_self_is_left() -> None:
    prompt = collaborative_prompt("q", [])
    assert prompt.tools is not None
    assert [tool["function"]["name"] for tool in prompt.tools] == ["code_interpreter"]
    assert prompt.tools[0]["function"]["parameters"]["properties"]["model"]["enum"] == ["self"]
    content = prompt.messages[0]["content"]
    assert "expert" not in content and "`think" not in content


@pytest.mark.parametrize("with_experts", [True, False])
def test_compact_instructions_cost_a_few_dozen_words_and_no_tool_block(with_experts: bool) -> None:
    prompt = collaborative_prompt("QUESTION", PAPER_EXPERTS if with_experts else [], "compact")
    content = prompt.messages[0]["content"]
    assert prompt.tools is None
    assert len(content.split()) < 40
    assert "Answer: \\boxed{answer}" in content and content.endswith("QUESTION")
    assert all((e.name in content) == with_experts for e in PAPER_EXPERTS)


@pytest.mark.parametrize("instructions", ["paper", "compact"])
def test_question_text_is_inserted_once_and_unchanged(instructions: str) -> None:
    question = "What does <PROBLEM> or <EXPERTS> mean?"
    for prompt in (
        collaborative_prompt(question, PAPER_EXPERTS, instructions),  # type: ignore[arg-type]
        problem_prompt(question, instructions),  # type: ignore[arg-type]
    ):
        assert prompt.messages[0]["content"].count(question) == 1
