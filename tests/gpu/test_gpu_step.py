"""One step on a GPU: learner and engine agree, and weights arrive by the push transports.

NOT RUN YET: no GPU was at hand when this was written. Run it with `make test-gpu`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import ray

from apprentice.config.load import load_config
from apprentice.data.load import load_data
from apprentice.learning.batch import rl_examples
from apprentice.learning.updates import PolicyObjective
from apprentice.trajectory import NOT_SAMPLED, trajectories_from_table
from driver.cluster import cluster
from driver.spawn import spawn_fleet
from tests.tiny import make_tiny_model

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

TINY = Path(__file__).resolve().parents[2] / "configs" / "tiny.yaml"


@pytest.mark.parametrize("transport", ["ipc", "nccl", "object_store"])
def test_a_step_on_gpus_ends_with_the_new_weights_in_the_engine(transport: str, tmp_path: Path) -> None:
    import torch

    share = 1.0 if transport == "nccl" else 0.4
    if transport == "nccl" and torch.cuda.device_count() < 2:
        pytest.skip("NCCL needs two GPUs")
    model = make_tiny_model(tmp_path / "model", hidden=128, layers=2, vocab_size=1024)
    config = load_config(
        TINY,
        [
            f"controller.model={model}",
            f"rollout.num_gpus={share}",
            f"learner.num_gpus={share}",
            "rollout.gpu_memory_utilization=0.3",
            "rollout.dtype=bfloat16",
            "learner.dtype=bfloat16",
            "rollout.in_process=false",
            f"weight_sync.transport={transport}",
            "stage1.optimizer.learning_rate=0.01",
            "deadlines.start_s=600",
        ],
    )
    sets = load_data(config.data)
    with cluster(config, None):
        fleet = spawn_fleet(config, str(model), sets.train, optimizer=config.stage1.optimizer)
        try:
            gaps = []
            for step in range(2):
                result = fleet.sample(
                    sets.train, mode="base", samples=2, sampling=config.rollout.sampling, step=step, what="t"
                )
                trajectories = trajectories_from_table(result.table)
                versions = {int(v) for t in trajectories for v in t.policy_version if v != NOT_SAMPLED}
                assert versions == {step}
                signs = np.where(np.arange(len(trajectories)) % 2 == 0, 1.0, -1.0).astype(np.float32)
                stats = fleet.train_policy(rl_examples(trajectories, signs), PolicyObjective(), "t")
                gaps.append(stats.logprob_gap_mean)
                fleet.sync_weights()
            # Were the weights of the first update not in the engine, the second gap would be large.
            assert max(gaps) < 0.1
        finally:
            fleet.stop()
    assert not ray.is_initialized()
