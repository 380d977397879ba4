"""Workflows inside workflows: their own state, their questions and failures with a path, no second engine."""

import asyncio
import itertools
from typing import Any

import pytest

from holdfast import (
    ConditionFailed,
    Executor,
    ExecutorCompletedEvent,
    ExecutorFailed,
    ExecutorFailedEvent,
    ExecutorInvokedEvent,
    ExecutorShared,
    GraphError,
    LimitExceeded,
    Limits,
    Merge,
    RequestAlreadyAnswered,
    RequestInfoEvent,
    RequestInfoExecutor,
    RunResult,
    RunStatus,
    StateConflict,
    SuperStepCompletedEvent,
    SuperstepLimit,
    UnroutedMessage,
    WaitingFanIn,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    WorkflowOutputEvent,
    executor,
    handler,
    response_handler,
)
from tests.support.executors import Burst, Record
from tests.support.parts import DEFAULT_SHARED_SCOPE, Scope
from tests.support.runs import events_of, events_until_failure, names, soon, waiting, warnings_of
from tests.support.runs import outputs_of as outputs

SHARED = "Shared"


@executor
async def double(number: int) -> int:
    return number * 2


@executor
async def increment(number: int) -> int:
    return number + 1


@executor
async def listed(numbers: list) -> list:
    return numbers


class Count(Executor):
    """Counts its messages in a field, in private state and in shared state, and yields the three."""

    checkpointed = ("count",)

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id)
        self.count = 0

    @handler
    async def take(self, message: int, ctx: WorkflowContext[Any, Any]) -> None:
        self.count += 1
        private = (await ctx.read_state("count") or 0) + 1
        shared = (await ctx.read_state("count", scope_name=SHARED) or 0) + 1
        await ctx.queue_state_update("count", private)
        await ctx.queue_state_update("count", shared, scope_name=SHARED)
        own = (await ctx.get_state() or 0) + 1
        await ctx.set_state(own)
        await ctx.yield_output([self.count, private, shared, own])
        if message:
            await ctx.send_message(message - 1)


class Ask(Executor):
    """Asks about a message and yields it with the answer."""

    @handler
    async def ask(self, message: object, ctx: WorkflowContext) -> None:
        await ctx.request_info(message, response_type=str)

    @response_handler
    async def answered(self, message: object, answer: str, ctx: WorkflowContext[Any, Any]) -> None:
        await ctx.yield_output(f"{message}: {answer}")


def chain(*placed: Any, name: str = "Inner", **options: Any) -> Workflow:
    builder = WorkflowBuilder(name=name, **options).set_start_executor(placed[0])
    if len(placed) > 1:
        builder.add_chain(list(placed))
    return builder.build()


def counting() -> Workflow:
    return WorkflowBuilder(name="Counting").set_start_executor(Count).add_edge(Count, Count).build()


def nested(workflow: Workflow, id: str = "sub") -> WorkflowExecutor:
    return WorkflowExecutor(workflow, id=id)


def asked(result: RunResult) -> list[tuple[str, Any, str]]:
    return [(str(r.request_id), r.data, str(r.executor_id)) for r in result.pending_requests]


# -- where it stands -------------------------------------------------------------------------------


async def test_nested_in_the_middle() -> None:
    inner = chain(double, increment)
    assert await outputs(chain(increment, nested(inner), Record, name="Outer"), 4) == [("Record", 4, 11)]


async def test_nested_as_start_and_end() -> None:
    assert await outputs(chain(nested(chain(double, increment)), name="Outer"), 4) == [9]


async def test_default_id_is_the_name_of_the_workflow() -> None:
    workflow = chain(WorkflowExecutor(chain(double, name="Twice")), name="Outer")
    assert list(workflow.graph.executors) == ["Twice"]
    assert await outputs(workflow, 4) == [8]


async def test_start_that_is_itself_nested() -> None:
    innermost = chain(double, name="Innermost")
    middle = chain(nested(innermost, "deep"), increment, name="Middle")
    outer = chain(nested(middle, "mid"), Record, name="Outer")
    assert await outputs(outer, 5) == [("Record", 3, 11)]
    invoked = [
        (event.superstep, event.executor_id)
        for event in await events_of(outer, 5)
        if isinstance(event, ExecutorInvokedEvent)
    ]
    assert invoked == [(1, "mid#1/deep#1/double"), (2, "mid#1/increment"), (3, "Record")]


async def test_nested_takes_what_its_start_takes() -> None:
    workflow = chain(Burst, nested(chain(double)), Record, name="Outer")
    result = await soon(workflow.run([1, "text", 3]))
    assert [output[2] for output in result.outputs] == [2, 6]
    assert [type(warning) for warning in result.warnings] == [UnroutedMessage]
    with pytest.raises(GraphError, match="sends str, but 'sub' takes int"):
        chain(say, nested(chain(double)), name="Outer")


@executor
async def say(number: int) -> str:
    return str(number)


async def test_nested_sends_what_it_gives_out() -> None:
    with pytest.raises(GraphError, match="'sub' sends int, but 'shout' takes str"):
        chain(nested(chain(double)), shout, name="Outer")
    assert await outputs(chain(nested(chain(double, say)), shout, name="Outer"), 2) == ["4!"]


@executor
async def shout(text: str) -> str:
    return text + "!"


async def test_wrong_input_names_what_the_innermost_start_takes() -> None:
    workflow = chain(nested(chain(nested(chain(double), "deep"), name="Middle")), name="Outer")
    with pytest.raises(
        TypeError, match="workflow 'Outer' starts at 'sub', which takes int, but its input is a str"
    ):
        await workflow.run("text")


async def test_loop_around_a_nested_workflow() -> None:
    """Each time round it is another instance."""
    workflow = (
        WorkflowBuilder(name="Outer")
        .set_start_executor(nested(counting()))
        .add_edge("sub", again)
        .add_edge(again, "sub")
        .build()
    )
    # Each instance counts anew; after four rounds of fewer and fewer nothing is sent any more.
    result = await soon(workflow.run(0))
    assert result.outputs == ["round 1 of [1, 1, 1, 1]", "round 2 of [1, 1, 1, 1]", "round 3 of [1, 1, 1, 1]"]


