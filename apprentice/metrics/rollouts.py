"""Flat metrics of a batch of trajectories; the same for a training step and for an evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from apprentice.rollout.types import RolloutCounters
from apprentice.trajectory import Owner, Status, Trajectory

__all__ = ["call_counts", "counter_metrics", "merge_client_metrics", "trajectory_metrics"]


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


def merge_client_metrics(clients: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, float]:
    """Numbers that several clients keep of one service, as ``<service>/<number>``.

    Counts add up. ``peak`` is the highest of any client; ``seconds`` and ``queue_s`` are means a call,
    weighted by each client's answered calls (``ok``).

    Args:
        clients: a mapping a client: service (``expert/Qwen3-8B``, ``sandbox``) -> numbers.
    """
    merged: dict[str, float] = {}
    weights: Counter[str] = Counter()
    for client in clients:
        for service, numbers in client.items():
            for name, value in numbers.items():
                key = f"{service}/{name}"
                if name == "peak":
                    merged[key] = max(merged.get(key, 0.0), value)
                elif name in _MEANS and "ok" in numbers:
                    merged[key] = merged.get(key, 0.0) + value * numbers["ok"]
                    weights[key] += int(numbers["ok"])
                else:
                    merged[key] = merged.get(key, 0.0) + value
    return {key: value / max(weights[key], 1) if key in weights else value for key, value in merged.items()}


_MEANS = ("seconds", "queue_s")
