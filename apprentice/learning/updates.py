"""One optimizer step of Stage I (Eqs. 3-6) or of supervised fine-tuning (Eqs. 7-9), on any engine.

Both sum token losses that are already divided by counts of the *global* batch, so loss and gradient are the
same whatever the split into micro-batches and ranks. A micro-batch whose loss is not finite is skipped and
counted, and its tokens leave the denominator.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from apprentice.learning.batch import TrainingBatch
from apprentice.learning.engine import StepResult, TrainEngine
from apprentice.learning.microbatch import MicroBatch, make_micro_batch
from apprentice.learning.packing import pack_batch
from apprentice.learning.stats import PolicyStats, SftStats, TokenSums
from apprentice.objectives.policy_loss import policy_loss, truncated_importance_weights
from apprentice.objectives.sft_loss import Normalization, sft_loss, sft_token_weights
from apprentice.trajectory import Owner

__all__ = ["PolicyObjective", "SftObjective", "policy_update", "sft_update"]

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class PolicyObjective:
    """Constants of Stage I (Table 9).

    ``temperature`` is the sampling temperature; it divides training logits too. ``updates`` optimizer steps
    share the batch, each over the whole of it. ``importance_cap`` switches on truncated importance weights
    for the gap between engine and learner, on controller tokens (not in the paper, off by default).
    """

    clip_epsilon: float = 0.2
    dual_clip: float = 3.0
    temperature: float = 1.0
    updates: int = 1
    importance_cap: float | None = None


@dataclass(frozen=True, slots=True)
class SftObjective:
    """Constants of Stage II (Table 9) and of the protocol warm-up (``lambda_fmt`` 0)."""

    lambda_fmt: float = 0.5
    normalization: Normalization = "batch"


@dataclass(slots=True)
class _Pass:
    """What one rank's forward and backward passes over its micro-batches gave."""

    loss: float = 0.0
    used_weight: float = 0.0
    input_tokens: int = 0
    micro_batches: int = 0
    skipped: int = 0
    index: list[npt.NDArray[np.int64]] = field(default_factory=list)
    columns: dict[str, list[FloatArray]] = field(default_factory=dict)

    def tokens(self) -> tuple[npt.NDArray[np.int64], dict[str, FloatArray]]:
        """Per-token columns of the used micro-batches, concatenated."""
        index = np.concatenate(self.index) if self.index else np.zeros(0, np.int64)
        return index, {name: np.concatenate(parts) for name, parts in self.columns.items()}


_LossOf = Callable[[MicroBatch, Tensor], tuple[Tensor, dict[str, Tensor]]]


