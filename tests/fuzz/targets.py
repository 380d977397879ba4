"""Everything that decodes what lies in a store, in an export, in a session, or among keys: given any bytes.

A target takes bytes and lets through what it must not raise. A *decoder* is called as it is; a *store* target puts the
bytes where an attacker can, with ids and checksums made right for them, and looks at the store in all ways.
"""

import asyncio
import atexit
import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import ormsgpack

from holdfast import (
    CheckpointStorage,
    Codec,
    FileCheckpointStorage,
    HoldfastError,
    InMemoryCheckpointStorage,
    Keyring,
    Retention,
    SqliteCheckpointStorage,
)
from holdfast.agents import AgentMessage, JsonSessionStore, SessionStore, SqliteSessionStore, append_messages
from holdfast.agents.sessions.entry import unpack_entry
from holdfast.checkpoint.format.event_row import unpack_events
from holdfast.checkpoint.store import EventRow, Letter, Note
from holdfast.stores.memory import MemoryStore
from holdfast.workflow import declared_codec
from tests.agents import session_attacks
from tests.golden import workflows
from tests.golden.kinds import KINDS
from tests.stores.keyed_world import KEYS, fill
from tests.support.modules import key_box, line, sealed_items, sealing_cipher
from tests.support.parts import (
    RAW,
    NotATree,
    RunId,
    id_of,
    plain_form,
    plain_of_bytes,
    unpack_changes,
    value_of_plain,
)
from tests.support.tampered import see
from tests.support.tampered_items import copy_store

Target = Callable[[bytes], object]


class Fuzzed(NamedTuple):
    """A target with the errors that it may raise, and bytes to begin with."""

    call: Target
    may_raise: tuple[type[Exception], ...]
    seeds: Callable[[], list[bytes]]


@cache
def loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all store targets."""
    return asyncio.new_event_loop()


FOLDER = "HOLDFAST_FUZZ_FOLDER"
"""The variable with the folder for a process that atheris ends, which cleans up nothing."""


def in_memory() -> str | None:
    """Return a folder in which no file waits for a disk, if there is one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


@cache
def folder() -> Path:
    """Return the folder in which all store targets have their files."""
    made = tempfile.mkdtemp(prefix="holdfast-fuzz-", dir=os.environ.get(FOLDER) or in_memory())
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


# Decoders.


@cache
def codec() -> Codec:
    return declared_codec(workflows.kinds().graph)


def decode_value(data: bytes) -> None:
    codec().decode(data)


def decode_form(data: bytes) -> None:
    codec().decode_form(data)


def decode_tree(data: bytes) -> None:
    with suppress(NotATree):
        value_of_plain(plain_of_bytes(data))


def decode_stored(data: bytes) -> None:
    if len(plain_form(data)) > 1 << 31:
        raise AssertionError("too large")


def decode_changes(data: bytes) -> None:
    unpack_changes(data[1 : 1 + 4 * data[0]], data[1 + 4 * data[0] :]) if data else None


def decode_events(data: bytes) -> None:
    unpack_events(RunId("r"), "Workflow", data)


def decode_line(data: bytes) -> None:
    body = line.decode_body(data)
    line.decode_event_rows(body)
    for letter in body["letters"]:
        line.decode_keyed(letter)


def decode_json(data: bytes) -> None:
    value_of_plain(json.loads(data))


def decode_keyring(data: bytes) -> None:
    Keyring.from_text(data.decode("utf-8", "replace"))


def decode_key_box(data: bytes) -> None:
    key_box.open_box(data.decode("latin-1"), KEYS, "store", "the store")


@cache
def cipher() -> sealing_cipher.StoreCipher:
    return sealing_cipher.StoreCipher(key_box.new_store_keys(), "store", "")


