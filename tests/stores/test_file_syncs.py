"""FileStore: what is synced and when, what others see of it, and what comes of calls that fail."""

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.store import Blob, Commit, Depth, LeaveResult, RunQuery
from holdfast.errors import HeadMoved, StorageError
from holdfast.ids import Digest, RunId
from holdfast.stores.file import FileStore
from holdfast.stores.file.commit_threads import _Batch
from tests.stores.file_commits import (
    RUN,
    all_but,
    at,
    everything,
    failing,
    head,
    letters,
    lines_of,
    lock_path,
    opened,
    run_path,
    seqs,
    standing,
    stay,
    step,
    tree,
    write,
)
from tests.support import modules
from tests.support.parts import Disk
from tests.support.store_parts import CommitThreads, HeldLock, LineFile, RunLock

OTHER = RunId("r2")
BLOBS = (Blob(Digest(b"1" * 32), b"x"), Blob(Digest(b"2" * 32), b"y"))


@pytest.fixture
def directory(on_disk: Path) -> Path:
    return on_disk / "store"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch) -> None:
    """Nobody waits long for a lock that a test holds."""
    monkeypatch.setattr(modules.run_lock, "_PATIENCE_SECONDS", 10.0)


# -- how often and in which order ------------------------------------------------------------------


async def test_how_many_syncs(files, others) -> None:
    await files.open()

    async def cost(doing: Any, store: FileStore = files) -> int:
        before = store.fsyncs
        await doing
        return store.fsyncs - before

    await write(files, OTHER, 1)
    assert await cost(files.commit(step(RUN, 1))) == 2  # and the name of the file
    for seq in range(2, 5):
        assert await cost(files.commit(step(RUN, seq))) == 1
        assert await cost(files.commit(stay(RUN, seq, "a"))) == 1
        assert await cost(files.leave(RUN, seq, letters(str(seq)))) == 1
        assert await cost(files.leave(RUN, seq, letters(str(seq)))) == 0
        assert await cost(files.tag(RUN, seq, ["gold"])) == 1
        for reader in (files, others):
            for doing in (reader.head(RUN), reader.notes(RUN), reader.inbox(RUN), reader.runs(RunQuery())):
                assert await cost(doing, reader) == 0
    assert await cost(others.commit(step(RUN, 5)), others) == 1
    # The blob, the names of blobs/, blobs/r1/ and those in it; then only what is new.
    assert await cost(files.commit(step(RUN, 6)._replace(blobs=BLOBS[:1]))) == 1 + 4
    assert await cost(files.commit(step(RUN, 7)._replace(blobs=BLOBS[:1]))) == 1 + 1
    assert await cost(files.commit(step(RUN, 8)._replace(blobs=BLOBS))) == 1 + 2
    assert await cost(files.remove(all_but(2, 3, 4, of=8))) == 1


async def test_a_commit_is_marked_behind_its_sync(files, directory, monkeypatch) -> None:
    """Blobs come first, then the line, its sync, and the mark: what others believe."""
    await write(files, RUN, 1)
    order: list[str] = []
    for owner, name in ((Disk, "put"), (Disk, "sync_data"), (HeldLock, "write_mark")):
        genuine = getattr(owner, name)

        def noticed(*args: Any, genuine: Any = genuine, name: str = name, **options: Any) -> Any:
            order.append(f"{name} {len(lines_of(directory))}")
            return genuine(*args, **options)

        monkeypatch.setattr(owner, name, noticed)
    await files.commit(step(RUN, 2)._replace(blobs=BLOBS[:1]))
    assert order == ["put 2", "sync_data 3", "write_mark 3"]


async def test_a_system_that_takes_no_advice_harms_no_commit(files, others, monkeypatch) -> None:
    """Lines that are synced together are begun to be written before: that may fail, their syncs may not."""
    refused: list[int] = []

    def refuse(handle: int, *_: int) -> None:
        refused.append(handle)
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "posix_fadvise", refuse)
    runs = [RunId(f"r{number}") for number in range(20)]
    for seq in (1, 2):
        before = files.fsyncs
        await asyncio.gather(*(files.commit(step(run, seq)) for run in runs))
        assert files.fsyncs - before >= len(runs)
    assert refused
    for run in runs:
        assert await others.head(run) == head(run, 2)