@executor
async def again(counts: list, ctx: WorkflowContext[int, str]) -> None:
    rounds = (await ctx.read_state("rounds") or 0) + 1
    await ctx.queue_state_update("rounds", rounds)
    await ctx.yield_output(f"round {rounds} of {counts}")
    if rounds < 3:
        await ctx.send_message(0)


async def test_nested_as_target_of_a_fan_in() -> None:
    builder = WorkflowBuilder(name="Outer").set_start_executor(increment)
    builder.add_fan_out_edges(increment, [double, Relay])
    workflow = builder.add_fan_in_edges([double, Relay], nested(chain(listed))).build()
    assert await outputs(workflow, 1) == [[4, 2]]


class Relay(Executor):
    @handler
    async def relay(self, message: int, ctx: WorkflowContext[int]) -> None:
        await ctx.send_message(message)


async def test_nested_as_sources_of_a_fan_in() -> None:
    builder = WorkflowBuilder(name="Outer").set_start_executor(Relay)
    builder.add_fan_out_edges(Relay, [nested(chain(double), "a"), nested(chain(increment, double), "b")])
    workflow = builder.add_fan_in_edges(["a", "b"], listed).build()
    assert await outputs(workflow, 5) == [[10, 12]]


async def test_conditions_and_aimed_messages_inside_and_around() -> None:
    class Choose(Executor):
        @handler
        async def choose(self, number: int, ctx: WorkflowContext[int]) -> None:
            await ctx.send_message(number, target_id="double" if number % 2 else "increment")

    inner = (
        WorkflowBuilder(name="Inner")
        .set_start_executor(Choose)
        .add_fan_out_edges(Choose, [double, increment])
        .build()
    )
    workflow = (
        WorkflowBuilder(name="Outer")
        .set_start_executor(Burst)
        .add_edge(Burst, nested(inner), condition=lambda number: number < 10)
        .add_edge("sub", Record, condition=lambda number: number != 3)
        .build()
    )
    assert [output[2] for output in await outputs(workflow, [1, 2, 3, 11])] == [2, 6]


async def test_nested_executors_send_only_within_their_workflow() -> None:
    class Lost(Executor):
        @handler
        async def lose(self, number: int, ctx: WorkflowContext[int]) -> None:
            await ctx.send_message(number, target_id="Record")

    workflow = chain(nested(chain(Lost, double)), Record, name="Outer")
    with pytest.raises(ExecutorFailed) as caught:
        await soon(workflow.run(1))
    assert str(caught.value.__cause__) == (
        "executor 'sub#1/Lost' sent a message to 'Record', but there is no such executor; "
        "from 'Lost' edges lead to: 'double'"
    )


# -- many deliveries, twice nested -----------------------------------------------------------------


async def test_each_delivery_has_an_instance_of_its_own() -> None:
    workflow = chain(Burst, nested(chain(Count)), Record, name="Outer")
    result = await soon(workflow.run([0] * 200))
    assert [output[2] for output in result.outputs] == [[1, 1, 1, 1]] * 200
    assert {output[1] for output in result.outputs} == {3}, "all in one superstep"


async def test_many_deliveries_keep_their_order() -> None:
    class Slow(Executor):
        @handler
        async def work(self, number: int, ctx: WorkflowContext[int]) -> None:
            for _ in range((number * 7) % 5):
                await asyncio.sleep(0)
            await ctx.send_message(number)

    workflow = chain(Burst, nested(chain(Slow, double)), name="Outer", limits=Limits(max_concurrent_turns=16))
    assert await outputs(workflow, list(range(200))) == [number * 2 for number in range(200)]


async def test_the_same_workflow_nested_twice() -> None:
    inner = counting()
    builder = WorkflowBuilder(name="Outer").set_start_executor(Relay)
    builder.add_fan_out_edges(Relay, [nested(inner, "a"), nested(inner, "b")])
    workflow = builder.add_edge("a", Record).add_edge("b", Record).build()
    counts = [output[2] for output in await outputs(workflow, 2)]
    assert counts == [[n, n, n, n] for n in (1, 1, 2, 2, 3, 3)]


async def test_events_carry_paths() -> None:
    workflow = chain(Burst, nested(chain(double, increment)), name="Outer")
    assert names(await events_of(workflow, [1, 2])) == [
        "0 WorkflowStarted",
        "0 WorkflowStatus running",
        "1 SuperStepStarted",
        "1 ExecutorInvoked Burst",
        "1 ExecutorCompleted Burst",
        "1 SuperStepCompleted",
        "2 SuperStepStarted",
        "2 ExecutorInvoked sub#1/double",
        "2 ExecutorInvoked sub#2/double",
        "2 ExecutorCompleted sub#1/double",
        "2 ExecutorCompleted sub#2/double",
        "2 SuperStepCompleted",
        "3 SuperStepStarted",
        "3 ExecutorInvoked sub#1/increment",
        "3 ExecutorInvoked sub#2/increment",
        "3 ExecutorCompleted sub#1/increment",
        "3 ExecutorCompleted sub#2/increment",
        "3 WorkflowOutput sub#1/increment 3",
        "3 WorkflowOutput sub#2/increment 5",
        "3 SuperStepCompleted",
        "3 WorkflowStatus completed",
        "3 WorkflowCompleted 5",
    ]


async def test_turns_come_in_graph_order_then_oldest_instance_first() -> None:
    inner = chain(Relay, double)
    builder = WorkflowBuilder(name="Outer").set_start_executor(Burst)
    builder.add_fan_out_edges(Burst, [nested(inner, "b"), Record, nested(inner, "a")])
    events = await events_of(builder.build(), list(range(12)))
    invoked = [e.executor_id for e in events if isinstance(e, ExecutorInvokedEvent) and e.superstep == 2]
    assert invoked == [
        *(f"b#{number}/Relay" for number in range(1, 13)),
        "Record",
        *(f"a#{number}/Relay" for number in range(1, 13)),
    ]


