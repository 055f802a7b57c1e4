"""Scores the models of a unit on the test sets, and keeps what the analyses of asking read."""

from __future__ import annotations

from apprentice.metrics.ask_run import add_evaluation
from driver.ask.session import AskSession
from driver.ask.units import Unit
from driver.evaluation import evaluate_mode

__all__ = ["evaluate_unit"]


def evaluate_unit(session: AskSession, unit: Unit) -> None:
    """Evaluate on every test set under the unit's label; resumes where it was interrupted."""
    run = session.run
    label = unit.name.removeprefix("evaluate/")
    weights = {unit.model: session.weights(unit.model)}
    weights |= {name: session.weights(reference) for name, reference in unit.frozen.items()}
    evaluate_mode(run, unit.mode, label=label, resume=True, weights=weights)
    names = [problem_set.name for problem_set in run.config.data.test]
    add_evaluation(run.folder, label, unit.mode, unit.budget, names)
