"""From tokens to cost (Learning to Ask, Eq. 4), exactly: amounts are fractions, never binary floats.

A price is taken as the decimal number that the recipe writes, so 1.25e-6 is 1.25 millionths and sums of many
costs are exact. An amount on disk is its decimal text.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction

from apprentice.config.ask import PricesConfig
from apprentice.costs.usage import Usage

__all__ = ["Prices", "amount_text", "exact"]


def exact(value: float | str | int | Fraction) -> Fraction:
    """The decimal number that ``value`` is written as: ``exact(0.1)`` is 1/10."""
    return value if isinstance(value, Fraction) else Fraction(str(value))


def amount_text(amount: Fraction) -> str:
    """An amount as decimal text, exactly; :func:`exact` reads it again.

    Raises:
        ValueError: it has no finite decimal text of reasonable length; sums of priced tokens always have.
    """
    with localcontext() as context:
        context.prec = 120
        value = Decimal(amount.numerator) / Decimal(amount.denominator)
        if Fraction(value) != amount:
            raise ValueError(f"the amount {amount} is no decimal number")
        return format(value.normalize(), "f")


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a token, in any unit of money."""

    input: Fraction
    output: Fraction
    cached_input: Fraction

    @classmethod
    def of(cls, config: PricesConfig) -> Prices:
        """The prices that a recipe gives; a cached token costs what an input token does if not said."""
        cached = config.input if config.cached_input is None else config.cached_input
        return cls(exact(config.input), exact(config.output), exact(cached))

    def cost(self, usage: Usage) -> Fraction | None:
        """Cost of one attempt: ``c_in |q| + c_out |z|`` (Eq. 4), cached prompt tokens at their own price.

        Reasoning tokens are part of the completion and counted once. A provider that does not say how many
        prompt tokens it had cached gave no discount. None: unknown.
        """
        if usage.prompt_tokens is None or usage.completion_tokens is None:
            return None
        cached = min(usage.cached_tokens or 0, usage.prompt_tokens)
        return (
            self.input * (usage.prompt_tokens - cached)
            + self.cached_input * cached
            + self.output * usage.completion_tokens
        )

    def worst_case(self, prompt_tokens: int, max_tokens: int) -> Fraction:
        """The most that one attempt may cost: every prompt token at the dearer input price, and the cap."""
        return max(self.input, self.cached_input) * prompt_tokens + self.output * max_tokens