async def test_outputs_go_on_at_the_barrier_where_they_were_yielded() -> None:
    class Twice(Executor):
        @handler
        async def work(self, number: int, ctx: WorkflowContext[int, str]) -> None:
            await ctx.yield_output(f"first {ctx.superstep}")
            await ctx.send_message(number)

    class Last(Executor):
        @handler
        async def work(self, number: int, ctx: WorkflowContext[None, str]) -> None:
            await ctx.yield_output(f"last {ctx.superstep}")

    workflow = chain(nested(chain(Twice, Last)), Record, name="Outer")
    assert await outputs(workflow, 1) == [("Record", 2, "first 1"), ("Record", 3, "last 2")]


async def test_a_nested_workflow_may_go_on_after_its_output() -> None:
    """Its parent works on what it gave out while it still works itself."""
    workflow = chain(nested(counting()), Record, name="Outer")
    assert await outputs(workflow, 3) == [("Record", n + 1, [n, n, n, n]) for n in (1, 2, 3, 4)]


# -- outputs ---------------------------------------------------------------------------------------


class Noisy(Executor):
    """Yields and sends on."""

    @handler
    async def work(self, number: int, ctx: WorkflowContext[int, str]) -> None:
        await ctx.yield_output(f"{ctx.executor_id} saw {number}")
        await ctx.send_message(number + 1)


def noisy(name: str = "Inner", *from_ids: str) -> Workflow:
    builder = WorkflowBuilder(name=name).set_start_executor(Noisy.bind(id="one"))
    builder.add_edge("one", Noisy.bind(id="two")).add_edge("two", sink)
    return (builder.with_output_from(*from_ids) if from_ids else builder).build()


@executor
async def sink(number: int) -> None:
    return None


async def test_output_from_inside() -> None:
    assert await outputs(chain(nested(noisy()), name="Outer"), 1) == ["sub#1/one saw 1", "sub#1/two saw 2"]
    assert await outputs(chain(nested(noisy("Inner", "two")), name="Outer"), 1) == ["sub#1/two saw 2"]


@pytest.mark.parametrize(
    ("around", "expected"),
    [
        (["a", "b"], ["a#1/two saw 2", "b#1/two saw 2"]),
        (["b"], ["b#1/two saw 2"]),
        (["Relay"], []),
    ],
    ids=["both", "one nested", "another"],
)
async def test_output_from_on_both_levels(around: list[str], expected: list[str]) -> None:
    builder = WorkflowBuilder(name="Outer").set_start_executor(Relay)
    builder.add_fan_out_edges(Relay, [nested(noisy("Inner", "two"), "a"), nested(noisy("Other", "two"), "b")])
    assert await outputs(builder.with_output_from(*around).build(), 1) == expected


async def test_output_from_in_the_middle_of_three_levels() -> None:
    middle = (
        WorkflowBuilder(name="Middle")
        .set_start_executor(Relay)
        .add_fan_out_edges(Relay, [nested(noisy(), "a"), nested(noisy(), "b")])
        .with_output_from("b")
        .build()
    )
    assert await outputs(chain(nested(middle, "mid"), name="Outer"), 1) == [
        "mid#1/b#1/one saw 1",
        "mid#1/b#1/two saw 2",
    ]


async def test_output_event_names_who_yielded() -> None:
    events = await events_of(chain(nested(noisy()), name="Outer"), 1)
    given = [(e.executor_id, e.superstep) for e in events if isinstance(e, WorkflowOutputEvent)]
    assert given == [("sub#1/one", 1), ("sub#1/two", 2)]


async def test_none_of_an_executor_inside_is_no_output() -> None:
    assert await outputs(chain(nested(chain(sink)), name="Outer"), 1) == []


# -- state -----------------------------------------------------------------------------------------


class Reader(Executor):
    """Yields what it finds under the names that others use."""

    @handler
    async def read(self, message: object, ctx: WorkflowContext[None, Any]) -> None:
        await ctx.yield_output(
            (await ctx.read_state("key", scope_name=SHARED), await ctx.read_state_keys(SHARED))
        )


class Writer(Executor):
    def __init__(self, id: str | None = None, value: object = None) -> None:
        super().__init__(id)
        self.value = value

    @handler
    async def write(self, message: object, ctx: WorkflowContext[Any]) -> None:
        await ctx.queue_state_update("key", self.value, scope_name=SHARED)
        await ctx.set_shared_state("default", self.value)
        await ctx.send_message(message)


async def test_shared_scopes_do_not_leak_into_a_nested_workflow() -> None:
    workflow = chain(Writer.bind(value="outer"), nested(chain(Reader)), name="Outer")
    assert await outputs(workflow, 1) == [(None, [])]


async def test_shared_scopes_do_not_leak_out_of_a_nested_workflow() -> None:
    inner = chain(Writer.bind(value="inner"), Relayed)
    assert await outputs(chain(nested(inner), Reader, name="Outer"), 1) == [(None, [])]


class Relayed(Executor):
    @handler
    async def relay(self, message: object, ctx: WorkflowContext[Any, Any]) -> object:
        return message


async def test_shared_scopes_do_not_leak_between_instances() -> None:
    class WriteOrRead(Executor):
        @handler
        async def work(self, number: int, ctx: WorkflowContext[Any, Any]) -> None:
            seen = await ctx.read_state("key", scope_name=SHARED)
            default = await ctx.get_shared_state("key")
            await ctx.queue_state_update("key", number, scope_name=SHARED)
            await ctx.set_shared_state("key", number)
            await ctx.yield_output((number, seen, default))
            if seen is None:
                await ctx.send_message(number)

    inner = (
        WorkflowBuilder(name="Inner")
        .set_start_executor(WriteOrRead)
        .add_edge(WriteOrRead, WriteOrRead)
        .build()
    )
    workflow = chain(Burst, nested(inner), name="Outer")
    assert await outputs(workflow, [1, 2, 3]) == [
        *((number, None, None) for number in (1, 2, 3)),
        *((number, number, number) for number in (1, 2, 3)),
    ]


async def test_parent_and_child_write_the_same_key_at_once() -> None:
    builder = WorkflowBuilder(name="Outer").set_start_executor(Relay)
    builder.add_fan_out_edges(
        Relay,
        [
            Writer.bind(id="mine", value="outer"),
            nested(chain(Writer.bind(value="a"), Reader), "a"),
            nested(chain(Writer.bind(value="b"), Reader), "b"),
        ],
    ).add_edge("mine", Reader)
    result = await outputs(builder.build(), 1)
    assert result == [(value, ["key"]) for value in ("a", "b", "outer")], "in graph order"


