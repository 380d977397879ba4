"""Exports runs to files and imports them from files; both check the whole file.

Nothing here decodes a value: the types of the workflow need not be known, and nothing in a file is executed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from holdfast.checkpoint.arguments import run_not_found
from holdfast.checkpoint.counters import Counters
from holdfast.checkpoint.progress import Progress, Steps, run_in_thread
from holdfast.checkpoint.read.loader import BlobReader
from holdfast.checkpoint.read.reread import steadily
from holdfast.checkpoint.store import Blob, Commit, Depth, EventRow, Head, Letter, Note, Record, Store
from holdfast.checkpoint.transfer.export_check import check_export, find_blobs_of_notes, find_blobs_of_record
from holdfast.checkpoint.transfer.export_file import ExportReader, ExportWriter, ImportFile, NewExportFile
from holdfast.checkpoint.write.event_rows import time_of_row
from holdfast.engine.status import RunStatus
from holdfast.errors import (
    CheckpointCorrupt,
    CheckpointNotFound,
    HeadMoved,
    InvalidArgument,
    RunExists,
    StorageError,
)
from holdfast.ids import Digest, RunId

if TYPE_CHECKING:
    from holdfast.checkpoint.keys.keyring import Keyring

T = TypeVar("T")

# Records are read in pages that grow while they are light, blobs are handed over together while they are.
_FIRST_PAGE, _LARGEST_PAGE = 16, 512
_LIGHT = 1 << 20
# A run that moves is read again until it did not move during three reads.
_MOST_LOOKS = 1000
# Writing, reading back, checking; or reading, checking, storing.
_PASSES = 3


class RunMoment(NamedTuple):
    """A run with its journal, inbox and events at one moment."""

    head: Head
    notes: Sequence[Note]
    letters: Sequence[Letter]
    events: Sequence[EventRow]


async def export_run(
    store: Store,
    run_id: RunId,
    path: str | os.PathLike[str],
    progress: Progress | None = None,
    keys: Keyring | None = None,
) -> Head:
    """Write a run, as it stands at one moment, to a new file; return its head at that moment.

    With ``keys`` the file is encrypted.

    The file gets its name when it is complete, was read back and checked, and is durable. If checkpoints of the run
    are removed before they are written, the export begins anew.
    """
    return await steadily(lambda: _export(store, run_id, NewExportFile(path, keys), progress))


async def _export(store: Store, run_id: RunId, file: NewExportFile, progress: Progress | None) -> Head:
    moment = await capture_run(store, run_id)
    try:
        await run_in_thread(file.open)
        steps = Steps(progress, _PASSES)
        await _write(store, moment, file, steps)
        advice = (
            f"it is damaged in this storage, and was not exported: 'await storage.verify({run_id!r})' lists what is "
            f"affected"
        )
        reader = await run_in_thread(lambda: ExportReader(file.file, f"run {run_id!r}", advice))
        await _read(reader, steps)
        await check_export(reader, steps)
        await run_in_thread(file.publish)
    finally:
        await run_in_thread(file.discard)
    steps.over()
    return moment.head


async def capture_run(store: Store, run_id: RunId) -> RunMoment:
    """Return the run, its journal, inbox and events as they were at one time, though others may move the run."""
    head = await store.head(run_id)
    for _ in range(_MOST_LOOKS):
        if head is None:
            raise run_not_found(run_id)
        notes, letters = await store.notes(run_id), await store.inbox(run_id)
        after = await store.head(run_id)
        if after == head:
            return RunMoment(head, notes, letters, await _read_events_until(store, head))
        head = after
    raise StorageError(
        f"run {run_id!r} moves on faster than it can be looked at: export it again when it does more in a superstep, "
        f"waits or is over"
    )


async def _read_events_until(store: Store, head: Head) -> list[EventRow]:
    """Return the rows of events of a run up to a head; a commit that left its checkpoint as it was may follow."""
    return [
        row
        for row in await read_event_rows(store, head.run_id)
        if row.seq < head.seq or (row.seq == head.seq and time_of_row(row, head) <= head.updated)
    ]


async def read_event_rows(store: Store, run_id: RunId) -> list[EventRow]:
    """Return all rows of events of a run that are not damaged."""
    rows: list[EventRow] = []
    first = 0
    while page := await store.events(run_id, first, _LARGEST_PAGE):
        rows += [row for row in page if row.sound]
        first = page[-1].seq + 1
    return rows


async def _write(store: Store, moment: RunMoment, file: NewExportFile, steps: Steps) -> None:
    head = moment.head
    features = (await store.open()).features
    blobs = BlobReader(store, head.family, Counters())

    async def write(work: Callable[[], T]) -> T:
        try:
            return await run_in_thread(partial(file.attempt, work))
        except (ValueError, TypeError) as error:
            raise CheckpointCorrupt(
                f"run {head.run_id!r} holds what no run holds ({error}); nothing was exported: "
                f"'await storage.verify({head.run_id!r})' lists what is affected"
            ) from error

    writer = await write(partial(ExportWriter, file.file, head, features))
    named: dict[Digest, None] = {}
    steps.more(head.seq)
    async for page, seqs in read_pages(store, head):
        for record in page:
            _add_named(named, await find_blobs_of_record(record, blobs), steps)
        await write(partial(_write_records, writer, page))
        steps.done(seqs)
        del page  # frees it before blobs come, which may be large
    _add_named(named, await find_blobs_of_notes(moment.notes, blobs), steps)
    await write(partial(_write_mail, writer, moment))
    for digest in named:
        # The thread takes the blob out of the list, so that it is freed before the next one comes.
        stored = [await _stored(store, head.family, digest)]
        await write(lambda digest=digest, stored=stored: writer.blob(digest, stored.pop()))  # type: ignore[misc]
        steps.done(1)
    await write(writer.end)
    await write(file.finish)


async def read_pages(store: Store, head: Head) -> AsyncIterator[tuple[Sequence[Record], int]]:
    """Give the records of a run page by page, each page with the number of seqs that it covers."""
    first, size = 1, _FIRST_PAGE
    while first <= head.seq:
        last = min(first + size - 1, head.seq)
        page = await store.records(head.run_id, first, last, Depth.ALL)
        light = sum(map(_weight, page)) < _LIGHT
        yield page, last - first + 1
        del page
        first, size = last + 1, min(size * 2, _LARGEST_PAGE) if light else max(size // 2, 1)


def _add_named(named: dict[Digest, None], digests: Sequence[Digest], steps: Steps) -> None:
    before = len(named)
    named.update(dict.fromkeys(digests))
    steps.more(len(named) - before)


def _write_records(writer: ExportWriter, records: Sequence[Record]) -> None:
    for record in records:
        writer.record(record)


def _write_mail(writer: ExportWriter, moment: RunMoment) -> None:
    for note in moment.notes:
        writer.note(note)
    for letter in moment.letters:
        writer.letter(letter)
    for row in moment.events:
        writer.event_row(row)


def _weight(record: Record) -> int:
    return len(record.header) + sum(map(len, record.parts))


async def _stored(store: Store, family: RunId, digest: Digest) -> bytes:
    found = await store.blobs(family, [digest])
    if digest not in found:
        raise CheckpointCorrupt(
            f"blob {digest.hex()} of run {family!r} is missing in this storage; nothing was exported: "
            f"'await storage.verify()' lists what is affected"
        )
    return found[digest]


async def import_run(
    store: Store,
    path: str | os.PathLike[str],
    run_id: RunId | None = None,
    progress: Progress | None = None,
    keys: Keyring | None = None,
    plain: bool = True,
) -> Head:
    """Bring a run from a file into a store; return its head there.

    ``keys`` open a file that is encrypted; one that is not is refused without ``plain``.

    Everything in the file is checked first. Then its blobs are stored, which nobody can see yet, and then the run in
    one commit.
    """
    name = os.fspath(path)
    source = ImportFile(name, keys, plain)
    try:
        await run_in_thread(source.open)
        advice = (
            "the file is damaged or was changed, and nothing of it was imported: export the run again, or copy the "
            "file again from where it is whole"
        )
        reader = await run_in_thread(lambda: ExportReader(source.file, repr(name), advice))
        if run_id not in (None, reader.head.run_id):
            raise InvalidArgument(
                f"run_id={run_id!r}: {name!r} holds run {reader.head.run_id!r}, and a run keeps its id, which is part "
                f"of the ids of its checkpoints; import it as it is, then 'workflow.fork' makes one with another id"
            )
        steps = Steps(progress, _PASSES)
        steps.more(reader.counts.records + reader.counts.blobs)
        await _read(reader, steps)
        await check_export(reader, steps)
        if not await _is_there(store, reader):
            await _store(store, reader, steps)
        steps.over()
    finally:
        await run_in_thread(source.close)
    return as_imported(reader.head)


async def _read(reader: ExportReader, steps: Steps) -> None:
    while reader.left:
        steps.done(await run_in_thread(reader.read_some))


async def _store(store: Store, reader: ExportReader, steps: Steps) -> None:
    head = as_imported(reader.head)
    commit = Commit(
        head,
        None,
        tuple(reader.records),
        notes=tuple(reader.notes),
        letters=tuple(reader.letters),
        needs=tuple(reader.digests),
        events=tuple(reader.events),
    )
    for left in reversed(range(_MOST_LOOKS)):
        await _add_blobs(store, reader, steps)
        try:
            await store.commit(commit)
        except CheckpointNotFound:  # a sweep of the family removed blobs that no run named yet
            if not left:
                raise
            steps.again(reader.counts.blobs)
            continue
        except HeadMoved:  # someone else made the run meanwhile, perhaps by importing it
            if not await _is_there(store, reader):
                raise
        except StorageError:
            if await store.head(head.run_id) != head:
                raise
        return


async def _add_blobs(store: Store, reader: ExportReader, steps: Steps) -> None:
    batch: list[Blob] = []

    async def add() -> None:
        await store.add_blobs(reader.head.family, batch)
        steps.done(len(batch))
        batch.clear()
        await asyncio.sleep(0)  # lets the threads of the store drop them, too, before the next ones come

    for digest in reader.digests:
        batch.append(Blob(digest, await run_in_thread(partial(reader.stored, digest))))
        if sum(len(blob.data) for blob in batch) >= _LIGHT:
            await add()
    if batch:
        await add()


def as_imported(head: Head) -> Head:
    """Return the head of an imported run: nobody drives it here."""
    status = RunStatus.STOPPED if head.status is RunStatus.RUNNING else head.status
    return head._replace(status=status, owner="", takeovers=0)


async def _is_there(store: Store, reader: ExportReader) -> bool:
    """Return True if the store has everything in the file; raise ``RunExists`` if the run stands elsewhere there."""
    run_id = reader.head.run_id
    there = await store.head(run_id)
    if there is None:
        return False
    notes, letters = await store.notes(run_id), await store.inbox(run_id)
    same = as_imported(there) == as_imported(reader.head)
    if same and set(reader.notes) <= set(notes) and set(reader.letters) <= set(letters):
        return True
    where = f"at checkpoint {there.checkpoint_id[:12]} (number {there.seq}), {there.status}"
    raise RunExists(
        f"run {run_id!r} is in this storage already, {where}, and {reader.name} holds it at checkpoint "
        f"{reader.head.checkpoint_id[:12]} (number {reader.head.seq}), {reader.head.status}; nothing was imported: "
        f"import it into another storage"
    )
