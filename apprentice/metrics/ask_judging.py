"""Lets a model say what kind each query is (Learning to Ask, appendix F.5), once a query."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from apprentice.advisors.judge import QueryType, parse_query_type, query_type_messages
from apprentice.advisors.types import AdvisorBackend, AttemptFailure, AttemptRequest
from apprentice.metrics.ask_queries import QUERY_TYPES_FILE, Query, typed_queries
from apprentice.run_folder import RunFolder

__all__ = ["judge_queries"]


async def judge_queries(
    run: RunFolder,
    queries: Sequence[Query],
    questions: Mapping[str, str],
    endpoint: AdvisorBackend,
    model: str,
    *,
    max_tokens: int = 1024,
    concurrency: int = 8,
    timeout_s: float = 300.0,
    attempts: int = 3,
) -> dict[str, int]:
    """Judge every query that ``model`` has not judged yet; append to :data:`QUERY_TYPES_FILE`.

    Equal queries about one problem are asked about once.

    Args:
        questions: problem id -> question (Q1). A query whose problem is not there is not judged.
        endpoint: answers the chat.
        timeout_s: of one attempt.
        attempts: of one query, where the endpoint fails or replies none of the four words.

    Returns:
        Failures by kind; what failed has no line and is asked about next time.
    """
    known = typed_queries(run, model)
    wanted: dict[tuple[str, str], list[Query]] = {}
    failures: Counter[str] = Counter()
    for query in queries:
        if query.key in known:
            continue
        if query.problem_id not in questions:
            failures["problem is not in the run's sets"] += 1
            continue
        wanted.setdefault((query.problem_id, query.text), []).append(query)
    path = run.path / QUERY_TYPES_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    _end_last_line(path)
    limit = asyncio.Semaphore(concurrency)

    async def one(number: int, problem_id: str, text: str, same: Sequence[Query]) -> None:
        request = AttemptRequest(
            tuple(query_type_messages(questions[problem_id], text)), max_tokens, f"query-type-{number}"
        )
        kind: QueryType | str = ""
        async with limit:
            for _ in range(attempts):
                reply = await endpoint.attempt(request, timeout_s=timeout_s)
                if isinstance(reply, AttemptFailure):
                    kind = reply.kind
                    if not reply.retryable:
                        break
                    continue
                kind = parse_query_type(reply.text) or "unparsable"
                if isinstance(kind, QueryType):
                    break
        if not isinstance(kind, QueryType):
            failures[kind] += len(same)
            return
        with path.open("a", encoding="utf-8") as file:
            for query in same:
                row = {
                    "label": query.label,
                    "set": query.set_name,
                    "trajectory_id": query.trajectory_id,
                    "call": query.call,
                    "model": model,
                    "type": str(kind),
                }
                file.write(json.dumps(row, ensure_ascii=False) + "\n")

    await asyncio.gather(*(one(number, *key, same) for number, (key, same) in enumerate(wanted.items())))
    return dict(failures)


def _end_last_line(path: Path) -> None:
    """Drop what a killed process left of its last line."""
    if path.is_file() and (text := path.read_text(encoding="utf-8")) and not text.endswith("\n"):
        path.write_text(text[: text.rfind("\n") + 1], encoding="utf-8")
