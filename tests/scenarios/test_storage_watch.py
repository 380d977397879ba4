"""Durable events through the storage: whoever drives the run, each once and in order, also of the past."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    CheckpointSavedEvent,
    CheckpointStorage,
    EventRetention,
    Executor,
    ExecutorFailed,
    ExecutorFailedEvent,
    ExecutorInvokedEvent,
    Host,
    InMemoryCheckpointStorage,
    InvalidArgument,
    MissedEvents,
    PlainEvent,
    RequestInfoEvent,
    Retention,
    RunNotFound,
    RunStatus,
    StorageError,
    Store,
    SuperStepCompletedEvent,
    Workflow,
    WorkflowBuilder,
    WorkflowCompletedEvent,
    WorkflowContext,
    WorkflowErrorEvent,
    WorkflowEvent,
    WorkflowOutputEvent,
    WorkflowStartedEvent,
    WorkflowStatusEvent,
    WorkflowWarningEvent,
    WrongType,
    event_from_dict,
    handler,
    response_handler,
)
from holdfast.checkpoint.events.watch import EventWatch
from holdfast.stores.memory import MemoryStore
from tests.support.durable import ON_DISK, ROOT, Place, Wrapped, storage_at
from tests.support.parts import EventRow, Head, RunId


@dataclass
class Reached(WorkflowEvent):
    percent: int = 0


@dataclass
class Named(WorkflowEvent):
    name: str = ""


class Begin(Executor):
    @handler
    async def begin(self, count: int, ctx: WorkflowContext[int | bytes, str]) -> None:
        await ctx.add_event(Reached(percent=count))
        await ctx.set_shared_state("count", count)
        await ctx.send_message(count)
        await ctx.send_message(b"nobody takes this")


class Left(Executor):
    @handler
    async def left(self, count: int, ctx: WorkflowContext[int, str]) -> None:
        await ctx.stream("not durable")
        await ctx.yield_output(f"left {count}")
        await ctx.send_message(count)


class Right(Executor):
    broken = False

    @handler
    async def right(self, count: int, ctx: WorkflowContext[int, str]) -> None:
        if Right.broken:
            raise ValueError("broken")
        await ctx.add_event(Reached(percent=50))
        await ctx.send_message(count)


class Join(Executor):
    @handler
    async def join(self, counts: list[int], ctx: WorkflowContext[int, str]) -> None:
        await ctx.request_info(f"{sum(counts)}?", response_type=int)

    @response_handler
    async def answered(self, question: str, answer: int, ctx: WorkflowContext[int, str]) -> None:
        await ctx.yield_output(f"{question} {answer}" + "x" * answer)


def build(storage: CheckpointStorage, durability: Any = "sync") -> Workflow:
    begin, left, right, join = (kind.bind(id=kind.__name__.lower()) for kind in (Begin, Left, Right, Join))
    return (
        WorkflowBuilder(name="Watched")
        .set_start_executor(begin)
        .add_fan_out_edges(begin, [left, right])
        .add_fan_in_edges([left, right], join)
        .with_intermediate_output_from(left)
        .with_durability(durability)
        .with_checkpointing(storage)
        .build()
    )


class Count(Executor):
    pause = 0.0

    @handler
    async def count(self, number: int, ctx: WorkflowContext[int, int]) -> None:
        await asyncio.sleep(Count.pause)
        if number:
            await ctx.send_message(number - 1)
        else:
            await ctx.yield_output(number)


def counter(storage: CheckpointStorage) -> Workflow:
    count = Count.bind(id="count")
    builder = WorkflowBuilder(name="Count", max_iterations=10_000).set_start_executor(count)
    return builder.add_edge(count, count).with_checkpointing(storage).build()


@pytest.fixture(autouse=True)
def _whole() -> None:
    Right.broken = False


async def seen(
    storage: CheckpointStorage, run_id: str = "r", after: str | None = None
) -> list[WorkflowEvent]:
    return [event async for event in storage.watch(run_id, after)]


def shown(events: Sequence[WorkflowEvent]) -> list[dict[str, Any]]:
    """Events as those compare them who saw them at different times; executors begin in any order."""
    forms = []
    for event in events:
        form = event.to_dict()
        if not event.provisional:
            forms.append({**form, "timestamp": None, "event_id": None})
    order = [form if form["event"] != "ExecutorInvokedEvent" else None for form in forms]
    invoked = iter(
        sorted(
            (form for form in forms if form["event"] == "ExecutorInvokedEvent"),
            key=lambda form: (form["superstep"], form["executor_id"]),
        )
    )
    return [next(invoked) if form is None else form for form in order]


def ids(events: Sequence[WorkflowEvent]) -> list[tuple[int, int]]:
    found = [event.event_id for event in events]
    return [(int(seq), int(number)) for seq, _, number in (str(one).partition(".") for one in found)]


def statuses(events: Sequence[WorkflowEvent]) -> list[str]:
    return [str(event.status) for event in events if isinstance(event, WorkflowStatusEvent)]


# -- the same events ---------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["sync", "async"])
async def test_what_a_stream_shows_is_what_a_watcher_sees(place: Place, durability: Any) -> None:
    workflow = build(place.storage, durability=durability)
    told = [event async for event in workflow.run_stream(3, run_id="r")]
    found = await seen(place.storage)
    assert shown(found) == shown(told)
    assert ids(found) == sorted(set(ids(found)))
    assert {type(event).__name__ for event in found} >= {
        "Reached",
        "RequestInfoEvent",
        "WorkflowWarningEvent",
    }
    (request,) = [event.request for event in found if isinstance(event, RequestInfoEvent)]
    storage = await place.reopened()
    run = await build(storage, durability=durability).resume(run_id="r")
    await run.send_response(request.request_id, 7)
    again = [event async for event in run.watch_stream()]
    later = await seen(storage, after=found[-1].event_id)
    told_again = [
        event for event in again if not isinstance(event, RequestInfoEvent)
    ]  # which was asked before
    assert shown(later) == shown(told_again)
    assert await seen(storage, after=later[-1].event_id) == []
    assert [event.to_dict() for event in await seen(storage)] == [event.to_dict() for event in found + later]


async def test_a_watcher_may_begin_behind_any_event(place: Place) -> None:
    await counter(place.storage).run(5, run_id="r")
    events = [event.to_dict() for event in await seen(place.storage)]
    for number, event in enumerate(events):
        rest = [later.to_dict() for later in await seen(place.storage, after=event["event_id"])]
        assert rest == events[number + 1 :]
    assert all(event_from_dict(event).to_dict() == event for event in events)


async def test_a_watcher_follows_a_run_that_goes_on(place: Place) -> None:
    workflow, found = build(place.storage), []
    run = await workflow.start(1, run_id="r")

    async def watch() -> None:
        async for event in place.storage.watch("r", follow=True):
            found.append(event)
            if isinstance(event, RequestInfoEvent):
                await place.storage.respond("r", {event.request_id: 2}, by="kim")
            if statuses([event]) == ["completed"]:
                return

    watching = asyncio.create_task(watch())
    await run.wait_for_completion()
    while not watching.done():
        await asyncio.wait([watching], timeout=0.05)
        run = await workflow.resume(run_id="r")
        await run.wait_for_completion()
    await watching
    assert statuses(found)[:2] == ["running", "waiting"]
    answered = [event.checkpoint for event in found if isinstance(event, CheckpointSavedEvent)]
    assert "kim" in [info.by for info in answered]


# -- changes of the head -----------------------------------------------------------------------------


async def test_a_failure_and_another_try(place: Place) -> None:
    Right.broken = True
    workflow = build(place.storage)
    with pytest.raises(ExecutorFailed):
        await workflow.run(1, run_id="r")
    events = await seen(place.storage)
    assert statuses(events) == ["running", "failed"]
    (failed,) = [event for event in events if isinstance(event, ExecutorFailedEvent)]
    (error,) = [event for event in events if isinstance(event, WorkflowErrorEvent)]
    assert failed.executor_id == "right"
    assert failed.to_dict()["error"] == {"$type": "ValueError", "$text": "broken"}
    assert error.to_dict()["error"]["$type"] == "ExecutorFailed"
    Right.broken = False
    storage = await place.reopened()
    run = await build(storage).resume(run_id="r")
    await run.wait_for_completion()
    later = await seen(storage, after=events[-1].event_id)
    assert statuses(later) == ["running", "waiting"]
    assert [event.superstep for event in later if isinstance(event, SuperStepCompletedEvent)] == [2, 3]


async def test_who_cancelled_a_run_that_nobody_drives(place: Place) -> None:
    await build(place.storage).run(1, run_id="r")
    await place.storage.cancel("r", by="kim")
    last = (await seen(place.storage))[-1]
    assert isinstance(last, WorkflowStatusEvent)
    assert (last.status, last.by, last.superstep) == (RunStatus.CANCELLED, "kim", 3)
    await place.storage.cancel("r", by="sam")
    assert [event.to_dict() for event in await seen(place.storage)][-1] == last.to_dict()


async def test_further_input_and_restore(place: Place) -> None:
    workflow = counter(place.storage)
    await workflow.run(1, run_id="r")
    first = await seen(place.storage)
    await workflow.run(1, run_id="r", if_exists="continue")
    second = await seen(place.storage, after=first[-1].event_id)
    assert statuses(second) == ["running", "completed"]
    assert not [event for event in second if isinstance(event, WorkflowStartedEvent)]
    start = next(event.checkpoint for event in first if isinstance(event, CheckpointSavedEvent))
    run = await workflow.resume(run_id="r")
    await run.restore_checkpoint(start)
    await run.wait_for_completion()
    third = await seen(place.storage, after=second[-1].event_id)
    assert statuses(third) == ["running", "completed"]
    assert [event.data for event in third if isinstance(event, WorkflowOutputEvent)] == [0]


async def test_a_fork_has_events_of_its_own(place: Place) -> None:
    workflow = build(place.storage)
    await workflow.run(1, run_id="r")
    latest = await place.storage.get_latest(run_id="r")
    assert latest is not None
    fork = await workflow.fork(latest, run_id="f", by="kim")
    await fork.wait_for_completion()
    events = await seen(place.storage, "f")
    assert not [event for event in events if isinstance(event, WorkflowWarningEvent)]
    assert [event.data for event in events if isinstance(event, RequestInfoEvent)] == ["2?"]
    assert [event.checkpoint.by for event in events if isinstance(event, CheckpointSavedEvent)] == ["kim"]


async def test_durability_exit_tells_of_merged_checkpoints(place: Place) -> None:
    workflow = build(place.storage, durability="exit")
    told = [event async for event in workflow.run_stream(3, run_id="r")]
    found = await seen(place.storage)
    own = [event.percent for event in told if isinstance(event, Reached)]
    assert [event.percent for event in found if isinstance(event, Reached)] == own
    assert [event.superstep for event in found if isinstance(event, SuperStepCompletedEvent)] == [3]
    assert statuses(found) == ["running", "waiting"]


# -- what is kept ------------------------------------------------------------------------------------


async def test_events_outlive_checkpoints(place: Place) -> None:
    storage = place.storage
    storage.retention = Retention.latest_only()
    await counter(storage).run(40, run_id="r")
    await storage.prune()
    assert len(await storage.list_checkpoints(run_id="r")) == 1
    events = await seen(storage)
    assert [event.superstep for event in events if isinstance(event, SuperStepCompletedEvent)] == [
        *range(1, 42)
    ]
    assert not [event for event in events if isinstance(event, WorkflowWarningEvent)]


async def test_old_events_go_and_a_marker_says_so(place: Place) -> None:
    storage = place.storage
    storage.event_retention = EventRetention(checkpoints=100, age=timedelta(0))
    workflow = counter(storage)
    await workflow.run(40, run_id="r")
    early = (await seen(storage))[3].event_id
    await workflow.run(300, run_id="r", if_exists="continue")
    for after in (None, early):
        marker, *events = await seen(storage, after=after)
        assert isinstance(marker, WorkflowWarningEvent)
        assert isinstance(marker.warning, MissedEvents)
        assert marker.event_id is None
        saved = [event.checkpoint.seq for event in events if isinstance(event, CheckpointSavedEvent)]
        assert saved == [*range(saved[0], saved[-1] + 1)]
        assert 100 <= len(saved) <= 360
    assert await seen(storage, after=events[-1].event_id) == []


async def test_young_events_stay_however_many(place: Place) -> None:
    place.storage.event_retention = EventRetention(checkpoints=1, age=timedelta(days=1))
    await counter(place.storage).run(300, run_id="r")
    events = await seen(place.storage)
    assert len([event for event in events if isinstance(event, SuperStepCompletedEvent)]) == 301


async def test_a_large_output_is_read_from_its_checkpoint(place: Place) -> None:
    storage = place.storage
    storage.retention = Retention.latest_only()
    workflow = build(storage)
    result = await workflow.run(1, run_id="r")
    run = await workflow.resume(run_id="r")
    await run.send_response(result.pending_requests[0].request_id, 50_000)
    await run.wait_for_completion()
    output = [event.data for event in await seen(storage) if isinstance(event, WorkflowOutputEvent)][-1]
    assert output == "2? 50000" + "x" * 50_000
    await workflow.run(1, run_id="r", if_exists="continue")
    await storage.prune()
    gone = [event.data for event in await seen(storage) if isinstance(event, WorkflowOutputEvent)]
    assert any(isinstance(data, dict) and "do not keep" in data["$text"] for data in gone)


class Many(Executor):
    @handler
    async def many(self, number: int, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output("early")
        for one in range(number):
            await ctx.add_event(Named(name=f"{one:5}" * 20))
            await ctx.yield_output(f"{one:4}" * 25)
            await ctx.request_info(f"{one:3}" * 30, response_type=bool)

    @response_handler
    async def answered(self, question: str, answer: bool, ctx: WorkflowContext[Any, str]) -> None: ...


async def test_many_values_are_read_from_their_checkpoint(place: Place) -> None:
    storage = place.storage
    workflow = WorkflowBuilder(name="Many").set_start_executor(Many).build()
    number = 1_000
    told = [event async for event in workflow.run_stream(number, run_id="r", storage=storage)]
    assert shown(await seen(storage)) == shown(told)
    other = await place.reopened()
    plain = await seen(other)
    assert [event.to_dict()["fields"]["name"] for event in plain if isinstance(event, PlainEvent)] == [
        f"{one:5}" * 20 for one in range(number)
    ]
    run = await workflow.resume(run_id="r", storage=other)
    run = await workflow.fork(run.checkpoints[-1], run_id="f", storage=other)
    await run.wait_for_completion()
    asked = [event.data for event in await seen(other, "f") if isinstance(event, RequestInfoEvent)]
    assert asked == [f"{one:3}" * 30 for one in range(number)]


async def test_the_last_of_many_outputs_is_that_of_the_run(place: Place) -> None:
    class Outputs(Executor):
        @handler
        async def give(self, number: int, ctx: WorkflowContext[Any, str]) -> None:
            for one in range(number):
                await ctx.yield_output(f"{one:4}" * 25)

    workflow = WorkflowBuilder(name="Outputs").set_start_executor(Outputs).build()
    await workflow.run(1_000, run_id="r", storage=place.storage)
    last = (await seen(place.storage))[-1]
    assert isinstance(last, WorkflowCompletedEvent)
    assert last.data == " 999" * 25
    await workflow.run(1, run_id="r", storage=place.storage, if_exists="continue")
    await place.storage.prune(Retention.latest_only())
    outputs = [event.data for event in await seen(place.storage) if isinstance(event, WorkflowOutputEvent)]
    assert [isinstance(data, dict) and "do not keep" in data["$text"] for data in outputs] == [
        True
    ] * 1_000 + [False]


async def test_a_watcher_without_the_classes(tmp_path: Path) -> None:
    storage = storage_at("sqlite", tmp_path)
    told = [event async for event in build(storage).run_stream(3, run_id="r")]
    await storage.close()
    other = storage_at("sqlite", tmp_path)
    events = await seen(other)
    assert shown(events) == shown(told)
    own = [event for event in events if isinstance(event, PlainEvent)]
    assert [(event.name, event.fields) for event in own] == [
        ("Reached", {"percent": 3}),
        ("Reached", {"percent": 50}),
    ]
    await other.close()


# -- wrong arguments, damage -------------------------------------------------------------------------


async def test_what_cannot_be_watched(place: Place) -> None:
    storage = place.storage
    with pytest.raises(RunNotFound):
        await seen(storage, "nobody")
    await counter(storage).run(1, run_id="r")
    for after in ("1", "x.y", "", "-1.0", "1.2.3", "9" * 30 + ".1"):
        with pytest.raises(InvalidArgument, match="no id of an event"):
            await seen(storage, after=after)
        with pytest.raises(InvalidArgument, match="no id of an event"):
            storage.watch("r", after)  # before anything is sent to somebody
    with pytest.raises(WrongType, match="follow"):
        storage.watch("r", follow="yes")  # type: ignore[arg-type]
    with pytest.raises(WrongType, match="event_retention"):
        storage.event_retention = 5  # type: ignore[assignment]
    for wrong in ({"checkpoints": 0}, {"checkpoints": True}, {"age": 5}, {"age": timedelta(-1)}):
        with pytest.raises(InvalidArgument, match="EventRetention"):
            EventRetention(**wrong)


async def test_a_watcher_of_an_older_copy_begins_anew(place: Place) -> None:
    await counter(place.storage).run(1, run_id="r")
    marker, *events = await seen(place.storage, after="1000.0")
    assert isinstance(marker, WorkflowWarningEvent)
    assert "older copy" in marker.message
    assert [event.to_dict() for event in events] == [event.to_dict() for event in await seen(place.storage)]


async def test_a_submitted_run_has_yet_to_rest(place: Place) -> None:
    workflow = counter(place.storage)
    await workflow.submit(2, run_id="r")
    watching = asyncio.create_task(seen(place.storage))
    async with Host(place.storage, workflow):
        events = await watching
    assert statuses(events)[-1] == "completed"


async def test_a_watcher_of_a_removed_run_comes_to_its_end(place: Place) -> None:
    storage = place.storage
    await counter(storage).run(1, run_id="r")
    events = storage.watch("r", follow=True)
    first = await anext(events)
    assert isinstance(first, WorkflowStartedEvent)
    await storage.delete_run("r")
    assert [event async for event in events][-1].event_id is not None


async def test_a_watcher_of_a_run_comes_to_its_end_though_another_has_its_id(place: Place) -> None:
    storage = place.storage
    await counter(storage).run(1, run_id="r")
    events = storage.watch("r", follow=True)
    known = [(await anext(events)).event_id for _ in range(8)]
    await storage.delete_run("r")
    await counter(storage).run(50, run_id="r")
    rest = [event.event_id async for event in events]
    assert len(rest) < 10
    assert known == ["1.0", "1.1", "1.2", "1.3", "1.4", "2.0", "2.1", "2.2"]


class Counting(Wrapped):
    """A store that counts how often events are read between two moments at which a head was read."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.heads: asyncio.Queue[int] = asyncio.Queue()
        self.reads = 0

    async def head(self, run_id: RunId) -> Head | None:
        self.heads.put_nowait(self.reads)
        return await self.inner.head(run_id)

    async def events(self, run_id: RunId, first: int, limit: int) -> Sequence[EventRow]:
        self.reads += 1
        return await self.inner.events(run_id, first, limit)


