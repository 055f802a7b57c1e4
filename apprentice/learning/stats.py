"""What an update reports: sums over trained tokens, combined over ranks, as typed records."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from apprentice.learning.batch import TrainingBatch
from apprentice.learning.engine import StepResult, TrainEngine
from apprentice.trajectory import Owner

__all__ = ["OwnerStats", "PolicyStats", "SftStats", "TokenSums"]

_OWNERS = (Owner.CONTROLLER, Owner.EXPERT)
_NAN = float("nan")


class TokenSums:
    """Named sums and maxima of one rank, later of all. Every rank uses the same names in the same order."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._maxima: dict[str, float] = {}

    def __getitem__(self, name: str) -> float:
        return self._sums[name] if name in self._sums else self._maxima[name]

    def mean(self, total: str, count: str) -> float:
        """``total / count``; NaN where nothing was counted."""
        return self[total] / self[count] if self[count] else _NAN

    def add(self, **values: float) -> None:
        """Add named sums."""
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(value)

    def scale(self, name: str, factor: float) -> None:
        """Multiply one sum."""
        self._sums[name] *= factor

    def reduced(self, engine: TrainEngine) -> TokenSums:
        """The same over all ranks."""
        out = TokenSums()
        sums = engine.all_reduce(torch.tensor(list(self._sums.values()), dtype=torch.float64), "sum")
        maxima = engine.all_reduce(torch.tensor(list(self._maxima.values()), dtype=torch.float64), "max")
        out._sums = dict(zip(self._sums, sums.tolist(), strict=True))
        out._maxima = dict(zip(self._maxima, maxima.tolist(), strict=True))
        return out

    @classmethod
    def of_policy(
        cls, batch: TrainingBatch, index: npt.NDArray[np.int64], columns: dict[str, Any]
    ) -> TokenSums:
        """Sums of a Stage I pass; ``columns`` are per trained token, in the order of ``index``."""
        out = cls()
        owner = batch.owner[index]
        none = np.zeros(len(index), np.float32)
        column = {name: np.asarray(columns.get(name, none), np.float64) for name in _POLICY_COLUMNS}
        for item in _OWNERS:
            name, mask = item.name.lower(), owner == item
            ratio = column["ratio"][mask]
            out.add(
                **{
                    f"{name}_tokens": mask.sum(),
                    f"{name}_nll": -column["logprob"][mask].sum(),
                    f"{name}_entropy": column["entropy"][mask].sum(),
                    f"{name}_clipped": column["clipped"][mask].sum(),
                    f"{name}_dual_clipped": column["dual_clipped"][mask].sum(),
                    f"{name}_ratio": ratio.sum(),
                    f"{name}_ratio_squared": (ratio**2).sum(),
                }
            )
            out._maxima[f"{name}_ratio_max"] = float(ratio.max(initial=-np.inf))
            out._maxima[f"{name}_ratio_min"] = float((-ratio).max(initial=-np.inf))
        sampled = (owner == Owner.CONTROLLER) & ~np.isnan(batch.sampling_logprob[index])
        gap = np.abs(column["old"][sampled] - batch.sampling_logprob[index][sampled])
        out.add(gap=gap.sum(), gap_tokens=sampled.sum())
        out._maxima["gap_max"] = float(gap.max(initial=-np.inf))
        return out

    @classmethod
    def of_sft(cls, batch: TrainingBatch, index: npt.NDArray[np.int64], columns: dict[str, Any]) -> TokenSums:
        """Sums of a supervised pass."""
        out = cls()
        fmt = batch.format[index] != 0
        nll = -np.asarray(columns.get("logprob", np.zeros(0)), np.float64)
        out.add(tokens=len(index), nll=nll.sum(), format_tokens=fmt.sum(), format_nll=nll[fmt].sum())
        return out


_POLICY_COLUMNS = ("logprob", "entropy", "old", "ratio", "clipped", "dual_clipped")


@dataclass(frozen=True, slots=True)
class OwnerStats:
    """Trained tokens of one owner. Means are NaN where it has none."""

    tokens: int = 0
    nll: float = _NAN
    """Mean negative log-likelihood under the weights before the step, nats."""
    clip_fraction: float = _NAN
    dual_clip_fraction: float = _NAN
    ratio_mean: float = _NAN
    ratio_std: float = _NAN
    ratio_min: float = _NAN
    ratio_max: float = _NAN


