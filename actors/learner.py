"""The learner: one rank that trains the controller, exports it and gives its weights away."""

from __future__ import annotations

import os
import socket
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apprentice.config.schema import LearnerConfig, OptimizerConfig
from apprentice.hardware import OPENMP_WAIT, learner_dtypes
from apprentice.learning.batch import TrainingBatch

if TYPE_CHECKING:
    from actors.deepspeed_engine import DeepSpeedEngine
    from actors.weight_transfer import WeightManifest
    from actors.weight_transfer_push import PushPublisher
    from apprentice.learning.stats import PolicyStats, SftStats
    from apprentice.learning.updates import PolicyObjective, SftObjective

__all__ = ["FINISHED_MARKER", "Learner", "LearnerSpec", "learner_env"]

FINISHED_MARKER = "FINISHED"
"""Written last into a checkpoint folder: a folder without it is not a checkpoint."""


@dataclass(frozen=True, slots=True)
class LearnerSpec:
    """Everything a rank must know; the same for all ranks.

    ``model`` is a folder of Hugging Face format (or a hub id), ``total_steps`` the optimizer steps that a
    decaying schedule ends at, ``timeout_s`` how long a rank waits for another in a collective.
    """

    model: str
    learner: LearnerConfig
    optimizer: OptimizerConfig
    seed: int = 66
    revision: str | None = None
    total_steps: int | None = None
    timeout_s: float = 1800.0


def learner_env(threads: int | None = None) -> dict[str, str]:
    """Environment for a learner's process on a CPU machine; pass it as the actor's ``runtime_env``.

    Large tensors come from the heap and stay there: returning them to the system after every use costs a
    third of a step.
    """
    env = {
        "MALLOC_MMAP_THRESHOLD_": str(8 * 2**30),
        "MALLOC_TRIM_THRESHOLD_": str(16 * 2**30),
        "MALLOC_ARENA_MAX": "1",  # arenas of many threads would each keep the largest batch they saw
        "TOKENIZERS_PARALLELISM": "false",
        **OPENMP_WAIT,  # engines share the cores
    }
    if threads is not None:
        env["OMP_NUM_THREADS"] = str(threads)
    return env


