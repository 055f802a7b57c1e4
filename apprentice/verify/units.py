"""Units, money, degrees, percentages, ordinals and number bases that stand with a number."""

from __future__ import annotations

import re

__all__ = ["same_unit", "split_unit"]

_ALIASES = {
    "cm": "centimeter", "mm": "millimeter", "km": "kilometer", "m": "meter", "metre": "meter", "ft": "foot",
    "feet": "foot", "in": "inch", "inches": "inch", "yd": "yard", "mi": "mile", "s": "second",
    "sec": "second", "min": "minute", "mins": "minute", "h": "hour", "hr": "hour", "hrs": "hour",
    "kg": "kilogram", "g": "gram", "gm": "gram", "mg": "milligram", "lb": "pound", "lbs": "pound",
    "oz": "ounce", "l": "liter", "litre": "liter", "ml": "milliliter", "mph": "mile per hour",
    "kmh": "kilometer per hour", "degree": "degree", "deg": "degree", "usd": "dollar", "dollar": "dollar",
    "cents": "cent", "sq": "square", "rad": "radian", "pct": "percent", "centimetre": "centimeter",
    "kilometre": "kilometer", "millimetre": "millimeter", "j": "joule", "n": "newton", "w": "watt",
    "v": "volt", "pa": "pascal", "hz": "hertz", "k": "kelvin", "c": "celsius", "f": "fahrenheit",
}  # fmt: skip
_KNOWN = {*_ALIASES, *_ALIASES.values(), *(f"{u}s" for u in _ALIASES.values()), "per", "square", "cubic"}
_CURRENCY = {"\\dollar": "dollar", "€": "euro", "£": "pound sterling", "¥": "yen", "₹": "rupee"}

_TEXT_UNIT = re.compile(r"\s*\\text\s*\{([^{}]*)\}\s*(?:\^\s*\{?\s*(-?\d)\s*\}?)?\s*$")
_WORD_UNIT = re.compile(
    r"^(.*[\d)}])\s*((?:(?:[A-Za-z]{2,}|/\s?[A-Za-z]+|per)[.\s]*)+)(?:\^\s*\{?(\d)\}?)?\s*$"
)
_DEGREES = re.compile(r"\s*\^\s*\{?\s*\\circ\s*\}?\s*(?:\\text\s*\{\s*([CF])?\s*\}|([CF]))?\s*$")
_ORDINAL = re.compile(r"^(-?\d+)\s*(?:\^\s*\{?\s*)?(?:\\text\s*\{\s*)?(?:st|nd|rd|th)(?:\s*\})?(?:\s*\})?$")
_BASE = re.compile(r"^(-?[0-9A-Z]+)\s*_\s*(?:\{\s*(?:\\text\{[^{}]*\})?\s*(\d+)\s*\}|(\d+))$")
_BASE_WORDS = re.compile(
    r"^(-?[0-9A-Z]+)\s*(?:\\text\s*\{\s*(?:in\s+)?base[\s-]*\}\s*(\d+)|(?:in\s+)?base[\s-]*(\d+))$"
)
_PERCENT = re.compile(r"\s*(?:\\%|%|\\text\s*\{\s*(?:\\?%|percent)\s*\}|\bpercent)\s*$")
_FUNCTION_WORDS = {
    "sin",
    "cos",
    "tan",
    "ln",
    "log",
    "exp",
    "pi",
    "mod",
    "and",
    "or",
    "if",
    "otherwise",
    "where",
}


def split_unit(text: str) -> tuple[str, str, str]:
    """(the bare expression, unit or ``""``, number base or ``""``); ``%`` is the unit ``percent``."""
    text = text.strip()
    match = _ORDINAL.match(text)
    if match:
        return match.group(1), "", ""
    match = _BASE.match(text) or _BASE_WORDS.match(text)
    if match and _digits_of(match.group(1), base := match.group(2) or match.group(3)):
        return match.group(1), "", base
    units: list[str] = []
    for symbol, name in _CURRENCY.items():
        if symbol in text:
            text, units = text.replace(symbol, " ").strip(), [name]
    while True:
        match = _PERCENT.search(text)
        if match and match.start() > 0:
            text, units = text[: match.start()].strip(), ["percent", *units]
            continue
        match = _DEGREES.search(text)
        if match and match.start() > 0:
            scale = match.group(1) or match.group(2) or ""
            text, units = text[: match.start()].strip(), [("degree " + scale.lower()).strip(), *units]
            continue
        match = _TEXT_UNIT.search(text)
        if match and match.start() > 0 and match.group(1).strip().lower() not in _FUNCTION_WORDS:
            # A lone exponent belongs to the unit: 864 \text{ inches}^2.
            text, units = text[: match.start()].strip(), [match.group(1) + (match.group(2) or ""), *units]
            continue
        match = _WORD_UNIT.match(text)
        if match and _is_unit(match.group(2), glued=not text[match.end(1)].isspace()):
            text, units = match.group(1).strip(), [match.group(2) + (match.group(3) or ""), *units]
            continue
        return text, _unit_name(" ".join(units)), ""


def _digits_of(numeral: str, base: str) -> bool:
    """Whether ``numeral`` is written in ``base``: 40_9 is, F_2 and x_1 are names."""
    try:
        int(numeral, int(base))
    except ValueError:
        return False
    return numeral.lstrip("-")[:1].isdigit() or int(base) > 10


def _is_unit(words: str, glued: bool) -> bool:
    """Bare words after a number: known units, or (after a space) words too long to be a product."""
    found = re.findall(r"[a-z]+", words.lower())
    if set(found) & _FUNCTION_WORDS:
        return False
    return all(word in _KNOWN or (len(word) >= 4 and word.isalpha() and not glued) for word in found)


def _unit_name(text: str) -> str:
    """Words of a unit in one spelling: singular, aliases resolved, ``square x`` and ``x^2`` alike."""
    text = re.sub(r"\bper\b", "/", text.lower().replace("^", ""))
    words = []
    for word in re.findall(r"[a-z]+|\d|/", text):
        if word in ("of", "the", "an", "a") or (word == "1"):
            continue
        if word in _ALIASES:
            word = _ALIASES[word]
        elif len(word) > 3 and word.endswith("s") and not word.endswith("ss"):
            word = word[:-1]
            word = _ALIASES.get(word, word)
        words.append({"square": "2", "squared": "2", "cubic": "3", "cubed": "3", "per": "/"}.get(word, word))
    powers = [w for w in words if w.isdigit()]
    return " ".join([w for w in words if not w.isdigit()] + powers)


def same_unit(gold: str, answer: str) -> bool:
    """Units agree, or one side has none."""
    return not gold or not answer or gold == answer
