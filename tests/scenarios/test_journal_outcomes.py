"""What the journal holds of a turn: everything, exactly."""

import datetime
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pytest

from holdfast import (
    ChangedAfterCapture,
    Executor,
    ExecutorFailed,
    Merge,
    RetryPolicy,
    RunStatus,
    UnkeptField,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    WorkflowExecutor,
    WorkflowWarningEvent,
    checkpointable,
    executor,
    handler,
    response_handler,
)
from tests.support.durable import Place
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
    fails_and_goes_on,
    fan,
    goes_on,
    note,
    noted_turns,
    ran,
    start,
)
from tests.support.parts import differs
from tests.support.runs import soon

pytestmark = pytest.mark.usefixtures("nothing_ran")


@checkpointable
@dataclass(frozen=True)
class Cost:
    amount: Decimal
    since: datetime.date


@checkpointable
@dataclass
class Basket:
    prices: list[Cost] = field(default_factory=list)
    names: set[str] = field(default_factory=set)


BASKET = Basket([Cost(Decimal("1.10"), datetime.date(2026, 2, 28))], {"pear", "apple"})
VALUES: list[Any] = [
    None,
    True,
    1.5,
    2**70,
    b"bytes",
    (1, ("two",), frozenset({3})),
    {1: "one", "two": [2, {"three": {4}}]},
    BASKET,
    datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.UTC),
]


def beside(worker: Any, *others: Any) -> Callable[[], Workflow]:
    """A workflow with this worker, and beside it the turn that fails."""

    def make() -> Workflow:
        return fan([worker, *others, Trip.bind(id="Trip")]).build()

    return make


def tripping(worker: Any) -> Callable[[], Workflow]:
    """A workflow with this worker and the turn that fails in each of its supersteps; nobody joins them."""

    def make() -> Workflow:
        workers = [worker, Trip.bind(id="Trip")]
        return WorkflowBuilder(name="T").set_start_executor(start).add_fan_out_edges(start, workers).build()

    return make


async def test_messages_and_outputs_of_all_kinds(place: Place) -> None:
    class Sends(Executor):
        @handler
        async def work(self, message: object, ctx: WorkflowContext[Basket | object, Basket | object]) -> None:
            note("sends")
            for value in VALUES:
                await ctx.send_message(value)
                await ctx.yield_output(value)

    @executor(id="takes")
    async def takes(message: Basket | object, ctx: WorkflowContext[None, object]) -> None:
        calls.append(message)
        await ctx.yield_output(message)

    def make() -> Workflow:
        sends = Sends.bind(id="sends")
        builder = WorkflowBuilder(name="Kinds").set_start_executor(start)
        return builder.add_fan_out_edges(start, [sends, Trip]).add_edge(sends, takes).build()

    found = await fails_and_goes_on(make, 1, place)
    assert found.replayed == ["sends"]
    assert "sends" not in ran
    assert not differs(found.outputs, VALUES + VALUES)
    assert not differs(calls[-len(VALUES) :], VALUES)


async def test_messages_to_one_target(place: Place) -> None:
    @executor(id="left")
    async def left(text: str) -> str:
        return f"left {text}"

    @executor(id="right")
    async def right(text: str) -> str:
        return f"right {text}"

    @executor(id="sends")
    async def sends(number: int, ctx: WorkflowContext[str]) -> None:
        note("sends")
        for target in ("right", "left", None, "right"):
            await ctx.send_message(f"to {target}", target_id=target)

    def make() -> Workflow:
        builder = WorkflowBuilder(name="Targets").set_start_executor(start)
        return builder.add_fan_out_edges(start, [sends, Trip]).add_fan_out_edges(sends, [left, right]).build()

    found = await fails_and_goes_on(make, 1, place)
    assert found.outputs == [
        "left to left",
        "left to None",
        "right to right",
        "right to None",
        "right to right",
    ]
    assert found.replayed == ["sends"]


