"""What the reasoner gets of a thinking advisor's answer (Learning to Ask, section 7.3)."""

from __future__ import annotations

from typing import Literal

from apprentice.advisors.types import AttemptFailure, AttemptReply, AttemptResult

__all__ = ["Thinking", "shown"]

Thinking = Literal["off", "withheld", "passed_on"]


def shown(reply: AttemptReply, thinking: Thinking) -> AttemptResult:
    """The reply with the text that the reasoner sees; finished reasoning is never part of it.

    Where the cap ended the reasoning and there is no answer: ``passed_on`` gives the unfinished reasoning,
    ``withheld`` an empty text with finish reason ``length``, and ``off``, where nobody expected an advisor to
    think, the failure ``lost_to_reasoning`` (G13). All of them are charged. An advisor that refuses has
    answered; one that says nothing at all has failed (``empty``).
    """
    reasoning, text = reply.reasoning, reply.text
    # A chat template may open the thought itself: nothing in the text tells where it began.
    inline = not reasoning and not reply.usage.reasoning_tokens and not reply.thought_open
    if thinking != "off" and inline and reply.finish_reason == "length":
        reasoning, text = text, ""
    lost = reply.finish_reason == "length" and bool(
        reasoning or reply.thought_open or reply.usage.reasoning_tokens
    )
    if text.strip() or (not lost and reply.finish_reason in ("refused", "content_filter")):
        return AttemptReply(text, reply.usage, reply.finish_reason)
    if not lost:
        what = f"no text (finish reason {reply.finish_reason})"
        return AttemptFailure("empty", what, True, reply.usage)
    if thinking == "off":
        what = (
            f"the cap was spent on reasoning ({reply.usage.reasoning_tokens or 'unknown'} tokens); set "
            "ask.advisor.thinking, raise ask.advisor.max_tokens, or switch the advisor's thinking off"
        )
        return AttemptFailure("lost_to_reasoning", what, False, reply.usage)
    return AttemptReply(reasoning if thinking == "passed_on" else "", reply.usage, "length")
