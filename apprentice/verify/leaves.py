"""Comparisons of single numbers and equations: literals, number bases, proportional equations."""

from __future__ import annotations

from fractions import Fraction

from apprentice.verify.evaluate import equal_values, rational_value
from apprentice.verify.expression import Node, parse_expression, symbols_of
from apprentice.verify.structure import Relation, Scalar

__all__ = ["constant_ratio", "difference", "literals_equal", "same_in_base"]


def difference(relation: Relation) -> Node:
    """Left side minus right side.

    Raises:
        ParseError: a side is not in the language of :mod:`apprentice.verify.expression`.
    """
    return ("add", parse_expression(relation.left), ("neg", parse_expression(relation.right)))


def constant_ratio(a: Node, b: Node) -> Fraction | None:
    """c with a = c b, if the two are proportional by a rational number other than 0."""
    names = sorted(symbols_of(a) | symbols_of(b))
    if not names:
        return None
    for shift in range(8):
        point = {name: ("num", Fraction(7 + 3 * shift + 5 * i, 11)) for i, name in enumerate(names)}
        x, y = rational_value(_substitute(a, point)), rational_value(_substitute(b, point))
        if x and y:
            c = x / y
            return c if equal_values(a, ("mul", ("num", c), b)) else None
    return None


def _substitute(node: Node, point: dict[str, Node]) -> Node:
    if node[0] == "sym":
        return point[node[1]]
    return (node[0], *(_substitute(x, point) if isinstance(x, tuple) else x for x in node[1:]))


def literals_equal(gold: str, answer: str) -> bool:
    """Two numbers written out: equal, or both decimal and one is the other rounded to 6 or more digits."""
    a, b = Fraction(gold.rstrip(".")), Fraction(answer.rstrip("."))
    if a == b:
        return True
    if "." not in gold or "." not in answer:
        return False
    short, long = sorted((gold, answer), key=lambda s: len(s.split(".")[1]))
    places = len(short.split(".")[1])
    digits = len(short.replace(".", "").lstrip("+-0"))
    unit = Fraction(1, 10**places)
    return digits >= 6 and len(long.split(".")[1]) > places and abs(a - b) <= unit / 2


def same_in_base(gold: Scalar, answer: Scalar) -> bool:
    """The same digits in the same base (one side may leave it out), or equal values in two given bases."""
    a, b = gold.latex.lstrip("0") or "0", answer.latex.lstrip("0") or "0"
    if not gold.base or not answer.base or gold.base == answer.base:
        return a == b
    try:
        return int(a, int(gold.base)) == int(b, int(answer.base))
    except ValueError:
        return False
