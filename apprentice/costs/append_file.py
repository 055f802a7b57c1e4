"""An append-only file of lines with one writer, whose lines outlive the process and the machine.

A line is one ``write``: it is in the kernel when the call returns, so SIGKILL of the writer does not lose it.
:meth:`AppendFile.commit` returns when it is on the disk; writers that wait together share one ``fsync``.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path

from apprentice.errors import AdvisorError

__all__ = ["AppendFile"]


class AppendFile:
    """Opens ``path`` for appending, alone.

    A last line without its newline was being written when its writer died: it was never acknowledged, and is
    cut off. The lock is the kernel's (``flock``) and ends with the process, however it dies.

    Args:
        path: the file; made with its folder.
        lock_timeout_s: how long to wait for another writer to end.

    Raises:
        AdvisorError: kind ``ledger_locked``: another process writes it.
        OSError: the file cannot be opened.
    """

    def __init__(self, path: str | Path, *, lock_timeout_s: float = 10.0) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock(self._fd, self.path, lock_timeout_s)
            size = os.fstat(self._fd).st_size
            self._size = _end_of_last_line(self._fd, size)
            self.dropped = size - self._size
            """Bytes of the torn last line that was cut off."""
            if self.dropped:
                os.ftruncate(self._fd, self._size)
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)  # the file's name outlives the machine too
            finally:
                os.close(folder)
        except BaseException:
            os.close(self._fd)
            raise
        self._synced = self._size
        self._write_lock, self._sync_lock = threading.Lock(), threading.Lock()
        self._broken = ""

    def append(self, line: bytes) -> int:
        """Write one line that ends in a newline; returns its offset. All of it is written, or nothing.

        Raises:
            AdvisorError: kind ``ledger``: it could not be written.
        """
        with self._write_lock:
            self._check()
            start, view = self._size, memoryview(line)
            try:
                while view:
                    view = view[os.write(self._fd, view) :]
            except OSError as error:
                try:
                    os.ftruncate(self._fd, start)
                except OSError:
                    self._broken = f"cannot be written ({error.strerror}), and holds half a line"
                raise _failed(self.path, f"cannot be written ({error.strerror})") from error
            self._size = start + len(line)
            return start

    def commit(self) -> None:
        """Wait until everything appended so far is on the disk.

        Raises:
            AdvisorError: kind ``ledger``. What a failed ``fsync`` left on the disk is not known, so nothing
                is accepted from then on.
        """
        wanted = self._size
        with self._sync_lock:
            if self._synced >= wanted:
                return  # the one that held the lock before wrote ours along
            self._check()
            upto = self._size
            try:
                os.fdatasync(self._fd)
            except OSError as error:
                self._broken = f"cannot be synced to the disk ({error.strerror})"
                raise _failed(self.path, self._broken) from error
            self._synced = upto

    def read_line(self, offset: int) -> bytes:
        """The line at ``offset``, its newline left out."""
        parts, at = [], offset
        while True:
            part = os.pread(self._fd, 4096, at)
            head, newline, _ = part.partition(b"\n")
            parts.append(head)
            if newline or not part:
                return b"".join(parts)
            at += len(part)

    @property
    def broken(self) -> str:
        """Why nothing is accepted any more; empty while all is well."""
        return self._broken

    def close(self) -> None:
        """Give the file up, and with it the lock."""
        with self._write_lock, self._sync_lock:
            if not self._broken:
                self._broken = "is closed"
                os.close(self._fd)

    def _check(self) -> None:
        if self._broken:
            raise _failed(self.path, self._broken)


def _failed(path: Path, what: str) -> AdvisorError:
    return AdvisorError(f"the ledger {path} {what}: no call is sent without it", kind="ledger")


def _lock(fd: int, path: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise AdvisorError(
                    f"the ledger {path} is in use by another process: it has one writer; end the other run, "
                    "or give this one a ledger of its own",
                    kind="ledger_locked",
                ) from None
            time.sleep(0.05)


def _end_of_last_line(fd: int, size: int) -> int:
    """The length of the file without a last line that lacks its newline."""
    end = size
    while end:
        start = max(0, end - 65536)
        found = os.pread(fd, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
