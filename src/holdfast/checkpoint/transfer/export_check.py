"""Checks that an exported run is complete: what ``verify`` checks of a run in a store, and that no blob is missing."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import cast

import ormsgpack

from holdfast.checkpoint.format.record import corrupt, read_header, unseal_keyframe
from holdfast.checkpoint.format.stored_form import elsewhere, plain_form
from holdfast.checkpoint.journal import sizes_in_note
from holdfast.checkpoint.maintenance.verify import verify_runs
from holdfast.checkpoint.progress import Steps, run_in_thread
from holdfast.checkpoint.read.loader import BlobReader, whole
from holdfast.checkpoint.store import Depth, Head, Letter, Note, Record, Store
from holdfast.checkpoint.transfer.export_file import ExportReader
from holdfast.checkpoint.transfer.export_frames import DIGEST
from holdfast.checkpoint.values import Wanted
from holdfast.checkpoint.write.bundles import unbundled
from holdfast.errors import CheckpointCorrupt, HoldfastError
from holdfast.ids import CheckpointId, Digest, RunId

_PAGE = 500


async def find_blobs_of_record(record: Record, blobs: BlobReader) -> list[Digest]:
    """Return all blobs that a record names; reads those that hold parts of the record, because they name others."""
    named = [digest for part in record.parts if (digest := elsewhere(part)) is not None]
    record = await whole(record, blobs)
    try:
        named += _named_in(plain_form(record.changes))
        if record.keyframe is not None:
            named += _named_in(
                unseal_keyframe(record.checkpoint_id, plain_form(record.keyframe.changes), None)
            )
    except Exception as error:
        raise corrupt(record.checkpoint_id, f"it cannot be read: {error}") from error
    return named


def _named_in(changes: bytes) -> Iterator[Digest]:
    """Give the blobs in the table of a document, whether it uses them or not."""
    for _, _, *where in ormsgpack.unpackb(changes).get("values", ()) if changes else ():
        if len(where) == 1:
            yield _digest(where[0])


async def find_blobs_of_notes(notes: Sequence[Note], blobs: BlobReader) -> list[Digest]:
    """Return all blobs that the notes of a journal name; reads those that hold notes, because they name others."""
    found = await unbundled(notes, blobs)
    named = list(found.digests)
    for note in found.notes:
        try:
            named += [_digest(digest) for digest in sizes_in_note(note)]
        except Exception as error:
            raise CheckpointCorrupt(
                f"the note {note.key} of its journal cannot be read: {error!r}"
            ) from error
    return named


def _digest(value: object) -> Digest:
    if not isinstance(value, bytes) or len(value) != DIGEST:
        raise TypeError(f"where a digest is to be there is {value!r:.50}")
    return Digest(value)


async def check_export(export: ExportReader, steps: Steps) -> None:
    """Raise ``CheckpointCorrupt`` unless a file that was read holds a complete run; counts checkpoints and blobs."""
    content = _ExportBlobs(export, steps)
    try:
        await _check_names(export, content)
        found = await verify_runs(cast(Store, _ExportStore(export, steps)), [export.head], lambda _: content)
    except Exception as error:  # a file from outside may hold anything
        if steps.interruption is not None:
            raise
        what = (
            _without_advice(str(error)) if isinstance(error, HoldfastError) else f"cannot be read: {error!r}"
        )
        raise export.damaged(what) from error
    if steps.interruption is not None:
        raise steps.interruption
    if found.problems:
        raise export.damaged(_without_advice(found.problems[0].what))
    content.count_rest()


async def _check_names(export: ExportReader, content: _ExportBlobs) -> None:
    named = set(await find_blobs_of_notes(export.notes, content))
    for number, record in enumerate(export.records):
        _check_header(record, export.head)
        named.update(await find_blobs_of_record(record, content))
        if number % _PAGE == 0:
            await asyncio.sleep(0)
    if missing := named - set(export.digests):
        raise export.damaged(f"{len(missing)} blobs are missing, among them {min(missing).hex()}")
    if unnamed := set(export.digests) - named:
        raise export.damaged(f"{len(unnamed)} blobs belong to nothing, among them {min(unnamed).hex()}")


def _check_header(record: Record, head: Head) -> None:
    """Raise unless the numbers in a header are possible: lists rely on them, and an id can be right all the same."""
    header = read_header(record)
    numbers = (header.superstep, header.time, header.message_count, header.request_count, header.replay_from)
    if any(type(number) is not int or number < 0 for number in numbers) or header.replay_from > record.seq:
        raise corrupt(record.checkpoint_id, f"its header has other numbers than it can have: {numbers}")
    if header.workflow_name != head.workflow_name:
        raise corrupt(record.checkpoint_id, f"it is one of workflow {header.workflow_name!r}")


def _without_advice(problem: str) -> str:
    """Return the text of a problem without the advice, which is about stores."""
    return problem.partition(";")[0]


class _ExportStore:
    """Gives the run in a file as a store would."""

    def __init__(self, export: ExportReader, steps: Steps) -> None:
        self._export = export
        self._records = export.records
        self._places = {record.checkpoint_id: (export.head.run_id, record.seq) for record in export.records}
        self._steps = steps
        self._told = 0
        """The seq of the last record that was counted: some are read more than once."""

    async def head(self, run_id: RunId) -> Head | None:
        return self._export.head

    async def find(self, checkpoint_id: CheckpointId) -> tuple[RunId, int] | None:
        return self._places.get(checkpoint_id)

    async def notes(self, run_id: RunId) -> Sequence[Note]:
        return self._export.notes

    async def inbox(self, run_id: RunId) -> Sequence[Letter]:
        return self._export.letters

    async def records(self, run_id: RunId, first: int, last: int, depth: Depth) -> Sequence[Record]:
        await asyncio.sleep(0)  # lets other tasks run after each page
        seq = attrgetter("seq")
        found = self._records[
            bisect_left(self._records, first, key=seq) : bisect_right(self._records, last, key=seq)
        ]
        self._steps.done(sum(record.seq > self._told for record in found))
        self._told = max(self._told, found[-1].seq if found else 0)
        return found


class _ExportBlobs(BlobReader):
    """Reads the blobs of a file, whose digests were checked when the file was read."""

    def __init__(self, export: ExportReader, steps: Steps) -> None:
        self._export = export
        self._steps = steps
        self._counted: set[Digest] = set()

    async def read(self, wanted: Wanted) -> Mapping[Digest, bytes]:
        content = {}
        sizes = wanted if isinstance(wanted, Mapping) else {}
        for digest in wanted:
            content[digest] = await run_in_thread(partial(self._export.plain, digest, sizes.get(digest)))
            if digest not in self._counted:
                self._counted.add(digest)
                self._steps.done(1)
        return content

    def count_rest(self) -> None:
        """Count the blobs that nobody had to read."""
        self._steps.done(len(set(self._export.digests) - self._counted))
