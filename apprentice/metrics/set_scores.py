"""All scores of one mode on one problem set, and what has to be said beside them.

Problems with golds in prose are never part of a score by rules: no rule can check them. They are counted, and
a judge's verdicts on them (:mod:`apprentice.metrics.judged`) stand in scores of their own, by model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from apprentice.metrics.judged import (
    JudgedScore,
    Key,
    judgement_path,
    models_of,
    read_judgements,
    score_judged,
)
from apprentice.metrics.scores import Score, mean_at_k, pass_at_k
from apprentice.results import ItemResult
from apprentice.verify.structure import is_prose

__all__ = ["SetScores", "by_rules", "identical_notes", "score_set", "score_sets", "scores_table"]

_SHOWN = 5  # ids of problems whose attempts are identical


@dataclass(frozen=True, slots=True)
class SetScores:
    """One mode on one set.

    ``mean`` (mean@k, also called avg@k) and ``passes`` (k -> pass@k, for powers of two and all k) are over
    the ``problems`` that rules check, None and empty where there is none. ``identical`` names problems whose
    several attempts are all one text, ``repeated`` counts attempts that repeat another of their problem; both
    are None where nobody looked. ``prose`` counts problems with golds in prose, ``word_for_word`` the right
    attempts at them by rules: those that are the gold itself.
    """

    mode: str
    set_name: str
    problems: int
    k: int
    mean: Score | None
    passes: Mapping[int, Score]
    identical: tuple[str, ...] | None
    repeated: int | None
    prose: int = 0
    word_for_word: int = 0
    judged: Mapping[str, JudgedScore] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """For ``summary.json``."""
        return {
            "mode": self.mode,
            "set": self.set_name,
            "n": self.problems,
            "k": self.k,
            "mean": _numbers(self.mean),
            "pass": {str(k): _numbers(score) for k, score in self.passes.items()},
            "identical": None if self.identical is None else list(self.identical),
            "repeated": self.repeated,
            "prose": {
                "n": self.prose,
                "word_for_word": self.word_for_word,
                "judged": {
                    model: {**(_numbers(s.judged) or {}), "undecided": s.undecided, "not_judged": s.failed}
                    for model, s in self.judged.items()
                },
            },
        }


def _numbers(score: Score | None) -> dict[str, Any] | None:
    if score is None:
        return None
    return {"value": score.value, "low": score.low, "high": score.high, "method": score.method}


def by_rules(items: Sequence[ItemResult]) -> list[ItemResult]:
    """The items whose golds a rule can check."""
    return [item for item in items if not is_prose(item.gold)]


def score_set(
    items: Sequence[ItemResult],
    judgements: Mapping[str, Mapping[Key, str]] | None = None,
    *,
    confidence: float = 0.95,
    bootstrap_samples: int = 10_000,
    seed: int = 0,
) -> SetScores:
    """Score the items of one mode on one set, at least one.

    Args:
        items: with equal numbers of attempts.
        judgements: model -> its verdicts (:func:`apprentice.metrics.judged.read_judgements`).
        confidence, bootstrap_samples, seed: of the intervals.
    """
    checked = by_rules(items)
    k = len(items[0].verdicts)
    correct = [item.correct for item in checked]
    how = (confidence, bootstrap_samples, seed)
    sizes = sorted({*(2**i for i in range(1, k.bit_length()) if 2**i <= k), *([k] if k > 1 else [])})
    looked = [item for item in items if item.distinct is not None]
    prose = [item for item in items if is_prose(item.gold)]
    return SetScores(
        mode=items[0].mode,
        set_name=items[0].set_name,
        problems=len(checked),
        k=k,
        mean=mean_at_k(correct, *how) if checked else None,
        passes={size: pass_at_k(correct, size, *how) for size in sizes} if checked else {},
        identical=tuple(item.problem_id for item in looked if item.all_identical) if looked else None,
        repeated=sum(len(i.verdicts) - (i.distinct or 0) for i in looked) if looked else None,
        prose=len(prose),
        word_for_word=sum(sum(item.correct) for item in prose),
        judged={
            model: score_judged(items, verdicts, confidence=confidence)
            for model, verdicts in (judgements or {}).items()
            if prose
        },
    )


def score_sets(
    items: Sequence[ItemResult],
    run: Path | None = None,
    *,
    confidence: float = 0.95,
    bootstrap_samples: int = 10_000,
    seed: int = 0,
) -> list[SetScores]:
    """:func:`score_set` for every mode and set, with the judgements in the folder ``run``."""
    cells: dict[tuple[str, str], list[ItemResult]] = {}
    for item in items:
        cells.setdefault((item.mode, item.set_name), []).append(item)
    found = []
    for (mode, name), members in cells.items():
        judgements = {}
        if run is not None:
            path = judgement_path(run, mode, name)
            judgements = {model: read_judgements(path, model) for model in models_of(path)}
        found.append(
            score_set(
                members, judgements, confidence=confidence, bootstrap_samples=bootstrap_samples, seed=seed
            )
        )
    return found


def scores_table(scores: Sequence[SetScores], temperature: float | None = None) -> str:
    """For a terminal, in percent. ``temperature`` of the sampling, if known: at 0 equal samples are right."""
    sizes = sorted({k for score in scores for k in score.passes})
    head = ("mode", "set", "n", "k", "mean@k", *(f"pass@{k}" for k in sizes), "identical", "prose golds")
    lines = [head]
    for s in scores:
        identical = "not recorded" if s.identical is None else str(len(s.identical)) if s.k > 1 else "-"
        passes = [_cell(s.passes.get(k)) for k in sizes]
        lines.append((
            s.mode, s.set_name, str(s.problems), str(s.k), _cell(s.mean), *passes, identical, str(s.prose),
        ))  # fmt: skip
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    text = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join(
        [
            text[0],
            "-" * max(map(len, text)),
            *text[1:],
            *identical_notes(scores, temperature),
            *_prose_notes(scores),
        ]
    )


def identical_notes(scores: Sequence[SetScores], temperature: float | None = None) -> list[str]:
    """One sentence for each mode and set that has problems whose attempts are all one text."""
    why = (
        "as it must be at temperature 0"
        if temperature == 0
        else "a sharp model does that on easy problems; on many, look for greedy decoding or a repeated seed"
    )
    notes = []
    for s in scores:
        if s.identical and s.k > 1:
            shown = ", ".join(s.identical[:_SHOWN]) + (", ..." if len(s.identical) > _SHOWN else "")
            notes.append(
                f"{s.mode}, {s.set_name}: all {s.k} attempts are one text at {len(s.identical)} of "
                f"{s.problems + s.prose} problems ({shown}): {why}"
            )
    return notes


def _prose_notes(scores: Sequence[SetScores]) -> list[str]:
    notes = []
    for s in scores:
        if not s.prose:
            continue
        notes.append(
            f"{s.mode}, {s.set_name}: {s.prose} golds are prose, which no rule checks; they are in no score "
            f"above ({s.word_for_word} attempts are the gold word for word)"
        )
        for model, found in s.judged.items():
            rest = [(found.undecided, "undecided"), (found.failed, "not judged")]
            notes.append(
                f"  judged by {model}: {_cell(found.judged)}"
                + "".join(f", {count} attempts {what}" for count, what in rest if count)
            )
    return notes


def _cell(score: Score | None) -> str:
    if score is None:
        return "-"
    return f"{100 * score.value:.1f} [{100 * score.low:.1f}, {100 * score.high:.1f}]"
