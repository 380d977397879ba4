"""FileStore: records, tags and runs that are removed, beside writers that sleep or die."""

import asyncio
import contextlib
import os
import random
import signal
import sys
from pathlib import Path

import pytest

from holdfast.checkpoint.store import Depth, Expected, Keyframe, Letter, Removal, RunQuery
from holdfast.errors import HeadMoved
from holdfast.ids import RunId
from holdfast.stores.common import disk
from holdfast.stores.common.disk import Disk
from holdfast.stores.common.locks import Locks
from holdfast.stores.file import FileStore
from holdfast.stores.file.run_folder import RunFolder
from holdfast.stores.file.tidying import Tidying
from tests.stores.file_commits import (
    EVERYTHING,
    RUN,
    before_publishing,
    checkpoint_id,
    child,
    content,
    head,
    keys_of,
    letters,
    record,
    seqs,
    sizes,
    standing,
    stay,
    step,
    tree,
    write,
)

ODD = [Letter("early", b"x"), Letter("\ud800", b"y")]
CUT = Keyframe(b"\x00\x90", b"", cut=True)


@pytest.fixture
def path(on_disk):
    return on_disk / "store"


@pytest.fixture
async def store(path):
    store = FileStore(path)
    yield store
    await store.close()


@pytest.fixture
async def other(path):
    """Another one on the same directory, which knows nothing yet."""
    other = FileStore(path)
    yield other
    await other.close()


def all_but(*kept: int, of: int, run: RunId = RUN) -> Removal:
    """Remove all records before the one on which the run stands, but for some."""
    gone = tuple(seq for seq in range(1, of) if seq not in kept)
    return Removal(run, Expected(checkpoint_id(run, of), 1), gone, ((of, CUT),))


async def latest_only(store: FileStore, first: int, last: int, every: int = 5) -> None:
    for seq in range(first, last + 1):
        await store.commit(step(RUN, seq))
        if seq % every == 0:
            await store.remove(all_but(of=seq))


async def ids(store: FileStore, last: int) -> list[int]:
    """The seqs of checkpoints that can be found by their ids."""
    found = [await store.find(checkpoint_id(RUN, seq)) for seq in range(1, last + 1)]
    return [place[1] for place in found if place is not None]


# ---------------------------------------------------------------- what lies in the folder


async def test_names_are_freed(store, path, other) -> None:
    await other.head(RUN)
    await latest_only(store, 1, 52)
    assert sorted(sizes(path)) == ["00000050-0", "00000051-0", "00000051-1", "00000052-0"]
    assert len(tree(path / "ids")) == 3 + 1  # and how far the run came
    cold = FileStore(path)
    for reader in (store, other, cold):
        assert await reader.head(RUN) == head(RUN, 52)
        assert await seqs(reader, RUN) == [50, 51, 52]
        assert await ids(reader, 52) == [50, 51, 52]
        (first,) = await reader.records(RUN, 50, 50, Depth.ALL)
        assert first == record(RUN, 50, keyframe=CUT)
        assert await reader.damaged() == []
    await cold.close()
    assert os.listdir(path / "temp") == []


async def test_a_removal_costs_little(store) -> None:
    await write(store, RUN, 30)
    before = store.fsyncs
    await store.remove(all_but(of=30))
    # The commit: file and folder; the file that got a keyframe, and the folder, before and after names are freed.
    assert store.fsyncs - before == 5
    before = store.fsyncs
    await store.commit(step(RUN, 31))
    assert store.fsyncs - before == 2


async def test_checkpoints_that_are_kept_among_those_that_go(store, path, other) -> None:
    await write(store, RUN, 20)
    assert await store.tag(RUN, 3, ["gold", "\udc80 half"])
    await store.remove(all_but(3, 7, 8, of=20))
    await store.commit(step(RUN, 21))
    assert sorted(sizes(path)) == [
        "00000003-0.kept",
        "00000007-0.kept",
        "00000008-0.kept",
        "00000020-0",
        "00000021-0",
        "00000021-1",
        "00000021-2",
    ]
    for reader in (store, other):
        assert await seqs(reader, RUN) == [3, 7, 8, 20, 21]
        assert await seqs(reader, RUN, 4, 7) == [7]
        assert await ids(reader, 21) == [3, 7, 8, 20, 21]
        (tagged,) = await reader.records(RUN, 3, 3, Depth.ALL)
        assert tagged == record(RUN, 3, tags=("gold", "\udc80 half"))
    await other.tag(RUN, 7, ["b"])
    await other.tag(RUN, 3, [])
    await other.remove(Removal(RUN, Expected(checkpoint_id(RUN, 21), 1), (3, 8)))
    for reader in (store, other):
        assert [(one.seq, one.tags) for one in await reader.records(RUN, 1, EVERYTHING, Depth.HEADERS)] == [
            (7, ("b",)),
            (20, ()),
            (21, ()),
        ]
        assert await ids(reader, 21) == [7, 20, 21]
    assert [name for name in sizes(path) if "kept" in name] == ["00000007-0.kept"]


