"""Every key of the configuration schema: its path, type, default and meaning.

Read off the pydantic models, so that help texts and error messages can never differ from the schema.
Import-light: pydantic only.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from apprentice.config.schema import Config

__all__ = ["Key", "all_keys", "nearest_key"]


@dataclass(frozen=True, slots=True)
class Key:
    """One key. ``path`` is dotted; ``N`` stands for an index into a list and ``NAME`` for a free name.

    ``kind`` names the variant that has the key, where a section comes in several (an expert's backend).
    """

    path: str
    type: str
    default: str
    description: str
    kind: str = ""


def all_keys(
    model: type[BaseModel] = Config, prefix: str = "", defaults: BaseModel | None = None, kind: str = ""
) -> Iterator[Key]:
    """Every leaf key below ``model`` in the order of the schema.

    Args:
        model: where to begin.
        prefix: what stands before the names of ``model``; ends with a dot or is empty.
        defaults: the instance that stands where the section is left out; its values are the defaults.
        kind: the variant that ``model`` is.
    """
    for name, info in model.model_fields.items():
        default = info.get_default(call_default_factory=True, validated_data={})
        if defaults is not None:
            default = getattr(defaults, name)
        nested = list(_nested(info.annotation))
        if not nested:
            yield Key(prefix + name, describe_type(info), _shown(default), info.description or "", kind)
        for item, suffix in nested:
            inner = default if isinstance(default, item) else None
            variant = str(item.model_fields["kind"].default) if len(nested) > 1 else kind
            yield from all_keys(item, f"{prefix}{name}.{suffix}", inner, variant)


def nearest_key(path: Sequence[str | int]) -> str | None:
    """The dotted path of the known key that an unknown one most likely means, or ``None``.

    A sibling with a similar name wins; else a key of another section with the same or a similar last part.
    """
    *parents, last = path
    stem = ".".join(str(part) for part in parents)
    pattern = ".".join("N" if isinstance(part, int) else part for part in parents)
    known = [key.path for key in all_keys()]
    head = f"{pattern}." if pattern else ""
    siblings = sorted({p.removeprefix(head).split(".")[0] for p in known if p.startswith(head)})
    by_leaf: dict[str, list[str]] = {}
    for candidate in known:
        by_leaf.setdefault(candidate.split(".")[-1], []).append(candidate)
    # A slip of the pen beside the right key, then the right name in the wrong section, then weaker likeness.
    for name, candidates, cutoff in (
        ("sibling", siblings, 0.8),
        ("leaf", list(by_leaf), 0.9),
        ("sibling", siblings, 0.6),
    ):
        close = difflib.get_close_matches(str(last), candidates, n=1, cutoff=cutoff)
        if close and name == "sibling":
            return f"{stem}.{close[0]}" if stem else close[0]
        if close:
            break
    else:
        return None
    # Among equal names, the one whose whole path looks most like what was written.
    dotted = ".".join(str(part) for part in path)
    return max(by_leaf[close[0]], key=lambda p: difflib.SequenceMatcher(None, p, dotted).ratio())


def describe_type(info: FieldInfo) -> str:
    """The type of a field in words, with its bounds, e.g. ``int >= 1`` or ``learned | random``."""
    return _type(info.annotation) + _bounds(info.metadata)


def _nested(annotation: Any) -> Iterator[tuple[type[BaseModel], str]]:
    """Models inside an annotation, each with the part of the path that leads to its fields."""
    origin = get_origin(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, ""
    elif origin is typing.Annotated:
        yield from _nested(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for arm in get_args(annotation):
            yield from _nested(arm)
    elif origin is tuple:
        for item, suffix in _nested(get_args(annotation)[0]):
            yield item, f"N.{suffix}"
    elif origin is dict:
        for item, suffix in _nested(get_args(annotation)[1]):
            yield item, f"NAME.{suffix}"


def _type(annotation: Any) -> str:
    origin = get_origin(annotation)
    if annotation is type(None):
        return "null"
    if origin is typing.Annotated:
        bare, *metadata = get_args(annotation)
        return _type(bare) + _bounds(metadata)
    if origin is Literal:
        return " | ".join(str(choice) for choice in get_args(annotation))
    if origin in (Union, types.UnionType):
        return " | ".join(_type(arm) for arm in get_args(annotation))
    if origin is tuple:
        arms = get_args(annotation)
        if arms[-1] is Ellipsis:
            inner = _type(arms[0])
            return f"list of ({inner})" if " | " in inner else f"list of {inner}"
        return "[" + ", ".join(_type(arm) for arm in arms) + "]"
    if origin is dict:
        return f"mapping to {_type(get_args(annotation)[1])}"
    if annotation is object:
        return "any value"
    return getattr(annotation, "__name__", str(annotation))


def _bounds(metadata: Sequence[Any]) -> str:
    words = []
    for item in metadata:
        if isinstance(item, FieldInfo):
            words.append(_bounds(item.metadata))
        elif isinstance(item, annotated_types.Ge):
            words.append(f" >= {item.ge}")
        elif isinstance(item, annotated_types.Gt):
            words.append(f" > {item.gt}")
        elif isinstance(item, annotated_types.Le):
            words.append(f" <= {item.le}")
        elif isinstance(item, annotated_types.Lt):
            words.append(f" < {item.lt}")
    return ",".join(word for word in words if word)


def _shown(value: Any) -> str:
    """A default as it would stand in a recipe."""
    if value is PydanticUndefined:
        return "required"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(str(item) for item in value) + "]"
    return '""' if value == "" else str(value)
