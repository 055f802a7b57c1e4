"""Rewards and advantages of Learning to Ask (sections 3 and 5, appendix C.2). NumPy only, pure functions.

=========  =====================================================  =================================
equation   what                                                   function
=========  =====================================================  =================================
Eq. 4      API cost of a trajectory                               :func:`api_cost`
Eq. 5      standalone success of the reasoner                     :func:`solo_success`
Eq. 6      consultation target n(x)                               :func:`needs_advisor`
Eq. 7      R_C, reward for asking where it is needed              :func:`consultation_reward`
Eqs. 9/12  R_Q, reward of Qmaker (``safe``: with G_safe)          :func:`qmaker_reward`
Eq. 10     R_int before and after the call                        :func:`integration_rewards`
5.3        its advantages, a segment at a time                    :func:`segment_advantages`
Eq. 11     G_safe, no sensitive span in the query                 :func:`safe_query`
=========  =====================================================  =================================

A number that is not known (a provider that reports no usage) is ``None`` and stays ``None``: it is never 0.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Iterable, Sequence
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from apprentice.objectives.advantage import normalize_group

__all__ = [
    "api_cost", "consultation_reward", "integration_rewards", "needs_advisor", "qmaker_reward", "safe_query",
    "segment_advantages", "solo_success",
]  # fmt: skip

_WHOLE = 1e-6  # how far p k may lie from a whole number of successes


def api_cost(
    called: bool, query_tokens: int | None, advice_tokens: int | None, c_in: float = 1.0, c_out: float = 6.0
) -> float | None:
    """Eq. 4: ``1[called] (c_in |q| + c_out |z|)``, in units of the prices.

    Args:
        called: whether the advisor was asked; without a call the tokens are not looked at.
        query_tokens: |q|, the advisor's input tokens.
        advice_tokens: |z|, its output tokens, reasoning included.
        c_in, c_out: price of one input and one output token.

    Returns:
        None when the advisor was asked and one of the counts is not known.

    Raises:
        ValueError: a count or price is negative.
    """
    if min(c_in, c_out) < 0:
        raise ValueError(f"prices must not be negative, got {c_in} and {c_out}")
    if not called:
        return 0.0
    if query_tokens is None or advice_tokens is None:
        return None
    if min(query_tokens, advice_tokens) < 0:
        raise ValueError(f"token counts must not be negative, got {query_tokens} and {advice_tokens}")
    return c_in * query_tokens + c_out * advice_tokens


def solo_success(correct: Sequence[bool]) -> float:
    """Eq. 5: share of right answers among k rollouts without the advisor.

    Raises:
        ValueError: no rollouts.
    """
    if len(correct) == 0:
        raise ValueError("standalone success needs at least one rollout without the advisor")
    return sum(map(bool, correct)) / len(correct)


def needs_advisor(p: float, gamma: int, k: int) -> bool:
    """Eq. 6: ``p <= gamma / k``, compared as whole numbers of successes, so that equality is exact.

    Args:
        p: standalone success of Eq. 5 from ``k`` rollouts.
        gamma: a problem solved in at most this many of them needs the advisor.
        k: rollouts.

    Raises:
        ValueError: p is no share of k rollouts, or gamma is negative.
    """
    if k < 1 or gamma < 0:
        raise ValueError(f"k {k} must be at least 1 and gamma {gamma} at least 0")
    successes = round(p * k) if math.isfinite(p) else -1
    if not 0 <= successes <= k or abs(p * k - successes) > _WHOLE:
        raise ValueError(f"p {p} is no share of {k} rollouts: it was estimated from another number of them")
    return successes <= gamma


def consultation_reward(needs: bool, called: bool) -> float:
    """Eq. 7: 1 where the advisor is asked exactly on a problem that needs it, else 0."""
    return float(bool(needs) == bool(called))


def qmaker_reward(
    complete: bool, advice_tokens: int | None, budget: int, correct: bool, *, safe: bool = True
) -> float | None:
    """Eq. 9, ``G(q) 1[|z| < b] R_task``; with ``safe`` from :func:`safe_query` it is Eq. 12.

    Args:
        complete: G(q), whether the judge finds the query answerable as it is.
        advice_tokens: |z|; ``b`` tokens are already too many (the comparison is strict).
        budget: b, output tokens, at least 1.
        correct: R_task, whether the reasoner's continuation is right.
        safe: G_safe of Eq. 11.

    Returns:
        0 or 1. None when the reward hangs on |z| and |z| is not known: such a trajectory has no reward.
    """
    if budget < 1:
        raise ValueError(f"the budget b must be at least one token, got {budget}")
    if not (complete and safe and correct):
        return 0.0  # whatever |z| is
    return None if advice_tokens is None else float(advice_tokens < budget)


def integration_rewards(
    needs: bool, called: bool, correct: bool, lambda_task: float = 0.2
) -> tuple[float, float]:
    """Eq. 10: reward of the tokens before the call (all tokens without a call), and of those after it.

    Args:
        needs: n(x) of Eq. 6.
        called: whether the trajectory asked.
        correct: R_task of the final answer.
        lambda_task: weight of R_task before the call, in (0, 1).

    Returns:
        ``R_C + lambda R_task`` and ``R_task``; the second is NaN without a call: no token is after it.
    """
    if not 0 < lambda_task < 1:
        raise ValueError(f"lambda must lie between 0 and 1, got {lambda_task}")
    before = consultation_reward(needs, called) + lambda_task * float(bool(correct))
    return before, float(bool(correct)) if called else math.nan


def segment_advantages(
    rewards: Sequence[tuple[float, float]],
    positions: Sequence[int | None],
    lengths: Sequence[int],
    epsilon: float = 1e-6,
) -> list[npt.NDArray[np.float32]]:
    """Advantages of one rollout group, tokens before and after the call normalized apart (section 5.3).

    The rewards before the call are normalized over the whole group, those after it over the members that
    called: with one such member, or equal rewards, these are 0 and teach nothing.

    Args:
        rewards: of :func:`integration_rewards`, one pair a member; length ``G``.
        positions: tau, the number of tokens up to and including the decision to ask; None without a call.
            Tokens ``[:position]`` are before the call, ``[position:]`` after it.
        lengths: tokens of each trajectory, prompt included.
        epsilon: the stabilizer of :func:`~apprentice.objectives.advantage.normalize_group`.

    Returns:
        One float32 array ``[T]`` a member, as :func:`apprentice.learning.batch.rl_examples` takes them.

    Raises:
        ValueError: lengths differ, a position lies outside its trajectory, or a member has a second reward
            without a call or the other way round.
    """
    if not len(rewards) == len(positions) == len(lengths):
        raise ValueError(f"{len(rewards)} rewards, {len(positions)} positions and {len(lengths)} lengths")
    for number, ((_, after), position, length) in enumerate(zip(rewards, positions, lengths, strict=True)):
        if (position is None) != math.isnan(after):
            raise ValueError(
                f"member {number} has position {position} and reward {after} after the call: both or none"
            )
        if position is not None and not 0 <= position <= length:
            raise ValueError(f"member {number} called at token {position} of its {length}")
    callers = [number for number, position in enumerate(positions) if position is not None]
    before = normalize_group([pre for pre, _ in rewards], epsilon)
    after_of = dict(
        zip(callers, normalize_group([rewards[i][1] for i in callers], epsilon), strict=True)
        if callers
        else ()
    )
    out = []
    for number, (position, length) in enumerate(zip(positions, lengths, strict=True)):
        advantages = np.full(length, before[number], np.float32)
        if position is not None:
            advantages[position:] = after_of[number]
        out.append(advantages)
    return out


def safe_query(query: str, spans: Iterable[str]) -> bool:
    """Eq. 11: whether no sensitive span stands in the query, character for character.

    Looked for in the query as it is and as a reader would decode it: JSON string escapes, percent-encoding
    and HTML entities, also one inside the other. A span that is split, paraphrased, translated or encrypted
    (base64 too) is not found: leakage is the exact value (appendix C.2).

    Raises:
        ValueError: an empty span, which stands in every text.
    """
    wanted = list(spans)
    if not all(wanted):
        raise ValueError("a sensitive span is empty")
    return not any(span in reading for reading in _readings(query) for span in wanted)


_JSON_ESCAPE = re.compile(r'\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))')
_JSON_CHARACTER = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def _json_unescape(text: str) -> str:
    """JSON string escapes resolved wherever they stand; what is no escape stays."""

    def character(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        return _JSON_CHARACTER.get(match[2], match[2])

    plain = _JSON_ESCAPE.sub(character, text)
    # Two escapes make one character beyond U+FFFF.
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


_DECODERS: tuple[Callable[[str], str], ...] = (_json_unescape, unquote, html.unescape)


def _readings(text: str) -> set[str]:
    """The text, and what it reads as after at most two decodings."""
    found = {text}
    for _ in range(2):
        found |= {decode(reading) for reading in found for decode in _DECODERS}
    return found
