"""What is different between two values that were read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from holdfast.checkpoint.codec import Codec
from holdfast.checkpoint.diff.contents import content_of
from holdfast.checkpoint.diff.difference import Difference, DiffValue
from holdfast.checkpoint.diff.lines import Lines, unified
from holdfast.checkpoint.diff.parts import Codecs, compared, given, given_bytes
from holdfast.checkpoint.diff.plan import Job
from holdfast.checkpoint.diff.value_tree import Node, Unreadable, tree_of
from holdfast.checkpoint.diff.words import short, short_pair
from holdfast.checkpoint.format.changes import Part, Ref
from holdfast.checkpoint.views import Unread
from holdfast.errors import HoldfastError
from holdfast.graph.typing.types import type_name
from holdfast.ids import Digest

Content: TypeAlias = Mapping[Digest, bytes]


def told(job: Job, content: Content, codecs: Codecs) -> Difference | None:
    """The difference of a pair; None if there is none after all."""
    pair = job.pair
    if pair.old is None or pair.new is None:
        return _one_sided(job, content, codecs)
    named = Difference("changed", pair.place, pair.where, _unread(pair.old), _unread(pair.new))
    if not job.readable:
        return replace(named, complete=False)
    before = content_of(pair.old.label, job.old, content)
    after = content_of(pair.new.label, job.new, content)
    found = None
    if before != after:
        try:
            tell = _whole if job.from_start else _at_the_end
            found = tell(named, before, after, codecs)
        except Unreadable:  # so it is known by its bytes alone
            found = named
    if pair.forms is None:
        return found
    parts = () if found is None else found.parts
    return replace(found or named, parts=(_form_changed(pair.forms, codecs), *parts))


def _unread(ref: Ref) -> DiffValue:
    stand_in = Unread(Ref(ref.label, ref.size))
    return DiffValue(ref.label, ref.size, stand_in, repr(stand_in))


def _one_sided(job: Job, content: Content, codecs: Codecs) -> Difference:
    pair = job.pair
    if pair.new is not None:
        added = _alone(pair.new, job.new, codecs.new, content if job.readable else None)
        return Difference("added", pair.place, pair.where, after=added)
    assert pair.old is not None
    removed = _alone(pair.old, job.old, codecs.old, content if job.readable else None)
    return Difference("removed", pair.place, pair.where, removed)


def _alone(ref: Ref, parts: Sequence[Part], codec: Codec, content: Content | None) -> DiffValue:
    if content is None:
        return _unread(ref)
    data = content_of(ref.label, parts, content)
    try:
        return given_bytes(ref.label, data, codec, short(tree_of(data)))
    except Unreadable:
        return _unread(ref)


def _whole(named: Difference, before: bytes, after: bytes, codecs: Codecs) -> Difference:
    """What is different from the beginning to the end."""
    assert named.before is not None
    assert named.after is not None
    old, new = tree_of(before), tree_of(after)
    found, texts = compared(old, new, codecs), short_pair(old, new)
    return replace(
        named,
        before=given_bytes(named.before.type, before, codecs.old, texts[0]),
        after=given_bytes(named.after.type, after, codecs.new, texts[1]),
        lines=found.lines,
        parts=found.parts,
        complete=found.complete,
    )


def _at_the_end(named: Difference, before: bytes, after: bytes, codecs: Codecs) -> Difference:
    """What is different behind much that both begin with, which was not read."""
    old, new = tree_of(before), tree_of(after)
    lines = Lines(())
    if type(old) is str and type(new) is str:
        lines = unified(old, new, at_the_end=True)
    parts: list[Difference] = []
    if _is_something(old):
        parts.append(Difference("cut", (), "at the end", given(old, codecs.old)))
    if _is_something(new):
        parts.append(Difference("appended", (), "at the end", after=given(new, codecs.new)))
    return replace(named, lines=lines.lines, parts=tuple(parts), complete=lines.complete)


def _is_something(node: Node) -> bool:
    return node not in ("", b"", [])


def _form_changed(forms: tuple[bytes, bytes], codecs: Codecs) -> Difference:
    """That the answers to a request have another type now."""
    old, new = (_form(data, codec) for data, codec in zip(forms, codecs, strict=True))
    return Difference("changed", ("response_type",), "type of the answer", old, new)


def _form(data: bytes, codec: Codec) -> DiffValue:
    try:
        form = codec.decode_form(data)
        return DiffValue("type", len(data), form, type_name(form))
    except HoldfastError:  # of a type that is not declared here
        return DiffValue("type", len(data), Unread(Ref("type", len(data))), short(tree_of(data)))
