"""The attacks of docs/sandbox.md, as data. Each row says which layers stop it, each of them alone.

Attacks try, and say how it went: ``BREACH`` if it was done, ``STOPPED`` if the system refused. Names in
braces are those of :class:`apprentice.sandbox.selftest.Targets`. A success harms nobody: aims are planted,
and bare system calls come with arguments that do nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from apprentice.sandbox.isolation import Layer, Level
from apprentice.sandbox.outcome import Outcome

__all__ = ["ATTACKS", "BREACH", "STOPPED", "Attack"]

BREACH = "BREACH"
STOPPED = "STOPPED"


@dataclass(frozen=True, slots=True)
class Attack:
    """One thing that a cell may try.

    ``row`` is its line of the table in docs/sandbox.md, ``name`` a variant of it. ``layers``: each of them
    alone stops it; none: the supervisor does, at every level. ``outcomes``: how the cell may end where it is
    stopped. ``gaps``: levels at which it succeeds, known and accepted; ``why`` says what that means.
    ``wall_s``: its wall limit in seconds.
    """

    row: str
    name: str
    code: str
    layers: frozenset[Layer] = frozenset()
    outcomes: frozenset[Outcome] = frozenset({Outcome.OK})
    gaps: frozenset[Level] = frozenset()
    why: str = ""
    wall_s: float = 10.0


def _layers(letters: str) -> frozenset[Layer]:
    """``NLSCR`` for namespaces, Landlock, seccomp, capabilities, rlimits."""
    return frozenset(layer for layer in Layer if layer.value[0].upper() in letters)


def _try(body: str, before: str = "import os") -> str:
    indented = "\n".join("    " + line for line in body.splitlines())
    refused = f"except OSError as error:\n    print('{STOPPED}', error)"
    return f"{before}\ntry:\n{indented}\n{refused}\nelse:\n    print('{BREACH}')"


def _socket(family: str, kind: str, then: str) -> str:
    opened = f"s = socket.socket(socket.{family}, socket.{kind})\ns.settimeout(1)\n"
    return _try(opened + then, "import socket")


_C = """\
import ctypes, os, platform
c = ctypes.CDLL(None, use_errno=True)
c.syscall.restype = ctypes.c_long
def call(x86_64, aarch64, *arguments):
    number = x86_64 if platform.machine() == 'x86_64' else aarch64
    wide = [a if isinstance(a, bytes) else ctypes.c_long(a) for a in arguments]
    failed = c.syscall(ctypes.c_long(number), *wide) < 0
    # EPERM, ESRCH, EACCES, ENOSYS; another error is of the arguments: the call itself was let through
    if failed and ctypes.get_errno() in (1, 3, 13, 38):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))"""


def _call(x86_64: int, aarch64: int, *arguments: object) -> str:
    """A bare system call."""
    return _try(f"call({', '.join(str(a) for a in (x86_64, aarch64, *arguments))})", _C)


# By the C library: what Python's own functions say of it (:mod:`.refused`) holds nobody.
_FORK = (
    _C
    + """
def fork():
    pid = c.fork()
    if pid < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return pid
import time
made = 0
try:
    for _ in range(20):
        if fork() == 0:
            time.sleep(30)
            os._exit(0)
        made += 1
except OSError as error:
    print('STOPPED', error)
if made:
    print('BREACH', made)"""
)
_DAEMON = (
    _C
    + """
import time
r, w = os.pipe()
pid = c.fork()
if pid < 0:
    print('STOPPED', os.strerror(ctypes.get_errno()))
elif pid == 0:
    os.setsid()
    if c.fork() == 0:
        os.write(w, b'x')
        time.sleep(30)
    os._exit(0)
else:
    os.read(r, 1)
    print('BREACH')"""
)
_MEMORY = """\
try:
    hog = [bytearray(16 << 20) for _ in range(32)]
except MemoryError:
    print('STOPPED')
else:
    print('BREACH')"""
_FILL = """\
import os
total, why = 0, ''
for i, folder in enumerate(4 * ['.', '/tmp', '/dev/shm', '{folder}']):
    try:
        with open(os.path.join(folder, f'fill-{{i}}'), 'wb', buffering=0) as file:
            while total < 3 << 20 and file.write(bytes(1 << 16)):
                total += 1 << 16
    except OSError as error:
        why = error
for i, folder in enumerate(4 * ['.', '/tmp', '/dev/shm', '{folder}']):
    try:
        os.unlink(os.path.join(folder, f'fill-{{i}}'))
    except OSError:
        pass
print('BREACH' if total > 2 << 20 else 'STOPPED', total, why)"""
_TREE = """\
import os
try:
    for i in range(1200):
        os.mkdir('d')
        os.chdir('d')
    os.chmod('.', 0)
except OSError as error:
    print('STOPPED', error)
else:
    print('STOPPED')"""
_LEFT = """\
import os
try:
    left = os.listdir('.')
except OSError:
    left = []
