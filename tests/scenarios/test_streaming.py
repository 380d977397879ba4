"""``ctx.stream``: parts of outputs, shown at once, never stored, never counted as output."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    CheckpointStorage,
    Executor,
    FileCheckpointStorage,
    GraphError,
    InMemoryCheckpointStorage,
    OutputDeltaEvent,
    RetryPolicy,
    SqliteCheckpointStorage,
    TurnOver,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    WorkflowExecutor,
    WorkflowOutputEvent,
    executor,
    handler,
)
from tests.support.durable import files_with
from tests.support.runs import events_of, events_until_failure, names, soon, taken

pytestmark = pytest.mark.usefixtures("nothing_is_left_running")

MARK = "delta-that-no-store-may-have"


def deltas(events: list[WorkflowEvent]) -> list[Any]:
    return [event.data for event in events if isinstance(event, OutputDeltaEvent)]


@executor
async def write(topic: str, ctx: WorkflowContext[str, str]) -> str:
    for word in topic.split():
        await ctx.stream(word)
    return topic


def alone(work: Any) -> Workflow:
    return WorkflowBuilder(name="Alone").set_start_executor(work).build()


async def test_deltas_come_between_invocation_and_completion() -> None:
    events = await events_of(alone(write), "kelp forest")
    assert names(events)[3:-2] == [
        "1 ExecutorInvoked write",
        "1 OutputDelta write kelp",
        "1 OutputDelta write forest",
        "1 ExecutorCompleted write",
        "1 WorkflowOutput write kelp forest",
        "1 SuperStepCompleted",
    ]
    mine = [event for event in events if isinstance(event, OutputDeltaEvent)]
    assert [(event.executor_id, event.provisional, event.attempt) for event in mine] == [
        ("write", True, 1)
    ] * 2
    assert {event.run_id for event in mine} == {events[0].run_id}


async def test_watcher_gets_a_delta_while_the_handler_goes_on() -> None:
    seen: list[Any] = []
    told: list[list[Any]] = []

    @executor
    async def busy(text: str, ctx: WorkflowContext[None, str]) -> None:
        for part in range(3):
            await ctx.stream(part)  # waits for nothing else
            told.append(list(seen))

    run = await alone(busy).start("x")
    async for event in run.watch_stream():
        if isinstance(event, OutputDeltaEvent):
            seen.append(event.data)
    assert told == [[0], [0, 1], [0, 1, 2]]


async def test_deltas_are_no_outputs() -> None:
    result = await soon(alone(write).run("kelp forest"))
    assert result.outputs == ["kelp forest"]


async def test_delta_is_what_it_was_at_the_call() -> None:
    @executor
    async def grow(text: str, ctx: WorkflowContext) -> None:
        parts: list[str] = []
        for word in text.split():
            parts.append(word)
            await ctx.stream(parts)

    events = await events_of(alone(grow), "a b")
    assert deltas(events) == [["a"], ["a", "b"]]
    assert "ChangedAfterCapture" not in str(events)


async def test_each_attempt_streams_anew() -> None:
    class Weak(Executor):
        @handler(retry=RetryPolicy(attempts=2, backoff=0))
        async def work(self, text: str, ctx: WorkflowContext) -> None:
            await ctx.stream(text)
            if ctx.attempt == 1:
                raise ValueError("not yet")

    events = await events_of(alone(Weak), "x")
    told = [(type(event).__name__, event.attempt) for event in events if hasattr(event, "attempt")]
    assert told == [("OutputDeltaEvent", 1), ("ExecutorFailedEvent", 1), ("OutputDeltaEvent", 2)]


async def test_nested_executor_streams_with_its_path() -> None:
    inner = WorkflowBuilder(name="Inner").set_start_executor(write).build()
    workflow = WorkflowBuilder(name="Outer").set_start_executor(WorkflowExecutor(inner, id="in")).build()
    events = await events_of(workflow, "kelp")
    assert [event.executor_id for event in events if isinstance(event, OutputDeltaEvent)] == ["in#1/write"]


async def test_context_that_is_over_streams_nothing() -> None:
    kept: list[WorkflowContext] = []

    @executor
    async def keep(text: str, ctx: WorkflowContext) -> None:
        kept.append(ctx)

    await soon(alone(keep).run("x"))
    with pytest.raises(TurnOver):
        await kept[0].stream("late")


async def test_restoring_executor_may_not_stream() -> None:
    class Restored(Executor):
        checkpointed = ("seen",)

        def __init__(self) -> None:
            super().__init__()
            self.seen = 0

        @handler
        async def count(self, number: int, ctx: WorkflowContext[int]) -> int | None:
            self.seen += 1
            return number - 1 if number else None

        async def on_checkpoint_restored(self, ctx: WorkflowContext) -> None:
            await ctx.stream("again")

    storage = InMemoryCheckpointStorage()
    workflow = (
        WorkflowBuilder(name="Restored")
        .set_start_executor(Restored)
        .add_edge(Restored, Restored)
        .with_checkpointing(storage)
        .build()
    )
    run = await soon(workflow.start(2))
    await soon(run.wait_for_completion())
    with pytest.raises(Exception, match="on_checkpoint_restored") as caught:
        await soon(workflow.run_from_checkpoint(run.checkpoints[2]))
    assert isinstance(caught.value.__cause__, GraphError)


class Fragile(Executor):
    """Streams and then fails, until it is mended."""

    broken = True

    @handler
    async def work(self, text: str, ctx: WorkflowContext[None, str]) -> None:
        for part in range(3):
            await ctx.stream(f"{MARK} {part}")
        if Fragile.broken:
            raise ValueError("broken")
        await ctx.yield_output("whole")


@pytest.fixture(params=["file", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[CheckpointStorage, Path]:
    if request.param == "file":
        return FileCheckpointStorage(tmp_path / "runs"), tmp_path
    return SqliteCheckpointStorage(tmp_path / "runs.db"), tmp_path


async def test_no_store_and_no_export_has_a_delta(place: tuple[CheckpointStorage, Path]) -> None:
    storage, folder = place
    workflow = WorkflowBuilder(name="Fragile").set_start_executor(Fragile).with_checkpointing(storage).build()
    Fragile.broken = True
    events, _ = await events_until_failure(workflow, "x")
    assert deltas(events) == [f"{MARK} {part}" for part in range(3)]
    run_id = events[0].run_id
    Fragile.broken = False
    run = await soon(workflow.resume(run_id=run_id))
    again = await soon(taken(run))
    assert len(deltas(again)) == 3, "the handler ran again"
    finished = await soon(taken(await soon(workflow.resume(run_id=run_id))))
    assert deltas(finished) == []
    assert [event.data for event in finished if isinstance(event, WorkflowOutputEvent)] == ["whole"]
    await soon(storage.export_run(run_id, folder / "run.export"))
    await storage.close()
    assert files_with(MARK, folder) == []


async def test_finished_turn_of_the_journal_streams_nothing_again() -> None:
    """Of two turns one is over and one fails: after the resume only that one streams."""
    storage = InMemoryCheckpointStorage()
    broken = [True]

    @executor
    async def both(text: str) -> str:
        return text

    @executor
    async def good(text: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.stream("good")

    @executor
    async def bad(text: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.stream("bad")
        if broken:
            raise ValueError("broken")

    workflow = (
        WorkflowBuilder(name="Both")
        .set_start_executor(both)
        .add_fan_out_edges(both, [good, bad])
        .with_checkpointing(storage)
        .build()
    )
    events, _ = await events_until_failure(workflow, "x")
    assert sorted(deltas(events)) == ["bad", "good"]
    broken.clear()
    again = await soon(taken(await soon(workflow.resume(run_id=events[0].run_id))))
    assert deltas(again) == ["bad"]


async def test_value_that_no_storage_takes_can_be_streamed() -> None:
    class Unstorable:
        pass

    @executor
    async def show(text: str, ctx: WorkflowContext) -> None:
        await ctx.stream(Unstorable())

    storage = InMemoryCheckpointStorage()
    workflow = WorkflowBuilder(name="Unstorable").set_start_executor(show).with_checkpointing(storage).build()
    assert [type(data).__name__ for data in deltas(await events_of(workflow, "x"))] == ["Unstorable"]


async def test_value_that_cannot_be_copied_is_refused() -> None:
    @executor
    async def show(text: str, ctx: WorkflowContext) -> None:
        await ctx.stream([threading.Lock()])

    _, error = await events_until_failure(alone(show), "x")
    assert "delta[0]" in str(error.__cause__)


async def test_cancelled_run_shows_no_more() -> None:
    reached = asyncio.Event()

    @executor
    async def slow(text: str, ctx: WorkflowContext) -> None:
        await ctx.stream("before")
        reached.set()
        await asyncio.sleep(30)
        await ctx.stream("after")

    run = await alone(slow).start("x")
    await soon(reached.wait())
    await soon(run.cancel())
    assert deltas(await soon(taken(run))) == ["before"]
