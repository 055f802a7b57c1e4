"""Python values as JSON, between the process of a solution and the process of its tests.

Reading cannot run anything of the writer's: only values of known built-in types come out, instances of
classes that the *reader* names, and handles. A value of any other type (a solution's own class, with
whatever ``==`` it has) stays where it is and crosses as a handle.

The text is flat, whatever the nesting: ``[reference, nodes, order]``. A reference is a plain scalar,
``{"i": hex}`` for a large integer, ``{"n": index}`` of a node or ``{"x": handle}``. A node is ``[tag,
payload]``; ``order`` lists the nodes, children first. Shared and cyclic structures keep their shape.

Subclasses cross as what they extend (a named tuple as a tuple, a Counter as a dict, a numpy scalar as a
number), iterators and generators as iterators over what they yield.
"""

from __future__ import annotations

import collections
import json
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

__all__ = ["decode", "encode"]

_PLAIN = frozenset({type(None), bool, str, float})
_SMALL = 1 << 53
_TYPES: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, range, object, type(None)
    )
}  # fmt: skip
_MAX_ITERATED = 1_000_000
_MUTABLE = frozenset({"list", "dict", "set", "deque", "object"})
_DTYPES = frozenset(
    f"{kind}{size}"
    for kind, sizes in (("int", (8, 16, 32, 64)), ("uint", (8, 16, 32, 64)), ("float", (16, 32, 64)))
    for size in sizes
) | {"bool"}  # fmt: skip
_ITERATORS: tuple[type, ...] = (
    map, filter, zip, enumerate, reversed, types.GeneratorType, type(iter([])), type(iter(())),
    type(iter({})), type(iter(set())), type(iter("")), type(iter(range(0))), type(reversed([])),
)  # fmt: skip


def encode(
    value: object,
    *,
    classes: Mapping[str, type] | None = None,
    handle: Callable[[object], object] | None = None,
) -> list[Any]:
    """``value`` as JSON.

    Args:
        classes: instances of classes of these names cross by their attributes.
        handle: makes a handle of what cannot cross.

    Raises:
        TypeError: something cannot cross, and there is no ``handle``.
    """
    return _Encoder(classes or {}, handle).encode(value)


class _Encoder:
    def __init__(self, classes: Mapping[str, type], handle: Callable[[object], object] | None) -> None:
        self._classes, self._handle = classes, handle
        self._nodes: list[list[Any] | None] = []
        self._order: list[int] = []
        self._index: dict[int, int] = {}
        self._alive: list[object] = []  # ids of living objects do not repeat

    def encode(self, value: object) -> list[Any]:
        root = self._refer(value)
        stack: list[tuple[int, str, Iterator[object], list[Any]]] = []
        if isinstance(root, _Open):
            stack.append((root.index, root.tag, iter(root.children), []))
        while stack:
            index, tag, children, refs = stack[-1]
            for child in children:
                ref = self._refer(child)
                if isinstance(ref, _Open):
                    refs.append({"n": ref.index})
                    stack.append((ref.index, ref.tag, iter(ref.children), []))
                    break
                refs.append(ref)
            else:
                stack.pop()
                self._nodes[index] = [tag, refs]
                self._order.append(index)
        return [{"n": root.index} if isinstance(root, _Open) else root, self._nodes, self._order]

    def _refer(self, x: object) -> Any:
        """A reference, or a node that has still to be written."""
        kind = type(x)
        if kind in _PLAIN:
            return x
        if kind is int:
            return x if -_SMALL < x < _SMALL else {"i": hex(x)}  # type: ignore[operator, arg-type]
        known = self._index.get(id(x))
        if known is not None:
            return {"n": known}
        if isinstance(x, int):
            return self._refer(int.__add__(x, 0))
        if isinstance(x, float):
            return float.__add__(x, 0.0)
        if isinstance(x, str):
            return str.__getitem__(x, slice(None))
        found = self._parts(x)
        if found is None:
            if self._handle is None:
                raise TypeError(f"a {kind.__name__} cannot cross to another process")
            return {"x": self._handle(x)}
        if isinstance(found, _Scalar):
            return self._refer(found.value)
        tag, children = found
        index = len(self._nodes)
        self._nodes.append(None)
        self._alive.append(x)
        self._index[id(x)] = index
        if isinstance(children, list | tuple) and all(type(c) in _PLAIN for c in children):
            self._nodes[index] = [tag, list(children)]
            self._order.append(index)
            return {"n": index}
        return _Open(index, tag, children)

    def _parts(self, x: object) -> tuple[str, Iterable[object]] | _Scalar | None:
        """Tag and children of a value that can cross."""
        match x:
            case list():
                return "list", list.__getitem__(x, slice(None))
            case tuple():
                return "tuple", tuple.__getitem__(x, slice(None))
            case dict():
                return "dict", [part for item in dict.items(x) for part in item]
            case set():
                return "set", list(set.__iter__(x))
            case frozenset():
                return "frozenset", list(frozenset.__iter__(x))
            case bytes() | bytearray():
                return "bytearray" if isinstance(x, bytearray) else "bytes", [x.hex()]
            case complex():
                return "complex", [x.real, x.imag]
            case Fraction():
                return "fraction", [x.numerator, x.denominator]
            case Decimal():
                return "decimal", [str(x)]
            case range():
                return "range", [x.start, x.stop, x.step]
            case collections.deque():
                return "deque", list(x)
        if isinstance(x, type) and _TYPES.get(x.__name__) is x:
            return "type", [x.__name__]
        if isinstance(x, _ITERATORS):
            return "iterator", _some(x)
        for tag, view in (
            ("keys", type({}.keys())),
            ("values", type({}.values())),
            ("items", type({}.items())),
        ):
            if isinstance(x, view):
                return tag, list(x)
        if type(x).__name__ in self._classes:
            return "object", [type(x).__name__, *(part for item in _attributes(x) for part in item)]
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(x, numpy.generic):
            return _Scalar(x.item())
        if numpy is not None and isinstance(x, numpy.ndarray) and str(x.dtype) in _DTYPES:
            return "array", [str(x.dtype), json.dumps(x.tolist())]
        return None