async def test_one_of_many_leaves_the_others_where_they_are(store, path) -> None:
    await write(store, RUN, 9)
    await store.remove(Removal(RUN, standing(RUN, 9), (4,), ((5, CUT),)))
    there = sizes(path)
    assert [name for name, full in there.items() if not full] == ["00000004-0"]
    assert len(there) == 10
    assert await seqs(store, RUN) == [1, 2, 3, 5, 6, 7, 8, 9]
    await store.commit(step(RUN, 10))
    assert "unsettled" not in content(path, "00000010-1")


@pytest.mark.parametrize("freed", [True, False])
async def test_what_was_carried_out_may_be_gone_though_it_is_listed(store, path, monkeypatch, freed) -> None:
    await write(store, RUN, 5)
    with monkeypatch.context() as patch:
        patch.setattr(Tidying, "settle", lambda self: None)
        await store.remove(Removal(RUN, standing(RUN, 5), (1,)))
        await store.commit(step(RUN, 6))
    if not freed:
        monkeypatch.setattr(Locks, "is_unused", lambda self, name: False)
    await store.remove(Removal(RUN, standing(RUN, 6), (2, 3, 4, 5), ((6, CUT),)))
    assert content(path, "00000007-0")["unsettled"] == ["00000006-0", "00000007-0"]
    assert sizes(path).get("00000006-0") == (None if freed else 0)
    for reader in (store, FileStore(path)):
        assert await seqs(reader, RUN) == [6]
        await reader.tag(RUN, 6, ["a"])
        assert [one.tags for one in await reader.records(RUN, 1, EVERYTHING, Depth.ALL)] == [("a",)]
        await reader.close()


async def test_the_journal_survives_a_removal(store, path, other) -> None:
    await write(store, RUN, 3)
    for key in ("a", "b"):
        await store.commit(stay(RUN, 3, key))
    await store.remove(all_but(of=3))
    await store.commit(stay(RUN, 3, "c"))
    await store.remove(all_but(of=3))
    for reader in (store, other):
        assert keys_of(await reader.notes(RUN)) == ["a", "b", "c"]
    assert sorted(sizes(path))[0] == "00000003-0"


async def test_keys_that_were_used_stay_used(store, path, other) -> None:
    await write(store, RUN, 2)
    await store.leave(RUN, 2, ODD)
    await store.commit(step(RUN, 3)._replace(taken=("early", "\ud800")))
    for seq in range(4, 40):
        await store.commit(step(RUN, seq))
        if seq == 30:
            await store.leave(RUN, 30, letters("late"))
            await store.commit(stay(RUN, 30, taken=["late"]))
        if seq % 7 == 0:
            await store.remove(all_but(of=seq))
    assert min(sizes(path)) > "00000030"
    cold = FileStore(path)
    for reader in (store, other, cold):
        for since in (1, 2, 29):
            left = await reader.leave(RUN, since, letters("new", "late"))
            assert left.refused == ("late",)
        assert (await reader.leave(RUN, 1, ODD)).refused == ("early", "\ud800")
    await cold.close()


async def test_a_damaged_newest_file_hides_no_removal(store, path, other) -> None:
    await write(store, RUN, 6)
    await store.remove(Removal(RUN, standing(RUN, 6), (2, 3), ((4, CUT),)))
    await store.commit(step(RUN, 7))
    (path / "runs/r1/00000007-1.json").write_text("{")
    for reader in (store, other):
        assert await seqs(reader, RUN, 1, 5) == [1, 4, 5]


