"""Landlock: which files a process may open (Linux, Documentation/userspace-api/landlock.rst).

Rules hold for opening, creating and removing files. They do not hold for ``stat``, ``chmod``, ``utime`` and
the like: seccomp or the read-only root do that.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Sequence

from apprentice.sandbox.isolation.kernel import Refused, call

__all__ = ["READ", "WRITE", "Ruleset", "abi"]

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_SOCK, _MAKE_FIFO, _MAKE_BLOCK = 1 << 6, 1 << 9, 1 << 10, 1 << 11
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_ONLY_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
READ = _READ_FILE | _READ_DIR
WRITE = ((1 << 15) - 1) & ~(_EXECUTE | _MAKE_CHAR | _MAKE_SOCK | _MAKE_FIFO | _MAKE_BLOCK)
"""Everything in a folder of one's own, except running programs and making devices, sockets and FIFOs."""

_BY_ABI = ((1, 13), (2, 14), (3, 15), (5, 16))  # from this version on, so many file rights
_NET_ALL = 0b11  # bind and connect of TCP, from version 4
_SCOPE_ALL = 0b11  # abstract Unix sockets and signals, from version 6
_CREATE_VERSION = 1
_RULE_PATH_BENEATH = 1


def abi() -> int:
    """The kernel's Landlock version; 0 where there is none."""
    try:
        return call("landlock_create_ruleset", None, 0, _CREATE_VERSION)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
            return 0  # not built in, switched off at boot, or refused by a container's seccomp profile
        raise


class Ruleset:
    """Paths and rights, made once, in the zygote; each child restricts itself to them.

    Args:
        paths: a path and the rights beneath it, :data:`READ` or :data:`WRITE`. Missing ones are skipped.

    Raises:
        Refused: the kernel has no Landlock.
    """

    def __init__(self, paths: Sequence[tuple[str, int]]) -> None:
        self.abi = abi()
        if self.abi == 0:
            raise Refused(
                "Landlock is not there: it needs Linux 5.13 or newer with landlock in the boot parameter "
                "lsm=, and a seccomp profile that allows its three system calls"
            )
        bits = max(count for version, count in _BY_ABI if self.abi >= version)
        self._handled = (1 << bits) - 1
        fields = [self._handled]
        if self.abi >= 4:
            fields.append(_NET_ALL)
        if self.abi >= 6:
            fields.append(_SCOPE_ALL)
        self._attr = struct.pack(f"{len(fields)}Q", *fields)
        self._paths = [(path, rights) for path, rights in paths if os.path.exists(path)]
        self._ruleset = -1
        self.renew()

    def renew(self, *extra: tuple[str, int]) -> None:
        """Look the paths up, and ``extra`` ones: rules hold for what lay there then, not for names.

        Raises:
            OSError: it failed; no cell may run then.
        """
        if self._ruleset >= 0:
            os.close(self._ruleset)
            self._ruleset = -1
        self._ruleset = call("landlock_create_ruleset", self._attr, len(self._attr), 0)
        for path, rights in (*self._paths, *extra):
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                if not stat.S_ISDIR(os.fstat(fd).st_mode):
                    rights &= _ONLY_FILES
                beneath = struct.pack("=Qi", rights & self._handled, fd)
                call("landlock_add_rule", self._ruleset, _RULE_PATH_BENEATH, ctypes.c_char_p(beneath), 0)
            finally:
                os.close(fd)

    def restrict(self) -> None:
        """Confine the calling thread, for good.

        Raises:
            OSError: it failed; the cell must not run then.
        """
        call("landlock_restrict_self", self._ruleset, 0)
