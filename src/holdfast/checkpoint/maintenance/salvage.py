"""What can be saved of a damaged run, as a commit that is all of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.record import plain_form, read_header
from holdfast.checkpoint.info import Header, waiting_at
from holdfast.checkpoint.journal import sizes_in_note
from holdfast.checkpoint.maintenance.problems import briefly
from holdfast.checkpoint.maintenance.prune import make_keyframe
from holdfast.checkpoint.read.loading import Blobs, changes_of, fold_one, folded, keyframe_of, lineage, whole
from holdfast.checkpoint.read.paging import Unreadable, each_record
from holdfast.checkpoint.store import Blob, Commit, Depth, Expected, Head, Letter, Note, Record, Store
from holdfast.checkpoint.values import Wanted
from holdfast.checkpoint.write.bundles import unbundled
from holdfast.engine.status import RunStatus
from holdfast.errors import CheckpointCorrupt, HoldfastError
from holdfast.ids import CheckpointId, Digest, RunId


class Step(NamedTuple):
    """Something that is done to save a run."""

    checkpoint_id: CheckpointId | None
    what: str
    lost: str = ""


class Salvage:
    """Goes through the records of a run in order of seq, and keeps those that can be made without what is damaged."""

    def __init__(self, store: Store, blobs: Blobs, head: Head) -> None:
        self._store, self._blobs, self._head = store, blobs, head
        self.steps: list[Step] = []
        self._kept: dict[CheckpointId, Record] = {}
        """As they are to be stored."""
        self._line: dict[CheckpointId, Record] = {}
        """All from which others can be made, whole; a record that goes may have a keyframe that is good."""
        self._bases: dict[CheckpointId, int] = {}
        self._last: tuple[CheckpointId, Manifest] | None = None
        self._new: list[Blob] = []

    async def commit(self) -> Commit | None:
        """All of the run that can be saved; None if that is nothing."""
        async for found in each_record(self._store, self._head.run_id, 1, self._head.seq):
            if isinstance(found, Unreadable):
                self._drop(None, f"checkpoint number {found.seq}", found.error)
            else:
                await self._take(found)
        if not self._kept:
            return None
        head = self._standing()
        notes = await self._notes() if head.checkpoint_id == self._head.checkpoint_id else ()
        if head.checkpoint_id != self._head.checkpoint_id:
            self.steps.append(
                Step(
                    head.checkpoint_id,
                    f"the run stands on it, for {self._head.checkpoint_id} is lost",
                    "what the run did since",
                )
            )
        expected = Expected(self._head.checkpoint_id, self._head.token)
        records, letters = tuple(self._kept.values()), await self._letters()
        return Commit(head, expected, records, tuple(self._new), tuple(notes), (), tuple(letters))

    async def _take(self, record: Record) -> None:
        """Keep a record if it is what its id says and can be made; use its keyframe if that is all that is good."""
        own, frame = await self._own(record), await self._framed(record)
        if own is None:
            self._drop(record.checkpoint_id, "it", CheckpointCorrupt("its content is not what its id says"))
            if frame is not None:
                self._line[record.checkpoint_id] = frame
                self._last = None
            return
        header = read_header(own)
        parent = header.parent_id
        orphan = parent is not None and parent not in self._kept and header.cause != "fork"
        if frame is None and parent is not None and parent not in self._line:
            self._drop(
                record.checkpoint_id, "it", CheckpointCorrupt(f"it follows from {parent}, which is lost")
            )
            return
        try:
            self._keep(record, own, frame, header, orphan)
        except HoldfastError as error:
            self._drop(record.checkpoint_id, "it", error)

    def _keep(self, record: Record, own: Record, frame: Record | None, header: Header, orphan: bool) -> None:
        checkpoint_id, parent = record.checkpoint_id, header.parent_id
        base = record.seq if frame is not None or parent is None else self._bases.get(parent, record.seq)
        keyframe = record.keyframe if frame is not None else None
        if frame is not None:
            manifest = Manifest()
            manifest.fold(keyframe_of(frame, Depth.ALL), False)
            if orphan and keyframe is not None and not keyframe.cut:
                keyframe = keyframe._replace(cut=True)
                self.steps.append(Step(checkpoint_id, "its keyframe stands for its parent, which is lost"))
        else:
            manifest = self._manifest(parent)
            fold_one(manifest, own, Depth.ALL)
            if record.keyframe is not None or orphan or base < header.replay_from:
                keyframe, brought = make_keyframe(checkpoint_id, manifest)
                keyframe = keyframe._replace(cut=orphan)
                self._new += brought
                base = record.seq
                self.steps.append(Step(checkpoint_id, "it has a new keyframe"))
        if not record.sound:
            self.steps.append(
                Step(checkpoint_id, "its size and tags are taken as they are now", "perhaps tags")
            )
        self._bases[checkpoint_id] = base
        self._kept[checkpoint_id] = record._replace(keyframe=keyframe, sound=True)
        # One with a new keyframe is made from its parent again: its parts need not be at hand.
        self._line[checkpoint_id] = own if frame is None else own._replace(keyframe=frame.keyframe)
        self._last = (checkpoint_id, manifest)

    def _manifest(self, checkpoint_id: CheckpointId | None) -> Manifest:
        last, self._last = self._last, None
        if checkpoint_id is None:
            return Manifest()
        if last is not None and last[0] == checkpoint_id:
            return last[1]
        return folded(lineage(self._line, checkpoint_id), Depth.ALL)

    async def _own(self, record: Record) -> Record | None:
        """The record without its keyframe, whole, if it is what its id says."""
        try:
            own = await whole(record._replace(keyframe=None), self._blobs)
            changes_of(own, Depth.ALL)
            header = read_header(own)
        except HoldfastError:
            return None
        return own if (header.run_id, header.seq) == (self._head.run_id, record.seq) else None

    async def _framed(self, record: Record) -> Record | None:
        """The record with its keyframe alone, whole, if that is what it was."""
        if record.keyframe is None:
            return None
        try:
            frame = await whole(record._replace(changes=b"", values=b""), self._blobs)
            keyframe_of(frame, Depth.ALL)
        except HoldfastError:
            return None
        return frame

    def _drop(self, checkpoint_id: CheckpointId | None, what: str, error: HoldfastError) -> None:
        self._last = None
        self.steps.append(Step(checkpoint_id, f"{what} is removed: {briefly(error)}", "this checkpoint"))

    def _standing(self) -> Head:
        """Where the run stands: where it stood, or else on the newest checkpoint that is left."""
        head = self._head
        newest = max(self._kept.values(), key=lambda record: record.seq)
        if head.checkpoint_id in self._kept and head.seq == newest.seq:
            running = head.status is RunStatus.RUNNING
            status = RunStatus.STOPPED if running else head.status
            return head._replace(token=head.token + 1, status=status, owner="")
        header = read_header(newest)
        status = RunStatus.STOPPED if header.status is RunStatus.RUNNING else header.status
        return head._replace(
            checkpoint_id=newest.checkpoint_id,
            seq=newest.seq,
            token=head.token + 1,
            status=status,
            owner="",
            takeovers=0,
            reason="",
            waiting_for=" ".join(waiting_at(header)),
        )

    async def _notes(self) -> Sequence[Note]:
        try:
            notes = await self._store.notes(self._head.run_id)
        except HoldfastError as error:
            self.steps.append(Step(None, f"its journal is dropped: {briefly(error)}", _NOTED))
            return ()
        good = []
        for note in notes:
            try:
                for inner in (await unbundled([note], self._blobs)).notes:
                    await self._blobs.read(sizes_in_note(inner))
                good.append(note)
            except Exception as error:
                self.steps.append(Step(None, f"the note {note.key} is dropped: {briefly(error)}", _NOTED))
        return good

    async def _letters(self) -> Sequence[Letter]:
        try:
            return await self._store.inbox(self._head.run_id)
        except HoldfastError as error:
            self.steps.append(
                Step(None, f"its inbox is dropped: {briefly(error)}", "what others left for the run")
            )
            return ()


_NOTED = "what was done already in the superstep that is under way; it is done again"


class Planned:
    """A commit as a store would give it, to look at before it is written."""

    def __init__(self, commit: Commit) -> None:
        self._commit = commit
        self._places = {made.checkpoint_id: (made.run_id, made.seq) for made in commit.records}

    async def records(self, run_id: RunId, first: int, last: int, depth: Depth) -> Sequence[Record]:
        """The records of the commit."""
        return [record for record in self._commit.records if first <= record.seq <= last]

    async def find(self, checkpoint_id: CheckpointId) -> tuple[RunId, int] | None:
        """Where a checkpoint is."""
        return self._places.get(checkpoint_id)

    async def notes(self, run_id: RunId) -> Sequence[Note]:
        """The journal."""
        return self._commit.notes

    async def inbox(self, run_id: RunId) -> Sequence[Letter]:
        """The letters that wait."""
        return self._commit.letters


class PlannedBlobs(Blobs):
    """The blobs of a family, with those that a commit brings."""

    def __init__(self, blobs: Blobs, commit: Commit) -> None:
        self._blobs = blobs
        self._brought = {blob.digest: blob for blob in commit.blobs}

    async def read(self, wanted: Wanted) -> Mapping[Digest, bytes]:
        """The plain content of all these blobs."""
        here = {
            digest: plain_form(self._brought[digest].data) for digest in wanted if digest in self._brought
        }
        rest: Wanted = [digest for digest in wanted if digest not in here]
        if isinstance(wanted, Mapping):
            rest = {digest: wanted[digest] for digest in rest}
        return {**await self._blobs.read(rest), **here}
