"""Whether everything stored of one run is what was stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from holdfast.checkpoint.format import slices
from holdfast.checkpoint.format.changes import Changes, Part, Ref, sizes_in
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.record import read_header
from holdfast.checkpoint.format.refs import OfRun, Place, placed_in
from holdfast.checkpoint.info import Header
from holdfast.checkpoint.journal import done_by, sizes_in_note
from holdfast.checkpoint.maintenance.problems import LostValue, Problem, VerifyReport
from holdfast.checkpoint.progress import Steps
from holdfast.checkpoint.read.loading import WHAT_NOW, Blobs, changes_of, fold_one, keyframe_of, load, whole
from holdfast.checkpoint.read.paging import Unreadable, each_record
from holdfast.checkpoint.store import Depth, Head, Note, Record, Store
from holdfast.checkpoint.write.bundles import unbundled
from holdfast.errors import CheckpointCorrupt, HoldfastError
from holdfast.ids import CheckpointId, Digest

# A run that waits or is over may have been touched long after its last checkpoint, but not centuries.
_FAR_FUTURE = 100 * 365 * 86_400 * 1_000_000


class _Known(NamedTuple):
    """What later records need to know of an earlier one."""

    seq: int
    base: int
    """The seq of the record with which replay to it begins: the first of all, or one with a keyframe."""
    loads: bool
    """Whether it can be loaded."""


class _Said(NamedTuple):
    """What is wrong with a checkpoint."""

    what: str
    value: LostValue | None = None


class RunCheck:
    """Checks the records of one run, in order of seq. Of those that it has seen it keeps only where they are."""

    def __init__(self, store: Store, head: Head, blobs: Blobs, report: VerifyReport) -> None:
        self._store = store
        self._head = head
        self._blobs = blobs
        self._report = report
        self._known: dict[CheckpointId, _Known] = {}
        self._checked: set[tuple[Digest, int]] = set()
        self._bad: dict[Digest, str] = {}
        """The blobs that cannot be read, and why."""
        self._last: tuple[CheckpointId, Manifest] | None = None
        self._time = 0

    def wrong(
        self,
        checkpoint_id: CheckpointId | None,
        what: str,
        seq: int | None = None,
        value: LostValue | None = None,
    ) -> None:
        """Note a problem."""
        self._report.problems.append(Problem(self._head.run_id, checkpoint_id, what, seq, value))

    async def all(self, steps: Steps) -> None:
        """Check all of it."""
        async for found in each_record(self._store, self._head.run_id, 1, self._head.seq, steps):
            if isinstance(found, Unreadable):
                self.wrong(None, plainly(found.error), found.seq)
            else:
                await self.record(found)
        self.head()
        await self.journal(await self._store.notes(self._head.run_id))
        await self._store.inbox(self._head.run_id)

    async def record(self, record: Record) -> None:
        """Check a record; what is wrong with it is noted and does not stop anything."""
        self._report.checkpoints += 1
        checkpoint_id = record.checkpoint_id
        problems: list[_Said] = []
        base, loads = record.seq, False
        try:
            record = await whole(record, self._blobs)
            header = read_header(record)
            base = self._base_of(record, header)
            loads = await self._check(record, header, base, problems)
        except HoldfastError as error:
            problems.append(_Said(plainly(error)))
        except Exception as error:  # what is stored may be anything
            problems.append(_Said(f"it cannot be made: {error!r}"))
        if not record.sound:
            problems.append(_Said("its size, its tags or whether it has a keyframe is not what was stored"))
        if await self._is_lost(record):
            problems.append(_Said("it cannot be found by its id"))
        self._known[checkpoint_id] = _Known(record.seq, base, loads)
        if not loads:
            self._last = None
        for problem in problems:
            self.wrong(checkpoint_id, problem.what, record.seq, problem.value)

    async def _check(self, record: Record, header: Header, base: int, problems: list[_Said]) -> bool:
        """Whether a record can be loaded; raises or adds what is wrong with it."""
        changes = changes_of(record, Depth.ALL)
        if (header.run_id, header.seq) != (record.run_id, record.seq):
            problems.append(_Said(f"its header says run {header.run_id}, record {header.seq}"))
        if header.time <= self._time:
            problems.append(_Said("its time is not later than that of the one before"))
        self._time = max(self._time, header.time)
        await self._check_blobs(changes, problems)
        framed = None
        if record.keyframe is not None:
            framed = keyframe_of(record, Depth.ALL)
            await self._check_blobs(framed, problems)
        if base < header.replay_from:
            problems.append(
                _Said(f"a keyframe from which it follows is missing: none from number {base + 1} on")
            )
            return False
        await self._replay(record, header, framed, problems)
        return True

    def _base_of(self, record: Record, header: Header) -> int:
        parent = None if header.parent_id is None else self._known.get(header.parent_id)
        return record.seq if record.keyframe is not None or parent is None else parent.base

    async def _is_lost(self, record: Record) -> bool:
        try:
            if await self._store.find(record.checkpoint_id) == (record.run_id, record.seq):
                return False
            # Whoever drives the run may have removed it meanwhile.
            return bool(await self._store.records(record.run_id, record.seq, record.seq, Depth.HEADERS))
        except HoldfastError:
            return True

    async def journal(self, notes: Sequence[Note]) -> None:
        """Check what is noted of the superstep under way."""
        problems: list[_Said] = []
        for note in (await unbundled(notes, self._blobs)).notes:
            try:
                sizes = sizes_in_note(note)
            except CheckpointCorrupt as error:
                problems.append(
                    _Said(f"the note {note.key} in its journal cannot be read: {error.__cause__!r}")
                )
            else:
                await self._check_named([(OfRun("journal", *done_by(note)), sizes)], problems)
        for problem in problems:
            self.wrong(self._head.checkpoint_id, problem.what, self._head.seq, problem.value)

    async def _differ(self, framed: Manifest, replayed: Manifest) -> bool:
        """Whether any value that grew has other content in the keyframe, where it may be cut otherwise."""
        for scope, keys in framed.state.items():
            for key, ref in keys.items():
                other = replayed.state[scope][key]
                if ref.parts is not None and await self._content(ref) != await self._content(other):
                    return True
        return False

    async def _content(self, ref: Ref) -> list[bytes]:
        """The pieces of a value that grew, as one where they can be put together."""
        pieces: list[bytes] = []
        for part in ref.parts if ref.parts is not None else [Part(False, ref)]:
            if part.ref.parts is not None:
                pieces += await self._content(part.ref)
                continue
            data = part.ref.data
            if data is None:
                assert part.ref.digest is not None
                data = (await self._blobs.read({part.ref.digest: part.ref.size}))[part.ref.digest]
            pieces.append(slices.listed([data]) if part.is_item else data)
        return [
            slices.joined(list(group)) if cut else b"".join(group)
            for cut, group in groupby(pieces, key=lambda piece: slices.opened(piece) is not None)
        ]

    async def _replay(
        self, record: Record, header: Header, framed: Changes | None, problems: list[_Said]
    ) -> None:
        """Make the checkpoint as loading does; a keyframe must hold what replay gives. Raises if it cannot be made."""
        parent = None if header.parent_id is None else self._known.get(header.parent_id)
        if header.parent_id is not None and parent is None and not _may_lack_parent(record, header):
            raise CheckpointCorrupt(f"its parent {header.parent_id} is missing")
        replayed = None
        if header.parent_id is None or (parent is not None and parent.loads):
            replayed = await self._manifest_of(header.parent_id)
            fold_one(replayed, record, Depth.ALL)
        manifest = replayed
        if framed is not None:
            manifest = Manifest()
            manifest.fold(framed, False)
            if replayed is not None and not (
                _same(manifest, replayed) and not await self._differ(manifest, replayed)
            ):
                problems.append(_Said("its keyframe does not hold what its changes give"))
        if manifest is None:
            raise CheckpointCorrupt(f"checkpoint {header.parent_id}, from which it follows, is damaged")
        self._check_held(manifest, problems)
        self._last = (record.checkpoint_id, manifest)

    async def _manifest_of(self, checkpoint_id: CheckpointId | None) -> Manifest:
        """What the run held at an earlier checkpoint; it is good to be changed."""
        last, self._last = self._last, None  # half folded if it fails
        if checkpoint_id is None:
            return Manifest()
        if last is not None and last[0] == checkpoint_id:
            return last[1]
        seq = self._known[checkpoint_id].seq
        return (await load(self._store, self._blobs, self._head, seq, Depth.ALL)).manifest

    async def _check_blobs(self, changes: Changes, problems: list[_Said]) -> None:
        await self._check_named(_sizes_in(changes), problems)

    async def _check_named(
        self, named: Sequence[tuple[Place, Mapping[Digest, int]]], problems: list[_Said]
    ) -> None:
        for _, sizes in named:
            for digest, size in sizes.items():
                if (digest, size) in self._checked:
                    continue
                self._checked.add((digest, size))
                try:
                    await self._blobs.read({digest: size})
                    self._report.blobs += 1
                except HoldfastError as error:
                    self._bad[digest] = plainly(error)
        self._tell_lost(named, problems)

    def _tell_lost(self, named: Iterable[tuple[Place, Iterable[Digest]]], problems: list[_Said]) -> None:
        """Say which of these values are lost, each once."""
        lost = [_lost_value(place, one) for place, digests in named for one in digests if one in self._bad]
        told = {problem.value for problem in problems}
        for value in dict.fromkeys(lost):
            if value not in told:
                problems.append(_Said(f"{value}: {self._bad[Digest(bytes.fromhex(value.blob))]}", value))

    def _check_held(self, manifest: Manifest, problems: list[_Said]) -> None:
        """What was brought earlier and is damaged is missing here, too."""
        if self._bad:
            self._tell_lost(_sizes_in(manifest.as_changes()), problems)

    def head(self) -> None:
        """Check that the run stands on the newest of its checkpoints."""
        standing = self._known.get(self._head.checkpoint_id)
        if standing is None:
            self.wrong(self._head.checkpoint_id, "the run stands on it, but it is not there", self._head.seq)
        elif standing.seq != self._head.seq:
            self.wrong(
                self._head.checkpoint_id, f"it is number {standing.seq}, but its head says {self._head.seq}"
            )
        if max(self._head.created, self._head.updated) > self._time + _FAR_FUTURE:
            self.wrong(None, "the times of its head are far from those of its checkpoints")


def plainly(error: HoldfastError) -> str:
    """What an error says, without its advice: that is for whoever meets it outside of a report."""
    return str(error).partition(f"; {WHAT_NOW}")[0]


def _sizes_in(changes: Changes) -> list[tuple[Place, Mapping[Digest, int]]]:
    """The blobs that changes name, with their sizes, by the places of the values that need them."""
    return [(place, sizes) for place, ref in placed_in(changes) if (sizes := sizes_in([ref]))]


def _may_lack_parent(record: Record, header: Header) -> bool:
    return record.keyframe is not None and (
        record.keyframe.cut or header.cause in ("fork", "restore")  # what these follow may go meanwhile
    )


def _same(framed: Manifest, replayed: Manifest) -> bool:
    """Whether two manifests hold the same; a keyframe may name the parts of a value that grew otherwise."""
    return (
        framed.deliveries == replayed.deliveries
        and framed.buffers == replayed.buffers
        and framed.outputs == replayed.outputs
        and framed.requests == replayed.requests
        and framed.answered.keys() == replayed.answered.keys()
        and framed.instances == replayed.instances
        and framed.since_input == replayed.since_input
        and framed.fingerprint == replayed.fingerprint
        and framed.graph == replayed.graph
        and framed.input == replayed.input
        and framed.rounds == replayed.rounds
        and _sizes(framed) == _sizes(replayed)
    )


def _sizes(manifest: Manifest) -> dict[object, object]:
    return {
        (scope, key): (ref.label, ref.size if ref.parts is not None else (ref.digest, ref.data))
        for scope, keys in manifest.state.items()
        for key, ref in keys.items()
    }


def _lost_value(place: Place, digest: Digest) -> LostValue:
    """Describe the value at a place that is lost with a blob."""
    if isinstance(place, OfRun):
        return LostValue(place.kind, digest.hex(), place.executor_id, None, place.key)  # type: ignore[arg-type]
    scope, key = place
    if scope.owner is not None:
        return LostValue("executor", digest.hex(), scope.owner, None, key)
    return LostValue("state", digest.hex(), None, scope.path + scope.name, key)
