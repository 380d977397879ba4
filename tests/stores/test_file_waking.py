"""FileStore: the files by which it finds the runs that have something to do."""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast import RunStatus
from holdfast.checkpoint.store import ClaimRequest, Head, RunPosition, RunQuery
from holdfast.errors import StorageError
from holdfast.ids import RunId
from holdfast.stores.file import FileStore
from tests.stores.file_commits import opened
from tests.support import modules
from tests.support.parts import this_process
from tests.support.store_parts import (
    DRIVEN,
    GREATEST,
    HOUR,
    NOON,
    Claim,
    LineFile,
    WakeSign,
    WakeSigns,
    begin,
    begin_waiting,
    claim_runs,
    expect_head,
    leave_letters,
    list_due,
    move_on,
    next_commit,
    staying_commit,
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def store(files: FileStore) -> FileStore:
    return files


def signs(path: Path) -> list[str]:
    return sorted(os.listdir(path / "waking"))


async def test_there_is_one_sign_for_a_run_as_long_as_it_waits_for_something(
    store: FileStore, tmp_path: Path
) -> None:
    head = await begin_waiting(store, "r", NOON)
    assert signs(tmp_path) == [f"{NOON:020d}-r"]
    await leave_letters(store, "a")
    assert signs(tmp_path) == [f"{0:020d}-r"]
    await store.commit(staying_commit(head, taken=["a"]))
    assert signs(tmp_path) == [f"{NOON:020d}-r"]
    head = await move_on(store, head, wake_at=NOON + HOUR)
    assert signs(tmp_path) == [f"{NOON + HOUR:020d}-r"]
    head = await move_on(store, head, status=RunStatus.RUNNING, wake_at=None)
    assert signs(tmp_path) == [f"{DRIVEN}-r"]
    head = await move_on(store, head)
    assert signs(tmp_path) == [f"{DRIVEN}-r"]
    head = await move_on(store, head, status=RunStatus.WAITING)
    assert signs(tmp_path) == []
    head = await move_on(store, head, wake_at=NOON)
    assert signs(tmp_path) == [f"{NOON:020d}-r"]
    await store.remove_run(RunId("r"), expect_head(head))
    assert signs(tmp_path) == []


async def test_the_sign_of_a_run_that_is_driven_follows_its_owner(store: FileStore, tmp_path: Path) -> None:
    head = await begin_waiting(store, "r", NOON)
    names = []
    for owner in ("host/1:1#7", "host/1:1#7", "host/1:1#8", "other/2:2#1"):
        head = await move_on(store, head, status=RunStatus.RUNNING, wake_at=None, owner=owner)
        (name,) = signs(tmp_path)
        names.append(name)
    first, again, claimed, taken_over = names
    assert again == first
    assert claimed == first.replace(".7-r", ".8-r") != first
    assert taken_over.endswith(".1-r")
    assert taken_over.split(".")[1] != claimed.split(".")[1]  # the process


@pytest.mark.parametrize("whole_folder", [True, False])
async def test_signs_that_were_taken_away_are_made_again(
    store: FileStore, tmp_path: Path, whole_folder: bool
) -> None:
    await begin_waiting(store, "r", NOON)
    await begin_waiting(store, "s")
    await leave_letters(store, "a", run="s")
    await store.close()
    if whole_folder:
        shutil.rmtree(tmp_path / "waking")
    else:
        os.unlink(tmp_path / "waking" / signs(tmp_path)[1])
    other = FileStore(tmp_path)
    assert await list_due(other) == ["s", "r"]
    assert signs(tmp_path) == [f"{0:020d}-s", f"{NOON:020d}-r"]
    await other.close()


async def test_a_sign_that_is_wrong_is_not_believed_and_removed(store: FileStore, tmp_path: Path) -> None:
    await begin_waiting(store, "r", NOON + HOUR)
    for name in (f"{0:020d}-r", f"{NOON:020d}-r", f"{NOON:020d}-gone"):
        (tmp_path / "waking" / name).touch()
    assert await list_due(store) == []
    assert signs(tmp_path) == [f"{NOON + HOUR:020d}-r"]
    assert await list_due(store, NOON + HOUR) == ["r"]


async def test_what_is_no_sign_is_passed_over(store: FileStore, tmp_path: Path) -> None:
    await begin_waiting(store, "r", NOON)
    for name in ("README", "-", "1-r", f"{0:020d}", f"{0:020d}-", "\u0663" * 20 + "-r"):
        (tmp_path / "waking" / name).touch()
    assert await list_due(store) == ["r"]
    assert len(signs(tmp_path)) == 7


class Died(BaseException):
    """Ends what a process does at once, as a kill would."""


def die(*_: object) -> None:
    raise Died


async def test_a_process_that_dies_before_its_commit_leaves_a_sign_that_wakes_nobody(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = await begin_waiting(store, "r", NOON + HOUR)

    with monkeypatch.context() as patch:
        patch.setattr(LineFile, "append", die)
        with pytest.raises(Died):
            await move_on(store, head, wake_at=NOON)
    assert f"{NOON:020d}-r" in signs(tmp_path)
    other = FileStore(tmp_path)
    assert (await list_due(other), await list_due(other, NOON + HOUR)) == ([], ["r"])
    await other.close()


async def test_a_process_that_dies_after_its_commit_leaves_a_sign(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a sign of that name lay there already, old and wrong until that commit."""
    head = await begin_waiting(store, "r", NOON + HOUR)
    (tmp_path / "waking" / f"{NOON:020d}-r").touch()
    other = FileStore(tmp_path)

    with monkeypatch.context() as patch:
        patch.setattr(WakeSigns, "remove", die)
        with pytest.raises(Died):
            await move_on(store, head, wake_at=NOON)
    assert await list_due(other) == ["r"]
    await other.close()


async def test_only_as_many_runs_are_read_as_are_told(store: FileStore, peeks: list[str]) -> None:
    for number in range(10):
        await begin_waiting(store, f"r{number}", NOON + number)
    assert await list_due(store, GREATEST, limit=3) == ["r0", "r1", "r2"]
    peeks.clear()
    request = ClaimRequest(this_process(), GREATEST, 0, 3, {"Flow": None}, abandoned=False)
    assert [head.run_id for head in await store.claim(request)] == ["r0", "r1", "r2"]
    assert peeks == ["r0", "r1", "r2"]


async def driven(store: FileStore, after: str | None = None) -> list[str]:
    behind = None if after is None else RunPosition(NOON, RunId(after))
    query = RunQuery(statuses=frozenset([RunStatus.RUNNING]), after=behind)
    return [head.run_id for head in await store.runs(query)]


async def drives(store: FileStore, run: str) -> Head:
    return await move_on(store, await begin_waiting(store, run), status=RunStatus.RUNNING)


async def test_only_driven_runs_are_read_where_only_they_are_asked_for(
    store: FileStore, peeks: list[str]
) -> None:
    for number in range(5):
        await begin_waiting(store, f"w{number}")
    heads = [await drives(store, f"r{number}") for number in range(3)]
    assert await driven(store) == ["r0", "r1", "r2"]
    peeks.clear()
    assert await driven(store) == ["r0", "r1", "r2"]
    assert sorted(peeks) == ["r0", "r1", "r2"]
    await move_on(store, heads[1], status=RunStatus.WAITING)
    assert await driven(store, after="r1") == ["r2"]  # also behind one that is driven no longer
    assert await driven(store) == ["r0", "r2"]


async def test_a_driven_run_without_its_sign_is_found_by_the_next_process(
    store: FileStore, tmp_path: Path
) -> None:
    await drives(store, "r")
    shutil.rmtree(tmp_path / "waking")
    other = FileStore(tmp_path)
    assert await driven(other) == ["r"]
    assert signs(tmp_path) == [f"{DRIVEN}-r"]
    await other.close()


async def test_a_driven_run_is_found_where_nothing_may_be_written(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await drives(store, "r")

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(WakeSigns, "add", refuse)
    other = FileStore(tmp_path)
    assert await driven(other) == ["r"]
    await other.close()


async def test_a_wrong_sign_that_a_run_is_driven_goes(store: FileStore, tmp_path: Path) -> None:
    await begin_waiting(store, "r", NOON)
    for run in ("r", "gone"):
        (tmp_path / "waking" / f"{DRIVEN}-{run}").touch()
    assert await driven(store) == []
    assert signs(tmp_path) == [f"{NOON:020d}-r"]


@pytest.mark.parametrize("is_locked", [True, False])
async def test_a_sign_that_is_needed_again_is_not_taken_away(
    store: FileStore, tmp_path: Path, is_locked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever takes a wrong sign away keeps others from needing it meanwhile. Without the lock it would be lost."""
    head = await begin_waiting(store, "r", NOON)
    head = await move_on(store, head, status=RunStatus.RUNNING, wake_at=None)
    (tmp_path / "waking" / f"{NOON:020d}-r").touch()
    genuine = WakeSigns.remove
    moving: list[Any] = []
    monkeypatch.setattr(modules.run_lock, "_PATIENCE_SECONDS", 0.1)
    if not is_locked:
        monkeypatch.setattr(modules.run_lock, "try_lock", lambda _: True)
        monkeypatch.setattr(modules.marker, "check_locks", lambda _: None)

    def remove(wake_signs: WakeSigns, sign: WakeSign) -> None:
        if not moving:
            moving.append(1)
            with suppress(StorageError):
                opened(tmp_path).commit(next_commit(head, status=RunStatus.WAITING, wake_at=NOON))
        genuine(wake_signs, sign)

    monkeypatch.setattr(WakeSigns, "remove", remove)
    assert await list_due(store) == []
    assert moving
    if is_locked:
        await move_on(store, head, status=RunStatus.WAITING, wake_at=NOON)
    assert (f"{NOON:020d}-r" in signs(tmp_path)) is is_locked


async def test_a_host_that_looks_reads_no_run_whose_owner_lives(store: FileStore, peeks: list[str]) -> None:
    await store.join()
    claims = [Claim() for _ in range(5)]
    for number, claim in enumerate(claims):
        await begin(store, f"r{number}", owner=claim.name)
    assert await claim_runs(store) == []
    peeks.clear()
    assert await claim_runs(store) == []
    assert peeks == []
    claims[3].release()
    assert await claim_runs(store, lease=0) == ["r3"]
    assert set(peeks) == {"r3"}


async def test_a_claim_that_is_written_right_now_is_not_swept_up(files, directory) -> None:
    """It is empty for a moment. One that stays so, because its writer died, keeps nobody from the run."""
    await files.join()
    await begin_waiting(files, "r1", NOON)
    assert await claim_runs(files) == ["r1"]
    begun = directory / "claims" / "r2"
    begun.touch()
    await begin_waiting(files, "r3", NOON)
    assert await claim_runs(files) == ["r3"]
    assert begun.exists()
    await begin_waiting(files, "r2", NOON)
    assert await claim_runs(files) == ["r2"]
