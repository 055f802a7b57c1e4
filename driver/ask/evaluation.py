"""Scores the models of a unit on the test sets, and keeps what the analyses of asking read."""

from __future__ import annotations

from driver.ask.session import AskSession
from driver.ask.units import Unit
from driver.evaluation import evaluate_mode

__all__ = ["EVALUATION_FILE", "evaluate_unit"]

EVALUATION_FILE = "ask/evaluation.json"
"""One row a label and set: ``label``, ``mode``, ``budget``, ``set``."""


def evaluate_unit(session: AskSession, unit: Unit) -> None:
    """Evaluate on every test set under the unit's label; resumes where it was interrupted."""
    run = session.run
    label = unit.name.removeprefix("evaluate/")
    weights = {unit.model: session.weights(unit.model)}
    weights |= {name: session.weights(reference) for name, reference in unit.frozen.items()}
    evaluate_mode(run, unit.mode, label=label, resume=True, weights=weights)
    rows = [row for row in run.folder.read_json(EVALUATION_FILE) or [] if row["label"] != label]
    rows += [
        {"label": label, "mode": unit.mode, "budget": unit.budget, "set": problem_set.name}
        for problem_set in run.config.data.test
    ]
    run.folder.write_json(EVALUATION_FILE, rows)
