"""Which files of a data set's repository hold one configuration and split.

For a folder with a copy of a hub repository (``hf download --repo-type dataset --local-dir openai/gsm8k``, a
``git clone``, or the hub's own cache): the same sets, splits and row counts as from the hub, without it.
"""

from __future__ import annotations

import re
from pathlib import Path

from apprentice.data.benchmarks import BENCHMARKS, Benchmark
from apprentice.data.rows import SUFFIXES
from apprentice.errors import DataError

__all__ = ["find_copy", "split_files"]


def find_copy(path: Path) -> Benchmark | None:
    """The known set that a folder is a copy of, by its last two names, or by its place in the hub's cache."""
    parts = path.absolute().parts
    for name in (
        "/".join(parts[-2:]),
        *(p[len("datasets--") :].replace("--", "/") for p in parts if _cached(p)),
    ):
        if (known := BENCHMARKS.get(name.lower())) is not None:
            return known
    return None


def _cached(part: str) -> bool:
    return part.startswith("datasets--")


def split_files(root: Path, config: str, split: str | None) -> list[Path]:
    """The files of one configuration and split, in order.

    Tried in turn: ``CONFIG/SPLIT/*``, ``CONFIG/SPLIT-*``, ``CONFIG/SPLIT.*``; with a configuration
    ``CONFIG.*`` and ``data/CONFIG.*``, without one ``data/SPLIT-*``, ``SPLIT-*``, ``data/SPLIT.*`` and
    ``SPLIT.*``; then the only data file there is.

    Raises:
        DataError: none of these is there.
    """
    names = sorted(
        found.relative_to(root).as_posix()
        for found in root.rglob("*")
        if found.suffix in SUFFIXES and found.is_file()
    )
    end = rf"(?:{'|'.join(map(re.escape, SUFFIXES))})"
    c, s = re.escape(config or "default"), re.escape(split or "train")
    patterns = [rf"{c}/{s}/[^/]+{end}", rf"{c}/{s}-[^/]+{end}", rf"{c}/{s}{end}"]
    if not config:
        patterns += [rf"data/{s}-[^/]+{end}", rf"{s}-[^/]+{end}", rf"data/{s}{end}", rf"{s}{end}"]
    else:
        patterns += [rf"(?:data/)?{c}{end}"]
    for pattern in patterns:
        if chosen := [name for name in names if re.fullmatch(pattern, name)]:
            return [root / name for name in chosen]
    if len(names) == 1:
        return [root / names[0]]
    raise DataError(
        f"{root}: no file of configuration {config or 'default'!r} and split {split or 'train'!r} among "
        f"{', '.join(names[:8]) or 'no data files'}{', ...' if len(names) > 8 else ''}"
    )
