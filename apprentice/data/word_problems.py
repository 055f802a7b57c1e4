"""Short derivations and programs for word problems, built from the worked text that comes with them."""

from __future__ import annotations

import ast
import itertools
import re
from dataclasses import dataclass

from apprentice.data._whitelist import run_whitelisted
from apprentice.data.problem import WorkedSolution

__all__ = ["word_problem"]

_MAX_PROGRAM_CHARS = 110  # about 60 tokens
_MAX_SENTENCES = 4

_TOKEN = re.compile(r"/[A-Za-z]+|\d+(?:\.\d+)?%?|[-+*/()]|[A-Za-z]+")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class _Step:
    """One ``expression = value`` of the text; ``line`` is where it stands."""

    tokens: tuple[str, ...]
    value: float
    line: int


def word_problem(text: str, answer: str) -> WorkedSolution | None:
    """A worked solution from a step-by-step text such as ``He drank 7*6=42 ounces. ... #### 126``.

    The program computes the steps that lead to the answer, in order; ``None`` if no step ends there.
    """
    lines = [line.strip(" •-\t") for line in text.split("\n####")[0].splitlines()]
    steps = [step for number, line in enumerate(lines) for step in _steps(line, number)]
    goal = float(answer)
    last = next((i for i in reversed(range(len(steps))) if _same(steps[i].value, goal)), None)
    if last is None:
        return None
    for depth in range(_MAX_SENTENCES, 0, -1):
        chain = _needed(steps, last, depth)
        program = _program([steps[i] for i in chain], answer)
        if program is not None and (len(program) <= _MAX_PROGRAM_CHARS or depth == 1):
            kept = dict.fromkeys(lines[steps[i].line] for i in chain)
            return WorkedSolution(" ".join(_sentence(line) for line in kept), program)
    return None


def _steps(line: str, number: int) -> list[_Step]:
    """Every equation in a line whose left side is arithmetic that gives its right side."""
    line = line.replace("×", "*").replace("÷", "/").replace("half ", "0.5 ")
    line = re.sub(r"(?<=[\d\s)])x(?=[\s\d])", "*", re.sub(r"[$£€,]", "", line))
    found = []
    parts = line.split("=")
    for left, right in itertools.pairwise(parts):
        value = _NUMBER.match(right.strip())
        if value is None:
            continue
        # "9 / 10 * 100% = 90%" is counted in percent on both sides.
        in_percent = right.strip()[value.end() :].startswith("%")
        tokens = _arithmetic(left.replace("%", "") if in_percent else left)
        for start in range(len(tokens)):
            suffix = tokens[start:]
            result = _evaluate(suffix)
            if result is not None and len(suffix) > 1 and _same(result, float(value.group())):
                found.append(_Step(tuple(suffix), float(value.group()), number))
                break
    return found


def _arithmetic(text: str) -> list[str]:
    """Numbers and operators of a text; units (words, ``/minute``) dropped, percentages as fractions."""
    tokens: list[str] = []
    for token in _TOKEN.findall(text):
        if token.endswith("%"):
            tokens += ["(", token[:-1], "/", "100", ")"]
        elif not re.fullmatch(r"/?[A-Za-z]+", token):
            if token == "(" and tokens and _NUMBER.fullmatch(tokens[-1]):
                tokens.append("*")  # 2(14) means a product
            tokens.append(token)
    return tokens


def _evaluate(tokens: list[str]) -> float | None:
    if any(b == "(" and (a == ")" or a[-1].isdigit()) for a, b in itertools.pairwise(tokens)):
        return None  # "3 (4)" without an operator: not one expression
    try:
        tree = ast.parse(" ".join(tokens), mode="eval")
        value = eval(compile(tree, "<step>", "eval"), {"__builtins__": {}})  # only digits and +-*/()
    except (SyntaxError, ArithmeticError, TypeError):
        return None
    return float(value) if isinstance(value, int | float) else None


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-6 * max(1.0, abs(a), abs(b))


def _needed(steps: list[_Step], last: int, depth: int) -> list[int]:
    """Indices of ``last`` and of the earlier steps whose results it is made of, at most ``depth`` in all."""
    chain, frontier = [last], [last]
    while frontier and len(chain) < depth:
        current = frontier.pop(0)
        for token in reversed(steps[current].tokens):
            source = _source(steps, token, current)
            if source is not None and source not in chain and len(chain) < depth:
                chain.append(source)
                frontier.append(source)
    return sorted(chain)


def _source(steps: list[_Step], token: str, before: int) -> int | None:
    if not _NUMBER.fullmatch(token):
        return None
    return next((i for i in reversed(range(before)) if _same(steps[i].value, float(token))), None)


def _program(chain: list[_Step], answer: str) -> str | None:
    """Assignments for all steps but the last, which is printed; ``None`` unless it prints ``answer``."""
    names: list[tuple[float, str]] = []
    lines = []
    for step, name in zip(chain[:-1], "abcdefgh", strict=False):
        lines.append(f"{name} = {_render(step.tokens, names)}")
        names.append((step.value, name))
    final = _render(chain[-1].tokens, names)
    for printed in (f"print({final})", f"print(round({final}))"):
        program = "\n".join([*lines, printed])
        if run_whitelisted(program) == answer:
            return program
    return None


def _render(tokens: tuple[str, ...], names: list[tuple[float, str]]) -> str:
    out: list[str] = []
    for token in tokens:
        known = None
        if _NUMBER.fullmatch(token):
            known = next((name for value, name in reversed(names) if _same(value, float(token))), None)
        out.append(known or token)
    text = " ".join(out).replace("( ", "(").replace(" )", ")")
    return re.sub(r"\((\d+(?:\.\d+)?) / 100\)", r"\1 / 100", text) if text.count("(") == 1 else text


def _sentence(line: str) -> str:
    line = re.sub(r"^\d+\.\s+", "", line)
    return line if line.endswith((".", "!", "?")) else line + "."