def decode_sealed(data: bytes) -> None:
    for open_piece in (cipher().run("r").open, cipher().family("r").open):
        with suppress(sealing_cipher.NotSealed):
            open_piece(b"place", data)
            raise AssertionError("a forged piece was opened")
    text = data.decode("latin-1")
    sealed_items.open_tag(cipher().run("r"), bytes(12), 1, text)
    with suppress(sealing_cipher.NotSealed):
        sealing_cipher.decode_piece(text)


def decode_session(data: bytes) -> None:
    unpack_entry(data)


def decode_retention(data: bytes) -> None:
    Retention.of_text(data.decode("utf-8", "replace"))


# Stores.


RUNS = ("first", "failed")


@cache
def plain_world() -> MemoryStore:
    """Return a store without keys that has one of everything."""
    storage = InMemoryCheckpointStorage()
    loop().run_until_complete(fill(storage, RUNS[:1]))
    assert isinstance(storage.store, MemoryStore)
    return storage.store


async def look(storage: CheckpointStorage) -> None:
    """Read a store in all ways; nothing that is wrong with it may be another error than one of Holdfast."""
    await see(storage, RUNS)
    for ask in (storage.verify, storage.list_requests, storage.statistics):
        with suppress(HoldfastError):
            await ask()
    for run in RUNS:
        with suppress(HoldfastError):
            await storage.watch(run).__anext__()


PARTS = ("header", "changes", "values", "note", "letter", "event", "blob")


def look_at_items(data: bytes) -> None:
    """Put the bytes into an item, with an id that is right for them, as who writes a store without keys can."""
    if len(data) < 2:
        return
    store, part, content = copy_store(plain_world()), PARTS[data[0] % len(PARTS)], data[2:]
    run = RunId(RUNS[data[1] % 2])
    if part == "note":
        store._notes[run] = {"note": Note("note", content)}
    elif part == "letter":
        store._letters[run] = {"letter": Letter("letter", content)}
    elif part == "event":
        store._events[run] = [EventRow(1, content)]
    elif part == "blob":
        for place in [place for place in store._blobs if place[0] == run]:
            store._blobs[place] = content
    else:
        _replace_part(store, run, part, content)
    loop().run_until_complete(look(CheckpointStorage(store)))


def _replace_part(store: MemoryStore, run: RunId, part: str, content: bytes) -> None:
    head = store._heads[run]
    record = store._records[run, head.seq]
    changed: dict[str, Any] = {part: content if part == "header" else RAW + content}
    record = record._replace(**changed)
    made = id_of(record.header, plain_form(record.changes), plain_form(record.values))
    store._records[run, head.seq] = record._replace(checkpoint_id=made)
    store._places[made] = run, head.seq
    store._heads[run] = head._replace(checkpoint_id=made)


def seeds_of_items() -> list[bytes]:
    store, seeds = plain_world(), []
    for number, run in enumerate(RUNS):
        record = store._records[RunId(run), store._heads[RunId(run)].seq]
        contents = {
            "header": record.header,
            "changes": plain_form(record.changes),
            "values": plain_form(record.values),
        }
        for note in store._notes.get(RunId(run), {}).values():
            contents["note"] = note.data
        for letter in store._letters.get(RunId(run), {}).values():
            contents["letter"] = b"" if letter is None else letter.data
        contents["event"] = store._events[RunId(run)][-1].data
        seeds += [bytes((PARTS.index(name), number)) + content for name, content in contents.items()]
    return seeds


