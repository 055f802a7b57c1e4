"""Record and replay of expert answers: one JSON line per answer, appended.

Safe under several writers and under SIGKILL: a line is one ``write`` to a file opened for appending, under an
exclusive lock; a line torn by a kill is closed off by the next writer and ignored by readers. Where two
writers recorded the same request, the first line counts, so replays agree for ever.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from apprentice.errors import ExpertError
from apprentice.experts.prompt import Message
from apprentice.experts.types import ExpertAnswer, Usage

__all__ = ["AnswerCache", "cache_key"]

_FORMAT = 1


def cache_key(*, expert: str, model: str, messages: Sequence[Message], sampling: Mapping[str, object]) -> str:
    """SHA-256 (hex) of all that decides an answer: expert, backend model, prompt, sampling parameters."""
    said = [expert, model, [[m["role"], m["content"]] for m in messages], sorted(sampling.items())]
    return hashlib.sha256(json.dumps(said, ensure_ascii=True).encode()).hexdigest()


class AnswerCache:
    """Answers of one expert in one file.

    Args:
        path: the ``.jsonl`` file; made when the first answer is recorded.
        mode: ``record`` returns what is there and stores what is new; ``replay`` only returns what is there.
    """

    def __init__(self, path: str | Path, mode: Literal["record", "replay"]) -> None:
        self.path, self.mode = Path(path), mode
        self._answers: dict[str, ExpertAnswer] = {}
        self._read_to = 0

    def get(self, key: str, *, expert: str = "") -> ExpertAnswer | None:
        """The recorded answer; None for one that ``record`` has yet to make.

        Raises:
            ExpertError: kind ``replay_miss``: replaying, and nothing was recorded for this request.
        """
        if key not in self._answers:
            self._read()
        answer = self._answers.get(key)
        if answer is None and self.mode == "replay":
            raise ExpertError(
                f"expert {expert!r}: no recorded answer for request {key[:12]} in {self.path}; "
                "record it first (cache: record) with the same prompt and sampling parameters",
                kind="replay_miss",
                expert=expert,
            )
        return answer

    def put(self, key: str, answer: ExpertAnswer) -> None:
        """Append an answer, durable against the death of this process (not of the machine).

        Raises:
            OSError: the file cannot be written.
        """
        record = {
            "v": _FORMAT,
            "key": key,
            "text": answer.text,
            "reasoning": answer.reasoning,
            "finish_reason": answer.finish_reason,
            "usage": [
                answer.usage.prompt_tokens,
                answer.usage.completion_tokens,
                answer.usage.reasoning_tokens,
            ],
        }
        line = json.dumps(record).encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":
                line = b"\n" + line  # the last writer was killed in mid-line
            view = memoryview(line)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)  # and with it the lock

    def _read(self) -> None:
        """Take in what was appended since the last look. A last line without its end is left for later."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._read_to)
                data = file.read()
        except FileNotFoundError:
            return
        whole = data.rfind(b"\n") + 1
        for line in data[:whole].splitlines():
            parsed = _parse(line)
            if parsed is not None:
                self._answers.setdefault(*parsed)
        self._read_to += whole


def _parse(line: bytes) -> tuple[str, ExpertAnswer] | None:
    try:
        record: Any = json.loads(line)
        if record["v"] != _FORMAT:
            return None
        answer = ExpertAnswer(
            text=record["text"],
            usage=Usage(*record["usage"]),
            spent=Usage(0, 0, 0),
            finish_reason=record["finish_reason"],
            reasoning=record["reasoning"],
            cached=True,
        )
        return str(record["key"]), answer
    except (ValueError, KeyError, TypeError):
        return None  # torn by a kill
