"""The watchdog ends a silent process, and leaves a working one alone."""

import subprocess
import sys

import pytest

from driver.watchdog import EXIT_STALLED

pytestmark = pytest.mark.unit

SILENT = """
import time
from pathlib import Path
from driver.watchdog import Watchdog
with Watchdog(0.3, Path({log!r})) as dog:
    dog.beat("step 3")
    time.sleep(30)
"""

BUSY = """
import time
from driver.watchdog import Watchdog
with Watchdog(0.5) as dog:
    for i in range(10):
        time.sleep(0.1)
        dog.beat(str(i))
"""


def test_silence_ends_the_process_with_stacks(tmp_path) -> None:
    log = tmp_path / "watchdog.log"
    done = subprocess.run(
        [sys.executable, "-c", SILENT.format(log=str(log))], capture_output=True, text=True, timeout=20
    )
    assert done.returncode == EXIT_STALLED
    for text in (done.stderr, log.read_text()):
        assert "no progress" in text
        assert "step 3" in text
        assert "Thread" in text


def test_progress_keeps_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", BUSY], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr) == (0, "")
