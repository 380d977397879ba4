"""Emptying commit files that nobody needs any more, without freeing their names."""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection
from pathlib import Path

from holdfast.stores.file.place import FIRST, Place

_MODE = 0o600


def empty_rounds(folder: Path, place: Place, temp: Path, spared: Collection[Place | None] = ()) -> None:
    """Empty the files without records right before the one at ``place``, as far as that is possible.

    Their names stay taken: that is what stops a writer who slept since. Nothing is synced, for it does not matter
    when a file is empty, or whether.
    """
    for number in range(place.round):
        earlier = Place(place.seq, number)
        if earlier != FIRST and earlier not in spared:
            empty(folder / earlier.name, temp)


def empty(path: Path, temp: Path) -> None:
    """Put an empty file in its place, so that whoever reads it, or made a hard link to it, keeps what was in it."""
    other = temp / f"{secrets.token_hex(8)}.tmp"
    try:
        if os.stat(path).st_size == 0:
            return
        os.close(os.open(other, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE))
        os.replace(other, path)
    except OSError:  # it may as well stay
        try:
            os.unlink(other)
        except OSError:
            pass
