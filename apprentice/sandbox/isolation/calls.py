"""System call numbers: what a cell may call. Names, then the numbers on x86_64 and aarch64 (Linux 6.6).

``-`` where an architecture does not have the call. Everything that is not here is refused.
Some are allowed with certain arguments only: see :mod:`.seccomp`.
"""

from __future__ import annotations

__all__ = ["NEWEST", "numbers"]

NEWEST = 452
"""The newest call that this table was made with; what came later is reported as not there."""

_TABLE = """
read 0 63, write 1 64, open 2 -, close 3 57, stat 4 -, fstat 5 80, newfstatat 262 79, lstat 6 -
statx 332 291, poll 7 -, ppoll 271 73, lseek 8 62, mmap 9 222, mprotect 10 226, munmap 11 215
mremap 25 216, madvise 28 233, brk 12 214, rt_sigaction 13 134, rt_sigprocmask 14 135
rt_sigreturn 15 139, rt_sigpending 127 136, rt_sigtimedwait 128 137, rt_sigsuspend 130 133
sigaltstack 131 132, pread64 17 67, pwrite64 18 68, readv 19 65, writev 20 66, preadv 295 69
pwritev 296 70, preadv2 327 286, pwritev2 328 287, access 21 -, faccessat 269 48, faccessat2 439 439
pipe 22 -, pipe2 293 59, select 23 -, pselect6 270 72, sched_yield 24 124, sched_getaffinity 204 123
sched_getparam 143 121, sched_getscheduler 145 120, sched_get_priority_max 146 125
sched_get_priority_min 147 126, msync 26 227, mincore 27 232, dup 32 23, dup2 33 -, dup3 292 24
pause 34 -, nanosleep 35 101, clock_nanosleep 230 115, getitimer 36 102, setitimer 38 103
alarm 37 -, getpid 39 172, getppid 110 173, gettid 186 178, getuid 102 174, geteuid 107 175
getgid 104 176, getegid 108 177, getresuid 118 148, getresgid 120 150, getgroups 115 158
getpgrp 111 -, getpgid 121 155, getsid 124 156, getpriority 140 141, getrandom 318 278
sendfile 40 71, copy_file_range 326 285, sendto 44 206, recvfrom 45 207, shutdown 48 210
getsockname 51 204, getpeername 52 205, setsockopt 54 208, getsockopt 55 209, exit 60 93
exit_group 231 94, wait4 61 260, waitid 247 95, uname 63 160, flock 73 32, fsync 74 82
fdatasync 75 83, truncate 76 45, ftruncate 77 46, fallocate 285 47, fadvise64 221 223, getdents 78 -
getdents64 217 61, getcwd 79 17, chdir 80 49, fchdir 81 50, rename 82 -, renameat 264 38
renameat2 316 276, mkdir 83 -, mkdirat 258 34, rmdir 84 -, creat 85 -, link 86 -, linkat 265 37
unlink 87 -, unlinkat 263 35, symlink 88 -, symlinkat 266 36, readlink 89 -, readlinkat 267 78
umask 95 166, gettimeofday 96 169, time 201 -, clock_gettime 228 113, clock_getres 229 114
times 100 153, getrusage 98 165, sysinfo 99 179, getrlimit 97 163, setrlimit 160 164, capget 125 90
statfs 137 43, fstatfs 138 44, arch_prctl 158 -, futex 202 98, set_tid_address 218 96
set_robust_list 273 99, restart_syscall 219 128, membarrier 324 283, rseq 334 293, getcpu 309 168
close_range 436 436, openat 257 56, timer_create 222 107, timer_settime 223 110
timer_gettime 224 108, timer_getoverrun 225 109, timer_delete 226 111, timerfd_create 283 85
timerfd_settime 286 86, timerfd_gettime 287 87, eventfd 284 -, eventfd2 290 19, epoll_create 213 -
epoll_create1 291 20, epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281 22, epoll_pwait2 441 441
signalfd 282 -, signalfd4 289 74, chmod 90 -, fchmod 91 52, fchmodat 268 53, fchmodat2 452 452
utime 132 -, utimes 235 -, utimensat 280 88, futimesat 261 -, clone 56 220, ioctl 16 29, fcntl 72 25
prctl 157 167, kill 62 129, tgkill 234 131, prlimit64 302 261, sched_setaffinity 203 122
socketpair 53 199"""

_CLONE3_AND_OPENAT2 = {"clone3": 435, "openat2": 437}


def numbers(machine: str) -> dict[str, int]:
    """Name and number of every call in the table that ``machine`` has, and of the two that have old forms."""
    column = {"x86_64": 1, "aarch64": 2}[machine]
    rows = (entry.split() for entry in _TABLE.replace("\n", ",").split(",") if entry.strip())
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"} | _CLONE3_AND_OPENAT2
