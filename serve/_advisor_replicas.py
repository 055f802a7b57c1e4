"""The two deployments of an advisor: replicas that make attempts, and the meter that owns the ledger."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import ray
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle
from ray.util import metrics as ray_metrics

from apprentice.advisors.backends import OpenAIAdvisor, make_advisor
from apprentice.advisors.metered import CallAnswer, CallRefused
from apprentice.advisors.service import AdvisorService, open_ledger
from apprentice.advisors.types import AttemptFailure, AttemptReply, AttemptRequest, AttemptResult
from apprentice.config.ask import AdvisorConfig, AskConfig
from apprentice.config.parts import VllmBackend
from apprentice.config.schema import ExpertConfig
from apprentice.costs.book import AccountTotals
from apprentice.costs.reconcile import AdvisorLog
from apprentice.costs.usage import Usage
from apprentice.episodes.actions import AskAdvisor, QueryJudged
from apprentice.errors import AdvisorError
from serve._advisor_types import Outcome, Question
from serve._expert_engine import ExpertEngine

__all__ = ["AdvisorMeter", "AdvisorReplica", "engine_config", "runs_in_meter"]

_SECONDS = [0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300]


def engine_config(config: AdvisorConfig) -> ExpertConfig:
    """The advisor's engine as the experts' engine is configured."""
    assert isinstance(config.backend, VllmBackend)
    return ExpertConfig(
        name=config.name,
        backend=config.backend,
        num_gpus=config.num_gpus,
        num_cpus=config.num_cpus,
        max_ongoing_requests=config.max_ongoing_requests,
        temperature=config.temperature,
        top_p=config.top_p,
    )


def runs_in_meter(config: AdvisorConfig) -> bool:
    """Whether the meter makes the attempts itself: an advisor without an engine only waits or counts, and a
    process of its own would cost more than it does."""
    return config.replicas == 1 and not isinstance(config.backend, VllmBackend)


class Attempts:
    """A backend, and the log of what it executed.

    Args:
        log_path: for :func:`apprentice.costs.reconcile.reconcile`; None: no log.
    """

    def __init__(self, config: AdvisorConfig, seed: int, log_path: str | None) -> None:
        vllm = isinstance(config.backend, VllmBackend)
        self._engine = ExpertEngine(engine_config(config), seed) if vllm else None
        generate = self._engine.generate if self._engine else None
        self._backend = make_advisor(config, seed=seed, generate=generate)
        self._log = AdvisorLog(log_path) if log_path else None

    async def attempt(self, request: AttemptRequest, timeout_s: float) -> AttemptResult:
        """One attempt; what was executed is in the log before it is answered."""
        result = await self._backend.attempt(request, timeout_s=timeout_s)
        if self._log is not None and (isinstance(result, AttemptReply) or result.usage.completion_tokens):
            self._log.append(request.request_id, result.usage)
        return result

    def check_health(self) -> None:
        """Serve's health check: a replica whose engine died is replaced."""
        if self._engine is not None:
            self._engine.check()

    async def close(self) -> None:
        """Release connections and engine."""
        await self._backend.close()
        if self._engine is not None:
            self._engine.close()


class AdvisorReplica(Attempts):
    """Makes attempts. Undecorated: ``build_advisor_app`` makes the deployment."""

    async def __del__(self) -> None:
        await self.close()


