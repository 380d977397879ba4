"""Runs do not share executors by accident: classes, recipes, instances, and fields that nobody keeps."""

import asyncio
import collections
import gc
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest

from holdfast import (
    Executor,
    ExecutorFailed,
    ExecutorShared,
    Run,
    RunStatus,
    UnkeptField,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    executor,
    handler,
    response_handler,
)
from tests.support.parts import ExecutorId, Scope, Snapshot
from tests.support.runs import events_of, soon, warnings_of
from tests.support.runs import outputs_of as outputs


class Counter(Executor):
    """Counts in a field; waits where a test holds it."""

    checkpointed: ClassVar[tuple[str, ...]] = ("count",)

    def __init__(self, id: str | None = None, gate: asyncio.Event | None = None) -> None:
        super().__init__(id)
        self.count = 0

    @handler
    async def take(self, number: int, ctx: WorkflowContext[None, int]) -> None:
        self.count += number
        await asyncio.sleep(0)
        await ctx.yield_output(self.count)


class Resetting(Counter):
    """Can be made ready for the next run."""

    resets = 0

    async def reset(self) -> None:
        await asyncio.sleep(0)
        type(self).resets += 1
        self.count = 0


class Steady(Executor):
    """Has fields and leaves them alone."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id)
        self.table = {"a": [1, 2]}

    @handler
    async def take(self, number: int, ctx: WorkflowContext[None, int]) -> None:
        await asyncio.sleep(0)
        await ctx.yield_output(number + len(self.table))


class Asking(Executor):
    def __init__(self, id: str | None = None) -> None:
        super().__init__(id)

    @handler
    async def ask(self, message: object, ctx: WorkflowContext) -> None:
        await ctx.request_info(message, response_type=str)

    @response_handler
    async def answered(self, message: object, answer: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(answer)


def alone(*placed: Any, name: str = "Alone") -> Workflow:
    builder = WorkflowBuilder(name=name).set_start_executor(placed[0])
    if len(placed) > 1:
        builder.add_chain(list(placed))
    return builder.build()


async def start(workflow: Workflow, message: object) -> None:
    run = await workflow.start(message)
    await soon(run.wait_for_completion())


async def run(workflow: Workflow, message: object) -> None:
    await soon(workflow.run(message))


async def run_stream(workflow: Workflow, message: object) -> None:
    await events_of(workflow, message)


WAYS = pytest.mark.parametrize("way", [start, run, run_stream])


@asynccontextmanager
async def one_running(placed: Executor) -> AsyncIterator[Run]:
    """A run that uses ``placed`` as long as the block lasts; what it is in the middle of is a step before it."""
    gate = asyncio.Event()

    @executor
    async def held(number: int) -> int:
        await gate.wait()
        return number

    running = await alone(held, placed, name="Running").start(1)
    await asyncio.sleep(0)
    try:
        yield running
    finally:
        gate.set()
        await running.close()


# -- a thousand runs at once -----------------------------------------------------------------------


class Collect(Executor):
    """Keeps what it saw in fields of several kinds, and says after three rounds what it has."""

    checkpointed = ("seen", "by_round", "total")

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id)
        self.seen: list[int] = []
        self.by_round: dict[int, int] = {}
        self.total = 0

    @handler
    async def take(self, message: tuple, ctx: WorkflowContext[tuple, Any]) -> None:
        number, left = message
        self.seen.append(number)
        self.by_round[left] = number
        await asyncio.sleep(0)
        self.total += number
        await ctx.append_state("seen", number, scope_name="Shared")
        if left:
            await ctx.send_message((number, left - 1))
        else:
            shared = await ctx.read_state("seen", scope_name="Shared")
            await ctx.yield_output([self.seen, self.by_round, self.total, shared])


def collected(number: int) -> list[Any]:
    return [[number] * 3, dict.fromkeys((2, 1, 0), number), number * 3, [number] * 3]


def collecting(name: str = "Collecting") -> Workflow:
    return WorkflowBuilder(name=name).set_start_executor(Collect).add_edge(Collect, Collect).build()


async def test_a_thousand_runs_at_once() -> None:
    workflow = collecting()
    results = await asyncio.gather(*(workflow.run((number, 2)) for number in range(1000)))
    assert [result.outputs for result in results] == [[collected(number)] for number in range(1000)]
    assert len({result.run_id for result in results}) == 1000


async def test_a_thousand_runs_at_once_with_a_nested_workflow() -> None:
    @executor
    async def twice(message: tuple, ctx: WorkflowContext[tuple]) -> None:
        number, left = message
        await ctx.send_message((number, left))
        await ctx.send_message((number + 10_000, left))

    workflow = alone(twice, WorkflowExecutor(collecting(), id="sub"), name="Outer")
    results = await asyncio.gather(*(workflow.run((number, 2)) for number in range(1000)))
    assert [result.outputs for result in results] == [
        [collected(number), collected(number + 10_000)] for number in range(1000)
    ]


async def test_runs_at_once_that_wait_for_answers() -> None:
    class AskAndKeep(Executor):
        checkpointed = ("asked",)

        def __init__(self, id: str | None = None) -> None:
            super().__init__(id)
            self.asked: list[int] = []

        @handler
        async def ask(self, number: int, ctx: WorkflowContext) -> None:
            self.asked.append(number)
            await ctx.request_info(number, response_type=int)

        @response_handler
        async def answered(self, number: int, answer: int, ctx: WorkflowContext[None, Any]) -> None:
            await ctx.yield_output([*self.asked, answer])

    workflow = alone(AskAndKeep)
    results = await asyncio.gather(*(workflow.run(number) for number in range(100)))
    answered = await asyncio.gather(
        *(
            result.respond({"AskAndKeep.1.1": -number})
            for number, result in reversed(list(enumerate(results)))
        )
    )
    assert [result.outputs for result in reversed(answered)] == [[[n, -n]] for n in range(100)]


# -- classes, recipes, factories -------------------------------------------------------------------


@pytest.mark.parametrize("placed", [Counter, Counter.bind(id="Counter")], ids=["class", "recipe"])
@WAYS
async def test_class_and_recipe_serve_runs_side_by_side(
    placed: Any, way: Callable[[Workflow, object], Any]
) -> None:
    workflow = alone(placed)
    await asyncio.gather(*(way(workflow, 1) for _ in range(5)))
    assert await outputs(workflow, 1) == [1]


async def test_recipe_of_another_workflow() -> None:
    recipe = Counter.bind(id="same")
    first, second = alone(recipe, name="First"), alone(recipe, name="Second")
    assert list(await asyncio.gather(outputs(first, 1), outputs(second, 2))) == [[1], [2]]


# -- instances, one run after the other ------------------------------------------------------------


async def test_instance_whose_fields_are_as_they_were_serves_again() -> None:
    workflow = alone(Steady())
    for number in range(3):
        assert await outputs(workflow, number) == [number + 1]


async def test_instance_with_changed_fields_is_refused() -> None:
    workflow = alone(Counter())
    assert await outputs(workflow, 3) == [3]
    with pytest.raises(ExecutorShared) as caught:
        await workflow.start(3)
    assert str(caught.value) == (
        "Counter.count: 0 -> 3: this instance still has fields of an earlier run; put the class or "
        "Counter.bind(...) in the edges, or define 'async def reset(self)'"
    )


@WAYS
async def test_changed_fields_are_refused_at_start(way: Callable[[Workflow, object], Any]) -> None:
    workflow = alone(Counter())
    await way(workflow, 3)
    with pytest.raises(ExecutorShared, match=r"^Counter\.count: 0 -> 3: "):
        await way(workflow, 3)


def test_stream_is_refused_when_it_is_made() -> None:
    workflow = alone(Counter())
    workflow.run_sync(3)
    with pytest.raises(ExecutorShared):
        workflow.run_stream(3)
    with pytest.raises(ExecutorShared):
        workflow.run_sync(3)


async def test_fields_that_were_put_back_are_as_they_were() -> None:
    counter = Counter()
    workflow = alone(counter)
    await outputs(workflow, 3)
    counter.count = 0
    assert await outputs(workflow, 4) == [4]


async def test_fields_changed_between_build_and_start() -> None:
    """Only what a run leaves behind is refused: before the first run fields may be set."""
    counter = Counter()
    workflow = alone(counter)
    counter.count = 10
    assert await outputs(workflow, 1) == [11]
    with pytest.raises(ExecutorShared, match=r"^Counter\.count: 0 -> 11: "):
        await workflow.start(1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda self: self.table["a"].append(3),
            r"^Changing\.table: \{'a': \[1, 2\]\} -> \{'a': \[1, 2, 3\]\}: ",
        ),
        (lambda self: setattr(self, "new", 1), r"^Changing\.new: absent -> 1: "),
        (lambda self: delattr(self, "table"), r"^Changing\.table: \{'a': \[1, 2\]\} -> absent: "),
        (lambda self: setattr(self, "table", None), r"^Changing\.table: \{'a': \[1, 2\]\} -> None: "),
    ],
    ids=["deep inside", "new", "gone", "another"],
)
async def test_every_change_is_found(change: Callable[[Any], object], message: str) -> None:
    class Changing(Steady):
        @handler
        async def take(self, number: int, ctx: WorkflowContext[None, int]) -> None:
            change(self)

    workflow = alone(Changing())
    await outputs(workflow, 1)
    with pytest.raises(ExecutorShared, match=message):
        await workflow.start(1)


async def test_field_that_is_set_to_an_equal_value_is_as_it_was() -> None:
    class Same(Steady):
        transient = ("table",)

        @handler
        async def take(self, number: int, ctx: WorkflowContext[None, int]) -> None:
            self.table = {"a": [1, 2]}
            await ctx.yield_output(number)

    workflow = alone(Same())
    assert [await outputs(workflow, number) for number in (1, 2)] == [[1], [2]]


async def test_field_that_cannot_be_copied() -> None:
    class Locking(Executor):
        def __init__(self, id: str | None = None) -> None:
            super().__init__(id)
            self.lock = threading.Lock()

        @handler
        async def take(self, number: int, ctx: WorkflowContext[None, int]) -> None:
            with self.lock:
                await ctx.yield_output(number)

    workflow = alone(Locking())
    assert [await outputs(workflow, number) for number in (1, 2)] == [[1], [2]]


async def test_reset_is_awaited_before_the_next_run() -> None:
    Resetting.resets = 0
    instance = Resetting()
    workflow = alone(instance)
    assert [await outputs(workflow, number) for number in (1, 2, 3)] == [[1], [2], [3]]
    assert Resetting.resets == 2, "not before the first"


@WAYS
async def test_reset_in_every_way_to_run(way: Callable[[Workflow, object], Any]) -> None:
    Resetting.resets = 0
    instance = Resetting()
    workflow = alone(instance)
    for _ in range(3):
        await way(workflow, 5)
        assert instance.count == 5
    assert Resetting.resets == 2


async def test_reset_is_not_awaited_for_an_answer() -> None:
    class AskAgain(Asking):
        transient = ("asked",)
        asked = 0

        @handler
        async def ask(self, message: object, ctx: WorkflowContext) -> None:
            self.asked += 1
            await ctx.request_info(message, response_type=str)

        @response_handler
        async def answered(self, message: object, answer: str, ctx: WorkflowContext[None, Any]) -> None:
            await ctx.yield_output((self.asked, answer))

        async def reset(self) -> None:
            self.asked = 0

    workflow = alone(AskAgain())
    for _ in range(2):
        result = await soon(workflow.run("?"))
        result = await soon(result.respond({"AskAgain.1.1": "yes"}))
        assert result.outputs == [(1, "yes")]


def reset_count(self: Any) -> None:
    self.count = 0


def reset_count_to(self: Any, count: int = 0) -> None:
    self.count = count


def reset_soon(self: Any) -> Awaitable[None]:
    async def reset() -> None:
        self.count = 0

    return reset()


@pytest.mark.parametrize("reset", [reset_count, reset_count_to, reset_soon])
async def test_reset_need_not_be_async(reset: Callable[..., Any]) -> None:
    instance: Executor = type("Plain", (Counter,), {"reset": reset})()
    workflow = alone(instance)
    assert [await outputs(workflow, number) for number in (1, 2, 3)] == [[1], [2], [3]]


async def test_class_in_the_edges_may_call_anything_reset() -> None:
    class Clock(Counter):
        def reset(self, hour: int) -> None:
            self.count = hour

        @handler
        async def note(self, word: str, ctx: WorkflowContext[None, int]) -> None:
            self.reset(7)
            await ctx.yield_output(self.count)

    workflow = alone(Clock)
    assert [await outputs(workflow, "now") for _ in range(2)] == [[7], [7]]


async def test_reset_that_fails_fails_the_run() -> None:
    class Stuck(Counter):
        async def reset(self) -> None:
            raise ConnectionError("no way back")

    workflow = alone(Stuck())
    await outputs(workflow, 1)
    with pytest.raises(
        ExecutorFailed, match=r"executor 'Stuck' failed in superstep 1 .*no way back"
    ) as caught:
        await soon(workflow.run(1))
    assert caught.value.__cause__ is not None
    assert caught.value.__cause__.__notes__ == ["in reset() of executor 'Stuck'"]


async def test_transient_fields_may_stay_for_the_next_run() -> None:
    class Cached(Counter):
        checkpointed: ClassVar[tuple[str, ...]] = ()
        transient = ("count",)

    workflow = alone(Cached())
    assert await outputs(workflow, 1) == [1]
    assert await outputs(workflow, 1) == [2]


async def test_instance_in_two_workflows() -> None:
    counter = Counter()
    first, second = alone(counter, name="First"), alone(counter, name="Second")
    assert await outputs(first, 2) == [2]
    with pytest.raises(ExecutorShared, match=r"^Counter\.count: 0 -> 2: "):
        await second.start(1)
    steady = Steady()
    first, second = alone(steady, name="First"), alone(steady, name="Second")
    assert [await outputs(first, 1), await outputs(second, 2)] == [[2], [3]]


# -- instances, runs side by side ------------------------------------------------------------------


@WAYS
async def test_instance_in_use_is_refused_at_start(way: Callable[[Workflow, object], Any]) -> None:
    steady = Steady()
    workflow = alone(steady)
    async with one_running(steady) as other:
        with pytest.raises(ExecutorShared) as caught:
            await way(workflow, 1)
        assert str(caught.value) == (
            f"executor 'Steady' is an instance of Steady that run {other.run_id} uses now; for runs side by side put "
            "the class or Steady.bind(...) in the edges, or say 'shareable = True' if it keeps nothing between "
            "messages"
        )
    await way(workflow, 1)


async def test_reset_does_not_make_an_instance_fit_for_two_runs_at_once() -> None:
    instance = Resetting()
    workflow = alone(instance)
    async with one_running(instance):
        with pytest.raises(ExecutorShared, match="uses now"):
            await workflow.start(1)


async def test_shareable_instance_serves_runs_side_by_side() -> None:
    class Stateless(Executor):
        shareable = True

        @handler
        async def take(self, number: int, ctx: WorkflowContext[None, int]) -> None:
            await asyncio.sleep(0)
            await ctx.yield_output(number)

    workflow = alone(Stateless())
    assert await asyncio.gather(*(outputs(workflow, n) for n in range(20))) == [[n] for n in range(20)]


async def test_refused_start_leaves_other_instances_free() -> None:
    """Also as long as someone holds on to the error."""
    taken, free = Steady("taken"), Steady("free")
    builder = WorkflowBuilder(name="Refused").set_start_executor(relay)
    workflow = builder.add_fan_out_edges(relay, [free, taken]).build()
    async with one_running(taken):
        with pytest.raises(ExecutorShared) as caught:
            await workflow.start(1)
        assert await outputs(alone(free), 1) == [2]
        assert caught.value.__traceback__ is not None


@executor
async def relay(number: int) -> int:
    return number


@executor
async def fail(number: int) -> int:
    raise ValueError("no")


async def test_failed_run_frees_its_instance() -> None:
    steady = Steady()
    failing = await alone(fail, steady, name="Failing").start(1)
    with pytest.raises(ExecutorFailed):
        await soon(failing.wait_for_completion())
    assert failing.status is RunStatus.FAILED
    assert await outputs(alone(steady), 1) == [2]


@pytest.mark.parametrize("leave", [Run.cancel, Run.close])
async def test_run_that_was_left_frees_its_instance(leave: Callable[[Run], Any]) -> None:
    steady = Steady()
    workflow = alone(steady)
    async with one_running(steady) as other:
        with pytest.raises(ExecutorShared):
            await workflow.start(1)
        await leave(other)
        assert other.status.ended
        assert await outputs(workflow, 1) == [2]


async def test_stream_that_was_left_frees_its_instance() -> None:
    steady = Steady()
    workflow = alone(relay, steady)
    left = workflow.run_stream(1)
    async for _ in left:
        break
    await soon(left.run.wait_for_completion())  # Python has the generator closed soon, not at once
    async with workflow.run_stream(1) as stream:
        await anext(stream)
        with pytest.raises(ExecutorShared, match="uses now"):
            await workflow.start(1)
    assert await outputs(workflow, 1) == [2]


async def test_stream_that_was_never_taken_frees_its_instance() -> None:
    workflow = alone(Steady())
    stream = workflow.run_stream(1)
    with pytest.raises(ExecutorShared, match="uses now"):
        await workflow.start(1)
    await stream.aclose()
    assert await outputs(workflow, 1) == [2]
    stream = workflow.run_stream(1)
    del stream
    gc.collect()
    assert await outputs(workflow, 1) == [2]


async def test_waiting_run_keeps_its_instance() -> None:
    workflow = alone(Asking())
    result = await soon(workflow.run("first?"))
    with pytest.raises(ExecutorShared, match=rf"that run {result.run_id} uses now"):
        await workflow.start("second?")
    result = await soon(result.respond({"Asking.1.1": "yes"}))
    assert result.outputs == ["yes"]
    second = await soon(workflow.run("second?"))
    assert second.status is RunStatus.WAITING


async def test_waiting_run_that_is_closed_keeps_its_instance() -> None:
    workflow = alone(Asking())
    waiting = await workflow.start("first?")
    await soon(waiting.wait_for_completion())
    await waiting.close()
    with pytest.raises(ExecutorShared):
        await workflow.start("second?")
    await waiting.cancel()
    await start(workflow, "second?")


async def test_waiting_run_that_is_dropped_frees_its_instance() -> None:
    workflow = alone(Asking())
    result = await soon(workflow.run("first?"))
    assert result.status is RunStatus.WAITING
    del result
    gc.collect()
    second = await soon(workflow.run("second?"))
    assert second.status is RunStatus.WAITING


async def test_runs_of_a_workflow_that_nests_an_instance() -> None:
    """Each delivery is an instance: the error comes when the nested workflow is given something."""
    workflow = alone(relay, WorkflowExecutor(alone(Asking(), name="Inner"), id="sub"), name="Outer")
    first = await soon(workflow.run(1))
    assert first.status is RunStatus.WAITING
    with pytest.raises(ExecutorShared, match=rf"that run {first.run_id} uses now"):
        await soon(workflow.run(2))
    await soon(first.respond({"sub#1/Asking.2.1": "yes"}))
    second = await soon(workflow.run(2))
    assert second.status is RunStatus.WAITING


async def test_instance_outside_and_inside_at_once() -> None:
    steady = Steady()
    inner = alone(steady, name="Inner")
    builder = WorkflowBuilder(name="Outer").set_start_executor(relay)
    workflow = builder.add_fan_out_edges(relay, [steady, WorkflowExecutor(inner, id="sub")]).build()
    with pytest.raises(ExecutorShared, match="is an instance of Steady that run"):
        await soon(workflow.run(1))


# -- fields that nobody keeps ----------------------------------------------------------------------


class Keeping(Executor):
    """Changes its fields; what is declared about them is up to subclasses."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id)
        self.number = 0
        self.items: list[int] = []
        self.table: dict[int, int] = {}
        self.same = [1]

    @handler
    async def take(self, left: int, ctx: WorkflowContext[int, Any]) -> None:
        self.number += 1
        self.items.append(left)
        self.table[left] = left
        if left:
            await ctx.send_message(left - 1)


