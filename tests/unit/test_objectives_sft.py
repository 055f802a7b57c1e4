"""Eqs. 7-9 against plain Python, per batch and per sequence."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from apprentice.objectives.sft_loss import sft_loss, sft_token_weights

pytestmark = pytest.mark.unit

# Three sequences: targets and format tokens; without format tokens; without targets.
LENGTHS = [6, 4, 3]
OFFSETS = np.asarray([0, 6, 10, 13])
TARGET = np.asarray([0, 1, 1, 1, 1, 0, 0, 1, 1, 1, 0, 0, 0], bool)
FORMAT = np.asarray([0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0], bool)
LOGPROBS = np.linspace(-3.0, -0.1, 13)


def loss_of(normalization: str, lambda_fmt: float) -> float:
    weights = sft_token_weights(TARGET, FORMAT, OFFSETS, lambda_fmt, normalization)  # type: ignore[arg-type]
    return float(sft_loss(torch.from_numpy(LOGPROBS), torch.from_numpy(weights)))


def mean_nll(positions: list[int]) -> float:
    return -math.fsum(float(LOGPROBS[i]) for i in positions) / len(positions) if positions else 0.0


@pytest.mark.parametrize("lambda_fmt", [0.0, 0.5, 1.0])
def test_batch_normalisation_is_the_token_mean_of_both_terms(lambda_fmt: float) -> None:
    want = mean_nll([1, 2, 3, 4, 7, 8, 9]) + lambda_fmt * mean_nll([1, 3])
    assert loss_of("batch", lambda_fmt) == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize("lambda_fmt", [0.0, 0.5, 1.0])
def test_sequence_normalisation_averages_the_equations_over_sequences(lambda_fmt: float) -> None:
    first = mean_nll([1, 2, 3, 4]) + lambda_fmt * mean_nll([1, 3])
    second = mean_nll([7, 8, 9]) + lambda_fmt * 0.0  # no tool call: L_fmt = 0
    assert loss_of("sequence", lambda_fmt) == pytest.approx((first + second) / 2, rel=1e-6)


def test_no_format_token_anywhere_leaves_the_cross_entropy() -> None:
    none = np.zeros_like(FORMAT)
    weights = sft_token_weights(TARGET, none, OFFSETS, 0.5)
    loss = float(sft_loss(torch.from_numpy(LOGPROBS), torch.from_numpy(weights)))
    assert loss == pytest.approx(mean_nll([1, 2, 3, 4, 7, 8, 9]), rel=1e-6)


def test_d15_no_target_gives_zero_loss_and_zero_gradient() -> None:
    none = np.zeros_like(TARGET)
    logprobs = torch.from_numpy(LOGPROBS).requires_grad_()
    loss = sft_loss(logprobs, torch.from_numpy(sft_token_weights(none, none, OFFSETS, 0.5)))
    loss.backward()
    assert loss.item() == 0.0
    assert logprobs.grad is not None and logprobs.grad.abs().sum().item() == 0.0


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
def test_d13_positions_outside_the_mask_never_enter_the_arithmetic(poison: float) -> None:
    weights = torch.from_numpy(sft_token_weights(TARGET, FORMAT, OFFSETS, 0.5))
    dirty = torch.from_numpy(np.where(TARGET, LOGPROBS, poison)).requires_grad_()
    loss = sft_loss(dirty, weights)
    loss.backward()
    assert loss.item() == loss_of("batch", 0.5)
    assert dirty.grad is not None and torch.equal(dirty.grad.float(), -weights)


def test_parts_of_a_batch_add_up() -> None:
    weights = torch.from_numpy(sft_token_weights(TARGET, FORMAT, OFFSETS, 0.5))
    logprobs = torch.from_numpy(LOGPROBS)
    parts = [sft_loss(p, w) for p, w in zip(logprobs.split(LENGTHS), weights.split(LENGTHS), strict=True)]
    assert float(sum(parts)) == pytest.approx(loss_of("batch", 0.5), rel=1e-6)


def test_a_format_token_that_is_no_target_is_an_error() -> None:
    with pytest.raises(ValueError, match="must be targets"):
        sft_token_weights(TARGET, ~TARGET, OFFSETS, 0.5)
    with pytest.raises(ValueError, match="lambda_fmt"):
        sft_token_weights(TARGET, FORMAT, OFFSETS, -0.1)
