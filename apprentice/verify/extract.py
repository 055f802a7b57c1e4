r"""The one extractor: which part of a response is its final answer.

* Only text after the last finished thinking counts; in unfinished thinking there is no answer.
* ``strict``: the last ``\boxed{...}`` with balanced braces, wherever it stands.
* ``fallback``: that box, or an ``Answer:`` line (``The answer is ...``, bold or not) if it comes later or
  there is no box.

The whole response is searched, from its end: a long box keeps its opening wherever it stands, and a megabyte
of braces costs a few milliseconds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

__all__ = ["Extraction", "Mode", "after_thinking", "extract_answer", "last_boxed"]

Mode = Literal["strict", "fallback"]


@dataclass(frozen=True, slots=True)
class Extraction:
    """Without an answer, ``how`` says why: ``unfinished_thinking``, ``empty_box`` or ``no_answer``."""

    answer: str | None
    how: str


MAX_ANSWER_CHARS = 20_000
"""A longer box or line holds no answer; bounds the search, which otherwise sees the whole response."""

_MAX_NESTING = 200
_MAX_CANDIDATES = 64  # boxes, or Answer lines, that are looked at from the end
_BRACE = re.compile(r"\\[\\{}]|[{}]")
_BARE = re.compile(r"\s*(-?\d+(?:\.\d+)?|[A-Za-z](?![A-Za-z]))")
_MARK = re.compile(r"answer\b\s*(?:\*\*)?\s*(?::|=|\bis\b\s*:?)\s*(?:\*\*(?=\s|$))?", re.IGNORECASE)


def extract_answer(response: str, mode: Mode = "fallback") -> Extraction:
    """The final answer of ``response``, as it is written there."""
    text = after_thinking(response)
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


def after_thinking(response: str) -> str | None:
    """The response without its thinking; None where the last thinking is not finished."""
    opened, closed = response.rfind("<think>"), response.rfind("</think>")
    if opened > closed:
        return None
    return response if closed < 0 else response[closed + len("</think>") :]


def last_boxed(text: str) -> tuple[str, int] | None:
    r"""(content, position) of the last balanced ``\boxed{...}``; ``\boxed 5`` without braces counts too."""
    end = len(text)
    for _ in range(_MAX_CANDIDATES):
        start = max(text.rfind(r"\boxed", 0, end), text.rfind(r"\fbox", 0, end))
        if start < 0:
            return None
        end = start
        after = start + (6 if text.startswith(r"\boxed", start) else 5)
        at = after
        while at < len(text) and text[at].isspace() and at - after < 10:
            at += 1
        if text[at : at + 1] == "{":
            closing = _closing_brace(text, at)
            if closing is not None:
                return text[at + 1 : closing], start
        else:
            bare = _BARE.match(text, after)
            if bare and not text[after].isalpha():
                return bare.group(1), start
    return None


def _closing_brace(text: str, opening: int) -> int | None:
    level = 0
    for match in _BRACE.finditer(text, opening, opening + MAX_ANSWER_CHARS):
        token = match.group()
        level += (token == "{") - (token == "}")
        if level == 0:
            return match.start()
        if level > _MAX_NESTING:
            return None
    return None


def _answer_line(text: str, after: int) -> str | None:
    """What follows the last ``Answer:`` that stands after position ``after``."""
    lower, end = text.lower() if text.isascii() else _lower_ascii(text), len(text)
    for _ in range(_MAX_CANDIDATES):
        start = lower.rfind("answer", max(after, 0), end)
        if start < 0:
            return None
        end = start
        mark = _MARK.match(text, start)
        if mark is None or (start > 0 and (text[start - 1].isalnum() or text[start - 1] == "_")):
            continue
        line_end = text.find("\n", mark.end(), mark.end() + MAX_ANSWER_CHARS)
        line = text[mark.end() : line_end if line_end >= 0 else mark.end() + MAX_ANSWER_CHARS].strip()
        if not line:  # the answer stands on the next line
            following = text[mark.end() : mark.end() + MAX_ANSWER_CHARS].strip().split("\n", 1)
            line = following[0].strip() if following else ""
        answer = _from_line(line)
        if answer:
            return answer
    return None


def _lower_ascii(text: str) -> str:
    """Lower case without a change of length, which ``str.lower`` makes for some letters."""
    return text.translate(_LOWER)


_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


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
