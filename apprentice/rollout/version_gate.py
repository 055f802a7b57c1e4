"""Which policy version an engine serves, and the order of sampling and weight updates. Pure asyncio.

| who                    | waits for                              | is released by                         |
|------------------------|----------------------------------------|----------------------------------------|
| a generation           | an update that is under way            | its end, or its failure (stale: error) |
| an update              | generations in flight, other updates   | their end; its own deadline            |

An update waits for single generations, not for whole episodes: an episode goes on under the new weights with
its next turn, and every token carries the version that sampled it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from apprentice.errors import StaleEngineError, WeightSyncError

__all__ = ["VersionGate"]


class VersionGate:
    """Held open by generations, closed by updates.

    Args:
        name: of the worker, for messages.
        version: of the weights that the engine starts with; None: unknown, the engine starts stale.
    """

    def __init__(self, name: str, version: int | None = None) -> None:
        self._name = name
        self._version = version
        self._stale = "" if version is not None else "it has not been synchronized since it started"
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._open = asyncio.Event()
        self._open.set()
        self._updating = asyncio.Lock()
        self._pending: int | None = None
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def version(self) -> int | None:
        """Version of the weights that are served; None while stale."""
        return None if self._stale else self._version

    @property
    def stale(self) -> str:
        """Why nothing is served; empty when something is."""
        return self._stale

    @property
    def in_flight(self) -> int:
        """Generations under way."""
        return self._in_flight

    def adopt(self, version: int) -> None:
        """The engine is known to hold these weights (it has just loaded that checkpoint)."""
        if version < 0:
            raise ValueError(f"policy versions start at 0, not {version}")
        self._version, self._stale = version, ""

    def mark_stale(self, reason: str) -> None:
        """Serve nothing until the next update succeeds."""
        self._stale = reason or "marked stale"

    def check(self) -> int:
        """The version that is served.

        Raises:
            StaleEngineError: nothing is.
        """
        if self._stale or self._version is None:
            raise StaleEngineError(
                f"{self._name} is stale and samples nothing: {self._stale}; synchronize its weights first"
            )
        return self._version

    @asynccontextmanager
    async def sampling(self) -> AsyncIterator[int]:
        """Held while one generation runs; gives the version it samples under.

        Raises:
            StaleEngineError: the engine is stale, or the update that was waited for failed.
        """
        while not self._open.is_set():
            await self._open.wait()  # bounded by the update's own deadline
        version = self.check()
        self._in_flight += 1
        self._idle.clear()
        try:
            yield version
        finally:
            self._in_flight -= 1
            if self._in_flight == 0:
                self._idle.set()

    async def begin(self, version: int, timeout_s: float) -> None:
        """Close the gate for an update: wait for other updates (F13), then for generations in flight.

        Until :meth:`commit` or :meth:`fail`, at most ``timeout_s`` from this call, nothing is sampled. An
        update that nobody ends in time (its learner died) fails by itself.

        Raises:
            WeightSyncError: generations or another update did not end in time; the engine is stale.
        """
        if version < 0:
            raise ValueError(f"policy versions start at 0, not {version}")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        held = False
        try:
            async with asyncio.timeout_at(deadline):
                await self._updating.acquire()
                held = True
                self._open.clear()
                await self._idle.wait()
        except TimeoutError as error:
            what = f"{self._in_flight} generations did not end" if held else "another update did not end"
            self._abandon(held, f"the update to version {version} missed its deadline: {what}")
            raise WeightSyncError(
                f"{self._name} did not take policy version {version} within {timeout_s:g} s: {what}"
            ) from error
        except BaseException:
            self._abandon(held, f"the update to version {version} was cancelled")
            raise
        self._stale = f"the update to version {version} did not finish"
        self._pending = version
        self._expiry = loop.call_at(deadline, self.fail, f"the update to version {version} was never ended")

    def commit(self) -> int:
        """The update succeeded: serve its version, which is returned.

        Raises:
            WeightSyncError: no update is under way (it missed its deadline).
        """
        if self._pending is None:
            raise WeightSyncError(f"{self._name}: no update is under way: {self._stale or 'none was begun'}")
        self._version, self._stale = self._pending, ""
        self._end()
        return self._version

    def fail(self, reason: str) -> None:
        """The update failed: the engine is stale."""
        if self._pending is not None:
            self._stale = reason
            self._end()

    @asynccontextmanager
    async def updating(self, version: int, timeout_s: float) -> AsyncIterator[None]:
        """Held while the weights of ``version`` are loaded; :meth:`begin` and :meth:`commit` or :meth:`fail`.

        Raises:
            WeightSyncError: see :meth:`begin`; or loading did not end within ``timeout_s``.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        await self.begin(version, timeout_s)
        try:
            async with asyncio.timeout_at(deadline):
                yield
        except TimeoutError as error:
            reason = f"the update to version {version} missed its deadline"
            self.fail(reason)
            raise WeightSyncError(
                f"{self._name} did not take policy version {version} within {timeout_s:g} s"
            ) from error
        except BaseException as error:
            self.fail(f"the update to version {version} failed: {error!r}")
            raise
        self.commit()

    def _abandon(self, held: bool, reason: str) -> None:
        self._stale = reason
        if held:
            self._open.set()
            self._updating.release()

    def _end(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._pending, self._expiry = None, None
        self._open.set()
        self._updating.release()
