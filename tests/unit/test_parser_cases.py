"""Public reports of the area "tool-call parsing" (shared/cases), each with its right outcome."""

from __future__ import annotations

import contextlib
import io
import json

import pytest

from apprentice.episodes.actions import CallError
from apprentice.episodes.parser import ParsedTurn, Repairs, TurnParser, parse_turn, strip_code_fence
from apprentice.tokens import ChatCodec
from tests.shared import shared_path
from tests.unit.codecs import CODECS, qwen

pytestmark = pytest.mark.unit

HERE = {"B01", "B03", "B05", "B07", "B09", "B11", "B13", "B15", "B17", "B19", "B21", "B23"}


def both_ways(text: str, repairs: Repairs | None = None) -> ParsedTurn:
    """The turn parsed whole, after the same came out of the parser fed by the character."""
    settings = repairs or Repairs()
    parser = TurnParser(settings)
    for character in text:
        parser.feed(character)
    whole = parse_turn(text, settings)
    assert parser.finish() == whole
    return whole


def outcomes(turn: ParsedTurn) -> list[tuple[str, object, CallError | None]]:
    return [(call.name, call.arguments, call.error) for call in turn.calls]


def test_every_row_of_the_area_has_its_place() -> None:
    rows = map(json.loads, shared_path("cases/public-reports.jsonl").read_text().splitlines())
    assert {row["id"] for row in rows if row["area"] == "tool-call parsing"} == HERE


def test_b01_a_closing_tag_inside_a_string_argument() -> None:
    body = '{"name": "code_interpreter", "arguments": {"code": "print(\\"</tool_call>\\")"}}'
    text = f"<tool_call>\n{body}\n</tool_call>"
    assert outcomes(both_ways(text)) == [("code_interpreter", {"code": 'print("</tool_call>")'}, None)]


def test_b03_one_extra_closing_brace() -> None:
    text = '<tool_call>{"name": "think", "arguments": {"instruction": "x"}}}</tool_call>'
    assert outcomes(both_ways(text)) == [("", None, CallError.BAD_JSON)]
    assert both_ways(text).calls[0].position == text.index("}</tool_call>")
    assert outcomes(both_ways(text, Repairs(extra_braces=True))) == [("think", {"instruction": "x"}, None)]


def test_b05_nested_braces() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"nested": {"deep": true}}}</tool_call>'
    assert outcomes(both_ways(text)) == [("f", {"nested": {"deep": True}}, None)]


def test_b07_one_bad_block_leaves_the_valid_one() -> None:
    valid = '<tool_call>{"name": "code_interpreter", "arguments": {"code": "1"}}</tool_call>'
    undeclared = '<tool_call>{"name": "nonsense", "arguments": {}}</tool_call>'
    first = ("code_interpreter", {"code": "1"}, None)
    assert outcomes(both_ways(valid + undeclared)) == [
        first,
        ("nonsense", {}, None),
    ]  # the episode knows the tools
    malformed = "<tool_call>{oops</tool_call>"
    assert outcomes(both_ways(valid + malformed)) == [first, ("", None, CallError.BAD_JSON)]
    assert outcomes(both_ways(malformed + valid)) == [("", None, CallError.BAD_JSON), first]


def test_b09_a_call_inside_thinking_is_not_made() -> None:
    text = (
        '<think>let me call A <tool_call>{"name": "A", "arguments": {}}</tool_call> ...</think>\n'
        '<tool_call>{"name": "A", "arguments": {}}</tool_call>'
    )
    turn = both_ways(text)
    assert outcomes(turn) == [("A", {}, None)]
    assert turn.calls[0].start == text.index("\n") + 1


def test_b11_no_name_and_empty_body_are_one_error_each() -> None:
    text = '<tool_call>{"arguments": {"code": "1"}}</tool_call><tool_call>\n</tool_call>'
    assert outcomes(both_ways(text)) == [("", None, CallError.MISSING_NAME), ("", None, CallError.BAD_JSON)]


@pytest.mark.parametrize("value", ["null", '"null"'])
@pytest.mark.parametrize("kind", [*CODECS, "qwen3.jinja", "qwen2_5.jinja"])
def test_b13_null_arguments_are_a_format_error_and_the_history_renders(value: str, kind: str) -> None:
    turn = both_ways(f'<tool_call>{{"name": "think", "arguments": {value}}}</tool_call>')
    assert outcomes(turn) == [("think", None, CallError.BAD_ARGUMENTS)]
    codec: ChatCodec = CODECS[kind]() if kind in CODECS else qwen(kind)
    for arguments in (json.loads(value), turn.calls[0].arguments):
        messages = [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "", "tool_calls": [{"name": "think", "arguments": arguments}]},
            {"role": "tool", "content": turn.calls[0].message},
        ]
        text = codec.decode(codec.encode_prompt(messages))
        assert '"name": "think", "arguments": ' in text and "null" in text


@pytest.mark.parametrize("kind", [*CODECS, "qwen3.jinja", "qwen2_5.jinja"])
def test_b15_arguments_given_as_a_json_string(kind: str) -> None:
    turn = both_ways('<tool_call>{"name": "w", "arguments": "{\\"city\\": \\"New York\\"}"}</tool_call>')
    assert outcomes(turn) == [("w", {"city": "New York"}, None)]
    codec: ChatCodec = CODECS[kind]() if kind in CODECS else qwen(kind)
    (call,) = turn.calls
    messages = [
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"name": call.name, "arguments": call.arguments}],
        },
    ]
    assert '"arguments": {"city": "New York"}}' in codec.decode(codec.encode_prompt(messages))


@pytest.mark.parametrize(
    "block",
    ["<tool_call>{oops</tool_call>", '<tool_call>{"name": "f", "arguments": {x}}</tool_call>', "<tool_call>"],
)
def test_b17_an_undecodable_block_has_an_error_text_and_no_arguments_to_run(block: str) -> None:
    (call,) = both_ways("Let me try. " + block).calls
    assert call.error in {CallError.BAD_JSON, CallError.TRUNCATED}
    assert call.arguments is None
    assert call.message


def test_b19_bare_json_is_counted_as_missing_its_wrapper() -> None:
    text = '{"name": "code_interpreter", "arguments": {"code": "print(1)"}}'
    turn = both_ways(text)
    assert turn.calls == ()
    assert [call.error for call in turn.missing_wrapper] == [CallError.MISSING_WRAPPER]
    repaired = both_ways(text, Repairs(bare_json=True))
    assert outcomes(repaired) == [("code_interpreter", {"code": "print(1)"}, None)]


def test_b21_a_markdown_fence_is_not_python() -> None:
    code = strip_code_fence('```python\nprint("hi")\n```')
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, {})
    assert out.getvalue() == "hi\n"
    # Several blocks: those labelled as Python, joined in their order.
    several = "```python\nx = 1\n```\nwhich prints\n```\n1\n```\n```python\nprint(x)\n```"
    assert strip_code_fence(several) == "x = 1\nprint(x)"


def test_b23_single_quotes_are_a_format_error_that_quotes_the_position() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"paths": [\'app.py\']}}</tool_call>'
    (call,) = both_ways(text).calls
    assert (call.error, call.position) == (CallError.BAD_JSON, text.index("'app.py'"))
    assert "app.py" in call.message and "character" in call.message
