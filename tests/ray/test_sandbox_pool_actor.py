"""Sandbox pool actors and the client that spreads cells over them."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
import ray

from actors.sandbox_pool import SandboxPoolActor, SandboxPoolClient
from apprentice.config.schema import SamplingConfig, SandboxConfig
from apprentice.episodes.actions import PythonResult
from apprentice.errors import InfrastructureError, SandboxError
from apprentice.rollout.groups import GroupSpec, sample_group
from apprentice.rollout.runner import run_episode
from apprentice.rollout.types import RolloutCounters
from apprentice.trajectory import Trajectory
from tests.rollout_fakes import EchoExpert, FakeSampler, TurnsEpisode, problem

pytestmark = pytest.mark.ray

START_S = 180.0  # of an actor and its workers, on a machine that others load
GONE_S = 5.0  # one second on a machine that is not loaded; the cells themselves would run for eight
CONFIG = SandboxConfig(workers=1, wall_s=100.0, cpu_s=100.0, max_retries=2)


def spawn(config: SandboxConfig = CONFIG, **options: Any) -> Any:
    options = {"num_cpus": 0, "max_restarts": -1, "max_concurrency": 256} | options
    return ray.remote(SandboxPoolActor).options(**options).remote(config)


def below(process: psutil.Process) -> list[psutil.Process]:
    return process.children(recursive=True)


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that run; a zombie does not."""
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


