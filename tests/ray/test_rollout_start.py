"""Engines that start together, and workers that die."""

from __future__ import annotations

from pathlib import Path

import pytest
import ray

from apprentice.config.schema import SamplingConfig
from apprentice.episodes.actions import CallExpert, Generate
from apprentice.errors import EngineError, ExpertError, InfrastructureError
from apprentice.rollout.types import merge_results, split_rollouts
from driver.remote import gather
from tests.ray.rollout_actors import spawn
from tests.rollout_fakes import EchoExpert, problem
from tests.tiny import make_tiny_model

pytestmark = pytest.mark.ray


def down(request: CallExpert) -> None:
    raise ExpertError("connection refused", kind="connect", expert="wise")


def test_engines_started_at_once_all_come_up_share_a_batch_and_one_may_die(
    ray_cluster: None, tmp_path: Path
) -> None:
    """F07, with three engines. Then F11 and F09: a dead expert behind one, and a worker killed under load."""
    model = make_tiny_model(tmp_path / "model")
    experts = {"rollout-0": EchoExpert(), "rollout-1": EchoExpert(), "rollout-2": EchoExpert(down)}
    workers = {name: spawn(model, name=name, experts=expert) for name, expert in experts.items()}
    states = gather({n: w.start.remote() for n, w in workers.items()}, timeout_s=240, what="start")
    assert [(s.version, s.fatal) for s in states.values()] == [(0, "")] * 3

    requests = split_rollouts(
        [problem(str(i)) for i in range(6)],
        3,
        mode="collaborative",
        samples=4,
        sampling=SamplingConfig(),
        seed=1,
    )
    refs = {n: w.run.remote(r) for (n, w), r in zip(workers.items(), requests, strict=True)}
    merged = merge_results(gather(refs, timeout_s=120, what="rollouts").values())
    counters = merged.counters
    assert merged.table.num_rows == 16
    assert (counters.groups, counters.dropped_groups, counters.episodes) == (6, 2, 16)
    # Bounded: a sample gets one try and two replacements, and the first that used them up drops its group.
    assert 2 * 3 <= counters.unusable["expert"] <= 2 * 4 * 3
    assert set(counters.expert_failures) == {"wise:connect"}
    assert "wise:connect" in counters.describe()

    ref = workers["rollout-0"].run.remote(requests[0])
    ray.kill(workers["rollout-0"])
    with pytest.raises(InfrastructureError, match=r"rollouts: rollout-0 died"):
        gather({"rollout-0": ref}, timeout_s=60, what="rollouts")


@pytest.mark.parametrize("in_process", [True, False])
def test_an_engine_that_cannot_load_its_model_says_so(
    ray_cluster: None, tmp_path: Path, in_process: bool
) -> None:
    (tmp_path / "empty").mkdir()
    worker = spawn(tmp_path / "empty", name="rollout-9", in_process=in_process)
    with pytest.raises(EngineError, match=r"rollout-9: .*did not load"):
        gather({"rollout-9": worker.start.remote()}, timeout_s=120, what="start")
    with pytest.raises(EngineError, match="rollout-9"):
        gather(
            {"rollout-9": worker.generate.remote(Generate((1,), 1), SamplingConfig())},
            timeout_s=30,
            what="sampling",
        )
