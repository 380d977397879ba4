"""A run that was deleted stays deleted: nothing of it is believed by another run of its id, or by an anchor."""

import asyncio
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    CheckpointCorrupt,
    CheckpointStorage,
    CheckpointUntrusted,
    RunResult,
    RunStatus,
)
from holdfast.checkpoint.keys.anchor import AnchorFile
from holdfast.checkpoint.store import Commit, Depth, Expected, Letter, Store
from holdfast.ids import RunId
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from tests.stores.keyed_world import KEYS, in_memory, make_workflow
from tests.support.tampered import OPENERS, MemoryAnchor
from tests.support.tampered_items import copy_store

ORDER = RunId("order")
LATE = 1 << 40


def beneath(storage: CheckpointStorage) -> Store:
    """The store as whoever can write it has it, without a key."""
    inner: Store = storage.store.inner  # type: ignore[attr-defined]
    return inner


async def begin(storage: CheckpointStorage) -> str:
    """Begin the run, and return the id of what it asks."""
    result = await make_workflow(storage).run("begin", run_id=ORDER)
    return str(result.pending_requests[0].request_id)


async def go_on(storage: CheckpointStorage) -> RunResult:
    run = await make_workflow(storage).resume(run_id=ORDER)
    result: RunResult = await run.wait_for_completion()
    return result


def make_storage(kind: str, folder: Path, anchor: Any = None) -> CheckpointStorage:
    return in_memory(anchor) if kind == "memory" else OPENERS[kind](folder, KEYS, anchor)


@pytest.mark.parametrize("kind", ["memory", *OPENERS])
async def test_an_answer_to_a_deleted_run_is_no_answer_to_the_next(kind: str, tmp_path: Path) -> None:
    async with make_storage(kind, tmp_path) as storage:
        asked = await begin(storage)
        await storage.respond(ORDER, {asked: "yes, approved"})
        stolen = await beneath(storage).inbox(ORDER)
        await storage.delete_run(ORDER)
        assert await begin(storage) == asked
        assert not (await beneath(storage).leave(ORDER, 1, stolen)).refused
        assert "1 letters of run 'order' is refused" in str((await storage.verify()).problems)
        result = await go_on(storage)
        assert (result.status, result.outputs, len(result.pending_requests)) == (RunStatus.WAITING, [], 1)
        await storage.respond(ORDER, {asked: "no"})
        assert (await go_on(storage)).outputs == ["no"]


@pytest.mark.parametrize("kind", ["memory", *OPENERS])
async def test_a_used_key_of_a_deleted_run_is_none_of_the_next(kind: str, tmp_path: Path) -> None:
    async with make_storage(kind, tmp_path) as storage:
        await begin(storage)
        await storage.send(ORDER, "more", key="k")
        stolen = await beneath(storage).inbox(ORDER)
        await storage.delete_run(ORDER)
        await begin(storage)
        assert not (await beneath(storage).use_up(ORDER, [letter.key for letter in stolen])).refused
        await storage.send(ORDER, "something else", key="k")
        assert len(await storage.store.inbox(ORDER)) == len(stolen)


@pytest.mark.parametrize("kind", ["memory", *OPENERS])
async def test_events_of_a_deleted_run_are_none_of_the_next(kind: str, tmp_path: Path) -> None:
    async with make_storage(kind, tmp_path) as storage:
        await begin(storage)
        stolen = await beneath(storage).events(ORDER, 0, 100)
        await storage.delete_run(ORDER)
        await begin(storage)
        before = await storage.store.events(ORDER, 0, 100)
        head = await beneath(storage).head(ORDER)
        assert stolen
        assert head is not None
        position = Expected(head.checkpoint_id, head.token)
        await beneath(storage).commit(Commit(head, position, events=tuple(stolen), events_from=0))
        after = await storage.store.events(ORDER, 0, 100)
        assert [row for row in after if row.sound] == list(before)
        assert [row.data for row in after if not row.sound] == [b""] * len(stolen)


