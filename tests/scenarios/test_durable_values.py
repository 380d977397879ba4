"""Values of runs that are stored: exact after a resume, and refused where they are sent if they cannot be stored."""

import asyncio
import datetime
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from holdfast import (
    CheckpointStorage,
    Executor,
    ExecutorFailed,
    InvalidArgument,
    LimitExceeded,
    Limits,
    NotCheckpointable,
    StateKey,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    checkpointable,
    executor,
    handler,
    response_handler,
)
from tests.support.durable import Place, info_of_run, outputs_of, watched
from tests.support.modules import encode, stored_form, values
from tests.support.runs import soon


class Color(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Mode(Enum):
    FAST = ("fast", 1)


class Point(NamedTuple):
    x: int
    y: float


@dataclass
class Line:
    start: Point
    end: Point
    color: Color = Color.RED
    tags: set[str] = field(default_factory=set)


@dataclass
class Drawing:
    name: str
    lines: list[Line]
    levels: dict[Level, Mode]
    at: datetime.datetime
    cost: Decimal
    ids: tuple[UUID, ...]


DRAWING = Drawing(
    "one",
    [Line(Point(1, -0.0), Point(2, 1.5), tags={"a"}), Line(Point(0, 0.0), Point(0, 0.0))],
    {Level.HIGH: Mode.FAST},
    datetime.datetime(2026, 3, 29, 2, 30, tzinfo=datetime.UTC),
    Decimal("1.10"),
    (UUID(int=7),),
)

DRAWN = StateKey("drawing", Drawing, scope_name="Drawings")
POINTS = StateKey("points", list[Point])

stopped: list[bool] = []
"""While something is in here, executors raise in their second superstep."""


@pytest.fixture(autouse=True)
def nothing_stopped() -> Any:
    yield
    stopped.clear()


class Draw(Executor):
    """Keeps values in every way there is, and yields them one superstep later."""

    checkpointed = ("last",)

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id)
        self.last: Drawing | None = None

    @handler
    async def draw(self, drawing: Drawing, ctx: WorkflowContext[Any, Any]) -> None:
        self.last = drawing
        await ctx.queue_state_update(DRAWN, drawing)
        await ctx.append_state(POINTS, Point(3, 4.0))
        await ctx.set_shared_state("plain", {1: "int", (2, 3): "tuple", None: b"bytes", "set": {4}})
        await ctx.set_state([drawing])
        await ctx.send_message(drawing.lines)

    @handler
    async def lines(self, lines: list, ctx: WorkflowContext[Any, Any]) -> None:
        if stopped:
            raise RuntimeError("stopped")
        kept = [
            lines,
            self.last,
            await ctx.read_state(DRAWN),
            await ctx.read_state(POINTS),
            await ctx.get_shared_state("plain"),
            await ctx.get_state(),
        ]
        await ctx.yield_output(kept)


def drawing() -> Workflow:
    return WorkflowBuilder(name="Drawing").set_start_executor(Draw).add_edge(Draw, Draw).build()


async def test_values_are_exact_after_a_resume(place: Place) -> None:
    whole = (await soon(drawing().run(DRAWING))).outputs
    stopped.append(True)
    with pytest.raises(ExecutorFailed):
        await soon(drawing().run(DRAWING, run_id="mine", storage=place.storage))
    stopped.clear()
    resumed = await outputs_of(drawing().resume(run_id="mine", storage=await place.reopened()))
    assert resumed == whole
    assert repr(resumed) == repr(whole)  # also -0.0, True and 1, and the classes


