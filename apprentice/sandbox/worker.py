"""One zygote process and the pool's end of its socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import apprentice
from apprentice.errors import SandboxError
from apprentice.sandbox.isolation import Layer, Level, Limits, layers_of
from apprentice.sandbox.outcome import Report
from apprentice.sandbox.wire import HEADER
from apprentice.sandbox.zygote import remove_tree

__all__ = ["START_S", "LevelRefused", "Worker", "ZygoteDied"]

_GRACE_S = 5.0
START_S = 60.0
# Before anything that takes time: 1 is PR_SET_PDEATHSIG, for the thread of the pool that started the process;
# where the pool died before that, so does the process.
_BOOT = (
    "import ctypes, os, signal; ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0); "
    "os.getppid() == {pool} or os._exit(1); "
    "import sys; sys.path.insert(0, {root!r}); from apprentice.sandbox.zygote import main; "
    "sys.path.remove({root!r}); main({fd}, {layers!r}, {scratch!r}, {imports!r})"
)


class ZygoteDied(Exception):
    """The zygote died or did not answer: nothing is known of the cell."""


class LevelRefused(SandboxError):
    """This machine does not give the level; the message says at which step."""


class Worker:
    """A zygote process and the pool's end of its socket.

    The zygote ends with the *thread* that started it, which has to live as long as the event loop.

    Args:
        imports: modules that the zygote imports before its first cell.
        layers: in place of the level's, to test what each is good for.
    """

    def __init__(self, imports: tuple[str, ...], layers: frozenset[Layer] | None = None) -> None:
        self._imports, self._layers = imports, layers
        self.level = Level.NONE
        self.facts: dict[str, str] = {}
        """What the zygote says of its isolation: ``layers``, ``landlock`` (version), ``account``."""
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._scratch = ""
        self._report: asyncio.Task[tuple[dict[str, Any], bytes]] | None = None

    @property
    def pid(self) -> int | None:
        """Pid of the zygote, if one was started."""
        return self._process.pid if self._process else None

    @property
    def alive(self) -> bool:
        """Whether the zygote runs."""
        return self._process is not None and self._process.poll() is None

    async def start(self, level: Level | None = None) -> None:
        """Start a fresh zygote and wait until it serves. ``level``: the one it had before if left out.

        Raises:
            LevelRefused: the level cannot be had on this machine.
            SandboxError: it did not come up.
        """
        await self.stop()
        if level is not None:
            self.level = level
        layers = layers_of(self.level) if self._layers is None else self._layers
        ours, theirs = socket.socketpair()
        # The other layers take it from a cell, or give it one of its own.
        if layers <= {Layer.RLIMITS, Layer.CAPABILITIES}:
            self._scratch = tempfile.mkdtemp(prefix="apprentice-cell-")
        root = str(Path(apprentice.__file__).resolve().parent.parent)
        boot = _BOOT.format(
            root=root,
            fd=theirs.fileno(),
            layers=[str(layer) for layer in layers],
            scratch=self._scratch,
            imports=list(self._imports),
            pool=os.getpid(),
        )
        with theirs, tempfile.TemporaryFile() as log:
            self._process = subprocess.Popen(
                # -s -P: no user site, no folder of a script; a fixed hash seed makes set order repeat.
                [sys.executable, "-s", "-P", "-c", boot],
                env={
                    "PATH": "/usr/bin:/bin",
                    "LANG": "C.UTF-8",
                    "HOME": "/tmp",
                    "PYTHONHASHSEED": "0",
                    "OMP_NUM_THREADS": "1",
                    "OPENBLAS_NUM_THREADS": "1",
                    "MKL_NUM_THREADS": "1",
                },
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
            self._reader, self._writer = await asyncio.open_connection(sock=ours)
            theirs.close()
            try:
                head, _ = await asyncio.wait_for(self._receive(), START_S)
            except (ZygoteDied, TimeoutError) as error:
                await self.stop()
                log.seek(0)
                said = log.read()[-2000:].decode("utf-8", "replace").strip()
                raise SandboxError(
                    f"a sandbox worker did not start at isolation level {self.level}: {said or error!r}"
                ) from None
        if "refused" in head:
            await self.stop()
            raise LevelRefused(head["refused"])
        self.facts = {name: str(value) for name, value in head.items()}

    async def _receive(self) -> tuple[dict[str, Any], bytes]:
        assert self._reader is not None
        try:
            head, body = HEADER.unpack(await self._reader.readexactly(HEADER.size))
            return json.loads(await self._reader.readexactly(head)), await self._reader.readexactly(body)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise ZygoteDied(str(error)) from None

    async def _send(self, head: dict[str, Any], body: bytes = b"") -> None:
        assert self._writer is not None
        raw = json.dumps(head).encode()
        try:
            self._writer.write(HEADER.pack(len(raw), len(body)) + raw + body)
            await self._writer.drain()
        except (ConnectionError, RuntimeError) as error:
            raise ZygoteDied(str(error)) from None

    async def run(
        self, code: str, stdin: bytes, limits: Limits, entry: str = "cell"
    ) -> tuple[Report, bytes, str]:
        """One run of ``entry``: what the zygote saw, the raw output, and the nonce of its marks.

        Raises:
            ZygoteDied: the zygote died or missed the hard deadline.
        """
        nonce = secrets.token_hex(8)
        request = {"code": code, "limits": asdict(limits), "nonce": nonce, "entry": entry}
        try:
            async with asyncio.timeout(limits.wall_s + _GRACE_S):
                await self._send(request, stdin)
                # A task of its own: a caller that is cancelled must not leave half a report in the stream.
                self._report = asyncio.create_task(self._receive())
                head, output = await asyncio.shield(self._report)
        except TimeoutError:
            raise ZygoteDied(f"no report {_GRACE_S:g} s after the wall limit") from None
        self._report = None
        if "failed" in head:
            raise ZygoteDied(f"a child could not be confined: {head['failed']}")
        return Report(**head), output, nonce

    async def cancel(self) -> None:
        """End the cell whose caller went away; the zygote lives on if it answers, else it is ended too."""
        report = self._report
        try:
            if report is None:
                raise ZygoteDied("cancelled between start and run")
            await self._send({})
            async with asyncio.timeout(_GRACE_S):
                await report
            self._report = None
        except (ZygoteDied, TimeoutError):
            await self.stop()

    async def stop(self) -> None:
        """End the zygote and its cell; returns when they are gone."""
        process, self._process = self._process, None
        report, self._report = self._report, None
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(ConnectionError):
                await self._writer.wait_closed()
        self._reader = self._writer = None
        if report is not None:
            await asyncio.gather(report, return_exceptions=True)  # ended by the closed stream
        if process is not None:
            # The zygote sees the end of file, ends its cell, then itself; only a stuck one is killed.
            try:
                await asyncio.to_thread(process.wait, 2.0)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await asyncio.to_thread(process.wait)
        if self._scratch:
            remove_tree(self._scratch)
            self._scratch = ""
