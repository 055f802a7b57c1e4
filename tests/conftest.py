"""What every test shares: the environment, the tiers, and a local Ray cluster for those that need one."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TIERS = ("unit", "ray", "e2e", "gpu")
"""Folders of ``tests/``, and the marker that every test in the folder carries."""

ONE_BY_ONE = {
    "sandbox": ("test_sandbox",),  # count processes and folders of this machine
    "serve": ("test_advisor_serve", "test_advisor_engine", "test_experts_serve"),  # look for replicas by name
    "weights": ("test_weight_sync",),  # look for leftovers in shared memory
}
"""Tests that would disturb each other: names of groups, and how the names of their files begin."""

# Set before anything imports ray, torch or transformers: all of them read their environment once.
os.environ.update(
    RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",  # keeps every socket of a local cluster on 127.0.0.1
    RAY_USAGE_STATS_ENABLED="0",
    RAY_DEDUP_LOGS="0",
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",  # an actor with num_gpus=0 leaves CUDA_VISIBLE_DEVICES alone
    VLLM_NO_USAGE_STATS="1",
    DO_NOT_TRACK="1",
    HF_HUB_OFFLINE="1",  # no test loads anything from a hub
    TOKENIZERS_PARALLELISM="false",
    OMP_WAIT_POLICY="PASSIVE",  # engines and learners share few cores: spinning threads triple a step,
    GOMP_SPINCOUNT="10000",  # and threads that sleep at once double it
)
os.environ.pop("RAY_ADDRESS", None)  # never join a cluster that happens to run


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Hold the tiers: a test carries exactly the marker of its folder, so that no tier loses a test."""
    here = Path(__file__).parent
    wrong = []
    for item in items:
        folder = item.path.relative_to(here).parts[0]
        carried = sorted({mark.name for mark in item.iter_markers()} & set(TIERS))
        if folder not in TIERS or carried != [folder]:
            wrong.append(f"{item.path.relative_to(here)}: in tests/{folder}, marked {carried or 'nothing'}")
    if wrong:
        listing = "\n  ".join(sorted(set(wrong)))
        raise pytest.UsageError(
            "every test file lies in tests/unit, tests/ray, tests/e2e or tests/gpu and says so with "
            f"`pytestmark = pytest.mark.<folder>`:\n  {listing}"
        )
    if any(item.get_closest_marker("gpu") for item in items):
        _skip_without_cuda(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep tests together that need it (``-n``): pytest-xdist 3.8's marker does nothing under pytest 9.2."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _scope(nodeid)

    return Scheduling(config, log)


def _scope(nodeid: str) -> str:
    """What runs in one process, one after the other: a group, a module with its cluster, or a unit test."""
    path = Path(nodeid.partition("::")[0])
    for group, beginnings in ONE_BY_ONE.items():
        if path.name.startswith(beginnings):
            return group
    return nodeid if "unit" in path.parts else str(path)


def _skip_without_cuda(items: list[pytest.Item]) -> None:
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device; torch sees none here"))


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[None]:
    """A local Ray cluster of four logical CPUs without a dashboard, for one test module.

    It lives in a temporary folder of its own: address files that an earlier cluster left behind cannot draw
    ``ray.init`` to a cluster that is gone, and nothing stays on disk.
    """
    import ray

    if ray.is_initialized():
        ray.shutdown()
    # Ray's socket paths must stay below 108 bytes, which pytest's own temporary folders exceed.
    folder = tempfile.mkdtemp(prefix="apr-", dir="/tmp" if Path("/tmp").is_dir() else None)
    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=True,
        object_store_memory=512 * 1024**2,
        _temp_dir=folder,
    )
    try:
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
