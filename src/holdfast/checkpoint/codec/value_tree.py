"""Encoded values as trees of plain data, which need no classes and run no code of users.

A node is None, a bool, int, float, str, bytes, a list of nodes, a dict of nodes by str, or an ``Extension``. A class
that is not declared here is an extension like any other, so its fields can be compared all the same.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from ormsgpack import unpackb

from holdfast.checkpoint.codec import wire
from holdfast.checkpoint.codec.reader import measure_nesting
from holdfast.checkpoint.codec.registry import TypeRegistry
from holdfast.checkpoint.codec.standard import FROM_BYTES, TAKEN
from holdfast.checkpoint.codec.writer import Takers, ValueWriter

Node: TypeAlias = Any


class Extension:
    """A value that MessagePack has no type for: its code, and its bytes as they were stored."""

    __slots__ = ("code", "payload")

    def __init__(self, code: int, payload: bytes) -> None:
        self.code = code
        self.payload = payload

    def __repr__(self) -> str:
        return f"<extension {self.code}, {len(self.payload)} bytes>"

    def unpack(self) -> Node:
        """Return the node that is packed in the payload."""
        return unpackb(self.payload, ext_hook=_extension)


# Ints and texts that MessagePack cannot hold; they become plain ints and texts.
_AT_ONCE = frozenset({wire.BIG_INT, wire.SURROGATES})


def _extension(code: int, payload: bytes) -> Node:
    return FROM_BYTES[code](payload) if code in _AT_ONCE else Extension(code, payload)


class NotATree(Exception):
    """Raised for bytes that are no encoded value."""


def tree_of(data: bytes) -> Node:
    """Return the tree of an encoded value; raise ``NotATree`` if it cannot be read.

    >>> tree_of(b"\\x82\\xa1a\\x01\\xa1b\\xc0")
    {'a': 1, 'b': None}
    """
    try:
        if len(data) > wire.MAX_NESTING and measure_nesting(data) > wire.MAX_NESTING:
            raise ValueError("it is nested too deeply")
        return unpackb(data, ext_hook=_extension)
    except Exception as error:  # broken bytes may raise anything
        raise NotATree(str(error)) from error


_TYPES = TypeRegistry()
_TAKERS: Takers = {**TAKEN, Extension: lambda node: (node.code, node.payload)}


def bytes_of(node: Node) -> bytes:
    """Return the encoding of a node, byte for byte as in the value.

    >>> bytes_of({"a": [1, -0.0]}) == bytes_of(tree_of(bytes_of({"a": [1, -0.0]})))
    True
    """
    return ValueWriter(_TYPES, _TAKERS).pack(node)


def same(one: Node, other: Node) -> bool:
    """Return True if two nodes are equal to the last bit: 1 is not True, 0.0 not -0.0, and a NaN equals itself.

    >>> same([1], [1]), same(1, True), same(0.0, -0.0), same(float("nan"), float("nan"))
    (True, False, False, True)
    """
    waiting = [(one, other)]
    while waiting:
        left, right = waiting.pop()
        kind = type(left)
        if kind is not type(right):
            return False
        if kind is list:
            if len(left) != len(right):
                return False
            waiting += zip(left, right, strict=True)
        elif kind is dict:
            if list(left) != list(right):
                return False
            waiting += zip(left.values(), right.values(), strict=True)
        elif kind is float:
            if struct.pack(">d", left) != struct.pack(">d", right):
                return False
        elif kind is Extension:
            if left.code != right.code or left.payload != right.payload:
                return False
        elif left != right:
            return False
    return True


class Items(NamedTuple):
    """A value as items in order; two such values are compared item by item only if their heads are equal."""

    head: Node
    items: Sequence[Node]


class Pairs(NamedTuple):
    """A value as keys with their values, in order."""

    head: Node
    pairs: Sequence[tuple[Node, Node]]


class Fields(NamedTuple):
    """A value as fields of an instance."""

    head: Node
    fields: Mapping[str, Node]


class Members(NamedTuple):
    """A value as members of a set."""

    head: Node
    members: Sequence[Node]


View: TypeAlias = Items | Pairs | Fields | Members


def view_node(node: Node) -> View | None:
    """Return the parts of a value; None for one that is not taken apart.

    >>> view_node([1, 2]), view_node(3)
    (Items(head=None, items=[1, 2]), None)
    """
    if type(node) is list:
        return Items(None, node)
    if type(node) is dict:
        return Pairs(None, list(node.items()))
    if type(node) is not Extension or node.code not in _VIEWS:
        return None
    try:
        view = _VIEWS[node.code](node.unpack())
    except Exception:  # broken bytes may raise anything
        return None
    # Both forms of a dict, with keys of text and with any keys, have the same head.
    return view if node.code == wire.DICT else view._replace(head=[node.code, view.head])


def _items(data: Node) -> Items:
    return Items(None, _list(data))


def _deque(data: Node) -> Items:
    longest, items = data
    return Items(longest, _list(items))


def _members(data: Node) -> Members:
    return Members(None, _list(data))


def _pairs(data: Node) -> Pairs:
    keys, values = data
    return Pairs(None, list(zip(_list(keys), _list(values), strict=True)))


def _default_dict(data: Node) -> Pairs:
    factory, *rest = data
    return Pairs(factory, _pairs(rest).pairs)


def _record(data: Node) -> Fields:
    name, version, *held = data
    own = {"(version)": version, **({"(fields that are not set)": held[2]} if len(held) > 2 else {})}
    return Fields(name, _merged(own, *held[:2]))


def _model(data: Node) -> Fields:
    name, version, fields, attributes, given, extra, private, *unset = data
    own = {"(version)": version, "(fields that were set)": given}
    if unset:
        own["(fields that are not set)"] = unset[0]
    return Fields(name, _merged(own, fields, attributes, extra or {}, private or {}))


def _error(data: Node) -> Fields:
    name, *_, args, attributes = data
    return Fields(name, _merged({"args": args}, attributes))


def _merged(*held: dict[str, Node]) -> dict[str, Node]:
    """Merge fields; a name that occurs again gets the number of its place."""
    merged: dict[str, Node] = {}
    for place, fields in enumerate(held):
        for name, node in fields.items():
            merged[name if name not in merged else f"{name} ({place})"] = node
    return merged


def _list(node: Node) -> list[Node]:
    if type(node) is not list:
        raise TypeError("this is no list")
    return node


_VIEWS: Mapping[int, Callable[[Node], View]] = {
    wire.TUPLE: _items,
    wire.DEQUE: _deque,
    wire.SET: _members,
    wire.FROZENSET: _members,
    wire.DICT: _pairs,
    wire.ORDERED_DICT: _pairs,
    wire.COUNTER: _pairs,
    wire.DEFAULT_DICT: _default_dict,
    wire.RECORD: _record,
    wire.MODEL: _model,
    wire.STANDARD_ERROR: _error,
    wire.ERROR: _error,
}
