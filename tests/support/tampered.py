"""A small store of a run, a fork of it and one that failed, and what must be true after somebody tampered with it."""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from holdfast import (
    CheckpointCorrupt,
    CheckpointStorage,
    FileCheckpointStorage,
    HoldfastError,
    Keyring,
    SqliteCheckpointStorage,
)
from holdfast.checkpoint.receipts import is_key_used
from holdfast.checkpoint.store import RunQuery
from holdfast.ids import RunId
from tests.stores.keyed_world import USED_KEY, add_fork, fill, spell_values

RUNS = ("first", "failed", "fork")
Opener = Callable[[Path, Keyring | None, Any], CheckpointStorage]
OPENERS: dict[str, Opener] = {
    "sqlite": lambda folder, keys, anchor: SqliteCheckpointStorage(
        folder / "runs.db", keys=keys, anchor=anchor
    ),
    "file": lambda folder, keys, anchor: FileCheckpointStorage(folder / "store", keys=keys, anchor=anchor),
}


class MemoryAnchor:
    """An anchor that lies where nobody who writes the store can write."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def load(self, run: str) -> int | None:
        return self.known.get(run)

    def save(self, run: str, version: int) -> None:
        self.known[run] = max(version, self.known.get(run, 0))

    def runs(self) -> dict[str, int]:
        return dict(self.known)


class Shown(NamedTuple):
    """What a storage shows of a run."""

    head: tuple[Any, ...]
    checkpoints: Mapping[str, Any]
    """All but the tags of each, or the error with which it is refused."""
    tags: Mapping[str, tuple[str, ...]]
    journal: list[Any] | HoldfastError
    letters: list[Any] | HoldfastError
    events: list[Any] | HoldfastError
    listed: tuple[Mapping[str, Any], list[Any]]
    """Its checkpoints and requests as lists of all runs have them."""
    is_key_used: bool | HoldfastError
    """True if the key with which the run was tagged is known as used."""


Sight = Mapping[str, Shown | HoldfastError]
"""What a storage shows of all runs, or the error with which it refuses to."""


async def make_store(kind: str, folder: Path, keys: Keyring | None, anchor: Any = None) -> None:
    """Make the store, closed."""
    async with OPENERS[kind](folder, keys, anchor) as storage:
        await fill(storage, RUNS[:1])
        await add_fork(storage)
    if kind == "sqlite":
        _shrink(folder / "runs.db")


def _shrink(path: Path) -> None:
    """Give a closed database pages of 512 bytes: a flipped bit in the empty rest of a page tells nothing."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for statement in ("journal_mode = delete", "page_size = 512"):
            database.execute(f"PRAGMA {statement}")
        database.execute("VACUUM")
        database.execute("PRAGMA journal_mode = wal")


async def see(storage: CheckpointStorage, runs: Sequence[str] = RUNS) -> Sight:
    """Return what the storage shows of runs; let through what is no error of Holdfast."""
    try:
        await storage.list_runs()
        await storage.store.count_runs(RunQuery())
        listed = await _list_all(storage)
    except HoldfastError as error:
        return dict.fromkeys(runs, error)
    return {name: await _see_run(storage, name, listed) for name in runs}


async def _list_all(storage: CheckpointStorage) -> tuple[list[Any], list[Any]]:
    """Return the checkpoints and the requests of all runs."""
    try:
        await storage.list_runs(text="walnut-tag")
        return list(await storage.list_checkpoints(limit=100)), await storage.list_requests()
    except CheckpointCorrupt as error:  # which is no error of ours here: runs were listed just before
        raise AssertionError(f"one damaged run hides the others: {error}") from error


async def _see_run(
    storage: CheckpointStorage, name: str, listed: tuple[list[Any], list[Any]]
) -> Shown | HoldfastError:
    checkpoints: dict[str, Any] = {}
    tags: dict[str, tuple[str, ...]] = {}
    run_id = RunId(name)
    try:
        head = await storage.store.head(run_id)
        if head is None:
            return CheckpointCorrupt("there is no such run")
        made = await storage.list_checkpoints(run_id=name)
        for one in made:
            tags[one.checkpoint_id] = tuple(one.tags)
            checkpoints[one.checkpoint_id] = _plain(one), await _load(storage, one.checkpoint_id)
    except HoldfastError as error:
        return error
    return Shown(
        tuple(part for field, part in zip(head._fields, head, strict=True) if field not in _HINTS),
        checkpoints,
        tags,
        await _all_of(storage.store.notes(run_id)),
        await _all_of(storage.store.inbox(run_id)),
        await _all_of(storage.store.events(run_id, 0, 1000)),
        (
            {one.checkpoint_id: _plain(one) for one in listed[0] if one.run_id == name},
            [one.to_dict() for one in listed[1] if one.run_id == name],
        ),
        await _is_key_used(storage, run_id),
    )