async def test_requests(place: Place) -> None:
    class Ask(Executor):
        @handler
        async def ask(self, number: int, ctx: WorkflowContext) -> None:
            note("Ask")
            await ctx.request_info(BASKET, response_type=Cost | None)
            await ctx.request_info("how many?", response_type=dict[str, list[int]], request_id="many")

        @response_handler
        async def priced(
            self, basket: Basket, price: Cost | None, ctx: WorkflowContext[None, object]
        ) -> None:
            await ctx.yield_output((basket, price))

        @response_handler
        async def counted(
            self, text: str, counts: dict[str, list[int]], ctx: WorkflowContext[None, object]
        ) -> None:
            await ctx.yield_output((text, counts))

    broken.add("Trip")
    make = tripping(Ask)
    await fails(make, 1, place)
    broken.clear()
    ran.clear()
    run = await make().resume(run_id=RUN, storage=await place.reopened())
    result = await soon(run.wait_for_completion())
    assert result.status is RunStatus.WAITING
    assert ran == ["Trip"]
    first, second = result.pending_requests
    assert (first.request_id, first.executor_id) == ("Ask.2.1", "Ask")
    assert not differs(first.data, BASKET)
    assert first.response_type == Cost | None
    assert (second.request_id, second.data, second.response_type) == (
        "many",
        "how many?",
        dict[str, list[int]],
    )
    price = Cost(Decimal(3), datetime.date(2026, 3, 1))
    await run.respond({"Ask.2.1": price, "many": {"a": [1]}})
    outputs = (await soon(run.wait_for_completion())).outputs
    assert not differs(outputs, [(BASKET, price), ("how many?", {"a": [1]})])


class Changes(Executor):
    """Has some state, then changes it in every way, then shows it."""

    @handler
    async def work(self, left: int, ctx: WorkflowContext[int, Any]) -> None:
        note(f"Changes {left}")
        scopes: list[str | None] = [None, "Shared"]
        if left == 2:
            for scope in scopes:
                for key in ("put", "list", "text", "gone", "back", "grown"):
                    await ctx.queue_state_update(key, "old" if key == "text" else ["old"], scope_name=scope)
                await ctx.append_state("fresh", 1, scope_name=scope)
            await ctx.queue_state_update("sum", 1, scope_name="Shared")
            await ctx.queue_state_update("set", {1}, scope_name="Shared")
            await ctx.queue_state_update("cleared sum", 5, scope_name="Shared")
            await ctx.queue_state_update("x", 1, scope_name="Emptied")
        elif left == 1:
            for scope in scopes:
                await ctx.queue_state_update("put", BASKET, scope_name=scope)
                for item in ("new", b"bytes", None):
                    await ctx.append_state("list", item, scope_name=scope)
                await ctx.append_state("text", " and new", scope_name=scope)
                await ctx.clear_state("gone", scope_name=scope)
                await ctx.clear_state("back", scope_name=scope)
                await ctx.queue_state_update("back", 2, scope_name=scope)
                await ctx.queue_state_update("grown", ["reset"], scope_name=scope)
                await ctx.append_state("grown", "more", scope_name=scope)
                await ctx.append_state("made", "first", scope_name=scope)
                await ctx.queue_state_update("never", 1, scope_name=scope)
                await ctx.clear_state("never", scope_name=scope)
            await ctx.queue_state_update("sum", 10, scope_name="Shared")
            await ctx.queue_state_update("sum", 100, scope_name="Shared")
            await ctx.queue_state_update("set", {2}, scope_name="Shared")
            await ctx.clear_state("cleared sum", scope_name="Shared")
            await ctx.queue_state_update("cleared sum", 7, scope_name="Shared")
            await ctx.clear_state(scope_name="Emptied")
            await ctx.set_state({"own": BASKET})
            await ctx.set_shared_state("default", (1, 2))
        else:
            for scope in [*scopes, "Emptied"]:
                keys = await ctx.read_state_keys(scope_name=scope)
                await ctx.yield_output({key: await ctx.read_state(key, scope_name=scope) for key in keys})
            await ctx.yield_output((await ctx.get_state(), await ctx.get_shared_state("default")))
        if left:
            await ctx.send_message(left - 1)


class Also(Executor):
    """Writes to keys with a merge too, and is broken in the superstep that counts."""

    @handler
    async def work(self, left: int, ctx: WorkflowContext[int]) -> None:
        note(f"Also {left}")
        await ctx.queue_state_update("sum", 1000, scope_name="Shared")
        await ctx.queue_state_update("set", {f"also {left}"}, scope_name="Shared")
        if left:
            await ctx.send_message(left - 1)


