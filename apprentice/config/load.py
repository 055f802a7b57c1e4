"""Recipes: YAML files and dotted overrides in, one validated :class:`~apprentice.config.schema.Config` out.

Import-light and without effects: pydantic and PyYAML only.

* YAML 1.2's plain scalars: ``off`` and ``no`` are strings, ``1e-6`` is a number, ``12:30`` is a string.
* ``extends: other.yaml`` at the top of a recipe starts from another one (a path relative to the file).
  Mappings are merged key by key; a list replaces the list below it.
* An override is ``dotted.path=value`` with a YAML value; a number in the path is an index into a list:
  ``stage1.steps=5``, ``experts.0.backend.error_rate=0.1``, ``evaluation.modes=[internalized]``.
* Every mistake is reported at once, each with the file and line or the override it comes from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from apprentice.config.keys import nearest_key
from apprentice.config.schema import Config
from apprentice.errors import ConfigError

__all__ = ["dump_yaml", "load_config", "parse_override", "to_yaml"]

Location = tuple[str | int, ...]

EXTENDS = "extends"


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a recipe, apply overrides in order, and validate the result.

    Args:
        path: a YAML file.
        overrides: ``dotted.path=value`` each; a later one wins.

    Raises:
        ConfigError: the file is missing or not YAML, a key is unknown, a value is wrong, or an override
            does not fit. The message lists every mistake, where it stands, and the remedy.
    """
    data, sources = _read(Path(path), ())
    for override in overrides:
        location, value = parse_override(override)
        _apply(data, location, value, override)
        # What the override replaced is gone, with all that lay below it.
        sources = {k: v for k, v in sources.items() if k[: len(location)] != location}
        sources[location] = f"override {override}"
    try:
        # Through JSON, because strict JSON takes a list for a tuple and 1 for 1.0, but not "5" for 5.
        return Config.model_validate_json(json.dumps(_fill(Config, data)), strict=True)
    except ValidationError as error:
        raise ConfigError(_explain(error, data, sources, str(path))) from None


def to_yaml(config: Config) -> str:
    """The whole configuration as YAML that :func:`load_config` reads back to an equal one."""
    return dump_yaml(config.model_dump(mode="json"))


def dump_yaml(data: Mapping[str, Any]) -> str:
    """Plain data as YAML that reads back equal under the rules of :func:`load_config`."""
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return text


def parse_override(override: str) -> tuple[Location, Any]:
    """Split ``stage1.steps=5`` into ``(("stage1", "steps"), 5)``.

    Raises:
        ConfigError: there is no ``=``, the path has an empty part, or the value is not YAML.
    """
    dotted, equals, text = override.partition("=")
    parts = dotted.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(
            f"override {override!r}: write it as key.path=value, e.g. stage1.steps=5 or "
            "evaluation.modes=[internalized]"
        )
    if not text.strip():
        raise ConfigError(f'override {override!r}: the value is missing; write {dotted}=null or {dotted}=""')
    try:
        value = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"override {override!r}: {text!r} is not a YAML value: {_problem(error)}") from None
    return tuple(int(part) if part.isdigit() else part for part in parts), value


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2's core schema, in which a duplicate key is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen and key.value != "<<":
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key.value!r} stands twice in one mapping", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """SafeDumper that also quotes text which only :class:`_Loader` would take for a number, e.g. ``0E0``."""


_SCALARS = (
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", "~nN\0"),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+0123456789.",
    ),
    ("tag:yaml.org,2002:merge", r"<<", "<"),
)
_Loader.yaml_implicit_resolvers = {}  # none of YAML 1.1's
for _tag, _pattern, _first in _SCALARS:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(
            _tag, re.compile(rf"^(?:{_pattern})$"), ["" if c == "\0" else c for c in _first]
        )


def _construct_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    """Decimal always: PyYAML's own constructor reads a leading zero as octal."""
    return int(loader.construct_scalar(node))


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)


