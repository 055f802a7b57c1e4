"""Starts, places and readies the actors of a run. The only place where ``ray.remote`` meets our classes."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from actors.frozen_model import FrozenModelClient
from actors.learner import Learner, LearnerSpec, learner_env
from actors.rollout_worker import RolloutWorker, RolloutWorkerSpec, engine_env
from actors.sandbox_pool import SandboxPoolActor, SandboxPoolClient
from apprentice.config.schema import Config, OptimizerConfig
from apprentice.data.problem import Problem
from apprentice.errors import PlacementError
from apprentice.rollout.ports import AdvisorClient, AskPorts, FrozenModel, QueryJudge, Verifier
from apprentice.rollout.types import EpisodeFactory
from driver.fleet import Fleet
from driver.plan import asked_experts, placement_plan
from driver.remote import gather
from driver.sandbox_places import pool_nodes
from serve.expert import deploy_experts

__all__ = ["episode_factory", "problem_verifier", "spawn_fleet"]

_log = logging.getLogger(__name__)


def episode_factory(model: str, config: Config, frozen: str | None = None) -> EpisodeFactory:
    """Runs inside a rollout actor: loads the tokenizer there, and makes episodes as the recipe says.

    ``frozen``: folder of the model beside it (Learning to Ask), whose tokenizer episodes need as well.
    """
    from apprentice.episodes.factory import make_episode
    from apprentice.tokens import ChatCodec

    codec = ChatCodec.from_pretrained(
        model, revision=config.controller.revision, template_kwargs=dict(config.controller.template_kwargs)
    )
    kwargs = dict(config.controller.template_kwargs)
    partner = None if frozen is None else ChatCodec.from_pretrained(frozen, template_kwargs=kwargs)
    experts = config.experts if config.stage1.use_experts else ()
    make = functools.partial(make_episode, ask=config.ask, partner=partner)
    return functools.partial(_episode, make, codec, config.protocol, experts)


def _episode(make: Any, codec: Any, protocol: Any, experts: Any, problem: Problem, **fields: Any) -> Any:
    return make(fields.pop("mode"), problem, codec, protocol, experts, **fields)


def spawn_fleet(
    config: Config,
    model: str,
    problems: Sequence[Problem],
    *,
    optimizer: OptimizerConfig | None,
    version: int = 0,
    frozen: Mapping[str, str] | None = None,
    advisor: AdvisorClient | None = None,
    judge: QueryJudge | None = None,
    beat: Callable[[str], None] = lambda what: None,
) -> Fleet:
    """Start everything side by side and wait until all of it answers.

    Args:
        model: folder or hub id of the weights that learner and engines start from.
        problems: all problems of the run, for experts that answer from worked solutions.
        optimizer: of the first training stage; None starts no learner (evaluation only).
        version: policy version of these weights.
        frozen: models that episodes ask but this fleet does not train (Learning to Ask), name -> folder.
        advisor: the metered advisor, which outlives the fleet.
        judge: of queries to the advisor.

    Raises:
        InfrastructureError: an actor did not come up; names it. What was started is ended again.
    """
    fleet = Fleet(config=config, version=version, beat=beat)
    try:
        _start(fleet, config, model, problems, optimizer, frozen or {}, (advisor, judge))
    except BaseException:
        fleet.stop()
        raise
    return fleet


def _start(
    fleet: Fleet,
    config: Config,
    model: str,
    problems: Sequence[Problem],
    optimizer: OptimizerConfig | None,
    frozen: Mapping[str, str],
    advice: tuple[AdvisorClient | None, QueryJudge | None],
) -> None:
    deadline = config.deadlines.start_s
    fleet.pools, places = _spawn_pools(config, learner=optimizer is not None)
    waiting: dict[str, Any] = {name: pool.ready.remote() for name, pool in fleet.pools.items()}
    if optimizer is not None:
        fleet.reservation = _reserve_learners(config)
        fleet.learners = _spawn_learners(config, model, optimizer, fleet.reservation)
        waiting |= _set_up_learners(fleet.learners, deadline)
    fleet.experts = deploy_experts(
        asked_experts(config),
        problems,
        seed=config.seed,
        cache_dir=str(Path(config.run_dir).absolute() / "expert_cache"),
        timeout_s=deadline,
    )
    fleet.beat("experts are up")
    fleet.python = SandboxPoolClient(
        list(fleet.pools.values()), config.sandbox, nodes=places, max_chars=config.protocol.max_output_chars
    )
    for name, source in frozen.items():
        fleet.frozen |= _spawn_frozen(config, name, source, fleet)
    waiting |= {name: worker.start.remote() for name, worker in fleet.frozen.items()}
    ask = _ask_ports(config, fleet, frozen, *advice)
    fleet.workers = _spawn_workers(config, model, fleet, ask, next(iter(frozen.values()), None))
    waiting |= {name: worker.start.remote() for name, worker in fleet.workers.items()}
    gather(waiting, timeout_s=deadline, what="start the actors")
    if fleet.learners and _transport(config) != "object_store":
        _connect(fleet, config)
    fleet.beat("all actors are up")


def _spawn_pools(config: Config, *, learner: bool) -> tuple[dict[str, Any], list[str]]:
    """The pools by name, and the id of each one's node.

    Raises:
        PlacementError: no node has room for one.
    """
    alive = [node for node in ray.nodes() if node["Alive"]]
    others = [
        bundle
        for actor in placement_plan(config).actors
        if actor.role != "sandbox" and (learner or actor.role != "learner")
        for bundle in [actor.bundle] * actor.count
    ]
    places = pool_nodes(config.sandbox, others, [node["Resources"] for node in alive])
    nodes = [str(alive[place]["NodeID"]) for place in places]
    _log.info("%d sandbox pools of %d cells at one time", len(nodes), config.sandbox.cells_at_once)
    pools = {}
    for i, node in enumerate(nodes):
        actor = ray.remote(SandboxPoolActor).options(
            num_cpus=config.sandbox.num_cpus,
            max_restarts=-1,
            max_concurrency=1024,
            # Soft: the pool of a node that dies is restarted on another one.
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=True),
        )
        pools[f"sandbox-{i}"] = actor.remote(config.sandbox)
    return pools, nodes


def _reserve_learners(config: Config) -> PlacementGroup | None:
    """Room for all ranks at once, close together: every step moves gradients between them.

    Raises:
        PlacementError: the cluster had no such room in time.
    """
    learner = config.learner
    wanted = {"CPU": learner.num_cpus, "GPU": learner.num_gpus}
    bundle = {kind: amount for kind, amount in wanted.items() if amount > 0}
    if not bundle:
        return None
    group = placement_group([bundle] * learner.ranks, strategy="PACK")
    if not group.wait(config.deadlines.start_s):
        remove_placement_group(group)
        raise PlacementError(
            f"no room for {learner.ranks} learner ranks of {bundle} within {config.deadlines.start_s:.0f} s: "
            "other work holds the cluster; wait for it, ask for less, or add nodes"
        )
    return group


def _spawn_learners(
    config: Config, model: str, optimizer: OptimizerConfig, reservation: PlacementGroup | None
) -> dict[str, Any]:
    env = learner_env(None if config.learner.num_gpus else _threads(config))
    if not config.learner.num_gpus:
        env["CUDA_VISIBLE_DEVICES"] = ""  # a learner that asked for no GPU must not take one it can see
    options: dict[str, Any] = {
        "num_cpus": config.learner.num_cpus,
        "num_gpus": config.learner.num_gpus,
        "runtime_env": {"env_vars": env},
    }
    spec = LearnerSpec(
        model=model,
        learner=config.learner,
        optimizer=optimizer,
        seed=config.seed,
        revision=config.controller.revision,
        timeout_s=config.deadlines.step_s,
    )
    learners = {}
    for rank in range(config.learner.ranks):
        if reservation is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                reservation, placement_group_bundle_index=rank
            )
        learners[f"learner-{rank}"] = ray.remote(Learner).options(**options).remote(spec)
    return learners


def _set_up_learners(learners: dict[str, Any], deadline: float) -> dict[str, Any]:
    first = next(iter(learners))
    address = gather({first: learners[first].node_address.remote()}, timeout_s=deadline, what="find rank 0")
    host, port = address[first]
    return {
        name: learner.setup.remote(host, port, rank, len(learners))
        for rank, (name, learner) in enumerate(learners.items())
    }


def _engine_actor(config: Config) -> Any:
    on_gpu = config.rollout.num_gpus > 0
    return ray.remote(RolloutWorker).options(
        num_cpus=config.rollout.num_cpus,
        num_gpus=config.rollout.num_gpus,
        max_concurrency=1024,
        scheduling_strategy="SPREAD",
        runtime_env={"env_vars": engine_env(config.rollout, on_gpu, None if on_gpu else _threads(config))},
    )


def _no_episodes() -> Any:
    """A frozen engine only generates: it plays no episode."""
    return None


def _spawn_frozen(config: Config, name: str, model: str, fleet: Fleet) -> dict[str, Any]:
    """Engines of a model that is asked but not trained. They serve one version, for ever."""
    assert config.ask is not None
    actor = _engine_actor(config)
    return {
        engine: actor.remote(
            RolloutWorkerSpec(
                name=engine,
                model=model,
                rollout=config.rollout,
                max_context=config.controller.max_context,
                build_episodes=_no_episodes,
                experts=fleet.experts,
                python=fleet.python,
                verifier=None,
                version=0,
                seed=config.seed,
            )
        )
        for engine in (f"{name}-{i}" for i in range(config.ask.frozen_engines))
    }


def _ask_ports(
    config: Config,
    fleet: Fleet,
    frozen: Mapping[str, str],
    advisor: AdvisorClient | None,
    judge: QueryJudge | None,
) -> AskPorts | None:
    if config.ask is None:
        return None
    models = {}
    for name in frozen:
        engines = [worker for engine, worker in fleet.frozen.items() if engine.rpartition("-")[0] == name]
        client = FrozenModelClient(name, engines, timeout_s=config.deadlines.step_s)
        models[name] = FrozenModel(client, config.ask.frozen_sampling)
    return AskPorts(advisor=advisor, judge=judge, frozen=models)


def problem_verifier(config: Config, python: Any) -> Verifier:
    """Judges answers by rules, and programs in the sandbox of the run."""
    from apprentice.verify import RuleVerifier
    from apprentice.verify.execution import ExecutionJudge
    from apprentice.verify.problems import ProblemVerifier

    return ProblemVerifier(RuleVerifier(), ExecutionJudge(python, config.programs))


def _spawn_workers(
    config: Config, model: str, fleet: Fleet, ask: AskPorts | None, frozen: str | None
) -> dict[str, Any]:
    actor = _engine_actor(config)
    return {
        name: actor.remote(
            RolloutWorkerSpec(
                name=name,
                model=model,
                revision=config.controller.revision,
                rollout=config.rollout,
                max_context=config.controller.max_context,
                build_episodes=functools.partial(episode_factory, model, config, frozen),
                experts=fleet.experts,
                python=fleet.python,
                verifier=problem_verifier(config, fleet.python),
                transport=_transport(config),
                version=fleet.version,
                seed=config.seed,
                ask=ask,
            )
        )
        for name in (f"rollout-{i}" for i in range(config.rollout.workers))
    }


def _connect(fleet: Fleet, config: Config) -> None:
    """Push transports: every learner rank learns of the engines."""
    refs = {
        name: learner.connect_engines.remote(
            fleet.workers,
            _transport(config),
            ranks_per_worker=config.rollout.tensor_parallel_size,
            bucket_mib=config.weight_sync.bucket_mib,
            timeout_s=config.weight_sync.timeout_s,
        )
        for name, learner in fleet.learners.items()
    }
    gather(refs, timeout_s=config.deadlines.start_s, what="connect learners and engines")


def _transport(config: Config) -> str:
    """``auto``: NCCL between GPUs, CUDA IPC for one learner and one engine on parts of one GPU (NCCL refuses
    two ranks on one device), the object store where either has no GPU."""
    if config.weight_sync.transport != "auto":
        return config.weight_sync.transport
    learner, rollout = config.learner, config.rollout
    if not (rollout.num_gpus > 0 and learner.num_gpus > 0):
        return "object_store"
    share = learner.num_gpus < 1 and rollout.num_gpus < 1 and learner.num_gpus + rollout.num_gpus <= 1
    return "ipc" if share and learner.ranks == rollout.workers == 1 else "nccl"


def _threads(config: Config) -> int:
    """OpenMP threads of one CPU actor: learner and engines take turns, so each may use all cores."""
    return max(1, len(os.sched_getaffinity(0)) // max(config.learner.ranks, config.rollout.workers))
