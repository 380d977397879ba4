"""What executors keep across a resume: hooks, declared fields, instances, nested workflows and fan-ins."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import (
    CheckpointStorage,
    Executor,
    ExecutorFailed,
    ExecutorShared,
    GraphError,
    InMemoryCheckpointStorage,
    InvalidResponse,
    RetryPolicy,
    RunStatus,
    SuperStepStartedEvent,
    UnkeptField,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    executor,
    handler,
    response_handler,
)
from holdfast.testing import assert_resumable
from tests.support.durable import Place, everything, info_of_run, outputs_of, watched
from tests.support.runs import soon


class Broken(Exception):
    """What handlers raise on purpose."""


broken: list[int] = []
"""The numbers at which executors raise; each test that puts some here takes them away."""


@pytest.fixture(autouse=True)
def nothing_broken() -> Any:
    yield
    broken.clear()


class Kept(Executor):
    """Counts down; its fields are declared."""

    checkpointed = ("seen", "total")
    transient = ("cache",)

    def __init__(self, id: str | None = None, start: int = 0) -> None:
        super().__init__(id)
        self.start = start
        self.seen: list[int] = []
        self.total = start
        self.cache: dict[str, int] = {}

    @handler
    async def count(self, left: int, ctx: WorkflowContext[int, Any]) -> None:
        self.seen.append(left)
        self.total += left
        self.cache["last"] = left
        if left in broken:
            raise Broken
        if left:
            await ctx.send_message(left - 1)
        else:
            await ctx.yield_output((self.seen, self.total, self.start))


class Hooked(Executor):
    """The same with the two hooks."""

    def __init__(self, id: str | None = None, start: int = 0) -> None:
        super().__init__(id)
        self.start = start
        self.seen: list[int] = []
        self.total = start

    @handler
    async def count(self, left: int, ctx: WorkflowContext[int, Any]) -> None:
        self.seen.append(left)
        self.total += left
        if left in broken:
            raise Broken
        if left:
            await ctx.append_state("own", left)
            await ctx.send_message(left - 1)
        else:
            await ctx.yield_output((self.seen, self.total, self.start))

    async def on_checkpointing(self, ctx: WorkflowContext[Any, Any]) -> None:
        await ctx.set_state({"seen": self.seen, "total": self.total})

    async def on_checkpoint_restored(self, ctx: WorkflowContext[Any, Any]) -> None:
        state = await ctx.get_state()
        self.seen, self.total = state["seen"], state["total"]


def looping(placed: Any, name: str = "Loop") -> Workflow:
    return WorkflowBuilder(name=name).set_start_executor(placed).add_edge(placed, placed).build()


async def fails(
    workflow: Workflow, message: object, storage: CheckpointStorage, run_id: str = "mine"
) -> ExecutorFailed:
    with pytest.raises(ExecutorFailed) as caught:
        await soon(workflow.run(message, run_id=run_id, storage=storage))
    return caught.value


# -- fields ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [Kept, Hooked])
@pytest.mark.parametrize("how", ["class", "recipe", "instance"])
async def test_fields_survive(place: Place, cls: Any, how: str) -> None:
    """In a workflow that is built anew, as another process would build it."""
    ways: dict[str, Callable[[], Any]] = {
        "class": lambda: cls,
        "recipe": lambda: cls.bind(id="one", start=10),
        "instance": lambda: cls("one", 10),
    }
    broken.append(1)
    await fails(looping(ways[how]()), 3, place.storage)
    broken.clear()
    outputs = await outputs_of(looping(ways[how]()).resume(run_id="mine", storage=await place.reopened()))
    start = 0 if how == "class" else 10
    assert outputs == [([3, 2, 1, 0], 6 + start, start)]


@pytest.mark.parametrize("cls", [Kept, Hooked])
async def test_same_instance_resumed_in_the_same_process_is_not_shared(
    storage: CheckpointStorage, cls: Any
) -> None:
    instance = cls("one", 10)
    workflow = looping(instance)
    broken.append(1)
    await fails(workflow, 3, storage)
    for _ in range(2):
        with pytest.raises(ExecutorFailed):
            await outputs_of(workflow.resume(run_id="mine", storage=storage))
    broken.clear()
    assert await outputs_of(workflow.resume(run_id="mine", storage=storage)) == [([3, 2, 1, 0], 16, 10)]


async def test_same_instance_goes_back_to_each_checkpoint(storage: CheckpointStorage) -> None:
    workflow = looping(Kept("one"))
    await soon(workflow.run(3, run_id="mine", storage=storage))
    for checkpoint in await storage.list_checkpoints(run_id="mine"):
        outputs = await outputs_of(workflow.resume(checkpoint, storage=storage))
        assert outputs == [([3, 2, 1, 0], 6, 0)], checkpoint


async def test_instance_that_another_run_left_its_traces_in_is_refused(storage: CheckpointStorage) -> None:
    workflow = looping(Kept("one"))
    broken.append(1)
    await fails(workflow, 3, storage, "first")
    broken.clear()
    with pytest.raises(ExecutorShared, match=r"Kept.seen: \[\] -> "):
        await workflow.start(3, run_id="second", storage=storage)
    assert [run.run_id for run in await storage.list_runs()] == ["first"]
    assert await outputs_of(workflow.resume(run_id="first", storage=storage)) == [([3, 2, 1, 0], 6, 0)]


class AskKept(Executor):
    checkpointed = ("asked",)

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id)
        self.asked: list[str] = []

    @handler
    async def ask(self, text: str, ctx: WorkflowContext) -> None:
        self.asked.append(text)
        await ctx.request_info(text, response_type=int)

    @response_handler
    async def answered(self, text: str, number: int, ctx: WorkflowContext[str, Any]) -> None:
        if number:
            await ctx.send_message(text + "!")
        else:
            await ctx.yield_output(self.asked)


async def test_waiting_run_that_is_still_held_can_be_resumed(storage: CheckpointStorage) -> None:
    """A waiting run has no owner: its instances are free for whoever goes on with it."""
    workflow = looping(AskKept("ask"))
    result = await soon(workflow.run("a", run_id="mine", storage=storage))
    assert result.status is RunStatus.WAITING
    run = await workflow.resume(run_id="mine", storage=storage, responses={"ask.1.1": 1})
    result = await soon(run.wait_for_completion())
    run = await workflow.resume(run_id="mine", storage=storage, responses={"ask.3.1": 0})
    assert (await soon(run.wait_for_completion())).outputs == [["a", "a!"]]


async def test_instances_are_free_again_after_answers_that_are_refused(storage: CheckpointStorage) -> None:
    workflow = looping(AskKept("ask"))
    await soon(workflow.run("a", run_id="mine", storage=storage))
    with pytest.raises(
        InvalidResponse
    ) as kept:  # its traceback is kept, and with it all that stands in its frames
        await workflow.resume(run_id="mine", storage=storage, responses={"ask.1.1": "many"})
    outputs = await outputs_of(workflow.resume(run_id="mine", storage=storage, responses={"ask.1.1": 0}))
    assert outputs == [["a"]]
    assert kept is not None


async def test_fields_of_a_failed_turn_are_not_kept(storage: CheckpointStorage) -> None:
    broken.append(2)
    failure = await fails(looping(Kept), 3, storage)
    loaded = await storage.load(failure.checkpoint)
    assert {name: loaded.executor_states["Kept"][name] for name in ("seen", "total")} == {
        "seen": [3],
        "total": 3,
    }


async def test_transient_fields_are_made_anew(place: Place) -> None:
    caches: list[dict[str, int]] = []

    class Cached(Executor):
        transient = ("cache",)

        def __init__(self, id: str | None = None) -> None:
            super().__init__(id)
            self.cache: dict[str, int] = {}

        @handler
        async def count(self, left: int, ctx: WorkflowContext[int, int]) -> None:
            caches.append(dict(self.cache))
            self.cache[str(left)] = left
            if left in broken:
                raise Broken
            if left:
                await ctx.send_message(left - 1)
            else:
                await ctx.yield_output(left)

    broken.append(1)
    await fails(looping(Cached), 2, place.storage)
    broken.clear()
    run = await looping(Cached).resume(run_id="mine", storage=await place.reopened())
    result = await soon(run.wait_for_completion())
    assert caches == [{}, {"2": 2}, {}, {"1": 1}]
    assert result.warnings == []


async def test_undeclared_field_warns(storage: CheckpointStorage) -> None:
    class Careless(Executor):
        def __init__(self, id: str | None = None) -> None:
            super().__init__(id)
            self.count = 0

        @handler
        async def work(self, left: int, ctx: WorkflowContext[None, int]) -> int:
            self.count += 1
            return self.count

    result = await soon(
        WorkflowBuilder(name="C").set_start_executor(Careless).build().run(1, storage=storage)
    )
    assert [type(warning) for warning in result.warnings] == [UnkeptField]


async def test_declared_field_that_cannot_be_stored_says_where(storage: CheckpointStorage) -> None:
    class Holding(Executor):
        checkpointed = ("handle",)

        def __init__(self, id: str | None = None) -> None:
            super().__init__(id)
            self.handle: Any = None

        @handler
        async def work(self, left: int, ctx: WorkflowContext[None, int]) -> int:
            self.handle = {"rows": [1, object()]}
            return 1

    failure = await fails(WorkflowBuilder(name="H").set_start_executor(Holding).build(), 1, storage)
    assert "field 'handle'" in str(failure)
    assert "rows" in str(failure.__cause__)
    assert "[1]" in str(failure.__cause__)


# -- hooks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["send", "queue", "append", "clear", "yield", "set"])
async def test_on_checkpoint_restored_may_only_read(storage: CheckpointStorage, what: str) -> None:
    writes: list[bool] = []

    class Writing(Hooked):
        async def on_checkpoint_restored(self, ctx: WorkflowContext[Any, Any]) -> None:
            await super().on_checkpoint_restored(ctx)
            if not writes:
                return
            calls: dict[str, Callable[[], Any]] = {
                "send": lambda: ctx.send_message(1),
                "queue": lambda: ctx.queue_state_update("k", 1),
                "append": lambda: ctx.append_state("k", 1, scope_name="S"),
                "clear": lambda: ctx.clear_state("own"),
                "yield": lambda: ctx.yield_output(1),
                "set": lambda: ctx.set_state(1),
            }
            await calls[what]()

    broken.append(1)
    workflow = looping(Writing.bind(id="one"))
    await fails(workflow, 2, storage)
    before = (await everything(storage, "mine"))[1]
    writes.append(True)
    with pytest.raises(ExecutorFailed, match="'one' could not be restored") as caught:
        await outputs_of(workflow.resume(run_id="mine", storage=storage))
    cause = caught.value.__cause__
    assert isinstance(cause, GraphError)
    assert "on_checkpoint_restored of executor 'one' sent or wrote something; it may only read" in str(cause)
    assert (await everything(storage, "mine"))[1] == before
    broken.clear()
    writes.clear()
    assert await outputs_of(workflow.resume(run_id="mine", storage=storage)) == [([2, 1, 0], 3, 0)]


async def test_on_checkpoint_restored_that_raises_leaves_the_run_resumable(place: Place) -> None:
    class Choosy(Hooked):
        async def on_checkpoint_restored(self, ctx: WorkflowContext[Any, Any]) -> None:
            if 99 in broken:
                raise Broken("not today")
            await super().on_checkpoint_restored(ctx)

    workflow = looping(Choosy.bind(id="one"))
    broken.extend([1, 99])
    await fails(workflow, 2, place.storage)
    with pytest.raises(ExecutorFailed, match=r"'one' could not be restored.*not today") as caught:
        await outputs_of(workflow.resume(run_id="mine", storage=place.storage))
    assert getattr(caught.value.__cause__, "__notes__", None) == [
        "in on_checkpoint_restored() of executor 'one'"
    ]
    assert caught.value.checkpoint is not None
    broken.clear()
    storage = await place.reopened()
    assert (await info_of_run(storage, "mine")).status is RunStatus.FAILED
    assert await outputs_of(workflow.resume(run_id="mine", storage=storage)) == [([2, 1, 0], 3, 0)]


async def test_hooks_read_any_scope_and_see_the_last_barrier(storage: CheckpointStorage) -> None:
    seen: list[Any] = []

    class Looking(Executor):
        @handler
        async def count(self, left: int, ctx: WorkflowContext[int, int]) -> None:
            await ctx.queue_state_update("left", left, scope_name="Shared")
            await ctx.queue_state_update("own", left)
            if left in broken:
                raise Broken
            if left:
                await ctx.send_message(left - 1)
            else:
                await ctx.yield_output(left)

        async def on_checkpoint_restored(self, ctx: WorkflowContext[Any, Any]) -> None:
            seen.append(await ctx.read_state("left", scope_name="Shared"))
            seen.append(await ctx.read_state("own"))
            seen.append((ctx.run_id, ctx.superstep, await ctx.read_state_keys()))

    broken.append(1)
    await fails(looping(Looking), 3, storage)
    broken.clear()
    assert await outputs_of(looping(Looking).resume(run_id="mine", storage=storage)) == [0]
    assert seen == [2, 2, ("mine", 3, ["own"])]


async def test_hook_runs_once_per_resume_and_not_at_the_start(storage: CheckpointStorage) -> None:
    restored: list[int] = []

    class Counting(Hooked):
        async def on_checkpoint_restored(self, ctx: WorkflowContext[Any, Any]) -> None:
            restored.append(ctx.superstep)
            await super().on_checkpoint_restored(ctx)

    broken.append(1)
    workflow = looping(Counting)
    await fails(workflow, 4, storage)
    assert restored == []
    broken.clear()
    await outputs_of(workflow.resume(run_id="mine", storage=storage))
    assert restored == [4]
    await outputs_of(workflow.resume(run_id="mine", storage=storage))  # finished: nobody has a turn
    assert restored == [4]


async def test_hook_of_a_waiting_run_runs_when_it_is_answered(storage: CheckpointStorage) -> None:
    restored: list[int] = []

    class Hook(AskKept):
        async def on_checkpoint_restored(self, ctx: WorkflowContext[Any, Any]) -> None:
            restored.append(len(self.asked))

    await soon(looping(Hook.bind(id="ask")).run("a", run_id="mine", storage=storage))
    run = await looping(Hook.bind(id="ask")).resume(run_id="mine", storage=storage)
    assert (await soon(run.wait_for_completion())).status is RunStatus.WAITING
    await run.send_response("ask.1.1", 0)
    assert (await soon(run.wait_for_completion())).outputs == [["a"]]
    assert restored == [1]


async def test_restored_fields_are_there_before_the_retry_copies_them(storage: CheckpointStorage) -> None:
    attempts: list[int] = []

    class Flaky(Kept):
        @handler(retry=RetryPolicy(attempts=2, backoff=0))
        async def count(self, left: int, ctx: WorkflowContext[int, Any]) -> None:
            self.seen.append(left)
            if left in broken:
                raise Broken
            attempts.append(ctx.attempt)
            if left == 1 and ctx.attempt == 1:
                raise Broken
            if left:
                await ctx.send_message(left - 1)
            else:
                await ctx.yield_output(self.seen)

    broken.append(1)
    await fails(looping(Flaky), 2, storage)
    broken.clear()
    assert await outputs_of(looping(Flaky).resume(run_id="mine", storage=storage)) == [[2, 1, 0]]
    assert attempts == [1, 1, 2, 1]


# -- nested workflows ------------------------------------------------------------------------------


class Inner(Executor):
    """Asks once on its way down, keeps what it saw in a field, private state and a scope."""

    checkpointed = ("seen",)

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id)
        self.seen: list[int] = []

    @handler
    async def count(self, left: int, ctx: WorkflowContext[int, Any]) -> None:
        self.seen.append(left)
        await ctx.append_state("own", left)
        await ctx.append_state("all", left, scope_name="Inner")
        if left in broken:
            raise Broken
        if left == 2:
            await ctx.request_info(left, response_type=int)
        elif left:
            await ctx.send_message(left - 1)
        else:
            await ctx.yield_output(
                [self.seen, await ctx.read_state("own"), await ctx.read_state("all", scope_name="Inner")]
            )

    @response_handler
    async def answered(self, left: int, answer: int, ctx: WorkflowContext[int, Any]) -> None:
        await ctx.send_message(left - 1)


def nested(make: Callable[[], Any] = lambda: Inner.bind(id="inner"), depth: int = 1) -> Workflow:
    inner = make()
    workflow = WorkflowBuilder(name="Inner").set_start_executor(inner).add_edge(inner, inner).build()
    for level in range(depth):
        nest = WorkflowExecutor(workflow, id=f"nest{level}")
        workflow = WorkflowBuilder(name=f"Outer{level}").set_start_executor(nest).build()
    return workflow


EXPECTED = [[[3, 2, 1, 0], [3, 2, 1, 0], [3, 2, 1, 0]]]


@pytest.mark.parametrize("depth", [1, 3])
async def test_nested_workflow_goes_on_in_the_middle(place: Place, depth: int) -> None:
    broken.append(1)
    result = await soon(nested(depth=depth).run(3, run_id="mine", storage=place.storage))
    (request,) = result.pending_requests
    assert request.request_id.endswith("inner.2.1")
    storage = await place.reopened()
    with pytest.raises(ExecutorFailed) as caught:
        await outputs_of(
            nested(depth=depth).resume(run_id="mine", storage=storage, responses={str(request.request_id): 1})
        )
    assert caught.value.executor_id.endswith("/inner")
    broken.clear()
    run = await nested(depth=depth).resume(run_id="mine", storage=await place.reopened())
    events = await watched(run)
    assert (await run.wait_for_completion()).outputs == EXPECTED
    assert [e.superstep for e in events if isinstance(e, SuperStepStartedEvent)] == [4, 5]
    assert (await place.storage.verify()).ok


async def test_nested_instance_resumed_in_the_same_process_is_not_shared(storage: CheckpointStorage) -> None:
    workflow = nested(lambda: Inner("inner"))
    broken.append(3)
    await fails(workflow, 3, storage)
    broken[:] = [1]
    result = await soon((await workflow.resume(run_id="mine", storage=storage)).wait_for_completion())
    (request,) = result.pending_requests
    await result._run.close()  # type: ignore[union-attr]
    del result
    with pytest.raises(ExecutorFailed):
        await outputs_of(
            workflow.resume(run_id="mine", storage=storage, responses={str(request.request_id): 1})
        )
    broken.clear()
    assert await outputs_of(workflow.resume(run_id="mine", storage=storage)) == EXPECTED


async def test_several_instances_of_one_nested_workflow(place: Place) -> None:
    """Each delivery has its own, with state, fields and requests of its own."""

    @executor(id="start")
    async def start(count: int, ctx: WorkflowContext[int]) -> None:
        for _ in range(count):
            await ctx.send_message(3)

    def workflow() -> Workflow:
        inner = Inner.bind(id="inner")
        sub = WorkflowBuilder(name="Inner").set_start_executor(inner).add_edge(inner, inner).build()
        nest = WorkflowExecutor(sub, id="nest")
        return WorkflowBuilder(name="Outer").set_start_executor(start).add_edge(start, nest).build()

    result = await soon(workflow().run(3, run_id="mine", storage=place.storage))
    asked = [str(request.request_id) for request in result.pending_requests]
    assert len(asked) == 3
    for request_id in asked[::-1]:
        storage = await place.reopened()
        run = await workflow().resume(run_id="mine", storage=storage, responses={request_id: 1})
        result = await soon(run.wait_for_completion())
    assert result.outputs == EXPECTED * 3


async def test_nested_workflow_is_resumable_everywhere() -> None:
    assert await assert_resumable(lambda: nested(depth=2), 3, answer=lambda request: 1) > 10


# -- fan-ins ---------------------------------------------------------------------------------------


@dataclass
class Piece:
    name: str
    parts: list[int]


@executor(id="split")
async def split(text: str) -> str:
    return text


class Late(Executor):
    """Passes a piece on after some supersteps."""

    def __init__(self, id: str, supersteps: int) -> None:
        super().__init__(id)
        self.supersteps = supersteps

    @handler
    async def begin(self, text: str, ctx: WorkflowContext[int | Piece]) -> None:
        await ctx.send_message(
            self.supersteps, target_id=str(self.id)
        ) if self.supersteps else await self.end(ctx)

    @handler
    async def go_on(self, left: int, ctx: WorkflowContext[int | Piece]) -> None:
        if self.id == "late" and left in broken:
            raise Broken
        await ctx.send_message(left - 1, target_id=str(self.id)) if left else await self.end(ctx)

    async def end(self, ctx: WorkflowContext[int | Piece]) -> None:
        await ctx.send_message(Piece(str(self.id), [self.supersteps]), target_id="join")


@executor(id="join")
async def join(pieces: list[Piece]) -> list:
    return [[piece.name, piece.parts] for piece in pieces]


def joining() -> Workflow:
    late = [Late.bind(id="soon", supersteps=0), Late.bind(id="late", supersteps=3)]
    builder = WorkflowBuilder(name="Joining").set_start_executor(split).add_fan_out_edges(split, late)
    for one in late:
        builder.add_edge(one, one, condition=lambda message: isinstance(message, int))
    return builder.add_fan_in_edges(late, join).build()


async def test_fan_in_keeps_what_it_holds(place: Place) -> None:
    broken.append(1)
    await fails(joining(), "x", place.storage)
    broken.clear()
    outputs = await outputs_of(joining().resume(run_id="mine", storage=await place.reopened()))
    assert outputs == [[["soon", [0]], ["late", [3]]]]


async def test_fan_in_is_resumable_everywhere() -> None:
    assert await assert_resumable(joining, "x") > 10


@dataclass(repr=False)
class Opaque:
    """Shows itself by where it lies in memory."""

    text: str


async def test_where_an_object_lies_in_memory_is_no_difference() -> None:
    """A warning shows the message that no edge takes, as its class shows it."""

    @executor
    async def first(text: str, ctx: WorkflowContext[Opaque | str]) -> None:
        await ctx.send_message(Opaque(text))
        await ctx.send_message(text)

    @executor
    def last(text: str) -> str:
        return text

    def make() -> Workflow:
        return WorkflowBuilder(name="Opaque").set_start_executor(first).add_edge(first, last).build()

    result = await make().run("x", storage=InMemoryCheckpointStorage())
    assert "Opaque object at 0x" in str(result.warnings[0])
    assert await assert_resumable(make, "x") > 5


def paying() -> Workflow:
    """The key stands in state, in an event, in a question and in an output."""

    class Pay(Executor):
        @handler
        async def pay(self, amount: int, ctx: WorkflowContext) -> None:
            await ctx.queue_state_update("receipt", f"receipt {ctx.idempotency_key}", scope_name="Paid")
            await ctx.set_state({"receipt": f"receipt {ctx.idempotency_key}"})
            await ctx.request_info(f"receipt {ctx.idempotency_key}", response_type=int)

        @response_handler
        async def paid(self, asked: str, amount: int, ctx: WorkflowContext[None, str]) -> None:
            await ctx.yield_output(asked)

    return WorkflowBuilder(name="Paying").set_start_executor(Pay).build()


async def test_what_derives_from_an_idempotency_key_can_be_left_out() -> None:
    def without_key(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: without_key(part) for name, part in value.items()}
        return "a receipt" if isinstance(value, str) and value.startswith("receipt ") else value

    with pytest.raises(AssertionError, match="outputs are"):
        await assert_resumable(paying, 20, answer=lambda request: 1)
    assert await assert_resumable(paying, 20, answer=lambda request: 1, normalize=without_key) > 5


async def test_what_is_left_out_is_only_what_is_named() -> None:
    """A workflow that forgets is found though other values are normalized."""

    class Forgetting(Executor):
        def __init__(self) -> None:
            super().__init__()
            self.seen = 0

        @handler
        async def count(self, number: int, ctx: WorkflowContext[int, dict[str, Any]]) -> None:
            self.seen += 1
            if number < 3:
                await ctx.send_message(number + 1)
            else:
                await ctx.yield_output({"seen": self.seen, "key": ctx.idempotency_key})

    def make() -> Workflow:
        builder = WorkflowBuilder(name="Forgetting").set_start_executor(Forgetting)
        return builder.add_edge(Forgetting, Forgetting).build()

    with pytest.raises(AssertionError, match="'seen': 2"):
        await assert_resumable(
            make, 1, normalize=lambda value: {**value, "key": 0} if isinstance(value, dict) else value
        )
