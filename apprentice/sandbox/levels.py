"""Which isolation level a machine gives: tried from the highest down, and shown by the self-test."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from apprentice.errors import SandboxError
from apprentice.sandbox import selftest
from apprentice.sandbox.isolation import Level
from apprentice.sandbox.worker import LevelRefused, Worker

__all__ = ["REMEDY", "reach"]

_log = logging.getLogger(__name__)

REMEDY = (
    "`apprentice sandbox doctor` says what to change in a container or pod. Code that a model wrote must not "
    "run here as it is; sandbox.level: none runs it all the same, with the rights of this account, to debug"
)


async def reach(workers: Sequence[Worker], levels: Sequence[Level]) -> Level:
    """Start all workers at the first of ``levels`` (from the highest down) that this machine gives.

    A level counts as given if every layer of it can be put on and every zygote stops the attacks that the
    level is to stop. Logs the level reached, once.

    Raises:
        SandboxError: none is given, and why; or a worker did not come up.
    """
    reasons: list[str] = []
    for level in levels:
        try:
            await workers[0].start(level)
            await asyncio.gather(*(worker.start(level) for worker in workers[1:]))
            await _try_attacks(workers)
        except LevelRefused as refused:
            reasons.append(f"level {level}: {refused}")
            await asyncio.gather(*(worker.stop() for worker in workers))
            continue
        facts = workers[0].facts
        _log.log(
            logging.WARNING if level is Level.NONE else logging.INFO,
            "sandbox isolation level %s (%s; cells run as %s)%s",
            level,
            facts["layers"],
            facts["account"],
            "".join(f"; not {reason}" for reason in reasons),
        )
        return level
    raise SandboxError(
        f"isolation level {levels[-1]} is not reached on this machine: {'; '.join(reasons)}. {REMEDY}"
    )


async def _try_attacks(workers: Sequence[Worker]) -> None:
    if workers[0].level is Level.NONE:
        return  # stops nothing, and whoever asked for it knows
    with selftest.targets() as targets:
        for findings in await asyncio.gather(*(selftest.run(worker, targets) for worker in workers)):
            if got_through := [f for f in findings if not f.expected]:
                shown = ", ".join(f"{f.attack.row} ({f.attack.name}): {f.detail}" for f in got_through)
                raise LevelRefused(f"the self-test was not passed: {shown}")