async def test_a_watcher_reads_no_events_while_nothing_happens() -> None:
    counting = Counting(InMemoryCheckpointStorage().store)
    storage = CheckpointStorage(counting)
    await counter(storage).run(1, run_id="r")
    count = len(await seen(storage))
    events = storage.watch("r", follow=True)
    for _ in range(count):
        await anext(events)
    more = asyncio.ensure_future(anext(events))
    while not counting.heads.empty():
        counting.heads.get_nowait()
    reads = [await counting.heads.get() for _ in range(6)]
    assert reads[-1] == reads[2]
    await counter(storage).run(1, run_id="r", if_exists="continue")
    assert (await more).event_id is not None
    await events.aclose()


async def test_a_damaged_row_is_told_and_the_others_shown(tmp_path: Path) -> None:
    storage = storage_at("sqlite", tmp_path)
    await counter(storage).run(3, run_id="r")
    whole = await seen(storage)
    await storage.close()
    with sqlite3.connect(tmp_path / "runs.db") as connection:
        connection.execute("UPDATE checkpoints SET events = events || x'00' WHERE seq = 4")
    connection.close()
    storage = storage_at("sqlite", tmp_path)
    events = await seen(storage)
    (marker,) = [event for event in events if isinstance(event, WorkflowWarningEvent)]
    assert isinstance(marker.warning, MissedEvents)
    assert "damaged" in marker.message
    left = [event.event_id for event in events if event is not marker]
    assert left == [event.event_id for event in whole if not str(event.event_id).startswith("4.")]
    assert (await storage.verify()).ok
    await storage.close()


