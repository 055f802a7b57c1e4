"""A run of Learning to Ask while it goes on: its data, its advisor, and the fleet of the current unit."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from apprentice.config.parts import OptimizerConfig
from apprentice.config.schema import Config
from apprentice.data.problem import Problem
from apprentice.errors import DataError
from apprentice.models import resolve_model
from apprentice.rollout.ports import AdvisorClient, QueryJudge, Verdict
from apprentice.tokens.codec import ChatCodec
from driver.ask.units import CONTROLLER, QMAKER, Unit
from driver.context import Run
from driver.fleet import Fleet
from driver.spawn import problem_verifier, spawn_fleet

__all__ = ["SELECTED_FILE", "AskSession"]

_log = logging.getLogger(__name__)

SELECTED_FILE = "ask/selected.json"
"""Stage -> step of the checkpoint that validation selected."""


@dataclass(slots=True)
class AskSession:
    """``train`` and ``validation`` are the two parts of the training set; ``everything`` adds the test sets.

    ``run.config`` is the current unit's: a budget's units have its response cap.
    """

    run: Run
    recipe: Config
    train: list[Problem]
    validation: list[Problem]
    everything: list[Problem]
    advisor: AdvisorClient
    judge: QueryJudge
    selected: dict[str, int] = field(default_factory=dict)
    _serves: tuple[Any, ...] = ()

    # ---- weights ----

    def weights(self, reference: str) -> str:
        """Folder or hub id of what a unit refers to.

        Raises:
            DataError: the checkpoint of a finished stage is missing or damaged.
        """
        assert self.recipe.ask is not None
        if reference == CONTROLLER or (reference == QMAKER and self.recipe.ask.qmaker.model is None):
            controller = self.recipe.controller
            return _located(resolve_model(controller.model, controller.revision))
        if reference == QMAKER:
            return _located(resolve_model(str(self.recipe.ask.qmaker.model)))
        found = self.run.folder.checkpoint_at(reference, self.selected[reference])
        if found is None:
            raise DataError(
                f"{self.run.folder.path}: {reference} is completed but its checkpoint at step "
                f"{self.selected[reference]} is missing or damaged; restore it, or start a new run"
            )
        return str(found.path.absolute())

    def select(self, stage: str, step: int, *, serving: bool) -> None:
        """Later units use this checkpoint of a stage. ``serving``: the fleet has its weights now."""
        self.selected[stage] = step
        self.run.folder.write_json(SELECTED_FILE, self.selected)
        # A fleet whose weights are no unit's starting point is not used again.
        self._serves = (self.weights(stage), *self._serves[1:]) if serving and self._serves else ()

    # ---- fleets ----

    def enter(self, unit: Unit, optimizer: OptimizerConfig | None, *, start: str | None = None) -> None:
        """Have a fleet for ``unit``: the one that is there if it serves these models, else a new one.

        Args:
            optimizer: of a unit that learns.
            start: weights to begin with instead of the unit's own (to go on within a stage).
        """
        model = start or self.weights(unit.model)
        scope = f"{unit.name}/"  # the ledger knows a call by its trajectory: one name, one trajectory
        frozen = {name: self.weights(reference) for name, reference in unit.frozen.items()}
        self.run.config = self._config(unit)
        cap = self.run.config.ask.advisor.max_tokens if self.run.config.ask else 0
        # A baseline plays no episode, so its budget needs no fleet of its own.
        capped = unit.budget is not None and unit.kind != "baseline"
        wanted = (model, tuple(sorted(frozen.items())), cap if capped else None)
        if self._serves and wanted == self._serves and (not unit.learns or self.run.fleet.learners):
            self.run.fleet.scope = scope
            return
        self.leave()
        _log.info("%s: models start", unit.name)
        self.run.codec = self._codec(model)
        self.run.fleet = spawn_fleet(
            self.run.config,
            model,
            self.everything,
            optimizer=optimizer,
            frozen=frozen,
            advisor=self.advisor,
            judge=self.judge,
            beat=self.run.watchdog.beat,
        )
        self.run.fleet.scope = scope
        self._serves = wanted

    def leave(self) -> None:
        """End the current fleet, if there is one."""
        self.run.fleet.stop()
        self.run.fleet, self._serves = Fleet(config=self.recipe), ()

    def _config(self, unit: Unit) -> Config:
        """The recipe, with the unit's budget as the cap of the advisor's answers."""
        ask = self.recipe.ask
        if unit.budget is None or ask is None:
            return self.recipe
        advisor = ask.advisor.model_copy(update={"max_tokens": unit.budget})
        return self.recipe.model_copy(update={"ask": ask.model_copy(update={"advisor": advisor})})

    def codec(self, reference: str) -> ChatCodec:
        """Tokenizer and template of what a unit refers to."""
        return self._codec(self.weights(reference))

    def _codec(self, model: str) -> ChatCodec:
        controller = self.recipe.controller
        return ChatCodec.from_pretrained(model, template_kwargs=dict(controller.template_kwargs))

    # ---- small things ----

    def verifier(self) -> Callable[[Problem, str], Awaitable[Verdict]]:
        """Judges a response to a problem in this process, as the rollout actors judge theirs."""
        judge = problem_verifier(self.run.config, self.run.fleet.python)

        async def verify(problem: Problem, response: str) -> Verdict:
            return await judge.verify(response, problem)

        return verify

    def learning_problems(self) -> Sequence[Problem]:
        """Training and validation problems."""
        return [*self.train, *self.validation]


def _located(model: Path | str) -> str:
    return str(model.absolute()) if isinstance(model, Path) else model