@cache
def file_world() -> dict[str, bytes]:
    """Return the files of a file store without keys, by their paths."""
    with tempfile.TemporaryDirectory() as made:

        async def make() -> None:
            async with FileCheckpointStorage(Path(made) / "store") as storage:
                await fill(storage, RUNS[:1])

        loop().run_until_complete(make())
        root = Path(made)
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def look_at_lines(data: bytes) -> None:
    """Put the bytes into a line of a run's file, in place of one and behind all, with checksums that are right."""
    place = folder() / "lines"
    _write(place, file_world())
    path = place / "store" / "runs" / "first.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    number = data[0] % (len(lines) + 1) if data else 0
    texts = [one[one.index(b',"kind"') + 1 : -1] for one in lines]
    texts[number : number + 1] = [data[1:].replace(b"\n", b" ")]
    offset, file_id, written = 0, "", b""
    for text in texts:
        summed = b'"at":%d,%s' % (offset, text)
        written += b'{"sum":"%s",%s\n' % (line._sum_of(file_id, summed), summed)
        with suppress(ValueError, KeyError, TypeError):
            file_id = file_id or str(json.loads(b"{" + summed)["file"])
        offset = len(written)
    path.write_bytes(written)

    async def read() -> None:
        storage = FileCheckpointStorage(place / "store")
        try:
            await look(storage)
        finally:
            await storage.close()

    loop().run_until_complete(read())
    shutil.rmtree(place)


def seeds_of_lines() -> list[bytes]:
    lines = file_world()["store/runs/first.jsonl"].splitlines()
    return [bytes((number,)) + one[one.index(b',"kind"') + 1 :] for number, one in enumerate(lines)]


def look_at_files(data: bytes) -> None:
    """Put the bytes in place of a file of a file store."""
    place, files = folder() / "files", dict(file_world())
    name = sorted(files)[data[0] % len(files)] if data else "store/store.json"
    _write(place, {**files, name: data[1:]})

    async def read() -> None:
        storage = FileCheckpointStorage(place / "store")
        try:
            await look(storage)
        finally:
            with suppress(HoldfastError):
                await storage.close()

    loop().run_until_complete(read())
    shutil.rmtree(place)


def seeds_of_files() -> list[bytes]:
    files = file_world()
    return [bytes((number,)) + files[name] for number, name in enumerate(sorted(files))]


def _write(place: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)


@cache
def database_world() -> bytes:
    with tempfile.TemporaryDirectory() as made:

        async def make() -> None:
            async with SqliteCheckpointStorage(Path(made) / "runs.db") as storage:
                await fill(storage, RUNS[:1])

        loop().run_until_complete(make())
        return (Path(made) / "runs.db").read_bytes()


@cache
def columns(content: bytes) -> list[tuple[str, str]]:
    place = folder() / "columns.db"
    place.write_bytes(content)
    with closing(sqlite3.connect(place)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return [
            (table, row[1])
            for table in sorted(tables)
            if not table.startswith("sqlite_")
            for row in database.execute(f"PRAGMA table_info({table})")
        ]


KINDS_OF_CELLS: tuple[Callable[[bytes], Any], ...] = (
    bytes,
    lambda data: data.decode("utf-8", "replace"),
    lambda data: int.from_bytes(data[:8], "big", signed=True),
    lambda data: None,
    lambda data: float(len(data)),
)


def look_at_cells(data: bytes) -> None:
    """Put the bytes into a cell of a database, as one of the types that SQLite knows."""
    if len(data) < 3:
        return
    place = folder() / "runs.db"
    put_into_cell(place, database_world(), data)

    async def read() -> None:
        storage = SqliteCheckpointStorage(place)
        try:
            await look(storage)
        finally:
            with suppress(HoldfastError):
                await storage.close()

    loop().run_until_complete(read())
    for name in ("runs.db", "runs.db-wal", "runs.db-shm"):
        (folder() / name).unlink(missing_ok=True)


def put_into_cell(place: Path, content: bytes, data: bytes) -> None:
    """Make a database with the bytes in a cell of it; their first three say in which one, and as what."""
    place.write_bytes(content)
    known = columns(content)
    table, column = known[data[0] % len(known)]
    value = KINDS_OF_CELLS[data[1] % len(KINDS_OF_CELLS)](data[3:])
    # The schema refuses some.
    with (
        closing(sqlite3.connect(place, isolation_level=None)) as database,
        suppress(sqlite3.Error, OverflowError),
    ):
        try:
            rows = [row for (row,) in database.execute(f"SELECT rowid FROM {table}")]
            where = f"rowid = {rows[data[2] % len(rows)]}" if rows else "0"
        except sqlite3.OperationalError:  # a table without such
            where = "1"
        database.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (value,))


