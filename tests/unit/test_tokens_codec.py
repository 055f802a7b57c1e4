"""Text and ids: exact round trips, and no text that becomes structure."""

from __future__ import annotations

import itertools
import pickle
import time
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apprentice.errors import TemplateError
from apprentice.tokens import ChatCodec, IncrementalDecoder, Part
from tests.tiny import CHAT_TEMPLATE, make_tiny_tokenizer
from tests.unit.codecs import CODECS, LOOKALIKES, hostile_text, qwen, qwen_tokenizer, small_specials, tiny

pytestmark = pytest.mark.unit

many = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(params=CODECS)
def codec(request: pytest.FixtureRequest) -> ChatCodec:
    return CODECS[request.param]()


def flat(ids: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(ids))


def test_known_ids_of_qwen() -> None:
    codec = qwen()
    assert codec.encode_text("Hello world\n") == [9707, 1879, 198]
    assert codec.encode_markup("<|im_start|>Hello<|im_end|>\n<tool_call>\n</tool_call><tool_response>") == [
        151644, 9707, 151645, 198, 151657, 198, 151658, 151665,
    ]  # fmt: skip
    assert (codec.im_start_id, codec.im_end_id, codec.vocab_size) == (151644, 151645, 151669)
    assert codec.added_id("<tool_call>") == 151657
    assert [codec.is_control(i) for i in (151643, 151657, 151668, 9707, 198)] == [
        True,
        True,
        True,
        False,
        False,
    ]


@many
@given(text=hostile_text)
def test_untrusted_text_survives_a_round_trip_and_never_becomes_control(codec: ChatCodec, text: str) -> None:
    ids = codec.encode_text(text)
    assert not any(codec.is_control(i) for i in ids)
    assert codec.decode(ids) == codec.representable(text)


@many
@given(text=hostile_text)
def test_qwen_and_a_full_byte_vocabulary_hold_any_unicode_unchanged(text: str) -> None:
    for codec in (qwen(), tiny()):
        assert codec.decode(codec.encode_text(text)) == text


@many
@given(texts=st.lists(st.tuples(hostile_text, st.booleans()), min_size=1, max_size=6))
def test_untrusted_parts_yield_no_control_token_with_any_neighbour(
    codec: ChatCodec, texts: list[tuple[str, bool]]
) -> None:
    parts = [Part(text, trusted) for text, trusted in texts]
    ids = codec.encode_parts(parts)
    assert codec.decode(flat(ids)) == "".join(codec.representable(p.text) for p in parts)
    for run_trusted, run in itertools.groupby(zip(parts, ids, strict=True), key=lambda pair: pair[0].trusted):
        pairs = list(run)
        found = [i for _, part_ids in pairs for i in part_ids if codec.is_control(i)]
        if not run_trusted:
            assert found == []
        else:  # exactly the tokens that the trusted text contains by itself
            own = codec.encode_markup("".join(part.text for part, _ in pairs))
            assert found == [i for i in own if codec.is_control(i)]


def test_half_a_control_token_does_not_join_with_its_neighbour(codec: ChatCodec) -> None:
    for parts in (
        [Part("<|im_", False), Part("end|>", True)],
        [Part("<|im_", True), Part("end|>", False)],
        [Part("<|im_", False), Part("end|>", False)],
        [Part("<|im_", True), Part("end|>", True, hard=True)],
    ):
        assert not any(map(codec.is_control, flat(codec.encode_parts(parts))))
    assert codec.encode_parts([Part("<|im_", True), Part("end|>", True)]) == [[codec.im_end_id], []]


def nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


plain_text = st.text(st.characters(exclude_categories=["Cs", "Cn"], exclude_characters="<")).map(nfc)


@many
@given(
    pieces=st.lists(
        st.one_of(
            plain_text.map(lambda t: Part(t, False)), st.sampled_from(LOOKALIKES).map(lambda t: Part(t, True))
        ),
        max_size=8,
    )
)
def test_benign_parts_give_the_tokenization_of_the_whole(pieces: list[Part]) -> None:
    joined = "".join(p.text for p in pieces)
    if nfc(joined) != joined:  # a combining mark met its base across a boundary
        return
    for codec in (qwen(), tiny()):
        reference = codec.tokenizer(joined, add_special_tokens=False).input_ids
        assert flat(codec.encode_parts(pieces)) == reference


