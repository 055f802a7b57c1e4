"""An expert without a model: it answers from the worked solutions that a problem set carries.

How good it is, is decided once per (expert, problem, seed) with a hash, so all rollouts of a group, all
retries and all processes meet the same ability: an expert that errs on a problem gives the same wrong answer
every time. It errs on both tools, or with ``think_strength`` below 1 on ``think`` alone. A wrong answer is a plausible one: the derivation and the program reach a number
that is off by a little, or start from misread numbers. It is never empty.
"""

from __future__ import annotations

import ast
import asyncio
import hashlib
import random
import re
from collections.abc import Mapping

from apprentice.config.schema import WorkedBackend
from apprentice.data.problem import Problem
from apprentice.episodes.actions import CallExpert
from apprentice.experts.types import BackendFailure, ExpertAnswer

__all__ = ["WorkedExpert", "wrong_derivation", "wrong_program"]

_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w]|\.\d)")


def _draw(*parts: object) -> float:
    """A number in [0, 1) that depends on nothing but ``parts``."""
    digest = hashlib.sha256("\x1f".join(str(p) for p in parts).encode()).digest()
    return int.from_bytes(digest[:7], "big") / 2.0**56


def _offset(draw: float) -> int:
    """1, 2, 3, -1, -2 or -3."""
    return (1, 2, 3, -1, -2, -3)[int(draw * 6)]


def _shift(number: str, offset: int) -> str:
    """A written number with ``offset`` units of its last place added; never negative, always another
    number."""
    whole, dot, fraction = number.partition(".")
    units = int(whole + fraction)
    moved = units + offset if units + offset >= 0 else units + abs(offset)
    if not dot:
        return str(moved)
    digits = str(moved).rjust(len(fraction) + 1, "0")
    return f"{digits[: -len(fraction)]}.{digits[-len(fraction) :]}"


def _misread(text: str, draw: float) -> str:
    """``text`` with one of its numbers, and all its occurrences, misread."""
    numbers = list(dict.fromkeys(_NUMBER.findall(text)))
    if not numbers:
        return text
    chosen = numbers[int(draw * len(numbers))]
    wrong = _shift(chosen, _offset(draw * 7 % 1.0))
    return _NUMBER.sub(lambda m: wrong if m.group() == chosen else m.group(), text)


def wrong_derivation(derivation: str, answer: str, draw: float) -> str:
    """A derivation that reaches a wrong result.

    Every occurrence of the answer's number becomes another number; where the derivation does not contain it,
    the last number of the derivation does, and without any number the conclusion is said to be the opposite.

    Args:
        derivation: the right one.
        answer: the gold.
        draw: in [0, 1); decides how it is wrong.
    """
    gold = _NUMBER.findall(answer)
    if len(gold) == 1 and gold[0] in _NUMBER.findall(derivation):
        wrong = _shift(gold[0], _offset(draw))
        return _NUMBER.sub(lambda m: wrong if m.group() == gold[0] else m.group(), derivation)
    found = list(_NUMBER.finditer(derivation))
    if found:
        last = found[-1]
        return derivation[: last.start()] + _shift(last.group(), _offset(draw)) + derivation[last.end() :]
    return derivation.rstrip() + "\nHence the answer is none of the expected ones: 0."


def wrong_program(program: str, answer: str, draw: float) -> str:
    """A program that runs and prints a wrong result.

    With a numeric gold, what the last ``print`` prints (or the last bare expression displays) is off by the
    same amount as :func:`wrong_derivation`'s, which is wrong for sure. Otherwise one number of the program
    is misread.
    """
    gold = _NUMBER.findall(answer)
    target = _last_shown(program) if len(gold) == 1 and gold[0] == answer.strip().lstrip("-") else None
    if target is None:
        return _misread(program, draw)
    start, end, simple = target
    offset = int(_shift(gold[0], _offset(draw)).replace(".", "")) - int(gold[0].replace(".", ""))
    if answer.strip().startswith("-"):
        offset = -offset  # the derivation's digits grow where the number falls
    places = len(gold[0].partition(".")[2])
    amount = f"{abs(offset) / 10**places:.{places}f}" if places else str(abs(offset))
    shown = program[start:end] if simple else f"({program[start:end]})"
    return f"{program[:start]}{shown} {'+' if offset > 0 else '-'} {amount}{program[end:]}"


