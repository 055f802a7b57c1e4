"""One weight sync: learners publish, engines take the version and say so; an error names who did not."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray

from actors.weight_transfer import WeightManifest
from apprentice.errors import InfrastructureError, WeightSyncError
from driver.remote import gather

__all__ = ["SyncReport", "sync_weights"]


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What a sync moved and how long it took: publishing, then the slowest engine."""

    version: int
    nbytes: int
    publish_s: float
    update_s: float


def sync_weights(
    learners: Mapping[str, Any],
    workers: Mapping[str, Any],
    version: int,
    timeout_s: float,
    *,
    bucket_mib: int = 512,
    dtype: str | None = None,
) -> SyncReport:
    """Bring every engine to ``version``.

    Each engine drains its generations, loads, resets its prefix cache and reports what it serves. An engine
    that fails is stale: it samples nothing until a later sync reaches it. Where the learners fail to publish,
    all engines have missed the sync and are stale.

    Args:
        learners: name -> actor with ``publish_weights(version, bucket_mib=, dtype=)``; all ranks are called,
            since gathering sharded weights is a collective, and one of them answers with the manifest.
        workers: name -> :class:`actors.rollout_worker.RolloutWorker` actor.
        timeout_s: for the whole sync.
        bucket_mib: size of the portions that weights travel in.
        dtype: torch name of the engines' type (``bfloat16``), into which float32 weights are converted first.

    Raises:
        WeightSyncError: names the learners or engines that failed, and why.
    """
    start = time.monotonic()
    what = f"weight sync to version {version}"
    try:
        answers = gather(
            {
                name: learner.publish_weights.remote(version, bucket_mib=bucket_mib, dtype=dtype)
                for name, learner in learners.items()
            },
            timeout_s=timeout_s,
            what=f"{what}: publishing",
        )
        manifest = _manifest(answers, version)
    except InfrastructureError as error:
        _mark_stale(workers, f"{what} was not published")
        raise WeightSyncError(f"{what}: the learners did not publish it: {error}") from error
    published = time.monotonic()
    left = max(timeout_s - (published - start), 0.001)
    if manifest.delivered:
        refs = {name: worker.state.remote() for name, worker in workers.items()}
    else:
        refs = {name: worker.update_weights.remote(manifest, left) for name, worker in workers.items()}
    failed: dict[str, str] = {}
    for name, ref in refs.items():
        # A little more than the engine's own deadline, whose message says what it waited for.
        wait = max(left - (time.monotonic() - published), 0.0) + 5.0
        try:
            answer = gather({name: ref}, timeout_s=wait, what=what)[name]
        except InfrastructureError as error:
            failed[name] = str(error)
            continue
        served = answer.version if manifest.delivered else answer
        if served != version:
            failed[name] = f"it serves version {served}"
    if failed:
        _mark_stale({name: workers[name] for name in failed}, f"{what} failed")
        raise WeightSyncError(f"{what} failed on " + "; ".join(f"{n}: {e}" for n, e in failed.items()))
    return SyncReport(version, manifest.nbytes, published - start, time.monotonic() - published)


def _manifest(answers: Mapping[str, Any], version: int) -> WeightManifest:
    manifests = [answer for answer in answers.values() if isinstance(answer, WeightManifest)]
    manifests = [m for m in manifests if m.buckets or m.delivered]
    if not manifests:
        raise WeightSyncError(f"no learner published anything: {', '.join(answers)}")
    if manifests[0].version != version:
        raise WeightSyncError(f"version {manifests[0].version} was published instead of {version}")
    return manifests[0]


def _mark_stale(workers: Mapping[str, Any], reason: str) -> None:
    """Best effort: a worker that does not answer serves nothing anyway."""
    refs = [worker.mark_stale.remote(reason) for worker in workers.values()]
    if refs:
        ray.wait(refs, num_returns=len(refs), timeout=5.0)
