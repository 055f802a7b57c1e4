"""Rules that other projects decide by, written anew from what their documentation and papers say.

They are references for a measurement and are used nowhere else. Each says whether a case's answer is right.
It may raise or hang, which is why :mod:`driver.bench.verification` runs them in a process of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from apprentice.verify.extract import last_boxed
from driver.bench.verification_cases import Case

__all__ = ["RULES"]


def _math_verify_alone(case: Case) -> bool:
    """``verify(parse(gold), parse(response))``, the gold between dollar signs as its documentation asks."""
    return _math_verify(case.gold, case.text())


def _verl_math(case: Case) -> bool:
    """Its rule for MATH: content of the last box, normalized as in the paper of MATH, compared as text."""
    box = last_boxed(case.text())
    return box is not None and _as_in_math(box[0]) == _as_in_math(case.gold)


def _verl_dapo(case: Case) -> bool:
    """Its rule for DAPO: the last ``Answer:`` line of the last 300 characters, normalized as in Minerva."""
    text = case.text("So we are done.\n\nAnswer: @")[-300:]
    lines = re.findall(r"(?i)answer\s*:\s*([^\n]+)", text)
    return bool(lines) and _as_in_minerva(lines[-1]) == _as_in_minerva(case.gold)


def _lighteval(case: Case) -> bool:
    """Its extractive match: the best-placed mathematics or number of the response, compared by sympy."""
    text = case.text()
    if re.fullmatch(r"\(?[A-Z]\)?", case.gold.strip("$ ")):  # multiple choice: a letter by itself
        letters = re.findall(r"(?i:answer)\W*(?i:is)?\W*\b([A-Z])\b", text) or re.findall(
            r"\b([A-Z])\b", text
        )
        return bool(letters) and letters[-1] == case.gold.strip("$ ()")
    found = _best_placed(text)
    return found is not None and _math_verify(case.gold, f"${found}$")


RULES: Mapping[str, Callable[[Case], bool]] = {
    "math-verify alone": _math_verify_alone,
    "verl's rule for MATH": _verl_math,
    "verl's rule for DAPO": _verl_dapo,
    "lighteval's extractive match": _lighteval,
}


def _math_verify(gold: str, response: str) -> bool:
    from math_verify import parse, verify

    delimited = re.search(r"(?<!\\)\$", gold) is not None
    return bool(verify(parse(gold if delimited else f"${gold}$"), parse(response)))


_LATEX = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.DOTALL)
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?%?")


def _best_placed(text: str) -> str | None:
    """After "final answer is", then the last box, then after "answer is", then the last anywhere."""
    final = re.findall(r"(?is)final answer is:?\s*(.+)", text)
    if final and (found := _last_mathematics(final[-1])):
        return found
    box = last_boxed(text)
    if box is not None:
        return box[0]
    answer = re.findall(r"(?is)answer\W*(?:is)?\W*(.+)", text)
    return (_last_mathematics(answer[-1]) if answer else None) or _last_mathematics(text)


def _last_mathematics(text: str) -> str | None:
    latex = [next(part for part in groups if part) for groups in _LATEX.findall(text)]
    if latex:
        box = last_boxed(latex[-1])
        return box[0] if box else latex[-1]
    numbers = _NUMBER.findall(text)
    return numbers[-1] if numbers else None


def _as_in_math(answer: str) -> str:
    """The normalization that the paper of MATH describes: spelling of fractions, roots, units and spaces."""
    text = answer.replace("\n", "").replace(r"\!", "").replace("\\\\", "\\")
    text = re.sub(r"\\[td]frac", r"\\frac", text)
    text = re.sub(r"\\(?:left|right)(?![a-z])", "", text)
    text = re.sub(r"\^\{?\\circ\}?", "", text).replace(r"\$", "")
    if text.count(r"\text{ ") == 1:  # a unit on the right
        text = text.split(r"\text{ ")[0]
    text = text.replace(r"\%", "").replace("%", "")
    text = re.sub(r"(^|[ {])\.", r"\g<1>0.", text)
    head, mark, tail = text.partition("=")
    if mark and "=" not in tail and len(head.strip()) <= 2:
        text = tail
    text = re.sub(r"\\sqrt\s*([^{\s\\])", r"\\sqrt{\1}", text).replace(" ", "")
    text = re.sub(
        r"\\frac(\d)(\d|\{)", lambda m: rf"\frac{{{m[1]}}}" + (m[2] if m[2] == "{" else f"{{{m[2]}}}"), text
    )
    text = re.sub(r"(\\frac\{[^{}]*\})(\d)", r"\1{\2}", text)
    if text == "0.5":
        return r"\frac{1}{2}"
    return re.sub(r"^(-?\d+)/(\d+)$", r"\\frac{\1}{\2}", text)


_UNITS = [
    "square", "ways", "integers", "dollars", "mph", "inches", "hours", "km", "units", "points", "feet",
    "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds", "meters", "meals", "edges", "students",
    "multiples",
]  # fmt: skip


def _as_in_minerva(answer: str) -> str:
    """The normalization of Minerva's appendix: what follows the last ``=``, without units and commands."""
    text = answer.rpartition("=")[2]
    text = re.sub(r"\b(?:an|a) ", "", text).replace(".$", "$").replace(r"\$", "").replace("\\ ", "")
    text = (
        text.replace("mbox", "text")
        .replace(r"\text{and}", ",")
        .replace(r"\text{ and }", ",")
        .replace(" ", "")
    )
    for word in _UNITS:
        text = text.replace(word, "")
    for command in ("!", "circ", "%"):
        text = (
            text.replace("^{\\" + command + "}", "").replace("^\\" + command, "").replace("\\" + command, "")
        )
    inner = re.search(r"\$(.+?)\$", text)
    text = inner[1] if inner else text
    text = re.sub(r"\\(?:text|textbf|overline|boxed)\{(.*?)\}", r"\1", text)
    text = (
        re.sub(r"\\?[dt]?frac([^{])(.)", r"frac{\1}{\2}", text)
        .replace(r"\dfrac", "frac")
        .replace(r"\frac", "frac")
    )
    text = re.sub(r"\\?sqrt([^{])", r"sqrt{\1}", text).replace(r"\sqrt", "sqrt").replace("$", "")
    bare = text.replace(",", "")
    return bare if bare.isdigit() else text.strip()
