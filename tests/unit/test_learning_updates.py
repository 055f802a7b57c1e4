"""One optimizer step: the same loss and gradient however it is split (D01, D03), and D09, D13, D15, D17."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import numpy as np
import pytest
import torch

from apprentice.config.schema import OptimizerConfig
from apprentice.learning.batch import TrainingBatch, sft_examples
from apprentice.learning.engine import PlainEngine, StepResult
from apprentice.learning.microbatch import MicroBatch, make_micro_batch
from apprentice.learning.updates import PolicyObjective, SftObjective, policy_update, sft_update
from apprentice.trajectory import Owner
from tests.learner_case import make_batch, tiny_scorer

pytestmark = pytest.mark.unit

OPTIMIZER = OptimizerConfig(learning_rate=1e-3, max_grad_norm=1e9)
BATCH = make_batch()
ON_POLICY = PolicyObjective()


class Recording(PlainEngine):
    """Keeps the gradient that reaches the step. As rank ``r`` of ``n`` it runs its part alone."""

    def __init__(self, scorer: Any, rank: int = 0, world_size: int = 1) -> None:
        super().__init__(scorer, OPTIMIZER)
        self.as_rank, self.of_ranks = rank, world_size
        self.gradients: list[torch.Tensor] = []
        self.scales: list[float] = []
        self.scored: list[int] = []
        self.totals: list[torch.Tensor] = []

    @property
    def rank(self) -> int:
        return self.as_rank

    @property
    def world_size(self) -> int:
        return self.of_ranks

    def score(self, micro: MicroBatch, *, temperature: float, with_entropy: bool) -> Any:
        self.scored.append(micro.tokens)
        return super().score(micro, temperature=temperature, with_entropy=with_entropy)

    def step(self, gradient_scale: float = 1.0) -> StepResult:
        self.gradients = [
            p.grad.clone() * gradient_scale for p in self.scorer.parameters() if p.grad is not None
        ]
        self.scales.append(gradient_scale)
        return super().step(gradient_scale)

    def all_reduce(self, values: torch.Tensor, op: Literal["sum", "max"]) -> torch.Tensor:
        self.totals.append(values)
        return values


def dense_gradient(batch: TrainingBatch) -> tuple[float, list[torch.Tensor]]:
    """Eq. 6 at pi_theta = pi_old, one document at a time through plain autograd: -sum(A logp) / N."""
    scorer = tiny_scorer()
    total = 0.0
    for i in range(len(batch)):
        micro = make_micro_batch(batch, [i])
        if micro.is_empty:
            continue
        advantage = torch.from_numpy(batch.advantage[micro.index.numpy()])
        (-(scorer(micro)[0] * advantage).sum() / batch.n_train).backward()
        total -= float(advantage.sum()) / batch.n_train
    return total, [p.grad for p in scorer.parameters()]


def assert_gradients(got: list[torch.Tensor], want: list[torch.Tensor]) -> None:
    assert len(got) == len(want) > 0
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    ("lengths", "capacity", "micro_batches"),
    [
        ((32, 32, 32, 32), 32, 4),
        ((32, 32, 32, 32), 64, 2),
        ((32, 32, 32, 32), 128, 1),
        ((30, 41, 20, 52), 64, 3),
    ],
    ids=["4x1", "2x2", "1x4", "ragged"],
)
def test_d03_loss_and_gradient_do_not_depend_on_the_micro_batches(
    lengths: tuple[int, ...], capacity: int, micro_batches: int
) -> None:
    batch = make_batch(lengths)
    want_loss, want = dense_gradient(batch)
    engine = Recording(tiny_scorer())
    (stats,) = policy_update(engine, batch, ON_POLICY, capacity)
    assert stats.micro_batches == micro_batches
    assert stats.loss == pytest.approx(want_loss, rel=1e-5)
    assert_gradients(engine.gradients, want)


@pytest.mark.parametrize(
    "trained", [(10, 90), (3, 40, 2, 0, 25), (7,)], ids=["10+90", "ragged", "one sequence"]
)
@pytest.mark.parametrize("objective", ["policy", "sft"])
def test_d01_two_unequal_ranks_add_up_to_one_rank(trained: tuple[int, ...], objective: str) -> None:
    """Each rank divides by the tokens of the global batch; their gradients sum to that of one rank."""
    batch = make_batch([t + 12 for t in trained], trained=trained)

    def run(rank: int, ranks: int) -> Recording:
        engine = Recording(tiny_scorer(), rank, ranks)
        if objective == "policy":
            policy_update(engine, batch, ON_POLICY, 64)
        else:
            sft_update(engine, batch, SftObjective(), 64)
        return engine

    one, parts = run(0, 1), [run(0, 2), run(1, 2)]
    assert len(parts[0].scored) == len(parts[1].scored)
    zeros = [torch.zeros_like(g) for g in one.gradients]
    summed = [torch.stack(gs).sum(0) for gs in zip(*[p.gradients or zeros for p in parts], strict=True)]
    assert_gradients(summed, one.gradients)
    sums = [sum(p.totals[0] for p in parts), one.totals[0]]
    loss_at = -5  # loss, used_weight, input_tokens, micro_batches, skipped
    assert float(sums[0][loss_at]) == pytest.approx(float(sums[1][loss_at]), rel=1e-5)
    assert float(sums[0][loss_at + 1]) == pytest.approx(1.0, rel=1e-6)


def test_old_logprobs_are_those_before_the_first_of_several_steps() -> None:
    objective = PolicyObjective(updates=3, clip_epsilon=1e9, dual_clip=1e9)
    engine = Recording(tiny_scorer())
    reference = tiny_scorer()
    micro = make_micro_batch(BATCH, range(len(BATCH)))
    before = reference(micro)[0].detach()
    stats = policy_update(engine, BATCH, objective, 64)
    assert [s.owners["expert"].ratio_mean == 1.0 for s in stats] == [True, False, False]
    # The third step's ratios, recomputed: two reference steps, then exp(new - before).
    twin = PlainEngine(reference, OPTIMIZER)
    policy_update(twin, BATCH, dataclasses.replace(objective, updates=2), 64)
    ratio = torch.exp(reference(micro)[0] - before).detach().numpy()
    for owner in (Owner.CONTROLLER, Owner.EXPERT):
        mine = ratio[BATCH.owner[micro.index.numpy()] == owner]
        got = stats[2].owners[owner.name.lower()]
        assert got.ratio_mean == pytest.approx(mine.mean(), rel=1e-5)
        assert got.ratio_std == pytest.approx(mine.std(), rel=1e-3)
        assert (got.ratio_min, got.ratio_max) == pytest.approx((mine.min(), mine.max()), rel=1e-5)


def test_one_step_needs_one_forward_pass_and_has_ratio_one() -> None:
    engine = Recording(tiny_scorer())
    (stats,) = policy_update(engine, BATCH, ON_POLICY, 64)
    assert len(engine.scored) == stats.micro_batches
    for owner in stats.owners.values():
        assert (owner.ratio_min, owner.ratio_mean, owner.ratio_max) == (1.0, 1.0, 1.0)
    assert stats.clip_fraction == stats.dual_clip_fraction == 0.0


def test_statistics_are_token_means_by_owner() -> None:
    scorer = tiny_scorer()
    micro = make_micro_batch(BATCH, range(len(BATCH)))
    logprobs, entropy = (x.detach().numpy() for x in scorer(micro, with_entropy=True))
    owner = BATCH.owner[micro.index.numpy()]
    controller, expert = owner == Owner.CONTROLLER, owner == Owner.EXPERT
    (stats,) = policy_update(Recording(scorer), BATCH, ON_POLICY, 64)
    assert stats.entropy == pytest.approx(entropy[controller].mean(), rel=1e-5)
    assert stats.owners["expert"].nll == pytest.approx(-logprobs[expert].mean(), rel=1e-5)
    assert stats.owners["controller"].nll == pytest.approx(-logprobs[controller].mean(), rel=1e-5)
    gap = np.abs(logprobs[controller] + 6.0)
    assert stats.logprob_gap_mean == pytest.approx(gap.mean(), rel=1e-4)
    assert stats.logprob_gap_max == pytest.approx(gap.max(), rel=1e-4)
    assert stats.trained_tokens == BATCH.n_train
    assert {k: v.tokens for k, v in stats.owners.items()} == {
        k: v for k, v in BATCH.trained_by_owner().items() if k in ("controller", "expert")
    }
    assert stats.metrics()["ratio_mean/expert"] == 1.0


def test_d09_training_logprobs_use_the_sampling_temperature() -> None:
    """Sampled at T = 0.6, step 0: teacher-forced and sampling logprobs agree at 0.6 and not at 1."""
    scorer = tiny_scorer()
    scorer.model.lm_head.weight.data.mul_(20)  # sharp enough that temperature matters
    micro = make_micro_batch(BATCH, range(len(BATCH)))
    sampling = np.full(len(BATCH.token_ids), np.nan, np.float32)
    sampling[micro.index.numpy()] = scorer(micro, temperature=0.6)[0].detach().numpy()
    sampling[BATCH.owner != Owner.CONTROLLER] = np.nan
    batch = dataclasses.replace(BATCH, sampling_logprob=sampling)
    gaps = {}
    for temperature in (0.6, 1.0):
        fresh = tiny_scorer()
        fresh.model.lm_head.weight.data.mul_(20)
        (stats,) = policy_update(Recording(fresh), batch, PolicyObjective(temperature=temperature), 64)
        gaps[temperature] = stats.logprob_gap_mean
    assert gaps[0.6] == pytest.approx(0.0, abs=1e-4)
    assert gaps[1.0] > 0.5


def test_d13_untrained_positions_reach_neither_loss_nor_gradient() -> None:
    """Advantages and sampling logprobs of untrained tokens may be anything."""
    garbage = np.where(BATCH.trained, BATCH.advantage, np.nan).astype(np.float32)
    runs = []
    for batch in (BATCH, dataclasses.replace(BATCH, advantage=garbage)):
        engine = Recording(tiny_scorer())
        (stats,) = policy_update(engine, batch, ON_POLICY, 64)
        runs.append((stats.loss, engine.gradients))
    assert runs[0][0] == runs[1][0]
    for a, b in zip(runs[0][1], runs[1][1], strict=True):
        assert torch.equal(a, b)


def test_d15_a_batch_without_trained_tokens_changes_nothing_and_is_counted_as_empty() -> None:
    batch = make_batch((10, 12), trained=(0, 0))
    engine = Recording(tiny_scorer())
    before = [p.detach().clone() for p in engine.scorer.parameters()]
    (policy,) = policy_update(engine, batch, ON_POLICY, 64)
    sft = sft_update(engine, batch, SftObjective(), 64)
    for stats in (policy, sft):
        assert stats.is_empty and stats.loss == 0.0 and not stats.applied
    for a, b in zip(before, engine.scorer.parameters(), strict=True):
        assert torch.equal(a, b)
    assert sft_update(engine, sft_examples([]), SftObjective(), 64).is_empty


class Poisoned(Recording):
    """Scores of micro-batches that hold the given token id come out as NaN, and so would their gradients."""

    poison = 0

    def score(self, micro: MicroBatch, *, temperature: float, with_entropy: bool) -> Any:
        logprobs, entropy = super().score(micro, temperature=temperature, with_entropy=with_entropy)
        if bool((micro.input_ids[0, : micro.tokens] == self.poison).any()):
            logprobs = logprobs * float("nan")
        return logprobs, entropy


@pytest.mark.parametrize("objective", ["policy", "sft"])
def test_d17_a_skipped_micro_batch_leaves_the_denominator(objective: str) -> None:
    whole = make_batch((33, 33, 33), trained=(20, 9, 14))
    ids = whole.token_ids.copy()
    ids[ids == 0] = 1
    ids[40] = 0  # in the second sequence
    whole = dataclasses.replace(whole, token_ids=ids, format=np.zeros_like(whole.format))
    kept = np.r_[0:33, 66:99]
    rest = TrainingBatch(
        offsets=np.asarray([0, 33, 66]),
        **{
            name: getattr(whole, name)[kept]
            for name in ("token_ids", "trained", "format", "owner", "advantage", "sampling_logprob")
        },
    )

    def run(engine: Recording, batch: TrainingBatch) -> Any:
        if objective == "policy":
            return policy_update(engine, batch, ON_POLICY, 33)[0]
        return sft_update(engine, batch, SftObjective(), 33)

    clean, poisoned = Recording(tiny_scorer()), Poisoned(tiny_scorer())
    want, got = run(clean, rest), run(poisoned, whole)
    assert (got.skipped_micro_batches, got.micro_batches, got.trained_tokens) == (1, 3, 34)
    assert got.loss == pytest.approx(want.loss, rel=1e-5)
    assert_gradients(poisoned.gradients, clean.gradients)
    assert poisoned.scales[0] == pytest.approx(43 / 34)


def test_nothing_finite_at_all_leaves_the_weights_alone() -> None:
    batch = make_batch((30,))
    engine = Poisoned(tiny_scorer())
    engine.poison = int(batch.token_ids[0])
    before = [p.detach().clone() for p in engine.scorer.parameters()]
    (stats,) = policy_update(engine, batch, ON_POLICY, 64)
    assert stats.skipped_micro_batches == 1 and not stats.applied and math.isnan(stats.grad_norm)
    for a, b in zip(before, engine.scorer.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_non_finite_gradient_is_not_applied() -> None:
    engine = Recording(tiny_scorer())
    parameter = next(iter(engine.scorer.parameters()))
    before = parameter.detach().clone()
    parameter.register_hook(lambda grad: grad * float("inf"))
    (stats,) = policy_update(engine, BATCH, ON_POLICY, 64)
    assert not stats.applied and not math.isfinite(stats.grad_norm)
    assert torch.equal(parameter, before)


def test_sft_loss_is_eq_9_over_the_batch() -> None:
    scorer = tiny_scorer()
    micro = make_micro_batch(BATCH, range(len(BATCH)))
    nll = -scorer(micro)[0].detach().numpy()
    fmt = BATCH.format[micro.index.numpy()] != 0
    stats = sft_update(Recording(scorer), BATCH, SftObjective(lambda_fmt=0.5), 64)
    assert stats.cross_entropy == pytest.approx(nll.mean(), rel=1e-5)
    assert stats.format_loss == pytest.approx(nll[fmt].mean(), rel=1e-5)
    assert stats.loss == pytest.approx(nll.mean() + 0.5 * nll[fmt].mean(), rel=1e-5)
    assert stats.format_tokens == fmt.sum()


def test_repeated_steps_reduce_the_loss() -> None:
    engine = PlainEngine(tiny_scorer(), OptimizerConfig(learning_rate=1e-2))
    losses = [sft_update(engine, BATCH, SftObjective(), 64).loss for _ in range(10)]
    assert losses[-1] < 0.6 * losses[0]


def test_policy_steps_raise_what_was_good_and_lower_what_was_bad() -> None:
    batch = make_batch((30, 30), seed=5)
    advantage = np.repeat([1.0, -1.0], 30).astype(np.float32)
    batch = dataclasses.replace(batch, advantage=advantage)
    engine = PlainEngine(tiny_scorer(), OptimizerConfig(learning_rate=3e-3))
    good, bad = make_micro_batch(batch, [0]), make_micro_batch(batch, [1])
    before = [engine.scorer(m)[0].mean().item() for m in (good, bad)]
    for _ in range(5):
        policy_update(engine, batch, ON_POLICY, 64)
    after = [engine.scorer(m)[0].mean().item() for m in (good, bad)]
    assert after[0] > before[0] + 0.1 and after[1] < before[1] - 0.1
