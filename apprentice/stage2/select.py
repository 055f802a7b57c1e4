"""Which verified trajectories become training data (RIVET, section 3.4): filter, rank, deduplicate, limit."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from apprentice.config.schema import Config
from apprentice.errors import DataError
from apprentice.stage2.convert import convert
from apprentice.stage2.filters import FILTERS
from apprentice.tokens import ChatCodec
from apprentice.trajectory import Trajectory

__all__ = ["SelectionReport", "select"]


@dataclass(slots=True)
class SelectionReport:
    """Counts of trajectories, by stage of the selection.

    ``dropped``: by the first rule that a trajectory breaks, in order. ``broken``: by every rule that it
    breaks (a trajectory may count several times), which shows what a rule does by itself.
    """

    sampled: int = 0
    problems_sampled: int = 0
    dropped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FILTERS, 0))
    broken: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FILTERS, 0))
    not_convertible: int = 0
    too_long: int = 0
    duplicates: int = 0
    over_problem_limit: int = 0
    over_total_limit: int = 0
    kept: int = 0
    problems_kept: int = 0
    kept_by_calls: dict[int, int] = field(default_factory=dict)
    not_convertible_reasons: dict[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """All counts, for JSON."""
        return asdict(self)

    def funnel(self) -> list[dict[str, Any]]:
        """``name`` and ``count`` of what is left after each step, from ``sampled`` to ``kept``."""
        left = self.sampled
        steps: list[dict[str, Any]] = [{"name": "sampled", "count": left}]
        for name, dropped in [
            *self.dropped.items(),
            ("convertible", self.not_convertible),
            ("fits the context", self.too_long),
            ("no duplicate", self.duplicates),
            ("fewest calls a problem", self.over_problem_limit),
            ("kept", self.over_total_limit),
        ]:
            left -= dropped
            steps.append({"name": name.replace("_", " "), "count": left})
        return steps


@dataclass(frozen=True, slots=True)
class _Candidate:
    trajectory: Trajectory
    text: str
    length: int

    @property
    def rank(self) -> tuple[int, int, str]:
        """Fewer calls first (section 3.4); then the shorter sequence, then the id, so the order is total."""
        return len(self.trajectory.calls), self.length, self.trajectory.trajectory_id


def select(
    trajectories: Sequence[Trajectory], codec: ChatCodec, config: Config
) -> tuple[list[Trajectory], SelectionReport]:
    """Trajectories for review and training, in the order of their problems, best first within a problem.

    1. Every rule of :data:`~apprentice.stage2.filters.FILTERS`.
    2. It converts to a Stage-II sequence of at most ``max_sequence_tokens``.
    3. Fewer calls are preferred, then shorter sequences.
    4. Two trajectories of a problem are duplicates when their Stage-II texts are equal but for white space:
       instructions are fixed there, so the same answers to differently worded requests are one trajectory.
       The first in the order of 3 stays.
    5. At most ``max_per_problem`` a problem; at most ``max_trajectories`` in all, taken in rounds (the best
       of every problem, then the second ones): a limit costs second trajectories before it costs problems.
    """
    limits = config.stage2
    report = SelectionReport(
        sampled=len(trajectories), problems_sampled=len({t.problem_id for t in trajectories})
    )
    by_problem: dict[str, list[_Candidate]] = defaultdict(list)
    for trajectory in trajectories:
        candidate = _candidate(trajectory, codec, config, report)
        if candidate is not None:
            by_problem[trajectory.problem_id].append(candidate)
    chosen = {problem: _best(found, limits.max_per_problem, report) for problem, found in by_problem.items()}
    kept = _in_rounds(chosen, limits.max_trajectories, report)
    report.kept = len(kept)
    report.problems_kept = len({t.problem_id for t in kept})
    report.kept_by_calls = dict(sorted(Counter(len(t.calls) for t in kept).items()))
    return kept, report


def _candidate(
    trajectory: Trajectory, codec: ChatCodec, config: Config, report: SelectionReport
) -> _Candidate | None:
    broken = [name for name, rule in FILTERS.items() if not rule(trajectory, codec, config)]
    for name in broken:
        report.broken[name] += 1
    if broken:
        report.dropped[broken[0]] += 1
        return None
    try:
        example = convert(trajectory, codec, config)
    except DataError as error:
        report.not_convertible += 1
        reason = str(error).partition("cannot be converted: ")[2] or str(error)
        report.not_convertible_reasons[reason] = report.not_convertible_reasons.get(reason, 0) + 1
        return None
    if len(example) > config.stage2.max_sequence_tokens:
        report.too_long += 1
        return None
    text = re.sub(r"\s+", " ", codec.decode(example.token_ids.tolist()))
    text = re.sub(r" ?(<\|im_(?:start|end)\|>) ?", r"\1", text)  # blank space at the ends of a turn
    return _Candidate(trajectory, text, len(example))


def _best(found: list[_Candidate], limit: int, report: SelectionReport) -> list[Trajectory]:
    distinct: dict[str, Trajectory] = {}
    for candidate in sorted(found, key=lambda c: c.rank):
        distinct.setdefault(candidate.text, candidate.trajectory)
    report.duplicates += len(found) - len(distinct)
    report.over_problem_limit += max(0, len(distinct) - limit)
    return list(distinct.values())[:limit]


def _in_rounds(
    chosen: dict[str, list[Trajectory]], limit: int | None, report: SelectionReport
) -> list[Trajectory]:
    total = sum(map(len, chosen.values()))
    if limit is None or total <= limit:
        return [t for found in chosen.values() for t in found]
    report.over_total_limit = total - limit
    rounds = max(map(len, chosen.values()))
    order = [(r, p) for r in range(rounds) for p, found in chosen.items() if r < len(found)][:limit]
    taken = Counter(problem for _, problem in order)
    return [t for problem, found in chosen.items() for t in found[: taken[problem]]]
