"""Whoever can write a session store makes nobody wait for ever, and under keys changes no conversation unseen."""

import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from holdfast import CheckpointUntrusted, HoldfastError, InvalidArgument, Keyring
from holdfast.agents import AgentMessage, SessionEntry, SessionStore, append_messages
from holdfast.agents.sessions import sealed_entries
from holdfast.errors import StorageError, StoreDamaged
from tests.agents.session_attacks import (
    ATTACKS,
    KEYS,
    MAKERS,
    SAID,
    change_lines,
    change_rows,
    fill,
    read,
    set_tip,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("keyed", [[], ["keyed"]], ids=["plain", "keyed"])
@pytest.mark.parametrize("kind", MAKERS)
def test_a_conversation_that_leads_back_to_itself_is_refused(
    kind: str, keyed: list[str], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.agents.session_attacks", kind, str(tmp_path), *keyed]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    found = json.loads(done.stdout)
    assert len(found) == 8
    for use, error in found.items():
        assert error.startswith("CheckpointCorrupt: session 'kim' is damaged"), (use, error)


DEEP = b"[" * 100_000
ENTRY = (
    '{"format": 1, "id": "k0", "after": null, "time": "2026-11-18T10:00:00+00:00", "session": "kim", "thread": "main", '
    '"run": "", "family": "", "executor": "", "agent": "", "messages": []}'
)
NO_ENTRIES = {
    "deep": DEEP.decode(),
    "deep messages": ENTRY.replace("[]", DEEP.decode()),
    "a number": "5",
    "a list before it": ENTRY.replace('"after": null', '"after": ["k1"]'),
    "no time zone": ENTRY.replace("+00:00", ""),
    "a text of a message is a number": ENTRY.replace("[]", '[{"role": "user", "text": 5}]'),
    "a message is a number": ENTRY.replace("[]", "[5]"),
    "a list in place of a run": ENTRY.replace('"run": ""', '"run": []'),
    "context": ENTRY.replace('"messages"', '"context": 5, "messages"'),
    "history": ENTRY.replace(
        '"messages"', '"history": {"adapter": "", "version": 1, "whole": true, "messages": []}, "messages"'
    ),
}


@pytest.mark.parametrize("entry", NO_ENTRIES.values(), ids=NO_ENTRIES)
async def test_what_is_no_entry_is_refused(entry: str, tmp_path: Path) -> None:
    for kind, make in MAKERS.items():
        await fill(make(tmp_path))
        if kind == "json":
            path = tmp_path / "sessions/sessions/kim/main.jsonl"
            lines = path.read_text().splitlines()
            for number in (0, 1, 4):
                changed = [*lines[:number], entry, *lines[number + 1 :]]
                path.write_text("".join(line + "\n" for line in changed))
                assert "main.jsonl" in str(await read(make(tmp_path)))
        else:
            change_rows(tmp_path, f"UPDATE entries SET body = '{entry}' WHERE entry = 'k0'")
            assert "no session entry" in str(await read(make(tmp_path)))


async def test_an_entry_in_another_place_is_refused(tmp_path: Path) -> None:
    for keys in (None, KEYS):
        folder = tmp_path / str(keys is None)
        folder.mkdir()
        for make in MAKERS.values():
            await fill(make(folder, keys))
        of_bo = "SELECT body FROM entries WHERE session = 'bo'"
        change_rows(folder, f"UPDATE entries SET body = ({of_bo}) WHERE session = 'kim' AND entry = 'k0'")
        sessions = folder / "sessions" / "sessions"
        stolen = (sessions / "bo/main.jsonl").read_text().splitlines()[1]
        change_lines(folder, lambda lines: lines.__setitem__(1, json.loads(stolen)))  # noqa: B023
        for make in MAKERS.values():
            assert "session 'kim' is damaged" in str(await read(make(folder, keys)))
        (sessions / "kim/main.jsonl").write_text((sessions / "bo/main.jsonl").read_text())
        assert "belongs elsewhere" in str(await read(MAKERS["json"](folder, keys)))
        (sessions / "kim/main.jsonl").unlink()
        (sessions / "kim/side.jsonl").rename(sessions / "kim/main.jsonl")
        assert "belongs elsewhere" in str(await read(MAKERS["json"](folder, keys)))
        (sessions / "kim/staged/k4.json").rename(sessions / "bo/k4.json")
        (sessions / "bo/staged").rmdir()
        (sessions / "bo/staged").mkdir()
        (sessions / "bo/k4.json").rename(sessions / "bo/staged/k4.json")
        for session in ("bo", None):
            with pytest.raises(StorageError, match="belongs elsewhere"):
                await MAKERS["json"](folder, keys).staged(session)


async def attacked(kind: str, attack: str, folder: Path, keys: Keyring | None) -> list[str] | HoldfastError:
    await fill(MAKERS[kind](folder, keys))
    assert await read(MAKERS[kind](folder, keys)) == SAID
    ATTACKS[attack][0](kind, folder)
    return await read(MAKERS[kind](folder, keys))


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("kind", MAKERS)
async def test_another_order_of_a_conversation_is_refused(kind: str, attack: str, tmp_path: Path) -> None:
    assert isinstance(await attacked(kind, attack, tmp_path, KEYS), CheckpointUntrusted)


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("kind", MAKERS)
async def test_seals_that_are_bound_to_no_place_are_caught(
    kind: str, attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (plain := tmp_path / "plain").mkdir()
    believed = await attacked(kind, attack, plain, None)
    assert believed == ATTACKS[attack][1]
    monkeypatch.setattr(sealed_entries, "_place", lambda stored: stored.entry.entry_id.encode())
    monkeypatch.setattr(sealed_entries, "_plain_part", lambda entry: ())
    assert await attacked(kind, attack, tmp_path, KEYS) == believed


@pytest.mark.parametrize("kind", MAKERS)
async def test_an_entry_put_elsewhere_is_not_published(kind: str, tmp_path: Path) -> None:
    await fill(MAKERS[kind](tmp_path, KEYS))
    if kind == "sqlite":
        move = "UPDATE entries SET after = 'k0', body = json_set(body, '$.after', 'k0') WHERE entry = 'k4'"
        change_rows(tmp_path, move)
    else:
        staged = tmp_path / "sessions/sessions/kim/staged/k4.json"
        staged.write_text(staged.read_text().replace('"k3"', '"k0"'))
    with pytest.raises(CheckpointUntrusted, match="entry 'k4' of session 'kim' is refused"):
        await MAKERS[kind](tmp_path, KEYS).publish("kim", "k4")
    assert await read(MAKERS[kind](tmp_path, KEYS)) == SAID


@pytest.mark.parametrize("kind", MAKERS)
async def test_the_end_of_a_conversation_can_be_cut(kind: str, tmp_path: Path) -> None:
    """SECURITY.md says that this is not prevented; entries between others cannot be removed."""
    await fill(MAKERS[kind](tmp_path, KEYS))
    set_tip(kind, tmp_path, "k1")
    store = MAKERS[kind](tmp_path, KEYS)
    assert await read(store) == SAID[:2]
    await append_messages(store, "kim", [AgentMessage("user", "later")], key="k9")
    assert await read(store) == [*SAID[:2], "later"]


@pytest.mark.parametrize("kind", MAKERS)
async def test_entries_are_published_after_the_store_was_rekeyed(kind: str, tmp_path: Path) -> None:
    early, late = (MAKERS[kind](tmp_path, KEYS) for _ in range(2))
    await fill(early)
    await late.rekey(KEYS)
    await late.stage(SessionEntry("kim", "main", "k5", (AgentMessage("user", "m5"),), "k4"))
    assert await early.publish("kim", "k5")
    for store in (early, late):
        assert await read(store) == [*SAID, "of a turn that failed", "m5"]


@pytest.mark.parametrize("kind", MAKERS)
async def test_nobody_talks_where_the_keys_are(kind: str, tmp_path: Path) -> None:
    store = MAKERS[kind](tmp_path, KEYS)
    await fill(store)
    with pytest.raises(InvalidArgument, match="holds the keys"):
        await append_messages(store, sealed_entries.KEY_SESSION, [AgentMessage("user", "m")])
    with pytest.raises(InvalidArgument, match="holds the keys"):
        await store.delete(sealed_entries.KEY_SESSION)
    assert await read(MAKERS[kind](tmp_path, KEYS)) == SAID


async def look(store: SessionStore) -> list[list[str]]:
    """Read all of a store; return the conversations that are no beginning of what was said there."""
    wrong = []
    expected = {("kim", "main"): SAID, ("kim", "side"): [*SAID[:2], "aside"], ("bo", "main"): ["of bo"]}
    for (session, thread), whole in expected.items():
        found = await read(store, session, thread)
        if not isinstance(found, HoldfastError) and found != whole[: len(found)]:
            wrong.append(found)
    for ask in (store.sessions, store.staged, lambda: store.threads("kim")):
        with suppress(HoldfastError):
            await ask()
    with suppress(HoldfastError):
        await store.publish("kim", "k4")
    return wrong


async def damage(kind: str, folder: Path, keys: Keyring | None, times: int) -> int:
    """Flip a bit of a store, or cut a file of it, so many times; return how often it showed something else then."""
    whole, place, chance, count = folder / "whole", folder / "place", random.Random(kind), 0
    whole.mkdir()
    await fill(MAKERS[kind](whole, keys))
    files = [path for path in sorted(whole.rglob("*")) if path.is_file() and path.stat().st_size]
    for number in range(times):
        shutil.copytree(whole, place)
        path = place / chance.choice(files).relative_to(whole)
        data = bytearray(path.read_bytes())
        if number % 4:
            filled = [at for at, byte in enumerate(data) if byte]
            data[chance.choice(filled)] ^= 1 << chance.randrange(8)
        else:
            del data[chance.randrange(len(data)) :]
        path.write_bytes(data)
        count += bool(await look(MAKERS[kind](place, keys)))
        shutil.rmtree(place)
    return count


@pytest.mark.parametrize("kind", MAKERS)
async def test_a_changed_session_store_shows_no_other_conversation(kind: str, tmp_path: Path) -> None:
    assert await damage(kind, tmp_path, KEYS, 120) == 0


@pytest.mark.parametrize("kind", MAKERS)
async def test_without_keys_a_changed_session_store_is_believed(kind: str, tmp_path: Path) -> None:
    assert await damage(kind, tmp_path, None, 120) > 0


@pytest.mark.parametrize("thing", ["dangling", "device", "pipe", "folder"])
async def test_no_session_database_is_made_or_read_elsewhere(thing: str, tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    if thing == "pipe":
        os.mkfifo(path)
    elif thing == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if thing == "device" else tmp_path / "elsewhere.db")
    for _ in range(2):
        with pytest.raises(StorageError, match=r"leads nowhere|no regular file|is a folder"):
            await MAKERS["sqlite"](tmp_path).sessions()
    assert os.listdir(tmp_path) == ["sessions.db"]
    path.rmdir() if thing == "folder" else path.unlink()
    (tmp_path / "real").mkdir()
    await fill(MAKERS["sqlite"](tmp_path / "real"))
    path.symlink_to("real/sessions.db")  # the path of a store is its user's
    assert await read(MAKERS["sqlite"](tmp_path)) == SAID


@pytest.mark.parametrize("name", ["sessions", "locks", "temp", "sessions/kim", "sessions/kim/staged"])
async def test_a_link_in_place_of_a_folder_of_sessions(name: str, tmp_path: Path) -> None:
    await fill(MAKERS["json"](tmp_path))
    place, victim = tmp_path / "sessions" / name, tmp_path / "elsewhere"
    place.rename(tmp_path / "taken away")
    shutil.copytree(tmp_path / "taken away", victim)
    (victim / "precious.tmp").write_text("precious")
    place.symlink_to(victim)
    before = {path: path.is_file() and path.read_bytes() for path in victim.rglob("*")}
    store = MAKERS["json"](tmp_path)
    uses: list[Callable[[], Awaitable[object]]] = [
        lambda: store.stage(SessionEntry("kim", "main", "k9", (), "k3")),
        lambda: store.publish("kim", "k4"),
        lambda: store.entries("kim"),
        lambda: store.fork("kim", "other", "k0"),
        lambda: store.staged(),
    ]
    for use in uses:
        with pytest.raises(StorageError, match="a store follows no links"):
            await use()
    with suppress(StorageError):
        await store.delete("kim")
    assert {path: path.is_file() and path.read_bytes() for path in victim.rglob("*")} == before


NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
VIEW = f"""
CREATE VIEW entries AS {NUMBERS} SELECT 'kim' AS session, 'k' || i AS entry, 'main' AS thread, 'k' || (i + 1) AS after,
'' AS run, 1 AS published, '{{}}' AS body FROM n
"""
TRIGGER = f"""
CREATE TRIGGER t AFTER INSERT ON entries
BEGIN INSERT INTO threads {NUMBERS} SELECT 'x', i, NULL, NULL, 0 FROM n; END
"""
DEFINITIONS = {
    "a view that does not end": ("ALTER TABLE entries RENAME TO moved", VIEW),
    "a trigger that does not end": (TRIGGER,),
    "an index": ("CREATE INDEX i ON entries (hex(zeroblob(length(body) * 10)))",),
    "a table of something else": ("DROP TABLE threads", "CREATE TABLE threads (session, thread, tip)"),
    "a trigger in disguise": (
        "CREATE TRIGGER t AFTER INSERT ON entries BEGIN DELETE FROM threads; END",
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET type = 'table' WHERE name = 't'",
    ),
}


@pytest.mark.parametrize("definition", DEFINITIONS)
async def test_tables_of_sessions_are_those_that_were_made(definition: str, tmp_path: Path) -> None:
    await fill(MAKERS["sqlite"](tmp_path))
    with closing(sqlite3.connect(tmp_path / "sessions.db")) as database:
        database.execute("CREATE TABLE of_a_backup_program (x)")
        database.commit()
        assert await read(MAKERS["sqlite"](tmp_path)) == SAID
        for statement in DEFINITIONS[definition]:
            database.execute(statement)
        database.commit()
    for use in (MAKERS["sqlite"](tmp_path).sessions, lambda: fill(MAKERS["sqlite"](tmp_path))):
        with pytest.raises(StoreDamaged):
            await use()


CELLS = (
    "UPDATE threads SET tip = x'6b33' WHERE thread = 'main' AND session = 'kim'",
    "UPDATE threads SET origin = x'ff' WHERE thread = 'side'",
    "UPDATE threads SET count = 'three'",
    "UPDATE threads SET thread = x'ff' WHERE thread = 'side'",
    "UPDATE entries SET session = x'ff' WHERE entry = 'k1'",
    "UPDATE entries SET after = x'6b30' WHERE entry = 'k1'",
    "UPDATE entries SET body = 5",
    "UPDATE entries SET body = CAST(x'fffe' AS TEXT)",
)


@pytest.mark.parametrize("keys", [None, KEYS], ids=["plain", "keyed"])
@pytest.mark.parametrize("cell", CELLS)
async def test_cells_of_other_types_are_no_errors_of_python(
    cell: str, keys: Keyring | None, tmp_path: Path
) -> None:
    await fill(MAKERS["sqlite"](tmp_path, keys))
    change_rows(tmp_path, cell)
    store, refused = MAKERS["sqlite"](tmp_path, keys), 0
    uses: list[Callable[[], Awaitable[object]]] = [
        lambda: store.entries("kim"),
        lambda: store.threads("kim"),
        lambda: store.staged(),
        lambda: store.publish("kim", "k4"),
        lambda: append_messages(store, "kim", [AgentMessage("user", "later")]),
    ]
    for use in uses:
        try:
            await use()
        except HoldfastError:
            refused += 1
    assert refused
    with suppress(HoldfastError):
        assert all(isinstance(name, str) for name in await store.sessions())
