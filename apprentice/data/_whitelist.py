"""Runs the programs of worked solutions in-process, and nothing else.

Not a sandbox: code from models or users goes to :mod:`apprentice.sandbox`. What runs here is a language of
literals, arithmetic, comparisons, bounded loops and six functions, so small that it can be checked whole.
"""

from __future__ import annotations

import ast
import math

__all__ = ["run_whitelisted"]

_NODES = (
    ast.Module, ast.Expr, ast.Assign, ast.AugAssign, ast.For, ast.If, ast.ImportFrom, ast.alias, ast.Call,
    ast.Name, ast.Load, ast.Store, ast.Constant, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare,
    ast.GeneratorExp, ast.comprehension, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow,
    ast.USub, ast.And, ast.Or, ast.Not, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE,
)  # fmt: skip
_FUNCTIONS = {"print", "range", "all", "any", "sum", "int", "round", "len", "abs", "gcd", "lcm"}
_MAX_LITERAL, _MAX_NODES, _MAX_LOOPS, _MAX_RANGE = 10**15, 200, 2, 10**6


def run_whitelisted(program: str) -> str | None:
    """What ``program`` prints, stripped; ``None`` if it is outside the language or fails."""
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError):
        return None
    if not _is_harmless(tree):
        return None
    lines: list[str] = []
    scope: dict[str, object] = {
        "__builtins__": {},
        "print": lambda *values: lines.append(" ".join(str(v) for v in values)),
        "range": _bounded_range, "all": all, "any": any, "sum": sum, "int": int, "round": round, "len": len,
        "abs": abs, "gcd": math.gcd, "lcm": math.lcm,
    }  # fmt: skip
    tree.body = [node for node in tree.body if not isinstance(node, ast.ImportFrom)]
    try:
        exec(compile(tree, "<worked>", "exec"), scope)
    except (ArithmeticError, TypeError, ValueError, NameError):
        return None
    return "\n".join(lines).strip()


def _bounded_range(*bounds: int) -> range:
    numbers = range(*bounds)
    if len(numbers) > _MAX_RANGE:
        raise ValueError(f"range of more than {_MAX_RANGE} numbers")
    return numbers


def _is_harmless(tree: ast.Module) -> bool:
    nodes = list(ast.walk(tree))
    if len(nodes) > _MAX_NODES or sum(isinstance(n, ast.For | ast.comprehension) for n in nodes) > _MAX_LOOPS:
        return False
    for node in nodes:
        if not isinstance(node, _NODES):
            return False
        if isinstance(node, ast.Constant) and not (
            isinstance(node.value, int | float) and abs(node.value) <= _MAX_LITERAL
        ):
            return False
        if isinstance(node, ast.Call) and not (
            isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and not node.keywords
        ):
            return False
        if isinstance(node, ast.ImportFrom) and (
            node.module != "math" or any(a.name not in ("gcd", "lcm") or a.asname for a in node.names)
        ):
            return False
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in _FUNCTIONS:
            return False
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and not _small_power(node):
            return False
    return True


def _small_power(node: ast.BinOp) -> bool:
    return isinstance(node.right, ast.Constant) and abs(float(node.right.value)) <= 10  # type: ignore[arg-type]
