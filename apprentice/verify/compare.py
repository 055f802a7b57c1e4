"""Whether an answer equals a gold: the rules of docs/verification.md, gold first.

Pure and bounded in time; what these rules cannot read goes to ``fallback`` (math-verify, in the worker).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from apprentice.verify.align import NAME, align, rows_of, same_function_name
from apprentice.verify.clean import brackets_match, clean
from apprentice.verify.evaluate import DECIMAL_TOLERANCE, equal_values
from apprentice.verify.expression import ParseError, parse_expression, symbols_of
from apprentice.verify.leaves import constant_ratio, difference, literals_equal, same_in_base
from apprentice.verify.structure import (
    Group,
    Listing,
    Matrix,
    Ratio,
    Relation,
    Scalar,
    SetUnion,
    Value,
    Words,
    is_prose,
    read,
    split_condition,
)
from apprentice.verify.units import same_unit

__all__ = ["Comparison", "Fallback", "compare", "compare_quickly"]

Fallback = Callable[[str, str], bool | None]
"""(gold, answer) as clean LaTeX -> equal, or ``None`` if it cannot be read."""

_MAX_CHARS: Final = 4000
_MAX_ITEMS: Final = 64
_MAX_PASSED_ON: Final = 500  # characters: math-verify's parser is not linear
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)")
_PLAIN_NUMBER = re.compile(
    r"\s*\$?\s*([+-]?(?:\d+|[1-9]\d{0,2}(?:,\d{3})+)(?:\.\d+)?|[+-]?\.\d+)\.?\s*\$?\s*"
)
_LETTER = re.compile(r"\(?([A-Z])\)?")
_LETTER_FIRST = re.compile(
    r"(?:option|choice)?\s*\(?([A-Z])(?:\)|[.:])(?:\s.*)?|(?:option|choice)\s+\(?([A-Z])\)?\W?",
    re.DOTALL | re.IGNORECASE,
)
_TEXT_ONLY = re.compile(
    r"\\(?:cong|equiv|subseteq?|supseteq?|oplus|otimes|r?times\s*_|rtimes|mid|pmod|bmod|bigoplus)\b"
)
_EMPTY = {"empty set", "no solution", "no solutions", "none", "no real solution", "no real solutions"}
_SYNONYMS = {
    "infinity": "\\infty", "infinite": "\\infty", "dne": "does not exist", "half": "\\frac{1}{2}",
} | dict.fromkeys(_EMPTY, "\\emptyset")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Comparison:
    """``verdict``: correct, wrong, unparseable, or undecided (no fallback). ``reason``: the rule."""

    verdict: str
    reason: str


def compare_quickly(gold: str, answer: str) -> Comparison | None:
    """The fast exact path: the same text, or two plain numbers. ``None``: somebody else must look."""
    if len(answer) > max(4 * _MAX_CHARS, 8 * len(gold)):
        return Comparison("unparseable", f"longer than {4 * _MAX_CHARS} characters")
    if len(gold) > 200 or len(answer) > 200:
        return None
    a, b = _PLAIN_NUMBER.fullmatch(gold), _PLAIN_NUMBER.fullmatch(answer)
    if a and b:
        same = literals_equal(a.group(1).replace(",", ""), b.group(1).replace(",", ""))
        return Comparison("correct" if same else "wrong", "numbers")
    if gold.strip() and gold.strip() == answer.strip():
        return Comparison("correct", "same text")
    return None


def compare(gold: str, answer: str, fallback: Fallback | None = None) -> Comparison:
    """Compare an answer with a gold, both as they are written in their sources."""
    quick = compare_quickly(gold, answer)
    if quick is not None:
        return quick
    if not answer.strip():
        return Comparison("unparseable", "the answer is empty")
    gold_text, answer_text = clean(gold), clean(answer)
    if _squeeze(gold_text) == _squeeze(answer_text) and gold_text:
        return Comparison("correct", "same text")
    if len(answer_text) > _MAX_CHARS or len(gold_text) > _MAX_CHARS:
        return Comparison("unparseable", f"longer than {_MAX_CHARS} characters")
    if is_prose(gold):
        return Comparison("unparseable", "the gold is prose: no rule can check it")
    conditions = {_squeeze(split_condition(text)[1]) for text in (gold_text, answer_text)} - {""}
    if len(conditions) > 1:
        return Comparison("unparseable", "both state a condition, and not the same one")
    letter = _LETTER.fullmatch(_untext(gold_text))
    if letter:
        chosen = _chosen_letter(answer_text)
        if chosen is not None:
            return Comparison("correct" if chosen == letter.group(1) else "wrong", "choice")
    comparer = _Comparer(fallback)
    equal: bool | None = False
    for thousands in _readings(gold_text, answer_text):
        equal = comparer.values(*same_function_name(read(gold, thousands), read(answer, thousands)))
        if equal:
            break
    if equal:
        return Comparison("correct", comparer.reason or "equal")
    if equal is None:
        if comparer.passed_on and fallback is None:
            return Comparison("undecided", comparer.reason)
        return Comparison("unparseable", comparer.reason or "not read")
    return Comparison("wrong", comparer.reason or "not equal")


def _readings(gold: str, answer: str) -> tuple[bool, ...]:
    """``1,234`` may be a number or a list: both are tried where a text has it."""
    ambiguous = re.compile(r"\d,\d{3}(?!\d)")
    return (True, False) if ambiguous.search(gold) or ambiguous.search(answer) else (True,)


def _squeeze(text: str) -> str:
    return re.sub(r"\s+", "", text)


def _untext(text: str) -> str:
    match = re.fullmatch(r"\\text\s*\{\s*([^{}]*?)\s*\}", text)
    return match.group(1) if match else text


def _chosen_letter(answer: str) -> str | None:
    text = _untext(answer)
    match = _LETTER.fullmatch(text)
    if match:
        return match.group(1)
    text = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", answer).strip()
    match = _LETTER_FIRST.fullmatch(text)
    return (match.group(1) or match.group(2)).upper() if match else None


class _Comparer:
    def __init__(self, fallback: Fallback | None) -> None:
        self.fallback = fallback
        self.reason = ""
        self.passed_on = False

    def ask(self, gold: str, answer: str) -> bool | None:
        """Hand two expressions on to math-verify."""
        if max(len(gold), len(answer)) > _MAX_PASSED_ON or not brackets_match(answer):
            self.reason = "too long, or braces that do not match"
            return None
        self.passed_on = True
        return self.fallback(gold, answer) if self.fallback else None

    def texts(self, gold: str, answer: str) -> bool | None:
        return self.values(read(gold), read(answer))

    def values(self, gold: Value, answer: Value) -> bool | None:
        """Equal, different, or ``None``: not read."""
        gold, answer = align(gold, answer)
        if isinstance(gold, Words) or isinstance(answer, Words):
            return self.words(gold, answer)
        if isinstance(gold, Relation) and isinstance(answer, Relation):
            return self.relations(gold, answer)
        if isinstance(gold, Scalar) and isinstance(answer, Scalar):
            return self.scalars(gold, answer)
        if isinstance(gold, Matrix) or isinstance(answer, Matrix):
            return self.matrices(gold, answer)
        if isinstance(gold, Ratio) and isinstance(answer, Ratio):
            return self.ordered(gold.parts, answer.parts)
        if isinstance(gold, SetUnion) and isinstance(answer, SetUnion):
            return self.unordered(gold.items, answer.items)
        if isinstance(gold, Group | Listing) and isinstance(answer, Group | Listing):
            return self.collections(gold, answer)
        if isinstance(gold, Relation) or isinstance(answer, Relation):
            self.reason = "a relation against another kind of answer"
            return False
        self.reason = f"{type(answer).__name__.lower()} against {type(gold).__name__.lower()}"
        return False

    def words(self, gold: Value, answer: Value) -> bool | None:
        self.reason = "words"
        a = gold.text if isinstance(gold, Words) else _plain(gold)
        b = answer.text if isinstance(answer, Words) else _plain(answer)
        a, b = _SYNONYMS.get(a, a), _SYNONYMS.get(b, b)
        if a in ("yes", "no", "true", "false") and isinstance(answer, Words):
            return b.split()[:1] == [a]
        return a == b

    def ordered(self, gold: Sequence[Value], answer: Sequence[Value]) -> bool | None:
        if len(gold) != len(answer):
            self.reason = f"{len(answer)} items against {len(gold)}"
            return False
        verdicts = [self.values(a, b) for a, b in zip(gold[:_MAX_ITEMS], answer[:_MAX_ITEMS], strict=True)]
        return False if False in verdicts else (None if None in verdicts else True)

    def unordered(self, gold: Sequence[Value], answer: Sequence[Value]) -> bool | None:
        """Multisets: equality is an equivalence, so that greedy matching is right."""
        if len(gold) != len(answer) or len(gold) > _MAX_ITEMS:
            self.reason = f"{len(answer)} items against {len(gold)}"
            return False
        left, unread = list(answer), False
        for item in gold:
            for index, other in enumerate(left):
                verdict = self.values(item, other)
                unread |= verdict is None
                if verdict:
                    del left[index]
                    break
            else:
                self.reason = "an item of the gold is missing"
                return None if unread else False
        return True

    def collections(self, gold: Group | Listing, answer: Group | Listing) -> bool | None:
        a, b = gold.items, answer.items
        if isinstance(gold, Group) and isinstance(answer, Group):
            if (gold.opener == "{") != (answer.opener == "{"):
                self.reason = "a set against a tuple or interval"
                return False
            if gold.opener == "{":
                return self.unordered(self.distinct(a), self.distinct(b))
            if len(a) == 2 and (gold.opener, gold.closer) != (answer.opener, answer.closer):
                self.reason = "other brackets: an endpoint is open on one side and closed on the other"
                return False
            return self.ordered(a, b)
        group = gold if isinstance(gold, Group) else answer if isinstance(answer, Group) else None
        if group is not None and group.opener == "{":
            return self.unordered(self.distinct(a), self.distinct(b))
        if group is not None:
            return self.ordered(a, b)
        if any(isinstance(x, Listing) and x.ordered for x in (gold, answer)):
            return self.ordered(a, b)
        return self.unordered(a, b)

    def distinct(self, items: Sequence[Value]) -> list[Value]:
        kept: list[Value] = []
        for item in items[:_MAX_ITEMS]:
            if not any(self.values(item, other) for other in kept):
                kept.append(item)
        return kept

    def matrices(self, gold: Value, answer: Value) -> bool | None:
        a, b = rows_of(gold), rows_of(answer)
        if a is None or b is None:
            self.reason = "a matrix against another kind of answer"
            return False
        if not (isinstance(gold, Matrix) and isinstance(answer, Matrix)):
            a, b = (
                [[x for row in a for x in row]],
                [[x for row in b for x in row]],
            )  # a vector against a tuple
        if [len(row) for row in a] != [len(row) for row in b]:
            self.reason = "matrices of different shapes"
            return False
        return self.ordered([x for row in a for x in row], [x for row in b for x in row])

    def relations(self, gold: Relation, answer: Relation) -> bool | None:
        flip = {"<": ">", ">": "<", "le": "ge", "ge": "le", "=": "=", "ne": "ne"}
        if gold.operator not in flip or answer.operator not in flip:
            self.reason = "relations of different kinds"
            return gold.operator == answer.operator and all_true(
                self.texts(gold.left, answer.left), self.texts(gold.right, answer.right)
            )
        straight = gold.operator == answer.operator
        turned = gold.operator == flip[answer.operator]
        if straight and all_true(self.texts(gold.left, answer.left), self.texts(gold.right, answer.right)):
            return True
        if turned and all_true(self.texts(gold.left, answer.right), self.texts(gold.right, answer.left)):
            return True
        if not straight and not turned:
            self.reason = "relations of different kinds"
            return False
        return self.equations(gold, answer, straight, turned)

    def equations(self, gold: Relation, answer: Relation, straight: bool, turned: bool) -> bool | None:
        """l = r is the same as c (l - r) = 0 for a number c; for inequalities c must have the right sign."""
        try:
            a = difference(gold)
            b = difference(answer)
        except ParseError as error:
            self.reason = str(error)
            return False
        self.reason = "equations"
        if NAME.fullmatch(gold.left) and NAME.fullmatch(answer.left) and gold.operator == "=":
            return False  # y = f(x): only y = an equal f(x) will do, and that was tried
        ratio = constant_ratio(a, b)
        if ratio is None:
            return False
        if gold.operator in ("=", "ne"):
            return True
        return (ratio > 0 and straight) or (ratio < 0 and turned)

    def scalars(self, gold: Scalar, answer: Scalar) -> bool | None:
        if gold.base or answer.base:
            self.reason = "number bases"
            return same_in_base(gold, answer)
        if (
            "percent" in (gold.unit, answer.unit)
            or gold.unit.startswith("degree")
            or answer.unit.startswith("degree")
        ):
            return self.scaled(gold, answer)
        if not same_unit(gold.unit, answer.unit):
            self.reason = f"unit {answer.unit!r} against {gold.unit!r}"
            return False
        return self.expressions(gold.latex, answer.latex)

    def scaled(self, gold: Scalar, answer: Scalar) -> bool | None:
        """62.5% is 62.5 and 0.625; 30 degrees is 30 and pi/6."""
        if gold.unit == answer.unit:
            return self.expressions(gold.latex, answer.latex)
        if gold.unit and answer.unit and not {gold.unit, answer.unit} <= {"degree", "radian"}:
            self.reason = f"unit {answer.unit!r} against {gold.unit!r}"
            return False
        g, a = f"({gold.latex})", f"({answer.latex})"
        in_gold = bool(gold.unit) and gold.unit != "radian"
        factor = "/100" if "percent" in (gold.unit, answer.unit) else r"\cdot\pi/180"
        angle = factor != "/100"
        bare = answer.latex if in_gold else gold.latex
        if not (angle and "\\pi" in bare) and "radian" not in (gold.unit, answer.unit):
            plain = self.expressions(gold.latex, answer.latex)
            if plain or angle:
                return plain
        return self.expressions(g + factor if in_gold else g, a if in_gold else a + factor)

    def expressions(self, gold: str, answer: str) -> bool | None:
        if _squeeze(gold) == _squeeze(answer):
            return True
        if _NUMBER.fullmatch(gold) and _NUMBER.fullmatch(answer):
            self.reason = "numbers"
            return literals_equal(gold, answer)
        if "\\ldots" in gold or "\\ldots" in answer:
            self.reason = "an ellipsis is compared as text"
            return False
        if _TEXT_ONLY.search(gold) or _TEXT_ONLY.search(answer):
            self.reason = "groups, congruences and set relations are compared as text"
            return False
        try:
            g, a = parse_expression(gold), parse_expression(answer)
        except ParseError as error:
            self.reason = str(error)
            return self.ask(gold, answer)
        tolerance = DECIMAL_TOLERANCE if "." in gold or "." in answer else Fraction(0)
        if tolerance and g[0] == "num" and a[0] == "num" and "." in gold and "." in answer:
            tolerance = Fraction(0)
        equal = equal_values(g, a, tolerance)
        self.reason = "by value"
        if equal is None:
            self.reason = "too large or without a value"
            return self.ask(gold, answer) if symbols_of(g) | symbols_of(a) else False
        return equal


def all_true(*verdicts: bool | None) -> bool:
    """Whether every part was read and is equal."""
    return all(verdict is True for verdict in verdicts)


def _plain(value: Value) -> str:
    return _squeeze(value.latex) if isinstance(value, Scalar) else ""