async def test_conflict_inside_names_paths() -> None:
    builder = WorkflowBuilder(name="Inner").set_start_executor(Relay)
    builder.add_fan_out_edges(Relay, [Writer.bind(id="x", value=1), Writer.bind(id="y", value=2)])
    builder.add_edge("x", Relayed).add_edge("y", Relayed)
    with pytest.raises(StateConflict) as caught:
        await soon(chain(nested(builder.build()), name="Outer").run(1))
    assert caught.value.executor_ids == ("sub#1/x", "sub#1/y")
    assert str(caught.value).startswith(
        "'sub#1/x' set and 'sub#1/y' set key 'key' of shared scope 'Shared' of 'sub#1' in one superstep"
    )


async def test_merges_are_those_of_the_nested_workflow() -> None:
    def summing(merge: Merge | None) -> Workflow:
        builder = WorkflowBuilder(name="Summing").set_start_executor(Relay)
        builder.add_fan_out_edges(Relay, [Writer.bind(id="x", value=1), Writer.bind(id="y", value=2)])
        builder.add_fan_in_edges(["x", "y"], Reader)
        if merge is not None:
            builder.with_state_merge(SHARED, None, merge)
        return builder.with_state_merge(DEFAULT_SHARED_SCOPE, None, Merge.LAST_WRITE).build()

    def around(inner: Workflow) -> Workflow:
        builder = WorkflowBuilder(name="Outer").set_start_executor(nested(inner))
        return builder.with_state_merge(SHARED, None, Merge.LAST_WRITE).build()

    assert await outputs(around(summing(Merge.ADD)), 1) == [(3, ["key"])]
    with pytest.raises(StateConflict):
        await soon(around(summing(None)).run(1))


async def test_state_of_a_finished_instance_is_dropped() -> None:
    workflow = chain(Burst, nested(counting()), name="Outer")
    stream = workflow.run_stream([0, 2])
    seen = []
    async for event in stream:
        if isinstance(event, SuperStepCompletedEvent):
            seen.append(sorted({scope.path for scope in stream.run.snapshot.state}))
    # The first instance ends in superstep 2, the second goes on until superstep 4.
    assert seen == [[], ["sub#2/"], ["sub#2/"], []]
    assert dict(stream.run.snapshot.state) == {}
    assert dict(stream.run.snapshot.buffers) == {}


async def test_state_of_an_instance_that_waits_is_kept() -> None:
    class CountAndAsk(Ask):
        @handler
        async def ask(self, message: object, ctx: WorkflowContext) -> None:
            await ctx.queue_state_update("asked", message)
            await ctx.request_info(message, response_type=str)

    workflow = chain(Burst, nested(chain(CountAndAsk)), name="Outer")
    run = await workflow.start(["a", "b"])
    await soon(run.wait_for_completion())
    assert list(run.snapshot.state) == [
        Scope("sub#1/CountAndAsk", "", "sub#1/"),  # type: ignore[arg-type]
        Scope("sub#2/CountAndAsk", "", "sub#2/"),  # type: ignore[arg-type]
    ]
    await run.send_response("sub#1/CountAndAsk.2.1", "yes")
    await soon(run.wait_for_completion())
    assert [scope.path for scope in run.snapshot.state] == ["sub#2/"]


async def test_snapshot_keeps_nothing_of_finished_instances_two_levels_deep() -> None:
    middle = chain(nested(counting(), "deep"), Record, name="Middle")
    workflow = chain(Burst, nested(middle, "mid"), name="Outer")
    run = await workflow.start([0] * 20)
    await soon(run.wait_for_completion())
    assert dict(run.snapshot.state) == {}
    assert dict(run.snapshot.instances) == {"mid": 20}


async def test_outer_state_stays_when_an_instance_ends() -> None:
    workflow = chain(Writer.bind(value="outer"), nested(chain(Relayed)), Reader, name="Outer")
    assert await outputs(workflow, 1) == [("outer", ["key"])]


# -- questions -------------------------------------------------------------------------------------


async def test_request_surfaces_with_its_path() -> None:
    workflow = chain(nested(chain(Ask), "review"), Record, name="Outer")
    events = await events_of(workflow, "plan")
    (event,) = [event for event in events if isinstance(event, RequestInfoEvent)]
    assert (event.executor_id, event.request_id, event.data) == (
        "review#1/Ask",
        "review#1/Ask.1.1",
        "plan",
    )
    result = await waiting(workflow, "plan")
    assert asked(result) == [("review#1/Ask.1.1", "plan", "review#1/Ask")]
    result = await soon(result.respond({"review#1/Ask.1.1": "good"}))
    assert result.outputs == [("Record", 3, "plan: good")]
    assert result.status is RunStatus.COMPLETED


async def test_request_two_levels_deep() -> None:
    middle = chain(Relayed, nested(chain(Ask), "deep"), Relayed.bind(id="after"), name="Middle")
    result = await waiting(chain(Relayed, nested(middle, "mid"), Record, name="Outer"), "x")
    assert asked(result) == [("mid#1/deep#1/Ask.3.1", "x", "mid#1/deep#1/Ask")]
    result = await soon(result.respond({"mid#1/deep#1/Ask.3.1": "yes"}))
    assert result.outputs == [("Record", 6, "x: yes")]
    with pytest.raises(Exception, match="takes no responses"):
        await result.respond({"mid#1/deep#1/Ask.3.1": "yes"})


async def test_nested_request_info_executor() -> None:
    inner = chain(RequestInfoExecutor(id="ask", response_type=int), double)
    workflow = chain(Burst, nested(inner), Record, name="Outer")
    result = await waiting(workflow, ["a", "b"])
    assert asked(result) == [("sub#1/ask.2.1", "a", "sub#1/ask"), ("sub#2/ask.2.1", "b", "sub#2/ask")]
    result = await soon(result.respond({"sub#2/ask.2.1": 2}))
    assert [output[2] for output in result.outputs] == [4]
    result = await soon(result.respond({"sub#1/ask.2.1": 1}))
    assert [output[2] for output in result.outputs] == [4, 2]


