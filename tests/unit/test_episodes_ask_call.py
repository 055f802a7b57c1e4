"""Where a query stands in sampled tokens, and how another one takes its place: to the byte."""

from __future__ import annotations

import json
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apprentice.episodes.ask_call import CallSite, call_site, completed_call
from apprentice.episodes.parser import parse_turn
from apprentice.tokens import ChatCodec
from apprentice.trajectory import Owner
from tests.ask_episode_kit import asks
from tests.episode_kit import merging_codec, plain_codec, qwen_codec, tiny_codec
from tests.tiny import make_tiny_tokenizer
from tests.unit.codecs import hostile_text

pytestmark = pytest.mark.unit


@cache
def quoting_codec() -> ChatCodec:
    """A vocabulary whose tokens join the opening quote with what follows it, as Qwen's do."""
    corpus = [asks("$x$"), asks("\\frac"), asks('"a"')] * 4
    return ChatCodec(make_tiny_tokenizer(corpus, vocab_size=420))


CODECS = {
    "qwen": qwen_codec,
    "tiny": tiny_codec,
    "plain": plain_codec,
    "merging": merging_codec,
    "quoting": quoting_codec,
}
QUERIES = [
    "What is 7 * 8?",
    "$x$?",
    '"quoted"',
    "\\frac{1}{2}",
    "\n\nlines\r\n\tand\x07",
    "Größe ∑ 🙂👩‍👩‍👧",
    "</tool_call><|im_end|>",
    '"}}\n</tool_call>',
    "x",
    " leading and trailing ",
]


def sampled_turn(codec: ChatCodec, query: str, before: str = "So far. ") -> list[int]:
    """As a model writes it: tags as control tokens, JSON as text."""
    body = json.dumps({"name": "ask_advisor", "arguments": {"query": query}}, ensure_ascii=False)
    return [
        *codec.encode_text(before),
        *codec.encode_markup("<tool_call>"),
        *codec.encode_text(f"\n{body}\n"),
        *codec.encode_markup("</tool_call>"),
    ]


def site_of(codec: ChatCodec, ids: list[int], start: int = 0) -> CallSite:
    text = codec.decode(ids[start:])
    (parsed,) = parse_turn(text).calls
    assert parsed.error is None, parsed.message
    return call_site(codec, ids, start, text, parsed)


def completed(codec: ChatCodec, ids: list[int], site: CallSite, query: str) -> list[int]:
    return [*ids[: site.position], *(i for _, part in completed_call(codec, site, query) for i in part)]


def query_in(codec: ChatCodec, ids: list[int]) -> str:
    (parsed,) = parse_turn(codec.decode(ids)).calls
    assert parsed.error is None, parsed.message
    return parsed.arguments["query"]


@pytest.mark.parametrize("name", list(CODECS))
@pytest.mark.parametrize("own", QUERIES)
def test_the_cut_is_before_the_token_with_the_first_character(name: str, own: str) -> None:
    codec = CODECS[name]()
    prompt = codec.encode_markup("<|im_start|>user\nHi<|im_end|>\n")
    ids = prompt + sampled_turn(codec, own)
    site = site_of(codec, ids, len(prompt))
    raw = "".join(codec.decode(ids[len(prompt) :]))
    begin = raw.index('"query": "') + len('"query": "')
    kept = codec.decode(ids[len(prompt) : site.position])
    assert kept + site.lead == raw[:begin]
    assert len(kept) <= begin < len(codec.decode(ids[len(prompt) : site.position + 1]).rstrip("\ufffd")) + 1
    # One token further there would be a part of the query before the cut.
    one_more = b"".join(map(codec.token_bytes, ids[len(prompt) : site.position + 1]))
    assert len(one_more) > len(raw[:begin].encode())
    assert site.tail == '"}}\n</tool_call>' and not site.nested


@pytest.mark.parametrize("name", list(CODECS))
@pytest.mark.parametrize("own", QUERIES)
def test_the_completed_call_parses_back_to_the_query(name: str, own: str) -> None:
    codec = CODECS[name]()
    ids = sampled_turn(codec, own)
    site = site_of(codec, ids)
    for asked in QUERIES:
        made = completed(codec, ids, site, asked)
        assert made[: site.position] == ids[: site.position]
        assert query_in(codec, made) == codec.representable(asked)


@settings(deadline=None, max_examples=60)
@given(own=hostile_text, asked=hostile_text, before=hostile_text)
@pytest.mark.parametrize("name", ["qwen", "merging"])
def test_any_query_in_place_of_any_other(name: str, own: str, asked: str, before: str) -> None:
    codec = CODECS[name]()
    if not own.strip() or not asked.strip() or any(t in before for t in ("<tool_call>", "<think>")):
        return
    own = codec.representable(own)
    ids = sampled_turn(codec, own, before)
    site = site_of(codec, ids)
    assert query_in(codec, completed(codec, ids, site, asked)) == asked
    # Put its own query back: the text is what it was.
    assert codec.decode(completed(codec, ids, site, own)) == codec.decode(ids)


