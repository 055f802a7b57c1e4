"""The Qmaker episode (Learning to Ask, section 5.2, Eq. 9): what a query is worth at a reasoning state.

Qmaker is trained here, the reasoner is frozen. Its problem is an :class:`apprentice.data.ask_state.AskState`:

1. Qmaker reads the problem, the reasoning so far and the budget b, and writes (u, s).
2. A judge decides whether q = Format(u, s) is answerable as it is, and the advisor answers q.
3. The reasoner goes on from h_tau, the call completed by q, and the reply: token for token what an
   ``ask_qmaker`` episode would have there (both are :class:`apprentice.episodes.ask.AskEpisode`).

The trajectory is Qmaker's prompt and its turn, nothing else. ``final_text`` is the reasoner's, so the
problem's own verifier gives R_task; the other factors of Eq. 9 are in the tags::

    query, format_ok, complete, judge_label, advice_tokens, advice_finish, budget, state, base_id,
    continuation

``advice_tokens`` is empty without advice, and where its usage is not known. ``continuation`` is the status of
the reasoner's part. When Qmaker does not keep to its form nobody is asked:
``format_ok`` is 0 and ``final_text`` empty. A failed judge, advisor or reasoner makes the episode UNUSABLE,
and so does a ledger without room: it says nothing of the query.
"""

from __future__ import annotations

import dataclasses

from apprentice.config.ask import AskConfig
from apprentice.data.ask_state import AskState
from apprentice.episodes.actions import (
    Action,
    AdvisorRefused,
    AdvisorReply,
    AskAdvisor,
    EngineFailed,
    Event,
    Finish,
    Generate,
    Generated,
    JudgeFailed,
    JudgeQuery,
    QueryJudged,
)
from apprentice.episodes.ask import AskEpisode, advice_tokens
from apprentice.episodes.core import TRUNCATED_LENGTH, EpisodeCore, EpisodeSpec
from apprentice.episodes.parser import DEFAULT, Repairs
from apprentice.episodes.qmaker_text import QmakerTurn, format_query, qmaker_prompt_ids, reasoning_text
from apprentice.tokens import ChatCodec
from apprentice.trajectory import Status

__all__ = ["REASONER", "QmakerEpisode"]

REASONER = "reasoner"
"""Name of the frozen reasoner in ``Generate``."""


class QmakerEpisode(EpisodeCore):
    """See the module.

    Args:
        codec: Qmaker's.
        reasoner: the reasoner's codec.
        spec: its ``max_rollout_tokens`` bound the reasoner's sequence; Qmaker's own turn is bounded by
            ``ask.qmaker.max_query_tokens``.
        state: where the reasoner stands; also the spec's problem.
        repairs: of the reasoner's calls.
    """

    def __init__(
        self,
        codec: ChatCodec,
        reasoner: ChatCodec,
        spec: EpisodeSpec,
        ask: AskConfig,
        state: AskState,
        repairs: Repairs = DEFAULT,
    ) -> None:
        reasoning = reasoning_text(reasoner, state.token_ids[state.prompt_tokens :])
        prompt = qmaker_prompt_ids(codec, state.question, reasoning, ask)
        limit = ask.qmaker.max_query_tokens
        super().__init__(codec, dataclasses.replace(spec, max_rollout_tokens=limit), prompt)
        self._ask, self._state, self._reasoner = ask, state, reasoner
        self._turn = QmakerTurn(codec, prompt, limit)
        self._inner = AskEpisode.resume(reasoner, spec, ask, state, repairs)
        self._query = ""
        self._tags |= {
            "query": "",
            "format_ok": "0",
            "complete": "0",
            "judge_label": "",
            "advice_tokens": "",
            "advice_finish": "",
            "budget": str(ask.advisor.max_tokens),
            "state": state.problem_id,
            "base_id": state.base_id,
            "continuation": "",
        }

    def start(self) -> Action:
        """Ask Qmaker."""
        self._begin()
        return self._act(self._turn.action())

    def step(self, event: Event) -> Action:
        """See :meth:`apprentice.episodes.actions.Episode.step`."""
        match self._pending, event:
            case Generate(model=""), Generated():
                return self._on_generated(event)
            case Generate(model=""), EngineFailed():
                return self._unusable(f"engine: {event.message}")
            case JudgeQuery(), QueryJudged():
                self._tags |= {"complete": str(int(event.complete)), "judge_label": event.label}
                return self._go_on(self._inner.ask_now(self._query))
            case JudgeQuery(), JudgeFailed():
                return self._unusable(f"judge: {event.message}")
            case JudgeQuery(), _:
                self._reject(event)
            case AskAdvisor(), AdvisorRefused():
                return self._unusable(f"advisor: refused: {event.reason}")
            case AskAdvisor(max_tokens=cap), AdvisorReply():
                tokens = advice_tokens(event, cap)
                shown = "" if tokens is None else str(tokens)
                self._tags |= {"advice_tokens": shown, "advice_finish": event.finish_reason}
                return self._go_on(self._inner.step(event))
            case ((AskAdvisor() | Generate()), _):
                return self._go_on(self._inner.step(event))
            case _:
                self._reject(event)

    def _on_generated(self, event: Generated) -> Action:
        self._append_sampled(event, self._turn.add(event))
        if not self._turn.over:
            return self._act(self._turn.action())
        parts = self._turn.parse()
        if parts is None:
            if self._turn.ended:
                return self._finish(Status.COMPLETE)
            return self._finish(Status.TRUNCATED, TRUNCATED_LENGTH)
        # As the reasoner's vocabulary holds it: the judge and the advisor see the very same text.
        self._query = self._reasoner.representable(format_query(parts))
        self._tags |= {"query": self._query, "format_ok": "1"}
        return self._act(JudgeQuery(self._query, self._state.question, self._spec.trajectory_id, 0))

    def _go_on(self, action: Action) -> Action:
        """An action of the reasoner's part becomes one of this episode."""
        match action:
            case Generate():
                return self._act(dataclasses.replace(action, model=REASONER))
            case Finish(Status.UNUSABLE, reason):
                return self._unusable(reason)
            case Finish(status, _):
                part = self._inner.result()
                # The call is the reasoner's: it has no place among Qmaker's tokens.
                self._calls = [dataclasses.replace(call, start=0, position=-1) for call in part.calls]
                self._final_text = part.final_text
                self._tags["continuation"] = status.value
                return self._finish(Status.COMPLETE)
        return self._act(action)
