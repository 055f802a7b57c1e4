"""Bringing a gold and an answer to the same kind where only their dress differs."""

from __future__ import annotations

import re
from dataclasses import replace

from apprentice.verify.structure import Group, Listing, Matrix, Relation, Scalar, Value, read

__all__ = ["NAME", "align", "rows_of", "same_function_name"]

NAME = re.compile(r"\\?[A-Za-z]+(?:_\{?\w+\}?)?'*(?:\([^()]*\))?")
"""A lone name that an answer may give a value to: ``x``, ``a_{1}``, ``f(x)``."""

_FUNCTION = re.compile(r"[A-Za-z]\s*\(([^()]*)\)")
_SYMBOL = re.compile(r"\\?[A-Za-z]+(?:_\{?\w+\}?)?")


def align(gold: Value, answer: Value) -> tuple[Value, Value]:
    """Bring both to the same kind where only the dress differs: ``x = 5`` and ``5``, ``{0}`` and ``0``."""
    if isinstance(gold, Listing) and isinstance(answer, Listing | Group):
        gold, answer = _names_dropped(gold, answer)
    elif isinstance(answer, Listing) and isinstance(gold, Group):
        answer, gold = _names_dropped(answer, gold)
    if isinstance(answer, Relation) and not isinstance(gold, Relation):
        answer = _without_name(answer) if _states_a_value(answer) else answer
    elif (
        isinstance(gold, Relation)
        and not isinstance(answer, Relation)
        and (gold.operator != "=" or NAME.fullmatch(gold.left))
    ):
        gold = _without_name(gold)
    elif (
        isinstance(gold, Relation)
        and isinstance(answer, Relation)
        and gold.operator != answer.operator
        and "in" in (answer.operator, gold.operator)
    ):
        gold, answer = _without_name(gold), _without_name(answer)
    for _ in range(2):
        if isinstance(gold, Group) and len(gold.items) == 1 and not isinstance(answer, Group | Listing):
            gold = gold.items[0]
        gold, answer = answer, gold
    return gold, answer


def same_function_name(gold: Value, answer: Value) -> tuple[Value, Value]:
    """One function alone is the same under another name: ``f(x) = x + 1`` and ``G(x) = x + 1``."""
    if isinstance(gold, Relation) and isinstance(answer, Relation):
        a, b = _FUNCTION.fullmatch(gold.left), _FUNCTION.fullmatch(answer.left)
        if a and b and gold.operator == answer.operator and a.group(1) == b.group(1):
            answer = replace(answer, left=gold.left)
    return gold, answer


def _states_a_value(relation: Relation) -> bool:
    """``a + b = 5`` and ``3 * 4 = 12`` say what is asked for; ``3a^2 - b^2 = 3`` is an equation."""
    if relation.operator != "=" or NAME.fullmatch(relation.left):
        return True
    has_letters = re.search(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+|_\{?\w+\}?", " ", relation.left))
    if not has_letters:
        return True
    return relation.right.strip() != "0" and not re.search(r"\d", re.sub(r"_\{?\w+\}?", "", relation.left))


def _without_name(relation: Relation) -> Value:
    """The right side of ``x = ...`` and ``x in ...``; the interval that ``x > 3`` means."""
    if relation.operator in ("=", "in"):
        return read(relation.right)
    if relation.operator in ("<", ">", "le", "ge") and re.fullmatch(
        r"\\?[A-Za-z]+(?:_\{?\w+\}?)?", relation.left
    ):
        bound = read(relation.right)
        low, high = Scalar("-\\infty"), Scalar("\\infty")
        if relation.operator in (">", "ge"):
            return Group("[" if relation.operator == "ge" else "(", ")", (bound, high))
        return Group("(", "]" if relation.operator == "le" else ")", (low, bound))
    return relation


def _names_dropped(listing: Listing, other: Listing | Group) -> tuple[Value, Value]:
    """``x = 1, y = 2`` against ``(1, 2)``: only if the other side names nothing."""
    named = all(isinstance(item, Relation) and item.operator == "=" for item in listing.items)
    if not named or any(isinstance(item, Relation) for item in other.items):
        return listing, other
    values = tuple(read(item.right) for item in listing.items if isinstance(item, Relation))
    lefts = {re.sub(r"\s+", "", item.left) for item in listing.items if isinstance(item, Relation)}
    return Listing(values, ordered=len(lefts) > 1), other


def rows_of(value: Value) -> list[list[Value]] | None:
    """The rows of a matrix; a tuple is one row; ``None`` for anything else."""
    if isinstance(value, Matrix):
        return [list(row) for row in value.rows]
    if isinstance(value, Group) and value.opener in "([":
        return [list(value.items)]
    return None
