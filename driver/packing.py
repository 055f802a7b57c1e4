"""Whether bundles of resources can be packed onto nodes, by Ray's own rules for whole and fractional GPUs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

__all__ = ["fits"]

_UNITS = 10_000
"""Ray counts resources in units of 1/10,000."""


def fits(bundles: Sequence[Mapping[str, float]], nodes: Sequence[Mapping[str, float]]) -> bool:
    """Whether the bundles can be packed: the largest first, each into the fullest node that still holds it.

    First-fit-decreasing misses a packing only in contrived cases of many different fractions.
    """
    free = [_Node(node) for node in nodes]
    wanted = sorted(
        ((_units(bundle.get("GPU", 0.0)), _units(bundle.get("CPU", 0.0))) for bundle in bundles), reverse=True
    )
    for gpu, cpu in wanted:
        for node in sorted(free, key=lambda node: (sum(node.gpus), node.cpu)):
            if node.take(cpu, gpu):
                break
        else:
            return False
    return True


class _Node:
    """Free CPU and the free part of each GPU of a node, in Ray's units."""

    def __init__(self, resources: Mapping[str, float]) -> None:
        self.cpu = _units(resources.get("CPU", 0.0))
        whole, rest = divmod(_units(resources.get("GPU", 0.0)), _UNITS)
        self.gpus = [_UNITS] * whole + ([rest] if rest else [])

    def take(self, cpu: int, gpu: int) -> bool:
        """Reserve, or leave everything as it is and say no. Above one GPU, Ray gives whole GPUs only."""
        if cpu > self.cpu:
            return False
        if gpu >= _UNITS:
            count = math.ceil(gpu / _UNITS)
            whole = [i for i, part in enumerate(self.gpus) if part == _UNITS]
            if len(whole) < count:
                return False
            for i in whole[:count]:
                self.gpus[i] = 0
        elif gpu:
            fitting = [(part, i) for i, part in enumerate(self.gpus) if part >= gpu]
            if not fitting:
                return False
            self.gpus[min(fitting)[1]] -= gpu
        self.cpu -= cpu
        return True


def _units(amount: float) -> int:
    return round(amount * _UNITS)
