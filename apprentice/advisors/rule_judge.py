"""The completeness gate G of Eq. 9 by a rule, for runs without a language model.

It goes with the arithmetic advisor. A query is complete if it states an arithmetic expression with at least
one operator and numbers only, and refers to nothing that it does not state. As with the paper's judge the
query alone decides: whether its numbers are those of the problem is for the task reward to say.
"""

from __future__ import annotations

import re

from apprentice.advisors.expression import find_expressions
from apprentice.advisors.judge import COMPLETE, INCOMPLETE
from apprentice.episodes.actions import JudgeQuery, QueryJudged

__all__ = ["RuleJudge", "is_complete"]

# What points outside the query. "the result of 3 + 4" and "only the result" do not.
_OUTSIDE = re.compile(
    r"\b(?:the|this|that|my|our|your|its|their|his|her) "
    r"(?:original |given |same |above |previous |last |first |second |remaining |current |earlier |unknown )*"
    r"(?:total|problem|question|task|equation|expression|sum|product|difference|quotient|variable|unknown|figure|"
    r"table|diagram|text|story|step|value of [a-z]|price|number of \w+|rest|remainder)\b"
    r"(?!\s*(?:of|for|in|:|is|=)?\s*:?\s*[-(\d])"
    r"|\b(?:previous(?:ly)?|earlier|above|aforementioned|so far|remaining|as before|from before)\b"
    r"|\b(?:it|this|that|these|those)\b(?=\s*(?:[-+*/×÷]|\b(?:by|plus|minus|times|divided|multiplied|from)\b))"
    r"|(?:[-+*/×÷]|\b(?:plus|minus|times|divided by|to|from|with))\s*(?:it|this|that|these|those)\b",
    re.I,
)


def is_complete(query: str) -> bool:
    """Whether the query is answerable as it is, by arithmetic alone."""
    return bool(find_expressions(query)) and _OUTSIDE.search(query) is None


class RuleJudge:
    """A :class:`apprentice.rollout.ports.QueryJudge` that needs no endpoint and costs nothing."""

    async def judge(self, request: JudgeQuery) -> QueryJudged:
        """G of Eq. 9."""
        complete = is_complete(request.query)
        return QueryJudged(complete, COMPLETE if complete else INCOMPLETE)
