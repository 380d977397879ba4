"""A checkpoint at the start of each superstep: what it holds, its number, its parent, and going on from it."""

import datetime
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias

import pytest

from holdfast import (
    Checkpoint,
    CheckpointInfo,
    CheckpointSavedEvent,
    CheckpointStorage,
    Executor,
    ExecutorFailed,
    InMemoryCheckpointStorage,
    RunStatus,
    SuperStepCompletedEvent,
    SuperStepStartedEvent,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    WorkflowOutputEvent,
    executor,
    handler,
    response_handler,
)
from tests.seeds.storages import OpenStorage
from tests.support.parts import Environment, RunConfig
from tests.support.runs import events_until_failure

Seen: TypeAlias = list[tuple[int, str, object]]
"""What was delivered: in which superstep, to whom, what."""

SUPERSTEPS = 4
DELIVERED: Seen = [
    (1, "split", "a b"),
    (2, "left", "a b"),
    (2, "right", "a b"),
    (3, "join", ["A B", "b a"]),
    (4, "finish", "A B|b a"),
]
OUTPUT = "A B|b a."
LINEAGE = [(superstep, phase) for superstep in range(1, SUPERSTEPS + 1) for phase in ("start", "end")]


def diamond(storage: CheckpointStorage | None, seen: Seen) -> Workflow:
    """Four supersteps: two executors side by side in the second, a fan-in before the third."""

    @executor(id="split")
    async def split(text: str, ctx: WorkflowContext[str]) -> None:
        seen.append((ctx.superstep, "split", text))
        await ctx.send_message(text)

    @executor(id="left")
    async def left(text: str, ctx: WorkflowContext[str]) -> None:
        seen.append((ctx.superstep, "left", text))
        await ctx.send_message(text.upper())

    @executor(id="right")
    async def right(text: str, ctx: WorkflowContext[str]) -> None:
        seen.append((ctx.superstep, "right", text))
        await ctx.send_message(text[::-1])

    @executor(id="join")
    async def join(texts: list[str], ctx: WorkflowContext[str]) -> None:
        seen.append((ctx.superstep, "join", texts))
        await ctx.set_shared_state("joined", len(texts))
        await ctx.send_message("|".join(texts))

    @executor(id="finish")
    async def finish(text: str, ctx: WorkflowContext[None, str]) -> None:
        seen.append((ctx.superstep, "finish", text))
        assert await ctx.get_shared_state("joined") == 2
        await ctx.yield_output(f"{text}.")

    builder = (
        WorkflowBuilder(name="Diamond")
        .set_start_executor(split)
        .add_fan_out_edges(split, [left, right])
        .add_fan_in_edges([left, right], join)
        .add_edge(join, finish)
    )
    return (builder.with_checkpointing(storage) if storage is not None else builder).build()


async def events_of(workflow: Workflow) -> list[WorkflowEvent]:
    return [event async for event in workflow.run_stream("a b")]


async def resumed_events(workflow: Workflow, checkpoint: CheckpointInfo) -> list[WorkflowEvent]:
    return [event async for event in workflow.run_stream_from_checkpoint(checkpoint)]


def starts(events: Sequence[WorkflowEvent]) -> list[SuperStepStartedEvent]:
    return [event for event in events if isinstance(event, SuperStepStartedEvent)]


def ends(events: Sequence[WorkflowEvent]) -> list[SuperStepCompletedEvent]:
    return [event for event in events if isinstance(event, SuperStepCompletedEvent)]


def told(events: Sequence[WorkflowEvent]) -> list[CheckpointInfo]:
    """The checkpoints that the supersteps' own events carry, in order."""
    checkpoints = [
        event.checkpoint
        for event in events
        if isinstance(event, SuperStepStartedEvent | SuperStepCompletedEvent)
    ]
    return [checkpoint for checkpoint in checkpoints if checkpoint is not None]


def outputs(events: Sequence[WorkflowEvent]) -> list[object]:
    return [event.data for event in events if isinstance(event, WorkflowOutputEvent)]


def lineage(checkpoints: Sequence[CheckpointInfo]) -> list[tuple[int, str]]:
    return [(checkpoint.superstep, str(checkpoint.phase)) for checkpoint in checkpoints]


async def messages_at(storage: CheckpointStorage, checkpoint: CheckpointInfo) -> list[tuple[str, object]]:
    loaded = await storage.load(checkpoint)
    return [(str(message.target_id), message.data) for message in loaded.messages]