class Gate:
    """Lets no sync of a line pass before it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *errors: OSError) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        genuine, rest = Disk.sync_data, list(errors)

        def sync_data(disk: Disk, handle: int) -> None:
            self.begun.set()
            assert self.go_on.wait(20)
            if rest:
                raise rest.pop(0)
            genuine(disk, handle)

        monkeypatch.setattr(Disk, "sync_data", sync_data)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, 20)


async def write_one(store: FileStore) -> None:
    await write(store, RUN, 1)
    await store.leave(RUN, 1, letters("x"))


READS: dict[str, Any] = {
    "head": lambda store: store.head(RUN),
    "everything": everything,
}


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("is_fresh", [True, False])
async def test_a_line_is_shown_once_it_is_synced(files, others, monkeypatch, read, fails, is_fresh) -> None:
    """Whoever looks meanwhile waits, and sees what came of it."""
    await write_one(files)
    if not is_fresh:
        await everything(others)
    before = await READS[read](files)
    gate = Gate(monkeypatch, *([OSError(errno.EIO, "no")] if fails else []))
    # With a blob it is not made in the thread of this loop.
    commit = step(RUN, 2)._replace(taken=("x",), notes=stay(RUN, 2, "a").notes, blobs=BLOBS[:1])
    writing = asyncio.create_task(files.commit(commit))
    await gate.reached()
    reading = asyncio.create_task(READS[read](others))
    await asyncio.sleep(0.05)
    is_waiting = not reading.done()
    gate.go_on.set()
    assert is_waiting
    if fails:
        with pytest.raises(StorageError, match="the disk reports an error"):
            await writing
        assert await reading == before
    else:
        await writing
        assert await reading == await READS[read](files) != before


async def test_a_list_shows_what_is_durable_and_waits_for_no_writer(files, others, monkeypatch) -> None:
    """A process that is stopped amid a commit keeps nobody from listing runs."""
    await write_one(files)
    before = await others.runs(RunQuery())
    gate = Gate(monkeypatch)
    writing = asyncio.create_task(files.commit(step(RUN, 2)._replace(blobs=BLOBS[:1])))
    await gate.reached()
    assert await others.runs(RunQuery()) == before
    gate.go_on.set()
    await writing
    assert await others.runs(RunQuery()) == [head(RUN, 2)]


async def test_a_reader_that_does_not_wait_is_noticed(files, others, monkeypatch) -> None:
    monkeypatch.setattr(modules.run_lock.SyncMark, "covers", lambda *_: True)
    with pytest.raises(AssertionError):
        await test_a_line_is_shown_once_it_is_synced(files, others, monkeypatch, "head", False, True)


@pytest.mark.parametrize("is_fresh", [True, False])
async def test_a_line_that_was_taken_back_stays_in_nobodys_memory(
    files, directory, monkeypatch, is_fresh
) -> None:
    """A reader that saw it without the lock, and another line of the same length in its place."""
    await write(files, RUN, 1)
    looking, other = opened(directory), opened(directory)
    if not is_fresh:
        looking.run(RUN).head()
    genuine_hold, genuine_sync = LineFile.hold, Disk.sync_data
    looker = looking.run(RUN)._lines

    def hold(lines: LineFile, *args: Any) -> Any:
        if lines is looker:  # it looked, and now waits for the lock
            monkeypatch.setattr(Disk, "sync_data", genuine_sync)
            monkeypatch.setattr(LineFile, "hold", genuine_hold)
            take_back.set()
            writing.join(20)
            other.commit(step(RUN, 2, owner="b"))
        return genuine_hold(lines, *args)

    take_back, written = threading.Event(), threading.Event()

    def fail(disk: Disk, handle: int) -> None:
        written.set()
        assert take_back.wait(20)
        raise OSError(errno.EIO, "no")

    def write_in_vain() -> None:
        with pytest.raises(OSError, match="no"):
            opened(directory).commit(step(RUN, 2, owner="a"))

    monkeypatch.setattr(Disk, "sync_data", fail)
    monkeypatch.setattr(LineFile, "hold", hold)
    writing = threading.Thread(target=write_in_vain)
    writing.start()
    assert await asyncio.to_thread(written.wait, 20)
    assert await asyncio.to_thread(looking.run(RUN).head) == head(RUN, 2, owner="b")


# -- calls that fail -------------------------------------------------------------------------------

LEAVING = {
    "commit": (lambda store: store.commit(step(RUN, 3)), "cannot commit to run 'r1': "),
    "letters": (lambda store: store.leave(RUN, 2, letters("a")), "cannot leave letters for run 'r1': "),
    "tag": (lambda store: store.tag(RUN, 1, ["gold"]), "cannot tag a checkpoint of run 'r1': "),
    "first": (lambda store: store.commit(step(OTHER, 1)), "cannot commit to run 'r2': "),
}


@pytest.mark.parametrize("function", ["pwrite", "fdatasync", "open", "half"])
@pytest.mark.parametrize("doing", LEAVING)
async def test_a_full_disk(files, others, directory, monkeypatch, doing, function) -> None:
    """Nothing of it is left, for nobody; with room it can be done again."""
    work, complaint = LEAVING[doing]
    await write(files, RUN, 2)
    before = run_path(directory).read_bytes()
    genuine = os.pwrite
    writing = files
    if function == "open":  # the first one keeps the files of its runs open
        writing = others
        await write(writing, RunId("r9"), 1)

    def write_half(handle: int, data: Any, offset: int) -> int:
        if len(data) < 100:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return genuine(handle, data[: len(data) // 2], offset)

    with monkeypatch.context() as patch:
        fail = write_half if function == "half" else failing(errno.ENOSPC)
        patch.setattr(os, function.replace("half", "pwrite"), fail)
        with pytest.raises(StorageError, match="the disk is full: make room, then resume the run") as caught:
            await work(writing)
    assert f"file store {directory}: {complaint}" in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)
    assert run_path(directory).read_bytes() == before
    assert os.listdir(directory / "temp") == []
    for store in (files, others):
        assert await everything(store) == (
            head(RUN, 2),
            [*step(RUN, 1).records, *step(RUN, 2).records],
            [],
            [],
        )
        assert await store.head(OTHER) is None
        assert await store.inspect() == []
    await work(files)
    assert await everything(others) == await everything(files)
    assert await others.inspect() == []


async def test_a_short_write_is_continued(files, others, monkeypatch) -> None:
    genuine = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda handle, data, at: genuine(handle, data[:100], at))
    await write(files, RUN, 2)
    assert await seqs(others) == [1, 2]


async def test_a_folder_that_cannot_be_synced(files, others, directory, monkeypatch) -> None:
    await write(files, OTHER, 1)
    with monkeypatch.context() as patch:
        patch.setattr(Disk, "sync_folder", failing(errno.EIO))
        with pytest.raises(StorageError, match="the disk reports an error: check it before going on"):
            await files.commit(step(RUN, 1))
    assert not run_path(directory).exists()
    assert await others.head(RUN) is None
    await others.commit(step(RUN, 1))
    assert await files.head(RUN) == head(RUN, 1)


async def test_a_mark_of_which_half_was_written_says_nothing(files, others, directory) -> None:
    """The disk was full after a file was written anew: the id is that of the new file, the rest of the old mark."""
    await write(files, RUN, 2)
    mark = lock_path(directory).read_bytes().split()
    assert len(mark) == 3
    lock_path(directory).write_bytes(b"%s %020d %s" % (mark[0], 99_999, mark[2]))
    with run_path(directory).open("ab") as file:
        file.write(b'{"sum":"half a line')
    assert await others.head(RUN) == head(RUN, 2)
    assert await others.inspect() == []
    await files.commit(step(RUN, 3))
    assert await seqs(others) == [1, 2, 3]


# -- doubt -----------------------------------------------------------------------------------------


@pytest.fixture
async def doubted(files, directory, monkeypatch) -> bytes:
    """The run has a line that could be neither synced nor taken back; its content before that."""
    await write_one(files)
    before = run_path(directory).read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing(errno.EIO))
        patch.setattr(os, "ftruncate", failing(errno.EIO))
        with pytest.raises(StorageError) as caught:
            await files.commit(step(RUN, 2))
    assert isinstance(caught.value.__cause__, OSError)
    assert run_path(directory).read_bytes() != before
    return before


@pytest.mark.parametrize("who", ["files", "others"])
@pytest.mark.parametrize("first", ["read", "write"])
async def test_a_file_in_doubt_is_written_anew_by_whoever_comes_next(
    files, others, directory, doubted, who, first
) -> None:
    """From what was durable; also where the line that failed could be read, and a later sync would succeed."""
    store, inode = {"files": files, "others": others}[who], run_path(directory).stat().st_ino
    if first == "read":
        assert await store.head(RUN) == head(RUN, 1)
        assert run_path(directory).read_bytes() == doubted
    else:
        await store.commit(step(RUN, 2, owner="again"))
    assert run_path(directory).stat().st_ino != inode
    assert run_path(directory).read_bytes().startswith(doubted)
    with pytest.raises(HeadMoved):
        await store.commit(step(RUN, 3 if first == "read" else 2))
    await others.commit(stay(RUN, 1, "a") if first == "read" else stay(RUN, 2, "a"))
    assert await everything(files) == await everything(others)
    assert await files.inspect() == []


@pytest.mark.parametrize("bug", [HeldLock.write_mark, lambda *_: None])
async def test_a_doubt_that_is_not_told_is_noticed(files, others, directory, monkeypatch, bug) -> None:
    monkeypatch.setattr(HeldLock, "write_doubt", bug)
    await write_one(files)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing(errno.EIO))
        patch.setattr(os, "ftruncate", failing(errno.EIO))
        with pytest.raises(StorageError):
            await files.commit(step(RUN, 2))
    assert await others.head(RUN) != head(RUN, 1)


async def test_a_doubt_that_comes_back_after_a_power_cut_cuts_nothing_off(files, directory, doubted) -> None:
    """The mark that removed it is durable before anything else is written."""
    synced: list[bytes] = []
    genuine = HeldLock.sync_mark

    def sync(held: HeldLock, disk: Disk) -> None:
        genuine(held, disk)
        synced.append(lock_path(directory).read_bytes())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HeldLock, "sync_mark", sync)
        await files.commit(step(RUN, 2))
    assert [b"doubt" in mark for mark in synced] == [False]
    lock_path(directory).write_bytes(synced[0])
    assert opened(directory).run(RUN).head() == head(RUN, 2)


async def test_a_doubt_about_a_file_that_is_gone_is_passed_over(files, directory, monkeypatch) -> None:
    """A file was written anew, its name could not be synced, and a power cut brought the old one back."""
    monkeypatch.setattr(modules.run_file, "_WASTE", 0)
    await write(files, RUN, 30)
    old = b""

    def replaced(disk: Disk, temp: Path, place: Path) -> None:
        nonlocal old
        old = place.read_bytes()
        genuine(disk, temp, place)

    genuine = Disk.replace
    with monkeypatch.context() as patch:
        patch.setattr(Disk, "replace", replaced)
        patch.setattr(Disk, "sync_folder", failing(errno.EIO))
        with pytest.raises(StorageError):
            await files.remove(all_but(of=30))
    assert b"doubt" in lock_path(directory).read_bytes()
    kept = opened(directory)
    run_path(directory).write_bytes(old)
    assert kept.run(RUN).head() == head(RUN, 30)
    kept.commit(step(RUN, 31))
    assert opened(directory).inspect(None) == []


async def test_a_file_in_doubt_that_cannot_be_read_is_repaired(files, others, directory, doubted) -> None:
    content = bytearray(run_path(directory).read_bytes())
    content[len(doubted) - 5] ^= 1
    run_path(directory).write_bytes(content)
    with pytest.raises(StorageError, match="is damaged"):
        await others.head(RUN)
    (mended,) = await others.mend(RUN)
    assert mended.run_id == RUN
    assert await others.inspect() == []


# -- one at a time ---------------------------------------------------------------------------------


async def test_a_commit_that_changes_nothing_that_matters_loses_nobody(files, others) -> None:
    """Another writer's commit that keeps checkpoint and token does not stop the one that expects them."""
    await write(files, RUN, 1)
    await others.commit(Commit(head(RUN, 1, wake_at=5), at(RUN, 1)))
    await files.commit(step(RUN, 2))
    assert await others.head(RUN) == head(RUN, 2)


