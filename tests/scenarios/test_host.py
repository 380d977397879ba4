"""Hosts: runs that wait for time or for answers, or whose process died, are woken by whoever hosts them."""

import asyncio
import gc
import logging
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence, Set
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast import (
    CheckpointStorage,
    Executor,
    ExecutorFailed,
    GraphChanged,
    Host,
    InMemoryCheckpointStorage,
    InvalidArgument,
    Run,
    RunStatus,
    StorageError,
    Store,
    UnroutedMessage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WrongType,
    executor,
    handler,
    response_handler,
)
from holdfast import host as host_module
from holdfast.testing import VirtualTime
from tests.support.durable import Place, Wrapped, info_of_run, storage_at
from tests.support.inside import introduce, never_wake
from tests.support.parts import ClaimRequest, Commit, Expected, Head, Letter, RunId
from tests.support.runs import soon

HOUR = 3_600
ran: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


class Work(Executor):
    """Sleeps for some hours, then does something once."""

    @handler
    async def work(self, hours: float, ctx: WorkflowContext[None, str]) -> str:
        await ctx.sleep(hours * HOUR)
        ran.append(str(ctx.run_id))
        return "awake"


def sleeping(name: str = "Sleeping") -> Workflow:
    return WorkflowBuilder(name=name).set_start_executor(Work.bind(id="work")).build()


class Ask(Executor):
    @handler
    async def ask(self, hours: float, ctx: WorkflowContext[float]) -> None:
        await ctx.request_info("q", response_type=bool, request_id="q")
        if hours:
            await ctx.send_message(hours)

    @response_handler
    async def answered(self, name: str, yes: bool, ctx: WorkflowContext[float, str]) -> None:
        ran.append(f"answered {yes}")
        await ctx.yield_output(str(yes))


def asking(name: str = "Asking") -> Workflow:
    ask, work = Ask.bind(id="ask"), Work.bind(id="work")
    return WorkflowBuilder(name=name).set_start_executor(ask).add_edge(ask, work).build()


async def left(workflow: Workflow, storage: CheckpointStorage, run_id: str = "r", message: Any = 1.0) -> Head:
    """Start a run and leave it to others once it waits."""
    run = await workflow.start(message, run_id=run_id, storage=storage)
    await soon(run.driven())
    head = await storage.store.head(RunId(run_id))
    assert head is not None
    assert head.status is RunStatus.WAITING
    return head


