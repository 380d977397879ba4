"""The port that backends implement: where records, heads, blobs, journals and inboxes live.

What it means to be a store is said here, once; ``holdfast.testing.StoreConformance`` checks it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import IntEnum
from typing import NamedTuple, Protocol

from holdfast.engine.status import RunStatus
from holdfast.ids import CheckpointId, Digest, RunId

FORMAT_MAJOR = 1
FORMAT_MINOR = 0
"""A reader of the same major version reads every minor one; a store with another major version is refused."""
FEATURES: frozenset[str] = frozenset()
"""The feature flags that this version understands; a store that needs any other is refused."""


class Keyframe(NamedTuple):
    """All that a run holds at one checkpoint, so that replay can begin there; never part of an id."""

    changes: bytes
    values: bytes
    cut: bool = False
    """Whether the parent of its checkpoint may be missing, because retention removed it."""


class Record(NamedTuple):
    """One checkpoint as it is stored: opaque bytes that never change, and where they belong.

    ``header`` says what ``CheckpointInfo`` says, ``changes`` what the checkpoint changed but no content of any
    value, ``values`` the content of small values. ``new_bytes`` is what it added to the store, blobs included.
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
    """Given to it later, and no part of what its id covers."""
    sound: bool = True
    """Whether what its id does not cover is what was stored, as far as the store can tell; told when all is read."""

    @property
    def parts(self) -> tuple[bytes, ...]:
        """What it holds besides its header, as stored: each may be the name of a blob that holds it."""
        frame = self.keyframe
        return (self.changes, self.values) + (() if frame is None else (frame.changes, frame.values))


