"""A store in one SQLite file."""

from __future__ import annotations

import os
import sqlite3
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence, Set
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from holdfast.checkpoint.maintenance.vacuum import VacuumReport
from holdfast.checkpoint.ownership import this_process
from holdfast.checkpoint.progress import Progress, run_in_thread, run_with_progress
from holdfast.checkpoint.store import (
    Blob,
    ClaimRequest,
    Commit,
    Damage,
    Depth,
    EventRow,
    Expected,
    Head,
    KnownMarks,
    LeaveResult,
    Letter,
    MarkedBlobs,
    Mended,
    Note,
    Record,
    Rehearsal,
    Removal,
    RunQuery,
    SealedForms,
    StoreInfo,
)
from holdfast.checkpoint.threads import upkeep_threads
from holdfast.errors import InvalidArgument, StorageError
from holdfast.ids import CheckpointId, Digest, RunId
from holdfast.stores.common.head_check import TagChange
from holdfast.stores.sqlite import claims, notes_and_letters, row_reader
from holdfast.stores.sqlite.database_file import DatabaseLocation
from holdfast.stores.sqlite.event_table import read_events
from holdfast.stores.sqlite.removal import (
    begin_sweep,
    remove_blobs,
    remove_files,
    remove_records,
    remove_run,
    set_tags,
)
from holdfast.stores.sqlite.row_writer import add_blobs, is_big, replace_run
from holdfast.stores.sqlite.schema import read_key_box, replace_key_box
from holdfast.stores.sqlite.session import FileJob, Session
from holdfast.stores.sqlite.transaction import LettersForRun, use_up_keys

Result = TypeVar("Result")


