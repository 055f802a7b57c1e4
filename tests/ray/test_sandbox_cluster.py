"""Sandbox pools on several nodes: where they go, which one gets a cell, and what a lost node costs."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.sandbox_pool import SandboxPoolClient
from apprentice.config.load import load_config
from driver import spawn
from driver.fleet import Fleet

pytestmark = pytest.mark.ray

TINY = Path(__file__).parents[2] / "configs" / "tiny.yaml"
CONFIG = load_config(
    TINY, ["sandbox.pools=auto", "sandbox.num_cpus=1", "sandbox.workers=auto", "stages=[evaluate]"]
)


class Nodes:
    """A head without CPUs and two nodes of two CPUs each; a name may be its node's id."""

    def __init__(self, folder: str) -> None:
        store = {"object_store_memory": 100 * 1024**2, "include_dashboard": False}
        self.cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "temp_dir": folder, **store}
        )
        self.workers = [self.cluster.add_node(num_cpus=2, **store) for _ in range(2)]
        self.cluster.wait_for_nodes(timeout=180)
        self.ids = [node.node_id for node in self.workers]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    if ray.is_initialized():
        ray.shutdown()
    folder = tempfile.mkdtemp(prefix="apr-", dir="/tmp" if Path("/tmp").is_dir() else None)
    with pytest.MonkeyPatch.context() as patch:
        # The machine's address file would draw other programs to this cluster.
        patch.setattr("ray._private.utils.write_ray_address", lambda *_: None)
        patch.setattr("ray._common.utils.reset_ray_address", lambda *_: None)
        started = Nodes(folder)
        try:
            ray.init(address=started.cluster.address)
            yield started
        finally:
            ray.shutdown()
            started.cluster.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def pools(nodes: Nodes) -> Iterator[tuple[dict[str, Any], list[str]]]:
    handles, places = spawn._spawn_pools(CONFIG, learner=False)
    yield handles, places
    for handle in handles.values():
        ray.kill(handle)


def run_from(node: str, client: SandboxPoolClient, cells: list[str]) -> list[str]:
    """All cells at one time from a process on a node; the outcomes."""

    def caller(client: SandboxPoolClient) -> list[str]:
        async def all_at_once() -> list[str]:
            return [(await r).outcome for r in [asyncio.ensure_future(client.run(c)) for c in cells]]

        return asyncio.run(all_at_once())

    where = NodeAffinitySchedulingStrategy(node, soft=False)
    task = ray.remote(caller).options(num_cpus=0, scheduling_strategy=where)
    answer: list[str] = ray.get(task.remote(client), timeout=180)
    return answer


def cells_run(handles: dict[str, Any]) -> list[int]:
    counts = ray.get([pool.metrics.remote() for pool in handles.values()], timeout=180)
    return [count.get("outcome/ok", 0) for count in counts]


def test_every_node_with_cpus_gets_a_pool_of_its_own(
    nodes: Nodes, pools: tuple[dict[str, Any], list[str]]
) -> None:
    handles, places = pools
    assert list(handles) == ["sandbox-0", "sandbox-1"]
    assert sorted(places) == sorted(nodes.ids), "the head has no CPU to give"
    answers = ray.get([pool.ready.remote() for pool in handles.values()], timeout=180)
    assert [answer["node"] for answer in answers] == places
    assert [answer["workers"] for answer in answers] == [1, 1], "one cell for each CPU of a pool"


def test_a_cell_goes_to_the_own_node_unless_another_has_fewer(
    pools: tuple[dict[str, Any], list[str]],
) -> None:
    handles, places = pools
    client = SandboxPoolClient(list(handles.values()), CONFIG.sandbox, nodes=places)
    for here in (0, 1):
        before = cells_run(handles)
        for _ in range(3):
            assert run_from(places[here], client, ["1 + 1"]) == ["ok"]
        ran = [after - earlier for after, earlier in zip(cells_run(handles), before, strict=True)]
        assert (ran[here], ran[1 - here]) == (3, 0)
    before = cells_run(handles)
    assert run_from(places[0], client, ["1 + 1"] * 6) == ["ok"] * 6
    ran = [after - earlier for after, earlier in zip(cells_run(handles), before, strict=True)]
    assert ran == [3, 3], "six at one time: the fewest cells first"


async def test_the_runs_metrics_hold_level_and_restarts_and_outlast_a_dead_pool(
    pools: tuple[dict[str, Any], list[str]],
) -> None:
    handles, places = pools
    fleet = Fleet(config=CONFIG, pools=handles)
    first = ray.get(handles["sandbox-0"].ready.remote(), timeout=180)
    quiet = await asyncio.to_thread(fleet.client_metrics)
    assert quiet == {
        f"sandbox/pools/{first['level']}": 2.0,
        "sandbox/restarts": 0.0,
        "sandbox/pools/restarted": 0.0,
        "sandbox/pools/silent": 0.0,
    }
    os.kill(first["pid"], signal.SIGKILL)
    just_killed = await asyncio.to_thread(fleet.client_metrics)
    assert just_killed["sandbox/pools/silent"] + just_killed["sandbox/pools/restarted"] == 1.0
    client = SandboxPoolClient(list(handles.values()), CONFIG.sandbox, nodes=places)
    assert (await client.run("print('on')")).text == "on"
    ray.get(handles["sandbox-0"].ready.remote(), timeout=180)
    again = await asyncio.to_thread(fleet.client_metrics)
    assert (again["sandbox/pools/silent"], again["sandbox/pools/restarted"]) == (0.0, 1.0)


async def test_the_pool_of_a_lost_node_is_restarted_on_another_and_its_cell_runs_again(
    nodes: Nodes, pools: tuple[dict[str, Any], list[str]]
) -> None:
    handles, places = pools
    lost = nodes.ids.index(places[1])
    client = SandboxPoolClient([handles["sandbox-1"]], CONFIG.sandbox)
    running = asyncio.create_task(client.run("import time\ntime.sleep(2)\nprint('done')"))
    await asyncio.sleep(1.0)
    await asyncio.to_thread(nodes.cluster.remove_node, nodes.workers[lost], allow_graceful=False)
    assert (await asyncio.wait_for(running, 180)).text == "done"
    answer = ray.get(handles["sandbox-1"].ready.remote(), timeout=180)
    assert answer["node"] == places[0]
