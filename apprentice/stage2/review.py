"""The review step of Stage II: a person reads candidate trajectories and approves or rejects them.

RIVET reviews its Stage-II data by hand (section 3.4). ``apprentice trajectories review RUN`` pages through
the candidates in a terminal; ``--accept-all`` is for unattended runs. Decisions are appended to
``<run>/review.jsonl``, one JSON object a line, each on disk before the next question; replaying the file
gives the state (of two decisions on one trajectory the later counts), so a review can stop and go on.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TextIO

from apprentice.errors import ConfigError
from apprentice.run_folder import RunFolder
from apprentice.trajectory import Owner, Trajectory

__all__ = [
    "CANDIDATE_STAGE",
    "Decision",
    "ReviewCounts",
    "accept_all",
    "accepted",
    "decisions",
    "reject",
    "render",
    "review",
]

_log = logging.getLogger(__name__)

CANDIDATE_STAGE = "stage2_candidates"
"""Folder below ``trajectories/`` that holds what the filters selected, to be reviewed."""

Decision = Literal["approve", "reject"]
Decode = Callable[[Sequence[int]], str]
"""Text of a span of token ids."""

_COLOURS = {
    Owner.PROMPT: "2",  # dim
    Owner.CONTROLLER: "34",  # blue
    Owner.EXPERT: "33",  # amber
    Owner.OBSERVATION: "32",  # green
    Owner.WRAPPER: "90",  # grey
}
_KEYS = "[a]pprove  [r]eject  [s]kip  [Enter] next page  [b]ack a page  [q]uit"


@dataclass(frozen=True, slots=True)
class ReviewCounts:
    """Where a review stands, in trajectories."""

    approved: int
    rejected: int
    pending: int

    def __str__(self) -> str:
        return f"{self.approved} approved, {self.rejected} rejected, {self.pending} not reviewed"


def decisions(run: RunFolder, stage: str = CANDIDATE_STAGE) -> dict[str, Decision]:
    """Last decision by trajectory id. A torn row (killed while writing) is skipped with a warning."""
    path = run.path / "review.jsonl"
    found: dict[str, Decision] = {}
    if not path.is_file():
        return found
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                if row["stage"] == stage and row["decision"] in ("approve", "reject"):
                    found[str(row["trajectory_id"])] = row["decision"]
            except (ValueError, KeyError, TypeError):
                _log.warning("%s, line %d is torn or no decision; skipped", path, number)
    return found


def accepted(run: RunFolder, stage: str = CANDIDATE_STAGE) -> list[str]:
    """Ids of the approved candidates in the order of the candidates.

    Candidates without a decision are left out with a warning. Empty when every candidate was rejected.

    Raises:
        ConfigError: there are candidates and not one of them was reviewed; the message names the command.
    """
    ids = _candidate_ids(run, stage)
    made = decisions(run, stage)
    pending = sum(i not in made for i in ids)
    if ids and pending == len(ids):
        raise ConfigError(
            f"none of the {len(ids)} candidate trajectories of {run.path} has been reviewed; run "
            f"`apprentice trajectories review {run.path}` to read them, or with --accept-all to approve all "
            "(recipes: stage2.accept_all=true)"
        )
    if pending:
        _log.warning("%d of %d candidate trajectories were not reviewed and are left out", pending, len(ids))
    return [i for i in ids if made.get(i) == "approve"]


def accept_all(run: RunFolder, stage: str = CANDIDATE_STAGE) -> ReviewCounts:
    """Approve every candidate that has no decision; one that a person rejected stays rejected."""
    ids = _candidate_ids(run, stage)
    made = decisions(run, stage)
    _append(run, stage, [(i, "approve") for i in ids if i not in made], by="accept-all")
    return _counts(run, stage, ids)


def reject(run: RunFolder, ids: Iterable[str], stage: str = CANDIDATE_STAGE, note: str = "") -> ReviewCounts:
    """Reject candidates by id.

    Raises:
        ConfigError: an id is no candidate of this run (nothing is written then).
    """
    known = _candidate_ids(run, stage)
    ids = list(ids)
    if unknown := [i for i in ids if i not in set(known)]:
        raise ConfigError(
            f"no candidate trajectory of {run.path} has the id {unknown[0]!r}; ids look like "
            f"{known[0] if known else '(there are no candidates)'}"
        )
    _append(run, stage, [(i, "reject") for i in ids], by="id", note=note)
    return _counts(run, stage, known)


def review(
    run: RunFolder,
    decode: Decode,
    *,
    stage: str = CANDIDATE_STAGE,
    stdin: TextIO | None = None,
    stdout: TextIO | None = None,
    page_lines: int | None = None,
) -> ReviewCounts:
    """Page through the candidates that have no decision yet, and record what the reader decides.

    Args:
        run: the run folder.
        decode: text of a span of token ids (the controller's tokenizer).
        stage: trajectories to review.
        stdin, stdout: the terminal; the process's own when left out. Colours only on a terminal.
        page_lines: lines a page; the terminal's height when left out.

    Raises:
        ConfigError: the run has no candidates.
    """
    source = sys.stdin if stdin is None else stdin
    out = sys.stdout if stdout is None else stdout
    candidates = run.read_trajectories(stage)
    if not candidates:
        raise ConfigError(
            f"{run.path} has no candidate trajectories (folder trajectories/{stage}); "
            "run Stage II's sampling first"
        )
    made = decisions(run, stage)
    todo = [t for t in candidates if t.trajectory_id not in made]
    lines_a_page = page_lines or max(10, shutil.get_terminal_size().lines - 3)
    for number, trajectory in enumerate(todo, 1):
        lines = list(_layout(trajectory, decode, colour=out.isatty()))
        print(f"\n=== {number} of {len(todo)} to review ===", file=out)
        choice = _ask(lines, lines_a_page, source, out)
        if choice == "q":
            break
        if choice in ("a", "r"):
            decision: Decision = "approve" if choice == "a" else "reject"
            _append(run, stage, [(trajectory.trajectory_id, decision)], by="person")
    counts = _counts(run, stage, [t.trajectory_id for t in candidates])
    print(f"\n{counts}", file=out)
    return counts


def _ask(lines: Sequence[str], page_lines: int, source: TextIO, out: TextIO) -> str:
    """Show pages until the reader decides: one of a, r, s, q (q at the end of input)."""
    pages = [lines[i : i + page_lines] for i in range(0, len(lines), page_lines)]
    page, show = 0, True
    while True:
        if show:
            print("\n".join(pages[page]), file=out)
        print(f"-- page {page + 1}/{len(pages)} -- {_KEYS}: ", end="", file=out, flush=True)
        line = source.readline()
        if not line:
            return "q"
        key = line.strip().lower()[:1]
        if key in ("a", "r", "s", "q"):
            return key
        before = page
        if key in ("", "n"):
            page = min(page + 1, len(pages) - 1)
        elif key == "b":
            page = max(page - 1, 0)
        show = page != before or key == "b"


def render(trajectory: Trajectory, decode: Decode, *, colour: bool) -> str:
    """The trajectory as text for a terminal: a header, then every span under the name of its owner."""
    return "\n".join(_layout(trajectory, decode, colour=colour))


def _layout(trajectory: Trajectory, decode: Decode, *, colour: bool) -> Iterator[str]:
    calls = ", ".join(
        f"{c.tool}({c.model}){' refused: ' + c.error if c.error else ''}" for c in trajectory.calls
    )
    yield f"trajectory {trajectory.trajectory_id}  problem {trajectory.problem_id}  {len(trajectory)} tokens"
    yield _visible(
        f"verdict {trajectory.verdict or '-'}  answer {trajectory.answer or '-'}  calls: {calls or 'none'}"
    )
    for start, end, owner, producer in trajectory.spans():
        label = owner.name.lower() if producer == owner.name.lower() else f"{owner.name.lower()} {producer}"
        yield f"--- {_visible(label)} ({end - start} tokens)"
        for line in _visible(decode(trajectory.token_ids[start:end].tolist())).split("\n"):
            yield f"\x1b[{_COLOURS[owner]}m{line}\x1b[0m" if colour else line


def _visible(text: str) -> str:
    """``text`` without the power to move the cursor or colour the screen: control characters made visible."""
    return "".join(
        char
        if char in "\n\t" or char.isprintable()
        else (chr(0x2400 + ord(char)) if ord(char) < 0x20 else f"\\u{ord(char):04x}")
        for char in text
    )


def _candidate_ids(run: RunFolder, stage: str) -> list[str]:
    return [t.trajectory_id for t in run.read_trajectories(stage)]


def _counts(run: RunFolder, stage: str, ids: Sequence[str]) -> ReviewCounts:
    made = decisions(run, stage)
    approved = sum(made.get(i) == "approve" for i in ids)
    rejected = sum(made.get(i) == "reject" for i in ids)
    return ReviewCounts(approved, rejected, len(ids) - approved - rejected)


def _append(
    run: RunFolder, stage: str, rows: Sequence[tuple[str, Decision]], by: str, note: str = ""
) -> None:
    if not rows:
        return
    path = run.path / "review.jsonl"
    now = round(time.time(), 3)
    text = "".join(
        json.dumps({"time": now, "stage": stage, "trajectory_id": i, "decision": d, "by": by, "note": note})
        + "\n"
        for i, d in rows
    )
    with path.open("a+b") as file:
        if file.tell() > 0:  # a torn last row must not swallow this one
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                text = "\n" + text
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