async def test_executor_waits_with_its_fields_while_others_end() -> None:
    class Remember(Executor):
        checkpointed = ("seen",)

        def __init__(self, id: str | None = None) -> None:
            super().__init__(id)
            self.seen: list[str] = []

        @handler
        async def ask(self, message: str, ctx: WorkflowContext) -> None:
            self.seen.append(message)
            await ctx.request_info(message, response_type=str)

        @response_handler
        async def answered(self, message: str, answer: str, ctx: WorkflowContext[None, Any]) -> None:
            self.seen.append(answer)
            await ctx.yield_output(self.seen)

    workflow = chain(Burst, nested(chain(Remember)), name="Outer")
    result = await waiting(workflow, ["a", "b", "c"])
    for number, answer in ((2, "B"), (3, "C"), (1, "A")):
        result = await soon(result.respond({f"sub#{number}/Remember.2.1": answer}))
    assert result.outputs == [["b", "B"], ["c", "C"], ["a", "A"]]


class Stamp(Executor):
    @handler
    async def stamp(self, text: str, ctx: WorkflowContext[None, Any]) -> None:
        await ctx.yield_output(f"{text} ({ctx.executor_id})")


class AskAndSend(Executor):
    """Asks, counts its answers in its fields and in state, and sends them on."""

    checkpointed = ("answers",)

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id)
        self.answers = 0

    @handler
    async def ask(self, message: object, ctx: WorkflowContext) -> None:
        await ctx.request_info(f"{ctx.executor_id} about {message}", response_type=str)

    @response_handler
    async def answered(self, question: str, answer: str, ctx: WorkflowContext[str]) -> None:
        self.answers += 1
        await ctx.append_state("answers", answer, scope_name=SHARED)
        await ctx.send_message(f"{question}: {answer} [{self.answers}]")


def review_board() -> Workflow:
    inner = chain(Relayed, AskAndSend, Stamp, name="Review")
    builder = WorkflowBuilder(name="Board").set_start_executor(Relayed)
    people = [nested(inner, name) for name in ("legal", "finance", "security")]
    return builder.add_fan_out_edges(Relayed, people).add_fan_in_edges(people, listed).build()


async def answered_in(order: list[int], at_once: bool) -> RunResult:
    result = await waiting(review_board(), "plan")
    ids = [str(request.request_id) for request in result.pending_requests]
    assert ids == [f"{name}#1/AskAndSend.3.1" for name in ("legal", "finance", "security")]
    if at_once:
        return await soon(result.respond({ids[number]: f"answer {number}" for number in order}))
    for number in order:
        assert result.status is RunStatus.WAITING
        result = await soon(result.respond({ids[number]: f"answer {number}"}))
    return result


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "one by one"])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
async def test_questions_in_nested_workflows_in_a_fan_out_answered_in_any_order(
    order: tuple[int, ...], at_once: bool
) -> None:
    in_order = await answered_in([0, 1, 2], at_once)
    other = await answered_in(list(order), at_once)
    assert (in_order.status, other.status) == (RunStatus.COMPLETED, RunStatus.COMPLETED)
    assert other.outputs == in_order.outputs
    assert in_order.outputs == [
        [
            f"{name}#1/AskAndSend about plan: answer {number} [1] ({name}#1/Stamp)"
            for number, name in enumerate(("legal", "finance", "security"))
        ]
    ]


@pytest.mark.parametrize("step", [1, -1], ids=["in order", "in reverse order"])
async def test_many_deliveries_that_ask(step: int) -> None:
    inner = chain(AskAndSend, Stamp, name="Review")
    workflow = chain(Burst, nested(inner, "review"), name="Outer")
    result = await waiting(workflow, list(range(200)))
    requests = result.pending_requests[::step]
    result = await soon(result.respond({r.request_id: r.request_id.upper() for r in requests}))
    assert result.outputs == [
        f"review#{n}/AskAndSend about {n - 1}: REVIEW#{n}/ASKANDSEND.2.1 [1] (review#{n}/Stamp)"
        for n in range(1, 201)
    ]


async def test_double_answer_to_an_instance_that_ended() -> None:
    result = await waiting(chain(Burst, nested(chain(Ask)), name="Outer"), ["a", "b"])
    result = await soon(result.respond({"sub#1/Ask.2.1": "x"}))
    with pytest.raises(RequestAlreadyAnswered, match=r"^request 'sub#1/Ask\.2\.1' was answered before"):
        await result.respond({"sub#1/Ask.2.1": "y"})


async def test_request_without_a_response_handler_names_the_path() -> None:
    class Mute(Executor):
        @handler
        async def ask(self, text: str, ctx: WorkflowContext) -> None:
            await ctx.request_info(text, response_type=bool)

    with pytest.raises(ExecutorFailed) as caught:
        await soon(chain(nested(chain(Mute)), name="Outer").run("x"))
    assert str(caught.value.__cause__).startswith("executor 'sub#1/Mute' asks with a str for a bool")


# -- warnings --------------------------------------------------------------------------------------


async def test_unrouted_message_inside_names_the_path() -> None:
    class Lost(Executor):
        @handler
        async def lose(self, number: int, ctx: WorkflowContext[Any]) -> None:
            await ctx.send_message("text")

    (warning,) = await warnings_of(chain(Burst, nested(chain(Lost, double)), name="Outer"), [1])
    assert warning.executor_id == "sub#1/Lost"
    assert warning.message == (
        "executor 'sub#1/Lost' sent 'text' (str), which reaches nobody: none of its edges (to 'double') took it; "
        "add an edge to an executor that takes it, or yield_output it"
    )


async def test_unrouted_output_names_the_host() -> None:
    class Mixed(Executor):
        @handler
        async def give(self, number: int, ctx: WorkflowContext[None, Any]) -> None:
            await ctx.yield_output("text")
            await ctx.yield_output(number)

    middle = chain(nested(chain(Mixed), "deep"), double, name="Middle")
    workflow = chain(nested(middle, "mid"), Record, name="Outer")
    (warning,) = await warnings_of(workflow, 1)
    assert warning.executor_id == "mid#1/deep"
    assert warning.message.startswith(
        "executor 'mid#1/deep' sent 'text' (str), which reaches nobody: none of its edges (to 'double') took it"
    )


