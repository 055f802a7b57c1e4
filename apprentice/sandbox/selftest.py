"""The self-test: attacks tried on a zygote, through the very path that cells take.

An attack counts as stopped only if it says that the system refused it, or ends as its row expects. Anything
else, e.g. a mistake in the attack's own code, is reported as got through, never as safety.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from apprentice.sandbox.attacks import ATTACKS, BREACH, STOPPED, Attack
from apprentice.sandbox.format import split_streams
from apprentice.sandbox.isolation import Layer, Limits
from apprentice.sandbox.outcome import Outcome, classify
from apprentice.sandbox.worker import Worker

__all__ = ["LIMITS", "Finding", "Targets", "run", "targets"]

LIMITS = Limits(cpu_s=2.0, memory_bytes=128 << 20, output_bytes=16 << 10, file_bytes=1 << 20)
"""What attacks run under: small, so that the whole list takes a fraction of a second."""
_PREFIX = "apprentice-selftest-"
_STALE_S = 60.0


@dataclass(frozen=True, slots=True)
class Targets:
    """What attacks aim at: planted for the test, so that a success harms nobody.

    ``secret`` is a file that anyone may read and write, ``folder`` the folder around it, ``pid`` this
    process; the others are ports and names of listening sockets.
    """

    secret: str
    folder: str
    pid: int
    tcp: int
    udp: int
    unix: str
    abstract: str


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of an attack on one zygote.

    ``stopped`` is what happened; ``expected`` whether it is what the level promises, gaps included. ``by``
    names the layers that each stop it, of those that the zygote has, or ``supervisor``.
    """

    attack: Attack
    stopped: bool
    expected: bool
    by: str
    detail: str


@contextlib.contextmanager
def targets() -> Iterator[Targets]:
    """Plant them, for as long as the context lasts."""
    _remove_stale()
    folder = tempfile.mkdtemp(prefix=_PREFIX)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        stack.callback(os.close, held)
        fcntl.flock(held, fcntl.LOCK_EX)
        os.chmod(folder, 0o777)
        secret, unix_path = Path(folder, "secret"), os.path.join(folder, "socket")
        secret.write_text("the planted secret")
        secret.chmod(0o666)
        name = f"{_PREFIX}{os.urandom(8).hex()}"
        kinds = [(socket.AF_INET, socket.SOCK_STREAM), (socket.AF_INET, socket.SOCK_DGRAM)]
        kinds += [(socket.AF_UNIX, socket.SOCK_STREAM)] * 2
        tcp, udp, unix, abstract = (stack.enter_context(socket.socket(*kind)) for kind in kinds)
        tcp.bind(("127.0.0.1", 0))
        udp.bind(("127.0.0.1", 0))
        unix.bind(unix_path)
        os.chmod(unix_path, 0o777)
        abstract.bind("\0" + name)
        for listener in (tcp, unix, abstract):
            listener.listen(64)
        ports = tcp.getsockname()[1], udp.getsockname()[1]
        yield Targets(str(secret), folder, os.getpid(), *ports, unix_path, name)


def _remove_stale() -> None:
    """Folders of processes that were killed in their self-test: nobody holds the lock on them any more."""
    for folder in Path(tempfile.gettempdir()).glob(_PREFIX + "*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime < _STALE_S:
                continue
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(fd)


async def run(worker: Worker, aims: Targets, attacks: Sequence[Attack] = ATTACKS) -> list[Finding]:
    """Try ``attacks`` one after the other on a started worker.

    Raises:
        ZygoteDied: the zygote did not survive one.
    """
    return [await _try(worker, aims, attack) for attack in attacks]


async def _try(worker: Worker, aims: Targets, attack: Attack) -> Finding:
    limits = replace(LIMITS, wall_s=attack.wall_s)
    report, raw, nonce = await worker.run(attack.code.format(**asdict(aims)), b"", limits)
    outcome, _ = classify(report, cpu_limit_s=LIMITS.cpu_s, memory_bytes=LIMITS.memory_bytes)
    shown = split_streams(raw, nonce)[0].strip()
    stopped = outcome in attack.outcomes
    if outcome is Outcome.OK:
        stopped = stopped and shown.startswith(STOPPED) and BREACH not in shown
    gap = worker.level in attack.gaps
    layers = attack.layers & {Layer(name) for name in worker.facts["layers"].split()}
    return Finding(
        attack,
        stopped,
        expected=stopped or (gap and BREACH in shown),
        by=", ".join(layer for layer in Layer if layer in layers) or "supervisor",
        detail=(shown.removeprefix(STOPPED) if outcome is Outcome.OK else f"{outcome} {shown[:80]}").strip(),
    )
