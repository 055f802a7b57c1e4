"""Equivalent ways of writing a gold, made without the verifier's own code."""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["equivalent_rewrites"]

_FRACTION = re.compile(r"(-?)\\[dt]?frac\s*\{(\d+)\}\s*\{(\d+)\}")
_SCIENTIFIC = re.compile(r"(\d+(?:\.\d+)?)e(-?\d+)")
_NOT_ARITHMETIC = re.compile(
    r"\\(?:text|math|begin|ldots|dots|cdots|c[au]p|in\b|pm|mbox|oplus|otimes|cong|equiv|sub|mid|times|rtimes)"
    r"|\\(?:ge|le(?!ft)|ne)|="
)
_DOLLAR = re.compile(r"(?<!\\)\$")
_ARITHMETIC = re.compile(r"[-+*/^_{}()\\.\da-zA-Z ]+")


def equivalent_rewrites(gold: str) -> Iterator[tuple[str, str]]:
    """(kind, text) pairs; each text means exactly what ``gold`` means."""
    yield "spaces", f"  {gold} "
    yield "full stop", f"{gold.strip()}."
    inner = gold.strip()
    if inner.startswith("$") and inner.endswith("$") and inner.count("$") == 2:
        inner = inner[1:-1].strip()
    if _DOLLAR.search(inner):
        yield from _of_several_parts(inner)
        return
    yield "inline delimiters", rf"\({inner}\)" if "\\(" not in inner else inner
    yield "display delimiters", rf"\[ {inner} \]" if "\\(" not in inner else inner
    yield "bold", f"**{inner}**"
    yield "dollars", f"${inner}$" if "\\(" not in inner else inner
    if "frac" in inner:
        yield "dfrac", re.sub(r"\\[dt]?frac", r"\\dfrac", inner)
        yield "tfrac", re.sub(r"\\[dt]?frac", r"\\tfrac", inner)
    if re.fullmatch(r"-?\d+", inner):
        yield from _of_integer(inner)
    fraction = _FRACTION.fullmatch(inner)
    if fraction:
        yield from _of_fraction(fraction.group(1), int(fraction.group(2)), int(fraction.group(3)))
    scientific = _SCIENTIFIC.fullmatch(inner)
    if scientific:
        yield "times ten to", rf"{scientific.group(1)} \times 10^{{{scientific.group(2)}}}"
    items = [item.strip() for item in inner.split(",")]
    if len(items) > 1 and re.fullmatch(r"[-\d, ]+", inner) and not re.search(r"\d,\d{3}(?!\d)", inner):
        yield "reversed", ", ".join(reversed(items))
        yield "and", ", ".join(items[:-1]) + r" \text{ and } " + items[-1]
    if _is_algebra(inner):
        yield "named", f"x_0 = {inner}"
        yield "times one", rf"1 \cdot \left( {inner} \right)"
        yield "plus and minus", rf"\left( {inner} \right) + 5 - 5"


def _of_several_parts(text: str) -> Iterator[tuple[str, str]]:
    """Golds such as ``$8$, $4$``; where a dollar sign is missing nobody can tell what is mathematics."""
    if "\n" not in text:
        yield "bold", f"**{text}**"
    yield "line break", f"{text}\n"
    if len(_DOLLAR.findall(text)) % 2 == 0:
        yield "parentheses", re.sub(r"(?<!\\)\$((?:[^$]|\\\$)*?)(?<!\\)\$", r"\\(\1\\)", text)
        yield "wide", re.sub(r" ", "  ", text)


def _of_integer(text: str) -> Iterator[tuple[str, str]]:
    number = int(text)
    yield "decimal point", f"{text}.0"
    yield "unit", rf"{text} \text{{ units}}"
    yield "sum", f"{number - 7} + 7"
    yield "fraction", rf"\frac{{{2 * number}}}{{2}}"
    if number >= 0:
        yield "zero padding", f"0{text}"
    if abs(number) >= 1000:
        yield "commas", f"{number:,}"
        yield "braced commas", f"{number:,}".replace(",", "{,}")
        yield "thin commas", f"{number:,}".replace(",", r",\!")


def _of_fraction(sign: str, top: int, bottom: int) -> Iterator[tuple[str, str]]:
    yield "slash", f"{sign}{top}/{bottom}"
    yield "times three", rf"{sign}\frac{{{3 * top}}}{{{3 * bottom}}}"
    yield "sign inside", rf"\frac{{{sign}{top}}}{{{bottom}}}"
    yield "decimal", f"{sign}{top / bottom:.12f}"
    if top > bottom and top % bottom:
        yield "mixed", rf"{sign}{top // bottom}\frac{{{top % bottom}}}{{{bottom}}}"


def _is_algebra(text: str) -> bool:
    """One expression of letters, digits and arithmetic: not a word, number with exponent, base or choice."""
    if (
        not _ARITHMETIC.fullmatch(text)
        or _NOT_ARITHMETIC.search(text)
        or _SCIENTIFIC.fullmatch(text)
        or "{{" in text
        or "2^{2001}" in text
    ):
        return False
    if re.fullmatch(r"[A-Z]|[A-Za-z]{2,}[A-Za-z .]*|[\d.]+|-?\w+_\{?\d+\}?", text):
        return False
    if re.search(r"[A-Za-z]{3,}", re.sub(r"\\[A-Za-z]+", " ", text)):
        return False
    if "frac" not in text and re.search(r"\\(?:infty|circ|div|hat)|\\%|^\\|\.$", text):
        return False
    return text.count("(") == text.count(")") and text.count("{") == text.count("}")
