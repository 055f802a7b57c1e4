"""Joins a Ray cluster, or starts one on this machine."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import ray

from apprentice.config.schema import Config
from apprentice.errors import PlacementError
from driver.plan import asked_experts, check_fits, placement_plan

__all__ = ["cluster"]

_log = logging.getLogger(__name__)
_PACKAGES = ("apprentice", "actors", "serve", "driver")


@contextlib.contextmanager
def cluster(config: Config, address: str | None) -> Iterator[None]:
    """Be connected to Ray within the block, and leave everything as it was after it.

    Args:
        address: of an existing cluster (``auto``, ``host:port``, ``ray://...``). None joins the cluster that
            a Ray job runs in (``RAY_ADDRESS``), and otherwise starts a private one on this machine.

    Raises:
        PlacementError: the cluster lacks resources that the recipe's actors need; says which.
    """
    if address is None and "RAY_ADDRESS" not in os.environ:
        _start_local()
    else:
        _join(address)
    try:
        check_fits(placement_plan(config), [n["Resources"] for n in ray.nodes() if n["Alive"]])
        yield
    finally:
        with contextlib.suppress(Exception):  # Serve may have died with the cluster; we leave anyway
            from serve.expert import shutdown_experts

            shutdown_experts(asked_experts(config))  # Serve may run what is none of ours
        ray.shutdown()


def _quiet() -> None:
    """Ray's and Serve's notes on their own start-up say nothing of the run."""
    for name in ("ray", "ray.serve", "ray._private.authentication.authentication_token_setup"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _start_local() -> None:
    _quiet()
    # One machine: no dashboard, and every socket on the loopback interface (driver/cli.py sees to that, since
    # Ray reads it when it is imported).
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=bool(os.environ.get("APPRENTICE_ACTOR_LOGS")),
        logging_level=logging.WARNING,
    )


def _join(address: str | None) -> None:
    in_job = "RAY_JOB_ID" in os.environ or "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ
    # A job brings its working directory; elsewhere the cluster gets our packages as they stand here.
    root = Path(__file__).resolve().parent.parent
    modules = [] if in_job else [str(root / name) for name in _PACKAGES]
    try:
        ray.init(
            address=address or "auto",
            runtime_env={"py_modules": modules} if modules else None,
            logging_level=logging.WARNING,
        )
    except ConnectionError as error:
        raise PlacementError(
            f"no Ray cluster answers at {address or os.environ.get('RAY_ADDRESS')}: start one with "
            f"`ray up cluster.yaml`, or leave --address out to run on this machine ({error})"
        ) from error