def delivered_from(superstep: int) -> Seen:
    return [delivery for delivery in DELIVERED if delivery[0] >= superstep]


# The checkpoint on the event


async def test_each_superstep_start_carries_its_checkpoint(storage: CheckpointStorage) -> None:
    events = await events_of(diamond(storage, []))
    assert len(starts(events)) == SUPERSTEPS
    for number, event in enumerate(starts(events), start=1):
        assert event.checkpoint is not None
        assert event.superstep == event.checkpoint.superstep == number
        assert event.checkpoint.phase == "start"
        assert event.checkpoint.run_id == event.run_id
    for number, end in enumerate(ends(events), start=1):
        assert end.checkpoint is not None
        assert end.superstep == end.checkpoint.superstep == number
        assert end.checkpoint.phase == "end"


async def test_without_storage_there_is_no_checkpoint() -> None:
    events = await events_of(diamond(None, []))
    assert [event.checkpoint for event in starts(events)] == [None] * SUPERSTEPS
    assert [event.checkpoint for event in ends(events)] == [None] * SUPERSTEPS
    assert not [event for event in events if isinstance(event, CheckpointSavedEvent)]


async def test_the_checkpoint_of_an_event_is_in_the_storage_already(storage: CheckpointStorage) -> None:
    """Whoever sees the event can resume from its checkpoint, whatever happens next."""
    async for event in diamond(storage, []).run_stream("a b"):
        if isinstance(event, SuperStepStartedEvent | SuperStepCompletedEvent):
            assert event.checkpoint is not None
            loaded = await storage.load(event.checkpoint.checkpoint_id)
            assert loaded.info == event.checkpoint


async def test_each_checkpoint_is_also_told_on_its_own_before_its_event(storage: CheckpointStorage) -> None:
    events = await events_of(diamond(storage, []))
    saved = [event.checkpoint for event in events if isinstance(event, CheckpointSavedEvent)]
    assert saved == told(events)
    for event in events:
        if isinstance(event, SuperStepStartedEvent | SuperStepCompletedEvent):
            assert event.checkpoint is not None
            (place,) = [
                index
                for index, other in enumerate(events)
                if isinstance(other, CheckpointSavedEvent) and other.checkpoint == event.checkpoint
            ]
            assert place < events.index(event)


async def test_the_paths_of_the_seed_work_too(storage: CheckpointStorage) -> None:
    events = await events_of(diamond(storage, []))
    for start, end in zip(starts(events), ends(events), strict=True):
        assert start.start_info.checkpoint is start.checkpoint
        assert end.completion_info.checkpoint is end.checkpoint
        assert start.step_number == end.step_number == start.superstep
        assert start.checkpoint is not None
        assert end.checkpoint is not None
        assert start.checkpoint.step_number == start.checkpoint.iteration_count == start.superstep
        assert end.checkpoint.step_number == end.superstep
        assert end.checkpoint.parent is not None
        assert end.checkpoint.parent.checkpoint_id == start.checkpoint.checkpoint_id
    first = told(events)[0]
    assert first.parent is None


# Numbers, parents, order


async def test_there_are_exactly_two_checkpoints_for_each_superstep(storage: CheckpointStorage) -> None:
    events = await events_of(diamond(storage, []))
    listed = await storage.list_checkpoints()
    assert lineage(listed) == LINEAGE
    assert [checkpoint.checkpoint_id for checkpoint in listed] == [cp.checkpoint_id for cp in told(events)]
    assert len({checkpoint.checkpoint_id for checkpoint in listed}) == 2 * SUPERSTEPS


async def test_each_checkpoint_is_the_child_of_the_one_before(storage: CheckpointStorage) -> None:
    await events_of(diamond(storage, []))
    listed = await storage.list_checkpoints()
    assert listed[0].parent_id is None
    assert [cp.parent_id for cp in listed[1:]] == [cp.checkpoint_id for cp in listed[:-1]]


async def test_causes_and_statuses(storage: CheckpointStorage) -> None:
    await events_of(diamond(storage, []))
    listed = await storage.list_checkpoints()
    assert [str(cp.cause) for cp in listed] == ["input"] + ["superstep"] * (2 * SUPERSTEPS - 1)
    assert [cp.status for cp in listed] == [RunStatus.RUNNING] * (2 * SUPERSTEPS - 1) + [RunStatus.COMPLETED]


