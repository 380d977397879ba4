"""Stores of runs and of sessions, plain and under keys, where another user owns them, or nothing can be written."""

import os
import resource
import stat
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from holdfast import FileCheckpointStorage, HoldfastError, Keyring, SqliteCheckpointStorage, StorageError
from holdfast.agents import (
    AgentMessage,
    JsonSessionStore,
    SqliteSessionStore,
    append_messages,
    read_messages,
)
from tests.stores.keyed_world import make_workflow, spell_values
from tests.support.durable import in_child, run_alone
from tests.support.places import forbid_writing

STORAGES = {"sqlite": SqliteCheckpointStorage, "file": FileCheckpointStorage}
SESSIONS: dict[str, type[SqliteSessionStore] | type[JsonSessionStore]] = {
    "sqlite-sessions": SqliteSessionStore,
    "json-sessions": JsonSessionStore,
}
KINDS = (*STORAGES, *SESSIONS)
KEY = Keyring.generate().to_text()
NOBODY = 65534
LITTLE = 64
"""The size in bytes to which files may grow where there is no room."""


async def add(kind: str, path: Path, keys: Keyring | None, name: str) -> None:
    """Store a run, or a session, of this name."""
    if kind in SESSIONS:
        said = [AgentMessage("user", f"said by {name}")]
        await append_messages(SESSIONS[kind](path, keys=keys), name, said, key=name)
        return
    async with STORAGES[kind](path, keys=keys) as storage:
        await make_workflow(storage).run(name, run_id=name)


async def read(kind: str, path: Path, keys: Keyring | None, read_only: bool = False) -> str:
    """Return the names of all that is stored, each only if its content can be read."""
    if kind in SESSIONS:
        store = SESSIONS[kind](path, keys=keys)
        names = await store.sessions()
        assert [(await read_messages(store, name))[0].text for name in names] == [
            f"said by {n}" for n in names
        ]
        return " ".join(sorted(names))
    async with STORAGES[kind](path, keys=keys, read_only=read_only) as storage:
        names = [run.run_id for run in await storage.list_runs()]
        for name in names:
            latest = await storage.get_latest(run_id=name)
            assert latest is not None
            assert "walnut-large" in spell_values(await storage.load(latest, plain=True))
        return " ".join(sorted(names))


def content_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.stat().st_size
    }


def _keys(text: str) -> Keyring | None:
    return Keyring.from_text(text) if text else None


def _warm_up(kind: str, key: str) -> None:
    """Import all modules while this process still may read them."""
    with tempfile.TemporaryDirectory() as made:
        run_alone(add(kind, Path(made) / "store", _keys(key), "warm"))
        run_alone(read(kind, Path(made) / "store", _keys(key)))


def _as_nobody(kind: str, path: str, key: str, doing: str) -> None:
    _warm_up(kind, key)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    _attempt(kind, path, key, doing)


def _without_room(kind: str, path: str, key: str, doing: str) -> None:
    _warm_up(kind, key)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LITTLE, LITTLE))
    _attempt(kind, path, key, doing)


def _attempt(kind: str, path: str, key: str, doing: str) -> None:
    """Print what was read, or the error with which it was refused."""
    work: dict[str, Callable[[], Coroutine[Any, Any, str | None]]] = {
        "read": lambda: read(kind, Path(path), _keys(key)),
        "look": lambda: read(kind, Path(path), _keys(key), read_only=True),
        "add": lambda: add(kind, Path(path), _keys(key), "second"),
    }
    try:
        print(run_alone(work[doing]()))
    except HoldfastError as error:
        print(f"{type(error).__name__}: {error}")


@pytest.fixture(params=["", KEY], ids=["plain", "keyed"])
def key(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("doing", ["read", "add"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_store_of_another_user_is_refused_and_stays(
    kind: str, doing: str, key: str, public_folder: Path
) -> None:
    path = public_folder / "store"
    await add(kind, path, _keys(key), "first")
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    if os.geteuid() != 0:  # then this user cannot become another one
        path.chmod(0)
    before = content_of(public_folder) if os.geteuid() == 0 else {}
    told = in_child(_as_nobody, kind, str(path), key, doing)
    assert told.startswith("StorageError: "), told
    assert str(path) in told
    path.chmod(0o700 if path.is_dir() else 0o600)
    if before:
        assert content_of(public_folder) == before
    assert await read(kind, path, _keys(key)) == "first"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_store_that_cannot_be_written_is_refused_and_stays(
    kind: str, key: str, public_folder: Path
) -> None:
    path = public_folder / "store"
    await add(kind, path, _keys(key), "first")
    forbid_writing(public_folder)
    before = content_of(public_folder)
    told = in_child(_as_nobody, kind, str(path), key, "add")
    assert told.startswith("StorageError: "), told
    assert str(path) in told
    if kind in STORAGES:
        assert in_child(_as_nobody, kind, str(path), key, "look") == "first\n"
    assert content_of(public_folder) == before


@pytest.mark.parametrize("kind", KINDS)
async def test_without_room_nothing_is_lost(kind: str, key: str, public_folder: Path) -> None:
    path = public_folder / "store"
    await add(kind, path, _keys(key), "first")
    told = in_child(_without_room, kind, str(path), key, "add")
    assert told.startswith("StorageError: "), told
    assert str(path) in told
    assert await read(kind, path, _keys(key)) == "first"
    await add(kind, path, _keys(key), "second")
    assert await read(kind, path, _keys(key)) == "first second"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_store_that_finds_no_room_at_all_begins_later(
    kind: str, key: str, public_folder: Path
) -> None:
    path = public_folder / "store"
    told = in_child(_without_room, kind, str(path), key, "add")
    assert told.startswith("StorageError: "), told
    assert str(path) in told
    await add(kind, path, _keys(key), "first")
    assert await read(kind, path, _keys(key)) == "first"
    with pytest.raises(StorageError):  # what was begun is one kind of store, and no other
        await read("sqlite" if path.is_dir() else "file", path, _keys(key))
