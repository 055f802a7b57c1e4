"""System calls that Python has no function for, by ctypes. Linux on x86_64 and aarch64, 64 bits."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal

__all__ = [
    "NUMBERS",
    "Refused",
    "call",
    "die_with_parent",
    "libc",
    "live_without_parent",
    "machine",
    "prctl",
]

PR_SET_PDEATHSIG = 1

# PyDLL keeps the GIL: no other thread of a process could run between a call and the check of its result.
libc = ctypes.PyDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

_TABLES = {
    "x86_64": {"seccomp": 317, "capset": 126, "capget": 125, "pivot_root": 155},
    "aarch64": {"seccomp": 277, "capset": 91, "capget": 90, "pivot_root": 41},
}
_EVERYWHERE = {  # calls from 2019 on have one number on all architectures
    "open_tree": 428,
    "move_mount": 429,
    "mount_setattr": 442,
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
}
NUMBERS = {name: table | _EVERYWHERE for name, table in _TABLES.items()}


class Refused(Exception):
    """This machine does not give a layer; says which, at what step and why."""


def machine() -> str:
    """The architecture as the tables name it.

    Raises:
        Refused: there is no table for it.
    """
    name = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine())
    if os.name != "posix" or platform.system() != "Linux" or name not in NUMBERS:
        known = ", ".join(NUMBERS)
        raise Refused(f"no isolation on {platform.system()} {name}: there are tables for Linux on {known}")
    return name


def check(result: int, step: str) -> int:
    """``result`` of a call, or what went wrong in it.

    Raises:
        OSError: it is negative; the message names the step.
    """
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{step}: {errno.errorcode.get(number, number)}, {os.strerror(number)}")
    return result


def call(name: str, *arguments: object) -> int:
    """One system call by name. Integers become 64 bits wide; pointers and bytes pass as they are.

    Raises:
        OSError: it failed.
    """
    wide = (ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)
    return check(libc.syscall(ctypes.c_long(NUMBERS[machine()][name]), *wide), name)


def prctl(option: int, *arguments: int) -> int:
    """One ``prctl``; the arguments left out are 0.

    Raises:
        OSError: it failed.
    """
    wide = [ctypes.c_ulong(a) for a in (*arguments, 0, 0, 0, 0)[:4]]
    return check(libc.prctl(option, *wide), f"prctl({option})")


def die_with_parent() -> None:
    """Have the kernel kill this process when the *thread* that created it ends."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def live_without_parent() -> None:
    """Take :func:`die_with_parent` back."""
    prctl(PR_SET_PDEATHSIG, 0)
