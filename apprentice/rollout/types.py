"""What crosses the process boundary of a rollout actor: the request, the counters, the result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from apprentice.config.schema import SamplingConfig
from apprentice.data.problem import Problem
from apprentice.episodes.actions import Episode
from apprentice.trajectory import SCHEMA

__all__ = [
    "EpisodeFactory",
    "Progress",
    "RolloutCounters",
    "RolloutRequest",
    "RolloutResult",
    "merge_results",
    "number_groups",
    "split_rollouts",
]


class EpisodeFactory(Protocol):
    """Makes one fresh episode of a problem."""

    def __call__(
        self,
        problem: Problem,
        *,
        mode: str,
        trajectory_id: str,
        group_id: str,
        seed: int,
        max_rollout_tokens: int | None,
    ) -> Episode:
        """``seed`` serves what the episode itself draws (e.g. random routing); ``max_rollout_tokens`` None:
        the protocol's own bound."""
        ...


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """Sample ``samples`` trajectories of every problem, and verify them.

    ``group_ids[i]`` identifies the *instance* ``problems[i]``: two problems with one text, or one problem
    that stands twice in a batch, are two groups (:func:`number_groups`). ``seed`` None draws unseeded, which
    spares a GPU engine its per-request generators.
    """

    problems: tuple[Problem, ...]
    group_ids: tuple[str, ...]
    mode: str
    samples: int
    sampling: SamplingConfig
    seed: int | None = None
    step: int = 0
    max_rollout_tokens: int | None = None
    verify: bool = True

    def __post_init__(self) -> None:
        if len(self.problems) != len(self.group_ids):
            raise ValueError(f"{len(self.problems)} problems but {len(self.group_ids)} group ids")
        if len(set(self.group_ids)) != len(self.group_ids):
            raise ValueError("group ids repeat: every problem instance needs its own (see number_groups)")
        if self.samples < 1:
            raise ValueError(f"samples per problem must be at least 1, not {self.samples}")


@dataclass(slots=True)
class RolloutCounters:
    """What happened in one run of a rollout actor. Adds up over workers (:meth:`add`).

    Seconds in ``generate_s``, ``expert_s``, ``advisor_s``, ``judge_s``, ``python_s`` and ``verify_s`` are
    summed over episodes that run at the same time, so they exceed ``wall_s``; ``wall_s`` of several workers
    is the longest.
    """

    groups: int = 0
    dropped_groups: int = 0
    episodes: int = 0
    """Usable episodes, including those of groups that were dropped afterwards."""
    replaced: int = 0
    """Unusable episodes that a fresh sample took the place of."""
    unusable: Counter[str] = field(default_factory=Counter)
    """Unusable episodes by kind: ``expert``, ``sandbox``, ``engine``, ``verifier`` or ``error:<type>``."""
    expert_failures: Counter[str] = field(default_factory=Counter)
    """Failures past all retries, by ``<expert>:<kind>``."""
    verdicts: Counter[str] = field(default_factory=Counter)
    """Verdicts by name. A ``timeout`` is scored as wrong, and seen here."""
    generations: int = 0
    prompt_tokens: int = 0
    """Tokens sent to the engine, prefix-cache hits included."""
    sampled_tokens: int = 0
    generate_s: float = 0.0
    frozen_tokens: int = 0
    """Tokens that frozen models sampled (Learning to Ask)."""
    expert_s: float = 0.0
    advisor_s: float = 0.0
    judge_s: float = 0.0
    python_s: float = 0.0
    verify_s: float = 0.0
    wall_s: float = 0.0

    def add(self, other: RolloutCounters) -> None:
        """Add the counters of another worker's run that went on at the same time."""
        for name in self.__slots__:
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, Counter):
                mine.update(theirs)
            else:
                setattr(self, name, max(mine, theirs) if name == "wall_s" else mine + theirs)

    def describe(self) -> str:
        """One line for logs and error messages."""
        causes = ", ".join(f"{kind} {n}" for kind, n in (self.unusable + self.expert_failures).most_common())
        return (
            f"{self.groups - self.dropped_groups} of {self.groups} groups, {self.episodes} usable episodes, "
            f"{self.replaced} replaced" + (f" (unusable: {causes})" if causes else "")
        )


@dataclass(frozen=True, slots=True)
class RolloutResult:
    """Trajectories of the groups that are whole (:data:`apprentice.trajectory.SCHEMA`), and the counters."""

    table: pa.Table
    counters: RolloutCounters


@dataclass(frozen=True, slots=True)
class Progress:
    """Episodes done and asked for in the runs that are under way."""

    done: int
    total: int
    sampled_tokens: int = 0


def number_groups(problems: Sequence[Problem], prefix: str = "") -> tuple[str, ...]:
    """A group id for every problem instance of a batch: ``<prefix><problem_id>#<occurrence>``.

    Ids depend on the problem and on how often it came before in the batch, not on texts or on who samples it.
    """
    seen: Counter[str] = Counter()
    out = []
    for problem in problems:
        out.append(f"{prefix}{problem.problem_id}#{seen[problem.problem_id]}")
        seen[problem.problem_id] += 1
    return tuple(out)


def split_rollouts(
    problems: Sequence[Problem],
    workers: int,
    *,
    mode: str,
    samples: int,
    sampling: SamplingConfig,
    seed: int | None,
    step: int = 0,
    max_rollout_tokens: int | None = None,
    verify: bool = True,
    scope: str = "",
) -> list[RolloutRequest]:
    """Deal whole groups round robin to workers. At most ``workers`` requests, none of them empty.

    ``scope`` begins every id, so that trajectories of one step number in two parts of a run have two names.
    """
    ids = number_groups(problems, f"{scope}{step}:")
    requests = []
    for worker in range(min(workers, len(problems))):
        requests.append(
            RolloutRequest(
                problems=tuple(problems[worker::workers]),
                group_ids=ids[worker::workers],
                mode=mode,
                samples=samples,
                sampling=sampling,
                seed=seed,
                step=step,
                max_rollout_tokens=max_rollout_tokens,
                verify=verify,
            )
        )
    return requests


def merge_results(results: Iterable[RolloutResult]) -> RolloutResult:
    """The results of several workers as one."""
    results = list(results)
    counters = RolloutCounters()
    for result in results:
        counters.add(result.counters)
    tables = [result.table for result in results]
    return RolloutResult(pa.concat_tables(tables) if tables else SCHEMA.empty_table(), counters)
