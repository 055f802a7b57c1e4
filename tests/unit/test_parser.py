"""The tool-call parser: what it accepts, what it refuses and why; pieces do not change the result."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apprentice.episodes.actions import CallError
from apprentice.episodes.parser import (
    DEFAULT,
    STRICT,
    ParsedTurn,
    Repairs,
    TurnParser,
    parse_turn,
    strip_code_fence,
)
from tests.unit.codecs import tiny

pytestmark = pytest.mark.unit

many = settings(max_examples=400, deadline=None)


def wrapped(body: str) -> str:
    return f"<tool_call>{body}</tool_call>"


def errors(turn: ParsedTurn) -> list[CallError | None]:
    return [call.error for call in turn.calls]


# -- pieces and the whole ------------------------------------------------------------------------------------

FRAGMENTS = (
    "<tool_call>", "</tool_call>", "<think>", "</think>", "<tool", "_call>", "</", "<", ">", '{"name": "a", ',
    '"arguments": {}}', '{"name": "a", "arguments": {"code": "x"}}', '"', '\\"', "\\", "{", "}", "[", "]",
    ",", ":", " ", "\n", "null", "1", "é", "'", '{"name": "b", "arguments": {"s": "</tool_call>"}}',
    "text", "\u00a0",
)  # fmt: skip
BLOCKS = (
    '<tool_call>{"name": "a", "arguments": {}}</tool_call>',
    '<tool_call>\n{"name": "b", "arguments": {"s": "<tool_call></tool_call>", "n": [true, 1]}}\n</tool_call>',
    '<tool_call>{"s": "</tool_call>", "t": "\\\\\\"</tool_call>" </tool_call>',
    '<tool_call>{"s": "<tool_call>" <tool_call>{"name": "c", "arguments": {"q": "\\""}}</tool_call>',
    "<tool_call>{'s': 1}</tool_call>",
    '<tool_call>{"code": "print("</tool_call>")"}}}</tool_call>',
    '\n{"name": "d", "arguments": {"s": "</tool_call>"}}\n',
    "<think><tool_call>{}</tool_call></think>",
    "prose ",
    "<tool_call>",
)


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """A turn of plausible blocks with a few characters lost or fragments put in."""
    text = "".join(draw(st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=5)))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(text)))
        lost = draw(st.integers(0, 2))
        text = text[:at] + draw(st.sampled_from(["", *FRAGMENTS])) + text[at + lost :]
    return text


noise = st.lists(st.sampled_from(FRAGMENTS), max_size=25).map("".join) | damaged()
repairs = st.builds(Repairs, *[st.booleans()] * 5)


@many
@given(text=noise, cuts=st.lists(st.integers(0, 200), max_size=12), repair=repairs, thinking=st.booleans())
def test_fed_in_pieces_it_agrees_with_the_whole(
    text: str, cuts: list[int], repair: Repairs, thinking: bool
) -> None:
    whole = parse_turn(text, repair, thinking=thinking)
    bounds = [0, *sorted({c % (len(text) + 1) for c in cuts}), len(text)]
    for splits in (bounds, range(len(text) + 1)):
        parser = TurnParser(repair, thinking=thinking)
        early = [call for a, b in itertools.pairwise(splits) for call in parser.feed(text[a:b])]
        assert parser.finish() == whole
        assert early == [call for call in whole.calls if call in early]  # in order, none withdrawn


@many
@given(text=noise, repair=repairs)
def test_every_character_is_content_thinking_or_call(text: str, repair: Repairs) -> None:
    turn = parse_turn(text, repair)
    for call in turn.calls:
        assert text[call.start : call.end] == call.raw
        assert (call.error is None) == (call.arguments is not None)
        assert (call.message == "") == (call.error is None)
        if call.error is not None:
            assert call.position is not None and call.start <= call.position <= call.end
    tags = text.count("<think>") + text.count("</think>")
    kept = len(turn.content) + len(turn.thinking) + sum(len(call.raw) for call in turn.calls)
    assert len(text) - 8 * tags <= kept <= len(text)


def test_calls_are_returned_as_soon_as_they_are_complete() -> None:
    parser = TurnParser()
    text = 'Hi <tool_call>{"name": "a", "arguments": {}}</tool_call'
    assert all(parser.feed(c) == [] for c in text)
    assert [call.name for call in parser.feed("> more")] == ["a"]
    assert parser.finish().content == "Hi  more"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
arguments = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), values, max_size=4)
prose = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<{"), max_size=20)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_well_formed_turns_are_read_as_they_were_written(data: st.DataObject) -> None:
    text, content, thinking, calls = "", "", "", []
    for kind in data.draw(st.lists(st.sampled_from("ptc"), max_size=5)):
        if kind == "p":
            piece = data.draw(prose)
            text, content = text + piece, content + piece
        elif kind == "t":
            piece = data.draw(prose) + data.draw(
                st.sampled_from(["", wrapped('{"name": "x", "arguments": {}}')])
            )
            text, thinking = text + f"<think>{piece}</think>", thinking + piece
        else:
            name = data.draw(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9))
            value = {"name": name, "arguments": data.draw(arguments)}
            dumped = json.dumps(
                value, ensure_ascii=data.draw(st.booleans()), indent=data.draw(st.sampled_from([None, 2]))
            )
            space = data.draw(st.sampled_from(["", "\n", " \r\n\t"]))
            text += wrapped(space + dumped + space)
            calls.append(value)
    turn = parse_turn(text, STRICT)
    assert [{"name": c.name, "arguments": c.arguments} for c in turn.calls] == calls
    assert (turn.content, turn.thinking) == (content, thinking)
    assert errors(turn) == [None] * len(calls)


@many
@given(code=st.text(st.characters(exclude_categories=["Cs"])) | noise, escape=st.booleans())
def test_code_arrives_byte_for_byte(code: str, escape: bool) -> None:
    codec = tiny()
    body = json.dumps({"name": "code_interpreter", "arguments": {"code": code}}, ensure_ascii=escape)
    ids = (
        codec.encode_markup("<tool_call>\n") + codec.encode_text(body) + codec.encode_markup("\n</tool_call>")
    )
    (call,) = parse_turn(codec.decode(ids)).calls
    assert call.arguments is not None
    assert call.arguments["code"].encode() == code.encode()


# -- what is refused, and how it is named --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "error", "message", "position"),
    [
        ("", CallError.BAD_JSON, "empty", 0),
        (" \n", CallError.BAD_JSON, "empty", 0),
        ("think", CallError.BAD_JSON, "Expecting value", 0),
        ('{"name": "a", "arguments": {},}', CallError.BAD_JSON, "invalid JSON at character", None),
        ('{"name": "a" "arguments": {}}', CallError.BAD_JSON, "',' delimiter", 13),
        ('{"name": "a", "arguments": {}} x', CallError.BAD_JSON, "after the complete value", 31),
        ('{"name": "a", "arguments": {"x": NaN}}', CallError.BAD_JSON, "NaN", 0),
        ('{"name": "a", "arguments": {"x": -Infinity}}', CallError.BAD_JSON, "Infinity", 0),
        ('{"name": "a", "arguments": {"x": "1\n2"}}', CallError.BAD_JSON, "control character", 35),
        ('{"name": "a", "arguments": {"x": "\\q"}}', CallError.BAD_JSON, "escape", 34),
        ('{"name": "a", "arguments": {"x": "\\ud83d"}}', CallError.BAD_JSON, "surrogate", 34),
        ('{"name": "a", "arguments": {"x": ' + "9" * 5000 + "}}", CallError.BAD_JSON, "integer", 0),
        ("[" * 100_000, CallError.BAD_JSON, "invalid JSON", None),
        ('{"x": ' * 100_000 + "1" + "}" * 100_000, CallError.BAD_JSON, "too deeply", 0),
        ('"think"', CallError.NOT_AN_OBJECT, "a string", 0),
        ("[]", CallError.NOT_AN_OBJECT, "a list", 0),
        ("\n3", CallError.NOT_AN_OBJECT, "a number", 1),
        ("null", CallError.NOT_AN_OBJECT, "null", 0),
        ('{"arguments": {}}', CallError.MISSING_NAME, "no name", 0),
        ('{"name": "", "arguments": {}}', CallError.MISSING_NAME, "a string as its name", 0),
        ('{"name": null, "arguments": {}}', CallError.MISSING_NAME, "null as its name", 0),
        ('{"name": "a"}', CallError.BAD_ARGUMENTS, "missing", 0),
        ('{"name": "a", "arguments": null}', CallError.BAD_ARGUMENTS, "null", 0),
        ('{"name": "a", "arguments": [1]}', CallError.BAD_ARGUMENTS, "a list", 0),
        ('{"name": "a", "arguments": true}', CallError.BAD_ARGUMENTS, "a boolean", 0),
        ('{"name": "a", "arguments": ""}', CallError.BAD_ARGUMENTS, "holds no JSON object", 0),
        ('{"name": "a", "arguments": "{} {}"}', CallError.BAD_ARGUMENTS, "a string", 0),
    ],
)
def test_each_failure_is_named_and_located(
    body: str, error: CallError, message: str, position: int | None
) -> None:
    (call,) = parse_turn("x" + wrapped(body)).calls
    assert (call.error, call.arguments) == (error, None)
    assert message in call.message
    assert len(call.message) < 300
    if position is not None:
        assert call.position == 1 + len("<tool_call>") + position


def test_the_message_quotes_the_place() -> None:
    (call,) = parse_turn(wrapped('{"name": "a", "arguments": {"x": tru}}')).calls
    assert call.message == "invalid JSON at character 33: Expecting value; near " + repr(
        ', "arguments": {"x": tru}}'[-25:]
    )


def test_surrogate_pairs_are_text() -> None:
    (call,) = parse_turn(wrapped('{"name": "a", "arguments": {"x": "\\ud83d\\ude00"}}')).calls
    assert call.arguments == {"x": "\U0001f600"}


def test_a_name_that_could_be_read_is_kept_with_bad_arguments() -> None:
    assert parse_turn(wrapped('{"name": "think", "arguments": 3}')).calls[0].name == "think"


# -- where blocks end ----------------------------------------------------------------------------------------

GOOD = '<tool_call>{"name": "good", "arguments": {}}</tool_call>'


@pytest.mark.parametrize(
    "bad",
    [
        '<tool_call>{"name": "a}</tool_call>',
        '<tool_call>{"name": "a", "arguments": {"code": "print("hi")"}}</tool_call>',
        '<tool_call>{"name": "a", "arguments": {"code": "it"s"}}</tool_call>',
        "<tool_call>{'name': 'a'}</tool_call>",
        "<tool_call>{</tool_call>",
        "<tool_call></tool_call>",
        '<tool_call>{"name": "a", "arguments": {}',
        '<tool_call>{"name": "a", "arguments": {"code": "1',
        '<tool_call>{"name": "a"\\</tool_call>',
        "<tool_call><b></tool_call>",
        '<tool_call>{"x": 1} and "more</tool_call>',
    ],
)
def test_a_bad_block_does_not_swallow_the_good_one_after_it(bad: str) -> None:
    turn = parse_turn(bad + GOOD)
    assert [call.raw for call in turn.calls] == [bad, GOOD]
    assert turn.calls[0].error is not None and turn.calls[1].arguments == {}
    turn = parse_turn(GOOD + bad + GOOD + bad)
    assert [call.raw for call in turn.calls] == [GOOD, bad, GOOD, bad]


def test_a_string_that_is_never_closed_ends_its_block_at_the_tag() -> None:
    turn = parse_turn('<tool_call>{"name": "a}</tool_call> and so on')
    assert errors(turn) == [CallError.BAD_JSON]
    assert "Unterminated string" in turn.calls[0].message
    assert turn.content == " and so on"


def test_a_tag_outside_of_strings_in_an_incomplete_object_ends_the_block_at_the_first_tag_of_all() -> None:
    bad = '<tool_call>{"s": "</tool_call>" '
    turn = parse_turn(bad + GOOD)
    assert [call.raw for call in turn.calls] == ['<tool_call>{"s": "</tool_call>', GOOD]
    assert turn.content == '" '


def test_tags_in_strings_belong_to_the_strings() -> None:
    inner = 'print("<tool_call>{}</tool_call>") # <think>'
    text = wrapped(json.dumps({"name": "a", "arguments": {"code": inner}}))
    (call,) = parse_turn(text + " done").calls
    assert call.arguments == {"code": inner}
    assert parse_turn(text + " done").content == " done"


def test_junk_after_a_complete_object_does_not_cut_its_strings() -> None:
    text = wrapped('{"name": "a", "arguments": {"s": "</tool_call>"}} junk') + GOOD
    assert [call.name for call in parse_turn(text).calls] == ["", "good"]
    assert parse_turn(text).content == ""


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        '<tool_call>{"name": "a", "argum',
        '<tool_call>{"name": "a", "arguments": {}}',
        '<tool_call>{"name": "a", "arguments": {}}\n</tool_ca',
        '<tool_call>{"name": "a", "arguments": {"code": "x \\',
        '<tool_call>{"name": "a", "arguments": {}}' + GOOD,
    ],
)
def test_a_call_without_its_closing_tag_is_truncated(text: str) -> None:
    turn = parse_turn("before " + text)
    assert turn.calls[0].error is CallError.TRUNCATED
    assert "no closing </tool_call>" in turn.calls[0].message
    assert turn.content == "before "
    assert [c.name for c in turn.calls[1:]] == (["good"] if GOOD in text else [])


def test_a_partial_opening_tag_at_the_end_is_content() -> None:
    assert parse_turn("a <tool_ca").content == "a <tool_ca"
    assert parse_turn("stray </tool_call> end").content == "stray </tool_call> end"


def test_thinking() -> None:
    turn = parse_turn("a<think>b" + GOOD + "</think>c" + GOOD + "<think>d" + GOOD)
    assert (turn.content, turn.thinking, len(turn.calls)) == ("ac", "b" + GOOD + "d" + GOOD, 1)
    assert turn.thinking_unfinished and not parse_turn("<think></think>").thinking_unfinished
    turn = parse_turn(GOOD + "</think>" + GOOD, thinking=True)  # the prompt opened the block
    assert (turn.thinking, len(turn.calls)) == (GOOD, 1)


@pytest.mark.parametrize(
    "unit",
    [
        '<tool_call>{"a', "<tool_call>{", '<tool_call>["",', '<tool_call>{"a": "</tool_call>',
        '"<tool_call>["," ', "<think><tool_call>", '</tool_call>"', '\n{"name":', '<tool_call>"\\"',
        "<tool_call>[[[[", GOOD, "<", "{",
    ],
)  # fmt: skip
@pytest.mark.parametrize("piece", [1_000_000, 5])
def test_hostile_turns_take_linear_time(unit: str, piece: int) -> None:
    text = unit * (300_000 // len(unit))
    begin = time.thread_time()
    parser = TurnParser()
    for at in range(0, len(text), piece):
        parser.feed(text[at : at + piece])
    parser.finish()
    assert time.thread_time() - begin < 6.0  # 0.1 to 0.6 s measured; quadratic time would be minutes


# -- repairs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("repair", "text", "expected"),
    [
        ("string_arguments", wrapped('{"name": "a", "arguments": "{\\"x\\": 1}"}'), {"x": 1}),
        ("extra_braces", wrapped('{"name": "a", "arguments": {"x": 1}}}\n}'), {"x": 1}),
        ("raw_newlines", wrapped('{"name": "a", "arguments": {"x": "1\n\t2"}}'), {"x": "1\n\t2"}),
        ("missing_close", '<tool_call>{"name": "a", "arguments": {"x": 1}}\n', {"x": 1}),
        ("bare_json", 'Then:\n {"name": "a", "arguments": {"x": 1}}\n', {"x": 1}),
    ],
)
def test_each_repair_accepts_one_thing_and_is_needed_for_it(
    repair: str, text: str, expected: dict[str, Any]
) -> None:
    off = dict.fromkeys(Repairs.__slots__, False)
    (call,) = parse_turn(text, Repairs(**{**off, repair: True})).calls
    assert (call.name, call.arguments, call.error) == ("a", expected, None)
    without = parse_turn(text, Repairs(**{**dict.fromkeys(off, True), repair: False}))
    assert [c.error for c in without.calls + without.missing_wrapper] != [None]
    assert all(c.error is not None for c in without.calls + without.missing_wrapper)


def test_defaults() -> None:
    assert DEFAULT.string_arguments and not STRICT.string_arguments
    off = (DEFAULT.extra_braces, DEFAULT.raw_newlines, DEFAULT.missing_close, DEFAULT.bare_json)
    assert off == (False, False, False, False)


def test_bare_calls_leave_the_content_only_when_repaired() -> None:
    bare = '{"name": "a", "arguments": {}}'
    text = f"x\n{bare} y <think>{bare}</think>\n{bare}{GOOD}"
    strict = parse_turn(text)
    assert (strict.content, len(strict.calls)) == (f"x\n{bare} y \n{bare}", 1)
    assert [c.error for c in strict.missing_wrapper] == [CallError.MISSING_WRAPPER] * 2
    repaired = parse_turn(text, Repairs(bare_json=True))
    assert [c.name for c in repaired.calls] == ["a", "a", "good"]
    assert (repaired.content, repaired.missing_wrapper) == ("x\n y \n", ())


@pytest.mark.parametrize(
    "text", ['so {"name": "a", "arguments": {}}', '{"name": "a"}', "{1: 2}", '{"a": ' * 2000]
)
def test_other_braces_are_no_bare_calls(text: str) -> None:
    assert parse_turn(text).missing_wrapper == ()


def test_at_most_eight_bare_calls_of_a_turn_are_looked_for() -> None:
    assert len(parse_turn('{"name": "a", "arguments": {}}\n' * 20).missing_wrapper) == 8


# -- code fences ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print(1)\n", "print(1)\n"),
        ("```python\nprint('hi')\n```", "print('hi')"),
        ("```\nprint(1)\n```\n", "print(1)"),
        (
            "Sure:\n\n```py\na = 1\n```\nprints\n```\n1\n```\nthen\n```python\nprint(a)\n```",
            "a = 1\nprint(a)",
        ),
        ("```\na = 1\n```\nand\n```\nprint(a)\n```", "a = 1\nprint(a)"),
        ("```text\nnot code\n```", "```text\nnot code\n```"),
        ("```python\nprint(1)", "print(1)"),
        ("```python", ""),
        ("```python\r\nprint(1)\r\n```\r\n", "print(1)"),
        ("~~~python\nprint('```')\n~~~", "print('```')"),
        ("````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''"),
        ('s = """\n```python\nx\n```\n"""\nprint(s)', 's = """\n```python\nx\n```\n"""\nprint(s)'),
        ("x = '```'\nprint(x)", "x = '```'\nprint(x)"),
        ('```Python title="a.py"\nprint(1)\n```', "print(1)"),
    ],
)
def test_code_fences(code: str, expected: str) -> None:
    assert strip_code_fence(code) == expected
