"""Whoever can write a store under keys, and has none of them, changes nothing that a run or a reader believes."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast import (
    CheckpointStorage,
    CheckpointUntrusted,
    InvalidArgument,
    Keyring,
    RunStatus,
    SqliteCheckpointStorage,
)
from holdfast.checkpoint.keys.key_box import close_box, open_box
from holdfast.checkpoint.store import Keyframe, Letter, Note
from holdfast.ids import RunId
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from tests.stores.keyed_world import KEYS, MAKERS, Maker, fill, in_memory, look, make_workflow
from tests.support.modules import sealed_heads, sealed_items, sealed_store, sealing_cipher

FIRST, SECOND, FAILED = RunId("first"), RunId("second"), RunId("failed")
Attack = Callable[[MemoryStore], None]


def store_of(storage: CheckpointStorage) -> MemoryStore:
    """What lies beneath the keys, as somebody has it who can write everything there."""
    return storage.store.inner  # type: ignore[attr-defined]


def swap(table: dict[Any, Any], one: Any, other: Any) -> None:
    table[one], table[other] = table[other], table[one]


def swap_records_of_runs(store: MemoryStore) -> None:
    for seq in (1, 2):
        theirs = store._records[SECOND, seq]
        store._records[SECOND, seq] = store._records[FIRST, seq]._replace(run_id=SECOND)
        store._records[FIRST, seq] = theirs._replace(run_id=FIRST)
        store._places[theirs.checkpoint_id] = FIRST, seq


def swap_records_of_a_run(store: MemoryStore) -> None:
    one, other = store._seqs[FIRST][1:3]
    mine = store._records[FIRST, one]
    theirs = store._records[FIRST, other]
    store._records[FIRST, one] = theirs._replace(seq=one)
    store._records[FIRST, other] = mine._replace(seq=other)


def swap_bodies(store: MemoryStore) -> None:
    one, other = (store._records[FIRST, seq] for seq in store._seqs[FIRST][1:3])
    store._records[FIRST, one.seq] = one._replace(changes=other.changes, values=other.values)


def empty_a_body(store: MemoryStore) -> None:
    seq = store._seqs[FIRST][2]
    store._records[FIRST, seq] = store._records[FIRST, seq]._replace(changes=b"", values=b"")


def change_a_size(store: MemoryStore) -> None:
    seq = store._seqs[FIRST][2]
    store._records[FIRST, seq] = store._records[FIRST, seq]._replace(new_bytes=7)


def swap_blobs(store: MemoryStore) -> None:
    one, other = [place for place in store._blobs if place[0] == FIRST][:2]
    swap(store._blobs, one, other)


def take_a_blob_of_another_run(store: MemoryStore) -> None:
    mine = next(place for place in store._blobs if place[0] == FIRST)
    theirs = next(place for place in store._blobs if place[0] == SECOND)
    store._blobs[mine] = store._blobs[theirs]


def swap_heads(store: MemoryStore) -> None:
    mine, theirs = store._heads[FIRST], store._heads[SECOND]
    store._heads[FIRST] = theirs._replace(run_id=FIRST, family=FIRST)
    store._heads[SECOND] = mine._replace(run_id=SECOND, family=SECOND)


def complete_a_run(store: MemoryStore) -> None:
    store._heads[FIRST] = store._heads[FIRST]._replace(status=RunStatus.COMPLETED, waiting_for="")


def move_a_head_back(store: MemoryStore) -> None:
    seq = store._seqs[FIRST][0]
    earlier = store._records[FIRST, seq].checkpoint_id
    store._heads[FIRST] = store._heads[FIRST]._replace(checkpoint_id=earlier, seq=seq)


def forge_a_plain_head(store: MemoryStore) -> None:
    store._heads[FIRST] = store._heads[FIRST]._replace(reason="", token=1)


def remove_a_note(store: MemoryStore) -> None:
    store._notes[FAILED].clear()


def forge_a_note(store: MemoryStore) -> None:
    store._notes[FAILED]["forged"] = Note("forged", b"\x00anything")


def replace_a_note(store: MemoryStore) -> None:
    (key,) = store._notes[FAILED]
    letter = next(letter for letter in store._letters[FIRST].values() if letter is not None)
    store._notes[FAILED][key] = Note(key, letter.data)


def take_a_body_for_a_keyframe(store: MemoryStore) -> None:
    seq = store._seqs[FIRST][2]
    record = store._records[FIRST, seq]
    store._records[FIRST, seq] = record._replace(keyframe=Keyframe(record.changes, record.values))


def forge_a_plain_header(store: MemoryStore) -> None:
    seq = store._seqs[FIRST][2]
    store._records[FIRST, seq] = store._records[FIRST, seq]._replace(header=b"\x81\xa6format\x01")


ATTACKS: list[tuple[Attack, RunId]] = [
    (swap_records_of_runs, FIRST),
    (swap_records_of_a_run, FIRST),
    (swap_bodies, FIRST),
    (empty_a_body, FIRST),
    (change_a_size, FIRST),
    (swap_blobs, FIRST),
    (take_a_blob_of_another_run, FIRST),
    (swap_heads, FIRST),
    (complete_a_run, FIRST),
    (move_a_head_back, FIRST),
    (forge_a_plain_head, FIRST),
    (remove_a_note, FAILED),
    (forge_a_note, FAILED),
    (replace_a_note, FAILED),
    (take_a_body_for_a_keyframe, FIRST),
    (forge_a_plain_header, FIRST),
]


async def refusal_of(attack: Attack, run_id: RunId) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return what is seen of a run after an attack on it, and all that was seen before and after."""
    storage = in_memory()
    await fill(storage)
    before = await look(storage)
    attack(store_of(storage))
    after = await look(storage)
    return after[run_id], before, after


