"""Presence: which processes are there, told by processes that live, stop and die."""

import errno
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.checkpoint import ownership
from holdfast.checkpoint.ownership import this_process
from holdfast.stores.common import presence
from holdfast.stores.common.presence import Presence
from tests.stores.presence_programs import Program, running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "owners"


@pytest.fixture
def here(folder: Path) -> Iterator[Presence]:
    here = Presence(folder)
    yield here
    here.leave()


@pytest.fixture
def other(folder: Path) -> Iterator[Program]:
    """Another process, to ask who lives."""
    with running("ask", folder) as program:
        yield program


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another process does by itself, in its own time."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Count the threads that renew files, without those of stores that other tests may have left open."""
    monkeypatch.setattr(presence, "_processes", {})
    before = set(threading.enumerate())
    return lambda: sum(thread.name == "holdfast-presence" for thread in {*threading.enumerate()} - before)


def test_a_process_lives_from_joining_to_leaving(folder: Path, here: Presence) -> None:
    with running("stay", folder) as program:
        name = program.hear()
        assert here.lives(name)
        assert here.lives(name)  # to look does no harm
        assert [file.read_text().splitlines()[0] for file in files_in(folder)] == [name]
        assert program.ask("leave") == "left"
        assert not here.lives(name)
        assert not folder.exists()


def test_one_that_never_joined_does_not_live(folder: Path, here: Presence, other: Program) -> None:
    for name in ("", "../..", "host:1:1", "\udc80", this_process()):
        assert not here.lives(name)
    assert other.ask(this_process()) == "False"
    assert not folder.exists()


def test_a_process_that_is_killed_lives_no_longer(folder: Path, here: Presence) -> None:
    with running("stay", folder) as program:
        name = program.hear()
        program.kill()
        assert len(files_in(folder)) == 1
        assert not here.lives(name)
        assert files_in(folder) == []


