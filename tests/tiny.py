"""A tiny random Qwen3 with a ChatML byte-level BPE tokenizer: real code paths, no download."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

__all__ = ["CHAT_TEMPLATE", "make_tiny_model", "make_tiny_tokenizer"]

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ADDED = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def make_tiny_tokenizer(corpus: Sequence[str] = (), vocab_size: int = 384, *, phrases: bool = False):
    """A fast byte-level BPE tokenizer, trained on ``corpus`` (bytes only when empty).

    ``phrases``: tokens may span words and lines, so that sequences of known texts are very short.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not phrases)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIALS) - len(ADDED),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(corpus, trainer)
    raw.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIALS])
    raw.add_tokens([AddedToken(t, special=False, normalized=False) for t in ADDED])
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def make_tiny_model(
    folder: Path,
    *,
    corpus: Sequence[str] = (),
    vocab_size: int = 384,
    hidden: int = 64,
    layers: int = 2,
    tied: bool = False,
    phrases: bool = False,
    seed: int = 0,
) -> Path:
    """Save a random Qwen3 and its tokenizer to ``folder`` in Hugging Face format (float32)."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = make_tiny_tokenizer(corpus, vocab_size, phrases=phrases)
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=max(32, hidden // 4),
        max_position_embeddings=4096,
        tie_word_embeddings=tied,
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
        pad_token_id=tokenizer.convert_tokens_to_ids("<|endoftext|>"),
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
