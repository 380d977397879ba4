"""Compares two checkpoints: reads the values that may differ, and describes the differences."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from holdfast.checkpoint.checkpoint_info import CheckpointInfo
from holdfast.checkpoint.codec import Codec
from holdfast.checkpoint.codec.value_tree import Node, NotATree, tree_of
from holdfast.checkpoint.diff.difference import CheckpointDiff, Difference, DiffValue
from holdfast.checkpoint.diff.node_text import short, short_pair
from holdfast.checkpoint.diff.sequence_diff import Lines, unified
from holdfast.checkpoint.diff.tree_diff import WHOLE, Codecs, compare_trees, make_node_side, make_side
from holdfast.checkpoint.diff.value_pairs import Pair, pairs_of
from holdfast.checkpoint.format.changes import Part, Ref
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.stored_content import Verdict, compare_pieces, content_of, pieces_of, sizes_of
from holdfast.checkpoint.read.catalog import RunCatalog
from holdfast.checkpoint.read.loader import load
from holdfast.checkpoint.read.reread import steadily
from holdfast.checkpoint.store import Depth
from holdfast.checkpoint.threads import reading_threads
from holdfast.checkpoint.values import BlobSource
from holdfast.checkpoint.views import Unread
from holdfast.errors import HoldfastError
from holdfast.graph.describe.difference import describe_difference
from holdfast.graph.typing.types import type_name
from holdfast.ids import CheckpointId, Digest, RunId

# More bytes than this are compared in a thread.
_HEAVY = 1 << 20
# At most so many differences of graphs are listed; more are counted.
_LISTED = 20


class _Side(NamedTuple):
    """One of two checkpoints, with its codec and its blobs."""

    info: CheckpointInfo
    manifest: Manifest
    codec: Codec
    family: RunId
    blobs: BlobSource


async def diff_checkpoints(catalog: RunCatalog, old: CheckpointId, new: CheckpointId) -> CheckpointDiff:
    """Return the difference between two checkpoints of any runs."""

    async def look() -> CheckpointDiff:
        return await _diff_sides(await _load_side(catalog, old), await _load_side(catalog, new))

    return await steadily(look)


async def _load_side(catalog: RunCatalog, checkpoint_id: CheckpointId) -> _Side:
    head, seq = await catalog.find(checkpoint_id)
    blobs = catalog.blobs(head.family)
    loaded = await load(catalog.store, blobs, head, seq, Depth.ALL)
    return _Side(
        loaded.info,
        loaded.manifest,
        catalog.codec_for(head.workflow_name, head.fingerprint),
        head.family,
        blobs,
    )


async def _diff_sides(old: _Side, new: _Side) -> CheckpointDiff:
    """Compare two checkpoints; reads only values whose names do not tell whether they are the same."""
    codecs = Codecs(old.codec, new.codec)
    tasks = [task for pair in pairs_of(old.manifest, new.manifest) if (task := plan_pair(pair)) is not None]
    sections: dict[str, list[Difference]] = {}
    for batch in make_batches(tasks):
        content = await _read_blobs(old, new, batch)
        heavy = sum(task.size for task in batch) > _HEAVY
        describe = partial(_describe_batch, batch, content, codecs)
        found = await reading_threads.call(describe) if heavy else describe()
        for section, entry in found:
            sections.setdefault(section, []).append(entry)
    found_in = {section: tuple(entries) for section, entries in sections.items()}
    return CheckpointDiff(old.info, new.info, graph=await _compare_graphs(old, new), **found_in)


def _describe_batch(
    batch: Sequence[PairTask], content: Mapping[Digest, bytes], codecs: Codecs
) -> list[tuple[str, Difference]]:
    found = [(task.pair.section, describe_pair(task, content, codecs)) for task in batch]
    return [(section, entry) for section, entry in found if entry is not None]


async def _read_blobs(old: _Side, new: _Side, batch: Sequence[PairTask]) -> dict[Digest, bytes]:
    """Read the blobs that a batch needs, each once: a name means the same content in every family."""
    before = {digest: size for task in batch for digest, size in task.old_sizes.items()}
    after = {
        digest: size for task in batch for digest, size in task.new_sizes.items() if digest not in before
    }
    if old.family == new.family:
        before, after = before | after, {}
    content: dict[Digest, bytes] = {}
    for side, sizes in ((old, before), (new, after)):
        if sizes:
            content.update(await side.blobs.read(sizes))
    return content


async def _compare_graphs(old: _Side, new: _Side) -> tuple[str, ...]:
    """Return the differences of the graphs that made the checkpoints, as lines of text."""
    before, after = old.manifest.fingerprint, new.manifest.fingerprint
    if before == after:
        return ()
    if old.info.workflow_name != new.info.workflow_name:
        return (f"workflow {old.info.workflow_name!r} and workflow {new.info.workflow_name!r}",)
    one, other = await _read_description(old), await _read_description(new)
    lines = [] if one is None or other is None else describe_difference(one, other)
    more = [f"and {len(lines) - _LISTED:,} more differences"] if len(lines) > _LISTED else []
    return tuple(lines[:_LISTED] + more) or (f"fingerprint {before[:8]}, then {after[:8]}",)


async def _read_description(side: _Side) -> Any:
    """Return the description of the graph that made a checkpoint; None if it has none that can be read."""
    ref = side.manifest.graph
    if ref is None:
        return None
    parts = pieces_of(ref)
    sizes = sizes_of(parts)
    content = await side.blobs.read(sizes) if sizes else {}
    try:
        return json.loads(side.codec.decode(content_of(ref.label, parts, content)))
    except (ValueError, RecursionError):
        return None


# Two values that are bigger than this together are not read to compare their parts.
LARGEST = 512 << 20
# About so many bytes are in memory at a time, unless one pair is bigger.
_BATCH = 32 << 20


class PairTask(NamedTuple):
    """A pair that may differ, and the pieces that are compared to find out."""

    pair: Pair
    old: Sequence[Part] = ()
    new: Sequence[Part] = ()
    from_start: bool = True
    """True if the pieces are the whole values; else they follow a long beginning that both share."""
    readable: bool = True
    """True if the pieces are small enough to be read."""

    @property
    def size(self) -> int:
        """The bytes to read and compare."""
        return sum(part.ref.size for part in [*self.old, *self.new]) if self.readable else 0

    @property
    def old_sizes(self) -> dict[Digest, int]:
        """The blobs to read of the first checkpoint, with their sizes."""
        return sizes_of(self.old) if self.readable else {}

    @property
    def new_sizes(self) -> dict[Digest, int]:
        """The blobs to read of the second checkpoint, with their sizes."""
        return sizes_of(self.new) if self.readable else {}


def plan_pair(pair: Pair) -> PairTask | None:
    """Return the task of comparing a pair; None if its values are known to be the same."""
    old, new = pair.old, pair.new
    if old is None or new is None:
        task = PairTask(pair, () if old is None else pieces_of(old), () if new is None else pieces_of(new))
        return task._replace(readable=task.size <= WHOLE)
    between = compare_pieces(old, new)
    if between.verdict is Verdict.SAME and pair.forms is None:
        return None
    if between.shared_size > WHOLE:
        task = PairTask(pair, between.old, between.new, from_start=False)
    else:
        task = PairTask(pair, pieces_of(old), pieces_of(new))
    return task._replace(readable=task.size <= LARGEST)


def make_batches(tasks: Sequence[PairTask]) -> Iterator[list[PairTask]]:
    """Give the tasks in batches that fit into memory."""
    batch: list[PairTask] = []
    size = 0
    for task in tasks:
        if batch and size + task.size > _BATCH:
            yield batch
            batch, size = [], 0
        batch.append(task)
        size += task.size
    if batch:
        yield batch


Content: TypeAlias = Mapping[Digest, bytes]


def describe_pair(task: PairTask, content: Content, codecs: Codecs) -> Difference | None:
    """Return the difference of a pair; None if there is none after all."""
    pair = task.pair
    if pair.old is None or pair.new is None:
        return _describe_one_side(task, content, codecs)
    named = Difference("changed", pair.place, pair.where, _unread(pair.old), _unread(pair.new))
    if not task.readable:
        return replace(named, complete=False)
    before = content_of(pair.old.label, task.old, content)
    after = content_of(pair.new.label, task.new, content)
    found = None
    if before != after:
        try:
            describe = _describe_whole if task.from_start else _describe_end
            found = describe(named, before, after, codecs)
        except NotATree:  # only the bytes are known to differ
            found = named
    if pair.forms is None:
        return found
    parts = () if found is None else found.parts
    return replace(found or named, parts=(_describe_forms(pair.forms, codecs), *parts))


def _unread(ref: Ref) -> DiffValue:
    stand_in = Unread(Ref(ref.label, ref.size))
    return DiffValue(ref.label, ref.size, stand_in, repr(stand_in))


def _describe_one_side(task: PairTask, content: Content, codecs: Codecs) -> Difference:
    pair = task.pair
    if pair.new is not None:
        added = _describe_value(pair.new, task.new, codecs.new, content if task.readable else None)
        return Difference("added", pair.place, pair.where, after=added)
    assert pair.old is not None
    removed = _describe_value(pair.old, task.old, codecs.old, content if task.readable else None)
    return Difference("removed", pair.place, pair.where, removed)


def _describe_value(ref: Ref, parts: Sequence[Part], codec: Codec, content: Content | None) -> DiffValue:
    if content is None:
        return _unread(ref)
    data = content_of(ref.label, parts, content)
    try:
        return make_side(ref.label, data, codec, short(tree_of(data)))
    except NotATree:
        return _unread(ref)


def _describe_whole(named: Difference, before: bytes, after: bytes, codecs: Codecs) -> Difference:
    """Compare whole values."""
    assert named.before is not None
    assert named.after is not None
    old, new = tree_of(before), tree_of(after)
    found, texts = compare_trees(old, new, codecs), short_pair(old, new)
    return replace(
        named,
        before=make_side(named.before.type, before, codecs.old, texts[0]),
        after=make_side(named.after.type, after, codecs.new, texts[1]),
        lines=found.lines,
        parts=found.parts,
        complete=found.complete,
    )


def _describe_end(named: Difference, before: bytes, after: bytes, codecs: Codecs) -> Difference:
    """Compare the ends of values that share a long beginning, which was not read."""
    old, new = tree_of(before), tree_of(after)
    lines = Lines(())
    if type(old) is str and type(new) is str:
        lines = unified(old, new, at_the_end=True)
    parts: list[Difference] = []
    if _is_not_empty(old):
        parts.append(Difference("cut", (), "at the end", make_node_side(old, codecs.old)))
    if _is_not_empty(new):
        parts.append(Difference("appended", (), "at the end", after=make_node_side(new, codecs.new)))
    return replace(named, lines=lines.lines, parts=tuple(parts), complete=lines.complete)


def _is_not_empty(node: Node) -> bool:
    return node not in ("", b"", [])


def _describe_forms(forms: tuple[bytes, bytes], codecs: Codecs) -> Difference:
    """Describe that the answers to a request have another type now."""
    old, new = (_form(data, codec) for data, codec in zip(forms, codecs, strict=True))
    return Difference("changed", ("response_type",), "type of the answer", old, new)


def _form(data: bytes, codec: Codec) -> DiffValue:
    try:
        form = codec.decode_form(data)
        return DiffValue("type", len(data), form, type_name(form))
    except HoldfastError:  # of a type that is not declared here
        unread = _unread(Ref("type", len(data)))
        try:
            return replace(unread, text=short(tree_of(data)))
        except NotATree:
            return unread
