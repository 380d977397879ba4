"""A run that comes whole: many checkpoints in one commit, which become many files and appear together."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from holdfast.checkpoint.store import Commit, Expected
from holdfast.engine.status import RunStatus
from holdfast.stores.common.disk import Disk
from holdfast.stores.file import document
from holdfast.stores.file.hints import Hints
from holdfast.stores.file.standing import Standing

MANY = 100
"""More records than this do not stand in one file, of which every reader would have to read all."""

_TAKEN = {errno.EEXIST, errno.ENOTEMPTY}


def arrives(commit: Commit) -> bool:
    """Whether a commit begins a run with many checkpoints."""
    return commit.expected is None and len(commit.records) > MANY


def publish_whole(commit: Commit, place: Path, disk: Disk, hints: Hints) -> bool:
    """Make the folder of a run with all its files, at once; false if another writer made it first.

    It is written where nobody looks, and renamed: over an empty folder that is there, but over no other. The folder
    above it must be synced before anyone may rely on it.
    """
    folder = written_whole(commit, place, disk, hints)
    try:
        return _renamed(folder, place)
    finally:
        disk.remove(folder)


def written_whole(commit: Commit, place: Path, disk: Disk, hints: Hints) -> Path:
    """A durable folder with all files of a run, where nobody looks; its hints lead to where it will be."""
    folder = disk.new_folder()
    try:
        standing = Standing()
        for piece in _pieces(commit):
            file, outline = standing.next, standing.outline(piece)
            temp = disk.write(
                document.written(
                    piece,
                    outline.letters,
                    outline.taken,
                    content=outline.content,
                    journal=outline.journal,
                    place=file,
                )
            )
            disk.replace(temp, folder / file.name)
            standing.follow(file, outline)
            for record in piece.records:
                hints.add(record.checkpoint_id, place / file.name)
        disk.sync_folder(folder)
    except BaseException:
        disk.remove(folder)
        raise
    return folder


def _pieces(commit: Commit) -> Iterator[Commit]:
    """The same as several commits. Nobody sees the run at one before the last, unless a file is taken away by hand."""
    expected: Expected | None = None
    for first in range(0, len(commit.records), MANY):
        records = commit.records[first : first + MANY]
        if first + MANY >= len(commit.records):
            yield commit._replace(expected=expected, records=records)
            return
        newest = records[-1]
        head = commit.head._replace(
            checkpoint_id=newest.checkpoint_id,
            seq=newest.seq,
            status=RunStatus.STOPPED,
            reason="",
            waiting_for="",
        )
        yield Commit(head, expected, records)
        expected = Expected(head.checkpoint_id, head.token)


def _renamed(folder: Path, place: Path) -> bool:
    try:
        if sys.platform == "win32" and place.is_dir():  # there nothing is renamed over a folder
            os.rmdir(place)
        os.rename(folder, place)
    except OSError as error:
        if error.errno not in _TAKEN:
            raise
        return False
    return True
