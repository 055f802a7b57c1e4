"""What many calls cost together, over models with and without a price."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from apprentice.costs.prices import Prices
from apprentice.costs.usage import Usage

__all__ = ["CostSummary", "summarize"]


@dataclass(slots=True)
class CostSummary:
    """``cost`` is that of the calls whose cost is known; the others are excluded and counted, never zero."""

    cost: Fraction = Fraction(0)
    priced_calls: int = 0
    unknown_usage: int = 0
    unpriced: Counter[str] = field(default_factory=Counter)
    """Model -> calls to it, where it has no price."""

    @property
    def complete(self) -> bool:
        """Whether ``cost`` is that of all calls."""
        return not self.unknown_usage and not self.unpriced


def summarize(calls: Iterable[tuple[str, Usage]], prices: Mapping[str, Prices]) -> CostSummary:
    """Add up ``(model, usage)`` of many calls. A model that is not in ``prices`` is unpriced (H13)."""
    out = CostSummary()
    for model, usage in calls:
        if model not in prices:
            out.unpriced[model] += 1
            continue
        cost = prices[model].cost(usage)
        if cost is None:
            out.unknown_usage += 1
        else:
            out.cost += cost
            out.priced_calls += 1
    return out