def half_joined() -> Workflow:
    """Its fan-in waits for a source that never sends."""
    builder = WorkflowBuilder(name="Half").set_start_executor(Relay)
    builder.add_fan_out_edges(Relay, [double, Silent])
    return builder.add_fan_in_edges([double, Silent], listed).build()


class Silent(Executor):
    @handler
    async def hush(self, number: int, ctx: WorkflowContext[int]) -> None: ...


async def test_waiting_fan_in_inside_is_told_when_the_run_rests() -> None:
    workflow = (
        WorkflowBuilder(name="Outer")
        .set_start_executor(Relay)
        .add_fan_out_edges(Relay, [nested(half_joined()), Count])
        .add_edge(Count, Count)
        .build()
    )
    stream = workflow.run_stream(5)
    events = [event async for event in stream]
    (event,) = [event for event in events if type(event).__name__ == "WorkflowWarningEvent"]
    warning = event.warning  # type: ignore[attr-defined]
    assert isinstance(warning, WaitingFanIn)
    assert event.superstep == 7, "it is told when nothing else is left to do"
    assert str(warning) == (
        "the run waits for messages: fan-in 'double', 'Silent' -> 'listed' of nested workflow 'sub#1' holds some and "
        "still needs one of 'Silent', but nothing is left to do that could send it; a fan-in delivers once each of "
        "its sources has sent something"
    )
    assert stream.run.waiting_for == ("messages",)
    assert [key.path for key in stream.run.snapshot.buffers] == ["sub#1/"]


async def test_fan_in_inside_holds_what_belongs_to_its_own_instance() -> None:
    inner = (
        WorkflowBuilder(name="Joining")
        .set_start_executor(Relay)
        .add_fan_out_edges(Relay, [double, increment])
        .add_fan_in_edges([double, increment], listed)
        .build()
    )
    workflow = chain(Burst, nested(inner), name="Outer")
    assert await outputs(workflow, [1, 2, 3]) == [[2, 2], [4, 3], [6, 4]]


async def test_fan_in_inside_survives_a_question() -> None:
    inner = (
        WorkflowBuilder(name="Joining")
        .set_start_executor(Relayed)
        .add_fan_out_edges(Relayed, [Relayed.bind(id="quick"), RequestInfoExecutor(id="ask")])
        .add_fan_in_edges(["quick", "ask"], listed)
        .build()
    )
    result = await waiting(chain(Burst, nested(inner), name="Outer"), ["a", "b"])
    assert result.warnings == []
    result = await soon(result.respond({"sub#2/ask.3.1": "B"}))
    result = await soon(result.respond({"sub#1/ask.3.1": "A"}))
    assert (result.outputs, result.warnings) == ([["b", "B"], ["a", "A"]], [])


# -- failures --------------------------------------------------------------------------------------


@executor
async def fail(number: int) -> int:
    if number == 2:
        raise ValueError("two is too much")
    return number


async def test_failure_inside_names_the_path() -> None:
    middle = chain(nested(chain(fail), "deep"), name="Middle")
    workflow = chain(Burst, nested(middle, "mid"), name="Outer")
    events, error = await events_until_failure(workflow, [1, 2, 3])
    assert isinstance(error, ExecutorFailed)
    assert (error.executor_id, error.superstep) == ("mid#2/deep#1/fail", 2)
    assert "executor 'mid#2/deep#1/fail' failed in superstep 2" in str(error)
    assert repr(error.__cause__) == "ValueError('two is too much')"
    failed = [event for event in events if isinstance(event, ExecutorFailedEvent)]
    assert [event.executor_id for event in failed] == ["mid#2/deep#1/fail"]
    completed = [e.executor_id for e in events if isinstance(e, ExecutorCompletedEvent) and e.superstep == 2]
    assert completed == ["mid#1/deep#1/fail", "mid#3/deep#1/fail"], "siblings finish"


async def test_condition_that_fails_inside_names_the_path() -> None:
    inner = (
        WorkflowBuilder(name="Inner")
        .set_start_executor(Relay)
        .add_edge(Relay, double, condition=lambda number: 1 / number > 0)
        .build()
    )
    with pytest.raises(ConditionFailed) as caught:
        await soon(chain(nested(inner), name="Outer").run(0))
    assert caught.value.executor_id == "sub#1/Relay"
    assert "sub#1" in str(caught.value)


async def test_executor_inside_that_cannot_be_created() -> None:
    class Broken(Executor):
        def __init__(self, id: str | None = None, fails: bool = True) -> None:
            super().__init__(id)
            raise ValueError("no connection")

        @handler
        async def work(self, number: int, ctx: WorkflowContext[int]) -> None: ...

    workflow = chain(Burst, nested(chain(Relay, Broken)), name="Outer")
    with pytest.raises(ExecutorFailed) as caught:
        await soon(workflow.run([1]))
    assert caught.value.executor_id == "sub#1/Broken"
    assert repr(caught.value.__cause__) == "ValueError('no connection')"


# -- limits ----------------------------------------------------------------------------------------


def deep(levels: int) -> Workflow:
    """A workflow of so many levels, itself included."""
    workflow = chain(increment, name="Level1")
    for level in range(2, levels + 1):
        workflow = chain(nested(workflow), name=f"Level{level}")
    return workflow


async def test_as_deep_as_allowed() -> None:
    assert await outputs(deep(16), 1) == [2]


def test_too_deep() -> None:
    with pytest.raises(LimitExceeded) as caught:
        deep(17)
    assert (caught.value.limit, caught.value.allowed) == ("max_depth", 16)
    assert str(caught.value) == (
        "executor 'sub' nests workflows 17 deep, more than the 16 allowed; allow more with Limits(max_depth=...)"
    )


async def test_deeper_if_allowed() -> None:
    workflow = chain(nested(deep(16)), name="Deeper", limits=Limits(max_depth=17))
    assert await outputs(workflow, 1) == [2]
    with pytest.raises(LimitExceeded):
        chain(nested(deep(2)), name="Shallow", limits=Limits(max_depth=2))


