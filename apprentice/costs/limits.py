"""Hard limits on what calls may cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from apprentice.config.ask import BudgetConfig
from apprentice.costs.prices import amount_text, exact

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits in units of the prices; None: no limit.

    Those of a trajectory and of the run hold for the account ``advisor`` (C of Eq. 3); a key's limit holds
    for all that is charged to the key.
    """

    per_trajectory: Fraction | None = None
    per_run: Fraction | None = None
    per_key: Mapping[str, Fraction] = field(default_factory=dict)

    @classmethod
    def of(cls, config: BudgetConfig) -> Limits:
        """The limits that a recipe gives."""
        return cls(
            None if config.per_trajectory is None else exact(config.per_trajectory),
            None if config.per_run is None else exact(config.per_run),
            {key: exact(limit) for key, limit in config.per_key.items()},
        )

    def to_json(self) -> dict[str, Any]:
        """For the ledger's file."""
        return {
            "per_trajectory": None if self.per_trajectory is None else amount_text(self.per_trajectory),
            "per_run": None if self.per_run is None else amount_text(self.per_run),
            "per_key": {key: amount_text(limit) for key, limit in self.per_key.items()},
        }
