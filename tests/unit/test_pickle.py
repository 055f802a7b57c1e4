"""Every type that crosses a process survives pickling as it is."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apprentice import errors
from apprentice.config.load import load_config
from apprentice.config.schema import SamplingConfig
from apprentice.data.ask_state import AskState
from apprentice.data.problem import Problem, WorkedSolution
from apprentice.episodes import actions
from apprentice.rollout.ports import Verdict
from apprentice.rollout.types import RolloutCounters, RolloutRequest
from apprentice.trajectory import CallRecord, Owner, Status, Trajectory, TrajectoryBuilder

pytestmark = pytest.mark.unit

VALUES: list[Any] = [
    SamplingConfig(temperature=0.5, top_k=3),
    *(load_config(path) for path in sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))),
    Problem("p1", "q", "a", family="gcd", worked=WorkedSolution("because", "print(1)"), metadata={"k": "v"}),
    actions.Generate([1, 2], 5, ("</python>",), (7,)),
    actions.Generated([1, 2], [-0.5, 0.0], 3, "stop"),
    actions.CallExpert("e", "think", "p1", "q", "i", "t", 5, 0),
    actions.RunPython("print(1)", 2),
    actions.Finish(Status.TRUNCATED, "length"),
    actions.ExpertReply("text", "e", 5, 6, 0.25),
    actions.ExpertFailed("e", "timeout", "m"),
    actions.PythonResult("1\n", "ok", 0.1),
    actions.PythonFailed("m"),
    actions.EngineFailed("m"),
    actions.AskAdvisor("q", "t", 1, 64),
    actions.AdvisorReply("z", None, 6, "length", 61.0, 0.5),
    actions.AdvisorRefused("per_run"),
    actions.AdvisorFailed("timeout", "m"),
    actions.JudgeQuery("q", "x", "t", 0),
    actions.QueryJudged(True, "COMPLETE"),
    actions.JudgeFailed("m"),
    AskState("s", "q", "a", token_ids=(1, 2), base_id="p1", prompt_tokens=1, lead=' "', nested=True),
    CallRecord("think", "e", expert_tokens=3),
    Verdict("correct", "6"),
    RolloutRequest((Problem("p1", "q", "a"),), ("g1",), "collaborative", 2, SamplingConfig(), seed=66),
    RolloutCounters(),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_survives_pickling(value: Any) -> None:
    again = pickle.loads(pickle.dumps(value))
    assert again == value and type(again) is type(value)


def test_every_action_and_event_is_among_the_values() -> None:
    tested = {type(value).__name__ for value in VALUES}
    types = {
        name
        for name in actions.__all__
        if isinstance(getattr(actions, name), type) and dataclasses.is_dataclass(getattr(actions, name))
    }
    assert types - tested == set()


def test_a_trajectory_survives_pickling_with_the_tokens_that_nobody_sampled() -> None:
    builder = TrajectoryBuilder()
    builder.append([5, 6], Owner.PROMPT, "prompt")
    builder.append_sampled([7], [-0.25], 4)
    builder.append([8], Owner.EXPERT, "expert")
    value = builder.build(
        trajectory_id="t",
        problem_id="p",
        group_id="g",
        mode="collaborative",
        status=Status.COMPLETE,
        calls=(CallRecord("think", "expert"),),
        tags={"k": "v"},
    )
    again = pickle.loads(pickle.dumps(value))
    for field in dataclasses.fields(Trajectory):
        ours, theirs = getattr(value, field.name), getattr(again, field.name)
        if isinstance(ours, np.ndarray):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs)
        else:
            assert ours == theirs and type(ours) is type(theirs)
    assert np.isnan(again.logprob[[0, 1, 3]]).all()


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_survives_pickling_with_what_it_carries(name: str) -> None:
    kind = getattr(errors, name)
    error = kind("what and where")
    if kind is errors.ExpertError:
        error = errors.ExpertError("what and where", kind="timeout", expert="e")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind and str(again) == "what and where"
    assert vars(again) == vars(error)
