"""Problem sets: procedural, local files, the hub; and worked solutions for the ``worked`` experts."""

from apprentice.data.problem import Problem, WorkedSolution

__all__ = ["Problem", "WorkedSolution"]
