"""Problems from ``reasoning_gym``: families of generated problems with exact answers."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping, Set
from typing import Any

from apprentice.data.problem import Problem
from apprentice.data.text import question_key
from apprentice.data.worked import WORKED_FAMILIES, worked_solution
from apprentice.errors import ConfigError, DataError

__all__ = ["generate", "interleave"]

_RESERVED = ("seed", "size")


def generate(
    name: str,
    families: Mapping[str, Mapping[str, object]],
    size: int,
    seed: int,
    split: str = "",
    exclude: Set[str] = frozenset(),
) -> list[Problem]:
    """``size`` different problems, as many of each family (the first ones take the rest), interleaved.

    Args:
        name: label of the set; part of the problem ids.
        families: dataset name -> its options. ``name@label`` is a further family of the same dataset, with
            options of its own: ``chain_sum@hard``.
        size: number of problems over all families.
        seed: decides all problems. Neighbouring seeds give unrelated problems (the library's own seeding
            would give almost the same ones: entry i of seed s is entry i-1 of seed s+1).
        split: copied to the problems.
        exclude: :func:`apprentice.data.text.question_key` of questions that must not appear.

    Raises:
        ConfigError: an unknown family or option.
        DataError: a family has too few different questions.
    """
    if not families:
        raise ConfigError("families: reasoning_gym needs at least one, e.g. families: {gcd: {}}")
    share, extra = divmod(size, len(families))
    groups = []
    for position, (family, options) in enumerate(families.items()):
        wanted = share + (position < extra)
        groups.append(_family(name, family, options, wanted, seed, split, exclude))
    return interleave(groups)


def interleave(groups: list[list[Problem]]) -> list[Problem]:
    """Round robin over the groups, so that every stretch of the list is balanced."""
    longest = max((len(group) for group in groups), default=0)
    return [group[i] for i in range(longest) for group in groups if i < len(group)]


def _family(
    name: str,
    family: str,
    options: Mapping[str, object],
    wanted: int,
    seed: int,
    split: str,
    exclude: Set[str],
) -> list[Problem]:
    problems: list[Problem] = []
    seen = set(exclude)
    dataset = family.partition("@")[0]
    for index, entry in _entries(family, options, wanted, seed):
        if len(problems) == wanted:
            break
        question, answer = str(entry["question"]), str(entry["answer"])
        worked = worked_solution(dataset, answer, entry["metadata"])
        if worked is None and dataset in WORKED_FAMILIES:
            continue  # its own working does not lead to its gold: not a problem to learn from
        key = question_key(question)
        if key in seen:
            continue
        seen.add(key)
        problems.append(
            Problem(
                problem_id=f"{name}/{family}/{index:05d}",
                question=question,
                answer=answer,
                family=family,
                source="reasoning_gym",
                split=split,
                worked=worked,
            )
        )
    if len(problems) < wanted:
        raise DataError(
            f"{name}: family {family!r} with options {dict(options)} has only {len(problems)} different "
            f"questions of the {wanted} asked for; lower size or widen its options"
        )
    return problems


def _entries(
    family: str, options: Mapping[str, object], wanted: int, seed: int
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Entries of the dataset, several times as many as are wanted."""
    with warnings.catch_warnings():
        # A dependency of it compares with `is`; Python says so when it compiles that file for the first time.
        warnings.simplefilter("ignore", SyntaxWarning)
        import reasoning_gym
        from reasoning_gym.factory import DATASETS

    name = family.partition("@")[0]
    if name not in DATASETS:
        import difflib

        near = difflib.get_close_matches(name, DATASETS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"families: reasoning_gym has no dataset {name!r}{hint}")
    for reserved in _RESERVED:
        if reserved in options:
            raise ConfigError(f"families.{family}.{reserved}: set {reserved} on the problem set instead")
    digest = hashlib.sha256(f"{seed}:{family}".encode()).digest()
    total = 8 * wanted + 256
    try:
        dataset = reasoning_gym.create_dataset(
            name, seed=int.from_bytes(digest[:4], "big"), size=total, **dict(options)
        )
    except (TypeError, AssertionError) as error:
        raise ConfigError(f"families.{family}: {error}") from error
    for index in range(total):
        yield index, dataset[index]
