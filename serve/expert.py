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

import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray import serve
from ray.util import metrics as ray_metrics

from apprentice.config.schema import ExpertConfig, VllmBackend, WorkedBackend
from apprentice.data.problem import Problem
from apprentice.episodes.actions import CallExpert
from apprentice.errors import ConfigError, ExpertError, PlacementError
from apprentice.experts.expert import Expert, make_backend
from apprentice.experts.types import ExpertAnswer
from serve._expert_client import ServeExpertClient, app_name
from serve._expert_engine import ExpertEngine, engine_env

__all__ = [
    "ExpertReplica",
    "ServeExpertClient",
    "app_name",
    "build_expert_app",
    "deploy_experts",
    "shutdown_experts",
]

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
        ConfigError: see :func:`build_expert_app`; or a replica found its configuration wrong; or two
            problems have one id, by which ``worked`` experts would confuse them.
        PlacementError: an expert did not come up in time, or failed to start.
    """
    if not configs:
        return ServeExpertClient(())
    worked = any(isinstance(config.backend, WorkedBackend) for config in configs)
    by_id = None if problems is None else _by_id(problems, unique=worked)
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


def _by_id(problems: Sequence[Problem], *, unique: bool) -> dict[str, Problem]:
    """Ids are unique within a set; ``worked`` experts need them to be so over all sets of a run."""
    found: dict[str, Problem] = {}
    for problem in problems:
        other = found.setdefault(problem.problem_id, problem)
        if unique and other.question != problem.question:
            raise ConfigError(
                f"the id {problem.problem_id!r} stands on two different problems of this run's sets, and "
                "worked experts know problems by id: rename the ids in one of the files"
            )
    return found


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
