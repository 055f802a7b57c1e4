"""How the programs of code tasks are tested (docs/code-tasks.md)."""

from __future__ import annotations

from pydantic import Field

from apprentice.config.base import PositiveFloat, PositiveInt, Strict

__all__ = ["ProgramsConfig"]


class ProgramsConfig(Strict):
    """Limits of the programs that solve code tasks."""

    test_cpu_s: PositiveFloat = Field(6.0, description="CPU seconds a test, as in LiveCodeBench.")
    test_wall_s: PositiveFloat = Field(
        30.0,
        description="Wall seconds a test; more than the CPU seconds, so that a busy machine fails nobody.",
    )
    problem_s: PositiveFloat = Field(300.0, description="Wall seconds for all tests of a problem together.")
    memory_mib: PositiveInt = Field(1024, description="Memory of a program, its stack apart.")
    output_mib: PositiveInt = Field(16, description="Output of a program on one test.")
    stop_at_first_failure: bool = Field(
        True, description="False: run all tests, for an exact share of tests passed."
    )
