"""A vLLM engine inside an expert's replica.

Ran on a CPU with a 135M model; nothing in this file has run on a GPU yet.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from typing import Any

from apprentice.config.schema import ExpertConfig, VllmBackend
from apprentice.errors import ConfigError, TemplateError
from apprentice.experts.engine import Completion
from apprentice.experts.prompt import Message
from apprentice.experts.types import BackendFailure
from apprentice.models import resolve_model

__all__ = ["ExpertEngine", "engine_env"]


def engine_env(config: ExpertConfig) -> dict[str, str]:
    """Environment of a replica; it must be there before vllm is imported (Ray's ``runtime_env``)."""
    env = {"VLLM_NO_USAGE_STATS": "1", "TOKENIZERS_PARALLELISM": "false", "VLLM_LOGGING_LEVEL": "WARNING"}
    if config.num_gpus > 0:
        return env
    threads = max(1, int(config.num_cpus))
    return env | {
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",  # the default keeps a core back, which on two cores is half
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",  # spinning threads starve the other processes of a small machine
        "CUDA_VISIBLE_DEVICES": "",
    }


class ExpertEngine:
    """AsyncLLM behind :data:`apprentice.experts.engine.Generate`. Loading takes tens of seconds.

    Raises:
        ConfigError: the GPUs of the replica are not those of its tensor parallelism.
        DataError: there is no such model.
    """

    def __init__(self, config: ExpertConfig, seed: int) -> None:
        backend = config.backend
        assert isinstance(backend, VllmBackend)
        if config.num_gpus > 0 and backend.tensor_parallel_size not in (1, config.num_gpus):
            raise ConfigError(
                f"expert {config.name!r}: tensor_parallel_size {backend.tensor_parallel_size} needs as many "
                f"num_gpus, not {config.num_gpus:g}"
            )
        # A replica that Ray gave less than one CPU has OMP_NUM_THREADS set by Ray; ours goes first.
        os.environ.update(engine_env(config))
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        model = str(resolve_model(backend.model))
        arguments: dict[str, Any] = {
            "model": model,
            "dtype": backend.dtype,
            "max_model_len": backend.max_model_len,
            "max_num_seqs": config.max_ongoing_requests,
            "tensor_parallel_size": backend.tensor_parallel_size,
            "enable_prefix_caching": True,
            "generation_config": "vllm",
            "seed": seed,
            "disable_log_stats": True,
        }
        if config.num_gpus > 0:
            arguments["gpu_memory_utilization"] = backend.gpu_memory_utilization
        else:
            arguments |= {"kv_cache_memory_bytes": int(backend.kv_cache_gib * 2**30), "enforce_eager": True}
        arguments |= backend.engine_args
        self._config, self._max_len = config, int(arguments["max_model_len"])
        self._encode = _encoder(model, dict(backend.chat_template_kwargs))
        self._llm: Any = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))

    def check(self) -> None:
        """Raises RuntimeError if the engine is dead, so that Serve replaces the replica."""
        if self._llm.errored:
            raise RuntimeError(f"the engine of expert {self._config.name!r} died")

    async def generate(self, messages: Sequence[Message], max_tokens: int) -> Completion:
        """One sampled reply of at most ``max_tokens`` tokens, fewer where the context ends first.

        Raises:
            BackendFailure: kind ``prompt_too_long``.
        """
        from vllm import SamplingParams
        from vllm.inputs import tokens_input

        ids = self._encode(messages)
        room = self._max_len - len(ids)
        if room < 1:
            raise BackendFailure(
                f"expert {self._config.name!r}: a prompt of {len(ids)} tokens does not fit max_model_len "
                f"{self._max_len}; raise it, or set include_transcript to false",
                kind="prompt_too_long",
                expert=self._config.name,
            )
        params = SamplingParams(
            temperature=self._config.temperature,
            top_p=self._config.top_p,
            max_tokens=min(max_tokens, room),
        )
        final = None
        async for output in self._llm.generate(
            tokens_input(prompt_token_ids=ids), params, request_id=uuid.uuid4().hex
        ):
            final = output
        assert final is not None
        choice = final.outputs[0]
        return Completion(
            text=choice.text,
            prompt_tokens=len(ids),
            completion_tokens=len(choice.token_ids),
            finish_reason=choice.finish_reason or "stop",
        )

    def close(self) -> None:
        """End the engine's processes."""
        self._llm.shutdown()


def _encoder(model: str, template_kwargs: dict[str, Any]) -> Any:
    """``messages -> ids``. ChatML models get untrusted text that cannot become a control token."""
    from transformers import AutoTokenizer

    from apprentice.tokens.codec import ChatCodec

    tokenizer = AutoTokenizer.from_pretrained(model)
    try:
        return ChatCodec(tokenizer, template_kwargs).encode_prompt
    except TemplateError:  # another family: its own template, as it is

        def encode(messages: Sequence[Message]) -> list[int]:
            chat: list[Any] = list(messages)
            ids: Any = tokenizer.apply_chat_template(
                chat, add_generation_prompt=True, return_dict=False, **template_kwargs
            )
            return list(ids)

        return encode
