"""Experts on Ray Serve: one application with one deployment for each, behind one typed client.

=========================  =======================  =========================================================
who waits                  for what                 who ends the wait
=========================  =======================  =========================================================
``ServeExpertClient.ask``  a free replica, then     the replica; the call's deadline; the death of the
                           its answer               replica, noticed at once by the handle
the replica                the backend              the backend; the attempt's timeout; the total deadline
                                                    (:func:`apprentice.experts.retry.total_deadline_s`)
``deploy_experts``         every app running        Serve; ``timeout_s``; a deployment that failed
=========================  =======================  =========================================================

Retries happen in two places that never multiply: the replica retries what its *backend* failed at; the client
retries only where there is no answer from a replica at all (it died, or its queue is full).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray import serve
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle
from ray.util import metrics as ray_metrics

from apprentice.config.schema import ExpertConfig, VllmBackend, WorkedBackend
from apprentice.data.problem import Problem
from apprentice.episodes.actions import CallExpert, ExpertReply
from apprentice.errors import ConfigError, ExpertError, PlacementError
from apprentice.experts.expert import Expert, make_backend
from apprentice.experts.retry import total_deadline_s
from apprentice.experts.types import ExpertAnswer
from serve._expert_engine import ExpertEngine, engine_env

__all__ = [
    "ExpertReplica",
    "ServeExpertClient",
    "app_name",
    "build_expert_app",
    "deploy_experts",
    "shutdown_experts",
]

_log = logging.getLogger(__name__)
_QUEUE_S = 120.0  # how long a call may wait for a free replica on top of its own deadline
# A line for every call, sent on to the driver, cost more than a worked expert's answer.
_QUIET = {"log_level": "WARNING", "enable_access_log": False}
_SECONDS = [0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300]


class ExpertReplica:
    """One replica of one expert. Undecorated: :func:`build_expert_app` makes the deployment."""

    def __init__(
        self,
        config: ExpertConfig,
        problems: Mapping[str, Problem] | None,
        seed: int,
        cache_dir: str | None,
    ) -> None:
        self._engine = ExpertEngine(config, seed) if isinstance(config.backend, VllmBackend) else None
        generate = self._engine.generate if self._engine else None
        backend = make_backend(config, problems=problems, generate=generate, seed=seed)
        self._expert = Expert(config, backend, cache_dir=cache_dir)
        self._ongoing = 0
        self._peak = 0
        tags = {"expert": config.name}
        self._calls = ray_metrics.Counter(
            "apprentice_expert_calls", "Calls answered or failed.", tag_keys=("expert", "tool", "outcome")
        ).set_default_tags(tags)
        self._latency = ray_metrics.Histogram(
            "apprentice_expert_seconds", "Time in a replica.", boundaries=_SECONDS, tag_keys=("expert",)
        ).set_default_tags(tags)
        self._gauge = ray_metrics.Gauge(
            "apprentice_expert_ongoing", "Calls in a replica now.", tag_keys=("expert",)
        ).set_default_tags(tags)
        self._tokens = ray_metrics.Counter(
            "apprentice_expert_tokens", "Tokens spent, where known.", tag_keys=("expert", "kind")
        ).set_default_tags(tags)

    async def ask(self, request: CallExpert) -> ExpertAnswer:
        """Answer one call.

        Raises:
            ExpertError: past the retries.
        """
        self._ongoing += 1
        self._peak = max(self._peak, self._ongoing)
        self._gauge.set(self._ongoing)
        started = time.monotonic()
        outcome = "ok"
        try:
            answer = await self._expert.answer(request)
            for kind, tokens in (
                ("prompt", answer.spent.prompt_tokens),
                ("completion", answer.spent.completion_tokens),
            ):
                if tokens:
                    self._tokens.inc(tokens, {"kind": kind})
            return answer
        except ExpertError as error:
            outcome = error.kind
            raise
        finally:
            self._ongoing -= 1
            self._gauge.set(self._ongoing)
            self._calls.inc(1, {"tool": request.tool, "outcome": outcome})
            self._latency.observe(time.monotonic() - started)

    async def metrics(self) -> dict[str, float]:
        """Calls in this replica now, their peak, and failed attempts by kind (``failed/timeout``)."""
        failed = {f"failed/{kind}": n for kind, n in self._expert.failed_attempts.items()}
        return {"ongoing": self._ongoing, "peak": self._peak, **failed}

    def check_health(self) -> None:
        """Serve's health check: a replica whose engine died is replaced."""
        if self._engine is not None:
            self._engine.check()

    async def __del__(self) -> None:
        await self._expert.close()
        if self._engine is not None:
            self._engine.close()


