"""Compares the parts of two value trees, down to those that changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from holdfast.checkpoint.codec import Codec
from holdfast.checkpoint.codec.value_tree import (
    Fields,
    Items,
    Members,
    Node,
    Pairs,
    View,
    bytes_of,
    same,
    view_node,
)
from holdfast.checkpoint.diff.difference import Difference, DiffValue
from holdfast.checkpoint.diff.node_text import short, short_pair, type_of
from holdfast.checkpoint.diff.sequence_diff import Lines, gaps, unified
from holdfast.checkpoint.format.changes import Ref
from holdfast.checkpoint.views import Unread
from holdfast.errors import HoldfastError

WHOLE = 1 << 20
"""Values up to this size are given; of others only the type and the size."""
MOST = 100
"""At most so many different parts are given."""
# Parts at greater depth are not taken apart.
_DEEPEST = 32


class PartPlace(NamedTuple):
    """The place of a part in a value: the steps that lead to it, and their text."""

    steps: tuple[Any, ...] = ()
    text: str = ""

    def item(self, index: int) -> PartPlace:
        """Return the place of an item of the list here."""
        return PartPlace((*self.steps, index), f"{self.text}[{index}]")

    def key(self, key: Node, codec: Codec) -> PartPlace:
        """Return the place of the value of a key of the dict here."""
        step = key if type(key) is str else make_node_side(key, codec).value
        return PartPlace((*self.steps, step), f"{self.text}[{short(key)}]")

    def member(self, member: Node, codec: Codec) -> PartPlace:
        """Return the place of a member of the set here."""
        return PartPlace((*self.steps, make_node_side(member, codec).value), f"{self.text}{{}}")

    def field(self, name: str) -> PartPlace:
        """Return the place of a field of the instance here."""
        return PartPlace((*self.steps, name), f"{self.text}.{name}")


class InnerDiff(NamedTuple):
    """The differences inside a value."""

    parts: tuple[Difference, ...] = ()
    lines: tuple[str, ...] = ()
    complete: bool = True


class Codecs(NamedTuple):
    """The codecs that decode the values of the old and of the new side."""

    old: Codec
    new: Codec


def make_node_side(node: Node, codec: Codec, text: str | None = None) -> DiffValue:
    """Make one side of a difference of a node."""
    return make_side(type_of(node), bytes_of(node), codec, short(node) if text is None else text)


def make_side(label: str, data: bytes, codec: Codec, text: str) -> DiffValue:
    """Make one side of a difference of an encoded value."""
    value: Any = Unread(Ref(label, len(data)))
    if len(data) <= WHOLE:
        try:
            value = codec.decode(data)
        except HoldfastError:  # its type is not declared here, or was changed
            pass
    return DiffValue(label, len(data), value, text)


def compare_trees(old: Node, new: Node, codecs: Codecs) -> InnerDiff:
    """Return the differences inside two values that are known to differ; none if they have no parts to compare.

    >>> found = compare_trees({"a": 1, "b": [1, 2]}, {"a": 1, "b": [1, 3, 4]}, Codecs(Codec(), Codec()))
    >>> print(*found.parts, sep="; ")
    ~ ['b'][1]: 2 -> 3; + ['b'][2]: 4
    """
    parts = list(islice(_TreeComparison(codecs).parts(PartPlace(), old, new, 0), MOST + 1))
    if len(parts) == 1 and parts[0].place == () and parts[0].kind == "changed":
        return InnerDiff((), parts[0].lines, parts[0].complete)
    return InnerDiff(tuple(parts[:MOST]), (), len(parts) <= MOST)


class _TreeComparison:
    """Walks two trees side by side."""

    def __init__(self, codecs: Codecs) -> None:
        self._codecs = codecs

    def parts(self, place: PartPlace, old: Node, new: Node, depth: int) -> Iterator[Difference]:
        """Give the parts that differ, or the whole value if it has none."""
        if same(old, new):
            return
        one, other = (view_node(old), view_node(new)) if depth < _DEEPEST else (None, None)
        found = False
        if one is not None and other is not None and type(one) is type(other) and same(one.head, other.head):
            for part in self._inside(place, one, other, depth + 1):
                found = True
                yield part
        if not found:
            yield self._changed(place, old, new)

    def _inside(self, place: PartPlace, old: View, new: View, depth: int) -> Iterator[Difference]:
        if isinstance(old, Items) and isinstance(new, Items):
            yield from self._items(place, old.items, new.items, depth)
        elif isinstance(old, Pairs) and isinstance(new, Pairs):
            yield from self._pairs(place, old.pairs, new.pairs, depth)
        elif isinstance(old, Fields) and isinstance(new, Fields):
            yield from self._fields(place, old, new, depth)
        elif isinstance(old, Members) and isinstance(new, Members):
            yield from self._members(place, old.members, new.members)

    def _items(
        self, place: PartPlace, old: Sequence[Node], new: Sequence[Node], depth: int
    ) -> Iterator[Difference]:
        for gap in gaps([bytes_of(item) for item in old], [bytes_of(item) for item in new]):
            common = min(gap.stop - gap.start, gap.other_stop - gap.other_start)
            for index in range(common):
                before, after = gap.start + index, gap.other_start + index
                yield from self.parts(place.item(after), old[before], new[after], depth)
            for index in range(gap.start + common, gap.stop):
                yield self._removed(place.item(index), old[index])
            for index in range(gap.other_start + common, gap.other_stop):
                yield self._added(place.item(index), new[index])

    def _pairs(
        self,
        place: PartPlace,
        old: Sequence[tuple[Node, Node]],
        new: Sequence[tuple[Node, Node]],
        depth: int,
    ) -> Iterator[Difference]:
        before = {bytes_of(key): (key, part) for key, part in old}
        after = {bytes_of(key): (key, part) for key, part in new}
        for name, (key, part) in before.items():
            if name not in after:
                yield self._removed(place.key(key, self._codecs.old), part)
        for name, (key, part) in after.items():
            inside = place.key(key, self._codecs.new)
            if name in before:
                yield from self.parts(inside, before[name][1], part, depth)
            else:
                yield self._added(inside, part)
        if [name for name in before if name in after] != [name for name in after if name in before]:
            yield Difference(
                "reordered",
                place.steps,
                place.text,
                make_node_side([key for key, _ in old], self._codecs.old),
                make_node_side([key for key, _ in new], self._codecs.new),
            )

    def _fields(self, place: PartPlace, old: Fields, new: Fields, depth: int) -> Iterator[Difference]:
        for name, part in old.fields.items():
            if name not in new.fields:
                yield self._removed(place.field(name), part)
        for name, part in new.fields.items():
            if name in old.fields:
                yield from self.parts(place.field(name), old.fields[name], part, depth)
            else:
                yield self._added(place.field(name), part)

    def _members(self, place: PartPlace, old: Sequence[Node], new: Sequence[Node]) -> Iterator[Difference]:
        before = {bytes_of(member): member for member in old}
        after = {bytes_of(member): member for member in new}
        for name, member in before.items():
            if name not in after:
                yield self._removed(place.member(member, self._codecs.old), member)
        for name, member in after.items():
            if name not in before:
                yield self._added(place.member(member, self._codecs.new), member)

    def _added(self, place: PartPlace, node: Node) -> Difference:
        return Difference("added", *place, after=make_node_side(node, self._codecs.new))

    def _removed(self, place: PartPlace, node: Node) -> Difference:
        return Difference("removed", *place, make_node_side(node, self._codecs.old))

    def _changed(self, place: PartPlace, old: Node, new: Node) -> Difference:
        lines = Lines(())
        if type(old) is str and type(new) is str and ("\n" in old or "\n" in new):
            lines = unified(old, new)
        before, after = short_pair(old, new)
        return Difference(
            "changed",
            *place,
            make_node_side(old, self._codecs.old, before),
            make_node_side(new, self._codecs.new, after),
            lines.lines,
            complete=lines.complete,
        )
