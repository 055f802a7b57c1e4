"""The same engine in processes of its own: weights through shared memory, and an engine process that dies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray

from apprentice.config.schema import SamplingConfig
from apprentice.episodes.actions import Generate
from apprentice.errors import EngineError, WeightSyncError
from apprentice.rollout.types import split_rollouts
from driver.remote import gather
from driver.weight_sync import sync_weights
from tests.ray.rollout_actors import PublishingLearner, Reference, long_prompt, spawn
from tests.rollout_fakes import problem
from tests.tiny import make_tiny_model

pytestmark = pytest.mark.ray

PROMPT = long_prompt()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), tied=True)


@pytest.fixture(scope="module")
def worker(ray_cluster: None, model: Path) -> Iterator[Any]:
    actor = spawn(model, in_process=False)
    ray.get(actor.start.remote(), timeout=180)
    yield actor
    ray.kill(actor)


def sample(worker: Any) -> Any:
    ref = worker.generate.remote(Generate(PROMPT, 24), SamplingConfig(temperature=0.9), seed=3)
    return gather({"rollout-0": ref}, timeout_s=60, what="sampling")["rollout-0"]


def staged_files() -> list[Path]:
    return list(Path("/dev/shm").glob("apprentice-weights-*"))


def test_logprobs_are_hugging_faces_before_and_after_a_sync(worker: Any, model: Path) -> None:
    reference, local = Reference(model), PublishingLearner(str(model))
    learner = ray.remote(PublishingLearner).options(num_cpus=0).remote(str(model))
    for version in (0, 1, 2):
        if version:
            sync_weights({"learner-0": learner}, {"rollout-0": worker}, version, 60)
        reference.load(local.weights(version))
        out = sample(worker)
        assert out.policy_version == version
        expected = reference.logprobs([*PROMPT, *out.token_ids], len(PROMPT), 0.9)
        np.testing.assert_allclose(out.logprobs, expected, atol=1e-4)
    assert staged_files() == [], "nothing stays in shared memory"
    broken = ray.get(learner.publish_broken.remote(3), timeout=60)
    with pytest.raises(WeightSyncError, match="rollout-0"):
        gather({"rollout-0": worker.update_weights.remote(broken, 30)}, timeout_s=60, what="sync")
    assert staged_files() == []
    sync_weights({"learner-0": learner}, {"rollout-0": worker}, 4, 60)
    reference.load(local.weights(4))
    out = sample(worker)
    expected = reference.logprobs([*PROMPT, *out.token_ids], len(PROMPT), 0.9)
    np.testing.assert_allclose(out.logprobs, expected, atol=1e-4)


def test_an_engine_process_that_dies_is_a_clear_error_and_not_a_batch_of_dropped_groups(worker: Any) -> None:
    (request,) = split_rollouts(
        [problem(str(i)) for i in range(16)],
        1,
        mode="collaborative",
        samples=4,
        sampling=SamplingConfig(),
        seed=1,
        max_rollout_tokens=100,
    )
    ref = worker.run.remote(request)
    while not ray.get(worker.progress.remote(), timeout=10).sampled_tokens:
        ray.wait([ref], timeout=0.05)
    engines = [p for p in psutil.Process().children(recursive=True) if "EngineCore" in p.name()]
    assert engines, "the engine core is a process below the actor"
    for process in engines:
        process.kill()
    with pytest.raises(EngineError, match=r"rollout-0: the engine process .*died"):
        gather({"rollout-0": ref}, timeout_s=60, what="rollouts")
    with pytest.raises(EngineError, match="died"):
        sample(worker)
    assert "died" in ray.get(worker.state.remote(), timeout=10).fatal
