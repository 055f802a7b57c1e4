"""Synthetic secrets planted into problems: what G_safe screens (Learning to Ask, appendix C.2, Table 3).

A program of a planted problem must give the value away on its trigger, so the reasoner needs it, and the
advisor does not. The trigger becomes one more test:

* tests by standard input get a template T1-T6, T10 or T11, and an input of the trigger line alone;
* tests by calls or assertions get T7-T9 or T12, and a call of the accessor function.

A problem with a gold answer has no program to give a value away. It gets the statement of a template alone
("Note: the private service API key for this task is sk-cn-...") below its question, and keeps its gold. That
is this project's variant, for problems that a CPU can learn; the paper plants into programming problems only.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Sequence
from typing import Literal, TypeVar

from apprentice.data.code import CodeTests, code_tests
from apprentice.data.problem import Problem
from apprentice.data.secret_templates import TEMPLATES
from apprentice.data.secret_values import ENTITIES, Entity

__all__ = ["Part", "is_held_out", "plant_secrets", "replant", "secrets_of", "stated_secret"]

P = TypeVar("P", bound=Problem)
Part = Literal["train", "held_out", "all"]
"""``train``: training templates and entity types; ``held_out``: only unseen ones; ``all``: any."""


def plant_secrets(
    problems: Sequence[Problem], share: float, seed: int, part: Part = "train"
) -> list[Problem]:
    """``problems`` with a secret in ``round(share n)`` of them, the others as they are, in the same order.

    What is planted follows from the seed and the problem's id alone. A planted problem keeps its id;
    ``metadata`` says what it holds: ``secrets``, a JSON list of the sensitive spans, ``secret_template`` and
    ``secret_entity``.

    Args:
        problems: programming problems or problems with a gold answer.
        share: of problems that get one, in [0, 1].
        seed: of the choice of problems, templates and values.
        part: which templates and entity types.

    Raises:
        ValueError: share is not in [0, 1].
        DataError: the tests of a problem cannot be read.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"the share of problems with a secret must lie between 0 and 1, got {share}")
    chosen = random.Random(f"secrets {seed} {part}").sample(
        range(len(problems)), round(share * len(problems))
    )
    planted = {index: _plant(problems[index], seed, part) for index in chosen}
    return [planted.get(index, problem) for index, problem in enumerate(problems)]


def secrets_of(problem: Problem) -> tuple[str, ...]:
    """The sensitive spans planted into a problem; none for a clean one."""
    return tuple(json.loads(problem.metadata.get("secrets", "[]")))


def is_held_out(template: str, entity: str) -> bool:
    """Whether a planted problem shows something unseen in training: its template or its entity type."""
    return any(t.held_out for t in TEMPLATES if t.name == template) or any(
        e.held_out for e in ENTITIES if e.name == entity
    )


def stated_secret(rng: random.Random) -> tuple[str, str]:
    """A secret as a training template states it, and its value: ``("Note: the ... is 7f.", "7f")``.

    Entity types and templates are those of training.
    """
    template = rng.choice([t for t in TEMPLATES if not t.held_out])
    entity = rng.choice([e for e in ENTITIES if not e.held_out])
    value = entity.make(rng)
    return template.statement.format_map({"label": entity.label, "var": entity.var, "value": value}), value


def replant(problem: P, share: float, rng: random.Random) -> P:
    """A problem with a gold answer without the secret that it may have, and with another at chance ``share``.

    For demonstrations: of secrets that stay the same some would be learned by heart.
    """
    question, planted = problem.question, secrets_of(problem)
    head, _, note = question.rpartition("\n\n")
    if planted and planted[0] in note:
        question = head
    metadata = {k: v for k, v in problem.metadata.items() if not k.startswith("secret")}
    if rng.random() < share:
        statement, value = stated_secret(rng)
        question, metadata["secrets"] = f"{question}\n\n{statement}", json.dumps([value], ensure_ascii=False)
    return dataclasses.replace(problem, question=question, metadata=metadata)


def _plant(problem: Problem, seed: int, part: Part) -> Problem:
    rng = random.Random(f"secret {seed} {part} {problem.problem_id}")
    tests = code_tests(problem)
    fitting = TEMPLATES if tests is None else [t for t in TEMPLATES if t.function == (tests.style != "stdin")]
    template = rng.choice([t for t in fitting if _in_part(t.held_out, part)])
    entity = rng.choice([e for e in ENTITIES if _in_part(e.held_out, part)])
    value = entity.make(rng)
    names = {
        "label": entity.label,
        "var": entity.var,
        "value": value,
        "trigger": _trigger(rng, problem, tests),
        "fn": _accessor(entity, problem, tests),
    }
    text = (template.statement if tests is None else template.text).format_map(names)
    metadata = dict(problem.metadata)
    if tests is not None:
        metadata["code_tests"] = _with_test(tests, value, names["trigger"], names["fn"]).text()
    metadata |= {
        "secrets": json.dumps([value], ensure_ascii=False),
        "secret_template": template.name,
        "secret_entity": entity.name,
    }
    return dataclasses.replace(problem, question=f"{problem.question}\n\n{text}", metadata=metadata)


def _in_part(held_out: bool, part: Part) -> bool:
    return part == "all" or held_out == (part == "held_out")


def _trigger(rng: random.Random, problem: Problem, tests: CodeTests | None) -> str:
    """A line that stands in no input of the problem."""
    while True:
        trigger = f"@@diag-{rng.randrange(16**6):06x}"
        if trigger not in problem.question and (
            tests is None or not any(trigger in text for text in tests.inputs)
        ):
            return trigger


def _accessor(entity: Entity, problem: Problem, tests: CodeTests | None) -> str:
    """The name of a function that the problem has not."""
    name = f"get_{entity.var.lower()}"
    while name in problem.question or (tests is not None and name in tests.program + tests.entry_point):
        name += "_value"
    return name


def _with_test(tests: CodeTests, value: str, trigger: str, accessor: str) -> CodeTests:
    """The tests, and one more that the value answers."""
    match tests.style:
        case "stdin":
            return dataclasses.replace(
                tests, inputs=(*tests.inputs, f"{trigger}\n"), outputs=(*tests.outputs, f"{value}\n")
            )
        case "call":
            entries = tests.entries or (tests.entry_point,) * len(tests.inputs)
            return dataclasses.replace(
                tests,
                inputs=(*tests.inputs, ""),
                outputs=(*tests.outputs, json.dumps(value)),
                entries=(*entries, accessor),
            )
        case "program":
            # Without an entry point, every name that the tests do not define is the solution's.
            program = f"{tests.program.rstrip()}\n\nassert {accessor}() == {value!r}\n"
            return dataclasses.replace(tests, program=program, entry_point="")
