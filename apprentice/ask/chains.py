"""Chain sums taken apart: what the scripts of the warm-up reason and ask about."""

from __future__ import annotations

import re
from dataclasses import dataclass

from apprentice.data.problem import Problem

__all__ = ["Chain", "chain_of"]

_PROGRAM = re.compile(r"print\((-?\d+(?: [+-] -?\d+)+)\)")


@dataclass(frozen=True, slots=True)
class Chain:
    """``parts`` are a number, then operator and number in turn: ``("4", "+", "9", "-", "3")``."""

    parts: tuple[str, ...]

    def __len__(self) -> int:
        """Steps that it takes."""
        return len(self.parts) // 2

    def value(self, steps: int) -> int:
        """The total after so many steps."""
        total = int(self.parts[0])
        for operator, term in zip(
            self.parts[1 : 2 * steps : 2], self.parts[2 : 2 * steps + 1 : 2], strict=True
        ):
            total += int(term) if operator == "+" else -int(term)
        return total

    def step(self, number: int) -> str:
        """Step ``number``, from 0: ``13 - 3 = 10``."""
        operator, term = self.parts[2 * number + 1 : 2 * number + 3]
        return f"{self.value(number)} {operator} {term} = {self.value(number + 1)}"

    def remaining(self, steps: int) -> str:
        """The expression that is left after so many steps: ``13 - 3``."""
        return " ".join([str(self.value(steps)), *self.parts[2 * steps + 1 :]])

    def done(self, reasoning: str) -> int:
        """How many steps, from the first on, ``reasoning`` has a line for."""
        lines = {line.strip() for line in reasoning.splitlines()}
        return next((n for n in range(len(self)) if self.step(n) not in lines), len(self))


def chain_of(problem: Problem) -> Chain | None:
    """The chain of a procedural problem of family ``chain_sum``; None for any other problem."""
    match = _PROGRAM.fullmatch(problem.worked.program) if problem.worked else None
    return Chain(tuple(match[1].split(" "))) if match else None