@dataclass(frozen=True, slots=True)
class PolicyStats:
    """One optimizer step of Stage I over all ranks. Token means; natural log; seconds."""

    loss: float
    grad_norm: float
    learning_rate: float
    applied: bool
    """The weights changed: some micro-batch was finite and so was the gradient."""
    is_empty: bool
    """No token was trained."""
    entropy: float
    """On controller tokens only."""
    clip_fraction: float
    dual_clip_fraction: float
    logprob_gap_mean: float
    """|teacher-forced - sampling| log-probability on controller tokens."""
    logprob_gap_max: float
    trained_tokens: int
    input_tokens: int
    micro_batches: int
    skipped_micro_batches: int
    seconds: float
    tokens_per_second: float
    """Input tokens of all ranks a second, forward to weights."""
    owners: dict[str, OwnerStats] = field(default_factory=dict)

    @classmethod
    def empty(cls) -> PolicyStats:
        """A step that had nothing to train."""
        return cls(
            0.0, 0.0, 0.0, False, True, _NAN, _NAN, _NAN, _NAN, _NAN, 0, 0, 0, 0, 0.0, _NAN,
            {owner.name.lower(): OwnerStats() for owner in _OWNERS},
        )  # fmt: skip

    @classmethod
    def of(cls, sums: TokenSums, step: StepResult, seconds: float) -> PolicyStats:
        """From reduced sums."""
        owners = {}
        for item in _OWNERS:
            name = item.name.lower()
            count = f"{name}_tokens"
            if not sums[count]:
                owners[name] = OwnerStats()
                continue
            mean = sums.mean(f"{name}_ratio", count)
            variance = max(sums.mean(f"{name}_ratio_squared", count) - mean**2, 0.0)
            owners[name] = OwnerStats(
                tokens=int(sums[count]),
                nll=sums.mean(f"{name}_nll", count),
                clip_fraction=sums.mean(f"{name}_clipped", count),
                dual_clip_fraction=sums.mean(f"{name}_dual_clipped", count),
                ratio_mean=mean,
                ratio_std=variance**0.5,
                ratio_min=-sums[f"{name}_ratio_min"],
                ratio_max=sums[f"{name}_ratio_max"],
            )
        trained = sum(item.tokens for item in owners.values())

        def over_owners(what: str) -> float:
            total = sum(sums[f"{owner.name.lower()}_{what}"] for owner in _OWNERS)
            return total / trained if trained else _NAN

        return cls(
            loss=sums["loss"],
            grad_norm=step.grad_norm,
            learning_rate=step.learning_rate,
            applied=step.applied,
            is_empty=False,
            entropy=sums.mean("controller_entropy", "controller_tokens"),
            clip_fraction=over_owners("clipped"),
            dual_clip_fraction=over_owners("dual_clipped"),
            logprob_gap_mean=sums.mean("gap", "gap_tokens"),
            logprob_gap_max=sums["gap_max"] if sums["gap_tokens"] else _NAN,
            trained_tokens=trained,
            input_tokens=int(sums["input_tokens"]),
            micro_batches=int(sums["micro_batches"]),
            skipped_micro_batches=int(sums["skipped"]),
            seconds=seconds,
            tokens_per_second=sums["input_tokens"] / seconds,
            owners=owners,
        )

    def metrics(self) -> dict[str, float]:
        """Flat numbers for a logger: ``ratio_mean/expert`` and so on."""
        return _flat(asdict(self))


@dataclass(frozen=True, slots=True)
class SftStats:
    """One optimizer step of supervised fine-tuning over all ranks."""

    loss: float
    """L_II of Eq. 9."""
    cross_entropy: float
    """Mean over target tokens, nats (Eq. 7 over the batch)."""
    format_loss: float
    """Mean over format tokens, nats (Eq. 8 over the batch); 0 where there is none."""
    grad_norm: float
    learning_rate: float
    applied: bool
    is_empty: bool
    trained_tokens: int
    format_tokens: int
    input_tokens: int
    micro_batches: int
    skipped_micro_batches: int
    seconds: float
    tokens_per_second: float

    @classmethod
    def empty(cls) -> SftStats:
        """A step that had nothing to train."""
        return cls(0.0, 0.0, 0.0, 0.0, 0.0, False, True, 0, 0, 0, 0, 0, 0.0, _NAN)

    @classmethod
    def of(cls, sums: TokenSums, step: StepResult, seconds: float) -> SftStats:
        """From reduced sums."""
        return cls(
            loss=sums["loss"],
            cross_entropy=sums.mean("nll", "tokens"),
            format_loss=sums.mean("format_nll", "format_tokens") if sums["format_tokens"] else 0.0,
            grad_norm=step.grad_norm,
            learning_rate=step.learning_rate,
            applied=step.applied,
            is_empty=False,
            trained_tokens=int(sums["tokens"]),
            format_tokens=int(sums["format_tokens"]),
            input_tokens=int(sums["input_tokens"]),
            micro_batches=int(sums["micro_batches"]),
            skipped_micro_batches=int(sums["skipped"]),
            seconds=seconds,
            tokens_per_second=sums["input_tokens"] / seconds,
        )

    def metrics(self) -> dict[str, float]:
        """Flat numbers for a logger."""
        return _flat(asdict(self))


def _flat(values: dict[str, Any]) -> dict[str, float]:
    owners: dict[str, dict[str, float]] = values.pop("owners", {})
    out = {name: float(value) for name, value in values.items()}
    for owner, fields in owners.items():
        out.update({f"{name}/{owner}": float(value) for name, value in fields.items()})
    return out
