"""What this machine computes fast. Import-light: reads one file."""

from __future__ import annotations

import re
from pathlib import Path

from apprentice.config.schema import Config, LearnerConfig, RolloutConfig

__all__ = ["OPENMP_WAIT", "cpu_has_bfloat16", "learner_dtypes", "rollout_dtypes", "with_dtypes"]

OPENMP_WAIT = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "10000"}
"""Environment of a process that shares its cores with others: waiting threads soon sleep.

With threads that spin a step of a learner and two engines on two cores took 45-52 s, without 16-24 s. With
threads that sleep at once a small model made 3.5 supervised steps a second there, and 6.7 when they spin some
ten microseconds before, which is what the second variable says to GNU's OpenMP, PyTorch's own.
"""

_FLAGS = re.compile(r"^(?:flags|Features)\s*:(.*)$", re.MULTILINE)
_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}  # x86 twice, and arm64


def cpu_has_bfloat16(cpuinfo: str | None = None) -> bool:
    """Whether the CPU multiplies bfloat16 matrices in hardware.

    Without, PyTorch does it in software: a product that takes 65 ms in float32 was seen to take 3 s.

    Args:
        cpuinfo: text of ``/proc/cpuinfo``; read when left out. Without the file: it has not.
    """
    if cpuinfo is None:
        try:
            cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        except OSError:
            return False
    found = _FLAGS.search(cpuinfo)
    return found is not None and bool(_BFLOAT16 & set(found[1].split()))


def learner_dtypes(learner: LearnerConfig, *, has_bfloat16: bool | None = None) -> LearnerConfig:
    """The learner with ``auto`` decided: bfloat16 on GPUs and where the CPU computes it, else float32."""
    if learner.dtype != "auto":
        return learner
    dtype = "bfloat16" if learner.num_gpus > 0 else _on_cpu(has_bfloat16)
    return learner.model_copy(update={"dtype": dtype})


def rollout_dtypes(rollout: RolloutConfig, *, has_bfloat16: bool | None = None) -> RolloutConfig:
    """The engines with ``auto`` decided on CPUs; on GPUs it stays, the format of the checkpoint."""
    if rollout.dtype != "auto" or rollout.num_gpus > 0:
        return rollout
    return rollout.model_copy(update={"dtype": _on_cpu(has_bfloat16)})


def with_dtypes(config: Config, *, has_bfloat16: bool | None = None) -> Config:
    """The recipe with ``auto`` decided by this machine, so that all nodes of a run compute alike."""
    return config.model_copy(
        update={
            "learner": learner_dtypes(config.learner, has_bfloat16=has_bfloat16),
            "rollout": rollout_dtypes(config.rollout, has_bfloat16=has_bfloat16),
        }
    )


def _on_cpu(has_bfloat16: bool | None) -> str:
    fast = cpu_has_bfloat16() if has_bfloat16 is None else has_bfloat16
    return "bfloat16" if fast else "float32"
