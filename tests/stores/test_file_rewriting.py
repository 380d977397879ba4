"""FileStore: records and runs that are removed, and files that are written anew, beside others that read and write."""

import asyncio
import contextlib
import os
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ormsgpack
import pytest

from holdfast.checkpoint.store import ClaimRequest, Commit, Depth, EventRow, Letter, RunQuery
from holdfast.errors import CheckpointCorrupt, HeadMoved, StorageError
from holdfast.ids import RunId
from holdfast.stores.file import FileStore
from tests.stores.file_commits import (
    CUT,
    RUN,
    all_but,
    checkpoint_id,
    child,
    everything,
    failing,
    head,
    keys_of,
    letters,
    lines_of,
    opened,
    record,
    run_path,
    seqs,
    standing,
    stay,
    step,
    tree,
    write,
)
from tests.support import modules
from tests.support.modules import run_file
from tests.support.parts import Disk, this_process
from tests.support.store_parts import Directory, HeldLock, LineFile, RunLock, TagChange


@pytest.fixture(autouse=True)
def _little_waste(monkeypatch) -> None:
    """Every removal writes the file anew; nobody waits for long."""
    monkeypatch.setattr(modules.run_lock, "_PATIENCE_SECONDS", 5.0)
    monkeypatch.setattr(run_file, "_WASTE", 0)


async def fill(store: FileStore) -> None:
    """A run of twenty checkpoints with tags, notes, letters, and keys that were used."""
    await write(store, RUN, 20)
    for seq, tags in ((3, ["gold", "\udc80 half"]), (7, ["silver"])):
        await store.tag(RUN, seq, tags)
    await store.leave(RUN, 20, letters("used", "x", "\ud83d", "y"))
    await store.commit(stay(RUN, 20, "a", taken=["used"]))
    await store.commit(stay(RUN, 20, "b", "a"))


async def test_a_file_that_is_written_anew_keeps_all_that_counts(files, others, directory) -> None:
    await fill(files)
    await others.head(RUN)
    before, size = await everything(files), run_path(directory).stat().st_size
    assert await files.remove(all_but(3, 7, of=20))
    assert run_path(directory).stat().st_size < size / 2
    assert [line["kind"] for line in lines_of(directory)] == ["file", "kept", "kept", "kept", "state"]
    kept = [one for one in before[1] if one.seq in (3, 7)] + [record(RUN, 20, keyframe=CUT)]
    for store in (files, others, cold := FileStore(directory)):
        assert await everything(store) == (before[0], kept, before[2], before[3])
        assert [one.tags for one in await store.records(RUN, 3, 7, Depth.HEADERS)] == [
            ("gold", "\udc80 half"),
            ("silver",),
        ]
        left = await store.leave(RUN, 0, [Letter(key, b"") for key in ("used", "x", "\ud83d", "new")])
        assert left.refused == ("used", "x", "\ud83d")
        assert [await store.find(checkpoint_id(RUN, seq)) for seq in (2, 3)] == [None, (RUN, 3)]
        assert await store.inspect() == []
    await cold.close()
    assert keys_of(await others.commit(step(RUN, 21)._replace(taken=("x",)))) == ["\ud83d", "y"]
    assert await seqs(files) == [3, 7, 20, 21]
    assert os.listdir(directory / "temp") == []


async def test_little_waste_is_left_where_it_is(files, directory, monkeypatch) -> None:
    monkeypatch.undo()
    await fill(files)
    assert await files.remove(all_but(3, 7, of=20))
    assert lines_of(directory)[-1]["kind"] == "removal"
    assert await seqs(files) == [3, 7, 20]
    big = record(RUN, 21, values=b"\x00" + ormsgpack.packb("x" * 200_000))
    await files.commit(Commit(head(RUN, 21), standing(RUN, 20), (big,)))
    await files.commit(step(RUN, 22))
    assert await files.remove(all_but(of=22)) is False  # for two have tags
    assert await files.remove(all_but(3, 7, of=22))
    assert run_path(directory).stat().st_size < 10_000
    assert await seqs(files) == [3, 7, 22]


