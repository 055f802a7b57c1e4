"""The learner's side of the push transports `nccl` and `ipc`: vLLM's own trainer engines, driven over Ray.

NOT RUN ON A GPU: written against vLLM 0.32's interface; the order of calls is tested with a stand-in for the
wire, NCCL and CUDA IPC themselves are not.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from actors.weight_transfer import WeightManifest
from apprentice.errors import WeightSyncError

if TYPE_CHECKING:
    import torch

__all__ = ["PushClient", "PushPublisher"]


class PushClient:
    """What vLLM's trainer side calls on the inference side: fans out to all engines, always with a deadline.

    One policy version travels in several buckets, and vLLM's trainer wraps each send in a start and a finish:
    here the first start begins the update, and only :meth:`close` ends it.

    Args:
        workers: name -> handle of a :class:`actors.rollout_worker.RolloutWorker` actor, in rank order.
        ranks_per_worker: tensor-parallel size of an engine.
        timeout_s: deadline of every call.
    """

    def __init__(self, workers: Mapping[str, Any], ranks_per_worker: int, timeout_s: float) -> None:
        self._workers = dict(workers)
        self._ranks = ranks_per_worker
        self._timeout_s = timeout_s
        self._version: int | None = None
        self._begun = False

    def open(self, version: int) -> None:
        """A new version begins; tells the engines with the first bucket."""
        self._version, self._begun = version, False

    def close(self) -> None:
        """All buckets are sent: engines put the version into service."""
        served = self._all({name: w.end_update.remote() for name, w in self._workers.items()}, "end")
        wrong = {name: version for name, version in served.items() if version != self._version}
        if wrong:
            raise WeightSyncError(f"after the sync to version {self._version}, engines report {wrong}")
        self._version = None

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Rendezvous. Our engines are independent of each other, so each gets its own range of NCCL ranks."""
        refs = {}
        for i, (name, worker) in enumerate(self._workers.items()):
            mine = dict(init_info)
            if "rank_offset" in mine:
                mine["rank_offset"] += i * self._ranks
            refs[name] = worker.init_transfer.remote(mine)
        self._all(refs, "rendezvous")

    def start_weight_update(self) -> None:
        """Engines drain and close, before the first bucket."""
        if self._version is None:
            raise WeightSyncError("weights are sent outside of open() and close()")
        if not self._begun:
            version, timeout = self._version, self._timeout_s
            self._all(
                {name: w.begin_update.remote(version, timeout) for name, w in self._workers.items()}, "begin"
            )
            self._begun = True

    def update_weights(self, update_info: dict[str, Any] | list[dict[str, Any]]) -> None:
        """Engines receive one bucket."""
        self._all(
            {name: w.receive_update.remote(update_info) for name, w in self._workers.items()}, "receive"
        )

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """A bucket is through; the version is not (:meth:`close`)."""

    def _all(self, refs: Mapping[str, Any], what: str) -> dict[str, Any]:
        import ray
        from ray.exceptions import GetTimeoutError, RayError

        values: dict[str, Any] = {}
        for name, ref in refs.items():
            try:
                values[name] = ray.get(ref, timeout=self._timeout_s)
            except GetTimeoutError as error:
                raise WeightSyncError(f"weight sync, {what}: no answer from {name} in time") from error
            except RayError as error:
                raise WeightSyncError(f"weight sync, {what}: {name} failed: {error}") from error
        return values


class PushPublisher:
    """Sends weights to engines over NCCL or CUDA IPC. Make one on every learner rank, and keep it.

    NOT RUN ON A GPU.

    Args:
        transport: ``nccl`` or ``ipc``.
        workers: name -> actor handle of every engine.
        rank: of this learner; rank 0 sends, the others only take part in gathering the weights.
        ranks_per_worker: tensor-parallel size of an engine.
        bucket_bytes: tensors are gathered and sent in portions of about this size.
        timeout_s: deadline of every remote call.
    """

    def __init__(
        self,
        transport: str,
        workers: Mapping[str, Any],
        *,
        rank: int,
        ranks_per_worker: int,
        bucket_bytes: int,
        timeout_s: float,
    ) -> None:
        if transport not in ("nccl", "ipc"):
            raise ValueError(f"transport {transport!r} is not one that pushes: nccl or ipc")
        self._transport = transport
        self._rank = rank
        self._bucket_bytes = bucket_bytes
        self._world = 1 + len(workers) * ranks_per_worker
        self._client = PushClient(workers, ranks_per_worker, timeout_s)
        self._source = _BucketSource()
        self._trainer: Any = None

    def connect(self) -> None:
        """Rendezvous with the engines; once, before the first :meth:`publish`."""
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

        self._trainer = WeightTransferTrainerFactory.trainer_init(
            self._init_info(),
            client=self._client,
            source=self._source,  # type: ignore[arg-type]  # structurally one
        )

    def publish(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> WeightManifest:
        """Send all weights and put them into service on every engine.

        Raises:
            WeightSyncError: an engine failed or missed a deadline. The engines are stale then, and after a
                failure within NCCL the group is lost: both sides have to be started anew.
        """
        if self._trainer is None:
            self.connect()
        self._client.open(version)
        for bucket in _buckets(weights, self._bucket_bytes):
            self._source.bucket = bucket
            self._trainer.send_weights()
        if self._rank == 0:
            self._client.close()
        return WeightManifest(version, "nccl" if self._transport == "nccl" else "ipc", delivered=True)

    def _init_info(self) -> Any:
        if self._transport == "ipc":
            from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

            return IPCTrainerInitInfo(rank=self._rank)
        import ray
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        return NCCLTrainerInitInfo(
            rank=self._rank,
            master_address=address,
            master_port=_free_port(address),
            world_size=self._world,
        )


class _BucketSource:
    """vLLM's ``WeightSource`` (structurally) over the bucket at hand."""

    def __init__(self) -> None:
        self.bucket: list[tuple[str, torch.Tensor]] = []

    def metadata(self) -> list[Any]:
        from vllm.distributed.weight_transfer.base import ParamMeta

        return [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self.bucket]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self.bucket)


def _buckets(
    weights: Iterable[tuple[str, torch.Tensor]], nbytes: int
) -> Iterator[list[tuple[str, torch.Tensor]]]:
    """Portions of about ``nbytes``; the same cut on every rank, since all see the same shapes."""
    bucket: list[tuple[str, torch.Tensor]] = []
    size = 0
    for name, tensor in weights:
        tensor = tensor.detach()
        bucket.append((name, tensor))
        size += tensor.nbytes
        if size >= nbytes:
            yield bucket
            bucket, size = [], 0
    if bucket:
        yield bucket


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
