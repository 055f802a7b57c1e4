"""Whether training problems stand in the test sets: exact copies, and copies with other numbers."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from apprentice.data.problem import Problem
from apprentice.data.text import question_key

__all__ = ["Contamination", "NearCopy", "find_contamination"]


@dataclass(frozen=True, slots=True)
class NearCopy:
    """A training problem that shares ``share`` of the test problem's n-grams, numbers aside."""

    train_id: str
    test_id: str
    share: float


@dataclass(frozen=True, slots=True)
class Contamination:
    """Exact copies as (training id, test id), and near copies, most alike first."""

    exact: tuple[tuple[str, str], ...]
    near: tuple[NearCopy, ...]


def find_contamination(
    train: Sequence[Problem], test: Sequence[Problem], n: int = 10, min_share: float = 0.5
) -> Contamination:
    """Compare every training problem with every test problem by their word n-grams.

    Numbers are masked, so that a problem whose numbers were swapped is found. An n-gram of several test
    problems (``relatively prime positive integers find``) says nothing of one of them and is left out.

    Args:
        train: problems to be trained on.
        test: problems to be scored on.
        n: words of an n-gram.
        min_share: share of a test problem's own n-grams that a near copy has.
    """
    by_key = defaultdict(list)
    for problem in test:
        by_key[question_key(problem.question)].append(problem.problem_id)
    owners: dict[tuple[str, ...], str] = {}
    shared: set[tuple[str, ...]] = set()
    sizes: Counter[str] = Counter()
    for problem in test:
        for gram in _grams(problem.question, n):
            if owners.setdefault(gram, problem.problem_id) != problem.problem_id:
                shared.add(gram)
    for gram, owner in owners.items():
        sizes[owner] += gram not in shared
    exact: list[tuple[str, str]] = []
    near: list[NearCopy] = []
    for problem in train:
        copies = by_key.get(question_key(problem.question), [])
        exact.extend((problem.problem_id, test_id) for test_id in copies)
        hits = Counter(owners[g] for g in _grams(problem.question, n) if g in owners and g not in shared)
        for test_id, count in hits.items():
            share = count / sizes[test_id]
            if share >= min_share and test_id not in copies:
                near.append(NearCopy(problem.problem_id, test_id, share))
    return Contamination(tuple(exact), tuple(sorted(near, key=lambda c: (-c.share, c.train_id, c.test_id))))


def _grams(question: str, n: int) -> set[tuple[str, ...]]:
    """Word n-grams with numbers masked; a short question is one gram."""
    words = [
        re.sub(r"\d+(?:\.\d+)?", "0", w) for w in re.findall(r"\d+(?:\.\d+)?|[^\W\d_]+", question.casefold())
    ]
    if len(words) <= n:
        return {tuple(words)} if len(words) >= 4 else set()
    return {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}