async def race(stores: list[FileStore], rounds: int) -> None:
    """In each round all try to follow the same commit."""
    for seq in range(1, rounds + 1):
        commits = [store.commit(step(RUN, seq, owner=str(n))) for n, store in enumerate(stores)]
        outcomes = await asyncio.gather(*commits, return_exceptions=True)
        (winner,) = [str(n) for n, outcome in enumerate(outcomes) if outcome == []]
        assert all(isinstance(outcome, HeadMoved) for outcome in outcomes if outcome != [])
        assert {await store.head(RUN) for store in stores} == {head(RUN, seq, owner=winner)}
    assert await seqs(stores[0]) == list(range(1, rounds + 1))


@pytest.mark.parametrize("is_locked", [True, False])
async def test_one_winner(directory, monkeypatch, is_locked) -> None:
    """Without the lock there would be several: so the test can tell."""
    stores = [FileStore(directory) for _ in range(4)]
    await stores[0].open()
    if is_locked:
        await race(stores, 20)
    else:
        monkeypatch.setattr(modules.marker, "check_locks", lambda _: None)
        monkeypatch.setattr(modules.run_lock, "try_lock", lambda _: True)
        monkeypatch.setattr(CommitThreads, "_make_at_once", lambda *_: False)
        meeting, genuine = threading.Barrier(2, timeout=5), LineFile.append

        def append(*args: Any) -> None:
            """Let two writers that have compared the head meet before one of them writes."""
            with suppress(threading.BrokenBarrierError):
                meeting.wait()
            genuine(*args)

        monkeypatch.setattr(LineFile, "append", append)
        with pytest.raises((AssertionError, ValueError, StorageError)):
            await race(stores, 3)
    for store in stores:
        await store.close()


