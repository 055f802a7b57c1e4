"""The learner under Ray and DeepSpeed: ranks and ZeRO stages agree, weights leave whole and reload."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.learner import FINISHED_MARKER, Learner, LearnerSpec, learner_env
from apprentice.config.schema import LearnerConfig, OptimizerConfig
from apprentice.learning.batch import TrainingBatch
from apprentice.learning.updates import PolicyObjective, SftObjective
from tests.learner_case import make_batch
from tests.tiny import make_tiny_model

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

DEADLINE_S = 120
# An eps far above rounding noise: AdamW would turn the sign of a vanishing gradient into a whole step.
OPTIMIZER = OptimizerConfig(learning_rate=1e-3, max_grad_norm=0.5, eps=1e-5)
# Five sequences of unequal length: four micro-batches of at most 64 tokens, so two ranks do unequal work.
BATCH = make_batch((30, 41, 20, 52, 60))


class Group:
    """All ranks of one learner."""

    def __init__(self, model: Path, ranks: int, concurrency: int = 1, **learner: Any) -> None:
        import ray

        config = LearnerConfig(ranks=ranks, num_gpus=0, micro_batch_tokens=64, **learner)
        spec = LearnerSpec(str(model), config, OPTIMIZER, timeout_s=60)
        actor = ray.remote(Learner).options(
            num_cpus=0.5, max_concurrency=concurrency, runtime_env={"env_vars": learner_env(threads=1)}
        )
        self.ranks = [actor.remote(spec) for _ in range(ranks)]
        address, port = ray.get(self.ranks[0].node_address.remote(), timeout=DEADLINE_S)
        self._all([r.setup.remote(address, port, i, ranks) for i, r in enumerate(self.ranks)])

    def _all(self, references: list[Any]) -> list[Any]:
        import ray

        return list(ray.get(references, timeout=DEADLINE_S))

    def submit(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        return [getattr(rank, method).remote(*args, **kwargs) for rank in self.ranks]

    def call(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        return self._all(self.submit(method, *args, **kwargs))

    def weights(self) -> dict[str, np.ndarray]:
        return unpack(self.call("publish_weights", 1)[0])

    def stop(self) -> None:
        import ray

        self.call("close")
        for rank in self.ranks:
            ray.kill(rank)


def unpack(manifest: Any) -> dict[str, np.ndarray]:
    import ray
    import torch

    out = {}
    for bucket in manifest.buckets:
        arrays = ray.get(bucket.data, timeout=DEADLINE_S)
        for info, array in zip(bucket.tensors, arrays, strict=True):
            flat = torch.frombuffer(bytearray(array), dtype=getattr(torch, info.dtype))
            out[info.name] = flat.reshape(info.shape).float().numpy()
    return out


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_tiny_model(tmp_path_factory.mktemp("learner") / "base", hidden=32, tied=True)
    (folder / FINISHED_MARKER).touch()
    return folder


@pytest.fixture(scope="module")
def one_rank(ray_cluster: None, base: Path) -> Iterator[Group]:
    group = Group(base, 1, concurrency=4, zero_stage=0, dtype="float32")
    yield group
    group.stop()


@pytest.fixture(scope="module", params=[2, 3])
def two_ranks(ray_cluster: None, base: Path, request: pytest.FixtureRequest) -> Iterator[Group]:
    group = Group(base, 2, zero_stage=request.param, dtype="float32")
    yield group
    group.stop()


def assert_close(got: dict[str, np.ndarray], want: dict[str, np.ndarray], atol: float) -> None:
    assert sorted(got) == sorted(want)
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=0, atol=atol, err_msg=name)


def test_two_ranks_equal_one_and_sharded_weights_leave_whole(
    one_rank: Group, two_ranks: Group, base: Path
) -> None:
    """Same losses, norms, statistics and exported weights after steps of both stages (D01, D03)."""
    runs = []
    for group in (one_rank, two_ranks):
        group.call("load", str(base))
        results = group.call("train_policy", BATCH, PolicyObjective(updates=3))
        results = [
            [*policy, sft]
            for policy, sft in zip(results, group.call("train_sft", BATCH, SftObjective()), strict=True)
        ]
        assert all(
            repr(dataclasses.replace(a, seconds=0, tokens_per_second=0))
            == repr(dataclasses.replace(b, seconds=0, tokens_per_second=0))
            for a, b in zip(results[0], results[-1], strict=True)
        ), "ranks report the same numbers"
        runs.append((results[0], group.weights()))
    for got, want in zip(runs[1][0], runs[0][0], strict=True):
        assert got.loss == pytest.approx(want.loss, rel=1e-4)
        assert got.grad_norm == pytest.approx(want.grad_norm, rel=1e-3)
        assert (got.trained_tokens, got.input_tokens) == (want.trained_tokens, want.input_tokens)
    assert any(stats.clip_fraction > 0 for stats in runs[0][0][:3])  # the clip was exercised
    assert_close(runs[1][1], runs[0][1], atol=2e-5)
    changed = max(np.abs(runs[0][1][n] - w).max() for n, w in checkpoint(base).items())
    assert changed > 1e-3


def checkpoint(folder: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return dict(load_file(folder / "model.safetensors"))


def test_checkpoint_reloads_to_equal_logits(two_ranks: Group, base: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    two_ranks.call("load", str(base))
    two_ranks.call("train_sft", BATCH, SftObjective())
    folder = tmp_path / "checkpoint"
    two_ranks.call("save", str(folder))
    two_ranks.call("save", str(folder))  # replaces
    assert (folder / FINISHED_MARKER).exists() and not folder.with_name("checkpoint.partial").exists()
    assert_close(checkpoint(folder), two_ranks.weights(), atol=0)
    assert AutoTokenizer.from_pretrained(folder).eos_token == "<|im_end|>"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    nll = []
    for start, end in zip(BATCH.offsets[:-1], BATCH.offsets[1:], strict=True):
        ids = torch.from_numpy(BATCH.token_ids[start:end].astype(np.int64))
        with torch.no_grad():
            scores = torch.log_softmax(model(input_ids=ids[None]).logits[0], -1)
        nll += [-scores[i - 1, ids[i]].item() for i in np.flatnonzero(BATCH.trained[start:end])]
    two_ranks.call("load", str(folder))
    stats = two_ranks.call("train_sft", BATCH, SftObjective())[0]
    assert stats.cross_entropy == pytest.approx(np.mean(nll), rel=1e-5)


def test_a_rank_without_work_takes_part(one_rank: Group, two_ranks: Group, base: Path) -> None:
    single = make_batch((40,))
    runs = []
    for group in (one_rank, two_ranks):
        group.call("load", str(base))
        stats = group.call("train_policy", single, PolicyObjective())[0][0]
        runs.append((stats.loss, stats.grad_norm, group.weights()))
    assert runs[1][:2] == pytest.approx(runs[0][:2], rel=1e-4)
    assert_close(runs[1][2], runs[0][2], atol=2e-5)


def test_d15_an_empty_batch_on_every_rank(two_ranks: Group) -> None:
    before = two_ranks.weights()
    empty = make_batch((10, 12), trained=(0, 0))
    assert all(stats[0].is_empty for stats in two_ranks.call("train_policy", empty, PolicyObjective()))
    assert_close(two_ranks.weights(), before, atol=0)


def test_d17_a_poisoned_micro_batch_is_skipped_on_its_rank_only(
    one_rank: Group, two_ranks: Group, tmp_path: Path
) -> None:
    """The embedding of one token is NaN: its sequence is skipped, the other three train as if alone."""
    from safetensors.numpy import save_file

    folder = make_tiny_model(tmp_path / "poisoned", hidden=32, tied=False)
    tensors = checkpoint(folder)
    tensors["model.embed_tokens.weight"][7] = np.nan
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / FINISHED_MARKER).touch()
    whole = make_batch((60, 60, 60, 60))
    ids = np.where(whole.token_ids == 7, 8, whole.token_ids)
    clean = TrainingBatch(
        offsets=whole.offsets[:4],
        **{
            name: (ids if name == "token_ids" else getattr(whole, name))[:180]
            for name in ("token_ids", "trained", "format", "owner", "advantage", "sampling_logprob")
        },
    )
    poisoned = ids.copy()
    poisoned[185] = 7
    runs = []
    for group, batch in (
        (one_rank, clean),
        (two_ranks, dataclasses.replace(whole, token_ids=poisoned)),
    ):
        group.call("load", str(folder))
        stats = group.call("train_policy", batch, PolicyObjective())[0][0]
        weights = group.weights()
        weights["model.embed_tokens.weight"] = np.delete(weights["model.embed_tokens.weight"], 7, axis=0)
        runs.append((stats, weights))
    assert (runs[1][0].skipped_micro_batches, runs[1][0].micro_batches) == (1, 4)
    assert runs[1][0].trained_tokens == runs[0][0].trained_tokens == clean.n_train
    assert runs[1][0].loss == pytest.approx(runs[0][0].loss, rel=1e-4)
    assert runs[1][0].grad_norm == pytest.approx(runs[0][0].grad_norm, rel=1e-3)
    assert_close(runs[1][1], runs[0][1], atol=2e-5)


def test_f13_update_and_publish_called_together_are_serialised(one_rank: Group, base: Path) -> None:
    """Every published version is the state between two updates, never half of one; nothing hangs."""
    one_rank.call("load", str(base))
    states = [one_rank.weights()]
    for _ in range(3):
        one_rank.call("train_policy", BATCH, PolicyObjective())
        states.append(one_rank.weights())
    one_rank.call("load", str(base))
    calls = []
    for version in range(3):
        calls.append(one_rank.submit("train_policy", BATCH, PolicyObjective())[0])
        calls.append(one_rank.submit("publish_weights", version)[0])
    results = one_rank._all(calls)
    for manifest in results[1::2]:
        got = unpack(manifest)
        distance = [max(np.abs(got[n] - s[n]).max() for n in s) for s in states]
        assert min(distance) < 1e-6, distance


def test_a_new_stage_forgets_moments_and_takes_new_constants(one_rank: Group, base: Path) -> None:
    one_rank.call("load", str(base))
    for _ in range(3):
        one_rank.call("train_sft", BATCH, SftObjective())
    optimizer = OptimizerConfig(learning_rate=4e-3, warmup_steps=2, max_grad_norm=0.5)
    one_rank.call("reset_optimizer", optimizer)
    before = one_rank.weights()
    first = one_rank.call("train_sft", BATCH, SftObjective())[0]
    after = one_rank.weights()
    second = one_rank.call("train_sft", BATCH, SftObjective())[0]
    one_rank.call("reset_optimizer", OPTIMIZER)
    assert (first.learning_rate, second.learning_rate) == (2e-3, 4e-3)
    # AdamW's first step moves every weight by about its rate; moments of earlier steps would bend that.
    step = np.concatenate([(after[n] - before[n]).ravel() for n in after if "layers" in n])
    assert np.median(np.abs(step)) == pytest.approx(2e-3, rel=0.01)


def moves_of_tiny_updates(model: str, steps: int, rate: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """In a worker process, for ZeRO 0 to 3: a weight matrix before, and its change after bfloat16 steps."""
    config = LearnerConfig(num_gpus=0, zero_stage=0, dtype="bfloat16", micro_batch_tokens=256)
    learner = Learner(LearnerSpec(model, config, OptimizerConfig(learning_rate=rate), timeout_s=60))
    learner.setup(*learner.node_address(), 0, 1)
    batch = make_batch((20, 30))  # a CPU without bfloat16 instructions takes long for more

    def matrix() -> np.ndarray:
        weights = {name: tensor.float().numpy().copy() for name, tensor in learner.iter_weights()}
        return weights["model.layers.0.mlp.up_proj.weight"]

    out = []
    for stage in (0, 1, 2, 3):
        learner.spec = dataclasses.replace(
            learner.spec, learner=config.model_copy(update={"zero_stage": stage})
        )
        learner.load(model)
        before = matrix()
        for _ in range(steps):
            assert learner.train_sft(batch, SftObjective()).applied
        out.append((before, np.abs(matrix() - before)))
    return out


def test_bfloat16_updates_far_below_the_spacing_do_not_vanish(base: Path) -> None:
    """Half the spacing of bfloat16 at 0.02 is 6e-5: without float32 masters no step of 1e-5 would show."""
    import ray

    task = ray.remote(max_calls=1)(moves_of_tiny_updates).options(
        num_cpus=0.5, runtime_env={"env_vars": learner_env(threads=1)}
    )
    for before, moved in ray.get(task.remote(str(base), 15, 1e-5), timeout=4 * DEADLINE_S):
        large = np.abs(before) > 0.016
        assert large.sum() > 200
        assert np.mean(moved[large] > 0) > 0.3
        assert moved[large].mean() == pytest.approx(150e-6, rel=0.5)


def test_errors_and_leftovers(one_rank: Group, tmp_path: Path) -> None:
    import ray

    with pytest.raises(ray.exceptions.RayTaskError, match="not a finished checkpoint"):
        one_rank.call("load", str(tmp_path))
    stats = one_rank.call("stats")[0]
    assert 0 < stats["rss_bytes"] <= stats["peak_rss_bytes"]
    spec = LearnerSpec("nowhere", LearnerConfig(), OPTIMIZER)
    with pytest.raises(RuntimeError, match="setup"):
        Learner(spec).train_sft(BATCH, SftObjective())
    assert not list(Path("/dev/shm").glob("deepspeed_allreduce_buffer*"))