async def test_typed_keys_after_a_resume_in_a_checkpoint(place: Place) -> None:
    await soon(drawing().run(DRAWING, run_id="mine", storage=place.storage))
    storage = await place.reopened()
    drawing_again = drawing()
    await drawing_again.resume(
        run_id="mine", storage=storage
    )  # so that the storage knows the types of the workflow
    latest = await storage.get_latest(run_id="mine")
    assert latest is not None
    assert await latest.read_state(DRAWN) == DRAWING
    loaded = await storage.load(latest)
    assert loaded.scopes["Drawings"]["drawing"] == DRAWING
    assert loaded.shared_state["plain"] == {1: "int", (2, 3): "tuple", None: b"bytes", "set": {4}}
    assert loaded.outputs[0][1] == DRAWING


async def test_changing_what_was_read_changes_nothing(storage: CheckpointStorage) -> None:
    class Spoil(Executor):
        @handler
        async def spoil(self, left: int, ctx: WorkflowContext[int, Any]) -> None:
            kept = await ctx.read_state("list", [], scope_name="S")
            if left == 3:
                await ctx.queue_state_update("list", [[1], {"a": 2}], scope_name="S")
            elif left:
                kept.append("spoiled")
                kept[0].append("spoiled")
            else:
                await ctx.yield_output(kept)
            if left:
                await ctx.send_message(left - 1)

    workflow = WorkflowBuilder(name="Spoil").set_start_executor(Spoil).add_edge(Spoil, Spoil).build()
    result = await soon(workflow.run(3, run_id="mine", storage=storage))
    assert result.outputs == [[[1], {"a": 2}]]
    for checkpoint in (await storage.list_checkpoints(run_id="mine"))[1:]:
        assert await outputs_of(workflow.resume(checkpoint, storage=storage)) == [[[1], {"a": 2}]]


# -- what cannot be stored -------------------------------------------------------------------------


class Opaque:
    """Neither declared nor checkpointable, but it can be copied."""

    def __init__(self) -> None:
        self.value = 1


@dataclass
class Row:
    handle: Any


@dataclass
class Table:
    rows: list[Row]


def doing(what: str, value: Any) -> Workflow:
    """A workflow that puts a value somewhere in its first superstep."""

    class Do(Executor):
        checkpointed = ("field",)

        def __init__(self, id: str | None = None) -> None:
            super().__init__(id)
            self.field: Any = None

        @handler
        async def do(self, number: int, ctx: WorkflowContext[Any, Any]) -> Any:
            if what == "send":
                await ctx.send_message(value)
            elif what == "queue":
                await ctx.queue_state_update("key", value)
            elif what == "append":
                await ctx.append_state("key", value, scope_name="S")
            elif what == "yield":
                await ctx.yield_output(value)
            elif what == "set":
                await ctx.set_state(value)
            elif what == "ask":
                await ctx.request_info(value, response_type=int)
            elif what == "field":
                self.field = value
            reached.append(what)
            return value if what == "return" else None

        @response_handler
        async def answered(self, request: object, answer: int, ctx: WorkflowContext[Any, Any]) -> None: ...

    reached.clear()

    @executor(id="next")
    async def after(value: object) -> None: ...

    builder = WorkflowBuilder(name="Doing").set_start_executor(Do)
    if what in ("send", "return"):
        builder.add_edge(Do, after)
    return builder.build()


reached: list[str] = []

PLACES = {
    "send": "message",
    "return": "message",
    "queue": "state 'key'",
    "append": "state 'key'",
    "yield": "output",
    "set": "state",
    "ask": "request",
    "field": "field 'field'",
}


@pytest.mark.parametrize("what", PLACES)
async def test_what_cannot_be_stored_fails_where_it_is_put_with_the_path(
    storage: CheckpointStorage, what: str
) -> None:
    value = {"rows": [1, 2, {"handle": Opaque()}]}
    with pytest.raises(ExecutorFailed) as caught:
        await soon(doing(what, value).run(1, run_id="mine", storage=storage))
    cause = caught.value.__cause__
    assert isinstance(cause, NotCheckpointable)
    assert str(cause).startswith(f"{PLACES[what]}['rows'][2]['handle']: ")
    assert "Opaque" in str(cause)
    # The handler got no further, unless it was over already.
    assert reached == ([what] if what in ("return", "field") else [])
    listed = await info_of_run(storage, "mine")
    assert (listed.status.value, listed.seq) == ("failed", 1)
    assert "Opaque" in listed.reason
    # Without storage nothing has to be stored.
    assert (await soon(doing(what, value).run(1))).status.value in ("completed", "waiting")


