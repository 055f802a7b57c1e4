"""Files that lie outside the repository: tokenizers, problem sets and public reports for development and CI.

They lie in a folder ``shared`` beside the checkout, or where ``APPRENTICE_SHARED`` points. A user's clone has
none: a test that needs one skips there and says why. CI always has them, so there a missing file is a failure
and never a silent skip.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

__all__ = ["shared_path", "shared_root"]


def shared_root() -> Path:
    """The folder that holds the shared files; it need not exist."""
    beside_the_checkout = Path(__file__).resolve().parents[2] / "shared"
    return Path(os.environ.get("APPRENTICE_SHARED") or beside_the_checkout)


def shared_path(relative: str) -> Path:
    """The path of a shared file or folder, e.g. ``shared_path("cases/public-reports.jsonl")``.

    Skips the calling test where the file is absent; fails it where the environment variable ``CI`` is set.
    Call it from a test or fixture, not while a test module is imported.
    """
    path = shared_root() / relative
    if path.exists():
        return path
    reason = (
        f"shared file {relative!r} is not at {shared_root()}: it serves development and is not part of the "
        "repository; set APPRENTICE_SHARED to the folder that holds it"
    )
    if os.environ.get("CI"):
        pytest.fail(f"{reason} (CI is set, so this is a failure and not a skip)", pytrace=False)
    pytest.skip(reason)
