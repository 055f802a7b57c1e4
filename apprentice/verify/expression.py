"""A small reader of LaTeX arithmetic: text to a tree of tuples, or :class:`ParseError`.

It reads what final answers are mostly made of (numbers, fractions, roots, powers, functions, subscripted
symbols, implicit products), refuses everything else, and never reads only a part of its input. What it
refuses goes to the LaTeX parser of math-verify (:mod:`apprentice.verify.symbolic`).

Nodes: ``("num", Fraction)``, ``("sym", name)``, ``("const", name)``, ``("add" | "mul", left, right)``,
``("neg" | "abs" | "fact", x)``, ``("div" | "pow", left, right)``, ``("call", name, *arguments)``.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final

__all__ = ["MAX_CHARS", "Node", "ParseError", "parse_expression", "symbols_of"]

Node = tuple[Any, ...]
MAX_CHARS: Final = 2000
_MAX_DEPTH: Final = 60

GREEK = {  # commands that stand for a symbol
    "alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "vartheta", "iota",
    "kappa", "lambda", "mu", "nu", "xi", "rho", "varrho", "sigma", "tau", "upsilon", "phi", "varphi", "chi",
    "psi", "omega", "Gamma", "Delta", "Theta", "Lambda", "Xi", "Sigma", "Upsilon", "Phi", "Psi", "Omega",
    "ell", "hbar", "odot", "circ", "prime", "star", "emptyset", "aleph", "mho", "nabla", "partial", "top",
    "dim", "ker", "det", "deg", "Re", "Im",
}  # fmt: skip
FUNCTIONS = {
    "sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "coth",
    "arcsin", "arccos", "arctan", "arccot", "ln", "log", "lg", "exp", "sgn", "max", "min", "gcd", "lcm",
}  # fmt: skip
_INVERSES = {"sin": "arcsin", "cos": "arccos", "tan": "arctan", "cot": "arccot"}
_TOKEN = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+|\\[A-Za-z]+|\\[{}|%]|\*\*|.)", re.DOTALL)
_CLOSERS = {
    "(": ")", "[": "]", "{": "}", "\\{": "\\}", "\\lfloor": "\\rfloor", "\\lceil": "\\rceil", "|": "|",
}  # fmt: skip
_ACCENTS = {
    "\\bar", "\\hat", "\\dot", "\\ddot", "\\tilde", "\\vec", "\\overline", "\\underline", "\\widehat",
    "\\widetilde",
}  # fmt: skip
_STYLES = {"\\mathbb", "\\mathcal", "\\mathfrak", "\\mathscr", "\\text"}  # what stands in them is one name
_STARTS_FACTOR = {
    "(", "[", "{", "\\{", "\\lfloor", "\\lceil", "\\frac", "\\sqrt", "\\binom", "\\pi", "\\infty",
    *_ACCENTS, *_STYLES,
}  # fmt: skip
OPAQUE = frozenset("fgh")  # letters that mean a function when an argument follows


class ParseError(ValueError):
    """The text is not in the language of this reader."""


@lru_cache(maxsize=4096)
def parse_expression(text: str) -> Node:
    """Read the whole of ``text`` (cleaned by :func:`apprentice.verify.clean.clean`).

    Raises:
        ParseError: it is too long, nested too deeply, or holds something that is not read here.
    """
    if len(text) > MAX_CHARS:
        raise ParseError(f"longer than {MAX_CHARS} characters")
    match = re.fullmatch(r"\s*([+-]?(?:\d+\.?\d*|\.\d+))[eE]([+-]?\d{1,4})\s*", text)
    if match:  # a whole answer like 1.45e-5 is a number in scientific notation
        mantissa = match.group(1).rstrip(".")
        return ("num", Fraction(mantissa) * Fraction(10) ** int(match.group(2)))
    parser = _Parser(text)
    node = parser.sum(0)
    if parser.peek() is not None:
        raise ParseError(f"unexpected {parser.peek()!r}")
    return node


def symbols_of(node: Node) -> set[str]:
    """Names of the free symbols."""
    if node[0] == "sym":
        return {node[1]}
    return {name for child in node[1:] if isinstance(child, tuple) for name in symbols_of(child)}


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens = [m.group(1) for m in _TOKEN.finditer(text.strip())]
        self.tokens = [t for t in self.tokens if not t.isspace()]
        self.at = 0
        self.bars = 0  # open |...|

    def peek(self, ahead: int = 0) -> str | None:
        index = self.at + ahead
        return self.tokens[index] if index < len(self.tokens) else None

    def take(self, expected: str | None = None) -> str:
        token = self.peek()
        if token is None or (expected is not None and token != expected):
            raise ParseError(f"expected {expected or 'more'}, found {token or 'the end'}")
        self.at += 1
        return token

    def sum(self, depth: int) -> Node:
        if depth > _MAX_DEPTH:
            raise ParseError("nested too deeply")
        sign = self.signs()
        node = self.product(depth)
        node = ("neg", node) if sign < 0 else node
        while self.peek() in ("+", "-"):
            sign = self.signs()
            term = self.product(depth)
            node = ("add", node, ("neg", term) if sign < 0 else term)
        return node

    def signs(self) -> int:
        sign = 1
        while self.peek() in ("+", "-"):
            sign = -sign if self.take() == "-" else sign
        return sign

    def product(self, depth: int) -> Node:
        node = self.power(depth)
        while True:
            token = self.peek()
            if token in ("*", "\\cdot", "\\times"):
                self.take()
                node = ("mul", node, self.signed_power(depth))
            elif token in ("/", "\\div"):
                self.take()
                node = ("div", node, self.signed_power(depth))
            elif self.starts_factor(token):
                node = ("mul", node, self.power(depth))
            else:
                return node

    def signed_power(self, depth: int) -> Node:
        sign = self.signs()
        node = self.power(depth)
        return ("neg", node) if sign < 0 else node

    def starts_factor(self, token: str | None) -> bool:
        if token is None:
            return False
        if token == "|":
            return self.bars == 0
        return (
            token in _STARTS_FACTOR
            or token[0].isdigit()
            or token[0] == "."
            or (len(token) == 1 and token.isalpha())
            or token[1:] in FUNCTIONS
            or token[1:] in GREEK
        )

    def power(self, depth: int) -> Node:
        node = self.postfix(self.atom(depth))
        if self.peek() in ("^", "**"):
            self.take()
            if self.peek() == "\\circ" or self.tokens[self.at : self.at + 3] == ["{", "\\circ", "}"]:
                self.at += 1 if self.peek() == "\\circ" else 3
                return self.postfix(("mul", node, ("div", ("const", "pi"), ("num", Fraction(180)))))
            exponent = self.script(depth)
            node = self.postfix(("pow", node, exponent))
            if self.peek() in ("^", "**"):
                raise ParseError("double superscript")
        return node

    def postfix(self, node: Node) -> Node:
        while self.peek() in ("!", "\\%", "%"):
            if self.take() != "!":
                node = ("div", node, ("num", Fraction(100)))
            elif self.peek() == "!":
                self.take()
                node = ("call", "double_factorial", node)
            else:
                node = ("fact", node)
        return node

    def script(self, depth: int) -> Node:
        """A superscript: a group, or one signed token; ``C^*`` has a name there."""
        if self.peek() == "*":
            self.take()
            return ("sym", "star")
        if self.peek() == "{":
            return self.group(depth)
        if self.peek() in ("+", "-"):
            return self.signed_power(depth)
        return self.single(depth)

    def single(self, depth: int) -> Node:
        """One TeX argument without braces: a digit, a letter or a command."""
        token = self.peek()
        if token is None:
            raise ParseError("an argument is missing")
        if token == "{":
            return self.group(depth)
        if token[0].isdigit():
            return ("num", Fraction(self.take().rstrip(".")))
        return self.atom(depth)

    def digit(self, depth: int) -> Node:
        r"""An argument of \frac or \sqrt: without braces it is one digit, so \frac43 is 4/3."""
        token = self.peek()
        if token is not None and token.isdigit() and len(token) > 1:
            self.tokens[self.at : self.at + 1] = [token[0], token[1:]]
        return self.single(depth)

    def group(self, depth: int) -> Node:
        opener = self.take()
        closer = _CLOSERS[opener]
        bars, self.bars = self.bars, 0
        node = self.sum(depth + 1)
        self.bars = bars
        if opener in "([" and self.peek() in (")", "]"):
            self.take()
        else:
            self.take(closer)
        return node

    def atom(self, depth: int) -> Node:
        token = self.peek()
        if token is None:
            raise ParseError("an operand is missing")
        if token[0].isdigit() or (token[0] == "." and len(token) > 1):
            return self.number(depth)
        if token in ("(", "[", "{", "\\{"):
            return self.group(depth)
        if token in ("\\lfloor", "\\lceil"):
            return ("call", token[2:], self.group(depth))
        if token == "|":
            self.take()
            self.bars += 1
            node = self.sum(depth + 1)
            self.bars -= 1
            self.take("|")
            return ("abs", node)
        if token == "\\frac":
            self.take()
            top = self.digit(depth + 1)
            return ("div", top, self.digit(depth + 1))
        if token == "\\binom":
            self.take()
            top = self.digit(depth + 1)
            return ("call", "binom", top, self.digit(depth + 1))
        if token == "\\sqrt":
            return self.root(depth)
        if token == "\\pi":
            self.take()
            return ("const", "pi")
        if token == "\\infty":
            self.take()
            return ("const", "oo")
        if token in _ACCENTS:
            self.take()
            accented: Node = ("call", "opaque:" + token[1:], self.single(depth + 1))
            if self.peek() != "_":
                return accented
            self.take()
            return ("call", f"opaque:{token[1:]}_{self.raw_group()}", accented)
        if token in _STYLES:
            self.take()
            return self.symbol(f"{token[1:]}:{self.raw_group()}", depth, taken=True)
        name = token.lstrip("\\")
        if name in FUNCTIONS and token[0] == "\\":
            return self.function(name, depth)
        if (len(token) == 1 and token.isalpha() and token.isascii()) or name in GREEK:
            return self.symbol(name, depth)
        raise ParseError(f"{token!r} is not read here")

    def number(self, depth: int) -> Node:
        whole = Fraction(self.take().rstrip("."))
        if self.peek() == "\\frac" and whole.denominator == 1:
            saved = self.at, list(self.tokens)
            fraction = self.atom(depth)
            top, bottom = fraction[1], fraction[2]
            if top[0] == bottom[0] == "num" and 0 < top[1] < bottom[1]:  # a mixed number
                return ("num", whole + top[1] / bottom[1])
            self.at, self.tokens = saved
        return ("num", whole)

    def root(self, depth: int) -> Node:
        self.take()
        index: Node = ("num", Fraction(2))
        if self.peek() == "[":
            self.take()
            index = self.sum(depth + 1)
            self.take("]")
        radicand = self.group(depth) if self.peek() == "(" else self.digit(depth + 1)
        return ("pow", radicand, ("div", ("num", Fraction(1)), index))

    def function(self, name: str, depth: int) -> Node:
        self.take()
        power: Node | None = None
        base: Node | None = None
        for _ in range(2):
            if self.peek() == "^" and power is None:
                self.take()
                power = self.script(depth)
            elif self.peek() == "_" and base is None and name == "log":
                self.take()
                base = self.single(depth)
        if power == ("neg", ("num", Fraction(1))) and name in _INVERSES:
            name, power = _INVERSES[name], None
        if name in ("max", "min", "gcd", "lcm"):
            arguments = self.arguments(depth)
        elif self.peek() in ("(", "[", "{"):
            arguments = [self.group(depth)]
        else:
            arguments = [self.bare_argument(depth)]
        if base is not None:
            arguments.append(base)
        node: Node = ("call", name, *arguments)
        return self.postfix(node) if power is None else ("pow", node, power)

    def bare_argument(self, depth: int) -> Node:
        """sin 2x y: factors up to the next operator or function; a sign may stand before."""
        sign = self.signs()
        node = self.power(depth)
        while True:
            token = self.peek()
            if token is None or token[1:] in FUNCTIONS or token in "([|" or not self.starts_factor(token):
                return ("neg", node) if sign < 0 else node
            node = ("mul", node, self.power(depth))

    def arguments(self, depth: int) -> list[Node]:
        closer = _CLOSERS.get(self.take(), "")
        found = [self.sum(depth + 1)]
        while self.peek() == ",":
            self.take()
            found.append(self.sum(depth + 1))
        self.take(closer)
        return found

    def symbol(self, name: str, depth: int, taken: bool = False) -> Node:
        if not taken:
            self.take()
        if self.peek() == "_":
            self.take()
            name += "_" + self.raw_group()
        while self.peek() == "'":
            name += self.take()
        if self.peek() == "(" and (name.rstrip("'") in OPAQUE or self.is_application()):
            return ("call", "opaque:" + name, *self.arguments(depth))
        if name == "e":
            return ("const", "e")
        return ("const", "i") if name == "i" else ("sym", name)

    def is_application(self) -> bool:
        """``I(0)`` and ``Q(x, y)`` are values of a function, not products."""
        if self.peek(2) == ")" and (self.peek(1) or " ")[0].isdigit():
            return True
        level = 0
        for token in self.tokens[self.at :]:
            level += (token in "([{") - (token in ")]}")
            if level == 0 or (token == "," and level == 1):
                return token == ","
        return False

    def raw_group(self) -> str:
        """The next argument as text: the name in a subscript or a font."""
        if self.peek() != "{":
            return self.take()
        level, text = 0, ""
        while True:
            token = self.take()
            level += (token == "{") - (token == "}")
            if level == 0:
                return text
            text += token if token not in "{}" else ""
