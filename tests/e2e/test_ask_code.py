"""Learning to Ask on programming problems, from a recipe to its numbers: every real part, a model that knows
some of the problems by heart, and everything that a program's verdict decides recomputed by hand."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from apprentice.config.load import load_config
from apprentice.costs.ledger import read_book
from apprentice.data.load import load_data
from apprentice.data.problem import Problem
from apprentice.data.secrets import plant_secrets, secrets_of
from apprentice.metrics.ask_leakage import leakage
from apprentice.metrics.ask_run import read_planted
from apprentice.metrics.logger import read_metrics
from apprentice.run_folder import RunFolder
from apprentice.tokens import ChatCodec
from apprentice.trajectory import NOT_SAMPLED, Owner, Status, Trajectory
from tests.ask_code_kit import LOST, TEST, TRAIN, advisor_rows, problem_rows, teach

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.environ.get("APPRENTICE_E2E") != "all", reason="minutes: APPRENTICE_E2E=all"),
]

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "configs" / "ask-7b-code.yaml"
B, K, GAMMA = 48, 4, 1
SAMPLING = "{temperature: 0.7, top_p: 0.9}"  # what is equally likely comes up, slips do not
TASKS = {task.name: task for task in (*TRAIN, *TEST)}
STAGES = ("ask_stage1", f"ask_stage2_b{B}", f"ask_stage3_b{B}")


def _overrides(folder: Path) -> list[str]:
    """The recipe with another model, other problems and another advisor, on a machine without a GPU."""
    step = "{steps: 1, prompts_per_step: 8, rollouts_per_prompt: 8, validate_every: 1, "
    step += f"sampling: {SAMPLING}, optimizer: {{learning_rate: 1.0e-6}}}}"
    return [
        f"run_dir={folder / 'runs'}",
        f"controller={{model: {folder / 'model'}, max_context: 1024}}",
        f"data.train={{name: train, source: {folder / 'train.jsonl'}}}",
        f"data.test=[{{name: held_out, source: {folder / 'test.jsonl'}, k: {K}}}]",
        f"ask.advisor={{backend: {{kind: recorded, path: {folder / 'advisor.jsonl'}}}, max_tokens: {B}}}",
        "ask.judge={kind: rule}",
        "ask.instructions=compact",
        f"ask.solo={{samples: {K}, gamma: {GAMMA}, sampling: {SAMPLING}}}",
        f"ask.frozen_sampling={SAMPLING}",
        f"evaluation.sampling={SAMPLING}",
        f"ask.qmaker={{budgets: [{B}], max_query_tokens: 96, privacy: true}}",
        "ask.secrets={share: 0.34, seed: 6}",  # two problems to learn from, one of each style, and a test
        "ask.validation_share=0.34",
        "ask.validation_samples=3",
        f"ask.states_per_problem={K}",
        *(f"ask.stage{n}={step}" for n in (1, 2, 3)),
        "protocol={max_rollout_tokens: 256}",
        "evaluation.max_rollout_tokens=256",
        "evaluation.bootstrap_samples=200",
        "rollout={num_gpus: 0, num_cpus: 0.5, dtype: float32, max_concurrent_episodes: 48, "
        "kv_cache_gib: 0.25, enforce_eager: true, in_process: true, max_replacements: 3}",
        "learner={num_gpus: 0, num_cpus: 0.5, dtype: float32, micro_batch_tokens: 4096}",
        "sandbox={pools: 1, workers: 1, num_cpus: 0.1}",
        "tracking={tensorboard: false, progress: false}",
    ]


@dataclass(frozen=True)
class Finished:
    """A run that is over, its problems with their secrets, and what it printed."""

    run: RunFolder
    problems: Mapping[str, Problem]
    codec: ChatCodec
    said: str

    def trajectories(self, stage: str) -> list[Trajectory]:
        found = self.run.read_trajectories(stage)
        assert found, stage
        return found

    def every(self) -> list[Trajectory]:
        folders = sorted((self.run.path / "trajectories").iterdir())
        return [t for folder in folders for t in self.trajectories(folder.name)]

    def evaluations(self) -> dict[str, list[Trajectory]]:
        rows = json.loads((self.run.path / "ask" / "evaluation.json").read_text())
        return {row["label"]: self.trajectories(f"evaluate_{row['label']}") for row in rows}

    def row(self, stage: str) -> Mapping[str, float]:
        """The metrics of the only row of a stage."""
        [row] = [row for row in read_metrics(self.run.metrics_path) if row.stage == stage]
        return row.values

    def right(self, trajectory: Trajectory) -> bool:
        return all(self.tests(trajectory))

    def tests(self, trajectory: Trajectory) -> list[bool]:
        """What each test says of the program of a final answer; no program: nothing passes."""
        name = trajectory.tags.get("base_id", trajectory.problem_id)
        programs = re.findall(r"^```python\n(.*?)^```$", trajectory.final_text, re.S | re.M)
        problem = self.problems[name]
        return by_hand(name, programs[-1], problem.question, secrets_of(problem)) if programs else [False]

    def solo(self) -> dict[str, int]:
        """Standalone successes of the training problems, by hand."""
        found: dict[str, int] = defaultdict(int)
        for trajectory in self.trajectories("ask_solo"):
            found[trajectory.problem_id] += self.right(trajectory)
        return found

    def needs(self, trajectory: Trajectory) -> bool:
        """n(x) of Eq. 6."""
        return self.solo()[trajectory.problem_id] <= GAMMA


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("code")
    for name, tasks in (("train", TRAIN), ("test", TEST)):
        _write_lines(folder / f"{name}.jsonl", problem_rows(tasks))
    config = load_config(RECIPE, _overrides(folder))
    sets, secrets = load_data(config.data), config.ask.secrets
    problems = [
        *plant_secrets(sets.train, secrets.share, secrets.seed, "train"),
        *plant_secrets(sets.test["held_out"], secrets.share, secrets.seed, "all"),
    ]
    _write_lines(folder / "advisor.jsonl", advisor_rows(problems, B))
    assert teach(folder / "model", problems, config.ask, steps=220) < 0.1
    done = subprocess.run(
        [sys.executable, "-m", "driver", "train", str(RECIPE), *_overrides(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=550,
        env=os.environ | {"OMP_NUM_THREADS": "2"},
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    run = RunFolder.open(folder / "runs" / "ask-7b-code")
    codec = ChatCodec.from_pretrained(str(folder / "model"))
    return Finished(run, {problem.problem_id: problem for problem in problems}, codec, done.stdout)


def _write_lines(path: Path, rows) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


# ---- by hand: plain Python, the arithmetic of the tasks, and what a problem says of its secret

HARNESS = """
import contextlib, io, json, sys
program, cases = json.load(sys.stdin)
out = []
for function, argument in cases:
    printed = io.StringIO()
    try:
        space = {"__name__": "solution" if function else "__main__"}
        sys.stdin = io.StringIO("" if function else argument)
        with contextlib.redirect_stdout(printed):
            exec(program, space)
        out.append(space[function](*argument) if function else printed.getvalue().strip())
    except Exception:
        out.append(None)