async def test_a_damaged_row_does_not_keep_a_run_from_going_on(tmp_path: Path) -> None:
    storage = storage_at("sqlite", tmp_path)
    storage.event_retention = EventRetention(checkpoints=1, age=timedelta(0))
    workflow = counter(storage)
    await workflow.run(3, run_id="r")
    with sqlite3.connect(tmp_path / "runs.db") as connection:
        connection.execute("UPDATE checkpoints SET events = x'0102030405060708'")
    connection.close()
    result = await workflow.run(200, run_id="r", if_exists="continue")
    assert result.status is RunStatus.COMPLETED
    marker, *events = await seen(storage)
    assert isinstance(marker, WorkflowWarningEvent)
    assert events
    await storage.close()


async def test_events_that_cannot_be_read_do_not_keep_a_run_from_going_on(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*args: object) -> None:
        raise StorageError("the disk is gone for a moment")

    place.storage.event_retention = EventRetention(checkpoints=1, age=timedelta(0))
    monkeypatch.setattr(place.storage.store, "events", fail)
    assert (await counter(place.storage).run(200, run_id="r")).status is RunStatus.COMPLETED
    monkeypatch.undo()
    assert (
        len([event for event in await seen(place.storage) if isinstance(event, SuperStepCompletedEvent)])
        == 201
    )