def changing() -> Workflow:
    return (
        WorkflowBuilder(name="Changing")
        .set_start_executor(start)
        .add_fan_out_edges(start, [Changes, Also])
        .add_edge(Changes, Changes)
        .add_edge(Also, Also)
        .with_state_merge("Shared", "sum", Merge.ADD)
        .with_state_merge("Shared", "cleared sum", Merge.ADD)
        .with_state_merge("Shared", "set", Merge.UNION)
        .build()
    )


async def test_state(place: Place) -> None:
    expected = await soon(ending(await changing().start(2)))
    assert expected.outputs[0]["list"] == ["old", "new", b"bytes", None]
    assert expected.outputs[1]["sum"] == 1 + 10 + 100 + 2 * 1000
    broken.add("Also 1")
    await fails(changing, 2, place)
    assert await noted_turns(place.storage) == ["Changes"]
    found = await goes_on(changing, place)
    assert ran == ["Also 1", "Changes 0", "Also 0"]
    assert not differs(found.outputs, expected.outputs)
    for part in expected.held:
        assert not differs(found.held[part], expected.held[part]), part


async def test_state_of_a_nested_workflow(place: Place) -> None:
    """Paths, scopes, requests and outputs of a nested workflow in the fan-out."""

    class Inner(Executor):
        checkpointed = ("seen",)

        def __init__(self, id: str) -> None:
            super().__init__(id)
            self.seen: list[int] = []

        @handler
        async def work(self, left: int, ctx: WorkflowContext[int, str]) -> None:
            note(f"{self.id} {left}")
            self.seen.append(left)
            await ctx.append_state("log", f"{self.id} {left}", scope_name="Shared")
            await ctx.queue_state_update("own", left)
            if left:
                await ctx.send_message(left - 1)
            else:
                log = await ctx.read_state("log", scope_name="Shared")
                await ctx.yield_output(f"{self.seen} {sorted(log)} {await ctx.read_state('own')}")

    def make() -> Workflow:
        inner = [Inner.bind(id=name) for name in "ab"]
        built = WorkflowBuilder(name="Inner").set_start_executor(start).add_fan_out_edges(start, inner)
        for each in inner:
            built.add_edge(each, each)
        nested = [WorkflowExecutor(built.build(), id=name) for name in ("n1", "n2")]
        return fan(nested, name="Outer").build()

    expected = await soon(ending(await make().start(2)))
    for breaks in ("b 2", "a 1", "b 0"):
        ran.clear()
        broken.add(breaks)
        place = Place(place.kind, place.folder / breaks.replace(" ", ""))
        place.folder.mkdir(exist_ok=True)
        await fails(make, 2, place)
        missing = {"n1#1/" + breaks[0], "n2#1/" + breaks[0]}
        assert not missing & {*await noted_turns(place.storage)}
        assert len(await noted_turns(place.storage)) == 2
        found = await goes_on(make, place)
        assert ran[:2] == [breaks, breaks]
        assert not differs((found.outputs, found.held), (expected.outputs, expected.held))
        await place.storage.close()


class Hooked(Executor):
    """Keeps what it has with the hooks, in all scopes."""

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.seen: list[int] = []
        self.name = ""

    @handler
    async def work(self, left: int, ctx: WorkflowContext[int, Any]) -> None:
        note(f"Hooked {left}")
        self.seen.append(left)
        self.name = f"left {left}"
        if left:
            await ctx.send_message(left - 1)
        else:
            await ctx.yield_output((self.seen, self.name))

    async def on_checkpointing(self, ctx: WorkflowContext[Any, Any]) -> None:
        await ctx.set_state(self.seen)
        await ctx.queue_state_update("name", self.name, scope_name="Names")

    async def on_checkpoint_restored(self, ctx: WorkflowContext[Any, Any]) -> None:
        self.seen = await ctx.get_state()
        self.name = await ctx.read_state("name", scope_name="Names")
        calls.append(("restored", list(self.seen)))


async def test_executors_go_on_as_they_were_after_a_turn_that_is_replayed(place: Place) -> None:
    def make() -> Workflow:
        return again_and_again([Again.bind(id="fields"), Hooked.bind(id="hooked"), Again.bind(id="Trip")])

    expected = await soon(ending(await make().start(3)))
    assert expected.outputs[0] == ("fields", [3, 2, 1, 0])
    assert expected.outputs[1] == ([3, 2, 1, 0], "left 0")
    for superstep, breaks in enumerate(("Trip 1", "Trip 2", "Trip 3"), start=1):
        place = Place(place.kind, place.folder / str(superstep))
        place.folder.mkdir()
        calls.clear()
        broken.add(breaks)
        await fails(make, 3, place)
        found = await goes_on(make, place)
        assert ran[0] == breaks
        assert ran.count(f"fields {superstep}") == 0
        # Once, before its next turn, and not as it was before the turn that did not run again.
        assert calls == [("restored", [3, 2, 1, 0][:superstep])]
        assert not differs((found.outputs, found.held), (expected.outputs, expected.held))
        await place.storage.close()