def policy_update(
    engine: TrainEngine, batch: TrainingBatch, objective: PolicyObjective, micro_batch_tokens: int
) -> list[PolicyStats]:
    """``objective.updates`` optimizer steps on one global batch of trajectories; all ranks call it.

    pi_old is the controller before the first of these steps, by teacher forcing, for controller and expert
    tokens alike. The first step's own forward passes run under exactly these weights, so their detached
    log-probabilities *are* log pi_old, bit for bit: no extra pass is made. They are kept for later steps.

    A batch without trained tokens changes nothing and comes back as one empty step.

    Returns:
        One entry an optimizer step, equal on all ranks.
    """
    n_train = batch.n_train
    if n_train == 0:
        return [PolicyStats.empty()]
    old = np.full(len(batch.token_ids), np.nan, np.float32)
    weights = batch.trained.astype(np.float64) / n_train
    device = engine.device

    def loss_of(micro: MicroBatch, logprobs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        index = micro.index.numpy()
        old_logprobs = logprobs.detach() if first else torch.from_numpy(old[index]).to(device)
        token_weights = None
        if objective.importance_cap is not None:
            sampling = torch.from_numpy(batch.sampling_logprob[index]).to(device)
            sampled = torch.from_numpy(batch.owner[index] == Owner.CONTROLLER).to(device)
            token_weights = truncated_importance_weights(
                old_logprobs, sampling, sampled & ~sampling.isnan(), objective.importance_cap
            )
        result = policy_loss(
            logprobs,
            old_logprobs,
            torch.from_numpy(batch.advantage[index]).to(device),
            torch.ones_like(logprobs, dtype=torch.bool),
            n_train=n_train,
            clip_epsilon=objective.clip_epsilon,
            dual_clip=objective.dual_clip,
            token_weights=token_weights,
        )
        return result.loss, {
            "old": old_logprobs,
            "ratio": result.ratio,
            "clipped": result.clipped,
            "dual_clipped": result.dual_clipped,
        }

    out = []
    for update in range(objective.updates):
        first = update == 0
        started = time.perf_counter()
        done = _accumulate(
            engine, batch, micro_batch_tokens, weights, loss_of, temperature=objective.temperature
        )
        index, columns = done.tokens()
        if first and objective.updates > 1 and len(index):
            old[index] = columns["old"]
        sums = TokenSums.of_policy(batch, index, columns)
        sums, step = _finish(engine, done, sums)
        out.append(PolicyStats.of(sums, step, time.perf_counter() - started))
    return out


def sft_update(
    engine: TrainEngine, batch: TrainingBatch, objective: SftObjective, micro_batch_tokens: int
) -> SftStats:
    """One optimizer step on one global batch of supervised sequences; all ranks call it.

    Where a micro-batch had to be skipped, the cross-entropy is divided by the targets that were used; the
    format term keeps the whole batch's ratio of targets to format tokens.

    Returns:
        Statistics, equal on all ranks.
    """
    if batch.n_train == 0:
        return SftStats.empty()
    device = engine.device
    masks = (batch.trained != 0, batch.format != 0, batch.offsets)
    weights = sft_token_weights(*masks, objective.lambda_fmt, objective.normalization)
    shares = sft_token_weights(*masks, 0.0, objective.normalization).astype(np.float64)

    def loss_of(micro: MicroBatch, logprobs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        part = torch.from_numpy(weights[micro.index.numpy()]).to(device)
        return sft_loss(logprobs, part), {}

    started = time.perf_counter()
    done = _accumulate(
        engine, batch, micro_batch_tokens, shares, loss_of, temperature=1.0, with_entropy=False
    )
    sums = TokenSums.of_sft(batch, *done.tokens())
    sums, step = _finish(engine, done, sums)
    return SftStats.of(sums, step, time.perf_counter() - started)


def _accumulate(
    engine: TrainEngine,
    batch: TrainingBatch,
    micro_batch_tokens: int,
    weights: npt.NDArray[np.float64],
    loss_of: _LossOf,
    *,
    temperature: float,
    with_entropy: bool = True,
) -> _Pass:
    """Forward and backward over this rank's micro-batches. ``weights`` sum to 1 over the global batch."""
    done = _Pass()
    for sequences in pack_batch(batch, micro_batch_tokens, engine.rank, engine.world_size):
        host = make_micro_batch(batch, sequences)
        micro = host.to(engine.device)
        logprobs, entropy = engine.score(micro, temperature=temperature, with_entropy=with_entropy)
        if host.is_empty:
            engine.backward(logprobs.sum(), discard=True)
            continue
        loss, columns = loss_of(micro, logprobs)
        done.micro_batches += 1
        done.input_tokens += host.tokens
        if not bool(torch.isfinite(loss)):
            done.skipped += 1
            engine.backward(loss, discard=True)
            continue
        engine.backward(loss)
        index = host.index.numpy()
        done.loss += float(loss.detach())
        done.used_weight += float(weights[index].sum())
        done.index.append(index)
        for name, values in {"logprob": logprobs, "entropy": entropy, **columns}.items():
            done.columns.setdefault(name, []).append(values.detach().float().cpu().numpy())
    return done


def _finish(engine: TrainEngine, done: _Pass, sums: TokenSums) -> tuple[TokenSums, StepResult]:
    """Reduce the statistics over ranks, correct the denominator, take the step."""
    sums.add(
        loss=done.loss,
        used_weight=done.used_weight,
        input_tokens=done.input_tokens,
        micro_batches=done.micro_batches,
        skipped=done.skipped,
    )
    sums = sums.reduced(engine)
    if sums["used_weight"] <= 0:  # nothing finite anywhere: leave the weights alone
        return sums, StepResult(float("nan"), 0.0, applied=False)
    scale = 1.0 / sums["used_weight"] if sums["skipped"] else 1.0
    sums.scale("loss", scale)
    return sums, engine.step(scale)
