"""The seccomp program, run by an interpreter written from the BPF specification, for both architectures."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from apprentice.sandbox.isolation import calls
from apprentice.sandbox.isolation.seccomp import program

pytestmark = pytest.mark.unit

AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "i386": 0x40000003}
ALLOW, EPERM, ENOSYS, KILL = 0x7FFF0000, 0x50001, 0x50026, 0x80000000
PID = 4711
HEADERS = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")


def decide(
    machine: str, number: int, *arguments: int, audit: int | None = None, writable: bool = True
) -> int:
    """What the kernel would answer to one call: classic BPF on ``struct seccomp_data``, step by step."""
    code, pids = program(machine, writable=writable)
    data = struct.pack(
        "=IIQ6Q", number, AUDIT[machine] if audit is None else audit, 0, *(*arguments, *[0] * 6)[:6]
    )
    at, accumulator = 0, 0
    while True:
        op, jump_true, jump_false, k = struct.unpack_from("=HBBI", code, at * 8)
        if at in pids:
            k = PID
        at += 1
        match op:
            case 0x20:  # BPF_LD | BPF_W | BPF_ABS
                (accumulator,) = struct.unpack_from("=I", data, k)
            case 0x54:  # BPF_ALU | BPF_AND | BPF_K
                accumulator &= k
            case 0x15 | 0x25 | 0x35:  # BPF_JMP | BPF_JEQ, BPF_JGT, BPF_JGE | BPF_K
                holds = {0x15: accumulator == k, 0x25: accumulator > k, 0x35: accumulator >= k}[op]
                at += jump_true if holds else jump_false
            case 0x06:  # BPF_RET | BPF_K
                return k
            case _:
                raise AssertionError(f"no such instruction: {op:#x}")


# Numbers by hand from the kernel's tables: x86_64, aarch64.
NUMBERS = {
    "read": (0, 63),
    "openat": (257, 56),
    "mmap": (9, 222),
    "futex": (202, 98),
    "getrandom": (318, 278),
    "exit_group": (231, 94),
    "clone": (56, 220),
    "clone3": (435, 435),
    "openat2": (437, 437),
    "kill": (62, 129),
    "tgkill": (234, 131),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "connect": (42, 203),
    "execve": (59, 221),
    "ptrace": (101, 117),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "bpf": (321, 280),
    "keyctl": (250, 219),
    "memfd_create": (319, 279),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "perf_event_open": (298, 241),
    "kexec_load": (246, 104),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "seccomp": (317, 277),
    "prctl": (157, 167),
    "fcntl": (72, 25),
    "ioctl": (16, 29),
    "prlimit64": (302, 261),
    "fchmodat": (268, 53),
    "utimensat": (280, 88),
    "truncate": (76, 45),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "shmget": (29, 194),
    "mq_open": (240, 180),
    "rt_sigqueueinfo": (129, 138),
    "setuid": (105, 146),
    "personality": (135, 92),
    "chroot": (161, 51),
    "open_by_handle_at": (304, 265),
    "init_module": (175, 105),
    "vfork": (58, None),
    "fork": (57, None),
    "mknodat": (259, 33),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "move_mount": (429, 429),
    "landlock_restrict_self": (446, 446),
    "sendmsg": (46, 211),
    "bind": (49, 200),
    "process_madvise": (440, 440),
    "ioprio_set": (251, 30),
    "setpriority": (141, 140),
    "tkill": (200, 130),
}
DENIED = [
    "socket",
    "connect",
    "bind",
    "sendmsg",
    "execve",
    "ptrace",
    "unshare",
    "setns",
    "mount",
    "move_mount",
    "bpf",
    "keyctl",
    "add_key",
    "request_key",
    "memfd_create",
    "userfaultfd",
    "io_uring_setup",
    "process_vm_readv",
    "process_vm_writev",
    "process_madvise",
    "perf_event_open",
    "kexec_load",
    "init_module",
    "pidfd_open",
    "pidfd_send_signal",
    "seccomp",
    "landlock_restrict_self",
    "shmget",
    "mq_open",
    "rt_sigqueueinfo",
    "tkill",
    "setuid",
    "setpriority",
    "ioprio_set",
    "personality",
    "chroot",
    "open_by_handle_at",
    "vfork",
    "fork",
    "mknodat",
    "fchownat",
    "setxattr",
]

each_machine = pytest.mark.parametrize("machine", ["x86_64", "aarch64"])


def number(machine: str, name: str) -> int:
    value = NUMBERS[name][machine == "aarch64"]
    if value is None:
        pytest.skip(f"{machine} has no {name}")
    return value


@each_machine
@pytest.mark.parametrize("name", ["read", "openat", "mmap", "futex", "getrandom", "exit_group"])
def test_what_every_program_needs_is_allowed(machine: str, name: str) -> None:
    assert decide(machine, number(machine, name)) == ALLOW


@each_machine
@pytest.mark.parametrize("name", DENIED)
def test_what_a_cell_has_no_use_for_is_refused(machine: str, name: str) -> None:
    assert decide(machine, number(machine, name)) == EPERM


@each_machine
def test_another_architectures_table_ends_the_process(machine: str) -> None:
    assert decide(machine, number(machine, "read"), audit=AUDIT["i386"]) == KILL
    other = AUDIT["aarch64" if machine == "x86_64" else "x86_64"]
    assert decide(machine, number(machine, "read"), audit=other) == KILL
    x32 = decide(machine, 0x40000000 | number(machine, "read"))
    assert x32 == (KILL if machine == "x86_64" else ENOSYS)


@each_machine
def test_new_calls_are_not_there_so_that_the_c_library_takes_the_old_ones(machine: str) -> None:
    assert decide(machine, 435) == decide(machine, 437) == ENOSYS
    assert decide(machine, calls.NEWEST + 1) == ENOSYS


THREAD = 0x3D0F00  # what glibc's pthread_create passes
ARGUMENTS = [
    ("clone", (THREAD,), ALLOW),
    ("clone", (17,), EPERM),  # fork: SIGCHLD
    ("clone", (0x4111,), EPERM),  # vfork, posix_spawn
    ("clone", (THREAD | 0x10000000,), EPERM),  # a thread in a new user namespace
    ("clone", (0x20000000 | 17,), EPERM),
    ("kill", (PID, 9), ALLOW),
    ("kill", (1, 9), EPERM),
    ("kill", (0, 9), EPERM),
    ("kill", (2**64 - 1, 9), EPERM),
    ("tgkill", (PID, PID, 6), ALLOW),
    ("tgkill", (PID + 1, PID + 1, 6), EPERM),
    ("prctl", (15, 0), ALLOW),
    ("prctl", (1, 0), EPERM),  # PR_SET_PDEATHSIG
    ("prctl", (4, 1), EPERM),  # PR_SET_DUMPABLE
    ("fcntl", (3, 2, 1), ALLOW),
    ("fcntl", (3, 8, 1), EPERM),  # F_SETOWN
    ("fcntl", (3, 10, 9), EPERM),  # F_SETSIG
    ("ioctl", (1, 0x5401), ALLOW),
    ("ioctl", (1, 0x5412), EPERM),  # TIOCSTI
    ("prlimit64", (0, 7, 0, 1), ALLOW),
    ("prlimit64", (PID, 7, 0, 1), ALLOW),
    ("prlimit64", (1, 7, 1, 0), EPERM),
    ("socketpair", (1, 1 | 0o2000000, 0), ALLOW),
    ("socketpair", (1, 2, 0), EPERM),  # datagrams can be sent elsewhere
    ("socketpair", (2, 1, 0), EPERM),
    ("openat", (0, 0, 0o1102), ALLOW),
    ("openat", (0, 0, 0o1000), EPERM),  # O_RDONLY | O_TRUNC
]


@each_machine
@pytest.mark.parametrize(("name", "arguments", "answer"), ARGUMENTS)
def test_arguments_decide(machine: str, name: str, arguments: tuple[int, ...], answer: int) -> None:
    assert decide(machine, number(machine, name), *arguments) == answer


@each_machine
@pytest.mark.parametrize("name", ["fchmodat", "utimensat", "truncate"])
def test_modes_and_times_change_only_where_there_is_a_folder_for_it(machine: str, name: str) -> None:
    assert decide(machine, number(machine, name), writable=True) == ALLOW
    assert decide(machine, number(machine, name), writable=False) == EPERM


@each_machine
def test_jumps_stay_inside_the_program(machine: str) -> None:
    code, pids = program(machine, writable=True)
    length = len(code) // 8
    assert length <= 4096, "BPF_MAXINSNS"
    for at in range(length):
        op, jump_true, jump_false, _ = struct.unpack_from("=HBBI", code, at * 8)
        if op & 7 == 5:
            assert at + 1 + max(jump_true, jump_false) < length
    assert len(pids) == 4


@pytest.mark.skipif(not HEADERS.exists(), reason="no kernel headers here")
def test_numbers_are_the_kernels() -> None:
    theirs = dict(re.findall(r"#define __NR_(\w+) (\d+)", HEADERS.read_text()))
    for name, value in calls.numbers("x86_64").items():
        if name in theirs:
            assert value == int(theirs[name]), name
    assert len(set(calls.numbers("aarch64").values())) == len(calls.numbers("aarch64"))
