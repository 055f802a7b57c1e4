"""The tests of a problem, as they run inside a child process of their own. Standard library only.

Nothing of the solution runs here. Tests as code (``assert f(1) == 2``, ``check(candidate)``) run with the
names of the solution replaced by stand-ins; what a call gave comes as a value, from a table. A call that
the table does not have yet is written down, the test goes on with a placeholder, and what it says is thrown
away: the calls are made in the solution's process, and the tests run again with the larger table, until
they need nothing more.

Request, JSON on standard input: ``given``, code of the problem itself (imports, helper functions) and
``setup``, both run first; ``program``, the tests; ``names`` of the solution; ``remote``, further names that
only the solution's process has; ``known``, the table: ``{"call": ..., "result": ...}`` in order; ``mark``.
Or, for tests that are pairs of arguments and result: ``expected``, texts of JSON, and ``known``.

One record on descriptor 1: ``tests``, one for each assertion that ran or each expected value, with ``ok``,
``why`` and ``call``, the number of the call whose own end decided it; ``calls``, in order; ``pending``,
whether some of them were not known; ``broken``, what went wrong with the tests themselves.
"""

from __future__ import annotations

import ast
import atexit
import builtins
import json
import math
import random
import sys
from typing import Any

from apprentice.sandbox.cell import write_all
from apprentice.sandbox.program import PRELUDE_MODULES, claim_of, execute, new_module, on_big_stack
from apprentice.sandbox.program_calls import Records, drop_output, own_classes, read_request
from apprentice.sandbox.program_values import decode, encode

__all__ = ["run", "values_agree"]

TOLERANCE = 1e-6
_MAX_CALLS_AHEAD = 2000
_TESTS = "<tests>"
_JUDGE = "__judge__"


def run(source: str, *, status_fd: int, nonce: str) -> None:
    """Run the tests in this process; how it ended goes to ``status_fd`` as JSON. Never raises."""
    del source, nonce
    atexit._clear()
    claim = {"outcome": "ok"}
    try:
        request = read_request()
        drop_output()
        records = Records(request["mark"])
        work = _compare if "expected" in request else _assert
        on_big_stack(lambda: records.write(work(request)))
    except BaseException as error:  # noqa: BLE001
        claim = claim_of(error)
    write_all(status_fd, json.dumps(claim).encode())


# ---- expected values ----


