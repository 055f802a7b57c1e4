"""One stateless Jupyter-like cell, as it runs inside the child process. Standard library only.

Semantics (Table 8 of RIVET: "The last bare expression is automatically displayed like Jupyter, and print(...)
output is also returned"):

* the last statement, if it is a bare expression, is evaluated in ``single`` mode and its ``repr`` displayed
  unless it is ``None`` or the cell ends in ``;``; the cell's ``__future__`` imports hold for it too;
* ``display(a, b)`` displays values in mid-cell, as in IPython;
* a cell may come in one code fence and may be indented uniformly;
* standard output and standard error share one pipe, in the order written, unbuffered, so that nothing printed
  before a kill is lost; characters that UTF-8 cannot encode are written as backslash escapes;
* tracebacks start at the cell's own frames and keep their first 4 and last 6 lines; none is of this package.

Unlike IPython: no magics, no top-level ``await``, plain ``repr`` instead of its pretty printer. docs/cells.md
has the whole list, with reasons; ``tests/cells.py`` compares the two cell by cell.

Standard error and displayed values are told apart from standard output by marks in the pipe: ``NUL``, a
nonce of the run, and one letter. A cell could forge them; it would only mislabel its own output.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import io
import json
import linecache
import os
import re
import sys
import textwrap
import threading
import tokenize
import traceback
import types
from collections.abc import Callable

__all__ = [
    "CELL_NAME",
    "TRACEBACK_HEAD",
    "TRACEBACK_TAIL",
    "MarkedStream",
    "describe",
    "ends_in_semicolon",
    "join_threads",
    "mark",
    "normalize",
    "run",
    "shorten_traceback",
    "text_on",
    "write_all",
]

CELL_NAME = "<cell>"
_HARNESS = os.path.dirname(os.path.abspath(__file__)) + os.sep
TRACEBACK_HEAD = 4
TRACEBACK_TAIL = 6
_CLAIM_BYTES = 32_000  # fits a pipe's buffer, so that writing it cannot block
_FENCE = re.compile(r"\A\s*(`{3,}|~{3,})[^\n`]*\n(.*?)(?:\n[ \t]*\1[ \t]*)?\s*\Z", re.DOTALL)
_FUTURE_FLAGS = 0
for _name in __future__.all_feature_names:
    _FUTURE_FLAGS |= getattr(__future__, _name).compiler_flag


def mark(nonce: str, stream: str) -> bytes:
    """The bytes that switch the pipe to ``stream``: ``o`` output, ``e`` error, ``r`` displayed result."""
    return b"\0" + nonce.encode() + stream.encode()


def normalize(source: str) -> str:
    """The cell without its code fence, if it has exactly one around it, and without uniform indentation.

    Source that parses is never dedented: indentation inside its strings is the program's.
    """
    fenced = _FENCE.match(source)
    if fenced:
        source = fenced.group(2)
    try:
        ast.parse(source)
    except IndentationError:
        return textwrap.dedent(source.expandtabs(8) if "\t" in source else source)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        pass  # reported when the cell is compiled
    return source


def ends_in_semicolon(source: str) -> bool:
    """Whether the last token of a source that parses is ``;`` (comments and blank lines aside)."""
    skip = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER, tokenize.DEDENT)
    last = ""
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type not in skip:
                last = token.string
    except (tokenize.TokenError, SyntaxError):
        return False
    return last == ";"


def shorten_traceback(text: str) -> str:
    """The first 4 and last 6 lines of a traceback, with a line saying how many were left out."""
    lines = text.rstrip("\n").split("\n")
    left_out = len(lines) - TRACEBACK_HEAD - TRACEBACK_TAIL
    if left_out <= 1:
        return "\n".join(lines)
    middle = f"  ... {left_out} lines left out ..."
    return "\n".join([*lines[:TRACEBACK_HEAD], middle, *lines[-TRACEBACK_TAIL:]])


class MarkedStream(io.RawIOBase):
    """Raw stream on a file descriptor that marks what is written to it as another stream."""

    def __init__(self, fd: int, before: bytes, after: bytes) -> None:
        self._fd, self._before, self._after = fd, before, after

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def write(self, data: object, /) -> int:
        raw = bytes(data)  # type: ignore[call-overload]
        if raw:
            write_all(self._fd, self._before + raw + self._after)
        return len(raw)


def write_all(fd: int, data: bytes, write: Callable[[int, memoryview], int] = os.write) -> None:
    """Write all of ``data``, however little a call takes."""
    view = memoryview(data)
    while view:
        view = view[write(fd, view) :]


def text_on(raw: io.RawIOBase) -> io.TextIOWrapper:
    """A text stream on ``raw`` that passes every write on at once."""
    # Unbuffered like `python -u`: a TextIOWrapper straight on the raw file, which passes every write on.
    return io.TextIOWrapper(
        raw,  # type: ignore[arg-type]
        encoding="utf-8",
        errors="backslashreplace",
        newline="\n",
        write_through=True,
    )


def _open_streams(nonce: str) -> None:
    stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    stdout = text_on(io.FileIO(1, "w", closefd=False))
    stderr = text_on(MarkedStream(2, mark(nonce, "e"), mark(nonce, "o")))
    for name, stream in (("stdin", stdin), ("stdout", stdout), ("stderr", stderr)):
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _install_display(nonce: str) -> None:
    """Set ``sys.displayhook``, and ``display`` as a builtin."""
    before, after = mark(nonce, "r"), mark(nonce, "o")

    def display(*values: object) -> None:
        for value in values:
            write_all(1, before + repr(value).encode("utf-8", "backslashreplace") + b"\n" + after)

    def hook(value: object) -> None:
        if value is not None:
            display(value)
            builtins._ = value  # type: ignore[attr-defined]  # as the interactive interpreter does

    sys.displayhook = hook
    builtins.display = display  # type: ignore[attr-defined]


def _execute(source: str, namespace: dict[str, object]) -> None:
    body = ast.parse(source, CELL_NAME).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) and not ends_in_semicolon(source) else None
    code = compile(ast.Module(body, []), CELL_NAME, "exec", dont_inherit=True)
    final = None
    if last is not None:
        flags = code.co_flags & _FUTURE_FLAGS
        final = compile(ast.Interactive([last]), CELL_NAME, "single", flags, dont_inherit=True)
    exec(code, namespace)
    if final is not None:
        exec(final, namespace)


def describe(error: BaseException, name: str = CELL_NAME) -> dict[str, str]:
    """The claim of a run that ended by an exception; ``name``: file name its code was compiled with."""
    if isinstance(error, SystemExit):
        code = 0 if error.code is None else error.code if isinstance(error.code, int) else 1
        claim = {"outcome": "exit", "detail": str(code)}
        if error.code is not None and not isinstance(error.code, int):
            claim["traceback"] = str(error.code)  # what the interpreter prints on sys.exit("message")
        return claim
    tb = error.__traceback__
    while tb is not None and tb.tb_frame.f_code.co_filename != name:
        tb = tb.tb_next
    from_compiler = isinstance(error, SyntaxError | ValueError | OverflowError) and tb is None
    report = traceback.TracebackException(type(error), error, tb)
    _leave_out_harness(report)
    claim = {
        "outcome": "error",
        "detail": type(error).__name__,
        "traceback": shorten_traceback("".join(report.format())),
    }
    if from_compiler:
        claim["outcome"] = "syntax_error"
    elif isinstance(error, MemoryError):
        claim["outcome"] = "memory_limit"
    return claim


def _leave_out_harness(report: traceback.TracebackException) -> None:
    """Remove this package's frames, which lie between the cell's where a value's ``__repr__`` raises."""
    reports = [report]
    while reports:
        one = reports.pop()
        one.stack[:] = [frame for frame in one.stack if not frame.filename.startswith(_HARNESS)]
        reports += [other for other in (one.__cause__, one.__context__, *(one.exceptions or ())) if other]


