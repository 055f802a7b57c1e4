"""Levels: which one a machine gives to whom, and what cells still can at each."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from apprentice.errors import SandboxError
from apprentice.sandbox import levels
from apprentice.sandbox.attacks import Attack
from apprentice.sandbox.isolation import Layer, Level, Limits
from apprentice.sandbox.outcome import CellResult, Outcome
from apprentice.sandbox.pool import SandboxPool
from apprentice.sandbox.worker import LevelRefused, Worker

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
Cell = Callable[..., CellResult]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another account")


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as loop:
        yield loop


@pytest.fixture(scope="module", params=["A", "B"])
def cell(request: pytest.FixtureRequest, runner: asyncio.Runner) -> Iterator[Cell]:
    """Runs a cell at a level, on a zygote that has imported nothing: cells import from what they can see."""
    pool = SandboxPool(1, level=request.param, highest=request.param, imports=())
    try:
        runner.run(pool.start())
    except SandboxError as error:
        pytest.skip(f"not on this machine: {error}")

    def run(code: str, **options: object) -> CellResult:
        result = runner.run(pool.run(code, **options))  # type: ignore[arg-type]
        assert result.level == request.param
        return result

    run.level = request.param  # type: ignore[attr-defined]
    yield run
    runner.run(pool.close())


ORDINARY = {
    "numpy and BLAS": ("import numpy as np\na = np.eye(200)\nprint(float((a @ a).sum()))", "200.0"),
    "sympy": ("import sympy\nprint(sympy.solve('x**2 - 2'))", "[-sqrt(2), sqrt(2)]"),
    "threads": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(8) as pool: print(sum(pool.map(abs, range(-4, 1))))",
        "10",
    ),
    "an event loop": ("import asyncio\nprint(asyncio.run(asyncio.sleep(0.01, 'slept')))", "slept"),
    "random": (
        "import random, secrets\nprint(0 <= random.random() < 1, len(secrets.token_hex(4)))",
        "True 8",
    ),
    "dates": (
        "import datetime, zoneinfo\nz = zoneinfo.ZoneInfo('Europe/Berlin')\n"
        "print(datetime.datetime(2026, 7, 1, tzinfo=z).utcoffset())",
        "2:00:00",
    ),
    "a stack of its own": (
        "import sys, threading\nsys.setrecursionlimit(10**5)\nthreading.stack_size(64 << 20)\n"
        "def f(n): return 0 if n == 0 else 1 + f(n - 1)\n"
        "t = threading.Thread(target=lambda: print(f(20000)))\nt.start(); t.join()",
        "20000",
    ),
    "limits of its own": (
        "import resource as r\nr.setrlimit(r.RLIMIT_STACK, r.getrlimit(r.RLIMIT_STACK))\nprint('set')",
        "set",
    ),
    "its own signals": (
        "import signal\nsignal.signal(signal.SIGALRM, lambda *_: print('rang'))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.02)\nsignal.pause()",
        "rang",
    ),
    "null device": (
        "print('x', file=open('/dev/null', 'w'))\nprint(len(open('/dev/urandom', 'rb').read(4)))",
        "4",
    ),
    "C extensions": (
        "import lzma, sqlite3, ctypes, decimal\nprint(lzma.decompress(lzma.compress(b'x')))",
        "b'x'",
    ),
}


@pytest.mark.parametrize("what", ORDINARY)
def test_ordinary_cells_work(cell: Cell, what: str) -> None:
    code, printed = ORDINARY[what]
    result = cell(code, timeout=60.0)  # a first import takes its time where others work too
    assert (result.outcome, result.stdout.strip()) == (Outcome.OK, printed), result.traceback


PROCESSES = {
    "multiprocessing": "import multiprocessing\nwith multiprocessing.Pool(2) as pool: pool.map(abs, [1])",
    "subprocess": "import subprocess\nsubprocess.run(['ls'])",
    "os.system": "import os\nos.system('ls')",
    "os.fork": "import os\nos.fork()",
}


@pytest.mark.parametrize("what", PROCESSES)
def test_starting_a_process_is_refused_in_words(cell: Cell, what: str) -> None:
    result = cell(PROCESSES[what])
    assert (result.outcome, result.detail) == (Outcome.ERROR, "PermissionError")
    assert "this sandbox starts no processes" in result.traceback


def test_files_a_folder_of_its_own_at_level_a_and_none_at_level_b(cell: Cell) -> None:
    code = "import tempfile, os\nwith tempfile.NamedTemporaryFile('w+') as f: print(os.listdir('.') != [])"
    first = cell("open('left', 'w').write('x')")
    if cell.level == "B":  # type: ignore[attr-defined]
        assert (first.outcome, first.detail) == (Outcome.ERROR, "PermissionError")
        assert cell(code).detail == "FileNotFoundError"
        return
    second = cell(code, timeout=60.0)  # its imports take their time where others work too
    assert (first.outcome, second.outcome, second.stdout) == (Outcome.OK, Outcome.OK, "True\n"), second
    assert cell("import os\nprint(os.getcwd(), os.listdir('.'))").stdout == "/cell []\n"
    full = cell(
        "for i in range(99): open(str(i), 'wb').write(bytes(1 << 20))", limits=Limits(file_bytes=4 << 20)
    )
    assert (full.outcome, full.detail) == (Outcome.ERROR, "OSError")


BELOW_TMP = """
import asyncio
from apprentice.sandbox.pool import SandboxPool
async def main():
    pool = SandboxPool(1, level="A", highest="A", imports=())
    await pool.start()
    result = await pool.run("import tempfile\\nwith tempfile.NamedTemporaryFile() as f: print(f.name)")
    await pool.close()
    print(result.outcome, result.stdout, result.traceback)
