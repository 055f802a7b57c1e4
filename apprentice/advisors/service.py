"""The metered advisor as a whole, without Ray: what ``serve/advisor.py`` deploys."""

from __future__ import annotations

import random
from pathlib import Path

from apprentice.advisors.judge import COMPLETE, completeness_messages, read_judgement
from apprentice.advisors.metered import CallAnswer, CallRefused, MeteredCall, MeteredCalls, Send
from apprentice.advisors.prompt import advisor_messages, prompt_bound
from apprentice.advisors.rule_judge import RuleJudge
from apprentice.advisors.thinking import shown
from apprentice.config.ask import ArithmeticBackend, AskConfig, RecordedBackend
from apprentice.costs.book import ADVISOR, JUDGE, AccountTotals
from apprentice.costs.ledger import Ledger
from apprentice.costs.limits import Limits
from apprentice.costs.prices import Prices
from apprentice.costs.records import CallId
from apprentice.episodes.actions import AskAdvisor, JudgeQuery, QueryJudged
from apprentice.errors import AdvisorError, ConfigError
from apprentice.experts.retry import RetryPolicy, total_deadline_s

__all__ = ["AdvisorService", "check_ask", "open_ledger"]


def check_ask(config: AskConfig) -> None:
    """Raises ConfigError where the judge cannot judge with the advisor that is configured."""
    if config.judge.kind == "advisor" and isinstance(
        config.advisor.backend, ArithmeticBackend | RecordedBackend
    ):
        raise ConfigError(
            f"ask.judge.kind: the advisor's backend {config.advisor.backend.kind!r} is no language model and "
            "cannot judge queries; set ask.judge.kind to rule, or to openai with an endpoint"
        )


def open_ledger(config: AskConfig, path: str | Path, *, lock_timeout_s: float = 10.0) -> Ledger:
    """The ledger of a run. A judge at another endpoint has prices only if the recipe gives it some.

    Raises:
        AdvisorError: kind ``ledger_locked``: another process owns it.
        DataError: the file is damaged.
    """
    prices = {ADVISOR: Prices.of(config.prices)}
    if config.judge.kind == "advisor":
        prices[JUDGE] = prices[ADVISOR]
    elif config.judge.prices is not None:
        prices[JUDGE] = Prices.of(config.judge.prices)
    return Ledger(path, prices, Limits.of(config.budget), lock_timeout_s=lock_timeout_s)


class AdvisorService:
    """Asks the advisor and the judge through one ledger.

    Args:
        config: of Learning to Ask.
        ledger: owned by this process.
        send: makes one attempt at the advisor.
        send_judge: makes one attempt at the judge; the advisor's own unless there is one.
        queue_s: how long a call may wait for a place at the advisor.
    """

    def __init__(
        self,
        config: AskConfig,
        ledger: Ledger,
        send: Send,
        *,
        send_judge: Send | None = None,
        queue_s: float = 120.0,
        rng: random.Random | None = None,
    ) -> None:
        check_ask(config)
        advisor = config.advisor
        self._config, self._ledger = config, ledger
        self._send, self._send_judge = send, send_judge or send
        self._rule = RuleJudge() if config.judge.kind == "rule" else None
        self.calls = MeteredCalls(
            ledger,
            places=advisor.replicas * advisor.max_ongoing_requests,
            policy=RetryPolicy(
                max_retries=advisor.max_retries,
                attempt_s=advisor.timeout_s,
                deadline_s=total_deadline_s(advisor.timeout_s, advisor.max_retries) + queue_s,
            ),
            queue_s=queue_s,
            rng=rng,
        )

    async def ask(self, request: AskAdvisor, *, scope: str = "", key: str = "") -> CallAnswer | CallRefused:
        """Ask the advisor; it sees ``request.query``.

        Args:
            scope: keeps apart trajectories of one name.
            key: what the call is charged to; the recipe's if empty.

        Raises:
            AdvisorError: it failed past its retries.
        """
        messages = advisor_messages(request.query)
        call = MeteredCall(
            CallId(ADVISOR, scope, request.trajectory_id, request.call_index),
            key=key or self._config.key,
            variants=(messages,),
            prompt_bound=prompt_bound(self._config.advisor, messages),
            max_tokens=request.max_tokens,
        )
        thinking = self._config.advisor.thinking
        return await self.calls.ask(call, self._send, lambda reply: shown(reply, thinking))

    async def judge(self, request: JudgeQuery, *, scope: str = "") -> QueryJudged:
        """G of Eq. 9. A model's judgement is metered in the account ``judge``, charged to the key ``judge``.

        Raises:
            AdvisorError: the judge failed past its retries, or its key's budget is spent (``budget``).
        """
        if self._rule is not None:
            return await self._rule.judge(request)
        variants = completeness_messages(request.query)
        call = MeteredCall(
            CallId(JUDGE, scope, request.trajectory_id, request.call_index),
            key=JUDGE,
            variants=variants,
            prompt_bound=max(prompt_bound(self._config.advisor, messages) for messages in variants),
            max_tokens=self._config.judge.max_tokens,
        )
        thinks = self._config.judge.kind == "advisor" and self._config.advisor.thinking != "off"
        answer = await self.calls.ask(
            call, self._send_judge, lambda reply: read_judgement(reply, thinks=thinks)
        )
        if isinstance(answer, CallRefused):
            raise AdvisorError(f"the judge has no budget left ({answer.budget} {JUDGE!r})", kind="budget")
        return QueryJudged(answer.text == COMPLETE, answer.text)

    def totals(self) -> dict[str, AccountTotals]:
        """Account -> sums of the ledger."""
        return self._ledger.totals()

    async def close(self) -> None:
        """Stop all calls and release the ledger."""
        await self.calls.close()
        self._ledger.close()
