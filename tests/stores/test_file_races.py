"""FileStore: what others do at the worst moment."""

import errno
import os
from pathlib import Path

import pytest

from holdfast.checkpoint.store import Commit, Depth, Expected, Head
from holdfast.ids import RunId
from holdfast.stores.disk import Disk
from holdfast.stores.file import mending, run_folder
from holdfast.stores.file.folders import Folders
from holdfast.testing.store_suite.arrivals import SEQS, arriving
from holdfast.testing.store_suite.removal import place_of
from holdfast.testing.store_suite.samples import first_commit

RUN = RunId("r")


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    folders = Folders(tmp_path, "")
    folders.open()
    return folders


def other(tmp_path: Path) -> Folders:
    """What another process has."""
    folders = Folders(tmp_path, "")
    folders.open()
    return folders


def head_of(folders: Folders) -> Head:
    head = folders.run(RUN).head()
    assert head is not None
    return head


def seqs_of(folders: Folders) -> list[int]:
    return [record.seq for record in folders.run(RUN).records(0, 1 << 40, Depth.HEADERS)]


def test_a_run_comes_whole_where_the_end_of_another_could_not_be_cleared(
    folders: Folders, tmp_path: Path
) -> None:
    folders.commit(first_commit("r"))
    with other(tmp_path)._tools.locks.shared("r.run"):  # as a writer that stands still
        folders.remove_run(RUN, place_of(head_of(folders)))
        assert os.listdir(tmp_path / "runs" / "r")
        folders.commit(arriving())
    for each in (folders, other(tmp_path)):
        assert (head_of(each), seqs_of(each)) == (arriving().head, SEQS)


def test_a_run_comes_whole_where_something_lies_that_is_no_commit(folders: Folders, tmp_path: Path) -> None:
    (tmp_path / "runs" / "r").mkdir(parents=True)
    (tmp_path / "runs" / "r" / ".lock").touch()
    folders.commit(arriving())
    assert (head_of(folders), seqs_of(folders)) == (arriving().head, SEQS)


def replacing(folders: Folders) -> Commit:
    """What lets a run be what it is."""
    head = head_of(folders)
    records = folders.run(RUN).records(0, 1 << 40, Depth.ALL)
    return Commit(
        head._replace(token=head.token + 1), Expected(head.checkpoint_id, head.token), tuple(records)
    )


def test_who_begins_to_write_leaves_a_repair_alone_that_is_under_way(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders.commit(first_commit("r"))
    genuine = mending.put_aside

    def put_aside(path: Path, damaged: Path, disk: Disk) -> None:
        for moment in range(2):
            other(tmp_path).commit(first_commit(f"another {moment}"))
            if moment == 0:
                genuine(path, damaged, disk)

    monkeypatch.setattr(run_folder, "put_aside", put_aside)
    commit = replacing(folders)
    folders.replace(commit)
    assert head_of(other(tmp_path)) == commit.head
    assert os.listdir(tmp_path / "mending") == []


@pytest.mark.parametrize("aside", [True, False])
def test_who_begins_to_write_finishes_a_repair_of_the_dead(
    folders: Folders, tmp_path: Path, aside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders.commit(first_commit("r"))
    before, commit = head_of(folders), replacing(folders)
    genuine = mending.put_aside

    class Died(BaseException):
        pass

    def put_aside(path: Path, damaged: Path, disk: Disk) -> None:
        if aside:
            genuine(path, damaged, disk)
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "put_aside", put_aside)
        with pytest.raises(Died):
            folders.replace(commit)
    after = other(tmp_path)
    after.commit(first_commit("another"))
    assert head_of(after) == (commit.head if aside else before)
    assert os.listdir(tmp_path / "mending") == []


def test_a_repair_holds_nothing_afterwards(folders: Folders, tmp_path: Path) -> None:
    folders.commit(first_commit("r"))
    folders.replace(replacing(folders))
    assert folders.disk._locked == {}
    assert os.listdir(tmp_path / "temp") == []


def test_a_file_that_cannot_take_its_place_is_removed(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "temp")
    disk.make_temp()
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError) as caught:  # noqa: PT011 - which kind depends on the system
        disk.replace(disk.write(b"x"), tmp_path / "taken")
    assert caught.value.errno in (errno.EISDIR, errno.EACCES)
    assert disk._locked == {}
    assert os.listdir(disk.temp) == []


def test_a_note_of_a_removal_that_another_took_for_done_is_there_again(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then a process that dies over the rest leaves it to the next."""
    folders.commit(first_commit("r"))
    genuine = run_folder.RunFolder.remove_run

    def remove_run(folder: run_folder.RunFolder, run_id: RunId, expected: Expected) -> None:
        other(tmp_path).commit(first_commit("another"))
        assert os.listdir(tmp_path / "removing") == []
        genuine(folder, run_id, expected)

    monkeypatch.setattr(run_folder.RunFolder, "remove_run", remove_run)
    with monkeypatch.context() as patch:
        patch.setattr(
            run_folder.RunFolder, "finish_removing", lambda folder: folder.head() is not None
        )  # it dies
        folders.remove_run(RUN, place_of(head_of(folders)))
    assert os.listdir(tmp_path / "removing") == ["r"]
    other(tmp_path).commit(first_commit("yet another"))
    assert os.listdir(tmp_path / "removing") == []
    assert not (tmp_path / "runs" / "r").exists()