# -- another process, killed drivers -----------------------------------------------------------------

DRIVER = """
import asyncio, sys
from tests.scenarios.test_storage_watch import Count, counter
from tests.support.durable import storage_at
from pathlib import Path

async def main(kind, folder):
    Count.pause = 0.004
    workflow = counter(storage_at(kind, Path(folder)))
    run = await workflow.start(499, run_id="r", if_exists="attach")
    await run.wait_for_completion()

asyncio.run(main(*sys.argv[1:]))
"""

WATCHER = """
import asyncio, json, sys
from tests.support.durable import storage_at
from pathlib import Path

async def main(kind, folder):
    storage = storage_at(kind, Path(folder))
    last = None
    for connection in range(1_000):
        taken = 0
        async for event in storage.watch("r", last, follow=True):
            if event.event_id is not None:
                last = event.event_id
            print(json.dumps([connection, event.to_dict()]), flush=True)
            taken += 1
            if event.to_dict().get("status") == "completed":
                return
            if taken == 60:  # the connection breaks
                break

asyncio.run(main(*sys.argv[1:]))
"""


def start(program: str, *args: str, stdout: int | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", program, *args], cwd=ROOT, stdout=stdout, text=True)


def watch_while_drivers_die(kind: str, folder: Path) -> list[tuple[int, dict[str, Any]]]:
    """Return what a watcher in another process saw, with the number of its connection."""
    driver = start(DRIVER, kind, str(folder))
    watcher: subprocess.Popen[str] | None = None
    found: list[tuple[int, dict[str, Any]]] = []
    kills = [100, 300]
    try:
        storage = storage_at(kind, folder)
        asyncio.run(_until_begun(storage))
        watcher = start(WATCHER, kind, str(folder), stdout=subprocess.PIPE)
        assert watcher.stdout is not None
        for line in watcher.stdout:
            connection, event = json.loads(line)
            found.append((connection, event))
            if kills and event["superstep"] >= kills[0]:
                kills.pop(0)
                os.kill(driver.pid, signal.SIGKILL)
                driver.wait()
                driver = start(DRIVER, kind, str(folder))
        assert driver.wait(60) == 0
        assert not kills
        assert watcher.wait(60) == 0
    finally:
        for process in (driver, watcher):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
            if process is not None and process.stdout is not None:
                process.stdout.close()
    return found


async def _until_begun(storage: CheckpointStorage) -> None:
    async with storage:
        while not await storage.list_runs():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.02)