@pytest.mark.parametrize(
    "value",
    [threading.Lock(), socket.socket, lambda: 1, asyncio.sleep, iter([1]), (n for n in [1]), object()],
    ids=["lock", "class", "lambda", "function", "iterator", "generator", "object"],
)
async def test_things_that_are_no_data(storage: CheckpointStorage, value: Any) -> None:
    with pytest.raises(ExecutorFailed) as caught:
        await soon(doing("queue", [value]).run(1, storage=storage))
    assert isinstance(caught.value.__cause__, NotCheckpointable)
    assert str(caught.value.__cause__).startswith("state 'key'[0]: ")


async def test_path_through_dataclasses(storage: CheckpointStorage) -> None:
    class Send(Executor):
        @handler
        async def send(self, number: int, ctx: WorkflowContext[Table]) -> None:
            await ctx.send_message(Table([Row(1), Row(2), Row(3), Row(Opaque())]))

    @executor(id="next")
    async def after(table: Table) -> None: ...

    workflow = WorkflowBuilder(name="Send").set_start_executor(Send).add_edge(Send, after).build()
    with pytest.raises(ExecutorFailed) as caught:
        await soon(workflow.run(1, storage=storage))
    assert str(caught.value.__cause__).startswith("message.rows[3].handle: ")
    assert (await soon(workflow.run(1))).status.value == "completed"


async def test_input_that_cannot_be_stored_is_refused_before_anything_is_written(
    storage: CheckpointStorage,
) -> None:
    @executor(id="take")
    async def take(value: object) -> None: ...

    workflow = WorkflowBuilder(name="Take").set_start_executor(take).build()
    with pytest.raises(NotCheckpointable, match=r"\['handle'\]"):
        await workflow.start({"handle": Opaque()}, storage=storage)
    assert await storage.list_runs() == []


async def test_answer_that_cannot_be_stored_is_refused_before_anything_is_written(
    storage: CheckpointStorage,
) -> None:
    class Ask(Executor):
        @handler
        async def ask(self, text: str, ctx: WorkflowContext) -> None:
            await ctx.request_info(text, response_type=object)

        @response_handler
        async def answered(self, text: str, answer: object, ctx: WorkflowContext[None, Any]) -> None:
            await ctx.yield_output(answer)

    workflow = WorkflowBuilder(name="Ask").set_start_executor(Ask).build()
    await soon(workflow.run("?", run_id="mine", storage=storage))
    with pytest.raises(NotCheckpointable):
        await workflow.resume(run_id="mine", storage=storage, responses={"Ask.1.1": [Opaque()]})
    run = await workflow.resume(run_id="mine", storage=storage)
    await soon(run.wait_for_completion())
    with pytest.raises(NotCheckpointable):
        await run.respond({"Ask.1.1": [Opaque()]})
    assert run.status.value == "waiting"
    await run.respond({"Ask.1.1": ["fine"]})
    assert (await soon(run.wait_for_completion())).outputs == [["fine"]]


async def test_handler_may_catch_it_and_go_on(storage: CheckpointStorage) -> None:
    class Careful(Executor):
        @handler
        async def do(self, number: int, ctx: WorkflowContext[None, str]) -> None:
            try:
                await ctx.queue_state_update("key", Opaque())
            except NotCheckpointable:
                await ctx.queue_state_update("key", "a description instead")
            await ctx.yield_output(await ctx.read_state("key"))

    result = await soon(
        WorkflowBuilder(name="Careful").set_start_executor(Careful).build().run(1, storage=storage)
    )
    assert result.outputs == ["a description instead"]


