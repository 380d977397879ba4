"""A page of a list is that part of the whole list, and no more is read for it than it needs."""

import sqlite3
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Checkpoint,
    CheckpointCorrupt,
    CheckpointNotFound,
    CheckpointStorage,
    InMemoryCheckpointStorage,
    Retention,
    RunNotFound,
    SqliteCheckpointStorage,
    Store,
)
from tests.support.durable import Place, Wrapped
from tests.support.modules import browser, pages
from tests.support.parts import Depth, Record, RunId, read_header, read_records
from tests.support.retained import counting, listed
from tests.support.small_limits import small_limits


@pytest.fixture
def _often_keyframes() -> Iterator[None]:
    with small_limits(inline=512, keyframe=900, largest_part=200, compress=1 << 20):
        yield


class Counted(Wrapped):
    """A store that knows how often it was asked for records, and how many it gave."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.asked = self.given = 0

    async def records(self, run_id: RunId, first: int, last: int, depth: Depth) -> Sequence[Record]:
        found = await self.inner.records(run_id, first, last, depth)
        self.asked, self.given = self.asked + 1, self.given + len(found)
        return found


def seen(checkpoint: Checkpoint) -> tuple[Any, ...]:
    """All that a checkpoint shows without values."""
    scopes = {name: scope.sizes() for name, scope in checkpoint.scopes.items()}
    return checkpoint.checkpoint_id, checkpoint.seq, checkpoint.tags, scopes, str(checkpoint.summary())


async def assert_pages(storage: CheckpointStorage, run_id: str | None = None) -> None:
    """Every page of the list is that part of it, whichever of its checkpoints is looked at first."""
    whole = await storage.list_checkpoints(run_id=run_id)
    expected = [seen(checkpoint) for checkpoint in whole]
    for begin in range(len(whole)):
        after = whole[begin - 1] if begin else None
        for limit in (1, 3, len(whole) - begin, len(whole) + 1, None):
            page = await storage.list_checkpoints(run_id=run_id, after=after, limit=limit)
            there = expected[begin:] if limit is None else expected[begin : begin + limit]
            assert [seen(checkpoint) for checkpoint in page] == there
            assert [seen(checkpoint) for checkpoint in reversed(page)] == there[::-1]
    assert await storage.list_checkpoints(run_id=run_id, after=whole[-1], limit=2) == []


@pytest.mark.usefixtures("_often_keyframes")
async def test_pages_of_a_run(place: Place) -> None:
    await counting().run(6, run_id="r", storage=place.storage)
    await assert_pages(await place.reopened(), "r")


@pytest.mark.usefixtures("_often_keyframes")
async def test_pages_of_a_run_with_branches(place: Place) -> None:
    run = await counting(size=40).start(6, run_id="r", storage=place.storage)
    await run.wait_for_completion()
    for checkpoint in [run.checkpoints[place] for place in (8, 3, 6)]:
        await run.restore_checkpoint(checkpoint)
        await run.wait_for_completion()
    await assert_pages(await place.reopened(), "r")


@pytest.mark.usefixtures("_often_keyframes")
async def test_pages_of_a_run_of_which_much_was_removed(place: Place) -> None:
    await counting(size=40).run(12, run_id="r", storage=place.storage)
    made = await listed(place.storage, "r")
    for seq in (1, 2, 3, 4, 6, 9, 10, 11, 12, 13, 20):
        await place.storage.delete(made[seq - 1])
    await place.storage.tag(made[6], "gold")
    await assert_pages(await place.reopened(), "r")


@pytest.mark.usefixtures("_often_keyframes")
async def test_pages_of_a_run_that_keeps_some(place: Place) -> None:
    await counting(Retention.keep_last(5)).run(9, run_id="r", storage=place.storage)
    assert len(await listed(place.storage, "r")) == 10  # five supersteps, their starts and ends
    await assert_pages(await place.reopened(), "r")


async def test_pages_of_several_runs(place: Place) -> None:
    run = await counting(size=40).start(3, run_id="a", storage=place.storage)
    await run.wait_for_completion()
    await counting(size=40).run(2, run_id="b", storage=place.storage)
    await run.restore_checkpoint(run.checkpoints[2])
    await run.wait_for_completion()
    await assert_pages(await place.reopened())


async def test_a_page_reads_what_it_shows() -> None:
    storage = InMemoryCheckpointStorage()
    await counting(size=40).run(1_000, run_id="r", storage=storage)
    counted = Counted(storage.store)
    looking = CheckpointStorage(counted)
    first = await looking.list_checkpoints(run_id="r", limit=10)
    assert (counted.asked, counted.given, len(first)) == (1, 6, 10)  # an end and its start are one record
    middle = (await listed(storage, "r"))[1_000]
    (record,) = await read_records(storage.store, RunId("r"), 1_001, 1_001, Depth.HEADERS)
    replayed = 1_001 - read_header(record).replay_from
    counted.asked = counted.given = 0
    page = await looking.list_checkpoints(run_id="r", limit=10, after=middle)
    assert [one.seq for one in page] == list(range(1_002, 1_012))
    assert counted.asked == 3  # where it begins; the page, and again with what it follows from
    assert counted.given < 40 + replayed


async def test_what_was_removed_is_passed_over_in_a_few_reads() -> None:
    storage = InMemoryCheckpointStorage()
    await counting(size=40).run(1_000, run_id="r", storage=storage)
    await storage.prune(Retention.keep_last(4))
    counted = Counted(storage.store)
    page = await CheckpointStorage(counted).list_checkpoints(run_id="r", limit=3)
    assert [one.seq for one in page] == [1_993, 1_994, 1_995]
    assert counted.asked <= 12
    assert counted.given <= 8


async def test_a_cursor_must_be_one_of_the_run(place: Place) -> None:
    await counting().run(2, run_id="a", storage=place.storage)
    await counting().run(2, run_id="b", storage=place.storage)
    await counting(Retention.latest_only()).run(2, run_id="c", storage=place.storage)
    other = (await listed(place.storage, "b"))[0]
    for run_id in ("a", "c", None):
        for wrong in (other, "0" * 64, "nothing"):
            if run_id is None and wrong is other:
                continue
            with pytest.raises(CheckpointNotFound, match="after="):
                await place.storage.list_checkpoints(run_id=run_id, limit=3, after=wrong)
    with pytest.raises(RunNotFound):
        await place.storage.list_checkpoints(run_id="d", limit=3, after=other)


async def test_a_page_behind_a_header_that_names_no_place(tmp_path: Path) -> None:
    async with SqliteCheckpointStorage(tmp_path / "runs.db") as storage:
        await counting(size=40).run(6, run_id="r", storage=storage)
        made = await listed(storage, "r")
    with closing(sqlite3.connect(tmp_path / "runs.db")) as database, database:
        (header,) = database.execute("SELECT header FROM checkpoints WHERE seq = 8").fetchone()
        damaged = header.replace(b"\xa4from\x01", b"\xa4from\xc0")
        assert damaged != header
        database.execute("UPDATE checkpoints SET header = ? WHERE seq = 8", (damaged,))
    async with SqliteCheckpointStorage(tmp_path / "runs.db") as storage:
        with pytest.raises(CheckpointCorrupt, match=made[7].checkpoint_id):
            await storage.list_checkpoints(run_id="r", after=made[6], limit=1)
        assert await storage.list_checkpoints(run_id="r", limit=7) == made[:7]
        with pytest.raises(CheckpointCorrupt, match=made[8].checkpoint_id):  # which is derived from it
            await storage.list_checkpoints(run_id="r", after=made[7], limit=7)
        assert await storage.list_checkpoints(run_id="r", after=made[8], limit=7) == made[9:]


# -- while it moves on -----------------------------------------------------------------------------


class Before(Wrapped):
    """A store to which something happens each time before records are read."""

    def __init__(self, inner: Store, happen: Callable[[], Awaitable[Any]]) -> None:
        super().__init__(inner)
        self.happen = happen

    async def records(self, run_id: RunId, first: int, last: int, depth: Depth) -> Sequence[Record]:
        await self.happen()
        return await self.inner.records(run_id, first, last, depth)


async def test_a_page_of_a_run_that_never_stands_still() -> None:
    storage = InMemoryCheckpointStorage()
    run = await counting().start(6, run_id="r", storage=storage)
    await run.wait_for_completion()
    expected = (await listed(storage, "r"))[2:5]

    async def move_on() -> None:
        await run.restore_checkpoint(run.checkpoints[-1])
        await run.wait_for_completion()

    looking = CheckpointStorage(Before(storage.store, move_on))
    assert await looking.list_checkpoints(run_id="r", after=expected[0].parent_id, limit=3) == expected


async def test_a_page_is_not_that_of_a_run_that_had_the_name_before() -> None:
    storage = InMemoryCheckpointStorage()
    await counting(name="Old").run(6, run_id="r", storage=storage)
    again = 0

    async def begin_again() -> None:
        nonlocal again
        if not again:
            again += 1
            await storage.delete_run("r")
            await counting(name="New").run(3, run_id="other", storage=storage)
            fork = (await listed(storage, "other"))[2]
            run = await counting(name="New").fork(fork, run_id="r", storage=storage)
            await run.wait_for_completion()

    page = await CheckpointStorage(Before(storage.store, begin_again)).list_checkpoints(run_id="r", limit=3)
    assert page == (await listed(storage, "r"))[:3]
    for checkpoint in page:  # its blobs are those of the new family
        first = await checkpoint.read_state("first", scope_name="S")
        assert first == (await storage.load(checkpoint)).scopes["S"]["first"]


async def test_a_page_of_a_run_with_retention_that_is_taken_back() -> None:
    storage = InMemoryCheckpointStorage()
    run = await counting(Retention.keep_last(4), 40).start(8, run_id="r", storage=storage)
    await run.wait_for_completion()
    before = await listed(storage, "r")
    await storage.tag(before[2], "gold")  # it stays, whatever becomes of the others
    back = 0

    async def take_back() -> None:
        nonlocal back
        back += 1
        if back == 1:
            await run.restore_checkpoint(before[3])
            await run.wait_for_completion()
            await storage.prune()

    looking = CheckpointStorage(Before(storage.store, take_back))
    page = await looking.list_checkpoints(run_id="r", limit=1)
    now = await listed(storage, "r")
    assert before[0] == now[0]
    assert page == now[:1]
    back = 0
    assert (
        await looking.list_checkpoints(run_id="r", after=before[1], limit=2)
        == (await listed(storage, "r"))[2:4]
    )


# -- these tests would notice ----------------------------------------------------------------------


def _follows_from_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pages, "_replayed_from", lambda record: record.seq)


def _always_good(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(browser, "_still_true", lambda *_: True)


def _good_only_at_rest(patch: pytest.MonkeyPatch) -> None:
    def still_true(found: object, before: Any, now: Any, limit: object) -> bool:
        if now.seq > 1_000:
            raise AssertionError("it looks and looks")
        return bool(now.checkpoint_id == before.checkpoint_id)

    patch.setattr(browser, "_still_true", still_true)


@pytest.mark.parametrize(
    ("bug", "test"),
    [
        (_follows_from_nothing, lambda: test_pages_of_a_run(Place("memory", Path()))),
        (_always_good, test_a_page_is_not_that_of_a_run_that_had_the_name_before),
        (_always_good, test_a_page_of_a_run_with_retention_that_is_taken_back),
        (_good_only_at_rest, test_a_page_of_a_run_that_never_stands_still),
    ],
    ids=["follows from nothing", "always good", "always good, with retention", "good only at rest"],
)
async def test_a_planted_bug_is_found(
    bug: Callable[[pytest.MonkeyPatch], None], test: Callable[[], Awaitable[None]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        bug(patch)
        with pytest.raises((AssertionError, CheckpointCorrupt)):
            await test()
