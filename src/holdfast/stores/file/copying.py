"""A copy of a file store to try something on, made of hard links where there are any."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from holdfast.stores.common.disk import IrregularFile, read_regular
from holdfast.stores.file import marker

# How often the folder of a run is copied anew because files in it came or went meanwhile.
_MOST_TRIES = 20


def copy_store(root: Path, copy: Path, base: Path) -> None:
    """Copy the commits of a namespace, which lies in ``base``, and what leads to them.

    Files of a store are never changed, only replaced, so links to them stay as they are. What leads to commits is
    copied first: it may lead to fewer than there are, but not to more.
    """
    _link(root / marker.NAME, copy / marker.NAME)
    (copy / base).mkdir(parents=True, exist_ok=True)
    _copy(root / base / "ids", copy / base / "ids")
    runs = copy / base / "runs"
    with suppress(FileNotFoundError):
        names = os.listdir(root / base / "runs")
        runs.mkdir()
        for name in names:
            _copy_run(root / base / "runs" / name, runs / name)
    _drop_changed(root / base / "ids" / "newest", copy / base / "ids" / "newest")


def _drop_changed(source: Path, target: Path) -> None:
    """Remove copied links that say something else by now: the run may have been removed before it was copied."""
    for name in _names_in(target):
        try:
            changed = os.readlink(source / name) != os.readlink(target / name)
        except OSError:
            changed = True
        if changed:
            os.unlink(target / name)


def _copy_run(source: Path, target: Path) -> None:
    """Copy the folder of a run as it is at one moment; if others never leave it alone, as it was about then."""
    for _ in range(_MOST_TRIES):
        before = _names_in(source)
        _copy(source, target)
        if _names_in(source) == before:
            return
        for name in _names_in(target):
            os.unlink(target / name)


def _names_in(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return set()


def _copy(source: Path, target: Path) -> None:
    """Copy a file, a link, or a folder with all that is in it; what goes meanwhile is left out."""
    with suppress(FileNotFoundError):
        if source.is_symlink():
            os.symlink(os.readlink(source), target)
        elif source.is_dir():
            target.mkdir(exist_ok=True)
            for name in os.listdir(source):
                _copy(source / name, target / name)
        else:
            _link(source, target)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:  # nobody needs it any more
        pass
    except OSError:  # there are no hard links here
        with suppress(IrregularFile):  # whoever reads the copy finds that it is missing
            target.write_bytes(read_regular(source))