async def test_a_lost_race_leaves_nothing(files, directory) -> None:
    await write(files, RUN, 2)
    before = tree(directory)
    with pytest.raises(HeadMoved, match="Another writer moved it on"):
        await files.commit(step(RUN, 2)._replace(blobs=BLOBS))
    assert tree(directory) == before


async def test_runs_go_in_parallel(files, monkeypatch) -> None:
    """Two commits of different runs sync at the same time: each waits for the other there."""
    await write(files, RUN, 1)
    await write(files, OTHER, 1)
    both = threading.Barrier(2, timeout=20)
    genuine = Disk.sync_data

    def sync_data(disk: Disk, handle: int) -> None:
        both.wait()
        genuine(disk, handle)

    monkeypatch.setattr(Disk, "sync_data", sync_data)
    await asyncio.gather(files.commit(step(RUN, 2)), files.commit(step(OTHER, 2)))


async def test_a_cancelled_commit_happens_wholly(files, others, monkeypatch) -> None:
    await write(files, RUN, 1)
    await write(files, OTHER, 1)
    gate = Gate(monkeypatch)
    beside = asyncio.create_task(files.commit(step(OTHER, 2)))
    # With a blob they are not made in the thread of this loop.
    commit = asyncio.create_task(files.commit(step(RUN, 2)._replace(blobs=BLOBS[:1])))
    await gate.reached()
    commit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await commit
    gate.go_on.set()
    await beside
    async with asyncio.timeout(20):  # it was begun, so it happens, though nobody waits for it
        while await others.head(RUN) != head(RUN, 2):
            pass
    assert await everything(files) == await everything(others)


