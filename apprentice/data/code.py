"""Programming problems: rows of the known sets, and the one form in which their tests are kept.

A problem of this kind has no gold answer. Its tests stand in ``Problem.metadata["code_tests"]``, as the text
of :class:`CodeTests`. Nothing here runs a program.
"""

from __future__ import annotations

import ast
import base64
import binascii
import hashlib
import json
import zlib
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
_PACK_FROM = 32 << 10  # characters of JSON; hidden tests of one problem can have a hundred megabytes
_PACKED = "zlib:"
_MAX_UNPACKED = 1 << 30


@dataclass(frozen=True, slots=True)
class CodeTests:
    """How a solution is to be tested.

    ``stdin``: run the program on each of ``inputs`` and compare what it prints with ``outputs``. ``call``:
    call ``entry_point`` (a function, or a method of ``Solution``); each line of an input is one argument as
    JSON, and the output is JSON. ``program``: code with assertions about ``entry_point``, or about the
    names that nothing else defines. ``setup``: code that they need first (imports, helper classes, or
    objects of the solution's classes). ``given``: code that stands in the problem itself, without the
    function that is asked for. ``entries``: with ``call``, the entry point of each input where they differ.
    """

    style: Style
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    entry_point: str = ""
    program: str = ""
    setup: str = ""
    given: str = ""
    entries: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.style not in get_args(Style):
            raise DataError(f"tests of style {self.style!r}; there are {', '.join(get_args(Style))}")
        if len(self.inputs) != len(self.outputs):
            raise DataError(f"tests with {len(self.inputs)} inputs and {len(self.outputs)} outputs")
        if self.entries and len(self.entries) != len(self.inputs):
            raise DataError(f"tests with {len(self.entries)} entry points for {len(self.inputs)} inputs")
        if not (self.program.strip() if self.style == "program" else self.inputs):
            raise DataError("a programming problem without tests")

    def text(self) -> str:
        """JSON, packed when it is long; :meth:`from_text` reads it."""
        text = json.dumps(asdict(self), ensure_ascii=False)
        if len(text) < _PACK_FROM:
            return text
        return _PACKED + base64.b64encode(zlib.compress(text.encode("utf-8", "surrogatepass"))).decode()

    @classmethod
    def from_text(cls, text: str) -> CodeTests:
        """The inverse of :meth:`text`.

        Raises:
            DataError: it is no such text.
        """
        try:
            row = json.loads(_unpacked(text))
            row["inputs"], row["outputs"] = tuple(row["inputs"]), tuple(row["outputs"])
            row["entries"] = tuple(row.get("entries", ()))
            return cls(**row)
        except (ValueError, KeyError, TypeError, zlib.error, binascii.Error) as error:
            raise DataError(f"not the tests of a problem: {error}") from error


def _unpacked(text: str) -> str:
    if not text.startswith(_PACKED):
        return text
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(base64.b64decode(text[len(_PACKED) :], validate=True), _MAX_UNPACKED)
    if unpacker.unconsumed_tail:
        raise ValueError(f"more than {_MAX_UNPACKED} bytes")
    return data.decode("utf-8", "surrogatepass")


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
        tests = CodeTests("call", *_call_cases(truth), entry_point=str(truth["fn_name"]))
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
    question = _with_starter(str(row["question_content"]), row)
    return _row(row.get("question_id"), question, tests, family=row.get("difficulty"))


def _with_starter(question: str, row: Mapping[str, Any]) -> str:
    starter = str(row.get("starter_code") or "")
    return question + f"\n\nStart from this code:\n```python\n{starter}\n```" if starter else question


def humaneval_row(row: Mapping[str, Any], seed: int = 0) -> dict[str, Any]:
    """``prompt`` is the head of a function, ``test`` defines ``check(candidate)``."""
    return _row(row["task_id"], str(row["prompt"]), _check_tests(row, str(row["test"])))


def _check_tests(row: Mapping[str, Any], test: str) -> CodeTests:
    name = str(row.get("entry_point") or "")
    return CodeTests(
        "program",
        entry_point=name,
        program=f"{test}\n\ncheck({name})\n",
        setup=str(row.get("test_setup_code") or ""),
        given=_given(str(row["prompt"]), name),
    )


def _given(prompt: str, name: str) -> str:
    """What a prompt that is code defines before the function that is asked for; empty for other prompts."""
    try:
        body = ast.parse(prompt.rstrip() + "\n    pass\n").body
    except (SyntaxError, ValueError):
        return ""
    asked = [n for n in body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and n.name == name]
    if not asked:
        return ""
    return "\n".join(ast.unparse(node) for node in body if node is not asked[-1])


def mbpp_row(row: Mapping[str, Any], seed: int = 0) -> dict[str, Any]:
    """``test_list`` is assertions. The first is shown with the problem: it tells the function's name.

    The few problems with a ``challenge_test_list`` are tested by those too.
    """
    asserts = _strings(row["test_list"])
    challenge = _strings(row.get("challenge_test_list") or row.get("challenge_tests") or ())
    setup = row.get("test_setup_code") or "\n".join(_strings(row.get("test_imports") or ()))
    program = str(row.get("test") or "\n".join((*asserts, *challenge)))
    question = str(row.get("text") or row.get("prompt") or "")
    if asserts and asserts[0] not in question:
        question += f"\n\nYour code should pass this test:\n{asserts[0]}"
    name = str(row.get("entry_point") or "")
    tests = CodeTests("program", entry_point=name, program=program, setup=str(setup))
    return _row(row["task_id"], question, tests)


def plain_code_row(row: Mapping[str, Any], seed: int = 0) -> dict[str, Any]:
    """``prompt``, ``entry_point`` and ``tests``: code, a list of assertions, or inputs and outputs.

    Raises:
        DataError: ``tests`` has another form.
    """
    tests = row["tests"]
    question = _with_starter(str(row["prompt"]), row)
    match tests:
        case str():
            made = _check_tests(row, tests)
        case list():
            return mbpp_row(
                {**row, "task_id": row.get("id"), "text": question, "test_list": tests, "test": None}
            )
        case {"inputs": _, "outputs": _} if tests.get("fn_name"):
            made = CodeTests("call", *_call_cases(tests), entry_point=str(tests["fn_name"]))
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


def _call_cases(tests: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """An input that is not text is the list of arguments; then outputs are values, and become JSON."""
    inputs = [v if isinstance(v, str) else "\n".join(map(json.dumps, v)) for v in tests["inputs"]]
    listed = not all(isinstance(v, str) for v in tests["inputs"])
    outputs = [json.dumps(v) if listed or not isinstance(v, str) else v for v in tests["outputs"]]
    return tuple(inputs), tuple(outputs)


def _strings(values: Any) -> tuple[str, ...]:
    """Texts as they are; anything else as JSON."""
    return tuple(v if isinstance(v, str) else json.dumps(v) for v in values)
