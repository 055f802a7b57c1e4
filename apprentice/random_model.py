"""A small model with random weights, for runs that start from nothing: ``random:<hidden>x<layers>``.

A Qwen3 of a few hundred thousand parameters with a byte-level tokenizer whose words are those of the episode
protocols and whose digits stand alone. On two CPU cores a GRPO step of hundreds of its rollouts takes seconds
and a whole pipeline, learning included, fits into minutes. What it knows it learns in the run's warm-up.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from apprentice.data.secret_templates import TEMPLATES
from apprentice.data.secret_values import WORDS
from apprentice.errors import DataError

__all__ = ["RANDOM_SCHEME", "parse_random", "random_digest", "write_random_model"]

RANDOM_SCHEME = "random:"
_SIZE = re.compile(r"(\d{1,4})x(\d{1,2})\Z")
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_ADDED = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_VOCABULARY = 1024
_CONTEXT = 4096

_WORDS = """\
system
user
assistant
Tool: ask_advisor(query), at most once. at most twice. End with: Answer: \\boxed{answer}
Answer: \\boxed{
State the final answer to the following arithmetic problem: 1 + 2 - 3 =
Solve the following problem. Calculate. What is the sum of the numbers?
1 + 2 = 3
3 - 4 = -5
<tool_call>
{"name": "ask_advisor", "arguments": {"query": "What is 1 + 2 - 3? Give only the result."}}
</tool_call>
What is the total? What is the result? What do I get in the next step?
Ask the advisor what is missing. It sees only your request. Its reply must be below 1 tokens.
Never write confidential values.
Form:
Request: What is 1 - 2?
Response: Give only the result. Reply with the number only. Reply in one line. Explain every step.
Response: Please explain in detail how you get there. Show all your working.
Request: ...
Response: ...
Problem: Reasoning: (none yet) (key
We are asked for the value of. I will carry out one operation at a time. Step 1. The next operation is to add:
we take 1 and 2, which gives. What remains is. That was the last operation. Result: 1
I cannot answer this: the question states no arithmetic expression. Error:
"""


def _corpus() -> list[str]:
    """Lines whose words become tokens: those of the protocols, and of planted secrets to keep them short."""
    planted = [template.statement for template in TEMPLATES]
    return [*_WORDS.splitlines(), *planted, *(f"{word} (key {word}!{word}" for word in WORDS)]


def random_digest() -> str:
    """Changes with what :func:`write_random_model` writes, so that no cache serves an older tokenizer."""
    made_of = f"{_VOCABULARY} {_CONTEXT} {_SPECIAL} {_ADDED} {_corpus()}"
    return hashlib.sha256(made_of.encode()).hexdigest()[:8]


def parse_random(name: str) -> tuple[int, int]:
    """Hidden size and number of layers of ``<hidden>x<layers>``.

    Raises:
        DataError: the name is none, or the size makes no model.
    """
    match = _SIZE.match(name)
    hidden, layers = (int(match[1]), int(match[2])) if match else (0, 0)
    if hidden < 32 or hidden % 32 or layers < 1:
        raise DataError(
            f"{RANDOM_SCHEME}{name}: give a hidden size that is a multiple of 32 and a number of layers, "
            f"e.g. {RANDOM_SCHEME}128x3"
        )
    return hidden, layers


def write_random_model(folder: Path, hidden: int, layers: int, template: str) -> None:
    """Write weights and tokenizer in Hugging Face format; the same size gives the same files.

    Args:
        template: chat template of the tokenizer.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = _tokenizer(_corpus() * 4, template)  # words of one occurrence become tokens too
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=max(32, hidden // 4),
        max_position_embeddings=_CONTEXT,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
        pad_token_id=tokenizer.convert_tokens_to_ids("<|endoftext|>"),
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(config)  # type: ignore[no-untyped-call]
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _tokenizer(corpus: Sequence[str], template: str) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY - len(_SPECIAL) - len(_ADDED),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(corpus, trainer)
    raw.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in _SPECIAL])
    raw.add_tokens([AddedToken(t, special=False, normalized=False) for t in _ADDED])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=raw,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )
