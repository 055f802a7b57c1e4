"""One cell from fork to report: the zygote as the supervisor of its child.

It owns the deadline, reads the output with a cap *while* the cell runs, kills everything that the cell
started before it reaps, and reports what it saw. What the child claims is passed on as a claim.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from typing import Any

from apprentice.sandbox import cell, isolation, program, program_asserts, program_calls
from apprentice.sandbox.wire import Gone, receive

__all__ = ["Run"]

_ENTRIES = {
    "cell": cell.run,
    "program": program.run,
    "calls": program_calls.run,
    "asserts": program_asserts.run,
}
_CONFINED = b" "
"""First in the status pipe before the cell runs, so that a cell cannot pass for one that never began."""
_CLAIM_CAP = 64 << 10
_CHUNK = 1 << 16
_fork = os.fork  # what a cell finds under this name refuses


def _become_cell(
    request: dict[str, Any],
    fds: tuple[int, int, int],
    confinement: isolation.Confinement,
    base_bytes: int,
) -> None:
    """The child: confine, run the cell, end. Never returns."""
    code = 70
    stdin, out, status = fds
    try:
        try:
            isolation.die_with_parent()
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            confinement.confine(isolation.Limits(**request["limits"]), base_bytes=base_bytes)
        except OSError as error:
            os.write(status, str(error).encode())
            return
        # All sources lie above 2, so none is overwritten before it is used; 3 is free once these are done.
        for target, source in ((0, stdin), (1, out), (2, out)):
            os.dup2(source, target)
        status = os.dup2(status, 3, inheritable=False)
        os.closerange(4, 256)
        if _nobody_reads(status):
            return  # the zygote died before its death could end this process
        os.write(status, _CONFINED)
        gc.enable()
        _ENTRIES[request.get("entry", "cell")](request["code"], status_fd=status, nonce=request["nonce"])
        code = 0
    finally:
        os._exit(code)


def _nobody_reads(pipe: int) -> bool:
    poll = select.poll()
    poll.register(pipe, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _children() -> list[int]:
    """Pids of this process's children, orphans of a cell included."""
    pid = os.getpid()
    try:
        with open(f"/proc/self/task/{pid}/children") as file:
            return [int(p) for p in file.read().split()]
    except OSError:
        return []


def _sweep(pid: int, confinement: isolation.Confinement) -> tuple[int, Any]:
    """Kill the cell and everything it left behind, then reap; the cell's wait status and rusage."""
    if confinement.own_namespaces:
        confinement.kill_all()
        _, status, usage = os.wait4(pid, 0)
        with contextlib.suppress(ChildProcessError):
            while True:  # what the cell left are children of pid 1 by now, and dying
                os.waitpid(-1, 0)
        return status, usage
    # Before reaping: until then the pid, and so the group's number, cannot be anyone else's.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)  # it may not have reached its setsid yet
    _, status, usage = os.wait4(pid, 0)
    while True:  # daemons in sessions of their own are this process's children now (it is a subreaper)
        left = _children()
        for child in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(-1, 0 if left else os.WNOHANG)
        except ChildProcessError:
            return status, usage
        if not left:
            time.sleep(0.001)


