"""Calls of a solution's functions, as they run inside the child process. Standard library only.

The request is JSON on standard input; the solution is the run's code. No expected answer is in either: what
comes back are values (:mod:`.program_values`), which somebody else judges.

Request: ``before`` and ``after``, code that runs before and after the solution (what the problem gave; the
set-up of its tests); ``calls``; ``first``, the number of the first of them; ``call_s``, seconds a call may
take; ``classes``, names of classes in ``before`` whose instances cross by their attributes; ``prelude``;
``mark``, which starts each record.

A call is ``{"entry": name, "lines": [...]}``, arguments as JSON, one a line, as in LiveCodeBench: to the
method of ``Solution`` of that name, or the function. Or it is ``{"target": handle, "path": [...],
"arguments": ...}``. A handle is the name of a global, or ``[call, n]``: the n-th value that could not cross
in the result of that call.

Records on descriptor 1, each on a line of its own: first ``{"loaded": true}``, then one a call in order,
with ``value`` (and ``changed``: arguments that the call changed in place), or ``error``, its built-in base
class, and ``type`` and ``message``; always with ``cpu_s`` and ``wall_s``. The solution's own output is
dropped.

The module is named ``solution``: what stands under ``if __name__ == "__main__"`` does not run.
"""

from __future__ import annotations

import atexit
import builtins
import faulthandler
import io
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from apprentice.sandbox.cell import normalize, write_all
from apprentice.sandbox.program import claim_of, execute, new_module, on_big_stack
from apprentice.sandbox.program_values import decode, encode

__all__ = ["Records", "drop_output", "own_classes", "read_request", "run"]


class _Sink(io.RawIOBase):
    """Takes everything and keeps nothing."""

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        return len(data)  # type: ignore[arg-type]


def drop_output() -> None:
    """Standard streams for code whose output nobody reads; standard input is at its end."""
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    for name in ("stdout", "stderr"):
        stream = io.TextIOWrapper(io.BufferedWriter(_Sink()), encoding="utf-8", errors="backslashreplace")
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def read_request() -> dict[str, Any]:
    """The request on standard input, to its end."""
    with open(0, "rb", closefd=False) as file:
        request: dict[str, Any] = json.loads(file.read())
    return request


class Records:
    """Writes records; keeps what it needs of the modules, which a solution may change."""

    def __init__(self, mark: str) -> None:
        self._fd = os.dup(1)
        self._mark = b"\n" + mark.encode() + b" "
        self._dumps, self._write = json.dumps, write_all

    def write(self, record: dict[str, Any]) -> None:
        """One record, on a line of its own."""
        self._write(self._fd, self._mark + self._dumps(record).encode() + b"\n")


def own_classes(namespace: dict[str, Any], names: list[str]) -> dict[str, type]:
    """The classes of these names that the namespace has."""
    return {name: namespace[name] for name in names if isinstance(namespace.get(name), type)}


def run(source: str, *, status_fd: int, nonce: str) -> None:
    """Run the calls in this process; how it ended goes to ``status_fd`` as JSON. Never raises."""
    del nonce
    dumps, write = json.dumps, write_all
    atexit._clear()
    claim = {"outcome": "ok"}
    try:
        request = read_request()
        drop_output()
        calls = _Calls(request, Records(request["mark"]), status_fd)
        on_big_stack(lambda: calls.run(normalize(source)), calls.watch)
    except BaseException as error:  # noqa: BLE001  the solution could not be loaded
        claim = claim_of(error)
    write(status_fd, dumps(claim).encode())


