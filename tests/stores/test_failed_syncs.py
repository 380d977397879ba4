"""After a sync that failed nothing is told, or built on, that a power cut may take away; FileStore, and large blobs."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from holdfast import FileCheckpointStorage, RunStatus
from holdfast.checkpoint.store import Blob, Commit, Depth, Removal, RunQuery
from holdfast.errors import HeadMoved, StorageError
from holdfast.ids import Digest, RunId
from holdfast.stores.file import FileStore
from tests.stores.file_commits import CUT, RUN, head, letters, record, standing, stay, step
from tests.support.modules import run_file
from tests.support.parts import Disk
from tests.support.retained import assert_sound, counted, counting
from tests.support.store_parts import BlobFiles, HeldLock, LineFile
from tests.support.synced_only import SyncedOnly

OTHER, WHOLE = RunId("r2"), RunId("whole")
BLOBS = (Blob(Digest(b"1" * 32), b"one"), Blob(Digest(b"2" * 32), b"two"))
RUNS = (RUN, OTHER, WHOLE)


def _removal() -> Removal:
    return Removal(RUN, standing(RUN, 4), (1, 2), ((4, CUT),))


def _whole() -> Commit:
    return Commit(head(WHOLE, 5), None, tuple(record(WHOLE, seq) for seq in range(1, 6)))


WORK: list[Callable[[FileStore], Awaitable[Any]]] = [
    lambda store: store.commit(step(RUN, 1)),
    lambda store: store.commit(step(RUN, 2)._replace(blobs=BLOBS[:1])),
    lambda store: store.commit(stay(RUN, 2, "a", wake_at=None)),
    lambda store: store.leave(RUN, 2, letters("l")),
    lambda store: store.commit(step(RUN, 3)._replace(blobs=BLOBS)),
    lambda store: store.tag(RUN, 3, ["gold"]),
    lambda store: store.commit(step(RUN, 4)._replace(taken=("l",))),
    lambda store: store.commit(step(OTHER, 1)),
    lambda store: store.remove(_removal()),
    lambda store: store.commit(step(RUN, 5)),
    lambda store: store.commit(_whole()),
    lambda store: store.remove_run(OTHER, standing(OTHER, 1)),
    lambda store: store.commit(step(RUN, 6)),
    lambda store: store.commit(step(RUN, 7)),
]


async def told(store: FileStore) -> list[Any]:
    """All that a store tells of its runs."""
    found: list[Any] = []
    for run in RUNS:
        at = await store.head(run)
        records = await store.records(run, 1, 1 << 40, Depth.ALL)
        found.append([at, await store.notes(run), await store.inbox(run), records])
    found.append(await store.runs(RunQuery()))
    found.append(await store.inspect())
    return found


async def again(store: FileStore, work: Callable[[FileStore], Awaitable[Any]]) -> None:
    """Do what failed, unless it is done."""
    try:
        await work(store)
    except HeadMoved:  # it was committed, or the run is gone
        pass


async def play(disk: SyncedOnly, place: Path, anew: bool) -> None:
    """Do all the work. Whatever the store tells after a failure, and in the end, is on the disk."""
    store = FileStore(disk.folder / "store")
    try:
        for work in WORK:
            try:
                await work(store)
            except StorageError:
                if anew:
                    await store.close()
                    store = FileStore(disk.folder / "store")
                await check(store, disk, place / "at once")
                for _ in range(2):
                    with suppress(StorageError):
                        await again(store, work)
                        break
        await check(store, disk, place / "in the end")
        assert (await store.head(RUN), await store.head(OTHER)) == (head(RUN, 7), None)
    finally:
        await store.close()
        disk.close()


async def check(store: FileStore, disk: SyncedOnly, place: Path) -> None:
    """See that a power cut now would leave all that the store tells."""
    try:
        expected = await told(store)
    except StorageError:  # the second sync fails in turn
        expected = await told(store)
    after = FileStore(disk.after_power_cut(place) / "store")
    try:
        assert await told(after) == expected
        brought = BLOBS[: expected[0][0].seq - 1] if expected[0][0] is not None else ()
        assert {blob.digest for blob in brought} <= (
            await after.blobs(RUN, [one.digest for one in BLOBS])
        ).keys()
    finally:
        await after.close()


async def play_all(folder: Path, patch: pytest.MonkeyPatch, first: int = 1) -> int:
    """Let each sync from the ``first`` on fail, all that is lost by it but for some; how many there are.

    Every third time the one behind it fails as well, by which a line that failed was to be taken back.
    """
    patch.setattr(run_file, "_MANY", 2)
    patch.setattr(run_file, "_WASTE", 0)
    number = first - 1
    while True:
        number += 1
        (place := folder / str(number) / "disk").mkdir(parents=True)
        with patch.context() as patched:
            disk = SyncedOnly(place, patched, number, keeps=number % 7 == 0, times=1 + (number % 3 == 0))
            await play(disk, place.parent, anew=number % 2 == 1)
        if not disk.failed:
            return number - 1


async def test_every_sync_fails_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await play_all(tmp_path, monkeypatch) > 25


def sure_of(part: str) -> Callable[[Disk, Path], bool]:
    """Disk.has_unsynced_names, which does not notice that a sync failed in a part of the store."""
    genuine = Disk.has_unsynced_names
    return lambda disk, folder: part not in (folder.name, folder.parent.name) and genuine(disk, folder)


def forget_to_take_back(lines: LineFile, held: HeldLock, *_: object) -> None:
    """Leave the line where it is, for the next one to find."""


PLANTED = {
    "a line stays": (LineFile, "_take_back", forget_to_take_back),
    "a doubt is not told": (HeldLock, "write_doubt", HeldLock.write_mark),
    "a marker is believed": (Disk, "has_unsynced_names", sure_of("store")),
    "a blob is believed": (Disk, "has_unsynced_names", sure_of("blobs")),
}


@pytest.mark.parametrize("bug", PLANTED)
async def test_what_is_believed_after_a_failure_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    monkeypatch.setattr(*PLANTED[bug])
    with pytest.raises((AssertionError, StorageError)):
        await play_all(tmp_path, monkeypatch)


async def test_large_blobs_beside_a_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever brings one again that lies there, though a sync failed, does not rely on that."""
    (place := tmp_path / "disk").mkdir()
    for fails in range(1, 12):
        with monkeypatch.context() as patch:
            disk = SyncedOnly(place, patch, fails)
            for _ in range(2):
                with suppress(OSError):
                    BlobFiles(place / str(fails), "").write(RUN, BLOBS)
        kept = disk.after_power_cut(tmp_path / str(fails)) / str(fails)
        disk.close()
        assert BlobFiles(kept, "").list_sizes(RUN) == {blob.digest: len(blob.data) for blob in BLOBS}, (
            disk.failed
        )
    assert not disk.failed


async def test_a_run_that_is_told_to_be_completed_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever sync fails: what ``run`` gives is on the disk, and what fails can be resumed, at once or later."""
    for fails in count(1):
        (place := tmp_path / str(fails) / "disk").mkdir(parents=True)
        with monkeypatch.context() as patch:
            disk = SyncedOnly(place, patch, fails)
            storage = FileCheckpointStorage(place / "store")
            try:
                with suppress(StorageError):
                    await counting().run(2, run_id="r", storage=storage)
                if not await storage.list_runs():
                    await counting().run(2, run_id="r", storage=storage)
                run = await counting().resume(run_id="r", storage=storage)
                assert (await run.wait_for_completion()).outputs == counted(2)
            finally:
                await storage.close()
        kept = disk.after_power_cut(place.parent / "kept")
        disk.close()
        async with FileCheckpointStorage(kept / "store") as storage:
            (info,) = await storage.list_runs()
            assert info.status is RunStatus.COMPLETED
            await assert_sound(storage)
        if not disk.failed:
            break
    assert fails > 15
