"""Find the program in an expert's answer."""

from __future__ import annotations

import re
import textwrap
import warnings

from apprentice.episodes.parser import strip_code_fence

__all__ = ["extract_code"]

_TAGGED = re.compile(r"<python>(.*?)(?:</python>|\Z)", re.DOTALL)
_BEGINS = re.compile(r"^\s*(import \w|from [\w.]+ import |def \w+\(|print\()", re.MULTILINE)


def extract_code(answer: str) -> str | None:
    """The program that an expert's answer to a ``code_interpreter`` call contains, or None.

    The rule, in this order; several blocks of one kind are one program, in their order, and a block that was
    cut before its end counts as far as it goes:

    1. what stands between ``<python>`` and ``</python>`` (without a fence in it);
    2. what stands in code fences (:func:`apprentice.episodes.parser.strip_code_fence`: those marked as
       Python, else those without a mark);
    3. the whole answer, when it is valid Python by itself;
    4. the whole answer, when one of its lines begins as only a program's does (``import``, ``def``,
       ``print(``): a broken program is still one, and Python says what is wrong with it.

    Common indentation and blank lines around the program are removed. A blank program is none.
    """
    tagged = [match[1].strip("\n") for match in _TAGGED.finditer(answer)]
    source = "\n".join(tagged) if tagged else answer
    code = strip_code_fence(source)
    found = bool(tagged) or code != source
    code = textwrap.dedent(code.replace("\r\n", "\n")).strip("\n").rstrip()
    return code if code.strip() and (found or _is_python(code) or _BEGINS.search(code)) else None


def _is_python(text: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "invalid escape sequence" in an expert's text is not our warning
        try:
            compile(text, "<answer>", "exec", dont_inherit=True)
        # Null bytes, deep nesting and huge literals: whatever it is, it does not compile.
        except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
            return False
    return True