asyncio.run(main())
"""


def test_temporary_files_have_their_folder_where_python_lies_below_tmp(cell: Cell, tmp_path: Path) -> None:
    """/tmp is no link to the cell's folder there: it is a read-only folder, for Python to be seen."""
    if cell.level != "A" or not tmp_path.is_relative_to("/tmp"):  # type: ignore[attr-defined]
        pytest.skip("level B has no folder to write in; and temporary folders are not below /tmp")
    venv.create(tmp_path / "venv", symlinks=True)
    done = subprocess.run(
        [tmp_path / "venv" / "bin" / "python", "-c", BELOW_TMP],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.startswith("ok /cell/tmp"), done.stdout + done.stderr


FOLDER = "import os\ns = os.stat('.')\nprint(oct(s.st_mode & 0o7777), s.st_ctime_ns, os.listdir('.'))"
TRACES = {
    "a file": "open('left', 'w').write('x')",
    "a file made and removed": "import os\nopen('left', 'w').close()\nos.remove('left')",
    "another mode": "import os\nos.chmod('.', 0)",
    "other times": "import os\nos.utime('.', (1, 1))",
    "folders that nobody may enter": "import os\nos.makedirs('a/b')\nos.chmod('a/b', 0)\nos.chmod('a', 0)",
    "a full folder": "open('x', 'wb').write(bytes(1 << 20))\nopen('y', 'wb').write(bytes(1 << 20))",
}


@pytest.mark.parametrize("what", TRACES)
def test_a_folder_serves_until_a_cell_leaves_a_trace(cell: Cell, what: str) -> None:
    if cell.level == "B":  # type: ignore[attr-defined]
        pytest.skip("level B has no folder to write in")
    first = cell(FOLDER).stdout
    assert first.startswith("0o700 ") and first.endswith(" []\n")
    assert cell("sum(range(10**5))").ok
    assert cell(FOLDER).stdout == first  # the mount of the cells before
    assert cell(TRACES[what]).outcome is Outcome.OK
    renewed = cell(FOLDER).stdout
    assert renewed != first and renewed.startswith("0o700 ") and renewed.endswith(" []\n")


def test_a_cell_has_its_own_room_whatever_the_cell_before_had(cell: Cell) -> None:
    if cell.level == "B":  # type: ignore[attr-defined]
        pytest.skip("level B has no folder to write in")
    code = "for i in range(6): open(str(i), 'wb').write(bytes(1 << 20))"
    for mib, outcome in ((8, Outcome.OK), (4, Outcome.ERROR), (8, Outcome.OK), (4, Outcome.ERROR)):
        assert cell("1").ok
        assert cell(code, limits=Limits(file_bytes=mib << 20)).outcome is outcome, mib


def test_deaths_are_told_as_they_are(cell: Cell) -> None:
    ends = {
        "import os\nos.abort()": "SIGABRT",
        "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)": "SIGTERM",
        "import signal\nsignal.alarm(1)\nsignal.pause()": "SIGALRM",
    }
    for code, name in ends.items():
        result = cell(code)
        assert (result.outcome, result.detail) == (Outcome.CRASH, name), "a first process would ignore these"


POWERS = """
import ctypes, os, platform, struct
c = ctypes.CDLL(None, use_errno=True)
header = ctypes.create_string_buffer(struct.pack('Ii', 0x20080522, 0))
data = ctypes.create_string_buffer(24)
n = 125 if platform.machine() == 'x86_64' else 90
assert c.syscall(ctypes.c_long(n), header, data) == 0
print(data.raw.hex().strip('0') or 'none', len(os.getgroups()))
"""


def test_a_cell_has_no_powers_and_cannot_have_any(cell: Cell) -> None:
    shown = cell(POWERS).stdout.split()
    assert shown[0] == "none"
    if os.geteuid() == 0 and cell.level == "A":  # type: ignore[attr-defined]
        assert shown[1] == "0", "no group of the account that started it"
    for code in (
        "os.setuid(0)",
        "os.setgid(0)",
        "os.setgroups([0])",
        "os.chown('.', 0, 0)",
        "os.chroot('.')",
    ):
        assert cell(f"import os\n{code}").detail == "PermissionError", code


def test_bounding_and_ambient_sets_are_empty_without_seccomp_too(runner: asyncio.Runner) -> None:
    code = (
        "import ctypes\nc = ctypes.CDLL(None)\n"
        "print(sum(c.prctl(23, i, 0, 0, 0) > 0 for i in range(64)))\n"
        "print(sum(c.prctl(47, 1, i, 0, 0) > 0 for i in range(64)))\n"
        "print(c.prctl(39, 0, 0, 0, 0), c.prctl(24, 0, 0, 0, 0))"
    )
    worker = Worker((), frozenset(Layer) - {Layer.SECCOMP})
    try:
        runner.run(worker.start(Level.A))
    except LevelRefused as refused:
        pytest.skip(f"not on this machine: {refused}")
    _, raw, _ = runner.run(worker.run(code, b"", Limits()))
    runner.run(worker.stop())
    assert raw == b"0\n0\n1 -1\n", "bounding and ambient set empty; no_new_privs; and no power to drop more"


REPORT = """
import asyncio, logging, sys
from apprentice.errors import SandboxError
from apprentice.sandbox.pool import SandboxPool
async def main():
    pool = SandboxPool(2, level=sys.argv[1], imports=())
    try:
        await pool.start()
    except SandboxError as error:
        print(f"refused {error}")
        return
    result = await pool.run("import os, numpy; print(os.getuid())")
    print(pool.level, pool._workers[0].facts["account"], result.level, result.stdout.strip() or result)
    await pool.close()
asyncio.run(main())
"""


def elsewhere(settings: str, lowest: str = "B") -> str:
    """What a pool says on another machine; see :mod:`tests.sandbox_machines`."""
    script = REPORT.replace("sys.argv[1]", repr(lowest))
    command = [sys.executable, "-P", "tests/sandbox_machines.py", settings, script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@needs_root
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("readable", "A nobody A 1000"),
        ("readable no-namespaces", "B nobody B 65534"),
        ("readable nobody", "A this account A 1000"),
        ("readable nobody no-namespaces", "B this account B 65534"),
        ("no-landlock", "A nobody A 1000"),
    ],
)
def test_the_highest_level_that_a_machine_gives_to_an_account(settings: str, said: str) -> None:
    assert elsewhere(settings) == said


