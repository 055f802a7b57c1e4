"""Prompts of Learning to Ask: F.4 to the character, the solo variant, Qmaker's form."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apprentice.data.problem import Problem
from apprentice.episodes.ask_prompts import ask_prompt, qmaker_prompt, solo_prompt, task_of
from apprentice.episodes.qmaker_text import QmakerText, format_query, parse_qmaker
from apprentice.episodes.tools import ask_advisor_schema
from tests.episode_kit import PROBLEM, qwen_codec
from tests.shared import shared_path

pytestmark = pytest.mark.unit

CODE = Problem("c1", "Read n and print 2n.", "", metadata={"code_tests": "{}"})


def whole(prompt) -> str:
    return "\n".join(m["content"] for m in prompt.messages) + json.dumps(prompt.tools or [])


def test_the_tool_is_the_papers() -> None:
    paper = shared_path("seeds/001_e012b03dfa139186.txt").read_text(encoding="utf-8")
    listing = paper[paper.index("F.4 Tool description") : paper.index("F.5 Judge Prompt")]
    strings = re.findall("”([^”]*)”", listing.replace("ASK_ADVISOR_TOOL_NAME", "”ask_advisor”"))
    schema = ask_advisor_schema()
    mine: list[str] = []

    def walk(value: object) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                mine.append(key)
                walk(item)
        elif isinstance(value, list):
            for item in value:
                walk(item)
        else:
            mine.append(str(value))

    walk(schema)
    assert mine == strings  # every key and text, in the paper's order
    assert schema["function"]["parameters"]["required"] == ["query"]
    assert "’" not in json.dumps(schema, ensure_ascii=False)


@pytest.mark.parametrize("problem", [PROBLEM, CODE])
@pytest.mark.parametrize("instructions", ["paper", "compact"])
def test_solo_is_the_ask_prompt_without_a_word_of_the_advisor(problem, instructions) -> None:
    ask, solo = ask_prompt(problem, 1, instructions), solo_prompt(problem, instructions)
    assert "advisor" in whole(ask) and "at most once" in whole(ask)
    assert solo.tools is None and not re.search("advisor|ask_|query|tool", whole(solo), re.IGNORECASE)
    for a, b in zip(ask.messages, solo.messages, strict=True):  # nothing else differs
        left = a["content"]
        for piece in re.split(r"\n\n", b["content"]):
            assert piece in left
            left = left.replace(piece, "", 1)
        assert not left.strip() or "advisor" in left


def test_tasks_ask_for_a_boxed_answer_or_a_whole_program() -> None:
    assert (task_of(PROBLEM), task_of(CODE)) == ("math", "code")
    for instructions in ("paper", "compact"):
        math, code = whole(ask_prompt(PROBLEM, 1, instructions)), whole(ask_prompt(CODE, 1, instructions))
        assert "Answer: \\boxed{answer}" in math and "program" not in math.lower()
        assert "complete Python program" in code and "boxed" not in code


def test_paper_prompts_have_a_system_message_and_the_native_tool() -> None:
    prompt = ask_prompt(PROBLEM, 3)
    assert [m["role"] for m in prompt.messages] == ["system", "user"]
    assert prompt.messages[1]["content"] == PROBLEM.question
    assert prompt.tools == (ask_advisor_schema(),) and "at most 3 times" in prompt.messages[0]["content"]
    rendered = qwen_codec().decode(qwen_codec().encode_prompt(prompt.messages, prompt.tools))
    assert '"name": "ask_advisor"' in rendered and "<tools>" in rendered


def test_compact_prompts_cost_a_few_dozen_tokens() -> None:
    codec = qwen_codec()
    for prompt, limit in (
        (ask_prompt(PROBLEM, 1, "compact"), 40),
        (solo_prompt(PROBLEM, "compact"), 30),
        (qmaker_prompt(PROBLEM.question, "", 64, "compact", privacy=True), 75),
    ):
        assert prompt.tools is None
        assert len(codec.encode_prompt(prompt.messages)) <= limit


@pytest.mark.parametrize("instructions", ["paper", "compact"])
def test_qmaker_sees_problem_reasoning_budget_and_form(instructions) -> None:
    question, reasoning = "What is <BUDGET> of <PRIVACY>?", "First <BUDGET>."
    text = whole(qmaker_prompt(question, reasoning, 512, instructions))
    assert question in text and reasoning in text and "512 tokens" in text  # nothing in them is replaced
    assert "\nRequest: " in text and "\nResponse: " in text
    assert "confidential" not in text and "<PRIVACY>" not in text.replace(question, "")
    private = whole(qmaker_prompt(question, reasoning, 512, instructions, privacy=True))
    assert "confidential" in private and "(none yet)" in whole(qmaker_prompt("q", "", 1, instructions))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Request: a\nResponse: b", ("a", "b")),
        ("\n  Request: \n a\n  c \n\nResponse:\nb\nd\n", ("a\n  c", "b\nd")),
        ("Request:a\nResponse:b", ("a", "b")),
        ("Request: say 'Response: x'\nResponse: b", ("say 'Response: x'", "b")),
        ("", None),
        ("a", None),
        ("Request: a", None),
        ("Request: a\nResponse: ", None),
        ("Request: \nResponse: b", None),
        ("Response: b\nRequest: a", None),
        ("Sure! Request: a\nResponse: b", None),
        ("Sure!\nRequest: a\nResponse: b", None),
        ("Request: a\nRequest: b\nResponse: c", None),
        ("Request: a\nResponse: b\nResponse: c", None),
        ("request: a\nresponse: b", None),
        ("**Request:** a\n**Response:** b", None),
    ],
)
def test_qmakers_form_is_strict_but_for_space(text: str, parts: tuple[str, str] | None) -> None:
    assert parse_qmaker(text) == (QmakerText(*parts) if parts else None)


@given(st.text(max_size=60), st.text(max_size=60))
def test_what_is_written_in_the_form_is_read_back(request: str, response: str) -> None:
    request, response = (re.sub("(?m)^(Request|Response):", "", t).strip() for t in (request, response))
    parsed = parse_qmaker(f"Request: {request}\nResponse: {response}")
    if not request or not response or re.search("(?m)^(Request|Response):", f"{request}\n{response}"):
        return
    assert parsed == QmakerText(request, response)
    assert format_query(parsed) == f"{request}\n\n{response}"
