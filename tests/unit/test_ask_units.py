"""The units of a run of Learning to Ask: their order, their models, and what they refuse."""

from typing import Any

import pytest

from apprentice.config.schema import Config
from apprentice.errors import ConfigError
from driver.ask.run import learner_for
from driver.ask.training import _balanced_reward
from driver.ask.units import CONTROLLER, QMAKER, ask_units
from driver.plan import placement_plan
from tests.ask_trajectories import ask_call, ask_trajectory

pytestmark = pytest.mark.unit


def _config(*stages: str, budgets: tuple[int, ...] = (512, 1024), **ask: Any) -> Config:
    return Config.model_validate(
        {
            "name": "ask",
            "stages": stages,
            "controller": {"model": "random:32x1"},
            "data": {"train": {"name": "t", "source": "reasoning_gym", "families": {"chain_sum": {}}}},
            "rollout": {"num_gpus": 0},
            "learner": {"num_gpus": 0},
            "evaluation": {"modes": ["solo", "ask_qmaker"]},
            "ask": {
                "advisor": {"backend": {"kind": "arithmetic"}, "max_tokens": 99},
                "judge": {"kind": "rule"},
                "qmaker": {"budgets": budgets},
                **ask,
            },
        }
    )


ALL = ("ask_warmup", "ask_stage1", "ask_stage2", "ask_stage3", "evaluate")


def test_the_whole_pipeline_in_its_order() -> None:
    names = [unit.name for unit in ask_units(_config(*ALL, budgets=(512,)))]
    assert names == [
        "ask_warmup",
        "evaluate/start_solo",
        "evaluate/start_ask",
        "evaluate/llm_only",
        "evaluate/llm_capped_b512",
        "ask_solo",
        "ask_stage1",
        "evaluate/stage1_ask",
        "ask_states",
        "qmaker_warmup",
        "validate/qmaker_start_b512",
        "ask_stage2_b512",
        "validate/qmaker_b512",
        "evaluate/stage2_b512_ask_qmaker",
        "ask_stage3_b512",
        "evaluate/stage3_b512_ask_qmaker",
    ]


def test_with_the_privacy_term_qmaker_is_scored_without_it_first() -> None:
    private = _config(*ALL, qmaker={"budgets": (512,), "privacy": True})
    units = {unit.name: unit for unit in ask_units(private)}
    names = list(units)
    start = names.index("evaluate/qmaker_start_b512_ask_qmaker")
    assert names[start + 1] == "evaluate/stage2_b512_ask_qmaker"
    before, after = units[names[start]], units[names[start + 1]]
    assert (before.model, before.frozen) == ("ask_stage1", {"qmaker": "qmaker_warmup"})
    assert (after.model, after.frozen) == ("ask_stage1", {"qmaker": "ask_stage2_b512"})


def test_every_budget_has_its_own_qmaker_and_its_own_reasoner() -> None:
    units = {unit.name: unit for unit in ask_units(_config(*ALL))}
    for budget in (512, 1024):
        second, third = units[f"ask_stage2_b{budget}"], units[f"ask_stage3_b{budget}"]
        assert (second.model, second.frozen) == ("qmaker_warmup", {"reasoner": "ask_stage1"})
        assert (third.model, third.frozen) == ("ask_stage1", {"qmaker": f"ask_stage2_b{budget}"})
        assert second.budget == third.budget == budget
        scored = units[f"evaluate/stage3_b{budget}_ask_qmaker"]
        assert (scored.model, scored.frozen) == (f"ask_stage3_b{budget}", {"qmaker": f"ask_stage2_b{budget}"})


def test_a_unit_refers_only_to_stages_that_come_before_it() -> None:
    known = {CONTROLLER, QMAKER}
    for unit in ask_units(_config(*ALL)):
        assert {unit.model, *unit.frozen.values()} <= known, unit
        if unit.learns:
            known.add(unit.name)


def test_without_a_warmup_both_models_begin_as_the_recipe_says() -> None:
    units = {unit.name: unit for unit in ask_units(_config("ask_stage1", "ask_stage2"))}
    assert units["ask_stage1"].model == CONTROLLER
    assert units["ask_stage2_b512"].model == QMAKER
    assert not any(name.startswith("evaluate") for name in units)


@pytest.mark.parametrize(
    ("stages", "missing"), [(("ask_stage2",), "ask_stage1"), (("ask_stage1", "ask_stage3"), "ask_stage2")]
)
def test_a_stage_without_the_one_below_it_is_refused(stages: tuple[str, ...], missing: str) -> None:
    with pytest.raises(ConfigError, match=f"builds on {missing}"):
        ask_units(_config(*stages))


def test_evaluation_alone_takes_the_weights_of_the_recipe() -> None:
    units = ask_units(_config("evaluate"))
    assert [(u.name, u.model, u.mode, u.frozen) for u in units] == [
        ("evaluate/solo", CONTROLLER, "solo", {}),
        ("evaluate/ask_qmaker", CONTROLLER, "ask_qmaker", {"qmaker": QMAKER}),
    ]


def test_stages_and_parts_of_a_recipe_must_fit() -> None:
    with pytest.raises(ValueError, match="stage1 does not go with an ask part"):
        _config("stage1", "evaluate")
    recipe = _config("ask_stage1").model_dump()
    with pytest.raises(ValueError, match="ask_stage1 needs an advisor"):
        Config.model_validate({**recipe, "ask": None})
    with pytest.raises(ValueError, match="16 of 16 samples would send every problem"):
        _config("ask_stage1", solo={"gamma": 16})


def test_the_plan_has_room_for_the_advisor_and_the_frozen_model() -> None:
    roles = [actor.role for actor in placement_plan(_config(*ALL)).actors]
    assert roles == ["learner", "rollout", "advisor", "frozen", "sandbox"]
    roles = [actor.role for actor in placement_plan(_config("ask_stage1")).actors]
    assert "frozen" in roles  # evaluation.modes names ask_qmaker
    assert "learner" not in [actor.role for actor in placement_plan(_config("evaluate")).actors]


def test_models_that_a_stage_is_about_to_train_start_with_a_learner() -> None:
    units = ask_units(_config(*ALL, budgets=(512,)))
    soon = {
        unit.name: found and found.name for i, unit in enumerate(units) for found in [learner_for(units[i:])]
    }
    assert soon["validate/qmaker_start_b512"] == "ask_stage2_b512"
    assert soon["evaluate/stage2_b512_ask_qmaker"] == "ask_stage3_b512"
    assert soon["ask_solo"] == "ask_stage1"
    assert soon["evaluate/stage1_ask"] is None  # the next stage trains another model
    assert soon["evaluate/stage3_b512_ask_qmaker"] is None


def test_a_policy_that_always_asks_gains_nothing_where_most_problems_need_it() -> None:
    needs = {"a": True, "b": True, "c": True, "d": False}
    always = [ask_trajectory(name, calls=[ask_call()]) for name in needs]
    assert _balanced_reward(always, needs) == 0.5  # 3 of 4 without the balance
    right = [ask_trajectory(name, calls=[ask_call()] if needed else []) for name, needed in needs.items()]
    assert _balanced_reward(right, needs) == 1.0
    assert _balanced_reward(always[:3], needs) == 1.0  # one class alone