def test_where_namespaces_are_refused_level_b_is_taken_or_refused_as_configured() -> None:
    assert elsewhere("no-namespaces").startswith("B ")
    refused = elsewhere("no-namespaces", "A")
    assert refused.startswith("refused isolation level A is not reached")
    assert "unshare(user namespace): EPERM" in refused and "apprentice sandbox doctor" in refused


def test_where_nothing_holds_a_cell_it_does_not_run_unless_asked_for() -> None:
    refused = elsewhere("no-namespaces no-landlock")
    assert refused.startswith("refused isolation level B is not reached")
    for part in ("level A: ", "level B: Landlock is not there", "sandbox.level: none"):
        assert part in refused
    assert elsewhere("no-namespaces no-landlock", "none").startswith("none ")


async def test_the_level_is_logged_once_a_pool(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        async with SandboxPool(2, level="none", imports=()) as pool:
            assert [r.getMessage() for r in caplog.records if "isolation level" in r.message] == [
                caplog.records[0].getMessage()
            ]
            assert caplog.records[0].getMessage().startswith(f"sandbox isolation level {pool.level} (")


async def test_a_level_that_lets_an_attack_through_is_not_that_level(monkeypatch: pytest.MonkeyPatch) -> None:
    attack = Attack("row", "gets through", "print('BREACH')")
    monkeypatch.setattr(levels.selftest.run, "__defaults__", ([attack],))
    with pytest.raises(SandboxError, match=r"self-test was not passed: row \(gets through\): BREACH"):
        await SandboxPool(1, imports=()).start()
    async with SandboxPool(1, level="none", imports=()) as pool:
        assert pool.level == "none", "accepted when asked for"


def test_the_lowest_level_cannot_be_above_the_highest() -> None:
    with pytest.raises(ValueError, match="above the highest"):
        SandboxPool(1, level="A", highest="B")


async def test_a_child_that_cannot_be_confined_runs_no_cell() -> None:
    limits = Limits(file_bytes=-1)  # no file system has this size, no file this limit
    async with SandboxPool(1, max_retries=0, imports=()) as pool:
        result = await pool.run("print('ran')", limits=limits)
        assert (result.outcome, result.output) == (Outcome.SANDBOX_ERROR, "")
        assert "could not be confined" in result.detail
        assert (await pool.run("1")).ok, "the pool serves on"


async def test_a_cell_cannot_pass_for_one_that_never_began(cell: Cell) -> None:
    del cell
    async with SandboxPool(1, imports=()) as pool:
        for code in (
            "import os\nos.write(3, b'no way')\nos._exit(70)",
            "import os\nos.close(3)\nos._exit(70)",
        ):
            result = await pool.run(code)
            assert (result.outcome, result.detail) == (Outcome.EARLY_EXIT, "70")


async def test_no_mount_and_no_folder_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # others may work with the machine's folder

    def traces() -> tuple[list[str], list[str]]:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        return mounts, sorted(str(p) for p in tmp_path.iterdir())

    before = traces()
    async with SandboxPool(2, imports=()) as pool:
        await asyncio.gather(*(pool.run("open('x', 'w').write('x')") for _ in range(6)))
    assert traces() == before
