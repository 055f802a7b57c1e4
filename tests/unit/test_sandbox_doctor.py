"""``apprentice sandbox doctor``: what it finds, what it prints, and how it exits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from apprentice.sandbox.attacks import ATTACKS
from apprentice.sandbox.doctor import ADVICE, Examination, examine, render
from apprentice.sandbox.isolation import Level
from apprentice.sandbox.selftest import Finding
from driver.cli import main

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]


def found(level: Level, lowest: Level = Level.B, **changes: object) -> Examination:
    findings = tuple(
        Finding(attack, stopped=level not in attack.gaps, expected=True, by="seccomp", detail="BREACH")
        for attack in ATTACKS
    )
    facts = {"layers": "seccomp rlimits", "landlock": "7", "account": "nobody"}
    values = {"facts": facts, "reasons": (), "findings": findings}
    values |= {"cells": (0.006,) * 20, "bare": (0.004,) * 20}
    return Examination(lowest=lowest, level=level, **(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("level", "lowest", "reached"),
    [("A", "A", True), ("A", "B", True), ("B", "A", False), ("none", "B", False), ("none", "none", True)],
)
def test_a_level_is_reached_from_the_lowest_accepted_up(level: str, lowest: str, reached: bool) -> None:
    assert found(Level(level), Level(lowest)).reached is reached


def test_the_text_names_level_attacks_gaps_latency_and_remedies() -> None:
    text = render(found(Level.B, reasons=((Level.A, "unshare(user namespace): EPERM"),)))
    assert text.startswith("isolation level B; lowest accepted: B, reached\n")
    assert "not level A     unshare(user namespace): EPERM" in text
    for attack in ATTACKS:
        line = next(line for line in text.splitlines() if f"  {attack.row:22}{attack.name:28}" in line)
        assert (" gap " in line and attack.why in line) if Level.B in attack.gaps else (" yes " in line)
    assert "p50    6.0  p95    6.0" in text and "1.50" in text
    assert text.endswith(ADVICE)
    assert ADVICE not in render(found(Level.A)), "nothing to change"
    through = Finding(ATTACKS[0], stopped=False, expected=False, by="seccomp", detail="BREACH 20\nmore")
    lines = render(found(Level.B, findings=(through,))).splitlines()
    assert [line for line in lines if line.endswith("NO       BREACH 20")]


def test_advice_names_what_decides_in_containers() -> None:
    for part in (
        "--security-opt seccomp=", "seccompProfile", "user.max_user_namespaces", "hostUsers: false", "gVisor",
        "kernel.apparmor_restrict_unprivileged_userns", "landlock_restrict_self",
    ):  # fmt: skip
        assert part in ADVICE


async def test_a_real_examination() -> None:
    result = await examine(Level.NONE, (), cells=5)
    assert result.reached
    assert (len(result.cells), len(result.bare), len(result.findings)) == (5, 5, len(ATTACKS))
    assert result.level is Level.NONE or all(f.expected for f in result.findings)
    assert all(0 < t < 10 for t in (*result.cells, *result.bare))
    assert set(result.facts) >= {"layers", "landlock", "account"}


def run_doctor(settings: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = f"import sys; from driver.cli import main; sys.exit(main({list(arguments)!r}))"
    command = [sys.executable, "-P", "tests/sandbox_machines.py", settings, script]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)


def test_the_command_exits_with_1_where_the_level_is_not_reached() -> None:
    done = run_doctor("no-namespaces", "sandbox", "doctor", "--level", "A", "--cells", "2")
    assert done.returncode == 1, done.stderr
    assert "lowest accepted: A, NOT reached" in done.stdout
    assert "unshare(user namespace): EPERM" in done.stdout
    assert "what to change for level A" in done.stdout
    assert "size and times" in done.stdout and " gap " in done.stdout


def test_the_command_takes_the_level_from_a_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fake(lowest: Level, imports: tuple[str, ...], *, cells: int) -> Examination:
        assert (lowest, cells) == (Level.A, 3) and "sympy" in imports
        return found(Level.B, lowest)

    monkeypatch.setattr("apprentice.sandbox.doctor.examine", fake)
    recipe = tmp_path / "recipe.yaml"
    tiny = (ROOT / "configs" / "tiny.yaml").read_text()
    assert "sandbox: {" in tiny
    recipe.write_text(tiny.replace("sandbox: {", "sandbox: {level: A, "))
    assert main(["sandbox", "doctor", str(recipe), "--cells", "3"]) == 1
    assert "NOT reached" in capsys.readouterr().out
