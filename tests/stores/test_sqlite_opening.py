"""SqliteStore: what may lie at its path, and what it says of everything else."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from holdfast import InMemoryCheckpointStorage, SqliteCheckpointStorage, WorkflowBuilder
from holdfast.checkpoint.store import Depth, Letter
from holdfast.errors import InvalidArgument, StorageError
from holdfast.ids import RunId
from holdfast.stores.sqlite import SqliteStore
from tests.stores.sqlite_programs import execute, finish, start
from tests.support.store_parts import ANYTHING, LARGE, begin, first_commit, sample_blob, sample_head


def refusal(path: Path) -> str:
    """Return the message with which every method refuses the path; the file and its folder must not change."""
    before = path.read_bytes() if path.is_file() else None
    messages = asyncio.run(_refusals(path))
    assert len(messages) == 1
    if path.is_dir():
        assert list(path.iterdir()) == []
    if before is not None:
        assert path.read_bytes() == before
        assert [file.name for file in path.parent.iterdir()] == [path.name]
    return messages.pop()


async def _refusals(path: Path) -> set[str]:
    store = SqliteStore(path, big_blob=100)
    uses: list[Awaitable[object]] = [
        store.open(),
        store.head(RunId("r")),
        store.commit(first_commit("r")),
        store.commit(first_commit("r", [sample_blob(LARGE)])),
        store.notes(RunId("r")),
        store.inbox(RunId("r")),
        store.leave(RunId("r"), 1, [Letter("k", b"")]),
        store.join(),
        store.living(["host:1:1"]),
    ]
    messages = set()
    for use in uses:
        with pytest.raises(StorageError) as caught:
            await use
        messages.add(str(caught.value))
    await store.close()
    return messages


def make_store(path: Path) -> None:
    async def make() -> None:
        store = SqliteStore(path)
        await begin(store, "r")
        await store.close()

    asyncio.run(make())


@pytest.mark.parametrize("name", [":memory:", ""])
def test_a_store_in_memory_is_another_class(name: str) -> None:
    """The class that is named is one that workflows take."""
    for make in (SqliteStore, SqliteCheckpointStorage):
        with pytest.raises(InvalidArgument, match=r"in memory take InMemoryCheckpointStorage\(\)$"):
            make(name)
    WorkflowBuilder().with_checkpointing(InMemoryCheckpointStorage())


def _damaged(*statements: str) -> Callable[[Path], object]:
    """Make a store, and change it by statements."""

    def make(path: Path) -> None:
        make_store(path)
        execute(path, *statements)

    return make


_NO_META = ["what it says of itself (table 'meta') is missing or unreadable"]
REFUSED: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "a file that is no database": (
        lambda path: path.write_text("Dear diary, " * 200),
        [
            "opening {path} failed: this is not a SQLite database; nothing was changed",
            "Give the store another path",
        ],
    ),
    "a database of another program": (
        lambda path: execute(path, "CREATE TABLE customers (name)", "CREATE TABLE orders (id)"),
        [
            "{path} is a database of another program (it has the table 'customers', 'orders')",
            "Give the store another path",
        ],
    ),
    "a database with the mark of another program": (
        lambda path: execute(path, "PRAGMA application_id = 17"),
        ["is a database of another program;"],
    ),
    "a later format": (
        _damaged("PRAGMA user_version = 2"),
        ["is a store of format 2, but this version of Holdfast reads format 1", "a newer version"],
    ),
    "an earlier format": (
        _damaged("PRAGMA user_version = 0"),
        ["is a store of format 0, but this version of Holdfast reads format 1", "an older version"],
    ),
    "unknown features": (
        _damaged("""UPDATE meta SET value = '["teleport", "encryption"]' WHERE key = 'features'"""),
        ["needs what this version of Holdfast does not know: encryption, teleport; nothing was changed"],
    ),
    "no table meta": (_damaged("DROP TABLE meta"), _NO_META),
    "an empty table meta": (_damaged("DELETE FROM meta"), _NO_META),
    "a damaged table meta": (_damaged("UPDATE meta SET value = 'x'"), _NO_META),
    "features that are nested too deeply": (
        _damaged(f"UPDATE meta SET value = '{'[' * 100_000}' WHERE key = 'features'"),
        _NO_META,
    ),
    "an id of the store that is no text": (
        _damaged("UPDATE meta SET value = CAST(value AS BLOB) WHERE key = 'store_id'"),
        _NO_META,
    ),
    "a folder": (lambda path: path.mkdir(), ["{path} is a folder, not a file; name a file"]),
}


@pytest.mark.parametrize("found", REFUSED)
def test_a_path_is_refused_readably(found: str, database: Path) -> None:
    make, texts = REFUSED[found]
    make(database)
    message = refusal(database)
    for text in texts:
        assert text.format(path=repr(str(database))) in message


def test_an_empty_file_becomes_a_store(database: Path) -> None:
    database.touch()
    make_store(database)
    assert execute(database, "SELECT count(*) FROM checkpoints") == [(1,)]


def test_another_minor_format_is_read(database: Path) -> None:
    make_store(database)
    execute(database, "UPDATE meta SET value = '7' WHERE key = 'format_minor'")

    async def look() -> None:
        store = SqliteStore(database)
        assert (await store.open()).minor == 7
        assert await store.head(RunId("r")) == sample_head("r")
        await store.close()

    asyncio.run(look())


def test_a_file_where_its_folder_should_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    message = refusal(tmp_path / "file" / "runs.db")
    assert "a part of the path is a file, where a folder is needed" in message
    assert str(tmp_path / "file") in message


def test_missing_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "runs.db"
    make_store(path)
    assert path.is_file()


def test_a_relative_path_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = SqliteStore("runs.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    asyncio.run(store.open())
    asyncio.run(store.close())
    assert (tmp_path / "runs.db").is_file()


def test_a_folder_without_rights_is_refused(public_folder: Path) -> None:
    public_folder.chmod(0o555)
    message = finish(start("refused", public_folder / "runs.db"))
    assert "it cannot be opened. Give this user access to the file and write access to its folder" in message
    assert list(public_folder.iterdir()) == []


def test_a_read_only_file_is_refused(public_folder: Path) -> None:
    path = public_folder / "runs.db"
    make_store(path)
    path.chmod(0o444)
    before = path.read_bytes()
    message = finish(start("refused", path))
    assert f"{str(path)!r} cannot be read and written by this user; give it access" in message
    assert path.read_bytes() == before


def test_a_folder_without_room_for_the_log_is_refused(public_folder: Path) -> None:
    path = public_folder / "runs.db"
    make_store(path)
    path.chmod(0o666)
    public_folder.chmod(0o555)
    message = finish(start("refused", path))
    assert "it cannot be written. Give this user write access to the file and its folder" in message


def test_a_damaged_database_is_told(database: Path) -> None:
    make_store(database)
    content = database.read_bytes()
    database.write_bytes(content[: 2048 * 2] + b"\xaa" * (len(content) - 2048 * 2))

    async def look() -> None:
        store = SqliteStore(database)
        with pytest.raises(StorageError, match=r"the database is damaged. Restore it from a backup"):
            await store.records(RunId("r"), *ANYTHING, Depth.ALL)
        await store.close()

    asyncio.run(look())


@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
async def test_a_file_that_is_gone_is_noticed(store: SqliteStore, database: Path, replaced: bool) -> None:
    """Writes to a file without a name are lost, so they must fail."""
    head = await begin(store, "r")
    assert await store.head(RunId("r")) == head
    aside = database.with_name("aside.db")
    os.rename(database, aside)
    if replaced:
        other = SqliteStore(database)
        await begin(other, "other")
        await other.close()
    for use in (store.head(RunId("r")), store.commit(first_commit("s")), store.open()):
        with pytest.raises(StorageError, match="was removed or replaced while it was in use"):
            await use
    if not replaced:  # the other one has taken the log that belongs to it
        os.rename(aside, database)
        assert await store.head(RunId("r")) == head