def check_each_once(found: Sequence[tuple[int, dict[str, Any]]]) -> None:
    assert found[-1][0] >= 50  # connections
    events = [event for _, event in found]
    places = [tuple(map(int, event["event_id"].split("."))) for event in events]
    assert places == sorted(set(places))
    completed = [event["superstep"] for event in events if event["event"] == "SuperStepCompletedEvent"]
    assert completed == [*range(1, 501)]
    saved = [event["checkpoint"]["seq"] for event in events if event["event"] == "CheckpointSavedEvent"]
    assert saved == [*range(1, saved[-1] + 1)]
    running = [event for event in events if event.get("status") == "running"]
    assert len(running) == 3
    assert "MissedEvents" not in {event["event"] for event in events}


@pytest.mark.parametrize("kind", ON_DISK)
def test_a_watcher_that_reconnects_while_drivers_are_killed(tmp_path: Path, kind: str) -> None:
    found = watch_while_drivers_die(kind, tmp_path)
    check_each_once(found)
    again = next(number for number, (connection, _) in enumerate(found) if connection == 1)
    completed = next(
        number for number, (_, event) in enumerate(found) if event["event"] == "SuperStepCompletedEvent"
    )
    planted = [
        [*found[:again], found[again - 1], *found[again:]],  # it saw the last event again
        [*found[:completed], *found[completed + 1 :]],  # it lost one
        [*found[: again - 1], found[again], found[again - 1], *found[again + 1 :]],  # the wrong way round
    ]
    for wrong in planted:
        with pytest.raises(AssertionError):
            check_each_once(wrong)


