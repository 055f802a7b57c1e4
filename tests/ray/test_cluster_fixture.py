"""The local cluster that Ray tests run on."""

from __future__ import annotations

import psutil
import pytest
import ray

pytestmark = pytest.mark.ray


class Adder:
    """An undecorated class, as every actor of the project is."""

    def add(self, a: int, b: int) -> int:
        return a + b


def test_an_undecorated_class_becomes_an_actor_at_the_spawn_site(ray_cluster: None) -> None:
    actor = ray.remote(Adder).options(num_cpus=0).remote()
    assert ray.get(actor.add.remote(2, 3), timeout=60) == 5


def test_the_test_cluster_listens_on_loopback_only(ray_cluster: None) -> None:
    addresses = {
        connection.laddr.ip
        for process in psutil.Process().children(recursive=True)
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert addresses, "the cluster's processes are children of the test process"
    assert addresses <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
