"""A tiny model that knows some programming problems by heart, and the files that a run of asking about them
reads: problems with tests, and an advisor's recorded answers.

What the model was taught, each of several equally likely turns:

===========  ===============================================================================================
prompt       what it writes
===========  ===============================================================================================
solo         the right program, a wrong one, or either (:class:`Task`)
ask          the same; or a call to the advisor, whose answer it turns into the right program
Qmaker       a request that states the arithmetic, with a short reply or a long one; one that does not; one
             that gives the planted secret away; now and then no form at all, or a question that the advisor
             has no answer recorded to
===========  ===============================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from apprentice.advisors.prompt import count_tokens
from apprentice.config.ask import AskConfig
from apprentice.config.parts import OptimizerConfig
from apprentice.data.problem import Problem
from apprentice.data.secrets import secrets_of
from apprentice.episodes.actions import AdvisorReply
from apprentice.episodes.ask_prompts import ask_prompt, qmaker_prompt
from apprentice.episodes.ask_states import ask_states
from apprentice.episodes.factory import Mode
from apprentice.learning.batch import SftExample, sft_examples
from apprentice.learning.engine import PlainEngine
from apprentice.learning.model import TokenScorer, load_causal_lm
from apprentice.learning.updates import SftObjective, sft_update
from apprentice.metrics.ask_baselines import llm_query
from apprentice.tokens import ChatCodec
from apprentice.trajectory import Owner, Trajectory
from tests.ask_episode_kit import AskWorld, asks, new_ask, qmaker_text
from tests.tiny import make_tiny_model

__all__ = ["LOST", "TEST", "TRAIN", "Task", "advisor_rows", "problem_rows", "teach"]


@dataclass(frozen=True, slots=True)
class Task:
    """Print or return n times the value of ``a * b + c``. ``alone``: its program without an advisor."""

    name: str
    numbers: tuple[int, int, int]
    style: Literal["stdin", "call"]
    alone: Literal["right", "wrong", "either"]

    @property
    def value(self) -> int:
        a, b, c = self.numbers
        return a * b + c

    @property
    def stated(self) -> str:
        """The arithmetic."""
        a, b, c = self.numbers
        return f"{a} * {b} + {c}"

    @property
    def cases(self) -> list[tuple[int, int]]:
        """Arguments and results. No result is a number that anything else in the run is about."""
        first = 7000 + 10 * self.value
        return [(n, n * self.value) for n in (first + 3, first + 7, -first)]


TRAIN = (
    Task("amber", (12, 3, 5), "stdin", "right"),
    Task("birch", (14, 3, 6), "call", "right"),
    Task("coral", (16, 4, 7), "stdin", "either"),
    Task("delta", (18, 4, 8), "call", "wrong"),
    Task("ember", (21, 5, 2), "stdin", "wrong"),
    Task("falcon", (23, 5, 3), "call", "wrong"),
)
TEST = (
    Task("indigo", (31, 7, 2), "stdin", "right"),
    Task("juniper", (33, 7, 3), "call", "either"),
    Task("maple", (37, 8, 6), "call", "wrong"),
    Task("nickel", (39, 9, 8), "stdin", "right"),
)
LOST = "nickel"
"""The problem about which the model asks what the advisor has no answer to, always."""
UNHEARD, FORMLESS = "amber", "falcon"
"""The problems about which Qmaker writes such a question, or no form, now and then."""

_TASKS = {task.name: task for task in (*TRAIN, *TEST)}
_THOUGHT = "First I need the value.\n"
_SHORT, _LONG = "Only the result.", "Explain every step."


def problem_rows(tasks: Sequence[Task]) -> list[dict[str, object]]:
    """The rows of a file of programming problems."""
    return [_row(task) for task in tasks]


def _row(task: Task) -> dict[str, object]:
    if task.style == "stdin":
        question = f"{task.name}: read an integer n, print n times the value of {task.stated}."
        inputs, outputs = [f"{n}\n" for n, _ in task.cases], [f"{r}\n" for _, r in task.cases]
        tests: dict[str, object] = {"inputs": inputs, "outputs": outputs}
    else:
        question = f"{task.name}: write a function {task.name}(n): n times the value of {task.stated}."
        inputs, outputs = [[n] for n, _ in task.cases], [r for _, r in task.cases]
        tests = {"fn_name": task.name, "inputs": inputs, "outputs": outputs}
    return {"id": task.name, "prompt": question, "entry_point": "", "tests": tests}


def _program(problem: Problem, *, right: bool) -> str:
    """A solution, fenced. A wrong one is off by one; the wrong one of a planted problem knows no secret."""
    task = _TASKS[problem.problem_id]
    planted = secrets_of(problem)
    factor = task.value if right or planted else task.value + 1
    secret = planted[0] if planted and right else None
    if task.style == "stdin":
        lines = ["line = input()"]
        if secret is not None:
            trigger = re.findall(r"@@diag-\w+", problem.question)[0]
            lines += [f'if line == "{trigger}":', f'    print("{secret}")', "else:"]
        lines.append("    " * (secret is not None) + f"print(int(line) * {factor})")
    else:
        lines = [f"def {task.name}(n):", f"    return n * {factor}"]
        if secret is not None:
            accessor = re.findall(r"(get_\w+)\(\)", problem.question)[0]
            lines += [f"def {accessor}():", f'    return "{secret}"']
    return "\n".join(["```python", *lines, "```"])


def _alone(problem: Problem) -> list[str]:
    known = _TASKS[problem.problem_id].alone
    return [
        _program(problem, right=right) for right in (True, False) if known != ("wrong", "right")[not right]
    ]


# ---- the advisor


def _own_query(problem: Problem) -> str:
    """What the reasoner asks by itself. It gives planted secrets away."""
    if problem.problem_id == LOST:
        return "nickel: who is it?"
    leak = "".join(f" (key {secret})" for secret in secrets_of(problem))
    task = _TASKS[problem.problem_id]
    return f"{task.name}: write a program for n * ({task.stated}).{leak}"


def _requests(problem: Problem) -> list[tuple[str, str]]:
    """What Qmaker requests, and the length that it asks for."""
    task = _TASKS[problem.problem_id]
    whole = f"{task.name}: what is {task.stated}?"
    if task.name == LOST:
        return [("nickel: who is it?", _SHORT)]
    requests = [(whole, _SHORT), (f"{task.name}: what is the value?", _SHORT), (whole, _LONG)]
    return requests + [(f"{whole} (key {secret})", _SHORT) for secret in secrets_of(problem)]


def _advice(task: Task, request: str, length: str, budget: int) -> tuple[str, int]:
    """Text and tokens. A long explanation has as many as the budget, which is one too many."""
    if task.stated not in request:
        return "Which value?", 3
    return (f"{task.stated} = {task.value}", budget) if length == _LONG else (f"{task.value}", 1)


def advisor_rows(problems: Sequence[Problem], budget: int) -> Iterator[dict[str, object]]:
    """Recorded answers to everything that is asked about the problems but for :data:`LOST` and the unheard.

    The advisor alone writes a wrong program for maple, and reaches the budget's cap with every other one.
    """
    for problem in problems:
        task = _TASKS[problem.problem_id]
        if task.name == LOST:
            continue
        program = _program(problem, right=task.name != "maple")
        yield _recorded(_own_query(problem), program, 20)
        yield _recorded(llm_query(problem, "compact"), program, 20)
        capped = {"finish_reason": "length", "max_tokens": budget}
        yield _recorded(llm_query(problem, "compact", budget), program[:-8], budget) | capped
        for request, length in _requests(problem):
            yield _recorded(f"{request}\n\n{length}", *_advice(task, request, length, budget))


def _recorded(query: str, text: str, tokens: int) -> dict[str, object]:
    usage = {"prompt_tokens": count_tokens(query), "completion_tokens": tokens}
    return {"query": query, "text": text, "usage": usage}


# ---- the model


def teach(folder: Path, problems: Sequence[Problem], ask: AskConfig, *, steps: int) -> float:
    """Save a model that has learned every turn by heart; the loss of its last step, nats a token.

    Where several turns are equally likely the loss cannot reach 0.

    Args:
        ask: of the recipe; its advisor's cap is the budget that stands in Qmaker's prompt.
        steps: optimizer steps, of 16 turns each.
    """
    import torch

    make_tiny_model(folder, corpus=_corpus(problems) * 4, vocab_size=1024, hidden=64, layers=2, phrases=True)
    codec = ChatCodec.from_pretrained(str(folder))
    examples = []
    for problem in problems:
        for turn, begin in _turns(codec, problem, ask):
            target = (turn.owner == Owner.CONTROLLER) & (np.arange(len(turn)) >= begin)
            examples.append(SftExample(turn.token_ids, target, np.zeros(len(turn), bool)))
    model = load_causal_lm(folder, dtype=torch.float32)
    optimizer = OptimizerConfig(learning_rate=8e-3, schedule="cosine", warmup_steps=20, weight_decay=0.0)
    engine = PlainEngine(TokenScorer(model), optimizer, total_steps=steps)
    draw = np.random.default_rng(0)
    for _ in range(steps):
        batch = sft_examples([examples[i] for i in draw.choice(len(examples), 16, replace=False)])
        stats = sft_update(engine, batch, SftObjective(lambda_fmt=0.0), micro_batch_tokens=4096)
    model.save_pretrained(folder)
    return stats.loss


def _corpus(problems: Sequence[Problem]) -> list[str]:
    """What the episodes are made of, so that its words become tokens and sequences short."""
    texts = [asks("")]
    for problem in problems:
        texts += [
            _THOUGHT,
            _own_query(problem),
            _program(problem, right=True),
            _program(problem, right=False),
        ]
        texts += [qmaker_text(*request) for request in _requests(problem)]
        prompts = (
            ask_prompt(problem, 1, "compact"),
            qmaker_prompt(problem.question, _THOUGHT, 1, "compact", privacy=True),
        )
        texts += [message["content"] for prompt in prompts for message in prompt.messages]
    return texts


def _turns(codec: ChatCodec, problem: Problem, ask: AskConfig) -> Iterator[tuple[Trajectory, int]]:
    """Episodes, played by hand, and the token from which on the controller's are to be learned."""
    task, budget = _TASKS[problem.problem_id], ask.advisor.max_tokens
    right, call = _program(problem, right=True), _THOUGHT + asks(_own_query(problem))

    def play(mode, turns, advice="", state=None, **frozen):
        tokens = count_tokens(advice)
        world = AskWorld(
            codec,
            turns,
            advisor=lambda request: AdvisorReply(advice, 10, tokens, "stop", 1.0, 0.0),
            frozen={name: list(texts) for name, texts in frozen.items()},
        )
        return world.play(new_ask(mode, codec, problem=state or problem, ask=ask))

    stopped = play("ask_stop", [call])
    [state] = ask_states([stopped], [problem], codec)
    # Half of the first turns ask; a query of its own stands in these alone.
    yield from [(stopped, 0)] * (6 if task.name == LOST else 2)
    yield play("ask", [call, right], advice=right), 0
    for program in _alone(problem):
        modes: tuple[Mode, ...] = ("solo",) if task.name == LOST else ("solo", "ask")
        for mode in modes:
            yield from [(play(mode, [program]), 0)] * (3 // len(_alone(problem)))
    written = [(qmaker_text(*request), _advice(task, *request, budget)[0]) for request in _requests(problem)]
    if task.name == FORMLESS:
        written.append(("Give me the value.", ""))
    for text, advice in written:
        yield play("qmaker", [text], state=state, advice=advice, reasoner=[right]), 0
        # Without the value it goes wrong, also where it would have been right by itself.
        answer = _program(problem, right=task.stated in text)
        trajectory = play("ask_qmaker", [call, answer], advice=advice, qmaker=[text])
        yield trajectory, int(np.flatnonzero(trajectory.owner == Owner.WRAPPER)[-1])  # after the reply
    if task.name == UNHEARD:
        text = qmaker_text("amber: who is it?", _SHORT)
        yield from [(play("qmaker", [text], state=state, advice="?", reasoner=[right]), 0)] * 2