async def test_commits_that_are_made_together_fail_alone(files, others, directory, monkeypatch) -> None:
    """One cannot be synced, one lost its run, one begins a run, one waits for another process, one brings a blob."""
    runs = [RunId(f"r{number}") for number in range(6)]
    for run in runs[:5]:
        await write(files, run, 1)
    genuine, broken = Disk.sync_data, run_path(directory, runs[0]).stat().st_ino

    def sync_data(disk: Disk, handle: int) -> None:
        if os.fstat(handle).st_ino == broken:
            raise OSError(errno.EIO, "no")
        genuine(disk, handle)

    monkeypatch.setattr(Disk, "sync_data", sync_data)
    commits = [step(run, 2) for run in runs[:5]]
    commits[1] = step(runs[1], 3)
    commits[4] = commits[4]._replace(blobs=BLOBS[:1])
    with RunLock(lock_path(directory, runs[2])).hold():
        together = [asyncio.create_task(files.commit(one)) for one in (*commits, step(runs[5], 1))]
        await asyncio.wait([together[3]], timeout=20)
        assert not together[2].done()
    outcomes = await asyncio.gather(*together, return_exceptions=True)
    assert [type(one) for one in outcomes] == [StorageError, HeadMoved, list, list, list, list]
    assert [(await others.head(run)).seq for run in runs] == [1, 1, 2, 2, 2, 1]


