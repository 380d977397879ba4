"""Workflows run: executors of each kind, dispatch by type, every kind of edge, outputs and limits."""

import asyncio
import contextvars
import enum
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Never, Optional, TypeVar, Union

import pytest

from holdfast import (
    Case,
    Default,
    Executor,
    ExecutorFailed,
    ExecutorInvokedEvent,
    Limits,
    RunStatus,
    SuperStepCompletedEvent,
    SuperstepLimit,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
    handler,
)
from tests.support.executors import Burst, Record
from tests.support.runs import events_of, soon, warnings_of

T = TypeVar("T")


@executor
def upper(text: str) -> str:
    return text.upper()


@executor
async def exclaim(text: str) -> str:
    return text + "!"


@executor
async def length(text: str) -> int:
    return len(text)


@executor(id="gather")
async def collected(parts: list) -> list:
    return parts


class Shout(Executor):
    def __init__(self, id: str = "shouter", mark: str = "!") -> None:
        super().__init__(id)
        self.mark = mark
        self.calls = 0

    @handler
    async def shout(self, text: str, ctx: WorkflowContext[str, str]) -> str:
        self.calls += 1
        return text.upper() + self.mark * self.calls


class Relay(Executor):
    """Sends what it gets."""

    @handler
    async def relay(self, message: object, ctx: WorkflowContext) -> None:
        await ctx.send_message(message)


def alone(placed: Any) -> Workflow:
    return WorkflowBuilder().set_start_executor(placed).build()


async def outputs(workflow: Workflow, message: object) -> list[Any]:
    result = await soon(workflow.run(message))
    assert result.status is RunStatus.COMPLETED
    assert result.get_outputs() == result.outputs
    return result.outputs


# -- executors of each kind ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("placed", "expected_id"),
    [
        (Shout, "shouter"),
        (Shout.bind(), "shouter"),
        (Shout.bind(id="eu"), "eu"),
        (Record, "Record"),
        (upper, "upper"),
        (collected, "gather"),
    ],
    ids=["class", "recipe", "recipe with id", "class without default", "function", "named function"],
)
def test_ids(placed: Any, expected_id: str) -> None:
    assert list(alone(placed).graph.executors) == [expected_id]


@pytest.mark.parametrize(
    ("placed", "expected"),
    [
        (Shout, "HI!"),
        (Shout.bind(mark="?"), "HI?"),
        (Shout.bind(id="eu", mark="."), "HI."),
        (upper, "HI"),
        (exclaim, "hi!"),
    ],
    ids=["class", "recipe", "recipe with id", "sync function", "async function"],
)
async def test_each_kind_of_executor_runs_afresh_each_time(placed: Any, expected: str) -> None:
    workflow = alone(placed)
    assert await outputs(workflow, "hi") == [expected]
    assert await outputs(workflow, "hi") == [expected]


async def test_instance_is_the_executor_itself() -> None:
    shout = Shout("mine")
    assert await outputs(alone(shout), "hi") == ["HI!"]
    assert shout.calls == 1


async def test_registered_factory_creates_one_executor_for_each_run() -> None:
    made = []

    def make() -> Shout:
        made.append(Shout(mark="?"))
        return made[-1]

    workflow = (
        WorkflowBuilder()
        .register_executor(make, name="loud")
        .register_executor(Record, name="record")
        .set_start_executor("loud")
        .add_edge("loud", "record")
        .build()
    )
    assert await outputs(workflow, "hi") == [("record", 2, "HI?")]
    assert await outputs(workflow, "hi") == [("record", 2, "HI?")]
    assert [shout.calls for shout in made] == [0, 1, 1], "the first was made to learn its handlers"
    assert {shout.id for shout in made[1:]} == {"loud"}


async def test_registering_a_function_under_another_name_leaves_the_function_its_own() -> None:
    @executor
    async def mark(text: str) -> str:
        return text + "!"

    workflow = (
        WorkflowBuilder()
        .register_executor(lambda: mark, name="first")
        .register_executor(lambda: mark, name="second")
        .set_start_executor("first")
        .add_edge("first", "second")
        .build()
    )
    assert await outputs(workflow, "hi") == ["hi!!"]
    assert mark.id == "mark"