class SqliteStore:
    """A store in one SQLite file, with large blobs in a folder beside it.

    Commits of many runs share a transaction and its sync; reads wait for nobody. ``busy_seconds`` is how long it waits
    for other processes; a blob of ``big_blob`` bytes or more is a file of its own.

    >>> import asyncio, tempfile
    >>> async def look(path: str) -> None:
    ...     store = SqliteStore(path)
    ...     print(await store.head(RunId("r1")))
    ...     await store.close()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     asyncio.run(look(folder + "/runs.db"))
    None
    """

    in_any_task = True
    """Explained where ``Store`` is defined."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        namespace: str = "",
        *,
        busy_seconds: float = 60.0,
        big_blob: int = 262_144,
        read_only: bool = False,
        keyed: bool = False,
    ) -> None:
        if os.fspath(path) in (":memory:", ""):
            raise InvalidArgument(
                f"SQLite path {os.fspath(path)!r}: the database is a file that other processes can open too; "
                "for checkpoints that live in memory take InMemoryCheckpointStorage()"
            )
        # Absolute: the process may change its directory before the file is opened, or opened again.
        self.path = Path(os.path.abspath(path))
        self.namespace = namespace
        self._location = DatabaseLocation(self.path, busy_seconds, read_only, keyed)
        self._big_blob = big_blob
        self._large_values = self.path.with_name(self.path.name + "-blobs")
        self._session: Session | None = None
        self._finalizer: weakref.finalize[[], SqliteStore] | None = None
        self._closed = False

    @property
    def transactions(self) -> int:
        """Count the transactions that this process has committed: many commits share one."""
        return self._session.writer.transactions if self._session is not None else 0

    @property
    def log_room(self) -> int:
        """Count the bytes by which this process lengthened the log, so that commits need not do it."""
        return self._session.writer.log_room if self._session is not None else 0

    async def open(self) -> StoreInfo:
        session = self._get_session()
        info: StoreInfo = await session.reads.call(lambda _: session.reader.read_info())
        return info

    def commit(self, commit: Commit) -> Coroutine[Any, Any, Sequence[Letter]]:
        session = self._session
        if commit.blobs or session is None or not session.is_of_this_process():
            return self._commit(commit)
        return session.writes.call(commit)  # the usual case: each superstep waits for it

    async def _commit(self, commit: Commit) -> Sequence[Letter]:
        session = self._get_session()
        with await self._write_big_blobs(session, commit.head.family, commit.blobs):
            waiting: list[Letter] = await session.writes.call(commit)
        return waiting

    async def add_blobs(self, family: RunId, blobs: Sequence[Blob]) -> None:
        session = self._get_session()
        with await self._write_big_blobs(session, family, blobs):
            await session.writes.call(
                lambda connection: add_blobs(connection, self.namespace, family, blobs, self._big_blob)
            )

    async def _write_big_blobs(
        self, session: Session, family: RunId, blobs: Sequence[Blob]
    ) -> AbstractContextManager[None]:
        """Write the blobs that are files; no sweep removes any while the returned context is open."""
        big = [blob for blob in blobs if is_big(blob, self._big_blob)] if blobs else []
        if not big:
            return nullcontext()
        await self.open()  # so that nothing is put beside a file that is no store
        write = partial(session.blob_files.write_and_hold, family, big)
        held: AbstractContextManager[None] = await session.files.call(
            FileJob("writing large values of", write)
        )
        return held

    async def head(self, run_id: RunId) -> Head | None:
        return await self._read(lambda connection: row_reader.read_head(connection, self.namespace, run_id))

    async def runs(self, query: RunQuery) -> Sequence[Head]:
        return await self._read(lambda connection: row_reader.read_runs(connection, self.namespace, query))

    async def count_runs(self, query: RunQuery) -> int:
        return await self._read(lambda connection: row_reader.count_runs(connection, self.namespace, query))

    async def claim(self, request: ClaimRequest) -> Sequence[Head]:
        lost = await self._find_lost_owners(request)
        found = await self._read(
            lambda connection: claims.find_claimable(connection, self.namespace, request, lost)
        )
        if found is not None and (not found or not request.lease):
            return found
        claimed: Sequence[Head] = await self._get_session().writes.call(
            lambda connection: claims.add_claims(connection, self.namespace, request, lost)
        )
        return claimed

    async def _find_lost_owners(self, request: ClaimRequest) -> claims.LostOwners:
        found = await self._read(
            lambda connection: claims.find_processes(connection, self.namespace, request)
        )
        dropped: set[str] = set()
        if request.abandoned and this_process() in found:
            dropped = await self._read(
                lambda connection: claims.find_dropped_owners(connection, self.namespace)
            )
        others = found - {this_process()}
        return claims.LostOwners(others - await self.living(others) if others else others, dropped)

    async def damaged(self) -> Sequence[Damage]:
        return await self._read(lambda connection: row_reader.read_damaged(connection, self.namespace))

    # Imports within functions are of modules that few processes need: others start sooner without them.

    async def inspect(self, run_id: RunId | None = None) -> Sequence[Damage]:
        from holdfast.stores.sqlite.damage import find_damage

        await self.open()
        look = partial(find_damage, self._get_session().location, self.namespace, run_id)
        found = await upkeep_threads.call(look)
        if self._location.read_only and found:  # read without locks, it may have changed meanwhile
            again = await upkeep_threads.call(look)
            found = [damage for damage in found if damage in again]
        return found

    async def mend(self, run_id: RunId | None, forms: SealedForms | None = None) -> Sequence[Mended]:
        from holdfast.stores.sqlite.damage import mend

        await self.open()
        mended: Sequence[Mended] = await self._get_session().writes.call(
            lambda connection: mend(connection, self.namespace, run_id, forms)
        )
        return mended

    @asynccontextmanager
    async def rehearsal(self, run_id: RunId | None = None) -> AsyncIterator[Rehearsal]:
        from tempfile import TemporaryDirectory

        from holdfast.stores.common.rehearsal import make_rehearsal
        from holdfast.stores.sqlite.backup import copy_for_rehearsal

        with TemporaryDirectory(prefix="holdfast-") as folder:
            path = Path(folder) / self.path.name
            source = self._get_session().location
            await run_in_thread(partial(copy_for_rehearsal, source, path, self.namespace, run_id))
            copy = SqliteStore(path, self.namespace, big_blob=sys.maxsize, keyed=source.keyed)
            copy._large_values = (
                self._large_values
            )  # the copy reads them; it writes none, for no blob is large enough
            try:
                yield make_rehearsal(copy, self, str(path), str(self.path))
            finally:
                await copy.close()

    async def replace(self, commit: Commit) -> None:
        session = self._get_session()
        with await self._write_big_blobs(session, commit.head.family, commit.blobs):
            await session.writes.call(
                lambda connection: replace_run(connection, self.namespace, commit, self._big_blob)
            )

    async def find(self, checkpoint_id: CheckpointId) -> tuple[RunId, int] | None:
        return await self._read(
            lambda connection: row_reader.find_checkpoint(connection, self.namespace, checkpoint_id)
        )

    async def records(self, run_id: RunId, first: int, last: int, depth: Depth) -> Sequence[Record]:
        return await self._read(
            lambda connection: row_reader.read_records(connection, self.namespace, run_id, first, last, depth)
        )

    async def blobs(self, family: RunId, digests: Sequence[Digest]) -> Mapping[Digest, bytes]:
        files = self._get_session().blob_files
        return await self._read(
            lambda connection: row_reader.read_blobs(connection, self.namespace, files, family, digests)
        )

    async def tag(
        self, run_id: RunId, seq: int, tags: Sequence[str], drop: Sequence[str] | None = None, by: str = ""
    ) -> bool:
        change = TagChange(tags, drop, by)
        done: bool = await self._get_session().writes.call(
            lambda connection: set_tags(connection, self.namespace, run_id, seq, change)
        )
        return done

    async def remove(self, removal: Removal) -> bool:
        session = self._get_session()
        head = await self.head(removal.run_id)
        with await self._write_big_blobs(session, RunId("") if head is None else head.family, removal.blobs):
            done: bool = await session.writes.call(
                lambda connection: remove_records(connection, self.namespace, removal, self._big_blob)
            )
        return done

    async def remove_run(self, run_id: RunId, expected: Expected, known: KnownMarks | None = None) -> bool:
        done: bool = await self._get_session().writes.call(
            lambda connection: remove_run(connection, self.namespace, run_id, expected, known)
        )
        return done

    async def mark(self, family: RunId) -> MarkedBlobs:
        session = self._get_session()
        marked: MarkedBlobs = await session.writes.call(
            lambda connection: begin_sweep(connection, self.namespace, family)
        )
        beside: Mapping[Digest, int] = await session.files.call(
            FileJob("listing large values of", partial(session.blob_files.list_sizes, family))
        )
        return MarkedBlobs(marked.mark, {**beside, **marked.sizes})

    async def discard(self, family: RunId, mark: int, digests: Sequence[Digest]) -> int:
        session = self._get_session()

        async def discard(files: bool) -> int:
            freed: int = await session.writes.call(
                lambda connection: remove_blobs(connection, self.namespace, family, mark, digests, files)
            )
            return freed

        alone: AbstractContextManager[None] | None = await session.files.call(
            FileJob("sweeping", session.blob_files.try_sweep_lock)
        )
        if alone is None:
            return await discard(files=False)
        with alone:  # no commit is between writing a file and its row
            freed = await discard(files=True)
            # Not in the thread for files: a writer there may wait until the lock is released.
            of_files = await self._read(
                lambda connection: remove_files(
                    connection, self.namespace, session.blob_files, family, digests
                )
            )
        return freed + of_files

    async def events(self, run_id: RunId, first: int, limit: int) -> Sequence[EventRow]:
        return await self._read(
            lambda connection: read_events(connection, self.namespace, run_id, first, limit)
        )

    async def notes(self, run_id: RunId) -> Sequence[Note]:
        return await self._read(
            lambda connection: notes_and_letters.read_notes(connection, self.namespace, run_id)
        )

    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        left: LeaveResult = await self._get_session().writes.call(LettersForRun(run_id, tuple(letters), most))
        return left

    async def inbox(self, run_id: RunId) -> Sequence[Letter]:
        return await self._read(
            lambda connection: notes_and_letters.read_inbox(connection, self.namespace, run_id)
        )

    async def taken(self, run_id: RunId, keys: Sequence[str]) -> Sequence[str]:
        return await self._read(
            lambda connection: notes_and_letters.find_taken_keys(connection, self.namespace, run_id, keys)
        )

    async def use_up(self, run_id: RunId, keys: Sequence[str]) -> LeaveResult:
        used: LeaveResult = await self._get_session().writes.call(
            lambda connection: use_up_keys(connection, self.namespace, run_id, keys)
        )
        return used

    async def key_box(self) -> str:
        return await self._read(read_key_box)

    async def set_key_box(self, box: str, expected: str) -> bool:
        done: bool = await self._get_session().writes.call(
            lambda connection: replace_key_box(connection, box, expected)
        )
        return done

    async def join(self) -> None:
        session = self._get_session()
        if not session.presence.joined:  # each run that begins calls this
            await session.join()

    async def living(self, processes: Collection[str]) -> Set[str]:
        await self.open()
        session = self._get_session()
        lives = session.presence.seems_alive if self._location.read_only else session.presence.lives
        living: Set[str] = await session.files.call(
            FileJob("looking who uses", lambda: {process for process in processes if lives(process)})
        )
        return living

    async def backup(self, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
        """Copy the store, with all its namespaces, to a new file while it is in use."""
        from holdfast.stores.sqlite.backup import back_up

        await self.open()
        target = Path(os.path.abspath(path))  # noqa: ASYNC240
        await run_with_progress(partial(back_up, self._get_session().location, target), progress)

    async def vacuum(self, progress: Progress | None = None) -> VacuumReport:
        """Remove blobs of families without a run, and give the room that is not used back to the file system."""
        from holdfast.stores.sqlite import vacuum

        await self.open()
        session = self._get_session()
        size = partial(vacuum.measure, self.path, self._large_values)
        before = await upkeep_threads.call(size)
        if not await self.damaged():  # whose family is not known
            await self._remove_unused_families()
        is_alone: bool = await session.files.call(
            FileJob("looking who uses", lambda: not session.presence.has_others())
        )
        work = partial(vacuum.give_room_back, session.location, is_alone)
        seconds = await run_with_progress(work, progress)
        await session.files.call(FileJob("vacuuming", session.blob_files.remove_empty_folders))
        return VacuumReport(before, await upkeep_threads.call(size), seconds)

    async def _remove_unused_families(self) -> None:
        """Remove the blobs of families whose runs are gone: whoever removed these was killed before it came to that."""
        from holdfast.stores.sqlite.vacuum import find_unused_families

        files = self._get_session().blob_files
        families = await self._read(lambda connection: find_unused_families(connection, self.namespace))
        for family, has_rows in families:
            if not has_rows and not await upkeep_threads.call(partial(files.has_folder, family)):
                continue
            mark, sizes = await self.mark(family)
            if sizes and not await self.runs(RunQuery(family=family, limit=1)):
                await self.discard(family, mark, list(sizes))

    async def _read(self, query: Callable[[sqlite3.Connection], Result]) -> Result:
        result: Result = await self._get_session().reads.call(query)
        return result

    async def close(self) -> None:
        self._closed = True
        session, self._session = self._session, None
        if self._finalizer is not None:
            self._finalizer.detach()
        if session is not None and session.is_of_this_process():
            await session.close()

    def _get_session(self) -> Session:
        session = self._session
        if session is None or not session.is_of_this_process():
            session = self._begin_session()
        return session

    def _begin_session(self) -> Session:
        if self._closed:
            raise StorageError(
                f"the store {str(self.path)!r} is closed; make a new SqliteStore to use it again"
            )
        if self._finalizer is not None:
            self._finalizer.detach()
        self._session = Session(replace(self._location), self.namespace, self._big_blob, self._large_values)
        self._finalizer = weakref.finalize(self, self._session.stop)
        return self._session
