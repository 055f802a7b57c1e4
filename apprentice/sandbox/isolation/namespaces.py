"""Namespaces: a machine of the zygote's own, without network, /proc or anything but Python to read.

:func:`enter` once, before anything is imported: from then on this process is pid 1 of its namespace. Every
process that a cell could start is in it and ends with it, and one signal to all of them leaves none behind.
Cells are not pid 1 themselves: a first process ignores its own SIGTERM, SIGALRM and ``abort()``.
:func:`change_root` once, after the imports. :class:`CellFolder` before each cell.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import struct
import tempfile
from collections.abc import Callable, Sequence

from apprentice.sandbox.isolation import capabilities
from apprentice.sandbox.isolation.kernel import Refused, call, check, die_with_parent, libc
from apprentice.sandbox.isolation.view import DEVICES, links_of, open_to_others

__all__ = ["WORK", "CellFolder", "change_root", "enter", "kill_all"]

WORK = "/cell"
UID = 1000  # inside

_NEWNS, _NEWUTS, _NEWIPC = 0x00020000, 0x04000000, 0x08000000
_NEWUSER, _NEWPID, _NEWNET = 0x10000000, 0x20000000, 0x40000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 1, 2, 4, 8, 1 << 14, 1 << 18
_MNT_DETACH = 2
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH = 1, 4


def _unshare(flags: int, what: str) -> None:
    check(libc.unshare(ctypes.c_int(flags)), f"unshare({what})")


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    arguments = (source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode())
    check(libc.mount(*arguments), f"mount {kind or 'change'} on {target}")


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _map(pid: int | str, uids: str, gids: str) -> None:
    _write(f"/proc/{pid}/uid_map", uids)
    _write(f"/proc/{pid}/gid_map", gids)


def _mapper(pid: int) -> Callable[[bool], bool]:
    """A process outside that maps root and nobody into ``pid``'s namespace; call it once that is made."""
    read, write = os.pipe()
    helper = os.fork()
    if helper == 0:
        code = 1
        try:
            os.close(write)
            if os.read(read, 1):
                rows = f"0 0 1\n{UID} {capabilities.NOBODY} 1\n"
                _map(pid, rows, rows)
                code = 0
        finally:
            os._exit(code)
    os.close(read)

    def finish(go: bool) -> bool:
        if go:
            os.write(write, b"x")
        os.close(write)
        return os.waitpid(helper, 0)[1] == 0

    return finish


def enter() -> bool:
    """Go into new namespaces. Returns in the process that is their pid 1; the caller waits for it, outside.

    Returns whether there is an account for the cells that owns nothing (:func:`change_root` goes over to it):
    where the caller is root and others can read Python's files. An unprivileged caller stays itself.

    Raises:
        Refused: this machine does not let this process make them; says at which step.
    """
    uid, gid = os.geteuid(), os.getegid()
    may_map = capabilities.effective(capabilities.CAP_SETUID) and capabilities.effective(
        capabilities.CAP_SETGID
    )
    nobody = uid == 0 and may_map and open_to_others(on_the_way=False)
    finish = _mapper(os.getpid()) if nobody else None
    try:
        _unshare(_NEWUSER, "user namespace")
    except OSError as error:
        if finish:
            finish(False)
        raise Refused(str(error)) from None
    try:
        nobody = finish(True) if finish else False
        if not nobody:
            with contextlib.suppress(FileNotFoundError):
                _write("/proc/self/setgroups", "deny")
            _map("self", f"{UID} {uid} 1", f"{UID} {gid} 1")
        names = "mount, network, IPC, UTS and PID namespace"
        _unshare(_NEWNS | _NEWNET | _NEWIPC | _NEWUTS | _NEWPID, names)
        die_with_parent()
        _become_first()
        check(libc.sethostname(b"cell", 4), "sethostname")
    except OSError as error:
        raise Refused(str(error)) from None
    return nobody


def _become_first() -> None:
    """Fork pid 1 of the namespace and return in it; the process outside waits, and ends as it ends."""
    read, write = os.pipe()
    first = os.fork()
    if first == 0:
        die_with_parent()
        os.close(write)
        # Whether the process outside had died before it could be asked for.
        if select.select([read], [], [], 0)[0]:
            os._exit(1)
        os.close(read)
        return
    os.closerange(3, write)  # its copy of the socket would hide the zygote's end
    os.closerange(write + 1, 1 << 16)
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _, status = os.waitpid(first, 0)
        if os.WIFSIGNALED(status):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.kill(os.getpid(), os.WTERMSIG(status))
        code = os.waitstatus_to_exitcode(status)
    finally:
        os._exit(code & 0xFF)


