"""Hidden tests are read, and a pickle that wants to do anything is refused."""

from __future__ import annotations

import base64
import json
import os
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest

from apprentice.data.private_tests import decode_private_tests
from apprentice.errors import DataError

pytestmark = pytest.mark.unit

TESTS = [{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]


def packed(value: Any) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


def test_both_forms_give_the_same_tests() -> None:
    assert decode_private_tests(json.dumps(TESTS)) == TESTS
    assert decode_private_tests(packed(json.dumps(TESTS))) == TESTS


class _Attack:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


def test_a_pickle_that_calls_something_is_refused_before_it_does(tmp_path: Path) -> None:
    target = tmp_path / "made"
    with pytest.raises(DataError, match="mkdir"):
        decode_private_tests(packed(_Attack(target)))
    assert not target.exists()
    pickle.loads(pickle.dumps(_Attack(target)))  # the attack itself works: the test can fail
    assert target.exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not base64!",
        base64.b64encode(b"not zlib").decode(),
        packed({"a": 1}),
        packed("no json"),
        '{"a": 1}',
        "[1]",
    ],
)
def test_anything_else_is_a_data_error(text: str) -> None:
    with pytest.raises(DataError, match="hidden tests"):
        decode_private_tests(text)


def test_a_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apprentice.data.private_tests._MAX_BYTES", 10_000)
    with pytest.raises(DataError, match="10000 bytes"):
        decode_private_tests(packed("x" * 1_000_000))
