"""FileStore: what others do at the worst moment."""

import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.store import Commit, Depth, Expected, Head, Keyframe, Letter, Removal
from holdfast.errors import HeadMoved
from holdfast.ids import RunId
from holdfast.stores.common.disk import Disk
from holdfast.stores.file import document, inspecting, mending, run_folder, tidying
from holdfast.stores.file.folders import Folders
from holdfast.testing.store_suite.samples import SEQS_OF_ARRIVAL, expect_head, first_commit, make_arrival
from tests.stores.file_commits import standing, stay, step

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
    with other(tmp_path)._tools.locks.hold_shared("r.run"):  # as a writer that stands still
        folders.remove_run(RUN, expect_head(head_of(folders)))
        assert os.listdir(tmp_path / "runs" / "r")
        folders.commit(make_arrival())
    for each in (folders, other(tmp_path)):
        assert (head_of(each), seqs_of(each)) == (make_arrival().head, SEQS_OF_ARRIVAL)


def test_a_run_comes_whole_where_something_lies_that_is_no_commit(folders: Folders, tmp_path: Path) -> None:
    (tmp_path / "runs" / "r").mkdir(parents=True)
    (tmp_path / "runs" / "r" / ".lock").touch()
    folders.commit(make_arrival())
    assert (head_of(folders), seqs_of(folders)) == (make_arrival().head, SEQS_OF_ARRIVAL)


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
        folders.remove_run(RUN, expect_head(head_of(folders)))
    assert os.listdir(tmp_path / "removing") == ["r"]
    other(tmp_path).commit(first_commit("yet another"))
    assert os.listdir(tmp_path / "removing") == []
    assert not (tmp_path / "runs" / "r").exists()


# -- whatever happens between two reads ------------------------------------------------------------

LAST = 4


def begin(folder: Path) -> None:
    """A store with a run that has notes, and a tag that nobody carried out."""
    folders = other(folder)
    for seq in range(1, LAST + 1):
        folders.commit(step(RUN, seq))
    folders.commit(stay(RUN, LAST, "a"))
    with folders._tools.locks.try_alone("r.tidy"):
        folders.tag(RUN, LAST - 1, ["gold"], ())


def prune(folders: Folders, last: int = LAST) -> None:
    """Remove all records but the tagged one and the last."""
    gone = tuple(seq for seq in range(1, last) if seq != LAST - 1)
    folders.remove(Removal(RUN, standing(RUN, last), gone, ((last, Keyframe(b"\x00\x90", b"", cut=True)),)))


def move_on_and_prune(folders: Folders) -> None:
    for seq in (LAST + 1, LAST + 2):
        folders.commit(step(RUN, seq))
    prune(folders, LAST + 2)


def delete(folders: Folders) -> None:
    folders.remove_run(RUN, standing(RUN, LAST))


def begin_anew(folders: Folders) -> None:
    delete(folders)
    folders.commit(step(RUN, 1))


def inspect(folders: Folders) -> None:
    assert folders.inspect(None) == []


def list_records(folders: Folders) -> None:
    found = seqs_of(folders)
    assert found == sorted(set(found))


LOOKS: dict[str, Callable[[Folders], object]] = {
    "inspect": inspect,
    "records": list_records,
    "notes": lambda folders: folders.run(RUN).notes(),
    "find": lambda folders: folders.find(step(RUN, 2).head.checkpoint_id),
    "leave": lambda folders: folders.leave(RUN, 0, [Letter("k", b"x")]),
    "tag": lambda folders: folders.tag(RUN, 2, ["silver"], ()),
    "remove": prune,
    "copy": lambda folders: inspect(other(folders.copied())),
}


class Between:
    """Lets something happen before the nth look at a folder, a link or a commit file."""

    def __init__(self, nth: int, happen: Callable[[], object], patch: pytest.MonkeyPatch) -> None:
        self.nth, self.looks = nth, 0
        self._happen, self._happening = happen, False
        for owner, name in ((document, "content_of"), (os, "listdir"), (os, "readlink"), (os, "scandir")):
            patch.setattr(owner, name, self._noticing(getattr(owner, name)))

    def _noticing(self, genuine: Callable[..., Any]) -> Callable[..., Any]:
        def look(*arguments: Any) -> Any:
            if not self._happening:
                self.looks += 1
                if self.looks == self.nth:
                    self._happening = True
                    self._happen()
                    self._happening = False
            return genuine(*arguments)

        return look


@pytest.mark.parametrize(
    ("look", "happen"),
    [
        *((look, happen) for look in LOOKS for happen in (move_on_and_prune, delete)),
        *((look, happen) for look in ("inspect", "copy") for happen in (prune, begin_anew)),
    ],
)
def test_what_happens_between_two_reads_is_no_damage(
    tmp_path: Path, look: str, happen: Callable[[Folders], None]
) -> None:
    """Nothing is said of damage, and nothing raised but that the run moved on."""
    begin(tmp_path / "begun")
    nth = 0
    while True:
        nth += 1
        shutil.copytree(tmp_path / "begun", tmp_path / str(nth), symlinks=True)
        looking, meanwhile = other(tmp_path / str(nth)), other(tmp_path / str(nth))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tidying, "_PATIENCE", 0.0)
            between = Between(nth, partial(happen, meanwhile), patch)
            with contextlib.suppress(HeadMoved):
                LOOKS[look](looking)
        assert other(tmp_path / str(nth)).inspect(None) == []
        if between.looks < nth:
            break
    assert nth > 2


def test_one_who_looks_once_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspecting, "_MOST_LOOKS", 1)
    with pytest.raises(AssertionError):
        test_what_happens_between_two_reads_is_no_damage(tmp_path, "inspect", delete)
