"""What takes the room in a storage: every byte is counted, and no blob is read for it."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings

from holdfast import (
    CheckpointStorage,
    Executor,
    InMemoryCheckpointStorage,
    SqliteCheckpointStorage,
    StorageError,
    StorageStatistics,
    StorageUsage,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    executor,
    handler,
    response_handler,
)
from tests.scenarios.test_diff import STEPS, answered, done, forked, puts
from tests.support.durable import Place, Wrapped
from tests.support.durable_damage import SqliteDamage
from tests.support.modules import statistics as counting
from tests.support.parts import Depth, Digest, Head, MemoryStore, Record, RunId, RunQuery, elsewhere, expand
from tests.support.runs import soon
from tests.support.small_limits import small_limits


class Unread(Wrapped):
    """A store whose blobs cannot be read."""

    async def blobs(self, family: RunId, digests: Sequence[Digest]) -> dict[Digest, bytes]:
        raise StorageError("no blob can be read")


def without_blobs(storage: CheckpointStorage) -> CheckpointStorage:
    return CheckpointStorage(Unread(storage.store))


# -- what is counted -------------------------------------------------------------------------------


async def test_an_empty_storage_has_nothing() -> None:
    found = await InMemoryCheckpointStorage().statistics()
    assert found == StorageStatistics()
    assert str(found).splitlines()[0] == "0 runs of 0 workflows, 0 checkpoints"


async def test_blobs_are_counted_but_not_read(place: Place) -> None:
    storage = place.storage
    big = "".join(map(str, range(3000)))
    run = await done(storage, puts(x=big, a=1), puts(a=2), puts(y=big), run_id="r1")
    await forked(storage, run.checkpoints[-1], run_id="r2")
    await done(storage, puts(x=big), run_id="r3")
    storage = await place.reopened()
    found = await without_blobs(storage).statistics()
    size = len(big) + 3
    assert found.total.blobs == 2, "one for the family of r1 and r2, one for r3"
    assert found.total.blob_bytes == 2 * size
    assert found.total.stored_blob_bytes is None
    assert found.total.references == 5, "for x and y in r1, for both in the fork, and in r3"
    assert found.total.saved_bytes == 3 * size
    assert {name: usage.blobs for name, usage in found.by_run.items()} == {"r1": 1, "r2": 1, "r3": 1}
    assert found.by_workflow["Do"] == found.total
    measured = await storage.statistics(measure_blobs=True)
    assert measured.by_run["r1"].stored_blob_bytes == measured.by_run["r3"].stored_blob_bytes
    assert measured.total.stored_blob_bytes == 2 * (measured.by_run["r1"].stored_blob_bytes or 0)
    assert 1000 < (measured.by_run["r1"].stored_blob_bytes or 0) < size


async def test_what_runs_hold_is_counted_by_scope_and_by_executor(place: Place) -> None:
    await answered(place.storage, run_id="r1")
    await answered(place.storage, run_id="r2")
    found = await place.storage.statistics()
    made = await place.storage.get_latest(run_id="r1")
    assert made is not None
    assert found.by_scope == {name: 2 * sum(scope.sizes().values()) for name, scope in made.scopes.items()}
    assert found.by_executor == {"Triage": 2 * (1 + len(b"\x81\xa7service\xa8checkout"))}
    assert found.by_section == {
        "state": sum(found.by_scope.values()),
        "executor_states": found.by_executor["Triage"],
        "outputs": 2 * 9,
        "input": 14,
    }
    assert found.by_run["r1"].held_bytes == sum(found.by_section.values()) // 2
    assert found.total.held_bytes == sum(found.by_section.values())


async def test_all_that_waits_is_counted() -> None:
    class Ask(Executor):
        @handler
        async def ask(self, text: str, ctx: WorkflowContext[str]) -> None:
            await ctx.send_message(text)

    @executor
    async def fail(text: str) -> str:
        raise ZeroDivisionError

    builder = WorkflowBuilder(name="Ask").set_start_executor(Ask).add_edge(Ask, fail)
    storage = InMemoryCheckpointStorage()
    run = await builder.build().start("123456789", storage=storage)
    with pytest.raises(Exception, match="ZeroDivisionError"):
        await soon(run.wait_for_completion())
    assert (await storage.statistics()).by_section == {"messages": 10, "input": 10}


async def test_nested_workflows_that_were_started_often_count_as_one() -> None:
    class Noting(Executor):
        @handler
        async def note(self, number: int, ctx: WorkflowContext[None, int]) -> None:
            await ctx.queue_state_update("number", number, scope_name="Notes")
            await ctx.set_state(number)
            await ctx.request_info(number, response_type=int)

        @response_handler
        async def answered(self, number: int, answer: int, ctx: WorkflowContext[None, int]) -> None: ...

    @executor
    async def start(numbers: int, ctx: WorkflowContext[int]) -> None:
        for number in range(numbers):
            await ctx.send_message(number)

    inner = WorkflowBuilder(name="Inner").set_start_executor(Noting).build()
    nested = WorkflowExecutor(inner, id="legal")
    outer = WorkflowBuilder(name="Outer").set_start_executor(start).add_edge(start, nested).build()
    storage = InMemoryCheckpointStorage()
    run = await outer.start(3, storage=storage)
    await soon(run.wait_for_completion())
    found = await storage.statistics()
    assert found.by_scope == {"legal/Notes": 3}
    assert found.by_executor == {"legal/Noting": 3}
    assert found.by_section["pending_requests"] == 3


async def test_it_is_data_and_text() -> None:
    storage = InMemoryCheckpointStorage()
    big = "x" * 100_000
    await done(storage, puts(log=big, a=1), puts(a=2), run_id="r1")
    await answered(storage, run_id="r2")
    found = await storage.statistics()
    told = json.loads(json.dumps(found.to_dict()))
    assert told["by_run"]["r1"]["blob_bytes"] == 100_005
    assert StorageUsage(**told["total"]) == found.total
    lines = str(found).splitlines()
    assert lines[0] == "2 runs of 2 workflows, 8 checkpoints"
    assert lines[1].startswith("records: ")
    assert lines[2] == "blobs: 3 blobs of 117.8 kB uncompressed; named 3 times, which saved 0 B"
    assert lines[3] == "by workflow"
    assert lines[4].startswith("  Do      4 checkpoints, records ")
    assert lines[4].endswith(", blobs 100.0 kB, holds 100.0 kB")
    assert lines[lines.index("held by scope") + 1] == "  S        100.0 kB"
    many = StorageStatistics(by_scope={f"scope\n{number}": number for number in range(1000)})
    assert str(many).splitlines()[-21:][:2] == ["  'scope\\n999'  999 B", "  'scope\\n998'  998 B"]
    assert str(many).splitlines()[-1] == "  ... and 980 more"


# -- every byte ------------------------------------------------------------------------------------


def counted_by_hand(store: MemoryStore) -> tuple[StorageUsage, int, int]:
    """What the records take, and how much there is beside the blobs of values: how many blobs, of how many bytes."""
    sizes = {"header": 0, "changes": 0, "values": 0, "keyframe": 0}
    away: dict[tuple[RunId, Digest], int] = {}
    for record in store._records.values():
        family = store._heads[record.run_id].family

        def size(part: bytes, family: RunId = family) -> int:
            digest = elsewhere(part)
            if digest is None:
                return len(part)
            away[family, digest] = len(store._blobs[family, digest])
            return away[family, digest]

        sizes["header"] += len(record.header)
        sizes["changes"] += size(record.changes)
        sizes["values"] += size(record.values)
        if record.keyframe is not None:
            sizes["keyframe"] += size(record.keyframe.changes) + size(record.keyframe.values)
    usage = StorageUsage(
        header_bytes=sizes["header"],
        changes_bytes=sizes["changes"],
        values_bytes=sizes["values"],
        keyframe_bytes=sizes["keyframe"],
        new_bytes=sum(record.new_bytes for record in store._records.values()),
    )
    return usage, len(away), sum(away.values())


def test_every_byte_of_a_store_is_counted_once() -> None:
    async def check(steps: list[Any], others: list[Any]) -> None:
        store = MemoryStore()
        storage = CheckpointStorage(store)
        run = await done(storage, *steps)
        await forked(storage, run.checkpoints[1], *steps)
        await done(storage, *others)
        found = (await storage.statistics(measure_blobs=True)).total
        by_hand, away, away_bytes = counted_by_hand(store)
        for name in ("header_bytes", "changes_bytes", "values_bytes", "keyframe_bytes", "new_bytes"):
            assert getattr(found, name) == getattr(by_hand, name), name
        assert found.record_bytes == by_hand.record_bytes
        assert found.checkpoints == len(expand(store._records.values()))
        assert found.blobs + away == len(store._blobs)
        assert (found.stored_blob_bytes or 0) + away_bytes == sum(map(len, store._blobs.values()))
        assert found.references >= found.blobs
        assert found.saved_bytes >= 0

    with asyncio.Runner() as runner, small_limits():

        @given(STEPS, STEPS)
        @settings(max_examples=25)
        def checked(steps: list[Any], others: list[Any]) -> None:
            runner.run(check(steps, others))

        checked()


# -- long work -------------------------------------------------------------------------------------


async def test_it_goes_page_by_page_and_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "_RUNS", 2)
    monkeypatch.setattr(counting, "_RECORDS", 3)
    monkeypatch.setattr(counting, "_BLOBS", 5000)
    asked: list[Any] = []

    class Watched(Wrapped):
        async def runs(self, query: RunQuery) -> Sequence[Head]:
            page = await self.inner.runs(query)
            asked.append(len(page))
            return page

        async def records(self, run_id: RunId, first: int, last: int, depth: Depth) -> Sequence[Record]:
            assert last - first < 3 or depth is Depth.CHANGES
            return await self.inner.records(run_id, first, last, depth)

        async def blobs(self, family: RunId, digests: Sequence[Digest]) -> Any:
            assert len(digests) == 1
            return await self.inner.blobs(family, digests)

    storage = InMemoryCheckpointStorage()
    for number in range(5):
        await done(storage, puts(x="x" * 6000, y="y" * 6000), puts(a=1), run_id=f"r{number}")
    told: list[tuple[int, int]] = []
    watched = CheckpointStorage(Watched(storage.store))
    found = await watched.statistics(progress=lambda *way: told.append(way), measure_blobs=True)
    assert found == await storage.statistics(measure_blobs=True)
    assert list(found.by_run) == [f"r{number}" for number in range(5)]
    assert asked == [2, 2, 1, 0]
    assert told == [(done, 20) for done in (3, 4, 7, 8, 11, 12, 15, 16, 19, 20)]


async def test_what_progress_raises_ends_the_work() -> None:
    storage = InMemoryCheckpointStorage()
    await done(storage, puts(a=1))

    def enough(done: int, of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await storage.statistics(progress=enough)


# -- what goes wrong -------------------------------------------------------------------------------


async def test_a_run_that_is_damaged_is_named_and_the_others_are_counted(tmp_path: Path) -> None:
    async with SqliteCheckpointStorage(tmp_path / "runs.db") as storage:
        await done(storage, puts(a=1), puts(a=2), run_id="r1")
        await done(storage, puts(a=1), puts(a=2), run_id="r2")
        whole = await storage.statistics()
    SqliteDamage(tmp_path, "r1").record(2, "changes", 0)
    async with SqliteCheckpointStorage(tmp_path / "runs.db") as storage:
        found = await storage.statistics()
    assert found.unreadable == ("r1",)
    assert found.by_run["r2"] == whole.by_run["r2"]
    assert str(found).splitlines()[-1] == "not all could be read of r1"


def cut_large_value(folder: Path) -> None:
    (file,) = [path for path in folder.glob("runs.db-blobs/*/*/*") if path.is_file()]
    file.write_bytes(file.read_bytes()[:1000])


async def test_a_blob_that_cannot_be_measured_names_its_runs_and_the_others_are_counted(
    tmp_path: Path,
) -> None:
    big = Random(7).randbytes(300_000)
    async with SqliteCheckpointStorage(tmp_path / "runs.db") as storage:
        run = await done(storage, puts(x=big, y="y" * 6000), run_id="r1")
        await forked(storage, run.checkpoints[-1], run_id="r2")
        await done(storage, puts(y="y" * 6000), run_id="r3")
        whole = await storage.statistics(measure_blobs=True)
        cut_large_value(tmp_path)
        found = await storage.statistics(measure_blobs=True)
    assert found.unreadable == ("r1", "r2")
    assert found.by_run["r3"] == whole.by_run["r3"]
    assert (whole.total.stored_blob_bytes or 0) - (found.total.stored_blob_bytes or 0) > len(big)
    assert found.total.stored_blob_bytes, "what lies beside it is measured"


async def test_a_run_that_goes_meanwhile_is_not_counted() -> None:
    class Gone(Wrapped):
        async def head(self, run_id: RunId) -> Head | None:
            return None if run_id == "r1" else await self.inner.head(run_id)

        async def records(self, run_id: RunId, first: int, last: int, depth: Depth) -> Sequence[Record]:
            return [] if run_id == "r1" else await self.inner.records(run_id, first, last, depth)

    storage = InMemoryCheckpointStorage()
    await done(storage, puts(a=1), run_id="r1")
    await done(storage, puts(a=1), run_id="r2")
    found = await CheckpointStorage(Gone(storage.store)).statistics()
    assert list(found.by_run) == ["r2"]
    assert found.total.runs == 1
    assert found.unreadable == ()


async def test_a_store_that_fails_is_no_damage() -> None:
    class Failing(Wrapped):
        async def records(self, run_id: RunId, first: int, last: int, depth: Depth) -> Sequence[Record]:
            raise StorageError("the disk is gone")

    storage = InMemoryCheckpointStorage()
    await done(storage, puts(a=1))
    with pytest.raises(StorageError, match="the disk is gone"):
        await CheckpointStorage(Failing(storage.store)).statistics()
