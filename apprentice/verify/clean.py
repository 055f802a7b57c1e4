"""The surface of an answer: one spelling for what LaTeX and Unicode can write in many ways.

Nothing here changes what an answer means; each rule is listed in docs/verification.md.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

__all__ = ["brackets_match", "clean", "split_top", "strip_delimiters"]

_UNICODE = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ",
    "÷": r"\div ", "π": r"\pi ", "∞": r"\infty ", "°": r"^\circ ", "²": "^2", "³": "^3", "⁴": "^4", "⁵": "^5",
    "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "±": r"\pm ",
    "∓": r"\mp ", "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}",
    "¾": r"\frac{3}{4}", "⅛": r"\frac{1}{8}", "∅": r"\emptyset ", "…": r"\ldots ", "⟨": r"\langle ",
    "⟩": r"\rangle ", "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}",
    "⁄": "/", "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "δ": r"\delta ", "ε": r"\epsilon ",
    "θ": r"\theta ", "λ": r"\lambda ", "μ": r"\mu ", "ρ": r"\rho ", "σ": r"\sigma ", "τ": r"\tau ",
    "φ": r"\phi ", "ω": r"\omega ", "Δ": r"\Delta ", "Ω": r"\Omega ", "’": "'", "′": "'", "“": '"', "”": '"',
    "→": r"\to ", "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "，": ",", "：": ":",
}  # fmt: skip
_ROOT = re.compile(r"√\s*(\d+|[A-Za-z]|(?=\())")

_COMMANDS: list[tuple[re.Pattern[str], str]] = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"\\(?:left|right|middle)\s*\.", " "),
        (r"\\(?:left|right|middle|[bB]igg?[lrm]?)(?![A-Za-z])\s*", ""),
        (r"\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits)(?![A-Za-z])", " "),
        (r"\{,\}|,\s*\\!\s*", ","),
        (r"(?<!\\)\\!", ""),
        (r"(?<!\\)\\[,;:>]|(?<!\\)\\ (?=.)|(?<!\\)\\$|~", " "),
        (r"\\(?:quad|qquad|thinspace|enspace|hfill)(?![A-Za-z])", " "),
        (r"\\(?:h|v)?space\*?\{[^{}]*\}|\\(?:phantom|hphantom)\{[^{}]*\}", " "),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\[dt]binom(?![A-Za-z])", r"\\binom"),
        (r"\\leq?(?:slant|q)?(?![A-Za-z])", r"\\le "),
        (r"\\geq?(?:slant|q)?(?![A-Za-z])", r"\\ge "),
        (r"\\(?:neq?|not\s*=)(?![A-Za-z])", r"\\ne "),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"<=", r"\\le "),
        (r">=", r"\\ge "),
        (r"!=", r"\\ne "),
        (r"\\(?:dots|cdots|dotsc|dotsb|dotso|hdots|dotsm)(?![A-Za-z])|\.\.\.", r"\\ldots "),
        (r"\\(?:lvert|rvert|vert)(?![A-Za-z])", "|"),
        (r"\\(?:lbrace)(?![A-Za-z])", r"\\{"),
        (r"\\(?:rbrace)(?![A-Za-z])", r"\\}"),
        (r"\\lbrack(?![A-Za-z])", "["),
        (r"\\rbrack(?![A-Za-z])", "]"),
        (r"\\(?:empty|varnothing)(?![A-Za-z])", r"\\emptyset"),
        (r"\\(?:rightarrow|longrightarrow|mapsto|implies|Rightarrow)(?![A-Za-z])", r"\\to "),
        (r"\\(?:mathbb|Bbb)\s*([A-Z])", r"\\mathbb{\1}"),
        (r"\\(?:mathbb|Bbb)\s*\{([A-Z])\}", r"\\mathbb{\1}"),
        (r"\\(?:degree|degrees|deg)(?![A-Za-z])", r"^\\circ "),
        (r"\^\s*\{\s*\\circ\s*\}", r"^\\circ "),
        (r"\\operatorname\*?\s*\{\s*((?:arc)?(?:sin|cos|tan)|cot|sec|csc|ln|log|exp|gcd|lcm|max|min)\s*\}",
         r"\\\1 "),
        (r"\\(?:math(?:rm|bf|it|sf|cal|normal)|boldsymbol|bm|vec|rm|bf|it)\s*\{\s*([A-Za-z])\s*\}",
         r"\1 "),
        (r"\\(?:[mh]box|text(?:rm|bf|it|sf|tt|normal)|math(?:rm|bf|it|sf)|operatorname)\s*\{", r"\\text{"),
    ]
]  # fmt: skip


@lru_cache(maxsize=4096)
def clean(text: str) -> str:
    """One spelling of an answer: without delimiters, spacing commands, font changes and a final full stop."""
    for old, new in _UNICODE.items():
        if old in text:
            text = text.replace(old, new)
    text = _ROOT.sub(lambda m: rf"\sqrt{{{m.group(1)}}}" if m.group(1) else r"\sqrt", text)
    text = unicodedata.normalize("NFC", text).replace("\u00a0", " ").replace("\u202f", " ")
    text = re.sub(r"\*\*(.+?)\*\*", r"\1", text)  # Markdown bold
    text = strip_delimiters(text)
    if "\\" in text or "..." in text or "=" in text or "~" in text or "{" in text:
        for pattern, replacement in _COMMANDS:
            text = pattern.sub(replacement, text)
    text = re.sub(r"\s+", " ", text).strip()
    text = re.sub(r"(?<![\d./^_])(\d+) (\d+)\s?/\s?(\d+)(?![\d/.])", r"\1\\frac{\2}{\3}", text)  # 1 1/4
    text = re.sub(r"(?<=\d)\s*([ap])\.?\s?m\b\.?", r"\\text{ \1m}", text, flags=re.IGNORECASE)  # 4:40 p.m.
    while True:
        bare = _unwrap(text.rstrip(" .;,"))
        if bare == text or (text.endswith("\\") and not bare):
            return bare
        text = bare


def strip_delimiters(text: str) -> str:
    r"""Remove ``$``, ``\(``, ``\[``; keep an escaped dollar as the word ``\dollar``."""
    text = text.replace(r"\$", r"\dollar ")
    text = re.sub(r"\\\\\[[^\]]*\]", r"\\\\ ", text)  # a matrix row break with a length
    return re.sub(r"(?<!\\)\\[()\[\]]", " ", text.replace("$", " "))


def _unwrap(text: str) -> str:
    r"""Remove one outer ``{...}``, ``\boxed{...}`` or ``\text{...}`` that holds mathematics only."""
    while True:
        match = re.match(r"(?:\\boxed|\\fbox|\\displaystyle)?\s*\{", text)
        if match and text.endswith("}") and not text.endswith("\\}"):
            inside = text[match.end() : -1]
            if brackets_match(inside):
                text = inside.strip()
                continue
        match = re.fullmatch(r"\\text\s*\{([^{}]*)\}", text)
        if match and re.fullmatch(r"[-\d.,/ ]+", match.group(1)):
            text = match.group(1).strip()
            continue
        return text


def brackets_match(text: str) -> bool:
    """Whether plain braces are balanced and never close before they open."""
    level = 0
    for match in re.finditer(r"\\[{}]|[{}]", text):
        level += {"{": 1, "}": -1}.get(match.group(), 0)
        if level < 0:
            return False
    return level == 0


_OPEN = {"(": 1, "[": 1, "{": 1, "\\{": 1, "\\langle": 1, "\\lfloor": 1, "\\lceil": 1, "\\begin": 1}
_CLOSE = {")", "]", "}", "\\}", "\\rangle", "\\rfloor", "\\rceil", "\\end"}
_PART = re.compile(r"\\[A-Za-z]+|\\.|.", re.DOTALL)


def split_top(text: str, separators: re.Pattern[str]) -> list[tuple[str, str]]:
    """Split outside all brackets.

    Returns:
        (separator before the part, part) pairs; the first separator is empty.
    """
    parts, level, start, before = [], 0, 0, ""
    position = 0
    while position < len(text):
        if level <= 0:
            match = separators.match(text, position)
            if match and match.end() > position:
                parts.append((before, text[start:position]))
                before, start = match.group().strip(), match.end()
                position = match.end()
                continue
        found = _PART.match(text, position)
        assert found is not None
        token = found.group()
        level += (token in _OPEN) - (token in _CLOSE)
        position = found.end()
    parts.append((before, text[start:]))
    return parts
