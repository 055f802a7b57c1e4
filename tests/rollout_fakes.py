"""Hand-written ports and episodes for tests of rollouts: nothing here samples, serves or runs anything."""

from __future__ import annotations

from collections.abc import Callable

from apprentice.config.schema import SamplingConfig
from apprentice.data.problem import Problem
from apprentice.episodes.actions import (
    Action,
    CallExpert,
    EngineFailed,
    Event,
    ExpertFailed,
    ExpertReply,
    Finish,
    Generate,
    Generated,
    PythonFailed,
    PythonResult,
    RunPython,
)
from apprentice.rollout.ports import Verdict
from apprentice.trajectory import Owner, Status, Trajectory, TrajectoryBuilder

__all__ = [
    "EchoExpert",
    "EchoPython",
    "EqualityVerifier",
    "FakeSampler",
    "TurnsEpisode",
    "TurnsFactory",
    "problem",
]


def problem(problem_id: str, question: str = "1+1?", answer: str = "2") -> Problem:
    return Problem(problem_id, question, answer)


class TurnsEpisode:
    """Generate, ask an expert, generate, run Python, ...: ``turns`` generations, a call between each two."""

    def __init__(
        self,
        problem: Problem,
        *,
        mode: str,
        trajectory_id: str,
        group_id: str,
        seed: int,
        max_rollout_tokens: int | None,
        turns: int = 3,
        prompt_ids: tuple[int, ...] = (1, 2, 3),
        turn_tokens: int = 4,
        reply_ids: tuple[int, ...] = (7, 8),
    ) -> None:
        self.problem, self.seed = problem, seed
        self._fields = {
            "trajectory_id": trajectory_id,
            "problem_id": problem.problem_id,
            "group_id": group_id,
            "mode": mode,
        }
        self._left, self._turn_tokens, self._reply = turns, max_rollout_tokens or turn_tokens, reply_ids
        self._builder = TrajectoryBuilder()
        self._builder.append(prompt_ids, Owner.PROMPT, "prompt")
        self._calls = 0
        self._end: Finish | None = None
        self._final = ""

    def start(self) -> Action:
        return self._generate()

    def _generate(self) -> Action:
        self._left -= 1
        return Generate(tuple(self._builder.token_ids), self._turn_tokens, ("stop",), (5,))

    def _finish(self, status: Status, reason: str = "") -> Action:
        self._end = Finish(status, reason)
        return self._end

    def step(self, event: Event) -> Action:
        match event:
            case Generated():
                self._builder.append_sampled(event.token_ids, event.logprobs, event.policy_version)
                if self._left == 0:
                    self._final = f"answer {self.problem.answer}"
                    return self._finish(Status.COMPLETE)
                self._calls += 1
                if self._calls % 2:
                    return CallExpert(
                        "wise",
                        "think",
                        self.problem.problem_id,
                        self.problem.question,
                        "help",
                        "",
                        16,
                        self._calls,
                    )
                return RunPython("print(2)", self._calls)
            case ExpertReply():
                self._builder.append(self._reply, Owner.EXPERT, event.expert)
                return self._generate()
            case PythonResult():
                self._builder.append(self._reply, Owner.OBSERVATION, "python")
                return self._generate()
            case ExpertFailed():
                return self._finish(Status.UNUSABLE, f"expert {event.expert}: {event.kind}")
            case PythonFailed():
                return self._finish(Status.UNUSABLE, f"sandbox: {event.message}")
            case EngineFailed():
                return self._finish(Status.UNUSABLE, f"engine: {event.message}")

    def result(self) -> Trajectory:
        assert self._end is not None
        return self._builder.build(
            status=self._end.status, status_reason=self._end.reason, final_text=self._final, **self._fields
        )


class TurnsFactory:
    """Builds :class:`TurnsEpisode` with fixed options; picklable, and its own ``build_episodes``."""

    def __init__(self, **options: object) -> None:
        self.options = options

    def __call__(self, problem: Problem, **fields: object) -> TurnsEpisode:
        return TurnsEpisode(problem, **fields, **self.options)  # type: ignore[arg-type]

    def build(self) -> TurnsFactory:
        return self


class FakeSampler:
    """Answers with ``reply(request, seed)``; records what it was asked."""

    def __init__(self, reply: Callable[[Generate, int | None], Generated] | None = None) -> None:
        self._reply = reply or (lambda request, seed: Generated((11, 5), (-0.5, -0.25), 3, "stop"))
        self.seeds: list[int | None] = []
        self.requests: list[Generate] = []

    async def generate(
        self, request: Generate, sampling: SamplingConfig, *, seed: int | None = None
    ) -> Generated:
        self.seeds.append(seed)
        self.requests.append(request)
        return self._reply(request, seed)


class EchoExpert:
    """An expert that answers at once; ``fails`` is called before each answer and may raise."""

    def __init__(self, fails: Callable[[CallExpert], None] = lambda request: None) -> None:
        self._fails = fails

    async def ask(self, request: CallExpert) -> ExpertReply:
        self._fails(request)
        return ExpertReply("think", request.expert)


class EchoPython:
    """A sandbox that answers at once; ``fails`` is called before each answer and may raise."""

    def __init__(self, fails: Callable[[str], None] = lambda code: None) -> None:
        self._fails = fails

    async def run(self, code: str) -> PythonResult:
        self._fails(code)
        return PythonResult("2", "ok")


class EqualityVerifier:
    """Right when the text ends with the gold."""

    async def verify(self, response: str, problem: Problem) -> Verdict:
        if response.endswith("never"):
            return Verdict("timeout", None)
        return Verdict("correct" if response.endswith(problem.answer) else "wrong", response.split()[-1])
