"""The collaborative episode (RIVET, sections 3.2-3.3, Tables 7 and 8): turns, tool calls, expert answers.

A turn of the controller ends with ``<|im_end|>``. Its calls run in their order; the answers go into one user
turn, as the chat template writes consecutive tool messages, and the controller goes on. A turn without a call
is the final answer.

==========================  ================================================  =================
what a call is answered     text between ``<tool_response>`` and its end      owner
==========================  ================================================  =================
``think``                   the expert's text                                 EXPERT
code by an expert           ``<python>``, its code, ``</python>``,            WRAPPER, EXPERT,
                            ``<output>``, what Python printed, ``</output>``  OBSERVATION
code by an expert that      the expert's text, then ``<output>`` with a       EXPERT,
wrote none                  note that nothing ran (outcome ``no_code``)       OBSERVATION
code by ``self``            ``<output>``, what Python printed, ``</output>``  OBSERVATION
refused call                ``Error: ...``                                    OBSERVATION
==========================  ================================================  =================

Role markers and ``<tool_response>`` tags are WRAPPER; what the controller sampled, its ``<|im_end|>`` too, is
CONTROLLER. An expert's text is stripped of blank space at its ends and cut to ``max_expert_tokens``; an empty
one is a failure of the expert, never advice. A failed expert, sandbox or engine makes the episode UNUSABLE.

Every token after the prompt counts against ``max_rollout_tokens``. When it is spent the episode is TRUNCATED
and scored as it stands; a turn that ended at the last token is an ending like any other. A response that
does not fit is shortened in the middle (tag ``cut_responses``) such that something is left to answer with;
where not even the tags fit, the calls are not made at all.

Routing (``protocol.routing``): ``learned`` asks the expert that the controller names. ``random`` asks a
seeded random one instead; the controller's tokens stay as they were sampled, so the text still shows the
name that it chose, while :attr:`CallRecord.model` and the producer say who answered. The name of an expert
leaves only that one in the tool definitions.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence

from apprentice.config.schema import ExpertConfig, ProtocolConfig
from apprentice.episodes.actions import (
    Action,
    CallError,
    CallExpert,
    EngineFailed,
    Event,
    ExpertFailed,
    ExpertReply,
    Generate,
    Generated,
    PythonFailed,
    PythonResult,
    RunPython,
)
from apprentice.episodes.calls import Call, CallRules, Refusal
from apprentice.episodes.core import TRUNCATED_LENGTH, EpisodeCore, EpisodeSpec
from apprentice.episodes.expert_code import extract_code
from apprentice.episodes.parser import ParsedCall, parse_turn, repairs_of, strip_code_fence
from apprentice.episodes.prompts import collaborative_prompt
from apprentice.episodes.responses import (
    Piece,
    cut_head,
    error_pieces,
    fit,
    output_pieces,
    python_pieces,
    response_turn,
)
from apprentice.episodes.tools import THINK
from apprentice.tokens import ChatCodec, Part
from apprentice.trajectory import CallRecord, Owner, Status

__all__ = ["NO_CODE", "CollaborativeEpisode", "available_experts"]

NO_CODE = "no_code"
"""Outcome of a code call whose expert wrote no program."""
_NO_CODE_TEXT = "No Python code was found in the answer; nothing was run."


def available_experts(experts: Sequence[ExpertConfig], routing: str) -> list[ExpertConfig]:
    """Experts that the controller may name: all of them, or the one that ``routing`` names."""
    if routing in ("learned", "random"):
        return list(experts)
    return [expert for expert in experts if expert.name == routing]


class CollaborativeEpisode(EpisodeCore):
    """See the module.

    Args:
        experts: all experts of the recipe, in its order. Empty: training without experts, ``self`` only.
        experts_removed: same prompt and tools, but a call to an expert is refused (EXPERTS_REMOVED).
    """

    def __init__(
        self,
        codec: ChatCodec,
        spec: EpisodeSpec,
        protocol: ProtocolConfig,
        experts: Sequence[ExpertConfig],
        *,
        experts_removed: bool = False,
    ) -> None:
        offered = available_experts(experts, protocol.routing)
        prompt = collaborative_prompt(spec.problem.question, offered, protocol.instructions)
        super().__init__(codec, spec, codec.encode_prompt(prompt.messages, prompt.tools))
        self._tags["routing"] = protocol.routing
        self._names = [expert.name for expert in offered]
        self._rules = CallRules(
            self._names,
            max_expert_calls=protocol.max_expert_calls,
            max_tool_calls=protocol.max_tool_calls,
            experts_removed=experts_removed,
        )
        self._repairs = repairs_of(protocol.repairs)
        self._max_expert_tokens = protocol.max_expert_tokens
        # String seeding does not depend on the process, hash seeding would.
        self._random = random.Random(f"routing {spec.seed}") if protocol.routing == "random" else None
        self._transcript: list[str] = []
        self._turn_start = len(self._builder)
        self._queue: deque[ParsedCall] = deque()
        self._responses: list[list[Piece]] = []
        # The call that runs now, and what its expert has written.
        self._call = Call("", "")
        self._expert_text = ""
        self._expert_tokens = 0
        self._expert_seconds = 0.0

    def start(self) -> Action:
        """Ask for the first turn."""
        self._begin()
        return self._generate()

    def step(self, event: Event) -> Action:
        """See :meth:`apprentice.episodes.actions.Episode.step`."""
        match self._pending, event:
            case Generate(), Generated():
                return self._on_generated(event)
            case Generate(), EngineFailed():
                return self._unusable(f"engine: {event.message}")
            case CallExpert(), ExpertReply():
                return self._on_expert(event)
            case CallExpert(), ExpertFailed():
                return self._unusable(f"expert: {event.expert}: {event.kind}: {event.message}")
            case RunPython(), PythonResult():
                return self._on_python(event)
            case RunPython(), PythonFailed():
                return self._unusable(f"sandbox: {event.message}")
            case _:
                self._reject(event)

    # -- the controller's turn ------------------------------------------------------------------------------

    def _on_generated(self, event: Generated) -> Action:
        count, ended = self._find_end(event)
        self._append_sampled(event, count)
        if ended:
            return self._on_turn()
        if event.finish_reason == "length" or self._remaining < 1:
            # Calls of a turn that was cut are not run: there is no room for their answers.
            turn = parse_turn(self._text(self._turn_start), self._repairs, thinking=self._opens_thinking)
            self._final_text = turn.content.strip()
            for parsed in turn.calls:
                self._refuse(Refusal(CallError.TRUNCATED, "the turn was cut", parsed.name))
            return self._finish(Status.TRUNCATED, TRUNCATED_LENGTH)
        return self._generate()

    def _on_turn(self) -> Action:
        text = self._text(self._turn_start)
        turn = parse_turn(text, self._repairs, thinking=self._opens_thinking)
        self._final_text = turn.content.strip()
        for parsed in turn.missing_wrapper:
            # No call in this protocol, only counted: the turn may be an answer that shows JSON (B19).
            self._refuse(Refusal(CallError.MISSING_WRAPPER, parsed.message, parsed.name))
        if not turn.calls:
            return self._finish(Status.COMPLETE)
        self._transcript.append(f"Controller:\n{text.strip()}")
        self._queue.extend(turn.calls)
        self._responses = []
        least = response_turn(self._codec, [error_pieces("")] * len(turn.calls), closed=self._turn_closed)
        if len(self._codec.encode_markup("".join(p.part.text for p in least))) > self._room():
            for parsed in turn.calls:
                self._refuse(Refusal(CallError.TRUNCATED, "no room for an answer", parsed.name))
            return self._finish(Status.TRUNCATED, TRUNCATED_LENGTH)
        return self._next_call()

    # -- its calls ------------------------------------------------------------------------------------------

    def _next_call(self) -> Action:
        while self._queue:
            call = self._rules.decide(self._queue.popleft())
            if isinstance(call, Refusal):
                self._refuse(call)
                self._responses.append(error_pieces(call.message))
                self._transcript.append(f"Error: {call.message}")
                continue
            return self._run(call)
        return self._respond()

    def _run(self, call: Call) -> Action:
        index = len(self._calls)
        self._expert_text, self._expert_tokens, self._expert_seconds = "", 0, 0.0
        if not call.asks_expert:
            self._call = call
            return self._act(RunPython(strip_code_fence(call.code), index))
        if self._random is not None:
            call = Call(call.tool, self._random.choice(self._names), call.instruction)
        self._call = call
        return self._act(
            CallExpert(
                expert=call.model,
                tool=call.tool,
                problem_id=self._spec.problem.problem_id,
                question=self._spec.problem.question,
                instruction=call.instruction,
                transcript="\n\n".join(self._transcript),
                max_tokens=self._max_expert_tokens,
                call_index=index,
            )
        )

    def _on_expert(self, event: ExpertReply) -> Action:
        expert = self._call.model
        self._expert_seconds = event.seconds
        text, self._expert_tokens = cut_head(self._codec, event.text.strip(), self._max_expert_tokens)
        if not text:
            return self._unusable(f"expert: {expert}: empty: the answer has no text")
        pieces = [Piece(Part(text, trusted=False), Owner.EXPERT, expert)]
        self._transcript.append(f"{expert}:\n{text}")
        if self._call.tool == THINK:
            return self._answer(pieces)
        code = extract_code(text)
        if code is None:
            pieces += output_pieces(_NO_CODE_TEXT, opening="\n<output>\n")
            return self._answer(pieces, outcome=NO_CODE)
        self._expert_text = code
        return self._act(RunPython(code, len(self._calls)))

    def _on_python(self, event: PythonResult) -> Action:
        self._transcript.append(f"Python output:\n{event.text}")
        if self._call.asks_expert:
            pieces = python_pieces(self._expert_text, self._call.model, event.text)
            return self._answer(pieces, code=self._expert_text, outcome=event.outcome, seconds=event.seconds)
        pieces = output_pieces(event.text)
        code = strip_code_fence(self._call.code)
        return self._answer(pieces, code=code, outcome=event.outcome, seconds=event.seconds)

    def _answer(
        self, pieces: list[Piece], *, code: str = "", outcome: str = "", seconds: float = 0.0
    ) -> Action:
        self._responses.append(pieces)
        self._calls.append(
            CallRecord(
                tool=self._call.tool,
                model=self._call.model,
                outcome=outcome,
                code=code,
                instruction=self._call.instruction,
                start=self._turn_start,
                expert_tokens=self._expert_tokens,
                seconds=self._expert_seconds + seconds,
            )
        )
        return self._next_call()

    def _refuse(self, refusal: Refusal) -> None:
        self._calls.append(
            CallRecord(refusal.tool, refusal.model, error=refusal.error.value, start=self._turn_start)
        )

    # -- its answers ----------------------------------------------------------------------------------------

    def _respond(self) -> Action:
        pieces = response_turn(self._codec, self._responses, closed=self._turn_closed)
        fitted = fit(self._codec, pieces, self._room())
        if fitted is None:
            return self._finish(Status.TRUNCATED, TRUNCATED_LENGTH)
        self._append_fitted(fitted)
        self._turn_start = len(self._builder)
        return self._generate()
