"""Sandbox pool actors and the client that spreads cells over them."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import ray

from actors.sandbox_pool import SandboxPoolActor, SandboxPoolClient
from apprentice.config.schema import SandboxConfig
from apprentice.errors import SandboxError

pytestmark = pytest.mark.ray

CONFIG = SandboxConfig(workers=1, wall_s=20.0, max_retries=2)


def spawn(config: SandboxConfig = CONFIG, **options: Any) -> Any:
    options = {"num_cpus": 0, "max_restarts": -1, "max_concurrency": 256} | options
    return ray.remote(SandboxPoolActor).options(**options).remote(config)


@pytest.fixture
def pools(ray_cluster: None) -> Iterator[list[Any]]:
    actors = [spawn(), spawn()]
    ray.get([actor.ready.remote() for actor in actors], timeout=60)
    yield actors
    ray.get([actor.close.remote() for actor in actors], timeout=60)
    for actor in actors:
        ray.kill(actor)


async def test_cells_are_spread_over_pools_and_read_as_the_model_reads_them(pools: list[Any]) -> None:
    client = SandboxPoolClient(pools, CONFIG, max_chars=40)
    results = await asyncio.gather(*(client.run(f"{i} ** 2") for i in range(20)))
    assert [r.text for r in results] == [str(i**2) for i in range(20)]
    assert {r.outcome for r in results} == {"ok"}
    assert ray.get(pools[0].run.remote("1 / 0"), timeout=60).detail == "ZeroDivisionError"
    counts = ray.get([p.metrics.remote() for p in pools], timeout=60)
    assert [c["outcome/ok"] for c in counts] == [10, 10]
    cut = await client.run("print('x' * 100)")
    assert cut.text == "x" * 20 + "\n[... 60 characters left out ...]\n" + "x" * 20
    assert client.metrics()["outcome/ok"] == 21


async def test_a_cell_whose_pool_is_killed_runs_again(pools: list[Any]) -> None:
    client = pickle.loads(pickle.dumps(SandboxPoolClient(pools[:1], CONFIG)))
    pid = ray.get(pools[0].ready.remote(), timeout=60)["pid"]
    zygotes = psutil.Process(pid).children()
    running = asyncio.create_task(client.run("import time; time.sleep(2); print('done')"))
    await asyncio.sleep(1.0)
    cells = [c for z in zygotes for c in z.children(recursive=True)]
    assert cells, "the cell is running"
    os.kill(pid, signal.SIGKILL)
    await asyncio.sleep(1.0)
    alive = [p for p in (*zygotes, *cells) if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert not alive, f"left behind one second after the actor's death: {alive}"
    assert (await asyncio.wait_for(running, 60)).text == "done"
    assert client.metrics()["failures"] >= 1


async def test_a_sandbox_that_stays_dead_is_a_sandbox_error_within_its_retries(ray_cluster: None) -> None:
    config = CONFIG.model_copy(update={"max_retries": 1})
    actor = spawn(config, max_restarts=0)
    ray.get(actor.ready.remote(), timeout=60)
    client = SandboxPoolClient([actor], config)
    ray.kill(actor)
    started = time.monotonic()
    with pytest.raises(SandboxError, match="2 attempts"):
        await client.run("1")
    assert time.monotonic() - started < 20


async def test_cancelling_a_call_ends_its_cell_and_frees_the_worker(pools: list[Any]) -> None:
    client = SandboxPoolClient(pools[:1], CONFIG)
    running = asyncio.create_task(client.run("while True: pass"))
    await asyncio.sleep(1.0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    started = time.monotonic()
    assert (await client.run("1 + 1")).text == "2"
    assert time.monotonic() - started < 10, "the worker was free again long before the wall limit of 20 s"


def test_a_closed_pool_runs_nothing_and_starts_nothing(ray_cluster: None) -> None:
    actor = spawn()
    pid = ray.get(actor.ready.remote(), timeout=60)["pid"]
    ray.get(actor.close.remote(), timeout=60)
    assert ray.get(actor.run.remote("1"), timeout=60).outcome == "cancelled"
    assert psutil.Process(pid).children(recursive=True) == []
    ray.kill(actor)
