"""Weights that reach an engine are the ones it computes with, all of them, and none that came before."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from apprentice.config.schema import SamplingConfig
from apprentice.episodes.actions import Generate
from apprentice.errors import InfrastructureError, StaleEngineError, WeightSyncError
from driver.remote import gather
from driver.weight_sync import sync_weights
from tests.ray.rollout_actors import PublishingLearner, PushingLearner, Reference, long_prompt, spawn
from tests.tiny import make_tiny_model

pytestmark = pytest.mark.ray

PROMPT = long_prompt()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tied embeddings: their lm_head is what stays stale when a reload goes wrong."""
    return make_tiny_model(tmp_path_factory.mktemp("model"), tied=True)


@pytest.fixture(scope="module")
def learner(ray_cluster: None, model: Path) -> Any:
    return ray.remote(PublishingLearner).options(num_cpus=0).remote(str(model))


@pytest.fixture(scope="module")
def worker(ray_cluster: None, model: Path) -> Iterator[Any]:
    actor = spawn(model, version=None)
    ray.get(actor.start.remote(), timeout=120)
    yield actor
    ray.kill(actor)


@pytest.fixture(scope="module")
def reference(model: Path) -> Reference:
    return Reference(model)


@pytest.fixture(scope="module")
def local(model: Path) -> PublishingLearner:
    """The same learner in this process, for its weights."""
    return PublishingLearner(str(model))


def generate(worker: Any, prompt: tuple[int, ...] = PROMPT) -> Any:
    ref = worker.generate.remote(Generate(prompt, 24), SamplingConfig(temperature=0.9), seed=3)
    return gather({"rollout-0": ref}, timeout_s=60, what="sampling")["rollout-0"]


def assert_serves(worker: Any, version: int, reference: Reference, local: PublishingLearner) -> None:
    """Logprobs, not greedy text: stale tied embeddings leave the text as it is and logprobs off by 0.36."""
    reference.load(local.weights(version))
    out = generate(worker)
    assert out.policy_version == version
    expected = reference.logprobs([*PROMPT, *out.token_ids], len(PROMPT), 0.9)
    np.testing.assert_allclose(out.logprobs, expected, atol=1e-4)


def test_a_fresh_engine_is_stale_until_its_first_sync(worker: Any) -> None:
    with pytest.raises(StaleEngineError, match="not been synchronized"):
        generate(worker)


def test_logprobs_are_those_of_the_new_weights_after_every_sync(
    worker: Any, learner: Any, reference: Reference, local: PublishingLearner
) -> None:
    """C11: one prompt of several cached blocks before and after; no old keys and values are left."""
    for version in (0, 1, 2):
        report = sync_weights({"learner-0": learner}, {"rollout-0": worker}, version, 60)
        assert report.version == version
        assert report.nbytes == 4 * sum(t.numel() for _, t in local.weights(0))
        assert_serves(worker, version, reference, local)
    out = generate(worker)
    reference.load(local.weights(1))
    old = reference.logprobs([*PROMPT, *out.token_ids], len(PROMPT), 0.9)
    assert np.abs(np.asarray(out.logprobs) - old).max() > 0.1, (
        "the versions differ by more than the tolerance"
    )


def test_updates_and_sampling_that_overlap_are_serialised_and_all_finish(
    worker: Any, learner: Any, reference: Reference, local: PublishingLearner
) -> None:
    """F13: two updates and generations at once; every generation is wholly of one version."""
    first, second = ray.get([learner.publish_weights.remote(v) for v in (3, 4)], timeout=60)
    refs = [worker.generate.remote(Generate(PROMPT, 24), SamplingConfig(), seed=i) for i in range(8)]
    updates = [worker.update_weights.remote(first, 60), worker.update_weights.remote(second, 60)]
    refs += [worker.generate.remote(Generate(PROMPT, 24), SamplingConfig(), seed=i) for i in range(8)]
    assert ray.get(updates, timeout=60) == [3, 4]
    outs = ray.get(refs, timeout=60)
    for out in outs:
        reference.load(local.weights(out.policy_version))
        expected = reference.logprobs([*PROMPT, *out.token_ids], len(PROMPT))
        np.testing.assert_allclose(out.logprobs, expected, atol=1e-4)
    # Ray may start calls that are sent together in either order: the last to be carried out is served.
    served = ray.get(worker.state.remote(), timeout=60).version
    assert served in (3, 4)
    assert_serves(worker, served, reference, local)


