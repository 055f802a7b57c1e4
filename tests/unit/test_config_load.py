"""Reading recipes: defaults, extends, overrides, and what a mistake is answered with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from apprentice.config.keys import all_keys, nearest_key
from apprentice.config.load import load_config, parse_override, to_yaml
from apprentice.errors import ConfigError

pytestmark = pytest.mark.unit

RECIPE = """\
name: small
controller: {model: some/model}
data:
  train: {name: train, source: reasoning_gym}
experts:
  - name: first
    backend: {kind: worked}
  - name: second
    backend: {kind: worked, error_rate: 0.25}
stage1:
  steps: 7
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    return path


def _error(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return str(caught.value)


def test_what_a_recipe_leaves_out_has_its_default(recipe: Path) -> None:
    config = load_config(recipe)
    assert (config.stage1.steps, config.stage1.prompts_per_step, config.seed) == (7, 32, 66)


def test_overrides_reach_keys_list_entries_and_absent_sections(recipe: Path) -> None:
    config = load_config(
        recipe,
        [
            "stage1.steps=5",
            "experts.1.backend.error_rate=0.1",
            "evaluation.modes=[internalized]",
            "stage1.steps=6",
            "experts.0.backend={kind: openai, base_url: 'http://localhost:1', model: m}",
            "name=with=equals",
        ],
    )
    assert config.stage1.steps == 6
    assert config.experts[1].backend.model_dump()["error_rate"] == 0.1
    assert config.experts[0].backend.kind == "openai"
    assert config.evaluation.modes == ("internalized",)
    assert config.name == "with=equals"


def test_one_key_of_a_section_leaves_that_sections_own_defaults_alone(recipe: Path) -> None:
    config = load_config(recipe, ["stage2.optimizer.weight_decay=0", "evaluation.sampling.top_k=20"])
    assert config.stage2.optimizer.learning_rate == 2e-6
    assert (config.evaluation.sampling.temperature, config.evaluation.sampling.top_p) == (0.6, 0.95)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1.5", 1.5),
        ("012", 12),
        ("-3", -3),
        ("off", "off"),
        ("no", "no"),
        ("12:30", "12:30"),
        ("2024-01-01", "2024-01-01"),
        ("true", True),
        ("null", None),
        ('""', ""),
        ("[a, {b: 1}]", ["a", {"b": 1}]),
    ],
)
def test_values_are_plain_scalars_of_yaml_1_2(text: str, value: object) -> None:
    assert parse_override(f"a.0.b={text}") == (("a", 0, "b"), value)


def test_off_is_a_word_and_not_false(recipe: Path) -> None:
    assert load_config(recipe, ["experts.0.cache=off"]).experts[0].cache == "off"


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("stage1.stepps=5", ["stage1.stepps: unknown key", "stage1.steps?", "override stage1.stepps=5"]),
        ("experts.1.backend.eror_rate=0", ["experts.1.backend.eror_rate", "experts.1.backend.error_rate?"]),
        ("learning_rate=1", ["learning_rate: unknown key", ".optimizer.learning_rate?"]),
        ("stage1.steps=abc", ["stage1.steps: must be a whole number, got 'abc' (override stage1.steps=abc)"]),
        ("stage1.steps='5'", ["stage1.steps: must be a whole number"]),
        ("stage1.steps=true", ["stage1.steps: must be a whole number, got true"]),
        ("stage1.steps=-1", ["stage1.steps: must be greater than or equal to 0, got -1"]),
        ("stage1.use_experts=yes", ["stage1.use_experts: must be true or false, got 'yes'"]),
        ("name=4", ["name: must be text, got 4", "quotes"]),
        ("stages=stage1", ["stages: must be a list"]),
        ("data.train=3", ["data.train: must be a mapping"]),
        ("learner.zero_stage=4", ["learner.zero_stage: must be 0, 1, 2 or 3, got 4"]),
        ("experts.0.backend.kind=magic", ["experts.0.backend.kind: must be one of", "'worked'", "'vllm'"]),
        ("experts.2.name=x", ["experts is a list of 2 entries"]),
        ("experts.one.name=x", ["experts is a list of 2 entries", "'one'"]),
        ("stage1.optimizer.betas=[0.9]", ["stage1.optimizer.betas: must have at least 2 entries"]),
        ("protocol.routing=third", ["protocol.routing: 'third' is neither learned, random nor an expert"]),
        ("experts=[]", ["experts: none given"]),
        ("controller={}", ["controller.model: this key is required"]),
        ("stage1.steps", ["key.path=value"]),
        ("stage1..steps=1", ["key.path=value"]),
        ("stage1.steps=", ["the value is missing"]),
        ("stage1.steps=[1", ["is not a YAML value"]),
    ],
)
def test_a_mistake_in_an_override_names_the_key_the_source_and_the_remedy(
    recipe: Path, override: str, parts: list[str]
) -> None:
    message = _error(recipe, override)
    for part in parts:
        assert part in message
    assert "pydantic" not in message and "type=" not in message


