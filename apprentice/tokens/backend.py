"""The byte-level BPE under a chat tokenizer: a copy that knows no added tokens, and each id's bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from apprentice.errors import TemplateError

__all__ = ["added_tokens", "byte_table", "plain_backend", "unrepresentable_bytes"]

_FAMILY = "this project speaks ChatML on a byte-level BPE tokenizer (Qwen3, Qwen2.5, SmolLM2 and their kin)"


def _byte_alphabet() -> dict[str, int]:
    """The printable stand-in of each byte in a byte-level vocabulary (the alphabet that GPT-2 introduced)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


def added_tokens(backend: Any) -> dict[str, int]:
    """Every added token of a ``tokenizers.Tokenizer``, special or not, as text to id."""
    return {token.content: int(i) for i, token in backend.get_added_tokens_decoder().items()}


def plain_backend(backend: Any) -> Any:
    """A tokenizer with the same vocabulary that has no added tokens, no normalizer and no post-processor.

    No text can become an added token in it. Without the Unicode normalizer (NFC in the Qwen family) text also
    survives a round trip exactly; for text that is in NFC already, as nearly all text is, ids are the same.

    Raises:
        TemplateError: the tokenizer is of another kind than byte-level BPE.
    """
    from tokenizers import Tokenizer, models

    if not isinstance(backend.model, models.BPE):
        raise TemplateError(f"the tokenizer's model is {type(backend.model).__name__}, not BPE; {_FAMILY}")
    skeleton = Tokenizer(models.BPE())
    skeleton.normalizer, skeleton.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
    if backend.decoder is not None:
        skeleton.decoder = backend.decoder
    shape = json.loads(skeleton.to_str())  # the steps as data: `backend.to_str()` would carry the vocabulary
    _require_lossless(shape)

    vocabulary: Mapping[str, int] = backend.get_vocab(with_added_tokens=False)
    added = added_tokens(backend)
    added_ids = frozenset(added.values())
    inside = {text for text, i in vocabulary.items() if i in added_ids or text in added}
    model = _without(backend.model, inside) if inside or backend.model.unk_token else backend.model
    plain = Tokenizer(model)
    plain.pre_tokenizer = backend.pre_tokenizer
    return plain


def _require_lossless(shape: dict[str, Any]) -> None:
    def steps(node: dict[str, Any] | None, children: str) -> list[dict[str, Any]]:
        if node is None:
            return []
        return list(node[children]) if node["type"] == "Sequence" else [node]

    for step in steps(shape["normalizer"], "normalizers"):
        if step["type"] not in {"NFC"}:
            raise TemplateError(f"the tokenizer rewrites text ({step['type']} normalizer); {_FAMILY}")
    pre = steps(shape["pre_tokenizer"], "pretokenizers")
    byte_level = [step for step in pre if step["type"] == "ByteLevel"]
    if not byte_level or (shape["decoder"] or {}).get("type") != "ByteLevel":
        raise TemplateError(f"the tokenizer is not byte-level; {_FAMILY}")
    if any(step["add_prefix_space"] for step in byte_level):
        raise TemplateError(
            "the tokenizer adds a space before text (add_prefix_space), so text would not survive a round "
            "trip; load it with add_prefix_space=False"
        )
    for step in pre:
        if step["type"] == "Split" and step["behavior"] == "Removed":
            raise TemplateError(f"the tokenizer removes text (Split with behavior Removed); {_FAMILY}")


def _without(model: Any, texts: set[str]) -> Any:
    """The BPE model without some entries of its vocabulary, and without an unknown token."""
    from tokenizers import models

    state = json.loads(model.__getstate__())
    merges = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in state["merges"]]
    if state["continuing_subword_prefix"] or state["end_of_word_suffix"]:
        raise TemplateError(f"the tokenizer marks word pieces with a prefix or suffix; {_FAMILY}")
    return models.BPE(
        vocab={text: i for text, i in state["vocab"].items() if text not in texts},
        merges=[(a, b) for a, b in merges if not {a, b, a + b} & texts],
        ignore_merges=state["ignore_merges"],
    )


def byte_table(backend: Any) -> list[bytes]:
    """The bytes of every id, shape ``[V]``; empty for an id that no token has.

    An added token's bytes are its text, so decoding keeps control tokens as text.
    """
    alphabet = _byte_alphabet()
    vocabulary: Mapping[str, int] = backend.get_vocab(with_added_tokens=False)
    added = added_tokens(backend)
    table = [b""] * (1 + max([*vocabulary.values(), *added.values()], default=-1))
    for text, i in vocabulary.items():
        try:
            table[i] = bytes([alphabet[c] for c in text])
        except KeyError:  # an entry that is no byte-level string stands for itself
            table[i] = text.encode()
    for text, i in added.items():
        table[i] = text.encode()
    return table


def unrepresentable_bytes(plain: Any) -> bytes:
    """Bytes that the vocabulary has no token for, so that text which needs them would lose them silently."""
    vocabulary: Mapping[str, int] = plain.get_vocab(with_added_tokens=False)
    return bytes(b for c, b in _byte_alphabet().items() if c not in vocabulary)
