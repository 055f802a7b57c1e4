"""What kind of thing an answer is: a scalar, a list, a tuple or interval, a matrix, a relation, words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from apprentice.verify.clean import clean, split_top
from apprentice.verify.units import split_unit

__all__ = [
    "Group", "Listing", "Matrix", "Ratio", "Relation", "Scalar", "SetUnion", "Value", "Words", "is_prose",
    "read", "split_condition",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scalar:
    """A mathematical expression, and the unit that stood with it."""

    latex: str
    unit: str = ""
    base: str = ""


@dataclass(frozen=True, slots=True)
class Words:
    """Words, lower-case, without punctuation."""

    text: str


@dataclass(frozen=True, slots=True)
class Group:
    """Items in brackets: ``(`` and ``[`` are ordered (a tuple or an interval), ``{`` is a set."""

    opener: str
    closer: str
    items: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """Items without brackets: a multiset, or a sequence if it has an ellipsis."""

    items: tuple[Value, ...]
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class SetUnion:
    """A union of intervals or sets."""

    items: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of values."""

    rows: tuple[tuple[Value, ...], ...]


@dataclass(frozen=True, slots=True)
class Relation:
    """``left operator right``; operator is one of ``= < > le ge ne in to``."""

    left: str
    operator: str
    right: str


@dataclass(frozen=True, slots=True)
class Ratio:
    """Parts separated by colons: a ratio or a time of day."""

    parts: tuple[Value, ...]


Value = Scalar | Words | Group | Listing | SetUnion | Matrix | Relation | Ratio

_COMMA = re.compile(r"[,;]|(?:\\text\{\s*(?:and|or)\s*\}|\b(?:and|or)\b)")
_CUP = re.compile(r"\\cup(?![A-Za-z])|\\text\{\s*U\s*\}")
_COLON = re.compile(r":")
_RELATION = re.compile(r"=|<|>|\\(?:le|ge|ne|in|to|subset|subseteq|equiv|approx|sim|mid)(?![A-Za-z])|\\ne")
_MATRIX = re.compile(
    r"\s*\\begin\{([pbBv]?matrix|array|smallmatrix)\}\s*(?:\{[clr|\s]*\})?(.*)\\end\{\1\}\s*", re.DOTALL
)
_ROW = re.compile(r"\\\\")
_CELL = re.compile(r"&")
_BRACKETS = {"(": ")]", "[": ")]", "\\{": ("\\}",), "\\langle": ("\\rangle",)}
_CONDITION = re.compile(
    r",?\s*(?:\\text\{\s*,?\s*(?:where|for|with|such that)\b[^{}]*\}.*|\b(?:where|for|with|such that)\b.*)$"
)
_THOUSANDS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:,\s?\d{3})+(?![\d])(?!,\d)")
_SYMBOL = re.compile(r"\\?[A-Za-z]+(?:_\{?\w+\}?)?")
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]+")
_COMMAND = re.compile(r"\\[A-Za-z]+")


@lru_cache(maxsize=4096)
def read(text: str, thousands: bool = True) -> Value:
    """The structure of an answer (before :func:`~apprentice.verify.clean.clean`).

    Args:
        text: the answer.
        thousands: read ``1,234`` outside brackets as one number rather than as a list.
    """
    return _read(clean(text), thousands)


def _read(text: str, thousands: bool) -> Value:
    text = text.strip()
    words = _words(text)
    if words is not None:
        return words
    if thousands:
        text = _join_thousands(text)
    text, _ = split_condition(text)
    items = [(s, p.strip()) for s, p in split_top(text, _COMMA)]
    items = [(s, p) for s, p in items if p]
    if len(items) > 1:
        return _listing([part for _, part in items], thousands)
    if len(items) == 1:
        text = items[0][1]
    matrix = _MATRIX.fullmatch(text)
    if matrix and "\\begin" not in matrix.group(2):
        return _matrix(matrix.group(2), thousands)
    parts = split_top(text, _CUP)
    if len(parts) > 1:
        return SetUnion(tuple(_read(part, thousands) for _, part in parts))
    group = _bracketed(text)
    if group is not None:
        return group
    if re.search(r"\\pm(?![A-Za-z])", text):
        return Listing(tuple(_read(part, thousands) for part in _plus_minus(text)))
    relation = _relation(text)
    if relation is not None:
        return relation
    parts = split_top(text, _COLON)
    if len(parts) > 1 and all(re.search(r"[\d\w]", part) for _, part in parts):
        return Ratio(tuple(_read(part, thousands) for _, part in parts))
    core, unit, base = split_unit(text)
    if unit and (inner := _bracketed(core)) is not None:
        return inner
    return Scalar(core, unit, base)


def _words(text: str) -> Words | None:
    r"""Words only: ``\text{Evelyn}``, ``east``, ``no solutions``. Not single letters, not ``\sin``."""
    plain = re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text)
    if "\\" in plain or re.search(r"[\d=+*/^_<>{}\[\]|&]", plain):
        return None
    found = _WORD.findall(plain)
    if not set(found) - {"and", "or"}:
        return None  # "A and B" is a list
    letters = re.sub(r"[^A-Za-z]", "", plain)
    if not found or len("".join(found)) + plain.count("'") + plain.count("-") < len(letters):
        # Single letters stand among the words: "2 and a" is no text, "a dog" is.
        if not found or not re.fullmatch(r"[A-Za-z'\s().,:;!?\"-]+", plain):
            return None
        if any(len(w) < 3 for w in found) and "\\text" not in text:
            return None
    if "," in plain and "\\text" not in text and len(found) == plain.count(",") + 1:
        return None  # a list of words
    if (
        len(found) == 1
        and "\\text" not in text
        and len(found[0]) < 3
        and found[0].lower() not in ("no", "up")
    ):
        return None  # "ab" is a product
    if re.search(r"\(.*,.*\)", plain):
        return None
    return Words(re.sub(r"[^a-z0-9' -]", "", re.sub(r"[\s-]+", " ", plain.lower())).strip())


