"""The file that says: this directory is a store, of this format."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

from holdfast.checkpoint.store import FORMAT_MAJOR, FORMAT_MINOR, StoreInfo
from holdfast.errors import StorageError, StoreDamaged
from holdfast.stores.common.disk import (
    UNSYNCED_MARK,
    Disk,
    IrregularFile,
    explain_os_error,
    open_regular,
    read_regular,
    reject_link,
)
from holdfast.stores.common.features import check_features, new_features
from holdfast.stores.common.locks import Locks
from holdfast.stores.file.run_lock import try_lock

NAME = "store.json"
KEY_BOX = "store.keys"
"""The file with the key box of a store under keys."""
TEMP = "temp"
OWNERS = "owners"
LOCKS = "locks"
DAMAGED = "damaged"
_FOLDERS = (TEMP, OWNERS, LOCKS, DAMAGED, "namespaces")
_OF_NAMESPACE = ("runs", "blobs", "waking")
_LARGEST = 1 << 20
# May lie in a directory that becomes a store: what another process is making there, or a fresh volume has.
_HARMLESS = {NAME, KEY_BOX, TEMP, UNSYNCED_MARK, ".lock", "lost+found"}

_ABOUT = [
    "This directory is a Holdfast file store; change nothing in it while a process uses it.",
    "runs/<run>.jsonl: one line for each commit; the head in the last line says where the run stands.",
    "A line that was never complete, at the end of a file, is cut off by the next process that writes.",
    "blobs/<run>/<digest>: large values, shared by the run and its forks.",
    "index.db: what lists and searches read first; made again where it is missing.",
    "waking/: an empty file for each run that is to be woken, or is driven (all 9); made again by the next process.",
    "temp/: files that are being written. owners/: a locked file for each process that drives runs now.",
    "locks/: a file for each run, locked while it is written; it says how much of the run's file is durable.",
    "store.keys: the keys of a store under keys, encrypted; without it nothing can be read.",
    "damaged/: what a repair put aside; nothing reads it.",
    "namespaces/<name>/: runs, blobs, index and waking again for each namespace.",
]


def open_store(root: Path, disk: Disk, keyed: bool = False) -> StoreInfo:
    """Read the marker, or make the directory a store if it is empty; raises ``StorageError``, or ``OSError``."""
    marker = root / NAME
    if not os.path.lexists(marker):
        _refuse_foreign(root)
        _make(marker, disk, keyed)
    elif disk.has_unsynced_names(root):
        _make_anew(marker, disk)
    return _checked(marker, _read(marker), keyed)


def look_at_store(root: Path, disk: Disk, keyed: bool = False) -> StoreInfo:
    """Read the marker, and write nothing; raises ``StorageError`` if there is none, or ``OSError``."""
    marker = root / NAME
    if not os.path.lexists(marker):
        raise StorageError(
            f"file store {root}: there is no {NAME}, and a store that is opened with read_only=True is not made; "
            f"give the directory of a store"
        )
    return _checked(marker, _read(marker), keyed)


def read_key_box(root: Path) -> str:
    """Return the key box of the store; empty if it has none."""
    try:
        return read_regular(root / KEY_BOX, _LARGEST).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return ""


def replace_key_box(root: Path, disk: Disk, box: str, expected: str) -> bool:
    """Replace the key box durably; return False if another one is there than expected."""
    with Locks(root / LOCKS).hold_alone("keys"):
        if read_key_box(root) != expected:
            return False
        disk.replace(disk.write(box.encode() + b"\n"), root / KEY_BOX)
        disk.sync_names(root)
    return True


def refuse_links(root: Path, base: Path) -> None:
    """Raise ``OSError`` if a folder of the store, or of a namespace that lies in ``base``, is a link."""
    for folder in [*(root / name for name in _FOLDERS), base, *(base / name for name in _OF_NAMESPACE)]:
        if folder != root:
            reject_link(folder)


def check_locks(disk: Disk) -> None:
    """Raise ``StorageError`` if files cannot be locked where the store lies: two writers could not be kept apart."""
    path = disk.temp / f"{secrets.token_hex(8)}.lock"  # not .tmp: others sweep that up
    first = second = -1
    try:
        first, second = open_regular(path, os.O_RDWR | os.O_CREAT), open_regular(path, os.O_RDWR)
        works = try_lock(first) and not try_lock(second)
        problem = "two writers got the same lock"
    except OSError as error:
        works, problem = False, explain_os_error(error)
    finally:
        for handle in (first, second):
            if handle >= 0:
                os.close(handle)
        disk.remove(path)
    if not works:
        raise StorageError(
            f"file store {disk.temp.parent}: files cannot be locked there ({problem}), as on some network file "
            f"systems and on Windows, so writers could not be kept apart; use a local directory, or "
            f"SqliteCheckpointStorage on a local disk. Nothing was written"
        )


def _refuse_foreign(root: Path) -> None:
    if root.exists() and not root.is_dir():
        raise StorageError(f"file store {root}: a file lies there; a file store needs a directory of its own")
    foreign = sorted(set(os.listdir(root)) - _HARMLESS) if root.exists() else []
    if foreign and not (root / NAME).exists():
        raise StorageError(
            f"file store {root}: the directory is not empty (it has {foreign[0]!r}) and has no {NAME}, so it is no "
            f"store; give an empty directory or one that does not exist, or put {NAME} back if it was lost"
        )


def _make(marker: Path, disk: Disk, keyed: bool) -> None:
    _make_root(marker.parent, disk)
    disk.make_temp()
    document = {
        "#": _ABOUT,
        "store_id": secrets.token_hex(16),
        "major": FORMAT_MAJOR,
        "minor": FORMAT_MINOR,
        "features": new_features(keyed),
    }
    temp = disk.write(json.dumps(document, indent=1).encode() + b"\n")
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
    except (ValueError, KeyError, TypeError, RecursionError, IrregularFile) as error:
        raise StoreDamaged(
            f"{marker} is damaged: {type(error).__name__}: {error}. Put back a copy from a backup; "
            f"the runs beside it are not touched"
        ) from error
    return info


def _checked(marker: Path, info: StoreInfo, keyed: bool) -> StoreInfo:
    if info.major != FORMAT_MAJOR:
        raise StorageError(
            f"{marker}: the store has format {info.major}.{info.minor}, this version of Holdfast reads format "
            f"{FORMAT_MAJOR}; use the version that wrote it, or another directory"
        )
    check_features(f"the store of {marker}", info.features, keyed)
    return info
