"""Eqs. 3-6 against a float64 reference in plain Python, and the public reports D01, D03, D13, D15."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from apprentice.objectives.policy_loss import policy_loss, truncated_importance_weights

pytestmark = pytest.mark.unit

EPS, C = 0.2, 3.0


def g(ratio: float, advantage: float) -> float:
    """Eqs. 4 and 5."""
    s = min(ratio * advantage, min(max(ratio, 1 - EPS), 1 + EPS) * advantage)
    return s if advantage >= 0 else max(s, C * advantage)


def slope(ratio: float, advantage: float) -> float:
    """d g / d log pi_theta: ratio * A where neither clip holds."""
    if advantage >= 0:
        return 0.0 if ratio > 1 + EPS else ratio * advantage
    return 0.0 if ratio < 1 - EPS or ratio > C else ratio * advantage


# Ratio on every side of every corner, both signs and zero.
RATIOS = [0.01, 0.5, 0.79, 0.81, 1.0, 1.19, 1.21, 2.0, 2.99, 3.01, 50.0]
ADVANTAGES = [-2.0, -0.3, 0.0, 0.4, 1.7]
GRID = [(r, a) for r in RATIOS for a in ADVANTAGES]


def grid_tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    old = torch.linspace(-6, -0.1, len(GRID), dtype=torch.float64)
    new = (old + torch.tensor([math.log(r) for r, _ in GRID], dtype=torch.float64)).requires_grad_()
    return new, old, torch.tensor([a for _, a in GRID], dtype=torch.float64)


def test_loss_and_gradient_match_the_equations_at_every_corner() -> None:
    new, old, advantage = grid_tensors()
    out = policy_loss(new, old, advantage, torch.ones(len(GRID)), n_train=len(GRID))
    out.loss.backward()
    want = -math.fsum(g(r, a) for r, a in GRID) / len(GRID)
    assert out.loss.item() == pytest.approx(want, rel=1e-5)
    assert new.grad is not None
    assert new.grad.numpy() == pytest.approx([-slope(r, a) / len(GRID) for r, a in GRID], rel=1e-4, abs=1e-9)


def test_statistics_count_what_each_clip_holds() -> None:
    new, old, advantage = grid_tensors()
    out = policy_loss(new, old, advantage, torch.ones(len(GRID)), n_train=len(GRID))
    assert out.ratio.numpy() == pytest.approx([r for r, _ in GRID], rel=1e-4)
    assert out.clipped.tolist() == [(a > 0 and r > 1 + EPS) or (a < 0 and r < 1 - EPS) for r, a in GRID]
    assert out.dual_clipped.tolist() == [a < 0 and r > C for r, a in GRID]


def test_on_policy_ratio_is_exactly_one_and_the_gradient_is_the_advantage() -> None:
    new = torch.tensor([-1.0, -5.0, -0.01], requires_grad=True)
    advantage = torch.tensor([1.5, -0.7, 0.0])
    out = policy_loss(new, new.detach(), advantage, torch.ones(3), n_train=3)
    out.loss.backward()
    assert out.ratio.tolist() == [1.0, 1.0, 1.0]
    assert new.grad is not None and new.grad.tolist() == pytest.approx((-advantage / 3).tolist())
    assert not out.clipped.any() and not out.dual_clipped.any()


@pytest.mark.parametrize("parts", [[55], [13, 42], [1, 1, 53], [11] * 5])
def test_d01_d03_parts_of_a_batch_add_up_whatever_the_split(parts: list[int]) -> None:
    """Loss of the parts with the global N_train, never re-divided by parts or by their number."""
    new, old, advantage = grid_tensors()
    whole = policy_loss(new, old, advantage, torch.ones(55), n_train=55).loss
    (want,) = torch.autograd.grad(whole, new)
    losses = [
        policy_loss(n, o, a, torch.ones(len(n)), n_train=55).loss
        for n, o, a in zip(new.split(parts), old.split(parts), advantage.split(parts), strict=True)
    ]
    total = torch.stack(losses).sum()
    (got,) = torch.autograd.grad(total, new)
    assert total.item() == pytest.approx(whole.item(), rel=1e-5)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("poison", [200.0, -200.0, float("inf"), float("-inf"), float("nan")])
def test_d13_masked_positions_never_enter_the_arithmetic(poison: float) -> None:
    new, old, advantage = grid_tensors()
    mask = torch.arange(len(GRID)) % 3 != 0
    clean = policy_loss(new, old, advantage, mask, n_train=int(mask.sum()))
    (want,) = torch.autograd.grad(clean.loss, new)
    dirty_new = torch.where(mask, new.detach(), poison).requires_grad_()
    dirty_old = torch.where(mask, old, -poison)
    dirty_advantage = torch.where(mask, advantage, poison)
    dirty = policy_loss(dirty_new, dirty_old, dirty_advantage, mask, n_train=int(mask.sum()))
    (got,) = torch.autograd.grad(dirty.loss, dirty_new)
    assert dirty.loss.item() == clean.loss.item()
    assert torch.equal(got, want)
    assert math.isfinite(dirty.ratio.sum().item())


def test_d15_no_trained_token_gives_zero_loss_and_zero_gradient() -> None:
    new, old, advantage = grid_tensors()
    out = policy_loss(new, old, advantage, torch.zeros(len(GRID)), n_train=0)
    out.loss.backward()
    assert out.loss.item() == 0.0
    assert new.grad is not None and new.grad.abs().sum().item() == 0.0


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("gap", [200.0, -200.0])
def test_extreme_log_ratios_stay_finite_at_trained_positions(advantage: float, gap: float) -> None:
    new = torch.tensor([gap - 300.0], requires_grad=True)
    out = policy_loss(new, torch.tensor([-300.0]), torch.tensor([advantage]), torch.ones(1), n_train=1)
    out.loss.backward()
    assert math.isfinite(out.loss.item())
    assert new.grad is not None and new.grad.tolist() == [0.0]
    assert out.loss.item() == pytest.approx(-g(math.exp(min(gap, 20)), advantage), abs=1e-6)


def test_importance_weights_correct_sampled_tokens_only_and_are_capped() -> None:
    old = torch.tensor([-1.0, -1.0, -1.0, -1.0])
    sampling = torch.tensor([-1.5, -0.5, -9.0, float("nan")])
    sampled = torch.tensor([True, True, True, False])
    out = truncated_importance_weights(old, sampling, sampled, cap=2.0)
    assert out.tolist() == pytest.approx([math.exp(0.5), math.exp(-0.5), 2.0, 1.0])
    new = old.clone().requires_grad_()
    loss = policy_loss(new, old, torch.ones(4), torch.ones(4), n_train=4, token_weights=out).loss
    loss.backward()
    assert new.grad is not None and new.grad.numpy() == pytest.approx(-out.numpy() / 4)


def test_random_batches_match_the_reference() -> None:
    rng = np.random.default_rng(3)
    new = rng.normal(-2, 1, 400)
    old = new + rng.normal(0, 0.5, 400)
    advantage = rng.normal(0, 1, 400)
    mask = rng.random(400) < 0.7
    want = -math.fsum(
        g(math.exp(n - o), a) for n, o, a, m in zip(new, old, advantage, mask, strict=True) if m
    )
    out = policy_loss(*map(torch.from_numpy, (new, old, advantage, mask)), n_train=int(mask.sum()))
    assert out.loss.item() == pytest.approx(want / mask.sum(), rel=1e-5)