def is_prose(text: str) -> bool:
    """Whether a gold needs a reader: running words beside or instead of mathematics."""
    cleaned = clean(text)
    value = _words(cleaned)
    if value is not None:
        return len(value.text.split()) > 3
    core = re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", cleaned)
    core = _COMMAND.sub(" ", re.sub(r"\\begin\{[a-z]+\}|\\end\{[a-z]+\}", " ", core))
    core = re.sub(r"(?<=[A-Za-z])_\{?[A-Za-z]+\}?", " ", core)
    words = [w for w in _WORD.findall(core) if len(w) >= 3 and not w.isupper() and w not in ("and", "where")]
    _, unit, _ = split_unit(cleaned)
    return len(words) >= 2 and not unit


def _join_thousands(text: str) -> str:
    """``1,234`` outside brackets is one number; inside, a comma separates."""
    pieces, level, last = [], 0, 0
    for match in re.finditer(r"\\[A-Za-z]+|\\.|[()\[\]{}]|" + _THOUSANDS.pattern, text):
        token = match.group()
        if token[0].isdigit():
            if level == 0:
                pieces += [
                    text[last : match.start()],
                    re.sub(r"[,\s]", "", token) if ", " not in token else token,
                ]
                last = match.end()
        elif token in "([{" or token == "\\{":
            level += 1
        elif token in ")]}" or token == "\\}":
            level -= 1
    return "".join(pieces) + text[last:]


def split_condition(text: str) -> tuple[str, str]:
    """(clean text, its closing where-, for- or with-clause or ``""``); ``if`` makes a case instead."""
    match = _CONDITION.search(text)
    if not match or match.start() == 0:
        return text, ""
    return text[: match.start()].strip(), match.group().strip(" ,")


def _listing(parts: list[str], thousands: bool) -> Value:
    values: list[Value] = []
    for part in parts:
        value = _read(part, thousands)
        values.extend(value.items if isinstance(value, Listing) else [value])
    first = values[0]
    if (
        isinstance(first, Relation)
        and first.operator == "="
        and not any(isinstance(v, Relation) for v in values[1:])
    ):
        # "n = 2, 5, 13": the name stands for all.
        values[0] = _read(first.right, thousands)
    ordered = any(isinstance(v, Scalar) and "\\ldots" in v.latex for v in values)
    return Listing(tuple(values), ordered)


