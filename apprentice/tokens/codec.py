"""Text to token ids and back, for a model that speaks ChatML, such that text never becomes structure."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from apprentice.errors import TemplateError
from apprentice.tokens.backend import added_tokens, byte_table, plain_backend, unrepresentable_bytes
from apprentice.tokens.parts import Part
from apprentice.tokens.template import ChatTemplate

__all__ = ["IM_END", "IM_START", "ChatCodec"]

IM_START = "<|im_start|>"
IM_END = "<|im_end|>"

_REPLACEMENT = "\ufffd"


class ChatCodec:
    """A Hugging Face fast tokenizer with its chat template, split into trusted and untrusted text.

    Args:
        tokenizer: a byte-level BPE tokenizer (``PreTrainedTokenizerFast``) with ``<|im_start|>`` and
            ``<|im_end|>`` as single added tokens.
        template_kwargs: extra variables of the chat template, e.g. ``{"enable_thinking": False}``.

    Raises:
        TemplateError: the tokenizer cannot carry the episode protocol.
    """

    def __init__(self, tokenizer: Any, template_kwargs: Mapping[str, Any] | None = None) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise TemplateError(
                f"{type(tokenizer).__name__} is not a fast tokenizer: the protocol needs one "
                "(a model folder with tokenizer.json, loaded by AutoTokenizer)"
            )
        self.tokenizer = tokenizer
        self._added = added_tokens(backend)
        _require_chatml(backend, self._added, getattr(tokenizer, "name_or_path", ""))
        self._plain = plain_backend(backend)
        self._bytes = byte_table(backend)
        self._missing_bytes = unrepresentable_bytes(self._plain)
        self._control_ids = frozenset(self._added.values())
        self._markup = _markup_patterns(backend)
        self._template = ChatTemplate(tokenizer, dict(template_kwargs or {}), tuple(self._added))

    @classmethod
    def from_pretrained(
        cls, path: str, revision: str | None = None, template_kwargs: Mapping[str, Any] | None = None
    ) -> ChatCodec:
        """Load the tokenizer of a model folder or hub id.

        Raises:
            TemplateError: it cannot carry the episode protocol.
            OSError: nothing is there.
        """
        from transformers import AutoTokenizer

        kwargs = {} if revision is None else {"revision": revision}
        return cls(AutoTokenizer.from_pretrained(path, **kwargs), template_kwargs)

    def __reduce__(self) -> tuple[Any, ...]:  # what is derived from the tokenizer is derived again
        return (ChatCodec, (self.tokenizer, self._template.kwargs))

    @property
    def im_start_id(self) -> int:
        """Id of ``<|im_start|>``."""
        return self._added[IM_START]

    @property
    def im_end_id(self) -> int:
        """Id of ``<|im_end|>``."""
        return self._added[IM_END]

    @property
    def vocab_size(self) -> int:
        """One more than the largest id of the tokenizer. A model's embedding may have more rows than that."""
        return len(self._bytes)

    @property
    def template(self) -> ChatTemplate:
        """The chat template, for rendering to text."""
        return self._template

    def is_control(self, token_id: int) -> bool:
        """Whether the id is an added token, special or not: structure, which untrusted text never becomes."""
        return token_id in self._control_ids

    def added_id(self, text: str) -> int | None:
        """Id of an added token such as ``<tool_call>``; None where the model writes it as plain text."""
        return self._added.get(text)

    # -- text to ids ------------------------------------------------------------------------------------

    def representable(self, text: str) -> str:
        """``text`` as this vocabulary can hold it; for the Qwen family any valid Unicode, unchanged.

        Lone surrogates (which no UTF-8 text has) and characters whose bytes the vocabulary lacks (SmolLM2
        lacks a few control characters, such as U+0004) become U+FFFD, instead of vanishing in the encoder.
        """
        try:
            data = text.encode()
        except UnicodeEncodeError:
            text = re.sub("[\ud800-\udfff]", _REPLACEMENT, text)
            data = text.encode()
        missing = self._missing_bytes
        if missing and len(data.translate(None, missing)) != len(data):
            lost = {c for c in set(text) if any(b in missing for b in c.encode())}
            text = text.translate({ord(c): _REPLACEMENT for c in lost})
        return text

    def encode_text(self, text: str) -> list[int]:
        """Ids of untrusted text. Never a control or added token, whatever the text says.

        ``decode(encode_text(t)) == representable(t)``, and the ids are those of the plain tokenizer wherever
        the text contains no added token and is in NFC.
        """
        return self.encode_parts([Part(text, trusted=False)])[0]

    def encode_markup(self, text: str) -> list[int]:
        """Ids of trusted text: control and added tokens in it are recognised."""
        return self.encode_parts([Part(text, trusted=True)])[0]

    def encode_parts(self, parts: Sequence[Part]) -> list[list[int]]:
        """Ids of each part; their concatenation is the tokenization of the joined text.

        A token that straddles a boundary belongs to the part in which it begins, so a part may be empty.
        Control and added tokens are recognised only where every character of them is trusted (and no hard
        boundary cuts them); everything else is tokenized by a backend that does not know them. Time is linear
        in the length of the text.
        """
        texts = [self.representable(part.text) for part in parts]
        starts, length = [], 0
        for text in texts:
            starts.append(length)
            length += len(text)
        joined = "".join(texts)
        out: list[list[int]] = [[] for _ in parts]

        def owner_of(position: int, first: int) -> int:  # parts are visited in order, so this only advances
            while first + 1 < len(starts) and starts[first + 1] <= position:
                first += 1
            return first

        def plain(begin: int, end: int, first: int) -> None:
            encoding = self._plain.encode(joined[begin:end], add_special_tokens=False)
            ids, offsets = encoding.ids, encoding.offsets
            index, taken = owner_of(begin, first), 0
            while taken < len(ids):
                last = index + 1 == len(starts) or starts[index + 1] >= end
                upto = len(ids) if last else bisect_left(offsets, (starts[index + 1] - begin, -1), lo=taken)
                out[index].extend(ids[taken:upto])
                taken = upto
                index += 1

        # (begin, end, id or None): None is a hard boundary.
        cuts = self._cuts(parts, texts, starts)
        position = first = 0
        for begin, end, token_id in cuts:
            if begin > position:
                plain(position, begin, first)
            first = owner_of(begin, first)
            if token_id is not None:
                out[first].append(token_id)
            position = end
        if length > position:
            plain(position, length, first)
        return out

    def _cuts(
        self, parts: Sequence[Part], texts: Sequence[str], starts: Sequence[int]
    ) -> list[tuple[int, int, int | None]]:
        cuts: list[tuple[int, int, int | None]] = []
        i = 0
        while i < len(parts):
            if parts[i].hard:
                cuts.append((starts[i], starts[i], None))
            if not parts[i].trusted:
                i += 1
                continue
            run = i + 1  # neighbouring trusted parts are one text: a control token may straddle them
            while run < len(parts) and parts[run].trusted and not parts[run].hard:
                run += 1
            for begin, end, token_id in self._find_markup("".join(texts[i:run])):
                cuts.append((starts[i] + begin, starts[i] + end, token_id))
            i = run
        return cuts

    def _find_markup(self, text: str) -> list[tuple[int, int, int]]:
        found: list[tuple[int, int, int]] = []
        for pattern in self._markup:  # a later pattern sees only what the earlier ones left
            ends, begins = [0, *(end for _, end, _ in found)], [*(begin for begin, _, _ in found), len(text)]
            for begin, end in zip(ends, begins, strict=True):
                for match in pattern.finditer(text, begin, end):
                    found.append((match.start(), match.end(), self._added[match.group()]))
            found.sort()
        return found

    # -- conversations ----------------------------------------------------------------------------------

    def prompt_parts(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[Part]:
        """The rendered conversation as parts: the template's text trusted, every message's text untrusted.

        See :meth:`ChatTemplate.parts` for what is rendered and what is refused.
        """
        return self._template.parts(messages, tools, add_generation_prompt)

    def encode_prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """Ids of a conversation; equal to ``apply_chat_template`` for messages that contain no added token.

        See :meth:`ChatTemplate.parts`.
        """
        parts = self.prompt_parts(messages, tools, add_generation_prompt)
        return [i for ids in self.encode_parts(parts) for i in ids]

    def tool_response_parts(
        self, responses: Sequence[Sequence[Part]], *, turn_closed: bool = True
    ) -> list[Part]:
        """What follows a controller turn that made tool calls: one user turn with all responses.

        Exactly what Qwen's template renders for consecutive tool messages, with the generation prompt after
        it. Appended to the ids so far, it gives the next prompt without a re-tokenized token.

        Args:
            responses: the parts of each response, in the order of the calls; at least one response.
            turn_closed: the turn's ids end with ``<|im_end|>``. False (it was cut by length): the suffix
                begins with the missing ``<|im_end|>``.
        """
        if not responses:
            raise ValueError("a tool response turn needs at least one response")
        opening = f"\n{IM_START}user\n<tool_response>\n"
        parts = [Part(opening if turn_closed else IM_END + opening, trusted=True, hard=True)]
        for number, response in enumerate(responses):
            if number:
                parts.append(Part("\n</tool_response>\n<tool_response>\n", trusted=True))
            parts.extend(response)
        closing = f"\n</tool_response>{IM_END}\n{self._template.generation_prompt}"
        return [*parts, Part(closing, trusted=True)]

    # -- ids to text ------------------------------------------------------------------------------------

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for; empty for an id beyond the tokenizer (a padded embedding row)."""
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; control tokens stay as text, nothing is cleaned up, invalid UTF-8 becomes U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode(errors="replace")


def _markup_patterns(backend: Any) -> list[re.Pattern[str]]:
    """Patterns that find added tokens as the backend does: those matched before normalization come first."""
    tokens = backend.get_added_tokens_decoder().values()
    patterns = []
    for normalized in (False, True):
        texts = [token.content for token in tokens if token.normalized is normalized]
        if texts:  # longest first, so that the alternation finds the leftmost longest token
            patterns.append(re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True)))))
    return patterns


def _require_chatml(backend: Any, added: Mapping[str, int], name: str) -> None:
    where = f" of {name}" if name else ""
    for text in (IM_START, IM_END):
        if text not in added:
            raise TemplateError(
                f"the tokenizer{where} has no single token {text}: the episode protocol needs a ChatML model "
                "(Qwen3, Qwen2.5, SmolLM2-Instruct); take its -Instruct version, or add the token and resize "
                "the embedding"
            )
    for i, token in backend.get_added_tokens_decoder().items():
        if token.content in (IM_START, IM_END) and (token.lstrip or token.rstrip or token.single_word):
            raise TemplateError(
                f"the tokenizer{where} lets {token.content} (id {i}) swallow neighbouring space "
                "(lstrip, rstrip or single_word): set these to false in its tokenizer.json"
            )
