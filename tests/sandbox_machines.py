"""Other machines than this one, as a sandbox sees them: another account, or a kernel that refuses something.

``python -P tests/sandbox_machines.py 'SETTING SETTING ...' CODE`` sets up, then becomes Python running CODE.
Settings: ``readable`` (root only: others can reach Python and this repository), ``nobody`` (root only: uid
65534 without groups), ``no-namespaces`` and ``no-landlock`` (their system calls are refused, as a container's
seccomp profile does).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from apprentice.sandbox.isolation import namespaces, view  # noqa: E402
from apprentice.sandbox.isolation.kernel import call, machine, prctl  # noqa: E402

_REFUSED = {
    "no-namespaces": {"x86_64": (272, 308), "aarch64": (97, 268)},  # unshare, setns
    "no-landlock": {"x86_64": (444, 445, 446), "aarch64": (444, 445, 446)},
}


def make_readable() -> None:
    """In a mount namespace of our own: what lies in folders closed to others, shown in open ones."""
    namespaces._unshare(namespaces._NEWNS, "mount namespace")
    namespaces._mount("none", "/", "", namespaces._MS_REC | namespaces._MS_PRIVATE)
    wanted = {os.path.realpath(p) for p in (*view.readable(), sys.executable, str(ROOT))}
    wanted |= {os.path.dirname(p) for p in wanted if os.path.isfile(p)}
    closed: dict[str, list[str]] = {}
    for path in sorted(wanted):
        for parent in reversed(Path(path).parents):
            if not parent.stat().st_mode & 0o001:
                closed.setdefault(str(parent), []).append(path)
                break
    for folder, inside in closed.items():
        trees = {path: namespaces._clone_tree(path, 0) for path in inside if os.path.isdir(path)}
        namespaces._mount("tmpfs", folder, "tmpfs", 0, "mode=755")
        for path, fd in trees.items():
            os.makedirs(path, exist_ok=True)
            call("move_mount", fd, b"", -100, path.encode(), 4)


def refuse(numbers: tuple[int, ...]) -> None:
    """Give these system calls EPERM from now on, in this process and all that it starts."""
    code = struct.pack("=HBBI", 0x20, 0, 0, 0)
    for number in numbers:
        code += struct.pack("=HBBI", 0x15, 0, 1, number) + struct.pack(
            "=HBBI", 0x06, 0, 0, 0x50000 | errno.EPERM
        )
    code += struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000)
    buffer = ctypes.create_string_buffer(code, len(code))
    head = struct.pack("@HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    prctl(38, 1)
    call("seccomp", 1, 0, ctypes.create_string_buffer(head, len(head)))


def main(settings: str, script: str) -> None:
    os.umask(0o022)
    chosen = settings.split()
    if "readable" in chosen:
        make_readable()
    for setting in chosen:
        if setting in _REFUSED:
            refuse(_REFUSED[setting][machine()])
    if "nobody" in chosen:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    os.execve(sys.executable, [sys.executable, "-P", "-c", script], environment)


if __name__ == "__main__":
    main(*sys.argv[1:])
