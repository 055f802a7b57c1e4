"""A paid advisor that keeps its own books and misbehaves, behind HTTP or in the process."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from apprentice.advisors.types import AttemptFailure, AttemptReply, AttemptRequest, AttemptResult
from apprentice.config.ask import AdvisorConfig, AskConfig, BudgetConfig, JudgeConfig
from apprentice.config.parts import OpenAIBackend
from apprentice.costs.reconcile import AdvisorLog, LogEntry
from apprentice.costs.usage import Usage
from apprentice.episodes.actions import AskAdvisor

__all__ = [
    "CAP",
    "FAULTS",
    "PER_TRAJECTORY",
    "PaidAdvisor",
    "PaidInProcess",
    "config_for",
    "fault_of",
    "question",
    "usage_of",
]

CAP, PER_TRAJECTORY = 50, 8000.0
FAULTS = ("ok", "ok", "ok", "ok", "cut", "busy", "no_usage", "late")


def fault_of(request_id: str, faults: tuple[str, ...]) -> str:
    """What happens to a request: it follows from its id alone."""
    return faults[int(hashlib.sha256(request_id.encode()).hexdigest(), 16) % len(faults)]


def usage_of(messages: Any, max_tokens: int) -> dict[str, int]:
    """What a request is billed."""
    said = sum(len(message["content"].split()) for message in messages)
    drawn = int(hashlib.sha256(json.dumps(messages).encode()).hexdigest(), 16)
    completion = 1 + drawn % max_tokens
    return {"prompt_tokens": said, "completion_tokens": completion, "total_tokens": said + completion}


def config_for(url: str = "http://unused/v1", *, per_run: float, timeout_s: float = 1.0) -> AskConfig:
    """An advisor behind an endpoint, with every budget on."""
    return AskConfig(
        advisor=AdvisorConfig(
            backend=OpenAIBackend(base_url=url, model="m"),
            timeout_s=timeout_s,
            max_retries=4,
            max_tokens=CAP,
        ),
        judge=JudgeConfig(kind="rule"),
        budget=BudgetConfig(per_trajectory=PER_TRAJECTORY, per_run=per_run, per_key={"default": per_run - 1}),
    )


def question(number: int) -> AskAdvisor:
    """Two calls a trajectory."""
    return AskAdvisor(f"Question {number}: what is {number} + 1?", f"t{number // 2}", number % 2, CAP)


class PaidInProcess:
    """The provider in this process: it writes its log before it answers, and has the faults of PaidAdvisor.

    Args:
        log_path: keeps the log on disk, for a provider that is killed with its client.
    """

    def __init__(
        self,
        *,
        faults: tuple[str, ...] = FAULTS,
        work_s: float = 0.001,
        log_path: str | None = None,
    ) -> None:
        self.log: list[LogEntry] = []
        self.seen: set[str] = set()
        self._faults, self._work_s = faults, work_s
        self._file = AdvisorLog(log_path) if log_path else None

    async def send(self, request: AttemptRequest, timeout_s: float) -> AttemptResult:
        """One attempt."""
        fault = fault_of(request.request_id, self._faults)
        self.seen.add(fault)
        if fault == "busy":
            return AttemptFailure("http_429", "busy", True, Usage(0, 0, 0, 0))
        billed = usage_of(list(request.messages), request.max_tokens)
        usage = Usage(billed["prompt_tokens"], billed["completion_tokens"])
        self.log.append(LogEntry(request.request_id, usage))
        if self._file is not None:
            self._file.append(request.request_id, usage)
        text = f"execution {len(self.log)}"
        await asyncio.sleep(self._work_s)
        if fault == "cut":
            return AttemptFailure("connection", "the connection is gone", True)
        if fault == "late":
            await asyncio.sleep(timeout_s)
            return AttemptFailure("timeout", "no answer", True)
        return AttemptReply(text, Usage() if fault == "no_usage" else usage)


class PaidAdvisor:
    """An OpenAI-compatible endpoint. Every execution is logged *before* it is answered, as a provider bills.

    ``cut`` closes the connection after the work was done, ``busy`` is a 429 that ran nothing, ``no_usage``
    answers without a usage, ``late`` answers after ``late_s``. Every execution answers with another text, so
    that a call that is answered twice shows.
    """

    def __init__(self, *, late_s: float = 0.5, work_s: float = 0.0, faults: tuple[str, ...] = FAULTS) -> None:
        self.log: list[LogEntry] = []
        self.seen: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                request_id = self.headers["X-Client-Request-Id"]
                fault = fault_of(request_id, faults)
                with outer._lock:
                    outer.bodies.append(body)
                    outer.seen[fault] += 1
                if fault == "busy":
                    self._answer(429, {"error": {"message": "busy"}})
                    return
                usage = usage_of(body["messages"], body["max_tokens"])
                time.sleep(work_s)
                with outer._lock:
                    outer.log.append(
                        LogEntry(request_id, Usage(usage["prompt_tokens"], usage["completion_tokens"]))
                    )
                    text = f"execution {len(outer.log)}"
                if fault == "cut":
                    self.close_connection = True
                    self.connection.shutdown(2)
                    return
                if fault == "late":
                    time.sleep(late_s)
                message = {"role": "assistant", "content": text}
                answer: dict[str, Any] = {
                    "id": "c",
                    "object": "chat.completion",
                    "created": 0,
                    "model": "m",
                    "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
                }
                self._answer(200, answer if fault == "no_usage" else answer | {"usage": usage})

            def _answer(self, status: int, answer: dict[str, Any]) -> None:
                raw = json.dumps(answer).encode()
                try:
                    self.send_response(status)
                    self.send_header("content-type", "application/json")
                    self.send_header("content-length", str(len(raw)))
                    self.end_headers()
                    self.wfile.write(raw)
                except (BrokenPipeError, ConnectionResetError):
                    pass  # the client gave up, or was killed

            def log_message(self, *_: object) -> None: ...

        class Server(ThreadingHTTPServer):
            request_queue_size = 256
            daemon_threads = True

            def handle_error(self, *_: object) -> None: ...  # connections of killed clients

        self._http = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
