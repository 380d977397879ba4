"""The model of a disk keeps what was synced, and forgets what a failed sync should have kept."""

import errno
import os
from pathlib import Path

import pytest

from tests.faults.injector.disk_model import DiskModel, Luck
from tests.faults.injector.interposer import CallKind, SystemCall

FILE = 1_000_000
"""Its inode."""


class Script:
    """Calls beneath a folder, as they would be recorded."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._model = DiskModel(root)

    def do(self, kind: CallKind, name: str, data: bytes = b"", offset: int = 0, result: int = 0) -> None:
        inode = FILE if name else self._root.stat().st_ino
        other = str(self._root / "other") if kind in (CallKind.RENAME, CallKind.LINK) else ""
        path = str(self._root / name) if name else str(self._root)
        self._model.follow(SystemCall(kind, result, inode, offset, path, other, data))

    def left(self, luck: Luck | None = None) -> dict[str, bytes]:
        """The files after a power cut."""
        target = self._root / f"left{len(os.listdir(self._root))}"
        self._model.cut_power(target, luck)
        return {path.name: path.read_bytes() for path in target.iterdir()}


@pytest.fixture
def script(quick_path: Path) -> Script:
    """A file that is there with its name, and nothing in it."""
    script = Script(quick_path)
    script.do(CallKind.CREATE, "file")
    script.do(CallKind.SYNC, "")
    return script


def test_only_what_was_synced_is_sure(script: Script) -> None:
    script.do(CallKind.WRITE, "file", b"one")
    assert script.left() == {"file": b""}
    script.do(CallKind.SYNC, "file")
    script.do(CallKind.WRITE, "file", b"two", offset=3)
    assert script.left() == {"file": b"one"}
    script.do(CallKind.SYNC, "file")
    script.do(CallKind.RESIZE, "file", offset=2)
    assert script.left() == {"file": b"onetwo"}


def test_names_are_sure_once_their_folder_was_synced(script: Script) -> None:
    script.do(CallKind.RENAME, "file")
    assert script.left() == {"file": b""}
    script.do(CallKind.SYNC, "")
    assert script.left() == {"other": b""}


def test_what_a_failed_sync_should_have_written_is_lost(script: Script) -> None:
    script.do(CallKind.WRITE, "file", b"1" * 512)
    script.do(CallKind.SYNC, "file", result=-errno.EIO)
    script.do(CallKind.SYNC, "file")
    assert script.left() == {"file": b""}
    script.do(CallKind.WRITE, "file", b"2" * 512, offset=512)
    script.do(CallKind.SYNC, "file")
    assert script.left() == {"file": bytes(512) + b"2" * 512}
    script.do(CallKind.WRITE, "file", b"1" * 512)
    script.do(CallKind.SYNC, "file")
    assert script.left() == {"file": b"1" * 512 + b"2" * 512}


def test_names_that_a_failed_sync_should_have_written_are_lost(script: Script) -> None:
    script.do(CallKind.LINK, "file")
    script.do(CallKind.SYNC, "", result=-errno.EIO)
    script.do(CallKind.SYNC, "")
    assert script.left() == {"file": b""}


def test_any_part_of_the_rest_may_be_there(script: Script) -> None:
    script.do(CallKind.WRITE, "file", b"1" * 1024)
    script.do(CallKind.WRITE, "file", b"2" * 512)
    seen = {script.left(Luck(str(seed)))["file"] for seed in range(100)}
    sectors = {content[place : place + 512] for content in seen for place in (0, 512)}
    assert {b"", b"1" * 1024, b"2" * 512 + b"1" * 512} <= seen
    assert sectors == {b"", bytes(512), b"1" * 512, b"2" * 512}
