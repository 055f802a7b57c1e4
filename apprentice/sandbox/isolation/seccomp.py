"""Seccomp: which system calls a process may make. One BPF program, made once in the zygote.

Allowed is what is listed in :mod:`.calls`; everything else gets EPERM, so that Python raises PermissionError.
Calls newer than the table, ``clone3`` and ``openat2`` get ENOSYS: the C library then takes their old forms.
A call by another architecture's table (32-bit, x32) kills the process. Threads are allowed, processes and
programs are not; of sockets only a pair of connected streams, which event loops need.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from dataclasses import dataclass

from apprentice.sandbox.isolation.calls import NEWEST, numbers
from apprentice.sandbox.isolation.kernel import call, machine

__all__ = ["Filter", "program"]

_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000
_LOAD, _AND, _EQ, _GT, _GE, _RETURN = 0x20, 0x54, 0x15, 0x25, 0x35, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NR, _ARCH_AT, _ARGS = 0, 4, 16  # offsets in struct seccomp_data
_SET_MODE_FILTER = 1
_OWN_PID = -1

_THREAD = 0x10000
_NEW = 0x20000 | 0x2000000 | 0x4000000 | 0x8000000 | 0x10000000 | 0x20000000 | 0x40000000  # CLONE_NEW*
_ALL = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class _Test:
    """Whether the low 32 bits of an argument, masked, are ``value`` (or are not)."""

    argument: int
    value: int
    mask: int = _ALL
    equal: bool = True


def _one_of(argument: int, *values: int) -> tuple[tuple[_Test, ...], ...]:
    return tuple((_Test(argument, value),) for value in values)


# A call is allowed if all tests of any one row hold.
_CONDITIONS: dict[str, tuple[tuple[_Test, ...], ...]] = {
    "clone": ((_Test(0, _THREAD, _THREAD | _NEW),),),
    # With write access to nothing, O_RDONLY|O_TRUNC still empties a file on kernels before 6.2.
    "open": ((_Test(1, 0o1000, 0o1003, equal=False),),),
    "openat": ((_Test(2, 0o1000, 0o1003, equal=False),),),
    # FIONREAD, TCGETS, TIOCGWINSZ, FIONCLEX, FIOCLEX, FIONBIO
    "ioctl": _one_of(1, 0x541B, 0x5401, 0x5413, 0x5450, 0x5451, 0x5421),
    # Not F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE, F_NOTIFY: they send signals, also to others.
    "fcntl": _one_of(1, 0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1031, 1032),
    # PR_SET_NAME, PR_GET_NAME, PR_GET_DUMPABLE, PR_SET_VMA; not PR_SET_PDEATHSIG, which ends the cell in time
    "prctl": _one_of(0, 15, 16, 3, 0x53564D41),
    "kill": _one_of(0, _OWN_PID),
    "tgkill": _one_of(0, _OWN_PID),
    "prlimit64": _one_of(0, 0, _OWN_PID),
    "sched_setaffinity": _one_of(0, 0, _OWN_PID),
    "getpriority": ((_Test(0, 0), _Test(1, 0)),),
    # AF_UNIX, SOCK_STREAM: a stream pair cannot send elsewhere, a datagram pair could
    "socketpair": ((_Test(0, 1), _Test(1, 1, 0xF)),),
}
_CHANGE_WITHOUT_OPENING = (
    "chmod", "fchmod", "fchmodat", "fchmodat2", "utime", "utimes", "utimensat", "futimesat", "truncate",
)  # fmt: skip


def _instruction(code: int, k: int, jump_true: int = 0, jump_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, jump_true, jump_false, k)


def _rows(rows: tuple[tuple[_Test, ...], ...], pids: list[int], at: int) -> bytes:
    """What follows when the call's number matched; ``at`` is the index of its first instruction."""
    code = b""
    for row in rows:
        sizes = [3 if test.mask != _ALL else 2 for test in row]
        for i, test in enumerate(row):
            to_next = sum(sizes[i + 1 :]) + 1  # past the rest of this row and its return
            code += _instruction(_LOAD, _ARGS + 8 * test.argument)
            if test.mask != _ALL:
                code += _instruction(_AND, test.mask)
            if test.value == _OWN_PID:
                pids.append(at + len(code) // 8)
            jumps = (0, to_next) if test.equal else (to_next, 0)
            code += _instruction(_EQ, test.value & _ALL, *jumps)
        code += _instruction(_RETURN, _ALLOW)
    return code + _instruction(_RETURN, _ERRNO | errno.EPERM)


def program(architecture: str, *, writable: bool) -> tuple[bytes, list[int]]:
    """The BPF program, and the indices of instructions whose constant is the process's own pid.

    ``writable``: whether there is a folder of the cell's own. Where there is none, nothing may change files'
    modes and times, which Landlock does not hold.
    """
    allowed = numbers(architecture)
    old_forms = [allowed.pop("clone3"), allowed.pop("openat2")]
    if not writable:
        allowed = {name: n for name, n in allowed.items() if name not in _CHANGE_WITHOUT_OPENING}
    code = _instruction(_LOAD, _ARCH_AT)
    code += _instruction(_EQ, _ARCH[architecture], 1, 0) + _instruction(_RETURN, _KILL)
    code += _instruction(_LOAD, _NR)
    if architecture == "x86_64":
        code += _instruction(_GE, _X32, 0, 1) + _instruction(_RETURN, _KILL)
    pids: list[int] = []
    for name, number in sorted(allowed.items()):
        if rows := _CONDITIONS.get(name):
            body = _rows(rows, pids, len(code) // 8 + 1)
            code += _instruction(_EQ, number, 0, len(body) // 8) + body
    for first, last in _runs(sorted(n for name, n in allowed.items() if name not in _CONDITIONS)):
        code += _instruction(_GE, first, 0, 2) + _instruction(_GT, last, 1, 0)
        code += _instruction(_RETURN, _ALLOW)
    for number in old_forms:
        code += _instruction(_EQ, number, 0, 1) + _instruction(_RETURN, _ERRNO | errno.ENOSYS)
    code += _instruction(_GT, NEWEST, 0, 1) + _instruction(_RETURN, _ERRNO | errno.ENOSYS)
    return code + _instruction(_RETURN, _ERRNO | errno.EPERM), pids


def _runs(values: list[int]) -> list[tuple[int, int]]:
    """Sorted numbers as first and last of each run without a gap."""
    runs: list[tuple[int, int]] = []
    for value in values:
        if runs and value == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], value)
        else:
            runs.append((value, value))
    return runs


class Filter:
    """A program ready to be put on; made once in the zygote."""

    def __init__(self, *, writable: bool) -> None:
        code, self._pids = program(machine(), writable=writable)
        self._code = ctypes.create_string_buffer(code, len(code))
        # struct sock_fprog: a length in instructions, padding, a pointer
        head = struct.pack("@HxxxxxxQ", len(code) // 8, ctypes.addressof(self._code))
        self._head = ctypes.create_string_buffer(head, len(head))

    def install(self) -> None:
        """Put it on the calling thread, for good. Needs no_new_privs.

        Raises:
            OSError: it failed; the cell must not run then.
        """
        for index in self._pids:
            struct.pack_into("=I", self._code, index * 8 + 4, os.getpid())
        call("seccomp", _SET_MODE_FILTER, 0, self._head)
