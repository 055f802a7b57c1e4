"""What the documents name is there: files, tests, and the public reports that tests answer."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from tests.shared import shared_path

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
_PATH = re.compile(r"(?<![\w/.])(?:apprentice|actors|serve|driver|tests|docs|configs)/[\w./*-]*[\w*]")
COVERED = (
    "chat template and tokens", "GRPO/SFT maths", "answer verification", "tool-call parsing",
    "evaluation and cost",
    "sandbox",
)  # fmt: skip


def _missing(text: str) -> list[str]:
    """Paths of this repository in a text that lead to nothing; ``*`` stands for anything."""
    return [path for path in _PATH.findall(text) if not any(ROOT.glob(path))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_paths_in_documents_exist(document: Path) -> None:
    assert _missing(document.read_text(encoding="utf-8")) == []


def test_paths_in_docstrings_exist() -> None:
    wrong = {}
    for package in ("apprentice", "actors", "serve", "driver"):
        for file in (ROOT / package).rglob("*.py"):
            named = re.findall(r"\bdocs/[\w./-]+\.md", file.read_text(encoding="utf-8"))
            if lost := [path for path in named if not (ROOT / path).is_file()]:
                wrong[str(file.relative_to(ROOT))] = lost
    assert wrong == {}


def test_a_missing_path_is_found() -> None:
    assert _missing("see `driver/run.py` and `tests/unit/test_no_such*.py`") == [
        "tests/unit/test_no_such*.py"
    ]


def test_every_public_report_of_the_covered_areas_has_a_test() -> None:
    rows = shared_path("cases/public-reports.jsonl").read_text(encoding="utf-8").splitlines()
    wanted = {row["id"] for row in map(json.loads, rows) if row["area"] in COVERED}
    assert len(wanted) == 66
    named: set[str] = set()
    for file in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            # A test's own name or docstring, not a list of ids.
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                named |= {found.upper() for found in re.findall(r"(?<=_)[abcdeh]\d\d(?=_|$)", node.name)}
                named |= set(re.findall(r"\b[ABCDEH]\d\d\b", ast.get_docstring(node) or ""))
            # The heading of a table of cases: `SAME = {"A09 bare LaTeX": [...]}`.
            if isinstance(node, ast.Dict):
                keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
                named |= {m[1] for key in keys if (m := re.match(r"(A\d\d) \w", str(key)))}
    assert wanted <= named, sorted(wanted - named)