class Learner:
    """One rank. Start every rank, :meth:`setup` all of them at once, then call the same methods on all.

    Methods that touch weights are serialised by a lock: an update and a publish called together run one
    after the other, whatever concurrency the actor was given.
    """

    def __init__(self, spec: LearnerSpec) -> None:
        self.spec = replace(spec, learner=learner_dtypes(spec.learner))
        self._lock = threading.Lock()
        self._engine: DeepSpeedEngine | None = None
        self._rank = 0
        self._push: PushPublisher | None = None
        self._source = spec.model

    def node_address(self) -> tuple[str, int]:
        """``(address, free port)`` of this process's node, for the others to meet at."""
        address = "127.0.0.1"
        import ray

        if ray.is_initialized():
            address = ray.util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind((address, 0))
            return address, int(probe.getsockname()[1])

    def setup(self, master_addr: str, master_port: int, rank: int, world_size: int) -> None:
        """Join the process group and load the model. All ranks call it; it returns when all have.

        Raises:
            DataError: the model cannot be read.
            ConfigError: the recipe asks for what this device cannot do.
        """
        with self._lock:
            self._rank = rank
            _join(master_addr, master_port, rank, world_size, self.spec.timeout_s)
            self._build(self.spec.model, self.spec.optimizer, self.spec.total_steps)

    def train_policy(self, batch: TrainingBatch, objective: PolicyObjective) -> list[PolicyStats]:
        """Stage I on one global batch; one entry an optimizer step (:func:`policy_update`)."""
        from apprentice.learning.updates import policy_update

        with self._lock:
            return policy_update(self._up(), batch, objective, self.spec.learner.micro_batch_tokens)

    def train_sft(self, batch: TrainingBatch, objective: SftObjective) -> SftStats:
        """One optimizer step of supervised fine-tuning (:func:`sft_update`)."""
        from apprentice.learning.updates import sft_update

        with self._lock:
            return sft_update(self._up(), batch, objective, self.spec.learner.micro_batch_tokens)

    def connect_engines(
        self,
        workers: dict[str, Any],
        transport: str,
        *,
        ranks_per_worker: int,
        bucket_mib: int,
        timeout_s: float,
    ) -> None:
        """Push weights to these engines from now on (``nccl``, ``ipc``). All ranks call it, after setup.

        The rendezvous takes place at the first :meth:`publish_weights`. Has not run on a GPU yet.
        """
        from actors.weight_transfer_push import PushPublisher

        with self._lock:
            self._push = PushPublisher(
                transport,
                workers,
                rank=self._rank,
                ranks_per_worker=ranks_per_worker,
                bucket_bytes=bucket_mib * 2**20,
                timeout_s=timeout_s,
            )

    def publish_weights(
        self, version: int, *, bucket_mib: int = 512, dtype: str | None = None
    ) -> WeightManifest | None:
        """Give the weights away; the manifest on rank 0, else None. All ranks call it.

        They go into the object store, or straight to the engines after :meth:`connect_engines`.
        """
        import torch

        from actors.weight_transfer import publish

        with self._lock:
            weights = self.iter_weights()
            target = None if dtype is None else getattr(torch, dtype)
            if self._push is not None:
                cast = weights if target is None else ((name, w.to(target)) for name, w in weights)
                manifest = self._push.publish(cast, version)
                return manifest if self._rank == 0 else None
            if self._rank != 0:
                for _ in weights:
                    pass
                return None
            return publish(weights, version, bucket_bytes=bucket_mib * 2**20, dtype=target)

    def iter_weights(self) -> Iterator[tuple[str, Any]]:
        """``(Hugging Face name, contiguous tensor)``; all ranks exhaust it, since shards are gathered."""
        return self._up().iter_weights()

    def save(self, folder: str) -> str:
        """Write a checkpoint of Hugging Face format; all ranks call it. Returns the folder.

        It is written beside and renamed, with :data:`FINISHED_MARKER` last, so that a reader never takes half
        of one. An existing checkpoint of that name is replaced.
        """
        import torch.distributed as dist

        with self._lock:
            engine = self._up()
            state = {}
            for name, tensor in engine.iter_weights():
                if self._rank == 0:
                    state[name] = tensor.cpu()
            if self._rank == 0:
                _write(engine.scorer.model, state, self._source, Path(folder))
            dist.barrier()
            return folder

    def load(self, folder: str) -> None:
        """Go on from a checkpoint of :meth:`save` with a fresh optimizer; all ranks call it.

        Raises:
            DataError: the folder is no finished checkpoint.
        """
        from apprentice.errors import DataError

        if not (Path(folder) / FINISHED_MARKER).exists():
            raise DataError(
                f"{folder} is not a finished checkpoint ({FINISHED_MARKER} is missing): it was cut off "
                "while it was written, or is no checkpoint; take an earlier one"
            )
        with self._lock:
            engine = self._up()
            optimizer, total_steps = engine.optimizer_config, engine.total_steps
            self._engine = None
            engine.close()
            del engine
            self._build(folder, optimizer, total_steps)

    def reset_optimizer(self, optimizer: OptimizerConfig, total_steps: int | None = None) -> None:
        """Forget moments and step count and take new constants (a new stage begins)."""
        with self._lock:
            self._up().reset_optimizer(optimizer, total_steps=total_steps)

    def stats(self) -> dict[str, float]:
        """``rss_bytes``, ``peak_rss_bytes`` of this process, optimizer ``steps``, peak GPU bytes if any."""
        import resource

        import psutil
        import torch

        rss = float(psutil.Process().memory_info().rss)
        out = {
            "rss_bytes": rss,
            "peak_rss_bytes": max(rss, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0),
            "steps": float(self._engine.steps if self._engine is not None else 0),
        }
        if torch.cuda.is_available():
            out["peak_gpu_bytes"] = float(torch.cuda.max_memory_allocated())
        return out

    def close(self) -> None:
        """Leave the process group. All ranks call it; afterwards only the actor's end is left."""
        import torch.distributed as dist

        with self._lock:
            if self._engine is not None:
                self._engine.close()
                self._engine = None
            if dist.is_initialized():
                dist.destroy_process_group()

    def _up(self) -> DeepSpeedEngine:
        if self._engine is None:
            raise RuntimeError("the learner is not set up: call setup() on every rank first")
        return self._engine

    def _build(self, source: str, optimizer: OptimizerConfig, total_steps: int | None) -> None:
        import torch

        from actors.deepspeed_engine import DeepSpeedEngine
        from apprentice.learning.model import TokenScorer, load_causal_lm, resolve_attention

        config = self.spec.learner
        torch.manual_seed(self.spec.seed)
        device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
        model = load_causal_lm(
            source,
            dtype=getattr(torch, config.dtype),
            attention=resolve_attention(config.attention, device),
            revision=self.spec.revision if source == self.spec.model else None,
        )
        if config.gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
        scorer = TokenScorer(model.to(device), logits_chunk=config.logits_chunk, autocast=config.autocast)
        self._source = source
        self._engine = DeepSpeedEngine(scorer, config, optimizer, total_steps=total_steps)


def _join(master_addr: str, master_port: int, rank: int, world_size: int, timeout_s: float) -> None:
    """Bring up the process group: NCCL where there is a GPU, else gloo."""
    import torch

    gpu = torch.cuda.is_available()
    # One GPU an actor: Ray has made it the only visible one, so the local rank is 0 everywhere.
    os.environ.update(
        MASTER_ADDR=master_addr,
        MASTER_PORT=str(master_port),
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_RANK="0",
    )
    if not gpu:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        if master_addr.startswith("127."):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import deepspeed

    # One line a collective call otherwise: DeepSpeed calls names that newer torch versions renamed.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed\.c10d_logger")
    if not gpu:
        # DeepSpeed's shared-memory collectives need a compiler at first use, leave 69 MB a rank in /dev/shm
        # behind, and gain nothing on few cores: gloo does.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(
        "nccl" if gpu else "gloo",
        auto_mpi_discovery=False,
        verbose=False,
        timeout=timedelta(seconds=timeout_s),
        rank=rank,
        world_size=world_size,
    )


def _write(model: Any, state: dict[str, Any], source: str, folder: Path) -> None:
    """Checkpoint beside, rename, so that a cut-off write leaves no folder of the final name."""
    import shutil

    from transformers import AutoTokenizer

    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    model.save_pretrained(partial, state_dict=state)
    AutoTokenizer.from_pretrained(source).save_pretrained(partial)
    (partial / FINISHED_MARKER).write_text("complete\n")
    if folder.exists():
        shutil.rmtree(folder)
    partial.replace(folder)