def test_one_that_stands_still_for_long_is_not_waited_for(
    folder: Path, here: Presence, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running("stay", folder, 0.05) as program:
        name = program.hear()
        program.stop()
        assert here.lives(name)
        monkeypatch.setattr(presence, "LEASE_SECONDS", 0.3)
        until(lambda: not here.lives(name))
        assert len(files_in(folder)) == 1  # the lock is still its own
        program.go_on()
        until(lambda: here.lives(name))


def test_a_step_of_the_clock_makes_nobody_look_gone(
    folder: Path, here: Presence, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running("stay", folder) as program:
        name = program.hear()
        program.stop()
        (file,) = files_in(folder)
        now = file.stat().st_mtime
        for step in (
            -1_000_000,
            -90,
            90,
            1_000_000,
        ):  # seconds by which the clock was set since it was renewed
            os.utime(file, (now, now - step))
            assert here.lives(name)
        monkeypatch.setattr(presence, "LEASE_SECONDS", 0.1)
        until(lambda: not here.lives(name))


def test_a_file_without_a_time_of_this_machine_has_that_of_its_file_system(
    folder: Path, here: Presence
) -> None:
    machine = ownership.this_machine()
    with running("stay", folder) as program:
        name = program.hear()
        program.stop()
        (file,) = files_in(folder)
        for time_of_machine in (
            "",
            "\n\n",
            f"\n{machine} \n",
            f"\n{machine} x\n",
            f"\n{machine} 9e99\n",
            "\xff",
        ):
            file.write_text(time_of_machine, "latin-1")
            assert here.lives(name)
            then = file.stat().st_mtime - presence.LEASE_SECONDS - 1
            os.utime(file, (then, then))
            assert not here.lives(name)


@pytest.mark.parametrize("joined", [True, False])
def test_the_lease_of_other_machines_is_measured_by_the_clock_of_the_file_system(
    folder: Path, here: Presence, joined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "this_machine", lambda: "elsewhere")
    with running("stay", folder) as program:
        name = program.hear()
        program.stop()
        (file,) = files_in(folder)
        if joined:
            here.join()
        monkeypatch.setattr(time, "time", lambda: 0.0)  # the clock of this host
        now = file.stat().st_mtime
        os.utime(file, (now, now - presence.LEASE_SECONDS + 30))
        assert here.lives(name)
        os.utime(file, (now, now - presence.LEASE_SECONDS - 1))
        assert not here.lives(name)
        assert len(files_in(folder)) == 1 + joined  # whatever told the time is gone


def test_a_process_that_ends_without_leaving_leaves_nothing(folder: Path) -> None:
    with running("stay", folder) as program:
        program.hear()
        assert len(files_in(folder)) == 1
        program.tell("end")
        program.finish()
    assert not folder.exists()


def test_several_of_one_process_share_a_file(tmp_path: Path, folder: Path, other: Program) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    several = [Presence(folder), Presence(folder), Presence(tmp_path / "link" / "owners")]
    for one in several:
        one.join()
        one.join()
        assert len(files_in(folder)) == 1
    for one in several:
        assert several[0].lives(this_process())
        assert other.ask(this_process()) == "True"
        one.leave()
        one.leave()
    assert not several[0].lives(this_process())
    assert other.ask(this_process()) == "False"
    assert not folder.exists()


def test_one_that_left_may_join_again(folder: Path, here: Presence, other: Program) -> None:
    for _ in range(3):
        here.join()
        assert other.ask(this_process()) == "True"
        here.leave()
        assert other.ask(this_process()) == "False"


def test_one_that_joins_while_the_last_other_leaves(
    folder: Path, here: Presence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is there when it is to be made, and gone a moment later."""
    genuine, made = os.mkdir, []

    def mkdir(path: str | Path, mode: int = 0o777) -> None:
        made.append(path)
        if len(made) == 1:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        genuine(path, mode)

    monkeypatch.setattr(os, "mkdir", mkdir)
    here.join()
    assert made == [folder, folder]
    assert here.lives(this_process())


def test_each_folder_is_joined_for_itself_and_one_thread_renews_all(
    tmp_path: Path, threads: Callable[[], int]
) -> None:
    several = [Presence(tmp_path / name) for name in "ab"]
    assert threads() == 0
    several[0].join()
    assert not several[1].lives(this_process())
    several[1].join()
    assert threads() == 1
    several[0].leave()
    assert not several[0].lives(this_process())
    assert several[1].lives(this_process())
    assert threads() == 1
    several[1].leave()
    assert threads() == 0


def test_a_folder_with_others_in_it_stays(folder: Path, here: Presence) -> None:
    here.join()
    with running("stay", folder) as program:
        name = program.hear()
        here.leave()
        assert here.lives(name)
        assert len(files_in(folder)) == 1


def test_a_forked_child_has_not_joined(folder: Path, here: Presence) -> None:
    with running("fork", folder) as program:
        parent = program.hear()
        child, *seen = program.hear().split(" ")
        assert seen == ["True", "False"]
        assert [here.lives(parent), here.lives(child)] == [True, False]
        assert program.ask("") == "True True"
        assert [here.lives(parent), here.lives(child)] == [True, True]
        program.tell()  # the child ends as processes do, and takes nothing of the parent with it
        assert program.hear() == "True"
        assert [here.lives(parent), here.lives(child)] == [True, False]


def test_a_forked_child_does_not_keep_its_parent_alive(folder: Path, here: Presence) -> None:
    with running("fork", folder) as program:
        parent = program.hear()
        child = program.hear().split(" ")[0]
        assert here.lives(parent)
        program.kill()
        assert not here.lives(parent)
        assert program.ask("") == "False True"
        assert here.lives(child)
        program.tell()
        assert program.process.communicate()[0] == ""  # the child is gone, too


def test_what_the_dead_left_is_swept_by_those_who_join(folder: Path, here: Presence) -> None:
    with running("stay", folder) as alive, running("stay", folder) as dead:
        name = alive.hear()
        dead.hear()
        dead.kill()
        here.join()
        assert len(files_in(folder)) == 2
        assert here.lives(name)


def test_those_who_look_do_not_disturb_those_who_join(folder: Path, here: Presence) -> None:
    with running("look", folder, this_process()) as program:
        program.hear()
        for _ in range(300):
            here.join()
            assert len([file for file in files_in(folder) if file.suffix == ".lock"]) == 1
            here.leave()


def test_a_file_that_is_removed_before_it_is_locked_is_made_again(
    folder: Path, here: Presence, other: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    try_lock = presence._try_lock

    def late(handle: int) -> bool | None:
        if not seen:
            seen.append(other.ask(this_process()))
            assert files_in(folder) == []
        return try_lock(handle)

    monkeypatch.setattr(presence, "_try_lock", late)
    here.join()
    assert seen == ["False"]
    assert other.ask(this_process()) == "True"


def drop_the_lock(file: Path) -> None:
    """Open and close each file, as a copy of the folder by this process does: see ``_try_lock``."""
    file.read_text()


def lose_the_file(file: Path) -> None:
    file.unlink()


def lose_the_folder(file: Path) -> None:
    shutil.rmtree(file.parent)


@pytest.fixture
def renewals(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Counts how often the files were renewed, which is now done all the time."""
    counted = threading.Semaphore(0)
    renew = presence._Renewer._renew

    def renew_and_count(renewer: presence._Renewer) -> None:
        renew(renewer)
        counted.release()

    monkeypatch.setattr(presence._Renewer, "_renew", renew_and_count)
    monkeypatch.setattr(presence, "RENEW_SECONDS", 0.01)
    return counted


def wait_for_a_renewal(renewals: threading.Semaphore) -> None:
    """One that begins after the call."""
    while renewals.acquire(blocking=False):
        pass
    for _ in range(2):  # the first may be under way
        assert renewals.acquire(timeout=60)


@pytest.mark.parametrize("lose", [drop_the_lock, lose_the_file, lose_the_folder])
def test_what_is_lost_is_renewed(
    folder: Path,
    here: Presence,
    other: Program,
    renewals: threading.Semaphore,
    lose: Callable[[Path], None],
) -> None:
    here.join()
    lose(files_in(folder)[0])
    wait_for_a_renewal(renewals)
    assert other.ask(this_process()) == "True"
    here.leave()
    assert other.ask(this_process()) == "False"
    assert not folder.exists()


def test_a_store_that_is_gone_is_not_made_again(tmp_path: Path, renewals: threading.Semaphore) -> None:
    store = tmp_path / "store"
    store.mkdir()
    here = Presence(store / "owners")
    here.join()
    store.rename(tmp_path / "elsewhere")
    wait_for_a_renewal(renewals)
    assert not store.exists()
    store.mkdir()
    wait_for_a_renewal(renewals)
    assert len(files_in(store / "owners")) == 1
    here.leave()
    assert files_in(store) == []


def test_only_this_user_can_read_the_files(folder: Path, here: Presence) -> None:
    before = os.umask(0)
    try:
        here.join()
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(file.stat().st_mode) for file in files_in(folder)] == [0o600]


def test_joining_where_there_is_no_folder_fails_and_changes_nothing(
    tmp_path: Path, threads: Callable[[], int]
) -> None:
    here = Presence(tmp_path / "gone" / "owners")
    with pytest.raises(FileNotFoundError):
        here.join()
    assert not here.lives(this_process())
    assert threads() == 0
    (tmp_path / "gone").mkdir()
    here.join()
    assert here.lives(this_process())
    here.leave()


def test_a_file_that_another_process_keeps_locked_is_told(
    folder: Path, here: Presence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "_try_lock", lambda _: False)
    monkeypatch.setattr(presence, "_PATIENCE_SECONDS", 0.01)
    with pytest.raises(OSError, match="another process keeps it locked") as caught:
        here.join()
    assert caught.value.errno == errno.EAGAIN
    assert str(caught.value.filename).startswith(str(folder))


def test_without_locks_the_table_of_processes_tells(
    folder: Path, here: Presence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "_try_lock", lambda _: None)
    with running("stay", folder) as program:
        name = program.hear()
        assert here.lives(name)
        program.kill()
        assert not here.lives(name)
    assert files_in(folder) == []


def test_without_locks_the_lease_tells_of_other_hosts(
    folder: Path, here: Presence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "_try_lock", lambda _: None)
    here.join()
    (file,) = files_in(folder)
    elsewhere = presence._get_path(folder.resolve(), "elsewhere:1:1")
    elsewhere.touch()
    assert here.lives("elsewhere:1:1")
    then = file.stat().st_mtime - presence.LEASE_SECONDS - 1
    os.utime(elsewhere, (then, then))
    assert not here.lives("elsewhere:1:1")


def test_processes_of_two_containers_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    names = set()
    for number in (1, 2):
        monkeypatch.setattr(os, "readlink", lambda path, number=number: f"pid:[{number}]")
        names.add(ownership._host.__wrapped__())
    assert len(names) == 2


def test_who_looks_while_the_last_one_leaves_finds_nobody(
    folder: Path, here: Presence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder goes with the last one, while whoever looks asks it for the time."""
    genuine = presence._read_file_system_time
    with running("stay", folder) as program:
        name = program.hear()

        def leave_first(process: presence._ProcessFiles, asked: Path) -> float:
            assert program.ask("leave") == "left"
            assert not folder.exists()
            return genuine(process, asked)

        monkeypatch.setattr(presence, "_read_file_system_time", leave_first)
        monkeypatch.setattr(presence, "this_machine", lambda: "elsewhere")
        assert not here.lives(name)