print('BREACH' if left else 'STOPPED', len(left))"""
_FORGED = """\
import os
os.write(3, b'{{"outcome": "ok"}}')
print('BREACH')
os._exit(0)"""
_LOOP = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nsum(iter(int, 1))"
_PROGRAM = (
    "c.execv(b'/bin/sh', (ctypes.c_char_p * 4)(b'sh', b'-c', b'echo BREACH', None))\n"
    "raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))"
)
_TCP = _socket("AF_INET", "SOCK_STREAM", "s.connect(('127.0.0.1', {tcp}))")
_UDP = _socket("AF_INET", "SOCK_DGRAM", "s.sendto(b'x', ('127.0.0.1', {udp}))")
_UNIX = _socket("AF_UNIX", "SOCK_STREAM", "s.connect('{unix}')")
_ABSTRACT = _socket("AF_UNIX", "SOCK_STREAM", "s.connect('\\0{abstract}')")
_NETLINK = _socket("AF_NETLINK", "SOCK_RAW", "s.bind((0, 0))")
_PAIR = _try("socket.socketpair(type=socket.SOCK_DGRAM)", "import socket")
_LINK = "os.symlink('{secret}', 'result')\ntry:\n    open('result').read()\nfinally:\n    os.unlink('result')"
_NEW_USER = 0x10000000


def _row(row: str, name: str, code: str, letters: str) -> Attack:
    return Attack(row, name, code, _layers(letters))


def _kernel(name: str, code: str, letters: str = "S") -> Attack:
    return _row("kernel interfaces", name, code, letters)


ATTACKS = (
    _row("fork bomb", "fork", _FORK, "S"),
    _row("fork bomb", "a program", _try(_PROGRAM, _C), "NLS"),
    _row("memory hog", "512 MiB", _MEMORY, "R"),
    _row("disk fill", "many files", _FILL, "NL"),
    Attack(
        "endless print", "loop", "while True: print('x' * 1000)", outcomes=frozenset({Outcome.OUTPUT_LIMIT})
    ),
    _row("read a file", "/etc/passwd", _try("open('/etc/passwd').read()"), "NL"),
    _row("read a file", "a secret", _try("open('{secret}').read()"), "NL"),
    _row("read a file", "list a folder", _try("os.listdir('{folder}')"), "NL"),
    Attack(
        "read a file",
        "size and times",
        _try("os.stat('{secret}')"),
        _layers("N"),
        gaps=frozenset({Level.B}),
        why="whether a file exists, its size and its times can be seen; its contents cannot",
    ),
    _row("parent's environment", "/proc", _try("open('/proc/{pid}/environ').read()"), "NL"),
    _row("sockets", "TCP", _TCP, "NLS"),
    _row("sockets", "UDP", _UDP, "NS"),
    _row("sockets", "Unix", _UNIX, "NS"),
    _row("sockets", "abstract Unix", _ABSTRACT, "NLS"),
    _row("sockets", "netlink", _NETLINK, "S"),
    _row("sockets", "datagram pair", _PAIR, "S"),
    _row("write elsewhere", "a new file", _try("open('{folder}/new', 'w').close()"), "NL"),
    _row("write elsewhere", "a file", _try("open('{secret}', 'r+').write('x')"), "NL"),
    _row("write elsewhere", "Python itself", _try("open(os.__file__, 'r+').close()"), "NL"),
    _row("write elsewhere", "a file's mode", _try("os.chmod('{secret}', 0o666)"), "NS"),
    _row("other processes", "signal", _try("os.kill({pid}, 0)"), "NLS"),
    _row("other processes", "limits", _try("resource.prlimit({pid}, 0)", "import resource"), "NS"),
    _row("other processes", "ptrace", _call(101, 117, 0x4206, "{pid}", 0, 0), "NLS"),
    _row("daemon", "double fork", _DAEMON, "S"),
    _kernel("user namespace", _call(272, 97, _NEW_USER)),
    _kernel("clone into one", _call(56, 220, _NEW_USER | 17, 0, 0, 0, 0)),
    _kernel("memfd", _call(319, 279, "b'x'", 0)),
    _kernel("keyctl", _call(250, 219, 0, -3, 1)),
    _kernel("userfaultfd", _call(323, 282, 1)),
    _kernel("io_uring", _call(425, 425, 0, 0)),
    _kernel("perf", _call(298, 241, 0, 0, -1, -1, 0)),
    _kernel("bpf", _call(321, 280, 0, 0, 0)),
    _kernel("mount namespace", _call(272, 97, 0x20000), "SC"),
    _kernel("change of root", _try("os.chroot('/')"), "SC"),
    Attack("left behind", "deep folders", _TREE),
    _row("left behind", "for the next cell", _LEFT, "NL"),
    _row("left behind", "symbolic link", _try(_LINK), "NL"),
    Attack(
        "no end",
        "signals ignored, loop in C",
        _LOOP,
        outcomes=frozenset({Outcome.TIMEOUT_CPU, Outcome.TIMEOUT_WALL}),
        wall_s=0.2,
    ),
    Attack("false report", "exit code 0", "import os\nos._exit(0)", outcomes=frozenset({Outcome.EARLY_EXIT})),
    Attack(
        "false report",
        "forged record",
        _FORGED,
        gaps=frozenset(Level),
        why="a cell can claim that it ended well, and no more: no verdict on an answer comes from it",
    ),
)
"""In the order of the table; ``for the next cell`` looks for what ``deep folders`` left."""