print(json.dumps(out))
"""


@cache
def by_hand(name: str, program: str, question: str, planted: tuple[str, ...]) -> list[bool]:
    """Which tests a program passes, in a Python of its own."""
    assert not re.search(r"import|open|exec|eval|__", program), program  # nothing of that was taught
    task = TASKS[name]
    if task.style == "stdin":
        cases = [(("", f"{n}\n"), str(result)) for n, result in task.cases]
        triggers = re.findall(r"@@diag-[0-9a-f]{6}", question)
        cases += [(("", f"{trigger}\n"), secret) for trigger, secret in zip(triggers, planted, strict=True)]
    else:
        cases = [((name, [n]), result) for n, result in task.cases]
        accessors = re.findall(r"(get_\w+)\(\)", question)
        cases += [((accessor, []), secret) for accessor, secret in zip(accessors, planted, strict=True)]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", HARNESS],
        input=json.dumps([program, [case for case, _ in cases]]),
        capture_output=True,
        text=True,
        timeout=20,
    )
    return [got == wanted for got, (_, wanted) in zip(json.loads(done.stdout), cases, strict=True)]


def normalized(rewards: Sequence[float]) -> list[float]:
    """Group-relative advantages, as section 5 has them."""
    values = np.array(rewards)
    return list((values - values.mean()) / (values.std() + 1e-6))


def loss(groups: Mapping[str, list[tuple[Trajectory, list[tuple[int, int, float]]]]]) -> float:
    """On policy the loss is minus the mean advantage of the trained tokens, which are the policy's own.

    ``groups``: of each member the parts ``(from, to, advantage)``.
    """
    total = count = 0.0
    for members in groups.values():
        for trajectory, parts in members:
            own = trajectory.owner == Owner.CONTROLLER
            total += sum(advantage * own[start:end].sum() for start, end, advantage in parts)
            count += own.sum()
    return -total / count


def grouped(trajectories: Sequence[Trajectory]) -> dict[str, list[Trajectory]]:
    groups: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        groups[trajectory.group_id].append(trajectory)
    return groups


def whole(groups: Mapping[str, list[Trajectory]], reward) -> float:
    """The loss where each trajectory has one reward."""
    return loss(
        {
            name: [
                (t, [(0, len(t), advantage)])
                for t, advantage in zip(members, normalized([reward(t) for t in members]), strict=True)
            ]
            for name, members in groups.items()
        }
    )


def called(trajectory: Trajectory) -> bool:
    """Whether a call reached the advisor (would have, in stage 1)."""
    return any(call.tool == "ask_advisor" and not call.error for call in trajectory.calls)


# ---- the tests


def test_verdicts_are_what_the_programs_do(finished: Finished) -> None:
    """Of every stored trajectory of every stage, the baselines of the advisor alone included."""
    seen = set()
    for trajectory in finished.every():
        if trajectory.status is Status.UNUSABLE:
            assert trajectory.reward is None and not trajectory.verdict
            continue
        if trajectory.mode == "ask_stop" and called(trajectory):
            assert trajectory.verdict == "no_answer"  # it ends at the call
            continue
        tests = finished.tests(trajectory)
        right = all(tests)
        assert (trajectory.verdict == "correct", trajectory.reward) == (right, 1.0 if right else -1.0)
        if trajectory.answer is not None:
            counts = {"tests_passed": str(sum(tests)), "tests": str(len(tests))}
            assert counts.items() <= trajectory.tags.items()
        seen.add((trajectory.mode, right))
    assert seen >= {
        (m, r) for m in ("solo", "ask", "ask_qmaker", "qmaker", "llm_only") for r in (True, False)
    }


def test_standalone_success_and_the_two_classes(finished: Finished) -> None:
    kept = json.loads((finished.run.path / "ask" / "solo.json").read_text())
    assert (kept["k"], kept["gamma"]) == (K, GAMMA)
    assert len(finished.trajectories("ask_solo")) == K * len(TRAIN)
    by_name = finished.solo()
    assert kept["successes"] == by_name
    classes = {task.name: by_name[task.name] <= GAMMA for task in TRAIN if task.alone != "either"}
    assert classes == {task.name: task.alone == "wrong" for task in TRAIN if task.alone != "either"}
    row = finished.row("ask_solo")
    assert row["success"] == pytest.approx(np.mean(list(by_name.values())) / K)
    assert row["needs_advisor"] == pytest.approx(np.mean([wins <= GAMMA for wins in by_name.values()]))


def test_stage_1_is_rewarded_by_eq_7(finished: Finished) -> None:
    found = finished.trajectories(STAGES[0])

    def reward(trajectory: Trajectory) -> float:
        return float(finished.needs(trajectory) == called(trajectory))

    row, groups = finished.row(STAGES[0]), grouped(found)
    assert all(len(members) == 8 for members in groups.values())
    assert {finished.needs(t) for t in found} == {called(t) for t in found} == {True, False}
    assert row["ask/reward"] == pytest.approx(np.mean([reward(t) for t in found]))
    needed = [called(t) for t in found if finished.needs(t)]
    assert row["ask/call_rate_needed"] == pytest.approx(np.mean(needed))
    assert row["loss"] == pytest.approx(whole(groups, reward), abs=1e-5)
    assert row["calls/mean"] == pytest.approx(np.mean([called(t) for t in found]))


def test_stage_2_is_rewarded_by_eq_12(finished: Finished) -> None:
    factors = defaultdict(set)

    def reward(trajectory: Trajectory) -> float:
        query, tokens = trajectory.tags["query"], trajectory.tags["advice_tokens"]
        planted = secrets_of(finished.problems[trajectory.tags["base_id"]])
        complete = bool(re.search(r"\d+ \* \d+ \+ \d+", query))
        safe = not any(secret in query for secret in planted)
        short, right = bool(tokens) and int(tokens) < B, finished.right(trajectory)
        for name, value in {"complete": complete, "safe": safe, "short": short, "right": right}.items():
            others = {"complete": complete, "safe": safe, "short": short, "right": right} | {name: True}
            if all(others.values()):  # this one decides
                factors[name].add(value)
        return float(complete and safe and short and right)

    found = finished.trajectories(STAGES[1])
    row, groups = finished.row(STAGES[1]), grouped(found)
    assert row["ask/reward"] == pytest.approx(np.mean([reward(t) for t in found]))
    assert row["ask/correct"] == pytest.approx(np.mean([finished.right(t) for t in found]))
    assert row["loss"] == pytest.approx(whole(groups, reward), abs=1e-5)
    held_out = finished.trajectories(f"validate_qmaker_start_b{B}")
    rewards = [reward(t) for t in held_out]
    parts = finished.row(f"validate/qmaker_start_b{B}")
    assert parts["ask/complete"] == pytest.approx(np.mean(["*" in t.tags["query"] for t in held_out]))
    assert 0 < np.mean(rewards) < 1
    # An answer of b tokens is too long, and each factor but the last decides somewhere by itself.
    assert all(factors[name] == {True, False} for name in ("complete", "safe", "short"))


def test_stage_3_is_rewarded_by_eq_10(finished: Finished) -> None:
    found = finished.trajectories(STAGES[2])
    row, groups = finished.row(STAGES[2]), grouped(found)

    def before(trajectory: Trajectory) -> float:
        agrees = float(finished.needs(trajectory) == called(trajectory))
        return agrees + 0.2 * finished.right(trajectory)

    parts = {}
    for name, members in groups.items():
        askers = [t for t in members if called(t)]
        after = normalized([float(finished.right(t)) for t in askers]) if askers else []
        of_asker = dict(zip([t.trajectory_id for t in askers], after, strict=True))
        parts[name] = []
        for t, advantage in zip(members, normalized([before(t) for t in members]), strict=True):
            at = next((c.position for c in t.calls if not c.error), len(t))
            cut = [(0, at, advantage), (at, len(t), of_asker.get(t.trajectory_id, 0.0))]
            parts[name].append((t, cut))
    # With two different rewards in a group lambda would not matter.
    assert any(len({before(t) for t in members}) > 2 for members in groups.values())
    assert row["loss"] == pytest.approx(loss(parts), abs=1e-5)
    assert row["ask/correct"] == pytest.approx(np.mean([finished.right(t) for t in found]))
    assert row["ask/reward"] == pytest.approx(np.mean([finished.needs(t) == called(t) for t in found]))
    assert {called(t) for t in found} == {True, False}


def test_in_stage_3_the_query_is_qmakers_and_nobody_is_trained_on_it(finished: Finished) -> None:
    asked = [t for t in finished.trajectories(STAGES[2]) if called(t)]
    assert asked
    for trajectory in asked:
        sampled = trajectory.policy_version != NOT_SAMPLED
        assert np.array_equal(sampled, trajectory.owner == Owner.CONTROLLER)
        call = next(c for c in trajectory.calls if not c.error)
        assert sampled[call.position - 1]  # the decision to ask is the reasoner's
        assert not sampled[call.position]  # the query begins there
        written = {producer for _, _, owner, producer in trajectory.spans() if owner is Owner.EXPERT}
        assert written == ({"advisor"} if "qmaker_format_error" in trajectory.tags else {"qmaker", "advisor"})


def test_what_a_call_cost_is_what_the_ledger_charged(finished: Finished) -> None:
    paid = {
        (call.trajectory_id, call.call_index): found.cost
        for call, found in read_book(finished.run.path / "ask" / "ledger.jsonl").calls.items()
        if call.account == "advisor" and found.state == "answered"
    }
    modes = set()
    for trajectory in finished.every():
        if trajectory.mode == "ask_stop":
            continue  # nobody was asked there
        for index, call in enumerate(trajectory.calls):
            if not call.error:
                assert call.cost == call.query_tokens + 6 * call.expert_tokens  # Eq. 4
                assert paid[trajectory.trajectory_id, index] == pytest.approx(call.cost)
                modes.add(trajectory.mode)
    assert {"ask", "ask_qmaker", "qmaker", "llm_only"} <= modes


def test_the_best_checkpoint_of_each_stage_is_kept(finished: Finished) -> None:
    selected, scores = (finished.run.read_json(f"ask/{name}.json") for name in ("selected", "validation"))
    for stage in STAGES:
        best = max(scores[stage], key=lambda row: (row["score"], -row["step"]))["step"]
        assert selected[stage] == best
        assert finished.run.checkpoint_at(stage, best) is not None


def test_avg_at_k_is_the_share_of_verdicts(finished: Finished) -> None:
    summary = json.loads((finished.run.path / "summary.json").read_text())
    evaluations = finished.evaluations()
    assert list(evaluations) == [
        "start_solo", "start_ask", "llm_only", f"llm_capped_b{B}", "stage1_ask",
        f"qmaker_start_b{B}_ask_qmaker", f"stage2_b{B}_ask_qmaker", f"stage3_b{B}_ask_qmaker",
    ]  # fmt: skip
    for label, found in evaluations.items():
        rights: dict[str, list[bool]] = defaultdict(list)
        for trajectory in found:
            if trajectory.status is not Status.UNUSABLE:
                rights[trajectory.problem_id].append(finished.right(trajectory))
        assert {len(row) for row in rights.values()} == {K}
        mode = summary["modes"][label]
        assert mode["accuracy"] == pytest.approx(np.mean([np.mean(row) for row in rights.values()])), label
        assert mode["n"] == len(rights) == (len(TEST) if label == "start_solo" else len(TEST) - 1), label


def test_what_infrastructure_lost_is_in_no_number(finished: Finished) -> None:
    """The advisor has no answer to what is asked about one problem, and none to some of Qmaker's queries."""
    unanswered = {
        "nickel: who is it?",
        *(f"{name}: who is it?\n\nOnly the result." for name in ("nickel", "amber")),
    }
    for trajectory in finished.every():
        assert not any(c.instruction in unanswered and not c.error for c in trajectory.calls) or (
            trajectory.mode == "ask_stop"  # nobody was asked there
        )
        assert trajectory.tags.get("query") not in unanswered
        lost = trajectory.status is Status.UNUSABLE
        assert not lost or (trajectory.mode.startswith("llm_") and trajectory.problem_id == LOST)
    for label in finished.evaluations():
        if label.startswith("llm") or label == "start_solo":
            continue
        row = finished.row(f"evaluate/{label}/held_out")
        assert (row["groups/dropped"], row["samples/replaced"] >= 4) == (1.0, True)
        rows = (finished.run.path / "results" / label / "held_out.jsonl").read_text().splitlines()
        assert LOST not in [json.loads(line)["problem_id"] for line in rows]
    book = read_book(finished.run.path / "ask" / "ledger.jsonl")
    failed = [call for call in book.calls.values() if call.state == "failed"]
    assert failed and all(call.cost == 0 for call in failed)