def test_mistakes_in_a_file_are_reported_all_at_once_with_their_lines(recipe: Path) -> None:
    recipe.write_text(RECIPE + "  learning_rat: 1\nsede: 3\n")
    message = _error(recipe)
    assert message.startswith("2 mistakes in the configuration:")
    assert f"did you mean stage1.optimizer.learning_rate? ({recipe}, line 12)" in message
    assert f"sede: unknown key; did you mean seed? ({recipe}, line 13)" in message


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("name: [a\nb: 1\n", "line 2"),
        ("name: a\nseed: 1\nname: b\n", "'name' stands twice in one mapping (line 3, column 1)"),
        ("- a\n", "a recipe is a mapping"),
        ("", "a recipe is a mapping"),
        ("name: !!python/object/apply:os.getcwd []\n", "could not determine a constructor"),
    ],
)
def test_a_file_that_is_no_recipe_says_where(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    message = _error(path)
    assert str(path) in message and part in message


def test_a_missing_file_names_the_recipes_beside_it(recipe: Path) -> None:
    message = _error(recipe.with_name("recipes.yaml"))
    assert "no such recipe" in message and str(recipe) in message


def test_extends_merges_mappings_and_replaces_lists(recipe: Path) -> None:
    child = recipe.with_name("child.yaml")
    child.write_text(
        "extends: recipe.yaml\nname: child\nstage1: {prompts_per_step: 2}\nexperts: []\nstages: [evaluate]\n"
    )
    config = load_config(child)
    assert (config.name, config.stage1.steps, config.stage1.prompts_per_step) == ("child", 7, 2)
    assert config.experts == ()
    recipe.write_text(RECIPE.replace("steps: 7", "steps: x"))
    assert f"({recipe}, line 11)" in _error(child)


def test_a_recipe_that_extends_itself_is_refused(recipe: Path) -> None:
    other = recipe.with_name("other.yaml")
    other.write_text("extends: recipe.yaml\n")
    recipe.write_text("extends: other.yaml\n" + RECIPE)
    assert "extends itself: recipe.yaml -> other.yaml -> recipe.yaml" in _error(recipe)


def test_the_resolved_recipe_reads_back_equal(recipe: Path, tmp_path: Path) -> None:
    config = load_config(recipe, ["experts.0.cache=off", "stage1.optimizer.learning_rate=1e-7", "name='12'"])
    again = tmp_path / "again.yaml"
    again.write_text(to_yaml(config))
    assert load_config(again) == config


@settings(max_examples=40, deadline=None)
@example("0E0", 1.0)
@example("1e-6", 1e-6)
@example("off", 1.0)
@example("0o7", 1.0)
@example("~", 1.0)
@example("a\x85b\u2028", 1.0)
@given(st.text(max_size=30), st.floats(min_value=1e-300, max_value=1e300))
def test_any_text_and_number_survive_the_round_trip(
    tmp_path_factory: pytest.TempPathFactory, text: str, number: float
) -> None:
    folder = tmp_path_factory.mktemp("round")
    (folder / "a.yaml").write_text(RECIPE)
    config = load_config(folder / "a.yaml")
    stage1 = config.stage1.model_copy(
        update={"optimizer": config.stage1.optimizer.model_copy(update={"learning_rate": number})}
    )
    config = config.model_copy(update={"name": text, "stage1": stage1})
    (folder / "b.yaml").write_text(to_yaml(config), encoding="utf-8")
    assert load_config(folder / "b.yaml") == config


def test_every_key_is_listed_with_the_default_of_its_own_section() -> None:
    keys = {(key.path, key.kind): key for key in all_keys()}
    assert keys["stage2.optimizer.learning_rate", ""].default == "2e-06"
    assert keys["stage1.optimizer.learning_rate", ""].default == "1e-06"
    assert keys["experts.N.backend.error_rate", "worked"].default == "0.0"
    assert keys["experts.N.backend.base_url", "openai"].default == "required"
    assert keys["learner.zero_stage", ""].type == "0 | 1 | 2 | 3"
    assert keys["stage1.clip_epsilon", ""].type == "float > 0"


def test_no_key_is_near_to_nonsense() -> None:
    assert nearest_key(("qqqqqq",)) is None


def test_loading_a_recipe_imports_no_heavy_package(recipe: Path) -> None:
    code = (
        "import sys; from apprentice.config.load import load_config; load_config(sys.argv[1]); "
        "print(sorted({'torch', 'ray', 'vllm', 'transformers', 'numpy', 'deepspeed'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(recipe)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
