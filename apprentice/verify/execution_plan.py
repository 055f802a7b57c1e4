"""What is prepared once for the tests of a problem, and the names in them that are the solution's."""

from __future__ import annotations

import ast
import builtins
import functools
import json
import symtable
from dataclasses import dataclass
from typing import Any

from apprentice.data.code import CodeTests
from apprentice.sandbox.program import PRELUDE_MODULES

__all__ = [
    "MARK",
    "Plan",
    "argument_names",
    "asserts_request",
    "calls_request",
    "defined_names",
    "free_names",
    "plan_of",
]

MARK = "apprentice-record"
"""Starts a record among whatever else a child prints. No secret: a forged record is only another answer."""
_BUILTINS = frozenset(dir(builtins)) | {"__name__", "__file__", "__doc__", "__builtins__"}
_PROVIDED = frozenset(PRELUDE_MODULES)  # see apprentice.sandbox.program_asserts


@dataclass(frozen=True, slots=True)
class Plan:
    """How a problem is tested.

    ``inputs``: standard inputs, or the calls of ``call`` tests. ``before`` and ``after`` run around the
    solution in its process, ``setup`` in the process of the tests. ``names`` are the solution's in the
    tests; ``remote`` are names that only the solution's process has; ``classes`` cross between the two by
    their attributes.
    """

    tests: CodeTests
    inputs: tuple[bytes, ...] = ()
    calls: tuple[dict[str, Any], ...] = ()
    before: str = ""
    after: str = ""
    setup: str = ""
    names: tuple[str, ...] = ()
    remote: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Tests that are known before anything runs; 0 for tests as code."""
        return len(self.tests.outputs)


@functools.lru_cache(maxsize=16)  # a problem's samples come together; its tests can be large
def plan_of(text: str) -> Plan:
    """The plan for :meth:`apprentice.data.code.CodeTests.text`.

    Raises:
        DataError: it is no such text.
    """
    tests = CodeTests.from_text(text)
    if tests.style == "stdin":
        return Plan(tests, inputs=tuple(t.encode("utf-8", "surrogateescape") for t in tests.inputs))
    if tests.style == "call":
        entries = tests.entries or (tests.entry_point,) * len(tests.inputs)
        calls = tuple(
            {"entry": entry, "lines": [line for line in text.split("\n") if line.strip()]}
            for entry, text in zip(entries, tests.inputs, strict=True)
        )
        return Plan(tests, calls=calls, before=tests.setup)
    known = defined_names(tests.given) | defined_names(tests.setup)
    # Objects of the solution's own classes can only be made in its process, after it.
    needs_solution = bool(free_names(tests.setup) - defined_names(tests.given))
    names = free_names(tests.program) - known - _PROVIDED
    if tests.entry_point:
        names = {tests.entry_point} | (names & argument_names(tests.program, tests.entry_point))
    return Plan(
        tests,
        before=tests.given if needs_solution else f"{tests.given}\n{tests.setup}",
        after=tests.setup if needs_solution else "",
        setup="" if needs_solution else tests.setup,
        names=tuple(sorted(names)),
        remote=tuple(sorted(defined_names(tests.setup))) if needs_solution else (),
        classes=() if needs_solution else tuple(sorted(_classes(tests.given) | _classes(tests.setup))),
    )


def calls_request(
    plan: Plan, calls: tuple[dict[str, Any], ...], first: int, *, call_s: float, call_cpu_s: float
) -> bytes:
    """What :mod:`apprentice.sandbox.program_calls` reads: ``calls[first:]``. No expected answer is in it."""
    return json.dumps(
        {
            "before": plan.before,
            "after": plan.after,
            "calls": calls[first:],
            "first": first,
            "call_s": call_s,
            "call_cpu_s": call_cpu_s,
            "classes": plan.classes,
            "prelude": plan.tests.style == "call",
            "mark": MARK,
        }
    ).encode()


def asserts_request(plan: Plan, known: list[dict[str, Any]]) -> bytes:
    """What :mod:`apprentice.sandbox.program_asserts` reads."""
    request: dict[str, Any] = {"known": known, "mark": MARK}
    if plan.tests.style == "call":
        request["expected"] = plan.tests.outputs
    else:
        request |= {
            "given": plan.tests.given,
            "setup": plan.setup,
            "program": plan.tests.program,
            "names": plan.names,
            "remote": plan.remote,
            "classes": plan.classes,
        }
    return json.dumps(request).encode()


def free_names(code: str) -> set[str]:
    """Global names that the code uses and neither defines nor imports, built-in names aside."""
    used: set[str] = set()
    defined: set[str] = set()
    try:
        tables = [symtable.symtable(code, "<tests>", "exec")]
    except (SyntaxError, ValueError):
        return set()  # says so when it runs
    while tables:
        table = tables.pop()
        tables.extend(table.get_children())
        for symbol in table.get_symbols():
            top = table.get_type() == "module"
            if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace():
                if top or symbol.is_declared_global():
                    defined.add(symbol.get_name())
            elif symbol.is_referenced() and (top or symbol.is_global()):
                used.add(symbol.get_name())
    return used - defined - _BUILTINS


def argument_names(code: str, entry_point: str) -> set[str]:
    """Names that stand only in the arguments of calls of ``entry_point``: they can tell a test no lies."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return set()
    inside: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == entry_point:
            for argument in (*node.args, *node.keywords):
                inside |= set(ast.walk(argument))
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return {n.id for n in names if n in inside} - {n.id for n in names if n not in inside}


def defined_names(code: str) -> set[str]:
    """Names that the code defines or imports at its top level."""
    try:
        table = symtable.symtable(code, "<tests>", "exec")
    except (SyntaxError, ValueError):
        return set()
    return {
        s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()
    }


def _classes(code: str) -> set[str]:
    try:
        children = symtable.symtable(code, "<tests>", "exec").get_children()
    except (SyntaxError, ValueError):
        return set()
    return {child.get_name() for child in children if child.get_type() == "class"}
