"""Repairs a storage: saves what can be saved of damaged runs, and reports what is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import NamedTuple, cast

from holdfast.checkpoint.checkpoint_info import Header, is_start_id, waiting_at
from holdfast.checkpoint.counters import Counters
from holdfast.checkpoint.derived_starts import collapse
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.record import read_header
from holdfast.checkpoint.format.stored_form import plain_form
from holdfast.checkpoint.journal import sizes_in_note
from holdfast.checkpoint.maintenance.problems import Problem, briefly
from holdfast.checkpoint.maintenance.prune import make_keyframe
from holdfast.checkpoint.maintenance.verify import LOOKS, heads_of, verify_runs, verify_store
from holdfast.checkpoint.ownership import is_driven
from holdfast.checkpoint.progress import Progress, Steps
from holdfast.checkpoint.read.loader import (
    BlobReader,
    changes_of,
    fold_one,
    folded,
    keyframe_of,
    lineage,
    whole,
)
from holdfast.checkpoint.read.pages import UnreadableRecord, each_record
from holdfast.checkpoint.store import (
    Blob,
    Commit,
    Damage,
    Depth,
    Expected,
    Head,
    Letter,
    Note,
    Record,
    RunQuery,
    Store,
)
from holdfast.checkpoint.values import Wanted
from holdfast.checkpoint.write.bundles import unbundled
from holdfast.engine.status import RunStatus
from holdfast.errors import CheckpointCorrupt, HeadMoved, HoldfastError, RunNotFound, StorageError
from holdfast.ids import CheckpointId, Digest, RunId


@dataclass(frozen=True)
class Repair:
    """Something that was repaired, or with ``dry_run`` would be.

    >>> str(Repair("r1", "ab12", "it has a new keyframe"))
    'run r1: checkpoint ab12: it has a new keyframe'
    """

    run_id: str | None
    checkpoint_id: str | None
    what: str
    lost: str = ""
    """The loss that comes with the repair; empty in most cases."""

    def __str__(self) -> str:
        return f"{_where(self)}{self.what}" + (f"; lost: {self.lost}" if self.lost else "")


def _where(found: Repair | Problem) -> str:
    run = f"run {found.run_id}: " if found.run_id is not None else ""
    return run + (f"checkpoint {found.checkpoint_id}: " if found.checkpoint_id is not None else "")


@dataclass
class RepairReport:
    """The result of ``storage.repair``: what it did, or with ``dry_run`` would do, and what is left.

    >>> report = RepairReport(repairs=[Repair("r1", "ab12", "it is removed", "this checkpoint")])
    >>> [repair.lost for repair in report.losses], report.ok
    (['this checkpoint'], True)
    """

    runs: int = 0
    """The number of runs that were looked at."""
    repairs: list[Repair] = field(default_factory=list)
    unrepaired: list[Problem] = field(default_factory=list)
    """Problems that ``verify`` still finds: lost values, and pages of a database that only a backup brings back."""
    driven: list[str] = field(default_factory=list)
    """Damaged runs that were left alone because they are driven now."""
    dry_run: bool = False

    @property
    def ok(self) -> bool:
        """True if nothing is left to be repaired; values may be lost all the same."""
        return not self.unrepaired and not self.driven

    @property
    def losses(self) -> list[Repair]:
        """The repairs by which something was lost."""
        return [repair for repair in self.repairs if repair.lost]

    @property
    def lost_values(self) -> list[Problem]:
        """The problems that are lost values: each names the run, the checkpoint and the place of the value."""
        return [problem for problem in self.unrepaired if problem.value is not None]

    def as_dry_run(self, retold: Callable[[str], str]) -> RepairReport:
        """Return this report as that of a dry run, with each text changed by ``retold``."""
        return RepairReport(
            self.runs,
            [replace(repair, what=retold(repair.what), lost=retold(repair.lost)) for repair in self.repairs],
            [replace(problem, what=retold(problem.what)) for problem in self.unrepaired],
            self.driven,
            dry_run=True,
        )

    def __str__(self) -> str:
        lines = [f"{self.runs} runs, {len(self.repairs)} repairs, {len(self.unrepaired)} problems left"]
        lines += [f"  {repair}" for repair in self.repairs]
        lines += [f"  run {run_id} is driven: stop it, then repair it" for run_id in self.driven]
        lines += [f"  left: {_where(problem)}{problem.what}" for problem in self.unrepaired]
        return "\n".join(lines)


async def repair_store(
    store: Store, counters: Counters, run_id: RunId | None, progress: Progress | None, dry_run: bool
) -> RepairReport:
    """Repair a run, or all: heads and indexes first, then each damaged run in one commit.

    A dry run repairs a copy, so that it reports what a repair would do.
    """
    if not dry_run:
        return await _repair_all(store, counters, run_id, progress)
    async with AsyncExitStack() as stack:
        try:
            copy, retold = await stack.enter_async_context(store.rehearsal(run_id))
        except StorageError as error:  # a repair could read nothing, either
            return RepairReport(unrepaired=[Problem(None, None, str(error))], dry_run=True)
        return (await _repair_all(copy, counters, run_id, progress)).as_dry_run(retold)


async def _repair_all(
    store: Store, counters: Counters, run_id: RunId | None, progress: Progress | None
) -> RepairReport:
    report = RepairReport()

    def blobs_of(family: RunId) -> BlobReader:
        return BlobReader(store, family, counters)

    try:
        if run_id is not None:
            await heads_of(store, run_id)
        for run, what, lost in await store.mend(run_id):
            if what:
                report.repairs.append(Repair(run, None, what, lost))
            else:
                report.unrepaired.append(Problem(run, None, lost))
        heads = await store.runs(RunQuery()) if run_id is None else await heads_of(store, run_id)
        damages = await store.inspect()
    except RunNotFound:
        raise
    except HoldfastError as error:  # nothing can be repaired at all
        failure = Problem(None, None, str(error))
        left = (await verify_store(store, blobs_of, run_id, None)).problems
        report.unrepaired += [failure, *(problem for problem in left if problem != failure)]
        return report
    steps = Steps(progress)
    steps.more(len(heads))
    for head in heads:
        report.runs += 1
        of_run = [damage for damage in damages if damage.run_id == head.run_id]
        await _repair_run(store, blobs_of(head.family), head, of_run, report)
        steps.done(1)
    report.unrepaired += [
        Problem(damage.run_id, None, damage.what, damage.seq)
        for damage in await store.inspect()
        if run_id is None or damage.run_id in (None, run_id)
    ]
    return report


async def _repair_run(
    store: Store, blobs: BlobReader, head: Head, damages: list[Damage], report: RepairReport
) -> None:
    """Replace a damaged run by what can be saved of it, in one commit."""
    found = await verify_runs(store, [head], lambda _: blobs, looks=LOOKS)
    latest = None if found.ok and not damages else await store.head(head.run_id)
    if latest is None:  # nothing is wrong, or the run was removed meanwhile
        return
    head = latest
    if await is_driven(store, head):
        report.driven.append(head.run_id)
        return
    salvage = Salvage(store, blobs, head)
    commit = await salvage.commit()
    if commit is None:
        report.unrepaired.append(
            Problem(
                head.run_id,
                None,
                "no checkpoint of it can be loaded: restore it from a backup, or delete it with "
                f"'await storage.delete_run({head.run_id!r})'",
            )
        )
        report.unrepaired += found.problems
        return
    planned, brought = PlannedStore(commit), PlannedBlobs(blobs, commit)
    left = await verify_runs(cast(Store, planned), [commit.head], lambda _: brought)
    report.unrepaired += left.problems
    gone = [problem for problem in found.problems if problem not in left.problems]
    if not salvage.steps and not damages and not gone:
        return  # only values are lost, and nothing here can bring them back
    try:
        await store.replace(commit)
    except HeadMoved:
        report.driven.append(head.run_id)
        return
    except HoldfastError as error:
        report.unrepaired.append(Problem(head.run_id, None, str(error)))
        return
    report.repairs += _list_repairs(head.run_id, salvage.steps, gone, damages)


def _list_repairs(
    run_id: RunId, steps: Sequence[SalvageStep], gone: Sequence[Problem], damages: Sequence[Damage]
) -> Iterator[Repair]:
    """Give the repairs of a run: the steps of its salvage, or else the problems that are gone now."""
    yield from (Repair(run_id, *step) for step in steps)
    for problem in () if steps else gone:
        yield Repair(run_id, problem.checkpoint_id, f"it was written anew: {briefly(problem.what)}")
    for damage in damages:
        yield Repair(run_id, None, f"what is there was taken as it is: {briefly(damage.what)}")


class SalvageStep(NamedTuple):
    """One change that was made to save a run."""

    checkpoint_id: CheckpointId | None
    what: str
    lost: str = ""


class Salvage:
    """Builds a commit of all records of a run that can be loaded without the damaged ones."""

    def __init__(self, store: Store, blobs: BlobReader, head: Head) -> None:
        self._store, self._blobs, self._head = store, blobs, head
        self.steps: list[SalvageStep] = []
        self._kept: dict[CheckpointId, Record] = {}
        """The records to store, by id."""
        self._line: dict[CheckpointId, Record] = {}
        """Complete records from which later ones are folded; also dropped ones whose keyframe is good."""
        self._bases: dict[CheckpointId, int] = {}
        self._last: tuple[CheckpointId, Manifest] | None = None
        self._new: list[Blob] = []

    async def commit(self) -> Commit | None:
        """Return a commit of everything that can be saved of the run; None if nothing can."""
        async for found in each_record(self._store, self._head.run_id, 1, self._head.seq):
            if isinstance(found, UnreadableRecord):
                self._drop(None, f"checkpoint number {found.seq}", found.error)
            else:
                await self._take(found)
        if not self._kept:
            return None
        head = self._rebuild_head()
        notes = await self._notes() if head.checkpoint_id == self._head.checkpoint_id else ()
        if head.checkpoint_id != self._head.checkpoint_id:
            self.steps.append(
                SalvageStep(
                    head.checkpoint_id,
                    f"the run stands on it, for {self._head.checkpoint_id} is lost",
                    "what the run did since",
                )
            )
        expected = Expected(self._head.checkpoint_id, self._head.token)
        records, letters = tuple(collapse(self._kept.values())), await self._letters()
        return Commit(head, expected, records, tuple(self._new), tuple(notes), (), tuple(letters))

    async def _take(self, record: Record) -> None:
        """Keep a record if it matches its id and can be folded; use a good keyframe of another for later ones."""
        own, frame = await self._read_own(record), await self._read_keyframe(record)
        if own is None:
            self._drop(record.checkpoint_id, "it", CheckpointCorrupt("its content is not what its id says"))
            if frame is not None:
                self._line[record.checkpoint_id] = frame
                self._last = None
            return
        header = read_header(own)
        parent = header.parent_id
        orphan = parent is not None and parent not in self._kept and header.cause != "fork"
        derived = is_start_id(record.checkpoint_id) and frame is None  # what its end is, and nothing besides
        if parent is not None and frame is None and parent not in (self._kept if derived else self._line):
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
                self.steps.append(
                    SalvageStep(checkpoint_id, "its keyframe stands for its parent, which is lost")
                )
        else:
            manifest = self._manifest(parent)
            fold_one(manifest, own, Depth.ALL)
            if record.keyframe is not None or orphan or base < header.replay_from:
                keyframe, brought = make_keyframe(checkpoint_id, manifest)
                keyframe = keyframe._replace(cut=orphan)
                self._new += brought
                base = record.seq
                self.steps.append(SalvageStep(checkpoint_id, "it has a new keyframe"))
        if not record.sound:
            self.steps.append(
                SalvageStep(checkpoint_id, "its size and tags are taken as they are now", "perhaps tags")
            )
        self._bases[checkpoint_id] = base
        self._kept[checkpoint_id] = record._replace(keyframe=keyframe, sound=True)
        # A record with a new keyframe is folded from its parent again: the parts of the keyframe need not be in memory.
        self._line[checkpoint_id] = own if frame is None else own._replace(keyframe=frame.keyframe)
        self._last = (checkpoint_id, manifest)

    def _manifest(self, checkpoint_id: CheckpointId | None) -> Manifest:
        last, self._last = self._last, None
        if checkpoint_id is None:
            return Manifest()
        if last is not None and last[0] == checkpoint_id:
            return last[1]
        return folded(lineage(self._line, checkpoint_id), Depth.ALL)

    async def _read_own(self, record: Record) -> Record | None:
        """Return the complete record without its keyframe; None if it does not match its id."""
        try:
            own = await whole(record._replace(keyframe=None), self._blobs)
            changes_of(own, Depth.ALL)
            header = read_header(own)
        except HoldfastError:
            return None
        return own if (header.run_id, header.seq) == (self._head.run_id, record.seq) else None

    async def _read_keyframe(self, record: Record) -> Record | None:
        """Return the record with only its keyframe; None if it has none that can be read."""
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
        self.steps.append(
            SalvageStep(checkpoint_id, f"{what} is removed: {briefly(error)}", "this checkpoint")
        )

    def _rebuild_head(self) -> Head:
        """Return the head of the saved run: on its old checkpoint, or else on the newest one that is left."""
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
            traceback="",
            waiting_for=" ".join(waiting_at(header)),
        )

    async def _notes(self) -> Sequence[Note]:
        try:
            notes = await self._store.notes(self._head.run_id)
        except HoldfastError as error:
            self.steps.append(SalvageStep(None, f"its journal is dropped: {briefly(error)}", _NOTED))
            return ()
        good = []
        for note in notes:
            try:
                for inner in (await unbundled([note], self._blobs)).notes:
                    await self._blobs.read(sizes_in_note(inner))
                good.append(note)
            except Exception as error:
                self.steps.append(
                    SalvageStep(None, f"the note {note.key} is dropped: {briefly(error)}", _NOTED)
                )
        return good

    async def _letters(self) -> Sequence[Letter]:
        try:
            return await self._store.inbox(self._head.run_id)
        except HoldfastError as error:
            self.steps.append(
                SalvageStep(None, f"its inbox is dropped: {briefly(error)}", "what others left for the run")
            )
            return ()


_NOTED = "what was done already in the superstep that is under way; it is done again"


class PlannedStore:
    """Gives the run of a commit as a store would, so that it can be verify_runs before it is written."""

    def __init__(self, commit: Commit) -> None:
        self._commit = commit
        self._places = {made.checkpoint_id: (made.run_id, made.seq) for made in commit.records}

    async def records(self, run_id: RunId, first: int, last: int, depth: Depth) -> Sequence[Record]:
        """Return the records of the commit."""
        return [record for record in self._commit.records if first <= record.seq <= last]

    async def find(self, checkpoint_id: CheckpointId) -> tuple[RunId, int] | None:
        """Return the run and seq of a checkpoint of the commit."""
        return self._places.get(checkpoint_id)

    async def notes(self, run_id: RunId) -> Sequence[Note]:
        """Return the notes of the commit."""
        return self._commit.notes

    async def inbox(self, run_id: RunId) -> Sequence[Letter]:
        """Return the letters of the commit."""
        return self._commit.letters


class PlannedBlobs(BlobReader):
    """Reads the blobs of a family and those that a commit brings."""

    def __init__(self, blobs: BlobReader, commit: Commit) -> None:
        self._blobs = blobs
        self._brought = {blob.digest: blob for blob in commit.blobs}

    async def read(self, wanted: Wanted) -> Mapping[Digest, bytes]:
        """Return the plain content of these blobs."""
        here = {
            digest: plain_form(self._brought[digest].data) for digest in wanted if digest in self._brought
        }
        rest: Wanted = [digest for digest in wanted if digest not in here]
        if isinstance(wanted, Mapping):
            rest = {digest: wanted[digest] for digest in rest}
        return {**await self._blobs.read(rest), **here}
