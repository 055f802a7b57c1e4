"""What a rollout actor needs of an inference engine, and how vLLM is configured for it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from apprentice.config.schema import RolloutConfig, SamplingConfig
from apprentice.hardware import OPENMP_WAIT, rollout_dtypes

__all__ = ["Completion", "Engine", "EngineOptions", "engine_arguments", "engine_env", "sampling_arguments"]


class Completion(NamedTuple):
    """What an engine sampled: ids, the logprob of each, why it stopped, and the label of the weights."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    finish_reason: str
    version: str


class Engine(Protocol):
    """One vLLM engine. Every method may raise :class:`apprentice.errors.EngineError`."""

    @property
    def fatal(self) -> str:
        """Why the engine is dead; empty while it lives."""
        ...

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], sampling: dict[str, Any]
    ) -> Completion:
        """Sample one continuation; cancelling aborts it in the engine."""
        ...

    async def init_transfer(self, init_info: dict[str, Any]) -> None:
        """Rendezvous of a push transport (``nccl``, ``ipc``); ``object_store`` needs none."""
        ...

    async def begin_update(self) -> None:
        """Prepare the model to receive weights; an update that was never ended is ended first."""
        ...

    async def receive_update(self, update_info: dict[str, Any]) -> None:
        """Load some tensors."""
        ...

    async def end_update(self, version: int) -> None:
        """Put the new weights into service under this version; forget all that was computed with the old."""
        ...

    async def label(self, version: int) -> None:
        """Name the weights that are in service."""
        ...

    async def close(self) -> None:
        """End the engine and its processes."""
        ...


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """``transport``: how weights arrive (``nccl``, ``ipc`` or ``object_store``). ``max_context``: tokens."""

    name: str
    model: str
    rollout: RolloutConfig
    max_context: int
    transport: str
    seed: int = 0
    revision: str | None = None


def engine_env(config: RolloutConfig, on_gpu: bool, threads: int | None = None) -> dict[str, str]:
    """Environment of the actor process; it must be there before vllm is imported (Ray's ``runtime_env``).

    Args:
        on_gpu: whether the engine gets a CUDA device.
        threads: OpenMP threads of a CPU engine; default: the CPUs that this process may use. Ray sets one
            thread for an actor with less than one CPU, which would halve an engine on two cores.
    """
    env = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if config.in_process else "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
        "TOKENIZERS_PARALLELISM": "false",
    }
    if on_gpu:
        return env
    # "nobind" and the thread count go together: vLLM's own binding would pin every engine of a node to the
    # same cores, and gives a subprocess on two cores one thread.
    cpus = threads or len(os.sched_getaffinity(0))
    return env | {
        **OPENMP_WAIT,
        "OMP_NUM_THREADS": str(cpus),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "CUDA_VISIBLE_DEVICES": "",
    }


def engine_arguments(options: EngineOptions, on_gpu: bool) -> dict[str, Any]:
    """Arguments of vLLM's engine, from ours. ``rollout.engine_args`` goes last and may override any."""
    config = options.rollout
    arguments: dict[str, Any] = {
        "model": options.model,
        "revision": options.revision,
        "tokenizer_revision": options.revision,
        "dtype": rollout_dtypes(config).dtype,
        "max_model_len": options.max_context,
        "max_num_seqs": config.max_concurrent_episodes,
        "tensor_parallel_size": config.tensor_parallel_size,
        "enforce_eager": config.enforce_eager,
        "enable_prefix_caching": True,
        # Logprobs of the distribution that was sampled from: after temperature, top-k and top-p.
        "logprobs_mode": "processed_logprobs",
        "seed": options.seed,
        "generation_config": "vllm",  # a checkpoint's own sampling defaults and stop ids do not apply
        "disable_log_stats": True,
        "weight_transfer_config": {"backend": options.transport},
        # Imported in the process of the model before it loads: registers our transport there.
        "worker_extension_cls": "actors.weight_transfer_engine.WorkerExtension",
    }
    if on_gpu:
        arguments["gpu_memory_utilization"] = config.gpu_memory_utilization
    else:
        arguments["kv_cache_memory_bytes"] = int(config.kv_cache_gib * 2**30)
        # After a partial prefill vLLM rewinds the request's generator, which CPU generators cannot do: a
        # seeded request whose prompt is prefilled in two steps kills the engine. So prompts go in whole.
        arguments["enable_chunked_prefill"] = False
        arguments["max_num_batched_tokens"] = max(options.max_context, 4096)
    return arguments | config.engine_args


def sampling_arguments(
    sampling: SamplingConfig,
    *,
    max_tokens: int,
    stop: Sequence[str],
    stop_token_ids: Sequence[int],
    seed: int | None,
) -> dict[str, Any]:
    """Arguments of vLLM's ``SamplingParams``: stops are exactly those asked for, and stay in the output.

    With a stop string the ids hold the whole token that completed it, which may reach past the string; they
    are kept as sampled, and the episode's parser bears the tail.
    """
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_tokens": max_tokens,
        "stop": list(stop),
        "stop_token_ids": list(stop_token_ids),
        "include_stop_str_in_output": True,
        "ignore_eos": True,
        "skip_special_tokens": False,  # a stop string may hold a control token
        "detokenize": bool(stop),
        "logprobs": 0,  # of the sampled token alone
        "flat_logprobs": True,
        "seed": seed,
    }
