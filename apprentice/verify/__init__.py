"""Answer verification: one extractor, one set of rules, workers that can be killed (docs/verification.md).

:class:`RuleVerifier` loads when it is first asked for: the worker processes import from this package too, and
need none of what it brings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from apprentice.verify.verifier import RuleVerifier

__all__ = ["RuleVerifier"]


def __getattr__(name: str) -> Any:
    if name == "RuleVerifier":
        from apprentice.verify.verifier import RuleVerifier

        return RuleVerifier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
