"""Groups of trajectories: n usable samples of one problem instance, or none at all."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from apprentice.data.problem import Problem
from apprentice.episodes.actions import Episode
from apprentice.errors import InfrastructureError
from apprentice.rollout.ports import Verdict, Verifier
from apprentice.rollout.seeds import derive_seed
from apprentice.rollout.types import RolloutCounters
from apprentice.trajectory import Status, Trajectory

__all__ = ["GroupSpec", "sample_group", "score", "verdict_tags"]

_log = logging.getLogger(__name__)

NewEpisode = Callable[[str, int], Episode]
"""``(trajectory_id, seed)`` -> a fresh episode of the group's problem."""
Play = Callable[[Episode, int | None], Awaitable[Trajectory]]
"""``(episode, seed)`` -> its trajectory (:func:`apprentice.rollout.runner.run_episode` with its ports)."""


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """What to sample: ``samples`` trajectories of ``problem``.

    ``max_replacements`` fresh samples may take the place of each one that is unusable.

    ``group_id`` names the instance and is part of every seed, so that a problem which stands twice in a batch
    is sampled twice and not copied. ``seed`` is the run's; None samples unseeded.
    """

    problem: Problem
    group_id: str
    samples: int
    max_replacements: int
    seed: int | None
    step: int = 0


class _Exhausted(Exception):
    """A sample used up its replacements."""


async def sample_group(
    spec: GroupSpec,
    *,
    new_episode: NewEpisode,
    play: Play,
    limiter: asyncio.Semaphore,
    counters: RolloutCounters,
    verifier: Verifier | None,
    on_episode: Callable[[], None] = lambda: None,
    on_group: Callable[[tuple[Trajectory, ...]], None] = lambda group: None,
) -> tuple[Trajectory, ...]:
    """Sample one group, replacing unusable trajectories by fresh samples.

    Returns:
        Exactly ``spec.samples`` usable trajectories in sample order, verified when there is a verifier; or
        none, when a sample used up its replacements: its siblings are cancelled, and the group is counted as
        dropped. A group is never returned short: its advantages would be relative to a biased subset.

    Args:
        limiter: held while an episode runs and is verified; shared by all groups of an engine.
        on_episode: called as often as the group has samples, whatever becomes of them.
        on_group: gets the group as soon as it is whole.
    """
    counters.groups += 1
    left = spec.samples
    dropped = False

    async def one(sample: int) -> Trajectory:
        nonlocal left
        trajectory = await _sample(spec, sample, new_episode, play, limiter, counters, verifier)
        left -= 1
        on_episode()
        return trajectory

    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(one(sample)) for sample in range(spec.samples)]
    except* _Exhausted as errors:
        counters.dropped_groups += 1
        dropped = True
        _log.warning("group %s dropped: %s", spec.group_id, errors.exceptions[0])
        for _ in range(left):
            on_episode()
    if dropped:
        return ()
    group = tuple(task.result() for task in running)
    on_group(group)
    return group


async def _sample(
    spec: GroupSpec,
    sample: int,
    new_episode: NewEpisode,
    play: Play,
    limiter: asyncio.Semaphore,
    counters: RolloutCounters,
    verifier: Verifier | None,
) -> Trajectory:
    reason = ""
    for attempt in range(spec.max_replacements + 1):
        trajectory_id = f"{spec.group_id}/{sample}.{attempt}"
        # An unseeded run still gives the episode a seed for its own draws; it is only not reproducible.
        seed = derive_seed(spec.seed or 0, spec.step, spec.group_id, sample, attempt)
        if attempt:
            counters.replaced += 1
        async with limiter:
            try:
                episode = new_episode(trajectory_id, derive_seed(seed, "episode"))
                trajectory = await play(episode, None if spec.seed is None else seed)
                if trajectory.status is not Status.UNUSABLE:
                    if verifier is not None:
                        trajectory = await score(trajectory, spec.problem, verifier, counters)
                    counters.episodes += 1
                    return trajectory
                kind, reason = _kind(trajectory.status_reason), trajectory.status_reason
            except InfrastructureError as error:
                kind, reason = "verifier", str(error)
            # One odd sample must not end a run of hours (F09). It is counted by type, its traceback is
            # logged, and a fault that hits every sample drops every group, which the driver sees.
            except Exception as error:  # noqa: BLE001
                kind, reason = f"error:{type(error).__name__}", str(error)
                _log.exception("episode %s failed", trajectory_id)
        counters.unusable[kind] += 1
    raise _Exhausted(f"sample {sample} was unusable {spec.max_replacements + 1} times, last: {reason}")


def _kind(reason: str) -> str:
    """The first word of a status reason: ``expert``, ``sandbox``, ``engine``, ..."""
    return (reason.replace(":", " ").split() or ["unknown"])[0].lower()


async def score(
    trajectory: Trajectory, problem: Problem, verifier: Verifier, counters: RolloutCounters
) -> Trajectory:
    """The trajectory with its verdict: reward +1 when the final answer is verified, else -1 (section 3.3).

    A truncated trajectory is scored as it stands. A verdict ``timeout`` (the answer cannot be compared in
    time) counts as wrong, like any answer that cannot be verified, and shows in ``counters.verdicts``. Of a
    program, the tags ``tests_passed`` and ``tests`` count its tests, and ``verdict_reason`` has the first
    failure.
    """
    loop = asyncio.get_running_loop()
    start = loop.time()
    verdict = await verifier.verify(trajectory.final_text, problem)
    counters.verify_s += loop.time() - start
    counters.verdicts[verdict.verdict] += 1
    return dataclasses.replace(
        trajectory,
        tags=trajectory.tags | verdict_tags(verdict),
        reward=1.0 if verdict.correct else -1.0,
        verdict=verdict.verdict,
        answer=verdict.answer,
    )


def verdict_tags(verdict: Verdict) -> dict[str, str]:
    """What a trajectory's tags say of a program's tests; nothing where the answer was no program."""
    if verdict.tests is None:
        return {}
    passed, total = verdict.tests
    return {"tests_passed": str(passed), "tests": str(total), "verdict_reason": verdict.reason}
