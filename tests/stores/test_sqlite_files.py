"""SqliteStore: its files, and how much of them is read."""

import asyncio
import errno
import os
import stat
from pathlib import Path

import pytest

from holdfast.checkpoint.store import Commit, Depth, RunQuery
from holdfast.errors import CheckpointCorrupt, StorageError
from holdfast.ids import RunId
from holdfast.stores.sqlite import SqliteStore
from tests.stores.sqlite_programs import execute
from tests.support.store_parts import (
    ANYTHING,
    LARGE,
    begin,
    first_commit,
    move_on,
    read_run,
    sample_blob,
    sample_head,
    sample_record,
)


def modes_below(folder: Path) -> dict[str, int]:
    return {str(file.relative_to(folder)): stat.S_IMODE(file.stat().st_mode) for file in folder.rglob("*")}


async def test_only_this_user_can_read_the_files(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = SqliteStore(tmp_path / "made" / "runs.db")
        await begin(store, "r", [sample_blob(LARGE)])
        await store.join()
    finally:
        os.umask(before)
    modes = modes_below(tmp_path)
    folders = {name for name in modes if (tmp_path / name).is_dir()}
    await store.close()
    assert {
        "made",
        "made/runs.db",
        "made/runs.db-wal",
        "made/runs.db-shm",
        "made/runs.db-blobs",
        "made/runs.db-owners",
    } <= modes.keys()
    assert len(modes) >= 11
    for name, mode in modes.items():
        assert mode == (0o700 if name in folders else 0o600), name


async def test_a_closed_store_is_one_file(database: Path, store: SqliteStore) -> None:
    await begin(store, "r")
    await store.head(RunId("r"))
    assert database.with_name("runs.db-wal").exists()
    await store.close()
    assert [file.name for file in database.parent.iterdir()] == ["runs.db"]


async def test_a_closed_store_says_so(database: Path, store: SqliteStore) -> None:
    await begin(store, "r")
    await store.close()
    with pytest.raises(StorageError, match=r"the store .* is closed; make a new SqliteStore"):
        await store.head(RunId("r"))


async def test_a_store_that_is_closed_in_the_middle_leaves_nobody_waiting(database: Path) -> None:
    for patience in range(8):
        store = SqliteStore(database)
        commits = [first_commit(f"{patience}-{number}", [sample_blob(LARGE, number)]) for number in range(5)]
        tasks = [asyncio.ensure_future(store.commit(commit)) for commit in commits]
        for _ in range(patience):
            await asyncio.sleep(0.002)
        await store.close()
        outcomes = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
        again = SqliteStore(database)
        for commit, outcome in zip(commits, outcomes, strict=True):
            assert outcome == [] or "closed" in str(outcome)
            assert await again.head(commit.head.run_id) == (commit.head if outcome == [] else None)
        await again.close()


async def test_large_blobs_are_files(database: Path) -> None:
    store = SqliteStore(database, big_blob=1000)
    blobs = [sample_blob(b"s" * 999), sample_blob(b"l" * 1000), sample_blob(b"x" * 5000)]
    await begin(store, "The Run", blobs)
    beside = database.with_name("runs.db-blobs")
    files = {
        file.name: file
        for file in beside.rglob("*")
        if file.is_file() and file.name not in (".sweep", ".gate")
    }
    assert files.keys() == {blob.digest.hex() for blob in blobs[1:]}
    assert files[blobs[1].digest.hex()].read_bytes() == blobs[1].data
    assert execute(database, "SELECT size, data IS NULL FROM blobs ORDER BY size") == [
        (999, 0),
        (1000, 1),
        (5000, 1),
    ]
    await store.close()


async def test_a_lost_file_is_told(database: Path, store: SqliteStore) -> None:
    blob = sample_blob(LARGE)
    await begin(store, "r", [blob])
    (file,) = (file for file in database.with_name("runs.db-blobs").rglob(blob.digest.hex()))
    file.write_bytes(LARGE[:-1])
    with pytest.raises(CheckpointCorrupt, match=r"has 307199 bytes, not 307200: restore it from a backup"):
        await store.blobs(RunId("r"), [blob.digest])
    file.unlink()
    with pytest.raises(
        CheckpointCorrupt, match=r"is missing\. A database and its '-blobs' folder belong together"
    ):
        await store.blobs(RunId("r"), [blob.digest])


async def test_a_file_that_a_crash_left_is_used(database: Path, store: SqliteStore) -> None:
    """A crash between writing the file and the transaction leaves the file without its row."""
    blob = sample_blob(LARGE)
    head = await begin(store, "r", [blob])
    execute(database, "DELETE FROM blobs")
    assert await store.blobs(RunId("r"), [blob.digest]) == {}
    await move_on(store, head, [blob])
    assert await store.blobs(RunId("r"), [blob.digest]) == {blob.digest: LARGE}


async def test_a_file_that_cannot_be_written_fails_the_commit(database: Path, store: SqliteStore) -> None:
    database.with_name("runs.db-blobs").write_text("in the way")
    with pytest.raises(StorageError, match=r"writing large values of .*runs.db' failed"):
        await begin(store, "r", [sample_blob(LARGE)])
    assert await read_run(store, "r") == (None, [])
    await begin(store, "r", [sample_blob(b"small")])


async def test_listing_headers_reads_no_values(database: Path, store: SqliteStore) -> None:
    def bytes_read() -> int:
        counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return int(counts["rchar"])

    records = [sample_record("r", seq, values=LARGE, changes=LARGE) for seq in range(1, 41)]
    await store.commit(Commit(sample_head("r", 40), None, tuple(records)))
    await store.close()
    read = {}
    for depth in Depth:
        again = SqliteStore(database)
        await again.open()
        before = bytes_read()
        assert len(await again.records(RunId("r"), *ANYTHING, depth)) == 40
        assert len(await again.runs(RunQuery())) == 1
        read[depth] = bytes_read() - before
        await again.close()
    assert read[Depth.HEADERS] < 40 * 3 * 2048
    assert read[Depth.CHANGES] > 40 * len(LARGE)
    assert read[Depth.ALL] > 2 * 40 * len(LARGE)


class Names:
    """The names below a folder as they are on the disk: those that were there when their folder was synced."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.durable: set[Path] = set()
        self.failing = 0
        """The number of syncs of blob folders that fail; names that were new there never become durable."""
        self._forgotten: set[tuple[Path, int]] = set()
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self.sync)

    def sync(self, handle: int) -> None:
        self._fsync(handle)
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if not path.is_dir() or not path.is_relative_to(self.root):
            return
        found = {(name, name.stat().st_ino) for name in path.iterdir()}
        if self.failing and path.parent.name.startswith("namespace-"):
            self.failing -= 1
            self._forgotten |= {(name, number) for name, number in found if name not in self.durable}
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.durable |= {name for name, number in found - self._forgotten}

    def check(self, file: Path) -> None:
        """Raise unless a power cut leaves the file: its name and those of all folders above it are durable."""
        for name in (file, *file.parents):
            if name == self.root:
                return
            assert name in self.durable, f"a power cut would take {name}"


@pytest.mark.parametrize("before", ["nothing", "a sweep", "a killed process"])
async def test_large_values_and_all_folders_above_them_are_durable_with_their_commit(
    before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "made" / "runs.db"
    if before == "a killed process":
        path.parent.mkdir()
    names = Names(tmp_path, monkeypatch)
    store = SqliteStore(path)
    if before == "a sweep":
        await store.discard(RunId("r"), (await store.mark(RunId("r"))).mark, [])
    await begin(store, "r", [blob := sample_blob(LARGE)])
    (file,) = path.with_name("runs.db-blobs").rglob(blob.digest.hex())
    names.check(file)
    names.check(path.parent)
    await store.close()


async def test_a_large_value_whose_name_could_not_be_synced_is_named_again(
    store: SqliteStore, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = Names(tmp_path, monkeypatch)
    blob = sample_blob(LARGE)
    names.failing = 1
    with pytest.raises(StorageError, match="writing large values of"):
        await begin(store, "r", [blob])
    await begin(store, "r", [blob])
    (file,) = database.with_name("runs.db-blobs").rglob(blob.digest.hex())
    names.check(file)