async def test_a_run_that_keeps_only_its_latest_stays_small(files, directory) -> None:
    sizes = []
    for seq in range(1, 101):
        await files.commit(step(RUN, seq))
        if seq % 5 == 0:
            await files.remove(all_but(of=seq))
            sizes.append(run_path(directory).stat().st_size)
    assert max(sizes[1:]) - min(sizes[1:]) < 50
    assert await files.records(RUN, 1, 100, Depth.ALL) == [record(RUN, 100, keyframe=CUT)]


async def test_events_keep_no_room_of_records_that_were_removed(files, others, directory) -> None:
    for seq in range(1, 101):
        big = record(RUN, seq, values=b"\x00" + ormsgpack.packb("x" * 5_000))
        commit = step(RUN, seq)._replace(records=(big,), events=(EventRow(seq, b"events %d" % seq),))
        await files.commit(commit)
        if seq % 5 == 0:
            await files.remove(all_but(of=seq))
    assert run_path(directory).stat().st_size < 40_000
    for store in (files, others):
        rows = await store.events(RUN, 0, 1_000)
        assert [row.data for row in rows] == [b"events %d" % seq for seq in range(1, 101)]


@pytest.mark.parametrize("bug", ["tags", "used keys", "notes", "letters"])
async def test_what_is_not_kept_is_noticed(files, others, directory, monkeypatch, bug) -> None:
    state, kept = run_file._state_draft, run_file._kept_drafts
    lost: dict[str, Any] = {"used keys": {"further": {}}, "notes": {"notes": ()}, "letters": {"letters": ()}}
    if bug == "tags":
        monkeypatch.setattr(
            run_file, "_kept_drafts", lambda all, events: kept([one._replace(tags=()) for one in all], events)
        )
    else:
        monkeypatch.setattr(run_file, "_state_draft", lambda *args: state(*args)._replace(**lost[bug]))
    with pytest.raises((AssertionError, KeyError)):
        await test_a_file_that_is_written_anew_keeps_all_that_counts(files, others, directory)


async def test_a_reader_beside_removals(files, others) -> None:
    """It sees the records of one moment, and each that it sees is whole."""
    await files.commit(step(RUN, 1))

    async def prune() -> None:
        for seq in range(2, 80):
            await files.commit(step(RUN, seq))
            if seq % 4 == 0:
                await files.remove(all_but(of=seq))

    pruning = asyncio.create_task(prune())
    while not pruning.done():
        found = await others.records(RUN, 1, 99, Depth.ALL)
        assert [one.seq for one in found] == list(range(found[0].seq, found[-1].seq + 1))
        assert all(one == record(RUN, one.seq, keyframe=one.keyframe) for one in found)
        assert await others.head(RUN) is not None
    await pruning
    assert await seqs(others) == [76, 77, 78, 79]


@pytest.mark.parametrize("place", ["write_pieces", "replace"])
async def test_a_file_that_cannot_be_written_anew_stays(files, others, directory, monkeypatch, place) -> None:
    await fill(files)
    with monkeypatch.context() as patch:
        patch.setattr(Disk, place, failing(28))
        with pytest.raises(StorageError, match="the disk is full: make room"):
            await files.remove(all_but(3, 7, of=20))
    assert await seqs(others) == [3, 7, 20]  # which was made durable before
    assert keys_of(await others.inbox(RUN)) == ["x", "\ud83d", "y"]
    await files.commit(step(RUN, 21))
    assert await seqs(others) == [3, 7, 20, 21]


# -- removed runs ----------------------------------------------------------------------------------


