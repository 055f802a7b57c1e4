"""What reasoner and Qmaker are asked (Learning to Ask, appendix F), as messages for the chat template.

The paper describes its prompts for the reasoner (F.1) and does not print them, nor Qmaker's (F.2, F.6): these
are written to the description. Each has two wordings (``ask.instructions``):

=============  ====================================================  ==================================
prompt         ``paper``                                             ``compact``
=============  ====================================================  ==================================
reasoner       system prompt of its task, ``ask_advisor`` as native  one line of rules, then the
               tool (F.4), the problem as user message               problem
reasoner solo  the same without any word of the advisor, no tool     the same without the tool
Qmaker         system prompt; problem, reasoning and budget          the same in a few lines
=============  ====================================================  ==================================

Tasks: a math answer stands in ``\\boxed{}``; the response to a programming problem (one that carries
``code_tests``) is a complete Python program. ``compact`` is for small models and short contexts; a model that
never saw it must be taught it first (the warm-up).

What a problem or the reasoner says is put in last and never read as a placeholder.
"""

from __future__ import annotations

from typing import Literal

from apprentice.data.problem import Problem
from apprentice.episodes.prompts import Instructions, Prompt
from apprentice.episodes.tools import ask_advisor_schema

__all__ = ["Task", "ask_prompt", "qmaker_prompt", "solo_prompt", "task_of"]

Task = Literal["math", "code"]

_PAPER: dict[Task, tuple[str, str]] = {
    "math": (
        "You are a careful mathematical reasoner. Solve the problem step by step.",
        "When the reasoning is done, give the final answer on the last line, in exactly this form:\n"
        "Answer: \\boxed{answer}",
    ),
    "code": (
        "You are an expert Python programmer. Reason about the problem step by step: what is asked, which "
        "algorithm solves it within its limits, and which cases are special.",
        "Your final response must be one complete Python program that solves the problem, in a single code "
        "block:\n```python\n# the whole program\n```\nIt must read and write exactly as the problem "
        "says, and be complete: imports and all functions included.",
    ),
}
_PAPER_ADVISOR = (
    "You may ask an expert advisor with the tool `ask_advisor`, <TIMES> in all, at any point of your "
    "reasoning. Ask when you need an intermediate fact or a sub-result that you cannot reliably work out "
    "yourself, and do without it where you can. The advisor sees only your query. When its reply has come, "
    "check it, go on reasoning from where you were, and finish the task yourself."
)

_COMPACT: dict[Task, str] = {
    "math": "End with: Answer: \\boxed{answer}",
    "code": "End with a complete Python program in a code block.",
}

_QMAKER = """\
You write the questions that a solver sends to an expert advisor. You are shown the problem that the solver \
works on and its reasoning up to the point where it needs help. Find out what it is missing there, and write \
the request that gets it unstuck.

- The advisor sees only what you write: not the problem, and none of the reasoning. The request must be \
self-contained: state every definition, value, condition and intermediate result that is needed to answer \
it, and do not refer to anything that it does not contain.
- The advisor's whole reply must stay below <BUDGET> tokens. A reply that reaches the limit is cut off and \
useless. Choose what you ask for so that a good reply fits: one step, a method, a check, or the whole \
problem where the budget allows it.
- The response instruction tells the advisor how long and how detailed its reply should be, so that it fits.
<PRIVACY>- Do not solve the problem yourself.

Write exactly this and nothing else:
Request: <what you ask the advisor>
Response: <how the advisor should reply>"""

_QMAKER_PRIVACY = """\
- Privacy: never write confidential values such as keys, passwords, tokens, internal addresses or connection \
strings, whole, in part or encoded. Leave them out or put a neutral placeholder in their place; the solver \
knows them and fills them in itself.
"""

_QMAKER_COMPACT = """\
Ask the advisor what is missing. It sees only your request. Its reply must be below <BUDGET> tokens.
<PRIVACY>Form:
Request: ...
Response: ...
"""

_QMAKER_COMPACT_PRIVACY = "Never write confidential values.\n"

_NOTHING_YET = "(none yet)"


def task_of(problem: Problem) -> Task:
    """``code`` for a problem that is judged by tests (:func:`apprentice.data.code.code_tests`)."""
    return "code" if "code_tests" in problem.metadata else "math"


def ask_prompt(problem: Problem, max_asks: int, instructions: Instructions = "paper") -> Prompt:
    """The reasoner's prompt with the advisor. ``max_asks``: how often it may ask."""
    task = task_of(problem)
    if instructions == "compact":
        return _user(f"Tool: ask_advisor(query), {_times(max_asks)}. {_COMPACT[task]}\n\n{problem.question}")
    opening, closing = _PAPER[task]
    advisor = _PAPER_ADVISOR.replace("<TIMES>", _times(max_asks))
    return Prompt(_system(f"{opening}\n\n{advisor}\n\n{closing}", problem.question), (ask_advisor_schema(),))


def solo_prompt(problem: Problem, instructions: Instructions = "paper") -> Prompt:
    """:func:`ask_prompt` with every word about the advisor removed (F.1)."""
    task = task_of(problem)
    if instructions == "compact":
        return _user(f"{_COMPACT[task]}\n\n{problem.question}")
    opening, closing = _PAPER[task]
    return Prompt(_system(f"{opening}\n\n{closing}", problem.question))


def qmaker_prompt(
    question: str,
    reasoning: str,
    budget: int,
    instructions: Instructions = "paper",
    *,
    privacy: bool = False,
) -> Prompt:
    """Qmaker's prompt: h_tau, the budget, the form.

    Args:
        question: the problem x.
        reasoning: the reasoner's text before it asks, without the query that it would write itself.
        budget: b, output tokens that the advice must stay below.
        privacy: add the rule about confidential values (F.6).
    """
    compact = instructions == "compact"
    rule = (_QMAKER_COMPACT_PRIVACY if compact else _QMAKER_PRIVACY) if privacy else ""
    template = _QMAKER_COMPACT if compact else _QMAKER
    rules = template.replace("<BUDGET>", str(budget)).replace("<PRIVACY>", rule)
    reasoning = reasoning or _NOTHING_YET
    if compact:
        return _user(f"{rules}\nProblem: {question}\nReasoning: {reasoning}")
    return Prompt(
        _system(
            rules,
            f"# Problem\n{question}\n\n# Reasoning so far\n{reasoning}\n\n# Budget\n"
            f"The advisor's reply must stay below {budget} tokens.",
        )
    )


def _times(max_asks: int) -> str:
    return "at most once" if max_asks == 1 else f"at most {max_asks} times"


def _system(rules: str, content: str) -> tuple[dict[str, str], ...]:
    return ({"role": "system", "content": rules}, {"role": "user", "content": content})


def _user(content: str) -> Prompt:
    return Prompt(({"role": "user", "content": content},))
