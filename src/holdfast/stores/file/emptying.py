"""Emptying commit files that nobody needs any more, without freeing their names."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from holdfast.stores.common.disk import Disk
from holdfast.stores.file.place import FIRST, Place


def empty_rounds(folder: Path, place: Place, disk: Disk, spared: Collection[Place | None] = ()) -> None:
    """Empty the files without records right before the one at ``place``, as far as that is possible.

    Their names stay taken: that is what stops a writer who slept since. Nothing is synced, for it does not matter
    when a file is empty, or whether.
    """
    for earlier in place.rounds_before:
        if earlier != FIRST and earlier not in spared:
            empty(folder / earlier.name, disk)


def empty(path: Path, disk: Disk) -> None:
    """Put an empty file in its place, so that whoever reads it, or made a hard link to it, keeps what was in it."""
    try:
        if os.lstat(path).st_size:
            disk.replace(disk.new_file(), path)
    except OSError:  # it may as well stay
        pass
