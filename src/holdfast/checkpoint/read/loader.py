"""Loads the manifest of a checkpoint: begins at a keyframe and folds the changes since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import NamedTuple, TypeAlias

from holdfast.checkpoint.checkpoint_info import CheckpointInfo, Header, end_id, is_start_id
from holdfast.checkpoint.counters import Counters
from holdfast.checkpoint.derived_starts import find_checkpoint, read_records
from holdfast.checkpoint.format.blob_stream import FileSlice, PlainStream
from holdfast.checkpoint.format.changes import NOTHING, Changes
from holdfast.checkpoint.format.document import unpack_changes
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.record import corrupt, digest_of, id_of, info_of, read_header, unseal_keyframe
from holdfast.checkpoint.format.renames import fold_record
from holdfast.checkpoint.format.replay import Replay
from holdfast.checkpoint.format.stored_form import COMPRESSED, ELSEWHERE, elsewhere, plain_form, plain_size
from holdfast.checkpoint.store import Depth, Head, Record, Store
from holdfast.checkpoint.threads import reading_threads
from holdfast.checkpoint.values import Wanted
from holdfast.errors import CheckpointCorrupt
from holdfast.ids import CheckpointId, Digest, RunId

# Blobs of more than this are unpacked and checked in a thread.
_HEAVY = 1 << 20
# Of a blob whose size nothing tells, more than this is taken into memory only if it has the right name.
_LARGE = 64 << 20


class BlobReader:
    """Reads the blobs of one family of runs, unpacks and checks them."""

    def __init__(self, store: Store, family: RunId, counters: Counters) -> None:
        self._store = store
        self._family = family
        self._counters = counters

    async def read(self, wanted: Wanted) -> Mapping[Digest, bytes]:
        """Return the plain content of all these blobs."""
        found = await self._store.blobs(self._family, list(wanted))
        self._counters.blobs_read += len(found)
        heavy = sum(map(len, found.values())) > _HEAVY
        return (
            await reading_threads.call(lambda: _checked(wanted, found)) if heavy else _checked(wanted, found)
        )


def _checked(wanted: Wanted, found: Mapping[Digest, bytes]) -> dict[Digest, bytes]:
    sizes = wanted if isinstance(wanted, Mapping) else {}
    checked: dict[Digest, bytes] = {}
    for digest in wanted:
        if digest not in found:
            raise CheckpointCorrupt(f"blob {digest.hex()} is missing; {WHAT_NOW}")
        try:
            data = _plain(found[digest], digest, sizes.get(digest))
        except ValueError as error:
            raise CheckpointCorrupt(f"blob {digest.hex()} cannot be read: {error}; {WHAT_NOW}") from error
        if data is None or digest_of(data) != digest:
            raise CheckpointCorrupt(f"blob {digest.hex()} has other content than its name says; {WHAT_NOW}")
        checked[digest] = data
    return checked


def _plain(stored: bytes, digest: Digest, size: int | None) -> bytes | None:
    """Unpack a blob; None for a large one with another digest, which is found out without holding it in memory."""
    if size is None and stored.startswith(COMPRESSED):
        slowly = PlainStream(FileSlice(BytesIO(stored), len(stored)))
        if slowly.size > _LARGE and slowly.compute_digest() != digest:
            return None
    return plain_form(stored, size)


WHAT_NOW = (
    "the storage was damaged or changed by something else: 'await storage.verify()' lists what is affected"
)


class Loaded(NamedTuple):
    """A checkpoint with its manifest."""

    checkpoint_id: CheckpointId
    info: CheckpointInfo
    header: Header
    manifest: Manifest
    replay: Replay


def is_whole(record: Record) -> bool:
    """Return True if no part of a record lies elsewhere."""
    keyframe = record.keyframe
    return not (
        record.changes.startswith(ELSEWHERE)
        or record.values.startswith(ELSEWHERE)
        or (keyframe is not None and (elsewhere(keyframe.changes) or elsewhere(keyframe.values)))
    )


async def whole(record: Record, blobs: BlobReader) -> Record:
    """Return a record with the parts that lie elsewhere put in."""
    keyframe = record.keyframe
    parts = [record.changes, record.values]
    if keyframe is not None:
        parts += [keyframe.changes, keyframe.values]
    away = [digest for part in parts if (digest := elsewhere(part)) is not None]
    if not away:
        return record
    content = await blobs.read(away)

    def here(part: bytes) -> bytes:
        digest = elsewhere(part)
        return part if digest is None else b"\x00" + content[digest]

    if keyframe is not None:
        keyframe = keyframe._replace(changes=here(keyframe.changes), values=here(keyframe.values))
    return record._replace(changes=here(record.changes), values=here(record.values), keyframe=keyframe)


def changes_of(record: Record, depth: Depth) -> Changes:
    """Return the changes of a record, and check its id if all of it was read. A derived start changed nothing."""
    changes = values = b""
    if record.changes or record.values:  # every second record has none
        try:
            changes, values = plain_form(record.changes), plain_form(record.values)
        except ValueError as error:
            raise corrupt(record.checkpoint_id, f"it cannot be read: {error}") from error
    derived = is_start_id(record.checkpoint_id)
    # A start is what its end is; one without an end has what is checked.
    checked = depth is Depth.ALL and (changes or not derived)
    carrier = end_id(record.checkpoint_id) if derived else record.checkpoint_id
    if checked and id_of(record.header, changes, values) != carrier:
        raise corrupt(record.checkpoint_id, "its content is not what its id says")
    if derived:
        return NOTHING
    return _read(record, changes, values if depth is Depth.ALL else None)


def keyframe_of(record: Record, depth: Depth) -> Changes:
    """Return the changes of the keyframe of a record."""
    assert record.keyframe is not None
    try:
        values = plain_form(record.keyframe.values) if depth is Depth.ALL else None
        changes = unseal_keyframe(record.checkpoint_id, plain_form(record.keyframe.changes), values)
    except (ValueError, TypeError) as error:
        raise corrupt(record.checkpoint_id, f"its keyframe cannot be read: {error}") from error
    framed = _read(record, changes, values)
    return framed._replace(happened=()) if is_start_id(record.checkpoint_id) else framed


def _read(record: Record, changes: bytes, values: bytes | None) -> Changes:
    try:
        return unpack_changes(changes, values)
    except Exception as error:
        raise corrupt(record.checkpoint_id, f"it cannot be read: {error!r}") from error


Line: TypeAlias = Sequence[tuple[Record, Header | None]]
"""Records that follow each other, with their headers; that of a keyframe with which a line begins is not read."""


def lineage(records: Mapping[CheckpointId, Record], target: CheckpointId) -> Line:
    """Return the records that make a checkpoint, from one with a keyframe or the first of all up to it."""
    line: list[tuple[Record, Header | None]] = []
    wanted: CheckpointId | None = target
    while wanted is not None:
        record = records.get(wanted)
        if record is None:
            raise corrupt(target, f"checkpoint {wanted}, from which it follows, is missing")
        if record.keyframe is not None:
            line.append((record, None))
            break
        header = read_header(record)
        line.append((record, header))
        wanted = header.parent_id
    return line[::-1]


def folded(line: Line, depth: Depth) -> Manifest:
    """Return the manifest at the end of a line of records."""
    manifest = Manifest()
    for record, header in line:
        if header is None:
            manifest.fold(keyframe_of(record, depth), False)
        else:
            _fold(manifest, record, header, depth)
    return manifest


def fold_one(manifest: Manifest, record: Record, depth: Depth) -> None:
    """Fold one record into the manifest of its parent."""
    _fold(manifest, record, read_header(record), depth)


def _fold(manifest: Manifest, record: Record, header: Header, depth: Depth) -> None:
    try:
        fold_record(manifest, changes_of(record, depth), header.phase, header.cause, header.seq, header.time)
    except (KeyError, TypeError, AttributeError) as error:
        raise corrupt(record.checkpoint_id, f"it does not fit to its parent: {error!r}") from error


async def load(store: Store, blobs: BlobReader, head: Head, seq: int, depth: Depth) -> Loaded:
    """Load the checkpoint ``seq`` of a run, by as little replay as possible."""
    newest = await read_records(store, head.run_id, seq, seq, Depth.HEADERS)
    if not newest:
        raise CheckpointCorrupt(
            f"run {head.run_id} has no record {seq}, though it is said to be there; {WHAT_NOW}"
        )
    target = newest[0].checkpoint_id
    if seq == head.seq and target != head.checkpoint_id:
        raise corrupt(head.checkpoint_id, f"the run stands on it, but its record {seq} is another, {target}")
    first = read_header(newest[0]).replay_from
    try:
        records = await read_records(store, head.run_id, first, seq, depth)
    except (
        CheckpointCorrupt
    ):  # something else between them is damaged, perhaps: a branch that this does not need
        records = await _ancestors(store, head.run_id, seq, first, depth)
    line = [
        (record if is_whole(record) else await whole(record, blobs), header)
        for record, header in lineage({record.checkpoint_id: record for record in records}, target)
    ]
    newest_of_all = line[-1][0]
    header = line[-1][1] or read_header(newest_of_all)
    manifest = folded(line, depth)
    if newest_of_all.keyframe is not None and depth is Depth.ALL:
        changes_of(newest_of_all, depth)  # its id is checked though the keyframe is what counts
    return Loaded(target, info_of(newest[0]), header, manifest, _replay_of(line))


class LatestManifests:
    """Keeps the manifests of the runs that were answered last, so that only what came since is read."""

    _MOST = 4

    def __init__(self) -> None:
        self._known: dict[RunId, tuple[CheckpointId, int, Manifest]] = {}

    async def read(self, store: Store, blobs: BlobReader, head: Head) -> Manifest:
        """Read the manifest of a run that stands on ``head``; use it before you await anything, for it may move on."""
        known = self._known.pop(head.run_id, None)  # nobody else folds into it meanwhile
        if known is None or not await _fold_since(store, blobs, head, *known):
            manifest = (await load(store, blobs, head, head.seq, Depth.ALL)).manifest
        else:
            manifest = known[2]
        self._known[head.run_id] = head.checkpoint_id, head.seq, manifest
        while len(self._known) > self._MOST:
            self._known.pop(next(iter(self._known)), None)
        return manifest


async def _fold_since(
    store: Store, blobs: BlobReader, head: Head, parent: CheckpointId | None, seq: int, manifest: Manifest
) -> bool:
    """Fold into the manifest of a checkpoint what its run did since; false if the run did not go on from there."""
    if head.checkpoint_id == parent:
        return True
    line: list[Record] = []
    try:
        for record in await read_records(store, head.run_id, seq + 1, head.seq, Depth.ALL):
            if read_header(record).parent_id != parent:
                return False
            line.append(await whole(record, blobs))
            parent = record.checkpoint_id
        if parent != head.checkpoint_id:
            return False
        for record in line:
            fold_one(manifest, record, Depth.ALL)
    except CheckpointCorrupt:  # whoever loads all of it can tell whether that matters
        return False
    return True


async def _ancestors(store: Store, run_id: RunId, seq: int, first: int, depth: Depth) -> list[Record]:
    """Return the records from which one follows, read one by one."""
    found: list[Record] = []
    while True:
        found += await read_records(store, run_id, seq, seq, depth)
        parent = read_header(found[-1]).parent_id if found else None
        if parent is None or found[-1].keyframe is not None:
            return found
        place = await find_checkpoint(store, parent)
        if place is None or place[0] != run_id or not first <= place[1] < seq:
            return found
        seq = place[1]


def _replay_of(line: Line) -> Replay:
    first, header = line[0]
    keyframe = first.keyframe
    size = plain_size(keyframe.changes) + plain_size(keyframe.values) if keyframe is not None else 0
    replay = Replay(first.seq, size)
    for record, _ in line[1:] if header is None else line:
        if record.changes or record.values:  # the others weigh nothing, as when they were made
            replay.add(plain_size(record.changes), plain_size(record.values))
    return replay
