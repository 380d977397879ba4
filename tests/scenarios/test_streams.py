"""The events of a run: their order, who holds the run, and every way of leaving it."""

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Executor,
    ExecutorFailed,
    ExecutorFailedEvent,
    ExecutorInvokedEvent,
    RunStatus,
    RunStream,
    StateConflict,
    SuperStepCompletedEvent,
    SuperStepStartedEvent,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowErrorEvent,
    WorkflowEvent,
    WorkflowOutputEvent,
    WorkflowStartedEvent,
    WorkflowStatusEvent,
    executor,
    handler,
)
from tests.support.runs import counting, events_of, events_until_failure, names, soon

pytestmark = pytest.mark.usefixtures("nothing_is_left_running")


@executor
async def start(text: str) -> str:
    return text


class Work(Executor):
    @handler
    async def work(self, text: str, ctx: WorkflowContext[str]) -> str:
        return text + self.id


@executor
async def join(parts: list) -> str:
    return "".join(parts)


def fanned(*workers: Any, to: Any = join) -> Workflow:
    return (
        WorkflowBuilder(name="Fanned")
        .set_start_executor(start)
        .add_fan_out_edges(start, workers)
        .add_fan_in_edges(workers, to)
        .build()
    )


class Endless(Executor):
    """Waits until it is cancelled, and tells both."""

    def __init__(self, id: str, waiting: asyncio.Event, ended: list[str]) -> None:
        super().__init__(id)
        self.waiting, self.ended = waiting, ended

    @handler
    async def wait(self, text: str, ctx: WorkflowContext[str]) -> str:
        self.waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.append(self.id)
        return text


# -- order -----------------------------------------------------------------------------------------


async def test_all_events_of_a_run_in_order() -> None:
    events = await events_of(fanned(Work.bind(id="a"), Work.bind(id="b")), "x")
    assert names(events) == [
        "0 WorkflowStarted",
        "0 WorkflowStatus running",
        "1 SuperStepStarted",
        "1 ExecutorInvoked start",
        "1 ExecutorCompleted start",
        "1 SuperStepCompleted",
        "2 SuperStepStarted",
        "2 ExecutorInvoked a",
        "2 ExecutorInvoked b",
        "2 ExecutorCompleted a",
        "2 ExecutorCompleted b",
        "2 SuperStepCompleted",
        "3 SuperStepStarted",
        "3 ExecutorInvoked join",
        "3 ExecutorCompleted join",
        "3 WorkflowOutput join xaxb",
        "3 SuperStepCompleted",
        "3 WorkflowStatus completed",
        "3 WorkflowCompleted xaxb",
    ]
    started = events[0]
    assert isinstance(started, WorkflowStartedEvent)
    assert started.workflow_name == "Fanned"


async def test_events_are_stamped_with_run_and_time() -> None:
    before = datetime.now(UTC)
    stream = counting().run_stream(2)
    events = [event async for event in stream]
    after = datetime.now(UTC)
    assert {event.run_id for event in events} == {stream.run.run_id}
    assert all(before <= event.timestamp <= after for event in events)
    assert [e.timestamp for e in events] == sorted(e.timestamp for e in events)


async def test_superstep_events_under_their_other_names() -> None:
    events = await events_of(counting(), 1)
    (first, last) = [event for event in events if isinstance(event, SuperStepStartedEvent)]
    assert (first.step_number, last.step_number) == (1, 2)
    assert first.start_info.checkpoint is None
    (done, ended) = [event for event in events if isinstance(event, SuperStepCompletedEvent)]
    assert (done.step_number, done.completion_info.checkpoint) == (1, None)
    assert (done.has_pending_messages, ended.has_pending_messages) == (True, False)
    assert (done.has_pending_requests, done.state_updated) == (False, False)


async def test_result_and_stream_tell_the_same() -> None:
    workflow = fanned(Work.bind(id="a"), Work.bind(id="b"))
    stream = workflow.run_stream("x")
    outputs = [event.data async for event in stream if isinstance(event, WorkflowOutputEvent)]
    assert outputs == (await workflow.run("x")).outputs == stream.run.result().outputs
    assert stream.run.status is RunStatus.COMPLETED


# -- lockstep --------------------------------------------------------------------------------------


async def test_run_waits_until_the_events_of_a_superstep_are_taken() -> None:
    done = []

    @executor
    async def count(number: int) -> int:
        done.append(number)
        return number + 1

    workflow = WorkflowBuilder().set_start_executor(count).add_edge(count, count).build()
    stream = workflow.run_stream(0)
    async for event in stream:
        for _ in range(10):  # whatever the run would do by itself, it does now
            await asyncio.sleep(0)
        assert len(done) <= event.superstep or event.superstep == 0
        if isinstance(event, SuperStepCompletedEvent):
            assert len(done) == event.superstep
            assert stream.run.snapshot.superstep == event.superstep
            if event.superstep == 5:
                break
    assert done == [0, 1, 2, 3, 4]
    await stream.aclose()


