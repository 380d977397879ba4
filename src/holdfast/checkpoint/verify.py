"""Whether everything stored is what was stored."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from holdfast.checkpoint import slices
from holdfast.checkpoint.bundles import unbundled
from holdfast.checkpoint.info import Header
from holdfast.checkpoint.journal import digests_in
from holdfast.checkpoint.loading import Blobs, changes_of, fold_one, keyframe_of, load, whole
from holdfast.checkpoint.manifest import Changes, Grow, Manifest, Part, Put, Ref, digests_of
from holdfast.checkpoint.record import read_header
from holdfast.checkpoint.steps import Progress, Steps
from holdfast.checkpoint.store import Depth, Head, Note, Record, RunQuery, Store
from holdfast.errors import CheckpointCorrupt, HoldfastError, RunNotFound
from holdfast.ids import CheckpointId, Digest, RunId

# How often a run is looked at before what is found wrong with it is believed.
_LOOKS = 3
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
    seq: int | None = None
    """The place of the checkpoint in its run, also where its id cannot be told."""


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


async def verify_store(
    store: Store, blobs_of: Callable[[RunId], Blobs], run_id: RunId | None, progress: Progress | None
) -> VerifyReport:
    """Check a run, or all, and how the store keeps them; what cannot be read at all is a problem, too."""
    report = VerifyReport()
    try:
        heads = [await _head_of(store, run_id)] if run_id is not None else await store.runs(RunQuery())
        report = await verified(
            store, [head for head in heads if head is not None], blobs_of, progress, _LOOKS
        )
    except RunNotFound:
        raise
    except HoldfastError as error:
        report.problems.append(Problem(run_id, None, str(error)))
    try:
        damages = await store.inspect()
    except HoldfastError as error:
        report.problems.append(Problem(None, None, str(error)))
    else:
        report.problems += [
            Problem(damage.run_id, None, damage.what, damage.seq)
            for damage in damages
            if run_id is None or damage.run_id in (None, run_id)
        ]
    return report


async def _head_of(store: Store, run_id: RunId) -> Head | None:
    try:
        head = await store.head(run_id)
    except CheckpointCorrupt:  # told by ``inspect``
        return None
    if head is None:
        raise RunNotFound(
            f"there is no run {run_id!r} in this storage; 'await storage.list_runs()' lists those that are there"
        )
    return head


async def verified(
    store: Store,
    heads: Sequence[Head],
    blobs_of: Callable[[RunId], Blobs],
    progress: Progress | None = None,
    looks: int = 1,
) -> VerifyReport:
    """Check runs: every id, every chain of parents, every keyframe and every blob.

    With several ``looks``, what is wrong with a run is what is found wrong each time: it may move on meanwhile.
    """
    report = VerifyReport()
    steps = Steps(progress)
    steps.more(sum(head.seq for head in heads))
    for head in heads:
        of_run = await _verified_run(store, head, blobs_of(head.family), steps)
        for _ in range(looks - 1):
            latest = None if of_run.ok else await _newest(store, head)
            if latest is None:
                break
            again = await _verified_run(store, latest, blobs_of(head.family), Steps(None))
            again.problems = [problem for problem in again.problems if problem in of_run.problems]
            of_run = again
        report.runs += of_run.runs
        report.checkpoints += of_run.checkpoints
        report.blobs += of_run.blobs
        report.problems += of_run.problems
    return report


async def _newest(store: Store, head: Head) -> Head | None:
    try:
        return await store.head(head.run_id)
    except CheckpointCorrupt:  # told by ``inspect``
        return None


async def _verified_run(store: Store, head: Head, blobs: Blobs, steps: Steps) -> VerifyReport:
    report = VerifyReport(runs=1)
    run = RunCheck(store, head, blobs, report)
    try:
        await run.all(steps)
    except HoldfastError as error:
        run.wrong(None, str(error))
    return report


class Unreadable(NamedTuple):
    """A record that is there, or should be, and cannot be read."""

    seq: int
    error: HoldfastError


async def each_record(
    store: Store, run_id: RunId, first: int, last: int, steps: Steps | None = None
) -> AsyncIterator[Record | Unreadable]:
    """The records of a run in order of seq, page by page; one that cannot be read does not hide others."""
    for page in range(first, last + 1, _PAGE):
        end = min(page + _PAGE - 1, last)
        for found in await _readable(store, run_id, page, end):
            yield found
        if steps is not None:
            steps.done(end - page + 1)


async def _readable(store: Store, run_id: RunId, first: int, last: int) -> list[Record | Unreadable]:
    try:
        return list(await store.records(run_id, first, last, Depth.ALL))
    except HoldfastError as error:
        if first == last:
            return [Unreadable(first, error)]
        middle = (first + last) // 2
        lower = await _readable(store, run_id, first, middle)
        return lower + await _readable(store, run_id, middle + 1, last)


class _Known(NamedTuple):
    """What later records need to know of an earlier one."""

    seq: int
    base: int
    """The seq of the record with which replay to it begins: the first of all, or one with a keyframe."""
    loads: bool
    """Whether it can be loaded."""


class RunCheck:
    """Checks the records of one run, in order of seq. Of those that it has seen it keeps only where they are."""

    def __init__(self, store: Store, head: Head, blobs: Blobs, report: VerifyReport) -> None:
        self._store = store
        self._head = head
        self._blobs = blobs
        self._report = report
        self._known: dict[CheckpointId, _Known] = {}
        self._checked: set[Digest] = set()
        self._bad: dict[Digest, str] = {}
        """The blobs that cannot be read, and why."""
        self._last: tuple[CheckpointId, Manifest] | None = None
        self._time = 0

    def wrong(self, checkpoint_id: CheckpointId | None, what: str, seq: int | None = None) -> None:
        """Note a problem."""
        self._report.problems.append(Problem(self._head.run_id, checkpoint_id, what, seq))

    async def all(self, steps: Steps) -> None:
        """Check all of it."""
        async for found in each_record(self._store, self._head.run_id, 1, self._head.seq, steps):
            if isinstance(found, Unreadable):
                self.wrong(None, str(found.error), found.seq)
            else:
                await self.record(found)
        self.head()
        await self.journal(await self._store.notes(self._head.run_id))
        await self._store.inbox(self._head.run_id)

    async def record(self, record: Record) -> None:
        """Check a record; what is wrong with it is noted and does not stop anything."""
        self._report.checkpoints += 1
        checkpoint_id = record.checkpoint_id
        problems: list[str] = []
        base, loads = record.seq, False
        try:
            record = await whole(record, self._blobs)
            header = read_header(record)
            base = self._base_of(record, header)
            loads = await self._check(record, header, base, problems)
        except HoldfastError as error:
            problems.append(str(error))
        except Exception as error:  # what is stored may be anything
            problems.append(f"it cannot be made: {error!r}")
        if not record.sound:
            problems.append("its size, its tags or whether it has a keyframe is not what was stored")
        if await self._is_lost(record):
            problems.append("it cannot be found by its id")
        self._known[checkpoint_id] = _Known(record.seq, base, loads)
        if not loads:
            self._last = None
        for problem in problems:
            self.wrong(checkpoint_id, problem, record.seq)

    async def _check(self, record: Record, header: Header, base: int, problems: list[str]) -> bool:
        """Whether a record can be loaded; raises or adds what is wrong with it."""
        changes = changes_of(record, Depth.ALL)
        if (header.run_id, header.seq) != (record.run_id, record.seq):
            problems.append(f"its header says run {header.run_id}, record {header.seq}")
        if header.time <= self._time:
            problems.append("its time is not later than that of the one before")
        self._time = max(self._time, header.time)
        await self._check_blobs(changes, problems)
        framed = None
        if record.keyframe is not None:
            framed = keyframe_of(record, Depth.ALL)
            await self._check_blobs(framed, problems)
        if base < header.replay_from:
            problems.append(f"a keyframe from which it follows is missing: none from number {base + 1} on")
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
        problems: list[str] = []
        for note in (await unbundled(notes, self._blobs)).notes:
            try:
                digests = digests_in(note)
            except Exception as error:
                problems.append(f"the note {note.key} in its journal cannot be read: {error!r}")
            else:
                await self._check_named(digests, problems)
        for problem in problems:
            self.wrong(self._head.checkpoint_id, problem, self._head.seq)

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

    async def _replay(
        self, record: Record, header: Header, framed: Changes | None, problems: list[str]
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
                problems.append("its keyframe does not hold what its changes give")
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

    async def _check_blobs(self, changes: Changes, problems: list[str]) -> None:
        await self._check_named({d for ref in refs_in(changes) for d in digests_of(ref)}, problems)

    async def _check_named(self, digests: set[Digest], problems: list[str]) -> None:
        for digest in digests - self._checked:
            self._checked.add(digest)
            try:
                await self._blobs.read([digest])
                self._report.blobs += 1
            except HoldfastError as error:
                self._bad[digest] = str(error)
        problems += [self._bad[digest] for digest in digests if digest in self._bad]

    def _check_held(self, manifest: Manifest, problems: list[str]) -> None:
        """What was brought earlier and is damaged is missing here, too."""
        held = {d for ref in refs_in(manifest.as_changes()) for d in digests_of(ref)} if self._bad else set()
        problems += [what for digest, what in self._bad.items() if digest in held and what not in problems]

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
