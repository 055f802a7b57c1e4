"""Number formats by what the CPU computes in hardware."""

from pathlib import Path

import pytest

from apprentice.config.load import load_config
from apprentice.hardware import cpu_has_bfloat16, with_dtypes

pytestmark = pytest.mark.unit

_DEMO = Path(__file__).parents[2] / "configs" / "demo.yaml"


@pytest.mark.parametrize(
    ("cpuinfo", "has"),
    [
        ("processor : 0\nflags\t\t: fpu avx2 avx512f avx512_bf16\n", True),
        ("processor : 0\nflags\t\t: fpu avx2 amx_bf16 amx_tile\n", True),
        ("processor : 0\nflags\t\t: fpu avx avx2 fma\n", False),
        ("processor : 0\nFeatures\t: fp asimd bf16 i8mm\n", True),
        ("processor : 0\nFeatures\t: fp asimd\n", False),
        ("bugs : bf16\n", False),
        ("", False),
    ],
)
def test_the_flags_of_the_cpu_decide(cpuinfo: str, has: bool) -> None:
    assert cpu_has_bfloat16(cpuinfo) is has


def test_auto_becomes_what_the_machine_is_fast_at() -> None:
    config = load_config(_DEMO, ["learner.dtype=auto", "rollout.dtype=auto"])
    slow, fast = with_dtypes(config, has_bfloat16=False), with_dtypes(config, has_bfloat16=True)
    assert (slow.learner.dtype, slow.rollout.dtype) == ("float32", "float32")
    assert (fast.learner.dtype, fast.rollout.dtype) == ("bfloat16", "bfloat16")


def test_on_gpus_a_learner_takes_bfloat16_and_an_engine_its_checkpoint() -> None:
    config = load_config(_DEMO, ["learner.dtype=auto", "rollout.dtype=auto"])
    gpus = {"num_gpus": 1.0}
    config = config.model_copy(
        update={
            "learner": config.learner.model_copy(update=gpus),
            "rollout": config.rollout.model_copy(update=gpus),
        }
    )
    decided = with_dtypes(config, has_bfloat16=False)
    assert (decided.learner.dtype, decided.rollout.dtype) == ("bfloat16", "auto")


def test_what_a_recipe_says_stays() -> None:
    config = load_config(_DEMO, ["learner.dtype=bfloat16", "rollout.dtype=float16"])
    decided = with_dtypes(config, has_bfloat16=False)
    assert (decided.learner.dtype, decided.rollout.dtype) == ("bfloat16", "float16")