class Head(NamedTuple):
    """Where a run stands: the only thing in a store that changes.

    ``seq`` is that of the checkpoint, and the greatest of the run. ``family`` is the run that the first of its
    forks was made from, itself without forks; blobs belong to it. Times are microseconds since 1970, UTC.
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
    """Why the run failed, in a line or two; any str."""
    retention: str = ""
    """Which of its checkpoints are kept, as ``Retention.text`` says it; all if empty."""
    waiting_for: str = ""
    """For a run that is WAITING: some of ``answers``, ``time`` and ``messages``, with spaces between; else empty."""


class Expected(NamedTuple):
    """What a writer believes of the head that it replaces."""

    checkpoint_id: CheckpointId
    token: int


class Blob(NamedTuple):
    """Immutable bytes named by a digest; the name is given, stores do not compute it."""

    digest: Digest
    data: bytes


class Note(NamedTuple):
    """An entry of the journal: what a superstep that has not committed yet did already. Its key is any text."""

    key: str
    data: bytes


class Letter(NamedTuple):
    """Something that others leave in the inbox of a run; its key is used once in the life of the run."""

    key: str
    data: bytes


class Left(NamedTuple):
    """What came of leaving letters."""

    head: Head | None
    """Where the run stood when they were left; None if there is no such run."""
    refused: tuple[str, ...] = ()
    """The keys that were used before; if there are any, no letter was left."""


class Commit(NamedTuple):
    """What becomes durable together, or not at all. ``expected`` is None for the first commit of a run.

    ``notes`` come into the journal of the checkpoint that ``head`` names, ``taken`` are the keys of letters that are
    used up. ``letters`` are left in the inbox; only the first commit of a run has any, when the run comes from
    another store. ``needs`` names blobs of the family that have to be there: records name them that are built on a
    checkpoint which someone may remove meanwhile. They count as brought by the commit.
    """

    head: Head
    expected: Expected | None
    records: tuple[Record, ...] = ()
    blobs: tuple[Blob, ...] = ()
    notes: tuple[Note, ...] = ()
    taken: tuple[str, ...] = ()
    letters: tuple[Letter, ...] = ()
    needs: tuple[Digest, ...] = ()


class Removal(NamedTuple):
    """Records of a run that go, and the keyframes with which others can do without them."""

    run_id: RunId
    expected: Expected
    seqs: tuple[int, ...]
    keyframes: tuple[tuple[int, Keyframe], ...] = ()
    """By the seq of the record that gets it, in place of one that it has."""
    blobs: tuple[Blob, ...] = ()
    """What the keyframes need."""


class Marked(NamedTuple):
    """The blobs of a family that were there at a moment."""

    mark: int
    sizes: Mapping[Digest, int]
    """How many bytes each takes in the store."""


class Depth(IntEnum):
    """How much of each record is read."""

    HEADERS = 0
    """``changes`` and ``values`` are empty, ``keyframe`` is None."""
    CHANGES = 1
    """``values`` are empty, also those of the keyframe."""
    ALL = 2


class RunQuery(NamedTuple):
    """Which runs are asked for, and in which order.

    Oldest first, by ``created``, then ``run_id``; with ``newest`` the latest ``updated`` first, then ``run_id``.
    """

    workflow_name: str | None = None
    statuses: frozenset[RunStatus] | None = None
    limit: int | None = None
    after: RunId | None = None
    """Begin behind this run in the order asked for; a run that is gone begins where it would have been, or anew."""
    newest: bool = False
    family: RunId | None = None
    since: int | None = None
    """Only runs whose ``updated`` is not earlier than this."""


class Damage(NamedTuple):
    """What is wrong with a run; where not even its id can be told, the text says where it lies."""

    run_id: RunId | None
    what: str
    seq: int | None = None
    """That of the checkpoint which is affected, where it can be told."""


class Mended(NamedTuple):
    """What was done to a damaged store, or would be."""

    run_id: RunId | None
    what: str
    lost: str = ""
    """What cannot be brought back."""


class StoreInfo(NamedTuple):
    """What a store says of itself."""

    store_id: str
    """32 hexadecimal digits, drawn when the store was made."""
    major: int
    minor: int
    features: frozenset[str]


class Rehearsal(NamedTuple):
    """A store to try something on."""

    store: Store
    retold: Callable[[str], str]
    """A text of it as the store would have said it of which it is a copy: with its paths."""


class Store(Protocol):
    """Where the bytes of runs live.

    A store serves one namespace, given to it when it is made; nothing of other namespaces can be seen through it.
    It may be used from any number of tasks, from one event loop after another, and unless it lives in memory from
    several processes at the same time. Methods raise ``StorageError`` when the backend fails: never the error of a
    driver, which is the ``__cause__``. Ids come from outside: a store takes any run id that ``complaint_about_id``
    has no complaint about, also ``..`` and ``CON``, and no id leads it out of its place. The records of a run have
    seqs from 1 that grow from commit to commit; all records of a commit belong to the run of its head.

    A class whose coroutines do not look at the task in which they run, as ``asyncio.timeout`` and task groups do, may
    have the attribute ``in_any_task = True``. Then a commit needs no task of its own, which saves a few microseconds.

    >>> import asyncio
    >>> from holdfast import InMemoryCheckpointStorage
    >>> asyncio.run(InMemoryCheckpointStorage().store.open()).major
    1
    """

    async def open(self) -> StoreInfo:
        """Make the store if it is not there; any other method does so by itself.

        Raises ``StorageError`` where something else lies there, or a store of another major format or with
        features that this version does not know; it says which, and changes nothing.
        """
        ...

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        """Make a commit durable: all of it or nothing, also across a crash or a power cut, before it returns.

        Returns what is left in the inbox of the run, oldest first: every letter that was left before the commit and
        that neither it nor an earlier one took. The journal belongs to the checkpoint on which the run stands: a
        commit that moves the head to another checkpoint empties it, then adds its own notes; one that leaves the
        checkpoint as it is only adds. A note with a key that is there already replaces it in its place.

        Raises ``HeadMoved`` if the run's head is not the expected one (same checkpoint, same token), or if one is
        there and none is expected; then nothing changed. So does ``CheckpointNotFound`` say that nothing changed: a
        blob that the commit needs is not there. Blobs may be durable before the rest, also when it fails;
        a blob that is there already is left as it is. After a ``StorageError`` the commit may have happened or not:
        ``head`` tells. From then on what ``head``, ``notes``, ``inbox`` and all other methods tell is durable, or they
        raise ``StorageError``: after a failed sync that something can be read does not say that it is on the disk, nor
        does a later sync that succeeds, so the store has to write it again. Commits of different runs may be made
        durable together, but each fails alone. A caller that is cancelled while it waits leaves the commit to happen
        or not.
        """
        ...

    async def add_blobs(self, family: RunId, blobs: Sequence[Blob]) -> None:
        """Make blobs of a family durable before any commit names them; one that is there already is left as it is.

        For a run that comes from another store, whose blobs together are too much for one commit, which then needs
        them. No run can be seen by it, nor does one have to be there.
        """
        ...

    async def head(self, run_id: RunId) -> Head | None:
        """Where the run stands; None if there is no such run."""
        ...

    async def runs(self, query: RunQuery) -> Sequence[Head]:
        """The runs that are asked for; reads no records."""
        ...

    async def due(self, workflow_name: str, time: int, limit: int) -> Sequence[Head]:
        """The runs of a workflow that are WAITING and have something to do: ``limit`` of them at most.

        Those for which letters wait come first, then those whose ``wake_at`` is not later than ``time``, the soonest
        first, then by ``run_id``. Reads neither records nor the heads of the many others that wait for later.
        """
        ...

    async def damaged(self) -> Sequence[Damage]:
        """The runs whose head cannot be read; ``runs`` leaves them out, ``head`` raises ``CheckpointCorrupt``."""
        ...

    async def inspect(self, run_id: RunId | None = None) -> Sequence[Damage]:
        """What is wrong with how the runs are kept, beyond what reading them shows: with heads, notes, letters.

        Has all that ``damaged`` has. Reads everything but blobs, and raises nothing for what it finds. With ``run_id``
        it looks at what belongs to that run, and reads nothing of others as long as its head can be found.
        """
        ...

    async def mend(self, run_id: RunId | None) -> Sequence[Mended]:
        """Make heads that can be read for runs whose head cannot, from what is left of them; rebuild indexes.

        Such a run has a greater token than before, and is not driven. Notes and letters that are not what was left go.
        What is damaged besides stays. All that is done to one run happens at once or not at all, and doing it again
        changes nothing. With ``run_id`` no other run is touched; indexes that runs share are made anew all the same.
        """
        ...

    def rehearsal(self) -> AbstractAsyncContextManager[Rehearsal]:
        """A copy that can be repaired in place of the store, to see what would come of it; it goes with the context.

        It need not have the blobs, but reads those of the store, and asks the store who lives.
        """
        ...

    async def replace(self, commit: Commit) -> None:
        """Let a run be what a commit says and nothing else, all at once and durably; its blobs stay.

        Raises ``HeadMoved`` as ``commit`` does. For a run that is repaired: what is there may be damaged in any way but
        for its head. Keys of letters that were taken can be used again.
        """
        ...

    async def find(self, checkpoint_id: CheckpointId) -> tuple[RunId, int] | None:
        """The run and seq of a checkpoint; None if there is none, also for a text that is no id."""
        ...

    async def records(self, run_id: RunId, first: int, last: int, depth: Depth) -> Sequence[Record]:
        """The records of a run with ``first`` <= seq <= ``last`` that are there, in order of seq."""
        ...

    async def blobs(self, family: RunId, digests: Sequence[Digest]) -> Mapping[Digest, bytes]:
        """The blobs of a family that are there, as they were given."""
        ...

    async def tag(
        self, run_id: RunId, seq: int, tags: Sequence[str], drop: Sequence[str] | None = None
    ) -> bool:
        """Take tags from a record, all without ``drop``, and add others, durably; False if there is no such record.

        What it has is read and changed at once: of several who tag a record, none undoes what another did.
        """
        ...

    async def remove(self, removal: Removal) -> bool:
        """Give records keyframes and remove others, all or nothing, durably; false if one of those has tags.

        Then nothing changed: who wants it to go takes its tags first. Raises ``HeadMoved`` as ``commit`` does. Seqs
        without a record are passed over; the record on which the run stands cannot be removed (``StorageError``). A
        checkpoint that was removed cannot be found any more.
        """
        ...

    async def remove_run(self, run_id: RunId, expected: Expected) -> None:
        """Remove a run with its records, its journal and its inbox, all or nothing, durably; its blobs stay.

        Raises ``HeadMoved`` as ``commit`` does. Afterwards the run id can be used as if it had never been there.
        """
        ...

    async def mark(self, family: RunId) -> Marked:
        """The blobs of a family; from now on the store knows which of them are brought, or brought again."""
        ...

    async def discard(self, family: RunId, mark: int, digests: Sequence[Digest]) -> int:
        """Remove blobs of a family, but none that anyone brought since the mark; the bytes that were freed.

        A commit brings a blob from the moment it is called, whether the blob is there already or not. Who asks for
        this knows that no record names the blobs; those who would name one again have to bring it.
        """
        ...

    async def notes(self, run_id: RunId) -> Sequence[Note]:
        """The journal of the run: what was noted since it stands on its checkpoint, in order; empty without a run."""
        ...

    async def leave(self, run_id: RunId, since: int, letters: Sequence[Letter]) -> Left:
        """Leave letters for whoever drives the run, all or none, durably; needs no token and moves no head.

        A key can be left once in the life of a run, whether it was taken since or not. ``since`` is the seq of a
        checkpoint on which the run stood when the sender knew that the keys were unused: a store need not look at
        what was taken earlier.
        """
        ...

    async def inbox(self, run_id: RunId) -> Sequence[Letter]:
        """The letters that were left and not taken, oldest first; empty without a run."""
        ...

    async def join(self) -> None:
        """Let other processes see that this one lives, until it dies or closes the store; more than once is fine."""
        ...

    async def lives(self, process: str) -> bool:
        """Whether a process that joined is to be waited for: it did not die, close the store, or stop for long.

        ``process`` is what ``ownership.this_process`` returns there. False for one that never joined.
        """
        ...

    async def close(self) -> None:
        """Let go of files and threads; what was committed stays. Afterwards only ``close`` may be called."""
        ...
