"""A :class:`apprentice.learning.engine.TrainEngine` on DeepSpeed: ZeRO 0 to 3, one or many ranks, CPU or GPU.

DeepSpeed averages gradients over ranks and over accumulation steps. Here a micro-batch's loss is already
divided by counts of the global batch, so both averages are undone: the loss is multiplied by the number of
ranks, and accumulation is left to the caller (``managed_gradient_accumulation`` off: ``backward`` adds and
``step`` reduces and updates).

Run on CPUs with gloo; has not run on a GPU yet.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from actors._heap import HeapTrimmer
from apprentice.config.schema import LearnerConfig, OptimizerConfig
from apprentice.learning.engine import GradientGate, StepResult
from apprentice.learning.schedule import learning_rate

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from apprentice.learning.microbatch import MicroBatch
    from apprentice.learning.model import TokenScorer

__all__ = ["DeepSpeedEngine", "deepspeed_config"]


def deepspeed_config(learner: LearnerConfig, optimizer: OptimizerConfig, world_size: int) -> dict[str, Any]:
    """DeepSpeed's configuration for a learner.

    With bfloat16 parameters the optimizer keeps float32 master weights, so that an update of 1e-6 does not
    vanish in rounding, and gradients accumulate in float32 (stage 0 accumulates in bfloat16: DeepSpeed
    offers nothing else there; use a stage above 0 for many micro-batches).
    """
    bf16 = learner.dtype == "bfloat16"
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,  # DeepSpeed's own counters; micro-batches here are by tokens
        "gradient_accumulation_steps": 1,
        "train_batch_size": world_size,
        "managed_gradient_accumulation": False,
        "gradient_clipping": 0.0 if _clips_itself(learner) else optimizer.max_grad_norm,
        "zero_optimization": {"stage": learner.zero_stage, "overlap_comm": False},
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": bf16},
        "steps_per_print": 10**9,
    }
    if bf16 and learner.zero_stage > 0:
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    return config


def _clips_itself(learner: LearnerConfig) -> bool:
    return learner.zero_stage == 0 and learner.dtype == "float32"


class DeepSpeedEngine:
    """One rank. The process group must be up (:meth:`actors.learner.Learner.setup`)."""

    def __init__(
        self,
        scorer: TokenScorer,
        learner: LearnerConfig,
        optimizer: OptimizerConfig,
        *,
        total_steps: int | None = None,
    ) -> None:
        import deepspeed
        import torch
        import torch.distributed as dist

        self.scorer = scorer
        self.learner = learner
        self._world_size = dist.get_world_size()
        self._rank = dist.get_rank()
        self._device = next(scorer.parameters()).device
        self._gate = GradientGate(scorer)
        self._heap = HeapTrimmer()
        adamw = torch.optim.AdamW(
            [p for p in scorer.parameters() if p.requires_grad],
            lr=optimizer.learning_rate,
            betas=optimizer.betas,
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
            fused=True,
        )
        self._norm: float | None = None
        if _clips_itself(learner):
            adamw.register_step_pre_hook(self._clip)
        self._engine, *_ = deepspeed.initialize(
            model=scorer,
            optimizer=adamw,
            config=deepspeed_config(learner, optimizer, self._world_size),
        )
        self.reset_optimizer(optimizer, total_steps=total_steps)

    @property
    def rank(self) -> int:
        """This rank."""
        return self._rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._world_size

    @property
    def device(self) -> torch.device:
        """Where micro-batches go."""
        return self._device

    def score(self, micro: MicroBatch, *, temperature: float, with_entropy: bool) -> tuple[Tensor, Tensor]:
        """See :class:`apprentice.learning.engine.TrainEngine`."""
        logprobs, entropy = self._engine(micro, temperature=temperature, with_entropy=with_entropy)
        return logprobs, entropy

    def backward(self, loss: Tensor, *, discard: bool = False) -> None:
        """See :class:`apprentice.learning.engine.TrainEngine`."""
        self._gate.closed = discard
        self._engine.backward(loss * self._world_size, scale_wrt_gas=False)
        self._gate.closed = False
        if self._device.type == "cpu":
            self._heap.check()

    def step(self, gradient_scale: float = 1.0) -> StepResult:
        """See :class:`apprentice.learning.engine.TrainEngine`."""
        rate = learning_rate(self.optimizer_config, self.steps, self.total_steps)
        for group in self._engine.optimizer.param_groups:
            group["lr"] = rate
        if gradient_scale != 1.0:
            self._scale_gradients(gradient_scale)
        self._engine.step()
        if gradient_scale != 1.0 and hasattr(self._engine.optimizer, "loss_scaler"):
            self._engine.optimizer.loss_scale = 1.0
        norm = self._norm if _clips_itself(self.learner) else self._engine.get_global_grad_norm()
        norm = math.nan if norm is None else float(norm)
        applied = bool(self._engine.was_step_applied()) and math.isfinite(norm)
        self.steps += int(applied)
        return StepResult(norm, rate, applied)

    def _clip(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Stage 0 in float32: DeepSpeed would neither report the norm nor stop a non-finite gradient."""
        import torch

        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        self._norm = float(torch.nn.utils.clip_grad_norm_(parameters, self.optimizer_config.max_grad_norm))
        if not math.isfinite(self._norm):
            for parameter in parameters:
                parameter.grad = None  # AdamW passes over parameters without a gradient

    def _scale_gradients(self, factor: float) -> None:
        optimizer = self._engine.optimizer
        if hasattr(optimizer, "loss_scaler"):  # ZeRO: gradients are divided by this as they are clipped
            optimizer.loss_scale = 1.0 / factor
        elif hasattr(optimizer, "fp32_groups_gradients_flat"):  # stage 1 with float32 accumulation
            for flat in optimizer.fp32_groups_gradients_flat:
                flat.mul_(factor)
        else:  # stage 0
            for parameter in self.scorer.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)

    def all_reduce(self, values: Tensor, op: Literal["sum", "max"]) -> Tensor:
        """See :class:`apprentice.learning.engine.TrainEngine`."""
        import torch.distributed as dist

        if self._world_size == 1 or values.numel() == 0:
            return values
        reduced = values.to(self._device)
        dist.all_reduce(reduced, op=dist.ReduceOp.SUM if op == "sum" else dist.ReduceOp.MAX)
        return reduced.cpu()

    def reset_optimizer(self, optimizer: OptimizerConfig, *, total_steps: int | None = None) -> None:
        """Forget moments and step count, take new constants; weights stay."""
        self.optimizer_config = optimizer
        self.total_steps = total_steps
        self.steps = 0
        wrapped = self._engine.optimizer
        self._engine.basic_optimizer.state.clear()
        for group in wrapped.param_groups:
            group["lr"] = optimizer.learning_rate
            group["betas"] = optimizer.betas
            group["eps"] = optimizer.eps
            group["weight_decay"] = optimizer.weight_decay
        if hasattr(wrapped, "clip_grad"):
            wrapped.clip_grad = optimizer.max_grad_norm

    def iter_weights(self) -> Iterator[tuple[str, Tensor]]:
        """``(Hugging Face name, whole contiguous tensor)``, tied ones once; all ranks iterate to the end.

        Sharded parameters are gathered one at a time and copied, so a tensor stays valid after the next.
        """
        for name, parameter in self.scorer.named_weights():
            if not hasattr(parameter, "ds_id"):
                yield name, parameter.detach().contiguous()
                continue
            with self._gathered(parameter):
                tensor = parameter.detach().clone()
            yield name, tensor

    def _gathered(self, parameter: Any) -> Any:
        import deepspeed

        return deepspeed.zero.GatheredParameters([parameter], modifier_rank=None)

    def close(self) -> None:
        """Free hooks and buffers. The engine cannot be used afterwards."""
        self._engine.destroy()
