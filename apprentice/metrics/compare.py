"""Two evaluations on the same problems: the paired difference, set by set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from apprentice.errors import ConfigError
from apprentice.metrics.scores import Score, mean_at_k, paired_difference
from apprentice.metrics.set_scores import by_rules
from apprentice.results import ItemResult, read_all_results

__all__ = ["Comparison", "SetComparison", "compare_runs"]

_ALL = "all sets"


@dataclass(frozen=True, slots=True)
class SetComparison:
    """One set in one pair of modes.

    ``difference`` is mean@k of B minus that of A over the shared problems; ``better``, ``worse`` and ``same``
    count problems by their mean over attempts; ``only_a`` and ``only_b`` count problems left out.
    """

    mode: str
    set_name: str
    a: Score
    b: Score
    difference: Score
    better: int
    worse: int
    same: int
    only_a: int = 0
    only_b: int = 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """All sets of two runs."""

    name_a: str
    name_b: str
    rows: tuple[SetComparison, ...]
    missing: tuple[str, ...] = ()
    prose: tuple[tuple[str, int], ...] = ()
    """(mode and set, problems with golds in prose, which no rule checks and no row holds)"""

    def table(self) -> str:
        """For a terminal, in percent. An interval that leaves out 0 is marked."""
        confidence = f"{100 * self.rows[0].difference.confidence:g} %"
        head = ("mode", "set", "n", "A", "B", f"B - A ({confidence})", "better", "worse", "same")
        cells = [head, *(self._cells(row) for row in self.rows)]
        widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
        text = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in cells]
        lines = [
            f"A = {self.name_a}",
            f"B = {self.name_b}",
            "",
            text[0],
            "-" * max(map(len, text)),
            *text[1:],
        ]
        left = sum(row.only_a + row.only_b for row in self.rows if row.set_name != _ALL)
        if left:
            lines.append("")
            lines += [
                f"left out of {row.mode}, {row.set_name}: {row.only_a} only in A, {row.only_b} only in B"
                for row in self.rows
                if row.only_a + row.only_b and row.set_name != _ALL
            ]
        lines += [f"not compared: {what}" for what in self.missing]
        lines += [f"left out of {what}: {n} golds in prose, which no rule checks" for what, n in self.prose]
        lines.append("* the interval leaves out 0")
        return "\n".join(lines)

    @staticmethod
    def _cells(row: SetComparison) -> tuple[str, ...]:
        d = row.difference
        mark = "" if d.low <= 0 <= d.high else " *"
        interval = f"{100 * d.value:+.1f} [{100 * d.low:+.1f}, {100 * d.high:+.1f}]{mark}"
        if not row.better + row.worse:
            interval = "+0.0 (no problem differs)"
        return (
            row.mode, row.set_name, str(d.problems), f"{100 * row.a.value:.1f}", f"{100 * row.b.value:.1f}",
            interval, str(row.better), str(row.worse), str(row.same),
        )  # fmt: skip


def compare_runs(
    a: Path,
    b: Path,
    *,
    modes: tuple[str, str] | None = None,
    shared_only: bool = False,
    confidence: float = 0.95,
    bootstrap_samples: int = 10_000,
) -> Comparison:
    """Pair the per-item results of two runs by problem and compare them.

    Args:
        a, b: folders of runs.
        modes: one mode of each; all modes that both have when left out.
        shared_only: compare the problems that both have, where a set's problems differ.

    Raises:
        ConfigError: no results, no common mode or set, other problems (without ``shared_only``), or one
            problem id that stands for two problems.
        DataError: a results file is broken.
    """
    if not 0 < confidence < 1:
        raise ConfigError(f"--confidence {confidence} must lie between 0 and 1")
    items_a, items_b = _read(a), _read(b)
    pairs = [modes] if modes else [(mode, mode) for mode in items_a if mode in items_b]
    if not pairs:
        raise ConfigError(
            f"{a} has the modes {', '.join(items_a)}, {b} has {', '.join(items_b)}: none is common. "
            "Name one of each with --modes"
        )
    rows: list[SetComparison] = []
    missing: list[str] = []
    prose: list[tuple[str, int]] = []
    for mode_a, mode_b in pairs:
        for mode, items, folder in ((mode_a, items_a, a), (mode_b, items_b, b)):
            if mode not in items:
                raise ConfigError(f"{folder} has no results of mode {mode!r}; it has {', '.join(items)}")
        label = mode_a if mode_a == mode_b else f"{mode_a} / {mode_b}"
        sets_a, sets_b = items_a[mode_a], items_b[mode_b]
        missing += [f"{label}, {name}: only in A" for name in sets_a if name not in sets_b]
        missing += [f"{label}, {name}: only in B" for name in sets_b if name not in sets_a]
        paired = []
        for name in (name for name in sets_a if name in sets_b):
            both = _pair(sets_a[name], sets_b[name], f"{label}, {name}", shared_only)
            checked = (by_rules(both[0]), by_rules(both[1]))  # golds are equal on both sides
            if left_out := len(both[0]) - len(checked[0]):
                prose.append((f"{label}, {name}", left_out))
            if checked[0]:
                paired.append(checked)
                rows.append(_score(label, name, *checked, *both[2:], confidence, bootstrap_samples))
        if len(paired) > 1:
            first = [item for one, _ in paired for item in one]
            second = [item for _, two in paired for item in two]
            rows.append(_score(label, _ALL, first, second, 0, 0, confidence, bootstrap_samples))
    if prose and not rows:
        raise ConfigError(
            f"{a} and {b} share only golds in prose, which no rule checks; compare what a judge says of each "
            "with `apprentice evaluate scores`"
        )
    if not rows:
        raise ConfigError(f"{a} and {b} have no problem set in common: {'; '.join(missing)}")
    return Comparison(str(a), str(b), tuple(rows), tuple(missing), tuple(prose))


def _read(folder: Path) -> dict[str, dict[str, list[ItemResult]]]:
    """Mode -> set -> results."""
    found: dict[str, dict[str, list[ItemResult]]] = {}
    for item in read_all_results(folder / "results"):
        found.setdefault(item.mode, {}).setdefault(item.set_name, []).append(item)
    if not found:
        raise ConfigError(
            f"{folder} has no results (results/MODE/SET.jsonl): name the folder of an evaluated run"
        )
    return found


def _pair(
    a: Sequence[ItemResult], b: Sequence[ItemResult], what: str, shared_only: bool
) -> tuple[list[ItemResult], list[ItemResult], int, int]:
    """The problems of both in one order, and how many each has alone."""
    by_a, by_b = _by_id(a, what), _by_id(b, what)
    shared = [identity for identity in by_a if identity in by_b]
    other = [identity for identity in shared if by_a[identity].gold != by_b[identity].gold]
    if other:
        raise ConfigError(
            f"{what}: problem {other[0]!r} has the gold {by_a[other[0]].gold!r} in A and "
            f"{by_b[other[0]].gold!r} in B ({len(other)} such): these are not the same problems"
        )
    only_a, only_b = len(by_a) - len(shared), len(by_b) - len(shared)
    if not shared or (only_a + only_b and not shared_only):
        remedy = "--shared compares those" if shared else "there is nothing to compare"
        raise ConfigError(
            f"{what}: A has {len(by_a)} problems and B {len(by_b)}, and they share {len(shared)}; {remedy}"
        )
    return [by_a[i] for i in shared], [by_b[i] for i in shared], only_a, only_b


def _by_id(items: Sequence[ItemResult], what: str) -> Mapping[str, ItemResult]:
    found = {item.problem_id: item for item in items if item.verdicts}
    if len(found) < sum(bool(item.verdicts) for item in items):
        raise ConfigError(f"{what}: a problem id stands twice in the results, so they cannot be paired")
    return found


def _score(
    mode: str, name: str, a: Sequence[ItemResult], b: Sequence[ItemResult], only_a: int, only_b: int,
    confidence: float, samples: int,
) -> SetComparison:  # fmt: skip
    pairs = list(zip(a, b, strict=True))
    better = sum(y.accuracy > x.accuracy for x, y in pairs)
    worse = sum(y.accuracy < x.accuracy for x, y in pairs)
    first, second = [item.correct for item in a], [item.correct for item in b]
    return SetComparison(
        mode, name, mean_at_k(first, confidence, samples), mean_at_k(second, confidence, samples),
        paired_difference(first, second, confidence, samples),
        better, worse, len(pairs) - better - worse, only_a, only_b,
    )  # fmt: skip
