"""The ask episode (Learning to Ask, section 3): the reasoner may ask a metered advisor, and goes on with the
answer.

The reasoner writes one turn. A call in it, at any point, ends the turn (the engine stops at
``</tool_call>``); the reply comes in a user turn, as the chat template writes a tool message, and the
reasoner goes on. A turn without a call is the final answer. The advisor is sent the query and nothing else.

===================  =====================================================  =========================
mode                 what becomes of a valid call                           the query's tokens
===================  =====================================================  =========================
``ask``              its query goes to the advisor                          CONTROLLER, as sampled
``ask_stop``         the episode ends: the reward of stage 1 is known       CONTROLLER, as sampled
``ask_qmaker``       Qmaker reads problem and reasoning and writes the      EXPERT (``qmaker``); the end
                     query that goes to the advisor                         of the call is WRAPPER
===================  =====================================================  =========================

``position`` of the call's record is the same in all three: the number of tokens before the one that holds the
first character of the query (:mod:`apprentice.episodes.ask_call`).

What the reasoner reads: the advisor's text (EXPERT, stripped, encoded without control tokens), or an
OBSERVATION where there is none: a note for a reply without text (a thinking advisor used up the cap),
``Error: ...`` for a call that was refused. Refused are broken calls, calls past ``max_asks`` answered ones,
and calls for which the ledger has no room; the rollout goes on. A failed advisor or engine makes the episode
UNUSABLE. A call that the token budget cuts, or that leaves no room for a reply, is none: TRUNCATED, and the
advisor is not asked. A reply that does not fit is shortened in the middle.

When Qmaker does not keep to its form, the reasoner's own query is asked and stays CONTROLLER, since it is
then what the reply answers (tag ``qmaker_format_error`` counts); with ``ask.qmaker.privacy`` nothing that
Qmaker has not screened leaves, so the call is refused instead (QUERY_FORMAT).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final, Literal

from apprentice.config.ask import AskConfig
from apprentice.data.ask_state import AskState
from apprentice.episodes.actions import (
    Action,
    AdvisorFailed,
    AdvisorRefused,
    AdvisorReply,
    AskAdvisor,
    CallError,
    EngineFailed,
    Event,
    Generate,
    Generated,
)
from apprentice.episodes.ask_call import QMAKER, CallSite, call_site, check_query, completed_call
from apprentice.episodes.calls import Refusal
from apprentice.episodes.core import TRUNCATED_LENGTH, EpisodeCore, EpisodeSpec
from apprentice.episodes.parser import DEFAULT, ParsedCall, Repairs, TurnParser
from apprentice.episodes.qmaker_text import QmakerTurn, format_query, qmaker_prompt_ids, reasoning_text
from apprentice.episodes.responses import PROTOCOL, Piece, error_pieces, fit, observation, response_turn
from apprentice.episodes.tools import ASK_ADVISOR
from apprentice.tokens import ChatCodec, IncrementalDecoder, Part
from apprentice.trajectory import CallRecord, Owner, Status

__all__ = ["ASKED", "QMAKER_FORMAT_ERROR", "AskEpisode", "QuerySource", "advice_tokens"]

ASKED = "asked"
"""Tag: 1 when a call was answered (in ``ask_stop``: was made), else 0."""
QMAKER_FORMAT_ERROR = "qmaker_format_error"
"""Tag: how many of Qmaker's answers did not keep to its form."""

QuerySource = Literal["own", "stop", "qmaker"]
"""What becomes of a valid call: modes ``ask``, ``ask_stop`` and ``ask_qmaker``."""

_STOP: Final = ("</tool_call>",)


