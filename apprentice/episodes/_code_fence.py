"""Python without its Markdown. Private to :mod:`apprentice.episodes.parser`, which exports it."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["strip_code_fence"]

_FENCE: Final = re.compile(r"^ {0,3}(`{3,}|~{3,})[ \t]*([^\s`]*)[^\n`]*$", re.MULTILINE)
_PYTHON: Final = frozenset({"python", "py", "python3", "ipython", "ipython3", "pycon"})
_TRIPLE: Final = re.compile(r"\"{3}|'{3}")


def strip_code_fence(code: str) -> str:
    """Python without its Markdown: what stands between code fences, where there are any.

    The one rule for several blocks: those labelled as Python, else those without a label, joined by a line
    break in their order (one cell, as the answer was meant to be read). Without such a block, and without an
    opening fence at the start of a line outside of a triple-quoted string, the code is returned as it is, to
    the byte. A fence that is never closed runs to the end.
    """
    if "```" not in code and "~~~" not in code:
        return code
    blocks: list[tuple[str, str]] = []
    position = 0
    while (opening := _FENCE.search(code, position)) is not None:
        before = code[position : opening.start()]
        if len(_TRIPLE.findall(before)) % 2:  # inside of a triple-quoted string: part of a program
            return code
        fence, label = opening.group(1), opening.group(2).lower()
        begin = min(opening.end() + 1, len(code))
        closing = re.compile(rf"^ {{0,3}}{re.escape(fence)}[`~]*[ \t\r]*$", re.MULTILINE).search(code, begin)
        end, position = (len(code), len(code)) if closing is None else closing.span()
        blocks.append((label, code[begin:end]))
    for wanted in (_PYTHON, frozenset({""})):
        chosen = [text for label, text in blocks if label in wanted]
        if chosen:
            return "\n".join(text.removesuffix("\n").removesuffix("\r") for text in chosen)
    return code
