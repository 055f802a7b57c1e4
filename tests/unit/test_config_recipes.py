"""The shipped recipes: all load, all say what the paper says, and every documented override applies."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from apprentice.config.load import load_config, to_yaml
from apprentice.config.schema import Config, VllmBackend
from apprentice.episodes.tools import tool_schemas
from driver.plan import placement_plan

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "configs").glob("*.yaml"))
RIVET_4B = ROOT / "configs" / "rivet-4b.yaml"
# A line of a recipe's comment block that holds overrides only, e.g. "#   stage2.lambda_fmt=0".
_IN_COMMENT = re.compile(r"^#   ((?:[a-z0-9_.]+=\S+ ?)+)$", re.MULTILINE)
_IN_DOCS = re.compile(r"`((?:[a-z0-9_.]+=[^\s`]+ ?)+)`")


def _commented(path: Path) -> list[str]:
    return [line.strip() for line in _IN_COMMENT.findall(path.read_text(encoding="utf-8"))]


def _documented() -> list[str]:
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    return [words for words in _IN_DOCS.findall(text) if not words.startswith("key.path")]


def test_the_recipes_of_the_documentation_are_those_that_ship() -> None:
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert sorted(set(re.findall(r"configs/[\w.-]+\.yaml", text))) == [
        str(p.relative_to(ROOT)) for p in RECIPES
    ]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_shipped_recipe_loads_resolves_and_plans(path: Path, tmp_path: Path) -> None:
    config = load_config(path)
    assert config.name == path.stem
    (tmp_path / "again.yaml").write_text(to_yaml(config))
    assert load_config(tmp_path / "again.yaml") == config
    assert placement_plan(config).actors


@pytest.mark.parametrize(
    ("path", "overrides"),
    [(path, words) for path in RECIPES for words in _commented(path) if "PATH" not in words],
    ids=lambda value: value if isinstance(value, str) else value.stem,
)
def test_an_override_documented_in_a_recipe_applies_and_changes_nothing_else(
    path: Path, overrides: str
) -> None:
    _applies(path, overrides)


@pytest.mark.parametrize("overrides", _documented())
@pytest.mark.parametrize("name", ["rivet-4b", "rivet-1.7b"])
def test_an_override_of_the_documentation_applies(name: str, overrides: str) -> None:
    _applies(ROOT / "configs" / f"{name}.yaml", overrides)


def _applies(path: Path, overrides: str) -> None:
    """Every key has the value given, in the resolved recipe."""
    words = overrides.split()
    resolved = load_config(path, words)
    for word in words:
        dotted, _, text = word.partition("=")
        value: object = resolved
        for part in dotted.split("."):
            value = value[int(part)] if isinstance(value, tuple) else getattr(value, part)
        shown = f"[{','.join(map(str, value))}]" if isinstance(value, tuple) else value
        if isinstance(shown, bool):
            assert str(shown).lower() == text
        elif isinstance(shown, int | float):
            assert shown == float(text)
        else:
            assert shown == text


def test_every_ablation_of_the_paper_is_documented_in_the_recipe_and_in_the_documentation() -> None:
    wanted = {
        "stage1.use_experts=false evaluation.modes=[experts_removed,internalized]",
        "stage1.train_owners=[controller]",
        *(f"stage2.lambda_fmt={weight}" for weight in ("0", "0.5", "1")),
        *(f"protocol.routing={routing}" for routing in ("learned", "Qwen3.5-9B", "random")),
        *(f"protocol.max_expert_calls={calls}" for calls in range(5)),
    }
    assert wanted == set(_commented(RIVET_4B))
    assert wanted <= set(_documented())


@pytest.fixture(scope="module", params=["rivet-4b", "rivet-1.7b"])
def rivet(request: pytest.FixtureRequest) -> Config:
    return load_config(ROOT / "configs" / f"{request.param}.yaml")


def test_rivet_has_the_settings_of_table_9(rivet: Config) -> None:
    stage1, stage2, protocol = rivet.stage1, rivet.stage2, rivet.protocol
    assert stage1.optimizer.learning_rate == 1e-6
    assert (stage1.steps, stage1.prompts_per_step, stage1.rollouts_per_prompt) == (300, 32, 8)
    assert (stage1.epsilon_advantage, stage1.clip_epsilon, stage1.dual_clip) == (1e-6, 0.2, 3.0)
    assert (protocol.max_rollout_tokens, protocol.max_expert_tokens, protocol.max_expert_calls) == (
        8192,
        3072,
        4,
    )
    assert rivet.seed == 66
    assert stage2.optimizer.learning_rate == 2e-6
    assert (stage2.batch_size, stage2.epochs, stage2.max_sequence_tokens) == (128, 2, 16384)


def test_rivet_has_the_method_of_sections_3_and_4(rivet: Config) -> None:
    assert rivet.stages == ("stage1", "stage2", "evaluate")
    assert rivet.stage1.train_owners == ("controller", "expert") and rivet.stage1.use_experts
    assert (rivet.stage2.samples_per_problem, rivet.stage2.max_per_problem) == (8, 2)
    assert rivet.stage2.lambda_fmt == 0.5 and not rivet.stage2.accept_all
    assert rivet.protocol.routing == "learned" and rivet.protocol.instructions == "paper"
    assert rivet.data.train.source == "GAIR-NLP/ToRL"
    assert [(s.name, s.k, s.group) for s in rivet.data.test] == [
        ("AIME 2024", 8, "mathematics"),
        ("AIME 2025", 8, "mathematics"),
        ("AIME 2026", 8, "mathematics"),
        ("HMMT 2025", 8, "mathematics"),
        ("BeyondAIME", 1, "mathematics"),
        ("IMO-AnswerBench", 1, "mathematics"),
        ("APEX 2025", 16, "mathematics"),
        ("GPQA-Diamond", 1, "science"),
    ]
    sampling = rivet.evaluation.sampling
    assert (sampling.temperature, sampling.top_p, rivet.evaluation.max_rollout_tokens) == (0.6, 0.95, 16384)
    assert rivet.evaluation.modes == ("collaborative", "experts_removed", "internalized")
    room_for_the_prompt = rivet.controller.max_context - rivet.evaluation.max_rollout_tokens
    assert room_for_the_prompt >= 2048


def test_the_two_sizes_differ_in_controller_and_number_of_trajectories_only() -> None:
    large, small = (load_config(ROOT / "configs" / f"rivet-{size}.yaml") for size in ("4b", "1.7b"))
    assert (large.controller.model, small.controller.model) == (
        "Qwen/Qwen3-4B-Instruct-2507",
        "Qwen/Qwen3-1.7B",
    )
    assert (large.stage2.max_trajectories, small.stage2.max_trajectories) == (12000, 10000)
    # Qwen3-1.7B is a thinking model that is told not to; Qwen3-4B-Instruct-2507 is none.
    assert small.controller.template_kwargs == {"enable_thinking": False}
    assert large.controller.template_kwargs == {}
    as_large = small.model_copy(
        update={
            "name": large.name,
            "controller": large.controller,
            "stage2": small.stage2.model_copy(update={"max_trajectories": 12000}),
        }
    )
    assert as_large == large


def test_the_experts_are_those_of_table_7_in_its_order_and_read_as_in_table_8(rivet: Config) -> None:
    models = {e.name: e.backend.model for e in rivet.experts if isinstance(e.backend, VllmBackend)}
    assert list(models.items()) == [
        ("Qwen3.5-9B", "Qwen/Qwen3.5-9B"),
        ("Qwen2.5-Coder-7B-Instruct", "Qwen/Qwen2.5-Coder-7B-Instruct"),
        ("Qwen3-8B", "Qwen/Qwen3-8B"),
    ]
    think = tool_schemas(rivet.experts)[0]["function"]
    assert think["description"].endswith(
        "Qwen2.5-Coder-7B-Instruct is especially strong at code, while Qwen3.5-9B is especially strong at "
        "reasoning and planning."
    )


def test_the_demo_keeps_training_and_test_problems_apart_and_is_large_enough() -> None:
    demo = load_config(ROOT / "configs" / "demo.yaml")
    held_out = next(s for s in demo.data.test if s.group == "main")
    assert held_out.families.keys() == demo.data.train.families.keys()
    assert held_out.seed != demo.data.train.seed
    assert held_out.size is not None and held_out.size >= 128
    words = next(s for s in demo.data.test if s.group == "word_problems")
    assert list(words.families) == ["gsm_symbolic"]
    assert demo.stages == ("warmup", "stage1", "stage2", "evaluate")
    assert (demo.learner.num_gpus, demo.rollout.num_gpus) == (0, 0)
    # The experts differ: for every trained family someone is strong, and no one is strong at all of them.
    strengths = [e.backend.model_dump()["strengths"] for e in demo.experts]
    assert len(strengths) == 3
    for family in demo.data.train.families:
        assert max(s.get(family, 0.0) for s in strengths) >= 0.9
    assert all(min(s.get(family, 0.0) for family in demo.data.train.families) < 0.9 for s in strengths)
