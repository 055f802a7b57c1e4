"""The typed client of the advisor, and of the judge."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import ray
from ray import serve
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle

from apprentice.advisors.metered import CallAnswer, CallRefused
from apprentice.advisors.rule_judge import RuleJudge
from apprentice.config.ask import AskConfig
from apprentice.costs.book import AccountTotals
from apprentice.episodes.actions import AdvisorRefused, AdvisorReply, AskAdvisor, JudgeQuery, QueryJudged
from apprentice.errors import AdvisorError
from apprentice.experts.retry import total_deadline_s
from serve._advisor_types import Outcome, Question, app_name

__all__ = ["ServeAdvisorClient", "ServeQueryJudge"]

_log = logging.getLogger(__name__)
_QUEUE_S = 240.0  # waiting for a place, and for a meter that is being replaced
_REFUSED = {
    "trajectory": "The advisor budget of this problem is spent.",
    "run": "The advisor budget is spent.",
    "key": "The advisor budget is spent.",
}


@dataclass(slots=True)
class _Tally:
    calls: int = 0
    ok: int = 0
    refused: int = 0
    repeated: int = 0
    resent: int = 0
    inflight: int = 0
    peak: int = 0
    seconds: float = 0.0
    cost: float = 0.0
    unknown_cost: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    failures: Counter[str] = field(default_factory=Counter)


class _Sender:
    """Sends a question until it is answered. Sending again is free: the ledger knows the call."""

    def __init__(self, config: AskConfig, queue_s: float) -> None:
        self._name = config.advisor.name
        self._limit_s = total_deadline_s(config.advisor.timeout_s, config.advisor.max_retries) + queue_s
        self._handle: DeploymentHandle[Any] | None = None
        self.tally = _Tally()

    async def send(self, question: Question) -> Outcome:
        """The meter's answer.

        Raises:
            AdvisorError: kind ``timeout``: there was none by the deadline; or what the meter raised.
        """
        tally = self.tally
        tally.calls += 1
        tally.inflight += 1
        tally.peak = max(tally.peak, tally.inflight)
        started = time.monotonic()
        try:
            outcome = await self._until(question, started + self._limit_s)
            if isinstance(outcome, AdvisorError):
                raise outcome
            tally.ok += 1
            return outcome
        except AdvisorError as error:
            tally.failures[error.kind] += 1
            raise
        finally:
            tally.inflight -= 1
            tally.seconds += time.monotonic() - started

    async def _until(self, question: Question, deadline: float) -> Outcome:
        why, pause = "no answer", 0.25
        while (left := deadline - time.monotonic()) > 0:
            try:
                outcome = await self._once(question, left)
                if not (isinstance(outcome, AdvisorError) and outcome.kind == "overloaded"):
                    return outcome
                why = str(outcome)
            except TimeoutError:
                break
            except ray.exceptions.RayTaskError as error:
                said = f"{type(error.cause).__name__}: {error.cause}"
                raise AdvisorError(
                    f"the meter of advisor {self._name!r} broke: {said}", kind="broken"
                ) from error
            except (BackPressureError, ray.exceptions.RayError, RayServeException) as error:
                why, self._handle = type(error).__name__, None
                _log.warning("advisor %s: the meter is away (%s); the call is sent again", self._name, why)
            self.tally.resent += 1
            await asyncio.sleep(min(random.uniform(0.5, 1.0) * pause, max(0.0, deadline - time.monotonic())))
            pause = min(2.0 * pause, 4.0)
        raise AdvisorError(
            f"advisor {self._name!r}: no answer within {self._limit_s:.0f} s ({why})", kind="timeout"
        )

    async def _once(self, question: Question, timeout_s: float) -> Outcome:
        if self._handle is None:
            self._handle = serve.get_app_handle(app_name(self._name))
        response = self._handle.call.remote(question)
        try:
            outcome: Outcome = await asyncio.wait_for(_result(response), timeout_s)
            return outcome
        except (TimeoutError, asyncio.CancelledError):
            response.cancel()  # the call itself goes on, and its answer is kept
            raise


async def _result(response: Any) -> Any:
    return await response


class ServeAdvisorClient:
    """The metered advisor; an :class:`apprentice.rollout.ports.AdvisorClient`.

    Picklable; the handle is looked up in the process that uses it, which must be part of the Ray cluster.
    Every process that holds a copy counts for itself; the ledger counts for all (:meth:`totals`).

    Args:
        config: of Learning to Ask.
        scope: keeps apart trajectories of one name: a pair of trajectory id and call index is one call
            within a scope.
        key: what calls are charged to; the recipe's if empty.
        queue_s: seconds that a call may wait on top of its own deadline.
    """

    def __init__(self, config: AskConfig, *, scope: str, key: str = "", queue_s: float = _QUEUE_S) -> None:
        self._config, self._scope, self._key, self._queue_s = config, scope, key, queue_s
        self._sender = _Sender(config, queue_s)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_client, (self._config, self._scope, self._key, self._queue_s)

    @property
    def scope(self) -> str:
        """Where its calls' names hold."""
        return self._scope

    def scoped(self, scope: str) -> ServeAdvisorClient:
        """A client whose trajectories' names hold in ``scope``, within this client's own: one for each stage,
        or wherever trajectory ids begin anew."""
        return _rebuild_client(self._config, f"{self._scope}/{scope}", self._key, self._queue_s)

    def charged_to(self, key: str) -> ServeAdvisorClient:
        """A client whose calls are charged to another key."""
        return _rebuild_client(self._config, self._scope, key, self._queue_s)

    def judge_client(self) -> ServeQueryJudge | RuleJudge:
        """The completeness gate that the recipe names; the rule needs no service."""
        if self._config.judge.kind == "rule":
            return RuleJudge()
        return ServeQueryJudge(self._config, scope=self._scope, queue_s=self._queue_s)

    async def ask(self, request: AskAdvisor) -> AdvisorReply | AdvisorRefused:
        """Ask, within the budgets. Sending one call twice charges it once and gives one answer.

        Raises:
            AdvisorError: it failed past its retries.
        """
        started = time.monotonic()
        outcome = await self._sender.send(Question(request, self._scope, self._key))
        tally = self._sender.tally
        if isinstance(outcome, CallRefused):
            tally.refused += 1
            return AdvisorRefused(_REFUSED[outcome.budget])
        assert isinstance(outcome, CallAnswer)
        tally.repeated += outcome.repeated
        tally.prompt_tokens += outcome.prompt_tokens or 0
        tally.completion_tokens += outcome.completion_tokens or 0
        if outcome.cost is None:
            tally.unknown_cost += 1
        elif not outcome.repeated:
            tally.cost += outcome.cost
        return AdvisorReply(
            text=outcome.text,
            prompt_tokens=outcome.prompt_tokens,
            completion_tokens=outcome.completion_tokens,
            finish_reason=outcome.finish_reason,
            cost=outcome.cost,
            seconds=time.monotonic() - started,
        )

    def metrics(self) -> dict[str, float]:
        """Numbers since the start of this client.

        ``calls``, ``ok``, ``refused`` (by a budget), ``failed/<kind>``, ``repeated`` (answers that were
        kept), ``resent`` (the meter was away or full), ``inflight`` and its ``peak``; mean ``seconds`` a
        call; tokens and ``cost`` where known, and answers of ``unknown_cost``.
        """
        t = self._sender.tally
        return {
            "calls": t.calls,
            "ok": t.ok - t.refused,
            "refused": t.refused,
            "repeated": t.repeated,
            "resent": t.resent,
            "inflight": t.inflight,
            "peak": t.peak,
            "seconds": t.seconds / max(1, t.calls - t.inflight),
            "prompt_tokens": t.prompt_tokens,
            "completion_tokens": t.completion_tokens,
            "cost": t.cost,
            "unknown_cost": t.unknown_cost,
            **{f"failed/{kind}": n for kind, n in sorted(t.failures.items())},
        }

    def totals(self, timeout_s: float = 60.0) -> dict[str, AccountTotals]:
        """Account (``advisor``, ``judge``) -> sums of the ledger since it was begun, all clients together.

        Not from within an event loop.

        Raises:
            TimeoutError: the meter did not answer.
            RayError: it died meanwhile.
        """
        handle = serve.get_app_handle(app_name(self._config.advisor.name))
        totals: dict[str, AccountTotals] = handle.totals.remote().result(timeout_s=timeout_s)
        return totals


class ServeQueryJudge:
    """The completeness gate by a model; an :class:`apprentice.rollout.ports.QueryJudge`. Picklable."""

    def __init__(self, config: AskConfig, *, scope: str, queue_s: float = _QUEUE_S) -> None:
        self._config, self._scope, self._queue_s = config, scope, queue_s
        self._sender = _Sender(config, queue_s)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_judge, (self._config, self._scope, self._queue_s)

    async def judge(self, request: JudgeQuery) -> QueryJudged:
        """Whether the query is answerable as it is.

        Raises:
            AdvisorError: the judge failed past its retries.
        """
        outcome = await self._sender.send(Question(request, self._scope))
        assert isinstance(outcome, QueryJudged)
        return outcome


def _rebuild_client(config: AskConfig, scope: str, key: str, queue_s: float) -> ServeAdvisorClient:
    return ServeAdvisorClient(config, scope=scope, key=key, queue_s=queue_s)


def _rebuild_judge(config: AskConfig, scope: str, queue_s: float) -> ServeQueryJudge:
    return ServeQueryJudge(config, scope=scope, queue_s=queue_s)