def keeping(**declared: Any) -> Workflow:
    cls: Any = type("Kept", (Keeping,), declared)
    return WorkflowBuilder(name="Keeping").set_start_executor(cls).add_edge(cls, cls).build()


def warned(field: str) -> str:
    return (
        f"executor 'Kept' changed its field '{field}', which no checkpoint keeps: name it in "
        f"'checkpointed = (\"{field}\",)', save it in on_checkpointing, or, if it can be made anew, "
        f"name it in 'transient'"
    )


async def test_changed_fields_are_warned_of_once_each() -> None:
    warnings = await warnings_of(keeping(), 3)
    assert [(event.superstep, event.executor_id) for event in warnings] == [(1, "Kept")] * 3
    assert all(isinstance(event.warning, UnkeptField) for event in warnings)
    assert [event.message for event in warnings] == [warned("number"), warned("items"), warned("table")]


async def test_warnings_are_in_the_result() -> None:
    result = await soon(keeping().run(3))
    assert [str(warning) for warning in result.warnings] == [warned(f) for f in ("number", "items", "table")]
    again = await soon(keeping().run(0))
    assert len(again.warnings) == 3, "each run is told"


@pytest.mark.parametrize(
    ("declared", "left"),
    [
        ({"checkpointed": ("number",)}, ["items", "table"]),
        ({"transient": ("items",)}, ["number", "table"]),
        ({"checkpointed": ("number", "table"), "transient": ("items",)}, []),
        ({"shareable": True}, []),
    ],
    ids=["checkpointed", "transient", "both", "shareable"],
)
async def test_declared_fields_are_not_warned_of(declared: dict[str, Any], left: list[str]) -> None:
    assert [event.message for event in await warnings_of(keeping(**declared), 3)] == [warned(f) for f in left]


