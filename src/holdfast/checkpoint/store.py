"""The port that backends implement: where records, heads, blobs, journals and inboxes live.

This is the contract of all stores; ``holdfast.testing.StoreConformance`` checks it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from contextlib import AbstractAsyncContextManager
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple, Protocol

from holdfast.engine.status import RunStatus
from holdfast.ids import CheckpointId, Digest, RunId

FORMAT_MAJOR = 1
FORMAT_MINOR = 0
"""A reader of the same major version reads every minor one; a store with another major version is refused."""
FEATURES: frozenset[str] = frozenset()
"""The feature flags that this version understands; a store that needs any other is refused."""
KEYS = "keys"
"""The feature flag of a store whose content is sealed; only a store that is made with ``keyed=True`` opens it."""


class Keyframe(NamedTuple):
    """Everything that a run holds at one checkpoint, so that replay can begin there; never part of an id."""

    changes: bytes
    values: bytes
    cut: bool = False
    """True if retention may have removed the parent of its checkpoint."""


class Record(NamedTuple):
    """One checkpoint as it is stored: opaque bytes that never change, with the id, run and seq that they belong to.

    ``header`` holds the fields of ``CheckpointInfo``, ``changes`` the changes without the content of values, ``values``
    the content of small values. ``new_bytes`` is the number of bytes that it added to the store, with blobs.
    """

    checkpoint_id: CheckpointId
    run_id: RunId
    seq: int
    header: bytes
    changes: bytes
    values: bytes
    new_bytes: int
    keyframe: Keyframe | None = None
    tags: tuple[str, ...] = ()
    """Given to the record later; its id does not cover them."""
    sound: bool = True
    """False if the store knows that something changed which the id does not cover; only known if all of it was read."""
    tagged_by: Mapping[str, str] = {}
    """By tag, the person or program that gave it; tags of which nobody said that are missing. Any str."""

    @property
    def parts(self) -> tuple[bytes, ...]:
        """The stored parts besides the header; each may be the name of a blob that holds it."""
        frame = self.keyframe
        return (self.changes, self.values) + (() if frame is None else (frame.changes, frame.values))


class Head(NamedTuple):
    """The state of a run: its checkpoint, status and owner. Nothing else of a run changes in a store.

    ``seq`` is that of the checkpoint, and the greatest of the run. ``family`` is the run at the root of its forks, the
    run itself if it is no fork; blobs belong to a family. Times are microseconds since 1970, UTC.
    """

    run_id: RunId
    workflow_name: str
    family: RunId
    checkpoint_id: CheckpointId
    seq: int
    token: int
    status: RunStatus
    created: int
    updated: int
    owner: str = ""
    wake_at: int | None = None
    takeovers: int = 0
    reason: str = ""
    """The reason why the run failed, in a line or two; any str."""
    retention: str = ""
    """The retention of its checkpoints, as ``Retention.text`` gives it; all are kept if empty."""
    waiting_for: str = ""
    """For a run that is WAITING: some of ``answers``, ``time`` and ``messages``, with spaces between; else empty."""
    letters_known: int = 0
    """The number of waiting letters that do not make the run due: it was tried with them, or cancelled despite them."""
    fingerprint: str = ""
    """The fingerprint of the graph with which the run goes on."""
    by: str = ""
    """The person or program that changed the status, if that was said; any str."""
    traceback: str = ""
    """The traceback of the error with which the run failed, for people; any str."""
    origin: str = ""
    """For a fork, the id of the checkpoint at which it began, a space, and the id of the run of that; else empty."""
    restored: int = 0
    """The seq of the last checkpoint by which the run was taken back to an earlier one; 0 if it never was."""


class Expected(NamedTuple):
    """The checkpoint and token that a writer expects of the head that it replaces."""

    checkpoint_id: CheckpointId
    token: int


class Blob(NamedTuple):
    """Immutable bytes named by a digest; stores take the name as given and do not compute it."""

    digest: Digest
    data: bytes


class Note(NamedTuple):
    """An entry of the journal of a superstep that has not committed yet. Its key is any text."""

    key: str
    data: bytes


class Letter(NamedTuple):
    """An entry of the inbox of a run, left by anyone; its key is used once in the life of the run."""

    key: str
    data: bytes


class EventRow(NamedTuple):
    """The events that one commit made true, as opaque bytes, under the seq of its last record or of its head.

    Several commits may bring rows of one seq; a store keeps them in the order of the commits.
    """

    seq: int
    data: bytes
    sound: bool = True
    """False if the store knows that it was changed."""


MOST_LETTERS = 10_000
"""The largest number of letters that may wait for a run when a further message is left for it."""


class LeaveResult(NamedTuple):
    """The result of leaving letters."""

    head: Head | None
    """The head of the run when they were left; None if there is no such run."""
    refused: tuple[str, ...] = ()
    """Keys that were used before; if there are any, no letter was left."""
    is_full: bool = False
    """True if no letter was left because too many wait."""


class Commit(NamedTuple):
    """Changes of one run that become durable together, or not at all. ``expected`` is None for its first commit.

    ``notes`` are added to the journal of the checkpoint that ``head`` names, ``taken`` are the keys of letters that are
    used up. ``letters`` are left in the inbox, unless their keys were used before; one that is ``taken`` as well only
    uses up its key.
    ``needs`` names blobs of the family that must be there: new records name them, but an earlier checkpoint brought
    them, and someone may remove that meanwhile. They count as brought by the commit. ``events`` are added to those of
    the run; rows of seqs before ``events_from`` go.
    """

    head: Head
    expected: Expected | None
    records: tuple[Record, ...] = ()
    blobs: tuple[Blob, ...] = ()
    notes: tuple[Note, ...] = ()
    taken: tuple[str, ...] = ()
    letters: tuple[Letter, ...] = ()
    needs: tuple[Digest, ...] = ()
    events: tuple[EventRow, ...] = ()
    events_from: int = 0


class Retag(NamedTuple):
    """Other tags for a record: those that it gets in place of those that it has."""

    seq: int
    before: tuple[str, ...]
    after: tuple[str, ...]


class Removal(NamedTuple):
    """Records of a run to remove, the keyframes that other records need without them, and changes of tags."""

    run_id: RunId
    expected: Expected
    seqs: tuple[int, ...]
    keyframes: tuple[tuple[int, Keyframe], ...] = ()
    """Each with the seq of the record that gets it; it replaces one that the record has."""
    blobs: tuple[Blob, ...] = ()
    """The blobs that the keyframes name."""
    tags: tuple[Retag, ...] = ()
    """Changes that are made before records are removed: a record without tags by then may go."""


class KnownMarks(NamedTuple):
    """The letters and tags that someone knows of who wants to remove a run."""

    letters: int = 0
    """The number of letters that wait."""
    tags: Mapping[int, tuple[str, ...]] = {}
    """By seq, the tags of the records that have any."""


class MarkedBlobs(NamedTuple):
    """The blobs of a family at one moment."""

    mark: int
    sizes: Mapping[Digest, int]
    """The number of bytes that each takes in the store."""


class Depth(IntEnum):
    """The parts of records that are read."""

    HEADERS = 0
    """``changes`` and ``values`` are empty, ``keyframe`` is None."""
    CHANGES = 1
    """``values`` are empty, also those of the keyframe."""
    ALL = 2


class RunPosition(NamedTuple):
    """A position in a list of runs: a time, ``created`` or ``updated`` by the order of the list, and a run id."""

    time: int
    run_id: RunId


class RunQuery(NamedTuple):
    """Selects runs and orders them.

    Oldest first, by ``created``, then ``run_id``; with ``newest`` the latest ``updated`` first, then ``run_id``.
    Times are microseconds since 1970, UTC: ``..._after`` selects runs of that time or later, ``..._before`` earlier.
    """

    workflow_name: str | None = None
    statuses: frozenset[RunStatus] | None = None
    limit: int | None = None
    after: RunPosition | None = None
    """Begin behind this position in that order, whether a run is there or not."""
    newest: bool = False
    family: RunId | None = None
    created_after: int | None = None
    created_before: int | None = None
    updated_after: int | None = None
    updated_before: int | None = None
    forked_from: RunId | None = None
    """Only forks that began at a checkpoint of this run."""
    text: str | None = None
    """Only runs that have this in their id, their workflow's name, their reason or a tag of one of their checkpoints.

    Upper and lower case are the same by ``str.casefold``; no character stands for others.
    """

    def position_of(self, head: Head) -> RunPosition:
        """Return the position of a run in the order of this query."""
        return RunPosition(head.updated if self.newest else head.created, head.run_id)


class ClaimRequest(NamedTuple):
    """Asks for runs that somebody should go on with, to keep them from others for a moment.

    Times are microseconds since 1970, UTC. ``workflows`` names the workflows, each with the fingerprints of the builds
    that are at hand, or None if any will do; a run whose fingerprint is not known fits, too.
    """

    process: str
    """The process that asks, as ``ownership.this_process`` names it; it has to join before."""
    time: int
    lease: int
    """The microseconds after which the claims end by themselves; with 0 nothing is claimed, and claims are ignored."""
    limit: int
    workflows: Mapping[str, Set[str] | None]
    fits: bool = True
    """False asks for runs of these workflows that have none of the fingerprints."""
    abandoned: bool = True
    """True asks also for runs that are RUNNING though their owner does not live."""
    besides: Mapping[RunId, CheckpointId] = MappingProxyType({})
    """Runs that are left out as long as they stand on this checkpoint: the caller tried them in vain."""


class Damage(NamedTuple):
    """A damage of a run; if not even the id of the run is known, the text says where the damage lies."""

    run_id: RunId | None
    what: str
    seq: int | None = None
    """The seq of the affected checkpoint, if it is known."""


class Mended(NamedTuple):
    """A change that was made to a damaged store, or would be."""

    run_id: RunId | None
    what: str
    lost: str = ""
    """The loss that comes with it; empty if nothing is lost."""


class StoreInfo(NamedTuple):
    """The id, format and features of a store."""

    store_id: str
    """32 hexadecimal digits, drawn when the store was made."""
    major: int
    minor: int
    features: frozenset[str]


class SealedForms(NamedTuple):
    """Lets a store under keys make heads anew: what it has to read and write for that is sealed by the layer above."""

    open_record: Callable[[Record], Record]
    """Returns a record of ``Depth.HEADERS`` in plain; raises ``CheckpointCorrupt``."""
    open_head: Callable[[Head], Head]
    """Returns a head in plain; raises ``CheckpointCorrupt`` for one that is not believed."""
    close_head: Callable[[Head], Head]
    """Returns a head as it is stored."""


class Rehearsal(NamedTuple):
    """A copy of a store on which a repair is tried."""

    store: Store
    retold: Callable[[str], str]
    """Translates a text of the copy into that of the original store, with its paths."""


class Store(Protocol):
    """The port that keeps the bytes of runs.

    A store serves one namespace, given when it is made; it shows nothing of other namespaces.
    It may be used from any number of tasks, from one event loop after another, and unless it lives in memory from
    several processes at the same time. Methods raise ``StorageError`` when the backend fails, never the error of a
    driver, which is its ``__cause__``. Ids come from outside: a store takes any run id that ``complaint_about_id``
    has no complaint about, also ``..`` and ``CON``, and no id leads it out of its place. The records of a run have
    seqs from 1 that grow from commit to commit; all records of a commit belong to the run of its head.

    A store may have the method ``wakeups()``, an async generator of the ids of runs that somebody should look at now,
    because they were stored to be woken or got letters; then a host need not wait until it looks again. Such hints may
    be lost, doubled or wrong: hosts look all the same. They are for what comes from outside, not for each superstep.

    A class whose coroutines do not use the current task, as ``asyncio.timeout`` and task groups do, may have the
    attribute ``in_any_task = True``. Then a commit needs no task of its own, which saves a few microseconds.

    A store under keys is made with ``keyed=True``: it has the feature ``keys``, says so when it is made for the first
    time, and refuses to be opened without. What it is given then is sealed by ``keys.sealed_store``, which keeps its
    own keys in a *key box*, a text that the store keeps beside its id and does not understand.

    >>> import asyncio
    >>> from holdfast import InMemoryCheckpointStorage
    >>> asyncio.run(InMemoryCheckpointStorage().store.open()).major
    1
    """

    async def open(self) -> StoreInfo:
        """Make the store if it is not there; every other method does so by itself.

        Raises ``StorageError``, and changes nothing, if something else lies there, or a store of another major format
        or with features that this version does not know; the error names them.
        """
        ...

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        """Make a commit durable: all of it or nothing, also across a crash or a power cut, before it returns.

        Returns the inbox of the run, oldest first: every letter that was left before the commit and that neither it nor
        an earlier commit took. The journal belongs to the checkpoint on which the run stands: a commit that moves the
        head to another checkpoint empties it, then adds its own notes; one that leaves the checkpoint as it is only
        adds. A note with a key that is there already replaces that note in its place.

        Raises ``HeadMoved`` if the run's head is not the expected one (same checkpoint, same token), or if one is there
        and none is expected; raises ``CheckpointNotFound`` if a blob that the commit needs is not there. In both cases
        nothing changed. Blobs may be durable before the rest, also when it fails; a blob that is there already is left
        as it is. After a ``StorageError`` the commit may have happened or not: ``head`` shows it. From then on all that
        ``head``, ``notes``, ``inbox`` and the other methods return is durable, or they raise ``StorageError``. After a
        failed sync, data that can be read need not be on the disk, even if a later sync succeeds, so the store has to
        write it again. Commits of different runs may be made durable together, but each fails alone. A caller that is
        cancelled while it waits leaves the commit to happen or not.
        """
        ...

    async def add_blobs(self, family: RunId, blobs: Sequence[Blob]) -> None:
        """Make blobs of a family durable before any commit names them; one that is there already is left as it is.

        For a run that comes from another store, whose blobs are too much for one commit; that commit ``needs`` them.
        The family need not have a run yet, and none becomes visible.
        """
        ...

    async def head(self, run_id: RunId) -> Head | None:
        """Return the head of a run; None if there is no such run."""
        ...

    async def runs(self, query: RunQuery) -> Sequence[Head]:
        """Return the heads of the runs that a query selects; reads no records."""
        ...

    async def count_runs(self, query: RunQuery) -> int:
        """Return the number of runs that a query selects; ``limit`` and ``after`` mean nothing here.

        A run whose head cannot be read may be counted: a store need not read all heads to count them.
        """
        ...

    async def claim(self, request: ClaimRequest) -> Sequence[Head]:
        """Return runs that somebody should go on with, and keep them from other callers for a moment.

        First come runs that are due: those for which more letters wait than ``letters_known``, whatever their status
        but RUNNING, by ``run_id``; then those that are WAITING and whose ``wake_at`` is not later than ``time``, the
        soonest first, then by ``run_id``. After them come those that are RUNNING though their owner does not live, the
        oldest first. An owner of this process lives as long as ``ownership.is_held`` says so. Of callers at the same
        time, in any process, no two get the same run.

        A claim is no ownership: it moves no head, and the first commit of whoever is faster decides. It ends when
        the run has another checkpoint, token or number of waiting letters than when it was claimed, when its lease is
        over, when the time has come for which the run waits, or when its process lives no longer. A caller does not
        believe in claims that last longer than twice its own lease. Claims need not be durable. A run that is being
        written right now may be left out.

        Where nothing is found, nothing is written; and heads are read only of runs that are due, or whose owner does
        not live.
        """
        ...

    async def damaged(self) -> Sequence[Damage]:
        """Return the runs whose head cannot be read; ``runs`` omits them, ``head`` raises ``CheckpointCorrupt``."""
        ...

    async def inspect(self, run_id: RunId | None = None) -> Sequence[Damage]:
        """Return damages of heads, notes, letters and indexes, which reading the runs does not show.

        Includes everything that ``damaged`` returns. Reads everything but blobs, and raises no error for damages. With
        ``run_id`` it inspects only that run, and reads nothing of others as long as its head can be found.
        """
        ...

    async def mend(self, run_id: RunId | None, forms: SealedForms | None = None) -> Sequence[Mended]:
        """Rebuild heads that cannot be read from what is left of their runs, and rebuild indexes.

        Such a run has a greater token than before, and is not driven. Changed notes and letters are removed. Other
        damage stays. All changes of one run happen at once or not at all, and a second call changes nothing. With
        ``run_id`` no other run is touched, but indexes that runs share are rebuilt. ``forms`` are given by the layer
        that seals what a store under keys holds; a head that they do not open cannot be read.
        """
        ...

    def rehearsal(self, run_id: RunId | None = None) -> AbstractAsyncContextManager[Rehearsal]:
        """Give a copy of the store that can be repaired to see the result; it is removed when the context ends.

        With ``run_id`` it is a copy of that run alone, as long as its head can be found: other runs are not copied.
        It need not have the blobs, but reads those of the store, and asks the store which processes live.
        """
        ...

    async def replace(self, commit: Commit) -> None:
        """Replace everything of a run by the content of a commit, at once and durably; its blobs stay.

        Raises ``HeadMoved`` as ``commit`` does. For repairs: everything of the run but its head may be damaged. Keys of
        letters that were taken can be used again. Rows of events that can be read stay, if their seq is not greater
        than that of the new head.
        """
        ...

    async def find(self, checkpoint_id: CheckpointId) -> tuple[RunId, int] | None:
        """Return the run and seq of a checkpoint; None if there is no such checkpoint, or if the text is no id."""
        ...

    async def records(self, run_id: RunId, first: int, last: int, depth: Depth) -> Sequence[Record]:
        """Return the records of a run with ``first`` <= seq <= ``last``, in order of seq."""
        ...

    async def blobs(self, family: RunId, digests: Sequence[Digest]) -> Mapping[Digest, bytes]:
        """Return those of the blobs that the family has, as they were given."""
        ...

    async def tag(
        self, run_id: RunId, seq: int, tags: Sequence[str], drop: Sequence[str] | None = None, by: str = ""
    ) -> bool:
        """Drop tags of a record, all if ``drop`` is None, and add others, durably; return False if there is no record.

        Reading and changing them is one step: of several callers, none undoes the change of another. ``by`` says who
        gives the tags that are added, empty if nobody says it; a tag that stays keeps who gave it first.
        """
        ...

    async def remove(self, removal: Removal) -> bool:
        """Give records keyframes and tags and remove others, all or nothing, durably; return False if tags forbid it.

        They do if a record to be removed has tags, or one that gets other tags is not there or has not the tags that
        it should have. Then nothing changed: to remove a record, drop its tags first. Tags that a record keeps also
        keep who gave them. Raises ``HeadMoved`` as ``commit`` does. Seqs without a record are skipped; the record on
        which the run stands cannot be removed (``StorageError``). ``find`` does not find a removed checkpoint any more.
        """
        ...

    async def remove_run(self, run_id: RunId, expected: Expected, known: KnownMarks | None = None) -> bool:
        """Remove a run with its records, journal, events and inbox, all or nothing, durably; its blobs stay.

        With ``known`` it removes nothing, and returns False, if more letters wait than that, or other tags are there:
        they came meanwhile. Raises ``HeadMoved`` as ``commit`` does. Afterwards the run id can be used as if it had
        never been there.
        """
        ...

    async def mark(self, family: RunId) -> MarkedBlobs:
        """Return the blobs of a family and a mark; from now on the store notes which blobs are brought, also again."""
        ...

    async def discard(self, family: RunId, mark: int, digests: Sequence[Digest]) -> int:
        """Remove blobs of a family, except those that were brought since the mark; return the number of freed bytes.

        A commit brings a blob from the moment it is called, whether the blob is there already or not. The caller knows
        that no record names the blobs; a writer that names one again has to bring it.
        """
        ...

    async def notes(self, run_id: RunId) -> Sequence[Note]:
        """Return the journal of a run, in order: the notes since its checkpoint; empty if there is no such run."""
        ...

    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        """Leave letters for the owner of a run, all or none, durably; needs no token and moves no head.

        A key can be left once in the life of a run, whether it was taken since or not. ``since`` is the seq of a
        checkpoint on which the run stood when the sender knew that the keys were unused: a store need not look at
        letters that were taken earlier. If more than ``most`` letters would wait for the run then, none is left; keys
        that were used before are refused first.
        """
        ...

    async def inbox(self, run_id: RunId) -> Sequence[Letter]:
        """Return the letters that were left and not taken, oldest first; empty if there is no such run."""
        ...

    async def taken(self, run_id: RunId, keys: Sequence[str]) -> Sequence[str]:
        """Return those of the keys whose letters were left and taken; none if there is no such run.

        Keys that the store would let be left again may be missing.
        """
        ...

    async def use_up(self, run_id: RunId, keys: Sequence[str]) -> LeaveResult:
        """Use up keys, all or none, durably, as if letters with them had been left and taken.

        Needs no token, moves no head, and makes no run due. If any of the keys was used before, nothing changes, and
        the result names those.
        """
        ...

    async def events(self, run_id: RunId, first: int, limit: int) -> Sequence[EventRow]:
        """Return the rows of events with seqs from ``first`` on, in order of seq; empty if there is no such run.

        About ``limit`` of them, at least one if there is one, and all of each seq. Removing checkpoints removes no
        events. A row that cannot be read is left out, or is not ``sound``; that is no reason to raise.
        """
        ...

    async def key_box(self) -> str:
        """Return the key box of a store that was made with ``keyed=True``; empty if it has none yet."""
        ...

    async def set_key_box(self, box: str, expected: str) -> bool:
        """Replace the key box durably, in all namespaces; return False, and change nothing, if another one is there."""
        ...

    async def join(self) -> None:
        """Show other processes that this one lives, until it dies or closes the store; may be called again."""
        ...

    async def living(self, processes: Collection[str]) -> Set[str]:
        """Return those of the processes that joined and live: they did not die, close the store, or stop for long.

        Each is named by the result of ``ownership.this_process`` there. One that never joined does not live.
        """
        ...

    async def close(self) -> None:
        """Release files and threads; everything that was committed stays. Afterwards only ``close`` may be called."""
        ...