@dataclass
class Milestone(WorkflowEvent):
    percent: float = 0.0
    basket: Basket | None = None


async def test_events_and_warnings(place: Place) -> None:
    class Tells(Executor):
        def __init__(self, id: str | None = None) -> None:
            super().__init__(id)
            self.unkept = 0

        @handler
        async def work(self, number: int, ctx: WorkflowContext[object]) -> None:
            note("Tells")
            await ctx.add_event(Milestone(0.5, BASKET))
            await ctx.add_event(Milestone(0.7, provisional=True))
            await ctx.add_event(Milestone(1.0))
            late = [1]
            await ctx.yield_output(late)
            late.append(2)
            self.unkept += 1

    found = await fails_and_goes_on(tripping(Tells), 1, place)
    assert {kind for kind, _ in found.warnings} == {ChangedAfterCapture, UnkeptField}
    told = [fields for _, kind, fields in found.told if kind == "Milestone"]
    assert [fields["percent"] for fields in told] == [0.5, 1.0]
    assert not differs(told[0]["basket"], BASKET)


async def test_a_replayed_warning_says_who_warns(memory: Place) -> None:
    class Changes(Executor):
        @handler
        async def work(self, number: int, ctx: WorkflowContext[object]) -> None:
            late = [1]
            await ctx.yield_output(late)
            late.append(2)

    broken.add("Trip")
    await fails(tripping(Changes.bind(id="changes")), 1, memory)
    broken.clear()
    run = await tripping(Changes.bind(id="changes"))().resume(run_id=RUN, storage=memory.storage)
    events = [event async for event in run.watch_stream()]
    (warned,) = [event for event in events if isinstance(event, WorkflowWarningEvent)]
    assert (warned.executor_id, warned.superstep, warned.run_id) == ("changes", 2, RUN)
    assert type(warned.warning) is ChangedAfterCapture


@pytest.mark.parametrize("size", [5_000, 70_000, 600_000])
async def test_big_values(place: Place, size: int) -> None:
    """Blobs, values that are packed in a thread, values that are files of their own."""

    class Big(Executor):
        checkpointed = ("kept",)

        def __init__(self, id: str) -> None:
            super().__init__(id)
            self.kept = ""

        @handler
        async def work(self, left: int, ctx: WorkflowContext[Any, Any]) -> None:
            note(f"big {left}")
            if left:
                self.kept = "kept" * size
                await ctx.add_event(Milestone(basket=Basket(names={"event" * size})))
                await ctx.queue_state_update("text", "state" * size)
                await ctx.append_state("list", ["item" * size])
                await ctx.queue_state_update("merged", ["merged" * size], scope_name="Shared")
                await ctx.yield_output("output" * size)
                await ctx.send_message(left - 1)
            else:
                lists = await ctx.read_state("list"), await ctx.read_state("merged", scope_name="Shared")
                await ctx.yield_output((self.kept, await ctx.read_state("text"), *lists))

    class Trips(Executor):
        @handler
        async def work(self, left: int, ctx: WorkflowContext[int]) -> None:
            note(f"Trip {left}")
            await ctx.queue_state_update("merged", ["small"], scope_name="Shared")
            if left:
                await ctx.send_message(left - 1)

    def make() -> Workflow:
        big, trip = Big.bind(id="big"), Trips.bind(id="Trip")
        return (
            WorkflowBuilder(name="Big")
            .set_start_executor(start)
            .add_fan_out_edges(start, [big, trip])
            .add_edge(big, big)
            .add_edge(trip, trip)
            .with_state_merge("Shared", "merged", Merge.APPEND)
            .build()
        )

    expected = await soon(ending(await make().start(1)))
    broken.add("Trip 1")
    await fails(make, 1, place)
    assert await noted_turns(place.storage) == ["big"]
    written = place.storage.counters.blobs_written
    found = await goes_on(make, place)
    assert ran[0] == "Trip 1"
    assert sorted(ran[1:]) == ["Trip 0", "big 0"]
    assert not differs((found.outputs, found.held), (expected.outputs, expected.held))
    assert [t for t in found.told if t[1] == "Milestone"] == [t for t in expected.told if t[1] == "Milestone"]
    assert place.kind != "memory" or place.storage.counters.blobs_written <= written + 2, "they were there"