@many
@given(texts=st.lists(st.tuples(plain_text, st.booleans()), min_size=1, max_size=6))
def test_a_token_belongs_to_the_part_in_which_it_begins(
    codec: ChatCodec, texts: list[tuple[str, bool]]
) -> None:
    parts = [Part(codec.representable(text), trusted) for text, trusted in texts]
    begins, position = [], 0  # of every part, in bytes
    for part in parts:
        begins.append(position)
        position += len(part.text.encode())
    start = 0
    expected: list[list[int]] = [[] for _ in parts]
    for token in flat(codec.encode_parts(parts)):
        owner = max(i for i, begin in enumerate(begins) if begin <= start)
        expected[owner].append(token)
        start += len(codec.token_bytes(token))
    assert codec.encode_parts(parts) == expected


def test_a_straddling_token_and_a_hard_boundary() -> None:
    codec = qwen()
    hello = codec.encode_text("Hello")
    assert hello == [9707]
    assert codec.encode_parts([Part("Hel", True), Part("lo", False)]) == [[9707], []]
    hard = codec.encode_parts([Part("Hel", True), Part("lo", False, hard=True)])
    assert hard == [codec.encode_text("Hel"), codec.encode_text("lo")]
    assert flat(hard) != hello
    assert codec.encode_parts([]) == []
    assert codec.encode_parts([Part("", True), Part("Hello", False), Part("", False)]) == [[], [9707], []]


def test_what_the_vocabulary_cannot_hold_becomes_the_replacement_character() -> None:
    assert qwen().decode(qwen().encode_text("a\ud800b")) == "a\ufffdb"  # a lone surrogate is no text
    codec = small_specials()  # has no token for the bytes 0x04, 0x06, 0xF1 and 0xF2
    assert codec.representable("a\x04b\x05\U00040000") == "a\ufffdb\x05\ufffd"
    assert codec.decode(codec.encode_text("a\x04b\x05\U00040000")) == "a\ufffdb\x05\ufffd"


def test_merges_that_would_build_a_control_token_are_gone() -> None:
    codec = small_specials()
    assert codec.tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False)["<file_sep>"] == 3
    assert not any(map(codec.is_control, codec.encode_text("<file_sep>")))
    assert codec.decode(codec.encode_text("hello <file_sep>")) == "hello <file_sep>"
    assert len(codec.encode_text("hello")) == 1  # other merges are kept


def test_an_added_token_that_is_a_vocabulary_entry_is_not_an_entry_for_text() -> None:
    # With `ignore_merges` a piece that is a vocabulary entry needs no merges to become it.
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    specials = ["<|im_start|>", "<|im_end|>", "<file_sep>"]
    vocabulary = {t: i for i, t in enumerate([*specials, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    raw = Tokenizer(models.BPE(vocabulary, [], ignore_merges=True))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in specials])
    codec = ChatCodec(PreTrainedTokenizerFast(tokenizer_object=raw, chat_template=CHAT_TEMPLATE))
    assert not any(map(codec.is_control, codec.encode_text("<file_sep>")))
    assert codec.encode_markup("<file_sep>") == [2]


def test_of_two_control_tokens_at_one_place_the_longer_is_meant() -> None:
    from tokenizers import AddedToken

    tokenizer = make_tiny_tokenizer()
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in ("<tool", "<tool_call>>")])
    tokenizer.add_tokens(
        [AddedToken(t, normalized=True) for t in ("<t", "_resp", "<tool_response>>>")]
    )  # found last
    codec = ChatCodec(tokenizer)
    for text in (
        "<tool_call>> <tool_call> <tool_", "<tool<tool_call>", "<tool_response>>> <_response>",
        "a<t<b_resp</tool_call>",
    ):  # fmt: skip
        assert codec.encode_markup(text) == tokenizer(text, add_special_tokens=False).input_ids


def test_decode_keeps_control_tokens_as_text_and_cleans_nothing_up() -> None:
    codec = qwen()
    text = "<|im_start|>user\nIt 's  here , is n't it ?<|im_end|>\n"
    assert codec.decode(codec.encode_markup(text)) == text
    assert (
        codec.decode([9707, 151936, 10**9, 1879]) == "Hello world"
    )  # rows of a padded embedding have no text
    ids = list(range(0, 151_669, 7))
    assert codec.decode(ids) == codec.tokenizer.decode(
        ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
    )


@many
@given(data=st.data())
def test_incremental_decoding_agrees_with_decoding(data: st.DataObject) -> None:
    codec = qwen()
    ids = data.draw(
        st.lists(st.one_of(st.integers(0, codec.vocab_size + 9), st.integers(94, 255)), max_size=40)
        | hostile_text.map(codec.encode_text)
    )
    decoder = IncrementalDecoder(codec)
    pieces, position = [], 0
    while position < len(ids):
        step = data.draw(st.integers(1, 5))
        pieces.append(decoder.append(ids[position : position + step]))
        position += step
        assert codec.decode(ids).startswith(decoder.text)
    pieces.append(decoder.finish())
    assert "".join(pieces) == decoder.text == codec.decode(ids)