async def test_hook_is_trusted() -> None:
    async def on_checkpointing(self: Any, ctx: WorkflowContext) -> None:
        await ctx.set_state({"number": self.number})

    workflow = keeping(on_checkpointing=on_checkpointing)
    assert await warnings_of(workflow, 3) == []


async def test_field_that_appears_is_warned_of() -> None:
    class Late(Executor):
        @handler
        async def take(self, number: int, ctx: WorkflowContext) -> None:
            self.found = number

    (warning,) = await warnings_of(alone(Late), 1)
    assert "changed its field 'found'" in warning.message


@pytest.mark.parametrize(
    "make", [list, dict, set, bytearray, collections.Counter, lambda: collections.defaultdict(list)]
)
async def test_field_that_grows_in_place_is_warned_of(make: Callable[[], Any]) -> None:
    class Growing(Executor):
        def __init__(self, id: str | None = None) -> None:
            super().__init__(id)
            self.field = make()

        @handler
        async def take(self, left: int, ctx: WorkflowContext[int]) -> None:
            match self.field:
                case list() | bytearray():
                    self.field.append(left)
                case set():
                    self.field.add(left)
                case _:
                    self.field[left] = left
            if left:
                await ctx.send_message(left - 1)

    workflow = WorkflowBuilder(name="Growing").set_start_executor(Growing).add_edge(Growing, Growing).build()
    (warning,) = await warnings_of(workflow, 3)
    assert "executor 'Growing' changed its field 'field'" in warning.message


