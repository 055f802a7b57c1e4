"""Equality of two expression trees by value: exact where both are rational, else at 50 digits.

Expressions with free symbols are compared at several points. Two different expressions agree at all of them
only if they differ by less than 1e-40 of their size there, or by construction against this very test.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
import threading
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

from mpmath import libmp  # type: ignore[import-untyped]
from mpmath.ctx_mp import MPContext  # type: ignore[import-untyped]

from apprentice.verify.expression import Node, symbols_of

__all__ = ["DECIMAL_TOLERANCE", "EvaluationError", "equal_values", "evaluate", "rational_value"]

DECIMAL_TOLERANCE: Final = Fraction(5, 10**6)
"""Relative error allowed between a decimal and an exact value: 0.333333 is 1/3, 0.333 is not."""

_DIGITS: Final = 50
_AGREE: Final = 40  # digits to agree in, of the larger side
_MAX_BITS: Final = 50_000  # of an exact power or factorial; beyond it floating point
_MAX_EXPONENT: Final = 10**12
_POINTS: Final = 5
_AT_INTEGERS: Final = ("binom", "floor", "ceil", "gcd", "lcm", "double_factorial")

Value = Any  # Fraction, or an mpmath real or complex number


class EvaluationError(ValueError):
    """No value at this point: a pole, an unknown function, or a number too large to hold."""


def rational_value(node: Node) -> Fraction | None:
    """The exact value, if the expression is rational arithmetic on numbers."""
    try:
        value = _Evaluator({}).value(node)
    except EvaluationError:
        return None
    return value if isinstance(value, Fraction) else None


def evaluate(node: Node, point: Mapping[str, Fraction]) -> Value:
    """The value with symbols set to ``point``.

    Raises:
        EvaluationError: there is none, or it cannot be held.
    """
    return _Evaluator(point).value(node)


def equal_values(gold: Node, answer: Node, tolerance: Fraction = Fraction(0)) -> bool | None:
    """Whether two expressions are equal; ``None`` if no point could decide it.

    Args:
        gold: one side.
        answer: the other side.
        tolerance: relative difference allowed; 0 means to :data:`_AGREE` digits.
    """
    names = sorted(symbols_of(gold) | symbols_of(answer))
    if not names:
        return _agree_at(gold, answer, {}, tolerance)
    decided = 0
    rng = random.Random("|".join(names))
    integral = _needs_integers(gold) or _needs_integers(answer)
    for attempt in range(6 * _POINTS):
        if integral or attempt % 3 == 2:
            start = 2 + 3 * attempt  # spread out: a floor of a root is the same at many neighbours
            values = rng.sample(range(start, start + 12 * len(names) + 4 * attempt), len(names))
            point = dict(zip(names, map(Fraction, values), strict=True))
        else:
            point = {name: Fraction(rng.randint(200, 3000), 997) for name in names}
        verdict = _agree_at(gold, answer, point, tolerance)
        if verdict is False:
            return False
        decided += verdict is True
        if decided == _POINTS:
            return True
    return None


def _agree_at(gold: Node, answer: Node, point: Mapping[str, Fraction], tolerance: Fraction) -> bool | None:
    """Whether both have the same value at one point; more digits where terms cancel."""
    for digits in (_DIGITS, 3 * _DIGITS, 8 * _DIGITS):
        evaluator = _Evaluator(point, digits)
        try:
            a, b = evaluator.value(gold), evaluator.value(answer)
        except EvaluationError:
            return None
        if isinstance(a, Fraction) and isinstance(b, Fraction):
            return abs(a - b) <= tolerance * max(abs(a), abs(b))
        ctx = evaluator.ctx
        a, b = evaluator.number(a), evaluator.number(b)
        if ctx.isinf(a) or ctx.isinf(b):
            return bool(a == b)
        allowed = max(evaluator.number(tolerance), ctx.mpf(10) ** -_AGREE)
        scale = max(abs(a), abs(b))
        if abs(a - b) <= allowed * scale:
            return True
        if scale > evaluator.largest_term * ctx.mpf(10) ** -(digits - _AGREE - 5):
            return False  # enough digits are left after the cancellation of terms
    return True  # what is left of the terms is their rounding error, at any precision: both are 0


def _needs_integers(node: Node) -> bool:
    """Factorials, binomials, floors and powers of negative numbers mean something at integers."""
    if node[0] == "fact" or (node[0] == "call" and node[1] in _AT_INTEGERS):
        return bool(symbols_of(node))
    if node[0] == "pow" and symbols_of(node[2]) and node[1][0] == "neg":
        return True
    return any(_needs_integers(child) for child in node[1:] if isinstance(child, tuple))


_local = threading.local()


def _context() -> MPContext:
    """This thread's arithmetic: mpmath's global context is shared between threads."""
    if not hasattr(_local, "context"):
        _local.context = MPContext()
    return _local.context


class _Evaluator:
    """Evaluates at one point."""

    def __init__(self, point: Mapping[str, Fraction], digits: int = _DIGITS) -> None:
        self.ctx = _context()
        self.ctx.dps = digits
        self.point = point
        self.largest_term = self.ctx.mpf(0)  # of a sum: what its rounding error is relative to

    def number(self, value: Value) -> Value:
        return self.ctx.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value

    def value(self, node: Node) -> Value:
        try:
            value = self._value(node)
        except (
            ZeroDivisionError,
            OverflowError,
            ValueError,
            TypeError,
            libmp.libhyper.NoConvergence,
        ) as error:
            if isinstance(error, EvaluationError):
                raise
            raise EvaluationError(str(error)) from error
        if not isinstance(value, Fraction) and self.ctx.isnan(value):
            raise EvaluationError("not a number")
        return value

    def _value(self, node: Node) -> Value:
        kind = node[0]
        if kind == "num":
            return node[1]
        if kind == "sym":
            return self.point[node[1]]
        if kind == "const":
            return {"pi": +self.ctx.pi, "e": +self.ctx.e, "i": self.ctx.mpc(0, 1), "oo": self.ctx.inf}[
                node[1]
            ]
        if kind == "neg":
            return -self.value(node[1])
        if kind == "abs":
            return abs(self.value(node[1]))
        if kind in ("add", "mul", "div"):
            return self.binary(kind, self.value(node[1]), self.value(node[2]))
        if kind == "pow":
            return self.power(self.value(node[1]), self.value(node[2]), node)
        if kind == "fact":
            return self.factorial(self.value(node[1]))
        return self.call(node[1], [self.value(argument) for argument in node[2:]])

    def binary(self, kind: str, a: Value, b: Value) -> Value:
        if not (isinstance(a, Fraction) and isinstance(b, Fraction)):
            a, b = self.number(a), self.number(b)
        elif max(a.numerator.bit_length(), b.numerator.bit_length()) > 4 * _MAX_BITS:
            raise EvaluationError("too large")
        if kind == "add":
            if not isinstance(a, Fraction) and not self.ctx.isinf(a) and not self.ctx.isinf(b):
                self.largest_term = max(self.largest_term, abs(a), abs(b))
            return a + b
        return a * b if kind == "mul" else a / b

    def power(self, base: Value, exponent: Value, node: Node) -> Value:
        if isinstance(exponent, Fraction):
            if exponent.denominator == 1 and isinstance(base, Fraction):
                bits = max(base.numerator.bit_length(), base.denominator.bit_length())
                if bits * abs(exponent.numerator) <= _MAX_BITS:
                    return base**exponent.numerator
            if isinstance(base, Fraction) and base < 0 and exponent.denominator % 2:
                # A root of odd order of a negative number is real: \sqrt[3]{-8} = -2.
                size = self.power(-base, exponent, node)
                return -size if exponent.numerator % 2 else size
        base, exponent = self.number(base), self.number(exponent)
        if base == 0 and self.ctx.re(exponent) <= 0:
            raise EvaluationError("zero to a power that is not positive" if exponent else "0^0")
        if abs(exponent) > _MAX_EXPONENT:
            raise EvaluationError("too large")
        return base**exponent

    def factorial(self, x: Value) -> Value:
        if isinstance(x, Fraction) and x.denominator == 1:
            if x < 0:
                raise EvaluationError("factorial of a negative number")
            if x <= 3000:
                return Fraction(int(libmp.ifac(int(x))))
        if abs(x) > _MAX_EXPONENT:
            raise EvaluationError("too large")
        return self.ctx.factorial(self.number(x))

    def call(self, name: str, arguments: list[Value]) -> Value:
        if name.startswith("opaque:"):
            return self.opaque(name, arguments)
        if name in ("max", "min"):
            numbers = [self.number(a) for a in arguments]
            return max(numbers) if name == "max" else min(numbers)
        if name in ("gcd", "lcm"):
            return self.divisors(name, arguments)
        x = arguments[0]
        if name in ("floor", "ceil"):
            if isinstance(x, Fraction):
                return Fraction(x.__floor__() if name == "floor" else x.__ceil__())
            return self.ctx.floor(x) if name == "floor" else self.ctx.ceil(x)
        if name == "double_factorial":
            return self.double_factorial(x)
        if name == "binom":
            return self.binomial(*arguments)
        if name == "sgn":
            return self.ctx.sign(self.number(x))
        z = self.number(x)
        if name == "exp" and abs(z) > _MAX_EXPONENT:
            raise EvaluationError("too large")
        if name in ("ln", "log", "lg"):
            # log without a base is natural, as in most answers; both sides are read alike.
            base = {"lg": self.ctx.mpf(10)}.get(name)
            if len(arguments) > 1:
                base = self.number(arguments[1])
            return self.ctx.ln(z) if base is None else self.ctx.ln(z) / self.ctx.ln(base)
        function = {"arcsin": "asin", "arccos": "acos", "arctan": "atan", "arccot": "acot"}.get(name, name)
        result = getattr(self.ctx, function)(z)
        # sin(pi) comes out as the rounding error of pi.
        return Fraction(0) if abs(result) < self.ctx.mpf(10) ** (8 - self.ctx.dps) else result

    def binomial(self, n: Value, k: Value) -> Value:
        if isinstance(n, Fraction) and isinstance(k, Fraction) and n.denominator == k.denominator == 1:
            if 0 <= k <= n <= 3000:
                return Fraction(_choose(int(n), int(k)))
            if 0 <= n < k or k < 0:
                return Fraction(0)
        return self.ctx.binomial(self.number(n), self.number(k))

    def double_factorial(self, x: Value) -> Value:
        if not (isinstance(x, Fraction) and x.denominator == 1 and -1 <= x <= 3000):
            raise EvaluationError("double factorial of something else than a small integer")
        return Fraction(math.prod(range(int(x), 0, -2)))

    def divisors(self, name: str, arguments: list[Value]) -> Value:
        if not all(isinstance(a, Fraction) and a.denominator == 1 for a in arguments):
            raise EvaluationError(f"{name} of numbers that are not integers")
        whole = [int(a) for a in arguments]
        return Fraction(math.gcd(*whole) if name == "gcd" else math.lcm(*whole))

    def opaque(self, name: str, arguments: list[Value]) -> Value:
        """An unknown function: some number that depends on the name and the arguments' values alone."""
        text = name + "|".join(self.ctx.nstr(self.number(a), 25) for a in arguments)
        digest = hashlib.sha256(text.encode()).digest()
        return Fraction(int.from_bytes(digest[:6], "big") + 1, 2**40)


def _choose(n: int, k: int) -> int:
    result = 1
    for i, top in zip(itertools.count(1), range(n, n - min(k, n - k), -1), strict=False):
        result = result * top // i
    return result
