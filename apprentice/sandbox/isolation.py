"""The layers between a cell and the machine, by level. Runs in the zygote and its children; ctypes only.

======  ==========================================================================================
level   what holds a cell
======  ==========================================================================================
none    rlimits, own session and process group, no new privileges, dies with its zygote, and a sweep that
        kills every process the cell left behind. Stops accidents (loops, memory, output, orphans), not
        attacks: a cell can read files that the user can read and open sockets.
======  ==========================================================================================

Levels ``A`` (namespaces, no ``/proc``, read-only root, Landlock, seccomp) and ``B`` (Landlock and seccomp
without namespaces) are not there yet; asking for them is refused, never quietly lowered.

A level is three steps: :func:`prepare` once in the zygote before it serves, :func:`spawn` for each child,
:func:`confine` in the child before the cell.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Level", "Limits", "confine", "die_with_parent", "prepare", "spawn"]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_STACK_BYTES = 64 << 20  # deep recursion in C; more than the gap below the mmap area would not help

# PyDLL keeps the GIL: no other thread of a child could run between a call and the check of its result.
_libc = ctypes.PyDLL(None, use_errno=True)


class Level(StrEnum):
    """How far a cell is kept from the machine."""

    A = "A"
    B = "B"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a cell may use. Seconds and bytes.

    ``cpu_s`` is enforced by the kernel in whole seconds, rounded up. ``memory_bytes`` comes on top of the
    address space that the zygote has. ``wall_s`` counts from the start of the run, never the time in a queue.
    """

    wall_s: float = 10.0
    cpu_s: float = 5.0
    memory_bytes: int = 512 << 20
    output_bytes: int = 64 << 10
    file_bytes: int = 32 << 20
    open_files: int = 32


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def die_with_parent() -> None:
    """Have the kernel kill this process when the *thread* that created it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def prepare(level: Level) -> None:
    """Bring the zygote to ``level``; once, before the first child.

    Raises:
        NotImplementedError: the level is not there.
    """
    if level is not Level.NONE:
        raise NotImplementedError(f"isolation level {level} is not available; use 'none'")
    # Orphans of a cell become children of the zygote instead of init's, so that it can find and end them.
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def spawn(level: Level) -> int:
    """Fork a child: 0 in the child, its pid in the zygote."""
    del level
    return os.fork()


def _limit(what: int, value: int) -> None:
    _, hard = resource.getrlimit(what)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(what, (value, value))


def confine(level: Level, limits: Limits, *, base_bytes: int) -> None:
    """Take from this child what its cell must not have. ``base_bytes``: address space of the zygote.

    Raises:
        OSError: a layer could not be put on; the cell must not run then.
    """
    del level
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _limit(resource.RLIMIT_CORE, 0)
    # Soft = hard: the kernel sends SIGKILL, which no handler can swallow.
    _limit(resource.RLIMIT_CPU, max(1, -int(-limits.cpu_s // 1)))
    _limit(resource.RLIMIT_FSIZE, limits.file_bytes)
    _limit(resource.RLIMIT_NOFILE, limits.open_files)
    _limit(resource.RLIMIT_STACK, _STACK_BYTES)
    _limit(resource.RLIMIT_AS, base_bytes + limits.memory_bytes)
