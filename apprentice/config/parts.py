"""Parts that several configuration models share: sampling, optimizer, problem sets, backends of models."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from apprentice.config.base import NonNegativeInt, PositiveFloat, PositiveInt, Probability, Strict

__all__ = [
    "OpenAIBackend",
    "OptimizerConfig",
    "ProblemSetConfig",
    "SamplingConfig",
    "VllmBackend",
    "WorkedBackend",
]


class SamplingConfig(Strict):
    """How tokens are drawn."""

    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: int = Field(-1, description="-1: off.")


class WorkedBackend(Strict):
    """Answers from the worked solutions that a problem set carries; needs no model."""

    kind: Literal["worked"] = "worked"
    error_rate: Probability = Field(
        0.0, description="Share of problems answered wrongly (fixed per problem)."
    )
    strengths: dict[str, Probability] = Field(
        default_factory=dict,
        description="Problem family -> probability of a right answer; overrides 1 - error_rate for it.",
    )
    think_strength: Probability = Field(
        1.0,
        description="Of the problems it gets right with a program, the share it gets right by thinking.",
    )
    latency_s: Annotated[float, Field(ge=0)] = 0.0
    failure_rate: Probability = Field(0.0, description="Share of calls that fail as infrastructure (tests).")


class OpenAIBackend(Strict):
    """Any OpenAI-compatible endpoint."""

    kind: Literal["openai"] = "openai"
    base_url: str
    model: str
    api_key_env: str | None = Field(
        None, description="Environment variable that holds the key; never logged."
    )
    extra_body: dict[str, object] = Field(default_factory=dict)


class VllmBackend(Strict):
    """A frozen model served by this cluster with vLLM."""

    kind: Literal["vllm"] = "vllm"
    model: str
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    tensor_parallel_size: PositiveInt = 1
    max_model_len: PositiveInt = 16384
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    kv_cache_gib: PositiveFloat = Field(1.0, description="Size of the KV cache; CPU engines only.")
    chat_template_kwargs: dict[str, object] = Field(
        default_factory=dict, description="E.g. {enable_thinking: false}."
    )
    engine_args: dict[str, object] = Field(default_factory=dict)


class OptimizerConfig(Strict):
    """AdamW."""

    learning_rate: PositiveFloat = 1e-6
    betas: tuple[Probability, Probability] = (0.9, 0.999)
    eps: PositiveFloat = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    max_grad_norm: PositiveFloat = 1.0
    warmup_steps: NonNegativeInt = 0
    schedule: Literal["constant", "linear", "cosine"] = "constant"


class ProblemSetConfig(Strict):
    """A set of problems with exact answers (:mod:`apprentice.data`)."""

    name: str = Field(description="Label in tables and file names.")
    source: str = Field(
        description="reasoning_gym, a hub id such as math-ai/aime25, or a path to a .jsonl or .parquet file."
    )
    split: str | None = None
    families: dict[str, dict[str, object]] = Field(
        default_factory=dict,
        description="reasoning_gym: dataset name, or name@label for several of one dataset -> its options.",
    )
    size: PositiveInt | None = Field(None, description="Number of problems; all when left out.")
    seed: int = 0
    group: str = Field("main", description="Sets of one group are averaged in one table column.")
    k: PositiveInt | None = Field(
        None, description="Samples a problem of this set; evaluation.k when left out."
    )
    fields: dict[str, str] = Field(
        default_factory=dict, description="Rename: our field -> column of the file."
    )
