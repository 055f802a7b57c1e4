"""A vLLM engine inside a replica of an expert or of the advisor.

Ran on a CPU with a 135M model, and with a tiny one in the tests; nothing in this file has run on a GPU yet.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from apprentice.config.schema import ExpertConfig, VllmBackend
from apprentice.costs.usage import Usage
from apprentice.errors import ConfigError, TemplateError
from apprentice.experts.engine import Completion
from apprentice.experts.prompt import Message
from apprentice.experts.types import BackendFailure
from apprentice.hardware import OPENMP_WAIT
from apprentice.models import resolve_model

__all__ = ["ExpertEngine", "completion", "engine_env"]

_REPLACED_S = 10.0
"""Serve replaces a replica after three health checks, two seconds apart, that found its engine dead."""


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
        **OPENMP_WAIT,
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
        self._encode, self._opens_thought = _encoder(model, dict(backend.chat_template_kwargs))
        self._llm: Any = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))

    def check(self) -> None:
        """Raises RuntimeError if the engine is dead, so that Serve replaces the replica."""
        if self._llm.errored:
            raise RuntimeError(f"the engine of expert {self._config.name!r} died")

    async def generate(self, messages: Sequence[Message], max_tokens: int) -> Completion:
        """One sampled reply of at most ``max_tokens`` tokens, fewer where the context ends first. A thought
        that the chat template opened is in its text from ``<think>`` on.

        Raises:
            BackendFailure: kind ``prompt_too_long``, of usage zero; or, retryable, ``engine_died`` or
                ``engine_failed``, of unknown usage unless nothing was sent.
        """
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        if self._llm.errored:
            raise self._died(Usage(0, 0, 0, 0))

        ids = self._encode(messages)
        room = self._max_len - len(ids)
        if room < 1:
            raise BackendFailure(
                f"expert {self._config.name!r}: a prompt of {len(ids)} tokens does not fit max_model_len "
                f"{self._max_len}; raise it (an expert's include_transcript: false makes prompts shorter)",
                kind="prompt_too_long",
                expert=self._config.name,
                usage=Usage(0, 0, 0, 0),
            )
        params = SamplingParams(
            temperature=self._config.temperature,
            top_p=self._config.top_p,
            max_tokens=min(max_tokens, room),
        )
        final = None
        prompt = tokens_input(prompt_token_ids=ids)
        try:
            async for output in self._llm.generate(prompt, params, request_id=uuid.uuid4().hex):
                final = output
        except EngineDeadError:
            raise self._died(Usage()) from None
        except EngineGenerateError as error:
            raise _failed(self._config.name, f"a generation broke: {error.__cause__!r}") from error
        return completion(self._config.name, final, opened=self._opens_thought)

    def _died(self, usage: Usage) -> BackendFailure:
        return BackendFailure(
            f"expert {self._config.name!r}: the engine died; its replica is being replaced",
            kind="engine_died",
            expert=self._config.name,
            retryable=True,
            retry_after_s=_REPLACED_S,
            usage=usage,
        )

    def close(self) -> None:
        """End the engine's processes."""
        self._llm.shutdown()


def completion(name: str, output: Any, *, opened: bool) -> Completion:
    """Ours from a finished vLLM ``RequestOutput``.

    Args:
        name: of the expert, for messages.
        opened: the prompt ended with ``<think>``, so that the text begins in the middle of a thought.

    Raises:
        BackendFailure: kind ``engine_failed``: it ended neither by a stop nor by its length.
    """
    choice = None if output is None else output.outputs[0]
    if choice is None or choice.finish_reason not in ("stop", "length"):
        ended = "without an output" if choice is None else f"with {choice.finish_reason!r}"
        raise _failed(name, f"a generation ended {ended}")
    return Completion(
        text=f"<think>{choice.text}" if opened else choice.text,
        prompt_tokens=len(output.prompt_token_ids),
        completion_tokens=len(choice.token_ids),
        finish_reason=choice.finish_reason,
    )


def _failed(name: str, what: str) -> BackendFailure:
    return BackendFailure(f"expert {name!r}: {what}", kind="engine_failed", expert=name, retryable=True)


def _encoder(
    model: str, template_kwargs: dict[str, Any]
) -> tuple[Callable[[Sequence[Message]], list[int]], bool]:
    """``messages -> ids``, and whether the chat template opens a thought at the end of the prompt.

    ChatML models get untrusted text that cannot become a control token.
    """
    from transformers import AutoTokenizer

    from apprentice.tokens.codec import ChatCodec

    tokenizer = AutoTokenizer.from_pretrained(model)
    try:
        codec = ChatCodec(tokenizer, template_kwargs)
    except TemplateError:  # another family: its own template, as it is
        render = partial(tokenizer.apply_chat_template, add_generation_prompt=True, **template_kwargs)
        prompt: Any = render([{"role": "user", "content": "x"}], tokenize=False)
        opened = str(prompt).rstrip().endswith("<think>")
        return lambda messages: list(render(list(messages), return_dict=False)), opened
    return codec.encode_prompt, codec.template.opens_thinking
