"""What of the file system a cell may see: Python, its packages and the libraries they load. Nothing else."""

from __future__ import annotations

import os
import stat
import sys
import sysconfig

from apprentice.sandbox.isolation.kernel import Refused

__all__ = ["DEVICES", "links_of", "open_to_others", "readable"]

DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_SYSTEM = (
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo",
    "/etc/ld.so.cache", "/etc/alternatives",
)  # fmt: skip


def _python() -> list[str]:
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    paths = [os.path.join(prefix, lib) for prefix in sorted(prefixes) for lib in ("lib", sys.platlibdir)]
    paths += [path for name, path in sysconfig.get_paths().items() if name.endswith(("lib", "stdlib"))]
    # Of sys.path only where packages are installed: a project's own folder may hold data, runs and keys.
    paths += [p for p in sys.path if os.path.basename(p) in ("site-packages", "dist-packages")]
    return paths


def _mapped() -> list[str]:
    """Folders of the libraries that this process has loaded, wherever they lie."""
    found = set()
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")[2]
            if ".so" in os.path.basename(path) and os.path.isfile("/" + path):
                found.add(os.path.dirname("/" + path))
    return sorted(found)


def readable() -> list[str]:
    """Existing paths that a cell may read, as they are named, without those that lie in another one.

    Raises:
        Refused: the root folder is one of them.
    """
    given = [path for path in (*_python(), *_SYSTEM, *_mapped()) if os.path.exists(path)]
    roots: list[str] = []
    for path in sorted({os.path.realpath(path) for path in given}):
        if not any(path == root or path.startswith(root + "/") for root in roots):
            roots.append(path)
    if "/" in roots:
        raise Refused("Python's folders include the root folder: nothing would be hidden from cells")
    return roots + [path for path in given if os.path.realpath(path) != path]


def links_of(path: str) -> dict[str, str]:
    """Every symbolic link met on the way to ``path``, with its target: e.g. ``/lib64`` is ``usr/lib64``."""
    links: dict[str, str] = {}
    current, left = "/", [part for part in path.split("/") if part]
    while left and len(links) < 40:
        part = left.pop(0)
        if part == "..":
            current = os.path.dirname(current)
            continue
        step = os.path.join(current, part)
        if os.path.islink(step):
            target = links[step] = os.readlink(step)
            left = [p for p in target.split("/") if p and p != "."] + left
            current = "/" if target.startswith("/") else current
        else:
            current = step
    return links


def open_to_others(*, on_the_way: bool) -> bool:
    """Whether an account that owns nothing can read Python's files.

    ``on_the_way``: also the folders above them, as where no namespace shows them from elsewhere.
    """
    for path in (os.__file__, *(p for p in _python() if os.path.isdir(p))):
        path = os.path.realpath(path)
        if not os.stat(path).st_mode & stat.S_IROTH:
            return False
        while on_the_way and (path := os.path.dirname(path)) != "/":
            if not os.stat(path).st_mode & stat.S_IXOTH:
                return False
    return True