@pytest.mark.parametrize("kind", ["memory", *OPENERS])
async def test_a_checkpoint_of_a_deleted_run_is_none_of_the_next(kind: str, tmp_path: Path) -> None:
    async with make_storage(kind, tmp_path) as storage:
        await begin(storage)
        stolen = await beneath(storage).records(ORDER, 0, LATE, Depth.ALL)
        await storage.delete_run(ORDER)
        await begin(storage)
        head = await beneath(storage).head(ORDER)
        mine = await beneath(storage).records(ORDER, 0, LATE, Depth.ALL)
        assert head is not None
        swapped = (*mine[:1], stolen[1], *mine[2:])
        await beneath(storage).replace(Commit(head, Expected(head.checkpoint_id, head.token), swapped))
        for ask in (
            lambda: storage.list_checkpoints(run_id=ORDER),
            lambda: storage.load(stolen[1].checkpoint_id),
        ):
            with pytest.raises(CheckpointUntrusted, match="that of another run, which had this id before"):
                await ask()
        assert not (await storage.verify()).ok


@pytest.mark.parametrize("kind", ["memory", *OPENERS])
async def test_a_tag_of_a_deleted_run_is_none_of_the_next(kind: str, tmp_path: Path) -> None:
    async with make_storage(kind, tmp_path) as storage:
        await begin(storage)
        await storage.tag((await storage.list_checkpoints(run_id=ORDER))[0].checkpoint_id, "approved")
        (record, *_) = await beneath(storage).records(ORDER, 0, LATE, Depth.ALL)
        await storage.delete_run(ORDER)
        await begin(storage)
        assert record.tags
        await beneath(storage).tag(ORDER, record.seq, record.tags, ())
        (shown, *_) = await storage.list_checkpoints(run_id=ORDER)
        assert [tag for tag in shown.tags if "untrusted:" not in tag] == []
        await storage.tag(shown.checkpoint_id, "approved")
        assert "approved" in (await storage.list_checkpoints(run_id=ORDER))[0].tags


async def _count_waiting(storage: CheckpointStorage) -> int:
    letters = await storage.store.inbox(ORDER)
    assert all(letter.data for letter in letters)
    return len(letters)


async def test_letters_go_with_a_copy(tmp_path: Path) -> None:
    source, copy, imported = in_memory(), in_memory(), in_memory()
    asked = await begin(source)
    await source.send(ORDER, "walnut-message")
    await source.copy_to(copy)
    assert await _count_waiting(copy) == 1
    await source.respond(ORDER, {asked: "yes"})
    await source.copy_to(copy)
    await source.export_run(ORDER, tmp_path / "export")
    await imported.import_run(tmp_path / "export")
    for storage in (copy, imported):
        assert await storage.store.inbox(ORDER) == await source.store.inbox(ORDER)
        assert await storage.store.events(ORDER, 0, 100) == await source.store.events(ORDER, 0, 100)
        assert not await beneath(storage).taken(
            ORDER, [one.key for one in await beneath(source).inbox(ORDER)]
        )
        assert (await storage.verify()).ok
        assert "yes" in (await go_on(storage)).outputs


async def test_a_run_that_is_imported_again_is_another_one(
    tmp_path: Path,
) -> None:
    storage = in_memory()
    asked = await begin(storage)
    await storage.export_run(ORDER, tmp_path / "export")
    await storage.respond(ORDER, {asked: "yes"})
    stolen = await beneath(storage).inbox(ORDER)
    await storage.delete_run(ORDER)
    await storage.import_run(tmp_path / "export")
    await beneath(storage).leave(ORDER, 0, stolen)
    assert (await go_on(storage)).status is RunStatus.WAITING


async def test_a_letter_finds_the_run_that_began_while_it_was_left() -> None:
    store = MemoryStore(keyed=True)
    storage, other = (CheckpointStorage(store, keys=KEYS) for _ in range(2))
    await begin(storage)
    await other.delete_run(ORDER)
    await begin(other)
    letter = Letter("key", b"data")
    assert await storage.store.leave(ORDER, 1, [letter]) == (await other.store.head(ORDER), (), False)
    assert [one for one in await other.store.inbox(ORDER) if one.data] == [letter]
    assert (await storage.store.leave(ORDER, 1, [letter])).refused == ("key",)
    await other.delete_run(ORDER)
    assert await storage.store.leave(ORDER, 1, [letter]) == (None, (), False)


async def test_entries_are_read_again_if_another_run_began_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore(keyed=True)
    storage, other = (CheckpointStorage(store, keys=KEYS) for _ in range(2))
    await begin(storage)
    await storage.store.leave(ORDER, 1, [Letter("one", b"1")])
    genuine = store.inbox
    reads = 0

    async def inbox(run_id: RunId) -> Any:
        nonlocal reads
        reads += 1
        found = await genuine(run_id)
        if reads == 1:
            await other.delete_run(ORDER)
            await begin(other)
            await other.store.leave(ORDER, 1, [Letter("two", b"2")])
        return found

    monkeypatch.setattr(store, "inbox", inbox)
    assert await storage.store.inbox(ORDER) == [Letter("two", b"2")]


