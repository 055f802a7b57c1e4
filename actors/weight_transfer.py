"""How new weights travel from a learner to the engines. The order of a sync is `driver/weight_sync.py`'s.

| transport      | who moves the bytes                                           | for                  |
|----------------|---------------------------------------------------------------|----------------------|
| `object_store` | the learner puts buckets, engines map them and load (pull)    | CPU, mixed placement |
| `nccl`         | the learner broadcasts over vLLM's NCCL group (push)          | GPU to GPU           |
| `ipc`          | the learner passes CUDA IPC handles, engines open them (push) | colocated on a GPU   |

Push transports are vLLM's own; see :mod:`actors.weight_transfer_push`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from apprentice.errors import WeightSyncError

if TYPE_CHECKING:
    import torch
    from ray import ObjectRef

__all__ = ["Bucket", "TensorInfo", "Transport", "WeightManifest", "publish", "staged"]

Transport = Literal["object_store", "nccl", "ipc"]


class TensorInfo(NamedTuple):
    """Name in the Hugging Face checkpoint, torch dtype name (``bfloat16``) and shape of one tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Some tensors, and where their bytes are: an object-store list of one flat uint8 array a tensor."""

    tensors: tuple[TensorInfo, ...]
    data: ObjectRef[Any]
    nbytes: int


@dataclass(frozen=True, slots=True)
class WeightManifest:
    """The weights of one policy version, ready for engines to take.

    Whoever holds the manifest keeps the buckets alive: drop it when every engine has them. They are owned by
    the process that published them and go with it; an engine that then asks gets a :class:`WeightSyncError`.
    Push transports deliver while they publish: ``buckets`` is empty and ``delivered`` true.
    """

    version: int
    transport: Transport
    buckets: tuple[Bucket, ...] = ()
    delivered: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(bucket.nbytes for bucket in self.buckets)


def publish(
    weights: Iterable[tuple[str, torch.Tensor]],
    version: int,
    *,
    bucket_bytes: int = 512 * 2**20,
    dtype: torch.dtype | None = None,
) -> WeightManifest:
    """Put weights into the object store (transport ``object_store``).

    Call it in the learner's rank 0; with sharded parameters the other ranks exhaust the same iterator, since
    gathering is a collective. At most one bucket of tensors is held besides what the iterator holds.

    Args:
        weights: ``(checkpoint name, whole tensor)``, on any device, each once; a tied weight under one name.
        version: of the policy, 0 for the initial weights.
        bucket_bytes: a bucket is put as soon as it holds this much. Larger buckets cost memory, not time.
        dtype: convert to this type first (the engine's); halves the bytes of float32 parameters.
    """
    import ray

    buckets = []
    tensors: list[TensorInfo] = []
    arrays: list[np.ndarray[Any, Any]] = []
    size = 0

    def flush() -> None:
        nonlocal size
        buckets.append(Bucket(tuple(tensors), ray.put(arrays), size))
        tensors.clear()
        arrays.clear()
        size = 0

    for name, tensor in weights:
        info, array = _flat_bytes(name, tensor, dtype)
        tensors.append(info)
        arrays.append(array)
        size += array.nbytes
        if size >= bucket_bytes:
            flush()
    if tensors:
        flush()
    return WeightManifest(version, "object_store", tuple(buckets))


def _flat_bytes(
    name: str, tensor: torch.Tensor, dtype: torch.dtype | None
) -> tuple[TensorInfo, np.ndarray[Any, Any]]:
    """The tensor's bytes as a flat uint8 array (a view where it is contiguous on the CPU already)."""
    import torch

    tensor = tensor.detach()
    if dtype is not None and tensor.is_floating_point():
        tensor = tensor.to(dtype)
    info = TensorInfo(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
    return info, tensor.to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy()


@contextlib.contextmanager
def staged(
    bucket: Bucket, arrays: Sequence[np.ndarray[Any, Any]], *, in_process: bool
) -> Iterator[dict[str, Any]]:
    """The bucket as vLLM update info for :class:`actors.weight_transfer_engine.ObjectStoreEngine`.

    In the actor's process the arrays go as they are. A subprocess has no access to the object store's memory:
    the bytes are copied to a file in shared memory, which exists while the context does.
    """
    info: dict[str, Any] = {
        "names": [tensor.name for tensor in bucket.tensors],
        "dtypes": [tensor.dtype for tensor in bucket.tensors],
        "shapes": [list(tensor.shape) for tensor in bucket.tensors],
    }
    if in_process:
        yield info | {"arrays": list(arrays)}
        return
    handle, path = tempfile.mkstemp(prefix="apprentice-weights-", dir=_shared_memory(bucket.nbytes))
    try:
        offsets, end = [], 0
        with os.fdopen(handle, "wb") as file:
            for array in arrays:
                file.write(b"\0" * (-end % 64))
                end += -end % 64
                offsets.append(end)
                file.write(array.data)
                end += array.nbytes
        yield info | {"path": path, "offsets": offsets}
    finally:
        os.unlink(path)


def _shared_memory(nbytes: int) -> str:
    """A folder in memory with room for ``nbytes``; the ordinary temporary folder where there is none."""
    for folder in ("/dev/shm", tempfile.gettempdir()):
        if os.path.isdir(folder) and _free_bytes(folder) > nbytes + 2**26:
            return folder
    raise WeightSyncError(
        f"no room to stage {nbytes / 2**20:.0f} MiB of weights: neither /dev/shm nor "
        f"{tempfile.gettempdir()} has it free; enlarge one (docker: --shm-size), or lower "
        "weight_sync.bucket_mib"
    )


def _free_bytes(folder: str) -> int:
    return shutil.disk_usage(folder).free