def _attributes(fd: int, path: str, flags: int, recursive: bool) -> None:
    attr = ctypes.create_string_buffer(struct.pack("4Q", flags, 0, 0, 0))
    how = _AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0)
    call("mount_setattr", fd, path.encode(), how, attr, 32)


def _clone_tree(path: str, flags: int) -> int:
    """A copy of the mounts at ``path``, attached nowhere, with further ``flags``."""
    how = _OPEN_TREE_CLONE | _AT_RECURSIVE | os.O_CLOEXEC
    fd = call("open_tree", _AT_FDCWD, path.encode(), how)
    _attributes(fd, "", flags, True)
    return fd


def change_root(paths: Sequence[str], *, nobody: bool) -> None:
    """Leave this process nothing but ``paths``, read-only, four devices and an empty folder for :data:`WORK`.

    Raises:
        Refused: a step is not allowed here.
    """
    try:
        _change_root(paths)
        if nobody:
            capabilities.become(UID, UID, keep=True)
    except OSError as error:
        raise Refused(str(error)) from None


def _change_root(paths: Sequence[str]) -> None:
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    read_only = _MS_RDONLY | _MS_NOSUID | _MS_NODEV  # the same bits as MOUNT_ATTR_*
    trees = {p: _clone_tree(p, read_only) for p in paths if os.path.realpath(p) == p}
    trees |= {p: _clone_tree(p, _MS_NOSUID) for p in DEVICES if os.path.exists(p)}
    links = {link: target for path in paths for link, target in links_of(path).items()}
    links |= {"/tmp": WORK, "/dev/shm": WORK}
    root = tempfile.gettempdir()  # hidden below from now on; what lies in it was copied above
    _mount("tmpfs", root, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=1m,mode=755")
    for path, fd in trees.items():
        inside = root + path
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            os.makedirs(inside, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(inside), exist_ok=True)
            os.close(os.open(inside, os.O_CREAT | os.O_WRONLY, 0o644))
        call("move_mount", fd, b"", _AT_FDCWD, inside.encode(), _MOVE_MOUNT_F_EMPTY_PATH)
        os.close(fd)
    for path, target in links.items():
        if not os.path.lexists(root + path):
            os.makedirs(os.path.dirname(root + path), exist_ok=True)
            os.symlink(target, root + path)
    if os.path.lexists(root + WORK):
        raise Refused(f"Python lies in {WORK}, which is where a cell's own folder goes: install it elsewhere")
    os.mkdir(root + WORK)
    os.chdir(root)
    call("pivot_root", b".", b".")
    check(libc.umount2(b".", _MNT_DETACH), "umount2 of the old root")
    os.chdir("/")
    _attributes(_AT_FDCWD, "/", read_only, False)
    if os.path.realpath(root) != WORK:  # TMPDIR was set, or Python lies below /tmp: no link there
        tempfile.tempdir = WORK  # cells would be sent to the folder that was found above


class CellFolder:
    """:data:`WORK`, in the zygote: empty, and of a size, whenever a cell begins.

    A mount of each cell's own would take a mount namespace, made and taken down with the cell. So one serves
    cell after cell until one of them leaves a trace: an entry, another mode, a change of the folder's times.
    """

    def __init__(self) -> None:
        self._size = 0
        self._fresh: tuple[int, ...] = ()

    def renew(self, size: int) -> bool:
        """Whether it was replaced. ``size``: in bytes, for up to 4096 entries. No cell may be running.

        Raises:
            OSError: it failed; no cell may run then.
        """
        if size == self._size and self._state() == self._fresh:
            return False
        if self._size:
            self._size = 0
            check(libc.umount2(WORK.encode(), _MNT_DETACH), f"umount2 of {WORK}")
        data = f"size={size},nr_inodes=4096,mode=700"
        _mount("tmpfs", WORK, "tmpfs", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, data)
        self._size, self._fresh = size, self._state()
        return True

    @staticmethod
    def _state() -> tuple[int, ...]:
        seen, room = os.stat(WORK), os.statvfs(WORK)
        times = seen.st_ctime_ns, seen.st_mtime_ns
        return (*times, seen.st_mode, seen.st_uid, seen.st_gid, seen.st_nlink, room.f_bfree, room.f_ffree)


def kill_all() -> None:
    """End every other process of this namespace; callable in its pid 1 only."""
    if os.getpid() != 1:
        raise RuntimeError("only pid 1 of a namespace may end everybody else")
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