class AskEpisode(EpisodeCore):
    """See the module.

    Args:
        codec: the reasoner's.
        prompt_ids: end with the generation prompt.
        query: see :data:`QuerySource`.
        qmaker: Qmaker's codec; None: the reasoner's.
        repairs: what a call may lack of strict JSON between tags. Without tags nothing ends the turn, so JSON
            without tags is no call here.
    """

    def __init__(
        self,
        codec: ChatCodec,
        spec: EpisodeSpec,
        ask: AskConfig,
        prompt_ids: Sequence[int],
        *,
        query: QuerySource = "own",
        qmaker: ChatCodec | None = None,
        repairs: Repairs = DEFAULT,
    ) -> None:
        super().__init__(codec, spec, prompt_ids)
        self._ask, self._source, self._qmaker = ask, query, qmaker or codec
        self._tags[ASKED] = "0"
        self._left = ask.max_asks
        self._repairs = dataclasses.replace(repairs, bare_json=False)
        self._new_turn()
        # The call that is under way: its site, the reasoner's own query, and the one that was sent.
        self._site = CallSite(0, "", "")
        self._own = self._sent = ""
        self._qmaker_turn: QmakerTurn | None = None

    @classmethod
    def resume(
        cls,
        codec: ChatCodec,
        spec: EpisodeSpec,
        ask: AskConfig,
        state: AskState,
        repairs: Repairs = DEFAULT,
    ) -> AskEpisode:
        """An episode at the reasoning state of another one; :meth:`ask_now` goes on from there.

        Its query is its last one: a further call is refused.
        """
        episode = cls(codec, spec, ask, state.token_ids[: state.prompt_tokens], repairs=repairs)
        episode._builder.append(state.token_ids[state.prompt_tokens :], Owner.EXPERT, "reasoner")
        episode._site = CallSite(len(state.token_ids), state.lead, state.tail, state.nested)
        episode._left = 1
        return episode

    def start(self) -> Action:
        """Ask for the first turn."""
        self._begin()
        return self._go_on()

    def ask_now(self, query: str) -> Action:
        """Complete the call that a resumed episode breaks off in with ``query``, and ask it."""
        self._begin()
        return self._send_written(query)

    def step(self, event: Event) -> Action:
        """See :meth:`apprentice.episodes.actions.Episode.step`."""
        match self._pending, event:
            case Generate(model=""), Generated():
                return self._on_generated(event)
            case Generate(), Generated():
                return self._on_qmaker(event)
            case Generate(model=model), EngineFailed():
                return self._unusable(f"engine: {model + ': ' if model else ''}{event.message}")
            case AskAdvisor(), AdvisorReply():
                return self._on_reply(event)
            case AskAdvisor(), AdvisorRefused():
                message = f"the budget has no room for this call ({event.reason}); go on without the advisor."
                return self._refused(Refusal(CallError.BUDGET_SPENT, message, ASK_ADVISOR), sent=True)
            case AskAdvisor(), AdvisorFailed():
                return self._unusable(f"advisor: {event.kind}: {event.message}")
            case _:
                self._reject(event)

    # -- the reasoner's turn --------------------------------------------------------------------------------

    def _new_turn(self) -> None:
        self._turn_start = len(self._builder)
        self._decoder = IncrementalDecoder(self._codec)
        self._parser = TurnParser(self._repairs, thinking=self._opens_thinking)

    def _go_on(self) -> Action:
        return self._generate(_STOP)

    def _on_generated(self, event: Generated) -> Action:
        count, ended = self._find_end(event)
        for position in range(count):
            if event.token_ids[position] in self._end_ids:
                break
            if calls := self._parser.feed(self._decoder.append([event.token_ids[position]])):
                self._append_sampled(event, position + 1)
                self._turn_closed = False  # by a call, not by <|im_end|>
                return self._on_call(calls[0])
        self._append_sampled(event, count)
        closed = count > 0 and event.token_ids[count - 1] in self._end_ids
        if ended and (closed or not self._stopped_by(_STOP, count)):
            return self._on_end(Status.COMPLETE)
        if event.finish_reason == "length" or self._remaining < 1:
            return self._on_end(Status.TRUNCATED)
        return self._go_on()

    def _on_end(self, status: Status) -> Action:
        """The turn is over and no call has ended it: it is the answer, unless a call in it is unfinished."""
        self._parser.feed(self._decoder.finish())
        turn = self._parser.finish()
        self._final_text = turn.content.strip()
        for parsed in turn.missing_wrapper:  # no call, only counted
            self._record(Refusal(CallError.MISSING_WRAPPER, parsed.message, parsed.name))
        if status is Status.TRUNCATED:
            for parsed in turn.calls:
                self._record(Refusal(CallError.TRUNCATED, "the turn was cut", parsed.name))
            return self._finish(status, TRUNCATED_LENGTH)
        return self._on_call(turn.calls[0]) if turn.calls else self._finish(status)

    # -- its call -------------------------------------------------------------------------------------------

    def _on_call(self, parsed: ParsedCall) -> Action:
        query = check_query(parsed)
        if not isinstance(query, Refusal) and self._left < 1:
            query = Refusal(CallError.BUDGET_SPENT, self._spent_message(), ASK_ADVISOR)
        if isinstance(query, Refusal):
            return self._refused(query)
        text = self._decoder.text
        self._site = call_site(self._codec, self._builder.token_ids, self._turn_start, text, parsed)
        self._own = self._sent = query
        if self._source == "stop":
            self._tags[ASKED] = "1"
            self._calls.append(self._sent_record(cost=0.0))
            return self._finish(Status.COMPLETE)
        if not self._has_room():
            return self._truncated()
        return self._ask_qmaker() if self._source == "qmaker" else self._send(query)

    def _spent_message(self) -> str:
        most = self._ask.max_asks
        spent = "the one call to the advisor is" if most == 1 else f"all {most} calls to the advisor are"
        return f"{spent} spent; finish without it."

    def _has_room(self, growth: int = 0) -> bool:
        """Whether at least an empty answer fits when the sequence has grown."""
        least = response_turn(self._codec, [error_pieces("")], closed=self._turn_closed)
        return len(self._codec.encode_markup("".join(p.part.text for p in least))) <= self._room(growth)

    def _ask_qmaker(self) -> Action:
        reasoning = reasoning_text(
            self._codec, self._builder.token_ids[self._prompt_length : self._site.position]
        )
        prompt = qmaker_prompt_ids(self._qmaker, self._spec.problem.question, reasoning, self._ask)
        self._qmaker_turn = QmakerTurn(self._qmaker, prompt, self._ask.qmaker.max_query_tokens)
        return self._act(self._qmaker_turn.action(QMAKER))

    def _on_qmaker(self, event: Generated) -> Action:
        turn = self._qmaker_turn
        assert turn is not None, "Qmaker has answered without having been asked"
        turn.add(event)
        if not turn.over:
            return self._act(turn.action(QMAKER))
        parts = turn.parse()
        if parts is not None:
            return self._send_written(format_query(parts))
        self._tags[QMAKER_FORMAT_ERROR] = str(int(self._tags.get(QMAKER_FORMAT_ERROR, "0")) + 1)
        if self._ask.qmaker.privacy:
            message = "the question could not be put so that it may be sent; go on without the advisor."
            return self._refused(Refusal(CallError.QUERY_FORMAT, message, ASK_ADVISOR))
        return self._send(self._own)

    def _send_written(self, query: str) -> Action:
        """Ask ``query``, which takes the place of what the reasoner wrote from ``position`` on."""
        query = self._codec.representable(query)
        written = completed_call(self._codec, self._site, query)
        growth = self._site.position + sum(len(ids) for _, ids in written) - len(self._builder)
        self._turn_closed = False
        if not self._has_room(growth):
            return self._truncated()
        self._builder.cut(self._site.position)
        for piece, ids in written:
            self._builder.append(ids, piece.owner, piece.producer)
        return self._send(query)

    def _send(self, query: str) -> Action:
        self._sent = query
        cap = self._ask.advisor.max_tokens
        return self._act(AskAdvisor(query, self._spec.trajectory_id, len(self._calls), cap))

    # -- its answer -----------------------------------------------------------------------------------------

    def _on_reply(self, event: AdvisorReply) -> Action:
        advisor = self._ask.advisor.name
        text = event.text.strip()
        pieces = [Piece(Part(text, trusted=False), Owner.EXPERT, advisor)]
        if not text:
            pieces = [observation(self._empty_note(event), PROTOCOL)]
        self._left -= 1
        self._tags[ASKED] = "1"
        length = advice_tokens(event, self._ask.advisor.max_tokens)
        self._calls.append(
            self._sent_record(
                # Not known: what was read stands there; `cost` says that it is no usage.
                expert_tokens=len(self._codec.encode_text(text)) if length is None else length,
                query_tokens=event.prompt_tokens,
                cost=event.cost,
                seconds=event.seconds,
            )
        )
        return self._respond(pieces)

    def _empty_note(self, event: AdvisorReply) -> str:
        why = "has no text"
        if event.finish_reason == "length":
            why = f"did not come: it used up its {self._ask.advisor.max_tokens} tokens on reasoning"
        return f"[The advisor's answer {why}. Go on without it.]"

    def _sent_record(self, **fields: object) -> CallRecord:
        return CallRecord(
            ASK_ADVISOR,
            self._ask.advisor.name,
            instruction=self._sent,
            start=self._turn_start,
            position=self._site.position,
            **fields,  # type: ignore[arg-type]
        )

    def _record(self, refusal: Refusal) -> None:
        self._calls.append(
            CallRecord(refusal.tool, refusal.model, error=refusal.error.value, start=self._turn_start)
        )

    def _refused(self, refusal: Refusal, *, sent: bool = False) -> Action:
        """Tell the reasoner. ``sent``: the query got as far as the ledger, and is recorded."""
        if not self._has_room():
            return self._truncated()
        if sent:
            self._calls.append(self._sent_record(error=refusal.error.value))
        else:
            self._record(refusal)
        return self._respond(error_pieces(refusal.message))

    def _truncated(self) -> Action:
        self._record(Refusal(CallError.TRUNCATED, "no room for an answer", ASK_ADVISOR))
        return self._finish(Status.TRUNCATED, TRUNCATED_LENGTH)

    def _respond(self, pieces: list[Piece]) -> Action:
        turn = response_turn(self._codec, [pieces], closed=self._turn_closed)
        fitted = fit(self._codec, turn, self._room())
        if fitted is None:
            return self._finish(Status.TRUNCATED, TRUNCATED_LENGTH)
        self._append_fitted(fitted)
        self._new_turn()
        return self._go_on()


def advice_tokens(reply: AdvisorReply, cap: int) -> int | None:
    """|z|: the provider's count; ``cap`` where it gives none for a reply that reached it; else not known."""
    if reply.completion_tokens is None and reply.finish_reason == "length":
        return cap
    return reply.completion_tokens
