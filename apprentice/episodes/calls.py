"""The rules of tool calls: which call is let through, and what a refused one is told.

The order of the checks is part of the protocol: is it a call at all (the parser), is the tool known, are its
fields there and of the right type, is the model one of the enum, does ``code`` go with the model, are experts
available, is the budget spent, is it ``think`` twice in a row. The first that fails names the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from apprentice.episodes.actions import CallError
from apprentice.episodes.parser import ParsedCall
from apprentice.episodes.tools import CODE_INTERPRETER, SELF, THINK

__all__ = ["Call", "CallRules", "Refusal", "check_call", "check_self"]


@dataclass(frozen=True, slots=True)
class Call:
    """A well-formed call."""

    tool: str
    model: str
    instruction: str = ""
    code: str = ""

    @property
    def asks_expert(self) -> bool:
        """Whether somebody other than the controller answers."""
        return self.model != SELF


@dataclass(frozen=True, slots=True)
class Refusal:
    """A call that does not run. ``message`` says what was wrong and what to do, for the controller."""

    error: CallError
    message: str
    tool: str = ""
    model: str = ""


def check_call(parsed: ParsedCall, tools: Sequence[str] = (THINK, CODE_INTERPRETER)) -> Call | Refusal:
    """A parsed call as one of ours: the tool exists, required fields are there, all fields are strings.

    Arguments that the schema does not name are ignored; an ``instruction`` of null is none.
    """
    if parsed.error is not None:
        return Refusal(parsed.error, parsed.message, parsed.name)
    arguments = parsed.arguments or {}
    model = arguments.get("model")
    shown = model if isinstance(model, str) else ""

    def refuse(error: CallError, message: str) -> Refusal:
        return Refusal(error, message, parsed.name, shown)

    if parsed.name not in tools:
        known = " and ".join(tools)
        return refuse(
            CallError.UNKNOWN_TOOL, f"there is no tool {_short(parsed.name)}; the tools are {known}."
        )
    if not isinstance(model, str):
        what = "is missing" if "model" not in arguments else "is not a string"
        return refuse(CallError.BAD_ARGUMENTS, f'the argument "model" {what}.')
    instruction = arguments.get("instruction")
    if instruction is not None and not isinstance(instruction, str):
        return refuse(CallError.BAD_ARGUMENTS, 'the argument "instruction" is not a string.')
    code = arguments.get("code")
    if parsed.name == CODE_INTERPRETER:
        if "code" not in arguments:
            return refuse(
                CallError.MISSING_CODE,
                'the argument "code" is required: executable Python for the model "self", "" for an expert.',
            )
        if not isinstance(code, str):
            return refuse(CallError.BAD_ARGUMENTS, 'the argument "code" is not a string.')
    else:
        code = ""
    return Call(parsed.name, model, instruction or "", code or "")


def check_self(call: Call) -> Refusal | None:
    """What is wrong with a call to ``self``: the controller runs code, and cannot ask itself to think."""
    if call.asks_expert:
        return None
    if call.tool == THINK:
        message = f'{THINK} asks an external expert; the model "self" is for {CODE_INTERPRETER}.'
        return Refusal(CallError.UNKNOWN_MODEL, message, call.tool, call.model)
    if not call.code.strip():
        message = 'the model "self" needs executable Python in "code".'
        return Refusal(CallError.MISSING_CODE, message, call.tool, call.model)
    return None


class CallRules:
    """Counts calls and decides on the next one.

    Args:
        experts: names that may be asked.
        max_expert_calls: answered calls to experts, of both tools together (Table 9: 4).
        max_tool_calls: all calls, refused ones included, so that no loop is endless.
        experts_removed: every call to an expert is refused (the expert-removal diagnostic, section 3.4).

    "``think`` twice in a row" is judged by the calls that ran, in the order in which they ran: a ``think`` is
    refused when the last call that ran was a ``think``. A refused call in between does not separate them.
    """

    def __init__(
        self,
        experts: Sequence[str],
        *,
        max_expert_calls: int,
        max_tool_calls: int,
        experts_removed: bool = False,
    ) -> None:
        self._experts = tuple(experts)
        self._max_expert_calls = max_expert_calls
        self._max_tool_calls = max_tool_calls
        self._removed = experts_removed
        self._seen = 0
        self._expert_calls = 0
        self._last = ""

    @property
    def tools(self) -> tuple[str, ...]:
        """Tools that exist: without experts there is no ``think``."""
        return (THINK, CODE_INTERPRETER) if self._experts else (CODE_INTERPRETER,)

    def decide(self, parsed: ParsedCall) -> Call | Refusal:
        """Let the call through, or say why not. Either way it is counted."""
        self._seen += 1
        call = check_call(parsed, self.tools)
        if isinstance(call, Refusal):
            return call
        refused = check_self(call)
        if refused is not None:
            return refused
        refusal = self._refusal(call)
        if refusal is not None:
            error, message = refusal
            return Refusal(error, message, call.tool, call.model)
        self._expert_calls += call.asks_expert
        self._last = call.tool
        return call

    def _refusal(self, call: Call) -> tuple[CallError, str] | None:
        models = self._experts if call.tool == THINK else (SELF, *self._experts)
        if call.model not in models:
            return (
                CallError.UNKNOWN_MODEL,
                f"{call.tool} knows no model {_short(call.model)}; its models are {', '.join(models)}.",
            )
        if call.asks_expert and call.code.strip():
            return (
                CallError.CODE_NOT_EMPTY,
                f'"code" must be "" when {call.model} writes it; use the model "self" to run your own code.',
            )
        if call.asks_expert and self._removed:
            return (
                CallError.EXPERTS_REMOVED,
                "no external expert is available; reason on your own, or run your own code with "
                f'{CODE_INTERPRETER} and the model "self".',
            )
        if self._seen > self._max_tool_calls:
            return (
                CallError.BUDGET_SPENT,
                f"all {self._max_tool_calls} tool calls are spent; give the final answer now.",
            )
        if call.asks_expert and self._expert_calls >= self._max_expert_calls:
            return (
                CallError.BUDGET_SPENT,
                f"all {self._max_expert_calls} calls to experts are spent; finish without them.",
            )
        if call.tool == THINK and self._last == THINK:
            return (
                CallError.THINK_TWICE,
                f"{THINK} may not be called twice in a row; use its answer, run code, or finish.",
            )
        return None


def _short(text: str, limit: int = 60) -> str:
    """Quoted for a message; long names are cut."""
    return repr(text if len(text) <= limit else text[:limit] + "...")