async def test_one_class_stands_twice_by_recipes() -> None:
    workflow = (
        WorkflowBuilder()
        .set_start_executor(Shout.bind(id="a", mark="a"))
        .add_edge(Shout.bind(id="a", mark="a"), Shout.bind(id="b", mark="b"))
        .build()
    )
    assert await outputs(workflow, "x") == ["XAb"]


async def test_class_without_id_parameter() -> None:
    class Simple(Executor):
        def __init__(self) -> None:
            super().__init__()

        @handler
        async def work(self, text: str, ctx: WorkflowContext) -> str:
            return f"{self.id} {ctx.executor_id}"

    assert await outputs(alone(Simple.bind(id="given")), "x") == ["given given"]


async def test_decorated_functions_can_still_be_called() -> None:
    assert upper("a") == "A"
    assert await exclaim("a") == "a!"
    assert exclaim.__doc__ is None


async def test_override_of_a_handler_keeps_its_role() -> None:
    class Louder(Shout):
        async def shout(self, text: str, ctx: WorkflowContext[str, str]) -> str:
            return await super().shout(text, ctx) + "!!"

    assert await outputs(alone(Louder), "hi") == ["HI!!!"]


async def test_sync_method_and_method_without_context() -> None:
    class Plain(Executor):
        @handler
        def number(self, number: int) -> int:
            return number + 1

        @handler
        async def text(self, text: str) -> str:
            return text + "1"

    assert await outputs(alone(Plain), 1) == [2]
    assert await outputs(alone(Plain), "1") == ["11"]


async def test_context_tells_where_a_handler_is() -> None:
    run_ids = []

    class Where(Executor):
        @handler
        async def where(self, number: int, ctx: WorkflowContext[int]) -> int | None:
            run_ids.append(ctx.run_id)
            await ctx.yield_output((ctx.executor_id, ctx.superstep))
            return number - 1 if number else None

    workflow = WorkflowBuilder().set_start_executor(Where).add_edge(Where, Where).build()
    result = await workflow.run(2)
    assert result.outputs == [("Where", 1), ("Where", 2), ("Where", 3)]
    assert set(run_ids) == {result.run_id}


# -- dispatch --------------------------------------------------------------------------------------


class Animal: ...


class Dog(Animal): ...


class Puppy(Dog): ...


class Box(Generic[T]): ...


class Size(enum.IntEnum):
    BIG = 7