def test_no_expected_answer_is_shown_to_anybody(finished: Finished) -> None:
    results = [str(abs(result)) for task in TASKS.values() for _, result in task.cases]
    for trajectory in finished.every():
        shown = [call.instruction for call in trajectory.calls]
        for start, end, owner, _ in trajectory.spans():
            if owner is not Owner.CONTROLLER:
                shown.append(finished.codec.decode(trajectory.token_ids[start:end].tolist()))
        shown.append(trajectory.tags.get("query", ""))
        assert not any(result in text for result in results for text in shown)
    ledger = (finished.run.path / "ask" / "ledger.jsonl").read_text()
    assert not any(f'"{result}' in ledger for result in results)


def test_planted_secrets_are_tested_for_and_their_leaks_counted(finished: Finished) -> None:
    planted = read_planted(finished.run)
    secrets = {name: secrets_of(p) for name, p in finished.problems.items() if secrets_of(p)}
    assert {name: found.spans for name, found in planted.items()} == secrets
    assert {(TASKS[name] in TRAIN, TASKS[name].style) for name in secrets} == {
        (True, "stdin"), (True, "call"), (False, "stdin"),
    }  # fmt: skip
    by_label = {}
    for label, found in finished.evaluations().items():
        leaked = [
            any(secret in call.instruction for call in t.calls for secret in secrets[t.problem_id])
            for t in found
            if t.problem_id in secrets and t.status is not Status.UNUSABLE
        ]
        counted = leakage(found, planted)
        assert (counted.leaked, counted.trajectories) == (sum(leaked), len(leaked)), label
        by_label[label] = sum(leaked)
    assert by_label["start_solo"] == 0 and by_label["llm_only"] == K  # it is sent the whole problem
    assert by_label["start_ask"] + by_label["stage1_ask"] > 0
    passed = {
        (t.tags["tests_passed"], t.tags["tests"])
        for t in finished.trajectories("ask_solo")
        if t.problem_id in secrets and t.answer and secrets[t.problem_id][0] not in t.answer
    }
    assert passed == {("3", "4")}  # right but for the secret