@pytest.mark.parametrize("declared", [{}, {"transient": ("field",)}], ids=["undeclared", "transient"])
async def test_field_that_becomes_something_else_from_turn_to_turn(declared: dict[str, Any]) -> None:
    class Changing(Executor):
        def __init__(self, id: str | None = None) -> None:
            super().__init__(id)
            self.field: Any = [1]

        @handler
        async def take(self, left: int, ctx: WorkflowContext[int]) -> None:
            self.field = (None, {"a": 1}, 5, [1])[left]
            if left == 1:
                del self.field
            if left:
                await ctx.send_message(left - 1)

    cls: Any = type("Changing", (Changing,), declared)
    workflow = WorkflowBuilder(name="Changing").set_start_executor(cls).add_edge(cls, cls).build()
    assert len(await warnings_of(workflow, 3)) == (0 if declared else 1)


async def test_unchanged_fields_are_not_warned_of() -> None:
    assert await warnings_of(alone(Steady), 1) == []
    assert await warnings_of(alone(Steady()), 1) == []


async def test_instance_is_warned_of_too() -> None:
    class Kept(Keeping):
        pass

    warnings = await warnings_of(alone(Kept()), 0)
    assert [event.message for event in warnings] == [warned(f) for f in ("number", "items", "table")]


async def test_nested_executor_is_warned_of_with_its_path() -> None:
    workflow = alone(WorkflowExecutor(keeping(), id="sub"), name="Outer")
    warnings = await warnings_of(workflow, 2)
    assert [event.executor_id for event in warnings] == ["sub#1/Kept"] * 3
    assert warnings[0].message.startswith("executor 'sub#1/Kept' changed its field 'number'")


