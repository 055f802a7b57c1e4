"""What a run of Learning to Ask does, in order, and which models each part needs.

========================  ====================  =====================  ======================================
unit                      trained or asked      frozen                 leaves
========================  ====================  =====================  ======================================
ask_warmup                controller            -                      checkpoint ``ask_warmup``
evaluate/start_solo       reasoner at start     -                      results
evaluate/start_ask        reasoner at start     -                      results
evaluate/llm_only         (the advisor alone)   -                      results; ``llm_capped_b`` for every b
ask_solo                  reasoner at start     -                      ``ask/solo.json``: p_SLM (Eq. 5)
ask_stage1                reasoner at start     -                      checkpoint ``ask_stage1``
evaluate/stage1_ask       reasoner of stage 1   -                      results
ask_states                reasoner of stage 1   -                      ``ask/states``: h_tau
qmaker_warmup             Qmaker's model, or    -                      checkpoint ``qmaker_warmup``
                          that of ask_warmup
for every budget b:
validate/qmaker_start_b   Qmaker at start       reasoner of stage 1    trajectories on held-out states
ask_stage2_b              Qmaker at start       reasoner of stage 1    checkpoint ``ask_stage2_b``
validate/qmaker_b         Qmaker of b           reasoner of stage 1    trajectories on held-out states
evaluate/qmaker_start_b   reasoner of stage 1   Qmaker at start        results (with ask.qmaker.privacy)
evaluate/stage2_b         reasoner of stage 1   Qmaker of b            results
ask_stage3_b              reasoner of stage 1   Qmaker of b            checkpoint ``ask_stage3_b``
evaluate/stage3_b         reasoner of stage 3   Qmaker of b            results
========================  ====================  =====================  ======================================

A recipe whose only stage is ``evaluate`` scores ``controller.model`` (and ``ask.qmaker.model``) as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from apprentice.config.schema import Config
from apprentice.errors import ConfigError

__all__ = ["CONTROLLER", "QMAKER", "Kind", "Unit", "ask_units"]

CONTROLLER, QMAKER = "controller", "qmaker"
"""Weights that a recipe names; every other reference is a stage, whose selected checkpoint is meant."""

Kind = Literal["warmup", "evaluate", "baseline", "solo", "states", "stage1", "stage2", "stage3", "validate"]


@dataclass(frozen=True, slots=True)
class Unit:
    """One part of a run.

    Args:
        name: in ``state.json``, logs and folders.
        model: weights that the rollout actors begin with: CONTROLLER, QMAKER, or a stage.
        frozen: port name -> weights that are asked but not trained.
        learns: whether it needs a learner.
        mode: of its episodes.
        budget: b, the response cap; None: the recipe's ``ask.advisor.max_tokens``.
    """

    name: str
    kind: Kind
    model: str
    mode: str = ""
    frozen: dict[str, str] = field(default_factory=dict)
    learns: bool = False
    budget: int | None = None


def ask_units(config: Config) -> list[Unit]:
    """The units of a recipe.

    Raises:
        ConfigError: a stage lacks the one that it builds on.
    """
    assert config.ask is not None
    stages = config.stages
    if stages == ("evaluate",):
        return _as_they_are(config)
    for stage, needs in (("ask_stage2", "ask_stage1"), ("ask_stage3", "ask_stage2")):
        if stage in stages and needs not in stages:
            raise ConfigError(f"stages: {stage} builds on {needs}, which is not among {', '.join(stages)}")
    scored = "evaluate" in stages
    start = "ask_warmup" if "ask_warmup" in stages else CONTROLLER
    units = [Unit("ask_warmup", "warmup", CONTROLLER, learns=True)] if start == "ask_warmup" else []
    if scored:
        units += [
            Unit("evaluate/start_solo", "evaluate", start, "solo"),
            Unit("evaluate/start_ask", "evaluate", start, "ask"),
            Unit("evaluate/llm_only", "baseline", start, "llm_only"),
        ]
        for budget in config.ask.qmaker.budgets:
            label = f"evaluate/llm_capped_b{budget}"
            units.append(Unit(label, "baseline", start, "llm_capped", budget=budget))
    if "ask_stage1" in stages:
        units += [
            Unit("ask_solo", "solo", start, "solo"),
            Unit("ask_stage1", "stage1", start, "ask_stop", learns=True),
        ]
        if scored:
            units.append(Unit("evaluate/stage1_ask", "evaluate", "ask_stage1", "ask"))
    if "ask_stage2" in stages:
        units += _stage2(config, "qmaker_warmup" if "ask_warmup" in stages else QMAKER, scored)
    if "ask_stage3" in stages:
        for budget in config.ask.qmaker.budgets:
            frozen = {"qmaker": f"ask_stage2_b{budget}"}
            name = f"ask_stage3_b{budget}"
            units.append(Unit(name, "stage3", "ask_stage1", "ask_qmaker", frozen, True, budget))
            if scored:
                label = f"evaluate/stage3_b{budget}_ask_qmaker"
                units.append(Unit(label, "evaluate", name, "ask_qmaker", frozen, budget=budget))
    return units


def _stage2(config: Config, start: str, scored: bool) -> list[Unit]:
    assert config.ask is not None
    reasoner = {"reasoner": "ask_stage1"}
    units = [Unit("ask_states", "states", "ask_stage1", "ask_stop")]
    if start == "qmaker_warmup":
        # Without a model of its own Qmaker begins as the reasoner does, warmed up.
        base = "ask_warmup" if config.ask.qmaker.model is None else QMAKER
        units.append(Unit("qmaker_warmup", "warmup", base, learns=True))
    for budget in config.ask.qmaker.budgets:
        name = f"ask_stage2_b{budget}"
        units += [
            Unit(f"validate/qmaker_start_b{budget}", "validate", start, "qmaker", reasoner, budget=budget),
            Unit(name, "stage2", start, "qmaker", reasoner, True, budget),
            Unit(f"validate/qmaker_b{budget}", "validate", name, "qmaker", reasoner, budget=budget),
        ]
    if scored:
        for budget in config.ask.qmaker.budgets:
            pairs = [("stage2", f"ask_stage2_b{budget}")]
            if config.ask.qmaker.privacy:  # what G_safe changed shows only beside a Qmaker without it
                pairs.insert(0, ("qmaker_start", start))
            for name, qmaker in pairs:
                label, frozen = f"evaluate/{name}_b{budget}_ask_qmaker", {"qmaker": qmaker}
                units.append(Unit(label, "evaluate", "ask_stage1", "ask_qmaker", frozen, budget=budget))
    return units


def _as_they_are(config: Config) -> list[Unit]:
    """Evaluation alone: of the weights that the recipe names, in the modes that it lists."""
    assert config.ask is not None
    units = []
    for mode in config.evaluation.modes:
        frozen = {"qmaker": QMAKER} if mode == "ask_qmaker" else {}
        units.append(Unit(f"evaluate/{mode}", "evaluate", CONTROLLER, mode, frozen))
    return units
