"""The session stores: each keeps the promises of the port, and its own."""

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.agents import (
    AgentMessage,
    InMemorySessionStore,
    JsonSessionStore,
    SessionStore,
    SqliteSessionStore,
    append_messages,
    read_messages,
)
from holdfast.errors import StorageError
from holdfast.testing import SessionStoreConformance
from holdfast.testing.session_suite import ReopenSessions


class TestInMemorySessionStore(SessionStoreConformance):
    @pytest.fixture
    def store(self) -> SessionStore:
        return InMemorySessionStore()

    @pytest.fixture
    def reopen(self, store: SessionStore) -> ReopenSessions:
        return lambda: store


class TestJsonSessionStore(SessionStoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> SessionStore:
        return JsonSessionStore(tmp_path / "sessions")

    @pytest.fixture
    def reopen(self, tmp_path: Path) -> ReopenSessions:
        return lambda: JsonSessionStore(tmp_path / "sessions")


class TestSqliteSessionStore(SessionStoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> SessionStore:
        return SqliteSessionStore(tmp_path / "sessions.db")

    @pytest.fixture
    def reopen(self, tmp_path: Path) -> ReopenSessions:
        return lambda: SqliteSessionStore(tmp_path / "sessions.db")


async def say(store: SessionStore, *texts: str) -> None:
    for text in texts:
        await append_messages(store, "kim", [AgentMessage("user", text)], key=text)


async def said(store: SessionStore) -> list[str]:
    return [message.text for message in await read_messages(store, "kim")]


async def test_a_thread_is_a_file_of_json_lines(tmp_path: Path) -> None:
    store = JsonSessionStore(tmp_path)
    await say(store, "one", "two")
    lines = (tmp_path / "sessions/kim/main.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == {"format": 1, "session": "kim", "thread": "main", "origin": None}
    assert [json.loads(line)["messages"][0]["text"] for line in lines[1:]] == ["one", "two"]
    assert list((tmp_path / "sessions/kim/staged").iterdir()) == []


@pytest.mark.parametrize("torn", [b'{"format": 1, "id": "half', b"\0" * 40, b"\0" * 40 + b"\n"])
async def test_a_torn_line_is_cut_off(tmp_path: Path, torn: bytes) -> None:
    store = JsonSessionStore(tmp_path)
    await say(store, "one")
    with (tmp_path / "sessions/kim/main.jsonl").open("ab") as file:
        file.write(torn)
    assert await said(store) == ["one"]
    await say(store, "two")
    assert await said(JsonSessionStore(tmp_path)) == ["one", "two"]


async def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    store = JsonSessionStore(tmp_path)
    await say(store, "one", "two")
    path = tmp_path / "sessions/kim/main.jsonl"
    path.write_bytes(path.read_bytes().replace(b'{"format": 1, "id": "one"', b'{"format": 1, "xx": "one"'))
    with pytest.raises(StorageError, match=r"main\.jsonl.*no session entry.*backup"):
        await store.entries("kim")


@pytest.mark.parametrize("number", [0, 1])
async def test_a_line_that_is_nested_too_deeply_is_named(tmp_path: Path, number: int) -> None:
    store = JsonSessionStore(tmp_path)
    await say(store, "one", "two")
    path = tmp_path / "sessions/kim/main.jsonl"
    lines = path.read_bytes().splitlines(True)
    lines[number] = b"[" * 100_000 + b"]" * 100_000 + b"\n"
    path.write_bytes(b"".join(lines))
    with pytest.raises(StorageError, match=r"main\.jsonl.*backup"):
        await store.entries("kim")


async def test_newer_formats_are_refused(tmp_path: Path) -> None:
    store = JsonSessionStore(tmp_path)
    await say(store, "one")
    path = tmp_path / "sessions/kim/main.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'{"format": 1, "id"', b'{"format": 2, "id"'))
    with pytest.raises(StorageError, match=r"format 2.*newer"):
        await store.entries("kim")
    path.write_bytes(whole.replace(b'{"format": 1, "session"', b'{"format": 2, "session"'))
    with pytest.raises(StorageError, match="newer"):
        await store.entries("kim")


async def test_databases_of_others_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE mine (x)")
    database.close()
    with pytest.raises(StorageError, match="database of something else"):
        await SqliteSessionStore(path).sessions()
    path.write_bytes(b"no database at all " * 100)
    with pytest.raises(StorageError, match="not a SQLite database"):
        await SqliteSessionStore(path).sessions()


def content_of(folder: Path) -> dict[str, bytes]:
    return {os.fspath(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_a_deleted_session_is_in_no_file(tmp_path: Path) -> None:
    for store in (JsonSessionStore(tmp_path / "json"), SqliteSessionStore(tmp_path / "s.db")):
        await say(store, "a secret word")
        await append_messages(store, "bo", [AgentMessage("user", "stays")])
        assert await store.delete("kim")
    for path, content in content_of(tmp_path).items():
        assert "kim" not in path.removeprefix(os.fspath(tmp_path))
        assert b"secret" not in content


async def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        await JsonSessionStore(tmp_path / "file").sessions()
    with pytest.raises(StorageError, match="missing"):
        await SqliteSessionStore(tmp_path / "missing" / "s.db").sessions()


WRITER = """
import asyncio, sys
from holdfast.agents import AgentMessage, JsonSessionStore, SqliteSessionStore, append_messages
async def main(kind, path, name):
    store = {"json": JsonSessionStore, "sqlite": SqliteSessionStore}[kind](path)
    for number in range(20):
        await append_messages(store, "kim", [AgentMessage("user", f"{name}{number}")])
asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("kind", ["json", "sqlite"])
def test_two_processes_write_one_thread(kind: str, tmp_path: Path) -> None:
    path = os.fspath(tmp_path / "store")
    command = [sys.executable, "-c", WRITER, kind, path]
    writers = [subprocess.Popen([*command, name], stderr=subprocess.PIPE) for name in "ab"]
    for writer in writers:
        _, errors = writer.communicate(timeout=120)
        assert writer.returncode == 0, errors.decode()
    texts = asyncio.run(said(JsonSessionStore(path) if kind == "json" else SqliteSessionStore(path)))
    for name in "ab":
        assert [text for text in texts if text[0] == name] == [f"{name}{number}" for number in range(20)]