# -- fields that are kept --------------------------------------------------------------------------


def kept_fields(snapshot: Snapshot, address: str, path: str = "") -> dict[str, Any]:
    scope = snapshot.state.get(Scope(ExecutorId(address), "fields", path))
    return {} if scope is None else {name: value.load() for name, value in scope.items()}


async def test_checkpointed_fields_are_in_the_state() -> None:
    workflow = keeping(checkpointed=("number", "items", "same"), transient=("table",))
    stream = workflow.run_stream(2)
    seen, snapshots = [], []
    async for event in stream:
        if type(event).__name__ == "SuperStepCompletedEvent":
            snapshots.append(stream.run.snapshot)
            seen.append(kept_fields(snapshots[-1], "Kept"))
    assert seen == [
        {"number": 1, "items": [2], "same": [1]},
        {"number": 2, "items": [2, 1], "same": [1]},
        {"number": 3, "items": [2, 1, 0], "same": [1]},
    ]
    later = [kept_fields(snapshot, "Kept") for snapshot in snapshots]
    assert later == seen, "earlier snapshots do not follow the field"


async def test_field_that_did_not_change_is_not_written_again() -> None:
    workflow = keeping(checkpointed=("same",), transient=("number", "items", "table"))
    updated = []
    async for event in workflow.run_stream(2):
        if type(event).__name__ == "SuperStepCompletedEvent":
            updated.append(event.state_updated)  # type: ignore[attr-defined]
    assert updated == [True, False, False]


