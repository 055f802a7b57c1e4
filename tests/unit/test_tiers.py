"""The rules of the test suite itself: tiers are held, and shared files are never missed in silence."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared import shared_path

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("folder", "mark", "held"),
    [
        ("unit", "pytestmark = pytest.mark.unit", True),
        ("unit", "", False),
        ("unit", "pytestmark = pytest.mark.ray", False),
        ("unit", "pytestmark = [pytest.mark.unit, pytest.mark.ray]", False),
        ("elsewhere", "pytestmark = pytest.mark.unit", False),
    ],
)
def test_a_test_outside_its_tier_stops_the_run(tmp_path: Path, folder: str, mark: str, held: bool) -> None:
    root = Path(__file__).parents[2]
    (tmp_path / "tests" / folder).mkdir(parents=True)
    shutil.copy(root / "tests" / "conftest.py", tmp_path / "tests")
    shutil.copy(root / "pyproject.toml", tmp_path)
    (tmp_path / "tests" / folder / "test_it.py").write_text(f"import pytest\n{mark}\ndef test_it(): pass\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == (0 if held else 4)
    assert ("1 passed" in done.stdout) == held
    assert ("every test file lies in" in done.stderr + done.stdout) != held


def test_a_missing_shared_file_skips_for_a_user_and_fails_in_ci(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("APPRENTICE_SHARED", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="APPRENTICE_SHARED"):
        shared_path("data/none.jsonl")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="CI is set"):
        shared_path("data/none.jsonl")
    (tmp_path / "data").mkdir()
    assert shared_path("data") == tmp_path / "data"


def test_the_environment_of_tests_was_set_before_ray_could_read_it() -> None:
    assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert "RAY_ADDRESS" not in os.environ
