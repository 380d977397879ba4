"""Changes as two MessagePack documents: what changed, and the content of small values.

They are apart so that listing checkpoints reads no content. ``docs/reference/format.md`` specifies both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import ormsgpack

from holdfast.checkpoint.format.changes import (
    NOTHING,
    Asked,
    Changes,
    Delivered,
    DropRef,
    Grow,
    Happened,
    Part,
    PutRef,
    Ref,
    Renames,
    Written,
)
from holdfast.engine.message import Expiry
from holdfast.engine.snapshot import BufferKey
from holdfast.engine.state import Scope
from holdfast.ids import Digest, ExecutorId, RequestId

PUT, GROW, DROP = 0, 1, 2
"""The kinds of writes."""

# Parts of parts lie no deeper: following them must not exhaust the stack.
_DEEPEST = 200

Document: TypeAlias = Mapping[str, Any]


class Table:
    """The values that a document names, each once."""

    def __init__(self) -> None:
        self.entries: list[tuple[Any, ...]] = []
        self.content: list[bytes] = []
        self._index: dict[int, int] = {}

    def add(self, ref: Ref) -> int:
        """The number of a value in this table."""
        known = self._index.get(id(ref))
        if known is not None:
            return known
        # Tuples of what cannot change: there may be ten thousand of them, which the garbage collector lets go.
        entry: tuple[Any, ...] = (ref.label, ref.size)
        if ref.parts is not None:
            entry += (None, [(int(part.is_item), self.add(part.ref)) for part in ref.parts])
        elif ref.digest is not None:
            entry += (ref.digest,)
        else:
            assert ref.data is not None, "a value that was read without its content cannot be stored"
            self.content.append(ref.data)
        number = self._index[id(ref)] = len(self.entries)
        self.entries.append(entry)
        return number


def pack_changes(changes: Changes) -> tuple[bytes, bytes]:
    """The two documents of a checkpoint or keyframe; empty where nothing changed."""
    if changes is NOTHING:
        return b"", b""
    table = Table()
    add = table.add
    document: dict[str, Any] = {}
    if changes.deliveries is not None:
        document["deliveries"] = _pack_deliveries(changes.deliveries, add)
    if changes.writes:
        document["writes"] = _pack_writes(changes.writes, add)
    if changes[_REST:] != _NO_REST:  # as most have none
        for number, name, pack in _PARTS:
            if part := changes[number]:
                document[name] = pack(part, add)
        if changes.since_input is not None:
            document["since_input"] = changes.since_input
    if not document:
        return b"", b""
    if table.entries:
        document["values"] = table.entries
    return ormsgpack.packb(document), ormsgpack.packb(table.content) if table.content else b""


def unpack_changes(changes: bytes, values: bytes | None) -> Changes:
    """The changes in two documents; without ``values`` nothing has content. Raises whatever broken data raises."""
    if not changes:
        return NOTHING
    document: Document = ormsgpack.unpackb(changes)
    content = None if values is None else list(ormsgpack.unpackb(values)) if values else []
    refs = refs_of(document.get("values", ()), content)
    return Changes(
        **{name: _UNPACKED[name](part, refs) for name, part in document.items() if name in _UNPACKED}
    )


def refs_of(entries: Sequence[Sequence[Any]], content: list[bytes] | None) -> list[Ref]:
    """The values of a table; without ``content`` small ones have none."""
    _check_types(entries, content)
    refs: list[Ref] = []
    grown: dict[int, tuple[int, int]] = {}
    inline = iter(content) if content is not None else None
    for entry in entries:
        # Told apart by their lengths, for a thousand tables are read at once.
        if len(entry) == 2:
            refs.append(Ref(entry[0], entry[1], None, None if inline is None else next(inline)))
        elif len(entry) == 3:
            if type(entry[2]) is not bytes:
                raise ValueError("the digest of a value is no bytes")
            refs.append(Ref(entry[0], entry[1], Digest(entry[2])))
        else:
            parts = [Part(bool(item), refs[number]) for item, number in entry[3]]
            ref = Ref(entry[0], entry[1], parts=parts)
            grown[id(ref)] = _expanse(parts, grown, len(entries))
            refs.append(ref)
    return refs


def _check_types(entries: Sequence[Sequence[Any]], content: list[bytes] | None) -> None:
    """Raise ``ValueError`` for a table that nobody wrote; what has other types would fail who knows where."""
    labels_and_sizes = {type(entry[0]) for entry in entries}, {type(entry[1]) for entry in entries}
    if entries and labels_and_sizes != ({str}, {int}):
        raise ValueError("a value has no name of a type, or no size")
    if content and not ({*map(type, content)} == {bytes} and all(content)):
        raise ValueError("the content of a value is no encoding")


def _expanse(parts: Sequence[Part], grown: Mapping[int, tuple[int, int]], most: int) -> tuple[int, int]:
    """Count the values without parts in a value, and their depth; raise ``ValueError`` if there cannot be so many.

    Each entry of a table stands in a value once. If it could stand there twice, a few entries that name each other
    would make a value without end.
    """
    inner = [grown.get(id(part.ref), (1, 0)) for part in parts]
    leaves, depth = sum(count for count, _ in inner), 1 + max([depth for _, depth in inner], default=0)
    if leaves > most or depth > _DEEPEST:
        raise ValueError(f"a value has {leaves:,} parts, {depth} deep, in a table of {most:,} entries")
    return leaves, depth


# Each part of the changes, to and from its document. ``add`` gives the number of a value, ``refs`` the value.

_Add: TypeAlias = Callable[[Ref], int]


def _pack_deliveries(deliveries: Sequence[Delivered], add: _Add) -> list[Any]:
    packed: list[Any] = []
    for target, source, ref, asked in deliveries:
        entry = [target, source, add(ref)]
        packed.append(entry if asked is None else [*entry, _pack_asked(asked, add)])
    return packed


def _unpack_deliveries(document: list[Any], refs: list[Ref]) -> list[Delivered]:
    return [
        Delivered(entry[0], entry[1], refs[entry[2]], _unpack_asked(entry[3], refs) if entry[3:] else None)
        for entry in document
    ]


def _pack_asked(asked: Asked, add: _Add) -> list[Any]:
    entry = [asked.request_id, asked.executor_id, add(asked.data), asked.form]
    if asked.expiry is not None:
        return [*entry, asked.seq, asked.expiry.at, asked.expiry.span]
    return [*entry, asked.seq] if asked.seq else entry


def _unpack_asked(document: list[Any], refs: list[Ref]) -> Asked:
    request_id, executor_id, number, form, *rest = document
    seq, *expiry = rest or [0]
    kinds = [*map(type, (request_id, executor_id, form, seq, *expiry))]
    if kinds[:3] != [str, str, bytes] or not {*kinds[3:]} <= {int, type(None)}:
        raise ValueError("a request is not what was written")
    return Asked(
        RequestId(request_id),
        ExecutorId(executor_id),
        refs[number],
        form,
        seq,
        Expiry(*expiry) if expiry else None,
    )


def _pack_writes(writes: Sequence[tuple[Scope, str, Written]], add: _Add) -> list[Any]:
    by_scope: list[list[Any]] = []
    last: Scope | None = None
    keys: list[tuple[Any, ...]] = []
    for scope, key, written in writes:
        if scope != last:
            keys = []
            by_scope.append([pack_scope(scope), keys])
            last = scope
        if isinstance(written, PutRef):
            keys.append((key, PUT, add(written.ref)))
        elif isinstance(written, Grow):
            parts = [(int(part.is_item), add(part.ref)) for part in written.parts]
            keys.append((key, GROW, written.label, parts))
        else:
            keys.append((key, DROP))
    return by_scope


def _unpack_writes(document: list[Any], refs: list[Ref]) -> list[tuple[Scope, str, Written]]:
    writes: list[tuple[Scope, str, Written]] = []
    for packed_scope, keys in document:
        scope = _scope(*packed_scope)
        for entry in keys:
            writes.append((scope, entry[0], _unpack_written(entry, refs)))
    return writes


def _unpack_written(entry: list[Any], refs: list[Ref]) -> Written:
    kind = entry[1]
    if kind == PUT:
        return PutRef(refs[entry[2]])
    if kind == GROW:
        return Grow(entry[2], tuple([Part(bool(item), refs[number]) for item, number in entry[3]]))
    if kind != DROP:
        raise ValueError(f"there is no write of kind {kind!r}")
    return DropRef()


def pack_scope(scope: Scope) -> list[Any]:
    """A scope in a document."""
    return [scope.owner, scope.name, scope.path] if scope.path else [scope.owner, scope.name]


@lru_cache(maxsize=1024)  # a run has few, and each of its records names them
def _scope(owner: str | None, name: str, path: str = "") -> Scope:
    return Scope(None if owner is None else ExecutorId(owner), name, path)


def _pack_buffers(buffers: Sequence[Any], add: _Add) -> list[Any]:
    return [
        [
            key.path,
            key.fan_in,
            extended and [[source, [add(ref) for ref in held]] for source, held in extended],
        ]
        for key, extended in buffers
    ]


def _unpack_buffers(document: list[Any], refs: list[Ref]) -> list[Any]:
    return [
        (
            BufferKey(path, fan_in),
            extended
            and [(ExecutorId(source), [refs[number] for number in held]) for source, held in extended],
        )
        for path, fan_in, extended in document
    ]


def _pack_pairs(pairs: Sequence[tuple[str, Ref]], add: _Add) -> list[Any]:
    return [[name, add(ref)] for name, ref in pairs]


def _unpack_pairs(document: list[Any], refs: list[Ref]) -> list[tuple[Any, Ref]]:
    return [(name, refs[number]) for name, number in document]


def _pack_answers(answers: Sequence[tuple[str, Ref, str | None]], add: _Add) -> list[Any]:
    return [[name, add(ref)] if by is None else [name, add(ref), by] for name, ref, by in answers]


def _unpack_answers(document: list[Any], refs: list[Ref]) -> list[tuple[Any, Ref, str | None]]:
    return [(name, refs[number], by[0] if by else None) for name, number, *by in document]


def _pack_happened(happened: Sequence[Happened], add: _Add) -> list[Any]:
    return [
        [executor_id, add(event)] if event is not None else [executor_id, None, *(warning or ())]
        for executor_id, event, warning in happened
    ]


def _unpack_happened(document: list[Any], refs: list[Ref]) -> list[Happened]:
    return [
        Happened(executor_id, refs[number])
        if number is not None
        else Happened(executor_id, None, tuple(warning))
        for executor_id, number, *warning in document
    ]


def _pack_rounds(rounds: Sequence[Any], _: object) -> list[Any]:
    return [[key.path, key.fan_in, None if sources is None else list(sources)] for key, sources in rounds]


def _unpack_rounds(document: list[Any], _: object) -> list[Any]:
    return [
        (BufferKey(path, fan_in), None if sources is None else tuple(map(ExecutorId, sources)))
        for path, fan_in, sources in document
    ]


def _unpack_renames(document: list[Any], _: object) -> Renames:
    names, fan_ins = document
    return Renames(names, {(path, fan_in): new for path, fan_in, new in fan_ins})


def _as_it_is(part: Any, _: object) -> Any:
    return part


# All but deliveries and writes, which most have; since_input says something also when it is 0.
_PACKED: Mapping[str, Callable[[Any, _Add], Any]] = {
    "dropped": lambda scopes, _: [pack_scope(scope) for scope in scopes],
    "buffers": _pack_buffers,
    "outputs": _pack_pairs,
    "requests": lambda requests, add: [_pack_asked(asked, add) for asked in requests],
    "answers": _pack_answers,
    "answered": lambda ids, _: list(ids),
    "instances": lambda instances, _: [[host, count] for host, count in instances],
    "fingerprint": lambda fingerprint, _: bytes.fromhex(fingerprint),
    "happened": _pack_happened,
    "graph": lambda ref, add: add(ref),
    "renames": lambda renames, _: [
        dict(renames.names),
        [[*old, new] for old, new in renames.fan_ins.items()],
    ],
    "rounds": _pack_rounds,
    "input": lambda ref, add: add(ref),
    "renewed": lambda renewed, _: renewed,
    "schemas": lambda schemas, _: [list(pair) for pair in schemas],
    "asked_at": lambda times, _: [list(pair) for pair in times],
    "asked_again": lambda ids, _: list(ids),
    "request_edits": lambda edits, add: [[name, None if ref is None else add(ref)] for name, ref in edits],
}

_PARTS = [(Changes._fields.index(name), name, pack) for name, pack in _PACKED.items()]
"""With their places among the changes."""

_REST = 2
_NO_REST = NOTHING[_REST:]

_UNPACKED: Mapping[str, Callable[[Any, list[Ref]], Any]] = {
    "deliveries": _unpack_deliveries,
    "writes": _unpack_writes,
    "dropped": lambda scopes, _: [_scope(*scope) for scope in scopes],
    "buffers": _unpack_buffers,
    "outputs": _unpack_pairs,
    "requests": lambda requests, refs: [_unpack_asked(asked, refs) for asked in requests],
    "answers": _unpack_answers,
    "answered": _as_it_is,
    "instances": lambda instances, _: [(ExecutorId(host), count) for host, count in instances],
    "since_input": _as_it_is,
    "fingerprint": lambda fingerprint, _: fingerprint.hex(),
    "happened": _unpack_happened,
    "graph": lambda number, refs: refs[number],
    "renames": _unpack_renames,
    "rounds": _unpack_rounds,
    "input": lambda number, refs: refs[number],
    "renewed": lambda renewed, _: bool(renewed),
    "schemas": lambda schemas, _: [(form, schema) for form, schema in schemas],
    "asked_at": lambda times, _: [(RequestId(request_id), time) for request_id, time in times],
    "asked_again": _as_it_is,
    "request_edits": lambda edits, refs: [
        (RequestId(request_id), None if number is None else refs[number]) for request_id, number in edits
    ],
}
