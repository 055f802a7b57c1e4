"""Arithmetic expressions in text: found, parsed and evaluated exactly.

Read are integers, decimals, thousands separators, ``+ - * /``, parentheses, ``× · ÷ − –``, ``x`` between
numbers and LaTeX's ``\\times \\cdot \\div``. What stands beside something that is not read (a variable, a
power, an unknown sign) is no expression: half of a formula is not what was asked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

__all__ = ["Expression", "Step", "evaluate", "find_expressions", "format_number"]

_MAX_NUMBERS, _MAX_DIGITS, _MAX_DEPTH = 100, 40, 20
_MAX_WORK = 20_000  # numbers and parentheses that are looked at in one text
_NUMBER = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?(?![\d,])|(?:0|[1-9]\d*)(?:\.\d+)?")
_SIGNS: dict[str, str | int | None] = {"×": "*", "·": "*", "⋅": "*", "∙": "*", "÷": "/", "−": "-", "–": "-"}
_LATEX = (
    (re.compile(r"\\(?:times|cdot)(?![a-zA-Z])"), "*"),
    (re.compile(r"\\div(?![a-zA-Z])"), "/"),
    (re.compile(r"\\(?:left|right)(?=[()])|\\[()\[\]]|\$"), ""),
)
# A count of lines or words is an instruction about the answer, not a task: "Reply with 5-7 lines".
_ITEM = re.compile(r"(?:^|\n)[ \t]*(?:[-*+]|\(?[\da-zA-Z]{1,2}\))$")  # the head of a list item
_EQUATION = re.compile(r"(?:[-+*/^(][ \t]*|\d)[a-zA-Z]+[ \t]*=$")  # "2x =": what follows is half of it
_COUNTED = re.compile(
    r"\s*(?:short |brief |full )?(?:lines?|words?|tokens?|sentences?|steps?(?! by)|characters?)\b", re.I
)


@dataclass(frozen=True, slots=True)
class Expression:
    """A number (no operator), or ``left operator right``."""

    value: Fraction | None = None
    operator: str = ""
    left: Expression | None = None
    right: Expression | None = None
    operators: int = 0
    """How many operators it has."""

    def __str__(self) -> str:
        if self.left is None or self.right is None:
            assert self.value is not None
            text = format_number(self.value)
            return f"({text})" if text.startswith("-") or "/" in text else text
        left, right = str(self.left), str(self.right)
        if self.operator in "*/" and self.left.operator in ("+", "-"):
            left = f"({left})"
        sums, products = self.right.operator in ("+", "-"), self.right.operator in ("*", "/")
        if (sums and self.operator != "+") or (products and self.operator in "*/"):
            right = f"({right})"
        return f"{left} {self.operator} {right}"


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of an evaluation: ``left operator right = result``, and what is left to do after it."""

    left: Fraction
    operator: str
    right: Fraction
    result: Fraction
    rest: Expression


def _operation(operator: str, left: Expression, right: Expression) -> Expression:
    return Expression(None, operator, left, right, left.operators + right.operators + 1)


def find_expressions(text: str) -> list[Expression]:
    """Every expression with at least one operator that ``text`` states, in order, each once."""
    text = _plain(text)
    found: dict[Expression, None] = {}
    at = work = 0
    while at < len(text) and work < _MAX_WORK:
        parsed = None
        if _may_start(text, at):
            parser = _Parser(text, at)
            parsed = parser.expression()
            work += parser.work
        if parsed is None:
            at += 1
            continue
        expression, end = parsed
        if expression.operators and _bounded(text, at, end):
            found[expression] = None
        at = max(end, at + 1)
    return list(found)


def evaluate(expression: Expression) -> tuple[Fraction, list[Step]]:
    """The value, and the operations that lead to it, left to right by precedence.

    Raises:
        ZeroDivisionError: it divides by zero.
    """
    steps: list[Step] = []
    while expression.operators:
        expression, left, operator, right, result = _reduce(expression)
        steps.append(Step(left, operator, right, result, expression))
    assert expression.value is not None
    return expression.value, steps


def format_number(value: Fraction) -> str:
    """An integer, a decimal where it has a short one, else a fraction."""
    if value.denominator == 1:
        return str(value.numerator)
    for digits in range(1, 7):
        scaled = value * 10**digits
        if scaled.denominator == 1:
            whole = f"{abs(scaled.numerator):0{digits + 1}d}"
            return f"{'-' if value < 0 else ''}{whole[:-digits]}.{whole[-digits:]}"
    return f"{value.numerator}/{value.denominator}"