class _Open:
    """A node whose children are still to be written."""

    def __init__(self, index: int, tag: str, children: Iterable[object]) -> None:
        self.index, self.tag, self.children = index, tag, children


class _Scalar:
    def __init__(self, value: object) -> None:
        self.value = value


def _some(iterator: Any) -> list[object]:
    taken: list[object] = []
    for item in iterator:
        if len(taken) >= _MAX_ITERATED:
            raise ValueError(f"an iterator yields more than {_MAX_ITERATED} items")
        taken.append(item)
    return taken


def _attributes(x: object) -> list[tuple[str, object]]:
    names = list(getattr(x, "__dict__", {}))
    for kind in type(x).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
    return [(name, getattr(x, name)) for name in names if hasattr(x, name)]


def decode(
    data: object,
    *,
    classes: Mapping[str, type] | None = None,
    handle: Callable[[Any], object] | None = None,
) -> Any:
    """The value behind :func:`encode`'s JSON. Runs nothing of the writer's, whatever the text holds.

    Args:
        classes: name -> class that an object of that name becomes; made without its ``__init__``.
        handle: gives what a handle stands for.

    Raises:
        ValueError: it is no such JSON, or has a class or handle that the reader does not know.
    """
    try:
        if not isinstance(data, list):
            raise ValueError(type(data).__name__)
        root, nodes, order = data
        return _Decoder(nodes, classes or {}, handle).decode(root, order)
    except (
        TypeError,
        ValueError,
        KeyError,
        IndexError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise ValueError(f"not a value that can be read: {error}") from None


class _Decoder:
    def __init__(
        self, nodes: list[Any], classes: Mapping[str, type], handle: Callable[[Any], object] | None
    ) -> None:
        self._nodes, self._classes, self._handle = nodes, classes, handle
        self._made: dict[int, Any] = {}

    def decode(self, root: object, order: list[int]) -> Any:
        shells: dict[str, Callable[[], Any]] = {
            "list": list, "dict": dict, "set": set, "deque": collections.deque,
        }  # fmt: skip
        for index, (tag, payload) in enumerate(self._nodes):
            if tag == "object":
                kind = self._classes[payload[0]]
                self._made[index] = object.__new__(kind)
            elif tag in shells:
                self._made[index] = shells[tag]()
        for index in order:
            if self._nodes[index][0] not in _MUTABLE:
                self._made[index] = self._immutable(*self._nodes[index])
        # Objects before sets and dicts: their hash may depend on their attributes.
        for tags in (("list", "object", "deque"), ("dict", "set")):
            for index in order:
                tag, payload = self._nodes[index]
                if tag in tags:
                    self._fill(self._made[index], tag, [self._value(ref) for ref in payload])
        return self._value(root)

    def _value(self, ref: Any) -> Any:
        if type(ref) is not dict:
            if type(ref) not in _PLAIN and type(ref) is not int:
                raise ValueError(f"a reference of type {type(ref).__name__}")
            return ref
        if "i" in ref:
            return int(ref["i"], 16)
        if "n" in ref:
            return self._made[ref["n"]]
        if self._handle is None:
            raise ValueError("a handle")
        return self._handle(ref["x"])

    def _fill(self, made: Any, tag: str, values: list[Any]) -> None:
        if tag == "object":
            for name, value in zip(values[1::2], values[2::2], strict=True):
                object.__setattr__(made, name, value)
        elif tag == "dict":
            made.update(zip(values[::2], values[1::2], strict=True))
        elif tag == "set":
            made.update(values)
        else:
            made.extend(values)

    def _immutable(self, tag: str, payload: list[Any]) -> Any:
        values = [self._value(ref) for ref in payload]
        match tag:
            case "tuple":
                return tuple(values)
            case "frozenset":
                return frozenset(values)
            case "bytes" | "bytearray":
                return (bytes if tag == "bytes" else bytearray).fromhex(values[0])
            case "complex":
                return complex(*values)
            case "fraction":
                return Fraction(*map(_integer, values))
            case "decimal":
                return Decimal(*values)
            case "range":
                return range(*map(_integer, values))
            case "iterator":
                return iter(values)
            case "keys":
                return dict.fromkeys(values).keys()
            case "values":
                return dict(enumerate(values)).values()
            case "items":
                return dict(values).items()
            case "type":
                return _TYPES[values[0]]
            case "array":
                return _array(*values)
        raise ValueError(f"a node of kind {tag!r}")


def _array(dtype: str, values: str) -> Any:
    import numpy as np

    if dtype not in _DTYPES:
        raise ValueError(f"an array of type {dtype}")
    return np.array(json.loads(values), dtype=dtype)


def _integer(value: object) -> int:
    if type(value) is not int:
        raise ValueError(f"{type(value).__name__} in place of an integer")
    return value
