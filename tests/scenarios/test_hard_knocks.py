"""Handlers and values that do what nobody should do."""

import asyncio
import copy
import pickle
import subprocess
import sys
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import (
    Executor,
    ExecutorFailed,
    GraphError,
    RunStatus,
    StateConflict,
    TurnOver,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    WorkflowExecutor,
    WrongType,
    executor,
    handler,
)
from tests.support.complaints import complaints


def alone(placed: Any, name: str = "Alone") -> Workflow:
    return WorkflowBuilder(name=name).set_start_executor(placed).build()


def chained(*placed: Any) -> Workflow:
    return WorkflowBuilder(name="Chained").set_start_executor(placed[0]).add_chain(placed).build()


class Odd(BaseException):
    """Neither an Exception nor meant for the whole program."""


# -- what handlers raise ---------------------------------------------------------------------------


@pytest.mark.parametrize("sync", [False, True])
async def test_exception_of_no_usual_kind_fails_the_run(sync: bool) -> None:
    @executor
    async def later(number: int) -> int:
        raise Odd("no")

    @executor
    def now(number: int) -> int:
        raise Odd("no")

    run = await alone(now if sync else later).start(1)
    with pytest.raises(ExecutorFailed, match=r"Odd\('no'\)"):
        await run.wait_for_completion()
    assert run.status is RunStatus.FAILED


def test_condition_that_raises_no_usual_exception() -> None:
    @executor
    async def step(number: int) -> int:
        return number

    def condition(number: int) -> bool:
        raise Odd("no")

    workflow = WorkflowBuilder().set_start_executor(step).add_edge(step, step, condition=condition).build()
    with pytest.raises(ExecutorFailed, match=r"its condition raised Odd\('no'\)"):
        workflow.run_sync(1)


def test_exit_in_a_handler_ends_the_program_without_noise() -> None:
    program = (
        "import sys\n"
        "from holdfast import WorkflowBuilder, executor\n"
        "@executor\n"
        "async def leave(number: int) -> int: sys.exit(3)\n"
        "WorkflowBuilder().set_start_executor(leave).build().run_sync(1)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-c", program], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, complaints(ended.stderr)) == (3, [])


def test_exception_whose_repr_raises() -> None:
    class Mute(Exception):
        def __repr__(self) -> str:
            raise ValueError("no words")

    @executor
    async def fail(number: int) -> int:
        raise Mute

    with pytest.raises(ExecutorFailed, match="repr failed") as caught:
        alone(fail).run_sync(1)
    assert isinstance(caught.value.__cause__, Mute)


def test_constructor_that_raises_names_the_executor() -> None:
    class Broken(Executor):
        def __init__(self) -> None:
            raise OSError("no disk")

        @handler
        async def work(self, number: int) -> int:
            return number

    with pytest.raises(ExecutorFailed, match=r"^executor 'Broken' could not be created .*no disk"):
        alone(Broken).run_sync(1)


def test_error_of_run_sync_has_no_other_error_before_it() -> None:
    @executor
    async def step(number: int) -> int:
        return number

    with pytest.raises(WrongType) as caught:
        alone(step).run_sync("text")
    assert caught.value.__context__ is None


async def test_task_that_a_handler_left_cancelled_does_not_stop_the_run() -> None:
    @executor
    async def legacy(number: int) -> int:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            pass
        return number

    @executor
    async def later(number: int) -> int:
        task = asyncio.create_task(asyncio.sleep(1))
        task.cancel()
        await task
        return number

    with pytest.raises(ExecutorFailed, match="executor 'later' failed"):
        await chained(legacy, later).run(1)


# -- contexts and events ---------------------------------------------------------------------------


@pytest.mark.parametrize("slow_sibling", [False, True])
async def test_context_is_closed_when_its_turn_is_over(slow_sibling: bool) -> None:
    errors: list[Exception] = []
    tasks: list[asyncio.Task[None]] = []
    ended = asyncio.Event()

    @executor
    async def start(number: int) -> int:
        return number

    @executor
    async def hasty(number: int, ctx: WorkflowContext[int]) -> None:
        async def late() -> None:
            await asyncio.sleep(0)
            for call in (
                ctx.send_message(42),
                ctx.yield_output(42),
                ctx.queue_state_update("key", 42),
                ctx.read_state("key"),
                ctx.request_info(42, response_type=int, request_id="x"),
                ctx.add_event(WorkflowEvent()),
            ):
                try:
                    await call
                except Exception as error:
                    errors.append(error)
            ended.set()

        tasks.append(asyncio.create_task(late()))

    @executor
    async def slow(number: int) -> None:
        if slow_sibling:
            await ended.wait()

    builder = WorkflowBuilder().set_start_executor(start).add_fan_out_edges(start, [hasty, slow])
    result = await builder.build().run(1)
    await tasks[0]
    assert [type(error) for error in errors] == [TurnOver, TurnOver, TurnOver, TurnOver, GraphError, TurnOver]
    assert str(errors[0]).startswith(
        "the context of executor 'hasty' was used after its turn in superstep 2; "
    )
    assert (result.outputs, result.pending_requests, result.warnings) == ([], [], [])


