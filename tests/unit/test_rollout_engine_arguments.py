"""How an engine and its process are configured. No vllm is imported."""

from __future__ import annotations

import pytest

from actors._engine import EngineOptions, engine_arguments, engine_env, sampling_arguments
from apprentice.config.schema import RolloutConfig, SamplingConfig

pytestmark = pytest.mark.unit


def options(**fields: object) -> EngineOptions:
    return EngineOptions("rollout-0", "/model", RolloutConfig(**fields), 4096, "object_store")  # type: ignore[arg-type]


def test_a_gpu_engine_keeps_the_devices_that_ray_gave_it() -> None:
    """F15: nothing here touches CUDA_VISIBLE_DEVICES of an actor with GPUs, or sets CPU options for it."""
    env = engine_env(RolloutConfig(num_gpus=1), on_gpu=True)
    assert not {"CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "VLLM_CPU_OMP_THREADS_BIND"} & set(env)
    assert env["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1"


def test_an_engine_loads_the_revision_that_the_learner_trains() -> None:
    pinned = EngineOptions("rollout-0", "owner/model", RolloutConfig(), 4096, "nccl", revision="abc")
    arguments = engine_arguments(pinned, on_gpu=True)
    assert arguments["revision"] == arguments["tokenizer_revision"] == "abc"


def test_threads_of_a_cpu_engine_sleep_while_they_wait_and_all_cores_are_used() -> None:
    env = engine_env(RolloutConfig(num_gpus=0, in_process=True), on_gpu=False, threads=2)
    assert (env["OMP_WAIT_POLICY"], env["GOMP_SPINCOUNT"]) == ("PASSIVE", "10000")
    assert env["OMP_NUM_THREADS"] == "2"
    assert env["VLLM_CPU_NUM_OF_RESERVED_CPU"] == "0"
    assert env["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert all(isinstance(value, str) for value in env.values())


def test_an_engine_caches_prefixes_and_reports_the_sampling_distribution() -> None:
    for on_gpu in (True, False):
        arguments = engine_arguments(options(), on_gpu)
        assert arguments["enable_prefix_caching"] is True
        assert arguments["logprobs_mode"] == "processed_logprobs"
        assert arguments["max_model_len"] == 4096
        assert arguments["weight_transfer_config"] == {"backend": "object_store"}


def test_memory_is_a_share_on_a_gpu_and_bytes_on_a_cpu() -> None:
    on_gpu = engine_arguments(options(gpu_memory_utilization=0.4), True)
    on_cpu = engine_arguments(options(kv_cache_gib=0.5), False)
    assert (on_gpu["gpu_memory_utilization"], on_gpu.get("kv_cache_memory_bytes")) == (0.4, None)
    assert (on_cpu["kv_cache_memory_bytes"], on_cpu.get("gpu_memory_utilization")) == (2**29, None)


def test_a_cpu_engine_prefills_whole_prompts_so_that_seeded_requests_cannot_kill_it() -> None:
    arguments = engine_arguments(options(), False)
    assert arguments["enable_chunked_prefill"] is False
    assert arguments["max_num_batched_tokens"] >= arguments["max_model_len"]


def test_a_recipes_own_engine_arguments_win() -> None:
    assert engine_arguments(options(engine_args={"block_size": 32, "seed": 9}), True)["seed"] == 9


def test_stops_are_exactly_those_asked_for_and_stay_in_the_output() -> None:
    arguments = sampling_arguments(
        SamplingConfig(temperature=0.6, top_p=0.95),
        max_tokens=7,
        stop=("</python>",),
        stop_token_ids=(5,),
        seed=3,
    )
    assert arguments["include_stop_str_in_output"] is True
    assert arguments["ignore_eos"] is True
    assert arguments["skip_special_tokens"] is False
    assert (arguments["stop"], arguments["stop_token_ids"]) == (["</python>"], [5])
    assert (arguments["temperature"], arguments["top_p"], arguments["top_k"]) == (0.6, 0.95, -1)
    assert (arguments["max_tokens"], arguments["seed"], arguments["logprobs"]) == (7, 3, 0)
    without = sampling_arguments(SamplingConfig(), max_tokens=1, stop=(), stop_token_ids=(5,), seed=None)
    assert without["detokenize"] is False, "text is made only where a stop string needs it"