def _plus_minus(text: str) -> tuple[str, str]:
    r"""Both values of an expression with ``\pm``: all upper signs, and all lower signs."""
    upper = re.sub(r"\\mp(?![A-Za-z])", "-", re.sub(r"\\pm(?![A-Za-z])", "+", text))
    lower = re.sub(r"\\mp(?![A-Za-z])", "+", re.sub(r"\\pm(?![A-Za-z])", "-", text))
    return upper, lower


def _matrix(body: str, thousands: bool) -> Matrix:
    rows = [row for _, row in split_top(body, _ROW) if row.strip()]
    return Matrix(tuple(tuple(_read(cell, thousands) for _, cell in split_top(row, _CELL)) for row in rows))


def _bracketed(text: str) -> Value | None:
    """A group that spans the whole text."""
    match = re.match(r"\\\{|\\langle(?![A-Za-z])|[(\[]", text)
    if match is None:
        return None
    closers = _BRACKETS[match.group()]
    closer = next(
        (c for c in closers if text.endswith(c) and not (len(c) == 1 and text.endswith("\\" + c))), None
    )
    if closer is None or not _spans(text, match.end(), len(text) - len(closer)):
        return None
    inside = text[match.end() : len(text) - len(closer)]
    opener = "(" if match.group() == "\\langle" else match.group()[-1]
    closing = ")" if closer == "\\rangle" else closer[-1]
    parts = [p.strip() for _, p in split_top(inside, re.compile(r"[,;]"))]
    if opener == "{":
        if len(parts) == 1 and re.search(r":|\\mid|\||\\ldots", inside):
            return None  # a set given by a condition
        items: list[Value] = []
        for part in parts:
            if part:
                value = _read(part, False)
                items.extend(value.items if isinstance(value, Listing) else [value])
        return Group("{", "}", tuple(items))
    if len(parts) < 2:
        return None if not inside.strip() or (opener, closing) != ("(", ")") else _parenthesised(inside)
    return Group(opener, closing, tuple(_read(part, False) for part in parts))


def _parenthesised(inside: str) -> Value | None:
    """One thing in parentheses: the choice ``(B)``, a vector, or just an expression."""
    value = _read(inside, False)
    return value


def _spans(text: str, start: int, end: int) -> bool:
    """Whether the opening bracket's partner is the last one: not ``(1,2) + (3,4)``."""
    level = 1
    for match in re.finditer(r"\\[A-Za-z]+|\\.|[()\[\]]", text[start:end]):
        token = match.group()
        if token in ("(", "[", "\\{", "\\langle"):
            level += 1
        elif token in (")", "]", "\\}", "\\rangle"):
            level -= 1
        if level == 0:
            return False
    return level == 1


_NAMES = {"=": "=", "<": "<", ">": ">", "\\le": "le", "\\ge": "ge", "\\ne": "ne", "\\in": "in", "\\to": "to"}


def _relation(text: str) -> Value | None:
    parts = [(s, p.strip()) for s, p in split_top(text, _RELATION)]
    if len(parts) < 2 or any(s not in _NAMES for s, _ in parts[1:]):
        return None
    operators = [_NAMES[s] for s, _ in parts[1:]]
    sides = [p for _, p in parts]
    if not all(sides):
        return None
    if set(operators) == {"="}:
        if len(sides) > 2 and all(
            _SYMBOL.fullmatch(side) for side in sides[:-1]
        ):  # x = y = 1 gives two values
            return Listing(tuple(Relation(side, "=", sides[-1]) for side in sides[:-1]))
        return Relation(sides[0], "=", sides[-1])  # a chain: x = 1 + 1 = 2
    if len(operators) == 1:
        return Relation(sides[0], operators[0], sides[1])
    if len(operators) == 2:
        low, middle, high = sides
        if set(operators) <= {"<", "le"}:
            return _interval(low, operators[0], middle, operators[1], high)
        if set(operators) <= {">", "ge"}:
            flipped = {">": "<", "ge": "le"}
            return _interval(high, flipped[operators[1]], middle, flipped[operators[0]], low)
    return None


def _interval(low: str, first: str, name: str, second: str, high: str) -> Value | None:
    """``a <= x < b`` is the interval; only for a lone symbol."""
    if not _SYMBOL.fullmatch(name):
        return None
    opener, closer = "[" if first == "le" else "(", "]" if second == "le" else ")"
    return Group(opener, closer, (_read(low, False), _read(high, False)))
