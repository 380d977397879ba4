"""Whether everything stored is what was stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from holdfast.checkpoint import slices
from holdfast.checkpoint.bundles import unbundled
from holdfast.checkpoint.journal import digests_in
from holdfast.checkpoint.loading import Blobs, changes_of, fold_one, folded, keyframe_of, lineage, whole
from holdfast.checkpoint.manifest import Changes, Grow, Manifest, Part, Put, Ref, digests_of
from holdfast.checkpoint.record import read_header
from holdfast.checkpoint.store import Depth, Head, Note, Record, Store
from holdfast.errors import HoldfastError
from holdfast.ids import CheckpointId, Digest, RunId

# How many records are read at a time.
_PAGE = 500
# A run that waits or is over may have been touched long after its last checkpoint, but not centuries.
_FAR_FUTURE = 100 * 365 * 86_400 * 1_000_000


@dataclass(frozen=True)
class Problem:
    """Something in a storage that is not what was stored.

    >>> Problem("r1", "ab12", "its content is not what its id says").run_id
    'r1'
    """

    run_id: str | None
    """None where not even the run can be told; the text says where it lies."""
    checkpoint_id: str | None
    what: str


@dataclass
class VerifyReport:
    """What ``storage.verify`` found.

    >>> VerifyReport().ok
    True
    """

    runs: int = 0
    checkpoints: int = 0
    blobs: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


async def verified(store: Store, heads: Sequence[Head], blobs_of: Callable[[RunId], Blobs]) -> VerifyReport:
    """Check runs: every id, every chain of parents, every keyframe and every blob."""
    report = VerifyReport()
    for head in heads:
        report.runs += 1
        run = _RunCheck(head, blobs_of(head.family), report)
        try:
            for first in range(1, head.seq + 1, _PAGE):
                last = min(first + _PAGE - 1, head.seq)
                for record in await store.records(head.run_id, first, last, Depth.ALL):
                    await run.record(record)
            run.head()
            await run.journal(await store.notes(head.run_id))
        except HoldfastError as error:
            run.wrong(None, str(error))
    return report


class _RunCheck:
    """Checks the records of one run, in order of seq."""

    def __init__(self, head: Head, blobs: Blobs, report: VerifyReport) -> None:
        self._head = head
        self._blobs = blobs
        self._report = report
        self._records: dict[CheckpointId, Record] = {}
        self._checked: set[Digest] = set()
        self._last: tuple[CheckpointId, Manifest] | None = None
        self._time = 0

    def wrong(self, checkpoint_id: CheckpointId | None, what: str) -> None:
        """Note a problem."""
        self._report.problems.append(Problem(self._head.run_id, checkpoint_id, what))

    async def record(self, record: Record) -> None:
        """Check a record; what is wrong with it is noted and does not stop anything."""
        self._report.checkpoints += 1
        checkpoint_id = record.checkpoint_id
        try:
            record = await whole(record, self._blobs)
            self._records[checkpoint_id] = record
            header = read_header(record)
            changes = changes_of(record, Depth.ALL)
            if (header.run_id, header.seq) != (record.run_id, record.seq):
                self.wrong(checkpoint_id, f"its header says run {header.run_id}, record {header.seq}")
            if header.time <= self._time:
                self.wrong(checkpoint_id, "its time is not later than that of the one before")
            self._time = max(self._time, header.time)
            await self._check_blobs(checkpoint_id, changes)
            if record.keyframe is not None:
                await self._check_blobs(checkpoint_id, keyframe_of(record, Depth.ALL))
            await self._check_keyframe(record)
        except HoldfastError as error:
            self.wrong(checkpoint_id, str(error))

    async def journal(self, notes: Sequence[Note]) -> None:
        """Check what is noted of the superstep under way."""
        for note in (await unbundled(notes, self._blobs)).notes:
            try:
                digests = digests_in(note)
            except Exception as error:
                self.wrong(
                    self._head.checkpoint_id, f"the note {note.key} in its journal cannot be read: {error!r}"
                )
            else:
                await self._check_named(self._head.checkpoint_id, digests)

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
                data = (await self._blobs.read([part.ref.digest]))[part.ref.digest]
            pieces.append(slices.listed([data]) if part.is_item else data)
        return [
            slices.joined(list(group)) if cut else b"".join(group)
            for cut, group in groupby(pieces, key=lambda piece: slices.opened(piece) is not None)
        ]

    async def _check_keyframe(self, record: Record) -> None:
        """Replay to the record; a keyframe must hold what replay gives."""
        header = read_header(record)
        if record.keyframe is not None and record.keyframe.cut and header.parent_id not in self._records:
            return
        if header.parent_id is not None and header.parent_id not in self._records:
            if header.cause in ("fork", "restore") and record.keyframe is not None:  # it may go meanwhile
                return
            self.wrong(record.checkpoint_id, f"its parent {header.parent_id} is missing")
            return
        if self._last is not None and self._last[0] == header.parent_id:
            manifest, self._last = self._last[1], None  # half folded if it fails
        elif header.parent_id is None:
            manifest = Manifest()
        else:
            manifest = folded(lineage(self._records, header.parent_id), Depth.ALL)
        fold_one(manifest, record, Depth.ALL)
        if record.keyframe is not None:
            framed = Manifest()
            framed.fold(keyframe_of(record, Depth.ALL), False)
            if not _same(framed, manifest) or await self._differ(framed, manifest):
                self.wrong(record.checkpoint_id, "its keyframe does not hold what its changes give")
        self._last = (record.checkpoint_id, manifest)

    async def _check_blobs(self, checkpoint_id: CheckpointId, changes: Changes) -> None:
        await self._check_named(checkpoint_id, {d for ref in refs_in(changes) for d in digests_of(ref)})

    async def _check_named(self, checkpoint_id: CheckpointId, digests: set[Digest]) -> None:
        for digest in digests - self._checked:
            try:
                await self._blobs.read([digest])
                self._checked.add(digest)
                self._report.blobs += 1
            except HoldfastError as error:
                self.wrong(checkpoint_id, str(error))

    def head(self) -> None:
        """Check that the run stands on the newest of its checkpoints."""
        standing = self._records.get(self._head.checkpoint_id)
        if standing is None:
            self.wrong(self._head.checkpoint_id, "the run stands on it, but it is not there")
        elif standing.seq != self._head.seq:
            self.wrong(
                self._head.checkpoint_id, f"it is number {standing.seq}, but its head says {self._head.seq}"
            )
        if max(self._head.created, self._head.updated) > self._time + _FAR_FUTURE:
            self.wrong(None, "the times of its head are far from those of its checkpoints")


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
        and _sizes(framed) == _sizes(replayed)
    )


def _sizes(manifest: Manifest) -> dict[object, object]:
    return {
        (scope, key): (ref.label, ref.size if ref.parts is not None else (ref.digest, ref.data))
        for scope, keys in manifest.state.items()
        for key, ref in keys.items()
    }


def refs_in(changes: Changes) -> Iterable[Ref]:
    """The values that changes name."""
    for delivered in changes.deliveries or ():
        yield delivered.value
        if delivered.request is not None:  # the question that a message answers
            yield delivered.request.data
    yield from (ref for _, ref in changes.outputs)
    yield from (ref for _, ref in changes.answers)
    yield from (asked.data for asked in changes.requests)
    yield from (event.event for event in changes.happened if event.event is not None)
    if changes.graph is not None:
        yield changes.graph
    for _, extended in changes.buffers:
        yield from (ref for _, refs in extended or () for ref in refs)
    for _, _, written in changes.writes:
        if isinstance(written, Put):
            yield written.ref
        elif isinstance(written, Grow):
            yield from (part.ref for part in written.parts)
