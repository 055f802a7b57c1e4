"""What a confined cell reads when it tries to start a process: a sentence, not only an error number.

Holds nothing: seccomp does. Standard library only; runs in the zygote.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

__all__ = ["NO_PROCESSES", "explain"]

NO_PROCESSES = "this sandbox starts no processes and no programs; threads work"
_STARTERS = (
    "fork", "forkpty", "posix_spawn", "posix_spawnp", "system", "execv", "execve",
)  # fmt: skip


def _refuse(name: str) -> Callable[..., NoReturn]:
    def refused(*_: object, **__: object) -> NoReturn:
        raise PermissionError(errno.EPERM, NO_PROCESSES)

    refused.__name__ = name
    return refused


def explain() -> None:
    """Replace what starts processes by functions that say why they do not; in the zygote, for its children.

    The zygote's own fork is the one of before.
    """
    import _multiprocessing  # type: ignore[import-not-found]  # typeshed has it not
    import _posixsubprocess

    for name in _STARTERS:
        if hasattr(os, name):
            setattr(os, name, _refuse(name))
    starter: Any = _refuse("fork_exec")
    _posixsubprocess.fork_exec = starter
    if "subprocess" in sys.modules:
        sys.modules["subprocess"]._fork_exec = starter  # type: ignore[attr-defined]  # had it by name

    class SemLock(_multiprocessing.SemLock):  # type: ignore[misc]  # a pool of processes makes one first
        def __new__(cls, *_: object, **__: object) -> NoReturn:
            raise PermissionError(errno.EPERM, NO_PROCESSES)

    _multiprocessing.SemLock = SemLock