@pytest.mark.parametrize("bug", ["repeats", "skips"])
async def test_a_watch_that_begins_at_the_wrong_event_is_noticed(
    place: Place, monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    begin = EventWatch.__init__

    def wrong(self: EventWatch, *args: Any) -> None:
        begin(self, *args)
        shift = -1 if bug == "repeats" else 1
        self._last = self._last._replace(number=self._last.number + shift)

    monkeypatch.setattr(EventWatch, "__init__", wrong)
    with pytest.raises(AssertionError):
        await test_a_watcher_may_begin_behind_any_event(place)


async def test_executors_that_begin_are_seen_before_they_end(place: Place) -> None:
    """A watcher elsewhere knows which executor is at work."""
    entered, go_on = asyncio.Event(), asyncio.Event()

    class Slow(Executor):
        @handler
        async def work(self, number: int, ctx: WorkflowContext[int, int]) -> None:
            entered.set()
            await go_on.wait()

    workflow = (
        WorkflowBuilder(name="Slow")
        .set_start_executor(Slow(id="slow"))
        .with_checkpointing(place.storage)
        .build()
    )
    run = await workflow.start(1, run_id="r")
    await entered.wait()
    async for event in place.storage.watch("r"):
        if isinstance(event, ExecutorInvokedEvent):
            assert (event.executor_id, event.message_count) == ("slow", 1)
            go_on.set()
    await run.wait_for_completion()


# -- events that move with their run -----------------------------------------------------------------


async def test_events_come_along_with_an_export(place: Place, tmp_path: Path) -> None:
    await build(place.storage).run(3, run_id="r")
    await place.storage.cancel("r", by="kim")
    await place.storage.export_run("r", tmp_path / "r.run")
    other = CheckpointStorage(MemoryStore())
    await other.import_run(tmp_path / "r.run")
    assert [event.to_dict() for event in await seen(other)] == [
        event.to_dict() for event in await seen(place.storage)
    ]


async def test_events_come_along_with_a_copy_and_its_updates(place: Place) -> None:
    other = CheckpointStorage(MemoryStore())
    workflow = build(place.storage)
    result = await workflow.run(3, run_id="r")
    await place.storage.copy_to(other)
    run = await workflow.resume(run_id="r")
    await run.send_response(result.pending_requests[0].request_id, 7)
    await run.wait_for_completion()
    for _ in range(2):
        await place.storage.copy_to(other)
        assert [event.to_dict() for event in await seen(other)] == [
            event.to_dict() for event in await seen(place.storage)
        ]