def values_agree(expected: Any, actual: Any) -> bool:
    """Whether a result is the expected one; the rules are in docs/code-tasks.md."""
    if isinstance(expected, bool) or isinstance(actual, bool) or expected is None or actual is None:
        return bool(expected == actual)
    if isinstance(expected, int | float) and isinstance(actual, int | float):
        if isinstance(expected, int):
            return expected == actual
        if math.isnan(expected):
            return math.isnan(actual)
        try:
            return math.isclose(expected, actual, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        except OverflowError:  # an integer too long for a float
            return False
    if isinstance(expected, list | tuple) and isinstance(actual, list | tuple):
        return len(expected) == len(actual) and all(map(values_agree, expected, actual))
    if isinstance(expected, dict) and isinstance(actual, dict):
        # JSON has texts for keys only.
        by_text = {key if isinstance(key, str) else json.dumps(key): value for key, value in actual.items()}
        return expected.keys() == by_text.keys() and all(
            values_agree(value, by_text[key]) for key, value in expected.items()
        )
    return bool(type(expected) is type(actual) and expected == actual)


def _compare(request: dict[str, Any]) -> dict[str, Any]:
    tests: list[dict[str, Any]] = []
    for number, (text, known) in enumerate(zip(request["expected"], request["known"], strict=True)):
        result = known["result"]
        if "value" not in result:
            tests.append({"ok": False, "call": number})
            continue
        try:
            expected = json.loads(text)
        except ValueError:
            expected = text
        try:
            actual = decode(result["value"], handle=_Handle)
            agree = values_agree(expected, actual)
            tests.append({"ok": agree} if agree else {"ok": False, "why": f"returned {_short(actual)}"})
        except (ValueError, RecursionError, TypeError) as error:
            tests.append({"ok": False, "why": f"the result cannot be compared: {error}"})
    return {"tests": tests, "calls": [], "pending": False, "broken": ""}


def _short(value: object, length: int = 100) -> str:
    try:
        text = repr(value)
    except (RecursionError, ValueError):
        text = type(value).__name__
    return text if len(text) <= length else text[:length] + "..."


# ---- tests as code ----


class _Stop(BaseException):
    """Ends the tests early; not for the tests to catch."""


class _Ended(_Stop):
    """The call ended the solution's process: ``number`` of the call."""

    def __init__(self, number: int) -> None:
        self.number = number


class _Handle:
    """A value that stays in the solution's process. It equals only itself; its methods can be called."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(self.handle, (name,))


class _Later(BaseException):
    """The tests depend on a result that is not known yet."""


class _Placeholder(_Handle):
    """Stands for a result that is not known yet."""

    def __bool__(self) -> bool:
        raise _Later


class _Name:
    """Something that the solution defines, to be called."""

    table: _Table

    def __init__(self, target: Any, path: tuple[str, ...] = ()) -> None:
        self._target, self._path = target, path

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.table.call(self._target, self._path, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(self._target, (*self._path, name))

    def __bool__(self) -> bool:
        raise TypeError("an attribute of a value that stays in the solution's process can only be called")


class _Table:
    """Results that are known, and the calls that the tests make."""

    def __init__(self, known: list[dict[str, Any]]) -> None:
        self.known, self.calls = known, list[dict[str, Any]]()
        self.pending = False
        self.classes: dict[str, type] = {}

    def call(self, target: Any, path: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arguments = encode((args, kwargs), classes=self.classes, handle=_handle_of)
        call = {"target": target, "path": list(path), "arguments": arguments}
        number = len(self.calls)
        self.calls.append(call)
        if not self.pending and number < len(self.known) and self.known[number]["call"] == call:
            return self._deliver(number, self.known[number]["result"], args)
        self.pending = True
        if number >= len(self.known) + _MAX_CALLS_AHEAD:
            raise _Stop
        return _Placeholder([number, 0])

    def _deliver(self, number: int, result: dict[str, Any], args: tuple[Any, ...]) -> Any:
        if "ended" in result:
            raise _Ended(number)
        if "error" in result:
            kind = getattr(builtins, result["error"], None)
            if not (isinstance(kind, type) and issubclass(kind, Exception)):
                raise _Ended(number)  # SystemExit and the like
            try:
                error = kind(result["message"])
            except TypeError:  # e.g. UnicodeDecodeError takes more
                error = RuntimeError(result["message"])
            error.solution_call = number  # type: ignore[attr-defined]
            raise error
        value = decode(result["value"], classes=self.classes, handle=_Handle)
        if value is None:
            # A function that works in place. Of others, changes are left out: `assert f(x) == sorted(x)` must
            # not be true of a function that empties x.
            for i, text in result["changed"].items():
                _change(args[int(i)], decode(json.loads(text), classes=self.classes, handle=_Handle))
        return value


def _handle_of(value: object) -> Any:
    if isinstance(value, _Handle):
        return value.handle
    if isinstance(value, _Name) and not value._path:
        return value._target
    raise TypeError(f"a {type(value).__name__} cannot be passed to a solution")


def _change(argument: Any, new: Any) -> None:
    """Do to an argument what the call did to it in the other process."""
    match argument:
        case list() | bytearray():
            argument[:] = new
        case dict() | set():
            argument.clear()
            argument.update(new)
        case _:
            argument.__dict__.update(new.__dict__)


class _Asserts:
    """Notes what became of each assertion."""

    def __init__(self, table: _Table) -> None:
        self.tests: list[dict[str, Any]] = []
        self._table = table

    def passed(self) -> None:
        self.tests.append({"ok": True})

    def failed(self, error: BaseException, line: int) -> None:
        if isinstance(error, _Stop) and not isinstance(error, _Ended):
            raise error
        self.tests.append(_failed_test(error, line))


def _failed_test(error: BaseException, line: int) -> dict[str, Any]:
    call = error.number if isinstance(error, _Ended) else getattr(error, "solution_call", None)
    if call is not None:
        return {"ok": False, "call": call, "line": line}
    if isinstance(error, AssertionError):
        return {"ok": False, "line": line, "why": "the assertion failed"}
    return {"ok": False, "line": line, "why": f"{type(error).__name__} while checking: {error}"[:300]}


class _Wrap(ast.NodeTransformer):
    """``assert`` -> the same within ``try``, whose end is noted; the tests go on either way."""

    def visit_Assert(self, node: ast.Assert) -> ast.Try:
        wrapped = ast.parse(
            f"try:\n pass\nexcept BaseException as __error__:\n {_JUDGE}.failed(__error__, {node.lineno})\n"
            f"else:\n {_JUDGE}.passed()"
        ).body[0]
        assert isinstance(wrapped, ast.Try)
        wrapped.body = [node]
        return ast.fix_missing_locations(wrapped)


def _assert(request: dict[str, Any]) -> dict[str, Any]:
    table = _Table(request["known"])
    judge = _Asserts(table)
    _Name.table = table
    random.seed(0)  # the tests run several times, and must make the same calls
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(0)
    namespace: dict[str, Any] = new_module("tests").__dict__
    # Some published tests use modules that only their reference solution imports.
    namespace |= {name: sys.modules[name] for name in PRELUDE_MODULES}
    broken = ""
    ran_out = False
    try:
        for part in (request["given"], request["setup"]):
            execute(part, namespace, prelude=False)
        table.classes = own_classes(namespace, request["classes"])
        for name in (*request["names"], *request["remote"]):
            namespace[name] = _Name(name)
        namespace[_JUDGE] = judge
        exec(
            compile(_Wrap().visit(ast.parse(request["program"])), _TESTS, "exec", dont_inherit=True),
            namespace,
        )
    except _Ended as error:
        judge.tests.append(_failed_test(error, 0))
    except _Stop:
        ran_out = True
    except BaseException as error:  # noqa: BLE001  what the tests raise themselves
        if getattr(error, "solution_call", None) is not None or isinstance(error, AssertionError):
            judge.tests.append(_failed_test(error, 0))
        else:
            broken = f"{type(error).__name__}: {error}"[:300]
    if not broken and not ran_out and not judge.tests and table.calls:
        judge.tests.append({"ok": True})  # tests without assert statements, that ran to their end
    pending = table.pending
    return {"tests": judge.tests, "calls": table.calls, "pending": pending, "broken": broken}
