"""Waiting on actors. Every remote wait of the driver goes through :func:`gather`, and has a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from apprentice.errors import ApprenticeError, InfrastructureError, StalledError

__all__ = ["gather"]

_POLL_S = 1.0


def gather(
    refs: Mapping[str, ray.ObjectRef],
    *,
    timeout_s: float,
    what: str,
    on_wait: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Wait for every reference and return the values under the same names.

    Args:
        refs: name of the actor (for messages) -> reference.
        timeout_s: deadline for all of them together.
        what: what is being waited for, e.g. ``stage 1 step 12: rollouts``.
        on_wait: called about once a second while waiting (progress bars, heartbeats).

    Raises:
        StalledError: not all answered in time; names those that did not.
        InfrastructureError: an actor died; names it. Errors of our own tree pass through as they are.
    """
    deadline = time.monotonic() + timeout_s
    names = {ref: name for name, ref in refs.items()}
    pending = list(names)
    values: dict[str, Any] = {}
    while pending:
        left = deadline - time.monotonic()
        if left <= 0:
            late = ", ".join(sorted(names[ref] for ref in pending))
            raise StalledError(f"{what}: no answer from {late} within {timeout_s:.0f} s")
        ready, pending = ray.wait(pending, num_returns=len(pending), timeout=min(_POLL_S, left))
        for ref in ready:
            values[names[ref]] = _value(ref, names[ref], what)
        if on_wait is not None:
            on_wait()
    return {name: values[name] for name in refs}


def _value(ref: ray.ObjectRef, name: str, what: str) -> Any:
    try:
        return ray.get(ref, timeout=60.0)
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, ApprenticeError):
            raise cause from error
        raise
    except RayActorError as error:
        raise InfrastructureError(f"{what}: {name} died: {error}") from error
