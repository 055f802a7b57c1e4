"""A problem with an exact answer."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Problem", "WorkedSolution"]


@dataclass(frozen=True, slots=True)
class WorkedSolution:
    """What a ``worked`` expert answers from: a derivation in prose, and a program that prints the answer."""

    derivation: str
    program: str


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a set.

    ``problem_id`` is unique in its set; ``family`` groups problems in reports (e.g. ``gcd``);
    ``answer`` is the gold exactly as the source gives it.
    """

    problem_id: str
    question: str
    answer: str
    family: str = ""
    source: str = ""
    split: str = ""
    worked: WorkedSolution | None = None
    metadata: dict[str, str] = field(default_factory=dict)