def _reduce(node: Expression) -> tuple[Expression, Fraction, str, Fraction, Fraction]:
    """Carry out the first operation whose two sides are numbers."""
    assert node.left is not None and node.right is not None
    if node.left.operators:
        inner, *done = _reduce(node.left)
        return (_operation(node.operator, inner, node.right), *done)  # type: ignore[return-value]
    if node.right.operators:
        inner, *done = _reduce(node.right)
        return (_operation(node.operator, node.left, inner), *done)  # type: ignore[return-value]
    left, right = node.left.value, node.right.value
    assert left is not None and right is not None
    result = {
        "+": lambda: left + right,
        "-": lambda: left - right,
        "*": lambda: left * right,
        "/": lambda: left / right,
    }[node.operator]()
    return Expression(result), left, node.operator, right, result


def _plain(text: str) -> str:
    for pattern, sign in _LATEX:
        text = pattern.sub(sign, text)
    text = text.translate(str.maketrans(_SIGNS))
    text = re.sub(r"(?<![\d)])\*\*|\*\*(?![\d(-])", "", text)  # bold; a power stands between numbers
    return re.sub(r"(?<=\d)(\s*)[xX](\s*)(?=\d)", r"\1*\2", text)


def _may_start(text: str, at: int) -> bool:
    sign = text[at]
    if sign in "+-":  # a sign, not an operator or a bullet
        return text[at + 1 : at + 2].isdigit() or text[at + 1 : at + 2] == "("
    return sign.isdigit() or sign == "("


def _bounded(text: str, start: int, end: int) -> bool:
    """Whether it stands by itself, and is no part of something larger, no count and no name."""
    before, after = text[max(0, start - 80) : start].rstrip(" \t"), text[end : end + 80]
    if before and (before[-1] in "+-*/^_\\)" or before[-1].isdigit()) and not _ITEM.search(before):
        return False
    if _EQUATION.search(before):
        return False
    if start and (text[start - 1].isalnum() or text[start - 1] in "._,"):
        return False
    nearest = after.lstrip(" \t")
    if nearest[:1] and nearest[0] in "+-*/^_%!(":
        return False
    if after[:1].isalnum() or after[:1] in ("_", "\\"):
        return False
    return _COUNTED.match(after) is None


class _Parser:
    """Recursive descent from one position; the longest expression that parses."""

    def __init__(self, text: str, at: int) -> None:
        self._text, self._at, self._numbers, self.work = text, at, 0, 0

    def expression(self, depth: int = 0) -> tuple[Expression, int] | None:
        node = self._sum(depth)
        return None if node is None or self._numbers > _MAX_NUMBERS else (node, self._at)

    def _sum(self, depth: int) -> Expression | None:
        return self._chain("+-", self._product, depth)

    def _product(self, depth: int) -> Expression | None:
        return self._chain("*/", self._factor, depth)

    def _chain(self, operators: str, part: object, depth: int) -> Expression | None:
        assert callable(part)
        node: Expression | None = part(depth)
        while node is not None:
            before = self._at
            sign = self._sign(operators)
            right: Expression | None = part(depth) if sign else None
            if right is None:
                self._at = before
                return node
            node = _operation(sign, node, right)
        return None

    def _factor(self, depth: int) -> Expression | None:
        self._blanks()
        sign = self._text[self._at : self._at + 1]
        if sign in ("+", "-") and sign:
            self._at += 1
            inner = self._factor(depth + 1) if depth < _MAX_DEPTH else None
            if inner is None or sign == "+":
                return inner
            if inner.value is not None:
                return Expression(-inner.value)
            return _operation("-", Expression(Fraction(0)), inner)
        self.work += 1
        if sign == "(":
            self._at += 1
            node = self._sum(depth + 1) if depth < _MAX_DEPTH else None
            self._blanks()
            if node is None or self._text[self._at : self._at + 1] != ")":
                return None
            self._at += 1
            return node
        number = _NUMBER.match(self._text, self._at)
        if number is None or len(number[0]) > _MAX_DIGITS or self._numbers > _MAX_NUMBERS:
            return None
        self._at, self._numbers = number.end(), self._numbers + 1
        return Expression(Fraction(number[0].replace(",", "")))

    def _sign(self, operators: str) -> str:
        self._blanks()
        sign = self._text[self._at : self._at + 1]
        if sign and sign in operators:
            self._at += 1
            return sign
        return ""

    def _blanks(self) -> None:
        while self._text[self._at : self._at + 1] in (" ", "\t"):
            self._at += 1