async def test_run_does_not_begin_before_the_stream_is_read() -> None:
    done = []

    @executor
    async def work(text: str) -> None:
        done.append(text)

    stream = WorkflowBuilder().set_start_executor(work).build().run_stream("x")
    for _ in range(10):
        await asyncio.sleep(0)
    assert done == []
    assert stream.run.status.value == "running"
    await stream.aclose()
    assert stream.run.status is RunStatus.STOPPED
    assert done == []


async def test_stream_is_an_iterator_that_gives_each_event_once() -> None:
    workflow = counting()
    stream = workflow.run_stream(3)
    taken = [await anext(stream), await anext(stream)]
    taken += [event async for event in stream]
    assert names(taken) == names(await events_of(workflow, 3))
    assert [event async for event in stream] == [], "it is at its end"


# -- leaving ---------------------------------------------------------------------------------------


async def settled(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")


async def leave_by_aclose(stream: RunStream, waiting: asyncio.Event) -> None:
    async for event in stream:
        if isinstance(event, ExecutorInvokedEvent) and event.superstep == 2:
            break
    await waiting.wait()
    await stream.aclose()


async def leave_by_with(stream: RunStream, waiting: asyncio.Event) -> None:
    async with stream as entered:
        assert entered is stream
        async for event in entered:
            if isinstance(event, ExecutorInvokedEvent) and event.superstep == 2:
                await waiting.wait()
                break


async def leave_by_error(stream: RunStream, waiting: asyncio.Event) -> None:
    async def read() -> None:
        async with stream:
            async for _ in stream:
                raise KeyError

    with pytest.raises(KeyError):
        await read()


async def leave_by_cancellation(stream: RunStream, waiting: asyncio.Event) -> None:
    async def read() -> None:
        async for _ in stream:
            pass

    task = asyncio.create_task(read())
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("leave", [leave_by_aclose, leave_by_with, leave_by_error, leave_by_cancellation])
async def test_leaving_a_stream_stops_the_run(leave: Any) -> None:
    waiting, ended = asyncio.Event(), list[str]()
    workflow = fanned(Endless.bind(id="a", waiting=waiting, ended=ended), Work.bind(id="b"))
    stream = workflow.run_stream("x")
    await soon(leave(stream, waiting))
    assert stream.run.status is RunStatus.STOPPED
    assert ended == (["a"] if waiting.is_set() else [])
    events = [event async for event in stream.run.watch_stream()]
    assert isinstance(events[-1], WorkflowStatusEvent)
    assert events[-1].status is RunStatus.STOPPED


async def test_break_out_of_a_loop_stops_the_run() -> None:
    waiting, ended = asyncio.Event(), list[str]()
    workflow = fanned(
        Endless.bind(id="a", waiting=waiting, ended=ended), Endless.bind(id="b", waiting=waiting, ended=ended)
    )
    async for event in workflow.run_stream("x"):
        if isinstance(event, ExecutorInvokedEvent) and event.executor_id == "b":
            await waiting.wait()
            break
    await settled(lambda: sorted(ended) == ["a", "b"])


async def test_closing_a_stream_twice_or_after_its_end() -> None:
    stream = counting().run_stream(2)
    events = [event async for event in stream]
    await stream.aclose()
    await stream.aclose()
    assert stream.run.status is RunStatus.COMPLETED
    assert len(events) > 5


@pytest.mark.parametrize(
    "body",
    [
        "async for event in workflow.run_stream('x'):\n        break",
        "stream = workflow.run_stream('x')\n    async for event in stream:\n        break",
        "stream = workflow.run_stream('x')\n    await stream.__anext__()\n    await stream.aclose()",
        "async with workflow.run_stream('x') as stream:\n        pass",
        "workflow.run_stream('x')",
        "run = await workflow.start('x')",
        "run = await workflow.start('x')\n    async for event in run.watch_stream():\n        break",
        "run = await workflow.start('x')\n    await run.cancel()",
        "asyncio.create_task(workflow.run('x'))\n    await asyncio.sleep(0)",
    ],
)
def test_no_warning_at_exit(body: str, tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import asyncio
        from holdfast import Executor, WorkflowBuilder, WorkflowContext, executor, handler

        @executor
        async def wait(text: str) -> str:
            await asyncio.Event().wait()
            return text

        @executor
        async def start(text: str) -> str:
            return text

        class Wait(Executor):
            @handler
            async def wait(self, text: str, ctx: WorkflowContext) -> None:
                await asyncio.Event().wait()

        workflow = (
            WorkflowBuilder()
            .set_start_executor(start)
            .add_fan_out_edges(start, [Wait.bind(id="a"), Wait.bind(id="b")])
            .build()
        )

        async def main():
            BODY

        asyncio.run(main(), debug=DEBUG)
        print("done")
        """
    )
    script = tmp_path / "program.py"
    script.write_text(program.replace("BODY", body).replace("DEBUG", "False"), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)


# -- cancelling ------------------------------------------------------------------------------------


async def _all(events: AsyncIterator[WorkflowEvent]) -> list[WorkflowEvent]:
    return [event async for event in events]


async def test_what_a_cancelled_superstep_did_is_discarded() -> None:
    waiting, ended = asyncio.Event(), list[str]()

    @executor
    async def write(text: str, ctx: WorkflowContext[str, str]) -> str:
        await ctx.queue_state_update("key", text, scope_name="Scope")
        await ctx.yield_output(text)
        return text

    run = await fanned(Endless.bind(id="a", waiting=waiting, ended=ended), write).start("x")
    await waiting.wait()
    await run.cancel()
    assert run.snapshot.superstep == 1
    assert list(run.snapshot.state) == []
    assert run.result().outputs == []


# -- failing ---------------------------------------------------------------------------------------


class Fail(Executor):
    @handler
    async def fail(self, text: str, ctx: WorkflowContext[str]) -> str:
        raise ValueError(f"no {self.id}")


async def test_failing_executor() -> None:
    finished = []

    @executor
    async def slow(text: str) -> str:
        for _ in range(10):
            await asyncio.sleep(0)
        finished.append(text)
        return text

    events, error = await events_until_failure(fanned(Fail.bind(id="a"), slow, Fail.bind(id="c")), "x")
    assert names(events)[6:] == [
        "2 SuperStepStarted",
        "2 ExecutorInvoked a",
        "2 ExecutorInvoked slow",
        "2 ExecutorInvoked c",
        "2 ExecutorFailed a",
        "2 ExecutorCompleted slow",
        "2 ExecutorFailed c",
        "2 WorkflowStatus failed",
        "2 WorkflowError",
    ]
    assert finished == ["x"]
    assert isinstance(error, ExecutorFailed)
    assert (error.executor_id, error.superstep, error.run_id) == ("a", 2, events[0].run_id)
    assert str(error) == f"executor 'a' failed in superstep 2 of run {events[0].run_id}: ValueError('no a')"
    assert repr(error.__cause__) == "ValueError('no a')"
    assert error.__notes__ == ["executor 'c' failed too: ValueError('no c')"]
    failed = [event for event in events if isinstance(event, ExecutorFailedEvent)]
    assert [repr(event.error) for event in failed] == ["ValueError('no a')", "ValueError('no c')"]
    last = events[-1]
    assert isinstance(last, WorkflowErrorEvent)
    assert last.error is error


async def test_every_way_of_waiting_raises_what_the_run_failed_with() -> None:
    workflow = fanned(Fail.bind(id="a"))
    with pytest.raises(ExecutorFailed):
        await workflow.run("x")
    run = await workflow.start("x")
    with pytest.raises(ExecutorFailed) as waited:
        await run.wait_for_completion()
    with pytest.raises(ExecutorFailed) as watched:
        await _all(run.watch_stream())
    assert waited.value is watched.value
    assert run.status is RunStatus.FAILED
    assert run.result().outputs == []
    stream = workflow.run_stream("x")
    with pytest.raises(ExecutorFailed):
        await _all(stream)
    assert stream.run.status is RunStatus.FAILED


def test_run_sync_raises_too() -> None:
    with pytest.raises(ExecutorFailed):
        fanned(Fail.bind(id="a")).run_sync("x")


async def test_failure_that_comes_of_the_barrier() -> None:
    class Write(Executor):
        @handler
        async def write(self, text: str, ctx: WorkflowContext[str]) -> str:
            await ctx.queue_state_update("key", text, scope_name="Scope")
            return text

    events, error = await events_until_failure(fanned(Write.bind(id="a"), Write.bind(id="b")), "x")
    assert isinstance(error, StateConflict)
    assert names(events)[-4:] == [
        "2 ExecutorCompleted a",
        "2 ExecutorCompleted b",
        "2 WorkflowStatus failed",
        "2 WorkflowError",
    ]


async def test_outputs_before_a_failure_are_kept() -> None:
    @executor
    async def talk(text: str, ctx: WorkflowContext[str, str]) -> str:
        await ctx.yield_output("said")
        return text

    builder = WorkflowBuilder().set_start_executor(talk).add_edge(talk, Fail)
    run = await builder.build().start("x")
    with pytest.raises(ExecutorFailed):
        await run.wait_for_completion()
    assert run.result().outputs == ["said"]


# -- watching --------------------------------------------------------------------------------------


async def test_watcher_beside_a_stream() -> None:
    stream = counting().run_stream(3)
    beside = asyncio.create_task(_all(stream.run.watch_stream()))
    taken = [event async for event in stream]
    assert await beside == taken