def app_name(expert: str) -> str:
    """Name of an expert's Serve application. Expert names are free text; two never share an application."""
    safe = re.sub(r"[^A-Za-z0-9_.-]", "-", expert)
    if safe != expert:
        safe += "-" + hashlib.sha256(expert.encode()).hexdigest()[:8]
    return f"expert-{safe}"


def build_expert_app(
    config: ExpertConfig,
    *,
    problems: Mapping[str, Problem] | None = None,
    seed: int = 0,
    cache_dir: str | None = None,
) -> serve.Application:
    """The Serve application of one expert; deploys nothing.

    Args:
        config: of the expert: replicas, resources, limits, backend.
        problems: problem id -> problem; only ``worked`` experts get them.
        seed: of the run; decides a ``worked`` expert's ability.
        cache_dir: folder of answer caches; a folder that all nodes share where replicas are on several.

    Raises:
        ConfigError: a ``worked`` expert without problems, or a cache without a folder.
    """
    worked = isinstance(config.backend, WorkedBackend)
    if worked and problems is None:
        raise ConfigError(f"expert {config.name!r}: backend worked needs a problem set with worked solutions")
    if config.cache != "off" and cache_dir is None:
        raise ConfigError(f"expert {config.name!r}: cache is {config.cache!r} but no cache folder is given")
    options: dict[str, Any] = {"num_cpus": config.num_cpus, "num_gpus": config.num_gpus}
    if isinstance(config.backend, VllmBackend):
        options["runtime_env"] = {"env_vars": engine_env(config)}
    deployment = serve.deployment(
        ExpertReplica,
        name=app_name(config.name),
        num_replicas=config.replicas,
        ray_actor_options=options,
        max_ongoing_requests=config.max_ongoing_requests,
        max_queued_requests=config.max_queued_requests,
        health_check_period_s=2.0,
        # An engine's processes take seconds to end; the other backends have nothing to wait for.
        graceful_shutdown_timeout_s=20.0 if isinstance(config.backend, VllmBackend) else 5.0,
        graceful_shutdown_wait_loop_s=0.2,
        max_constructor_retry_count=2,
        logging_config=_QUIET,
    )
    return deployment.bind(config, dict(problems or {}) if worked else None, seed, cache_dir)


@dataclass(slots=True)
class _Tally:
    """What a client saw of one expert."""

    calls: int = 0
    ok: int = 0
    cached: int = 0
    lost_replies: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    inflight: int = 0
    peak: int = 0
    seconds: float = 0.0
    queue_s: float = 0.0
    attempts: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    unknown_usage: int = 0


