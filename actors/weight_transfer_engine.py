"""The engine's side of the ``object_store`` transport. Imported by vLLM itself, in the process of the model.

vLLM imports this module for ``worker_extension_cls`` before it loads the model, which makes the import the
registration hook that also reaches subprocesses. It is the one module of ``actors`` that imports vllm at its
top (the transport subclasses vLLM's interface); nothing of ours imports it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

__all__ = ["ObjectStoreEngine", "WorkerExtension"]

BACKEND = "object_store"


class WorkerExtension:
    """Mixed into vLLM's worker; adds nothing. Naming it makes vLLM import this module."""


@dataclass
class ObjectStoreInitInfo(WeightTransferInitInfo):
    """No rendezvous."""


@dataclass
class ObjectStoreUpdateInfo(WeightTransferUpdateInfo):
    """One bucket: per tensor its name, dtype (``bfloat16``, ...), shape, and where its bytes are.

    In the actor's own process ``arrays`` holds one flat uint8 array a tensor, mapped from the object store
    without a copy. For a subprocess ``path`` is a file in shared memory; tensor ``i`` is at ``offsets[i]``.
    """

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    arrays: list[Any] = field(default_factory=list)
    path: str = ""
    offsets: list[int] = field(default_factory=list)


class ObjectStoreEngine(WeightTransferEngine[ObjectStoreInitInfo, ObjectStoreUpdateInfo]):
    """Loads flat buckets layer by layer, in checkpoint format: what vLLM can load, this can update."""

    init_info_cls = ObjectStoreInitInfo
    update_info_cls = ObjectStoreUpdateInfo
    _unfinished = False

    def init_transfer_engine(self, init_info: ObjectStoreInitInfo) -> None:
        """Nothing to connect."""

    def start_weight_update(self) -> None:
        """Layerwise reloading: a live model has repacked weights that ``load_weights`` alone cannot fill.

        An update that broke off left layers half filled, and what they had got would count towards their next
        filling: they are closed first. Their weights are worthless until this update is through.
        """
        from vllm.model_executor.model_loader.reload import (
            finalize_layerwise_reload,
            initialize_layerwise_reload,
        )

        if self._unfinished:
            finalize_layerwise_reload(self.model, self.model_config)
        self._unfinished = True
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: ObjectStoreUpdateInfo) -> None:
        """Load one bucket. Tensors of a layer may come in several buckets, in any order."""
        self.model.load_weights(_tensors(update_info))

    def finish_weight_update(self) -> None:
        """End layerwise reloading, and repack the output head.

        With tied embeddings on a CPU the reload updates the shared tensor, but ``lm_head`` keeps the copy
        that was packed for its kernel from the old one: logits come from stale weights, in silence. Packing
        again is cheap, and does nothing on a GPU. Embeddings proper were packed when they were loaded.
        """
        from vllm.model_executor.layers.vocab_parallel_embedding import (
            ParallelLMHead,
            UnquantizedEmbeddingMethod,
        )
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)
        self._unfinished = False
        for module in self.model.modules():
            method = getattr(module, "quant_method", None)
            if isinstance(module, ParallelLMHead) and isinstance(method, UnquantizedEmbeddingMethod):
                method.process_weights_after_loading(module)

    def shutdown(self) -> None:
        """Nothing is held between updates."""


def _tensors(info: ObjectStoreUpdateInfo) -> Iterator[tuple[str, torch.Tensor]]:
    """``(name, tensor)`` of a bucket; tensors are views of the mapped bytes."""
    mapped = np.memmap(info.path, np.uint8, "r") if info.path else None
    for i, (name, dtype_name, shape) in enumerate(zip(info.names, info.dtypes, info.shapes, strict=True)):
        dtype = getattr(torch, dtype_name)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        raw = info.arrays[i] if mapped is None else mapped[info.offsets[i] : info.offsets[i] + size]
        if raw.nbytes != size:
            raise ValueError(f"{name}: {raw.nbytes} bytes received, {size} expected for {shape} {dtype_name}")
        if size == 0:
            yield name, torch.empty(shape, dtype=dtype)
            continue
        with warnings.catch_warnings():
            # The object store hands out read-only memory and torch has no read-only tensors; vLLM only reads.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            yield name, torch.from_numpy(raw).view(dtype).view(shape)


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, ObjectStoreEngine)