async def test_event_that_is_added_again_and_again_stays_the_users() -> None:
    @dataclass
    class Tick(WorkflowEvent):
        number: int = 0

    tick = Tick(7)

    @executor
    async def count(number: int, ctx: WorkflowContext[int]) -> int | None:
        await ctx.add_event(tick)
        return number - 1 if number else None

    workflow = WorkflowBuilder().set_start_executor(count).add_edge(count, count).build()
    seen = [event async for event in workflow.run_stream(2) if isinstance(event, Tick)]
    assert [event.superstep for event in seen] == [1, 2, 3]
    assert tick.superstep == 0


# -- values ----------------------------------------------------------------------------------------


class NotFound(Exception):
    def __init__(self, name: str) -> None:
        super().__init__(f"no {name}")


def test_exception_arrives_as_it_was() -> None:
    @executor
    async def make(number: int) -> NotFound:
        return NotFound("kelp")

    @executor
    async def read(error: NotFound) -> str:
        return str(error)

    assert chained(make, read).run_sync(1).outputs == ["no kelp"]


class Tagged(namedtuple("Tagged", "x")):
    pass


def test_tuple_with_fields_of_its_own_is_not_shared() -> None:
    @executor
    async def make(number: int) -> Tagged:
        tagged = Tagged(1)
        tagged.cache = [1]  # type: ignore[attr-defined]
        return tagged

    def reader(name: str) -> Any:
        @executor(id=name)
        async def read(tagged: Tagged) -> int:
            tagged.cache.append(2)  # type: ignore[attr-defined]
            return len(tagged.cache)  # type: ignore[attr-defined]

        return read

    builder = WorkflowBuilder().set_start_executor(make).add_fan_out_edges(make, [reader("b"), reader("c")])
    assert builder.build().run_sync(1).outputs == [2, 2]


class Slotted:
    __slots__ = ("__hidden", "seen")

    def __init__(self, hidden: int) -> None:
        self.__hidden = hidden
        self.seen = 0

    def hidden(self) -> int:
        return self.__hidden


def test_private_slots_are_copied() -> None:
    @executor
    async def make(number: int) -> Slotted:
        return Slotted(5)

    @executor
    async def read(slotted: Slotted) -> int:
        return slotted.hidden()

    assert chained(make, read).run_sync(1).outputs == [5]


# -- errors as values ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))], ids=["copy", "pickle"]
)
def test_errors_survive_copying_and_pickling(again: Any) -> None:
    @executor
    async def fail(number: int) -> int:
        raise ValueError("no")

    with pytest.raises(ExecutorFailed) as caught:
        alone(fail).run_sync(1)
    twin = again(caught.value)
    assert (str(twin), twin.executor_id, twin.superstep) == (str(caught.value), "fail", 1)
    conflict = StateConflict("both", scope_name="S", key="k", executor_ids=())
    assert again(conflict).key == "k"


# -- declarations ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["checkpointed", "transient"])
def test_name_instead_of_a_tuple_of_names(name: str) -> None:
    work = handler(input=int)(lambda self, number: number)
    slip = type("Slip", (Executor,), {name: "count", "work": work})
    with pytest.raises(
        GraphError, match=rf"^executor 'Slip': {name} must be a tuple of names, .*with the comma$"
    ):
        alone(slip)


def test_generators_are_no_handlers() -> None:
    with pytest.raises(GraphError, match=r"^executor 'numbers' is a generator; give values out with"):

        @executor
        async def numbers(number: int) -> Any:
            yield number


def test_instance_that_says_itself_that_it_is_shareable() -> None:
    class Own(Executor):
        def __init__(self) -> None:
            super().__init__()
            self.shareable = True  # type: ignore[misc]

        @handler
        async def work(self, number: int) -> int:
            return number

    outer = alone(WorkflowExecutor(alone(Own(), "Inner"), id="nested"), "Outer")
    assert outer.run_sync(1).outputs == [1]