class ServeExpertClient:
    """All experts behind one client; an :class:`apprentice.rollout.ports.ExpertClient`.

    Picklable; handles are looked up in the process that uses them, which must be part of the Ray cluster.
    Every process that holds a copy counts for itself.

    Args:
        configs: of the experts that are deployed.
        queue_s: seconds that a call may wait for a free replica, on top of its own deadline.
    """

    def __init__(self, configs: Sequence[ExpertConfig], *, queue_s: float = _QUEUE_S) -> None:
        self._configs = {config.name: config for config in configs}
        self._queue_s = queue_s
        self._handles: dict[str, DeploymentHandle[ExpertReplica]] = {}
        self._tallies = {name: _Tally() for name in self._configs}

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild_client, (list(self._configs.values()), self._queue_s))

    def metrics(self) -> dict[str, dict[str, float]]:
        """Expert -> numbers since the start of this client.

        ``calls``, ``ok``, ``cached``, ``failed/<kind>``, ``lost_replies`` (attempts that a replica's death
        or a full queue ended), ``inflight`` and its ``peak``; mean ``seconds`` a call and mean ``queue_s``
        of them outside the replica; backend ``attempts``; tokens where known, and calls of ``unknown_usage``.
        """
        out: dict[str, dict[str, float]] = {}
        for name, t in self._tallies.items():
            done = max(1, t.ok)
            out[name] = {
                "calls": t.calls,
                "ok": t.ok,
                "cached": t.cached,
                "lost_replies": t.lost_replies,
                "inflight": t.inflight,
                "peak": t.peak,
                "seconds": t.seconds / done,
                "queue_s": t.queue_s / done,
                "attempts": t.attempts,
                "prompt_tokens": t.prompt_tokens,
                "completion_tokens": t.completion_tokens,
                "unknown_usage": t.unknown_usage,
                **{f"failed/{kind}": n for kind, n in sorted(t.failures.items())},
            }
        return out

    async def ask(self, request: CallExpert) -> ExpertReply:
        """Ask the expert that ``request`` names.

        Raises:
            ExpertError: it failed past its retries, is unknown, or did not answer by the deadline.
        """
        config = self._configs.get(request.expert)
        if config is None:
            raise ExpertError(
                f"no expert {request.expert!r} is deployed; there are {sorted(self._configs)}",
                kind="unknown_expert",
                expert=request.expert,
            )
        tally = self._tallies[config.name]
        tally.calls += 1
        tally.inflight += 1
        tally.peak = max(tally.peak, tally.inflight)
        started = time.monotonic()
        try:
            answer = await self._ask(config, request, tally)
        except ExpertError as error:
            tally.failures[error.kind] += 1
            raise
        finally:
            tally.inflight -= 1
        took = time.monotonic() - started
        self._count(tally, answer, took)
        return ExpertReply(
            text=answer.text,
            expert=config.name,
            prompt_tokens=answer.usage.prompt_tokens,
            completion_tokens=answer.usage.completion_tokens,
            seconds=took,
        )

    async def _ask(self, config: ExpertConfig, request: CallExpert, tally: _Tally) -> ExpertAnswer:
        limit = total_deadline_s(config.timeout_s, config.max_retries) + self._queue_s
        deadline = time.monotonic() + limit
        kind, why = "timeout", "no answer"
        for attempt in range(config.max_retries + 1):
            if attempt:
                pause = random.uniform(0.0, min(8.0, 0.5 * 2.0 ** (attempt - 1)))
                await asyncio.sleep(max(0.0, min(pause, deadline - time.monotonic())))
            left = deadline - time.monotonic()
            if left <= 0:
                break
            try:
                return await self._call(config.name, request, left)
            except TimeoutError:
                kind, why = "timeout", f"no answer within {limit:.0f} s"
                break
            except BackPressureError:
                kind, why = "overloaded", f"{config.max_queued_requests} calls wait already"
            except (ray.exceptions.RayError, RayServeException) as error:
                cause = getattr(error, "cause", None)
                if isinstance(cause, ExpertError):  # the replica's own verdict, past its own retries
                    raise ExpertError(str(cause), kind=cause.kind, expert=config.name) from None
                if isinstance(error, ray.exceptions.RayTaskError):
                    what = f"{type(cause).__name__}: {cause}"
                    raise ExpertError(
                        f"expert {config.name!r} broke on a call: {what}", kind="broken", expert=config.name
                    ) from error
                kind, why = "replica_died", type(error).__name__
                self._handles.pop(config.name, None)
            tally.lost_replies += 1
            _log.warning("expert %s, attempt %d: %s (%s)", config.name, attempt + 1, kind, why)
        raise ExpertError(f"expert {config.name!r} gave up a call: {why}", kind=kind, expert=config.name)

    async def _call(self, name: str, request: CallExpert, timeout_s: float) -> ExpertAnswer:
        handle = self._handles.get(name)
        if handle is None:
            handle = self._handles[name] = serve.get_app_handle(app_name(name))
        response = handle.ask.remote(request)
        try:
            answer: ExpertAnswer = await asyncio.wait_for(_result(response), timeout_s)
            return answer
        except (TimeoutError, asyncio.CancelledError):
            response.cancel()  # frees the replica's slot
            raise

    @staticmethod
    def _count(tally: _Tally, answer: ExpertAnswer, took: float) -> None:
        tally.ok += 1
        tally.cached += answer.cached
        tally.seconds += took
        tally.queue_s += max(0.0, took - answer.seconds)
        tally.attempts += 0 if answer.cached else answer.attempts
        if answer.spent.prompt_tokens is None or answer.spent.completion_tokens is None:
            tally.unknown_usage += 1
        tally.prompt_tokens += answer.spent.prompt_tokens or 0
        tally.completion_tokens += answer.spent.completion_tokens or 0