def run(source: str, *, status_fd: int, nonce: str) -> None:
    """Run a cell in this process and write what became of it, as JSON, to ``status_fd``. Never raises.

    Standard streams are file descriptors 0, 1 and 2. The caller ends the process afterwards.
    """
    dumps, write = json.dumps, write_all  # a cell may replace what it finds in the modules
    kept_builtins = dict(builtins.__dict__)
    _open_streams(nonce)
    _install_display(nonce)
    sys.set_int_max_str_digits(0)
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    sys.argv = [""]
    claim = {"outcome": "ok"}
    try:
        source = normalize(source)
        linecache.cache[CELL_NAME] = (len(source), None, source.splitlines(keepends=True), CELL_NAME)
        try:
            _execute(source, main.__dict__)
            join_threads()
        finally:
            builtins.__dict__.update(kept_builtins)
            sys.setrecursionlimit(1000)
    except BaseException as error:  # noqa: BLE001  whatever leaves the cell is the cell's outcome
        try:
            claim = describe(error)
        except BaseException as second:  # noqa: BLE001  out of memory again, or str() of the error raises
            claim = {"outcome": "error", "detail": type(error).__name__, "traceback": type(error).__name__}
            if isinstance(error, MemoryError) or isinstance(second, MemoryError):
                claim["outcome"] = "memory_limit"
    for name in ("detail", "traceback"):
        if len(claim.get(name, "")) > _CLAIM_BYTES // 8:  # JSON may take six characters for one
            text = claim[name]
            claim[name] = text[: _CLAIM_BYTES // 16] + "\n...\n" + text[-_CLAIM_BYTES // 16 :]
    write(status_fd, dumps(claim).encode())


def join_threads() -> None:
    """Wait for the run's own threads, as a script does before it ends (up to its limits)."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