async def status(storage: CheckpointStorage, run_id: str = "r") -> RunStatus:
    return (await info_of_run(storage, run_id)).status


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until something holds of which nobody tells."""

    async def wait() -> None:
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    await soon(wait())


# -- what is woken ---------------------------------------------------------------------------------


async def test_runs_are_woken_when_their_time_has_come(place: Place, time: VirtualTime) -> None:
    for number in range(1, 4):
        await left(sleeping(), place.storage, f"r{number}", float(number))
    storage = await place.reopened()
    host = Host(storage, sleeping())
    assert await host.wake_due() == 0
    for number in range(1, 4):
        await time.advance(HOUR)
        assert await host.wake_due() == 1
        assert ran == [f"r{known}" for known in range(1, number + 1)]
    assert [run.status for run in await storage.list_runs()] == [RunStatus.COMPLETED] * 3
    assert await host.wake_due() == 0
    assert (host.active, host.problems) == ([], {})


async def test_runs_are_woken_when_they_are_answered(place: Place, time: VirtualTime) -> None:
    await left(asking(), place.storage, message=0.0)
    host = Host(place.storage, asking())
    assert await host.wake_due() == 0
    await place.storage.respond("r", {"q": True})
    assert await host.wake_due() == 1
    assert (ran, await status(place.storage)) == (["answered True"], RunStatus.COMPLETED)


async def test_only_the_workflows_of_a_host_are_woken(time: VirtualTime, storage: CheckpointStorage) -> None:
    for name in "abc":
        await left(sleeping(name), storage, name)
    await time.advance(HOUR)
    assert await Host(storage, sleeping("a"), sleeping("c")).wake_due() == 2
    assert (sorted(ran), await status(storage, "b")) == (["a", "c"], RunStatus.WAITING)


async def test_a_host_serves_until_it_is_left(place: Place) -> None:
    workflow = sleeping()
    async with Host(place.storage, workflow, poll=0.01):
        for number in range(10):
            run = await workflow.start(0.02 / HOUR, run_id=f"r{number}", storage=place.storage)
            await soon(run.driven())

        async def over() -> bool:
            return all(run.status is RunStatus.COMPLETED for run in await place.storage.list_runs())

        await until(over)
    assert sorted(ran) == [f"r{number}" for number in range(10)]


async def test_serve_ends_when_it_is_cancelled(time: VirtualTime, storage: CheckpointStorage) -> None:
    await left(sleeping(), storage)
    await time.advance(HOUR)
    serving = asyncio.ensure_future(Host(storage, sleeping(), poll=0.01).serve())

    async def over() -> bool:
        return await status(storage) is RunStatus.COMPLETED

    await until(over)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(serving)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_run_that_sleeps_again_is_woken_again(place: Place, time: VirtualTime) -> None:
    class Twice(Executor):
        @handler
        async def work(self, hours: float, ctx: WorkflowContext[None, str]) -> str:
            await ctx.sleep(hours * HOUR)
            ran.append("first")
            await ctx.sleep(hours * HOUR)
            return "awake"

    workflow = WorkflowBuilder(name="Twice").set_start_executor(Twice.bind(id="twice")).build()
    await left(workflow, place.storage)
    host = Host(place.storage, workflow)
    await time.advance(HOUR)
    assert await host.wake_due() == 1
    assert (await info_of_run(place.storage, "r")).wake_at == time.now() + timedelta(hours=1)
    assert host._tried == {}
    await time.advance(HOUR)
    assert await host.wake_due() == 1
    assert await status(place.storage) is RunStatus.COMPLETED


@pytest.mark.parametrize("held", [False, True])
async def test_what_a_run_fails_with_is_told(
    time: VirtualTime, storage: CheckpointStorage, caplog: pytest.LogCaptureFixture, held: bool
) -> None:
    @executor(id="bad")
    async def bad(hours: float, ctx: WorkflowContext[None, str]) -> str:
        await ctx.sleep(hours * HOUR)
        raise ConnectionError("nobody answers")

    workflow = WorkflowBuilder(name="Bad").set_start_executor(bad).build()
    if held:
        run = await workflow.start(1.0, run_id="r", storage=storage)
        await until(lambda: _is(run, RunStatus.WAITING))
        time._timers.clear()  # so that it does not wake by itself
    else:
        await left(workflow, storage)
    await time.advance(HOUR)
    host = Host(storage, workflow)
    with caplog.at_level(logging.WARNING, "holdfast.host"):
        assert (await soon(host.wake_due()), await soon(host.wake_due())) == (1, 0)
    info = await info_of_run(storage, "r")
    assert info.status is RunStatus.FAILED
    assert "ConnectionError" in info.reason
    assert caplog.text.count("ConnectionError: nobody answers") >= 1
    assert "run r failed" in caplog.text
    (problem,) = host.problems.values()
    assert isinstance(problem, ExecutorFailed)
    assert problem.executor_id == "bad"
    assert isinstance(problem.__cause__, ConnectionError)
    assert (
        problem.__traceback__ is problem.__cause__.__traceback__ is None
    )  # they would hold all that the run held


async def _is(run: Run, status: RunStatus) -> bool:
    return run.status is status


async def test_what_a_run_warns_of_is_told(
    time: VirtualTime, storage: CheckpointStorage, caplog: pytest.LogCaptureFixture
) -> None:
    class Careless(Executor):
        @handler
        async def work(self, hours: float, ctx: WorkflowContext[str]) -> None:
            await ctx.sleep(hours * HOUR)
            await ctx.send_message("to nobody", target_id="other")

    @executor(id="other")
    async def other(text: str) -> None: ...

    careless = Careless(id="careless")
    workflow = (
        WorkflowBuilder(name="Careless")
        .set_start_executor(careless)
        .add_edge(careless, other, condition=lambda text: False)
        .build()
    )
    await left(workflow, storage)
    await time.advance(HOUR)
    host = Host(storage, workflow)
    with caplog.at_level(logging.WARNING, "holdfast.host"):
        assert await soon(host.wake_due()) == 1
    assert await status(storage) is RunStatus.COMPLETED
    assert "run r warns: UnroutedMessage: " in caplog.text
    assert isinstance(host.problems["r"], UnroutedMessage)


# -- runs that cannot be woken ---------------------------------------------------------------------


async def test_a_run_that_cannot_be_woken_is_left_alone_for_a_while(
    time: VirtualTime, storage: CheckpointStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await left(sleeping(), storage)
    await left(sleeping(), storage, "s", 2.0)
    await time.advance(HOUR)
    changed = WorkflowBuilder(name="Sleeping").set_start_executor(Work.bind(id="other")).build()
    woken: list[str] = []
    host = Host(storage, changed, woken=lambda run: woken.append(run.run_id))
    assert await host.wake_due() == 0
    assert isinstance(host.problems["r"], GraphChanged)
    assert await host.wake_due() == 0
    assert set(host.problems) == {"r"}
    await time.advance(HOUR)
    assert await host.wake_due() == 0  # the other one
    assert (set(host.problems), woken, await status(storage)) == ({"r", "s"}, [], RunStatus.WAITING)
    monkeypatch.setattr(host_module, "_BACKOFF_SECONDS", -1.0)
    host._tried = {run: tried._replace(again=0.0) for run, tried in host._tried.items()}
    host._builds = {"Sleeping": [sleeping()]}  # as if the program had been mended
    assert await host.wake_due() == 2
    assert (host.problems, host._tried, sorted(ran)) == ({}, {}, ["r", "s"])


async def test_a_run_with_a_problem_is_tried_again_when_it_stands_elsewhere(
    time: VirtualTime, storage: CheckpointStorage
) -> None:
    head = await left(sleeping(), storage)
    await time.advance(HOUR)
    host = Host(storage, WorkflowBuilder(name="Sleeping").set_start_executor(Work.bind(id="other")).build())
    await host.wake_due()
    assert set(host.problems) == {"r"}
    run = await sleeping().resume(head.checkpoint_id, storage=storage)
    assert (await soon(run.wait_for_completion())).status is RunStatus.COMPLETED
    assert await host.wake_due() == 0


async def test_a_storage_that_cannot_be_read_is_tried_again(
    time: VirtualTime, caplog: pytest.LogCaptureFixture
) -> None:
    class Unreadable(Wrapped):
        fails = 3

        async def claim(self, request: ClaimRequest) -> Sequence[Head]:
            self.fails -= 1
            if self.fails >= 0:
                raise StorageError("the disk is gone")
            found: Sequence[Head] = await self.inner.claim(request)
            return found

    store = Unreadable(InMemoryCheckpointStorage().store)
    storage = CheckpointStorage(store)
    await left(sleeping(), storage)
    await time.advance(HOUR)
    with caplog.at_level(logging.WARNING, "holdfast.host"):
        async with Host(storage, sleeping(), poll=0.001):

            async def over() -> bool:
                return await status(storage) is RunStatus.COMPLETED

            await until(over)
    assert caplog.text.count("the disk is gone") == 3


async def test_what_ends_a_host_is_raised_when_it_is_left() -> None:
    class Broken(Wrapped):
        async def claim(self, request: ClaimRequest) -> Sequence[Head]:
            raise ZeroDivisionError

    storage = CheckpointStorage(Broken(InMemoryCheckpointStorage().store))
    with pytest.raises(ZeroDivisionError):
        async with Host(storage, sleeping()):
            await asyncio.sleep(0)


# -- letters and sleep -----------------------------------------------------------------------------


async def test_letters_that_cannot_be_taken_before_the_run_is_awake(place: Place, time: VirtualTime) -> None:
    await left(asking(), place.storage)
    await place.storage.respond("r", {"q": True})
    woken: list[str] = []
    host = Host(place.storage, asking(), woken=lambda run: woken.append(run.run_id))
    assert await host.wake_due() == 1  # it finds that it can do nothing yet
    for _ in range(3):
        assert await host.wake_due() == 0
    assert (woken, ran) == (["r"], [])
    await time.advance(HOUR)
    assert await host.wake_due() == 1
    assert (ran, await status(place.storage)) == (["r", "answered True"], RunStatus.COMPLETED)
    assert host._tried == {}


async def test_a_letter_of_no_use_does_not_hide_the_next_one(
    time: VirtualTime, storage: CheckpointStorage
) -> None:
    await left(asking(), storage, message=0.0)
    await storage.store.leave(RunId("r"), 1, [Letter("nonsense", b"")])
    host = Host(storage, asking())
    assert await host.wake_due() == 1
    assert await host.wake_due() == 0
    assert list(await storage.store.inbox(RunId("r"))) == []
    await storage.respond("r", {"q": True})
    assert await host.wake_due() == 1
    assert ran == ["answered True"]


async def test_nothing_is_kept_of_runs_that_wait(time: VirtualTime, storage: CheckpointStorage) -> None:
    refs: list[weakref.ref[Run]] = []
    host = Host(storage, sleeping(), asking(), woken=lambda run: refs.append(weakref.ref(run)))
    for number in range(5):
        await left(sleeping(), storage, f"r{number}", 100.0)
        await left(asking(), storage, f"q{number}", 0.0)
        await storage.store.leave(RunId(f"r{number}"), 1, [Letter("nonsense", b"")])
    await host.wake_due()
    assert len(refs) == 5
    gc.collect()
    assert [ref() for ref in refs] == [None] * 5
    assert (host._active, host._runs) == ({}, {})
    await time.advance(100 * HOUR)
    await host.wake_due()
    assert (len(ran), host._tried) == (5, {})


# -- runs whose process died -----------------------------------------------------------------------


async def interrupted(storage: CheckpointStorage, run_id: str = "r") -> Workflow:
    """A run that is RUNNING though nobody drives it; another process lets it go on."""
    begun = asyncio.Event()
    hangs = True

    @executor(id="step")
    async def step(text: str, ctx: WorkflowContext[None, str]) -> str:
        nonlocal hangs
        ran.append(f"step {ctx.run_id}")
        begun.set()
        if hangs:
            hangs = False
            await asyncio.Event().wait()
        return text

    workflow = WorkflowBuilder(name="Step").set_start_executor(step).build()
    run = await workflow.start("x", run_id=run_id, storage=storage)
    await soon(begun.wait())
    await run.abandon()
    info = await info_of_run(storage, run_id)
    assert (info.status, info.interrupted) == (RunStatus.RUNNING, True)
    return workflow


async def test_runs_whose_process_died_are_gone_on_with(place: Place) -> None:
    workflow = await interrupted(place.storage)
    storage = await place.reopened()
    host = Host(storage, workflow)
    assert await host.wake_due() == 1
    assert (ran, await status(storage)) == (["step r", "step r"], RunStatus.COMPLETED)
    await interrupted(storage, "s")  # also by a host that has just looked for such runs
    host._builds = {"Step": [workflow]}
    assert await host.wake_due() == 1
    assert await status(storage, "s") is RunStatus.COMPLETED


async def test_runs_that_died_are_all_gone_on_with_though_there_is_no_room_at_once(
    storage: CheckpointStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        workflow = await interrupted(storage, f"r{number}")
    monkeypatch.setattr(host_module, "_RESCUE_SECONDS", 1_000.0)
    async with Host(storage, workflow, poll=0.001, concurrency=2):

        async def over() -> bool:
            return all(run.status is RunStatus.COMPLETED for run in await storage.list_runs())

        await until(over)


async def test_a_run_that_was_cancelled_since_it_was_found_is_left_alone(
    storage: CheckpointStorage,
) -> None:
    for number in range(3):
        workflow = await interrupted(storage, f"r{number}")
    ran.clear()

    class Cancelling(Wrapped):
        async def claim(self, request: ClaimRequest) -> Sequence[Head]:
            found: Sequence[Head] = await self.inner.claim(request)
            for head in found:
                await storage.cancel(head.run_id)
            return found

    await Host(CheckpointStorage(Cancelling(storage.store)), workflow).wake_due()
    assert {run.status for run in await storage.list_runs()} == {RunStatus.CANCELLED}
    assert ran == []


async def test_what_a_look_that_failed_has_found_hides_nothing(storage: CheckpointStorage) -> None:
    class FailingOnce(Wrapped):
        fails = True

        async def claim(self, request: ClaimRequest) -> Sequence[Head]:
            if self.fails:
                self.fails = False
                raise StorageError("the disk is slow today")
            found: Sequence[Head] = await self.inner.claim(request)
            return found

    for number in range(3):
        workflow = await interrupted(storage, f"r{number}")
    host = Host(CheckpointStorage(FailingOnce(storage.store)), workflow)
    with pytest.raises(StorageError):
        await host.wake_due()
    for number in range(3):
        await storage.cancel(f"r{number}")
    await interrupted(storage, "late")
    assert await host.wake_due() == 1
    assert await status(storage, "late") is RunStatus.COMPLETED


async def test_a_run_that_someone_drives_is_left_alone(storage: CheckpointStorage) -> None:
    gate, begun = asyncio.Event(), asyncio.Event()

    @executor(id="step")
    async def step(text: str) -> str:
        ran.append("step")
        begun.set()
        await gate.wait()
        return text

    workflow = WorkflowBuilder(name="Step").set_start_executor(step).build()
    run = await workflow.start("x", run_id="r", storage=storage)
    await soon(begun.wait())
    assert await Host(storage, workflow).wake_due() == 0
    gate.set()
    assert (await soon(run.wait_for_completion())).outputs == ["x"]
    assert ran == ["step"]


async def test_runs_under_way_are_left_to_the_next_host(
    place: Place, time: VirtualTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "GRACE_SECONDS", 0.01)
    begun, hangs = asyncio.Event(), True

    @executor(id="step")
    async def step(hours: float, ctx: WorkflowContext[None, str]) -> str:
        await ctx.sleep(hours * HOUR)
        await ctx.once("effect", ran.append, "effect")
        begun.set()
        if hangs:
            await asyncio.Event().wait()
        return "done"

    workflow = WorkflowBuilder(name="Step").set_start_executor(step).build()
    await left(workflow, place.storage)
    await time.advance(HOUR)
    async with Host(place.storage, workflow, poll=0.01) as host:
        await soon(begun.wait())
        assert host.active == ["r"]
    info = await info_of_run(place.storage, "r")
    assert (info.status, info.interrupted, host.active) == (RunStatus.RUNNING, True, [])
    assert len(asyncio.all_tasks()) == 1
    hangs = False
    storage = await place.reopened()
    assert await Host(storage, workflow).wake_due() == 1
    assert (await status(storage), ran) == (RunStatus.COMPLETED, ["effect"])


async def test_runs_under_way_come_to_rest_when_a_host_is_left(
    time: VirtualTime, storage: CheckpointStorage
) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    @executor(id="step")
    async def step(hours: float, ctx: WorkflowContext[None, str]) -> str:
        await ctx.sleep(hours * HOUR)
        begun.set()
        await gate.wait()
        return "done"

    workflow = WorkflowBuilder(name="Step").set_start_executor(step).build()
    await left(workflow, storage)
    await time.advance(HOUR)
    async with Host(storage, workflow, poll=0.01):
        await soon(begun.wait())
        asyncio.get_running_loop().call_later(0.01, gate.set)
    assert await status(storage) is RunStatus.COMPLETED


# -- runs that someone holds -----------------------------------------------------------------------


async def test_a_run_that_is_held_here_goes_on_where_it_is_held(place: Place, time: VirtualTime) -> None:
    run = await asking().start(0.0, run_id="r", storage=place.storage)
    await soon(run.wait_for_completion())
    await place.storage.respond("r", {"q": True})
    woken: list[Run] = []
    host = Host(place.storage, asking(), woken=woken.append)
    assert await host.wake_due() == 1
    assert (run.status, run.result().outputs, woken) == (RunStatus.COMPLETED, ["True"], [])


async def test_host_and_alarm_ring_at_the_same_time(place: Place, time: VirtualTime) -> None:
    for number in range(6):
        run = await sleeping().start(1.0, run_id=f"r{number}", storage=place.storage)
        await soon(time.timer())
        waiting = asyncio.ensure_future(run.wait_for_completion())
        host = Host(place.storage, sleeping())

        async def wake(host: Host = host, pauses: int = number) -> None:
            for _ in range(pauses):
                await asyncio.sleep(0)
            await host.wake_due()

        await asyncio.gather(time.advance(HOUR), wake())
        assert (await soon(waiting)).outputs == ["awake"]
        assert run.status is RunStatus.COMPLETED
    assert Counter(ran) == {f"r{number}": 1 for number in range(6)}


async def test_an_object_that_gave_up_is_not_asked_to_go_on(time: VirtualTime) -> None:
    class Unreadable(Wrapped):
        fails = False

        async def head(self, run_id: RunId) -> Head | None:
            if self.fails:
                raise StorageError("the disk is gone")
            found: Head | None = await self.inner.head(run_id)
            return found

    store = Unreadable(InMemoryCheckpointStorage().store)
    storage = CheckpointStorage(store)
    run = await sleeping().start(1.0, run_id="r", storage=storage)
    await soon(time.timer())
    store.fails = True
    await time.advance(HOUR)
    with pytest.raises(StorageError, match="the disk is gone"):
        await soon(run.wait_for_completion())
    assert run.status is RunStatus.STOPPED
    store.fails = False
    assert await Host(storage, sleeping()).wake_due() == 1
    assert (await status(storage), ran) == (RunStatus.COMPLETED, ["r"])


async def test_a_run_of_another_storage_is_not_mistaken_for_one_that_is_held(
    time: VirtualTime, storage: CheckpointStorage, tmp_path: Path
) -> None:
    run = await asking().start(0.0, run_id="r", storage=storage)
    await soon(run.wait_for_completion())
    await storage.export_run("r", tmp_path / "run.export")
    other = InMemoryCheckpointStorage()
    await other.import_run(tmp_path / "run.export")
    workflow = asking()
    introduce(workflow, other)
    await other.respond("r", {"q": True})
    assert await Host(other, workflow).wake_due() == 1
    assert (await status(other), run.status) == (RunStatus.COMPLETED, RunStatus.WAITING)


def test_hosts_of_one_event_loop_after_another(tmp_path: Path) -> None:
    storage = storage_at("sqlite", tmp_path)
    with VirtualTime() as time:

        async def begin() -> Run:
            run = await sleeping().start(1.0, run_id="r", storage=storage)
            await soon(time.timer())
            assert await Host(storage, sleeping()).wake_due() == 0
            return run

        async def end() -> None:
            never_wake(held)  # as that of a real clock, whose timer went with its event loop
            await time.advance(HOUR)
            assert await Host(storage, sleeping()).wake_due() == 1
            assert await status(storage) is RunStatus.COMPLETED
            await storage.close()

        held = asyncio.run(begin())
        asyncio.run(end())
        assert (ran, held.status) == (["r"], RunStatus.WAITING)


# -- how it is said --------------------------------------------------------------------------------


def test_what_a_host_takes(storage: CheckpointStorage) -> None:
    workflow = sleeping()
    with pytest.raises(InvalidArgument, match="a host needs the workflows"):
        Host(storage)
    with pytest.raises(InvalidArgument, match="two workflows with the name 'Sleeping'"):
        Host(storage, workflow, sleeping())
    with pytest.raises(WrongType, match="a host takes workflows, not a str"):
        Host(storage, "Sleeping")  # type: ignore[arg-type]
    for poll in (0, -1, float("nan")):
        with pytest.raises(InvalidArgument, match="must be more than 0 seconds"):
            Host(storage, workflow, poll=poll)
    for concurrency in (0, -1, True, 1.5):
        with pytest.raises(InvalidArgument, match="a whole number of at least 1"):
            Host(storage, workflow, concurrency=concurrency)  # type: ignore[arg-type]


async def test_a_watcher_that_fails_keeps_no_run_from_going_on(
    storage: CheckpointStorage, time: VirtualTime, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(run: Run) -> None:
        raise RuntimeError("the watcher broke")

    workflow = WorkflowBuilder(name="Work").set_start_executor(Work).with_checkpointing(storage).build()
    run = await workflow.start(1.0, run_id="r")
    await soon(run.driven())
    await time.advance(HOUR)
    with caplog.at_level(logging.ERROR, "holdfast.host"):
        assert await soon(Host(storage, workflow, woken=broken).wake_due()) == 1
    assert ran == ["r"]
    assert "the watcher broke" in caplog.text


async def test_a_run_that_fails_to_be_woken_by_any_error_is_left_alone_for_a_while(
    storage: CheckpointStorage, time: VirtualTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow = WorkflowBuilder(name="Work").set_start_executor(Work).with_checkpointing(storage).build()
    run = await workflow.start(1.0, run_id="r")
    await soon(run.driven())
    await time.advance(HOUR)

    async def broken(*_: object, **__: object) -> Run:
        raise ZeroDivisionError("nobody thought of this")

    monkeypatch.setattr(type(workflow), "resumed", broken)
    host = Host(storage, workflow)
    assert await soon(host.wake_due()) == 0
    assert isinstance(host.problems["r"], ZeroDivisionError)
    assert ran == []


@pytest.mark.parametrize("poll", [None, "1", 0, -1])
def test_how_often_a_host_looks(storage: CheckpointStorage, poll: Any) -> None:
    workflow = WorkflowBuilder(name="Work").set_start_executor(Work).build()
    with pytest.raises(InvalidArgument, match="poll="):
        Host(storage, workflow, poll=poll)


def test_what_a_host_does_not_take(storage: CheckpointStorage) -> None:
    async def later(run: Run) -> None: ...

    workflow = WorkflowBuilder(name="Work").set_start_executor(Work).build()
    for woken in (5, later):
        with pytest.raises(WrongType, match="woken="):
            Host(storage, workflow, woken=woken)  # type: ignore[arg-type]
    with pytest.raises(WrongType, match="takes a storage first"):
        Host(workflow, workflow)  # type: ignore[arg-type]


async def test_a_process_is_asked_for_once_for_all_its_runs(storage: CheckpointStorage) -> None:
    asked: list[str] = []

    class Asked:
        def __init__(self, inner: Store) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        async def living(self, processes: Collection[str]) -> Set[str]:
            asked.extend(processes)
            return await self.inner.living(processes)

    for number in range(3):
        head = await left(sleeping(), storage, f"r{number}")
        running = head._replace(status=RunStatus.RUNNING, owner="elsewhere:1:2#1", token=head.token + 1)
        await storage.store.commit(Commit(running, Expected(head.checkpoint_id, head.token)))
    watched = CheckpointStorage(cast(Store, Asked(storage.store)))
    assert [run.interrupted for run in await watched.list_runs()] == [True] * 3
    assert asked == ["elsewhere:1:2"]
    asked.clear()
    await Host(watched, sleeping()).wake_due()
    assert asked.count("elsewhere:1:2") <= 1 + 3  # once to find them, and once for each that is gone on with


class BehindTheWait(Wrapped):
    """A store that lets something happen between the commit with which a run begins to wait, and its return."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.call: Callable[[], Awaitable[object]] | None = None
        self.claimed = asyncio.Event()

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        letters = await self.inner.commit(commit)
        call = self.call
        if call is not None and commit.records and commit.head.status is RunStatus.WAITING:
            self.call = None
            await call()
        return letters

    async def claim(self, request: ClaimRequest) -> Sequence[Head]:
        heads = await self.inner.claim(request)
        if heads:
            self.claimed.set()
        return heads


async def test_an_answer_is_taken_that_came_before_its_host_knew_that_the_run_waits(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host claims the run once more, while its task still has it, and nobody finds a run that is claimed."""
    monkeypatch.setattr(host_module, "_CLAIM_MICROSECONDS", 3_600_000_000)
    store, workflow = BehindTheWait(place.storage.store), asking()
    storage = CheckpointStorage(store)
    host = Host(storage, workflow, poll=HOUR)

    async def answer() -> None:
        store.claimed.clear()
        await storage.respond("r", {"q": True})
        host.look_soon()
        await store.claimed.wait()

    async def completed() -> None:
        while (await info_of_run(storage, "r")).status is not RunStatus.COMPLETED:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    await workflow.submit(0.0, "r", storage)
    store.call = answer
    async with host:
        await soon(completed())
    assert host.active == []
