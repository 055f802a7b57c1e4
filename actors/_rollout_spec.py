"""What a rollout actor is made of, what it says of itself, and its engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from actors._engine import Engine, EngineOptions
from apprentice.config.schema import RolloutConfig
from apprentice.errors import EngineError
from apprentice.rollout.ports import AskPorts, ExpertClient, PythonRunner, Verifier
from apprentice.rollout.types import EpisodeFactory

__all__ = ["RolloutWorkerSpec", "WorkerState", "load_engine"]


@dataclass(frozen=True, slots=True)
class RolloutWorkerSpec:
    """Everything a rollout actor is made of; picklable.

    Args:
        name: for messages, e.g. ``rollout-0``.
        model: folder of the checkpoint the engine starts from.
        build_episodes: called once in the actor; makes the factory of episodes (loads the tokenizer there).
        max_context: longest sequence of the engine, in tokens.
        transport: ``object_store``, ``nccl`` or ``ipc``.
        revision: of ``model`` where that is a hub id; None: its default one.
        ask: advisor, judge and frozen models of Learning to Ask.
        version: policy version of ``model``; None: the actor serves nothing until its first sync.
    """

    name: str
    model: str
    rollout: RolloutConfig
    max_context: int
    build_episodes: Callable[[], EpisodeFactory]
    experts: ExpertClient
    python: PythonRunner
    verifier: Verifier | None
    transport: str = "object_store"
    version: int | None = None
    seed: int = 0
    revision: str | None = None
    ask: AskPorts | None = None


@dataclass(frozen=True, slots=True)
class WorkerState:
    """``version``: served, None while stale; ``stale``: why; ``fatal``: why the engine is dead."""

    name: str
    version: int | None
    stale: str
    fatal: str
    load_s: float


async def load_engine(spec: RolloutWorkerSpec) -> Engine:
    """The engine that ``spec`` asks for, loaded: in this process or in processes of its own.

    Raises:
        EngineError: it could not be loaded.
    """
    import torch

    options = EngineOptions(
        spec.name, spec.model, spec.rollout, spec.max_context, spec.transport, spec.seed, spec.revision
    )
    on_gpu = torch.cuda.is_available()
    if spec.rollout.in_process:
        from actors._engine_in_process import InProcessEngine

        engine = InProcessEngine(options, on_gpu)
        await engine.ready()
        return engine
    from actors._engine_async import SubprocessEngine

    try:
        return SubprocessEngine(options, on_gpu)
    # Whatever vLLM raises while it starts, the actor did not come up.
    except Exception as error:
        raise EngineError(f"{spec.name}: the engine did not load: {error!r}") from error