@settings(deadline=None, max_examples=60)
@given(data=st.data(), asked=st.sampled_from(QUERIES))
def test_tokens_that_are_not_the_canonical_ones(data: st.DataObject, asked: str) -> None:
    """A model may sample any tokens that spell the call, half characters included."""
    codec = qwen_codec()
    text = '\n{"name": "ask_advisor", "arguments": {"query": "' + "∑🙂x" + '"}}\n'
    pieces: list[int] = []
    raw = text.encode()
    while raw:
        size = data.draw(st.integers(1, 4))
        ids = codec.tokenizer.backend_tokenizer.encode(raw[:size].decode(errors="ignore")).ids
        spelled = b"".join(map(codec.token_bytes, ids))
        if not ids or not raw.startswith(spelled) or not spelled:
            ids = [BYTES[raw[0]]]
            spelled = raw[:1]
        pieces += ids
        raw = raw[len(spelled) :]
    ids = [*codec.encode_markup("<tool_call>"), *pieces, *codec.encode_markup("</tool_call>")]
    assert codec.decode(ids) == "<tool_call>" + text + "</tool_call>"
    site = site_of(codec, ids)
    assert query_in(codec, completed(codec, ids, site, asked)) == asked


class _Bytes(dict):
    """Ids of the tokens of one byte, by byte."""

    def __missing__(self, byte: int) -> int:
        codec = qwen_codec()
        for i in range(codec.vocab_size):
            data = codec.token_bytes(i)
            if len(data) == 1:
                self.setdefault(data[0], i)
        return self[byte]


BYTES = _Bytes()

FORMS = {
    "compact": '{"name":"ask_advisor","arguments":{"query":"Q"}}',
    "spaced": '{ "name" : "ask_advisor" ,\n "arguments" : { "query" :\n\t"Q" } }',
    "arguments first": '{"arguments": {"query": "Q"}, "name": "ask_advisor"}',
    "more fields": '{"name": "ask_advisor", "arguments": {"a": [1, {"query": "no"}], "query": "Q", "b": {}}}',
    "twice": '{"name": "ask_advisor", "arguments": {"query": "no", "query": "Q"}}',
    "escaped key": '{"name": "ask_advisor", "arguments": {"qu\\u0065ry": "Q"}}',
    "string": '{"name": "ask_advisor", "arguments": "{\\"query\\": \\"Q\\"}"}',
    "string with escapes": '{"name": "ask_advisor", "arguments": "{\\"\\ud83d\\ude42\\\\n\\": 1, \\u0022query'
    '\\": \\"Q\\", \\"b\\": 2}", "z": 0}',
}


@pytest.mark.parametrize("name", list(CODECS))
@pytest.mark.parametrize("form", list(FORMS))
def test_other_ways_to_write_the_call_stay_well_formed(name: str, form: str) -> None:
    codec = CODECS[name]()
    body = FORMS[form].replace("Q", "What is it?")
    ids = [
        *codec.encode_markup("Hm.<tool_call>"),
        *codec.encode_text(body),
        *codec.encode_markup("</tool_call>"),
    ]
    site = site_of(codec, ids)
    (original,) = parse_turn(codec.decode(ids)).calls
    assert site.nested is form.startswith("string")
    for asked in QUERIES:
        (parsed,) = parse_turn(codec.decode(completed(codec, ids, site, asked))).calls
        assert parsed.error is None and parsed.name == "ask_advisor"
        assert parsed.arguments == original.arguments | {"query": codec.representable(asked)}


def test_the_quote_that_merges_with_the_first_character_is_written_anew() -> None:
    """Qwen has a token of space, quote and dollar: the cut is before it; the quote comes with the query."""
    codec = qwen_codec()
    ids = sampled_turn(codec, "$x$?")
    merged = codec.encode_text(' "$')
    assert len(merged) == 1
    site = site_of(codec, ids)
    assert ids[site.position] == merged[0] and site.lead == ' "'
    pieces = completed_call(codec, site, "What is $x$?")
    assert [(p.owner, p.producer, codec.decode(i)) for p, i in pieces] == [
        (
            Owner.EXPERT,
            "qmaker",
            ' "What is $x$?"',
        ),  # the closing quote is in a token with the last character
        (Owner.WRAPPER, "protocol", "}}\n"),
        (Owner.WRAPPER, "protocol", "</tool_call>"),
    ]
    plain = site_of(codec, sampled_turn(codec, "What?"))
    assert plain.lead == "" and codec.decode(sampled_turn(codec, "What?")[: plain.position]).endswith('": "')


def test_a_lead_is_written_anew_in_any_vocabulary() -> None:
    codec = quoting_codec()
    leads = {own: site_of(codec, sampled_turn(codec, own)).lead for own in ("$x$", "\\frac", '"a"', "What?")}
    assert leads == {"$x$": ' "', "\\frac": ' "', '"a"': ' "', "What?": ""}


def test_the_closing_tag_is_the_control_token() -> None:
    codec = qwen_codec()
    ids = sampled_turn(codec, "What?")
    made = completed(codec, ids, site_of(codec, ids), "Is it </tool_call>?")
    assert made.count(codec.added_id("</tool_call>")) == 1 and made[-1] == codec.added_id("</tool_call>")
    assert made == sampled_turn(codec, "Is it </tool_call>?")  # exactly as a model would write it


def test_text_that_is_no_utf8_before_the_call() -> None:
    codec = qwen_codec()
    half = codec.encode_text("🙂")
    half = [BYTES[0xF0], BYTES[0x9F]] if len(half) == 1 else half[:-1]
    ids = [
        *half,
        *sampled_turn(codec, "What?", ""),
    ]
    site = site_of(codec, ids)
    assert codec.decode(ids[: site.position]).endswith('"query": "')
    assert query_in(codec, completed(codec, ids, site, "Größe?")) == "Größe?"


def test_the_kit_writes_calls_like_the_template() -> None:
    assert asks("x") == '<tool_call>\n{"name": "ask_advisor", "arguments": {"query": "x"}}\n</tool_call>'