def test_too_deep_by_a_factory() -> None:
    builder = WorkflowBuilder(name="Outer", limits=Limits(max_depth=2))
    with pytest.raises(LimitExceeded, match="executor 'sub' nests workflows 3 deep, more than the 2 allowed"):
        builder.register_executor(lambda: nested(deep(2)), name="sub")


def test_inside_itself_by_name() -> None:
    inner = chain(double, name="Same")
    with pytest.raises(GraphError) as caught:
        chain(nested(inner), name="Same")
    assert str(caught.value) == (
        "workflow 'Same' cannot stand inside itself (as executor 'sub'); for a loop add an edge back, and if these "
        "are different workflows give them different names"
    )


@pytest.mark.parametrize("name", ["Endless", None], ids=["named", "unnamed"])
def test_inside_itself_by_a_factory(name: str | None) -> None:
    def build() -> Workflow:
        builder = WorkflowBuilder(name=name) if name else WorkflowBuilder()
        builder.register_executor(lambda: WorkflowExecutor(build(), id="again"), name="again")
        return builder.set_start_executor("again").build()

    with pytest.raises(GraphError, match="cannot stand inside itself") as caught:
        build()
    assert "for a loop add an edge back" in str(caught.value)


def test_inside_itself_through_another() -> None:
    def one() -> Workflow:
        builder = WorkflowBuilder(name="One")
        builder.register_executor(lambda: WorkflowExecutor(two()), name="two")
        return builder.set_start_executor("two").build()

    def two() -> Workflow:
        builder = WorkflowBuilder(name="Two")
        builder.register_executor(lambda: WorkflowExecutor(one()), name="one")
        return builder.set_start_executor("one").build()

    with pytest.raises(GraphError, match="workflow 'One' cannot stand inside itself: One > Two > One"):
        one()
    with pytest.raises(GraphError, match="workflow 'Two' cannot stand inside itself: Two > One > Two"):
        two()


async def test_factory_of_a_nested_workflow() -> None:
    workflow = (
        WorkflowBuilder(name="Outer")
        .register_executor(lambda: nested(chain(double), "ignored"), name="twice")
        .set_start_executor("twice")
        .add_edge("twice", Record)
        .build()
    )
    assert list(workflow.graph.executors) == ["twice", "Record"]
    assert await outputs(workflow, 4) == [("Record", 2, 8)]


def test_workflow_itself_in_an_edge() -> None:
    with pytest.raises(GraphError, match=r"nest it with WorkflowExecutor\(workflow, id='\.\.\.'\)"):
        WorkflowBuilder(name="Outer").set_start_executor(chain(double))  # type: ignore[arg-type]


def test_two_nested_workflows_with_one_id() -> None:
    builder = WorkflowBuilder(name="Outer").set_start_executor(nested(chain(double)))
    with pytest.raises(GraphError, match="two executors have the id 'sub'"):
        builder.add_edge("sub", nested(chain(increment)))


async def test_supersteps_of_the_outer_workflow_count() -> None:
    inner = chain(increment, double, Relayed, name="Inner", max_iterations=1)
    assert await outputs(chain(nested(inner), Record, name="Outer", max_iterations=4), 1) == [
        ("Record", 4, 4)
    ]
    with pytest.raises(
        SuperstepLimit, match=r"the run took 2 supersteps since its last input .* 'sub#1/Relayed'"
    ):
        await soon(chain(nested(inner), Record, name="Outer", max_iterations=2).run(1))


async def test_deliveries_to_all_instances_count() -> None:
    workflow = chain(Burst, nested(chain(double)), name="Outer", limits=Limits(max_deliveries=10))
    assert len(await outputs(workflow, list(range(10)))) == 10
    with pytest.raises(LimitExceeded, match="superstep 1 makes 11 deliveries, more than the 10 allowed"):
        await soon(workflow.run(list(range(11))))


# -- executors inside ------------------------------------------------------------------------------


class Tally(Executor):
    """Keeps a field."""

    checkpointed = ("seen",)

    def __init__(self, id: str | None = None, start: int = 0) -> None:
        super().__init__(id)
        self.seen = start

    @handler
    async def take(self, number: int, ctx: WorkflowContext[int, int]) -> None:
        await asyncio.sleep(0)
        self.seen += number
        await ctx.yield_output(self.seen)


@pytest.mark.parametrize(
    ("placed", "start"), [(Tally, 0), (Tally.bind(id="Tally", start=5), 5)], ids=["class", "recipe"]
)
async def test_class_and_recipe_have_one_executor_for_each_instance(placed: Any, start: int) -> None:
    workflow = chain(Burst, nested(chain(Relay, placed)), name="Outer")
    assert await outputs(workflow, [1, 2, 3]) == [start + 1, start + 2, start + 3]


async def test_factory_inside_creates_one_executor_for_each_instance() -> None:
    made: list[Tally] = []

    def make() -> Tally:
        made.append(Tally())
        return made[-1]

    inner = (
        WorkflowBuilder(name="Inner")
        .register_executor(make, name="tally")
        .set_start_executor("tally")
        .build()
    )
    workflow = chain(Burst, nested(inner), name="Outer")
    assert await outputs(workflow, [1, 2, 3]) == [1, 2, 3]
    assert len(made) == 4, "the first was made to learn its handlers"


async def test_instance_inside_used_by_two_deliveries_at_once() -> None:
    workflow = chain(Burst, nested(chain(Tally())), name="Outer")
    assert await outputs(workflow, [1]) == [1]
    workflow = chain(Burst, nested(chain(Tally())), name="Outer")
    with pytest.raises(ExecutorFailed, match="executor 'sub#2/Tally' failed") as caught:
        await soon(workflow.run([1, 2]))
    cause = caught.value.__cause__
    assert isinstance(cause, ExecutorShared)
    assert str(cause).startswith(
        "executor 'sub#2/Tally' is an instance of Tally that 'sub#1' uses now in the same run; "
    )


