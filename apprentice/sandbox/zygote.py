"""A zygote: one single-threaded process with numpy and sympy imported that forks a child for each cell.

Started fresh by :mod:`apprentice.sandbox.worker` with a clean environment. It serves one cell at a time,
talks by :mod:`apprentice.sandbox.wire` and is the cell's supervisor (:mod:`apprentice.sandbox.supervision`).

===================================  =========================================================
event                                what goes
===================================  =========================================================
cell over its wall limit             cell's group and orphans, by this process
cell over its output cap             the same
pool closed                          cell, orphans, then this process: end of file
pool dead                            the same; this process by its parent-death signal too, except at
                                     level none, where it has orphans to end first
this process dead                    everything: the kernel ends a namespace with its pid 1 (level A);
                                     parent-death signal, and there are no orphans (level B)
===================================  =========================================================
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import subprocess
import sys

from apprentice.sandbox import isolation, refused
from apprentice.sandbox.supervision import Run
from apprentice.sandbox.wire import Gone, receive, send

__all__ = ["main", "remove_tree", "serve"]


def _address_space() -> int:
    """Bytes of address space of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def serve(sock: socket.socket, confinement: isolation.Confinement, scratch: str, base_bytes: int) -> None:
    """Serve cells until the pool closes its end. ``base_bytes``: address space of this process."""
    with contextlib.suppress(Gone, ConnectionError):
        while True:
            request, stdin = receive(sock)
            if not request:
                continue  # a cancellation that came after its cell had ended
            head, body = Run(sock, request, stdin).run(confinement, base_bytes)
            if scratch and (left := os.listdir(scratch)):
                for name in left:
                    remove_tree(os.path.join(scratch, name))
            send(sock, head, body)
    if scratch:
        remove_tree(scratch)  # the pool may have died


def remove_tree(path: str) -> None:
    """Remove what a cell left, however deep; what it made unremovable for its own account stays."""
    subprocess.run(["rm", "-rf", "--", path], check=False, stderr=subprocess.DEVNULL)


_hidden: list[object] = []


def _hide_own_modules() -> None:
    """Take this package from ``sys.modules``, here and so in every child: a clean interpreter."""
    own = [name for name in sys.modules if name == "apprentice" or name.startswith("apprentice.")]
    _hidden.extend(sys.modules.pop(name) for name in own)  # a module that nobody has may be emptied


def _warm() -> None:
    # sympy imports and compiles much at its first use, which every cell that solves an equation would pay
    # again.
    sympy = sys.modules.get("sympy")
    if sympy is not None:
        x = sympy.Symbol("x")
        sympy.solve(x**2 - 2, x)
        sympy.simplify((x**2 - 1) / (x - 1))
        sympy.core.cache.clear_cache()


def main(fd: int, layers: list[str], scratch: str, imports: list[str]) -> None:
    """Entry point of the process: confine itself, import, serve on the inherited socket ``fd``.

    ``scratch``: where cells run at level none, else "". The worker has seen to it that this process dies with
    the thread that started it.
    """
    os.umask(0o022)
    sock = socket.socket(fileno=fd)
    confinement = isolation.Confinement([isolation.Layer(name) for name in layers], scratch)
    try:
        confinement.enter()
        for name in imports:
            with contextlib.suppress(ImportError):
                __import__(name)
        _warm()
        base_bytes = _address_space()
        facts = confinement.settle()
    except (isolation.Refused, OSError) as error:
        send(sock, {"refused": str(error)})
        return
    if scratch:
        # Cells can leave orphans here; end of file lets this process end them before itself.
        isolation.live_without_parent()
    if isolation.Layer.SECCOMP in confinement.layers:
        refused.explain()
    _hide_own_modules()
    # What was imported never becomes garbage, and a collection in a child would copy every page it looks at.
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        send(sock, {"ready": os.getpid(), **facts})
        serve(sock, confinement, scratch, base_bytes)
    except KeyboardInterrupt:
        sys.exit(130)
