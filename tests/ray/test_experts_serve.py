"""Experts on Ray Serve: from a recipe's configuration to an answer through the client."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import psutil
import pytest
import ray
from ray import serve

from apprentice.config.schema import ExpertConfig, OpenAIBackend, WorkedBackend
from apprentice.data.problem import Problem, WorkedSolution
from apprentice.episodes.actions import CallExpert
from apprentice.errors import ConfigError, ExpertError, PlacementError
from serve.expert import ServeExpertClient, app_name, deploy_experts, shutdown_experts

pytestmark = pytest.mark.ray

PROBLEM = Problem(
    "p1",
    "What is 6 times 7?",
    "42",
    family="chain_sum",
    worked=WorkedSolution("Six sevens are 42.", "print(6 * 7)"),
)


def worked(name: str, **options: Any) -> ExpertConfig:
    backend = WorkedBackend(**{k: options.pop(k) for k in list(options) if k in WorkedBackend.model_fields})
    return ExpertConfig(name=name, backend=backend, num_cpus=0.1, **options)


def call(expert: str, tool: str = "think", problem_id: str = "p1") -> CallExpert:
    return CallExpert(expert, tool, problem_id, PROBLEM.question, "", "", 256, 0)


@pytest.fixture(scope="module")
def dead_endpoint() -> Iterator[str]:
    """An HTTP endpoint that answers every request with 503."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(503)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def client(ray_cluster: None, dead_endpoint: str) -> Iterator[ServeExpertClient]:
    configs = [
        worked("right one"),
        worked("wrong", error_rate=1.0),
        worked("flaky", failure_rate=1.0, max_retries=1),
        worked("slow", latency_s=0.6, timeout_s=5.0, max_ongoing_requests=2, max_retries=2),
        ExpertConfig(
            name="gone",
            backend=OpenAIBackend(base_url=dead_endpoint, model="m"),
            num_cpus=0.1,
            timeout_s=5.0,
            max_retries=1,
        ),
    ]
    yield deploy_experts(configs, [PROBLEM], timeout_s=120)
    shutdown_experts()


async def test_worked_experts_answer_both_tools(client: ServeExpertClient) -> None:
    think = await client.ask(call("right one"))
    code = await client.ask(call("right one", "code_interpreter"))
    assert (think.text, think.expert, think.completion_tokens) == ("Six sevens are 42.", "right one", None)
    assert code.text == "print(6 * 7)"
    wrong = await client.ask(call("wrong"))
    assert wrong.text.startswith("Six sevens are ") and "42" not in wrong.text


async def test_a_failing_expert_is_an_expert_error_with_its_kind_and_is_counted(
    client: ServeExpertClient,
) -> None:
    with pytest.raises(ExpertError) as caught:
        await client.ask(call("flaky"))
    assert (caught.value.kind, caught.value.expert) == ("injected", "flaky")
    with pytest.raises(ExpertError) as caught:
        await client.ask(call("right one", problem_id="p2"))
    assert caught.value.kind == "no_worked_solution"
    with pytest.raises(ExpertError) as caught:
        await client.ask(call("nobody"))
    assert caught.value.kind == "unknown_expert"
    assert client.metrics()["flaky"]["failed/injected"] == 1
    assert client.metrics()["right one"]["failed/no_worked_solution"] == 1


async def test_f11_a_dead_endpoint_fails_within_its_retries_and_frees_its_place(
    client: ServeExpertClient,
) -> None:
    with pytest.raises(ExpertError) as caught:
        await asyncio.wait_for(client.ask(call("gone")), 20)
    assert caught.value.kind == "http_503"
    numbers = client.metrics()["gone"]
    assert (numbers["inflight"], numbers["failed/http_503"]) == (0, 1)


async def test_concurrency_is_bounded_and_waiting_is_counted(client: ServeExpertClient) -> None:
    replies = await asyncio.gather(*(client.ask(call("slow")) for _ in range(6)))
    assert len(replies) == 6
    handle = serve.get_app_handle(app_name("slow"))
    assert (await handle.metrics.remote())["peak"] <= 2
    numbers = client.metrics()["slow"]
    assert numbers["peak"] == 6
    assert numbers["queue_s"] > 0.2  # three rounds of 0.6 s: the mean wait outside a replica is 0.6 s


def test_a_pickled_client_works_in_another_process(client: ServeExpertClient) -> None:
    class Caller:
        def __init__(self, experts: ServeExpertClient) -> None:
            self._experts = experts

        async def ask(self) -> str:
            return (await self._experts.ask(call("right one"))).text

    assert pickle.loads(pickle.dumps(client)).metrics()["right one"]["calls"] == 0
    actor = ray.remote(Caller).options(num_cpus=0).remote(client)
    assert ray.get(actor.ask.remote(), timeout=60) == "Six sevens are 42."


async def test_f11_a_replica_that_dies_in_mid_call_is_replaced_within_the_retries(
    client: ServeExpertClient,
) -> None:
    await client.ask(call("slow"))
    asking = asyncio.create_task(client.ask(call("slow")))
    await asyncio.sleep(0.3)
    _kill_replica("slow")
    reply = await asyncio.wait_for(asking, 60)
    assert reply.text == "Six sevens are 42."
    assert client.metrics()["slow"]["lost_replies"] >= 1


def test_an_expert_that_cannot_start_is_named_with_the_reason(client: ServeExpertClient) -> None:
    broken = ExpertConfig(
        name="broken",
        backend=OpenAIBackend(base_url="http://127.0.0.1:9/v1", model="m", api_key_env="NO_SUCH_KEY_IS_SET"),
        num_cpus=0.1,
    )
    with pytest.raises(ConfigError, match=r"(?s)'broken'.*NO_SUCH_KEY_IS_SET"):
        deploy_experts([broken], timeout_s=60)
    shutdown_experts([broken])
    greedy = worked("greedy").model_copy(update={"num_cpus": 1000.0})
    with pytest.raises(PlacementError, match="greedy"):
        deploy_experts([greedy], [PROBLEM], timeout_s=3)
    shutdown_experts([greedy])


def _kill_replica(expert: str) -> None:
    for process in psutil.process_iter(["cmdline"]):
        title = " ".join(process.info["cmdline"] or [])
        if f":{app_name(expert)}:" in title and "ServeReplica" in title:
            process.kill()
            return
    raise AssertionError(f"no replica of {expert} found")
