"""One engine in a rollout actor: what it samples is what Hugging Face computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from apprentice.config.load import load_config
from apprentice.config.schema import SamplingConfig
from apprentice.episodes.actions import Generate
from apprentice.errors import EngineError, InfrastructureError, StaleEngineError, StalledError
from apprentice.rollout.types import split_rollouts
from apprentice.trajectory import NOT_SAMPLED, Owner, trajectories_from_table
from driver.fleet import Fleet
from driver.remote import gather
from tests.ray.rollout_actors import WINDOW, Reference, long_prompt, spawn
from tests.rollout_fakes import TurnsFactory, problem
from tests.tiny import make_tiny_model, make_tiny_tokenizer

pytestmark = pytest.mark.ray

TINY = Path(__file__).resolve().parents[2] / "configs" / "tiny.yaml"
PROMPT = long_prompt()
CORPUS = ["the answer to the question is that the tool runs the program and prints the answer"] * 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), corpus=CORPUS)


@pytest.fixture(scope="module")
def worker(ray_cluster: None, model: Path) -> Iterator[Any]:
    factory = TurnsFactory(turns=3, prompt_ids=PROMPT, turn_tokens=12, reply_ids=tuple(range(20, 60)))
    actor = spawn(model, version=2, factory=factory)
    state = ray.get(actor.start.remote(), timeout=120)
    assert (state.version, state.fatal) == (2, "")
    yield actor
    ray.get(actor.stop.remote(), timeout=60)
    ray.kill(actor)


@pytest.fixture(scope="module")
def reference(model: Path) -> Reference:
    return Reference(model)


def generate(worker: Any, request: Generate, sampling: SamplingConfig | None = None, seed: int = 1) -> Any:
    return ray.get(worker.generate.remote(request, sampling or SamplingConfig(), seed=seed), timeout=60)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.5])
def test_logprobs_are_those_of_the_distribution_after_temperature(
    worker: Any, reference: Reference, temperature: float
) -> None:
    out = generate(worker, Generate(PROMPT, 24), SamplingConfig(temperature=temperature))
    assert (len(out.token_ids), out.finish_reason, out.policy_version) == (24, "length", 2)
    expected = reference.logprobs([*PROMPT, *out.token_ids], len(PROMPT), temperature)
    np.testing.assert_allclose(out.logprobs, expected, atol=1e-4)


def test_greedy_tokens_are_the_arg_max_and_logprobs_those_of_temperature_one(
    worker: Any, reference: Reference
) -> None:
    out = generate(worker, Generate(PROMPT, 16), SamplingConfig(temperature=0.0))
    rows = reference.distributions([*PROMPT, *out.token_ids])[len(PROMPT) - 1 :]
    assert out.token_ids == rows.argmax(-1).tolist()
    np.testing.assert_allclose(out.logprobs, rows.max(-1).values.numpy(), atol=1e-4)


def test_top_p_renormalizes_over_the_tokens_that_it_keeps(worker: Any, reference: Reference) -> None:
    """The nucleus by hand: the fewest tokens that hold 0.3 of the mass, their probabilities divided by it."""
    out = generate(worker, Generate(PROMPT, 12), SamplingConfig(top_p=0.3))
    rows = np.exp(reference.distributions([*PROMPT, *out.token_ids])[len(PROMPT) - 1 :].numpy())
    for row, token, logprob in zip(rows, out.token_ids, out.logprobs, strict=True):
        order = np.argsort(-row)
        kept = order[: int(np.searchsorted(np.cumsum(row[order]), 0.3)) + 1]
        assert token in kept
        assert logprob == pytest.approx(float(np.log(row[token] / row[kept].sum())), abs=1e-3)


def test_a_seed_fixes_the_sample(worker: Any) -> None:
    outs = [generate(worker, Generate(PROMPT, 16), seed=seed) for seed in (5, 5, 6)]
    assert outs[0].token_ids == outs[1].token_ids
    assert outs[0].token_ids != outs[2].token_ids


def test_a_stop_id_ends_the_turn_and_stays(worker: Any) -> None:
    full = generate(worker, Generate(PROMPT, 16)).token_ids
    stop = full[5]
    out = generate(worker, Generate(PROMPT, 16, stop_token_ids=(stop,)))
    assert out.token_ids == full[: full.index(stop) + 1]
    assert (len(out.logprobs), out.finish_reason) == (len(out.token_ids), "stop")


def test_a_stop_string_ends_the_turn_and_its_whole_last_token_stays(worker: Any) -> None:
    """The string ends inside a token (`Appl` in `Apples`): the ids end with that token, uncut."""
    tokenizer = make_tiny_tokenizer(CORPUS)
    prompt = tuple(tokenizer.encode("so " * 20))
    # A random model writes mostly bytes that are no text; take a seed whose first token is a word.
    for seed in range(200):
        (token,) = generate(worker, Generate(prompt, 1), seed=seed).token_ids
        word = tokenizer.decode([token])
        if len(word) > 2 and word.strip().isalpha():
            break
    out = generate(worker, Generate(prompt, 8, stop=(word[:-1],)), seed=seed)
    assert (out.token_ids, out.finish_reason) == ([token], "stop")
    assert len(out.logprobs) == 1
    missed = generate(worker, Generate(prompt, 8, stop=(word + "never",)), seed=seed)
    assert (len(missed.token_ids), missed.finish_reason) == (8, "length")


def test_the_models_own_end_token_does_not_stop_what_was_not_asked_to_stop(worker: Any) -> None:
    out = generate(worker, Generate(PROMPT, 200))
    assert (len(out.token_ids), out.finish_reason) == (200, "length")


def test_max_tokens_is_lowered_to_the_window_and_the_rollout_goes_on(worker: Any) -> None:
    """G09: prompt and max_tokens together exceed the window."""
    prompt = long_prompt(WINDOW - 9)
    out = generate(worker, Generate(prompt, 300))
    assert (len(out.token_ids), out.finish_reason) == (9, "length")
    full = generate(worker, Generate(long_prompt(WINDOW), 5))
    assert (len(full.token_ids), full.finish_reason) == (0, "length")


def test_a_fleet_hands_on_whole_groups_while_others_are_sampled(worker: Any) -> None:
    """What an evaluation keeps through a crash: each table holds whole groups, none twice, in good time."""
    seen: list[tuple[list[str], int]] = []
    done: list[int] = []

    def on_groups(table: Any) -> None:
        seen.append((table.column("group_id").to_pylist(), done[-1] if done else 0))

    fleet = Fleet(config=load_config(TINY), workers={"rollout-0": worker})
    result = fleet.sample(
        [problem(f"p{i}") for i in range(160)],
        mode="collaborative",
        samples=2,
        sampling=SamplingConfig(temperature=0.8),
        step=7,
        what="test",
        on_progress=lambda n, total: done.append(n),
        on_groups=on_groups,
    )
    early = Counter(group for groups, _ in seen for group in groups)
    assert set(early.values()) <= {2}  # whole, and once
    assert result.table.num_rows == 320
    assert set(early) <= set(result.table.column("group_id").to_pylist())
    assert any(groups for groups, before in seen if before < 320), "nothing came before the end"


def test_a_failed_fleet_has_handed_on_what_was_whole(worker: Any) -> None:
    seen: list[str] = []
    config = load_config(TINY, ["deadlines.step_s=10"])
    fleet = Fleet(config=config, workers={"rollout-0": worker})
    with pytest.raises(StalledError):
        fleet.sample(
            [problem(f"p{i}") for i in range(12000)],
            mode="collaborative",
            samples=1,
            sampling=SamplingConfig(temperature=0.8),
            step=8,
            what="test",
            on_groups=lambda table: seen.extend(table.column("group_id").to_pylist()),
        )
    ray.get(worker.cancel.remote(), timeout=30)
    assert seen and len(set(seen)) == len(seen)


def test_many_episodes_in_flight_give_whole_groups_that_hugging_face_agrees_with(
    worker: Any, reference: Reference
) -> None:
    """Multi-turn, prefix cache on, 20 episodes at 16 places: every logprob by teacher forcing."""
    problems = [problem("a"), problem("b"), problem("a"), problem("c", answer="3"), problem("d")]
    (request,) = split_rollouts(
        problems,
        1,
        mode="collaborative",
        samples=4,
        sampling=SamplingConfig(temperature=0.8),
        seed=66,
        step=1,
    )
    ref = worker.run.remote(request)
    result = gather({"rollout-0": ref}, timeout_s=120, what="rollouts")["rollout-0"]
    trajectories = trajectories_from_table(result.table)
    assert [t.group_id for t in trajectories] == [g for g in request.group_ids for _ in range(4)]
    assert len({t.trajectory_id for t in trajectories}) == 20
    assert len({t.token_ids.tobytes() for t in trajectories}) == 20, "twins are sampled apart"
    for t in trajectories:
        sampled = t.owner == Owner.CONTROLLER
        assert t.reward == 1.0
        assert set(t.policy_version[sampled]) == {2}
        assert set(t.policy_version[~sampled]) == {NOT_SAMPLED}
        expected = reference.logprobs(t.token_ids.tolist(), 1, 0.8)[sampled[1:]]
        np.testing.assert_allclose(t.logprob[sampled], expected, atol=1e-4)
    counters = result.counters
    assert (counters.groups, counters.episodes, counters.dropped_groups) == (5, 20, 0)
    assert counters.sampled_tokens == sum(int((t.owner == Owner.CONTROLLER).sum()) for t in trajectories)
    assert counters.generations == 60
    assert counters.generate_s > 0 and 0 < counters.wall_s < counters.generate_s
    again = ray.get(worker.run.remote(request), timeout=120)
    same = [
        a.token_ids.tobytes() == b.token_ids.tobytes()
        for a, b in zip(trajectories, trajectories_from_table(again.table), strict=True)
    ]
    assert all(same), "the same request samples the same"


def test_a_run_reports_progress_and_can_be_cancelled(worker: Any) -> None:
    (request,) = split_rollouts(
        [problem(str(i)) for i in range(64)],
        1,
        mode="collaborative",
        samples=8,
        sampling=SamplingConfig(),
        seed=None,
        max_rollout_tokens=40,
    )
    ref = worker.run.remote(request)
    for _ in range(600):
        progress = ray.get(worker.progress.remote(), timeout=10)
        if progress.done:
            break
        ray.wait([ref], timeout=0.05)
    assert 0 < progress.done < progress.total == 512
    ray.get(worker.cancel.remote(), timeout=10)
    with pytest.raises(InfrastructureError, match="cancelled"):
        gather({"rollout-0": ref}, timeout_s=30, what="rollouts")
    assert ray.get(worker.progress.remote(), timeout=10).total == 0
    assert len(generate(worker, Generate(PROMPT, 4)).token_ids) == 4, "the engine goes on"


def test_a_stale_engine_samples_nothing(worker: Any) -> None:
    ray.get(worker.mark_stale.remote("it missed version 3"), timeout=10)
    (request,) = split_rollouts(
        [problem("a")], 1, mode="collaborative", samples=1, sampling=SamplingConfig(), seed=1
    )
    try:
        for ref in (
            worker.generate.remote(Generate(PROMPT, 4), SamplingConfig()),
            worker.run.remote(request),
        ):
            with pytest.raises(StaleEngineError, match=r"rollout-0 is stale.*it missed version 3"):
                gather({"rollout-0": ref}, timeout_s=30, what="sampling")
        assert ray.get(worker.state.remote(), timeout=10).version is None
    finally:
        ray.get(worker.adopt_version.remote(2), timeout=10)
    assert generate(worker, Generate(PROMPT, 4)).policy_version == 2


def test_a_request_that_the_engine_refuses_fails_alone(worker: Any) -> None:
    with pytest.raises(EngineError, match="refused"):
        gather(
            {"rollout-0": worker.generate.remote(Generate((10**6,), 4), SamplingConfig())},
            timeout_s=30,
            what="sampling",
        )
    assert len(generate(worker, Generate(PROMPT, 4)).token_ids) == 4