class Run:
    """Supervises one child from fork to report."""

    def __init__(self, sock: socket.socket, request: dict[str, Any], stdin: bytes) -> None:
        self._sock, self._request = sock, request
        self._stdin = memoryview(stdin)
        self._limits = isolation.Limits(**request["limits"])
        self._output, self._claim = bytearray(), bytearray()
        self._stopped = ""

    def run(self, confinement: isolation.Confinement, base_bytes: int) -> tuple[dict[str, Any], bytes]:
        """Fork, supervise, sweep.

        Raises:
            Gone: the pool closed its end; the child is dead then.
        """
        try:
            confinement.renew(self._limits)
        except OSError as error:
            return {"failed": str(error)}, b""
        stdin_read, stdin_write = os.pipe() if self._stdin else (os.open("/dev/null", os.O_RDONLY), -1)
        out_read, out_write = os.pipe()
        status_read, status_write = os.pipe()
        started = time.monotonic()
        if "numpy.random" in sys.modules:
            # Or all children would draw the same numbers. Before the fork, because its code is mapped here;
            # without an argument it would take 0.3 ms to find as many bits.
            sys.modules["numpy.random"].seed(struct.unpack("8I", os.urandom(32)))
        pid = _fork()
        if pid == 0:
            fds = (stdin_read, out_write, status_write)
            _become_cell(self._request, fds, confinement, base_bytes)
        for fd in (stdin_read, out_write, status_write):
            os.close(fd)
        watch = os.pidfd_open(pid)
        for fd in (out_read, status_read):
            os.set_blocking(fd, False)
        gone = False
        try:
            self._supervise(watch, out_read, status_read, stdin_write, started)
        except Gone:
            gone = True
        finally:
            status, usage = _sweep(pid, confinement)
            self._drain(out_read, self._output, self._limits.output_bytes)
            self._drain(status_read, self._claim, _CLAIM_CAP)
            for fd in (watch, out_read, status_read):
                os.close(fd)
        wall = time.monotonic() - started
        if gone:
            raise Gone
        if not self._claim.startswith(_CONFINED) and not self._stopped:
            why = bytes(self._claim).decode("utf-8", "replace")
            return {"failed": why or f"the child ended before its cell, status {status}"}, b""
        try:
            claim = json.loads(bytes(self._claim) or b"{}")
            claim = {str(k): str(v) for k, v in claim.items()}
        except (ValueError, AttributeError, RecursionError):
            claim = {}  # forged or torn: no claim
        head = {
            "status": status,
            "stopped": self._stopped,
            "claim": claim,
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "wall_s": wall,
            "max_rss": usage.ru_maxrss * 1024,
        }
        return head, bytes(self._output)

    def _supervise(self, watch: int, out: int, status: int, stdin: int, started: float) -> None:
        poll = select.poll()
        for fd in (watch, out, status, self._sock.fileno()):
            poll.register(fd, select.POLLIN)
        if stdin >= 0:
            os.set_blocking(stdin, False)
            poll.register(stdin, select.POLLOUT)
        deadline = started + self._limits.wall_s
        try:
            while not self._stopped:
                left = deadline - time.monotonic()
                if left <= 0:
                    self._stopped = "wall"
                    return
                ready = dict(poll.poll(left * 1000 + 0.5))
                if out in ready and not self._drain(out, self._output, self._limits.output_bytes):
                    poll.unregister(out)
                if status in ready and not self._drain(status, self._claim, _CLAIM_CAP):
                    poll.unregister(status)
                if stdin in ready:
                    stdin = self._feed(poll, stdin)
                if self._sock.fileno() in ready:
                    receive(self._sock)
                    self._stopped = "cancel"
                if watch in ready:
                    return
        finally:
            if stdin >= 0:
                os.close(stdin)

    def _feed(self, poll: select.poll, stdin: int) -> int:
        """Write some standard input; the descriptor, or -1 once it is closed."""
        try:
            self._stdin = self._stdin[os.write(stdin, self._stdin[:_CHUNK]) :]
            if self._stdin:
                return stdin
        except BlockingIOError:
            return stdin
        except BrokenPipeError:
            pass  # the cell closed its input
        poll.unregister(stdin)
        os.close(stdin)
        return -1

    def _drain(self, fd: int, into: bytearray, cap: int) -> bool:
        """Read what is there, at most up to the cap; False at end of file."""
        while True:
            room = cap - len(into)
            try:
                # One byte more than fits tells "exactly full" from "too much"; it is not kept.
                part = os.read(fd, min(_CHUNK, room + 1))
            except BlockingIOError:
                return True
            if not part:
                return False
            into += part[:room]
            if len(part) > room:
                if into is self._output and not self._stopped:
                    self._stopped = "output"
                return True
