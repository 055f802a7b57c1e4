"""What the controller is asked (RIVET, Tables 7 and 10), as messages for the chat template.

Three kinds of prompt, each in two wordings (``protocol.instructions``):

==================  ===========================================  =====================================
kind                ``paper``                                    ``compact``
==================  ===========================================  =====================================
collaborative       Table 7: native tools, instructions, problem one line of rules, then the problem
without experts     the lines of Table 7 that need no expert     the same line without experts
problem             Table 10's bare problem prompt               the problem and the answer format
==================  ===========================================  =====================================

The ``compact`` wording is for small models and short contexts: it costs a few dozen tokens instead of about
a thousand, says what the tools are in the user message and passes no native tool definitions. The protocol
is the same. A model that never saw it must be taught it first (the warm-up).

The paper prints its listings with typographic quotes and without line breaks; here backticks and
apostrophes are ASCII and the line breaks are those that its list and heading marks imply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from apprentice.config.schema import ExpertConfig
from apprentice.episodes.tools import tool_schemas

__all__ = ["Instructions", "Prompt", "collaborative_prompt", "problem_prompt", "question_of"]

Instructions = Literal["paper", "compact"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """Messages (``role`` and ``content``) and native tool definitions (``None``: no tools block)."""

    messages: tuple[dict[str, str], ...]
    tools: tuple[dict[str, Any], ...] | None = None


_PROBLEM = """\
Solve the following math problem step by step. The last line of your response should be exactly of the form \
Answer: \\boxed{answer}, where answer is the answer to the problem.

<PROBLEM>

Remember to put your final answer on its own line using exactly: Answer: \\boxed{answer}."""

_FORMAT = """\
Use the tool-call JSON format shown in the system Tools section.
The final line must be exactly:
Answer: \\boxed{answer}

# Problem
"""

_COLLABORATIVE = """\
You are a tool-using math controller. The external expert tools are available to improve correctness. \
Use them actively but efficiently:
- For non-trivial problems, prefer at least one useful expert/tool step when it can improve correctness.
- Use `think` for planning, derivation, critique, or deciding the next step. Use `code_interpreter` when the \
next useful step is computation, symbolic manipulation, case checking, or verification.
- For multi-step or uncertain problems, use alternating tool evidence and reasoning such as \
`think -> code_interpreter -> think`, then finish once the answer is clear.
- Keep controller reasoning concise. Use expert/tool evidence to avoid long self-derivations.
- After receiving expert/tool evidence, do not repeat a full derivation. Summarize only the key evidence and \
finish with the final boxed answer once confident.
- When calling `code_interpreter` with an external expert model, set `code` to an empty string and put the \
request in `instruction`. Use `model="self"` only for simple direct code execution or small fixes.
- Do not add extra tool calls after the answer is already determined.
The final line must be exactly:
Answer: \\boxed{answer}

Available strong expert models:
<EXPERTS>

"""

# Not in the paper, which names the variant ("training without experts") but not its prompt: Table 7 without
# the lines that speak of experts.
_WITHOUT_EXPERTS = """\
You are a tool-using math controller. A Python tool is available to improve correctness. \
Use it actively but efficiently:
- Use `code_interpreter` with `model="self"` when the next useful step is computation, symbolic \
manipulation, case checking, or verification.
- After receiving tool evidence, do not repeat a full derivation. Summarize only the key evidence and \
finish with the final boxed answer once confident.
- Do not add extra tool calls after the answer is already determined.
The final line must be exactly:
Answer: \\boxed{answer}

"""

_COMPACT = """\
Tools: think(model, instruction), code_interpreter(model, instruction, code). Models: <EXPERTS>; \
model self runs your own code. End with: Answer: \\boxed{answer}

<PROBLEM>"""

_COMPACT_WITHOUT_EXPERTS = """\
Tool: code_interpreter(model, instruction, code); model self runs your code. End with: Answer: \\boxed{answer}

<PROBLEM>"""

_COMPACT_PROBLEM = """\
<PROBLEM>

End with: Answer: \\boxed{answer}"""


# Learning to Ask, F.1: "the code prompt requires a complete Python program as the final response".
_PROGRAM = """\
Solve the following programming problem. Your final response must be one complete Python program in a single \
code block that starts with ```python. Where the problem gives the head of a function or starter code, the \
program defines that function or class with the same name and arguments, without calling it. Otherwise it \
reads its input from standard input and prints its answer to standard output.

<PROBLEM>

Remember to end with the complete Python program in one ```python code block."""

_COMPACT_PROGRAM = """\
<PROBLEM>

End with a complete Python program in one ```python code block."""


def problem_prompt(question: str, instructions: Instructions = "paper", *, code: bool = False) -> Prompt:
    """The bare problem prompt, without tools: Table 10's input, used by ``base`` and ``internalized``.

    ``code``: the answer is a program, judged by tests.
    """
    paper, compact = (_PROGRAM, _COMPACT_PROGRAM) if code else (_PROBLEM, _COMPACT_PROBLEM)
    template = paper if instructions == "paper" else compact
    return _user(template.replace("<PROBLEM>", question))


def collaborative_prompt(
    question: str, experts: Sequence[ExpertConfig], instructions: Instructions = "paper"
) -> Prompt:
    """The controller's prompt with tools (Tables 7 and 8); without experts, the Python tool alone.

    Args:
        question: the problem, inserted as it is.
        experts: experts that may be named, in the order of the recipe; may be empty.
        instructions: wording, see the module.
    """
    # The question goes in last, so that text in it that looks like a placeholder stays text.
    if instructions == "compact":
        template = _COMPACT if experts else _COMPACT_WITHOUT_EXPERTS
        names = ", ".join(expert.name for expert in experts)
        return _user(template.replace("<EXPERTS>", names).replace("<PROBLEM>", question))
    names = "\n".join(f"- {expert.name}" for expert in experts)
    head = _COLLABORATIVE.replace("<EXPERTS>", names) if experts else _WITHOUT_EXPERTS
    text = head + _FORMAT + _PROBLEM.replace("<PROBLEM>", question)
    return _user(text, tuple(tool_schemas(experts)))


def question_of(content: str, experts: Sequence[ExpertConfig], instructions: Instructions) -> str | None:
    """The question in a user message that :func:`collaborative_prompt` wrote; None for any other message."""
    marker = "\0"
    head, tail = collaborative_prompt(marker, experts, instructions).messages[0]["content"].split(marker)
    if not (content.startswith(head) and content.endswith(tail) and len(content) >= len(head) + len(tail)):
        return None
    return content[len(head) : len(content) - len(tail)]


def _user(content: str, tools: tuple[dict[str, Any], ...] | None = None) -> Prompt:
    return Prompt(({"role": "user", "content": content},), tools)
