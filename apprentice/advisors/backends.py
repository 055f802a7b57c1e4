"""Advisors with a model behind them, recorded ones, and which one a recipe names."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from apprentice.advisors.arithmetic import ArithmeticAdvisor
from apprentice.advisors.prompt import cut_tokens
from apprentice.advisors.types import (
    AdvisorBackend,
    AttemptFailure,
    AttemptReply,
    AttemptRequest,
    AttemptResult,
)
from apprentice.config.ask import AdvisorConfig, ArithmeticBackend, RecordedBackend
from apprentice.config.parts import OpenAIBackend
from apprentice.costs.usage import Usage, parse_usage
from apprentice.errors import ConfigError, DataError
from apprentice.experts.engine import Generate
from apprentice.experts.openai import OpenAIExpert, read_completion
from apprentice.experts.prompt import split_reasoning
from apprentice.experts.types import BackendFailure

__all__ = ["EngineAdvisor", "OpenAIAdvisor", "RecordedAdvisor", "make_advisor"]


class OpenAIAdvisor:
    """Backend ``openai``: any OpenAI-compatible endpoint.

    The attempt's name is sent as the header ``X-Client-Request-Id``, so that a provider's log can be held
    against the ledger.

    Raises:
        ConfigError: the key's environment variable is not set.
    """

    def __init__(self, name: str, config: OpenAIBackend, *, temperature: float, top_p: float) -> None:
        self._endpoint = OpenAIExpert(name, config, temperature=temperature, top_p=top_p)

    async def attempt(self, request: AttemptRequest, *, timeout_s: float) -> AttemptResult:
        """One chat completion. An answer without text is one: what becomes of it is decided by the caller."""
        try:
            completion = await self._endpoint.chat(
                request.messages,
                max_tokens=request.max_tokens,
                timeout_s=timeout_s,
                headers={"X-Client-Request-Id": request.request_id},
            )
        except BackendFailure as failure:
            usage = Usage(0, 0, 0, 0) if _never_ran(failure.kind) else failure.usage
            return AttemptFailure(failure.kind, str(failure), failure.retryable, usage, failure.retry_after_s)
        reply = read_completion(completion)
        if reply is None:
            usage = parse_usage(getattr(completion, "usage", None))
            return AttemptFailure("malformed", "the response has no choice", True, usage)
        text, finish = reply.text, reply.finish_reason
        if reply.refusal and not text.strip():
            text, finish = reply.refusal, "refused"
        return AttemptReply(text, reply.usage, finish, reply.reasoning, reply.thought_open)

    async def close(self) -> None:
        """Close the connections."""
        await self._endpoint.close()


def _never_ran(kind: str) -> bool:
    """Whether a failure means that the provider did not run the request, so that it charges nothing.

    A 4xx status is a refusal before anything runs. Timeouts (408), conflicts (409), 5xx and lost connections
    may have run.
    """
    status = kind.removeprefix("http_")
    return kind.startswith("http_4") and status not in ("408", "409", "499")


class EngineAdvisor:
    """Backend ``vllm``: an inference engine of our own, as an async function of chat messages.

    Args:
        generate: puts messages through the chat template and the engine, greedily.
    """

    def __init__(self, generate: Generate) -> None:
        self._generate = generate

    async def attempt(self, request: AttemptRequest, *, timeout_s: float) -> AttemptResult:
        """One generation."""
        try:
            done = await asyncio.wait_for(self._generate(request.messages, request.max_tokens), timeout_s)
        except TimeoutError:
            return AttemptFailure("timeout", f"no answer within {timeout_s:g} s", True)
        except BackendFailure as failure:
            return AttemptFailure(
                failure.kind, str(failure), failure.retryable, failure.usage, failure.retry_after_s
            )
        reasoning, text, closed = split_reasoning(done.text)
        usage = Usage(done.prompt_tokens, done.completion_tokens)
        if done.finish_reason == "length" and done.completion_tokens < request.max_tokens:
            # By |z| alone it would pass for an answer that ended by itself within its cap (Eq. 9).
            what = (
                f"the context ended the answer at {done.completion_tokens} tokens, before its cap of "
                f"{request.max_tokens}; raise ask.advisor.backend.max_model_len to prompt and cap together"
            )
            return AttemptFailure("context_full", what, False, usage)
        return AttemptReply(text, usage, done.finish_reason, reasoning, not closed)

    async def close(self) -> None:
        """The engine belongs to the deployment."""


class RecordedAdvisor:
    """Backend ``recorded``: answers by exact query from a JSON-lines file.

    A line has ``query``, ``text``, ``usage`` (``prompt_tokens``, ``completion_tokens`` and, if known, their
    details as in an OpenAI response), and may have ``finish_reason``, ``reasoning`` and ``max_tokens``, the
    cap it was recorded under. An answer serves another cap only if it ended by itself within it.

    Raises:
        DataError: the file is not there, or a line is something else.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._rows: dict[str, list[dict[str, Any]]] = {}
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise DataError(f"{path}: recorded answers cannot be read: {error.strerror}") from error
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                query, _ = str(row["query"]), str(row["text"])
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(f"{path}: line {number} has no query and text ({error!r})") from error
            self._rows.setdefault(query, []).append(row)

    async def attempt(self, request: AttemptRequest, *, timeout_s: float) -> AttemptResult:
        """The recorded answer. Failure ``replay_miss``: none was recorded for this query and cap."""
        for row in self._rows.get(request.messages[-1]["content"], ()):
            usage = parse_usage(row.get("usage"))
            finish = str(row.get("finish_reason") or "stop")
            ended = finish == "stop" and (usage.completion_tokens or 0) <= request.max_tokens
            if ended and usage.completion_tokens is None:
                ended = not cut_tokens(str(row["text"]), request.max_tokens)[2]
            if row.get("max_tokens") == request.max_tokens or ended:
                return AttemptReply(str(row["text"]), usage, finish, str(row.get("reasoning") or ""))
        return AttemptFailure(
            "replay_miss",
            f"{self._path} has no answer to this query within {request.max_tokens} tokens; record it first",
            usage=Usage(0, 0, 0, 0),
        )

    async def close(self) -> None:
        """Nothing to release."""


def make_advisor(config: AdvisorConfig, *, seed: int = 0, generate: Generate | None = None) -> AdvisorBackend:
    """The backend that a recipe names.

    Args:
        seed: of the run; decides what an arithmetic advisor gets wrong.
        generate: the engine, for ``vllm``.

    Raises:
        ConfigError: the key of an endpoint is not set.
        DataError: recorded answers cannot be read.
    """
    backend = config.backend
    if isinstance(backend, ArithmeticBackend):
        return ArithmeticAdvisor(backend, name=config.name, seed=seed)
    if isinstance(backend, RecordedBackend):
        return RecordedAdvisor(backend.path)
    if isinstance(backend, OpenAIBackend):
        return OpenAIAdvisor(config.name, backend, temperature=config.temperature, top_p=config.top_p)
    if generate is None:
        raise ConfigError(
            f"advisor {config.name!r}: backend vllm needs an engine; deploy it (serve/advisor.py)"
        )
    return EngineAdvisor(generate)
