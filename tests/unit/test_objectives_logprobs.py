"""Chunked log-probabilities against float64 NumPy; D11, D19; bounded memory at a 152k vocabulary."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from apprentice.objectives.logprobs import chunked_logprobs, temperature_divisor

pytestmark = pytest.mark.unit

N, D, V = 23, 8, 57


def inputs(
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    return normal(N, D), normal(V, D), normal(V), torch.randint(0, V, (N,), generator=generator)


def reference(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    divisor: float,
) -> tuple[np.ndarray, np.ndarray]:
    logits = hidden.detach().double().numpy() @ weight.detach().double().numpy().T
    if bias is not None:
        logits = logits + bias.detach().double().numpy()
    logits = logits / divisor
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return np.log(p[np.arange(len(p)), targets.numpy()]), -(p * np.log(p)).sum(-1)


@pytest.mark.parametrize("chunk", [1, 4, 22, 23, 24, 1000])
@pytest.mark.parametrize("with_bias", [False, True])
def test_d19_values_equal_unchunked_for_every_chunk_size(chunk: int, with_bias: bool) -> None:
    hidden, weight, bias, targets = inputs()
    used = bias if with_bias else None
    logprobs, entropy = chunked_logprobs(
        hidden, weight, targets, bias=used, temperature=0.7, chunk=chunk, with_entropy=True
    )
    want_logprobs, want_entropy = reference(hidden, weight, used, targets, 0.7)
    assert logprobs.detach().numpy() == pytest.approx(want_logprobs, rel=1e-12)
    assert entropy.numpy() == pytest.approx(want_entropy, rel=1e-10)
    assert not entropy.requires_grad


@pytest.mark.parametrize("chunk", [1, 5, 23])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_gradients_equal_dense_autograd(chunk: int, temperature: float) -> None:
    hidden, weight, bias, targets = inputs()
    upstream = torch.linspace(-1, 2, N, dtype=torch.float64)
    upstream[4] = 0.0
    dense = torch.log_softmax((hidden @ weight.T + bias) / temperature, -1)[torch.arange(N), targets]
    want = torch.autograd.grad((dense * upstream).sum(), (hidden, weight, bias))
    logprobs, _ = chunked_logprobs(
        hidden, weight, targets, bias=bias, temperature=temperature, chunk=chunk, with_entropy=True
    )
    got = torch.autograd.grad((logprobs * upstream).sum(), (hidden, weight, bias))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_d11_temperature_zero_and_one_leave_logits_unchanged() -> None:
    hidden, weight, _, targets = inputs()
    assert [temperature_divisor(t) for t in (0.0, 1.0, 0.5)] == [1.0, 1.0, 0.5]
    for temperature, divisor in ((0.0, 1.0), (1.0, 1.0), (0.5, 0.5)):
        logprobs, _ = chunked_logprobs(hidden, weight, targets, temperature=temperature)
        want, _ = reference(hidden, weight, None, targets, divisor)
        assert logprobs.detach().numpy() == pytest.approx(want, rel=1e-12)
    with pytest.raises(ValueError, match="temperature"):
        chunked_logprobs(hidden, weight, targets, temperature=-1.0)


def test_d13_a_row_without_upstream_gradient_leaves_none_even_where_it_is_nan() -> None:
    hidden, weight, bias, targets = inputs()
    upstream = torch.ones(N, dtype=torch.float64)
    upstream[[3, 9]] = 0.0
    clean, _ = chunked_logprobs(hidden, weight, targets, bias=bias, chunk=4)
    want = torch.autograd.grad((clean * upstream).sum(), (hidden, weight, bias))
    dirty = hidden.detach().clone()
    dirty[3], dirty[9] = float("nan"), float("inf")
    dirty.requires_grad_()
    logprobs, _ = chunked_logprobs(dirty, weight, targets, bias=bias, chunk=4)
    kept = torch.where(upstream != 0, logprobs, 0.0).sum()
    got = torch.autograd.grad(kept, (dirty, weight, bias))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


def test_extreme_logits_do_not_overflow() -> None:
    hidden = torch.full((2, D), 60.0)
    weight = torch.zeros(V, D)
    weight[0], weight[1] = 10.0, -10.0
    logprobs, entropy = chunked_logprobs(hidden, weight, torch.tensor([0, 1]), with_entropy=True)
    assert logprobs.tolist() == [0.0, -9600.0]
    assert entropy.tolist() == pytest.approx([0.0, 0.0], abs=1e-6)


def test_bfloat16_inputs_give_float32_results_near_the_float64_ones() -> None:
    hidden, weight, _, targets = inputs(torch.bfloat16)
    logprobs, _ = chunked_logprobs(hidden, weight, targets, chunk=7)
    want, _ = reference(hidden, weight, None, targets, 1.0)
    assert logprobs.dtype is torch.float32
    assert logprobs.detach().numpy() == pytest.approx(want, abs=0.06)  # logits are rounded to 8 bits
    logprobs.sum().backward()
    assert weight.grad is not None and weight.grad.dtype is torch.bfloat16


def test_no_rows_and_entropy_off() -> None:
    hidden, weight, bias, _ = inputs()
    none = torch.zeros(0, dtype=torch.int64)
    logprobs, entropy = chunked_logprobs(hidden[:0], weight, none, bias=bias)
    logprobs.sum().backward()
    assert logprobs.shape == entropy.shape == (0,)
    assert weight.grad is not None and weight.grad.abs().sum().item() == 0.0
    _, entropy = chunked_logprobs(hidden, weight, torch.zeros(N, dtype=torch.int64))
    assert torch.isnan(entropy).all()


def test_nothing_of_vocabulary_size_is_kept_for_backward() -> None:
    hidden, weight, _, targets = inputs()
    kept: list[int] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel() if tensor is not weight else 0)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        chunked_logprobs(hidden, weight, targets, chunk=4)
    assert max(kept) <= max(N * D, weight.numel())
    assert N * V not in kept


PEAK = """
import resource, sys, torch
from apprentice.objectives.logprobs import chunked_logprobs
torch.set_num_threads(1)
rows, vocabulary, width, chunk = 2048, 151936, 16, 64
hidden = torch.randn(rows, width, requires_grad=True)
weight = torch.randn(vocabulary, width, requires_grad=True)
targets = torch.randint(0, vocabulary, (rows,))
hidden[:2].sum().item()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
logprobs, _ = chunked_logprobs(hidden, weight, targets, chunk=chunk, with_entropy=True)
logprobs.sum().backward()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def test_peak_memory_at_a_152k_vocabulary_is_a_few_chunks() -> None:
    """Dense float32 logits of these rows alone are 1.2 GB; a chunk of 64 rows is 39 MB."""
    run = subprocess.run(
        [sys.executable, "-c", PEAK], capture_output=True, text=True, check=True, timeout=120
    )
    grown = int(run.stdout)
    assert grown < 6 * 64 * 151936 * 4, f"{grown / 2**20:.0f} MiB"