def seeds_of_cells() -> list[bytes]:
    return [bytes((column, column % 5, 0)) + b"\x01\x02" for column in range(len(columns(database_world())))]


# Session stores.


async def look_at_sessions(store: SessionStore) -> None:
    """Use a session store in all ways; nothing that is wrong with it may be another error than one of Holdfast."""
    message = AgentMessage("user", "later")
    uses: list[Callable[[], Any]] = [
        store.sessions,
        store.staged,
        lambda: store.threads("kim"),
        lambda: store.entries("kim"),
        lambda: store.entries("kim", "side"),
        lambda: store.entries("kim", upto="k4"),
        lambda: store.publish("kim", "k4"),
        lambda: store.fork("kim", "new", "k0"),
        lambda: append_messages(store, "kim", [message], key="k9"),
        lambda: store.delete("kim"),
    ]
    for use in uses:
        with suppress(HoldfastError):
            await use()


@cache
def session_file_world() -> dict[str, bytes]:
    """Return the files of a session directory, by their paths."""
    with tempfile.TemporaryDirectory() as made:
        loop().run_until_complete(session_attacks.fill(JsonSessionStore(made)))
        root = Path(made)
        return {
            str(path.relative_to(root)): path.read_bytes()
            for path in root.rglob("*")
            if path.is_file() and path.stat().st_size
        }


def look_at_session_files(data: bytes) -> None:
    """Put the bytes in place of a line of a file of a session directory, or of the file."""
    if len(data) < 2:
        return
    place, files = folder() / "sessions", dict(session_file_world())
    name = sorted(files)[data[0] % len(files)]
    lines = files[name].splitlines(keepends=True)
    number = data[1] % (len(lines) + 1)
    end = b"\n" if data[1] < 128 else b""
    changed = b"".join([*lines[:number], data[2:] + end, *lines[number + 1 :]])
    _write(place, {**files, name: changed if number < len(lines) else data[2:]})
    loop().run_until_complete(look_at_sessions(JsonSessionStore(place)))
    shutil.rmtree(place)


def seeds_of_session_files() -> list[bytes]:
    files = session_file_world()
    return [
        bytes((number, place)) + line
        for number, name in enumerate(sorted(files))
        for place, line in enumerate(files[name].splitlines())
    ]


@cache
def session_database_world() -> bytes:
    with tempfile.TemporaryDirectory() as made:
        place = Path(made) / "sessions.db"
        loop().run_until_complete(session_attacks.fill(SqliteSessionStore(place)))
        return place.read_bytes()


def look_at_session_rows(data: bytes) -> None:
    """Put the bytes into a cell of a session database, or anywhere into its file."""
    if len(data) < 4:
        return
    place = folder() / "sessions.db"
    content = session_database_world()
    if data[0] % 4:
        put_into_cell(place, content, data[1:])
    else:
        at = int.from_bytes(data[1:3], "big") % len(content)
        place.write_bytes((content[:at] + data[3:] + content[at + len(data) - 3 :])[: len(content)])
    loop().run_until_complete(look_at_sessions(SqliteSessionStore(place)))
    for name in ("sessions.db", "sessions.db-journal", "sessions.db-wal", "sessions.db-shm"):
        (folder() / name).unlink(missing_ok=True)


def seeds_of_session_rows() -> list[bytes]:
    content = session_database_world()
    seeds = [bytes((1, column, column % 5, 0)) + b"k3" for column in range(len(columns(content)))]
    seeds += [b"\x01" + seed[1:3] + bytes((row,)) + b"k3" for seed in seeds for row in range(4)]
    definitions = content.index(b"CREATE TABLE entries")
    return [*seeds, b"\x00" + definitions.to_bytes(2, "big") + b"CREATE VIEW entries AS"]


