"""What a confined cell reads when it tries to start a process: a sentence, not only an error number.

Holds nothing: seccomp does. Standard library only; runs in the child.
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


_replacements: list[tuple[Any, str, object]] = []


def prepare() -> None:
    """In the zygote: make what :func:`explain` puts in place, which would take each child 2 ms."""
    import _multiprocessing  # type: ignore[import-not-found]  # typeshed has it not
    import _posixsubprocess

    class SemLock(_multiprocessing.SemLock):  # type: ignore[misc]  # a pool of processes makes one first
        def __new__(cls, *_: object, **__: object) -> NoReturn:
            raise PermissionError(errno.EPERM, NO_PROCESSES)

    starter = _refuse("fork_exec")
    _replacements[:] = [(os, name, _refuse(name)) for name in _STARTERS if hasattr(os, name)]
    _replacements.extend([(_posixsubprocess, "fork_exec", starter), (_multiprocessing, "SemLock", SemLock)])
    if "subprocess" in sys.modules:  # it has it by name
        _replacements.append((sys.modules["subprocess"], "_fork_exec", starter))


def explain() -> None:
    """In a child: replace what starts processes by functions that say why they do not."""
    for module, name, replacement in _replacements:
        setattr(module, name, replacement)
