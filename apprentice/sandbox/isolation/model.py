"""Levels, the layers each is made of, and what a cell may use. Imports nothing of the system."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["LADDER", "Layer", "Level", "Limits", "layers_of"]


class Level(StrEnum):
    """How far a cell is kept from the machine."""

    A = "A"
    B = "B"
    NONE = "none"


LADDER = (Level.A, Level.B, Level.NONE)
"""From the highest level down."""


class Layer(StrEnum):
    """One thing between a cell and the machine; each is held by a test that fails without it."""

    NAMESPACES = "namespaces"
    """User, PID, mount, network, IPC and UTS namespace; read-only root; a sized folder of its own."""
    LANDLOCK = "landlock"
    SECCOMP = "seccomp"
    CAPABILITIES = "capabilities"
    """No capability in any set; as nobody where the sandbox runs as root."""
    RLIMITS = "rlimits"


_LAYERS = {
    Level.A: frozenset(Layer),
    Level.B: frozenset(Layer) - {Layer.NAMESPACES},
    Level.NONE: frozenset({Layer.RLIMITS}),
}


def layers_of(level: Level) -> frozenset[Layer]:
    """What a level is made of. Level A goes without Landlock where the kernel has none."""
    return _LAYERS[level]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a cell may use. Seconds and bytes.

    ``cpu_s`` is enforced by the kernel in whole seconds, rounded up. ``memory_bytes`` comes on top of the
    address space that the zygote has. ``wall_s`` counts from the start of the run, never the time in a queue.
    ``file_bytes`` bounds each file and, at level A, all files of the cell together.
    """

    wall_s: float = 10.0
    cpu_s: float = 5.0
    memory_bytes: int = 512 << 20
    output_bytes: int = 64 << 10
    file_bytes: int = 32 << 20
    open_files: int = 32
