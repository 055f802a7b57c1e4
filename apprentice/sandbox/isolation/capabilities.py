"""Capabilities and user ids: a cell has no power over the machine, whoever started the sandbox."""

from __future__ import annotations

import ctypes
import os
import struct

from apprentice.sandbox.isolation.kernel import call, die_with_parent, prctl

__all__ = ["CAP_SETGID", "CAP_SETUID", "NOBODY", "become", "drop_all", "effective", "forget_bounding"]

NOBODY = 65534
CAP_SETGID, CAP_SETUID, CAP_SETPCAP = 6, 7, 8

_PR_SET_KEEPCAPS = 8
_PR_CAPBSET_READ, _PR_CAPBSET_DROP = 23, 24
_PR_SET_SECUREBITS = 28
_PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL = 47, 4
# NOROOT, NO_SETUID_FIXUP and NO_CAP_AMBIENT_RAISE with their locks; KEEP_CAPS off and locked.
_SECUREBITS = 0b11101111
_VERSION_3 = 0x20080522


def _get() -> tuple[int, int]:
    """Effective and permitted set."""
    header = ctypes.create_string_buffer(struct.pack("Ii", _VERSION_3, 0))
    data = ctypes.create_string_buffer(24)
    call("capget", header, data)
    low = struct.unpack("6I", data.raw)
    return low[0] | low[3] << 32, low[1] | low[4] << 32


def _set(effective: int, permitted: int) -> None:
    header = ctypes.create_string_buffer(struct.pack("Ii", _VERSION_3, 0))
    low, high = 0xFFFFFFFF, 32
    data = struct.pack("6I", effective & low, permitted & low, 0, effective >> high, permitted >> high, 0)
    call("capset", header, ctypes.create_string_buffer(data))


def effective(capability: int) -> bool:
    """Whether this process has a capability in its user namespace."""
    return bool(_get()[0] >> capability & 1)


def _raise_all() -> None:
    """Make every permitted capability effective."""
    permitted = _get()[1]
    _set(permitted, permitted)


def become(uid: int, gid: int, *, keep: bool) -> None:
    """Change user and group for good, without other groups. ``keep``: the capabilities stay.

    Raises:
        OSError: it is not allowed.
    """
    if keep:
        prctl(_PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if keep:
        prctl(_PR_SET_KEEPCAPS, 0)
        _raise_all()
    die_with_parent()  # a change of credentials clears the signal


def forget_bounding() -> None:
    """Empty the bounding, inheritable and ambient sets and lock the secure bits; once, in the zygote.

    What is permitted now stays until :func:`drop_all`. Without CAP_SETPCAP nothing can be done and nothing
    is needed: the sets matter to programs that are started, and a cell starts none.
    """
    if not effective(CAP_SETPCAP):
        return
    for capability in range(64):
        try:
            prctl(_PR_CAPBSET_READ, capability)
        except OSError:
            break  # past the last one that the kernel knows
        prctl(_PR_CAPBSET_DROP, capability)
    prctl(_PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL)
    _set(*_get())
    prctl(_PR_SET_SECUREBITS, _SECUREBITS)


def drop_all() -> None:
    """Give up every capability, for good (with no_new_privs set before)."""
    _set(0, 0)