@pytest.mark.parametrize("where", ["sync", "finish"])
async def test_a_signal_amid_commits_that_are_made_together(files, others, monkeypatch, where) -> None:
    """They are made by the thread, each once; nobody is left waiting for a lock."""
    runs = [RunId(f"r{number}") for number in range(4)]
    for run in runs:
        await write(files, run, 1)
    loop, genuine = asyncio.get_running_loop(), getattr(_Batch, where)
    told: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: told.append(context))

    def interrupted(batch: _Batch, *args: Any) -> None:
        monkeypatch.setattr(_Batch, where, genuine)
        raise Interrupted

    monkeypatch.setattr(_Batch, where, interrupted)
    await asyncio.gather(*(files.commit(step(run, 2)) for run in runs))
    assert [type(context["exception"]) for context in told] == [Interrupted]
    for run in runs:
        assert await others.head(run) == head(run, 2)
        assert [one.seq for one in await others.records(run, 0, 9, Depth.ALL)] == [1, 2]


class Interrupted(Exception):
    """Raised by the handler of a signal."""


async def test_closing_waits_for_commits_that_were_begun(files, directory, monkeypatch) -> None:
    """Also for those that other threads make: nothing is written behind it."""
    genuine, late = CommitThreads._put, threading.Event()

    def put(threads: CommitThreads, job: Callable[[], None]) -> None:
        def do_later() -> None:
            late.wait(0.2)
            job()

        genuine(threads, do_later)

    monkeypatch.setattr(CommitThreads, "_put", put)
    begun = [asyncio.create_task(files.commit(step(RunId(f"r{number}"), 1))) for number in range(9)]
    await begun[0]
    await files.close()
    after = tree(directory)
    await asyncio.gather(*begun)
    assert tree(directory) == after
    assert len(opened(directory).runs(RunQuery())) == 9


# -- locks -----------------------------------------------------------------------------------------


async def test_a_lock_that_another_holds_for_long_is_told(files, directory, monkeypatch) -> None:
    monkeypatch.setattr(modules.run_lock, "_PATIENCE_SECONDS", 0.05)
    await write(files, RUN, 1)
    await write(files, OTHER, 1)
    with RunLock(lock_path(directory)).hold():
        assert await files.head(RUN) == head(RUN, 1)  # whoever reads needs no lock
        for doing in (
            files.commit(step(RUN, 2)),
            files.leave(RUN, 1, letters("a")),
            files.tag(RUN, 1, ["gold"]),
        ):
            with pytest.raises(StorageError) as caught:
                await doing
            assert str(caught.value) == (
                f"{lock_path(directory)}: another process holds this lock for 0.05 s, and seems to stand still. "
                f"If it is stopped, let it go on or end it; the lock ends with it. Nothing was written"
            )
        await files.commit(step(OTHER, 2))
    await files.commit(step(RUN, 2))
    assert await files.leave(RUN, 1, letters("a")) == LeaveResult(head(RUN, 2))


@pytest.mark.parametrize(
    ("flock", "problem"),
    [
        (failing(errno.ENOLCK), "No locks available"),
        (failing(errno.EOPNOTSUPP), "not supported"),
        (lambda *_: None, "two writers got the same lock"),
    ],
    ids=["ENOLCK", "EOPNOTSUPP", "no effect"],
)
async def test_locks_that_do_not_work_are_refused(files, directory, monkeypatch, flock, problem) -> None:
    monkeypatch.setattr("fcntl.flock", flock)
    for doing in (
        files.commit(step(RUN, 1)),
        files.add_blobs(RUN, BLOBS),
        files.remove_run(RUN, standing(RUN, 1)),
    ):
        with pytest.raises(StorageError, match="files cannot be locked there") as caught:
            await doing
        assert problem in str(caught.value)
        assert "use a local directory, or SqliteCheckpointStorage on a local disk" in str(caught.value)
    assert tree(directory) == ["store.json"]
    assert await files.head(RUN) is None


async def test_a_lock_file_that_is_removed_and_made_again_is_one_lock(directory) -> None:
    """Whoever waited for the old one sees that nobody else locks it."""
    path = lock_path(directory)
    path.parent.mkdir(parents=True)
    one, other = RunLock(path), RunLock(path)
    held: list[str] = []
    with one.hold():
        waiting = threading.Thread(target=lambda: hold_for(other, held))
        waiting.start()
        await asyncio.sleep(0.05)
        one.remove()
    await asyncio.to_thread(waiting.join, 20)
    assert held == ["same"]


def hold_for(lock: RunLock, held: list[str]) -> None:
    with lock.hold() as mine:
        same = os.path.samestat(os.stat(lock.path), os.fstat(mine.file.handle))
        held.append("same" if same else "another")