async def test_instance_inside_used_by_one_delivery_after_the_other() -> None:
    class Feed(Executor):
        """Sends one number after the other, each when the one before came back."""

        @handler
        async def begin(self, numbers: list, ctx: WorkflowContext[int]) -> None:
            await ctx.queue_state_update("left", numbers[1:])
            await ctx.send_message(numbers[0])

        @handler
        async def back(self, number: int, ctx: WorkflowContext[int, int]) -> None:
            await ctx.yield_output(number)
            left = await ctx.read_state("left")
            if left:
                await ctx.queue_state_update("left", left[1:])
                await ctx.send_message(left[0])

    def fed(placed: Any) -> Workflow:
        return (
            WorkflowBuilder(name="Outer")
            .set_start_executor(Feed)
            .add_edge(Feed, nested(chain(placed)))
            .add_edge("sub", Feed)
            .build()
        )

    class Resetting(Tally):
        async def reset(self) -> None:
            await asyncio.sleep(0)
            self.seen = 0

    class Keeping(Executor):
        @handler
        async def take(self, number: int, ctx: WorkflowContext[None, int]) -> None:
            await ctx.yield_output(number)

    assert await outputs(fed(Keeping()), [1, 2, 3]) == [1, 2, 3]
    assert await outputs(fed(Resetting()), [1, 2, 3]) == [1, 2, 3], "reset in between"
    with pytest.raises(ExecutorFailed) as caught:
        await soon(fed(Tally()).run([1, 2, 3]))
    assert isinstance(caught.value.__cause__, ExecutorShared)
    assert str(caught.value.__cause__).startswith("Tally.seen: 0 -> 1: ")


async def test_shareable_instance_inside() -> None:
    class Stateless(Executor):
        shareable = True

        @handler
        async def take(self, number: int, ctx: WorkflowContext[None, Any]) -> None:
            await asyncio.sleep(0)
            await ctx.yield_output((ctx.executor_id, number))

    workflow = chain(Burst, nested(chain(Stateless())), name="Outer")
    assert await outputs(workflow, [1, 2]) == [("sub#1/Stateless", 1), ("sub#2/Stateless", 2)]


# -- fingerprint and drawings ----------------------------------------------------------------------


def test_fingerprint_follows_the_nested_workflow() -> None:
    def around(*placed: Any) -> str:
        return chain(nested(chain(*placed)), Record, name="Outer").fingerprint

    assert around(double, increment) == around(double, increment)
    assert around(double, increment) != around(increment, double)
    assert around(double, increment) != around(double, increment, Relay)
    assert chain(nested(chain(double)), name="Outer").fingerprint != chain(double, name="Outer").fingerprint
    deep_change = [
        chain(nested(chain(nested(chain(p), "deep"), name="Middle")), name="Outer")
        for p in (double, increment)
    ]
    assert deep_change[0].fingerprint != deep_change[1].fingerprint


def test_fingerprint_does_not_follow_the_name_of_the_nested_workflow() -> None:
    one, other = (chain(nested(chain(double, name=name)), name="Outer") for name in ("One", "Other"))
    assert one.fingerprint == other.fingerprint


def drawn() -> Workflow:
    joining = (
        WorkflowBuilder(name="Joining")
        .set_start_executor(Relay)
        .add_fan_out_edges(Relay, [double, increment])
        .add_fan_in_edges([double, increment], listed)
        .build()
    )
    middle = (
        WorkflowBuilder(name="Middle")
        .set_start_executor(nested(joining, "join"))
        .add_edge("join", Record, condition=bool)
        .build()
    )
    return (
        WorkflowBuilder(name="Outer")
        .set_start_executor(Relay)
        .add_edge(Relay, nested(middle, 'the "mid"'))
        .add_edge(Relay, nested(chain(double), "sub"), label="twice")
        .add_edge("sub", Record)
        .build()
    )


def test_mermaid() -> None:
    assert drawn().to_mermaid() == (
        """\
flowchart TD
    n0(["Relay"])
    subgraph n1["the #quot;mid#quot;"]
        subgraph n2["join"]
            n3(["Relay"])
            n4["double"]
            n5["increment"]
            n6["listed"]
            n7(("fan-in"))
            n3 --> n4
            n3 --> n5
            n4 --> n7
            n5 --> n7
            n7 --> n6
        end
        n8["Record"]
        n2 -.->|"conditional"| n8
    end
    subgraph n9["sub"]
        n10(["double"])
    end
    n11["Record"]
    n0 --> n1
    n0 -->|"twice"| n9
    n9 --> n11
"""
    )


def test_dot() -> None:
    assert drawn().to_dot() == (
        """\
digraph "Outer" {
    node [shape=box];
    "Relay" [shape=oval];
    subgraph "cluster the \\"mid\\"" {
        "the \\"mid\\"" [shape=folder];
        subgraph "cluster the \\"mid\\"/join" {
            "the \\"mid\\"/join" [label="join", shape=folder];
            "the \\"mid\\"/join/Relay" [label="Relay", shape=oval];
            "the \\"mid\\"/join/double" [label="double"];
            "the \\"mid\\"/join/increment" [label="increment"];
            "the \\"mid\\"/join/listed" [label="listed"];
            "the \\"mid\\"/join/fan-in//1" [shape=circle, label="fan-in"];
            "the \\"mid\\"/join/Relay" -> "the \\"mid\\"/join/double";
            "the \\"mid\\"/join/Relay" -> "the \\"mid\\"/join/increment";
            "the \\"mid\\"/join/double" -> "the \\"mid\\"/join/fan-in//1";
            "the \\"mid\\"/join/increment" -> "the \\"mid\\"/join/fan-in//1";
            "the \\"mid\\"/join/fan-in//1" -> "the \\"mid\\"/join/listed";
            "the \\"mid\\"/join" -> "the \\"mid\\"/join/Relay" [style=dotted];
        }
        "the \\"mid\\"/Record" [label="Record"];
        "the \\"mid\\"/join" -> "the \\"mid\\"/Record" [label="conditional", style=dashed];
        "the \\"mid\\"" -> "the \\"mid\\"/join" [style=dotted];
    }
    subgraph "cluster sub" {
        "sub" [shape=folder];
        "sub/double" [label="double", shape=oval];
        "sub" -> "sub/double" [style=dotted];
    }
    "Record";
    "Relay" -> "the \\"mid\\"";
    "Relay" -> "sub" [label="twice"];
    "sub" -> "Record";
}
"""
    )
