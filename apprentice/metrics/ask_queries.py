"""How the advisor is asked: query types, complete queries within budget, code before the call."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from apprentice.advisors.judge import QueryType
from apprentice.ask.signals import reply_tokens
from apprentice.errors import DataError
from apprentice.metrics.ask import ASK_TOOL, attempts, grouped, share_over_problems
from apprentice.metrics.ask_run import Evaluation
from apprentice.metrics.resample import DEFAULT, Interval, Resampling
from apprentice.run_folder import RunFolder
from apprentice.trajectory import Owner, Status, Trajectory

__all__ = [
    "QUERY_TYPES_FILE", "QmakerScore", "Query", "TypedQueries", "code_before_call", "score_qmaker",
    "sent_queries", "type_counts", "typed_queries",
]  # fmt: skip

QUERY_TYPES_FILE = "ask/query_types.jsonl"
"""One line a judged query: ``label``, ``set``, ``trajectory_id``, ``call``, ``model``, ``type``."""

Key = tuple[str, str, str, int]
"""(label, set, trajectory id, index of the call)"""


@dataclass(frozen=True, slots=True)
class Query:
    """A query that reached the advisor. ``call``: its index among the trajectory's calls."""

    label: str
    set_name: str
    trajectory_id: str
    problem_id: str
    call: int
    text: str

    @property
    def key(self) -> Key:
        """What names it in :data:`QUERY_TYPES_FILE`."""
        return self.label, self.set_name, self.trajectory_id, self.call


def sent_queries(found: Sequence[Evaluation]) -> list[Query]:
    """Every query that these evaluations sent, in order."""
    return [
        Query(one.label, one.set_name, t.trajectory_id, t.problem_id, index, call.instruction)
        for one in found
        for t in one.trajectories
        if t.status is not Status.UNUSABLE
        for index, call in enumerate(t.calls)
        if call.tool == ASK_TOOL and not call.error
    ]


def typed_queries(run: RunFolder, model: str | None = None) -> dict[Key, QueryType]:
    """The types that judges gave, those of ``model`` alone if it is named; later lines win.

    Raises:
        DataError: a line is damaged.
    """
    path = run.path / QUERY_TYPES_FILE
    return {key: kind for key, judge, kind in _lines(path) if model in (None, judge)}


@dataclass(frozen=True, slots=True)
class TypedQueries:
    """Query types of one evaluation (Figures 2d, 5c, 5d). ``shares`` are of the judged; empty without any."""

    label: str
    set_name: str
    budget: int | None
    queries: int
    judged: int
    counts: Mapping[QueryType, int]

    @property
    def shares(self) -> dict[QueryType, float]:
        """Share of each type among the judged queries."""
        return {kind: count / self.judged for kind, count in self.counts.items()} if self.judged else {}


def type_counts(found: Sequence[Evaluation], typed: Mapping[Key, QueryType]) -> list[TypedQueries]:
    """Query types by evaluation; evaluations that sent nothing are left out."""
    out = []
    for one in found:
        queries = sent_queries([one])
        kinds = [typed[query.key] for query in queries if query.key in typed]
        if queries:
            counts = {kind: kinds.count(kind) for kind in QueryType}
            out.append(TypedQueries(one.label, one.set_name, one.budget, len(queries), len(kinds), counts))
    return out


@dataclass(frozen=True, slots=True)
class QmakerScore:
    """Qmaker on states (mode ``qmaker``): shares over states, each with its interval over problems.

    ``complete``: G = 1; ``within``: ``|z| < b``; ``both``: complete and within budget; ``reward``: R_Q of
    Eq. 9. ``unknown`` counts trajectories whose |z| nobody reported: they are in ``complete`` alone.
    """

    complete: Interval
    within: Interval
    both: Interval
    reward: Interval
    trajectories: int
    unknown: int


def score_qmaker(trajectories: Sequence[Trajectory], how: Resampling = DEFAULT) -> QmakerScore:
    """Complete queries within budget, from the tags of stage 2's trajectories.

    A trajectory without a call (its query has no request) is neither complete nor within budget.
    """
    rows: dict[str, list[tuple[bool, bool | None, bool]]] = {}
    usable = [t for t in trajectories if t.status is not Status.UNUSABLE]
    for t in usable:
        tokens, sent = reply_tokens(t), any(c.tool == ASK_TOOL and not c.error for c in t.calls)
        within = (None if sent else False) if tokens is None else tokens < int(t.tags["budget"])
        problem = t.tags.get("base_id", t.problem_id)
        row = (t.tags.get("complete") == "1", within, t.verdict == "correct")
        rows.setdefault(problem, []).append(row)
    known = [[row for row in members if row[1] is not None] for members in rows.values()]
    known = [members for members in known if members]
    return QmakerScore(
        complete=share_over_problems([[c for c, _, _ in m] for m in rows.values()], how),
        within=share_over_problems([[bool(w) for _, w, _ in m] for m in known], how),
        both=share_over_problems([[c and bool(w) for c, w, _ in m] for m in known], how),
        reward=share_over_problems([[c and bool(w) and r for c, w, r in m] for m in known], how),
        trajectories=len(usable),
        unknown=sum(row[1] is None for members in rows.values() for row in members),
    )


def code_before_call(
    trajectories: Sequence[Trajectory],
    decode: Callable[[Sequence[int]], str],
    how: Resampling = DEFAULT,
) -> Interval:
    """Share of calling trajectories that wrote a code block before their call (Figure 7d).

    Args:
        decode: text of token ids. What counts is a code fence among the generated tokens before the call.
    """
    flags: dict[str, list[bool]] = {}
    by_id = {t.trajectory_id: t for t in trajectories}
    for problem, members in grouped(attempts(trajectories)).items():
        for one in members:
            if one.called and one.sent[0].position >= 0:
                before = _generated(by_id[one.trajectory_id], one.sent[0].position)
                flags.setdefault(problem, []).append("```" in decode(before))
    return share_over_problems(list(flags.values()), how)


def _generated(trajectory: Trajectory, position: int) -> list[int]:
    own = np.asarray(trajectory.owner[:position]) == int(Owner.CONTROLLER)
    return [int(i) for i in trajectory.token_ids[:position][own]]


def _lines(path: Path) -> list[tuple[Key, str, QueryType]]:
    if not path.is_file():
        return []
    found = []
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines[:-1], 1):  # what follows the last line end was cut off amid a write
        try:
            row = json.loads(line)
            key = (str(row["label"]), str(row["set"]), str(row["trajectory_id"]), int(row["call"]))
            found.append((key, str(row["model"]), QueryType(row["type"])))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}, line {number}: not a judged query ({error})") from error
    return found
