"""A zygote: one single-threaded process with numpy and sympy imported that forks a child for each cell.

Started fresh by :mod:`apprentice.sandbox.worker` with a clean environment. It serves one cell at a time and
is that cell's supervisor: it owns the deadline, reads the output with a cap *while* the cell runs, kills the
whole group before it reaps, and reports what it saw. What the child claims is passed on as a claim.

Protocol, over a Unix stream socket, both ways: 4-byte big-endian lengths of a JSON head and of a body, then
both. A request's body is the standard input; a report's body is the raw output. An empty request during a run
cancels it. End of file (the pool is gone) ends the cell and the zygote.

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
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from typing import Any

from apprentice.sandbox import cell, isolation, program, program_asserts, program_calls

__all__ = ["HEADER", "main", "remove_tree", "serve"]

HEADER = struct.Struct(">II")
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


class _Gone(Exception):
    """The pool closed its end."""


def _receive(sock: socket.socket) -> tuple[dict[str, Any], bytes]:
    def exactly(n: int) -> bytes:
        parts = bytearray()
        while len(parts) < n:
            part = sock.recv(min(n - len(parts), _CHUNK))
            if not part:
                raise _Gone
            parts += part
        return bytes(parts)

    head, body = HEADER.unpack(exactly(HEADER.size))
    return json.loads(exactly(head) or b"{}"), exactly(body)


def _send(sock: socket.socket, head: dict[str, Any], body: bytes = b"") -> None:
    raw = json.dumps(head).encode()
    sock.sendall(HEADER.pack(len(raw), len(body)) + raw + body)


def _address_space() -> int:
    """Bytes of address space of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _become_cell(
    request: dict[str, Any], fds: tuple[int, int, int], confinement: isolation.Confinement, base_bytes: int
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
        for name in [n for n in sys.modules if n == "apprentice" or n.startswith("apprentice.")]:
            del sys.modules[name]  # a cell starts from a clean interpreter
        if "numpy.random" in sys.modules:
            # A generator that was made before the fork would give every child the same numbers.
            sys.modules["numpy.random"].seed()
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


class _Run:
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
            _Gone: the pool closed its end; the child is dead then.
        """
        stdin_read, stdin_write = os.pipe() if self._stdin else (os.open("/dev/null", os.O_RDONLY), -1)
        out_read, out_write = os.pipe()
        status_read, status_write = os.pipe()
        started = time.monotonic()
        pid = os.fork()
        if pid == 0:
            _become_cell(self._request, (stdin_read, out_write, status_write), confinement, base_bytes)
        for fd in (stdin_read, out_write, status_write):
            os.close(fd)
        watch = os.pidfd_open(pid)
        for fd in (out_read, status_read):
            os.set_blocking(fd, False)
        gone = False
        try:
            self._supervise(watch, out_read, status_read, stdin_write, started)
        except _Gone:
            gone = True
        finally:
            status, usage = _sweep(pid, confinement)
            self._drain(out_read, self._output, self._limits.output_bytes)
            self._drain(status_read, self._claim, _CLAIM_CAP)
            for fd in (watch, out_read, status_read):
                os.close(fd)
        wall = time.monotonic() - started
        if gone:
            raise _Gone
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
                    _receive(self._sock)
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


def serve(sock: socket.socket, confinement: isolation.Confinement, scratch: str, base_bytes: int) -> None:
    """Serve cells until the pool closes its end. ``base_bytes``: address space of this process."""
    with contextlib.suppress(_Gone, ConnectionError):
        while True:
            request, stdin = _receive(sock)
            if not request:
                continue  # a cancellation that came after its cell had ended
            head, body = _Run(sock, request, stdin).run(confinement, base_bytes)
            if scratch and (left := os.listdir(scratch)):
                for name in left:
                    remove_tree(os.path.join(scratch, name))
            _send(sock, head, body)
    if scratch:
        remove_tree(scratch)  # the pool may have died


def remove_tree(path: str) -> None:
    """Remove what a cell left, however deep; what it made unremovable for its own account stays."""
    subprocess.run(["rm", "-rf", "--", path], check=False, stderr=subprocess.DEVNULL)


def _warm() -> None:
    # sympy imports and compiles much at its first use, which every cell that solves an equation would pay
    # again.
    sympy = sys.modules.get("sympy")
    if sympy is not None:
        x = sympy.Symbol("x")
        sympy.solve(x**2 - 2, x)
        sympy.simplify((x**2 - 1) / (x - 1))
        sympy.core.cache.clear_cache()


def main(fd: int, layers: list[str], scratch: str, imports: list[str], pool: int) -> None:
    """Entry point of the process: confine itself, import, serve on the inherited socket ``fd``.

    ``pool``: pid of the process that started this one. ``scratch``: where cells run at level none, else "".
    """
    isolation.die_with_parent()
    if os.getppid() != pool:
        return  # it died before its death could end this process
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
    except isolation.Refused as error:
        _send(sock, {"refused": str(error)})
        return
    if scratch:
        # Cells can leave orphans here; end of file lets this process end them before itself.
        isolation.live_without_parent()
    # What was imported never becomes garbage, and a collection in a child would copy every page it looks at.
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        _send(sock, {"ready": os.getpid(), **facts})
        serve(sock, confinement, scratch, base_bytes)
    except KeyboardInterrupt:
        sys.exit(130)