class Dispatching(Executor):
    @handler
    async def dog(self, message: Dog, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output("dog")

    @handler
    async def animal(self, message: Animal, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output("animal")

    @handler
    async def integer(self, message: int, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output("int")

    @handler
    async def scalar(self, message: Union[int, float, bytes], ctx: WorkflowContext[Never, str]) -> None:  # noqa: UP007
        await ctx.yield_output("int | float | bytes")

    @handler
    async def text_or_none(self, message: Optional[str], ctx: WorkflowContext[Never, str]) -> None:  # noqa: UP045
        await ctx.yield_output("str | None")

    @handler
    async def ints(self, message: list[int], ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output("list[int]")

    @handler
    async def texts(self, message: list[str], ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output("list[str]")

    @handler
    async def mapping(self, message: dict[str, int], ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output("dict")

    @handler
    async def box(self, message: Box[int], ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output("Box")

    @handler
    async def rest(self, message: object, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output("object")


@pytest.mark.parametrize(
    ("message", "taken_by"),
    [
        (Dog(), "dog"),
        (Puppy(), "dog"),
        (Animal(), "animal"),
        (1, "int"),
        (True, "int"),
        (Size.BIG, "int"),
        (1.5, "int | float | bytes"),
        (b"x", "int | float | bytes"),
        ("x", "str | None"),
        (None, "str | None"),
        ([1, 2], "list[int]"),
        (["x"], "list[str]"),
        ([1.5], "object"),
        ({"a": "b"}, "dict"),
        (Box(), "Box"),
        ((1, 2), "object"),
    ],
)
async def test_dispatch_by_type(message: object, taken_by: str) -> None:
    assert await outputs(alone(Dispatching), message) == [taken_by]


async def test_edge_leads_only_messages_that_its_target_takes() -> None:
    class Numbers(Executor):
        @handler
        async def number(self, number: int, ctx: WorkflowContext[Never, int]) -> None:
            await ctx.yield_output(number)

    class Texts(Executor):
        @handler
        async def text(self, text: str, ctx: WorkflowContext[Never, str]) -> None:
            await ctx.yield_output(text)

    builder = WorkflowBuilder().set_start_executor(Burst)
    direct = builder.add_edge(Burst, Numbers).add_edge(Burst, Texts).build()
    fanned = WorkflowBuilder().set_start_executor(Burst).add_fan_out_edges(Burst, [Numbers, Texts]).build()
    for workflow in (direct, fanned):
        assert await outputs(workflow, [1, "a", 2, "b"]) == [1, 2, "a", "b"]
        assert await warnings_of(workflow, [1, "a"]) == []


async def test_declared_types_stand_in_for_annotations() -> None:
    class Declared(Executor):
        @handler(input=int | str, output=str, workflow_output=bool)
        async def work(self, message, ctx):
            await ctx.yield_output(True)
            await ctx.send_message(str(message))

    @executor(id="last", input=str)
    async def last(message):
        return message + "."

    workflow = WorkflowBuilder().set_start_executor(Declared).add_edge(Declared, last).build()
    assert await outputs(workflow, 5) == [True, "5."]


# -- edges -----------------------------------------------------------------------------------------


async def test_chain() -> None:
    workflow = WorkflowBuilder().set_start_executor(upper).add_chain([upper, exclaim, length]).build()
    assert await outputs(workflow, "abc") == [4]


async def test_direct_edges_with_conditions_are_all_asked() -> None:
    record, other = Record.bind(id="big"), Record.bind(id="even")
    workflow = (
        WorkflowBuilder()
        .set_start_executor(Burst)
        .add_edge(Burst, record, condition=lambda number: number > 2, label="big")
        .add_edge(Burst, other, condition=lambda number: number % 2 == 0)
        .build()
    )
    assert await outputs(workflow, [1, 2, 3, 4]) == [
        ("big", 2, 3),
        ("big", 2, 4),
        ("even", 2, 2),
        ("even", 2, 4),
    ]
    assert [warning.executor_id for warning in await warnings_of(workflow, [1, 2, 3, 4])] == ["Burst"]


async def test_two_conditions_to_one_target_deliver_once_each() -> None:
    workflow = (
        WorkflowBuilder()
        .set_start_executor(Burst)
        .add_edge(Burst, Record, condition=lambda number: number > 2)
        .add_edge(Burst, Record, condition=lambda number: number < 4)
        .build()
    )
    assert [message for *_, message in await outputs(workflow, [2, 3, 4])] == [2, 3, 3, 4]


async def test_any_true_answer_takes_the_edge() -> None:
    workflow = (
        WorkflowBuilder()
        .set_start_executor(Burst)
        .add_edge(Burst, Record, condition=lambda text: text)
        .build()
    )
    assert [message for *_, message in await outputs(workflow, ["", "a", 0, [1]])] == ["a", [1]]


async def test_fan_out() -> None:
    targets = [Record.bind(id=name) for name in "cab"]
    workflow = WorkflowBuilder().set_start_executor(Relay).add_fan_out_edges(Relay, targets).build()
    assert await outputs(workflow, "x") == [("c", 2, "x"), ("a", 2, "x"), ("b", 2, "x")]


def switch(cases: Sequence[Case | Default]) -> Workflow:
    return WorkflowBuilder().set_start_executor(Burst).add_switch_case_edge_group(Burst, cases).build()


def to(name: str) -> Any:
    return Record.bind(id=name)


async def test_switch_takes_the_first_case_that_holds() -> None:
    workflow = switch(
        [
            Case(condition=lambda number: number > 10, target=to("huge"), label="huge"),
            Case(condition=lambda number: number > 5, target=to("big")),
            Default(target=to("small")),
        ]
    )
    assert await outputs(workflow, [1, 20, 7]) == [("huge", 2, 20), ("big", 2, 7), ("small", 2, 1)]


async def test_switch_without_default_leaves_a_warning() -> None:
    workflow = switch([Case(lambda number: number > 10, to("huge"))])
    assert await outputs(workflow, [1, 20]) == [("huge", 2, 20)]
    (warning,) = await warnings_of(workflow, [1, 20])
    assert warning.message.startswith("executor 'Burst' sent 1 (int), which reaches nobody")


async def test_switch_passes_over_cases_whose_target_does_not_take_the_message() -> None:
    workflow = (
        WorkflowBuilder()
        .set_start_executor(Burst)
        .add_switch_case_edge_group(Burst, [Case(lambda text: len(text) > 0, length), Default(Record)])
        .build()
    )
    assert await outputs(workflow, ["ab", 5]) == [2, ("Record", 2, 5)]


async def test_switch_may_lead_two_cases_to_one_target() -> None:
    target = to("one")
    workflow = switch([Case(lambda n: n == 1, target), Case(lambda n: n == 2, target), Default(to("two"))])
    assert [(name, n) for name, _, n in await outputs(workflow, [1, 2, 3])] == [
        ("one", 1),
        ("one", 2),
        ("two", 3),
    ]


async def test_multi_selection() -> None:
    asked = []

    def choose(number: int, targets: list[str]) -> list[str]:
        asked.append((number, targets))
        return {1: ["c", "a"], 2: ["b"]}.get(number, [])

    workflow = (
        WorkflowBuilder()
        .set_start_executor(Burst)
        .add_multi_selection_edge_group(Burst, [to("a"), to("b"), to("c")], selection_func=choose)
        .build()
    )
    assert await outputs(workflow, [1, 2, 3]) == [("a", 2, 1), ("b", 2, 2), ("c", 2, 1)]
    assert asked == [(number, ["a", "b", "c"]) for number in (1, 2, 3)]
    (warning,) = await warnings_of(workflow, [1, 2, 3])
    assert "sent 3 (int)" in warning.message


async def test_selection_may_change_its_list_of_targets() -> None:
    def choose(number: int, targets: list[str]) -> list[str]:
        targets.reverse()
        return [targets.pop()]

    workflow = (
        WorkflowBuilder()
        .set_start_executor(Burst)
        .add_multi_selection_edge_group(Burst, [to("a"), to("b")], selection_func=choose)
        .build()
    )
    assert await outputs(workflow, [1, 2]) == [("a", 2, 1), ("a", 2, 2)]


async def test_fan_in_waits_for_each_source_over_several_supersteps() -> None:
    workflow = (
        WorkflowBuilder()
        .set_start_executor(Relay)
        .add_edge(Relay, upper)
        .add_edge(Relay, exclaim)
        .add_edge(exclaim, length)
        .add_fan_in_edges([length, upper], Record)
        .build()
    )
    assert await outputs(workflow, "abc") == [("Record", 4, [4, "ABC"])]
    events = await events_of(workflow, "abc")
    pending = [e.has_pending_messages for e in events if isinstance(e, SuperStepCompletedEvent)]
    assert pending == [True, True, True, False]


async def test_fan_in_delivers_all_that_was_sent_by_source_then_as_sent() -> None:
    @executor
    async def one(messages: list, ctx: WorkflowContext[str]) -> None:
        for message in messages:
            await ctx.send_message(f"one {message}")

    @executor
    async def two(messages: list, ctx: WorkflowContext[str]) -> None:
        for message in messages:
            await ctx.send_message(f"two {message}")

    workflow = (
        WorkflowBuilder()
        .set_start_executor(Relay)
        .add_fan_out_edges(Relay, [one, two])
        .add_fan_in_edges([two, one], collected)
        .build()
    )
    assert await outputs(workflow, ["a", "b"]) == [["two a", "two b", "one a", "one b"]]


async def test_fan_in_starts_anew_after_it_delivered() -> None:
    class Again(Executor):
        @handler
        async def again(self, number: int, ctx: WorkflowContext[int]) -> int:
            return number

        @handler
        async def joined(self, numbers: list, ctx: WorkflowContext[int, Any]) -> int | None:
            await ctx.yield_output(numbers)
            return numbers[0] - 1 if numbers[0] > 1 else None

    @executor
    async def left(number: int) -> int:
        return number

    @executor
    async def right(number: int) -> int:
        return -number

    workflow = (
        WorkflowBuilder()
        .set_start_executor(Again)
        .add_fan_out_edges(Again, [left, right])
        .add_fan_in_edges([left, right], Again)
        .build()
    )
    assert await outputs(workflow, 3) == [[3, -3], [2, -2], [1, -1]]


async def test_fan_in_takes_whole_lists_as_items() -> None:
    workflow = WorkflowBuilder().set_start_executor(Relay).add_fan_in_edges([Relay], collected).build()
    assert await outputs(workflow, [1, 2]) == [[[1, 2]]]


async def test_fan_ins_with_commas_in_their_ids_do_not_mix() -> None:
    a, b = Relay.bind(id="a,b"), Relay.bind(id="a")
    c, d = Relay.bind(id="c"), Relay.bind(id="b,c")
    start = Relay.bind(id="start")
    workflow = (
        WorkflowBuilder()
        .set_start_executor(start)
        .add_fan_out_edges(start, [a, b])
        .add_edge(start, c, condition=lambda message: False)
        .add_edge(start, d, condition=lambda message: False)
        .add_fan_in_edges([a, c], collected)
        .add_fan_in_edges([b, d], collected)
        .build()
    )
    result = await soon(workflow.run("x"))
    assert (result.outputs, result.waiting_for) == ([], ("messages",)), "neither has heard all of its sources"
    assert len(result.warnings) == 2


async def test_loop_and_self_edge() -> None:
    @executor
    async def countdown(number: int) -> int | None:
        return number - 1 if number else None

    @executor
    async def pass_on(number: int) -> int:
        return number

    own = WorkflowBuilder().set_start_executor(countdown).add_edge(countdown, countdown).build()
    loop = (
        WorkflowBuilder()
        .set_start_executor(countdown)
        .add_edge(countdown, pass_on)
        .add_edge(pass_on, countdown)
        .build()
    )
    for workflow, supersteps in ((own, 4), (loop, 7)):
        events = await events_of(workflow, 3)
        assert max(event.superstep for event in events) == supersteps


async def test_turns_follow_graph_order_and_messages_the_order_of_sending() -> None:
    second, first = Record.bind(id="second"), Record.bind(id="first")
    workflow = (
        WorkflowBuilder().set_start_executor(Burst).add_edge(Burst, first).add_edge(Burst, second).build()
    )
    events = await events_of(workflow, [1, 2, 3])
    invoked = [(e.executor_id, e.message_count) for e in events if isinstance(e, ExecutorInvokedEvent)]
    assert invoked == [("Burst", 1), ("first", 3), ("second", 3)]
    assert [message for *_, message in await outputs(workflow, [3, 1, 2])] == [3, 1, 2, 3, 1, 2]


# -- sending and giving out ------------------------------------------------------------------------


async def test_returned_value_is_sent_where_there_are_edges_and_an_output_elsewhere() -> None:
    workflow = WorkflowBuilder().set_start_executor(upper).add_edge(upper, exclaim).build()
    assert await outputs(workflow, "a") == ["A!"]


@pytest.mark.parametrize("value", [0, "", [], False])
async def test_every_returned_value_but_none_counts(value: object) -> None:
    @executor
    async def give(text: str) -> object:
        return value

    assert await outputs(alone(give), "x") == [value]


async def test_none_is_not_returned_but_can_be_sent() -> None:
    @executor
    async def give(text: str, ctx: WorkflowContext) -> None:
        await ctx.send_message(None)

    workflow = WorkflowBuilder().set_start_executor(give).add_edge(give, Record).build()
    assert await outputs(workflow, "x") == [("Record", 2, None)]


async def test_returned_value_comes_after_what_was_sent() -> None:
    @executor
    async def give(text: str, ctx: WorkflowContext) -> str:
        await ctx.send_message("sent")
        return "returned"

    workflow = WorkflowBuilder().set_start_executor(give).add_edge(give, Record).build()
    assert [message for *_, message in await outputs(workflow, "x")] == ["sent", "returned"]


async def test_message_to_one_target() -> None:
    @executor
    async def give(text: str, ctx: WorkflowContext) -> None:
        await ctx.send_message("for a", target_id="a")
        await ctx.send_message("for b", target_id="b")
        await ctx.send_message("for all")

    workflow = (
        WorkflowBuilder()
        .set_start_executor(give)
        .add_edge(give, to("a"))
        .add_fan_out_edges(give, [to("b"), to("c")])
        .build()
    )
    assert [(name, text) for name, _, text in await outputs(workflow, "x")] == [
        ("a", "for a"),
        ("a", "for all"),
        ("b", "for b"),
        ("b", "for all"),
        ("c", "for all"),
    ]


@pytest.mark.parametrize("kind", ["direct", "fan-out", "fan-in", "switch", "multi-selection"])
async def test_target_through_each_kind_of_edge(kind: str) -> None:
    @executor
    async def give(text: str, ctx: WorkflowContext) -> None:
        await ctx.send_message(text, target_id="a")

    builder = WorkflowBuilder().set_start_executor(give)
    a, b = to("a"), to("b")
    if kind == "direct":
        builder.add_edge(give, a).add_edge(give, b)
    elif kind == "fan-out":
        builder.add_fan_out_edges(give, [a, b])
    elif kind == "fan-in":
        builder.add_fan_in_edges([give], a).add_fan_in_edges([give], b)
    elif kind == "switch":
        builder.add_switch_case_edge_group(give, [Case(lambda text: text == "a", a), Default(b)])
    else:
        builder.add_multi_selection_edge_group(
            give, [a, b], lambda text, ids: ["a", "b"] if text == "a" else ["b"]
        )
    workflow = builder.build()
    expected: object = ["a"] if kind == "fan-in" else "a"
    assert await outputs(workflow, "a") == [("a", 2, expected)]
    if kind in ("switch", "multi-selection"):
        assert await outputs(workflow, "b") == []
        assert len(await warnings_of(workflow, "b")) == 1


async def test_outputs_come_in_graph_order_and_as_yielded() -> None:
    class Yield(Executor):
        @handler
        async def give(self, count: int, ctx: WorkflowContext[Never, str]) -> None:
            for number in range(count):
                await ctx.yield_output(f"{ctx.executor_id}{number}")

    targets = [Yield.bind(id="b"), Yield.bind(id="a")]
    workflow = WorkflowBuilder().set_start_executor(Relay).add_fan_out_edges(Relay, targets).build()
    assert await outputs(workflow, 2) == ["b0", "b1", "a0", "a1"]


async def test_output_from_chosen_executors_only() -> None:
    @executor
    async def talk(text: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output("talk")
        await ctx.send_message(text)

    builder = WorkflowBuilder().set_start_executor(talk).add_edge(talk, upper).add_edge(talk, exclaim)
    workflow = builder.with_output_from("exclaim", talk).build()
    assert await outputs(workflow, "a") == ["talk", "a!"]
    assert await warnings_of(workflow, "a") == []


async def test_run_without_output() -> None:
    @executor
    async def silent(text: str) -> None: ...

    assert await outputs(alone(silent), "x") == []


# -- limits and threads ----------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "ends"), [(4, True), (3, False)])
async def test_superstep_limit_allows_exactly_so_many(limit: int, ends: bool) -> None:
    done = []

    @executor
    async def countdown(number: int) -> int | None:
        done.append(number)
        return number - 1 if number else None

    workflow = (
        WorkflowBuilder(max_iterations=limit)
        .set_start_executor(countdown)
        .add_edge(countdown, countdown)
        .build()
    )
    if ends:
        await outputs(workflow, 3)
    else:
        with pytest.raises(SuperstepLimit):
            await workflow.run(3)
    assert done == [3, 2, 1, 0][:limit]


async def test_sync_functions_do_not_block_the_loop() -> None:
    entered, leave = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    threads = []

    @executor
    def wait(text: str) -> str:
        threads.append(threading.current_thread())
        loop.call_soon_threadsafe(entered.set)
        assert leave.wait(timeout=30)
        return text

    run = await alone(wait).start("x")
    await soon(entered.wait())
    leave.set()
    assert (await soon(run.wait_for_completion())).outputs == ["x"]
    assert threads != [threading.current_thread()]


async def test_sync_functions_run_side_by_side() -> None:
    meeting = threading.Barrier(2, timeout=30)

    class Meet(Executor):
        @handler
        def meet(self, text: str) -> int:
            return meeting.wait()

    targets = [Meet.bind(id="a"), Meet.bind(id="b")]
    workflow = WorkflowBuilder().set_start_executor(exclaim).add_fan_out_edges(exclaim, targets).build()
    assert sorted(await outputs(workflow, "x")) == [0, 1]


async def test_context_variables_reach_sync_functions() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("set")

    @executor
    def look(text: str) -> str:
        return variable.get()

    assert await outputs(alone(look), "x") == ["set"]


async def test_error_of_a_sync_function() -> None:
    @executor
    def divide(number: int) -> float:
        return 1 / number

    with pytest.raises(ExecutorFailed) as caught:
        await alone(divide).run(0)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(("limit", "most"), [(1, 1), (3, 3), (50, 7)])
async def test_concurrent_turns_are_limited(limit: int, most: int) -> None:
    running = 0
    highest = 0

    class Work(Executor):
        @handler
        async def work(self, text: str, ctx: WorkflowContext[Never, str]) -> None:
            nonlocal running, highest
            running += 1
            highest = max(highest, running)
            for _ in range(5):
                await asyncio.sleep(0)
            running -= 1
            await ctx.yield_output(ctx.executor_id)

    targets = [Work.bind(id=str(number)) for number in range(7)]
    builder = WorkflowBuilder(limits=Limits(max_concurrent_turns=limit)).set_start_executor(exclaim)
    workflow = builder.add_fan_out_edges(exclaim, targets).build()
    assert await outputs(workflow, "x") == [str(number) for number in range(7)]
    assert highest == most


async def test_turns_of_one_superstep_run_side_by_side() -> None:
    class Meet(Executor):
        @handler
        async def meet(self, event: str, ctx: WorkflowContext) -> None:
            arrived.append(ctx.executor_id)
            if len(arrived) == 3:
                everyone.set()
            await everyone.wait()

    arrived: list[str] = []
    everyone = asyncio.Event()
    targets = [Meet.bind(id=name) for name in "abc"]
    workflow = WorkflowBuilder().set_start_executor(exclaim).add_fan_out_edges(exclaim, targets).build()
    await outputs(workflow, "x")
    assert sorted(arrived) == ["a", "b", "c"]


# -- the workflow itself ---------------------------------------------------------------------------


def test_run_sync() -> None:
    result = alone(upper).run_sync("a")
    assert (result.outputs, result.status) == (["A"], RunStatus.COMPLETED)


def test_unnamed_workflow_is_named_by_its_start_and_fingerprint() -> None:
    workflow = alone(upper)
    assert workflow.name == f"upper-{workflow.fingerprint[:8]}"
    assert repr(workflow) == f"<Workflow {workflow.name!r} {workflow.fingerprint[:8]}>"


async def test_builder_used_again_does_not_change_what_was_built() -> None:
    builder = WorkflowBuilder(name="First").set_start_executor(upper)
    first = builder.build()
    second = builder.add_edge(upper, exclaim).build()
    assert await outputs(first, "a") == ["A"]
    assert await outputs(second, "a") == ["A!"]


async def test_run_ids_differ() -> None:
    workflow = alone(upper)
    results = [await workflow.run("a") for _ in range(3)]
    assert len({result.run_id for result in results}) == 3


@dataclass
class Job:
    number: int


async def test_many_supersteps_leave_the_loop_to_others() -> None:
    ticks = 0

    @executor
    async def countdown(job: Job) -> Job | None:
        return Job(job.number - 1) if job.number else None

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    workflow = (
        WorkflowBuilder(max_iterations=10_000)
        .set_start_executor(countdown)
        .add_edge(countdown, countdown)
        .build()
    )
    ticker = asyncio.create_task(tick())
    await workflow.run(Job(2_000))
    ticker.cancel()
    assert ticks > 1, "a chain of handlers that never wait let nobody else run"
