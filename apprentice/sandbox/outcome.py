"""What can become of a cell, and whose fault it was.

Outcomes *from the cell* are observations: the model reads them and is judged by what it does next. Outcomes
*from the infrastructure* say nothing of the code: they are retried, or the sample is left out; never scored.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from apprentice.sandbox.isolation import Limits

__all__ = ["CellResult", "Entry", "Outcome", "Report", "classify"]

Entry = Literal["cell", "program", "calls", "asserts"]
"""What runs the code in the child: :mod:`~apprentice.sandbox.cell`, or one of the modules for code tasks
(``program``, ``program_calls``, ``program_asserts``)."""


class Outcome(StrEnum):
    """How a cell ended."""

    OK = "ok"
    ERROR = "error"
    """An exception left the cell; ``detail`` is its type."""
    SYNTAX_ERROR = "syntax_error"
    EXIT = "exit"
    """``sys.exit``; ``detail`` is the exit code."""
    EARLY_EXIT = "early_exit"
    """The process ended without finishing the cell, e.g. ``os._exit(0)``; ``detail`` is the exit code."""
    MEMORY_LIMIT = "memory_limit"
    TIMEOUT_CPU = "timeout_cpu"
    TIMEOUT_WALL = "timeout_wall"
    OUTPUT_LIMIT = "output_limit"
    CRASH = "crash"
    """Ended by a signal; ``detail`` is its name."""
    KILLED_OOM = "killed_oom"

    SANDBOX_ERROR = "sandbox_error"
    OVERLOADED = "overloaded"
    CANCELLED = "cancelled"

    @property
    def from_infrastructure(self) -> bool:
        """Whether this says nothing of the code. Never a reward."""
        return self in (Outcome.SANDBOX_ERROR, Outcome.OVERLOADED, Outcome.CANCELLED)


@dataclass(frozen=True, slots=True)
class CellResult:
    """One cell's run.

    ``output`` is everything printed and displayed, at most the output cap, streams in the order in which
    they were written and each change of stream on a new line; ``stdout`` and ``stderr`` are the parts of it
    (a displayed value is in neither). ``traceback`` has no harness frames and is already shortened.
    Times in seconds: ``queue_s`` waiting for a worker, ``wall_s`` from the start of the run, ``cpu_s`` user
    and system time of the cell's process. ``max_rss`` in bytes, including what the process shares with its
    zygote.
    ``level`` and ``limits`` are what it ran under.
    """

    outcome: Outcome
    detail: str = ""
    output: str = ""
    stdout: str = ""
    stderr: str = ""
    traceback: str = ""
    truncated: bool = False
    queue_s: float = 0.0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    max_rss: int = 0
    level: str = "none"
    attempts: int = 1
    limits: Limits = field(default_factory=Limits)

    @property
    def ok(self) -> bool:
        """Whether the cell ran to its end without an exception."""
        return self.outcome is Outcome.OK


@dataclass(frozen=True, slots=True)
class Report:
    """What a zygote observed of one child. ``claim`` is what the child says of itself: advisory.

    ``stopped`` is why the supervisor killed the child (``wall``, ``output``, ``cancel``) or empty.
    ``status`` is the raw wait status.
    """

    status: int
    stopped: str
    claim: dict[str, str]
    cpu_s: float
    wall_s: float
    max_rss: int


def classify(report: Report, *, cpu_limit_s: float, memory_bytes: int) -> tuple[Outcome, str]:
    """The verdict on one child and its detail.

    What the supervisor saw comes first; the child's own claim counts only for a process that ended by itself
    with exit code 0, which a cell can forge, but then only to its own account.
    """
    if report.stopped == "cancel":
        return Outcome.CANCELLED, ""
    if report.stopped == "wall":
        return Outcome.TIMEOUT_WALL, ""
    if report.stopped == "output":
        return Outcome.OUTPUT_LIMIT, ""
    if _signalled(report.status):
        number = report.status & 0x7F
        # A CPU limit (soft = hard) ends in a plain SIGKILL, which rusage tells from others. The kernel
        # enforces it by ticks and rusage is exact: on a busy machine a limit of 1 s was seen to end a cell
        # that had used less than 0.8 s. So half of it will do, where memory is no reason to have been killed.
        killed, large = number == signal.SIGKILL, report.max_rss >= memory_bytes // 2
        share = 0.9 if killed and large else 0.5
        if (killed or number == signal.SIGXCPU) and report.cpu_s >= share * cpu_limit_s:
            return Outcome.TIMEOUT_CPU, ""
        if killed and large:
            return Outcome.KILLED_OOM, ""
        if number == signal.SIGXFSZ:
            return Outcome.OUTPUT_LIMIT, "file"
        try:
            return Outcome.CRASH, signal.Signals(number).name
        except ValueError:
            return Outcome.CRASH, f"signal {number}"
    code = report.status >> 8
    if code != 0 or not report.claim:
        return Outcome.EARLY_EXIT, str(code)
    try:
        claimed = Outcome(report.claim.get("outcome", ""))
    except ValueError:
        return Outcome.EARLY_EXIT, str(code)
    allowed = (Outcome.OK, Outcome.ERROR, Outcome.SYNTAX_ERROR, Outcome.EXIT, Outcome.MEMORY_LIMIT)
    if claimed not in allowed:
        return Outcome.EARLY_EXIT, str(code)
    return claimed, report.claim.get("detail", "")


def _signalled(status: int) -> bool:
    return status & 0x7F not in (0, 0x7F)