@pytest.mark.parametrize(("attack", "run_id"), ATTACKS, ids=[attack.__name__ for attack, _ in ATTACKS])
async def test_what_was_put_in_another_place_is_untrusted(attack: Attack, run_id: RunId) -> None:
    seen, before, after = await refusal_of(attack, run_id)
    assert isinstance(seen, CheckpointUntrusted)
    for other in {FIRST, SECOND, FAILED} - {run_id}:
        if attack not in (swap_records_of_runs, swap_heads, replace_a_note):
            assert after[other] == before[other]


async def test_verify_names_what_is_refused_and_repair_saves_the_rest() -> None:
    storage = in_memory()
    await fill(storage)
    complete_a_run(store_of(storage))
    remove_a_note(store_of(storage))
    report = await storage.verify()
    assert {problem.run_id for problem in report.problems} == {FIRST, FAILED}
    assert all("is refused" in problem.what for problem in report.problems)
    await storage.repair()
    assert [problem.run_id for problem in (await storage.verify()).problems] == [FIRST]
    assert len(await storage.list_checkpoints(run_id=FAILED)) == 1


def bind_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    cipher = sealing_cipher.StoreCipher
    monkeypatch.setattr(cipher, "derive", lambda self, secret, kind, owner: secret)
    monkeypatch.setattr(sealed_store, "new_incarnation", lambda: bytes(12))


def bind_no_blob_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing_cipher, "_segment_place", lambda name, number, count: b"")


def bind_no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_items, "_head_place", lambda head: b"head")


def cover_no_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sealed_heads, sealed_store):
        monkeypatch.setattr(module, "digest_journal", lambda codes: b"")


def bind_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = sealed_items._pack
    monkeypatch.setattr(
        sealed_items, "_pack", lambda value: b"" if isinstance(value, tuple) else genuine(value)
    )


@pytest.mark.parametrize(
    ("plant", "attack", "run_id"),
    [
        (bind_no_run, swap_records_of_runs, FIRST),
        (bind_no_blob_name, swap_blobs, FIRST),
        (bind_no_columns, complete_a_run, FIRST),
        (bind_no_columns, move_a_head_back, FIRST),
        (cover_no_notes, remove_a_note, FAILED),
        (bind_no_place, swap_bodies, FIRST),
        (bind_no_place, change_a_size, FIRST),
    ],
)
async def test_a_layer_that_binds_less_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None],
    attack: Attack,
    run_id: RunId,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    seen, _, _ = await refusal_of(attack, run_id)
    assert not isinstance(seen, CheckpointUntrusted)


# Letters.


async def test_a_forged_letter_is_taken_and_nothing_comes_of_it() -> None:
    storage = in_memory()
    await fill(storage)
    letters = store_of(storage)._letters
    stolen = next(letter for letter in letters[FIRST].values() if letter is not None)
    letters[SECOND] = {"forged": Letter("forged", b"\x00{}"), stolen.key: stolen}
    assert [letter.data for letter in await storage.store.inbox(SECOND)] == [b"", b""]
    assert "2 letters of run 'second' is refused" in str((await storage.verify()).problems)
    run = await make_workflow(storage).resume(run_id="second")
    result = await run.wait_for_completion()
    assert (result.status, len(result.pending_requests)) == (RunStatus.WAITING, 1)
    assert await storage.store.inbox(SECOND) == []