async def until(condition: Callable[[], bool], what: str, within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        await asyncio.sleep(0.05)


@pytest.fixture
def pools(ray_cluster: None) -> Iterator[list[Any]]:
    actors = [spawn(), spawn()]
    ray.get([actor.ready.remote() for actor in actors], timeout=START_S)
    yield actors
    ray.get([actor.close.remote() for actor in actors], timeout=START_S)
    for actor in actors:
        ray.kill(actor)


async def test_cells_are_spread_over_pools_and_read_as_the_model_reads_them(pools: list[Any]) -> None:
    client = SandboxPoolClient(pools, CONFIG, max_chars=40)
    results = await asyncio.gather(*(client.run(f"{i} ** 2") for i in range(20)))
    assert [r.text for r in results] == [str(i**2) for i in range(20)]
    assert {r.outcome for r in results} == {"ok"}
    assert ray.get(pools[0].run.remote("1 / 0"), timeout=START_S).detail == "ZeroDivisionError"
    counts = ray.get([p.metrics.remote() for p in pools], timeout=START_S)
    assert [c["outcome/ok"] for c in counts] == [10, 10]
    cut = await client.run("print('x' * 100)")
    assert cut.text == "x" * 20 + "\n[... 60 characters left out ...]\n" + "x" * 20
    assert client.metrics()["outcome/ok"] == 21


async def test_a_cell_whose_pool_is_killed_runs_again(pools: list[Any]) -> None:
    client = pickle.loads(pickle.dumps(SandboxPoolClient(pools[:1], CONFIG)))
    pid = ray.get(pools[0].ready.remote(), timeout=START_S)["pid"]
    zygotes = psutil.Process(pid).children()
    idle = [p for zygote in zygotes for p in below(zygote)]
    running = asyncio.create_task(client.run("import time; time.sleep(8); print('done')"))
    await until(lambda: sum(len(below(z)) for z in zygotes) > len(idle), "the cell runs")
    everyone = [*zygotes, *(p for zygote in zygotes for p in below(zygote))]
    os.kill(pid, signal.SIGKILL)
    await until(lambda: alive(everyone) == [], "nothing is left of a killed actor", GONE_S)
    assert (await asyncio.wait_for(running, START_S)).text == "done"
    assert client.metrics()["failures"] >= 1


async def test_a_sandbox_that_stays_dead_is_a_sandbox_error_within_its_retries(ray_cluster: None) -> None:
    config = CONFIG.model_copy(update={"max_retries": 1})
    actor = spawn(config, max_restarts=0)
    ray.get(actor.ready.remote(), timeout=START_S)
    client = SandboxPoolClient([actor], config)
    ray.kill(actor)
    started = time.monotonic()
    with pytest.raises(SandboxError, match="2 attempts"):
        await client.run("1")
    assert time.monotonic() - started < 20


async def test_a_zygote_that_is_killed_is_restarted_and_its_cell_runs_again(pools: list[Any]) -> None:
    client = SandboxPoolClient(pools[:1], CONFIG)
    (zygote,) = psutil.Process(ray.get(pools[0].ready.remote(), timeout=START_S)["pid"]).children()
    before = below(zygote)
    running = asyncio.create_task(client.run_cell("import time; time.sleep(8); print('done')"))
    await until(lambda: len(below(zygote)) > len(before), "the cell runs")
    everyone = [zygote, *below(zygote)]
    zygote.kill()
    await until(lambda: alive(everyone) == [], "nothing is left of a killed zygote", GONE_S)
    result = await asyncio.wait_for(running, START_S)
    assert (result.outcome, result.stdout, result.attempts) == ("ok", "done\n", 2)
    assert client.metrics()["outcome/ok"] == 1 and "failures" not in client.metrics()
    assert ray.get(pools[0].health.remote(), timeout=START_S)["restarts"] == 1.0


def counts(pool: Any) -> tuple[int, int]:
    """Cells that run and cells that wait in a pool now."""
    metrics = ray.get(pool.metrics.remote(), timeout=START_S)
    return metrics["running"], metrics["queued"]


async def test_cancelling_a_call_ends_its_cell_and_frees_the_worker(pools: list[Any]) -> None:
    client = SandboxPoolClient(pools[:1], CONFIG)
    ready = ray.get(pools[0].ready.remote(), timeout=START_S)
    (zygote,) = psutil.Process(ready["pid"]).children()
    idle = len(below(zygote))
    running = [asyncio.create_task(client.run("while True: pass")) for _ in range(3)]
    await until(lambda: counts(pools[0]) == (1, 2) and len(below(zygote)) > idle, "one runs, two wait")
    started = time.monotonic()
    for call in running:
        call.cancel()
    ended = await asyncio.gather(*running, return_exceptions=True)
    assert [type(error) for error in ended] == [asyncio.CancelledError] * 3
    await until(lambda: counts(pools[0]) == (0, 0) and len(below(zygote)) == idle, "the worker is free")
    assert (await client.run("1 + 1")).text == "2"
    assert time.monotonic() - started < 50, "free again well before the cell's limit of 100 s"
    assert zygote.is_running() and ray.get(pools[0].health.remote(), timeout=START_S)["restarts"] == 0.0
    assert client.metrics()["cancelled"] == 3 and client.metrics()["cells"] == 1


async def test_a_group_that_is_given_up_ends_the_cells_of_its_episodes(pools: list[Any]) -> None:
    client = SandboxPoolClient(pools[:1], CONFIG)

    class LongCells:
        async def run(self, code: str) -> PythonResult:
            return await client.run("import time; time.sleep(90)")

    names: dict[int, str] = {}

    def new_episode(trajectory_id: str, seed: int) -> TurnsEpisode:
        fields = {"trajectory_id": trajectory_id, "group_id": "0:p#0", "seed": seed}
        episode = TurnsEpisode(problem("p"), mode="collaborative", max_rollout_tokens=None, **fields)
        names[id(episode)] = trajectory_id
        return episode

    async def play(episode: TurnsEpisode, seed: int | None) -> Trajectory:
        if names[id(episode)].endswith("/1.0"):
            await until(lambda: counts(pools[0])[0] == 1, "the other sample's cell runs")
            raise InfrastructureError("this sample is beyond help")
        ports = {"sampler": FakeSampler(), "experts": EchoExpert(), "python": LongCells()}
        return await run_episode(episode, sampling=SamplingConfig(), seed=seed, **ports)

    started = time.monotonic()
    group = await sample_group(
        GroupSpec(problem("p"), "0:p#0", samples=2, max_replacements=0, seed=0),
        new_episode=new_episode,
        play=play,
        limiter=asyncio.Semaphore(4),
        counters=RolloutCounters(),
        verifier=None,
    )
    assert group == ()
    await until(lambda: counts(pools[0]) == (0, 0), "the worker is free")
    assert (await client.run("1 + 1")).text == "2"
    assert time.monotonic() - started < 50, "well before the cell's own 90 s"


def test_a_closed_pool_runs_nothing_and_starts_nothing(ray_cluster: None) -> None:
    actor = spawn()
    pid = ray.get(actor.ready.remote(), timeout=START_S)["pid"]
    ray.get(actor.close.remote(), timeout=START_S)
    assert ray.get(actor.run.remote("1"), timeout=START_S).outcome == "cancelled"
    assert psutil.Process(pid).children(recursive=True) == []
    ray.kill(actor)
