"""Answers to problems with golds in prose, judged by a model after an evaluation and reported apart.

``results/`` stays what the rules say. Judgements stand in ``judged/<mode>/<set>.jsonl``, one line an answer,
and are never asked for twice.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from apprentice.errors import DataError, ExpertError
from apprentice.metrics.scores import Score, mean_at_k
from apprentice.results import ItemResult
from apprentice.run_folder import file_slug
from apprentice.verify.judge import Judgement
from apprentice.verify.structure import is_prose

__all__ = [
    "JudgedScore", "Judging", "judge_items", "judged_table", "judgement_path", "models_of", "read_judgements",
    "score_judged",
]  # fmt: skip

Key = tuple[str, str]
"""(problem id, answer)"""


class Judging(Protocol):
    """What :class:`apprentice.verify.judge.Judge` offers."""

    model: str

    async def judge(self, question: str, gold: str, answer: str) -> Judgement:
        """Whether the answer states what the gold states."""
        ...


@dataclass(frozen=True, slots=True)
class JudgedScore:
    """One mode on one set. ``rules``: mean@k of the problems that rules check; ``judged``: of the others.

    ``undecided`` counts answers whose judge gave no verdict, ``failed`` those that it was not reached for;
    both count as not correct.
    """

    mode: str
    set_name: str
    rules: Score | None
    judged: Score | None
    undecided: int = 0
    failed: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)


def judgement_path(run: Path, mode: str, set_name: str) -> Path:
    """Where a run's folder keeps the judgements of one mode on one set."""
    return run / "judged" / file_slug(mode) / f"{file_slug(set_name)}.jsonl"


def models_of(path: Path) -> list[str]:
    """The models whose judgements stand in ``path``, in order of first appearance; none without a file.

    Raises:
        DataError: a line of ``path`` is damaged.
    """
    return list(dict.fromkeys(row["model"] for row in _rows(path)))


def read_judgements(path: Path, model: str) -> dict[Key, str]:
    """(problem id, answer) -> verdict of ``model``; empty without a file.

    Raises:
        DataError: a line of ``path`` is damaged.
    """
    return {
        (row["problem_id"], row["answer"]): row["verdict"] for row in _rows(path) if row["model"] == model
    }


async def judge_items(
    items: Iterable[ItemResult],
    questions: Mapping[str, str],
    judge: Judging,
    path: Path,
    *,
    concurrency: int = 8,
) -> tuple[dict[Key, str], dict[str, int]]:
    """Ask the judge about every answer to a prose gold that the rules did not accept; append to ``path``.

    Args:
        items: results of one mode on one set.
        questions: problem id -> question.
        judge: asked once for equal answers to one problem, and never again for one that stands in ``path``.
        path: judgements of earlier calls by the same model are taken from here.
        concurrency: questions at a time.

    Returns:
        (problem id, answer) -> verdict, and the failures by kind.

    Raises:
        DataError: a line of ``path`` is damaged, or a problem is not among ``questions``.
    """
    known = read_judgements(path, judge.model)
    wanted: dict[Key, ItemResult] = {}
    for item in items:
        if not is_prose(item.gold):
            continue
        if item.problem_id not in questions:
            raise DataError(f"problem {item.problem_id!r} of the results is not in its set: it has changed")
        for answer, verdict in zip(item.answers, item.verdicts, strict=True):
            key = (item.problem_id, answer or "")
            if answer and verdict != "correct" and key not in known:
                wanted[key] = item
    limit, failures = asyncio.Semaphore(concurrency), dict[str, int]()
    path.parent.mkdir(parents=True, exist_ok=True)

    async def ask(key: Key, item: ItemResult) -> None:
        async with limit:
            try:
                found = await judge.judge(questions[item.problem_id], item.gold, key[1])
            except ExpertError as error:
                failures[error.kind] = failures.get(error.kind, 0) + 1
                return
        known[key] = found.verdict
        row = {
            "problem_id": key[0],
            "answer": key[1],
            "gold": item.gold,
            "model": judge.model,
            "verdict": found.verdict,
            "reply": found.reply,
        }
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")

    await asyncio.gather(*(ask(key, item) for key, item in wanted.items()))
    return known, failures


def score_judged(
    items: Sequence[ItemResult],
    verdicts: Mapping[Key, str],
    *,
    failures: Mapping[str, int] | None = None,
    confidence: float = 0.95,
) -> JudgedScore:
    """The two scores of one mode on one set, kept apart."""
    by_rules = [item.correct for item in items if not is_prose(item.gold)]
    judged, undecided, failed = [], 0, 0
    for item in items:
        if not is_prose(item.gold):
            continue
        row = []
        for answer, verdict in zip(item.answers, item.verdicts, strict=True):
            found = "correct" if verdict == "correct" else verdicts.get((item.problem_id, answer or ""), "")
            undecided += found == "undecided"
            failed += not found and bool(answer)
            row.append(found == "correct")
        judged.append(row)
    return JudgedScore(
        items[0].mode,
        items[0].set_name,
        mean_at_k(by_rules, confidence) if by_rules else None,
        mean_at_k(judged, confidence) if judged else None,
        undecided,
        failed,
        dict(failures or {}),
    )


def judged_table(scores: Sequence[JudgedScore], model: str) -> str:
    """For a terminal, in percent. The judge's column is never averaged with the rules'."""
    head = ("mode", "set", "n", "by rules", "n", f"prose, judged by {model}", "undecided", "failed")
    lines = [head]
    for score in scores:
        lines.append((
            score.mode, score.set_name, *_cell(score.rules), *_cell(score.judged), str(score.undecided),
            str(score.failed),
        ))  # fmt: skip
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    text = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    kinds = sorted({f"{kind} {n}" for score in scores for kind, n in score.failures.items()})
    return "\n".join([text[0], "-" * max(map(len, text)), *text[1:], *(f"failed: {kind}" for kind in kinds)])


def _cell(score: Score | None) -> tuple[str, str]:
    if score is None:
        return "0", "-"
    return str(score.problems), f"{100 * score.value:.1f} [{100 * score.low:.1f}, {100 * score.high:.1f}]"


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    whole, _, cut = text.rpartition("\n")
    if cut:  # the process ended amid the last line
        path.write_text(whole + "\n" if whole else "", encoding="utf-8")
    found = []
    for number, line in enumerate(whole.split("\n") if whole else [], 1):
        try:
            row = json.loads(line)
            found.append({key: str(row[key]) for key in ("problem_id", "answer", "model", "verdict")})
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}, line {number}: not a judgement ({error})") from error
    return found
