"""Which trajectories the report shows, and how they travel into the page: as data, never as markup."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from markupsafe import Markup

from apprentice.run_folder import RunFolder
from apprentice.trajectory import NOT_SAMPLED, Owner, Trajectory, read_parquet

__all__ = ["OWNER_NAMES", "DecodeToken", "choose", "json_for_script", "viewer_data"]

DecodeToken = Callable[[int], str] | Sequence[str]
"""Text of a token id: a function, or a table indexed by id."""

OWNER_NAMES = [owner.name.lower() for owner in Owner]
"""Owner names by value; CSS classes and legend entries."""

T = TypeVar("T")

_FILES_A_STAGE = 6
_MAX_TOKENS = 6000


def choose(run: RunFolder, limit: int) -> list[tuple[str, Trajectory]]:
    """At most ``limit`` (stage, trajectory) pairs: of every stage and mode some right and some wrong ones.

    Buckets of one stage, mode and outcome (right, wrong, unusable) are drawn from in turn until the limit is
    reached. Of a stage with many parts (steps), six spread over its course are read. Always the same choice.
    """
    buckets: dict[tuple[str, str, str], list[Trajectory]] = {}
    stages = sorted((run.path / "trajectories").glob("*/"), key=_stage_order)
    for folder in stages:
        for file in _spread(sorted(folder.glob("*.parquet")), _FILES_A_STAGE):
            for trajectory in read_parquet(file):
                outcome = (
                    "right"
                    if trajectory.verdict == "correct"
                    else "unusable"
                    if trajectory.status == "unusable"
                    else "wrong"
                )
                buckets.setdefault((folder.name, trajectory.mode, outcome), []).append(trajectory)
    taken = dict.fromkeys(buckets, 0)
    while room := limit - sum(taken.values()):
        open_keys = [key for key in buckets if taken[key] < len(buckets[key])][:room]
        if not open_keys:
            break
        for key in open_keys:
            taken[key] += 1
    return [(key[0], t) for key, bucket in buckets.items() for t in _spread(bucket, taken[key])]


def _stage_order(folder: Path) -> tuple[int, str]:
    for i, prefix in enumerate(("evaluate", "stage2", "stage1")):
        if folder.name.startswith(prefix):
            return i, folder.name
    return 3, folder.name


def _spread(items: Sequence[T], count: int) -> list[T]:
    """At most ``count`` items, evenly spaced, the first and the last among them."""
    if len(items) <= count:
        return list(items)
    if count <= 1:
        return list(items[:count])
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def viewer_data(chosen: Sequence[tuple[str, Trajectory]], decode: DecodeToken | None) -> list[dict[str, Any]]:
    """The trajectories as JSON for the page's viewer.

    Per token: text, id, owner, producer index, policy version and logprob (null where not sampled). Without
    ``decode`` the texts are the ids. Tokens past 6,000 are cut, and the viewer says so.
    """
    return [_one(stage, trajectory, decode) for stage, trajectory in chosen]


def _one(stage: str, trajectory: Trajectory, decode: DecodeToken | None) -> dict[str, Any]:
    shown = min(len(trajectory), _MAX_TOKENS)
    ids = trajectory.token_ids[:shown].tolist()
    return {
        "id": trajectory.trajectory_id,
        "problem": trajectory.problem_id,
        "stage": stage,
        "mode": trajectory.mode,
        "status": str(trajectory.status),
        "reason": trajectory.status_reason,
        "verdict": trajectory.verdict or ("not scored" if trajectory.reward is None else "wrong"),
        "answer": trajectory.answer,
        "reward": trajectory.reward,
        "calls": [
            {"tool": c.tool, "model": c.model, "error": c.error, "outcome": c.outcome}
            for c in trajectory.calls
        ],
        "total": len(trajectory),
        "owners": trajectory.tokens_by_owner(),
        "producers": list(trajectory.producers),
        "text": [_token_text(i, decode) for i in ids],
        "ids": ids,
        "owner": trajectory.owner[:shown].tolist(),
        "producer": trajectory.producer[:shown].tolist(),
        "version": [None if v == NOT_SAMPLED else v for v in trajectory.policy_version[:shown].tolist()],
        "logprob": [None if math.isnan(p) else round(p, 4) for p in trajectory.logprob[:shown].tolist()],
    }


def _token_text(token: int, decode: DecodeToken | None) -> str:
    if decode is None:
        return f"{token} "
    if callable(decode):
        return decode(token)
    return decode[token] if 0 <= token < len(decode) else f"⟨{token}⟩"


def json_for_script(value: Any) -> Markup:
    """JSON that can stand in a ``<script type="application/json">`` whatever texts it holds.

    Inside a script element only ``<`` can end or change anything (``</script``, ``<!--``), so every ``<``,
    ``>`` and ``&`` is written as an escape, which JSON readers give back unchanged; likewise the two line
    separators that older JavaScript does not allow in strings.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)