async def test_a_head_made_anew_is_that_of_the_same_run(tmp_path: Path) -> None:
    async with OPENERS["sqlite"](tmp_path, KEYS, None) as storage:
        asked = await begin(storage)
        await storage.respond(ORDER, {asked: "yes"})
        events = await storage.store.events(ORDER, 0, 100)
        await storage.close()
    with closing(sqlite3.connect(tmp_path / "runs.db")) as database:
        database.execute("UPDATE runs SET reason = x'41'")
        database.commit()
    async with OPENERS["sqlite"](tmp_path, KEYS, None) as storage:
        with pytest.raises(CheckpointCorrupt):
            await storage.store.head(ORDER)
        assert "was made anew" in str(await storage.repair())
        assert [row.seq for row in await storage.store.events(ORDER, 0, 100) if row.sound] == [
            row.seq for row in events
        ]
        assert (await go_on(storage)).outputs == ["yes"]


# Anchors.


async def delete_a_run(folder: Path, open_storage: Callable[[], CheckpointStorage]) -> None:
    """Keep a copy of a store, delete its run, and put the copy back."""
    async with open_storage() as storage:
        await begin(storage)
    _take_copy(folder)
    async with open_storage() as storage:
        await storage.delete_run(ORDER)
    _put_copy_back(folder)


async def begin_a_run_again(folder: Path, open_storage: Callable[[], CheckpointStorage]) -> None:
    """Put an old run with many changes in the place of a new one with few."""
    async with open_storage() as storage:
        await storage.respond(ORDER, {await begin(storage): "yes"})
        await go_on(storage)
    _take_copy(folder)
    async with open_storage() as storage:
        await storage.delete_run(ORDER)
        await begin(storage)
    _put_copy_back(folder)


def _take_copy(folder: Path) -> None:
    shutil.copytree(folder, folder.with_name("copy"))


