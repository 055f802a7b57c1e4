"""The process that compares answers: one JSON request a line on stdin, one JSON reply a line on stdout.

Started by :mod:`apprentice.verify.pool`, which kills it when a reply is late. It limits its own memory, ends
when its stdin closes, and imports math-verify only when the first answer needs it.

Request: ``{"gold": str, "answer": str}``.
First line of stdout: ``ready``. Reply: ``{"verdict": str, "answer": str, "reason": str}``.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import Any, TextIO

from apprentice.verify.compare import compare

__all__ = ["judge", "main"]

MAX_REPLY_CHARS = 2000


def judge(request: dict[str, Any]) -> dict[str, Any]:
    """Compare; whatever the libraries raise means that the answer was not read."""
    from apprentice.verify.symbolic import equal_by_math_verify

    answer = request["answer"]
    try:
        result = compare(request["gold"], answer, equal_by_math_verify)
    except (RecursionError, MemoryError, ArithmeticError, ValueError, TypeError, AttributeError) as error:
        # Raised by the LaTeX parser or sympy on odd input: the answer was not read, the worker goes on.
        return {
            "verdict": "unparseable",
            "answer": answer[:MAX_REPLY_CHARS],
            "reason": f"{type(error).__name__} while comparing",
        }
    return {"verdict": result.verdict, "answer": answer[:MAX_REPLY_CHARS], "reason": result.reason[:200]}


def main(memory_mib: int) -> None:
    """Serve until stdin closes."""
    limit = memory_mib * 1024 * 1024
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.setrecursionlimit(5000)
    replies = _only_replies_on_stdout()
    replies.write("ready\n")
    replies.flush()
    for line in sys.stdin:
        replies.write(json.dumps(judge(json.loads(line))) + "\n")
        replies.flush()


def _only_replies_on_stdout() -> TextIO:
    """A private copy of stdout; whatever a library prints goes to stderr and cannot be taken for a reply."""
    private = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return private


if __name__ == "__main__":
    main(int(sys.argv[1]))
