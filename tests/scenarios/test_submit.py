"""Submitting: a run is put into a storage, and any host or process goes on with it."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TypeAlias

import pytest

from holdfast import (
    CheckpointStorage,
    Host,
    InMemoryCheckpointStorage,
    InvalidArgument,
    NotCheckpointable,
    Run,
    RunExists,
    RunStatus,
    StorageError,
    SuperStepStartedEvent,
    UnnamedWorkflow,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    WrongType,
    executor,
)
from holdfast.stores.memory import MemoryStore
from holdfast.testing import VirtualTime
from tests.support.durable import Place, Wrapped, info_of_run, storage_at
from tests.support.parts import RunId
from tests.support.runs import soon
from tests.support.store_parts import NOON, begin, begin_waiting, leave_letters

Beginning: TypeAlias = Callable[[CheckpointStorage, Workflow], Awaitable[None]]

ran: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


def greeting(storage: CheckpointStorage | None = None) -> Workflow:
    @executor(id="greet")
    async def greet(name: str, ctx: WorkflowContext[None, str]) -> str:
        ran.append(ctx.run_id)
        return f"hello {name}"

    builder = WorkflowBuilder(name="Greeting").set_start_executor(greet)
    return (builder if storage is None else builder.with_checkpointing(storage)).build()


async def test_a_submitted_run_is_driven_by_a_host(place: Place) -> None:
    run_id = await greeting().submit("kelp", storage=place.storage, by="kim")
    assert ran == []
    info = await info_of_run(place.storage, run_id)
    assert (info.status, info.waiting_for, info.interrupted) == (RunStatus.WAITING, ("time",), False)
    assert [one.by for one in await place.storage.list_checkpoints(run_id=run_id)] == ["kim"]
    storage = await place.reopened()
    host = Host(storage, greeting())
    assert await soon(host.wake_due()) == 1
    assert (await info_of_run(storage, run_id)).status is RunStatus.COMPLETED
    run = await greeting().resume(run_id=run_id, storage=storage)
    assert (await soon(run.wait_for_completion())).outputs == ["hello kelp"]
    assert (ran, host.problems) == ([run_id], {})
    assert await host.wake_due() == 0


async def test_a_submitted_run_can_be_resumed_without_a_host(place: Place) -> None:
    assert await greeting(place.storage).submit("kelp", "r1") == "r1"
    run = await greeting().resume(run_id="r1", storage=place.storage)
    assert (await soon(run.wait_for_completion())).outputs == ["hello kelp"]


async def test_nothing_of_a_submitted_run_happens_by_itself(time: VirtualTime, place: Place) -> None:
    await greeting().submit("kelp", "r1", place.storage)
    await time.advance(86_400)
    assert (ran, (await info_of_run(place.storage, "r1")).status) == ([], RunStatus.WAITING)


async def test_a_submitted_run_can_be_cancelled(place: Place) -> None:
    await greeting().submit("kelp", "r1", place.storage)
    await place.storage.cancel("r1", by="kim")
    assert await Host(place.storage, greeting()).wake_due() == 0
    assert (ran, (await info_of_run(place.storage, "r1")).status) == ([], RunStatus.CANCELLED)


async def test_what_cannot_be_submitted(place: Place) -> None:
    await greeting().submit("kelp", "r1", place.storage)
    with pytest.raises(RunExists, match="run 'r1' is in this storage already"):
        await greeting().submit("kelp", "r1", place.storage)
    with pytest.raises(InvalidArgument, match="storage"):
        await greeting().submit("kelp")
    with pytest.raises(InvalidArgument):
        await greeting().submit("kelp", "a/b", place.storage)
    with pytest.raises(WrongType, match="its input is a int"):
        await greeting().submit(5, "r2", place.storage)
    assert [run.run_id for run in await place.storage.list_runs()] == ["r1"]


async def test_an_input_that_cannot_be_stored_is_refused(place: Place) -> None:
    @executor(id="any")
    async def take(value: object) -> None: ...

    workflow = WorkflowBuilder(name="Any").set_start_executor(take).build()
    with pytest.raises(NotCheckpointable):
        await workflow.submit(object(), "r1", place.storage)
    assert await place.storage.list_runs() == []


async def test_a_workflow_without_a_name_is_warned_of(tmp_path: Path) -> None:
    @executor(id="take")
    async def take(value: str) -> None: ...

    async with storage_at("file", tmp_path) as storage:
        with pytest.warns(UnnamedWorkflow, match="Name it"):
            await WorkflowBuilder().set_start_executor(take).build().submit("x", storage=storage)


async def test_a_host_that_gets_hints_takes_runs_up_before_it_looks_again() -> None:
    storage = InMemoryCheckpointStorage()
    woken = asyncio.Event()
    async with Host(storage, greeting(), poll=1e6, woken=lambda run: woken.set()):
        for number in range(3):
            await soon(until_idle())
            await greeting().submit("kelp", f"r{number}", storage)
            await soon(woken.wait())
            woken.clear()


async def until_idle() -> None:
    """Let a host come to wait."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_a_host_goes_on_though_its_hints_fail(caplog: pytest.LogCaptureFixture) -> None:
    class Deaf(Wrapped):
        async def wakeups(self) -> AsyncGenerator[RunId]:
            raise StorageError("the line is cut")
            yield

    storage = CheckpointStorage(Deaf(InMemoryCheckpointStorage().store))
    woken = asyncio.Event()
    with caplog.at_level(logging.INFO, "holdfast.host"):
        async with Host(storage, greeting(), poll=0.001, woken=lambda run: woken.set()):
            await soon(until_idle())
            await greeting().submit("kelp", "r", storage)
            await soon(woken.wait())
    assert "the line is cut" in caplog.text


