"""Which trajectories the report shows, and how they travel into the page: as data, never as markup."""

from __future__ import annotations

import codecs
import itertools
import json
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from markupsafe import Markup

from apprentice.episodes.tools import ASK_ADVISOR
from apprentice.run_folder import RunFolder
from apprentice.trajectory import NOT_SAMPLED, Owner, Trajectory, read_parquet

__all__ = ["OWNER_NAMES", "DecodeToken", "choose", "json_for_script", "spread", "viewer_data"]

DecodeToken = Callable[[int], str | bytes] | Sequence[str]
"""Text of a token id: a function, or a table indexed by id. A function that gives bytes
(:meth:`apprentice.tokens.codec.ChatCodec.token_bytes`) is best: a character of several tokens, such as an
emoji, is then shown whole at its last one."""

OWNER_NAMES = [owner.name.lower() for owner in Owner]
"""Owner names by value; CSS classes and legend entries."""

T = TypeVar("T")

_FILES_A_STAGE = 6
_STAGES = (
    "evaluate",
    "stage2",
    "stage1",
    "ask_stage3",
    "ask_stage2",
    "ask_stage1",
)  # what a reader wants first
_MODES = ("internalized", "collaborative", "experts_removed", "ask_qmaker", "ask", "qmaker")
_NOTES = (
    "format_ok",
    "complete",
    "judge_label",
    "advice_tokens",
    "budget",
    "continuation",
    "qmaker_format_error",
)
"""Tags of Learning to Ask that are shown."""
_MAX_TOKENS = 6000


def choose(run: RunFolder, limit: int) -> list[tuple[str, Trajectory]]:
    """At most ``limit`` (stage, trajectory) pairs: of every stage and mode some right and some wrong ones.

    Buckets of one stage, mode and outcome (right, wrong, unusable) are drawn from in turn until the limit is
    reached. Of a stage with many parts (steps), six spread over its course are read. Always the same choice.
    """
    buckets: dict[tuple[str, str, str], list[Trajectory]] = {}
    for folder in sorted((run.path / "trajectories").glob("*/")):
        for file in spread(sorted(folder.glob("*.parquet")), _FILES_A_STAGE):
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
    ordered = sorted(buckets, key=lambda k: (_rank(k[0], _STAGES), _rank(k[1], _MODES), *k))
    return [(key[0], t) for key in ordered for t in spread(buckets[key], taken[key])]


def _rank(name: str, prefixes: Sequence[str]) -> int:
    return next((i for i, prefix in enumerate(prefixes) if name.startswith(prefix)), len(prefixes))


def spread(items: Sequence[T], count: int) -> list[T]:
    """At most ``count`` items, evenly spaced, the first and the last among them."""
    if len(items) <= count:
        return list(items)
    if count <= 1:
        return list(items[:count])
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def viewer_data(chosen: Sequence[tuple[str, Trajectory]], decode: DecodeToken | None) -> list[dict[str, Any]]:
    """The trajectories as JSON for the page's viewer.

    Per token: text, id and logprob (null where not sampled); owner, producer index and policy version change
    rarely and travel as ``runs`` of ``[length, owner, producer, version or null]``. Without ``decode`` the
    texts are the ids. Tokens past 6,000 are cut, and the viewer says so.
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
            {
                "tool": c.tool,
                "model": c.model,
                "error": c.error,
                "outcome": c.outcome,
                # In mode `qmaker` what was asked stands in no token of the trajectory as it was sent.
                "query": c.instruction if c.tool == ASK_ADVISOR else "",
                "cost": c.cost,
            }
            for c in trajectory.calls
        ],
        "notes": {name: trajectory.tags[name] for name in _NOTES if trajectory.tags.get(name)},
        "total": len(trajectory),
        "owners": trajectory.tokens_by_owner(),
        "producers": list(trajectory.producers),
        "text": _token_texts(ids, decode),
        "ids": ids,
        "runs": _runs(trajectory, shown),
        "logprob": [round(p, 4) if math.isfinite(p) else None for p in trajectory.logprob[:shown].tolist()],
    }


def _runs(trajectory: Trajectory, shown: int) -> list[tuple[int, int, int, int | None]]:
    columns = (trajectory.owner, trajectory.producer, trajectory.policy_version)
    keys = zip(*(column[:shown].tolist() for column in columns), strict=True)
    return [
        (len(list(run)), owner, producer, None if version == NOT_SAMPLED else version)
        for (owner, producer, version), run in itertools.groupby(keys)
    ]


def _token_texts(ids: Sequence[int], decode: DecodeToken | None) -> list[str]:
    if decode is None:
        return [f"{token} " for token in ids]
    utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
    texts = []
    for token in ids:
        if callable(decode):
            piece = decode(token)
            texts.append(utf8.decode(piece) if isinstance(piece, bytes) else piece)
        else:
            texts.append(decode[token] if 0 <= token < len(decode) else f"⟨{token}⟩")
    return texts


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