async def test_the_first_superstep_of_a_single_executor_is_number_one(storage: CheckpointStorage) -> None:
    @executor
    def only(text: str) -> str:
        return text

    workflow = WorkflowBuilder(name="Only").set_start_executor(only).with_checkpointing(storage).build()
    result = await workflow.run("a")
    listed = await storage.list_checkpoints(run_id=result.run_id)
    assert lineage(listed) == [(1, "start"), (1, "end")]


def assert_in_order(checkpoints: Sequence[CheckpointInfo]) -> None:
    assert [cp.seq for cp in checkpoints] == list(range(1, len(checkpoints) + 1))
    times = [cp.timestamp for cp in checkpoints]
    assert all(earlier < later for earlier, later in pairwise(times))
    for time in times:
        assert time.tzinfo is not None
        assert time.utcoffset() == datetime.timedelta(0)


async def test_seq_and_timestamp_strictly_increase_also_over_branches(open_again: OpenStorage) -> None:
    storage = open_again()
    await events_of(diamond(storage, []))
    for checkpoint in await storage.list_checkpoints():
        await resumed_events(diamond(open_again(), []), checkpoint)
    listed = await open_again().list_checkpoints()
    assert len(listed) > 4 * SUPERSTEPS
    assert_in_order(listed)


Clock: TypeAlias = Callable[[], datetime.datetime]
NOON = datetime.datetime(2026, 3, 11, 12, 0, 0, 123_456, datetime.UTC)


def timed_by(clock: Clock, workflow: Workflow) -> Workflow:
    return Workflow(workflow.graph, workflow.name, RunConfig(environment=Environment(now=clock)))


async def test_timestamps_have_microseconds_and_increase_while_the_clock_stands(
    open_again: OpenStorage,
) -> None:
    storage = open_again()
    workflow = timed_by(lambda: NOON, diamond(None, []))
    await workflow.run("a b", storage=storage)
    first, *_ = listed = await storage.list_checkpoints()
    assert first.timestamp == NOON
    assert_in_order(listed)

    await workflow.run_from_checkpoint(first.checkpoint_id, open_again())
    listed = await open_again().list_checkpoints()
    assert len(listed) == 4 * SUPERSTEPS
    assert_in_order(listed)
    assert listed[-1].timestamp - NOON < datetime.timedelta(milliseconds=1), "one microsecond is enough"


async def test_timestamps_increase_while_the_clock_goes_backwards(open_again: OpenStorage) -> None:
    ticks = 0

    def backwards() -> datetime.datetime:
        nonlocal ticks
        ticks += 1
        return NOON - datetime.timedelta(seconds=ticks)

    storage = open_again()
    workflow = timed_by(backwards, diamond(None, []))
    await workflow.run("a b", storage=storage)
    first, *_ = await storage.list_checkpoints()
    await workflow.run_from_checkpoint(first.checkpoint_id, open_again())
    assert_in_order(await open_again().list_checkpoints())


# What a start checkpoint holds


async def test_a_start_holds_the_messages_before_their_delivery(storage: CheckpointStorage) -> None:
    seen: Seen = []
    events = await events_of(diamond(storage, seen))
    assert seen == DELIVERED
    for event in starts(events):
        assert event.checkpoint is not None
        expected = [(who, what) for superstep, who, what in seen if superstep == event.superstep]
        assert await messages_at(storage, event.checkpoint) == expected
        assert event.checkpoint.message_count == len(expected)


async def test_a_start_holds_what_the_end_before_it_holds(storage: CheckpointStorage) -> None:
    """Nothing was delivered in between: messages, state and outputs are the same."""
    events = await events_of(diamond(storage, []))
    for end, start in zip(ends(events)[:-1], starts(events)[1:], strict=True):
        assert end.checkpoint is not None
        assert start.checkpoint is not None
        assert await messages_at(storage, start.checkpoint) == await messages_at(storage, end.checkpoint)
        before = await storage.load(end.checkpoint)
        after = await storage.load(start.checkpoint)
        assert after.shared_state == before.shared_state
        assert list(after.outputs) == list(before.outputs)


async def test_a_start_does_not_hold_what_its_superstep_does(storage: CheckpointStorage) -> None:
    events = await events_of(diamond(storage, []))
    start, end = starts(events)[2].checkpoint, ends(events)[2].checkpoint
    assert start is not None
    assert end is not None
    assert (await storage.load(start)).shared_state == {}
    assert (await storage.load(end)).shared_state == {"joined": 2}


