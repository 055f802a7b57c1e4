"""Programming problems: rows of the known sets, and the one form in which their tests are kept.

A problem of this kind has no gold answer. Its tests stand in ``Problem.metadata["code_tests"]``, as the text
of :class:`CodeTests`. Nothing here runs a program.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from apprentice.data.private_tests import decode_private_tests
from apprentice.data.problem import Problem
from apprentice.errors import DataError

__all__ = [
    "CodeTests", "code_tests", "guru_code_row", "humaneval_row", "is_guru_code", "livecodebench_row",
    "mbpp_row", "plain_code_row",
]  # fmt: skip

Style = Literal["stdin", "call", "program"]


@dataclass(frozen=True, slots=True)
class CodeTests:
    """How a solution is to be tested.

    ``stdin``: run the program on each of ``inputs`` and compare what it prints with ``outputs``.
    ``call``: call ``entry_point`` (a function, or a method of ``Solution``); each line of an input is one
    argument as JSON, and the output is JSON. ``program``: run ``setup``, the solution, then ``program``,
    which raises when a test fails.
    """

    style: Style
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    entry_point: str = ""
    program: str = ""
    setup: str = ""

    def __post_init__(self) -> None:
        if self.style not in get_args(Style):
            raise DataError(f"tests of style {self.style!r}; there are {', '.join(get_args(Style))}")
        if len(self.inputs) != len(self.outputs):
            raise DataError(f"tests with {len(self.inputs)} inputs and {len(self.outputs)} outputs")
        if not (self.program.strip() if self.style == "program" else self.inputs):
            raise DataError("a programming problem without tests")

    def text(self) -> str:
        """JSON; :meth:`from_text` reads it."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_text(cls, text: str) -> CodeTests:
        """The inverse of :meth:`text`.

        Raises:
            DataError: it is no such text.
        """
        try:
            row = json.loads(text)
            row["inputs"], row["outputs"] = tuple(row["inputs"]), tuple(row["outputs"])
            return cls(**row)
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"not the tests of a problem: {error}") from error


def code_tests(problem: Problem) -> CodeTests | None:
    """The tests of a programming problem; None for a problem with a gold answer.

    Raises:
        DataError: the tests cannot be read.
    """
    text = problem.metadata.get("code_tests")
    return None if text is None else CodeTests.from_text(text)


def is_guru_code(row: Mapping[str, Any]) -> bool:
    """Whether a chat row's ground truth is tests: JSON with ``functional``, or ``inputs`` and ``outputs``."""
    reward = row.get("reward_model")
    truth = reward.get("ground_truth") if isinstance(reward, Mapping) else None
    if not isinstance(truth, str) or not truth.lstrip().startswith("{"):
        return False
    try:
        found = json.loads(truth)
    except ValueError:
        return False
    return isinstance(found, dict) and ("functional" in found or {"inputs", "outputs"} <= found.keys())


def guru_code_row(row: Mapping[str, Any], seed: int = 0) -> dict[str, Any]:
    """The code split of guru: ``prompt`` is messages, ``reward_model.ground_truth`` is JSON of tests.

    Raises:
        DataError: there is no user message, or the tests have another form.
    """
    users = [m["content"] for m in row.get("prompt") or [] if m.get("role") == "user"]
    if not users or not is_guru_code(row):
        raise DataError(
            "a guru code row needs a user message in `prompt` and tests in reward_model.ground_truth"
        )
    truth = json.loads(row["reward_model"]["ground_truth"])
    extra = row.get("extra_info") or {}
    if "functional" in truth:
        tests = CodeTests("program", program=str(truth["functional"]), setup=str(extra.get("prefix") or ""))
    elif truth.get("fn_name"):
        tests = CodeTests("call", *_cases(truth), entry_point=str(truth["fn_name"]))
    else:
        tests = CodeTests("stdin", *_cases(truth))
    question = str(users[-1])
    identity = extra.get("id", extra.get("index"))
    source = str(row.get("data_source") or "")
    if identity is None:
        identity = hashlib.sha256(question.encode()).hexdigest()[:16]
    # Indices start anew in each of the three files.
    return _row(f"{source}/{identity}", question, tests, source=source, split=extra.get("split"))