def _put_copy_back(folder: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(folder.with_name("copy"), folder)


@pytest.mark.parametrize("kind", OPENERS)
@pytest.mark.parametrize(
    ("attack", "text"),
    [
        (delete_a_run, "remembers that it was deleted"),
        (begin_a_run_again, "is an older copy"),
    ],
    ids=["deleted", "begun again"],
)
async def test_an_anchor_notices_what_was_put_back(attack: Any, text: str, kind: str, tmp_path: Path) -> None:
    folder, anchor = tmp_path / "store", tmp_path / "anchor"
    folder.mkdir()
    await attack(folder, lambda: OPENERS[kind](folder, KEYS, anchor))
    async with OPENERS[kind](folder, KEYS, anchor) as storage:
        asks: list[Callable[[], Any]] = [
            lambda: storage.get_run(ORDER),
            lambda: make_workflow(storage).resume(run_id=ORDER),
            lambda: make_workflow(storage).run("begin", run_id=ORDER),
            lambda: storage.delete_run(ORDER),
            lambda: storage.respond(ORDER, {"any": "yes"}),
        ]
        for ask in asks:
            with pytest.raises(CheckpointUntrusted, match=text):
                await ask()
        assert await storage.list_runs() == []
        assert text in str((await storage.verify()).problems)


@pytest.mark.parametrize("kind", OPENERS)
async def test_an_anchor_is_that_of_one_store(kind: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        async with OPENERS[kind](
            tmp_path / name, KEYS, None if name == "two" else tmp_path / "anchor"
        ) as storage:
            for _ in range(3):
                await begin(storage)
                await storage.delete_run(ORDER)
            await begin(storage)
    shutil.rmtree(tmp_path / "one")
    shutil.copytree(tmp_path / "two", tmp_path / "one")
    storage = OPENERS[kind](tmp_path / "one", KEYS, tmp_path / "anchor")
    for ask in (storage.open, storage.list_runs, lambda: storage.get_run(ORDER), lambda: begin(storage)):
        with pytest.raises(CheckpointUntrusted, match="the anchor remembers the runs of store"):
            await ask()
    await storage.close()
    async with OPENERS[kind](tmp_path / "one", KEYS, None) as storage:
        assert len(await storage.list_runs()) == 1


async def test_no_checkpoint_is_shown_of_a_run_that_another_process_deleted() -> None:
    store, anchor = MemoryStore(keyed=True), MemoryAnchor()
    storage, other = (CheckpointStorage(store, keys=KEYS, anchor=anchor) for _ in range(2))
    await begin(storage)
    copy = copy_store(store)
    await other.delete_run(ORDER)
    vars(store).update(vars(copy))
    with pytest.raises(CheckpointUntrusted, match="remembers that it was deleted"):
        await storage.store.records(ORDER, 0, LATE, Depth.ALL)


async def test_a_new_anchor_takes_a_store_as_it_is(tmp_path: Path) -> None:
    async with OPENERS["sqlite"](tmp_path, KEYS, None) as storage:
        await begin(storage)
    for name in ("one", "two"):
        async with OPENERS["sqlite"](tmp_path, KEYS, tmp_path / name) as storage:
            assert len(await storage.list_runs()) == 1


async def test_namespaces_share_an_anchor(tmp_path: Path) -> None:
    for _ in range(2):
        for namespace in ("", "one", "two"):
            store = SqliteStore(tmp_path / "runs.db", namespace, keyed=True)
            async with CheckpointStorage(store, keys=KEYS, anchor=tmp_path / "anchor") as storage:
                await begin(storage)
                await storage.delete_run(ORDER)
                assert (await storage.verify()).ok


class DyingAnchor(MemoryAnchor):
    """An anchor of a process that dies before it saves some number."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def save(self, run: str, version: int) -> None:
        if not self.left:
            raise RuntimeError("killed")
        self.left -= 1
        super().save(run, version)


async def test_a_deletion_that_was_broken_off_can_be_made_again() -> None:
    store = MemoryStore(keyed=True)
    counting = DyingAnchor(1_000)
    await begin(CheckpointStorage(store, keys=KEYS, anchor=counting))
    until_there = 1_000 - counting.left
    for further in (0, 1):  # before anything is saved, and between the removal and what is saved then
        store, dying = MemoryStore(keyed=True), DyingAnchor(until_there + further)
        storage = CheckpointStorage(store, keys=KEYS, anchor=dying)
        await begin(storage)
        copy = await store.head(ORDER)
        with pytest.raises(RuntimeError, match="killed"):
            await storage.store.remove_run(ORDER, await _expected(storage))
        dying.left = 1_000
        storage = CheckpointStorage(store, keys=KEYS, anchor=dying)
        if not further:
            await storage.delete_run(ORDER)
        assert await storage.list_runs() == []
        assert await storage.store.head(ORDER) is None
        assert (await storage.verify()).ok
        assert copy is not None
        store._heads[ORDER] = copy
        with pytest.raises(CheckpointUntrusted, match="that it was deleted"):
            await storage.store.head(ORDER)
        del store._heads[ORDER]
        await begin(storage)
        assert (await storage.verify()).ok


async def _expected(storage: CheckpointStorage) -> Expected:
    head = await storage.store.head(ORDER)
    assert head is not None
    return Expected(head.checkpoint_id, head.token)


async def test_a_deletion_that_is_refused_leaves_the_run(tmp_path: Path) -> None:
    storage = in_memory(tmp_path / "anchor")
    asked = await begin(storage)
    with pytest.raises(Exception, match="nothing was written"):
        await storage.store.remove_run(ORDER, Expected((await _expected(storage)).checkpoint_id, 1 << 30))
    await storage.respond(ORDER, {asked: "yes"})
    assert (await go_on(storage)).outputs == ["yes"]


async def test_runs_that_come_and_go_are_never_refused(tmp_path: Path) -> None:
    store = MemoryStore(keyed=True)
    storages = [CheckpointStorage(store, keys=KEYS, anchor=AnchorFile(tmp_path / "anchor")) for _ in range(3)]

    async def change(storage: CheckpointStorage) -> None:
        for _ in range(10):
            await make_workflow(storage).run("begin", run_id=ORDER, if_exists="continue")
            await storage.list_runs()
            await storage.delete_run(ORDER)

    async def look(storage: CheckpointStorage) -> None:
        for _ in range(200):
            await storage.list_runs()
            await storage.store.head(ORDER)
            assert await storage.store.damaged() == []
            await asyncio.sleep(0)

    await asyncio.gather(change(storages[0]), look(storages[1]), look(storages[2]))
