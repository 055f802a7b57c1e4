"""What an optimizer step needs of an engine, and a plain PyTorch engine for one process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from apprentice.config.schema import OptimizerConfig
from apprentice.learning.microbatch import MicroBatch
from apprentice.learning.model import TokenScorer
from apprentice.learning.schedule import learning_rate

__all__ = ["PlainEngine", "StepResult", "TrainEngine"]


@dataclass(frozen=True, slots=True)
class StepResult:
    """``grad_norm`` before clipping; not ``applied`` where a non-finite gradient left the weights alone."""

    grad_norm: float
    learning_rate: float
    applied: bool


class TrainEngine(Protocol):
    """One rank. Ranks call the same methods in the same order the same number of times."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def score(self, micro: MicroBatch, *, temperature: float, with_entropy: bool) -> tuple[Tensor, Tensor]:
        """``(logprobs [N], entropy [N])`` of a micro-batch on this device, as :class:`TokenScorer`."""
        ...

    def backward(self, loss: Tensor, *, discard: bool = False) -> None:
        """Add the gradient of ``loss``: the engine *sums* over micro-batches and ranks, never averages.

        With ``discard`` the backward pass runs, so that collectives match, and adds exactly zero.
        """
        ...

    def step(self, gradient_scale: float = 1.0) -> StepResult:
        """Multiply the summed gradient, clip its global norm, update the weights, clear the gradient."""
        ...

    def all_reduce(self, values: Tensor, op: Literal["sum", "max"]) -> Tensor:
        """Combine a small float64 host tensor over ranks."""
        ...


class GradientGate:
    """Turns a backward pass into one that adds zero, whatever it computed (NaN included)."""

    def __init__(self, module: nn.Module) -> None:
        self.closed = False
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_hook(self._pass)  # type: ignore[no-untyped-call]

    def _pass(self, grad: Tensor) -> Tensor:
        return torch.zeros_like(grad) if self.closed else grad


class PlainEngine:
    """One process, PyTorch only: the reference that other engines are tested and measured against.

    AdamW keeps its state in the dtype of the parameters, so train float32 parameters with it.
    """

    def __init__(
        self, scorer: TokenScorer, optimizer: OptimizerConfig, *, total_steps: int | None = None
    ) -> None:
        self.scorer = scorer
        self.config = optimizer
        self.total_steps = total_steps
        self.steps = 0
        self._gate = GradientGate(scorer)
        self._optimizer = torch.optim.AdamW(
            scorer.parameters(),
            lr=optimizer.learning_rate,
            betas=optimizer.betas,
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
        )

    @property
    def rank(self) -> int:
        return 0

    @property
    def world_size(self) -> int:
        return 1

    @property
    def device(self) -> torch.device:
        return next(self.scorer.parameters()).device

    def score(self, micro: MicroBatch, *, temperature: float, with_entropy: bool) -> tuple[Tensor, Tensor]:
        """See :class:`TrainEngine`."""
        logprobs, entropy = self.scorer(micro, temperature=temperature, with_entropy=with_entropy)
        return logprobs, entropy

    def backward(self, loss: Tensor, *, discard: bool = False) -> None:
        """See :class:`TrainEngine`."""
        self._gate.closed = discard
        loss.backward()  # type: ignore[no-untyped-call]
        self._gate.closed = False

    def step(self, gradient_scale: float = 1.0) -> StepResult:
        """See :class:`TrainEngine`."""
        parameters = [p for p in self.scorer.parameters() if p.grad is not None]
        for parameter in parameters:
            if gradient_scale != 1.0 and parameter.grad is not None:
                parameter.grad.mul_(gradient_scale)
        rate = learning_rate(self.config, self.steps, self.total_steps)
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, self.config.max_grad_norm))
        applied = norm == norm and norm != float("inf")
        if applied:
            for group in self._optimizer.param_groups:
                group["lr"] = rate
            self._optimizer.step()
            self.steps += 1
        self._optimizer.zero_grad(set_to_none=True)
        return StepResult(norm, rate, applied)

    def all_reduce(self, values: Tensor, op: Literal["sum", "max"]) -> Tensor:
        """See :class:`TrainEngine`."""
        return values
