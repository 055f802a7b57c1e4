"""On which nodes the sandbox pools go, from the recipe and the nodes' resources. Starts nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from apprentice.config.schema import SandboxConfig
from apprentice.errors import PlacementError
from driver.packing import fits

__all__ = ["pool_nodes"]

Resources = Mapping[str, float]


def pool_nodes(
    sandbox: SandboxConfig, others: Sequence[Resources], nodes: Sequence[Resources]
) -> tuple[int, ...]:
    """The node of each sandbox pool, as an index into ``nodes``.

    With ``sandbox.pools: auto`` every node gets one pool that has room for it while the run's other actors
    still find theirs. A number is dealt out over such nodes, those with the fewest pools first. Among equals
    the node with most CPU comes first.

    Args:
        sandbox: number of pools, and the CPUs of one.
        others: what each of the run's other actors asks for.
        nodes: resources (``CPU``, ``GPU``) of each node that is alive.

    Raises:
        PlacementError: no pool has room, or not as many as the recipe asks for; says what to change.
    """
    places: list[int] = []

    def has_room(node: int) -> bool:
        left = [dict(resources) for resources in nodes]
        for place in (*places, node):
            left[place]["CPU"] = left[place].get("CPU", 0.0) - sandbox.num_cpus
        return round(left[node]["CPU"], 4) >= 0 and fits(others, left)

    by_size = sorted(range(len(nodes)), key=lambda node: (-nodes[node].get("CPU", 0.0), node))
    if sandbox.pools == "auto":
        for node in by_size:
            if has_room(node):
                places.append(node)
        wanted = 1
    else:
        wanted = sandbox.pools
        for _ in range(wanted):
            fewest_first = sorted(by_size, key=places.count)
            if (node := next(filter(has_room, fewest_first), None)) is None:
                break
            places.append(node)
    if len(places) < wanted:
        free = ", ".join(f"{node.get('CPU', 0.0):g}" for node in nodes) or "no node"
        raise PlacementError(
            f"the cluster has room for {len(places)} of {wanted} sandbox pools of {sandbox.num_cpus:g} CPU "
            f"each beside the run's other actors (CPU by node: {free}): lower sandbox.num_cpus or "
            "sandbox.pools, or add nodes"
        )
    return tuple(places)