async def test_value_that_is_too_large_says_so(storage: CheckpointStorage) -> None:
    class Large(Executor):
        @handler
        async def do(self, number: int, ctx: WorkflowContext[None, str]) -> None:
            await ctx.queue_state_update("key", ["x" * 5_000])

    workflow = (
        WorkflowBuilder(name="L", limits=Limits(max_value_size=4_000)).set_start_executor(Large).build()
    )
    with pytest.raises(ExecutorFailed) as caught:
        await soon(workflow.run(1, storage=storage))
    assert isinstance(caught.value.__cause__, LimitExceeded)
    assert "state 'key'" in str(caught.value.__cause__)


class Keeps(Executor):
    """Puts what it gets into state."""

    @handler
    async def do(self, value: list | str | bytes, ctx: WorkflowContext[None, int]) -> None:
        await ctx.queue_state_update("key", value, scope_name="S")
        await ctx.yield_output(len(value))


LARGEST = 3_000
AROUND_THE_LARGEST: dict[str, Any] = {
    "ascii": lambda size: "x" * size,
    "euros": lambda size: "€" * (size // 3),
    "emoji": lambda size: "\U0001f600" * (size // 4),
    "surrogates": lambda size: "\ud800" * (size // 3),
    "bytes": lambda size: b"x" * size,
    "in a list": lambda size: ["é" * (size // 4), b"x" * (size // 2)],
}


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in AROUND_THE_LARGEST.items()])
async def test_what_is_acknowledged_can_be_read(
    make: Callable[[int], Any], storage: CheckpointStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (stored_form, values):
        monkeypatch.setattr(module, "LARGEST", LARGEST, raising=False)
    for module in (encode, values):  # so that all of them are blobs
        monkeypatch.setattr(module, "INLINE", 100)
    workflow = WorkflowBuilder(name="K").set_start_executor(Keeps).with_checkpointing(storage).build()
    kept = 0
    for size in (LARGEST // 2, LARGEST - 40, LARGEST - 16, LARGEST, LARGEST + 4, LARGEST * 3):
        value = make(size)
        refused: LimitExceeded | None = None
        try:
            result = await workflow.run(value)
        except LimitExceeded as error:
            refused = error
        if refused is not None:
            assert "of more than 2,984 bytes; keep it outside" in str(refused)
            continue
        kept += 1
        loaded = await storage.get_latest(run_id=result.run_id)
        assert loaded is not None
        assert await loaded.read_state("key", scope_name="S") == value
    assert kept in (2, 3)
    assert (await storage.verify()).ok


async def test_too_much_in_one_checkpoint_fails_the_run(
    storage: CheckpointStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each value is small, but the part of the record that holds all of them is not."""
    monkeypatch.setattr(stored_form, "LARGEST", LARGEST)

    @executor
    async def many(count: int, ctx: WorkflowContext[None, int]) -> None:
        for number in range(count):
            await ctx.queue_state_update(f"key {number}", "x" * 100, scope_name="S")

    workflow = WorkflowBuilder(name="M").set_start_executor(many).with_checkpointing(storage).build()
    await workflow.run(20, run_id="few")
    with pytest.raises(LimitExceeded, match=r"a checkpoint has .* bytes in one piece, more than the 3,000"):
        await workflow.run(40, run_id="many")
    assert (await storage.verify()).ok


@checkpointable(name="durable-own", version=1)
class Own:
    """A class of the user's own that says how it is kept."""

    def __init__(self, value: int = 0) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own) and self.value == other.value

    __hash__ = None  # type: ignore[assignment]


# -- events ----------------------------------------------------------------------------------------


@dataclass
class StoredProgress(WorkflowEvent):
    percent: int = 0
    detail: Any = None


def telling(detail: Any, provisional: bool = False) -> Workflow:
    class Tell(Executor):
        @handler
        async def tell(self, number: int, ctx: WorkflowContext[int, int]) -> None:
            await ctx.add_event(StoredProgress(percent=number, detail=detail, provisional=provisional))
            reached.append("told")
            if number:
                await ctx.send_message(number - 1)
            else:
                await ctx.yield_output(number)

    reached.clear()
    return WorkflowBuilder(name="Telling").set_start_executor(Tell).add_edge(Tell, Tell).build()


async def test_events_of_users_are_stored_with_their_superstep(place: Place) -> None:
    run = await telling({"rows": [1, (2, 3)]}).start(2, storage=place.storage)
    events = [event for event in await watched(run) if isinstance(event, StoredProgress)]
    assert [(event.percent, event.superstep) for event in events] == [(2, 1), (1, 2), (0, 3)]
    sizes = [c.new_bytes for c in await place.storage.list_checkpoints() if c.phase == "end"]
    silent = await telling({"rows": [1, (2, 3)]}, provisional=True).start(2, storage=place.storage)
    await soon(silent.wait_for_completion())
    plain = [
        c.new_bytes for c in await place.storage.list_checkpoints(run_id=silent.run_id) if c.phase == "end"
    ]
    assert all(size > other + 10 for size, other in zip(sizes, plain, strict=True))
    assert (await place.storage.verify()).ok


async def test_event_that_cannot_be_stored_fails_where_it_is_added(storage: CheckpointStorage) -> None:
    with pytest.raises(ExecutorFailed) as caught:
        await soon(telling({"rows": [1, Opaque()]}).run(1, storage=storage))
    assert isinstance(caught.value.__cause__, NotCheckpointable)
    assert str(caught.value.__cause__).startswith("event.detail['rows'][1]: ")
    assert reached == []
    assert (await soon(telling({"rows": [1, Opaque()]}).run(1))).outputs == [0]


async def test_provisional_event_need_not_be_stored(storage: CheckpointStorage) -> None:
    run = await telling(Opaque(), provisional=True).start(0, storage=storage)
    (event,) = [event for event in await watched(run) if isinstance(event, StoredProgress)]
    assert isinstance(event.detail, Opaque)


async def test_own_class_in_messages_state_and_events(place: Place) -> None:
    class Keep(Executor):
        @handler
        async def keep(self, value: object, ctx: WorkflowContext[Any, Any]) -> None:
            await ctx.add_event(StoredProgress(detail=value))
            if stopped and isinstance(value, list):
                raise RuntimeError
            if isinstance(value, list):
                await ctx.yield_output([*value, await ctx.read_state("own")])
            else:
                await ctx.queue_state_update("own", value)
                await ctx.send_message([value])

    def workflow() -> Workflow:
        return WorkflowBuilder(name="Keep").set_start_executor(Keep).add_edge(Keep, Keep).build()

    stopped.append(True)
    with pytest.raises(ExecutorFailed):
        await soon(workflow().run(Own(7), run_id="mine", storage=place.storage))
    stopped.clear()
    outputs = await outputs_of(workflow().resume(run_id="mine", storage=await place.reopened()))
    assert outputs == [[Own(7), Own(7)]]


@pytest.mark.parametrize(("key", "scope"), [("\ud800", "S"), ("k", "\ud800")], ids=["key", "scope"])
async def test_names_with_half_a_character_are_refused_where_they_are_used(key: str, scope: str) -> None:
    class Odd(Executor):
        @handler
        async def go(self, number: int, ctx: WorkflowContext) -> None:
            await ctx.queue_state_update(key, number, scope_name=scope)

    with pytest.raises(ExecutorFailed) as caught:
        await WorkflowBuilder(name="Odd").set_start_executor(Odd).build().run(1)
    assert isinstance(caught.value.__cause__, InvalidArgument)
    assert "half a character" in str(caught.value.__cause__)