async def test_a_reader_beside_removals(store, other) -> None:
    """Whatever it sees was there at one moment: never a record without what it needs."""
    await store.commit(step(RUN, 1))
    done = asyncio.Event()

    async def read() -> int:
        times = 0
        while not done.is_set():
            found = await other.records(RUN, 1, EVERYTHING, Depth.ALL)
            assert found
            assert [one.seq for one in found] == list(range(found[0].seq, found[-1].seq + 1))
            assert found[0].seq == 1 or found[0].keyframe == CUT
            times += 1
        return times

    reading = asyncio.create_task(read())
    await latest_only(store, 2, 120, every=3)
    done.set()
    assert await reading > 1


# ---------------------------------------------------------------- writers that sleep


async def move_on(path: Path, steps: int) -> None:
    """Take the run at checkpoint 1 with the next token, move on, and remove all that is not needed."""
    store = FileStore(path)
    await store.commit(stay(RUN, 1, token=2))
    for seq in range(2, steps + 1):
        expected = Expected(checkpoint_id(RUN, seq - 1), 2)
        await store.commit(step(RUN, seq, token=2)._replace(expected=expected))
        removal = all_but(of=seq)
        await store.remove(removal._replace(expected=Expected(checkpoint_id(RUN, seq), 2)))
    await store.close()


async def late_commit(store: FileStore) -> None:
    await store.commit(step(RUN, 2))


async def late_note(store: FileStore) -> None:
    await store.commit(stay(RUN, 1, "late"))


async def late_removal(store: FileStore) -> None:
    await store.remove(Removal(RUN, standing(RUN, 1), (7,)))


async def late_end(store: FileStore) -> None:
    await store.remove_run(RUN, standing(RUN, 1))


LATE = {"commit": late_commit, "note": late_note, "removal": late_removal, "end": late_end}


@pytest.mark.parametrize("steps", [2, 3, 9])
@pytest.mark.parametrize("late", LATE)
async def test_a_writer_that_slept_before_it_looked(store, path, late, steps) -> None:
    """The names that it knows are freed meanwhile."""
    await store.commit(step(RUN, 1))
    await move_on(path, steps)
    assert (min(sizes(path)) > "00000001-0") is True
    with pytest.raises(HeadMoved, match="token 2"):
        await LATE[late](store)
    assert await store.head(RUN) == head(RUN, steps, token=2)
    assert await seqs(store, RUN) == [steps]


def stand_still() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    sys.stdin.readline()  # the thread that sends the signal is not the first to be stopped


def _no_lock(self: Locks, name: str) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def sleep_before_publishing(path: str, late: str, planted: bool) -> None:
    """Stop this whole process before its file gets a name; print what came of it."""
    if planted:
        Locks.hold_shared = _no_lock  # type: ignore[assignment,method-assign]

    async def main() -> None:
        store = FileStore(path)
        await store.notes(RUN)
        before_publishing(store, stand_still)
        try:
            await LATE[late](store)
            print("done")
        except HeadMoved:
            print("refused")
        await store.close()

    asyncio.run(main())