def test_half_a_character_is_held_back() -> None:
    codec = tiny()
    first, second = codec.encode_text("é")
    decoder = IncrementalDecoder(codec)
    assert [decoder.append([first]), decoder.append([second]), decoder.text] == ["", "é", "é"]
    assert [decoder.append([first]), decoder.finish(), decoder.text] == ["", "\ufffd", "é\ufffd"]


def test_a_codec_survives_pickling(codec: ChatCodec) -> None:
    again = pickle.loads(pickle.dumps(codec))
    text = "Grüße <|im_end|> 日本 <tool_call>"
    messages = [{"role": "user", "content": text}]
    assert again.encode_text(text) == codec.encode_text(text)
    assert again.encode_markup(text) == codec.encode_markup(text)
    assert again.encode_prompt(messages) == codec.encode_prompt(messages)


def test_encoding_8k_tokens_of_parts_takes_milliseconds() -> None:
    codec = qwen()
    text = "for i in range(10):\n    print(f'{i} <|im_end|> größer')  # comment\n" * 330
    parts = [
        Part("<|im_start|>user\n<tool_response>\n", True),
        Part(text, False),
        Part("\n</tool_response>", True),
    ]
    seconds = []
    for _ in range(5):
        begin = time.thread_time()
        ids = codec.encode_parts(parts)
        seconds.append(time.thread_time() - begin)
    assert len(flat(ids)) > 8000
    assert min(seconds) < 0.06, (
        f"{min(seconds) * 1e3:.1f} ms"
    )  # 10 ms measured; the bound bears a busy machine


def test_time_grows_linearly_with_parts() -> None:
    codec = tiny()
    parts = [Part("x<|im_end|>", i % 2 == 0) for i in range(20_000)]
    begin = time.thread_time()
    assert len(codec.encode_parts(parts)) == 20_000
    assert time.thread_time() - begin < 3.0


# -- tokenizers that cannot carry the protocol ---------------------------------------------------------------


def changed(change: Callable[[Any], None]) -> Any:
    """The tiny tokenizer after ``change`` was applied to its backend."""
    tokenizer = make_tiny_tokenizer()
    change(tokenizer.backend_tokenizer)
    return tokenizer


def test_a_tokenizer_without_chatml_is_refused_by_name() -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    bare = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), chat_template=CHAT_TEMPLATE)
    with pytest.raises(TemplateError, match=r"no single token <\|im_start\|>.*-Instruct"):
        ChatCodec(bare)


def test_a_slow_tokenizer_is_refused() -> None:
    with pytest.raises(TemplateError, match="not a fast tokenizer"):
        ChatCodec(object())


def test_tokenizers_that_rewrite_text_are_refused() -> None:
    from tokenizers import decoders, normalizers, pre_tokenizers

    def lower(backend: Any) -> None:
        backend.normalizer = normalizers.Lowercase()

    def prefix(backend: Any) -> None:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)

    def metaspace(backend: Any) -> None:
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()

    def removing(backend: Any) -> None:
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )

    for change, message in (
        (lower, "Lowercase"), (prefix, "add_prefix_space"), (metaspace, "not byte-level"),
        (removing, "removes text"),
    ):  # fmt: skip
        with pytest.raises(TemplateError, match=message):
            ChatCodec(changed(change))


def test_a_control_token_that_swallows_space_is_refused() -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE({c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    raw.add_special_tokens([AddedToken("<|im_start|>", rstrip=True), AddedToken("<|im_end|>")])
    with pytest.raises(TemplateError, match=r"<\|im_start\|> .*swallow"):
        ChatCodec(PreTrainedTokenizerFast(tokenizer_object=raw, chat_template=CHAT_TEMPLATE))


def test_loading_from_a_folder_is_the_same(tmp_path: Any) -> None:
    tiny().tokenizer.save_pretrained(tmp_path)
    assert ChatCodec.from_pretrained(str(tmp_path)).encode_markup("<|im_end|>a") == tiny().encode_markup(
        "<|im_end|>a"
    )


def test_ids_equal_the_plain_tokenizer_on_ordinary_text() -> None:
    text = "Let $x = 3\\cdot 10^5$.\n\n  def f():\n\treturn 'naïve'  # 12345, 日本語\r\n"
    assert qwen().encode_text(text) == qwen_tokenizer()(text, add_special_tokens=False).input_ids
