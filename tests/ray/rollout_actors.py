"""What the Ray tests of rollouts share: a worker, a stand-in learner, and the reference forward pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray

from actors.rollout_worker import RolloutWorker, RolloutWorkerSpec, engine_env
from actors.weight_transfer import WeightManifest, publish
from actors.weight_transfer_push import PushPublisher
from apprentice.config.schema import RolloutConfig
from tests.rollout_fakes import EchoExpert, EchoPython, EqualityVerifier, TurnsFactory

__all__ = ["PublishingLearner", "PushingLearner", "Reference", "long_prompt", "spawn"]

WINDOW = 512


def spawn(
    model: Path,
    *,
    name: str = "rollout-0",
    version: int | None = 0,
    in_process: bool = True,
    factory: TurnsFactory | None = None,
    dtype: str = "float32",
    experts: Any = None,
    verifier: Any = None,
) -> Any:
    """A started rollout worker on the CPU; wait for ``start`` yourself."""
    config = RolloutConfig(
        num_gpus=0,
        dtype=dtype,
        in_process=in_process,
        kv_cache_gib=0.125,
        enforce_eager=True,
        max_concurrent_episodes=16,
    )
    spec = RolloutWorkerSpec(
        name=name,
        model=str(model),
        rollout=config,
        max_context=WINDOW,
        build_episodes=(factory or TurnsFactory()).build,
        experts=experts or EchoExpert(),
        python=EchoPython(),
        verifier=verifier or EqualityVerifier(),
        version=version,
    )
    env = engine_env(config, on_gpu=False, threads=1)
    return ray.remote(RolloutWorker).options(num_cpus=1, runtime_env={"env_vars": env}).remote(spec)


class PublishingLearner:
    """Stands in for a learner: publishes the weights of a model folder, perturbed by version."""

    def __init__(self, model: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        self._base = {name: p.detach().clone() for name, p in self._model.named_parameters()}

    def publish_weights(
        self, version: int, *, bucket_mib: int = 512, dtype: str | None = None
    ) -> WeightManifest | None:
        return publish(self.weights(version), version, bucket_bytes=64 * 1024)

    def publish_broken(self, version: int) -> WeightManifest:
        """A manifest that fails in the middle of a fused layer: after q_proj, at k_proj."""
        manifest = publish(self.weights(version), version, bucket_bytes=1)
        buckets = list(manifest.buckets)
        at = next(i for i, b in enumerate(buckets) if b.tensors[0].name.endswith("k_proj.weight"))
        (info,) = buckets[at].tensors
        longer = info._replace(shape=(7, *info.shape))
        buckets[at] = dataclasses.replace(buckets[at], tensors=(longer,))
        return dataclasses.replace(manifest, buckets=tuple(buckets))

    def weights(self, version: int) -> Iterator[tuple[str, Any]]:
        import torch

        generator = torch.Generator().manual_seed(version)
        for name, p in self._base.items():
            yield name, p + 0.05 * torch.randn(p.shape, generator=generator) * (version > 0)

    def save(self, version: int, folder: str) -> str:
        """The same weights as a Hugging Face checkpoint."""
        import torch

        with torch.no_grad():
            for (_, p), (_, new) in zip(self._model.named_parameters(), self.weights(version), strict=True):
                p.copy_(new)
        self._model.save_pretrained(folder)
        return folder


class PushingLearner(PublishingLearner):
    """Publishes through :class:`PushPublisher`, with a stand-in for vLLM's trainer engine: no GPU."""

    def connect(self, workers: dict[str, Any], timeout_s: float = 30.0) -> None:
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

        WeightTransferTrainerFactory.trainer_init = staticmethod(  # type: ignore[method-assign]
            lambda init_info, *, client, source: _ObjectTrainer(client, source)
        )
        self._publisher = PushPublisher(
            "ipc", workers, rank=0, ranks_per_worker=1, bucket_bytes=64 * 1024, timeout_s=timeout_s
        )

    def publish_weights(
        self, version: int, *, bucket_mib: int = 512, dtype: str | None = None
    ) -> WeightManifest | None:
        return self._publisher.publish(self.weights(version), version)


class _ObjectTrainer:
    """Sends what vLLM's trainer engines send, but with the bytes in the message."""

    def __init__(self, client: Any, source: Any) -> None:
        self._client, self._source = client, source
        client.init_weight_transfer_engine({})

    def send_weights(self) -> None:
        self._client.start_weight_update()
        meta = self._source.metadata()
        self._client.update_weights(
            {
                "names": [m.name for m in meta],
                "dtypes": [str(m.dtype).removeprefix("torch.") for m in meta],
                "shapes": [list(m.shape) for m in meta],
                "arrays": [t.contiguous().numpy().reshape(-1).view("uint8") for _, t in self._source],
            }
        )
        self._client.finish_weight_update()


class Reference:
    """A Hugging Face forward pass: log-softmax(logits / T) of every token given those before it."""

    def __init__(self, model: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)

    def load(self, weights: Iterator[tuple[str, Any]]) -> None:
        import torch

        named = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, tensor in weights:
                named[name].copy_(tensor)

    def distributions(self, ids: list[int], temperature: float = 1.0) -> Any:
        """``[T - 1, V]``: row i is the log distribution of ``ids[i + 1]``."""
        import torch

        with torch.no_grad():
            logits = self.model(torch.tensor([ids])).logits[0, :-1].double()
        return torch.log_softmax(logits / temperature, -1)

    def logprobs(self, ids: list[int], start: int, temperature: float = 1.0) -> Any:
        """``[T - start]``: of ``ids[start:]``."""
        import torch

        rows = self.distributions(ids, temperature)[start - 1 :]
        return rows.gather(-1, torch.tensor(ids[start:])[:, None])[:, 0].numpy()


def long_prompt(length: int = 300, vocab: int = 300, seed: int = 0) -> tuple[int, ...]:
    """Ids over several blocks of the prefix cache (128 tokens each on a CPU)."""
    import random

    draw = random.Random(seed)
    return tuple(draw.randrange(10, vocab) for _ in range(length))