def _represent_str(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Escaped where the text has one of the line breaks that only YAML knows: written as it is, it folds."""
    style = '"' if re.search("[\\x85\\u2028\\u2029]", text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_str)


def _read(path: Path, above: tuple[Path, ...]) -> tuple[dict[str, Any], dict[Location, str]]:
    """The merged data of a recipe and, per location, the file and line it comes from."""
    if path.resolve() in above:
        chain = " -> ".join(p.name for p in (*above, path))
        raise ConfigError(f"{path}: a recipe extends itself: {chain}")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such recipe{_recipes_beside(path)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        data = loader.construct_document(node) if node is not None else None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {_problem(error)}") from None
    finally:
        loader.dispose()
    if node is None or not isinstance(data, dict):
        raise ConfigError(f"{path}: a recipe is a mapping of keys to values; see configs/demo.yaml")
    sources = {location: f"{path}, line {line}" for location, line in _lines(node, ())}
    if EXTENDS not in data:
        return data, sources
    base = data.pop(EXTENDS)
    if not isinstance(base, str):
        raise ConfigError(f"{path}: {EXTENDS}: give the path of one other recipe, relative to this file")
    base_data, base_sources = _read(path.parent / base, (*above, path.resolve()))
    return _merge(base_data, data), base_sources | sources


def _lines(node: yaml.Node, location: Location) -> list[tuple[Location, int]]:
    """Every location below a YAML node with its line, counted from 1."""
    found: list[tuple[Location, int]] = []
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*location, str(key.value))
            found += [(here, key.start_mark.line + 1), *_lines(value, here)]
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            here = (*location, index)
            found += [(here, value.start_mark.line + 1), *_lines(value, here)]
    return found


def _merge(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _fill(model: type[BaseModel], data: dict[str, Any]) -> dict[str, Any]:
    """``data`` with what it leaves out of a section taken from that section's own default.

    Without this, ``stage2.optimizer.weight_decay=0`` would also reset the learning rate that stage 2 has by
    default to the one that optimizers have by default.
    """
    filled = dict(data)
    for name, info in model.model_fields.items():
        given = filled.get(name)
        if not isinstance(given, dict):
            continue
        if isinstance(info.default, BaseModel):
            filled[name] = _merge(info.default.model_dump(mode="json"), given)
        elif isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            filled[name] = _fill(info.annotation, given)
    return filled


def _apply(data: dict[str, Any], location: Location, value: Any, override: str) -> None:
    """Set ``value`` at ``location``, making the mappings that lead there."""
    node: Any = data
    for depth, part in enumerate(location):
        last = depth == len(location) - 1
        where = ".".join(map(str, location[:depth]))
        if isinstance(node, list):
            if not isinstance(part, int) or part >= len(node):
                raise ConfigError(
                    f"override {override!r}: {where} is a list of {len(node)} entries; "
                    f"{part!r} is none of the indices 0 to {len(node) - 1}"
                )
            key: Any = part
        elif isinstance(node, dict):
            key = str(part)
            if not last and not isinstance(node.get(key), dict | list):
                node[key] = {}
        else:
            raise ConfigError(
                f"override {override!r}: {where} is the value {node!r} and has no keys below it"
            )
        if last:
            node[key] = value
        else:
            node = node[key]


def _explain(error: ValidationError, data: Any, sources: dict[Location, str], path: str) -> str:
    """All errors of a validation, a line each: key, what is wrong, and where it comes from."""
    lines = []
    for detail in error.errors(include_url=False):
        location = _strip_tags(detail["loc"], data, missing=detail["type"] == "missing")
        message = _message(detail, location)
        lines.append(f"{message} ({_source(location, sources, path)})")
    if len(lines) == 1:
        return lines[0]
    return "\n  ".join([f"{len(lines)} mistakes in the configuration:", *lines])


_WORDS = {
    "Input should be an object": "must be a mapping of keys to values",
    "Input should be a valid array": "must be a list, e.g. [a, b]",
    "Input should be a valid integer": "must be a whole number",
    "Input should be a valid boolean": "must be true or false",
    "Input should be a valid string": "must be text",
    "Input should be": "must be",
}
"""pydantic's words and ours."""


def _message(detail: ErrorDetails, location: Location) -> str:
    kind, value = detail["type"], detail["input"]
    dotted = ".".join(map(str, location))
    if kind == "extra_forbidden":
        near = nearest_key(location)
        remedy = f"did you mean {near}?" if near else "`apprentice config explain` lists all keys"
        return f"{dotted}: unknown key; {remedy}"
    if kind == "missing" and isinstance(location[-1], int):
        return f"{'.'.join(map(str, location[:-1]))}: must have at least {location[-1] + 1} entries"
    if kind == "missing":
        return f"{dotted}: this key is required"
    text = detail["msg"].removeprefix("Value error, ")
    if kind == "value_error":  # a rule of the schema between keys, which names them itself
        return f"{dotted}: {text}" if dotted else text
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        context = detail.get("ctx", {})
        choices = context.get("expected_tags", "'worked', 'openai', 'vllm'")
        return f"{dotted}.kind: must be one of {choices}"
    for theirs, ours in _WORDS.items():
        text = text.replace(theirs, ours)
    shown = repr(value) if isinstance(value, str) else json.dumps(value, default=str)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    hint = '; put it in quotes: "..."' if kind == "string_type" and isinstance(value, int | float) else ""
    return f"{dotted}: {text}, got {shown}{hint}"


def _strip_tags(loc: tuple[int | str, ...], data: Any, *, missing: bool) -> Location:
    """The location without the union tags that pydantic puts in: parts that lead nowhere in the data."""
    out: list[int | str] = []
    node = data
    for depth, part in enumerate(loc):
        last = depth == len(loc) - 1
        inside = (isinstance(node, dict) and part in node) or (
            isinstance(node, list) and isinstance(part, int) and part < len(node)
        )
        if inside:
            node = node[part]
            out.append(part)
        elif last and missing:
            out.append(part)
    return tuple(out)


def _source(location: Location, sources: dict[Location, str], path: str) -> str:
    """Where the value at a location comes from: its own line, or that of what holds it."""
    for end in range(len(location), 0, -1):
        if location[:end] in sources:
            return sources[location[:end]]
    return path


def _problem(error: yaml.YAMLError) -> str:
    """What PyYAML found, with line and column counted from 1."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{error.problem or error.context} (line {mark.line + 1}, column {mark.column + 1})"
    return str(error)


def _recipes_beside(path: Path) -> str:
    found = sorted(str(p) for p in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
    return f"; here are {', '.join(found)}" if found else ""