def test_an_engine_that_an_update_failed_on_is_stale_until_the_next_one(
    worker: Any, learner: Any, reference: Reference, local: PublishingLearner
) -> None:
    broken = ray.get(learner.publish_broken.remote(5), timeout=60)
    with pytest.raises(WeightSyncError, match="rollout-0"):
        gather({"rollout-0": worker.update_weights.remote(broken, 30)}, timeout_s=60, what="sync")
    with pytest.raises(StaleEngineError, match="update to version 5 failed"):
        generate(worker)
    sync_weights({"learner-0": learner}, {"rollout-0": worker}, 6, 60)
    assert_serves(worker, 6, reference, local)


def test_when_learners_do_not_publish_every_engine_missed_the_sync(worker: Any, learner: Any) -> None:
    class Silent:
        def publish_weights(self, version: int, **options: Any) -> None:
            raise InfrastructureError("out of memory")

    silent = ray.remote(Silent).options(num_cpus=0).remote()
    with pytest.raises(WeightSyncError, match=r"version 7.*did not publish.*out of memory"):
        sync_weights({"learner-0": silent}, {"rollout-0": worker}, 7, 30)
    with pytest.raises(StaleEngineError, match="not published"):
        generate(worker)
    sync_weights({"learner-0": learner}, {"rollout-0": worker}, 7, 60)
    assert generate(worker).policy_version == 7


def test_a_dead_engine_is_named_and_the_others_are_synchronized(
    worker: Any, learner: Any, reference: Reference, local: PublishingLearner
) -> None:
    class Dead:
        async def update_weights(self, manifest: Any, timeout_s: float) -> int:
            import os

            os._exit(1)

        async def mark_stale(self, reason: str) -> None: ...

    dead = ray.remote(Dead).options(num_cpus=0).remote()
    with pytest.raises(WeightSyncError, match=r"rollout-1.*died") as error:
        sync_weights({"learner-0": learner}, {"rollout-0": worker, "rollout-1": dead}, 8, 60)
    assert "rollout-0" not in str(error.value)
    assert_serves(worker, 8, reference, local)


def test_weights_that_cannot_be_fetched_are_a_clear_error(worker: Any, learner: Any) -> None:
    """A bucket is lost, as when its learner died on another node (on the same node the bytes outlive it)."""

    def lost() -> None:
        raise ray.exceptions.OwnerDiedError("0" * 56, None, "0" * 56)

    manifest = ray.get(learner.publish_weights.remote(8), timeout=60)
    bucket = dataclasses.replace(manifest.buckets[-1], data=ray.remote(lost).remote())
    manifest = dataclasses.replace(manifest, buckets=(*manifest.buckets[:-1], bucket))
    with pytest.raises(WeightSyncError, match="rollout-0 could not read the weights"):
        gather({"rollout-0": worker.update_weights.remote(manifest, 30)}, timeout_s=60, what="sync")
    with pytest.raises(StaleEngineError):
        generate(worker)
    sync_weights({"learner-0": learner}, {"rollout-0": worker}, 8, 60)


def test_the_control_plane_of_a_push_transport_delivers_and_expires(
    worker: Any, model: Path, reference: Reference, local: PublishingLearner
) -> None:
    """Everything of nccl and ipc but the wire, which needs GPUs: the bytes travel in the messages here."""
    pushing = ray.remote(PushingLearner).options(num_cpus=0).remote(str(model))
    ray.get(pushing.connect.remote({"rollout-0": worker}), timeout=120)
    for version in (9, 10):
        sync_weights({"learner-0": pushing}, {"rollout-0": worker}, version, 60)
        assert_serves(worker, version, reference, local)

    # A learner that dies in the middle: the engine gives up by its deadline, and the next sync works.
    ray.get(worker.begin_update.remote(11, 1.0), timeout=30)
    waiting = worker.generate.remote(Generate(PROMPT, 4), SamplingConfig())
    with pytest.raises(StaleEngineError, match="never ended"):
        gather({"rollout-0": waiting}, timeout_s=30, what="sampling")
    sync_weights({"learner-0": pushing}, {"rollout-0": worker}, 12, 60)
    assert_serves(worker, 12, reference, local)
