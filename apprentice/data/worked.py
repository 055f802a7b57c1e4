"""Worked solutions of procedural problems: what a ``worked`` expert answers from.

A derivation is one to four sentences. A program is what a model would write: it carries the problem's
numbers, parses nothing, and prints the answer. :func:`perturb` makes a plausible wrong version of both.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from apprentice.data._whitelist import run_whitelisted
from apprentice.data.problem import WorkedSolution
from apprentice.data.word_problems import word_problem

__all__ = ["WORKED_FAMILIES", "perturb", "worked_solution"]


def worked_solution(family: str, answer: str, metadata: Mapping[str, Any]) -> WorkedSolution | None:
    """The worked solution of one ``reasoning_gym`` entry.

    Args:
        family: dataset name, e.g. ``gcd``.
        answer: the entry's gold.
        metadata: the entry's ``metadata``.

    Returns:
        ``None`` for a family without a builder, and for an entry whose program would not print the gold.
    """
    build = WORKED_FAMILIES.get(family)
    return build(answer, metadata) if build else None


def _chain_sum(answer: str, metadata: Mapping[str, Any]) -> WorkedSolution:
    expression = str(metadata["expression"])
    parts = expression.split()
    total, steps = int(parts[0]), []
    for operator, term in zip(parts[1::2], parts[2::2], strict=True):
        value = total + int(term) if operator == "+" else total - int(term)
        steps.append(f"{total} {operator} {term} = {value}")
        total = value
    return WorkedSolution(f"Work from left to right: {', '.join(steps)}.", f"print({expression})")


def _listed(metadata: Mapping[str, Any]) -> str:
    numbers = [str(n) for n in metadata["numbers"]]
    return ", ".join(numbers[:-1]) + " and " + numbers[-1]


def _gcd(answer: str, metadata: Mapping[str, Any]) -> WorkedSolution:
    numbers = ", ".join(str(n) for n in metadata["numbers"])
    derivation = f"The largest number that divides {_listed(metadata)} is their gcd. It is {answer}."
    return WorkedSolution(derivation, f"from math import gcd\nprint(gcd({numbers}))")


def _lcm(answer: str, metadata: Mapping[str, Any]) -> WorkedSolution:
    numbers = ", ".join(str(n) for n in metadata["numbers"])
    derivation = f"The smallest number that {_listed(metadata)} divide is their lcm. It is {answer}."
    return WorkedSolution(derivation, f"from math import lcm\nprint(lcm({numbers}))")


def _simple_equations(answer: str, metadata: Mapping[str, Any]) -> WorkedSolution | None:
    equation, name = str(metadata["equation"]), str(metadata["variable"])
    left, right = equation.split(" = ")
    if name not in left:
        return None  # the generator cancelled the unknown: "0 = 0" has every number as solution
    bound = 1000
    while abs(int(answer)) > bound:
        bound *= 10
    program = f"for {name} in range({-bound}, {bound + 1}):\n    if {left} == {right}:\n        print({name})"
    derivation = (
        f"The left side is linear in {name}, so {equation} has one solution. It is {name} = {answer}."
    )
    return WorkedSolution(derivation, program)


def _count_primes(answer: str, metadata: Mapping[str, Any]) -> WorkedSolution:
    start, end = metadata["start"], metadata["end"]
    program = (
        f"numbers = range({start}, {end} + 1)\n"
        "print(sum(n > 1 and all(n % d for d in range(2, int(n**0.5) + 1)) for n in numbers))"
    )
    derivation = (
        f"A number above 1 is prime if nothing from 2 to its square root divides it. "
        f"Testing every number from {start} to {end} finds {answer} primes."
    )
    return WorkedSolution(derivation, program)


def _gsm_symbolic(answer: str, metadata: Mapping[str, Any]) -> WorkedSolution | None:
    return word_problem(str(metadata["answer_cot"]), answer)


WORKED_FAMILIES: dict[str, Callable[[str, Mapping[str, Any]], WorkedSolution | None]] = {
    "chain_sum": _chain_sum,
    "gcd": _gcd,
    "lcm": _lcm,
    "simple_equations": _simple_equations,
    "count_primes": _count_primes,
    "gsm_symbolic": _gsm_symbolic,
}
"""Family (name of the ``reasoning_gym`` dataset) -> builder of its worked solutions."""


_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w]|\.\d)")


def perturb(worked: WorkedSolution, rng: Random) -> WorkedSolution:
    """A plausible wrong version: a slip in one number or sign, or the wrong function.

    The program prints something else than ``worked``'s, and the derivation ends in what it prints. Programs
    beyond the small language of the families above are not run here; theirs gets an off-by-one result.

    Args:
        worked: a right solution.
        rng: decides which slip; the same state gives the same result.
    """
    right = run_whitelisted(worked.program)
    if right is not None:
        slips = _slips(worked.program)
        rng.shuffle(slips)
        for program in slips:
            wrong = run_whitelisted(program)
            if wrong and wrong != right:
                return WorkedSolution(_end_in(worked.derivation, right, wrong.split()[-1]), program)
    offset = rng.choice((-2, -1, 1, 2))
    numbers = _NUMBER.findall(worked.derivation)
    derivation = worked.derivation + " So the answer is 0."
    if numbers:
        value = float(numbers[-1]) + offset
        derivation = _end_in(worked.derivation, numbers[-1], f"{value:g}" if value % 1 else str(int(value)))
    return WorkedSolution(derivation, _offset_result(worked.program, offset))


def _slips(program: str) -> list[str]:
    """Programs that differ in one number (off by a little), one sign, or gcd/lcm."""
    slips = []
    for match in re.finditer(r"(?<![\w.])\d+(?![\w.])", program):
        number = int(match.group())
        for other in {number - 1, number + 1, number + 10, number - 10, number * 2} - {number}:
            if other >= 0:
                slips.append(program[: match.start()] + str(other) + program[match.end() :])
    for match in re.finditer(r" [+*-] ", program):
        swapped = {" + ": " - ", " - ": " + ", " * ": " + "}[match.group()]
        slips.append(program[: match.start()] + swapped + program[match.end() :])
    if "gcd" in program or "lcm" in program:
        slips.append(re.sub(r"gcd|lcm", lambda m: "lcm" if m.group() == "gcd" else "gcd", program))
    return slips


def _end_in(derivation: str, right: str, wrong: str) -> str:
    """Replace the last mention of ``right``; say ``wrong`` at the end if there is none."""
    mentions = [m for m in _NUMBER.finditer(derivation) if m.group() == right.strip()]
    if not mentions:
        return f"{derivation} So the answer is {wrong}."
    last = mentions[-1]
    return derivation[: last.start()] + wrong + derivation[last.end() :]


def _offset_result(program: str, offset: int) -> str:
    """Add ``offset`` to the argument of the last ``print``, or to nothing that can be found: print it."""
    try:
        tree = ast.parse(program)
    except SyntaxError:
        return f"print({offset})"
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    if not calls or not calls[-1].args:
        return f"{program}\nprint({offset})"
    argument = calls[-1].args[0]
    sign = ast.Add() if offset > 0 else ast.Sub()
    calls[-1].args[0] = ast.BinOp(argument, sign, ast.Constant(abs(offset)))
    return ast.unparse(ast.fix_missing_locations(tree))