# Keys.


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
async def test_other_keys_and_no_keys_open_nothing(make: Maker, tmp_path: Path) -> None:
    async with make(tmp_path, KEYS) as storage:
        await fill(storage)
    for keys, text in ((Keyring.generate(), KEYS.key_ids[0]), (None, "is under keys, and none were given")):
        storage = make(tmp_path, keys)
        for ask in (storage.list_runs, storage.list_checkpoints, storage.open, storage.statistics):
            with pytest.raises(CheckpointUntrusted, match=text):
                await ask()
        with pytest.raises(CheckpointUntrusted, match=text):
            await make_workflow(storage).run("more")
        await storage.close()
    async with make(tmp_path, KEYS.rotate()) as storage:
        assert len(await storage.list_runs()) == 3


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
async def test_a_plain_store_is_not_trusted_with_keys(make: Maker, tmp_path: Path) -> None:
    async with make(tmp_path, None) as storage:
        await fill(storage)
    storage = make(tmp_path, KEYS)
    with pytest.raises(CheckpointUntrusted, match="is not under keys"):
        await storage.list_runs()
    await storage.close()


async def test_a_run_of_another_store_with_the_same_keys_is_foreign(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        async with MAKERS["sqlite"](tmp_path / name, KEYS) as storage:
            await fill(storage)
    with closing(sqlite3.connect(tmp_path / "one" / "runs.db")) as database:
        database.execute("ATTACH ? AS other", (str(tmp_path / "two" / "runs.db"),))
        for table in (
            "runs",
            "checkpoints",
            "keyframes",
            "tags",
            "notes",
            "letters",
            "blobs",
            "families",
            "events",
        ):
            database.execute(f"DELETE FROM {table}")
            database.execute(f"INSERT INTO main.{table} SELECT * FROM other.{table}")
        database.commit()
    async with MAKERS["sqlite"](tmp_path / "one", KEYS) as storage:
        assert await storage.list_runs() == []
        assert all(isinstance(seen, CheckpointUntrusted) for seen in (await look(storage)).values())


async def test_a_store_without_its_key_box_is_not_begun_anew(tmp_path: Path) -> None:
    async with MAKERS["sqlite"](tmp_path, KEYS) as storage:
        await fill(storage)
    with closing(sqlite3.connect(tmp_path / "runs.db")) as database:
        database.execute("DELETE FROM meta WHERE key = 'key_box'")
        database.commit()
    storage = MAKERS["sqlite"](tmp_path, KEYS)
    with pytest.raises(CheckpointUntrusted, match="are gone, though it has runs"):
        await storage.list_runs()
    await storage.close()


# Anchors.


@pytest.mark.parametrize("cut", ["older", "without a run"])
async def test_an_older_copy_is_noticed_with_an_anchor(cut: str, tmp_path: Path) -> None:
    anchor, path = tmp_path / "anchor", tmp_path / "runs.db"
    async with SqliteCheckpointStorage(path, keys=KEYS, anchor=anchor) as storage:
        await storage.open()
        if cut == "older":
            await make_workflow(storage).run("begin", run_id="first")
    shutil.copytree(tmp_path, copy := tmp_path.with_name(tmp_path.name + "-copy"))
    async with SqliteCheckpointStorage(path, keys=KEYS, anchor=anchor) as storage:
        workflow = make_workflow(storage)
        result = await workflow.run("begin", run_id="first", if_exists="continue")
        await result.respond({result.pending_requests[0].request_id: "yes"})
    for name in ("runs.db", "runs.db-wal"):
        if (copy / name).exists():
            shutil.copy(copy / name, tmp_path / name)
        else:
            (tmp_path / name).unlink(missing_ok=True)
    async with SqliteCheckpointStorage(path, keys=KEYS, anchor=anchor) as storage:
        text = "is an older copy" if cut == "older" else "is missing"
        for ask in (storage.get_run("first"), make_workflow(storage).run("begin", run_id="first")):
            with pytest.raises(CheckpointUntrusted, match=text):
                await ask
        assert await storage.list_runs() == []
        assert text in str((await storage.verify()).problems)
    async with SqliteCheckpointStorage(path, keys=KEYS) as storage:  # without an anchor nobody can know
        assert len(await storage.list_runs()) == (1 if cut == "older" else 0)


async def test_a_run_that_is_deleted_may_begin_again_with_an_anchor(tmp_path: Path) -> None:
    storage = in_memory(tmp_path / "anchor")
    workflow = make_workflow(storage)
    for _ in range(2):
        await workflow.run("begin", run_id="first")
        await storage.delete_run("first")
    assert (await storage.verify()).ok


class Rekeyed(NamedTuple):
    """A store that was rekeyed, as somebody has it who can write it, and knows its first key."""

    path: Path
    anchor: Path
    ring: Keyring
    old: str
    """The key box before."""
    store_id: str

    async def put(self, box: str) -> None:
        """Put another key box there."""
        store = SqliteStore(self.path, keyed=True)
        assert await store.set_key_box(box, await store.key_box())
        await store.close()

    def open(self, **options: Any) -> SqliteCheckpointStorage:
        return SqliteCheckpointStorage(self.path, **{"keys": self.ring, "anchor": self.anchor, **options})


async def rekeyed(folder: Path) -> Rekeyed:
    path, anchor, ring = folder / "runs.db", folder / "anchor", KEYS.rotate()
    plain = SqliteStore(path, keyed=True)
    async with SqliteCheckpointStorage(path, keys=KEYS, anchor=anchor) as storage:
        await make_workflow(storage).run("begin", run_id="first")
        old = await plain.key_box()
        await storage.rekey(ring)
    store_id = (await plain.open()).store_id
    await plain.close()
    return Rekeyed(path, anchor, ring, old, store_id)


def forged(store: Rekeyed, epochs: int) -> str:
    """What whoever has the first key can make: keys of their own, wrapped by it, for so many epochs."""
    keys = open_box(store.old, KEYS, store.store_id, "the store")
    for _ in range(epochs):
        keys = keys.begin_epoch()
    return close_box(keys, KEYS, store.store_id)


@pytest.mark.parametrize("epochs", [0, 1, 2])
async def test_an_anchor_notices_that_a_rekey_was_undone(tmp_path: Path, epochs: int) -> None:
    """A process that still holds the old key, too, would seal what comes with the key that leaked."""
    store = await rekeyed(tmp_path)
    async with store.open() as storage:
        assert len(await storage.list_runs()) == 1
    await store.put(forged(store, epochs) if epochs else store.old)
    storage = store.open()
    for ask in (storage.list_runs, lambda: storage.rekey(store.ring.rotate())):
        with pytest.raises(CheckpointUntrusted, match="lacks keys that its anchor remembers"):
            await ask()
    await storage.close()
    async with store.open(anchor=None) as storage:  # without an anchor nobody can know
        assert len(await storage.list_runs()) == 1
    storage = store.open(keys=store.ring.only_newest())
    with pytest.raises(CheckpointUntrusted, match="is under the key"):
        await storage.list_runs()
    await storage.close()


async def test_a_storage_notices_older_keys_than_its_own(tmp_path: Path) -> None:
    store = await rekeyed(tmp_path)
    async with store.open(anchor=None) as storage:
        await storage.list_runs()
        now = await storage.store.inner.key_box()  # type: ignore[attr-defined]
        await store.put(store.old)
        assert "lacks keys" in str((await storage.verify()).problems)
        for ask in (storage.prune, lambda: storage.rekey(store.ring.rotate())):
            with pytest.raises(CheckpointUntrusted, match="lacks keys that it had a moment ago"):
                await ask()
        await store.put(now)
        assert (await storage.verify()).ok


async def test_a_rekey_leaves_another_store_alone(tmp_path: Path) -> None:
    async with SqliteCheckpointStorage(
        tmp_path / "runs.db", keys=KEYS, anchor=tmp_path / "anchor"
    ) as storage:
        await make_workflow(storage).run("begin", run_id="first")
    other = SqliteCheckpointStorage(tmp_path / "other.db", keys=KEYS)
    await make_workflow(other).run("begin", run_id="first")
    box = await other.store.inner.key_box()  # type: ignore[attr-defined]
    taken = SqliteCheckpointStorage(tmp_path / "other.db", keys=KEYS, anchor=tmp_path / "anchor")
    with pytest.raises(CheckpointUntrusted, match="two stores were given one anchor"):
        await taken.rekey(KEYS.rotate())
    assert await other.store.inner.key_box() == box  # type: ignore[attr-defined]
    await other.close()
    await taken.close()


async def test_an_anchor_needs_keys(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="anchor= needs keys="):
        SqliteCheckpointStorage(tmp_path / "runs.db", anchor=tmp_path / "anchor")
