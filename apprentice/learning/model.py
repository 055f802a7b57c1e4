"""A causal language model that yields log-probabilities of chosen tokens, never ``[T, V]`` logits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from apprentice.errors import ConfigError, DataError
from apprentice.learning.attention import DOCUMENTS, register
from apprentice.learning.microbatch import MicroBatch
from apprentice.objectives.logprobs import chunked_logprobs

__all__ = ["TokenScorer", "load_causal_lm", "random_causal_lm", "resolve_attention"]

Attention = Literal["auto", "sdpa", "flash_attention_2"]


def resolve_attention(attention: Attention, device: torch.device) -> str:
    """The transformers implementation for packed documents on ``device``.

    ``auto`` takes flash-attention's variable-length kernels on a GPU where the package is installed, else
    the document loop over fused attention (``sdpa``). Not run on a GPU yet.

    Raises:
        ConfigError: flash attention was asked for and cannot run here.
    """
    if attention == "sdpa":
        return DOCUMENTS
    from transformers.utils.import_utils import is_flash_attn_2_available

    usable = device.type == "cuda" and bool(is_flash_attn_2_available())
    if attention == "flash_attention_2" and not usable:
        raise ConfigError(
            f"learner.attention: flash_attention_2 cannot run on {device.type} here; install flash-attn on a "
            "CUDA machine, or set learner.attention=auto"
        )
    return "flash_attention_2" if usable else DOCUMENTS


def load_causal_lm(
    path: str | Path,
    *,
    dtype: torch.dtype,
    attention: str = DOCUMENTS,
    revision: str | None = None,
) -> nn.Module:
    """Load a causal language model of Hugging Face format from a folder or hub id, in training mode.

    Raises:
        DataError: it cannot be read, or it has layers that packing would let look across documents.
    """
    from transformers import AutoModelForCausalLM

    register()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            str(path), dtype=dtype, attn_implementation=attention, revision=revision
        )
    except (OSError, ValueError) as error:
        raise DataError(f"no causal language model at {path}: {error}") from error
    return _prepare(model, str(path))


def random_causal_lm(config: Any, *, dtype: torch.dtype, seed: int, attention: str = DOCUMENTS) -> nn.Module:
    """A randomly initialised model of a transformers config; equal seeds give equal weights."""
    from transformers import AutoModelForCausalLM

    register()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=dtype, attn_implementation=attention
        )
    return _prepare(model, type(config).__name__)


def _prepare(model: Any, name: str) -> nn.Module:
    """Refuse what packing or the loss would get silently wrong; switch caches off."""
    config = model.config.get_text_config()
    other = sorted(set(getattr(config, "layer_types", None) or ["full_attention"]) - {"full_attention"})
    if other:
        raise DataError(
            f"{name} has layers of type {', '.join(other)}: packed training keeps documents apart in full "
            "attention layers only; choose a model without them"
        )
    if getattr(config, "final_logit_softcapping", None) or getattr(config, "logits_scaling", 1) != 1:
        raise DataError(f"{name} transforms its logits (soft-capping or scaling); this is not supported")
    model.config.use_cache = False
    model.train()
    result: nn.Module = model
    return result


class _Head(nn.Module):
    """The language-model head as log-probabilities.

    A module of its own that *shares* the head's parameters: sharded training gathers a module's parameters
    around its forward and backward, which is exactly where they are needed here.
    """

    def __init__(self, head: Any, chunk: int) -> None:
        super().__init__()
        self.weight: nn.Parameter = head.weight
        self.bias: nn.Parameter | None = getattr(head, "bias", None)
        self.chunk = chunk

    def forward(
        self, hidden: Tensor, targets: Tensor, temperature: float, with_entropy: bool
    ) -> tuple[Tensor, Tensor]:
        weight: Tensor = self.weight
        bias: Tensor | None = self.bias
        if torch.is_autocast_enabled(hidden.device.type):
            dtype = torch.get_autocast_dtype(hidden.device.type)
            hidden, weight = hidden.to(dtype), weight.to(dtype)
            bias = None if bias is None else bias.to(dtype)
        return chunked_logprobs(
            hidden,
            weight,
            targets,
            bias=bias,
            temperature=temperature,
            chunk=self.chunk,
            with_entropy=with_entropy,
        )


class TokenScorer(nn.Module):
    """Wraps a causal language model: micro-batch in, log-probabilities of its trained tokens out.

    Args:
        model: from :func:`load_causal_lm`; ``model.model`` is its body and ``model.lm_head`` its head.
        logits_chunk: rows of logits that exist at one time.
        autocast: run float32 parameters under bfloat16 autocast.
    """

    def __init__(self, model: nn.Module, *, logits_chunk: int = 1024, autocast: bool = False) -> None:
        super().__init__()
        causal: Any = model
        self.model = causal
        self.head = _Head(causal.get_output_embeddings(), logits_chunk)
        self.autocast = autocast

    def forward(
        self, micro: MicroBatch, *, temperature: float = 1.0, with_entropy: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Score the trained tokens of ``micro`` (already on the model's device).

        Returns:
            ``(logprobs [N], entropy [N])``, float32; the entropy has no gradient and is NaN unless asked for.
        """
        with self._autocast(micro.input_ids.device.type):
            output = self.model.model(
                input_ids=micro.input_ids,
                attention_mask=None,
                position_ids=micro.position_ids,
                use_cache=False,
                **self._document_bounds(micro),
            )
            hidden = output.last_hidden_state[0].index_select(0, micro.rows)
            logprobs, entropy = self.head(hidden, micro.targets, temperature, with_entropy)
        return logprobs, entropy

    def _document_bounds(self, micro: MicroBatch) -> dict[str, Any]:
        if self.model.config._attn_implementation == DOCUMENTS:
            return {"document_lengths": micro.document_lengths}
        bounds = torch.tensor((0, *micro.document_lengths)).cumsum(0).to(micro.input_ids.device, torch.int32)
        longest = max(micro.document_lengths)
        return {
            "cu_seq_lens_q": bounds,
            "cu_seq_lens_k": bounds,
            "max_length_q": longest,
            "max_length_k": longest,
        }

    def named_weights(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters under their Hugging Face names; tied ones once."""
        yield from self.model.named_parameters()

    @contextmanager
    def _autocast(self, device_type: str) -> Iterator[None]:
        if not self.autocast:
            yield
            return
        with torch.autocast(device_type, dtype=torch.bfloat16):
            yield
