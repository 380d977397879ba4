"""What somebody does who can write a session store, but has not its keys: entries changed, moved, or removed.

``python -m tests.agents.session_attacks KIND FOLDER KEYED`` puts entries that lead back to themselves into a store and
uses it, with little memory; it prints a line of JSON with what came of each use.
"""

import asyncio
import json
import resource
import shutil
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from holdfast import HoldfastError, Keyring
from holdfast.agents import (
    AgentMessage,
    EntryAuthor,
    JsonSessionStore,
    SessionEntry,
    SessionStore,
    SqliteSessionStore,
    append_messages,
    read_messages,
)

KEYS = Keyring.generate()
MEMORY = 2 << 30
Store = JsonSessionStore | SqliteSessionStore
MAKERS: dict[str, Callable[..., Store]] = {
    "json": lambda folder, keys=None: JsonSessionStore(folder / "sessions", keys=keys),
    "sqlite": lambda folder, keys=None: SqliteSessionStore(folder / "sessions.db", keys=keys),
}
SAID = [f"m{number}" + " kelp" * 40 for number in range(4)]


async def fill(store: SessionStore) -> None:
    """Put two conversations into a store, a thread beside one of them, and an entry that no commit counted."""
    for number, text in enumerate(SAID):
        await append_messages(store, "kim", [AgentMessage("user", text)], key=f"k{number}")
    await append_messages(store, "bo", [AgentMessage("user", "of bo")], key="k0")
    await store.fork("kim", "side", "k1")
    await append_messages(store, "kim", [AgentMessage("user", "aside")], thread="side", key="s2")
    failed = (AgentMessage("user", "of a turn that failed"),)
    await store.stage(SessionEntry("kim", "main", "k4", failed, "k3", author=EntryAuthor("r1", "r1")))


async def read(store: SessionStore, session: str = "kim", thread: str = "main") -> list[str] | HoldfastError:
    """Return the conversation, or the error with which it is refused."""
    try:
        return [message.text for message in await read_messages(store, session, thread)]
    except HoldfastError as error:
        return error


def change_rows(folder: Path, *statements: str) -> None:
    """Change the rows of a session database; each statement has to find one."""
    with closing(sqlite3.connect(folder / "sessions.db")) as database:
        for statement in statements:
            assert database.execute(statement).rowcount, statement
        database.commit()


def change_lines(
    folder: Path,
    change: Callable[[list[dict[str, Any]]], None],
    session: str = "kim",
    name: str = "main.jsonl",
) -> None:
    """Change the lines of a thread's file, the first of which is about the thread."""
    path = folder / "sessions" / "sessions" / session / name
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def set_after(kind: str, folder: Path, **afters: str | None) -> None:
    """Give entries of a conversation others before them, wherever that stands in plain."""
    if kind == "json":

        def change(lines: list[dict[str, Any]]) -> None:
            for line in lines[1:]:
                line["after"] = afters.get(line["id"], line["after"])

        change_lines(folder, change)
        return
    for entry, after in afters.items():
        value = "NULL" if after is None else f"'{after}'"
        said = json.dumps(after)
        change_rows(
            folder,
            f"UPDATE entries SET after = {value}, body = json_set(body, '$.after', json('{said}')) "
            f"WHERE session = 'kim' AND entry = '{entry}'",
        )


def set_tip(kind: str, folder: Path, entry: str) -> None:
    """Let a conversation end with one of its own entries, in whatever order they were published."""
    if kind == "sqlite":
        change_rows(folder, f"UPDATE threads SET tip = '{entry}' WHERE session = 'kim' AND thread = 'main'")
        return

    def change(lines: list[dict[str, Any]]) -> None:
        lines.append(next(lines.pop(place) for place, line in enumerate(lines) if line.get("id") == entry))

    change_lines(folder, change)


def publish_staged(kind: str, folder: Path) -> None:
    """Publish an entry that no commit counted."""
    if kind == "sqlite":
        change_rows(folder, "UPDATE entries SET published = 1 WHERE entry = 'k4'")
        set_tip(kind, folder, "k4")
        return
    staged = folder / "sessions/sessions/kim/staged/k4.json"
    entry = json.loads(staged.read_text())
    change_lines(folder, lambda lines: lines.append(entry))
    staged.unlink()


def unpublish(kind: str, folder: Path) -> None:
    """Take an entry of a conversation back, as if it were staged only, so that it may be replaced."""
    if kind == "sqlite":
        change_rows(folder, "UPDATE entries SET published = 0 WHERE session = 'kim' AND entry = 'k2'")
        return

    def change(lines: list[dict[str, Any]]) -> None:
        (entry,) = [line for line in lines if line.get("id") == "k2"]
        lines.remove(entry)
        (folder / "sessions/sessions/kim/staged/k2.json").write_text(json.dumps(entry) + "\n")

    change_lines(folder, change)


def reorder(kind: str, folder: Path) -> None:
    set_after(kind, folder, k2="k0", k1="k2", k3="k1")


ATTACKS: dict[str, tuple[Callable[[str, Path], None], list[str]]] = {
    "another order": (reorder, [SAID[0], SAID[2], SAID[1], SAID[3]]),
    "without the middle": (lambda kind, folder: set_after(kind, folder, k3="k0"), [SAID[0], SAID[3]]),
    "without the beginning": (lambda kind, folder: set_after(kind, folder, k2=None), SAID[2:]),
    "behind another thread": (
        lambda kind, folder: set_after(kind, folder, k3="s2"),
        [*SAID[:2], "aside", SAID[3]],
    ),
    "an entry that is staged only": (publish_staged, [*SAID, "of a turn that failed"]),
    "an entry taken back": (unpublish, SAID),
}
"""Attacks on the order of a conversation, each with what a store without keys shows afterwards."""


async def use_cycles(kind: str, folder: Path, keys: Keyring | None) -> dict[str, str]:
    """Return the error of each use of a session whose first entry follows its last one, or itself."""
    found: dict[str, str] = {}
    for name, after in (("last", "k3"), ("itself", "k0")):
        place = folder / name
        place.mkdir(parents=True)
        await fill(MAKERS[kind](place, keys))
        set_after(kind, place, k0=after)
        store = MAKERS[kind](place, keys)
        rewinding = SessionEntry("kim", "main", "k9", (), "k1", rewinds=True)
        uses: dict[str, Callable[[], Any]] = {
            "read": lambda: store.entries("kim"),  # noqa: B023
            "read up to": lambda: store.entries("kim", upto="k2"),  # noqa: B023
            "read staged": lambda: store.entries("kim", upto="k4"),  # noqa: B023
            "publish": lambda: store.publish("kim", "k9"),  # noqa: B023
        }
        await store.stage(rewinding)
        for use, call in uses.items():
            try:
                await call()
                found[f"{name}: {use}"] = "nothing"
            except HoldfastError as error:
                found[f"{name}: {use}"] = f"{type(error).__name__}: {error}"
        shutil.rmtree(place)
    return found


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    print(json.dumps(asyncio.run(use_cycles(sys.argv[1], Path(sys.argv[2]), KEYS if sys.argv[3:] else None))))