async def test_hints_of_letters_and_of_runs_that_are_to_be_woken() -> None:
    store = MemoryStore()
    async with aclosing(store.wakeups()) as hints:
        first = asyncio.ensure_future(anext(hints))
        await until_idle()
        await begin(store, "running")
        await begin_waiting(store, "timed", NOON)
        await begin_waiting(store, "asking")
        await leave_letters(store, "a", run="asking")
        assert [await soon(first), await soon(anext(hints))] == ["timed", "asking"]
        async with store.rehearsal() as (copy, _):
            await leave_letters(copy, "b", run="asking")
        await leave_letters(store, "c", run="timed")
        assert await soon(anext(hints)) == "timed"
    await leave_letters(store, "d", run="timed")  # nobody listens any more


def kinds(events: Sequence[WorkflowEvent]) -> list[str]:
    return [type(event).__name__ for event in events]


BEGINNING = ["WorkflowStartedEvent", "WorkflowStatusEvent", "SuperStepStartedEvent", "ExecutorInvokedEvent"]


async def test_a_submitted_run_tells_its_beginning_when_a_host_goes_on_with_it(place: Place) -> None:
    await greeting().submit("kelp", "r", place.storage)
    watching = place.storage.watch("r")
    before = [await anext(watching) for _ in range(2)]
    assert kinds(before) == ["CheckpointSavedEvent", "WorkflowStatusEvent"]
    watchers: list[asyncio.Task[list[WorkflowEvent]]] = []

    async def watch(run: Run) -> list[WorkflowEvent]:
        return [event async for event in run.watch_stream()]

    host = Host(place.storage, greeting(), woken=lambda run: watchers.append(asyncio.create_task(watch(run))))
    await soon(host.wake_due())
    local = await soon(watchers[0])
    stored = [event async for event in watching]
    assert kinds(local) == kinds(stored)
    assert kinds(local)[:4] == BEGINNING
    assert [event.superstep for event in local[:4]] == [event.superstep for event in stored[:4]]
    first = next(event for event in stored if isinstance(event, SuperStepStartedEvent))
    assert first.checkpoint == (await place.storage.list_checkpoints(run_id="r"))[0].info


async def begin_after_cancel(storage: CheckpointStorage, workflow: Workflow) -> None:
    await storage.cancel("r")
    await (await workflow.resume(run_id="r", storage=storage)).wait_for_completion()


async def begin_from_its_checkpoint(storage: CheckpointStorage, workflow: Workflow) -> None:
    (first,) = await storage.list_checkpoints(run_id="r")
    run = await workflow.resume(first, storage=storage)
    await run.wait_for_completion()
    await run.restore_checkpoint(first)
    await run.wait_for_completion()


async def begin_here_and_sleep(storage: CheckpointStorage, workflow: Workflow) -> None:
    run = await workflow.resume(run_id="r", storage=storage)
    assert (await run.wait_for_completion()).status is RunStatus.COMPLETED
    assert kinds([event async for event in run.watch_stream()]).count("WorkflowStartedEvent") == 1


async def begin_and_sleep(storage: CheckpointStorage, workflow: Workflow) -> None:
    host = Host(storage, workflow)
    while (await info_of_run(storage, "r")).status is not RunStatus.COMPLETED:
        await host.wake_due()


async def begin_in_vain(storage: CheckpointStorage, workflow: Workflow) -> None:
    for _ in range(2):
        run = await workflow.resume(run_id="r", storage=storage)
        await run.close()
    await (await workflow.resume(run_id="r", storage=storage)).wait_for_completion()


@pytest.mark.parametrize(
    "way",
    [begin_after_cancel, begin_from_its_checkpoint, begin_here_and_sleep, begin_and_sleep, begin_in_vain],
)
async def test_a_submitted_run_tells_its_beginning_once(place: Place, way: Beginning) -> None:
    @executor(id="nap")
    async def nap(name: str, ctx: WorkflowContext[None, str]) -> str:
        await ctx.sleep(0.01)
        return name

    workflow = WorkflowBuilder(name="Nap").set_start_executor(nap).build()
    await workflow.submit("kelp", "r", place.storage)
    await soon(way(place.storage, workflow))
    found = [event async for event in place.storage.watch("r")]
    assert kinds(found).count("WorkflowStartedEvent") == 1
    beginning = kinds(found).index("WorkflowStartedEvent")
    told = [kind for kind in kinds(found)[beginning:] if kind != "CheckpointSavedEvent"]
    assert told[:4] == BEGINNING