@cache
def export_world() -> bytes:
    with tempfile.TemporaryDirectory() as made:

        async def make() -> None:
            storage = InMemoryCheckpointStorage()
            await fill(storage, RUNS[:1])
            await storage.export_run("first", Path(made) / "export")

        loop().run_until_complete(make())
        return (Path(made) / "export").read_bytes()


def look_at_export(data: bytes) -> None:
    """Import the bytes as an exported run."""
    place = folder() / "export"
    place.write_bytes(data)

    async def read() -> None:
        storage = InMemoryCheckpointStorage()
        with suppress(HoldfastError):
            await storage.import_run(place)
        await look(storage)

    loop().run_until_complete(read())


def seeds_of_values() -> list[bytes]:
    return [codec().encode(value) for value in KINDS.values()]


def seeds_of_forms() -> list[bytes]:
    return [codec().encode_form(form, "here") for form in (int, list[str], dict[str, int | None])]


def seeds_of_changes() -> list[bytes]:
    return [b"\x00", *(bytes((0,)) + seed[2:] for seed in seeds_of_items() if seed[0] in (1, 2))]


def seeds_of_events() -> list[bytes]:
    return [row.data for rows in plain_world()._events.values() for row in rows]


def seeds_of_sessions() -> list[bytes]:
    author = '"run":"","family":"","executor":"","agent":""'
    messages = '"messages":[{"role":"user","text":"hello"}]'
    ids = (
        '"format":1,"id":"e1","after":null,"session":"kim","thread":"main","time":"2026-11-18T10:00:00+00:00"'
    )
    return [f"{{{ids},{author},{messages}}}".encode()]


ANY = (Exception,)
"""Of decoders whose callers take any error for damage; what these callers raise, the store targets see."""
TARGETS: dict[str, Fuzzed] = {
    "value": Fuzzed(decode_value, (HoldfastError,), seeds_of_values),
    "form": Fuzzed(decode_form, (HoldfastError,), seeds_of_forms),
    "tree": Fuzzed(decode_tree, (), seeds_of_values),
    "stored": Fuzzed(decode_stored, (ValueError,), lambda: [b"\x00abc", *seeds_of_events()]),
    "changes": Fuzzed(decode_changes, ANY, seeds_of_changes),
    "events": Fuzzed(decode_events, ANY, seeds_of_events),
    "line": Fuzzed(decode_line, ANY, lambda: file_world()["store/runs/first.jsonl"].splitlines()),
    "json": Fuzzed(decode_json, (ValueError, RecursionError), lambda: [b'{"$type":"set","$value":[1]}']),
    "keyring": Fuzzed(decode_keyring, (HoldfastError,), lambda: [KEYS.to_text().encode()]),
    "key-box": Fuzzed(
        decode_key_box,
        (HoldfastError,),
        lambda: [key_box.close_box(key_box.new_store_keys(), KEYS, "store").encode()],
    ),
    "sealed": Fuzzed(decode_sealed, (), lambda: [b"\x03\x00\x01" + bytes(40)]),
    "session": Fuzzed(decode_session, (HoldfastError,), seeds_of_sessions),
    "retention": Fuzzed(decode_retention, ANY, lambda: [Retention.keep_last(3).text().encode()]),
    "items": Fuzzed(look_at_items, (), seeds_of_items),
    "lines": Fuzzed(look_at_lines, (), seeds_of_lines),
    "files": Fuzzed(look_at_files, (), seeds_of_files),
    "cells": Fuzzed(look_at_cells, (), seeds_of_cells),
    "export": Fuzzed(look_at_export, (), lambda: [export_world()]),
    "session-files": Fuzzed(look_at_session_files, (), seeds_of_session_files),
    "session-rows": Fuzzed(look_at_session_rows, (), seeds_of_session_rows),
}
STORES = ("items", "lines", "files", "cells", "export", "session-files", "session-rows")


def all_seeds(name: str) -> Iterator[bytes]:
    """Yield the bytes to begin with."""
    yield from TARGETS[name].seeds()
    yield from (b"", b"\x00", ormsgpack.packb([[]] * 3))