async def stopped(path: Path, late: str, planted: bool = False):
    process = child("test_file_removal", "sleep_before_publishing", str(path), late, planted)
    _, status = await asyncio.to_thread(os.waitpid, process.pid, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        process.returncode = status
        pytest.fail(process.communicate()[0])
    return process


async def woken(process) -> str:
    process.send_signal(signal.SIGCONT)
    return (await asyncio.to_thread(process.communicate, "\n", 150))[0]


@pytest.mark.parametrize("late", LATE)
async def test_a_process_that_stood_still_is_refused(store, path, late) -> None:
    """While it stands still no name is freed, though files are emptied; when it is gone, names are."""
    await store.commit(step(RUN, 1))
    process = await stopped(path, late)
    try:
        await move_on(path, 9)
        assert sizes(path)["00000002-0"] is False
        assert await woken(process) == "refused\n"
    finally:
        process.kill()
        process.communicate()
    assert await store.head(RUN) == head(RUN, 9, token=2)
    assert await seqs(store, RUN) == [9]
    commit = step(RUN, 10, token=2)._replace(expected=Expected(checkpoint_id(RUN, 9), 2))
    await store.commit(commit)
    removal = all_but(of=10)._replace(expected=Expected(checkpoint_id(RUN, 10), 2))
    await store.remove(removal)
    assert sorted(sizes(path)) == ["00000010-1", "00000011-0"]


async def test_without_the_lock_it_would_not_be_refused(store, path) -> None:
    """What the lock is for: this is the bug that the test above is there to notice."""
    await store.commit(step(RUN, 1))
    process = await stopped(path, "commit", planted=True)
    try:
        await move_on(path, 9)
        assert await woken(process) == "done\n"
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("late", LATE)
async def test_a_run_that_is_removed_while_a_process_stands_still(store, path, other, late) -> None:
    """The id is used again at once; the one that stood still finds no way into the new run."""
    await store.commit(step(RUN, 1))
    process = await stopped(path, late)
    try:
        await store.remove_run(RUN, standing(RUN, 1))
        assert await store.head(RUN) is None
        assert await other.runs(RunQuery()) == []
        for seq in range(1, 4):
            await other.commit(step(RUN, seq, workflow_name="new"))
        assert await woken(process) == "refused\n"
    finally:
        process.kill()
        process.communicate()
    for reader in (store, other):
        assert await reader.head(RUN) == head(RUN, 3, workflow_name="new")
        assert await seqs(reader, RUN) == [1, 2, 3]
        assert await ids(reader, 3) == [1, 2, 3]
    await store.remove(all_but(of=3))
    assert await seqs(other, RUN) == [3]
    assert min(sizes(path)) == "1000000000003-0"
    await store.remove_run(RUN, standing(RUN, 3))
    assert os.listdir(path / "runs") == []


async def test_a_tidier_that_stands_still_keeps_nobody_from_writing(store, path, other) -> None:
    """It holds the lock that only one tidier has at a time; what it left undone is done when it is gone."""
    locks = Locks(path / "locks")
    await write(store, RUN, 5)
    with locks.try_turn("r1.tidy") as mine:
        assert mine
        await store.remove(all_but(of=5))
        await store.commit(step(RUN, 6))
        assert len(sizes(path)) == 7
        for reader in (store, other):
            assert await seqs(reader, RUN) == [5, 6]
            assert await ids(reader, 6) == [5, 6]
        assert content(path, "00000006-1")["unsettled"] == ["00000006-0"]
    await other.commit(step(RUN, 7))
    assert sorted(sizes(path))[0] == "00000005-0.kept"
    await store.commit(step(RUN, 8))
    await other.commit(step(RUN, 9))
    assert "unsettled" not in content(path, "00000009-0")


# ---------------------------------------------------------------- runs that go


async def test_nothing_is_left_of_a_removed_run(store, path, other) -> None:
    await write(store, RUN, 3)
    await store.remove(Removal(RUN, standing(RUN, 3), (2,), ((3, CUT),)))
    await store.leave(RUN, 3, letters("x"))
    assert await other.head(RUN) == head(RUN, 3)
    await store.remove_run(RUN, standing(RUN, 3))
    assert tree(path) == ["store.json"]
    assert os.listdir(path / "runs") == []
    with pytest.raises(HeadMoved):
        await other.commit(step(RUN, 4))
    assert await other.head(RUN) is None


async def test_an_object_that_knew_the_run_before(store, other) -> None:
    """The new run has files of the same names."""
    await write(store, RUN, 3)
    assert await other.head(RUN) == head(RUN, 3)
    await store.remove_run(RUN, standing(RUN, 3))
    for seq in range(1, 4):
        await store.commit(
            step(RUN, seq, token=7)._replace(
                expected=Expected(checkpoint_id(RUN, seq - 1), 7) if seq > 1 else None
            )
        )
    with pytest.raises(HeadMoved, match="token 7"):
        await other.commit(step(RUN, 4))
    assert await other.head(RUN) == head(RUN, 3, token=7)


def die_in(path: str, function: str) -> None:
    """Remove the run, but die where its folder is to be cleared; or records, where that is carried out."""

    def die(*args: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(Tidying, function, die)
    store = FileStore(path)
    if function == "_clear":
        asyncio.run(store.remove_run(RUN, standing(RUN, 4)))
    asyncio.run(store.remove(all_but(of=4)))


async def killed(path: Path, function: str) -> None:
    process = child("test_file_removal", "die_in", str(path), function)
    await asyncio.to_thread(process.communicate, None, 150)
    assert process.returncode == -signal.SIGKILL


async def test_killed_before_the_folder_is_cleared(store, path, other) -> None:
    await write(store, RUN, 4)
    await killed(path, "_clear")
    assert len(sizes(path)) == 5
    for reader in (store, other):
        assert await reader.head(RUN) is None
        assert await seqs(reader, RUN) == []
        assert await ids(reader, 4) == []
        assert await reader.runs(RunQuery()) == []
        assert await reader.damaged() == []
    await other.commit(step(RunId("another"), 1))
    assert os.listdir(path / "runs") == ["another"]
    assert os.listdir(path / "removing") == []


@pytest.mark.parametrize("function", ["_settle", "_carry_out", "_free", "_replace"])
async def test_killed_while_records_are_removed(store, path, other, function) -> None:
    await write(store, RUN, 4)
    await killed(path, function)
    for reader in (store, other):
        assert await reader.head(RUN) == head(RUN, 4)
        assert await reader.records(RUN, 1, 4, Depth.ALL) == [record(RUN, 4, keyframe=CUT)]
        assert await ids(reader, 4) == [4]
    await other.commit(step(RUN, 5))
    assert sorted(sizes(path)) == ["00000004-0.kept", "00000005-0", "00000005-1"]
    for reader in (store, other):
        assert await seqs(reader, RUN) == [4, 5]


# ---------------------------------------------------------------- killed at any moment


def keep_the_latest(path: str, seed: int) -> None:
    """Write and remove until killed; print each seq that is durable."""

    async def main() -> None:
        store = FileStore(path)
        there = await store.head(RUN)
        seq = there.seq if there is not None else 0
        while True:
            seq += 1
            await store.commit(step(RUN, seq))
            print(seq, flush=True)
            if seq % (1 + seed % 4) == 0:
                await store.remove(all_but(of=seq))

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(8))
async def test_killed_at_any_moment(path, seed) -> None:
    chance = random.Random(seed)
    newest = 0
    for _ in range(3):
        process = child("test_file_removal", "keep_the_latest", str(path), seed)
        assert process.stdout is not None
        try:
            for _ in range(chance.randrange(1, 12)):
                newest = int(await asyncio.to_thread(process.stdout.readline))
            await asyncio.sleep(chance.random() / 200)
        finally:
            process.kill()
            process.communicate()
        store = FileStore(path)
        stands = await store.head(RUN)
        assert stands is not None
        assert newest <= stands.seq
        found = await store.records(RUN, 1, EVERYTHING, Depth.ALL)
        assert found[-1].checkpoint_id == stands.checkpoint_id
        # Each has its parent, or can do without.
        assert [one.seq for one in found] == list(range(found[0].seq, stands.seq + 1))
        assert found[0].seq == 1 or found[0].keyframe == CUT
        assert await ids(store, stands.seq) == [one.seq for one in found]
        assert await store.damaged() == []
        assert len(sizes(path)) <= 14
        await store.close()


async def test_a_run_that_moves_on_while_its_tags_are_read_is_not_taken_back(
    store, other, monkeypatch
) -> None:
    await write(store, RUN, 4)
    straight = RunFolder._tags_of

    def moving_on(self, gone):
        monkeypatch.setattr(RunFolder, "_tags_of", straight)
        other._folders.commit(step(RUN, 5))
        return straight(self, gone)

    monkeypatch.setattr(RunFolder, "_tags_of", moving_on)
    with pytest.raises(HeadMoved):
        await store.remove(all_but(of=4))
    assert (await store.head(RUN)).seq == (await other.head(RUN)).seq == 5
    assert await seqs(other, RUN) == [1, 2, 3, 4, 5]


async def test_a_temporary_file_that_others_are_about_to_sweep_up_is_not_used(
    store, path, monkeypatch
) -> None:
    await write(store, RUN, 1)
    answers = iter([False])
    straight = disk._try_lock
    monkeypatch.setattr(
        disk, "_try_lock", lambda handle: next(answers, None) is not False and straight(handle)
    )
    taken: list[Path] = []
    kept = Disk._create_locked

    def noted(self, make):
        found = kept(self, make)
        taken.append(found[0])
        return found

    monkeypatch.setattr(Disk, "_create_locked", noted)
    await store.commit(step(RUN, 2))
    left = set((path / "temp").iterdir())
    assert len(left) == 1, "the one that someone else had locked"
    assert not left & set(taken)
