"""When printed output agrees, and which part of a response is its program."""

from __future__ import annotations

import pytest

from apprentice.sandbox.program_asserts import values_agree
from apprentice.verify.program_text import extract_program
from apprentice.verify.stdout import stdout_agrees

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ("1\n", "1"), ("1", "1\n\n"), ("  a b", "a b  "), ("1 2 3", "1  2 3"), ("a\r\nb", "a\nb\n"),
        ("", "\n"), ("3", "3.0"), ("3", "3e0"), ("0.333333", "0.333333333333"), ("0.5", ".5"), ("-0.0", "0"),
        ("1000000.0", "1000000.5"), ("Case #1: 0.25", "Case #1: 0.2500001"), ("2.0", "2"), ("1e-7", "0"),
        ("10000000000000000000001", "10000000000000000000001"), ("-1", "-1"), ("x 1.0\ny 2.0", "x 1\ny 2"),
    ],
)  # fmt: skip
def test_output_that_agrees(expected: str, actual: str) -> None:
    assert stdout_agrees(expected, actual) == (True, "")


@pytest.mark.parametrize(
    ("expected", "actual", "why"),
    [
        ("1", "2", "line 1: '2' instead of '1'"),
        ("1\n2", "1", "1 lines instead of 2"),
        ("1", "1\n2", "2 lines instead of 1"),
        ("a\n\nb", "a\nb", "line 2: 'b' instead of ''"),
        ("YES", "yes", "'yes'"),
        ("1000000007", "1000000006.9999", "instead"),  # an integer has no tolerance
        ("1000000007", "1000000008", "instead"),
        ("10000000000000000000001", "10000000000000000000002", "instead"),
        ("11", "0011", "'0011'"),
        ("0011", "11", "'11'"),
        ("0.5", "0.50001", "instead"),
        ("1.5", "nan", "'nan'"),
        ("1.5", "1.5x", "'1.5x'"),
        ("1_000", "1000", "instead"),
        ("1 2", "1", "line 1: '1' instead of '1 2'"),
        ("9" * 1000, "9" * 999 + "8", "instead"),
        ("1.0", "1e99999999", "instead"),
    ],
)
def test_output_that_does_not_agree(expected: str, actual: str, why: str) -> None:
    agrees, said = stdout_agrees(expected, actual)
    assert not agrees
    assert why in said


@pytest.mark.parametrize(
    ("expected", "actual"),
    [(1, 1.0), (True, 1), ([1, 2], (1, 2)), ({"1": 2}, {1: 2}), (1e10, 1e10 + 1), (None, None), (2.0, 2)],
)
def test_results_that_agree(expected: object, actual: object) -> None:
    assert values_agree(expected, actual)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (1, 1.0000001), ([1], [1, 2]), ("1", 1), (None, 0), (None, False), ({"a": 1}, {"a": 1, "b": 2}),
        ([1, 2], {1, 2}), (0.1, 0.2), (1.5, "1.5"), (1.0, 10**400), ("a", b"a"), (float("nan"), 1.0),
    ],
)  # fmt: skip
def test_results_that_do_not_agree(expected: object, actual: object) -> None:
    assert not values_agree(expected, actual)


CODE = "x = 1\n"


@pytest.mark.parametrize(
    "response",
    [
        f"Here:\n```python\n{CODE}```",
        f"```py\n{CODE}```\nDone.",
        f"```\n{CODE}```",
        f"<think>```python\nno\n```</think>\n```python\n{CODE}```",
        f"```python\nfirst = 0\n```\nBetter:\n```python\n{CODE}```\nIt prints\n```\n1\n```\n",
        f"```python\n{CODE}```\n```text\n1\n```",
        f"~~~python3\n{CODE}~~~",
        f"````python\n{CODE}````",
        f"   ```Python title=a\n{CODE}   ```",
    ],
)
def test_the_last_python_fence_is_the_program(response: str) -> None:
    assert extract_program(response) == (CODE, "fence")


@pytest.mark.parametrize(
    ("response", "why"),
    [
        (f"<think>\n```python\n{CODE}```", "unfinished_thinking"),
        (f"<think>```python\n{CODE}```</think> So it is.", "no_program"),
        (f"```python\n{CODE}", "unfinished_fence"),
        (f"```python\n{CODE}```\nBetter:\n```python\nx = ", "unfinished_fence"),
        ("x = 1", "no_program"),
        ("```cpp\nint x;\n```", "no_program"),
        ("```python\n\n```", "no_program"),
        ("", "no_program"),
    ],
)
def test_responses_without_a_program(response: str, why: str) -> None:
    assert extract_program(response) == (None, why)