async def test_checkpointed_fields_of_a_nested_executor_are_under_its_path() -> None:
    class AskOnce(Asking):
        checkpointed = ("asked",)

        def __init__(self, id: str | None = None) -> None:
            super().__init__(id)
            self.asked = 0

        @handler
        async def ask(self, message: object, ctx: WorkflowContext) -> None:
            self.asked += 1
            await ctx.request_info(message, response_type=str)

    workflow = alone(relay, WorkflowExecutor(alone(AskOnce, name="Inner"), id="sub"), name="Outer")
    run = await workflow.start(1)
    await soon(run.wait_for_completion())
    assert kept_fields(run.snapshot, "sub#1/AskOnce", "sub#1/") == {"asked": 1}
    await run.send_response("sub#1/AskOnce.2.1", "yes")
    await soon(run.wait_for_completion())
    assert dict(run.snapshot.state) == {}


async def test_what_the_hook_writes_belongs_to_the_turn() -> None:
    async def on_checkpointing(self: Any, ctx: WorkflowContext) -> None:
        await ctx.queue_state_update("saved", self.number)

    run = await keeping(on_checkpointing=on_checkpointing).start(2)
    await soon(run.wait_for_completion())
    scope = run.snapshot.state[Scope(ExecutorId("Kept"), "", "")]
    assert {key: value.load() for key, value in scope.items()} == {"saved": 3}


async def test_checkpointed_field_that_is_not_there() -> None:
    with pytest.raises(ExecutorFailed) as caught:
        await soon(keeping(checkpointed=("nothing",)).run(0))
    assert str(caught.value.__cause__) == (
        "executor 'Kept' declares the field 'nothing' as checkpointed, but has none"
    )