def _last_shown(program: str) -> tuple[int, int, bool] | None:
    """Where the last shown expression stands: start, end, and whether ``+ 1`` can follow it as it is."""
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError):
        return None
    shown: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _calls(node, "print"):
            if node.args and not isinstance(node.args[-1], ast.Starred):
                shown.append(node.args[-1])
        elif isinstance(node, ast.Expr) and node is tree.body[-1] and not _calls(node.value, "print"):
            shown.append(node.value)
    if not shown:
        return None
    last = max(shown, key=lambda e: (e.lineno, e.col_offset))
    if _is_text(last):
        return None  # adding a number to it would raise, which is no plausible error
    lines = program.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    assert last.end_lineno is not None and last.end_col_offset is not None
    raw = program.encode()
    begin = len(raw[: starts[last.lineno - 1] + last.col_offset].decode())
    end = len(raw[: starts[last.end_lineno - 1] + last.end_col_offset].decode())
    simple = isinstance(
        last, ast.Call | ast.Name | ast.Constant | ast.Attribute | ast.Subscript | ast.UnaryOp
    )
    if isinstance(last, ast.BinOp):
        arithmetic = ast.Add | ast.Sub | ast.Mult | ast.Div | ast.FloorDiv | ast.Mod | ast.Pow
        simple = isinstance(last.op, arithmetic)
    return begin, end, simple


def _calls(node: ast.expr, *names: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def _is_text(node: ast.expr) -> bool:
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        return True
    if _calls(node, "str", "repr", "format"):
        return True
    method = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
    return method in ("join", "format", "strip", "rstrip")


class WorkedExpert:
    """Backend ``worked``.

    Args:
        name: the expert's name; part of what decides its ability.
        config: error rate, strengths by family, latency, failure rate.
        problems: problem id -> problem; a problem without a worked solution cannot be answered.
        seed: of the run.
    """

    def __init__(
        self, name: str, config: WorkedBackend, problems: Mapping[str, Problem], *, seed: int = 0
    ) -> None:
        self._name, self._config, self._problems, self._seed = name, config, problems, seed
        self._failures = random.Random(f"{name}:{seed}")

    @property
    def model(self) -> str:
        """``worked``: there is no model."""
        return "worked"

    def knows(self, problem: Problem, tool: str = "code_interpreter") -> bool:
        """Whether this expert gets this problem right with this tool; always the same for one seed.

        What it gets right by thinking it gets right with a program too (``think_strength``).
        """
        right = self._config.strengths.get(problem.family, 1.0 - self._config.error_rate)
        if tool == "think":
            right *= self._config.think_strength
        return _draw("ability", self._name, problem.problem_id, self._seed) < right

    async def answer(self, request: CallExpert, *, timeout_s: float) -> ExpertAnswer:
        """The worked derivation or program, or a wrong one, after the configured latency.

        Raises:
            BackendFailure: kinds ``no_worked_solution``, ``unknown_tool``, ``timeout``, ``injected``.
        """
        if request.tool not in ("think", "code_interpreter"):
            raise self._failure(f"knows no tool {request.tool!r}", "unknown_tool")
        problem = self._problems.get(request.problem_id)
        if problem is None or problem.worked is None:
            what = "does not know problem" if problem is None else "has no worked solution of problem"
            raise self._failure(f"{what} {request.problem_id!r}", "no_worked_solution")
        if self._config.latency_s:
            await asyncio.sleep(min(self._config.latency_s, timeout_s))
            if self._config.latency_s > timeout_s:
                raise self._failure(f"no answer within {timeout_s:g} s", "timeout", retryable=True)
        if self._config.failure_rate and self._failures.random() < self._config.failure_rate:
            raise self._failure("injected failure", "injected", retryable=True)
        think = request.tool == "think"
        text = problem.worked.derivation if think else problem.worked.program
        if not self.knows(problem, request.tool):
            draw = _draw("error", self._name, problem.problem_id, self._seed)
            text = (wrong_derivation if think else wrong_program)(text, problem.answer, draw)
        return ExpertAnswer(text=text)

    async def close(self) -> None:
        """Nothing to release."""

    def _failure(self, what: str, kind: str, *, retryable: bool = False) -> BackendFailure:
        message = f"worked expert {self._name!r}: {what}"
        return BackendFailure(message, kind=kind, expert=self._name, retryable=retryable)
