"""Rows of well-known sources, brought to the columns that :mod:`apprentice.data.load` reads."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Mapping
from typing import Any

from apprentice.errors import DataError
from apprentice.verify.extract import last_boxed

__all__ = ["RowAdapter", "chat_row", "gpqa_row", "gsm8k_row", "processed_row", "solution_row"]

RowAdapter = Callable[[Mapping[str, Any], int], dict[str, Any]]
"""(row, seed of the set) -> row with our columns."""

# Instructions that some sets put around each problem; the episode brings its own.
_AROUND = [
    re.compile(
        r"\ASolve the following math problem step by step\. The last line of your response should be of "
        r"the form Answer: \$Answer \(without quotes\) where \$Answer is the answer to the problem\.\s*"
    ),
    re.compile(r"\s*Remember to put your answer on its own line after \"Answer:\"\.\s*\Z"),
]


def chat_row(row: Mapping[str, Any], seed: int = 0) -> dict[str, Any]:
    """Training sets in chat form: ``prompt`` is messages, the gold stands in ``reward_model.ground_truth``.

    Raises:
        DataError: there is no user message or no gold.
    """
    prompt, reward = row.get("prompt"), row.get("reward_model")
    users = [m["content"] for m in prompt or [] if isinstance(m, Mapping) and m.get("role") == "user"]
    if not users or not isinstance(reward, Mapping) or "ground_truth" not in reward:
        raise DataError("a chat row needs a user message in `prompt` and reward_model.ground_truth")
    question = str(users[-1])
    for pattern in _AROUND:
        question = pattern.sub("", question)
    extra = row.get("extra_info") or {}
    identity = extra.get("id", extra.get("index"))
    if identity is None:
        identity = hashlib.sha256(question.encode()).hexdigest()[:16]
    return {
        "problem_id": str(identity),
        "question": question,
        "answer": reward["ground_truth"],
        "source": row.get("data_source"),
        "split": extra.get("split"),
    }


def gsm8k_row(row: Mapping[str, Any], seed: int = 0) -> dict[str, Any]:
    """``answer`` ends in ``#### gold``; what stands before is the worked text.

    Raises:
        DataError: the mark is missing.
    """
    _, mark, gold = str(row["answer"]).rpartition("####")
    if not mark:
        raise DataError(f"no '####' in the answer {str(row['answer'])[-60:]!r}")
    return {"question": row["question"], "answer": gold.strip()}


def solution_row(row: Mapping[str, Any], seed: int = 0) -> dict[str, Any]:
    """The gold stands boxed in ``solution``.

    Raises:
        DataError: there is no box.
    """
    box = last_boxed(str(row["solution"]))
    if box is None:
        raise DataError(f"no boxed answer in the solution {str(row['solution'])[:60]!r}")
    return {"problem_id": row.get("id"), "question": row["problem"], "answer": box[0]}


def processed_row(row: Mapping[str, Any], seed: int = 0) -> dict[str, Any]:
    """The cleaned copy of DAPO-Math-17k: ``prompt`` is the bare problem, the gold stands in ``solution``."""
    reward, extra = row.get("reward_model") or {}, row.get("extra_info") or {}
    return {
        "problem_id": extra.get("index"),
        "question": row["prompt"],
        "answer": reward.get("ground_truth", row.get("solution")),
        "source": row.get("data_source"),
    }


def gpqa_row(row: Mapping[str, Any], seed: int = 0) -> dict[str, Any]:
    """Four options in an order that depends on the question and ``seed`` alone; the gold is a letter."""
    right = str(row["Correct Answer"]).strip()
    options = [right, *(str(row[f"Incorrect Answer {i}"]).strip() for i in (1, 2, 3))]
    question = str(row["Question"]).strip()
    digest = hashlib.sha256(f"{seed}:{question}".encode()).hexdigest()
    order = [0, 1, 2, 3]
    random.Random(digest).shuffle(order)
    listed = "\n".join(f"({letter}) {options[i]}" for letter, i in zip("ABCD", order, strict=True))
    return {
        "problem_id": row.get("Record ID"),
        "question": f"{question}\n\n{listed}\n\nAnswer with the letter of the right option.",
        "answer": "ABCD"[order.index(0)],
        "family": row.get("High-level domain"),
    }
