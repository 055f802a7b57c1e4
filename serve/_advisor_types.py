"""What crosses between the advisor's client and its meter."""

from __future__ import annotations

from dataclasses import dataclass

from apprentice.advisors.metered import CallAnswer, CallRefused
from apprentice.episodes.actions import AskAdvisor, JudgeQuery, QueryJudged
from apprentice.errors import AdvisorError

__all__ = ["Outcome", "Question", "app_name"]


@dataclass(frozen=True, slots=True)
class Question:
    """A call as a client sends it, once or more often."""

    request: AskAdvisor | JudgeQuery
    scope: str
    key: str = ""


Outcome = CallAnswer | CallRefused | QueryJudged | AdvisorError
"""A failure is a value here: an exception would come with the replica's whole traceback."""


def app_name(advisor: str) -> str:
    """Name of an advisor's Serve application."""
    from serve._expert_client import app_name as expert_app_name

    return "advisor-" + expert_app_name(advisor).removeprefix("expert-")
