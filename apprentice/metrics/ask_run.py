"""What a run of Learning to Ask keeps for its analyses, and how it is read.

=============================================  ==========================================================
file                                           what
=============================================  ==========================================================
``ask/evaluation.json``                        list of ``{label, mode, budget, set}``
``trajectories/evaluate_<label>/<set>.parquet`` the trajectories of one of them
``ask/solo.json``                              ``{k, gamma, successes: {problem id: n}}`` of training problems
``ask/secrets.json``                           what was planted: ``{problem id: {spans, template, entity}}``
``trajectories/validate_qmaker_*``             Qmaker on held-out states: ``start_b<b>`` untrained, ``b<b>``
=============================================  ==========================================================
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from apprentice.data.problem import Problem
from apprentice.data.secrets import secrets_of
from apprentice.errors import ConfigError, DataError
from apprentice.metrics.ask import Attempt, attempts, grouped
from apprentice.run_folder import RunFolder
from apprentice.trajectory import Trajectory, read_parquet

__all__ = [
    "EVALUATION_FILE", "SECRETS_FILE", "SOLO_LABEL", "Evaluation", "Planted", "QmakerValidation",
    "add_evaluation", "read_evaluations", "read_planted", "read_qmaker_validations", "read_solo", "select",
    "write_planted",
]  # fmt: skip

EVALUATION_FILE = "ask/evaluation.json"
SECRETS_FILE = "ask/secrets.json"
SOLO_FILE = "ask/solo.json"
SOLO_LABEL = "start_solo"
"""The reasoner at the start without the advisor: standalone success on held-out problems."""

_QMAKER = re.compile(r"^validate_qmaker_(start_)?b(\d+)$")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One model in one mode on one set. ``budget``: b, None without one."""

    label: str
    mode: str
    budget: int | None
    set_name: str
    trajectories: tuple[Trajectory, ...]

    @property
    def attempts(self) -> list[Attempt]:
        """The facts of the trajectories that can be scored."""
        return attempts(self.trajectories)


@dataclass(frozen=True, slots=True)
class Planted:
    """A secret in a problem."""

    spans: tuple[str, ...]
    template: str
    entity: str


@dataclass(frozen=True, slots=True)
class QmakerValidation:
    """Qmaker of one budget on the held-out states. ``trained``: after stage 2, else before."""

    budget: int
    trained: bool
    trajectories: tuple[Trajectory, ...]


def read_evaluations(run: RunFolder) -> list[Evaluation]:
    """Every evaluation of the run with its trajectories, in the order in which they were made.

    Raises:
        ConfigError: the run has none.
        DataError: the trajectories of one are missing, or a file is broken.
    """
    rows = run.read_json(EVALUATION_FILE)
    if not rows:
        raise ConfigError(
            f"{run.path} has no evaluation of Learning to Ask ({EVALUATION_FILE} is missing or empty): train "
            "a recipe with an `ask` part and `evaluate` among its stages, or evaluate one"
        )
    found = []
    for row in rows:
        path = run.trajectory_path(f"evaluate_{row['label']}", row["set"])
        if not path.is_file():
            raise DataError(
                f"{run.path / EVALUATION_FILE} lists {row['label']} on {row['set']}, and {path} is missing"
            )
        budget = None if row["budget"] is None else int(row["budget"])
        found.append(Evaluation(row["label"], row["mode"], budget, row["set"], tuple(read_parquet(path))))
    return found


def select(found: Sequence[Evaluation], label: str) -> Evaluation:
    """The evaluation of this label; of several sets together.

    Raises:
        ConfigError: there is none.
    """
    mine = [one for one in found if one.label == label]
    if not mine:
        names = ", ".join(dict.fromkeys(one.label for one in found))
        raise ConfigError(f"there is no evaluation {label!r}; there are {names}")
    if len(mine) == 1:
        return mine[0]
    together = tuple(t for one in mine for t in one.trajectories)
    return Evaluation(label, mine[0].mode, mine[0].budget, "all sets", together)


def add_evaluation(run: RunFolder, label: str, mode: str, budget: int | None, sets: Iterable[str]) -> None:
    """Add an evaluation's rows to :data:`EVALUATION_FILE`, instead of those of the same label."""
    rows = [row for row in run.read_json(EVALUATION_FILE) or [] if row["label"] != label]
    rows += [{"label": label, "mode": mode, "budget": budget, "set": name} for name in sets]
    run.write_json(EVALUATION_FILE, rows)


def read_solo(run: RunFolder, found: Sequence[Evaluation], label: str = SOLO_LABEL) -> dict[str, float]:
    """Standalone success (Eq. 5) by problem id.

    Of the problems in the evaluation ``label``, and of training problems by ``ask/solo.json``; the first
    counts where both have a problem.

    Raises:
        ConfigError: the run has neither.
    """
    kept: Mapping[str, object] = run.read_json(SOLO_FILE) or {}
    solo: dict[str, float] = {}
    if kept:
        k = int(str(kept["k"]))
        solo |= {name: int(n) / k for name, n in dict(kept["successes"]).items()}  # type: ignore[call-overload]
    for one in found:
        if one.label == label:
            groups = grouped(one.attempts)
            solo |= {name: sum(a.correct for a in rows) / len(rows) for name, rows in groups.items()}
    if not solo:
        raise ConfigError(
            f"{run.path} has no standalone success: neither {SOLO_FILE} nor an evaluation {label!r}; "
            "evaluate the recipe in mode `solo`"
        )
    return solo


def read_qmaker_validations(run: RunFolder) -> list[QmakerValidation]:
    """Qmaker on held-out states, by budget, untrained before trained; empty when the run has no stage 2."""
    found = []
    for folder in (run.path / "trajectories").glob("validate_qmaker_*"):
        match = _QMAKER.match(folder.name)
        if match and any(folder.glob("*.parquet")):
            found.append(QmakerValidation(int(match[2]), match[1] is None, tuple(read_parquet(folder))))
    return sorted(found, key=lambda one: (one.budget, one.trained))


def write_planted(run: RunFolder, problems: Iterable[Problem]) -> None:
    """Keep what was planted into these problems, beside what the file has of others."""
    rows = dict(run.read_json(SECRETS_FILE) or {})
    for problem in problems:
        if spans := secrets_of(problem):
            rows[problem.problem_id] = {
                "spans": list(spans),
                "template": problem.metadata.get("secret_template", ""),
                "entity": problem.metadata.get("secret_entity", ""),
            }
    run.write_json(SECRETS_FILE, rows, redact=False)  # made up, and looked for in queries as they are


def read_planted(run: RunFolder) -> dict[str, Planted]:
    """What was planted, by problem id; empty when nothing was."""
    rows: Mapping[str, Mapping[str, object]] = run.read_json(SECRETS_FILE) or {}
    return {
        name: Planted(tuple(map(str, row["spans"])), str(row["template"]), str(row["entity"]))  # type: ignore[call-overload]
        for name, row in rows.items()
    }