def _plain(checkpoint: Any) -> Any:
    return checkpoint.to_dict() | {"tags": None, "tagged_by": None}


_HINTS = ("owner", "letters")
"""Columns that anyone may change: nothing follows from an owner but that the run is taken over, or waited for."""


async def _load(storage: CheckpointStorage, checkpoint_id: str) -> Any:
    try:
        return spell_values(await storage.load(checkpoint_id, plain=True))
    except HoldfastError as error:
        return error


async def _is_key_used(storage: CheckpointStorage, run_id: RunId) -> bool | HoldfastError:
    try:
        return await is_key_used(storage.store, run_id, "tag", USED_KEY)
    except HoldfastError as error:
        return error


async def _all_of(asked: Any) -> list[Any] | HoldfastError:
    try:
        return [tuple(one) for one in await asked]
    except HoldfastError as error:
        return error


class Verdict(NamedTuple):
    """What came of an attack."""

    refused: bool
    """True if something was refused, or is missing."""
    complaints: list[str]


def judge(before: Sight, after: Sight, untouched: tuple[str, ...] = ()) -> Verdict:
    """Compare what is shown after an attack with what was shown before: only refusals and gaps may differ."""
    complaints: list[str] = []
    refused = False
    for name, was in before.items():
        now = after[name]
        if isinstance(was, HoldfastError):  # it was deleted
            refused = refused or str(now) != str(was)
            if isinstance(now, Shown):
                complaints.append(f"{name} is there again")
            continue
        if isinstance(now, HoldfastError):
            refused = True
            if name in untouched:
                complaints.append(f"{name}, which nobody touched, is refused: {now}")
            continue
        refused = refused or now != was
        if name in untouched and now != was:
            complaints.append(f"{name}, which nobody touched, is shown otherwise")
        complaints += [f"{name}: {complaint}" for complaint in _compare(was, now)]
    return Verdict(refused, complaints)


def _compare(was: Shown, now: Shown) -> list[str]:
    found: list[str] = []
    if now.head != was.head:
        found.append(f"its head is {_differing(was.head, now.head)}")
    for name, shown in now.checkpoints.items():
        known = was.checkpoints.get(name)
        if known is None:
            found.append(f"checkpoint {name} was not there")
        elif shown[0] != known[0]:
            found.append(
                f"checkpoint {name} is listed with {_differing(known[0].values(), shown[0].values())}"
            )
        elif not isinstance(shown[1], HoldfastError) and shown[1] != known[1]:
            found.append(f"checkpoint {name} has the values {shown[1]:.200}")
        for tag in now.tags[name]:
            if known is not None and tag not in was.tags[name] and "untrusted:" not in tag:
                found.append(f"checkpoint {name} has the tag {tag!r}")
    for name, shown in now.listed[0].items():
        if shown != was.listed[0].get(name):
            found.append(f"checkpoint {name} is listed among all as {shown}")
    found += [f"the request {one} was not asked" for one in now.listed[1] if one not in was.listed[1]]
    if not isinstance(now.journal, HoldfastError) and now.journal != was.journal:
        found.append(f"its journal is {now.journal}")
    if now.is_key_used is True and not was.is_key_used:
        found.append("a key counts as used with which nobody called")
    for what, mine, theirs in (("letter", was.letters, now.letters), ("event", was.events, now.events)):
        if not isinstance(theirs, HoldfastError):
            assert isinstance(mine, list)
            known = [_content(one) for one in mine]
            found += [
                f"the {what} {one} was not there" for one in theirs if _content(one) not in [*known, None]
            ]
    return found


def _content(item: tuple[Any, ...]) -> Any:
    """Return a letter, or an event row; None for one that is refused, or known to be unsound."""
    *others, last = item
    return item if isinstance(last, bytes) and last else tuple(others) if last is True else None


def _differing(was: Any, now: Any) -> list[Any]:
    return [(mine, theirs) for mine, theirs in zip(was, now, strict=False) if mine != theirs]
