"""Remote waits have deadlines, name who did not answer, and pass our own errors through."""

from __future__ import annotations

import time

import pytest
import ray

from apprentice.errors import ConfigError, InfrastructureError, StalledError
from driver.remote import gather

pytestmark = pytest.mark.ray


class Sleeper:
    def nap(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    def fail(self) -> None:
        raise ConfigError("stage1.steps: 3 is not 4")

    def die(self) -> None:
        import os

        os._exit(1)


@pytest.fixture(scope="module")
def sleepers(ray_cluster):
    actor = ray.remote(Sleeper).options(num_cpus=0)
    return {name: actor.remote() for name in ("a", "b")}


def test_values_come_back_by_name(sleepers) -> None:
    ticks = []
    refs = {"slow": sleepers["a"].nap.remote(0.3), "fast": sleepers["b"].nap.remote(0.0)}
    values = gather(refs, timeout_s=20, what="naps", on_wait=lambda: ticks.append(1))
    assert list(values.items()) == [("slow", 0.3), ("fast", 0.0)]
    assert ticks


def test_a_missed_deadline_names_the_late_one(sleepers) -> None:
    refs = {"prompt": sleepers["a"].nap.remote(0.0), "late": sleepers["b"].nap.remote(4.0)}
    began = time.monotonic()
    with pytest.raises(StalledError, match=r"step 3: no answer from late within 1 s"):
        gather(refs, timeout_s=1.0, what="step 3")
    assert time.monotonic() - began < 3.0


def test_our_errors_pass_through(sleepers) -> None:
    with pytest.raises(ConfigError, match="3 is not 4"):
        gather({"a": sleepers["a"].fail.remote()}, timeout_s=10, what="x")


def test_a_dead_actor_is_named(ray_cluster) -> None:
    actor = ray.remote(Sleeper).options(num_cpus=0).remote()
    with pytest.raises(InfrastructureError, match="learner-0 died"):
        gather({"learner-0": actor.die.remote()}, timeout_s=30, what="update")
