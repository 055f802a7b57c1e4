"""The native tool definitions of the controller: RIVET's two (Table 8), generated from the experts of a
recipe, and ``ask_advisor`` of Learning to Ask (appendix F.4).

Wording, parameter descriptions, required fields and the order of keys are the paper's. The paper's text is
set typographically (``model=’self’``); the prompt itself has ASCII apostrophes and backticks, and so has
this module. With the paper's three experts in the paper's order the result is Table 8 character by character.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from apprentice.config.schema import ExpertConfig

__all__ = [
    "ASK_ADVISOR",
    "CODE_INTERPRETER",
    "SELF",
    "THINK",
    "ask_advisor_schema",
    "code_interpreter_schema",
    "think_schema",
    "tool_schemas",
]

THINK = "think"
"""Name of the reasoning tool."""
CODE_INTERPRETER = "code_interpreter"
"""Name of the Python tool."""
ASK_ADVISOR = "ask_advisor"
"""Name of the advisor tool."""
SELF = "self"
"""Value of ``model`` by which the controller runs code of its own."""

_THINK_DESCRIPTION = (
    "Ask a strong external expert model to produce a concise reasoning/planning step. These experts are "
    "stronger specialist solvers than the controller; call this tool often for non-trivial planning, "
    "derivation, critique, or answer checks, but never call think twice in a row. The returned text is "
    "appended to the trajectory for the controller to use next."
)
_CODE_DESCRIPTION = (
    "Run a Python code-interpreter step. Use model='self' when the controller writes executable code "
    "directly; prefer an external expert model name for non-trivial code generation, checks, or symbolic "
    "work. Code is executed in an isolated sandbox."
)
_CODE_FIELD_DESCRIPTION = (
    "Required field for python tool calls. When model is self, provide executable Python code for one "
    "isolated call. The last bare expression is automatically displayed like Jupyter, and print(...) output "
    "is also returned. Do not rely on variables from previous calls. When model is an external expert, set "
    "code to an empty string; the expert will generate the code."
)

_ASK_DESCRIPTION = (
    "Ask an expert advisor one focused question to make progress on the current problem. Ask for the "
    "specific thing you are missing at this point in your reasoning. The advisor sees ONLY your question "
    "\u2014 not the original problem, not your reasoning so far, and no other context. Anything the advisor "
    "needs to know must be stated inside the question itself."
)


def tool_schemas(experts: Sequence[ExpertConfig]) -> list[dict[str, Any]]:
    """The ``tools`` argument of the chat template: ``think`` and ``code_interpreter``.

    Without experts (``stage1.use_experts=false``) there is nobody to think for the controller: only
    ``code_interpreter`` is left, with ``self`` as its one model.
    """
    if not experts:
        return [code_interpreter_schema(experts)]
    return [think_schema(experts), code_interpreter_schema(experts)]


def ask_advisor_schema() -> dict[str, Any]:
    """Definition of ``ask_advisor`` (Learning to Ask, appendix F.4), to the character."""
    return {
        "type": "function",
        "function": {
            "name": ASK_ADVISOR,
            "description": _ASK_DESCRIPTION,
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {
                        "type": "string",
                        "description": "A self-contained question to ask the expert advisor.",
                    },
                },
                "required": ["query"],
            },
        },
    }


def think_schema(experts: Sequence[ExpertConfig]) -> dict[str, Any]:
    """Definition of ``think`` (Table 8, left), its ``model`` enum in the order of the recipe."""
    strengths = _strengths(experts)
    return {
        "type": "function",
        "function": {
            "name": THINK,
            "description": f"{_THINK_DESCRIPTION} {strengths}".rstrip(),
            "parameters": {
                "type": "object",
                "properties": {
                    "model": {
                        "type": "string",
                        "enum": [expert.name for expert in experts],
                        "description": "Strong external expert model to ask for the reasoning/planning step.",
                    },
                    "instruction": {
                        "type": "string",
                        "description": "Optional short instruction for what this expert should think about.",
                    },
                },
                "required": ["model"],
            },
        },
    }


def code_interpreter_schema(experts: Sequence[ExpertConfig]) -> dict[str, Any]:
    """Definition of ``code_interpreter`` (Table 8, right): ``self`` first, then the experts."""
    return {
        "type": "function",
        "function": {
            "name": CODE_INTERPRETER,
            "description": _CODE_DESCRIPTION,
            "parameters": {
                "type": "object",
                "properties": {
                    "model": {
                        "type": "string",
                        "enum": [SELF, *(expert.name for expert in experts)],
                        "description": "Prefer selecting a strong external expert model to generate Python "
                        "code. Use self only for simple direct execution or small fixes.",
                    },
                    "instruction": {
                        "type": "string",
                        "description": "Optional short instruction for the Python step.",
                    },
                    "code": {"description": _CODE_FIELD_DESCRIPTION, "type": "string"},
                },
                "required": ["model", "code"],
            },
        },
    }


def _strengths(experts: Sequence[ExpertConfig]) -> str:
    """``B is especially strong at b, while A is especially strong at a.`` from ``description`` fields.

    Experts without a description are left out. The order is the recipe's, backwards: the paper lists
    Qwen3.5-9B first in its enum and names it last in this sentence, where the emphasis is.
    """
    clauses = [
        f"{expert.name} is especially strong at {expert.description.strip().rstrip('.')}"
        for expert in reversed(experts)
        if expert.description.strip()
    ]
    if not clauses:
        return ""
    *first, last = clauses
    return f"{', '.join(first)}, while {last}." if first else f"{last}."
