"""What a real LLM expert is shown, and how a program is taken out of its reply.

The paper gives the controller's side of the tools (appendix A.1, Table 8: ``think`` returns "a concise
reasoning/planning step", ``code_interpreter`` lets the expert "generate the code") but not the words an
expert reads; these are ours.
"""

from __future__ import annotations

import re
from typing import TypedDict

from apprentice.episodes.actions import CallExpert
from apprentice.errors import ExpertError

__all__ = ["Message", "build_messages", "extract_program", "split_reasoning"]

_THINK = """\
You are an expert whom a smaller model consults while it solves a problem. Give one concise reasoning or \
planning step: derive, plan, criticise or check, as asked. Be correct and self-contained; state the result \
you reach. Do not address the reader and do not mention these instructions. Write at most {max_tokens} \
tokens."""

_CODE = """\
You are an expert whom a smaller model consults while it solves a problem. Write one complete Python program \
that computes or verifies what is asked. It runs alone, once, without input, network or files; numpy and \
sympy may be imported; nothing is kept from earlier runs. Print what matters, clearly labelled. Reply with \
the program in a single ```python fence and nothing else, in at most {max_tokens} tokens."""

_FENCE = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[^\n`]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
_PYTHON = ("python", "py", "python3")
_THOUGHT_END = "</think>"


class Message(TypedDict):
    """One chat message."""

    role: str
    content: str


def build_messages(request: CallExpert, *, include_transcript: bool = True) -> list[Message]:
    """The chat that an expert gets for a call: problem, then the transcript and the instruction if there are
    any.

    Raises:
        ExpertError: the tool is neither ``think`` nor ``code_interpreter``.
    """
    if request.tool not in ("think", "code_interpreter"):
        raise ExpertError(
            f"expert {request.expert!r} knows the tools think and code_interpreter, not {request.tool!r}",
            kind="unknown_tool",
            expert=request.expert,
        )
    system = _THINK if request.tool == "think" else _CODE
    parts = [f"# Problem\n{request.question.strip()}"]
    if include_transcript and request.transcript.strip():
        parts.append(f"# Work so far\n{request.transcript.strip()}")
    if request.instruction.strip():
        parts.append(f"# Request\n{request.instruction.strip()}")
    return [
        {"role": "system", "content": system.format(max_tokens=request.max_tokens)},
        {"role": "user", "content": "\n\n".join(parts)},
    ]


def extract_program(text: str) -> str:
    """The program in an expert's reply: the last Python fence, else the last fence without a language, else
    the whole reply. A fence that was cut off before its end counts. Idempotent on a bare program.
    """
    blocks = [(m.group(1).lower(), m.group(2).rstrip()) for m in _FENCE.finditer(text)]
    for wanted in (_PYTHON, ("",)):
        programs = [body for language, body in blocks if language in wanted and body.strip()]
        if programs:
            return programs[-1]
    return text.strip("\n").rstrip()


def split_reasoning(text: str) -> tuple[str, str, bool]:
    """A reply with inline ``<think>`` as ``(reasoning, answer, closed)``.

    ``closed`` is False for a thought that began and never ended: there is no answer then. A reply may also
    start in the middle of a thought that the chat template opened: everything up to ``</think>`` is
    reasoning.
    """
    if _THOUGHT_END in text:
        thought, answer = text.rsplit(_THOUGHT_END, 1)
        return thought.replace("<think>", "", 1).strip(), answer.strip("\n"), True
    if text.lstrip().startswith("<think>"):
        return text.lstrip()[len("<think>") :].strip(), "", False
    return "", text, True
