"""The journal: what the turns of an unfinished superstep did is not lost, and not done again."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from holdfast import (
    CheckpointCorrupt,
    CheckpointStorage,
    ConditionFailed,
    Executor,
    ExecutorCompletedEvent,
    ExecutorFailed,
    GraphChanged,
    HoldfastError,
    InMemoryCheckpointStorage,
    InvalidArgument,
    LimitExceeded,
    Limits,
    Merge,
    RunStatus,
    RunTaken,
    StateConflict,
    StateKey,
    Store,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    executor,
    handler,
    response_handler,
)
from tests.support.durable import Failing, Place, Wrapped, head_of, outputs_of
from tests.support.journals import (
    RUN,
    Again,
    Broken,
    Part,
    Trip,
    again_and_again,
    broken,
    calls,
    ending,
    fails,
    fan,
    goes_on,
    note,
    noted,
    noted_turns,
    parts,
    ran,
    start,
)
from tests.support.parts import Commit, Letter, MemoryStore, RunId
from tests.support.runs import names, soon
from tests.support.seeded_loop import run_seeded

pytestmark = pytest.mark.usefixtures("nothing_ran")


# -- a failed turn ---------------------------------------------------------------------------------


@pytest.mark.parametrize("again", ["same workflow", "new workflow"])
async def test_a_failed_turn_among_ten_runs_alone_when_resumed(place: Place, again: str) -> None:
    workflow = parts(10)
    expected = await soon(ending(await workflow.start(7, storage=InMemoryCheckpointStorage())))
    ran.clear()
    broken.add("p4")
    await fails(lambda: workflow, 7, place)
    assert sorted(ran) == [f"p{number}" for number in range(10)]
    others = [f"p{number}" for number in range(10) if number != 4]
    assert await noted_turns(place.storage) == others
    if again == "new workflow":
        found = await goes_on(lambda: parts(10), place)
    else:
        broken.clear()
        ran.clear()
        found = await soon(ending(await workflow.resume(run_id=RUN, storage=place.storage)))
    assert ran == ["p4", "collect"]
    assert found.replayed == others
    assert found.invoked == ["2 p4", "3 collect"]
    assert found.outputs == expected.outputs
    assert found.held == expected.held
    assert await noted(place.storage) == []


async def test_a_failed_turn_among_instances_runs_alone_when_resumed(place: Place) -> None:
    """Instances in the edges have the fields of turns that are over; a resume puts them back, then restores them."""
    made = again_and_again([Again.bind(id=name) for name in "abc"])
    expected = await soon(ending(await made.start(3, storage=InMemoryCheckpointStorage())))
    workflow = again_and_again([Again("a"), Again("b"), Again("c")])
    broken.update(["b 1", "c 1"])
    await fails(lambda: workflow, 3, place)
    broken.clear()
    ran.clear()
    found = await soon(ending(await workflow.resume(run_id=RUN, storage=place.storage)))
    assert ran[:2] == ["b 1", "c 1"]
    assert (found.outputs, found.held) == (expected.outputs, expected.held)


async def test_failing_again_and_again(place: Place) -> None:
    """Each resume adds to the journal what went well."""
    for number in range(10):
        broken.add(f"p{number}")
    await fails(lambda: parts(10), 7, place)
    assert await noted(place.storage) == []
    for number in range(9):
        broken.discard(f"p{number}")
        ran.clear()
        with pytest.raises(ExecutorFailed, match=f"executor 'p{number + 1}' failed"):
            await outputs_of(parts(10).resume(run_id=RUN, storage=await place.reopened()))
        assert sorted(ran) == [f"p{other}" for other in range(number, 10)]
        assert await noted_turns(place.storage) == [f"p{other}" for other in range(number + 1)]
    found = await goes_on(lambda: parts(10), place)
    assert ran == ["p9", "collect"]
    assert found.outputs[-1] == [f"p{number} [7]" for number in range(10)]
    assert found.held["state"]["Scope(owner=None, name='Shared', path='')"] == {
        "log": [f"p{number}" for number in range(10)]
    }


@pytest.mark.parametrize("count", [40, 200])
async def test_many_turns(place: Place, count: int) -> None:
    """More than one commit takes."""
    broken.add(f"p{count - 1}")
    await fails(lambda: parts(count), 1, place)
    assert len(await noted(place.storage)) == count - 1
    found = await goes_on(lambda: parts(count), place)
    assert ran == [f"p{count - 1}", "collect"]
    assert found.outputs[-1] == [f"p{number} [1]" for number in range(count)]
    assert found.outputs[:-1] == [f"output of p{number}" for number in range(count)]


async def test_events_of_replayed_turns(place: Place) -> None:
    broken.add("p1")
    await fails(lambda: parts(3), 1, place)
    broken.clear()
    run = await parts(3).resume(run_id=RUN, storage=await place.reopened())
    events = [event async for event in run.watch_stream()]
    assert names(events) == [
        "1 WorkflowStatus running",
        "2 SuperStepStarted",
        "2 ExecutorInvoked p1",
        "2 ExecutorCompleted p0",
        "2 ExecutorCompleted p1",
        "2 ExecutorCompleted p2",
        "2 WorkflowOutput p0 output of p0",
        "2 WorkflowOutput p1 output of p1",
        "2 WorkflowOutput p2 output of p2",
        "2 CheckpointSaved",
        "2 SuperStepCompleted",
        "3 CheckpointSaved",
        "3 SuperStepStarted",
        "3 ExecutorInvoked collect",
        "3 ExecutorCompleted collect",
        "3 WorkflowOutput collect ['p0 [1]', 'p1 [1]', 'p2 [1]']",
        "3 CheckpointSaved",
        "3 SuperStepCompleted",
        "3 WorkflowStatus completed",
        "3 WorkflowCompleted ['p0 [1]', 'p1 [1]', 'p2 [1]']",
    ]
    done = [(e.executor_id, e.replayed) for e in events if isinstance(e, ExecutorCompletedEvent)]
    assert done == [("p0", True), ("p1", False), ("p2", True), ("collect", False)]


async def test_an_executor_that_could_not_be_restored_can_be_mended(memory: Place) -> None:
    """Those whose turns are over are restored before their next turn, not before the superstep."""

    class Mended(Again):
        async def on_checkpoint_restored(self, ctx: WorkflowContext[Any, Any]) -> None:
            note(f"restored {self.id}")

    def make() -> Workflow:
        return again_and_again([Mended.bind(id=name) for name in "abc"])

    broken.add("c 2")
    await fails(make, 3, memory)
    broken.clear()
    broken.add("restored c")
    with pytest.raises(ExecutorFailed, match="executor 'c' could not be restored"):
        await make().resume(run_id=RUN, storage=memory.storage)
    assert await noted_turns(memory.storage) == ["a", "b"]
    await goes_on(make, memory)
    third = ["restored a", "a 3", "restored b", "b 3", "c 3"]
    assert ran == ["restored c", "c 2", *third, "a 4", "b 4", "c 4"]


# -- when apply fails ------------------------------------------------------------------------------


class Writes(Executor):
    @handler
    async def work(self, message: int, ctx: WorkflowContext[int]) -> int:
        note(self.id)
        await ctx.queue_state_update("sum", message + 1, scope_name="Conflict")
        return message


def writers(merge: Any = None) -> Workflow:
    builder = fan([Writes.bind(id="a"), Writes.bind(id="b")], name="Writers")
    return (builder if merge is None else builder.with_state_merge("Conflict", "sum", merge)).build()


def joined(current: object, update: object) -> str:
    note("merge")
    return f"{current}+{update}"


@pytest.mark.parametrize(("merge", "result"), [(Merge.ADD, 4), (Merge.LAST_WRITE, 2), (joined, "2+2")])
async def test_conflict_that_a_merge_solves_afterwards(place: Place, merge: Any, result: object) -> None:
    assert isinstance(await fails(writers, 1, place), StateConflict)
    assert sorted(ran) == ["a", "b"]
    assert await noted_turns(place.storage) == ["a", "b"]
    with pytest.raises(StateConflict):  # nothing was done about it
        await outputs_of(writers().resume(run_id=RUN, storage=place.storage))
    assert sorted(ran) == ["a", "b"]
    found = await goes_on(lambda: writers(merge), place)
    assert [name for name in ran if name != "merge"] == ["collect"]
    assert found.outputs == [[1, 1]]
    assert found.held["state"] == {"Scope(owner=None, name='Conflict', path='')": {"sum": result}}


class WritesKey(Executor):
    @handler
    async def work(self, message: int, ctx: WorkflowContext[int]) -> int:
        note(self.id)
        await ctx.queue_state_update("sum", message, scope_name="Declared late")
        return message


async def test_conflict_that_a_state_key_solves_afterwards(place: Place) -> None:
    def make() -> Workflow:
        return fan([WritesKey.bind(id=name) for name in "ab"]).build()

    from holdfast.graph import state_key

    assert isinstance(await fails(make, 2, place), StateConflict)
    try:
        StateKey("sum", int, scope_name="Declared late", merge=Merge.ADD)
        found = await goes_on(make, place)
    finally:
        del state_key._merges["Declared late", "sum"]
    assert ran == ["collect"]
    assert found.held["state"] == {"Scope(owner=None, name='Declared late', path='')": {"sum": 4}}


async def test_merge_that_raises_is_mended(place: Place) -> None:
    broken.add("merge")
    error = await fails(lambda: writers(joined), 1, place)
    assert isinstance(error, StateConflict)
    assert isinstance(error.__cause__, Broken)
    assert await noted_turns(place.storage) == ["a", "b"]
    found = await goes_on(lambda: writers(joined), place)
    assert set(ran) == {"merge", "collect"}
    assert found.held["state"] == {"Scope(owner=None, name='Conflict', path='')": {"sum": "2+2"}}


def average(current: float, update: float) -> float:
    note("average")
    return (current + update) / 2


AVERAGE = StateKey("average", float, scope_name="Averages", merge=average)


class Averages(Executor):
    @handler
    async def work(self, message: float, ctx: WorkflowContext[float]) -> float:
        note(self.id)
        await ctx.queue_state_update(AVERAGE, message * (2 if self.id == "a" else 4))
        return message


async def test_merge_of_a_state_key_that_raises_is_mended(place: Place) -> None:
    def make() -> Workflow:
        return fan([Averages.bind(id=name) for name in "ab"]).build()

    broken.add("average")
    assert isinstance(await fails(make, 1.0, place), StateConflict)
    found = await goes_on(make, place)
    assert set(ran) == {"average", "collect"}
    assert found.held["state"] == {"Scope(owner=None, name='Averages', path='')": {"average": 3.0}}


class AddsUp(Executor):
    @handler
    async def work(self, message: int, ctx: WorkflowContext[int]) -> int:
        note(self.id)
        await ctx.queue_state_update(keys_in_use[-1], message, scope_name="Made anew")
        return message


keys_in_use: list[StateKey[int]] = []


async def test_merge_of_a_state_key_that_is_made_with_each_workflow(place: Place) -> None:
    """As a function does that builds workflows: each time it is another function, though it does the same."""

    def make() -> Workflow:
        keys_in_use.append(StateKey("total", int, scope_name="Made anew", merge=lambda old, new: old + new))
        return fan([AddsUp.bind(id=name) for name in "abc"]).build()

    broken.add("b")
    await fails(make, 2, place)
    found = await goes_on(make, place)
    assert ran == ["b", "collect"]
    assert found.held["state"] == {"Scope(owner=None, name='Made anew', path='')": {"total": 6}}


async def test_merge_that_is_no_longer_declared(memory: Place) -> None:
    """A function cannot be stored; the outcome tells what is missing."""
    broken.add("merge")
    await fails(lambda: writers(joined), 1, memory)
    with pytest.raises(HoldfastError, match="whose merge was a function that is no longer declared"):
        await outputs_of(writers().resume(run_id=RUN, storage=memory.storage))
    assert await noted_turns(memory.storage) == ["a", "b"]
    found = await goes_on(lambda: writers(joined), memory)
    assert found.outputs == [[1, 1]]


def small(number: int) -> bool:
    note("condition")
    return number < 10


@executor(id="one")
async def one(number: int, ctx: WorkflowContext[int, str]) -> int:
    note("one")
    await ctx.yield_output("one was here")
    await ctx.append_state("ones", number)
    return number


@executor(id="two")
async def two(number: int) -> int:
    note("two")
    return number * 10


async def test_condition_that_raises_is_mended(place: Place) -> None:
    """Of a superstep with a single turn, which is not noted otherwise."""

    def make() -> Workflow:
        return (
            WorkflowBuilder(name="Chain").set_start_executor(one).add_edge(one, two, condition=small).build()
        )

    broken.add("condition")
    assert isinstance(await fails(make, 3, place), ConditionFailed)
    assert await noted_turns(place.storage) == ["one"]
    with pytest.raises(ConditionFailed):
        await outputs_of(make().resume(run_id=RUN, storage=place.storage))
    assert ran.count("one") == 1
    found = await goes_on(make, place)
    assert ran == ["condition", "two"]
    assert found.outputs == ["one was here", 30]
    assert found.replayed == ["one"]


async def test_condition_that_raises_behind_an_executor_with_fields(place: Place) -> None:
    """It goes on as it was after the turn, though it is the only one of its superstep."""

    def go_on(left: int) -> bool:
        note(f"condition {left}")
        return True

    def make() -> Workflow:
        again = Again.bind(id="again")
        builder = WorkflowBuilder(name="Loop").set_start_executor(again)
        return builder.add_edge(again, again, condition=go_on).build()

    broken.add("condition 1")
    assert isinstance(await fails(make, 3, place), ConditionFailed)
    found = await goes_on(make, place)
    assert ran == ["condition 1", "again 3", "condition 0", "again 4"]
    assert found.outputs == [("again", [3, 2, 1, 0])]


async def test_condition_that_raises_behind_several_turns_is_mended(place: Place) -> None:
    def make() -> Workflow:
        builder = fan([Part.bind(id=name) for name in "abc"])
        return builder.add_edge("b", two, condition=lambda text: small(len(text))).build()

    @executor(id="two")
    async def two(text: str) -> str:
        note("two")
        return text

    broken.add("condition")
    assert isinstance(await fails(make, 3, place), ConditionFailed)
    assert await noted_turns(place.storage) == ["a", "b", "c"]
    found = await goes_on(make, place)
    assert sorted(ran) == ["collect", "condition", "two"]
    assert len(found.outputs) == 5


async def test_too_many_deliveries_are_allowed_afterwards(memory: Place) -> None:
    """Whatever apply complains about: the outcomes are not lost."""

    @executor(id="many")
    async def many(number: int, ctx: WorkflowContext[int]) -> None:
        note("many")
        for each in range(number):
            await ctx.send_message(each)

    def make(limit: int) -> Workflow:
        builder = WorkflowBuilder(name="Many", limits=Limits(max_deliveries=limit))
        return builder.set_start_executor(many).add_edge(many, two).build()

    assert isinstance(await fails(lambda: make(5), 20, memory), LimitExceeded)
    found = await goes_on(lambda: make(50), memory)
    assert ran == ["two"] * 20
    assert found.outputs == [number * 10 for number in range(20)]


async def test_what_no_declaration_can_mend(memory: Place) -> None:
    """Two turns asked with the same id. Going back lets them run again."""

    class Ask(Executor):
        @handler
        async def ask(self, number: int, ctx: WorkflowContext) -> None:
            ran.append(str(self.id))
            await ctx.request_info(number, response_type=str, request_id=str(self.id) if ids else "same")

        @response_handler
        async def answered(self, number: int, text: str, ctx: WorkflowContext[str]) -> str:
            return text

    ids: list[bool] = []
    workflow = fan([Ask.bind(id=name) for name in "ab"]).build()
    assert isinstance(await fails(lambda: workflow, 1, memory), InvalidArgument)
    ids.append(True)
    run = await workflow.resume(run_id=RUN, storage=memory.storage)
    with pytest.raises(InvalidArgument, match="request id 'same'"):
        await soon(run.wait_for_completion())
    assert sorted(ran) == ["a", "b"]
    assert run.latest_checkpoint is not None
    await run.restore_checkpoint(run.latest_checkpoint)
    result = await soon(run.wait_for_completion())
    assert sorted(ran) == ["a", "a", "b", "b"]
    assert [request.request_id for request in result.pending_requests] == ["a", "b"]


# -- going back, and forks -------------------------------------------------------------------------


async def checkpoint_of(storage: CheckpointStorage, superstep: int, phase: str) -> str:
    """The newest checkpoint at one side of a superstep."""
    listed = await storage.list_checkpoints(run_id=RUN)
    return [str(c.checkpoint_id) for c in listed if (c.superstep, c.phase) == (superstep, phase)][-1]


ALL_AGAIN = ["collect", "p0", "p1", "p2"]


@pytest.mark.parametrize("where", [(1, "start"), (1, "end"), (2, "start")])
async def test_restore_discards_the_journal(place: Place, where: tuple[int, str]) -> None:
    """Also that to the very checkpoint on which the run stands."""
    broken.add("p1")
    run = await parts(3).start(1, run_id=RUN, storage=place.storage)
    with pytest.raises(ExecutorFailed):
        await soon(run.wait_for_completion())
    assert await noted_turns(place.storage) == ["p0", "p2"]
    broken.clear()
    ran.clear()
    await run.restore_checkpoint(await checkpoint_of(place.storage, *where))
    assert await noted(place.storage) == []
    result = await soon(run.wait_for_completion())
    assert sorted(ran) == ALL_AGAIN
    assert result.outputs[-1] == ["p0 [1]", "p1 [1]", "p2 [1]"]


async def test_resume_from_an_earlier_checkpoint_discards_the_journal(place: Place) -> None:
    broken.add("p1")
    await fails(lambda: parts(3), 1, place)
    broken.clear()
    ran.clear()
    earlier = await checkpoint_of(place.storage, 1, "start")
    assert (await outputs_of(parts(3).resume(earlier, storage=await place.reopened())))[-1] == [
        "p0 [1]",
        "p1 [1]",
        "p2 [1]",
    ]
    assert sorted(ran) == ALL_AGAIN


@pytest.mark.parametrize("where", [(1, "end"), (2, "start")])
async def test_resume_from_where_the_run_stands_keeps_the_journal(
    place: Place, where: tuple[int, str]
) -> None:
    """Also from the end before it, behind which nothing came: the run goes on with that superstep."""
    broken.add("p1")
    await fails(lambda: parts(3), 1, place)
    broken.clear()
    ran.clear()
    standing = await checkpoint_of(place.storage, *where)
    await outputs_of(parts(3).resume(standing, storage=await place.reopened()))
    assert ran == ["p1", "collect"]


@pytest.mark.parametrize("where", [(1, "start"), (1, "end"), (2, "start")])
async def test_a_fork_does_not_take_the_journal_along(place: Place, where: tuple[int, str]) -> None:
    broken.add("p1")
    await fails(lambda: parts(3), 1, place)
    broken.clear()
    ran.clear()
    standing = await checkpoint_of(place.storage, *where)
    fork = await parts(3).fork(standing, run_id="other", storage=place.storage)
    assert await noted(place.storage, "other") == []
    await soon(fork.wait_for_completion())
    assert sorted(ran) == ALL_AGAIN
    # That of the run from which it came is as it was.
    assert await noted_turns(place.storage) == ["p0", "p2"]
    await goes_on(lambda: parts(3), place)
    assert ran == ["p1", "collect"]


async def test_a_journal_that_was_discarded_does_not_come_back(place: Place) -> None:
    """The run goes back, fails elsewhere, and goes on: only what was done since counts."""
    broken.add("p1")
    run = await parts(3).start(1, run_id=RUN, storage=place.storage)
    with pytest.raises(ExecutorFailed):
        await soon(run.wait_for_completion())
    broken.clear()
    broken.add("p2")
    assert run.latest_checkpoint is not None
    await run.restore_checkpoint(run.latest_checkpoint)
    with pytest.raises(ExecutorFailed):
        await soon(run.wait_for_completion())
    assert await noted_turns(place.storage) == ["p0", "p1"]
    await goes_on(lambda: parts(3), place)
    assert ran == ["p2", "collect"]


# -- left in the middle ----------------------------------------------------------------------------


class Holds(Part):
    """Waits until it is let go, or for ever."""

    waiting: asyncio.Event
    free: asyncio.Event

    @handler
    async def work(self, message: int, ctx: WorkflowContext[str, str]) -> str:
        if str(self.id) in held:
            self.waiting.set()
            await self.free.wait()
        return await super().work(message, ctx)


held: set[str] = set()


@pytest.fixture
async def holding() -> AsyncIterator[type[Holds]]:
    Holds.waiting, Holds.free = asyncio.Event(), asyncio.Event()
    held.add("p1")
    yield Holds
    held.clear()


def holders(count: int = 4) -> Workflow:
    return fan([Holds.bind(id=f"p{number}") for number in range(count)]).build()


@pytest.mark.parametrize("leave", ["cancel", "close"])
async def test_a_run_that_is_left_keeps_what_is_over(place: Place, leave: str, holding: type[Holds]) -> None:
    run = await holders().start(1, run_id=RUN, storage=place.storage)
    await soon(holding.waiting.wait())
    await soon(getattr(run, leave)())
    assert run.status is (RunStatus.CANCELLED if leave == "cancel" else RunStatus.STOPPED)
    assert await noted_turns(place.storage) == ["p0", "p2", "p3"]
    held.clear()
    found = await goes_on(holders, place)
    assert ran == ["p1", "collect"]
    assert found.outputs[-1] == [f"p{number} [1]" for number in range(4)]


async def test_a_stream_that_is_left_keeps_what_is_over(place: Place, holding: type[Holds]) -> None:
    async with holders().run_stream(1, run_id=RUN, storage=place.storage) as stream:
        async for event in stream:
            if isinstance(event, ExecutorCompletedEvent) and event.executor_id == "p0":
                await soon(holding.waiting.wait())
                break
    assert await noted_turns(place.storage) == ["p0", "p2", "p3"]
    held.clear()
    await goes_on(holders, place)
    assert ran == ["p1", "collect"]


async def until_noted(storage: CheckpointStorage, turns: set[str]) -> None:
    while {*await noted_turns(storage)} != turns:  # noqa: ASYNC110 - nobody tells when that is done
        await asyncio.sleep(0.001)


async def test_a_long_superstep_is_noted_while_it_goes_on(place: Place, holding: type[Holds]) -> None:
    """Then another process can take the run over, and who lost it changes nothing any more."""
    run = await holders(40).start(1, run_id=RUN, storage=place.storage)
    await soon(holding.waiting.wait())
    await soon(until_noted(place.storage, {f"p{number}" for number in range(40) if number != 1}))
    ran.clear()
    held.clear()
    winner = await holders(40).resume(
        run_id=RUN, storage=CheckpointStorage(place.storage.store), take_over=True
    )
    result = await soon(winner.wait_for_completion())
    assert ran == ["p1", "collect"]
    assert result.outputs[-1] == [f"p{number} [1]" for number in range(40)]
    head = await head_of(place.storage, RUN)
    holding.free.set()
    with pytest.raises(RunTaken):
        await soon(run.wait_for_completion())
    assert await head_of(place.storage, RUN) == head
    assert await noted(place.storage) == []


async def test_a_note_of_one_who_lost_the_run_is_refused(place: Place, holding: type[Holds]) -> None:
    """The winner still works at the superstep: no result of the loser comes into its journal."""

    async def effect() -> str:
        calls.append("lost")
        return "lost"

    class Effect(Part):
        @handler
        async def work(self, message: int, ctx: WorkflowContext[str, str]) -> str:
            if str(self.id) not in held:
                return await super().work(message, ctx)
            arrived.set()
            await lost.wait()
            result = await ctx.once("effect", effect)
            calls.append("went on")
            return result

    arrived, lost = asyncio.Event(), asyncio.Event()
    loser = (
        await fan([Effect.bind(id="p0"), Effect.bind(id="p1")])
        .build()
        .start(1, run_id=RUN, storage=place.storage)
    )
    await soon(arrived.wait())
    other = CheckpointStorage(place.storage.store)
    winner = await holders(2).resume(run_id=RUN, storage=other, take_over=True)
    await soon(holding.waiting.wait())
    lost.set()
    with pytest.raises(RunTaken):
        await soon(loser.wait_for_completion())
    assert "went on" not in calls
    assert ("once", "p1", "effect") not in await noted(place.storage)
    holding.free.set()
    assert (await soon(winner.wait_for_completion())).outputs[-1] == ["p0 [1]", "p1 [1]"]


# -- answers ---------------------------------------------------------------------------------------


class Asks(Executor):
    """Asks in superstep 2, and has a turn with the answer whenever it comes."""

    @handler
    async def ask(self, left: int, ctx: WorkflowContext) -> None:
        await ctx.request_info(left, response_type=str, request_id="question")

    @response_handler
    async def answered(self, left: int, answer: str, ctx: WorkflowContext[None, str]) -> None:
        note(f"answered {answer}")
        await ctx.yield_output(answer)


def asking() -> Workflow:
    workers: list[Any] = [Asks, *(Again.bind(id=name) for name in "abc")]
    builder = WorkflowBuilder(name="Asking").set_start_executor(start).add_fan_out_edges(start, workers)
    for worker in workers[1:]:
        builder.add_edge(worker, worker)
    return builder.build()


@pytest.mark.parametrize("how", ["resume", "inbox"])
async def test_an_answer_in_the_middle_of_a_superstep(place: Place, how: str) -> None:
    """It is delivered behind that superstep, and does not empty its journal."""
    broken.add("b 2")
    await fails(asking, 2, place)
    assert await noted_turns(place.storage) == ["a", "c"]
    broken.clear()
    ran.clear()
    answers = {"question": "yes"}
    if how == "inbox":
        await place.storage.respond(RUN, answers)
    storage = await place.reopened()
    run = await asking().resume(run_id=RUN, storage=storage, responses=answers if how == "resume" else None)
    result = await soon(run.wait_for_completion())
    assert ran == ["b 2", "answered yes", "a 3", "b 3", "c 3"]
    assert result.status is RunStatus.COMPLETED
    assert result.outputs[0] == "yes"


# -- another graph ---------------------------------------------------------------------------------


async def test_another_graph_goes_on_with_the_journal(place: Place) -> None:
    """Under the names of now: executors that were renamed, also in messages to one target and in nested workflows."""

    class Sends(Executor):
        checkpointed = ("seen",)

        def __init__(self, id: str) -> None:
            super().__init__(id)
            self.seen = 0

        @handler
        async def work(self, number: int, ctx: WorkflowContext[Any, Any]) -> None:
            note(ctx.executor_id)
            self.seen += 1
            await ctx.append_state("log", self.seen)
            await ctx.append_state("all", "sent", scope_name="Shared")
            await ctx.send_message(number, target_id=target[0])
            await ctx.yield_output(f"given out {number}")

    class Takes(Executor):
        @handler
        async def work(self, number: int, ctx: WorkflowContext[Any, Any]) -> None:
            note(ctx.executor_id)
            await ctx.yield_output(f"took {number}")

    target = ["takes"]

    def make(new: bool) -> Workflow:
        sender = Sends.bind(id="sender" if new else "sends")
        taker = Takes.bind(id="taker" if new else "takes")

        def sending(name: str) -> WorkflowBuilder:
            builder = WorkflowBuilder(name=name).add_fan_out_edges(sender, [taker, Takes.bind(id="other")])
            return builder.with_alias("sends", sender).with_alias("takes", taker) if new else builder

        inner = sending("Inner").set_start_executor(sender).build()
        nested = WorkflowExecutor(inner, id="inside" if new else "nested")
        outer = sending("Outer").set_start_executor(start).add_fan_out_edges(start, [sender, nested, Trip])
        return (outer.with_alias("nested", nested) if new else outer).build()

    expected = await soon(ending(await make(new=False).start(5)))
    broken.add("Trip")
    await fails(lambda: make(new=False), 5, place)
    assert await noted_turns(place.storage) == ["nested#1/sends", "sends"]
    target[0] = "taker"
    with pytest.raises(ExecutorFailed):
        await outputs_of(
            make(new=True).resume(run_id=RUN, storage=await place.reopened(), allow_graph_change=True)
        )
    assert await noted_turns(place.storage) == ["inside#1/sender", "sender"]
    found = await goes_on(lambda: make(new=True), place)
    assert ran == ["Trip", "taker", "inside#1/taker"]
    assert found.outputs == expected.outputs


async def test_another_graph_goes_on_with_big_values(place: Place) -> None:
    """They are not at hand when the journal is noted once more."""

    class Big(Executor):
        @handler
        async def work(self, left: int, ctx: WorkflowContext[Any, Any]) -> None:
            note(f"{ctx.executor_id} {left}")
            if left:
                await ctx.queue_state_update("own", "own " * 100_000)
                await ctx.append_state("list", "item " * 2_000, scope_name="Shared")
                await ctx.once("effect", lambda: "result " * 2_000)
                await ctx.send_message(left - 1)
            else:
                log = await ctx.read_state("list", scope_name="Shared")
                await ctx.yield_output((await ctx.read_state("own"), log))

    def make(new: bool) -> Workflow:
        big = Big.bind(id="big")
        builder = WorkflowBuilder(name="Big").set_start_executor(start).add_fan_out_edges(start, [big, Trip])
        builder.add_edge(big, big)
        return builder.add_edge(Trip, two).build() if new else builder.build()

    broken.add("Trip")
    await fails(lambda: make(new=False), 1, place)
    with pytest.raises(ExecutorFailed):
        await outputs_of(
            make(new=True).resume(run_id=RUN, storage=await place.reopened(), allow_graph_change=True)
        )
    found = await goes_on(lambda: make(new=True), place)
    assert ran == ["Trip", "big 0"]
    assert found.outputs == [("own " * 100_000, ["item " * 2_000])]


async def test_journal_of_an_executor_that_is_gone(memory: Place) -> None:
    broken.add("p1")
    await fails(lambda: parts(3), 1, memory)
    broken.clear()
    with pytest.raises(GraphChanged, match="there is no place for a message to 'p2'"):
        await parts(2).resume(run_id=RUN, storage=memory.storage, allow_graph_change=True)
    assert await noted_turns(memory.storage) == ["p0", "p2"]
    await goes_on(lambda: parts(3), memory)
    assert ran == ["p1", "collect"]


# -- damage ----------------------------------------------------------------------------------------


async def test_a_journal_that_cannot_be_read(memory: Place) -> None:
    """It is said which note, and the run can be gone on with from an earlier checkpoint."""
    broken.add("p1")
    await fails(lambda: parts(3), 1, memory)
    broken.clear()
    ran.clear()
    store = memory.storage.store
    assert isinstance(store, MemoryStore)
    (key, note_) = next(iter(store._notes[RunId(RUN)].items()))
    store._notes[RunId(RUN)][key] = note_._replace(data=note_.data[:-3])
    with pytest.raises(CheckpointCorrupt, match=r"the note .*turn.*p0.* in the journal of a run cannot"):
        await outputs_of(parts(3).resume(run_id=RUN, storage=memory.storage))
    assert ran == []
    assert len(await memory.storage.store.notes(RunId(RUN))) == 2
    earlier = await checkpoint_of(memory.storage, 1, "start")
    outputs = await outputs_of(parts(3).resume(earlier, storage=memory.storage))
    assert outputs[-1] == ["p0 [1]", "p1 [1]", "p2 [1]"]


# -- what it costs ---------------------------------------------------------------------------------
# On an event loop without real time: what takes no time there is over before anything is noted.


class Naps(Executor):
    """Takes the time that it is given, in milliseconds."""

    def __init__(self, id: str, time: float) -> None:
        super().__init__(id)
        self.time = time

    @handler
    async def work(self, message: object, ctx: WorkflowContext[object]) -> object:
        if self.time:
            await asyncio.sleep(self.time / 1000)
        return message


def commits(*times: float) -> int:
    """How many commits a run makes that has turns of these lengths in its second superstep, besides the usual four."""

    async def main() -> int:
        storage = InMemoryCheckpointStorage()
        workers = [Naps.bind(id=f"n{number}", time=time) for number, time in enumerate(times)]
        result = await fan(workers).build().run(1, run_id=RUN, storage=storage)
        assert result.outputs == [[1] * len(times)]
        assert await noted(storage) == []
        return storage.counters.commits - 4

    return run_seeded(main, 0)


def test_a_fast_superstep_notes_nothing() -> None:
    assert commits(*[0] * 100) == 0
    assert commits(*range(4)) == 0


def test_a_single_turn_notes_nothing() -> None:
    assert commits(1000) == 0


def test_a_slow_superstep_notes_what_is_over() -> None:
    assert commits(0, 1000) == 1
    assert commits(*[0] * 9, 1000) == 1
    assert commits(*range(5), 1000) == 1, "those that are over soon wait for each other"
    assert commits(0, 100, 200, 300) == 3
    assert commits(*[0] * 200, 1000) == 1, "however many they are"


class Sizes(Wrapped):
    """Remembers how much it was given at once."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.given: list[int] = []
        self.bytes: list[int] = []

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        self.given.append(len(commit.notes))
        self.bytes.append(sum(len(note.data) for note in commit.notes))
        return await self.inner.commit(commit)


