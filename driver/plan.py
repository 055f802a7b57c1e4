"""Where a run's actors go and what they need, from the recipe alone: nothing is loaded, nothing is started.

``apprentice train RECIPE --dry-run`` prints :func:`placement_plan`; before a run starts anything,
:func:`check_fits` compares it with the cluster, so that a run that cannot be placed ends with a message
instead of waiting for ever. Import-light: neither ray nor torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from apprentice.config.ask import AdvisorConfig, AskConfig
from apprentice.config.schema import Config, ExpertConfig, VllmBackend
from apprentice.data.benchmarks import find_benchmark
from apprentice.errors import ConfigError, PlacementError
from apprentice.hardware import learner_dtypes, rollout_dtypes
from apprentice.sandbox.program import STACK_BYTES
from driver.model_size import ModelSize, model_size
from driver.packing import fits

__all__ = ["GIB", "Plan", "PlannedActor", "asked_experts", "check_fits", "placement_plan"]

GIB = 1024**3
PROCESS_BYTES = GIB
"""Host memory of a process with torch and vLLM or DeepSpeed loaded, before any weights; rounded up."""
LIGHT_PROCESS_BYTES = GIB // 4
"""Host memory of an actor without torch."""

Role = Literal["learner", "rollout", "expert", "advisor", "frozen", "sandbox"]
Strategy = Literal["PACK", "SPREAD"]


@dataclass(frozen=True, slots=True)
class PlannedActor:
    """``count`` equal actors. Resources and bytes are those of one.

    ``host_bytes`` and ``gpu_bytes`` are estimates, ``None`` where the model's size is not known.
    ``strategy``: ``PACK`` keeps the actors of the row close together, ``SPREAD`` puts them on many nodes.
    ``per_node``: there are ``count`` on every node that has room for them, and at least on one.
    """

    role: Role
    name: str
    count: int
    num_cpus: float
    num_gpus: float
    host_bytes: int | None
    gpu_bytes: int | None
    strategy: Strategy
    note: str
    per_node: bool = False

    @property
    def bundle(self) -> dict[str, float]:
        """What one actor asks of Ray; without resources of which it wants none."""
        wanted = {"CPU": self.num_cpus, "GPU": self.num_gpus}
        return {name: amount for name, amount in wanted.items() if amount > 0}


@dataclass(frozen=True, slots=True)
class Plan:
    """Every actor of a run. What is counted by node is counted once: a run needs no more."""

    actors: tuple[PlannedActor, ...]

    def wanted(self) -> dict[str, float]:
        """All resources together, e.g. ``{"CPU": 3.1, "GPU": 0.0}``."""
        return {
            "CPU": math.fsum(actor.count * actor.num_cpus for actor in self.actors),
            "GPU": math.fsum(actor.count * actor.num_gpus for actor in self.actors),
        }

    def bundles(self) -> list[dict[str, float]]:
        """One Ray bundle an actor, in the order of the plan."""
        return [actor.bundle for actor in self.actors for _ in range(actor.count)]

    def table(self) -> str:
        """The plan as text for a terminal."""
        head = ("actor", "count", "CPU", "GPU", "memory", "GPU memory", "placement", "what")
        rows = [
            (
                actor.name,
                f"{actor.count} a node" if actor.per_node else str(actor.count),
                f"{actor.num_cpus:g}",
                f"{actor.num_gpus:g}",
                _gib(actor.host_bytes),
                _gib(actor.gpu_bytes) if actor.num_gpus else "-",
                _placement(actor),
                actor.note,
            )
            for actor in self.actors
        ]
        wanted = self.wanted()
        known = [actor for actor in self.actors if actor.host_bytes is not None]
        host = sum(actor.count * (actor.host_bytes or 0) for actor in known)
        at_least = "" if len(known) == len(self.actors) else ">= "
        total = (
            "together",
            "",
            f"{wanted['CPU']:g}",
            f"{wanted['GPU']:g}",
            at_least + _gib(host),
            "",
            "",
            "",
        )
        widths = [max(len(row[i]) for row in (head, *rows, total)) for i in range(len(head))]
        numeric = (1, 2, 3, 4, 5)

        def line(row: tuple[str, ...]) -> str:
            cells = (
                cell.rjust(width) if i in numeric else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            return "  ".join(cells).rstrip()

        rule = "  ".join("-" * width for width in widths)
        return "\n".join([line(head), rule, *map(line, rows), rule, line(total)])


def asked_experts(config: Config) -> tuple[ExpertConfig, ...]:
    """Experts that a run can ever call, in the order of the recipe; the others are not deployed.

    None without ``stage1.use_experts``, with a budget of no call, or where a run only evaluates modes that
    call none. Routing to one expert needs that one alone.
    """
    protocol = config.protocol
    only_evaluates = set(config.stages) == {"evaluate"}
    if (
        not config.stage1.use_experts
        or protocol.max_expert_calls == 0
        or (only_evaluates and "collaborative" not in config.evaluation.modes)
    ):
        return ()
    if protocol.routing in ("learned", "random"):
        return config.experts
    return tuple(expert for expert in config.experts if expert.name == protocol.routing)


def placement_plan(config: Config) -> Plan:
    """The actors that a recipe starts, each with its resources and an estimate of its memory.

    Raises:
        ConfigError: an engine splits its model over more GPUs than it asks for.
    """
    size = model_size(config.controller.model)
    actors: list[PlannedActor] = []
    if set(config.stages) - {"evaluate"}:
        actors.append(_learner(config, size))
    actors.append(_rollout(config, size))
    if config.ask is not None:
        actors += _asking(config, config.ask)
    asked = asked_experts(config)
    actors += [_expert(expert, index) for index, expert in enumerate(config.experts) if expert in asked]
    return Plan((*actors, _sandbox(config)))


def _sandbox(config: Config) -> PlannedActor:
    """A pool. Programs of sets that are known to be programming problems have a limit of their own."""
    sandbox, sets = config.sandbox, (config.data.train, *config.data.test)
    what, most = "cells", sandbox.memory_mib
    program = config.programs.memory_mib + STACK_BYTES // 1024**2
    kinds = {known.kind for item in sets if (known := find_benchmark(item.source)) is not None}
    if "code" in kinds and program > most:
        what, most = "programs", program
    return PlannedActor(
        role="sandbox",
        name="sandbox",
        count=1 if sandbox.pools == "auto" else sandbox.pools,
        num_cpus=sandbox.num_cpus,
        num_gpus=0.0,
        host_bytes=LIGHT_PROCESS_BYTES + sandbox.cells_at_once * most * 1024**2,
        gpu_bytes=None,
        strategy="SPREAD",
        note=f"{sandbox.cells_at_once} at one time, {what} of at most {most} MiB",
        per_node=sandbox.pools == "auto",
    )


def _learner(config: Config, size: ModelSize | None) -> PlannedActor:
    learner = config.learner
    states = None if size is None else _learner_bytes(config, size)
    on_gpu = learner.num_gpus > 0
    return PlannedActor(
        role="learner",
        name="learner",
        count=learner.ranks,
        num_cpus=learner.num_cpus,
        num_gpus=learner.num_gpus,
        host_bytes=PROCESS_BYTES if on_gpu else _plus(PROCESS_BYTES, states),
        gpu_bytes=states if on_gpu else None,
        strategy="PACK",  # every step moves gradients between the ranks
        note=f"{_named(config.controller.model, size)}, ZeRO-{learner.zero_stage}, {learner.dtype}",
    )


def _learner_bytes(config: Config, size: ModelSize) -> int:
    """Weights, gradients, AdamW's states, activations and logits of one rank.

    States per parameter: in bfloat16 2 + 2 bytes and 12 of float32 master weights and moments, in float32
    4 + 4 and 8. ZeRO stage 1 shards the optimizer's, stage 2 the gradients too, stage 3 the weights too.
    Activations: 34 bytes a token, layer and hidden unit in 16 bit; checkpointed 2, and 34 for one layer.
    Logits: float32 with their gradient, for one chunk of trained positions.
    """
    learner = learner_dtypes(config.learner)
    wide = learner.dtype == "float32"
    weights, gradients, optimizer = (4, 4, 8) if wide else (2, 2, 12)
    shards = [1 if learner.zero_stage < stage else learner.ranks for stage in (3, 2, 1)]
    total = size.parameters * (weights / shards[0] + gradients / shards[1] + optimizer / shards[2])
    if size.layers and size.hidden and size.vocabulary:
        per_layer = 34 * size.hidden * (2 if wide and not learner.autocast else 1)
        kept = (
            2 * size.hidden * size.layers + per_layer
            if learner.gradient_checkpointing
            else per_layer * size.layers
        )
        total += learner.micro_batch_tokens * kept
        total += 2 * 4 * learner.logits_chunk * size.vocabulary
    return round(total)


def _rollout(config: Config, size: ModelSize | None) -> PlannedActor:
    rollout = config.rollout
    _check_split(rollout.tensor_parallel_size, rollout.num_gpus, "rollout")
    engine = _engine(
        size,
        rollout.num_gpus,
        rollout_dtypes(rollout).dtype,
        rollout.kv_cache_gib,
        rollout.gpu_memory_utilization,
    )
    return PlannedActor(
        role="rollout",
        name="rollout",
        count=rollout.workers,
        num_cpus=rollout.num_cpus,
        num_gpus=rollout.num_gpus,
        host_bytes=engine.host_bytes,
        gpu_bytes=engine.gpu_bytes,
        strategy="SPREAD",
        note=f"{_named(config.controller.model, size)}, {engine.note}",
    )


def _expert(expert: ExpertConfig, index: int) -> PlannedActor:
    return _served("expert", f"expert {expert.name}", expert, f"experts.{index}")


def _asking(config: Config, ask: AskConfig) -> list[PlannedActor]:
    """The advisor, and the engines of the model that a stage asks but does not train."""
    actors = [_served("advisor", f"advisor {ask.advisor.name}", ask.advisor, "ask.advisor")]
    scored = {"ask_stage2", "ask_stage3"} & set(config.stages) or "ask_qmaker" in config.evaluation.modes
    if not scored:
        return actors
    source = ask.qmaker.model or config.controller.model
    engine = _rollout(config, model_size(source))
    return [*actors, replace(engine, role="frozen", name="frozen model", count=ask.frozen_engines)]


def _served(role: Role, name: str, served: ExpertConfig | AdvisorConfig, key: str) -> PlannedActor:
    backend = served.backend
    engine = _Engine(LIGHT_PROCESS_BYTES, None, f"{backend.kind} backend")
    if isinstance(backend, VllmBackend):
        _check_split(backend.tensor_parallel_size, served.num_gpus, key)
        size = model_size(backend.model)
        engine = _engine(
            size, served.num_gpus, backend.dtype, backend.kv_cache_gib, backend.gpu_memory_utilization
        )
        engine = replace(engine, note=f"{_named(backend.model, size)}, {engine.note}")
    return PlannedActor(
        role=role,
        name=name,
        count=served.replicas,
        num_cpus=served.num_cpus,
        num_gpus=served.num_gpus,
        host_bytes=engine.host_bytes,
        gpu_bytes=engine.gpu_bytes,
        strategy="SPREAD",
        note=engine.note,
    )


@dataclass(frozen=True, slots=True)
class _Engine:
    """Memory of one inference engine, and the words for it."""

    host_bytes: int | None
    gpu_bytes: int | None
    note: str


def _engine(
    size: ModelSize | None, num_gpus: float, dtype: str, kv_gib: float, utilization: float
) -> _Engine:
    """Weights on the GPU, which the engine then fills with its cache; or weights and cache in memory."""
    weights = None if size is None else size.parameters * (4 if dtype == "float32" else 2)
    if num_gpus > 0:
        return _Engine(PROCESS_BYTES, weights, f"fills {utilization:.0%} of the GPU")
    host = _plus(PROCESS_BYTES + round(kv_gib * GIB), weights)
    return _Engine(host, None, f"{kv_gib:g} GiB KV cache")


def _check_split(parts: int, num_gpus: float, key: str) -> None:
    if num_gpus > 0 and parts > num_gpus:
        raise ConfigError(
            f"{key}: the model is split over {parts} GPUs but one engine asks for {num_gpus:g}; "
            f"set {key}.num_gpus={parts}"
        )


def _named(model: str, size: ModelSize | None) -> str:
    return f"{model} ({'size unknown' if size is None else size.describe()})"


def _plus(base: int, extra: int | None) -> int | None:
    return None if extra is None else base + extra


def _placement(actor: PlannedActor) -> str:
    if actor.per_node:
        return "every node"
    return actor.strategy.lower() if actor.count > 1 else "-"


def _gib(size: int | None) -> str:
    return "unknown" if size is None else f"{size / GIB:.1f} GiB"


def check_fits(plan: Plan, resources: Mapping[str, float] | Sequence[Mapping[str, float]]) -> None:
    """Check that a cluster can hold every actor of a plan at once.

    Args:
        plan: what is wanted.
        resources: free amounts by resource (``CPU``, ``GPU``) of each node; one mapping stands for one node.
            With a sequence, an actor must fit on one node, and a fraction of a GPU on one GPU: two halves
            left over on two GPUs do not make one.

    Raises:
        PlacementError: it cannot; lists what is wanted and what is free, and what to change.
    """
    nodes = [resources] if isinstance(resources, Mapping) else list(resources)
    bundles = plan.bundles()
    if not fits(bundles, nodes):
        wanted = "\n".join(
            f"    {actor.count} x {actor.name}: {_amounts(actor.bundle)} each" for actor in plan.actors
        )
        free = (
            "\n".join(f"    node {i}: {_amounts(node)}" for i, node in enumerate(nodes, 1)) or "    no node"
        )
        totals = {kind: math.fsum(node.get(kind, 0.0) for node in nodes) for kind in ("CPU", "GPU")}
        raise PlacementError(
            f"the cluster cannot hold this run's actors: wanted {_amounts(plan.wanted())}, "
            f"free {_amounts(totals)}\n  wanted:\n{wanted}\n  free:\n{free}\n"
            "  Ask for less (learner.ranks, rollout.workers, num_cpus and num_gpus of each), or add nodes."
        )


def _amounts(resources: Mapping[str, float]) -> str:
    shown = [f"{kind} {resources[kind]:g}" for kind in ("CPU", "GPU") if kind in resources]
    return ", ".join(shown) or "nothing"
