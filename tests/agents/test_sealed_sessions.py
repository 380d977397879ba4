"""Session stores under keys keep what was said from those who read them, and refuse what others wrote there."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import CheckpointUntrusted, InvalidArgument, Keyring
from holdfast.agents import (
    AgentMessage,
    JsonSessionStore,
    SessionEntry,
    SessionStore,
    SqliteSessionStore,
    append_messages,
    read_messages,
)
from holdfast.agents.sessions import sealed_entries
from holdfast.testing import SessionStoreConformance
from holdfast.testing.session_suite import ReopenSessions

KEYS = Keyring.generate()
MAKERS: dict[str, Callable[..., JsonSessionStore | SqliteSessionStore]] = {
    "json": lambda folder, keys=None: JsonSessionStore(folder / "sessions", keys=keys),
    "sqlite": lambda folder, keys=None: SqliteSessionStore(folder / "sessions.db", keys=keys),
}


class TestJsonUnderKeys(SessionStoreConformance):
    kind = "json"

    @pytest.fixture
    def store(self, tmp_path: Path) -> SessionStore:
        return MAKERS[self.kind](tmp_path, KEYS)

    @pytest.fixture
    def reopen(self, tmp_path: Path) -> ReopenSessions:
        return lambda: MAKERS[self.kind](tmp_path, KEYS)


class TestSqliteUnderKeys(TestJsonUnderKeys):
    kind = "sqlite"


async def say(store: SessionStore, session: str = "kim", text: str = "walnut-message") -> None:
    await append_messages(store, session, [AgentMessage("user", text)], key=f"{session}-1")


def content_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("kind", MAKERS)
async def test_nothing_that_was_said_stands_in_a_file(kind: str, tmp_path: Path) -> None:
    for name, keys in (("plain", None), ("keyed", KEYS)):
        (tmp_path / name).mkdir()
        await say(MAKERS[kind](tmp_path / name, keys))
        assert (b"walnut-message" in content_of(tmp_path / name)) == (keys is None)


@pytest.mark.parametrize("kind", MAKERS)
async def test_other_keys_no_keys_and_plain_stores_are_refused(kind: str, tmp_path: Path) -> None:
    await say(MAKERS[kind](tmp_path, KEYS))
    for keys, text in ((Keyring.generate(), KEYS.key_ids[0]), (None, "is under keys, and none were given")):
        with pytest.raises(CheckpointUntrusted, match=text):
            await read_messages(MAKERS[kind](tmp_path, keys), "kim")
    (plain := tmp_path / "plain").mkdir()
    await say(MAKERS[kind](plain))
    with pytest.raises(CheckpointUntrusted, match="no keys of its own"):
        await read_messages(MAKERS[kind](plain, KEYS), "kim")
    with pytest.raises(CheckpointUntrusted, match="no keys of its own"):
        await say(MAKERS[kind](plain, KEYS), "bo")


@pytest.mark.parametrize("kind", MAKERS)
async def test_a_rekeyed_session_store_needs_only_the_new_key(kind: str, tmp_path: Path) -> None:
    store, other, rotated = MAKERS[kind](tmp_path, KEYS), MAKERS[kind](tmp_path, KEYS.rotate()), KEYS.rotate()
    await say(store)
    await say(other, "bo")
    await store.rekey(rotated)
    await say(store, "lee")
    newest = MAKERS[kind](tmp_path, rotated.only_newest())
    assert await newest.sessions() == ["bo", "kim", "lee"]
    assert [message.text for message in await read_messages(newest, "kim")] == ["walnut-message"]
    assert [message.text for message in await read_messages(newest, "lee")] == ["walnut-message"]
    with pytest.raises(CheckpointUntrusted, match="is under the key"):
        await read_messages(other, "lee")
    with pytest.raises(InvalidArgument, match="opened without keys="):
        await MAKERS[kind](tmp_path).rekey(rotated)


@pytest.mark.parametrize("kind", MAKERS)
async def test_two_who_rekey_a_session_store_at_once_lose_nothing(kind: str, tmp_path: Path) -> None:
    rotated = KEYS.rotate()
    stores = [MAKERS[kind](tmp_path, rotated) for _ in range(4)]
    await say(stores[0])
    await asyncio.gather(*(store.rekey(rotated) for store in stores))
    for number, store in enumerate(stores):
        await say(store, f"after-{number}")
    newest = MAKERS[kind](tmp_path, rotated.only_newest())
    for name in ("kim", *(f"after-{number}" for number in range(4))):
        assert [message.text for message in await read_messages(newest, name)] == ["walnut-message"]
    boxes = await MAKERS[kind](tmp_path).entries("holdfast:keys")
    assert [box.entry_id for box in boxes] == [f"box-{number}" for number in range(1, 6)]


async def test_a_rekey_ends_where_key_boxes_were_cut_off(tmp_path: Path) -> None:
    rotated = KEYS.rotate()
    store = MAKERS["sqlite"](tmp_path, rotated)
    await say(store)
    await store.rekey(rotated)
    with closing(sqlite3.connect(tmp_path / "sessions.db")) as database, database:
        database.execute("UPDATE threads SET tip = 'box-1' WHERE session = 'holdfast:keys'")
        assert database.total_changes == 1
    with pytest.raises(CheckpointUntrusted, match="has 1 of its 2 key boxes"):
        await asyncio.wait_for(MAKERS["sqlite"](tmp_path, rotated).rekey(rotated), 20)


ATTACKS = {
    "a plain entry": """UPDATE entries SET body = replace(body, 'holdfast:sealed:', 'hello ')""",
    "an entry of another session": (
        "UPDATE entries SET body = replace(replace((SELECT body FROM entries WHERE session = 'bo'), "
        "'\"bo\"', '\"kim\"'), 'bo-1', 'kim-1') WHERE session = 'kim'"
    ),
    "another run": """UPDATE entries SET body = replace(body, '"run": ""', '"run": "r9"')""",
    "another time": """UPDATE entries SET body = replace(body, '"time": "20', '"time": "19')""",
}


async def attacked(tmp_path: Path, attack: str) -> list[str]:
    store = MAKERS["sqlite"](tmp_path, KEYS)
    await say(store)
    await say(store, "bo", "walnut of bo")
    with closing(sqlite3.connect(tmp_path / "sessions.db")) as database:
        before = database.total_changes
        database.execute(f"{attack} {'AND' if 'WHERE' in attack else 'WHERE'} session != 'holdfast:keys'")
        assert database.total_changes > before
        database.commit()
    return [message.text for message in await read_messages(MAKERS["sqlite"](tmp_path, KEYS), "kim")]


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
async def test_forged_entries_are_refused(attack: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointUntrusted, match=r"entry 'kim-1' of session 'kim' is refused"):
        await attacked(tmp_path, attack)


async def test_seals_that_say_nothing_of_what_stands_beside_are_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealed_entries, "_plain_part", lambda entry: ())
    assert await attacked(tmp_path, ATTACKS["another run"]) == ["walnut-message"]


@pytest.mark.parametrize("kind", MAKERS)
async def test_many_begin_one_session_store_under_keys(kind: str, tmp_path: Path) -> None:
    stores = [MAKERS[kind](tmp_path, KEYS) for _ in range(8)]
    await asyncio.gather(*(say(store, f"s{number}") for number, store in enumerate(stores)))
    for number in range(8):
        assert len(await read_messages(MAKERS[kind](tmp_path, KEYS), f"s{number}")) == 1


@pytest.mark.parametrize("kind", MAKERS)
async def test_a_store_is_begun_while_another_process_says_something(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    early, late = MAKERS[kind](tmp_path, KEYS), MAKERS[kind](tmp_path, KEYS)
    entries = type(late).entries

    async def look_too_early(
        self: SessionStore, session: str, thread: str = "main", *, upto: str | None = None
    ) -> list[SessionEntry]:
        # There are no keys yet; right after this look the other process makes them, and stages an entry.
        monkeypatch.setattr(type(late), "entries", entries)
        await early.stage(SessionEntry("kim", "main", "kim-1", (AgentMessage("user", "walnut-message"),)))
        return []

    monkeypatch.setattr(type(late), "entries", look_too_early)
    await say(late, "bo")
    await early.publish("kim", "kim-1")
    for session in ("kim", "bo"):
        assert [message.text for message in await read_messages(late, session)] == ["walnut-message"]