class _Calls:
    def __init__(self, request: dict[str, Any], records: Records, watch_fd: int) -> None:
        self._request, self._records, self._watch_fd = request, records, watch_fd
        self._handles: dict[tuple[int, int], object] = {}
        self._entries: dict[str, Callable[..., object]] = {}
        self._classes: dict[str, type] = {}
        self._namespace: dict[str, Any] = {}
        self._began = (0.0, 0.0)
        self._times, self._exit = (time.process_time, time.monotonic), os._exit

    def watch(self) -> None:
        """End the process when the call in progress has used up its CPU time; wall time says less.

        Called from another thread. Code that keeps the interpreter's lock is left to the limit on wall time.
        """
        used = self._used()
        if used["cpu_s"] > self._request["call_cpu_s"]:
            self._records.write(
                {"error": "TimeoutError", "type": "TimeoutError", "message": "", "stopped": True} | used
            )
            self._exit(1)

    def _used(self) -> dict[str, float]:
        cpu, wall = (now() - began for now, began in zip(self._times, self._began, strict=True))
        return {"cpu_s": cpu, "wall_s": wall}

    def run(self, source: str) -> None:
        request = self._request
        self._began = (self._times[0](), self._times[1]())
        namespace = self._namespace = new_module("solution").__dict__
        self._timed(lambda: self._load(source, namespace))
        for number, call in enumerate(request["calls"], request["first"]):
            self._timed(lambda number=number, call=call: self._call(number, call))  # type: ignore[misc]

    def _timed(self, work: Callable[[], dict[str, Any]]) -> None:
        self._began = (self._times[0](), self._times[1]())
        # Ends the process from a thread that needs no lock of the interpreter, so it also stops C code.
        faulthandler.dump_traceback_later(self._request["call_s"], exit=True, file=self._watch_fd)
        record = work()
        faulthandler.cancel_dump_traceback_later()
        self._records.write(record | self._used())

    def _load(self, source: str, namespace: dict[str, Any]) -> dict[str, Any]:
        request = self._request
        execute(request["before"], namespace, prelude=request["prelude"])
        for call in request["calls"]:
            # `operator.add` of the prelude is no solution to a problem that asks for `add`.
            namespace.pop(call.get("entry"), None)
        self._classes = own_classes(namespace, request["classes"])
        execute(source, namespace, prelude=False)
        if request["after"]:
            execute(request["after"], namespace, prelude=False)
        return {"loaded": True}

    def _call(self, number: int, call: dict[str, Any]) -> dict[str, Any]:
        handles: list[object] = []

        def keep(value: object) -> list[int]:
            handles.append(value)
            self._handles[number, len(handles) - 1] = value
            return [number, len(handles) - 1]

        try:
            if "entry" in call:
                function, args = self._entry(call["entry"]), [_argument(line) for line in call["lines"]]
                return {"value": encode(function(*args), handle=keep)}
            function = self._resolve(call["target"])
            for name in call["path"]:
                function = getattr(function, name)
            args, kwargs = decode(call["arguments"], classes=self._classes, handle=self._resolve)
            before = _mutable(args, self._classes)
            value = encode(function(*args, **kwargs), classes=self._classes, handle=keep)
            after = _mutable(args, self._classes)
            changed = {i: after[i] for i in before if after.get(i) != before[i]}
            return {"value": value, "changed": changed} if changed else {"value": value}
        except BaseException as error:  # noqa: BLE001  the call's outcome, whatever it is
            return _failure(error)

    def _resolve(self, handle: Any) -> Any:
        return self._namespace[handle] if isinstance(handle, str) else self._handles[handle[0], handle[1]]

    def _entry(self, name: str) -> Callable[..., object]:
        if name not in self._entries:
            made = self._namespace.get("Solution")
            found = getattr(made(), name, None) if isinstance(made, type) else None
            self._entries[name] = found if found is not None else self._namespace[name]
        return self._entries[name]


def _argument(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return line


def _mutable(args: Any, classes: dict[str, type]) -> dict[int, str]:
    """Arguments that a call can change, as text by position."""
    found = {}
    for i, arg in enumerate(args):
        if isinstance(arg, list | dict | set | bytearray) or type(arg).__name__ in classes:
            try:
                found[i] = json.dumps(encode(arg, classes=classes))
            except (TypeError, ValueError):
                continue
    return found


def _failure(error: BaseException) -> dict[str, Any]:
    base = next((c for c in type(error).__mro__ if getattr(builtins, c.__name__, None) is c), Exception)
    try:
        message = str(error)[:500]
    except BaseException:  # noqa: BLE001  a solution's own exception class
        message = ""
    return {"error": base.__name__, "type": type(error).__name__, "message": message}