async def test_the_senders_of_messages_are_kept(storage: CheckpointStorage) -> None:
    events = await events_of(diamond(storage, []))
    loaded = [await storage.load(cp) for cp in told(events) if cp.phase == "start"]
    assert [[message.source_id for message in cp.messages] for cp in loaded] == [
        [None],
        ["split", "split"],
        [None],
        ["join"],
    ]


# Going on


@pytest.mark.parametrize("index", range(2 * SUPERSTEPS - 1))
async def test_resuming_delivers_exactly_the_messages_of_the_checkpoint(
    index: int, open_again: OpenStorage
) -> None:
    """From the start of superstep n the messages of n are delivered again, from the end of n those of n + 1."""
    storage = open_again()
    await events_of(diamond(storage, []))
    checkpoint = (await storage.list_checkpoints())[index]
    first = checkpoint.superstep + (checkpoint.phase == "end")
    storage, seen = open_again(), Seen()
    held = await messages_at(storage, checkpoint)

    events = await resumed_events(diamond(storage, seen), checkpoint)

    assert [(who, what) for superstep, who, what in seen if superstep == first] == held
    assert seen == delivered_from(first)
    assert outputs(events) == [OUTPUT]
    assert [event.superstep for event in starts(events)] == list(range(first, SUPERSTEPS + 1))


async def test_resuming_the_last_end_delivers_nothing_and_writes_nothing(open_again: OpenStorage) -> None:
    storage = open_again()
    await events_of(diamond(storage, []))
    listed = await storage.list_checkpoints()
    seen: Seen = []
    events = await resumed_events(diamond(open_again(), seen), listed[-1])
    assert seen == []
    assert starts(events) == []
    assert outputs(events) == [OUTPUT]
    assert await open_again().list_checkpoints() == listed


@pytest.mark.parametrize("index", range(2 * SUPERSTEPS - 1))
async def test_parents_after_going_back(index: int, open_again: OpenStorage) -> None:
    """Going back is a checkpoint of its own: a child of the one restored, with its number and the next seq."""
    storage = open_again()
    await events_of(diamond(storage, []))
    old = await storage.list_checkpoints()
    target = old[index]

    events = await resumed_events(diamond(open_again(), []), target)

    listed = await open_again().list_checkpoints()
    assert listed[: len(old)] == old, "what was there stays"
    new = listed[len(old) :]
    restored = new[0]
    assert restored.cause == "restore"
    assert restored.parent_id == target.checkpoint_id
    assert restored.seq == len(old) + 1
    assert (restored.superstep, restored.phase) == (target.superstep, target.phase)
    assert await messages_at(storage, restored) == await messages_at(storage, target)

    assert lineage(new) == LINEAGE[index:]
    assert [cp.parent_id for cp in new[1:]] == [cp.checkpoint_id for cp in new[:-1]]
    assert all(cp.cause == "superstep" for cp in new[1:])
    carried = told(events)
    assert carried == (new if target.phase == "start" else new[1:]), "events carry the new branch"
    assert (await open_again().verify()).ok


async def test_going_back_to_a_branch_that_was_left(open_again: OpenStorage) -> None:
    storage = open_again()
    await events_of(diamond(storage, []))
    old = await storage.list_checkpoints()
    await resumed_events(diamond(open_again(), []), old[0])
    seen: Seen = []
    await resumed_events(diamond(open_again(), seen), old[4])
    assert seen == delivered_from(3)
    latest = await open_again().get_latest()
    assert latest is not None
    lineage_of_head = await ancestors(open_again(), latest)
    assert [cp.seq for cp in lineage_of_head][:5] == [1, 2, 3, 4, 5], "not by way of the branch between"
    assert [str(cp.cause) for cp in lineage_of_head].count("restore") == 1


async def ancestors(storage: CheckpointStorage, checkpoint: CheckpointInfo) -> list[CheckpointInfo]:
    """The lineage of a checkpoint, from the first on."""
    found: list[CheckpointInfo] = [checkpoint]
    while found[-1].parent is not None:
        found.append(await storage.load(found[-1].parent.checkpoint_id, values=False))
    return found[::-1]


@pytest.mark.parametrize("index", range(2 * SUPERSTEPS - 1))
async def test_going_back_twice_gives_the_same_twice(index: int, open_again: OpenStorage) -> None:
    storage = open_again()
    await events_of(diamond(storage, []))
    target = (await storage.list_checkpoints())[index]
    for _ in range(2):
        assert outputs(await resumed_events(diamond(open_again(), []), target)) == [OUTPUT]
    listed = await open_again().list_checkpoints()
    restored = [cp for cp in listed if cp.cause == "restore"]
    assert [cp.parent_id for cp in restored] == [target.checkpoint_id] * 2


