"""The corpus of cells: what a model sees of each, and what a real IPython shows of the same."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from apprentice.sandbox.format import model_text
from apprentice.sandbox.outcome import CellResult
from apprentice.sandbox.pool import SandboxPool
from tests.cells import CELLS, RECORDED_WITH, WHY, Cell, masked

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "cells.md"
AGREE = [cell for cell in CELLS if cell.ipython is None]
DIFFERENT = [cell for cell in CELLS if cell.ipython is not None]


def seen(result: CellResult) -> tuple[str, str]:
    """``(shown, error)`` of a result, as the corpus has them."""
    return masked(result.output.rstrip("\n")), masked(result.traceback.split("\n")[-1])


@pytest.fixture(scope="module")
def results() -> dict[str, CellResult]:
    async def all_cells() -> list[CellResult]:
        async with SandboxPool(2) as pool:
            return await asyncio.gather(*(pool.run(cell.code) for cell in CELLS))

    return dict(zip([cell.code for cell in CELLS], asyncio.run(all_cells()), strict=True))


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: repr(cell.code)[:40])
def test_what_a_model_sees_of_a_cell(results: dict[str, CellResult], cell: Cell) -> None:
    result = results[cell.code]
    assert seen(result) == (cell.shown, cell.error)
    expected = "ok" if not cell.error else "error"
    if cell.why == "exit":
        expected = "exit"
    elif cell.error.startswith(("SyntaxError", "IndentationError")) and "eval(" not in cell.code:
        expected = "syntax_error"
    assert result.outcome == expected


def test_the_corpus_is_large_and_its_differences_have_reasons() -> None:
    assert len({cell.code for cell in CELLS}) == len(CELLS)
    assert len(AGREE) >= 150
    assert {cell.why for cell in DIFFERENT} == set(WHY)
    assert all(cell.ipython != (cell.shown, cell.error) for cell in DIFFERENT)
    text = DOCUMENT.read_text(encoding="utf-8")
    assert [kind for kind, reason in WHY.items() if f"| {kind} | {reason} |" not in text] == []


EXAMPLES = re.findall(
    r"```python\n(.*?)```\n\n```text\n(.*?)\n```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL
)


@pytest.mark.parametrize(("code", "text"), EXAMPLES)
async def test_the_documents_examples_read_as_they_say(code: str, text: str) -> None:
    cut_to = 60 if "range(100)" in code else 4000
    async with SandboxPool(1, imports=()) as pool:
        assert model_text(await pool.run(code), cut_to) == text


def test_the_document_counts_its_cells() -> None:
    assert len(EXAMPLES) == 6
    text = DOCUMENT.read_text(encoding="utf-8")
    assert f"compares {len(CELLS)} cells" in text and f"{len(AGREE)} of them read the same" in text
    assert f"IPython {RECORDED_WITH} " in text


def test_a_real_ipython_shows_what_the_corpus_says(tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    done = subprocess.run(
        [sys.executable, "-m", "tests.ipython_cells"],
        input=json.dumps([cell.code for cell in CELLS]),
        cwd=ROOT,
        env={**os.environ, "IPYTHONDIR": str(tmp_path), "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    answer = json.loads(done.stdout)
    theirs = [(masked(shown), masked(error)) for shown, error in answer["cells"]]
    for cell, shown_there in zip(CELLS, theirs, strict=True):
        if cell.ipython is None:
            assert shown_there == (cell.shown, cell.error), cell.code
        else:  # another version may differ in another way; that it differs is what the list says
            assert shown_there != (cell.shown, cell.error), cell.code
            if answer["version"].startswith(RECORDED_WITH):
                assert shown_there == cell.ipython, cell.code