def livecodebench_row(row: Mapping[str, Any], seed: int = 0) -> dict[str, Any]:
    """A row of LiveCodeBench's JSON lines: public and private tests together, in this order.

    Raises:
        DataError: the tests cannot be read, or mix the two styles.
    """
    cases = decode_private_tests(row["public_test_cases"]) + decode_private_tests(row["private_test_cases"])
    styles = {case.get("testtype") for case in cases}
    inputs, outputs = _strings(c.get("input") for c in cases), _strings(c.get("output") for c in cases)
    if styles == {"functional"}:
        metadata = row.get("metadata") or "{}"
        name = (json.loads(metadata) if isinstance(metadata, str) else metadata).get("func_name")
        if not name:
            raise DataError(f"LiveCodeBench row {row.get('question_id')}: metadata names no func_name")
        tests = CodeTests("call", inputs, outputs, entry_point=str(name))
    elif styles == {"stdin"}:
        tests = CodeTests("stdin", inputs, outputs)
    else:
        raise DataError(f"LiveCodeBench row {row.get('question_id')}: test types {sorted(map(str, styles))}")
    question, starter = str(row["question_content"]), str(row.get("starter_code") or "")
    if starter:
        question += f"\n\nStart from this code:\n```python\n{starter}\n```"
    return _row(row.get("question_id"), question, tests, family=row.get("difficulty"))


def humaneval_row(row: Mapping[str, Any], seed: int = 0) -> dict[str, Any]:
    """``prompt`` is the head of a function, ``test`` defines ``check(candidate)``."""
    name = str(row["entry_point"])
    tests = CodeTests("program", entry_point=name, program=f"{row['test']}\n\ncheck({name})\n")
    return _row(row["task_id"], str(row["prompt"]), tests)


def mbpp_row(row: Mapping[str, Any], seed: int = 0) -> dict[str, Any]:
    """``test_list`` is assertions. The first is shown with the problem: it tells the function's name."""
    asserts = _strings(row["test_list"])
    setup = row.get("test_setup_code") or "\n".join(_strings(row.get("test_imports") or ()))
    program = str(row.get("test") or "\n".join(asserts))
    question = str(row.get("text") or row.get("prompt") or "")
    if asserts and asserts[0] not in question:
        question += f"\n\nYour code should pass this test:\n{asserts[0]}"
    return _row(row["task_id"], question, CodeTests("program", program=program, setup=str(setup)))


def plain_code_row(row: Mapping[str, Any], seed: int = 0) -> dict[str, Any]:
    """``prompt``, ``entry_point`` and ``tests``: code, a list of assertions, or inputs and outputs.

    Raises:
        DataError: ``tests`` has another form.
    """
    tests, name, setup = (
        row["tests"],
        str(row.get("entry_point") or ""),
        str(row.get("test_setup_code") or ""),
    )
    question = str(row["prompt"])
    match tests:
        case str():
            made = CodeTests("program", entry_point=name, program=f"{tests}\n\ncheck({name})\n", setup=setup)
        case list():
            return mbpp_row(
                {**row, "task_id": row.get("id"), "text": question, "test_list": tests, "test": None}
            )
        case {"inputs": _, "outputs": _} if tests.get("fn_name"):
            made = CodeTests("call", *_cases(tests), entry_point=str(tests["fn_name"]))
        case {"inputs": _, "outputs": _}:
            made = CodeTests("stdin", *_cases(tests))
        case _:
            raise DataError(f"tests of {row.get('id')}: {type(tests).__name__} is none of the known forms")
    return _row(row.get("id"), question, made, source=row.get("source"), split=row.get("split"))


def _row(identity: Any, question: str, tests: CodeTests, **rest: Any) -> dict[str, Any]:
    return {
        "problem_id": str(identity),
        "question": question,
        "answer": "",
        "code_tests": tests.text(),
        **rest,
    }


def _cases(tests: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return _strings(tests["inputs"]), _strings(tests["outputs"])


def _strings(values: Any) -> tuple[str, ...]:
    """Texts as they are; anything else as JSON."""
    return tuple(v if isinstance(v, str) else json.dumps(v) for v in values)
