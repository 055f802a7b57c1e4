"""SIGKILL of any process of a sandbox, at any moment, leaves no other behind, and no folder."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.unit

POOL = """
import asyncio, sys
from apprentice.sandbox.pool import SandboxPool
THREADS = '''
import threading, time
threading.Thread(target=time.sleep, args=(30,)).start()
while True: pass
'''
CELLS = [THREADS, "1", "2", "import time; time.sleep(9)"]
async def main():
    pool = SandboxPool(2, level="{level}", highest="{level}", imports=(), max_retries=0)
    await pool.start()
    print("started", flush=True)
    while True:
        await asyncio.gather(*map(pool.run, CELLS))
asyncio.run(main())
"""


def family(pool: int) -> list[psutil.Process]:
    """The pool's zygotes and all that they forked: they name the pool on their command line."""
    found = []
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
            if line and f"os.getppid() == {pool} " in line[-1] and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            pass
    return found


def a_second() -> float:
    """In seconds: longer where more processes than cores want to run, because dying takes a turn on one."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def wait_gone(pool: int) -> list[psutil.Process]:
    deadline = time.monotonic() + a_second()
    while (left := family(pool)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def start(level: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", POOL.format(level=level)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def started(pool: subprocess.Popen[bytes]) -> None:
    assert pool.stdout is not None and pool.stderr is not None
    if pool.stdout.readline() != b"started\n":
        said = pool.stderr.read().decode()
        assert "is not reached on this machine" in said, said
        pytest.skip(said.splitlines()[-1])


def end(pool: subprocess.Popen[bytes]) -> None:
    pool.kill()
    pool.wait()
    for stream in (pool.stdout, pool.stderr):
        assert stream is not None
        stream.close()


@pytest.mark.parametrize("level", ["A", "B"])
@pytest.mark.parametrize("moment", ["while it starts", "while it tests itself", "while cells run"])
def test_sigkill_of_the_pool_leaves_nothing_after_a_second(level: str, moment: str) -> None:
    pool = start(level)
    try:
        if moment == "while cells run":
            started(pool)
            time.sleep(random.uniform(0.0, 0.3))
        else:
            while not family(pool.pid) and pool.poll() is None:
                time.sleep(0.002)
            time.sleep(random.uniform(0.0, 0.02 if moment == "while it starts" else 0.5))
    finally:
        end(pool)
    assert wait_gone(pool.pid) == []


@pytest.mark.parametrize("level", ["A", "B"])
def test_sigkill_of_a_zygote_takes_its_cells_and_the_rest_serves_on(level: str) -> None:
    pool = start(level)
    try:
        started(pool)
        for _ in range(4):
            time.sleep(random.uniform(0.05, 0.3))
            victim = random.choice(family(pool.pid))
            below = victim.children(recursive=True)
            os.kill(victim.pid, signal.SIGKILL)
            _, alive = psutil.wait_procs([victim, *below], timeout=a_second())
            assert [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []
            assert pool.poll() is None
    finally:
        end(pool)
    assert wait_gone(pool.pid) == []


def test_a_self_tests_folder_of_a_killed_pool_is_removed_by_a_later_one() -> None:
    from apprentice.sandbox import selftest

    stale = Path(tempfile.mkdtemp(prefix="apprentice-selftest-"))
    (stale / "secret").write_text("x")
    os.utime(stale, (time.time() - 3600,) * 2)
    with selftest.targets() as first:
        assert not stale.exists()
        os.utime(first.folder, (time.time() - 3600,) * 2)
        with selftest.targets() as second:
            assert Path(first.folder).exists(), "somebody holds it"
        assert not Path(second.folder).exists()
    assert not Path(first.folder).exists()
