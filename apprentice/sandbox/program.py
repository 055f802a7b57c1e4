"""A whole program with a standard input, as it runs inside the child process. Standard library only.

What competitive programs and their judges take for granted, and a cell does not have:

* the program is ``__main__``; ``input()``, ``sys.stdin``, ``sys.stdin.buffer``, ``open(0)`` and
  ``os.read(0, n)`` read the test's input; standard output is buffered, and flushed at the end, also after
  ``sys.exit()``;
* handlers of ``atexit`` run at the end, threads are waited for;
* recursion may be deep: the program runs in a thread with a stack of :data:`STACK_BYTES`, and the recursion
  limit is :data:`RECURSION_LIMIT`; past the stack the process dies of SIGSEGV, which is the program's
  failure alone;
* integers of any length can be printed and read;
* the names of :data:`PRELUDE` are there without an import, as in LiveCodeBench, whose starter code uses
  ``List`` without importing it.

A program in one code fence is taken out of it, as a cell is.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import io
import json
import sys
import threading
import types
from collections.abc import Callable

from apprentice.sandbox.cell import MarkedStream, describe, join_threads, mark, normalize, text_on, write_all

__all__ = [
    "PRELUDE",
    "PRELUDE_MODULES",
    "PROGRAM_NAME",
    "RECURSION_LIMIT",
    "STACK_BYTES",
    "claim_of",
    "execute",
    "new_module",
    "on_big_stack",
    "open_streams",
    "run",
]

PROGRAM_NAME = "<program>"
STACK_BYTES = 512 << 20
"""About 400,000 levels of a recursive ``lru_cache`` function; address space, not memory, until it is used."""
RECURSION_LIMIT = 400_000
_WATCH_S = 0.05
PRELUDE_MODULES = [
    "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics",
    "itertools", "functools", "operator", "io", "sys", "json",
]  # fmt: skip
# The order is LiveCodeBench's: builtins come after the modules that hide some of them (`open`, `pow`).
PRELUDE = "\n".join(
    [
        *(f"from {name} import *" for name in [*PRELUDE_MODULES, "builtins", "typing"]),
        f"import {', '.join(PRELUDE_MODULES)}",
    ]
)
_PRELUDE_CODE = compile(PRELUDE, "<prelude>", "exec")
exec(_PRELUDE_CODE, {})  # the modules are imported once, before any child is forked


def open_streams(nonce: str) -> None:
    """Standard streams on descriptors 0, 1 and 2: output buffered, error marked (see :mod:`.cell`)."""
    stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    stdout = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(1, "w", closefd=False)),
        encoding="utf-8",
        errors="backslashreplace",
        newline="\n",
    )
    stderr = text_on(MarkedStream(2, mark(nonce, "e"), mark(nonce, "o")))
    for name, stream in (("stdin", stdin), ("stdout", stdout), ("stderr", stderr)):
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def new_module(name: str) -> types.ModuleType:
    """An empty module under ``name``, known to :data:`sys.modules`, with the interpreter set for programs."""
    sys.set_int_max_str_digits(0)
    sys.setrecursionlimit(RECURSION_LIMIT)
    module = types.ModuleType(name)
    module.__dict__["__builtins__"] = builtins
    sys.modules[name] = module
    sys.argv = ["program.py"]
    return module


def execute(source: str, namespace: dict[str, object], *, prelude: bool) -> None:
    """Run ``source`` in ``namespace``, after the :data:`PRELUDE` if asked for."""
    if prelude:
        kept = namespace["__name__"]
        exec(_PRELUDE_CODE, namespace)
        namespace["__name__"] = kept
    exec(compile(source, PROGRAM_NAME, "exec", dont_inherit=True), namespace)


def on_big_stack(work: Callable[[], None], watch: Callable[[], None] | None = None) -> None:
    """Call ``work`` in a thread with a big stack, or here where no thread can be had; its error is raised.

    ``watch`` is called every :data:`_WATCH_S` seconds meanwhile.
    """
    failed: list[BaseException] = []

    def guarded() -> None:
        # At once: other threads that start before the caller goes on must not have such stacks.
        threading.stack_size(before)
        try:
            work()
        except BaseException as error:  # noqa: BLE001  raised again below
            failed.append(error)

    before = threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=guarded)
    try:
        thread.start()
    except RuntimeError:  # no room, or threads are forbidden
        guarded()
    else:
        while thread.is_alive():
            thread.join(None if watch is None else _WATCH_S)
            if watch is not None:
                watch()
    if failed:
        raise failed[0]


def claim_of(error: BaseException) -> dict[str, str]:
    """What the child says of the exception that ended it. Never raises."""
    try:
        claim = describe(error, PROGRAM_NAME)
    except BaseException as second:  # noqa: BLE001  out of memory again, or str() of the error raises
        claim = {"outcome": "error", "detail": type(error).__name__}
        if isinstance(error, MemoryError) or isinstance(second, MemoryError):
            claim["outcome"] = "memory_limit"
    return {name: text[:4000] for name, text in claim.items()}


def run(source: str, *, status_fd: int, nonce: str) -> None:
    """Run a program in this process and write what became of it, as JSON, to ``status_fd``. Never raises.

    The caller ends the process afterwards.
    """
    dumps, write = json.dumps, write_all  # a program may replace what it finds in the modules
    atexit._clear()  # the zygote's own; a child must not run them
    open_streams(nonce)
    stdout = sys.stdout
    main = new_module("__main__")
    claim = {"outcome": "ok"}
    try:
        source = normalize(source)
        try:
            on_big_stack(lambda: execute(source, main.__dict__, prelude=True))
        finally:
            join_threads()
            atexit._run_exitfuncs()
            for stream in (sys.stdout, stdout):
                with contextlib.suppress(ValueError, AttributeError):  # closed, or replaced by something else
                    stream.flush()
    except BaseException as error:  # noqa: BLE001  whatever leaves the program is its outcome
        claim = claim_of(error)
    write(status_fd, dumps(claim).encode())
