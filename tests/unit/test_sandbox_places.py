"""Which nodes get sandbox pools, and how a recipe and its plan say so."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from apprentice.config.load import load_config
from apprentice.config.schema import SandboxConfig
from apprentice.errors import PlacementError
from driver.plan import check_fits, placement_plan
from driver.sandbox_places import pool_nodes

pytestmark = pytest.mark.unit

CONFIGS = Path(__file__).parents[2] / "configs"
GPU_NODE = {"CPU": 32.0, "GPU": 8.0}
CPU_NODE = {"CPU": 64.0}
HEAD = {"CPU": 0.0}
LEARNER = {"CPU": 1.0, "GPU": 1.0}


@pytest.mark.parametrize(
    ("pools", "num_cpus", "others", "nodes", "places"),
    [
        pytest.param("auto", 16.0, [], [GPU_NODE, CPU_NODE], (1, 0), id="one on every node"),
        pytest.param("auto", 16.0, [], [HEAD, GPU_NODE], (1,), id="a head node without CPUs holds none"),
        pytest.param("auto", 0.0, [], [HEAD, GPU_NODE], (1, 0), id="unless a pool reserves none"),
        pytest.param("auto", 28.0, [LEARNER] * 8, [GPU_NODE, CPU_NODE], (1,), id="learners need the CPUs"),
        pytest.param("auto", 24.0, [LEARNER] * 8, [GPU_NODE, CPU_NODE], (1, 0), id="and now do not"),
        pytest.param("auto", 1.5, [{"CPU": 2.0}], [{"CPU": 2.0}, {"CPU": 2.0}], (0,), id="whoever is left"),
        pytest.param(1, 16.0, [], [GPU_NODE, CPU_NODE], (1,), id="one pool on the largest"),
        pytest.param(3, 16.0, [], [GPU_NODE, CPU_NODE], (1, 0, 1), id="dealt out in turn"),
        pytest.param(5, 16.0, [], [GPU_NODE, CPU_NODE], (1, 0, 1, 0, 1), id="the full one is passed over"),
        pytest.param(6, 16.0, [], [GPU_NODE, CPU_NODE], (1, 0, 1, 0, 1, 1), id="to the last CPU"),
        pytest.param(10, 0.1, [], [{"CPU": 1.0}], (0,) * 10, id="tenths without rounding errors"),
    ],
)
def test_where_pools_go(
    pools: int | str,
    num_cpus: float,
    others: list[dict[str, float]],
    nodes: list[dict[str, float]],
    places: tuple[int, ...],
) -> None:
    sandbox = SandboxConfig(pools=pools, num_cpus=num_cpus)  # type: ignore[arg-type]
    assert pool_nodes(sandbox, others, nodes) == places


@pytest.mark.parametrize(
    ("pools", "nodes", "said"),
    [
        (
            "auto",
            [HEAD, {"CPU": 8.0}],
            r"room for 0 of 1 sandbox pools of 16 CPU.*CPU by node: 0, 8.*num_cpus",
        ),
        (7, [GPU_NODE, CPU_NODE], r"room for 6 of 7 sandbox pools of 16 CPU.*lower sandbox\.num_cpus or"),
        ("auto", [], "no node"),
    ],
)
def test_no_room_is_an_error_that_says_what_to_change(
    pools: int | str, nodes: list[dict[str, float]], said: str
) -> None:
    with pytest.raises(PlacementError, match=said):
        pool_nodes(SandboxConfig(pools=pools, num_cpus=16.0), [], nodes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "cells"),
    [
        ({"num_cpus": 16.0}, 16),
        ({"num_cpus": 2.9}, 2),
        ({"num_cpus": 0.1}, 1),
        ({"num_cpus": 0.0}, 1),
        ({"num_cpus": 16.0, "workers": 4}, 4),
        ({"num_cpus": 0.1, "workers": 2}, 2),
    ],
)
def test_cells_at_one_time_follow_the_cpus_of_a_pool_unless_a_number_is_given(
    fields: dict[str, float], cells: int
) -> None:
    assert SandboxConfig(**fields).cells_at_once == cells  # type: ignore[arg-type]


@pytest.mark.parametrize("fields", [{"pools": 0}, {"pools": "all"}, {"workers": 0}, {"workers": "cores"}])
def test_what_is_neither_auto_nor_a_number_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        SandboxConfig(**fields)  # type: ignore[arg-type]


def test_the_plan_says_one_a_node_and_needs_room_for_one() -> None:
    config = load_config(CONFIGS / "rivet-4b.yaml")
    assert (config.sandbox.pools, config.sandbox.workers, config.sandbox.num_cpus) == ("auto", "auto", 16.0)
    plan = placement_plan(config)
    (row,) = [line for line in plan.table().splitlines() if line.startswith("sandbox")]
    assert "1 a node" in row and "every node" in row and "16 at one time, cells of at most 512 MiB" in row
    check_fits(plan, [{"CPU": 24.0, "GPU": 8.0}])
    with pytest.raises(PlacementError):
        check_fits(plan, [{"CPU": 23.0, "GPU": 8.0}])
    numbered = placement_plan(load_config(CONFIGS / "rivet-4b.yaml", ["sandbox.pools=3"]))
    assert numbered.wanted()["CPU"] == 8 + 3 * 16
    (row,) = [line for line in numbered.table().splitlines() if line.startswith("sandbox")]
    assert " 3 " in row and "spread" in row


@pytest.mark.parametrize("name", ["demo", "tiny"])
def test_recipes_for_small_machines_name_small_numbers(name: str) -> None:
    sandbox = load_config(CONFIGS / f"{name}.yaml").sandbox
    assert (sandbox.pools, sandbox.num_cpus) == (1, 0.1)
    assert sandbox.cells_at_once <= 2
