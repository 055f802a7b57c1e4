"""The metered advisor on Ray Serve: replicas that answer, and one meter that owns the ledger.

::

    ServeAdvisorClient ──► AdvisorMeter (one; ledger, retries, budgets) ──► AdvisorReplica 1…n (backend)

===========================  ===========================  ====================================================
who waits                    for what                     who ends the wait
===========================  ===========================  ====================================================
``ServeAdvisorClient.ask``   the meter's answer           the meter; its death (the call is sent again); the
                                                          call's deadline
the meter                    a place, then an attempt     the replica; its death; the attempt's timeout
a replica                    the backend                  the backend; the attempt's timeout
a new meter                  the ledger's lock            the end of the old meter; 10 s
``deploy_advisor``           the app running              Serve; ``timeout_s``; a deployment that failed
===========================  ===========================  ====================================================

An advisor without an engine needs no process of its own: with one replica, the meter makes its attempts.

Retries are the meter's alone, since each is reserved in the ledger. A client sends a call again only where
there is no answer from the meter, and that is free: the ledger knows the call. A replica that dies leaves its
attempt charged with the reservation; so does a meter that dies, whose successor reads the ledger.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Any

import ray
from ray import serve

from apprentice.advisors.service import check_ask
from apprentice.config.ask import AskConfig
from apprentice.config.parts import VllmBackend
from apprentice.errors import ConfigError, PlacementError
from serve._advisor_client import ServeAdvisorClient, ServeQueryJudge
from serve._advisor_replicas import AdvisorMeter, AdvisorReplica, engine_config, runs_in_meter
from serve._advisor_types import app_name
from serve._expert_engine import engine_env

__all__ = [
    "AdvisorMeter",
    "AdvisorReplica",
    "ServeAdvisorClient",
    "ServeQueryJudge",
    "app_name",
    "build_advisor_app",
    "deploy_advisor",
    "shutdown_advisor",
]

_QUIET = {"log_level": "WARNING", "enable_access_log": False}
_METER_CALLS = 8192  # open calls at the meter: it only waits for them


def build_advisor_app(
    config: AskConfig,
    *,
    ledger_path: str | Path,
    seed: int = 0,
    log_path: str | Path | None = None,
    node_ip: str | None = None,
) -> serve.Application:
    """The Serve application of the advisor; deploys nothing.

    Args:
        config: advisor, judge, prices, budgets.
        ledger_path: the ledger's file, absolute.
        seed: of the run.
        log_path: where replicas write what they executed; a folder that all nodes share.
        node_ip: node that the meter runs on, which is the one that has the ledger's disk.

    Raises:
        ConfigError: the judge cannot judge with this advisor, or the path is not absolute.
    """
    check_ask(config)
    if not Path(ledger_path).is_absolute():
        raise ConfigError(
            f"ledger_path: {ledger_path} must be absolute: replicas run in folders of their own"
        )
    advisor = config.advisor
    options: dict[str, Any] = {"num_cpus": advisor.num_cpus, "num_gpus": advisor.num_gpus}
    vllm = isinstance(advisor.backend, VllmBackend)
    if vllm:
        options["runtime_env"] = {"env_vars": engine_env(engine_config(advisor))}
    made_of = (advisor, seed, None if log_path is None else str(log_path))
    replicas = serve.deployment(
        AdvisorReplica,
        name="advisor",
        num_replicas=advisor.replicas,
        ray_actor_options=options,
        max_ongoing_requests=advisor.max_ongoing_requests,
        # The meter sends no more than there are places; a replica that is being replaced leaves some waiting.
        max_queued_requests=advisor.replicas * advisor.max_ongoing_requests,
        health_check_period_s=2.0,
        graceful_shutdown_timeout_s=20.0 if vllm else 5.0,
        graceful_shutdown_wait_loop_s=0.2,
        max_constructor_retry_count=2,
        logging_config=_QUIET,
    )
    meter = serve.deployment(
        AdvisorMeter,
        name="meter",
        num_replicas=1,
        ray_actor_options={
            "num_cpus": advisor.num_cpus if runs_in_meter(advisor) else 0,
            "resources": {} if node_ip is None else {f"node:{node_ip}": 0.001},
        },
        max_ongoing_requests=_METER_CALLS,
        max_queued_requests=_METER_CALLS,
        health_check_period_s=2.0,
        graceful_shutdown_timeout_s=5.0,
        graceful_shutdown_wait_loop_s=0.2,
        max_constructor_retry_count=2,
        logging_config=_QUIET,
    )
    answering = made_of if runs_in_meter(advisor) else replicas.bind(*made_of)
    return meter.bind(config, str(ledger_path), answering)


def deploy_advisor(
    config: AskConfig,
    *,
    ledger_path: str | Path,
    seed: int = 0,
    timeout_s: float = 900.0,
    log_path: str | Path | None = None,
) -> ServeAdvisorClient:
    """Deploy the advisor, wait until it runs, and return its client. Needs ``ray.init`` first.

    An advisor of the same name is taken down first: a ledger has one owner. Trajectory ids hold within this
    deployment (:attr:`ServeAdvisorClient.scope`), so a run that is resumed pays for what it does again.

    Args:
        config: of Learning to Ask.
        ledger_path: the ledger's file, on a disk of this machine; the meter runs here.
        seed: of the run; decides what an arithmetic advisor gets wrong.
        timeout_s: deadline.
        log_path: where replicas write what they executed.

    Raises:
        ConfigError: see :func:`build_advisor_app`; or a replica found its configuration wrong.
        PlacementError: it did not come up in time, or failed to start; also where the ledger is in use.
    """
    deadline = time.monotonic() + timeout_s
    name = app_name(config.advisor.name)
    app = build_advisor_app(
        config,
        ledger_path=Path(ledger_path).absolute(),
        seed=seed,
        log_path=None if log_path is None else Path(log_path).absolute(),
        node_ip=ray.util.get_node_ip_address(),
    )
    serve.start(proxy_location="Disabled", http_options={"host": "127.0.0.1"}, logging_config=_QUIET)
    shutdown_advisor(config)
    serve.run_many(
        [serve.RunTarget(app, name=name, route_prefix=None)],
        wait_for_ingress_deployment_creation=False,
        wait_for_applications_running=False,
    )
    while True:
        status = serve.status().applications.get(name)
        if status is not None and status.status == "RUNNING":
            return ServeAdvisorClient(config, scope=uuid.uuid4().hex[:8])
        if status is not None and status.status in ("DEPLOY_FAILED", "UNHEALTHY"):
            messages = [status.message, *(part.message for part in status.deployments.values())]
            said = max((message or "" for message in messages), key=len)[-2000:]
            error = ConfigError if "ConfigError" in said else PlacementError
            raise error(f"advisor {config.advisor.name!r} did not start: {said}")
        if time.monotonic() > deadline:
            raise PlacementError(
                f"advisor {config.advisor.name!r} not running after {timeout_s:.0f} s; the cluster has "
                f"{ray.available_resources()} left: give it more, or lower ask.advisor.num_cpus, num_gpus or "
                "replicas"
            )
        time.sleep(0.1)


def shutdown_advisor(config: AskConfig) -> None:
    """Delete the advisor's application. What was under way stays reserved in the ledger."""
    name = app_name(config.advisor.name)
    if name in serve.status().applications:
        serve.delete(name)