class AdvisorMeter:
    """The one owner of the ledger; every call goes through it. Undecorated, as above.

    Args:
        replicas: handle of the :class:`AdvisorReplica` deployment, or what its replicas would be made of
            (:func:`runs_in_meter`).
    """

    def __init__(
        self,
        config: AskConfig,
        ledger_path: str,
        replicas: DeploymentHandle[Any] | tuple[AdvisorConfig, int, str | None],
    ) -> None:
        self._local = Attempts(*replicas) if isinstance(replicas, tuple) else None
        self._replicas: Any = replicas
        self._name = config.advisor.name
        endpoint = config.judge.endpoint if config.judge.kind == "openai" else None
        self._judge = endpoint and OpenAIAdvisor("judge", endpoint, temperature=0.0, top_p=1.0)
        self._ledger = open_ledger(config, ledger_path)
        self._service = AdvisorService(
            config, self._ledger, self._send, send_judge=self._send_judge if self._judge else None
        )
        tags = {"advisor": self._name}
        self._calls = ray_metrics.Counter(
            "apprentice_advisor_calls", "Calls by outcome.", tag_keys=("advisor", "account", "outcome")
        ).set_default_tags(tags)
        self._latency = ray_metrics.Histogram(
            "apprentice_advisor_seconds", "Seconds of a call.", boundaries=_SECONDS, tag_keys=("advisor",)
        ).set_default_tags(tags)
        self._cost = ray_metrics.Gauge(
            "apprentice_advisor_cost", "Cost so far, known.", tag_keys=("advisor", "account")
        ).set_default_tags(tags)
        self._bound = ray_metrics.Gauge(
            "apprentice_advisor_unknown_cost", "Upper bound of unknown cost.", tag_keys=("advisor", "account")
        ).set_default_tags(tags)

    async def call(self, question: Question) -> Outcome:
        """Answer a call; safe to send again."""
        started = time.monotonic()
        asks = isinstance(question.request, AskAdvisor)
        outcome: Outcome
        try:
            if isinstance(question.request, AskAdvisor):
                outcome = await self._service.ask(question.request, scope=question.scope, key=question.key)
            else:
                outcome = await self._service.judge(question.request, scope=question.scope)
        except AdvisorError as error:
            outcome = error
        account = "advisor" if asks else "judge"
        self._calls.inc(1, {"account": account, "outcome": _outcome_name(outcome)})
        self._latency.observe(time.monotonic() - started)
        return outcome

    async def totals(self) -> dict[str, AccountTotals]:
        """Account -> sums of the ledger, since it was begun."""
        totals = self._service.totals()
        for account, sums in totals.items():
            self._cost.set(float(sums.cost), {"account": account})
            self._bound.set(float(sums.upper_bound), {"account": account})
        return totals

    def check_health(self) -> None:
        """Serve's health check: a meter that cannot write its ledger is replaced.

        Raises:
            RuntimeError: so that Serve replaces it.
        """
        if self._ledger.broken:
            raise RuntimeError(f"the ledger {self._ledger.broken}")

    async def __del__(self) -> None:
        await self._service.close()
        if self._local is not None:
            await self._local.close()

    async def _send(self, request: AttemptRequest, timeout_s: float) -> AttemptResult:
        if self._local is not None:
            return await self._local.attempt(request, timeout_s)
        response = self._replicas.attempt.remote(request, timeout_s)
        try:
            result: AttemptResult = await response
            return result
        except asyncio.CancelledError:
            response.cancel()  # frees the replica's slot
            raise
        except BackPressureError:
            return AttemptFailure("overloaded", "every replica is full", True, Usage(0, 0, 0, 0))
        except ray.exceptions.RayTaskError as error:
            return AttemptFailure("broken", f"{type(error.cause).__name__}: {error.cause}")
        except (ray.exceptions.RayError, RayServeException) as error:
            return AttemptFailure("replica_died", f"a replica died ({type(error).__name__})", True)

    async def _send_judge(self, request: AttemptRequest, timeout_s: float) -> AttemptResult:
        assert self._judge is not None
        return await self._judge.attempt(request, timeout_s=timeout_s)


def _outcome_name(outcome: Outcome) -> str:
    if isinstance(outcome, AdvisorError):
        return outcome.kind
    if isinstance(outcome, CallRefused):
        return f"refused_{outcome.budget}"
    if isinstance(outcome, QueryJudged):
        return outcome.label
    return "repeated" if isinstance(outcome, CallAnswer) and outcome.repeated else "ok"
