"""Flat metrics of a batch of trajectories; the same for a training step and for an evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from apprentice.rollout.types import RolloutCounters
from apprentice.trajectory import Owner, Status, Trajectory

__all__ = ["call_counts", "counter_metrics", "trajectory_metrics"]


def call_counts(trajectories: Sequence[Trajectory]) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Calls that were carried out by tool, and by expert (``self`` left out); refused calls by error kind."""
    tools: Counter[str] = Counter()
    experts: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    for trajectory in trajectories:
        for call in trajectory.calls:
            if call.error:
                errors[call.error] += 1
                continue
            tools[call.tool] += 1
            if call.model != "self":
                experts[call.model] += 1
    return tools, experts, errors


def trajectory_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Means a trajectory: reward, accuracy, calls by tool, expert and error, tokens by owner, truncation.

    ``calls/...`` and ``tokens/...`` are counts divided by the number of trajectories. ``accuracy`` is the
    share with verdict ``correct``; both it and ``reward/mean`` are over scored trajectories only.

    Returns:
        An empty dict for no trajectories.
    """
    n = len(trajectories)
    if not n:
        return {}
    scored = [t for t in trajectories if t.reward is not None]
    tools, experts, errors = call_counts(trajectories)
    metrics = {
        "calls/mean": sum(tools.values()) / n,
        "tokens/mean": sum(len(t) for t in trajectories) / n,
        "truncated": sum(t.status is Status.TRUNCATED for t in trajectories) / n,
    }
    if scored:
        metrics["reward/mean"] = float(np.mean([t.reward for t in scored]))
        metrics["accuracy"] = sum(t.verdict == "correct" for t in scored) / len(scored)
    metrics |= {f"calls/tool/{name}": count / n for name, count in sorted(tools.items())}
    metrics |= {f"calls/expert/{name}": count / n for name, count in sorted(experts.items())}
    metrics |= {f"calls/error/{name}": count / n for name, count in sorted(errors.items())}
    owners: Counter[str] = Counter()
    for trajectory in trajectories:
        owners.update(trajectory.tokens_by_owner())
    return metrics | {f"tokens/{owner.name.lower()}": owners[owner.name.lower()] / n for owner in Owner}


def counter_metrics(counters: RolloutCounters) -> dict[str, float]:
    """What infrastructure cost: dropped groups, replaced samples, failures by kind; tokens a second."""
    metrics = {
        "groups/dropped": float(counters.dropped_groups),
        "samples/replaced": float(counters.replaced),
        "latency/expert": counters.expert_s / max(counters.episodes, 1),
        "latency/python": counters.python_s / max(counters.episodes, 1),
        "latency/verify": counters.verify_s / max(counters.episodes, 1),
        "tokens_per_s/rollout": counters.sampled_tokens / counters.wall_s if counters.wall_s > 0 else 0.0,
    }
    metrics |= {f"unusable/{kind}": float(count) for kind, count in sorted(counters.unusable.items())}
    return metrics | {f"verdict/{kind}": float(count) for kind, count in sorted(counters.verdicts.items())}
