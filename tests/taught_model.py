"""A tiny model that knows a few replies by heart, and what Hugging Face makes of it: so a real engine says
something foreseeable, ends by itself, thinks and judges, without a download."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.tiny import make_tiny_model

__all__ = ["Expected", "Reference", "teach"]

Chat = Sequence[Mapping[str, str]]
END = "<|im_end|>"
_MARGIN = 2.0  # logits between the token that was taught and the next one: float32 sums differ by 1e-5


def teach(folder: Path, lessons: Sequence[tuple[Chat, str]]) -> Path:
    """Save a model to ``folder`` that answers each chat with its reply and ends there, greedily and by far.

    Raises:
        RuntimeError: it did not learn them.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    corpus = [m["content"] for chat, _ in lessons for m in chat] + [reply for _, reply in lessons]
    make_tiny_model(folder, corpus=corpus, vocab_size=1024, layers=1)  # one learns them in half the time
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompts = [prompt_ids(tokenizer, chat) for chat, _ in lessons]
    replies = [tokenizer.encode(reply + END) for _, reply in lessons]
    length = max(len(p) + len(r) for p, r in zip(prompts, replies, strict=True))
    ids_BT = torch.full((len(lessons), length), tokenizer.pad_token_id)
    labels_BT = torch.full((len(lessons), length), -100)
    for row, (prompt, reply) in enumerate(zip(prompts, replies, strict=True)):
        ids_BT[row, : len(prompt) + len(reply)] = torch.tensor(prompt + reply)
        labels_BT[row, len(prompt) : len(prompt) + len(reply)] = torch.tensor(reply)
    wanted = labels_BT[:, 1:] != -100
    targets_N = labels_BT[:, 1:][wanted]
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0)
    for _ in range(300):
        # Padding is on the right and attention is causal: no row sees it.
        logits_NV = model.lm_head(model.model(ids_BT).last_hidden_state[:, :-1][wanted])
        right_N = logits_NV.gather(1, targets_N[:, None])[:, 0]
        others_NV = logits_NV.scatter(1, targets_N[:, None], float("-inf"))
        if bool((right_N - others_NV.max(1).values > _MARGIN).all()):
            model.save_pretrained(folder)
            return folder
        loss = torch.nn.functional.cross_entropy(logits_NV, targets_N)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    raise RuntimeError("the tiny model did not learn its replies in 300 steps")


def prompt_ids(tokenizer: Any, chat: Chat) -> list[int]:
    """The chat as the tokenizer's own template renders it, ready for an answer."""
    messages = [dict(message) for message in chat]
    return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))


@dataclass(frozen=True, slots=True)
class Expected:
    """A greedy reply. ``tokens`` counts the end of the turn where the reply reached it."""

    text: str
    prompt_tokens: int
    tokens: int

    @property
    def cost(self) -> int:
        """Eq. 4 at the paper's prices."""
        return self.prompt_tokens + 6 * self.tokens


class Reference:
    """Greedy decoding by a Hugging Face forward pass, with the tokenizer's own template and decoder."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._greedy: dict[tuple[int, ...], list[int]] = {}

    def reply(self, chat: Chat, max_tokens: int) -> Expected:
        """What a greedy engine answers within ``max_tokens`` tokens."""
        prompt = prompt_ids(self.tokenizer, chat)
        end = self.tokenizer.convert_tokens_to_ids(END)
        out = self._greedy.setdefault(tuple(prompt), [])
        while len(out) < max_tokens and end not in out:
            out.append(self._next(prompt + out))
        said = out[:max_tokens]
        return Expected(self.tokenizer.decode([i for i in said if i != end]), len(prompt), len(said))

    def _next(self, ids: list[int]) -> int:
        import torch

        with torch.no_grad():
            return int(self._model(torch.tensor([ids]), logits_to_keep=1).logits[0, -1].argmax())

    def plain_tokens(self, text: str) -> int:
        """How many tokens a text has in which nothing is a control token."""
        from tokenizers import Tokenizer

        backend = Tokenizer.from_str(self.tokenizer.backend_tokenizer.to_str())
        backend.encode_special_tokens = True
        return len(backend.encode(text).ids)