# Going on from where a run stands


async def stopped_in(superstep: int, kind: type[WorkflowEvent], storage: CheckpointStorage) -> Checkpoint:
    """A run that was left at an event of a superstep; returns where it stands."""
    async with diamond(storage, []).run_stream("a b") as stream:
        async for event in stream:
            if isinstance(event, kind) and event.superstep == superstep:
                break
    latest = await storage.get_latest(run_id=stream.run.run_id)
    assert latest is not None
    return latest


@pytest.mark.parametrize("kind", [SuperStepStartedEvent, SuperStepCompletedEvent])
@pytest.mark.parametrize("superstep", range(1, SUPERSTEPS))
async def test_a_run_that_was_left_goes_on_without_a_gap(
    superstep: int, kind: type[WorkflowEvent], open_again: OpenStorage
) -> None:
    """Its checkpoints are in the end those of a run that was never left."""
    head = await stopped_in(superstep, kind, open_again())
    seen: Seen = []
    events = await resumed_events(diamond(open_again(), seen), head)
    assert outputs(events) == [OUTPUT]
    assert seen == delivered_from(starts(events)[0].superstep)

    listed = await open_again().list_checkpoints()
    assert lineage(listed) == LINEAGE
    assert [cp.parent_id for cp in listed] == [None, *(cp.checkpoint_id for cp in listed[:-1])]
    assert "restore" not in [str(cp.cause) for cp in listed]
    assert_in_order(listed)


@pytest.mark.parametrize("superstep", range(1, SUPERSTEPS))
async def test_the_end_that_a_left_run_saw_last_is_where_it_goes_on(
    superstep: int, open_again: OpenStorage
) -> None:
    """End n and start n + 1 are made together; going on from either is no going back."""
    storage = open_again()
    completed: list[CheckpointInfo] = []
    async with diamond(storage, []).run_stream("a b") as stream:
        async for event in stream:
            if isinstance(event, SuperStepCompletedEvent) and event.superstep == superstep:
                assert event.checkpoint is not None
                completed.append(event.checkpoint)
                break
    seen: Seen = []
    events = await resumed_events(diamond(open_again(), seen), completed[0])
    assert outputs(events) == [OUTPUT]
    assert seen == delivered_from(superstep + 1)
    assert lineage(await open_again().list_checkpoints()) == LINEAGE


async def test_the_run_id_is_enough(open_again: OpenStorage) -> None:
    head = await stopped_in(2, SuperStepCompletedEvent, open_again())
    run = await diamond(open_again(), []).resume(run_id=head.run_id)
    result = await run.wait_for_completion()
    assert result.outputs == [OUTPUT]
    assert run.checkpoints[0] == head, "its list begins with where it went on"
    assert lineage(run.checkpoints) == LINEAGE[4:]
    assert run.latest_checkpoint == run.checkpoints[-1]


async def test_a_superstep_that_fails_can_be_tried_again_from_its_start(open_again: OpenStorage) -> None:
    """The case of the issue: no end follows, so the start is the only checkpoint of that superstep."""
    broken = True

    @executor
    def first(text: str) -> str:
        return f"{text}1"

    @executor
    def second(text: str) -> str:
        if broken:
            raise ConnectionError("the service is away")
        return f"{text}2"

    def build(storage: CheckpointStorage) -> Workflow:
        return (
            WorkflowBuilder(name="Retry")
            .set_start_executor(first)
            .add_edge(first, second)
            .with_checkpointing(storage)
            .build()
        )

    storage = open_again()
    events, error = await events_until_failure(build(storage), "a")
    last = starts(events)[-1].checkpoint
    assert last is not None
    assert isinstance(error, ExecutorFailed)
    assert error.checkpoint == last, "the error names where to go on"
    assert lineage(await storage.list_checkpoints()) == [(1, "start"), (1, "end"), (2, "start")]
    assert (await storage.list_runs())[0].status is RunStatus.FAILED

    broken = False
    result = await build(open_again()).run_from_checkpoint(last.checkpoint_id)
    assert result.outputs == ["a12"]
    assert lineage(await open_again().list_checkpoints()) == LINEAGE[:4]


# Responses