async def test_a_turn_with_very_many_values(place: Place) -> None:
    @executor(id="many")
    async def many(number: int, ctx: WorkflowContext[None, str]) -> None:
        note("many")
        for each in range(4_000):
            await ctx.yield_output(f"output {each} of very many")

    found = await fails_and_goes_on(tripping(many), 1, place)
    assert len(found.outputs) == 4_000
    assert ran == ["Trip"]


async def test_fan_in_buffers(place: Place) -> None:
    """A fan-in that holds something from before, and gets the rest from turns that are replayed."""

    class Late(Executor):
        @handler
        async def work(self, left: int, ctx: WorkflowContext[Any]) -> None:
            note(f"{self.id} {left}")
            if left == (2 if self.id == "early" else 1):
                await ctx.send_message(f"{self.id} {left}", target_id="collect")
            if left:
                await ctx.send_message(left - 1, target_id=str(self.id))

    def make() -> Workflow:
        workers = [Late.bind(id=name) for name in ("early", "late", "Trip")]
        builder = fan(workers)
        for worker in workers:
            builder.add_edge(worker, worker)
        return builder.build()

    expected = await soon(ending(await make().start(2)))
    assert expected.outputs == [["early 2", "late 1", "Trip 1"]]
    broken.add("Trip 1")
    await fails(make, 2, place)
    assert await noted_turns(place.storage) == ["early", "late"]
    found = await goes_on(make, place)
    assert ran[0] == "Trip 1"
    assert "late 1" not in ran
    assert (found.outputs, found.held) == (expected.outputs, expected.held)


async def test_attempts(place: Place) -> None:
    """A turn that went well at its second attempt is over like any other."""

    class Flaky(Executor):
        @handler(retry=RetryPolicy(attempts=3, backoff=0))
        async def work(self, number: int, ctx: WorkflowContext[int]) -> int:
            ran.append(f"Flaky {ctx.attempt}")
            await ctx.append_state("attempts", ctx.attempt)
            await ctx.add_event(Milestone(ctx.attempt))
            if ctx.attempt < 3:
                raise Broken
            return ctx.attempt

    found = await fails_and_goes_on(beside(Flaky), 1, place)
    assert found.replayed == ["Flaky"]
    assert [fields["percent"] for _, kind, fields in found.told if kind == "Milestone"] == [3]
    assert not [name for name in ran if name.startswith("Flaky")]


async def test_a_turn_with_several_messages(place: Place) -> None:
    @executor(id="sends")
    async def sends(number: int, ctx: WorkflowContext[int]) -> None:
        for each in range(number):
            await ctx.send_message(each)

    class Sums(Executor):
        checkpointed = ("sum",)

        def __init__(self, id: str) -> None:
            super().__init__(id)
            self.sum = 0

        @handler
        async def work(self, number: int, ctx: WorkflowContext[None, int]) -> None:
            note(self.id)
            self.sum += number
            await ctx.yield_output(self.sum)

    def make() -> Workflow:
        builder = WorkflowBuilder(name="Several").set_start_executor(sends)
        return builder.add_fan_out_edges(sends, [Sums.bind(id="a"), Sums.bind(id="Trip")]).build()

    found = await fails_and_goes_on(make, 5, place)
    assert ran == ["Trip"] * 5
    assert found.outputs == [0, 1, 3, 6, 10] * 2


async def test_events_that_can_no_longer_be_stored(memory: Place) -> None:
    """What a handler puts into an event behind its back is not stored; it harms nobody else."""

    class Meddles(Executor):
        @handler
        async def work(self, number: int, ctx: WorkflowContext[int]) -> int:
            note("Meddles")
            names: set[Any] = set()
            await ctx.add_event(Milestone(basket=Basket(names=names)))
            names.add(threading.Lock())
            return number

    broken.add("Trip")
    error = await fails(beside(Meddles, Part.bind(id="p0")), 1, memory)
    assert isinstance(error, ExecutorFailed)
    assert "p0" in await noted_turns(memory.storage)
