"""Commit files that are damaged: what is left of the newest one, and where the others are put."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.checkpoint.format.record import read_header
from holdfast.checkpoint.info import Header
from holdfast.checkpoint.maintenance.problems import briefly
from holdfast.checkpoint.starts import expand
from holdfast.checkpoint.store import Depth, Mended
from holdfast.errors import CheckpointCorrupt, StorageError
from holdfast.ids import CheckpointId, RunId
from holdfast.stores.common.disk import Disk
from holdfast.stores.common.lost_head import WHAT_IS_LOST, rebuild_head
from holdfast.stores.file import document
from holdfast.stores.file.hints import Hints
from holdfast.stores.file.inspecting import run_of
from holdfast.stores.file.place import Place, names_in
from holdfast.stores.file.row import Row


class Mending:
    """Lets the newest file of a run be one that can be read; those that cannot are kept as ``damaged``."""

    def __init__(self, row: Row, disk: Disk, hints: Hints, damaged: Path) -> None:
        self._row, self._disk, self._hints = row, disk, hints
        self._damaged = damaged

    def mended(self) -> Iterator[Mended]:
        """What is done to the files of a run, by one who holds the lock of its row and all others."""
        run_id = run_of(self._row)
        while (error := self._complaint()) is not None:
            yield self._mend_newest(run_id, error)
        lost = self._row.lost_edits()
        if lost:
            yield self._unlist(run_id, lost)
        yield from self._reached(run_id)

    def _complaint(self) -> StorageError | None:
        try:
            self._row.forget()
            self._row.catch_up()
        except StorageError as error:
            return error
        return None

    def _reached(self, run_id: RunId | None) -> Iterator[Mended]:
        reached, newest = self._hints.how_far(self._row.path), self._row.known.newest
        if reached is not None and (newest is None or newest < reached):
            self._hints.forget(self._row.path)
            lost = "the whole run" if newest is None else f"all that it did behind {newest.name}"
            yield Mended(run_id, f"its commits up to {reached.name} are missing", lost)

    def _mend_newest(self, run_id: RunId | None, error: StorageError) -> Mended:
        row = names_in(self._row.path).row
        path = self._row.path / row[-1].name
        try:
            content = self._salvaged(path, run_id, row[:-1])
        except StorageError:
            put_aside(path, self._damaged, self._disk)
            self._hints.forget(self._row.path)
            return Mended(run_id, f"{path.name} was put aside: {briefly(error)}", "what its last commit did")
        temp = self._disk.write(content)
        self._disk.replace(temp, path)
        self._disk.sync_folder(self._row.path)
        return Mended(run_id, f"the head in {path.name} was made anew: {briefly(error)}", WHAT_IS_LOST)

    def _unlist(self, run_id: RunId | None, lost: list[Place]) -> Mended:
        """Let the newest file list no edits that cannot be read, without which no record could be."""
        newest = self._row.known.newest
        assert newest is not None
        path = self._row.path / newest.name
        left = [place for place in self._row.known.unsettled if place not in lost]
        self._disk.replace(self._disk.write(document.relisted(path, document.content_of(path), left)), path)
        self._disk.sync_folder(self._row.path)
        self._row.forget()
        names = ", ".join(place.name for place in lost)
        return Mended(
            run_id,
            f"{path.name} no longer lists {names}, which cannot be read",
            f"tags and removals in {names}, if they were not carried out yet",
        )

    def _salvaged(self, path: Path, run_id: RunId | None, earlier: list[Place]) -> bytes:
        """The file with a head that was made anew; raises ``CheckpointCorrupt`` if no record in it can be read."""
        file = document.parsed(path, document.content_of(path))
        found = [newest for record in file.records if (newest := _newest_in(file, record)) is not None]
        if not found or found[-1][1].run_id != run_id:
            raise CheckpointCorrupt(f"{path} holds no checkpoint of run {run_id!r} that can be read")
        before = self._last_sound(earlier)
        checkpoint_id, header = found[-1]
        head = rebuild_head(
            checkpoint_id,
            header,
            file.head.family if before is None else before.head.family,
            header.time if before is None else before.head.created,
            0 if before is None else before.head.token,
        )
        return document.salvaged(file, head, before)

    def _last_sound(self, earlier: list[Place]) -> document.Outline | None:
        for place in reversed(earlier):
            try:
                return self._row.whole(place).outline
            except (CheckpointCorrupt, FileNotFoundError):
                continue
        return None


def put_aside(path: Path, damaged: Path, disk: Disk) -> None:
    """Move a file or a folder to where nobody looks for it."""
    damaged.parent.mkdir(0o700, exist_ok=True)
    os.rename(path, f"{damaged}-{path.name}-{secrets.token_hex(4)}")
    disk.sync_folder(path.parent)


def _newest_in(file: document.CommitFile, record: dict[str, Any]) -> tuple[CheckpointId, Header] | None:
    """Return the last checkpoint of a record, which may be a derived start; None if it cannot be read."""
    try:
        newest = expand([file.record(record, Depth.HEADERS)._replace(tags=())])[-1]
        header = read_header(newest)
    except CheckpointCorrupt:
        return None
    return (newest.checkpoint_id, header) if header.seq == newest.seq else None
