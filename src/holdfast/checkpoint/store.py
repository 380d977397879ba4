"""The port that backends implement: where records, heads and blobs live.

What it means to be a store is said here, once; ``holdfast.testing.StoreConformance`` checks it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


class Expected(NamedTuple):
    """What a writer believes of the head that it replaces."""

    checkpoint_id: CheckpointId
    token: int


class Blob(NamedTuple):
    """Immutable bytes named by a digest; the name is given, stores do not compute it."""

    digest: Digest
    data: bytes


class Commit(NamedTuple):
    """What becomes durable together, or not at all. ``expected`` is None for the first commit of a run."""

    head: Head
    expected: Expected | None
    records: tuple[Record, ...] = ()
    blobs: tuple[Blob, ...] = ()


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


class Damage(NamedTuple):
    """A run whose head cannot be read, and why; where not even its id can be told, the text says where it lies."""

    run_id: RunId | None
    what: str


class StoreInfo(NamedTuple):
    """What a store says of itself."""

    store_id: str
    """32 hexadecimal digits, drawn when the store was made."""
    major: int
    minor: int
    features: frozenset[str]


class Store(Protocol):
    """Where the bytes of runs live.

    A store serves one namespace, given to it when it is made; nothing of other namespaces can be seen through it.
    It may be used from any number of tasks, from one event loop after another, and unless it lives in memory from
    several processes at the same time. Methods raise ``StorageError`` when the backend fails: never the error of a
    driver, which is the ``__cause__``. Ids come from outside: a store takes any run id that ``complaint_about_id``
    has no complaint about, also ``..`` and ``CON``, and no id leads it out of its place. The records of a run have
    seqs from 1 that grow from commit to commit; all records of a commit belong to the run of its head.

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

    async def commit(self, commit: Commit) -> None:
        """Make a commit durable: all of it or nothing, also across a crash or a power cut, before it returns.

        Raises ``HeadMoved`` if the run's head is not the expected one (same checkpoint, same token), or if one is
        there and none is expected; then nothing changed. Blobs may be durable before the rest, also when it fails;
        a blob that is there already is left as it is. After a ``StorageError`` the commit may have happened or not:
        ``head`` tells. Commits of different runs may be made durable together, but each fails alone. A caller that
        is cancelled while it waits leaves the commit to happen or not.
        """
        ...

    async def head(self, run_id: RunId) -> Head | None:
        """Where the run stands; None if there is no such run."""
        ...

    async def runs(self, query: RunQuery) -> Sequence[Head]:
        """The runs that are asked for; reads no records."""
        ...

    async def damaged(self) -> Sequence[Damage]:
        """The runs whose head cannot be read; ``runs`` leaves them out, ``head`` raises ``CheckpointCorrupt``."""
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

    async def close(self) -> None:
        """Let go of files and threads; what was committed stays. Afterwards only ``close`` may be called."""
        ...
