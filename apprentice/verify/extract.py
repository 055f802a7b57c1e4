r"""The one extractor: which part of a response is its final answer.

* Only text after the last finished thinking counts; in unfinished thinking there is no answer.
* ``strict``: the last ``\boxed{...}`` with balanced braces, wherever it stands.
* ``fallback``: that box, or an ``Answer:`` line (``The answer is ...``, bold or not) if it comes later or
  there is no box.

Linear in the length of the response, with no window of the tail: a megabyte of braces costs a fraction of
a second.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

__all__ = ["Extraction", "Mode", "extract_answer", "last_boxed"]

Mode = Literal["strict", "fallback"]


@dataclass(frozen=True, slots=True)
class Extraction:
    """Without an answer, ``how`` says why: ``unfinished_thinking``, ``empty_box`` or ``no_answer``."""

    answer: str | None
    how: str


_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])")
_BRACE = re.compile(r"\\[\\{}]|[{}]")
_MARK = re.compile(
    r"(?:\b(?:final\s+)?answer\b|\*\*(?:final\s+)?answer\*\*)\s*(?:\*\*)?\s*(?::|=|\bis\b\s*:?)\s*(?:\*\*(?=\s|$))?",
    re.IGNORECASE,
)
_MAX_MARK_LINE = 2000


def extract_answer(response: str, mode: Mode = "fallback") -> Extraction:
    """The final answer of ``response``, as it is written there."""
    text = _after_thinking(response)
    if text is None:
        return Extraction(None, "unfinished_thinking")
    box = last_boxed(text)
    if mode == "fallback":
        line = _answer_line(text, after=box[1] if box else -1)
        if line is not None:
            return Extraction(line, "answer_line")
    if box is None:
        return Extraction(None, "no_answer")
    return Extraction(box[0], "boxed") if box[0].strip() else Extraction(None, "empty_box")


def _after_thinking(response: str) -> str | None:
    opened, closed = response.rfind("<think>"), response.rfind("</think>")
    if opened > closed:
        return None
    return response if closed < 0 else response[closed + len("</think>") :]


def last_boxed(text: str) -> tuple[str, int] | None:
    r"""(content, position) of the last balanced ``\boxed{...}``; ``\boxed 5`` without braces counts too."""
    starts = [match.end() for match in _BOX.finditer(text)]
    if not starts:
        return None
    closing: dict[int, int] | None = None
    for start in reversed(starts):
        rest = re.compile(r"\s*").match(text, start)
        at = rest.end() if rest else start
        if at < len(text) and text[at] == "{":
            closing = _closing_braces(text, starts[0]) if closing is None else closing
            if at in closing:
                return text[at + 1 : closing[at]], start
        else:
            bare = re.compile(r"-?\d+(?:\.\d+)?|[A-Za-z](?![A-Za-z])").match(text, at)
            if bare and at > start - 1:
                return bare.group(), start
    return None


def _closing_braces(text: str, start: int) -> dict[int, int]:
    """Opening brace -> its closing brace, in one pass."""
    stack: list[int] = []
    partner: dict[int, int] = {}
    for match in _BRACE.finditer(text, start):
        if match.group() == "{":
            stack.append(match.start())
        elif match.group() == "}" and stack:
            partner[stack.pop()] = match.start()
    return partner


def _answer_line(text: str, after: int) -> str | None:
    """What follows the last ``Answer:`` that stands after position ``after``."""
    for match in reversed(list(_MARK.finditer(text, max(after, 0)))):
        end = text.find("\n", match.end())
        line = text[match.end() : end if end >= 0 else len(text)][:_MAX_MARK_LINE].strip()
        if not line:  # the answer stands on the next line
            following = text[match.end() : match.end() + _MAX_MARK_LINE].strip().split("\n", 1)
            line = following[0].strip() if following else ""
        answer = _from_line(line)
        if answer:
            return answer
    return None


def _from_line(line: str) -> str:
    """The answer within a line: its mathematics or bold part, else the line without a closing sentence."""
    bold = re.findall(r"\*\*(.+?)\*\*", line)
    if bold:
        line = bold[-1]
    elif line.endswith("**"):
        line = line[:-2]
    maths = re.fullmatch(r"[^$]*?(\$\$?[^$]+\$\$?)[^$]*", line) or re.fullmatch(r".*?(\\\(.+?\\\)).*", line)
    if maths and not re.search(r"\d", line.replace(maths.group(1), "")):
        line = maths.group(1)
    line = re.split(r"(?<=[\w)}$])\.\s+(?=[A-Z])", line, maxsplit=1)[0]
    return line.strip().strip("*").strip().rstrip(".")
