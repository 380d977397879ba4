"""Temporary files of a store: who died leaves none behind, and nobody's else are swept up."""

import errno
import os
import time
from pathlib import Path

import pytest

from holdfast.stores.common import disk as disk_module
from holdfast.stores.common.disk import Disk
from holdfast.stores.file import FileStore
from tests.stores.file_commits import RUN, step


async def open_and_close(directory: Path) -> None:
    store = FileStore(directory)
    await store.open()
    await store.close()


async def test_temporary_files_of_those_who_died_are_swept_up(directory, others) -> None:
    await open_and_close(directory)
    (directory / "temp" / "dead.tmp").write_bytes(b"half")
    (directory / "temp" / "folder.tmp").mkdir()
    (directory / "temp" / "folder.tmp" / "half").write_bytes(b"half")
    living = Disk(directory / "temp")
    written, folder = living.write(b"whole"), living.new_folder()
    await others.commit(step(RUN, 1))
    assert sorted(os.listdir(directory / "temp")) == sorted([written.name, folder.name])
    living.publish(written, directory / "temp" / "published")
    living.remove(folder)
    assert os.listdir(directory / "temp") == ["published"]


async def test_where_there_are_no_locks_old_temporary_files_are_swept_up(
    directory, others, monkeypatch
) -> None:
    monkeypatch.setattr(disk_module, "_try_lock", lambda handle: None)
    await open_and_close(directory)
    for name, age in (("old.tmp", 25 * 3600), ("young.tmp", 23 * 3600)):
        (directory / "temp" / name).write_bytes(b"half")
        os.utime(directory / "temp" / name, (time.time() - age,) * 2)
    await others.commit(step(RUN, 1))
    assert os.listdir(directory / "temp") == ["young.tmp"]


def test_a_temporary_file_that_is_swept_up_before_it_is_locked_is_made_again(tmp_path, monkeypatch) -> None:
    disk, other = Disk(tmp_path), Disk(tmp_path)
    straight, made = disk_module._try_lock, []

    def late(handle: int) -> bool | None:
        made.append(handle)
        if len(made) == 1:
            other.sweep()
        return straight(handle)

    monkeypatch.setattr(disk_module, "_try_lock", late)
    temp = disk.write(b"whole")
    assert len(made) == 3  # two of its own, and that of the sweep
    assert [name.read_bytes() for name in tmp_path.iterdir()] == [b"whole"]
    disk.remove(temp)


def test_a_temporary_folder_that_is_swept_up_before_it_is_open_is_made_again(tmp_path, monkeypatch) -> None:
    disk, other = Disk(tmp_path), Disk(tmp_path)
    straight, made = os.mkdir, []

    def swept(name: Path, mode: int) -> None:
        straight(name, mode)
        made.append(name)
        if len(made) == 1:
            other.sweep()

    monkeypatch.setattr(os, "mkdir", swept)
    temp = disk.new_folder()
    assert made == [made[0], temp]
    assert list(tmp_path.iterdir()) == [temp]
    disk.remove(temp)


def test_a_file_that_cannot_take_its_place_is_removed(tmp_path) -> None:
    disk = Disk(tmp_path / "temp")
    disk.make_temp()
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError) as caught:  # noqa: PT011 - which kind depends on the system
        disk.replace(disk.write(b"x"), tmp_path / "taken")
    assert caught.value.errno in (errno.EISDIR, errno.EACCES)
    assert disk._locked == {}
    assert os.listdir(disk.temp) == []


def test_a_link_whose_answer_was_lost(tmp_path, monkeypatch) -> None:
    link = os.link

    def link_twice(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", link_twice)
    disk = Disk(tmp_path / "temp")
    disk.make_temp()
    disk.publish(disk.write(b"x"), tmp_path / "place")
    assert (tmp_path / "place").read_bytes() == b"x"


def test_a_folder_that_has_entries_is_looked_through_once(tmp_path, monkeypatch) -> None:
    """One with thousands of runs takes long; one that is empty may not be durable, and is synced each time."""
    looked, synced = [], []
    genuine_look, genuine_sync = disk_module._has_entries, Disk.sync_folder

    def look(folder: Path) -> bool:
        looked.append(folder.name)
        return genuine_look(folder)

    def sync(disk: Disk, folder: Path) -> None:
        synced.append(folder.name)
        genuine_sync(disk, folder)

    monkeypatch.setattr(disk_module, "_has_entries", look)
    monkeypatch.setattr(Disk, "sync_folder", sync)
    disk, runs = Disk(tmp_path / "temp"), tmp_path / "store" / "runs"
    disk.temp.mkdir()
    disk.make_folder(runs)
    disk.make_folder(runs)
    assert synced == [tmp_path.name, "store", "store"]
    (runs / "r1.jsonl").touch()
    for _ in range(3):
        disk.make_folder(runs)
    assert synced[3:] == []
    assert looked.count("runs") == 2
    runs.rename(tmp_path / "elsewhere")
    disk.make_folder(runs)
    assert synced[3:] == ["store"]


def test_folders_are_remembered_within_bounds(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(disk_module, "_MOST_FOLDERS", 3)
    disk = Disk(tmp_path / "temp")
    for number in range(10):
        disk.make_folder(tmp_path / str(number) / "inner")
        disk.make_folder(tmp_path / str(number))
    assert len(disk._durable_folders) <= 3
