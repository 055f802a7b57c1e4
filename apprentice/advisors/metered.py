"""Calls through the ledger: reserve, send, settle, for every attempt; one call is paid for once.

=======================  ==================================  ==============================================
who waits                for what                            who ends the wait
=======================  ==================================  ==============================================
an asker                 the call's task, which all askers   the task; the asker's own deadline (the task
                         of one call share                   goes on and its answer is kept)
the task                 a free place at the advisor         another attempt's end; ``queue_s``
the task                 an attempt                          the backend; its timeout
the task                 its reservation on the disk         the disk
=======================  ==================================  ==============================================
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from apprentice.advisors.types import AttemptFailure, AttemptReply, AttemptRequest, AttemptResult
from apprentice.costs.ledger import Known, Ledger, Refused
from apprentice.costs.records import CallId, KeptAnswer
from apprentice.costs.usage import Usage
from apprentice.errors import AdvisorError
from apprentice.experts.prompt import Message
from apprentice.experts.retry import RetryPolicy, with_retries
from apprentice.experts.types import BackendFailure, ExpertAnswer

__all__ = ["CallAnswer", "CallRefused", "MeteredCall", "MeteredCalls", "Send"]

_log = logging.getLogger(__name__)
Send = Callable[[AttemptRequest, float], Awaitable[AttemptResult]]
"""``send(request, timeout_s)``: one attempt. If it raises, what the attempt cost is unknown."""
_MAX_PENDING = 4096  # calls that wait for a place at the advisor; more are turned away before any reservation


@dataclass(frozen=True, slots=True)
class MeteredCall:
    """One call. ``variants[i]`` are the messages of attempt ``i`` (the last ones from then on).

    ``prompt_bound``: the most prompt tokens of any of them.
    """

    call: CallId
    key: str
    variants: tuple[tuple[Message, ...], ...]
    prompt_bound: int
    max_tokens: int

    @property
    def digest(self) -> str:
        """Of everything that decides the answer."""
        said = json.dumps([self.variants[0], self.max_tokens], ensure_ascii=True, sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class CallAnswer:
    """The answer, with what all attempts of the call cost together (None: not known)."""

    text: str
    finish_reason: str
    prompt_tokens: int | None
    completion_tokens: int | None
    cost: float | None
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class CallRefused:
    """The budget that has no room: ``trajectory``, ``run`` or ``key``."""

    budget: str


class MeteredCalls:
    """All calls of one ledger.

    Args:
        ledger: owned by this process.
        places: attempts that the advisor takes at one time; the others wait here, with nothing reserved.
        policy: retries of one call.
        queue_s: how long a call may wait for a place.
        rng: of the pauses between retries.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        places: int,
        policy: RetryPolicy,
        queue_s: float = 120.0,
        rng: random.Random | None = None,
    ) -> None:
        self._ledger, self._policy, self._queue_s, self._rng = ledger, policy, queue_s, rng
        self._places = asyncio.Semaphore(places)
        self._running: dict[CallId, asyncio.Task[CallAnswer | CallRefused]] = {}
        self._disk = _Disk(ledger)
        self.repeated = 0
        """Requests for a call that was under way or had ended: they cost nothing."""

    @property
    def under_way(self) -> int:
        """Calls that are not answered yet."""
        return len(self._running)

    async def ask(
        self, call: MeteredCall, send: Send, read: Callable[[AttemptReply], AttemptResult]
    ) -> CallAnswer | CallRefused:
        """Answer a call, or say which budget refuses it.

        The same call asked twice is sent once: who comes second waits for the same answer, or gets the one
        that was kept. Giving up waiting does not stop the call.

        Args:
            send: makes one attempt.
            read: what the asker sees of a reply, or why it is none; a failure is charged all the same.

        Raises:
            AdvisorError: it failed past its retries, now or when it was first asked; kinds are those of the
                backend, and ``retry_over_budget``, ``overloaded``, ``call_id_reused``, ``ledger``.
        """
        task = self._running.get(call.call)
        if task is not None:
            self._ledger.look_up(call.call, call.digest)  # refuses another query under this name
            self.repeated += 1
        else:
            if len(self._running) >= _MAX_PENDING:
                raise AdvisorError(f"{_MAX_PENDING} calls wait for the advisor already", kind="overloaded")
            task = asyncio.create_task(self._answer(call, send, read))
            self._running[call.call] = task
            task.add_done_callback(lambda done: self._ended(call.call, done))
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Stop all calls. What was under way stays reserved."""
        for task in list(self._running.values()):
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    def _ended(self, call: CallId, task: asyncio.Task[CallAnswer | CallRefused]) -> None:
        self._running.pop(call, None)
        if not task.cancelled():
            task.exception()  # every asker may be gone

    async def _answer(
        self, call: MeteredCall, send: Send, read: Callable[[AttemptReply], AttemptResult]
    ) -> CallAnswer | CallRefused:
        known = self._ledger.look_up(call.call, call.digest)
        if known.state != "new":
            self.repeated += 1
        if known.state == "answered":
            return _kept(known)
        if known.state == "refused":
            return CallRefused(known.kind)
        if known.state == "failed":
            raise AdvisorError(known.message, kind=known.kind)
        left = self._policy.max_retries - known.attempts
        if left < 0:  # an earlier owner of the ledger died during the last attempt
            what = f"its {known.attempts} attempts were lost"
            self._ledger.fail(call.call, "attempts_lost", what)
            raise AdvisorError(what, kind="attempts_lost")
        policy = dataclasses.replace(self._policy, max_retries=left)
        tries = _Tries(self, call, send, read, self._queue_s, first=known.attempts)
        try:
            await with_retries(tries.one, policy, rng=self._rng)
        except _NoRoom as refusal:
            return CallRefused(refusal.budget)
        except BackendFailure as failure:
            if tries.made:
                self._ledger.fail(call.call, failure.kind, failure.message)
            raise AdvisorError(failure.message, kind=failure.kind) from None
        assert tries.kept is not None
        return _answer(tries.kept, self._ledger.cost(call.call))


class _Disk:
    """One sync at a time, in a thread; it serves everybody who asked before it began."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._waiting: list[asyncio.Future[None]] = []
        self._syncing: asyncio.Task[None] | None = None

    async def commit(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        if self._syncing is None:
            self._syncing = asyncio.create_task(self._sync())
        await waiter

    async def _sync(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                error: AdvisorError | None = None
                try:
                    await asyncio.to_thread(self._ledger.commit)
                except AdvisorError as failed:
                    error = failed
                for waiter in batch:
                    if waiter.done():
                        continue
                    if error is None:
                        waiter.set_result(None)
                    else:
                        waiter.set_exception(error)
        finally:
            self._syncing = None


class _NoRoom(Exception):
    """The first attempt was refused."""

    def __init__(self, budget: str) -> None:
        super().__init__(budget)
        self.budget = budget


class _Tries:
    """The attempts of one call."""

    def __init__(
        self,
        calls: MeteredCalls,
        call: MeteredCall,
        send: Send,
        read: Callable[[AttemptReply], AttemptResult],
        queue_s: float,
        first: int,
    ) -> None:
        self._calls, self._call, self._send, self._read = calls, call, send, read
        self._queue_s, self.made = queue_s, first
        self.kept: KeptAnswer | None = None

    async def one(self, timeout_s: float) -> ExpertAnswer:
        """Reserve, send, settle."""
        calls, call = self._calls, self._call
        try:
            await asyncio.wait_for(calls._places.acquire(), self._queue_s)
        except TimeoutError:
            raise _failure("overloaded", f"no place at the advisor within {self._queue_s:g} s") from None
        try:
            number = self._reserve()
            await calls._disk.commit()
            if isinstance(number, Refused):
                if not self.made:
                    raise _NoRoom(number.budget)
                what = f"attempt {self.made + 1} does not fit the budget of the {number.budget}"
                raise _failure("retry_over_budget", what)
            self.made = number
            variant = call.variants[min(number, len(call.variants)) - 1]
            request = AttemptRequest(variant, call.max_tokens, call.call.request_id(number))
            result = await self._send_one(request, timeout_s)
        finally:
            calls._places.release()
        return self._settle(number, result)

    def _reserve(self) -> int | Refused:
        call = self._call
        return self._calls._ledger.reserve(
            call.call,
            key=call.key,
            digest=call.digest,
            prompt_bound=call.prompt_bound,
            max_tokens=call.max_tokens,
            commit=False,
        )

    async def _send_one(self, request: AttemptRequest, timeout_s: float) -> AttemptResult:
        try:
            return await asyncio.wait_for(self._send(request, timeout_s), timeout_s + 5.0)
        except TimeoutError:
            return AttemptFailure("timeout", f"no answer within {timeout_s:g} s", True)
        except Exception as error:  # noqa: BLE001 - a bug in a backend must not leave the attempt open
            _log.exception("attempt %s broke", request.request_id)
            return AttemptFailure("broken", f"{type(error).__name__}: {error}")

    def _settle(self, number: int, result: AttemptResult) -> ExpertAnswer:
        usage = result.usage
        if isinstance(result, AttemptReply):
            result = self._read(result)
        ledger, call = self._calls._ledger, self._call.call
        if isinstance(result, AttemptFailure):
            ledger.settle(call, number, usage, result.kind)
            raise BackendFailure(
                result.message,
                kind=result.kind,
                retryable=result.retryable,
                retry_after_s=result.retry_after_s,
                usage=usage,
            )
        self.kept = KeptAnswer(
            result.text, result.finish_reason, usage.prompt_tokens, usage.completion_tokens
        )
        ledger.settle(call, number, usage, "ok", self.kept)
        return ExpertAnswer(text=result.text, usage=usage, finish_reason=result.finish_reason)


def _failure(kind: str, message: str) -> BackendFailure:
    return BackendFailure(message, kind=kind, usage=Usage(0, 0, 0, 0))


def _kept(known: Known) -> CallAnswer:
    assert known.answer is not None
    return dataclasses.replace(_answer(known.answer, known.cost), repeated=True)


def _answer(kept: KeptAnswer, cost: float | None) -> CallAnswer:
    return CallAnswer(kept.text, kept.finish_reason, kept.prompt_tokens, kept.completion_tokens, cost)
