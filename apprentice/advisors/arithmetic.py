"""An advisor without a model: it works out the arithmetic that a query states, and can do nothing else.

Like any advisor it sees only the query, and like a real one it explains at length unless the query says how
long the answer may be: an answer that does not fit the cap is cut off, and its result, which stands at the
end, is lost.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
from collections.abc import Callable
from fractions import Fraction

from apprentice.advisors.expression import Expression, Step, evaluate, find_expressions, format_number
from apprentice.advisors.prompt import count_tokens, cut_tokens
from apprentice.advisors.types import AttemptFailure, AttemptReply, AttemptRequest, AttemptResult
from apprentice.config.ask import ArithmeticBackend
from apprentice.costs.usage import Usage

__all__ = ["ArithmeticAdvisor", "advice"]

_BARE = re.compile(
    r"\b(?:only|just)\b[^.\n]{0,30}\b(?:results?|answers?|numbers?|value|integer)\b"
    r"|\b(?:results?|answers?|numbers?|value|integer)\b[^.\n]{0,12}\bonly\b"
    r"|\b(?:no|without(?: any)?) (?:explanations?|steps|working|words|reasoning)\b",
    re.I,
)
_SHORT = re.compile(
    r"\b(?:one|a single|1|single)[- ](?:short |brief )?(?:line|sentence)\b"
    r"|\b(?:brief(?:ly)?|concise(?:ly)?|short(?:ly)?)\b",
    re.I,
)
_STEPWISE = re.compile(
    r"\b(?:each|the|all|every|your) (?:intermediate )?steps?\b|\bstep[- ]by[- ]step\b", re.I
)
_COUNT = re.compile(
    r"(?:(\d+)\s*(?:-|–|to)\s*)?(\d+)\s+(?:short |brief )?(tokens?|words?|lines?|sentences?|characters?)\b",
    re.I,
)
_WORDS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
_LINE = 80  # characters; a longer one is read as several
_NAMES = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide"}


def advice(query: str, errs: Callable[[Expression], bool] = lambda expression: False) -> str:
    """The whole answer to a query, as long as the query lets it be.

    ``only the result`` gives the bare number; ``one line``, ``briefly`` one line; a limit of tokens, words,
    lines, sentences or characters the most explicit answer that keeps it; otherwise a worked explanation that
    grows with the expression.

    Args:
        errs: whether it gets an expression wrong: its last operation goes wrong then.
    """
    expressions = find_expressions(query)
    if not expressions:
        return (
            "I cannot answer this: the question states no arithmetic expression. Please write out all the "
            "numbers and operations."
        )
    forms = [_forms(expression, errs(expression)) for expression in expressions]
    levels = ["\n\n".join(form[level] for form in forms) for level in range(4)]
    if "\\boxed" in query:  # it keeps to the form that a whole problem asks for
        levels = [f"{level}\nAnswer: \\boxed{{{forms[-1][3]}}}" for level in levels]
    limit = _limit(query)
    allowed = levels
    if _BARE.search(query):
        allowed = levels[3:]
    elif _SHORT.search(query):
        allowed = levels[2:]
    elif _STEPWISE.search(query):
        allowed = levels[1:]
    if limit is not None:
        unit, most = limit
        allowed = [text for text in allowed if _measure(text, unit) <= most] or levels[3:]
    return allowed[0]


class ArithmeticAdvisor:
    """Backend ``arithmetic``.

    Tokens are counted by :func:`apprentice.advisors.prompt.count_tokens`, those of the query as the prompt.

    Args:
        config: error rate (fixed for an expression's text), latency, failure rate.
        name: the advisor's name; part of what decides its errors, as ``seed`` is.
    """

    def __init__(self, config: ArithmeticBackend, *, name: str = "advisor", seed: int = 0) -> None:
        self._config, self._name, self._seed = config, name, seed
        self._failures = random.Random(f"{name}:{seed}")

    async def attempt(self, request: AttemptRequest, *, timeout_s: float) -> AttemptResult:
        """The worked answer, cut at the cap. Failures: ``timeout``, ``injected`` (both before any token)."""
        if self._config.latency_s:
            await asyncio.sleep(min(self._config.latency_s, timeout_s))
            if self._config.latency_s > timeout_s:
                return AttemptFailure("timeout", f"no answer within {timeout_s:g} s", True)
        if self._config.failure_rate and self._failures.random() < self._config.failure_rate:
            return AttemptFailure("injected", "injected failure", True, Usage(0, 0, 0, 0))
        query = request.messages[-1]["content"]
        text, count, cut = cut_tokens(advice(query, self.errs), request.max_tokens)
        usage = Usage(count_tokens(query), count, 0, 0)
        return AttemptReply(text, usage, "length" if cut else "stop")

    def errs(self, expression: Expression) -> bool:
        """Whether it gets an expression wrong; always the same for one text and seed."""
        if not self._config.error_rate:
            return False
        named = "\x1f".join([self._name, str(self._seed), str(expression)])
        digest = hashlib.sha256(named.encode()).digest()
        return int.from_bytes(digest[:7], "big") / 2.0**56 < self._config.error_rate

    async def close(self) -> None:
        """Nothing to release."""


def _forms(expression: Expression, wrong: bool) -> tuple[str, str, str, str]:
    """Four answers, from a worked explanation to the bare result."""
    try:
        value, steps = evaluate(expression)
    except ZeroDivisionError:
        said = f"{expression} is undefined, since it divides by zero."
        return said, said, said, "undefined"
    if wrong:
        value, steps = _mistake(value, steps)
    result = format_number(value)
    lines = [f"{_show(s.left)} {s.operator} {_show(s.right)} = {format_number(s.result)}" for s in steps]
    return (
        _explanation(expression, steps, lines, result),
        "\n".join([*lines, f"Result: {result}"]),
        f"{expression} = {result}",
        result,
    )


def _explanation(expression: Expression, steps: list[Step], lines: list[str], result: str) -> str:
    parts = [
        f"We are asked for the value of {expression}. Parentheses come first, then multiplication and "
        "division, then addition and subtraction, always from left to right. I will carry out one "
        "operation at a time and rewrite what remains, so that every step can be checked."
    ]
    for number, (step, line) in enumerate(zip(steps, lines, strict=True), 1):
        rest = "That was the last operation." if not step.rest.operators else f"What remains is {step.rest}."
        parts.append(
            f"Step {number}. The next operation is to {_NAMES[step.operator]}: we take {_show(step.left)} "
            f"and {_show(step.right)}, which gives {line}. {rest}"
        )
    parts.append(
        f"All {len(steps)} operations have been carried out in the order that the rules of precedence "
        "demand, and nothing is left to simplify."
    )
    parts.append(f"Result: {result}")
    return "\n\n".join(parts)


def _mistake(value: Fraction, steps: list[Step]) -> tuple[Fraction, list[Step]]:
    """The last operation goes wrong by a small amount that depends on the value alone."""
    last = steps[-1]
    off = value + (1 + value.numerator % 7) * (-1) ** (value.numerator % 2)
    return off, [*steps[:-1], Step(last.left, last.operator, last.right, off, Expression(off))]


def _show(value: Fraction) -> str:
    return str(Expression(value))


def _limit(query: str) -> tuple[str, int] | None:
    """The last limit on the answer's length that the query states, as unit and number."""
    text = query
    for word, number in _WORDS.items():
        text = re.sub(rf"\b{word}\b", str(number), text, flags=re.I)
    found = list(_COUNT.finditer(text))
    return (found[-1][3].lower().rstrip("s"), int(found[-1][2])) if found else None


def _measure(text: str, unit: str) -> int:
    if unit == "token":
        return count_tokens(text)
    if unit == "word":
        return len(text.split())
    if unit == "line":
        return sum(-(-len(line.strip()) // _LINE) for line in text.splitlines())
    if unit == "sentence":
        return len(re.findall(r"[.!?](?=\s|$)", text)) or 1
    return len(text)
