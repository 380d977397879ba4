"""Checks that everything stored is what was stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from holdfast.checkpoint.checkpoint_info import Header
from holdfast.checkpoint.derived_starts import find_checkpoint, read_records
from holdfast.checkpoint.format import slices
from holdfast.checkpoint.format.changes import Changes, Part, Ref, sizes_in
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.record import read_header
from holdfast.checkpoint.format.refs import Place, RunPlace, placed_in
from holdfast.checkpoint.journal import done_by, sizes_in_note
from holdfast.checkpoint.maintenance.problems import LostValue, Problem, VerifyReport
from holdfast.checkpoint.progress import Progress, Steps
from holdfast.checkpoint.read.loader import (
    WHAT_NOW,
    BlobReader,
    changes_of,
    fold_one,
    keyframe_of,
    load,
    whole,
)
from holdfast.checkpoint.read.pages import UnreadableRecord, each_record
from holdfast.checkpoint.store import Depth, Head, Note, Record, RunQuery, Store
from holdfast.checkpoint.write.bundles import unbundled
from holdfast.errors import CheckpointCorrupt, HoldfastError, RunNotFound
from holdfast.ids import CheckpointId, Digest, RunId

LOOKS = 3
"""The number of times that a problem of a run must be found in a row before it is reported."""


async def verify_store(
    store: Store, blobs_of: Callable[[RunId], BlobReader], run_id: RunId | None, progress: Progress | None
) -> VerifyReport:
    """Check one run or all, and the files or tables of the store; an unreadable store is a problem, too."""
    report = VerifyReport()
    try:
        heads = await store.runs(RunQuery()) if run_id is None else await heads_of(store, run_id)
        report = await verify_runs(store, heads, blobs_of, progress, LOOKS)
    except RunNotFound:
        raise
    except HoldfastError as error:
        report.problems.append(Problem(None, None, str(error)))
    try:
        damages = await store.inspect(run_id)
    except HoldfastError as error:
        failure = Problem(None, None, str(error))
        report.problems += [failure] if failure not in report.problems else []
    else:
        report.problems += [
            Problem(damage.run_id, None, damage.what, damage.seq)
            for damage in damages
            if run_id is None or damage.run_id in (None, run_id)
        ]
    return report


async def heads_of(store: Store, run_id: RunId) -> list[Head]:
    """Return a list of the head of a run, empty if it is damaged; raise ``RunNotFound`` if nothing is left of it."""
    try:
        head = await store.head(run_id)
    except CheckpointCorrupt:  # reported by ``inspect``
        return []
    if head is None and not any(damage.run_id == run_id for damage in await store.inspect(run_id)):
        raise RunNotFound(
            f"there is no run {run_id!r} in this storage; 'await storage.list_runs()' lists those that are there"
        )
    return [] if head is None else [head]


async def verify_runs(
    store: Store,
    heads: Sequence[Head],
    blobs_of: Callable[[RunId], BlobReader],
    progress: Progress | None = None,
    looks: int = 1,
) -> VerifyReport:
    """Check runs: every id, every chain of parents, every keyframe and every blob.

    With several ``looks``, a problem counts if it is found each time: the run may move on meanwhile, or be removed.
    """
    report = VerifyReport()
    steps = Steps(progress)
    steps.more(sum(head.seq for head in heads))
    for head in heads:
        of_run = await _verify_run(store, head, blobs_of(head.family), steps)
        for _ in range(looks - 1):
            if of_run.ok:
                break
            try:
                latest = await store.head(head.run_id)
            except CheckpointCorrupt:  # reported by ``inspect``
                break
            if latest is None:  # it was removed meanwhile, and so was what seemed to be missing
                of_run = VerifyReport()
                break
            again = await _verify_run(store, latest, blobs_of(latest.family), Steps(None))
            again.problems = [problem for problem in again.problems if problem in of_run.problems]
            of_run = again
        report.runs += of_run.runs
        report.checkpoints += of_run.checkpoints
        report.blobs += of_run.blobs
        report.problems += of_run.problems
    return report


async def _verify_run(store: Store, head: Head, blobs: BlobReader, steps: Steps) -> VerifyReport:
    report = VerifyReport(runs=1)
    run = RunCheck(store, head, blobs, report)
    try:
        await run.check_all(steps)
    except HoldfastError as error:
        run.add_problem(None, text_without_advice(error))
    return report


# A run that waits or is over may have been touched long after its last checkpoint, but not centuries.
_FAR_FUTURE = 100 * 365 * 86_400 * 1_000_000


class _Known(NamedTuple):
    """A record that was checked, as later ones need it."""

    seq: int
    base: int
    """The seq of the record with which its replay begins: the first of all, or one with a keyframe."""
    loads: bool
    """True if it can be loaded."""


class _Finding(NamedTuple):
    """A problem of one checkpoint."""

    what: str
    value: LostValue | None = None


class RunCheck:
    """Checks the records of one run, in order of seq; keeps only the places of those that it has checked."""

    def __init__(self, store: Store, head: Head, blobs: BlobReader, report: VerifyReport) -> None:
        self._store = store
        self._head = head
        self._blobs = blobs
        self._report = report
        self._known: dict[CheckpointId, _Known] = {}
        self._checked: set[tuple[Digest, int]] = set()
        self._bad: dict[Digest, str] = {}
        """The blobs that cannot be read, with the reason."""
        self._last: tuple[CheckpointId, Manifest] | None = None
        self._time = 0

    def add_problem(
        self,
        checkpoint_id: CheckpointId | None,
        what: str,
        seq: int | None = None,
        value: LostValue | None = None,
    ) -> None:
        """Add a problem to the report."""
        self._report.problems.append(Problem(self._head.run_id, checkpoint_id, what, seq, value))

    async def check_all(self, steps: Steps) -> None:
        """Check the records, the head, the journal and the inbox."""
        unread = 0
        async for found in each_record(self._store, self._head.run_id, 1, self._head.seq, steps):
            self._miss_start_of(unread, found.seq)
            unread = 0
            if isinstance(found, UnreadableRecord):
                self.add_problem(None, text_without_advice(found.error), unread := found.seq)
            else:
                await self.check_record(found)
        self._miss_start_of(unread, self._head.seq + 1)
        self.check_head()
        await self.check_journal(await self._store.notes(self._head.run_id))
        await self._store.inbox(self._head.run_id)

    def _miss_start_of(self, unread: int, following: int) -> None:
        """Add the start that follows an unread record at once: it is derived from that, and went with it."""
        start = unread + 1
        if unread and start < following:
            self.add_problem(
                None, f"it came from the record of checkpoint {unread}, which cannot be read", start
            )

    async def check_record(self, record: Record) -> None:
        """Check a record and add its problems to the report."""
        self._report.checkpoints += 1
        checkpoint_id = record.checkpoint_id
        problems: list[_Finding] = []
        base, loads = record.seq, False
        try:
            record = await whole(record, self._blobs)
            header = read_header(record)
            base = self._base_of(record, header)
            loads = await self._check(record, header, base, problems)
        except HoldfastError as error:
            problems.append(_Finding(text_without_advice(error)))
        except Exception as error:  # stored data may be anything
            problems.append(_Finding(f"it cannot be made: {error!r}"))
        if not record.sound:
            problems.append(
                _Finding("its size, its tags or whether it has a keyframe is not what was stored")
            )
        if await self._is_lost(record):
            problems.append(_Finding("it cannot be found by its id"))
        self._known[checkpoint_id] = _Known(record.seq, base, loads)
        if not loads:
            self._last = None
        for problem in problems:
            self.add_problem(checkpoint_id, problem.what, record.seq, problem.value)

    async def _check(self, record: Record, header: Header, base: int, problems: list[_Finding]) -> bool:
        """Return True if a record can be loaded; raise its problem, or add it to ``problems``."""
        changes = changes_of(record, Depth.ALL)
        if (header.run_id, header.seq) != (record.run_id, record.seq):
            problems.append(_Finding(f"its header says run {header.run_id}, record {header.seq}"))
        if header.time <= self._time:
            problems.append(_Finding("its time is not later than that of the one before"))
        self._time = max(self._time, header.time)
        await self._check_blobs(changes, problems)
        framed = None
        if record.keyframe is not None:
            framed = keyframe_of(record, Depth.ALL)
            await self._check_blobs(framed, problems)
        if base < header.replay_from:
            problems.append(
                _Finding(f"a keyframe from which it follows is missing: none from number {base + 1} on")
            )
            return False
        await self._replay(record, header, framed, problems)
        return True

    def _base_of(self, record: Record, header: Header) -> int:
        parent = None if header.parent_id is None else self._known.get(header.parent_id)
        return record.seq if record.keyframe is not None or parent is None else parent.base

    async def _is_lost(self, record: Record) -> bool:
        try:
            place = await find_checkpoint(self._store, record.checkpoint_id)
            if place == (record.run_id, record.seq):
                return False
            # Whoever drives the run may have removed it meanwhile.
            return bool(await read_records(self._store, record.run_id, record.seq, record.seq, Depth.HEADERS))
        except HoldfastError:
            return True

    async def check_journal(self, notes: Sequence[Note]) -> None:
        """Check the notes of the superstep under way."""
        problems: list[_Finding] = []
        for note in (await unbundled(notes, self._blobs)).notes:
            try:
                sizes = sizes_in_note(note)
            except CheckpointCorrupt as error:
                problems.append(
                    _Finding(f"the note {note.key} in its journal cannot be read: {error.__cause__!r}")
                )
            else:
                await self._check_named([(RunPlace("journal", *done_by(note)), sizes)], problems)
        for problem in problems:
            self.add_problem(self._head.checkpoint_id, problem.what, self._head.seq, problem.value)

    async def _differ(self, framed: Manifest, replayed: Manifest) -> bool:
        """Return True if a value that grew has other content in the keyframe, which may cut it into other pieces."""
        for scope, keys in framed.state.items():
            for key, ref in keys.items():
                other = replayed.state[scope][key]
                if ref.parts is not None and await self._content(ref) != await self._content(other):
                    return True
        return False

    async def _content(self, ref: Ref) -> list[bytes]:
        """Return the pieces of a value that grew, joined as far as possible."""
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
        self, record: Record, header: Header, framed: Changes | None, problems: list[_Finding]
    ) -> None:
        """Fold the checkpoint as loading does, and compare it with its keyframe; raise if it cannot be folded."""
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
                problems.append(_Finding("its keyframe does not hold what its changes give"))
        if manifest is None:
            raise CheckpointCorrupt(f"checkpoint {header.parent_id}, from which it follows, is damaged")
        self._check_held(manifest, problems)
        self._last = (record.checkpoint_id, manifest)

    async def _manifest_of(self, checkpoint_id: CheckpointId | None) -> Manifest:
        """Return the manifest of an earlier checkpoint; the caller may change it."""
        last, self._last = self._last, None  # half folded if it fails
        if checkpoint_id is None:
            return Manifest()
        if last is not None and last[0] == checkpoint_id:
            return last[1]
        seq = self._known[checkpoint_id].seq
        return (await load(self._store, self._blobs, self._head, seq, Depth.ALL)).manifest

    async def _check_blobs(self, changes: Changes, problems: list[_Finding]) -> None:
        await self._check_named(_sizes_in(changes), problems)

    async def _check_named(
        self, named: Sequence[tuple[Place, Mapping[Digest, int]]], problems: list[_Finding]
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
                    self._bad[digest] = text_without_advice(error)
        self._add_lost(named, problems)

    def _add_lost(self, named: Iterable[tuple[Place, Iterable[Digest]]], problems: list[_Finding]) -> None:
        """Add a problem for each of these values that is lost."""
        lost = [_lost_value(place, one) for place, digests in named for one in digests if one in self._bad]
        known = {problem.value for problem in problems}
        for value in dict.fromkeys(lost):
            if value not in known:
                problems.append(_Finding(f"{value}: {self._bad[Digest(bytes.fromhex(value.blob))]}", value))

    def _check_held(self, manifest: Manifest, problems: list[_Finding]) -> None:
        """Add the values that the checkpoint holds and an earlier one brought, if they are lost."""
        if self._bad:
            self._add_lost(_sizes_in(manifest.as_changes()), problems)

    def check_head(self) -> None:
        """Check that the run stands on the newest of its checkpoints."""
        standing = self._known.get(self._head.checkpoint_id)
        if standing is None:
            self.add_problem(
                self._head.checkpoint_id, "the run stands on it, but it is not there", self._head.seq
            )
        elif standing.seq != self._head.seq:
            self.add_problem(
                self._head.checkpoint_id, f"it is number {standing.seq}, but its head says {self._head.seq}"
            )
        if max(self._head.created, self._head.updated) > self._time + _FAR_FUTURE:
            self.add_problem(None, "the times of its head are far from those of its checkpoints")


def text_without_advice(error: HoldfastError) -> str:
    """Return the text of an error without its advice, which does not belong in a report."""
    return str(error).partition(f"; {WHAT_NOW}")[0]


def _sizes_in(changes: Changes) -> list[tuple[Place, Mapping[Digest, int]]]:
    """Return the blobs that changes name, with their sizes, by the places of the values that need them."""
    return [(place, sizes) for place, ref in placed_in(changes) if (sizes := sizes_in([ref]))]


def _may_lack_parent(record: Record, header: Header) -> bool:
    return record.keyframe is not None and (
        record.keyframe.cut or header.cause in ("fork", "restore")  # their parents may be removed meanwhile
    )


def _same(framed: Manifest, replayed: Manifest) -> bool:
    """Return True if two manifests hold the same, apart from how values that grew are cut into pieces."""
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
        and framed.schemas == replayed.schemas
        and (not framed.asked_at or framed.asked_at == replayed.asked_at)  # earlier versions did not tell
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
    if isinstance(place, RunPlace):
        return LostValue(place.kind, digest.hex(), place.executor_id, None, place.key)  # type: ignore[arg-type]
    scope, key = place
    if scope.owner is not None:
        return LostValue("executor", digest.hex(), scope.owner, None, key)
    return LostValue("state", digest.hex(), None, scope.path + scope.name, key)
