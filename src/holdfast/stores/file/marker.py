"""The file that says: this directory is a store, of this format."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

from holdfast.checkpoint.store import FEATURES, FORMAT_MAJOR, FORMAT_MINOR, StoreInfo
from holdfast.errors import StorageError
from holdfast.stores.common.disk import UNSYNCED_MARK, Disk, IrregularFile, read_regular, reject_link
from holdfast.stores.file.layout import laid_out

NAME = "store.json"
TEMP = "temp"
OWNERS = "owners"
LOCKS = "locks"
REMOVING = "removing"
MENDING = "mending"
DAMAGED = "damaged"
_FOLDERS = (TEMP, OWNERS, LOCKS, REMOVING, MENDING, DAMAGED, "namespaces")
_OF_NAMESPACE = ("runs", "blobs", "ids", "waking")
_LARGEST = 1 << 20
# What may lie in a directory that becomes a store: what another process is making there, or a fresh volume has.
_HARMLESS = {NAME, TEMP, UNSYNCED_MARK, ".lock", "lost+found"}

_ABOUT = [
    "This directory is a Holdfast file store; change nothing in it while a process uses it.",
    "runs/<run>/<seq>-<n>.json: one file for each commit; the last one says where the run stands (head).",
    "<seq> is the least seq of the records in it; <n> counts commits without records before it.",
    "notes in a commit: what the superstep that is under way did already; they count until a later commit has another",
    "checkpoint_id in its head. letters: what others left for the run and it did not take yet, in every commit again.",
    "An empty file, but never the last one, is a commit that nobody needs any more.",
    "<seq>-<n>.kept.json: checkpoints that were kept while those around them were removed.",
    "edits in a commit: earlier checkpoints that it removed, and what it added to others; unsettled: commits with",
    "edits that may not be carried out yet. gone: the run was removed; what lies before it is no part of another one.",
    "blobs/<run>/<digest>: large values, shared by the run and its forks.",
    "ids/: links from checkpoint ids to commits; made again where they are missing.",
    "waking/: an empty file for each run that is to be woken, or is driven (all 9); made again by the next process.",
    "temp/: files that are being written. owners/: a locked file for each process that drives runs now.",
    "locks/, removing/: what processes need to remove things beside each other; empty of meaning while none does.",
    "damaged/: what a repair put aside; nothing reads it. mending/: what it is about to put into place.",
    "namespaces/<name>/: runs, blobs, ids and waking again for each namespace.",
]


def open_store(root: Path, disk: Disk) -> StoreInfo:
    """Read the marker, or make the directory a store if it is empty; raises ``StorageError``, or ``OSError``."""
    marker = root / NAME
    if not os.path.lexists(marker):
        _refuse_foreign(root)
        _make(marker, disk)
    elif disk.has_unsynced_names(root):
        _make_anew(marker, disk)
    return _checked(marker, _read(marker))


def refuse_links(root: Path, base: Path) -> None:
    """Raise ``OSError`` if a folder of the store, or of a namespace that lies in ``base``, is a link."""
    for folder in [*(root / name for name in _FOLDERS), base, *(base / name for name in _OF_NAMESPACE)]:
        if folder != root:
            reject_link(folder)
    try:
        with os.scandir(base / "ids") as entries:
            for entry in entries:
                reject_link(Path(entry.path))
    except FileNotFoundError:
        pass


def _refuse_foreign(root: Path) -> None:
    if root.exists() and not root.is_dir():
        raise StorageError(f"file store {root}: a file lies there; a file store needs a directory of its own")
    foreign = sorted(set(os.listdir(root)) - _HARMLESS) if root.exists() else []
    if foreign and not (root / NAME).exists():
        raise StorageError(
            f"file store {root}: the directory is not empty (it has {foreign[0]!r}) and has no {NAME}, so it is no "
            f"store; give an empty directory or one that does not exist, or put {NAME} back if it was lost"
        )


def _make(marker: Path, disk: Disk) -> None:
    _make_root(marker.parent, disk)
    disk.make_temp()
    document = {
        "#": _ABOUT,
        "store_id": secrets.token_hex(16),
        "major": FORMAT_MAJOR,
        "minor": FORMAT_MINOR,
        "features": sorted(FEATURES),
    }
    temp = disk.write(laid_out(document))
    try:
        disk.publish(temp, marker)
    except FileExistsError:  # another process was faster
        disk.remove(temp)
    disk.sync_names(marker.parent)


def _make_anew(marker: Path, disk: Disk) -> None:
    """Write the marker once more, after a sync that failed: its name may not be on the disk."""
    disk.make_temp()
    disk.replace(disk.write(read_regular(marker, _LARGEST)), marker)
    disk.sync_names(marker.parent)
    (marker.parent / UNSYNCED_MARK).unlink(missing_ok=True)


def _make_root(root: Path, disk: Disk) -> None:
    try:
        disk.make_folder(root)
    except PermissionError:
        # One that was given need not lie in a folder that this process may look into.
        if not root.is_dir():
            raise


def _read(marker: Path) -> StoreInfo:
    try:
        document: dict[str, Any] = json.loads(read_regular(marker, _LARGEST))
        info = StoreInfo(
            str(document["store_id"]),
            int(document["major"]),
            int(document["minor"]),
            frozenset(map(str, document["features"])),
        )
    except (ValueError, KeyError, TypeError, IrregularFile) as error:
        raise StorageError(
            f"{marker} is damaged: {type(error).__name__}: {error}. Put back a copy from a backup; "
            f"the runs beside it are not touched"
        ) from error
    return info


def _checked(marker: Path, info: StoreInfo) -> StoreInfo:
    if info.major != FORMAT_MAJOR:
        raise StorageError(
            f"{marker}: the store has format {info.major}.{info.minor}, this version of Holdfast reads format "
            f"{FORMAT_MAJOR}; use the version that wrote it, or another directory"
        )
    unknown = sorted(info.features - FEATURES)
    if unknown:
        raise StorageError(
            f"{marker}: the store needs {', '.join(map(repr, unknown))}, which this version of Holdfast does not know; "
            f"use a newer version, or another directory"
        )
    return info
