"""The internalized episode (RIVET, appendix A.5): one decoding stream, interrupted only to run Python.

The controller writes everything: calls, ``<|im_end|>``, role markers, ``<tool_response>`` tags, and what
experts used to write. No expert is called, whatever a ``model`` field says. The runtime does three things:

* **Runs Python.** When the controller has completed ``<python>...</python>`` inside a ``<tool_response>``
  that it opened itself, the code between the tags runs and the real output is appended. The empty ``code``
  argument is not looked at.
* **Runs a ``self`` call.** Its code stands in the arguments. When the controller opens the response to such
  a call, the runtime runs that code and appends the output, so here the stream stops at ``<tool_response>``.
* **Answers a refused call** (broken JSON, unknown tool, ``self`` without code, more than ``max_tool_calls``)
  at the same place, with the error text that the collaborative episode gives.

What the runtime appends is a newline, ``<output>``, the text, ``</output>`` and a newline (or the error text
between newlines), owned by OBSERVATION, tokenized on its own. The newline before it is left out when the
controller's last token, which may reach past the tag, has brought one. Conversion
(:mod:`apprentice.stage2.convert`) writes the same tokens. An ``<output>`` that the controller writes itself
is text like any other and stays CONTROLLER; where the runtime writes one, the controller is stopped first.

``<|im_end|>`` after a turn with calls, or after a tool response, does not end the episode; after any other
turn it does, and that turn is the final answer. Roles are read from the role markers; a turn without a
marker is a tool response when it opens one, else the controller's. A marker where ``<|im_end|>`` is missing
ends the turn before it. Any other end of text (``<|endoftext|>``, or the engine's own) ends the episode.
When ``max_rollout_tokens`` are spent it is TRUNCATED.

The stream is read token by token, so how it is cut into events makes no difference: whatever follows a stop
inside an event is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from apprentice.config.schema import ProtocolConfig
from apprentice.episodes.actions import (
    Action,
    CallError,
    EngineFailed,
    Event,
    Generate,
    Generated,
    PythonFailed,
    PythonResult,
    RunPython,
)
from apprentice.episodes.calls import Call, Refusal, check_call, check_self
from apprentice.episodes.core import TRUNCATED_LENGTH, EpisodeCore, EpisodeSpec
from apprentice.episodes.parser import ParsedCall, parse_turn, repairs_of, strip_code_fence
from apprentice.episodes.responses import Piece, appended_error, appended_output, fit
from apprentice.episodes.stream import Opened, PythonBlock, StreamTurn
from apprentice.episodes.tools import CODE_INTERPRETER
from apprentice.tokens import ChatCodec, IncrementalDecoder
from apprentice.trajectory import CallRecord, Status

__all__ = ["InternalizedEpisode"]

_PYTHON_END = "</python>"
_RESPONSE = "<tool_response>"


@dataclass(frozen=True, slots=True)
class _OpenCall:
    """A call of the last controller turn, whose response is to come; ``record``: index of its record."""

    call: Call | Refusal
    record: int

    @property
    def runtime_answers(self) -> bool:
        """Whether the runtime, not the controller, writes the response."""
        return isinstance(self.call, Refusal) or not self.call.asks_expert


class _Final:
    """The final answer is complete."""


_Stop = _Final | Opened | PythonBlock


class InternalizedEpisode(EpisodeCore):
    """See the module. ``prompt_ids`` end with the generation prompt."""

    def __init__(
        self, codec: ChatCodec, spec: EpisodeSpec, protocol: ProtocolConfig, prompt_ids: Sequence[int]
    ) -> None:
        super().__init__(codec, spec, prompt_ids)
        self._max_tool_calls = protocol.max_tool_calls
        self._repairs = repairs_of(protocol.repairs)
        self._calls_seen = 0
        self._python_runs = 0
        self._turn = self._new_turn("assistant", len(self._builder))
        self._open: list[_OpenCall] = []
        # What runs now: the response it belongs to, the code, and what the controller wrote past the tag.
        self._index = 0
        self._code = ""
        self._tail = ""

    def start(self) -> Action:
        """Ask for the stream."""
        self._begin()
        return self._go_on()

    def step(self, event: Event) -> Action:
        """See :meth:`apprentice.episodes.actions.Episode.step`."""
        match self._pending, event:
            case Generate(), Generated():
                return self._on_generated(event)
            case Generate(), EngineFailed():
                return self._unusable(f"engine: {event.message}")
            case RunPython(), PythonResult():
                return self._on_python(event)
            case RunPython(), PythonFailed():
                return self._unusable(f"sandbox: {event.message}")
            case _:
                self._reject(event)

    # -- the stream -----------------------------------------------------------------------------------------

    def _go_on(self) -> Action:
        # Stop strings only spare the engine tokens that would be dropped: the episode finds its stops itself.
        answers = any(call.runtime_answers for call in self._open)
        return self._generate((_PYTHON_END, _RESPONSE) if answers else (_PYTHON_END,))

    def _on_generated(self, event: Generated) -> Action:
        ids = event.token_ids[: self._remaining]
        first = len(self._builder)
        count, stop = len(ids), None
        for position, token_id in enumerate(ids):
            stop = self._read(token_id, first + position)
            if stop is not None:
                count = position + 1
                break
        self._append_sampled(event, count)
        stopped = event.finish_reason == "stop" and len(ids) == len(event.token_ids)
        if stop is None and stopped and not self._stopped_by((_PYTHON_END, _RESPONSE), len(ids)):
            stop = self._end_of_text()
        if stop is not None:
            return self._on_stop(stop)
        if event.finish_reason == "length" or self._remaining < 1:
            return self._truncated()
        return self._go_on()

    def _new_turn(self, role: str | None, start: int, *, header: bool = False) -> StreamTurn:
        return StreamTurn(role, IncrementalDecoder(self._codec), start, header)

    def _read(self, token_id: int, at: int) -> _Stop | None:
        """Take the token at index ``at`` of the sequence; say whether the stream stops behind it."""
        if token_id in self._end_ids:
            if token_id != self._codec.im_end_id:
                return self._end_of_text()
            stop = self._close()
            self._turn = self._new_turn(None, at + 1)
            return stop
        if token_id == self._codec.im_start_id:
            stop = self._close() if self._turn.text.strip() else None
            self._turn = self._new_turn(None, at + 1, header=True)
            return stop
        turn = self._turn
        piece = turn.decoder.append([token_id])
        if turn.header:
            role, newline, piece = turn.decoder.text.partition("\n")
            if not newline:
                return None
            turn.role, turn.header, turn.start, turn.body = role.strip(), False, at + 1, len(role) + 1
        if turn.role == "assistant":
            return None
        turn.scanner.feed(piece)
        while (place := turn.scanner.next()) is not None:
            if isinstance(place, PythonBlock) or self._runtime_answers(place.index):
                return place
        return None

    def _runtime_answers(self, index: int) -> bool:
        return index < len(self._open) and self._open[index].runtime_answers

    def _close(self) -> _Final | None:
        """The turn has ended. A response, or a turn with calls, does not end the episode."""
        turn = self._turn
        turn.decoder.finish()
        if turn.is_response:
            self._open = []
            return None
        parsed = parse_turn(turn.text, self._repairs, thinking=self._thinking_open(turn))
        self._final_text = parsed.content.strip()
        for call in parsed.missing_wrapper:
            self._record(Refusal(CallError.MISSING_WRAPPER, call.message, call.name), turn.start)
        if not parsed.calls:
            return _Final()
        self._open = [self._admit(call, turn.start) for call in parsed.calls]
        return None

    def _end_of_text(self) -> _Final:
        self._close()
        return _Final()

    def _thinking_open(self, turn: StreamTurn) -> bool:
        """Whether the prompt opened a ``<think>``; later turns write their own."""
        return turn.start == self._prompt_length and self._opens_thinking

    # -- calls ----------------------------------------------------------------------------------------------

    def _admit(self, parsed: ParsedCall, start: int) -> _OpenCall:
        self._calls_seen += 1
        call = check_call(parsed)
        if isinstance(call, Call):
            call = check_self(call) or call
        if isinstance(call, Call) and self._calls_seen > self._max_tool_calls:
            call = Refusal(CallError.BUDGET_SPENT, self._budget_message(), call.tool, call.model)
        return _OpenCall(call, self._record(call, start))

    def _budget_message(self) -> str:
        return f"all {self._max_tool_calls} tool calls are spent; give the final answer now."

    def _record(self, call: Call | Refusal, start: int) -> int:
        if isinstance(call, Refusal):
            record = CallRecord(call.tool, call.model, error=call.error.value, start=start)
        else:
            record = CallRecord(call.tool, call.model, instruction=call.instruction, start=start)
        self._calls.append(record)
        return len(self._calls) - 1

    def _on_stop(self, stop: _Stop) -> Action:
        if isinstance(stop, _Final):
            return self._finish(Status.COMPLETE)
        self._index = stop.index
        self._tail = self._turn.scanner.rest
        if isinstance(stop, PythonBlock):
            return self._run(stop.code)
        call = self._open[stop.index].call
        if isinstance(call, Refusal):
            return self._append_observation(appended_error(call.message, newline=self._needs_newline()))
        return self._run(call.code)

    def _run(self, code: str) -> Action:
        self._code = strip_code_fence(code)
        self._python_runs += 1
        if self._python_runs > self._max_tool_calls:
            message = self._budget_message()
            self._record(Refusal(CallError.BUDGET_SPENT, message, CODE_INTERPRETER), self._turn.start)
            return self._append_output(f"Error: {message}")
        return self._act(RunPython(self._code, self._record_index()))

    def _record_index(self) -> int:
        """Record of the response that is being written; a new one when it has run something before."""
        if self._index < len(self._open):
            index = self._open[self._index].record
            if not self._calls[index].outcome:
                return index
        return len(self._calls)

    def _on_python(self, event: PythonResult) -> Action:
        index = self._record_index()
        if index == len(self._calls):  # a second program in a response, or a response without a call
            self._calls.append(CallRecord(CODE_INTERPRETER, "", start=self._turn.start))
        self._calls[index] = replace(
            self._calls[index], code=self._code, outcome=event.outcome, seconds=event.seconds
        )
        return self._append_output(event.text)

    def _append_output(self, text: str) -> Action:
        return self._append_observation(appended_output(text, newline=self._needs_newline()))

    def _needs_newline(self) -> bool:
        return not self._tail.endswith("\n")

    def _append_observation(self, pieces: list[Piece]) -> Action:
        fitted = fit(self._codec, pieces, self._room())
        if fitted is None:
            return self._truncated()
        self._append_fitted(fitted)
        return self._go_on()

    # -- the end --------------------------------------------------------------------------------------------

    def _truncated(self) -> Action:
        turn = self._turn
        if not turn.is_response and turn.text.strip():
            parsed = parse_turn(turn.text, self._repairs, thinking=self._thinking_open(turn))
            self._final_text = parsed.content.strip()
            for call in parsed.calls:
                self._record(Refusal(CallError.TRUNCATED, "the turn was cut", call.name), turn.start)
        return self._finish(Status.TRUNCATED, TRUNCATED_LENGTH)