class Verbose(Executor):
    """Its outcome is big, though none of its values is."""

    @handler
    async def work(self, message: object, ctx: WorkflowContext[None, str]) -> None:
        note(self.id)
        for number in range(400):
            await ctx.yield_output(random.Random(f"{self.id} {number}").randbytes(1_500).hex())


@pytest.mark.parametrize("allowed", ["failed", "with another graph"])
async def test_no_commit_is_given_too_many_notes(memory: Place, allowed: str) -> None:
    """Every backend can take a commit of 64 items."""
    sizes = Sizes(memory.storage.store)
    broken.add("p7")
    with pytest.raises(ExecutorFailed):
        await soon(parts(200).run(1, run_id=RUN, storage=CheckpointStorage(sizes)))
    assert len(await noted(memory.storage)) == 199
    if allowed == "with another graph":
        sizes.given.clear()
        changed = fan([Part.bind(id=f"p{number}") for number in range(200)]).add_edge("p0", two_more).build()
        with pytest.raises(ExecutorFailed):
            await outputs_of(
                changed.resume(run_id=RUN, storage=CheckpointStorage(sizes), allow_graph_change=True)
            )
        assert len(await noted(memory.storage)) == 199
    assert max(sizes.given) <= 64


@executor(id="two more")
async def two_more(text: str) -> str:
    return text