class Ask(Executor):
    @handler
    async def ask(self, text: str, ctx: WorkflowContext) -> None:
        await ctx.request_info(text, response_type=int, request_id="how-many")

    @response_handler
    async def answered(self, request: str, response: int, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(request * response)


def asking(storage: CheckpointStorage) -> Workflow:
    @executor(id="last")
    def last(text: str) -> str:
        return text

    return (
        WorkflowBuilder(name="Ask")
        .set_start_executor(Ask)
        .add_edge(Ask, last)
        .with_checkpointing(storage)
        .build()
    )


async def test_numbers_go_on_after_a_response(open_again: OpenStorage) -> None:
    storage = open_again()
    result = await asking(storage).run("ab")
    latest = await storage.get_latest(run_id=result.run_id)
    assert latest is not None
    assert (latest.superstep, latest.phase, latest.status) == (1, "end", RunStatus.WAITING)

    storage = open_again()
    stream = asking(storage).run_stream_from_checkpoint(latest.checkpoint_id, responses={"how-many": 2})
    events = [event async for event in stream]

    assert outputs(events) == ["abab"]
    assert [event.superstep for event in starts(events)] == [2, 3]
    listed = await storage.list_checkpoints()
    assert lineage(listed) == LINEAGE[:6]
    assert [str(cp.cause) for cp in listed] == ["input", "superstep", "response"] + ["superstep"] * 3
    assert [cp.parent_id for cp in listed] == [None, *(cp.checkpoint_id for cp in listed[:-1])]
    assert starts(events)[0].checkpoint == listed[2]
    assert await messages_at(storage, listed[2]) == [("Ask", 2)]


async def test_numbers_go_on_when_the_same_run_is_answered(storage: CheckpointStorage) -> None:
    run = await asking(storage).start("ab")
    before = [event async for event in run.watch_stream()]
    await run.send_response("how-many", 3)
    after = [event async for event in run.watch_stream()]
    assert outputs(after) == ["ababab"]
    assert [event.superstep for event in starts(before) + starts(after)] == [1, 2, 3]
    assert told(before) + told(after) == await storage.list_checkpoints()
    assert run.checkpoints == await storage.list_checkpoints()


async def test_a_response_can_be_taken_back_by_going_on_from_before_it(open_again: OpenStorage) -> None:
    storage = open_again()
    waiting = await asking(storage).run("ab")
    await waiting.respond({"how-many": 1})
    _, asked, answered, *_ = await storage.list_checkpoints()

    other = await asking(open_again()).run_from_checkpoint(asked.checkpoint_id, responses={"how-many": 3})
    assert other.outputs == ["ababab"]
    same = await asking(open_again()).run_from_checkpoint(answered.checkpoint_id)
    assert same.outputs == ["ab"], "this one holds the first response"

    listed = await open_again().list_checkpoints()
    restored = [cp for cp in listed if cp.cause == "restore"]
    assert [cp.parent_id for cp in restored] == [asked.checkpoint_id, answered.checkpoint_id]
    assert [str(cp.phase) for cp in restored] == ["end", "start"]
    assert_in_order(listed)


# On a run's own list


async def test_a_run_lists_its_checkpoints(storage: CheckpointStorage) -> None:
    run = await diamond(storage, []).start("a b")
    await run.wait_for_completion()
    assert lineage(run.checkpoints) == LINEAGE
    assert run.latest_checkpoint == run.checkpoints[-1] == await storage.get_latest(run_id=run.run_id)


async def test_a_checkpoint_is_the_same_from_an_event_a_run_and_a_storage(storage: CheckpointStorage) -> None:
    run = await diamond(storage, []).start("a b")
    events = [event async for event in run.watch_stream()]
    listed = await storage.list_checkpoints()
    loaded = [await storage.load(checkpoint.checkpoint_id) for checkpoint in listed]
    assert told(events) == run.checkpoints == listed == loaded
    assert set(told(events)) == set(run.checkpoints) == set(listed) == set(loaded)


async def test_runs_do_not_share_a_lineage() -> None:
    storage = InMemoryCheckpointStorage()
    for _ in range(2):
        await events_of(diamond(storage, []))
    listed = await storage.list_checkpoints()
    assert [cp.seq for cp in listed if cp.parent is None] == [1, 1]
    runs = {cp.run_id for cp in listed}
    assert len(runs) == 2
    for run_id in runs:
        assert lineage(await storage.list_checkpoints(run_id=run_id)) == LINEAGE
