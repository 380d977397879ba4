"""Short texts of nodes: a value in a few words, and its type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.checkpoint.codec import Codec, wire
from holdfast.checkpoint.codec.value_tree import (
    Extension,
    Fields,
    Items,
    Members,
    Node,
    Pairs,
    bytes_of,
    view_node,
)
from holdfast.checkpoint.views import size_text

_PLAIN = Codec()
_NAMES = {
    wire.COMPLEX: "complex",
    wire.BYTEARRAY: "bytearray",
    wire.TUPLE: "tuple",
    wire.SET: "set",
    wire.FROZENSET: "frozenset",
    wire.DICT: "dict",
    wire.RANGE: "range",
    wire.ELLIPSIS: "ellipsis",
    wire.DECIMAL: "Decimal",
    wire.FRACTION: "Fraction",
    wire.UUID: "UUID",
    wire.DATE: "date",
    wire.DATETIME: "datetime",
    wire.DATETIME_IN_ZONE: "datetime",
    wire.TIME: "time",
    wire.TIME_IN_ZONE: "time",
    wire.TIMEDELTA: "timedelta",
    wire.TIMEZONE: "timezone",
    wire.ZONE_INFO: "ZoneInfo",
    wire.ORDERED_DICT: "OrderedDict",
    wire.DEFAULT_DICT: "defaultdict",
    wire.COUNTER: "Counter",
    wire.DEQUE: "deque",
    wire.ARRAY: "ndarray",
    wire.SCALAR: "numpy scalar",
}
# Their payload begins with their own name.
_NAMED = frozenset(
    {wire.RECORD, wire.MODEL, wire.MEMBER, wire.FLAG, wire.STANDARD_ERROR, wire.ERROR, wire.PATH}
)
_BRACKETS = {
    wire.TUPLE: ("(", ")"),
    wire.SET: ("{", "}"),
    wire.FROZENSET: ("frozenset({", "})"),
    wire.DICT: ("", ""),
}
# A text may be so much longer than the room for it.
_SLACK = 8
# Of ints with more bits only the size is given; Python refuses to write very long ones.
_LONG_INT = 200


def in_line(text: str) -> str:
    """Return a text of users so that it fits into one line.

    >>> print(in_line("Logs"), in_line("a\\nb"))
    Logs 'a\\nb'
    """
    return text if text.isprintable() else repr(text)


def type_of(node: Node) -> str:
    """Return the type of a node, for people.

    >>> type_of([1]), type_of(None), type_of(Extension(wire.DECIMAL, b"1.5"))
    ('list', 'NoneType', 'Decimal')
    """
    if type(node) is not Extension:
        return type(node).__name__
    if node.code in _NAMED:
        return _name(node)
    return _NAMES.get(node.code, "value")


def _name(node: Extension) -> str:
    try:
        return str(node.unpack()[0])
    except Exception:  # whatever broken bytes raise
        return "value"


def short(node: Node, room: int = 60) -> str:
    """Return a node as text of about ``room`` characters; a larger one is cut.

    >>> short({"a": [1, 2.5, None]}), short("x" * 100, 8), short(list(range(100)), 12)
    ("{'a': [1, 2.5, None]}", "'xxxxxxxx…'", '[0, 1, 2, 3, 4, 5, 6…')
    """
    words: list[str] = []
    writer = _NodeWriter(room)
    for word in writer.words(node):
        if words and len(word) > writer.left + _SLACK:
            return "".join(words) + "…"
        words.append(word)
        writer.left -= len(word)
    return "".join(words)


def short_pair(old: Node, new: Node, room: int = 60) -> tuple[str, str]:
    """Return two nodes as short texts; of long texts the part around the first difference.

    >>> short_pair("a" * 99 + "b", "a" * 99 + "c", 9)
    ("'…aaab'", "'…aaac'")
    """
    if type(old) is not type(new) or type(old) not in (str, bytes):
        return short(old, room), short(new, room)
    if max(len(old), len(new)) <= room:
        return short(old, room), short(new, room)
    start = max(_first_difference(old, new) - room // 3, 0)
    return _from(old, start, room), _from(new, start, room)


def _from(text: Any, start: int, room: int) -> str:
    shown = short(text[start:] if start else text, room)
    if not start:
        return shown
    quote = 1 + (type(text) is bytes)
    return f"{shown[:quote]}…{shown[quote:]}"


def _first_difference(one: Any, other: Any) -> int:
    """Return the number of characters with which both texts begin."""
    known, unknown = 0, min(len(one), len(other)) + 1
    while unknown - known > 1:
        middle = (known + unknown) // 2
        if one[known:middle] == other[known:middle]:
            known = middle
        else:
            unknown = middle
    return known


class _NodeWriter:
    """Writes a node word by word; of a text only as much as there is room for."""

    def __init__(self, room: int) -> None:
        self.left = room

    def words(self, node: Node) -> Iterator[str]:
        """Give the words of a node; the caller stops when there is no more room."""
        kind = type(node)
        if kind is str or kind is bytes:
            room = max(self.left, _SLACK)
            shown = repr(node[:room])
            yield shown if len(node) <= room else f"{shown[:-1]}…{shown[-1]}"
        elif kind is list:
            yield from self._listed(node, "[", "]")
        elif kind is dict:
            yield from self._mapped(list(node.items()))
        elif kind is int and node.bit_length() > _LONG_INT:
            yield f"<int, {size_text(len(bytes_of(node)))}>"
        elif kind is Extension:
            yield from self._extension(node)
        else:
            yield repr(node)

    def _extension(self, node: Extension) -> Iterator[str]:
        view = view_node(node)
        if view is None:
            yield _other(node)
            return
        start, end = _BRACKETS.get(node.code) or (f"{type_of(node)}(", ")")
        if isinstance(view, Items) and node.code == wire.TUPLE:
            yield from self._listed(view.items, start, ",)" if len(view.items) == 1 else end)
        elif isinstance(view, Members):
            if not view.members and node.code == wire.SET:
                start, end = "set(", ")"
            yield from self._listed(view.members, start, end)
        else:
            yield start
            if isinstance(view, Items):
                yield from self._listed(view.items, "[", "]")
            elif isinstance(view, Pairs):
                yield from self._mapped(view.pairs)
            else:
                yield from self._fields(view)
            yield end

    def _listed(self, items: Sequence[Node], start: str, end: str) -> Iterator[str]:
        yield start
        for place, item in enumerate(items):
            if place:
                yield ", "
            yield from self.words(item)
        yield end

    def _mapped(self, pairs: Sequence[tuple[Node, Node]]) -> Iterator[str]:
        yield "{"
        for place, (key, value) in enumerate(pairs):
            if place:
                yield ", "
            yield from self.words(key)
            yield ": "
            yield from self.words(value)
        yield "}"

    def _fields(self, view: Fields) -> Iterator[str]:
        shown = {name: node for name, node in view.fields.items() if not name.startswith("(")}
        args = shown.pop("args", []) if view.head[0] in (wire.STANDARD_ERROR, wire.ERROR) else []
        named = [("", arg) for arg in args] + [(f"{name}=", node) for name, node in shown.items()]
        for place, (name, node) in enumerate(named):
            yield f", {name}" if place else name
            yield from self.words(node)


def _other(node: Extension) -> str:
    """Return the text of a value that is not taken apart: of the standard library, an enum member or an array."""
    try:
        if node.code == wire.MEMBER:
            return "{}.{}".format(*node.unpack())
        if node.code in (wire.FLAG, wire.PATH):
            name, value = node.unpack()
            return f"{name}({value!r})"
        if node.code in (wire.ARRAY, wire.SCALAR):
            kind, *_ = node.unpack()
            return f"<{type_of(node)} of {kind}, {size_text(len(node.payload))}>"
        return repr(_PLAIN.decode(bytes_of(node)))
    except Exception:  # a text about values must not fail because of one
        return f"<{type_of(node)}, {size_text(len(node.payload))}>"
