"""Runs that are stored: started, looked up, and gone on with from wherever they stopped."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    CheckpointNotFound,
    CheckpointSavedEvent,
    CheckpointStorage,
    Executor,
    ExecutorFailed,
    GraphError,
    InMemoryCheckpointStorage,
    InvalidArgument,
    InvalidResponse,
    RequestAlreadyAnswered,
    RequestInfoEvent,
    RequestInfoExecutor,
    RetryPolicy,
    RunEnded,
    RunExists,
    RunNotFound,
    RunStatus,
    SqliteCheckpointStorage,
    SuperStepCompletedEvent,
    SuperstepLimit,
    SuperStepStartedEvent,
    UnknownRequest,
    Workflow,
    WorkflowBuilder,
    WorkflowCompletedEvent,
    WorkflowContext,
    WorkflowEvent,
    WorkflowOutputEvent,
    WrongType,
    executor,
    handler,
    response_handler,
)
from tests.support.durable import (
    ON_DISK,
    Place,
    everything,
    head_of,
    in_child,
    info_of_run,
    killed_by_itself,
    outputs_of,
    storage_at,
    watched,
)
from tests.support.durable_programs import answer, ask_and_die, die_after, steps
from tests.support.runs import names, soon


class Broken(Exception):
    """What handlers raise on purpose."""


class Count(Executor):
    """Counts down; at ``bad`` it raises, if there is such a number."""

    def __init__(self, id: str | None = None, bad: int | None = None) -> None:
        super().__init__(id)
        self.bad = bad

    @handler
    async def count(self, left: int, ctx: WorkflowContext[int, list]) -> None:
        if left == self.bad:
            raise Broken(f"at {left}")
        await ctx.append_state("log", left)
        if left:
            await ctx.send_message(left - 1)
        else:
            await ctx.yield_output(await ctx.read_state("log"))


def counting(bad: int | None = None, storage: CheckpointStorage | None = None, **options: Any) -> Workflow:
    count = Count.bind(id="count", bad=bad)
    builder = WorkflowBuilder(name="Counting", **options).set_start_executor(count).add_edge(count, count)
    return (builder if storage is None else builder.with_checkpointing(storage)).build()


class Ask(Executor):
    """Asks about each message and yields the answer; ``tag`` is there to be kept."""

    @handler
    async def ask(self, text: str, ctx: WorkflowContext) -> None:
        await ctx.request_info(text, response_type=int)

    @response_handler
    async def answered(self, text: str, number: int, ctx: WorkflowContext[None, Any]) -> None:
        await ctx.yield_output((text, number))


def asking(storage: CheckpointStorage | None = None) -> Workflow:
    builder = WorkflowBuilder(name="Asking").set_start_executor(Ask)
    return (builder if storage is None else builder.with_checkpointing(storage)).build()


class Patient(Executor):
    """Waits in its second superstep until it is let go."""

    @handler
    async def work(self, left: int, ctx: WorkflowContext[int, int]) -> None:
        await ctx.append_state("log", left)
        if left == 1 and gates:
            reached[-1].set()
            await gates[-1].wait()
        if left:
            await ctx.send_message(left - 1)
        else:
            await ctx.yield_output(len(await ctx.read_state("log")))


gates: list[asyncio.Event] = []
reached: list[asyncio.Event] = []


@pytest.fixture
def gate() -> Any:
    """Closed while a test holds it; without it nobody waits."""
    gates.append(asyncio.Event())
    reached.append(asyncio.Event())
    yield gates[-1]
    gates.pop()
    reached.pop()


def patient() -> Workflow:
    return WorkflowBuilder(name="Patient").set_start_executor(Patient).add_edge(Patient, Patient).build()


# -- starting --------------------------------------------------------------------------------------


async def test_run_is_in_the_storage_when_start_returns(place: Place) -> None:
    run = await counting().start(3, storage=place.storage)
    assert (await place.storage.store.head(run.run_id)) is not None
    first = (await place.storage.list_checkpoints(run_id=run.run_id))[0]
    assert (first.seq, first.superstep, first.phase, first.cause) == (1, 1, "start", "input")
    assert first.parent_id is None
    await soon(run.wait_for_completion())


async def test_run_stands_there_even_if_it_never_moved(
    storage: CheckpointStorage, gate: asyncio.Event
) -> None:
    run = await patient().start(1, storage=storage)
    listed = await info_of_run(storage, run.run_id)
    assert (listed.status, listed.seq, listed.interrupted) == (RunStatus.RUNNING, 1, False)
    await run.cancel()


async def test_the_end_of_a_superstep_and_the_next_start_share_a_commit(place: Place) -> None:
    result = await soon(counting().run(2, storage=place.storage))
    assert result.outputs == [[2, 1, 0]]
    assert place.storage.counters.commits == 4
    assert place.storage.counters.checkpoints == 6


async def test_run_id_is_given(storage: CheckpointStorage) -> None:
    run = await counting().start(1, run_id="mine", storage=storage)
    assert run.run_id == "mine"
    result = await soon(run.wait_for_completion())
    assert (result.run_id, (await info_of_run(storage, "mine")).status) == ("mine", RunStatus.COMPLETED)


@pytest.mark.parametrize("how", ["start", "run", "run_stream"])
async def test_run_id_that_exists(place: Place, how: str) -> None:
    await soon(counting().run(1, run_id="mine", storage=place.storage))
    before = await everything(place.storage, "mine")

    async def stream() -> None:
        [event async for event in counting().run_stream(1, run_id="mine", storage=place.storage)]

    calls: dict[str, Callable[[], Any]] = {
        "start": lambda: counting().start(1, run_id="mine", storage=place.storage),
        "run": lambda: counting().run(1, run_id="mine", storage=place.storage),
        "run_stream": stream,
    }
    with pytest.raises(RunExists, match=r"'mine' is in this storage already.*resume.*if_exists='attach'"):
        await calls[how]()
    assert await everything(place.storage, "mine") == before


async def test_two_start_with_the_same_id_at_once(storage: CheckpointStorage) -> None:
    starts = [counting().start(2, run_id="mine", storage=storage) for _ in range(5)]
    done = await soon(asyncio.gather(*starts, return_exceptions=True))
    won = [run for run in done if not isinstance(run, BaseException)]
    lost = [error for error in done if isinstance(error, BaseException)]
    assert len(won) == 1
    assert {type(error) for error in lost} == {RunExists}
    assert (await soon(won[0].wait_for_completion())).outputs == [[2, 1, 0]]


@pytest.mark.parametrize(
    ("run_id", "complaint"),
    [
        ("", "is empty"),
        ("a/b", "contains '/'"),
        ("a#1", "contains '#'"),
        ("x" * 201, "has 201 characters"),
        ("line\nbreak", "unprintable"),
        ("nul\0", "unprintable"),
        (7, "is a int, not a str"),
    ],
)
async def test_odd_run_ids_are_refused(storage: CheckpointStorage, run_id: Any, complaint: str) -> None:
    for refused in (
        counting().start(1, run_id=run_id, storage=storage),
        counting().start(1, run_id=run_id, storage=storage, if_exists="attach"),
        counting().run(1, run_id=run_id, storage=storage),
        counting().resume(run_id=run_id, storage=storage),
    ):
        with pytest.raises(InvalidArgument, match=complaint):
            await refused
    assert await storage.list_runs() == []


@pytest.mark.parametrize(
    "run_id", ["..", ".", "CON", "a b", "ünïcödé 名前", "-rf", "%2e", "x" * 200, "'; DROP TABLE runs"]
)
async def test_unusual_run_ids_are_taken(place: Place, run_id: str) -> None:
    await soon(counting().run(1, run_id=run_id, storage=place.storage))
    storage = await place.reopened()
    assert [run.run_id for run in await storage.list_runs()] == [run_id]
    assert await outputs_of(counting().resume(run_id=run_id, storage=storage)) == [[1, 0]]


# -- attaching -------------------------------------------------------------------------------------


async def test_attach_starts_what_is_not_there(storage: CheckpointStorage) -> None:
    run = await counting().start(2, run_id="mine", storage=storage, if_exists="attach")
    assert (await soon(run.wait_for_completion())).outputs == [[2, 1, 0]]


async def test_attach_goes_on_with_the_same_input(place: Place) -> None:
    with pytest.raises(ExecutorFailed):
        await soon(counting(bad=1).run(3, run_id="mine", storage=place.storage))
    storage = await place.reopened()
    run = await counting().start(3, run_id="mine", storage=storage, if_exists="attach")
    assert (await soon(run.wait_for_completion())).outputs == [[3, 2, 1, 0]]


class Standstill(Executor):
    """Ends, asks or sleeps, as its input says."""

    @handler
    async def work(self, what: str, ctx: WorkflowContext[None, str]) -> str | None:
        if what == "asks":
            await ctx.request_info("q", response_type=str, request_id="q")
            return None
        if what == "sleeps":
            await ctx.sleep(3_600)
        return what

    @response_handler
    async def answered(self, question: str, answer: str, ctx: WorkflowContext[None, str]) -> str:
        return answer


STANDSTILLS = {"ends": RunStatus.COMPLETED, "asks": RunStatus.WAITING, "sleeps": RunStatus.WAITING}


WAYS = ["attach", "resume", "resume from a checkpoint", "fork", "restore"]
# A fork of a run that sleeps, or going back with it, means to do things anew: then it moves.
STOOD = [(what, way) for what in STANDSTILLS for way in (WAYS if what != "sleeps" else WAYS[:3])]


@pytest.mark.parametrize(("what", "way"), STOOD)
async def test_a_run_with_nothing_to_do_stands_as_its_storage_says_at_once(
    place: Place, what: str, way: str
) -> None:
    storage = place.storage
    workflow = WorkflowBuilder(name="Standstill").set_start_executor(Standstill.bind(id="work")).build()
    first = await workflow.start(what, run_id="mine", storage=storage)
    await soon(first.driven())
    latest = first.latest_checkpoint
    assert latest is not None
    if way == "attach":
        run = await workflow.start(what, run_id="mine", storage=storage, if_exists="attach")
    elif way == "resume":
        run = await workflow.resume(run_id="mine", storage=storage)
    elif way == "resume from a checkpoint":
        run = await workflow.resume(latest, storage=storage)
    elif way == "fork":
        run = await workflow.fork(latest, storage=storage)
    else:
        await first.restore_checkpoint(latest)
        run = first
    seen = run.status, run.result().status, [request.request_id for request in run.pending_requests]
    expected = STANDSTILLS[what]
    assert seen == (expected, expected, ["q"] if what == "asks" else [])
    assert (run.wake_at is not None) == (what == "sleeps")
    assert (await head_of(storage, run.run_id)).status is expected
    if what == "asks":
        await run.send_response("q", "yes")
        assert (await soon(run.wait_for_completion())).outputs == ["yes"]
    else:
        await run.close()


async def test_attach_with_another_input_is_refused(place: Place) -> None:
    await soon(counting().run(2, run_id="mine", storage=place.storage))
    before = await everything(place.storage, "mine")
    with pytest.raises(RunExists, match="'mine' is in this storage already, with another input"):
        await counting().start(3, run_id="mine", storage=place.storage, if_exists="attach")
    assert await everything(place.storage, "mine") == before


async def test_attach_compares_values_not_numbers_that_are_equal(storage: CheckpointStorage) -> None:
    @executor(id="any")
    async def anything(value: object) -> object:
        return value

    def workflow() -> Workflow:
        return WorkflowBuilder(name="Any").set_start_executor(anything).build()

    await soon(workflow().run(1, run_id="mine", storage=storage))
    for other in (True, 1.0, "1", [1]):
        with pytest.raises(RunExists):
            await workflow().start(other, run_id="mine", storage=storage, if_exists="attach")
    await soon(workflow().run({"a": [1, {2}]}, run_id="other", storage=storage))
    run = await workflow().start({"a": [1, {2}]}, run_id="other", storage=storage, if_exists="attach")
    assert (await soon(run.wait_for_completion())).outputs == [{"a": [1, {2}]}]


async def test_attach_with_an_input_too_big_to_stand_in_the_record(place: Place) -> None:
    big = "x" * 100_000
    echo = executor(id="echo")(_echo)
    workflow = WorkflowBuilder(name="Echo").set_start_executor(echo).build()
    await soon(workflow.run(big, run_id="mine", storage=place.storage))
    run = await workflow.start(big, run_id="mine", storage=await place.reopened(), if_exists="attach")
    assert (await soon(run.wait_for_completion())).outputs == [big]
    with pytest.raises(RunExists):
        await workflow.start(big + "y", run_id="mine", storage=place.storage, if_exists="attach")


async def _echo(text: str) -> str:
    return text


async def test_attach_by_another_workflow_is_refused(storage: CheckpointStorage) -> None:
    await soon(counting().run(1, run_id="mine", storage=storage))
    with pytest.raises(GraphError, match="belongs to workflow 'Counting', not to 'Patient'"):
        await patient().start(1, run_id="mine", storage=storage, if_exists="attach")


async def test_attach_needs_a_run_id_and_a_known_word(storage: CheckpointStorage) -> None:
    with pytest.raises(InvalidArgument, match="if_exists='attach' needs a run_id"):
        await counting().start(1, storage=storage, if_exists="attach")
    with pytest.raises(InvalidArgument, match="if_exists='replace': must be 'raise', 'attach' or 'continue'"):
        await counting().start(1, run_id="a", storage=storage, if_exists="replace")  # type: ignore[arg-type]


# -- which storage ---------------------------------------------------------------------------------


async def test_storage_of_the_builder(storage: CheckpointStorage) -> None:
    workflow = counting(storage=storage)
    result = await soon(workflow.run(1))
    assert [run.run_id for run in await storage.list_runs()] == [result.run_id]
    assert await outputs_of(workflow.resume(run_id=result.run_id)) == [[1, 0]]
    assert (await soon(workflow.run_from_checkpoint((await storage.list_checkpoints())[0]))).outputs == [
        [1, 0]
    ]


async def test_storage_of_the_call_wins(storage: CheckpointStorage) -> None:
    other = InMemoryCheckpointStorage()
    workflow = counting(storage=storage)
    result = await soon(workflow.run(1, storage=other))
    assert await storage.list_runs() == []
    assert [run.run_id for run in await other.list_runs()] == [result.run_id]


async def test_without_storage_the_error_says_how_to_give_one() -> None:
    hint = "there is no storage; give one with storage=..., or build the workflow with .with_checkpointing"
    workflow = counting()
    for refused in (
        workflow.resume(run_id="mine"),
        workflow.resume("0" * 64),
        workflow.run_from_checkpoint("0" * 64),
        workflow.start(1, run_id="mine"),
        workflow.run(1, run_id="mine"),
        workflow.start(1, run_id="mine", if_exists="attach"),
    ):
        with pytest.raises(InvalidArgument) as caught:
            await refused
        assert hint in str(caught.value)
    with pytest.raises(InvalidArgument) as caught:
        [event async for event in workflow.run_stream_from_checkpoint("0" * 64)]
    assert hint in str(caught.value)


async def test_without_storage_a_run_has_no_checkpoints() -> None:
    run = await counting().start(1)
    events = await watched(run)
    assert run.checkpoints == []
    assert run.latest_checkpoint is None
    assert not [event for event in events if isinstance(event, CheckpointSavedEvent)]


# -- naming what to resume -------------------------------------------------------------------------


def _as_checkpoint(storage: CheckpointStorage, workflow: Workflow, checkpoint: Any) -> Any:
    return workflow.resume(checkpoint, storage=storage)


def _as_info(storage: CheckpointStorage, workflow: Workflow, checkpoint: Any) -> Any:
    return workflow.resume(checkpoint.info, storage=storage)


def _as_id(storage: CheckpointStorage, workflow: Workflow, checkpoint: Any) -> Any:
    return workflow.resume(checkpoint.checkpoint_id, storage=storage)


def _as_run_id(storage: CheckpointStorage, workflow: Workflow, checkpoint: Any) -> Any:
    return workflow.resume(run_id=checkpoint.run_id, storage=storage)


@pytest.mark.parametrize("resume", [_as_checkpoint, _as_info, _as_id, _as_run_id])
async def test_ways_to_name_what_is_resumed(place: Place, resume: Callable[..., Any]) -> None:
    with pytest.raises(ExecutorFailed):
        await soon(counting(bad=1).run(3, run_id="mine", storage=place.storage))
    storage = await place.reopened()
    latest = await storage.get_latest(run_id="mine")
    assert latest is not None
    run = await resume(storage, counting(), latest)
    assert run.run_id == "mine"
    assert (await soon(run.wait_for_completion())).outputs == [[3, 2, 1, 0]]
    assert [c.seq for c in run.checkpoints] == [5, 6, 7, 8]
    assert run.checkpoints[0] == latest.info


async def test_run_from_checkpoint_and_its_stream(place: Place) -> None:
    with pytest.raises(ExecutorFailed) as caught:
        await soon(counting(bad=1).run(2, run_id="mine", storage=place.storage))
    storage = await place.reopened()
    checkpoint = caught.value.checkpoint
    stream = counting().run_stream_from_checkpoint(checkpoint.checkpoint_id, checkpoint_storage=storage)
    with pytest.raises(RuntimeError, match="not there before its first event"):
        _ = stream.run
    events = [event async for event in stream]
    assert stream.run.run_id == "mine"
    assert isinstance(events[-1], WorkflowCompletedEvent)
    assert events[-1].data == [2, 1, 0]
    again = await soon(counting().run_from_checkpoint(checkpoint, storage))
    assert again.outputs == [[2, 1, 0]]


async def test_unknown_ids(place: Place) -> None:
    await soon(counting().run(1, run_id="mine", storage=place.storage))
    with pytest.raises(CheckpointNotFound, match="list_checkpoints"):
        await counting().resume("0" * 64, storage=place.storage)
    with pytest.raises(CheckpointNotFound):
        await counting().resume("no id at all", storage=place.storage)
    with pytest.raises(CheckpointNotFound):
        await counting().resume("mine", storage=place.storage)  # a positional string is a checkpoint id
    with pytest.raises(CheckpointNotFound):
        await counting().run_from_checkpoint("", place.storage)
    with pytest.raises(RunNotFound, match=r"no run 'yours'.*list_runs"):
        await counting().resume(run_id="yours", storage=place.storage)
    with pytest.raises(RunNotFound):
        await place.storage.list_checkpoints(run_id="yours")
    with pytest.raises(RunNotFound):
        await place.storage.verify(run_id="yours")
    assert await place.storage.get_latest(run_id="yours") is None


async def test_resume_needs_exactly_one_name(storage: CheckpointStorage) -> None:
    for arguments in ({}, {"checkpoint": "0" * 64, "run_id": "mine"}):
        with pytest.raises(InvalidArgument, match=r"a checkpoint .* or by run_id"):
            await counting().resume(**arguments, storage=storage)  # type: ignore[arg-type]
    with pytest.raises(WrongType, match="not as 7"):
        await counting().resume(7, storage=storage)  # type: ignore[arg-type]


# -- however it stopped ----------------------------------------------------------------------------


async def test_failed_run_goes_on_with_fixed_code(place: Place) -> None:
    with pytest.raises(ExecutorFailed) as caught:
        await soon(counting(bad=2).run(4, run_id="mine", storage=place.storage))
    failure = caught.value
    assert (failure.executor_id, failure.superstep, failure.run_id) == ("count", 3, "mine")
    assert (failure.checkpoint.superstep, failure.checkpoint.phase) == (3, "start")
    storage = await place.reopened()
    listed = await info_of_run(storage, "mine")
    assert listed.status is RunStatus.FAILED
    assert "ExecutorFailed: executor 'count' failed in superstep 3" in listed.reason
    assert "Broken('at 2')" in listed.reason
    assert listed.checkpoint_id == failure.checkpoint.checkpoint_id
    run = await counting().resume(failure.checkpoint, storage=storage)
    events = await watched(run)
    assert [e.superstep for e in events if isinstance(e, SuperStepStartedEvent)] == [3, 4, 5]
    assert (await run.wait_for_completion()).outputs == [[4, 3, 2, 1, 0]]
    listed = await info_of_run(storage, "mine")
    assert (listed.status, listed.reason) == (RunStatus.COMPLETED, "")


async def test_failed_run_that_fails_again(place: Place) -> None:
    with pytest.raises(ExecutorFailed):
        await soon(counting(2).run(3, run_id="mine", storage=place.storage))
    for bad in (2, 2, 1):
        storage = await place.reopened()
        with pytest.raises(ExecutorFailed, match=f"at {bad}"):
            await outputs_of(counting(bad).resume(run_id="mine", storage=storage))
        assert f"at {bad}" in (await info_of_run(place.storage, "mine")).reason
    assert await outputs_of(counting().resume(run_id="mine", storage=place.storage)) == [[3, 2, 1, 0]]


async def test_cancelled_run_goes_on(place: Place, gate: asyncio.Event) -> None:
    run = await patient().start(2, run_id="mine", storage=place.storage)
    await _superstep_reached(run, 2)
    await run.cancel()
    assert run.status is RunStatus.CANCELLED
    storage = await place.reopened()
    assert (await info_of_run(storage, "mine")).status is RunStatus.CANCELLED
    gate.set()
    assert await outputs_of(patient().resume(run_id="mine", storage=storage)) == [3]


async def test_stream_that_is_left_stops_the_run(place: Place, gate: asyncio.Event) -> None:
    async with patient().run_stream(2, run_id="mine", storage=place.storage) as stream:
        async for event in stream:
            if isinstance(event, SuperStepStartedEvent) and event.superstep == 2:
                break
    storage = await place.reopened()
    assert (await info_of_run(storage, "mine")).status is RunStatus.STOPPED
    gate.set()
    assert await outputs_of(patient().resume(run_id="mine", storage=storage)) == [3]


async def test_run_whose_caller_is_cancelled_is_stopped(place: Place, gate: asyncio.Event) -> None:
    task = asyncio.ensure_future(patient().run(2, run_id="mine", storage=place.storage))
    await soon(reached[-1].wait())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await info_of_run(place.storage, "mine")).status is RunStatus.STOPPED
    gate.set()
    assert await outputs_of(patient().resume(run_id="mine", storage=place.storage)) == [3]


async def _superstep_reached(run: Any, superstep: int) -> None:
    async for event in run.watch_stream():
        if isinstance(event, SuperStepStartedEvent) and event.superstep == superstep:
            return


@pytest.mark.parametrize("kind", ON_DISK)
@pytest.mark.parametrize("checkpoints", [1, 2, 5])
async def test_run_whose_process_was_killed_is_interrupted(
    kind: str, tmp_path: Path, checkpoints: int
) -> None:
    await asyncio.to_thread(killed_by_itself, die_after, kind, str(tmp_path), "mine", 6, checkpoints)
    async with storage_at(kind, tmp_path) as storage:
        listed = await info_of_run(storage, "mine")
        assert (listed.status, listed.interrupted) == (RunStatus.RUNNING, True)
        assert [run.run_id for run in await storage.list_runs(interrupted=True)] == ["mine"]
        assert await storage.list_runs(interrupted=False) == []
        assert listed.seq >= checkpoints
        assert await outputs_of(steps().resume(run_id="mine", storage=storage)) == [[6, 5, 4, 3, 2, 1, 0]]
        listed = await info_of_run(storage, "mine")
        assert (listed.status, listed.interrupted) == (RunStatus.COMPLETED, False)
        assert await storage.list_runs(interrupted=True) == []


async def test_waiting_run_is_asked_again_and_answered(place: Place) -> None:
    result = await soon(asking().run("sure?", run_id="mine", storage=place.storage))
    assert result.status is RunStatus.WAITING
    before = await everything(place.storage, "mine")
    storage = await place.reopened()
    assert (await info_of_run(storage, "mine")).status is RunStatus.WAITING
    run = await asking().resume(run_id="mine", storage=storage)
    events = await watched(run)
    (asked,) = [event for event in events if isinstance(event, RequestInfoEvent)]
    assert (asked.request_id, asked.data, asked.response_type) == ("Ask.1.1", "sure?", int)
    assert run.status is RunStatus.WAITING
    assert [request.request_id for request in run.pending_requests] == ["Ask.1.1"]
    assert (await everything(storage, "mine"))[:2] == before[:2]
    await run.send_response("Ask.1.1", 5)
    assert (await soon(run.wait_for_completion())).outputs == [("sure?", 5)]
    causes = [(c.superstep, c.phase, c.cause) for c in await storage.list_checkpoints(run_id="mine")]
    assert causes == [
        (1, "start", "input"),
        (1, "end", "superstep"),
        (2, "start", "response"),
        (2, "end", "superstep"),
    ]


async def test_finished_run_gives_its_outputs_and_writes_nothing(place: Place) -> None:
    await soon(counting().run(2, run_id="mine", storage=place.storage))
    storage = await place.reopened()
    before = await everything(storage, "mine")
    run = await counting().resume(run_id="mine", storage=storage)
    events = await watched(run)
    assert names(events) == [
        "3 WorkflowStatus running",
        "3 WorkflowOutput count [2, 1, 0]",
        "3 WorkflowStatus completed",
        "3 WorkflowCompleted [2, 1, 0]",
    ]
    assert [e.replayed for e in events if isinstance(e, WorkflowOutputEvent)] == [True]
    assert (run.status, (await run.wait_for_completion()).outputs) == (RunStatus.COMPLETED, [[2, 1, 0]])
    await run.close()
    assert await everything(storage, "mine") == before


async def test_finished_run_takes_no_responses(storage: CheckpointStorage) -> None:
    await soon(counting().run(1, run_id="mine", storage=storage))
    before = await everything(storage, "mine")
    with pytest.raises(RunEnded, match="completed"):
        await counting().resume(run_id="mine", storage=storage, responses={"count.1.1": 1})
    assert await everything(storage, "mine") == before


async def test_outputs_before_the_stop_are_outputs_of_the_whole_run(place: Place) -> None:
    class Yielding(Executor):
        def __init__(self, id: str | None = None, bad: int | None = None) -> None:
            super().__init__(id)
            self.bad = bad

        @handler
        async def count(self, left: int, ctx: WorkflowContext[int, int]) -> None:
            if left == self.bad:
                raise Broken
            await ctx.yield_output(left)
            if left:
                await ctx.send_message(left - 1)

    def workflow(bad: int | None = None) -> Workflow:
        one = Yielding.bind(id="one", bad=bad)
        return WorkflowBuilder(name="Yielding").set_start_executor(one).add_edge(one, one).build()

    with pytest.raises(ExecutorFailed):
        await soon(workflow(1).run(3, run_id="mine", storage=place.storage))
    run = await workflow().resume(run_id="mine", storage=await place.reopened())
    events = await watched(run)
    assert [(e.data, e.replayed) for e in events if isinstance(e, WorkflowOutputEvent)] == [
        (1, False),
        (0, False),
    ]
    assert (await run.wait_for_completion()).outputs == [3, 2, 1, 0]


async def test_status_of_each_in_the_list(storage: CheckpointStorage, gate: asyncio.Event) -> None:
    await soon(counting().run(1, run_id="completed", storage=storage))
    await soon(asking().run("?", run_id="waiting", storage=storage))
    with pytest.raises(ExecutorFailed):
        await soon(counting(0).run(1, run_id="failed", storage=storage))
    cancelled = await patient().start(1, run_id="cancelled", storage=storage)
    await soon(reached[-1].wait())
    await cancelled.cancel()
    reached[-1].clear()
    stopped = await patient().start(1, run_id="stopped", storage=storage)
    await soon(reached[-1].wait())
    await stopped.close()
    running = await patient().start(1, run_id="running", storage=storage)
    for status in RunStatus:
        (listed,) = await storage.list_runs(status=status)
        assert (listed.run_id, listed.status) == (status.value, status)
        assert bool(listed.reason) is (status is RunStatus.FAILED)
        assert [run.run_id for run in await storage.list_runs(status=status.value)] == [status.value]
    await running.cancel()
    with pytest.raises(InvalidArgument, match=r"status='done'.*there are: .*waiting"):
        await storage.list_runs(status="done")


@pytest.mark.parametrize(("leave", "status"), [("cancel", RunStatus.CANCELLED), ("close", RunStatus.STOPPED)])
async def test_run_that_is_left_before_its_first_step(
    storage: CheckpointStorage, leave: str, status: RunStatus
) -> None:
    run = await counting().start(1, run_id="mine", storage=storage)
    await getattr(run, leave)()
    assert run.status is status
    assert (await info_of_run(storage, "mine")).status is status
    assert await outputs_of(counting().resume(run_id="mine", storage=storage)) == [[1, 0]]


# -- going back ------------------------------------------------------------------------------------


async def test_end_of_a_superstep_that_nothing_followed_goes_on_from_the_head(
    storage: CheckpointStorage,
) -> None:
    with pytest.raises(ExecutorFailed):
        await soon(counting(bad=1).run(2, run_id="mine", storage=storage))
    *_, end, start = await storage.list_checkpoints(run_id="mine")
    assert (end.phase, start.phase) == ("end", "start")
    assert await outputs_of(counting().resume(end, storage=storage)) == [[2, 1, 0]]
    assert "restore" not in [c.cause for c in await storage.list_checkpoints(run_id="mine")]


async def test_going_back_before_a_question(place: Place) -> None:
    result = await soon(asking().run("sure?", run_id="mine", storage=place.storage))
    await soon(result.respond({"Ask.1.1": 1}))
    first, asked, *_ = await place.storage.list_checkpoints(run_id="mine")
    run = await asking().resume(asked, storage=place.storage, responses={"Ask.1.1": 2})
    assert (await soon(run.wait_for_completion())).outputs == [("sure?", 2)]
    run = await asking().resume(first, storage=place.storage)
    assert (await soon(run.wait_for_completion())).pending_requests[0].request_id == "Ask.1.1"
    assert (await info_of_run(place.storage, "mine")).status is RunStatus.WAITING


# -- numbers and limits ----------------------------------------------------------------------------


async def test_superstep_numbers_go_on(place: Place) -> None:
    with pytest.raises(ExecutorFailed):
        await soon(counting(bad=2).run(4, run_id="mine", storage=place.storage))
    run = await counting().resume(run_id="mine", storage=await place.reopened())
    events = await watched(run)
    ends = [e.superstep for e in events if isinstance(e, SuperStepCompletedEvent)]
    assert ends == [3, 4, 5]
    assert [
        e.checkpoint.superstep for e in events if isinstance(e, SuperStepCompletedEvent) and e.checkpoint
    ] == ends
    saved = [e.checkpoint.seq for e in events if isinstance(e, CheckpointSavedEvent)]
    assert saved == [6, 7, 8, 9, 10]
    assert [e.checkpoint.seq for e in events if isinstance(e, SuperStepStartedEvent) and e.checkpoint] == [
        5,
        7,
        9,
    ]


async def test_checkpoint_at_the_superstep_limit_can_be_resumed(place: Place) -> None:
    workflow = counting(max_iterations=3)
    with pytest.raises(SuperstepLimit, match="3 supersteps since its last input"):
        await soon(workflow.run(7, run_id="mine", storage=place.storage))
    listed = await info_of_run(place.storage, "mine")
    assert listed.status is RunStatus.FAILED
    assert "SuperstepLimit" in listed.reason
    with pytest.raises(SuperstepLimit):
        await outputs_of(workflow.resume(run_id="mine", storage=await place.reopened()))
    outputs = await outputs_of(workflow.resume(run_id="mine", storage=place.storage))
    assert outputs == [[7, 6, 5, 4, 3, 2, 1, 0]]
    assert (await head_of(place.storage, "mine")).seq == 16


async def test_limit_counts_anew_after_an_answer_given_at_resume(storage: CheckpointStorage) -> None:
    class AskOften(Executor):
        @handler
        async def ask(self, left: int, ctx: WorkflowContext) -> None:
            await ctx.request_info(left, response_type=int)

        @response_handler
        async def answered(self, left: int, answer: int, ctx: WorkflowContext[int, int]) -> None:
            if left:
                await ctx.send_message(left - 1)
            else:
                await ctx.yield_output(answer)

    workflow = (
        WorkflowBuilder(name="Often", max_iterations=2)
        .set_start_executor(AskOften)
        .add_edge(AskOften, AskOften)
        .build()
    )
    result = await soon(workflow.run(3, run_id="mine", storage=storage))
    while result.pending_requests:
        answers = {str(request.request_id): 7 for request in result.pending_requests}
        run = await workflow.resume(run_id="mine", storage=storage, responses=answers)
        result = await soon(run.wait_for_completion())
    assert result.outputs == [7]
    assert (await storage.list_checkpoints(run_id="mine"))[-1].superstep == 8


# -- answers ---------------------------------------------------------------------------------------


async def test_answers_given_at_resume(place: Place) -> None:
    await soon(asking().run("sure?", run_id="mine", storage=place.storage))
    run = await asking().resume(run_id="mine", storage=await place.reopened(), responses={"Ask.1.1": 7})
    events = await watched(run)
    assert (await run.wait_for_completion()).outputs == [("sure?", 7)]
    assert not [event for event in events if isinstance(event, RequestInfoEvent)]
    starts = [event for event in events if isinstance(event, SuperStepStartedEvent)]
    assert [(start.superstep, start.checkpoint and start.checkpoint.cause) for start in starts] == [
        (2, "response")
    ]


@pytest.mark.parametrize("how", ["resume", "run_from_checkpoint", "stream"])
async def test_wrong_answers_are_refused_before_anything_is_written(place: Place, how: str) -> None:
    await soon(asking().run("sure?", run_id="mine", storage=place.storage))
    before = await everything(place.storage, "mine")
    latest = await place.storage.get_latest(run_id="mine")
    assert latest is not None

    async def resume(responses: Any) -> None:
        if how == "resume":
            await asking().resume(latest, responses, place.storage)
        elif how == "run_from_checkpoint":
            await asking().run_from_checkpoint(latest, place.storage, responses)
        else:
            stream = asking().run_stream_from_checkpoint(latest, place.storage, responses)
            [event async for event in stream]

    wrong: list[tuple[Any, type[Exception], str]] = [
        ({"Ask.9.9": 1}, UnknownRequest, "Ask.9.9"),
        ({"Ask.1.1": "many"}, InvalidResponse, "Ask.1.1"),
        ({"Ask.1.1": None}, InvalidResponse, "Ask.1.1"),
        ({"Ask.1.1": 1, "Ask.2.1": 1}, UnknownRequest, "Ask.2.1"),
    ]
    for responses, kind, named in wrong:
        with pytest.raises(kind, match=named):
            await resume(responses)
    assert await everything(place.storage, "mine") == before
    assert await outputs_of(asking().resume(latest, {"Ask.1.1": 1}, place.storage)) == [("sure?", 1)]


async def test_answers_of_the_wrong_shape_are_refused(storage: CheckpointStorage) -> None:
    await soon(asking().run("sure?", run_id="mine", storage=storage))
    before = await everything(storage, "mine")
    for responses in ([("Ask.1.1", 1)], "Ask.1.1", 7):
        with pytest.raises(WrongType):
            await asking().resume(run_id="mine", storage=storage, responses=responses)  # type: ignore[arg-type]
    assert await everything(storage, "mine") == before


async def test_answer_that_was_given_before(storage: CheckpointStorage) -> None:
    class Two(Ask):
        @handler
        async def ask_twice(self, texts: list, ctx: WorkflowContext) -> None:
            for text in texts:
                await ctx.request_info(text, response_type=int)

    def workflow() -> Workflow:
        return WorkflowBuilder(name="Two").set_start_executor(Two).build()

    await soon(workflow().run(["a", "b"], run_id="mine", storage=storage))
    run = await workflow().resume(run_id="mine", storage=storage, responses={"Two.1.1": 1})
    assert (await soon(run.wait_for_completion())).status is RunStatus.WAITING
    with pytest.raises(RequestAlreadyAnswered):
        await workflow().resume(run_id="mine", storage=storage, responses={"Two.1.1": 2})
    outputs = await outputs_of(workflow().resume(run_id="mine", storage=storage, responses={"Two.1.2": 2}))
    assert outputs == [("a", 1), ("b", 2)]


async def test_answer_that_was_sent_while_others_work_is_stored_with_the_superstep(
    place: Place, gate: asyncio.Event
) -> None:
    @executor(id="start")
    async def start(text: str) -> str:
        return text

    class Work(Executor):
        @handler
        async def work(self, text: str, ctx: WorkflowContext[Any, Any]) -> None:
            if len(text) < 8:
                await ctx.send_message(text + "x")
            if len(text) == 7:
                await gate.wait()

    def workflow() -> Workflow:
        return (
            WorkflowBuilder(name="Beside")
            .set_start_executor(start)
            .add_fan_out_edges(start, [Ask, Work])
            .add_edge(Work, Work)
            .build()
        )

    run = await workflow().start("sure?", run_id="mine", storage=place.storage)
    await _superstep_reached(run, 4)
    await run.send_response("Ask.2.1", 3)
    gate.set()
    assert (await soon(run.wait_for_completion())).outputs == [("sure?", 3)]
    answered = [c for c in await place.storage.list_checkpoints(run_id="mine") if c.cause == "response"]
    assert len(answered) == 1
    assert (await place.storage.verify()).ok
    again = await workflow().resume(answered[0], storage=place.storage)
    assert (await soon(again.wait_for_completion())).outputs == [("sure?", 3)]


@pytest.mark.parametrize("kind", ON_DISK)
async def test_a_person_answers_in_another_process(kind: str, tmp_path: Path) -> None:
    said = await asyncio.to_thread(killed_by_itself, ask_and_die, kind, str(tmp_path), "mine")
    assert json.loads(said) == ["waiting", "Approve.2.1", "deploy"]
    async with storage_at(kind, tmp_path) as storage:
        listed = await info_of_run(storage, "mine")
        assert (listed.status, listed.interrupted) == (RunStatus.WAITING, False)
    said = await asyncio.to_thread(in_child, answer, kind, str(tmp_path), "mine", "Approve.2.1")
    assert json.loads(said) == ["completed", [["deploy", True, "go", 1, 6000]]]
    async with storage_at(kind, tmp_path) as storage:
        assert (await info_of_run(storage, "mine")).status is RunStatus.COMPLETED
        assert (await storage.verify()).ok


# -- failing supersteps ----------------------------------------------------------------------------


async def test_failure_carries_the_checkpoint_to_go_on_from(storage: CheckpointStorage) -> None:
    run = await counting(bad=0).start(1, storage=storage)
    with pytest.raises(ExecutorFailed) as caught:
        await soon(run.wait_for_completion())
    assert caught.value.checkpoint == run.latest_checkpoint
    assert run.latest_checkpoint == (await storage.list_checkpoints())[-1]
    assert caught.value.run_id == run.run_id


async def test_siblings_of_a_failure_leave_no_trace(place: Place) -> None:
    ran: list[str] = []

    @executor(id="start")
    async def start(text: str) -> str:
        return text

    class Sibling(Executor):
        @handler
        async def work(self, text: str, ctx: WorkflowContext[str]) -> str:
            ran.append(str(self.id))
            await ctx.queue_state_update(str(self.id), text, scope_name="Shared")
            if self.id == "b" and len(ran) < 4:
                raise Broken
            return text

    @executor(id="join")
    async def join(texts: list, ctx: WorkflowContext[None, Any]) -> None:
        await ctx.yield_output([texts, sorted(await ctx.read_state_keys(scope_name="Shared"))])

    def workflow() -> Workflow:
        siblings = [Sibling.bind(id=name) for name in "abc"]
        return (
            WorkflowBuilder(name="Siblings")
            .set_start_executor(start)
            .add_fan_out_edges(start, siblings)
            .add_fan_in_edges(siblings, join)
            .build()
        )

    with pytest.raises(ExecutorFailed):
        await soon(workflow().run("x", run_id="mine", storage=place.storage))
    latest = await place.storage.get_latest(run_id="mine")
    assert latest is not None
    assert dict(latest.scopes) == {}
    assert [message.target_id for message in latest.messages] == ["a", "b", "c"]
    outputs = await outputs_of(workflow().resume(run_id="mine", storage=await place.reopened()))
    assert outputs == [[["x", "x", "x"], ["a", "b", "c"]]]


async def test_retries_begin_anew_after_a_resume(storage: CheckpointStorage) -> None:
    attempts: list[int] = []

    class Flaky(Executor):
        checkpointed = ("tries",)

        def __init__(self, id: str | None = None) -> None:
            super().__init__(id)
            self.tries = 0

        @handler(retry=RetryPolicy(attempts=3, backoff=0))
        async def work(self, good: int, ctx: WorkflowContext[None, Any]) -> None:
            attempts.append(ctx.attempt)
            self.tries += 1
            if len(attempts) < good:
                raise Broken
            await ctx.yield_output(self.tries)

    workflow = WorkflowBuilder(name="Flaky").set_start_executor(Flaky).build()
    with pytest.raises(ExecutorFailed, match="after 3 attempts"):
        await soon(workflow.run(5, run_id="mine", storage=storage))
    # Before each attempt the executor is as it was at the last barrier.
    assert await outputs_of(workflow.resume(run_id="mine", storage=storage)) == [1]
    assert attempts == [1, 2, 3, 1, 2]


async def test_executor_that_cannot_be_created_leaves_the_run_as_it_is(storage: CheckpointStorage) -> None:
    with pytest.raises(ExecutorFailed):
        await soon(counting(bad=1).run(2, run_id="mine", storage=storage))
    before = await everything(storage, "mine")

    class Impossible(Count):
        def __init__(self, id: str | None = None) -> None:
            raise Broken

    count = Impossible.bind(id="count")
    workflow = WorkflowBuilder(name="Counting").set_start_executor(count).add_edge(count, count).build()
    with pytest.raises(ExecutorFailed, match="could not be created"):
        await workflow.resume(run_id="mine", storage=storage)
    assert await everything(storage, "mine") == before


# -- events ----------------------------------------------------------------------------------------


async def test_events_carry_their_checkpoints(storage: CheckpointStorage) -> None:
    run = await counting().start(1, storage=storage)
    events = await watched(run)
    assert [name.split()[1] for name in names(events)] == [
        "WorkflowStarted",
        "WorkflowStatus",
        "CheckpointSaved",
        "SuperStepStarted",
        "ExecutorInvoked",
        "ExecutorCompleted",
        "CheckpointSaved",
        "SuperStepCompleted",
        "CheckpointSaved",
        "SuperStepStarted",
        "ExecutorInvoked",
        "ExecutorCompleted",
        "WorkflowOutput",
        "CheckpointSaved",
        "SuperStepCompleted",
        "WorkflowStatus",
        "WorkflowCompleted",
    ]
    checkpoints = await storage.list_checkpoints()
    assert [e.checkpoint.checkpoint_id for e in events if isinstance(e, CheckpointSavedEvent)] == [
        c.checkpoint_id for c in checkpoints
    ]
    starts = [e.start_info.checkpoint for e in events if isinstance(e, SuperStepStartedEvent)]
    ends = [e.completion_info.checkpoint for e in events if isinstance(e, SuperStepCompletedEvent)]
    assert starts == [c for c in checkpoints if c.phase == "start"]
    assert ends == [c for c in checkpoints if c.phase == "end"]
    assert run.checkpoints == [c.info for c in checkpoints]


async def test_same_events_with_and_without_storage(storage: CheckpointStorage) -> None:
    def kept(events: list[WorkflowEvent]) -> list[str]:
        return names([event for event in events if not isinstance(event, CheckpointSavedEvent)])

    with_storage = [event async for event in counting().run_stream(3, storage=storage)]
    without = [event async for event in counting().run_stream(3)]
    assert kept(with_storage) == kept(without)


async def test_request_info_executor_asks_across_a_resume(place: Place) -> None:
    def workflow() -> Workflow:
        ask = RequestInfoExecutor(id="ask", response_type=bool)
        return WorkflowBuilder(name="Info").set_start_executor(ask).build()

    await soon(workflow().run({"deploy": ["eu", "us"]}, run_id="mine", storage=place.storage))
    storage = await place.reopened()
    latest = await storage.get_latest("Info")
    assert latest is not None
    result = await soon(workflow().run_from_checkpoint(latest, storage, {"ask.1.1": True}))
    assert result.outputs == [True]


def test_one_storage_for_one_event_loop_after_another(tmp_path: Path) -> None:
    """As programs without an event loop of their own have it."""
    storage = SqliteCheckpointStorage(tmp_path / "runs.db")
    workflow = counting(storage=storage)
    first = workflow.run_sync(2, run_id="first")
    second = workflow.run_sync(1)
    assert (first.outputs, second.outputs) == ([[2, 1, 0]], [[1, 0]])
    with pytest.raises(RunExists):
        workflow.run_sync(2, run_id="first")
    listed = asyncio.run(storage.list_runs())
    assert [run.run_id for run in listed] == ["first", second.run_id]
    asyncio.run(storage.close())