async def _result(response: Any) -> Any:
    return await response


def _rebuild_client(configs: list[ExpertConfig], queue_s: float) -> ServeExpertClient:
    return ServeExpertClient(configs, queue_s=queue_s)


def deploy_experts(
    configs: Sequence[ExpertConfig],
    problems: Sequence[Problem] | None = None,
    *,
    seed: int = 0,
    cache_dir: str | None = None,
    timeout_s: float = 900.0,
) -> ServeExpertClient:
    """Deploy every expert, wait until all run, and return their client. Needs ``ray.init`` first.

    Serve runs without its HTTP proxy: calls go over handles only.

    Args:
        configs: of the experts.
        problems: training and test problems with worked solutions, for ``worked`` experts.
        seed: of the run.
        cache_dir: folder of answer caches.
        timeout_s: deadline for all of them together.

    Raises:
        ConfigError: see :func:`build_expert_app`; or a replica found its configuration wrong.
        PlacementError: an expert did not come up in time, or failed to start.
    """
    if not configs:
        return ServeExpertClient(())
    by_id = None if problems is None else {problem.problem_id: problem for problem in problems}
    deadline = time.monotonic() + timeout_s
    serve.start(proxy_location="Disabled", http_options={"host": "127.0.0.1"}, logging_config=_QUIET)
    targets = [
        serve.RunTarget(
            build_expert_app(config, problems=by_id, seed=seed, cache_dir=cache_dir),
            name=app_name(config.name),
            route_prefix=None,
        )
        for config in configs
    ]
    serve.run_many(targets, wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)
    names = {app_name(config.name): config.name for config in configs}
    while True:
        apps = serve.status().applications
        waiting = [app for app in names if app not in apps or apps[app].status != "RUNNING"]
        if not waiting:
            return ServeExpertClient(configs)
        for app in waiting:
            if app in apps and apps[app].status in ("DEPLOY_FAILED", "UNHEALTHY"):
                said = _last_message(apps[app])
                error = ConfigError if "ConfigError" in said else PlacementError
                raise error(f"expert {names[app]!r} did not start: {said}")
        if time.monotonic() > deadline:
            late = ", ".join(sorted(names[app] for app in waiting))
            raise PlacementError(
                f"experts not running after {timeout_s:.0f} s: {late}; the cluster has "
                f"{ray.available_resources()} left: give it more, or lower num_cpus, num_gpus or replicas"
            )
        time.sleep(0.1)


def _last_message(app: Any) -> str:
    messages = [app.message, *(deployment.message for deployment in app.deployments.values())]
    return max((m or "" for m in messages), key=len)[-2000:]


def shutdown_experts(configs: Sequence[ExpertConfig] | None = None) -> None:
    """Delete the experts' applications; without ``configs``, shut Serve down altogether."""
    if configs is None:
        serve.shutdown()
        return
    running = serve.status().applications
    for config in configs:
        if app_name(config.name) in running:
            serve.delete(app_name(config.name))