async def test_no_commit_is_given_notes_that_are_too_big(memory: Place) -> None:
    """Every backend can take a commit of 1 MB, blobs aside; what is bigger becomes a blob."""
    sizes = Sizes(memory.storage.store)

    def make() -> Workflow:
        workers: list[Any] = [*(Verbose.bind(id=f"v{number}") for number in range(4)), Trip]
        return WorkflowBuilder(name="V").set_start_executor(start).add_fan_out_edges(start, workers).build()

    broken.add("Trip")
    with pytest.raises(ExecutorFailed):
        await soon(make().run(1, run_id=RUN, storage=CheckpointStorage(sizes)))
    assert max(sizes.bytes) <= 1_000_000
    found = await goes_on(make, memory)
    assert ran == ["Trip"]
    assert len(found.outputs) == 1600


def test_notes_that_could_not_be_written_are_written_later() -> None:
    """Also if no other turn is over in the meantime."""

    async def main() -> None:
        storage = InMemoryCheckpointStorage()
        failing = Failing(storage.store, 3)  # behind the input and superstep 1
        workers = [Naps.bind(id="a", time=0), Naps.bind(id="b", time=3_600_000)]
        run = await fan(workers).build().start(1, run_id=RUN, storage=CheckpointStorage(failing))
        await asyncio.sleep(1800)
        assert failing.commits >= 3
        turns = await noted_turns(storage)
        await run.close()
        assert turns == ["a"]

    run_seeded(main, 0)
