"""Backend ``openai``: any OpenAI-compatible endpoint.

The key is read from the environment variable that the recipe names, kept in the client and nowhere else: it
is in no message, repr or log line of ours, and a server that echoes it gets it blanked out.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import openai
from openai.types.chat import ChatCompletion

from apprentice.config.schema import OpenAIBackend
from apprentice.costs.usage import Usage, parse_usage
from apprentice.episodes.actions import CallExpert
from apprentice.errors import ConfigError
from apprentice.experts.prompt import Message, build_messages, split_reasoning
from apprentice.experts.retry import is_retryable_status
from apprentice.experts.types import BackendFailure, ExpertAnswer

__all__ = ["ChatReply", "OpenAIExpert", "parse_completion", "parse_usage", "read_completion"]

_MIN_KEY = 4  # shorter ones are placeholders; blanking them out would blank out words


@dataclass(frozen=True, slots=True)
class ChatReply:
    """What a chat completion says, as it is.

    ``reasoning``: thoughts, given apart or inline; ``thought_open``: they began inline and did not end.
    ``refusal``: what the model said instead of an answer.
    """

    text: str
    reasoning: str
    thought_open: bool
    finish_reason: str
    refusal: str
    usage: Usage


def read_completion(completion: ChatCompletion) -> ChatReply | None:
    """The first choice of a chat completion; None if there is none."""
    usage = parse_usage(getattr(completion, "usage", None))
    choices = getattr(completion, "choices", None) or []
    if not choices or choices[0].message is None:
        return None
    message = choices[0].message
    apart = getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None) or ""
    inline, text, closed = split_reasoning(message.content or "")
    return ChatReply(
        text=text,
        reasoning="\n".join(part for part in (str(apart), inline) if part),
        thought_open=not closed,
        finish_reason=str(choices[0].finish_reason or "stop"),
        refusal=str(getattr(message, "refusal", None) or ""),
        usage=usage,
    )


def parse_completion(completion: ChatCompletion, *, expert: str, tool: str) -> ExpertAnswer:
    """The answer in a chat completion.

    Raises:
        BackendFailure: ``malformed`` (no choice), ``lost_to_reasoning`` (the token limit was spent on
        reasoning
            and no answer is left, G13), ``refused``, ``content_filter``, ``empty``.
    """
    reply = read_completion(completion)
    if reply is None:
        raise BackendFailure(
            f"expert {expert!r}: the response has no choice",
            kind="malformed",
            expert=expert,
            retryable=True,
            usage=parse_usage(getattr(completion, "usage", None)),
        )
    usage, finish = reply.usage, reply.finish_reason
    if reply.text.strip():
        return ExpertAnswer(text=reply.text, usage=usage, finish_reason=finish, reasoning=reply.reasoning)
    kind, retryable = "empty", True
    if finish == "length" and (reply.reasoning or reply.thought_open or usage.reasoning_tokens):
        kind, retryable = "lost_to_reasoning", False  # the same limit would be spent the same way
    elif reply.refusal:
        kind, retryable = "refused", False
    elif finish == "content_filter":
        kind, retryable = "content_filter", False
    raise BackendFailure(
        f"expert {expert!r} answered {tool} with no text (finish reason {finish}, "
        f"{usage.reasoning_tokens if usage.reasoning_tokens is not None else 'unknown'} reasoning tokens)",
        kind=kind,
        expert=expert,
        retryable=retryable,
        usage=usage,
    )


class OpenAIExpert:
    """Backend ``openai``.

    Args:
        name: the expert's name.
        config: URL, model, name of the key's environment variable, extra body fields.
        temperature, top_p: sampling.
        include_transcript: show the expert the episode so far.

    Raises:
        ConfigError: the key's environment variable is not set.
    """

    def __init__(
        self,
        name: str,
        config: OpenAIBackend,
        *,
        temperature: float,
        top_p: float,
        include_transcript: bool = True,
    ) -> None:
        self._name, self._config = name, config
        self._temperature, self._top_p, self._include_transcript = temperature, top_p, include_transcript
        key = os.environ.get(config.api_key_env) if config.api_key_env else ""
        if config.api_key_env and not key:
            raise ConfigError(
                f"expert {name!r}: environment variable {config.api_key_env} is not set; set it to the key "
                f"of {_host(config.base_url)}, or leave api_key_env out for an endpoint without one"
            )
        self._client = openai.AsyncOpenAI(api_key=key or "none", base_url=config.base_url, max_retries=0)

    def __repr__(self) -> str:
        return f"OpenAIExpert({self._name!r}, {self._config.model!r} at {_host(self._config.base_url)})"

    @property
    def model(self) -> str:
        """Model name at the endpoint."""
        return self._config.model

    async def answer(self, request: CallExpert, *, timeout_s: float) -> ExpertAnswer:
        """One chat completion.

        Raises:
            BackendFailure: see :func:`parse_completion`, and ``timeout``, ``connection``, ``http_<status>``.
        """
        messages = build_messages(request, include_transcript=self._include_transcript)
        return await self.complete(
            messages, max_tokens=request.max_tokens, timeout_s=timeout_s, tool=request.tool
        )

    async def complete(
        self, messages: Sequence[Message], *, max_tokens: int, timeout_s: float, tool: str
    ) -> ExpertAnswer:
        """One chat completion of any messages; ``tool`` says in errors what it was for.

        Raises:
            BackendFailure: as :meth:`answer`.
        """
        completion = await self.chat(messages, max_tokens=max_tokens, timeout_s=timeout_s)
        return parse_completion(completion, expert=self._name, tool=tool)

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> ChatCompletion:
        """One chat completion as the endpoint gives it; ``headers`` are sent along.

        Raises:
            BackendFailure: ``timeout``, ``connection``, ``http_<status>``, ``malformed``.
        """
        body: dict[str, Any] = {
            "model": self._config.model,
            "messages": list(messages),
            "temperature": self._temperature,
            "top_p": self._top_p,
            "extra_body": dict(self._config.extra_body),
            "timeout": timeout_s,
            "extra_headers": dict(headers or {}),
        }
        if "max_completion_tokens" not in self._config.extra_body:
            body["max_tokens"] = max_tokens
        try:
            # The client's own timeout is per read: a server that dribbles would never meet it.
            async with asyncio.timeout(timeout_s):
                completion = await self._client.chat.completions.create(**body)
        # `from None`: the original holds the request, and with it the key.
        except (openai.APITimeoutError, TimeoutError):
            raise self._failure(f"no answer within {timeout_s:g} s", "timeout", retryable=True) from None
        except openai.APIStatusError as error:
            raise self._status(error) from None
        except openai.APIConnectionError as error:
            cause = type(error.__cause__).__name__ if error.__cause__ else "no connection"
            raise self._failure(f"connection failed ({cause})", "connection", retryable=True) from None
        except (openai.APIError, ValueError) as error:  # 200, but not what the API promises
            what = f"malformed response ({type(error).__name__})"
            raise self._failure(what, "malformed", retryable=True) from None
        if not isinstance(completion, ChatCompletion):
            raise self._failure("malformed response (no JSON object)", "malformed", retryable=True)
        return completion

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    def _status(self, error: openai.APIStatusError) -> BackendFailure:
        status = error.status_code
        said = "" if status in (401, 403) else self._blank(str(getattr(error, "message", "")))[:300]
        hint = ""
        if status in (401, 403):
            hint = f"; check {self._config.api_key_env or 'api_key_env (none is given)'}"
        try:
            wait = max(0.0, float(error.response.headers.get("retry-after", "0")))
        except ValueError:
            wait = 0.0  # an HTTP date; our own pause will do
        return BackendFailure(
            f"expert {self._name!r} at {_host(self._config.base_url)}: HTTP {status}{hint}"
            + (f": {said}" if said else ""),
            kind=f"http_{status}",
            expert=self._name,
            retryable=is_retryable_status(status),
            retry_after_s=wait,
        )

    def _blank(self, text: str) -> str:
        key = self._client.api_key
        return text.replace(key, "[key]") if len(key) >= _MIN_KEY and key != "none" else text

    def _failure(self, what: str, kind: str, *, retryable: bool = False) -> BackendFailure:
        return BackendFailure(
            f"expert {self._name!r} at {_host(self._config.base_url)}: {what}",
            kind=kind,
            expert=self._name,
            retryable=retryable,
        )


def _host(url: str) -> str:
    """Host and port only: a URL may carry credentials."""
    parts = urlsplit(url)
    return f"{parts.hostname or '?'}" + (f":{parts.port}" if parts.port else "")