async def test_nothing_is_left_of_a_removed_run(files, others, directory) -> None:
    await fill(files)
    await write(files, RunId("r2"), 1)
    await others.head(RUN)
    await files.remove_run(RUN, standing(RUN, 20))
    assert [name for name in tree(directory) if "r1" in name] == []
    for store in (files, others):
        assert await everything(store) == (None, [], [], [])
        assert await store.inspect() == []
        assert [found.run_id for found in await store.runs(RunQuery())] == ["r2"]
        with pytest.raises(HeadMoved):
            await store.commit(step(RUN, 21))
    await write(others, RUN, 2)
    assert await everything(files) == (head(RUN, 2), [record(RUN, 1), record(RUN, 2)], [], [])
    assert not (await files.leave(RUN, 0, letters("used"))).refused


class Died(BaseException):
    """Ends a thread at once, as a kill does a process: nobody catches it."""


def dying(*_: Any) -> None:
    raise Died


DEATHS: list[tuple[object, str]] = [
    (LineFile, "remove"),
    (os, "unlink"),
    (HeldLock, "clear_mark"),
    (LineFile, "remove_lock"),
]


@pytest.mark.parametrize(("owner", "name"), DEATHS, ids=[name for _, name in DEATHS])
def test_a_process_that_dies_over_a_removal(directory, owner, name) -> None:
    """The run is gone all the same, its id can be used again, and what comes then stays."""
    one = opened(directory)
    for seq in (1, 2):
        one.commit(step(RUN, seq))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, dying)
        with pytest.raises(Died):
            one.remove_run(RUN, standing(RUN, 2))
    assert opened(directory).run(RUN).head() is None
    assert opened(directory).inspect(None) == []
    assert opened(directory).runs(RunQuery()) == []
    again = opened(directory)
    again.commit(step(RUN, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HeldLock, "write_mark", dying)  # so that the next one has to settle the file
        with pytest.raises(Died):
            again.commit(step(RUN, 2))
    assert opened(directory).run(RUN).head() == head(RUN, 2)
    assert [found.seq for found in opened(directory).run(RUN).records(0, 9, Depth.ALL)] == [1, 2]


def prune_for_ever(directory: str) -> None:
    """Go on with the run; keep the newest checkpoint, or begin the run anew; print what is done."""
    run_file._WASTE = 0
    one = opened(Path(directory))
    there = one.run(RUN).head()
    seq = there.seq if there is not None else 0
    while True:
        seq += 1
        one.commit(step(RUN, seq))
        print(seq, flush=True)
        if seq % 3 == 0:
            one.remove(all_but(of=seq))
        if seq % 10 == 0:
            one.remove_run(RUN, standing(RUN, seq))
            seq = 0
            print(seq, flush=True)


@pytest.mark.parametrize("seed", range(6))
def test_killed_at_any_moment(directory, seed) -> None:
    chance = random.Random(seed)
    for times in range(1, 4):
        process = child("test_file_rewriting", "prune_for_ever", str(directory))
        assert process.stdout is not None
        said = [int(process.stdout.readline()) for _ in range(chance.randint(1, 25))]
        process.kill()
        said += map(int, process.stdout.read().split())
        process.communicate()
        after = opened(directory)
        there = after.run(RUN).head()
        assert (0 if there is None else there.seq) in (
            said[-1],
            (said[-1] + 1) % 11,
            0 if said[-1] == 10 else -1,
        )
        found = [one.seq for one in after.run(RUN).records(0, 99, Depth.ALL)]
        last = found[-1] if found else 0
        assert found == list(range(found[0] if found else 1, last + 1))
        assert len(found) <= 3 * times + 1  # each time it may have died before it removed three of them
        assert after.inspect(None) == []


# -- whatever happens between two reads ------------------------------------------------------------

LAST = 4


def begin(directory: Path) -> None:
    one = opened(directory)
    for seq in range(1, LAST + 1):
        one.commit(step(RUN, seq))
    one.commit(stay(RUN, LAST, "a"))
    one.leave(RUN, letters("x"))
    one.tag(RUN, LAST - 1, TagChange(["gold"], ()))


def prune(one: Directory, last: int = LAST) -> None:
    one.remove(all_but(LAST - 1, of=last))


def move_on_and_prune(one: Directory) -> None:
    for seq in (LAST + 1, LAST + 2):
        one.commit(step(RUN, seq))
    prune(one, LAST + 2)


def delete(one: Directory) -> None:
    one.remove_run(RUN, standing(RUN, LAST))


def begin_anew(one: Directory) -> None:
    delete(one)
    one.commit(step(RUN, 1))


def inspect(one: Directory) -> None:
    assert one.inspect(None) == []


def list_records(one: Directory) -> None:
    found = [found.seq for found in one.run(RUN).records(0, 1 << 40, Depth.ALL)]
    assert found == sorted(set(found))


DUE = ClaimRequest(this_process(), 1 << 60, 0, 9, {"W": None}, abandoned=False)
LOOKS: dict[str, Callable[[Directory], object]] = {
    "inspect": inspect,
    "records": list_records,
    "head": lambda one: one.run(RUN).head(),
    "notes": lambda one: one.run(RUN).notes(),
    "inbox": lambda one: one.run(RUN).inbox(),
    "find": lambda one: one.find(checkpoint_id(RUN, 2)),
    "runs": lambda one: one.runs(RunQuery()),
    "due": lambda one: one.claim(DUE),
    "leave": lambda one: one.leave(RUN, letters("k")),
    "tag": lambda one: one.tag(RUN, 2, TagChange(["silver"], ())),
    "remove": prune,
    "copy": lambda one: inspect(opened(one.copy(None))),
    "copy of one run": lambda one: inspect(opened(one.copy(RUN))),
}


class Between:
    """Lets something happen before the nth look at a folder or a file, unless a lock is held."""

    def __init__(self, nth: int, happen: Callable[[], object], patch: pytest.MonkeyPatch) -> None:
        self.nth, self.looks = nth, 0
        self._happen, self._happening, self._held = happen, False, 0
        for name in ("open", "pread", "listdir", "scandir", "fstat"):
            patch.setattr(os, name, self._noticing(getattr(os, name)))
        acquire, release = RunLock.acquire, RunLock.release

        def take(lock: RunLock, *args: Any) -> HeldLock:
            self._held += 1
            try:
                return acquire(lock, *args)
            except BaseException:
                self._held -= 1
                raise

        def let_go(lock: RunLock, held: HeldLock) -> None:
            release(lock, held)
            self._held -= 1

        patch.setattr(RunLock, "acquire", take)
        patch.setattr(RunLock, "release", let_go)

    def _noticing(self, genuine: Callable[..., Any]) -> Callable[..., Any]:
        def look(*arguments: Any, **options: Any) -> Any:
            if not self._happening and not self._held:
                self.looks += 1
                if self.looks == self.nth:
                    self._happening = True
                    self._happen()
                    self._happening = False
            return genuine(*arguments, **options)

        return look


@pytest.mark.parametrize("happen", [move_on_and_prune, delete, begin_anew])
@pytest.mark.parametrize("look", LOOKS)
def test_what_happens_between_two_reads_is_no_damage(tmp_path, look, happen) -> None:
    """Nothing is said of damage, and nothing raised but that the run moved on."""
    begin(tmp_path / "begun")
    nth = 0
    while True:
        nth += 1
        place = tmp_path / str(nth)
        shutil.copytree(tmp_path / "begun", place)
        looking, meanwhile = opened(place), opened(place)
        looking._get_ready()
        meanwhile._get_ready()
        with pytest.MonkeyPatch.context() as patch:
            between = Between(nth, partial(happen, meanwhile), patch)
            with contextlib.suppress(HeadMoved):
                LOOKS[look](looking)
        assert opened(place).inspect(None) == []
        if between.looks < nth:
            break
    assert nth > 1


def test_one_who_looks_once_is_noticed(tmp_path, monkeypatch) -> None:
    """Bodies are read from another file than the one that was looked at."""
    monkeypatch.setattr(modules.line_file, "_BEGINNING", 8)
    with pytest.raises((AssertionError, CheckpointCorrupt, KeyError)):
        test_what_happens_between_two_reads_is_no_damage(tmp_path, "records", begin_anew)
