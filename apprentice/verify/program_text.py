"""Which part of a response is its program.

* Only text after the last finished thinking counts; in unfinished thinking there is no program.
* The last closed fence that is labelled as Python is the program; where none is, the last closed fence
  without a label. Fences with other labels (output, C++) are never programs.
* A fence that is not closed holds no program: the response was cut off in the middle of it.
* Text without a fence holds no program.
"""

from __future__ import annotations

import re

from apprentice.verify.extract import after_thinking

__all__ = ["extract_program"]

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})[ \t]*([^\s`]*)[^\n`]*$", re.MULTILINE)
_PYTHON = frozenset({"python", "py", "python3"})


def extract_program(response: str) -> tuple[str | None, str]:
    """The program of ``response``, or None; and how it was found, or why not."""
    text = after_thinking(response)
    if text is None:
        return None, "unfinished_thinking"
    found: dict[str, str] = {}
    position = 0
    while (opening := _FENCE.search(text, position)) is not None:
        mark = opening.group(1)
        closing = re.compile(rf"^ {{0,3}}{mark[0]}{{{len(mark)},}}[ \t\r]*$", re.MULTILINE).search(
            text, opening.end()
        )
        if closing is None:
            # Cut off in a program: what came before it was not meant as the answer.
            return None, "unfinished_fence"
        label = opening.group(2).lower()
        kind = "python" if label in _PYTHON else label
        found[kind] = text[opening.end() + 1 : closing.start()]
        position = closing.end()
    for kind in ("python", ""):
        if found.get(kind, "").strip():
            return found[kind], "fence"
    return None, "no_program"
