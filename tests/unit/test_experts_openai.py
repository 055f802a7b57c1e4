"""The OpenAI-compatible backend against a real HTTP server on the loopback interface."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from apprentice.config.schema import ExpertConfig, OpenAIBackend
from apprentice.episodes.actions import CallExpert
from apprentice.errors import ConfigError, ExpertError
from apprentice.experts.expert import Expert, make_backend
from apprentice.experts.openai import OpenAIExpert, parse_usage
from apprentice.experts.types import BackendFailure, Usage

pytestmark = pytest.mark.unit

KEY = "sk-test-7h3-k3y-n0b0dy-m4y-s33"
CALL = CallExpert("e", "think", "p", "What is 1+1?", "Add them.", "so far", 64, 0)


class Server:
    """Answers the i-th request with the i-th of ``script`` (the last one from then on)."""

    def __init__(self) -> None:
        self.script: list[tuple[int, Any, dict[str, str], float]] = []
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.requests.append(json.loads(body))
                outer.headers.append({k.lower(): v for k, v in self.headers.items()})
                i = min(len(outer.requests), len(outer.script)) - 1
                status, answer, headers, delay = outer.script[i]
                time.sleep(delay)
                raw = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
                try:
                    self.send_response(status)
                    for name, value in {"content-type": "application/json", **headers}.items():
                        self.send_header(name, value)
                    self.send_header("content-length", str(len(raw)))
                    self.end_headers()
                    self.wfile.write(raw)
                except (BrokenPipeError, ConnectionResetError):
                    pass  # the client gave up

            def log_message(self, *_: object) -> None: ...

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def will(
        self, status: int, answer: Any, headers: dict[str, str] | None = None, delay: float = 0.0
    ) -> None:
        self.script.append((status, answer, headers or {}, delay))

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


def completion(
    content: str | None, finish: str = "stop", usage: Any = None, **message: Any
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "id": "c",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": finish,
                "message": {"role": "assistant", "content": content, **message},
            }
        ],
    }
    return body if usage is None else body | {"usage": usage}


def config_for(server: Server, **options: Any) -> ExpertConfig:
    backend = OpenAIBackend(
        base_url=server.url,
        model="m",
        api_key_env="EXPERT_KEY",
        extra_body=options.pop("extra_body", {}),
    )
    return ExpertConfig(name="e", backend=backend, **{"timeout_s": 5.0, "max_retries": 3} | options)


async def ask(
    server: Server, monkeypatch: pytest.MonkeyPatch, call: CallExpert = CALL, **options: Any
) -> Any:
    monkeypatch.setenv("EXPERT_KEY", KEY)
    monkeypatch.setattr("apprentice.experts.retry._BASE_S", 0.0)
    config = config_for(server, **options)
    expert = Expert(config, make_backend(config))
    expert._policy = type(expert._policy)(
        max_retries=config.max_retries, attempt_s=config.timeout_s, deadline_s=30.0, base_s=0.01
    )
    try:
        return await expert.answer(call)
    finally:
        await expert.close()


async def test_a_call_carries_prompt_limit_sampling_extra_body_and_key(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}
    server.will(200, completion("It is 2.", usage=usage))
    answer = await ask(server, monkeypatch, extra_body={"top_k": 20}, temperature=0.6, top_p=0.95)
    assert (answer.text, answer.usage, answer.attempts) == ("It is 2.", Usage(12, 3, None), 1)
    (sent,) = server.requests
    assert (sent["model"], sent["max_tokens"], sent["temperature"], sent["top_p"], sent["top_k"]) == (
        "m",
        64,
        0.6,
        0.95,
        20,
    )
    assert [m["role"] for m in sent["messages"]] == ["system", "user"]
    assert (
        sent["messages"][1]["content"]
        == "# Problem\nWhat is 1+1?\n\n# Work so far\nso far\n\n# Request\nAdd them."
    )
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 529])
async def test_a_passing_status_is_tried_again(
    server: Server, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    server.will(status, {"error": {"message": "busy"}})
    server.will(status, "not even JSON")
    server.will(200, completion("ok", usage={"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}))
    answer = await ask(server, monkeypatch)
    assert (answer.text, answer.attempts, len(server.requests)) == ("ok", 3, 3)
    # What the failed attempts cost is unknown, and so is the sum; it is not the last attempt's.
    assert answer.usage == Usage(1, 1, None)
    assert answer.spent == Usage(None, None, None)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_a_lasting_status_is_not_tried_again(
    server: Server, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    server.will(status, {"error": {"message": f"no: your key {KEY} is bad"}})
    with pytest.raises(ExpertError) as caught:
        await ask(server, monkeypatch)
    assert (caught.value.kind, len(server.requests)) == (f"http_{status}", 1)
    assert KEY not in str(caught.value)


async def test_retries_are_bounded(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.will(503, "")
    with pytest.raises(ExpertError) as caught:
        await ask(server, monkeypatch, max_retries=2)
    assert (caught.value.kind, len(server.requests)) == ("http_503", 3)


async def test_a_timeout_ends_the_attempt_and_counts_each_try_of_h11(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.will(200, completion("late"), delay=1.0)
    started = time.monotonic()
    with pytest.raises(ExpertError) as caught:
        await ask(server, monkeypatch, timeout_s=0.2, max_retries=1)
    assert caught.value.kind == "timeout"
    assert len(server.requests) == 2, "the endpoint ran the call twice, and the failure says so:"
    assert isinstance(caught.value, BackendFailure)
    assert caught.value.usage == Usage(None, None, None), "what it spent is unknown, not zero"
    assert time.monotonic() - started < 2.0


async def test_a_refused_connection_is_tried_again_and_then_named(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.close()
    with pytest.raises(ExpertError) as caught:
        await ask(server, monkeypatch, max_retries=1)
    assert caught.value.kind == "connection"


async def test_g13_a_reply_lost_to_reasoning_is_a_failure_that_is_charged_and_not_retried(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 8153,
        "total_tokens": 8253,
        "completion_tokens_details": {"reasoning_tokens": 8153},
    }
    server.will(200, completion("", "length", usage))
    with pytest.raises(BackendFailure) as caught:
        await ask(server, monkeypatch)
    assert caught.value.kind == "lost_to_reasoning"
    assert caught.value.usage == Usage(100, 8153, 8153)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("answer", "kind", "requests"),
    [
        (completion("<think>on and on", "length"), "lost_to_reasoning", 1),
        (completion(None, "length", reasoning_content="on and on"), "lost_to_reasoning", 1),
        (completion("  \n", "stop"), "empty", 4),
        (completion("", "length"), "empty", 4),
        (completion(None, "content_filter"), "content_filter", 1),
        (completion(None, "stop", refusal="I will not"), "refused", 1),
        ({"choices": []}, "malformed", 4),
        ("<html>hello</html>", "malformed", 4),
    ],
)
async def test_a_reply_without_text_is_a_failure_with_its_kind(
    server: Server, monkeypatch: pytest.MonkeyPatch, answer: Any, kind: str, requests: int
) -> None:
    server.will(200, answer)
    with pytest.raises(ExpertError) as caught:
        await ask(server, monkeypatch)
    assert (caught.value.kind, len(server.requests)) == (kind, requests)


@pytest.mark.parametrize(
    "answer",
    [
        completion("It is 2.", reasoning_content="One and one..."),
        completion("<think>\nOne and one...\n</think>\n\nIt is 2."),
        completion("One and one...\n</think>\n\nIt is 2."),
    ],
)
async def test_reasoning_is_kept_apart_from_the_text(
    server: Server, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    server.will(200, answer)
    got = await ask(server, monkeypatch)
    assert (got.text, got.reasoning) == ("It is 2.", "One and one...")


async def test_the_program_comes_out_of_its_fence(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.will(200, completion("Here:\n```python\nprint(1 + 1)\n```\nIt prints 2."))
    call = CallExpert("e", "code_interpreter", "p", "1+1?", "", "", 64, 0)
    assert (await ask(server, monkeypatch, call)).text == "print(1 + 1)"


def test_h07_hidden_reasoning_is_counted_and_missing_usage_is_unknown() -> None:
    class Fields:
        def __init__(self, **fields: Any) -> None:
            self.__dict__.update(fields)

    hidden = Fields(prompt_tokens=10, completion_tokens=5, total_tokens=100)
    assert parse_usage(hidden) == Usage(10, 90, 85)
    open_ = Fields(
        prompt_tokens=10,
        completion_tokens=90,
        total_tokens=100,
        completion_tokens_details=Fields(reasoning_tokens=85),
    )
    assert parse_usage(open_) == Usage(10, 90, 85)
    assert parse_usage(None) == Usage(None, None, None)
    assert parse_usage(Fields()) == Usage(None, None, None)


async def test_the_key_is_in_no_log_line_repr_or_exception(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for status in (500, 400, 401):
        server.will(status, {"error": {"message": f"bad key {KEY}", "key": KEY}})
    seen = []
    for _ in range(3):
        with pytest.raises(ExpertError) as caught:
            await ask(server, monkeypatch, max_retries=0)
        error: BaseException | None = caught.value
        seen.append(pickle.dumps(caught.value).decode("latin-1"))
        while error is not None:
            seen += [str(error), repr(error)]
            error = error.__cause__
    config = config_for(server)
    backend = make_backend(config)
    seen += [repr(backend), repr(config), config.model_dump_json()]
    await backend.close()
    assert server.headers[0]["authorization"].endswith(KEY), "the key was in use"
    assert caplog.text, "the client logs at this level"
    assert KEY not in caplog.text
    assert not [text for text in seen if KEY in text]


def test_a_missing_key_names_the_variable_and_not_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EXPERT_KEY", raising=False)
    backend = OpenAIBackend(base_url="http://user:secret@host.test/v1", model="m", api_key_env="EXPERT_KEY")
    with pytest.raises(ConfigError, match="EXPERT_KEY") as caught:
        OpenAIExpert("e", backend, temperature=0.6, top_p=0.95)
    assert "secret" not in str(caught.value)


async def test_a_cancelled_call_stops_waiting(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.will(200, completion("late"), delay=1.0)
    task = asyncio.create_task(ask(server, monkeypatch))
    await asyncio.sleep(0.2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
