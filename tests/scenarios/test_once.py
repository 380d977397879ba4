"""``ctx.once``: effects that are not repeated once their result is durable; ``ctx.idempotency_key`` for all others."""

import asyncio
import contextvars
import datetime
import functools
import threading
from collections.abc import Awaitable, Callable, Sequence
from decimal import Decimal
from typing import Any

import pytest

from holdfast import (
    CheckpointStorage,
    Executor,
    ExecutorFailed,
    GraphError,
    InMemoryCheckpointStorage,
    InvalidArgument,
    LimitExceeded,
    Limits,
    NotCheckpointable,
    RetryPolicy,
    RunStatus,
    StorageError,
    TurnOver,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    WrongType,
    handler,
    response_handler,
)
from tests.support.durable import Gate, Place, Wrapped, outputs_of
from tests.support.journals import RUN, Trip, broken, calls, fails, fan, goes_on, note, noted, ran, start
from tests.support.parts import Commit, Letter, differs
from tests.support.runs import soon
from tests.support.seeded_loop import run_seeded

pytestmark = pytest.mark.usefixtures("nothing_ran")


@pytest.fixture(params=["stored", "not stored"])
def anywhere(request: pytest.FixtureRequest) -> CheckpointStorage | None:
    return InMemoryCheckpointStorage() if request.param == "stored" else None


Do = Callable[[WorkflowContext[Any, Any]], Awaitable[Any]]

TWICE = RetryPolicy(attempts=2, backoff=0)


def doing(do: Do, attempts: int = 1, timeout: float | None = None) -> Workflow:
    """A workflow whose only executor does this, and gives out what comes of it."""

    class Does(Executor):
        @handler(retry=RetryPolicy(attempts=attempts, backoff=0), timeout=timeout)
        async def work(self, message: object, ctx: WorkflowContext[Any, Any]) -> None:
            await ctx.yield_output(await do(ctx))

    return WorkflowBuilder(name="Does").set_start_executor(Does).build()


async def effect(*given: Any) -> Any:
    """Something that happens outside, and shows if it is repeated."""
    calls.append(given)
    return f"result {len(calls)}"


async def outcome(workflow: Workflow, storage: CheckpointStorage | None = None) -> list[Any]:
    run_id = None if storage is None else RUN
    return (await soon(workflow.run(1, run_id=run_id, storage=storage))).outputs


async def cause(workflow: Workflow, storage: CheckpointStorage | None = None) -> BaseException | None:
    """What its handler raised."""
    with pytest.raises(ExecutorFailed) as caught:
        await outcome(workflow, storage)
    return caught.value.__cause__


# -- what is called, and what comes back -----------------------------------------------------------


async def test_functions_of_all_kinds(anywhere: CheckpointStorage | None) -> None:
    variable = contextvars.ContextVar("variable", default="unset")

    class Sync:
        def __call__(self, text: str) -> str:
            return f"object {text}"

    class AsyncCallable:
        async def __call__(self, text: str) -> str:
            await asyncio.sleep(0)
            return f"async object {text}"

        async def method(self, text: str) -> str:
            return f"method {text}"

    def plain(text: str, *, ending: str = "") -> str:
        return f"{variable.get()} {text}{ending}"

    async def asynchronous(text: str, ending: str = "") -> str:
        await asyncio.sleep(0)
        return f"async {text}{ending}"

    async def do(ctx: WorkflowContext[Any, Any]) -> Any:
        variable.set("set")
        return [
            await ctx.once("plain", plain, "a", ending="!"),
            await ctx.once("async", asynchronous, "b", ending="!"),
            await ctx.once("partial", functools.partial(asynchronous, ending="?"), "c"),
            await ctx.once("lambda", lambda: asynchronous("d")),
            await ctx.once("object", Sync(), "e"),
            await ctx.once("async object", AsyncCallable(), "f"),
            await ctx.once("method", AsyncCallable().method, "g"),
            await ctx.once("builtin", len, "four"),
        ]

    expected = ["set a!", "async b!", "async c?", "async d", "object e", "async object f", "method g", 4]
    assert await outcome(doing(do), anywhere) == [expected]


VALUES: dict[str, Any] = {
    "none": None,
    "bool": False,
    "float": -0.0,
    "big": 2**90,
    "text": "ä\u2028\0",
    "bytes": b"\0\xff",
    "tuple": (1, (2, [3])),
    "set": {1, "two"},
    "dict": {1: {"a": (None,)}, "1": []},
    "decimal": Decimal("1.10"),
    "time": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
    "error text": str(ValueError("no")),
}


@pytest.mark.parametrize("again", ["retry", "resume"])
async def test_results_are_exact(place: Place, again: str) -> None:
    async def give(name: str) -> Any:
        calls.append(name)
        return VALUES[name]

    async def do(ctx: WorkflowContext[Any, Any]) -> Any:
        results = {name: await ctx.once(name, give, name) for name in VALUES}
        assert not differs(results, VALUES)
        note("Does")
        return results

    broken.add("Does")
    if again == "retry":
        assert isinstance(await cause(doing(do, attempts=2), place.storage), Exception)
    else:
        await fails(lambda: doing(do), 1, place)
    assert len(await noted(place.storage)) == len(VALUES)
    found = await goes_on(lambda: doing(do), place)
    assert not differs(found.outputs, [VALUES])
    assert calls == list(VALUES)


async def test_a_result_belongs_to_who_gets_it(anywhere: CheckpointStorage | None) -> None:
    """It is captured when the function returns: changing it changes neither what is kept nor what it was made from."""
    kept = [1]

    async def give() -> list[int]:
        calls.append("give")
        return kept

    async def do(ctx: WorkflowContext[Any, Any]) -> Any:
        mine = await ctx.once("give", give)
        assert mine == [1]
        assert mine is not kept
        mine.append(2)
        kept.append(3)
        if ctx.attempt == 1:
            raise ConnectionError
        return mine

    assert await outcome(doing(do, attempts=2), anywhere) == [[1, 2]]
    assert calls == ["give"]


@pytest.mark.parametrize("size", [5_000, 100_000, 600_000])
async def test_big_results(place: Place, size: int) -> None:
    async def give() -> dict[str, str]:
        calls.append("give")
        return {"text": "big " * size}

    async def do(ctx: WorkflowContext[Any, Any]) -> Any:
        given = await ctx.once("give", give)
        note("Does")
        return given

    broken.add("Does")
    await fails(lambda: doing(do), 1, place)
    found = await goes_on(lambda: doing(do), place)
    assert found.outputs == [{"text": "big " * size}]
    assert calls == ["give"]


async def test_results_that_cannot_be_stored(memory: Place) -> None:
    def connect() -> threading.Lock:
        calls.append("connect")
        return threading.Lock()

    async def do(ctx: WorkflowContext[Any, Any]) -> Any:
        await ctx.once("connect", connect)

    error = await cause(doing(do), memory.storage)
    assert isinstance(error, NotCheckpointable)
    assert "result of once('connect')" in str(error)
    assert await noted(memory.storage) == []


async def test_results_that_are_too_big(anywhere: CheckpointStorage | None) -> None:
    class Does(Executor):
        @handler
        async def work(self, message: object, ctx: WorkflowContext[Any, Any]) -> None:
            await ctx.once("read", lambda: "x" * 2_000)

    workflow = (
        WorkflowBuilder(name="Does", limits=Limits(max_value_size=1_000)).set_start_executor(Does).build()
    )
    error = await cause(workflow, anywhere)
    assert isinstance(error, LimitExceeded)
    assert "result of once('read')" in str(error)


# -- names -----------------------------------------------------------------------------------------


async def test_a_name_is_used_once_in_a_turn(anywhere: CheckpointStorage | None) -> None:
    async def do(ctx: WorkflowContext[Any, Any]) -> Any:
        await ctx.once("pay", effect)
        await ctx.once("pay", effect)

    error = await cause(doing(do), anywhere)
    assert isinstance(error, InvalidArgument)
    assert "used once('pay', ...) twice for one message in superstep 1" in str(error)
    assert len(calls) == 1


async def test_each_message_of_a_turn_has_names_of_its_own(anywhere: CheckpointStorage | None) -> None:
    """A second message in the same turn must not get the result of the first."""

    class Sends(Executor):
        @handler
        async def work(self, message: int, ctx: WorkflowContext[int]) -> None:
            for number in range(2):
                await ctx.send_message(number)

    class Pays(Executor):
        @handler
        async def work(self, number: int, ctx: WorkflowContext[Any, Any]) -> None:
            await ctx.once("pay", effect, number)
            if number and not mended:
                raise ValueError("after both effects")

    mended: list[bool] = []
    workflow = WorkflowBuilder(name="Pays").set_start_executor(Sends).add_edge(Sends, Pays).build()
    assert isinstance(await cause(workflow, anywhere), ValueError)
    assert calls == [(0,), (1,)]
    if anywhere is not None:
        mended.append(True)
        (info,) = await anywhere.list_runs()
        await outputs_of(workflow.resume(run_id=info.run_id, storage=anywhere))
        assert calls == [(0,), (1,)], "both are in the journal, each under its own message"


async def test_a_name_can_be_used_in_each_superstep(place: Place) -> None:
    class Pays(Executor):
        @handler
        async def work(self, left: int, ctx: WorkflowContext[int, Any]) -> None:
            calls.append(await ctx.once("pay", lambda: f"paid {left}"))
            note(f"Pays {left}")
            if left:
                await ctx.send_message(left - 1)

    def make() -> Workflow:
        return WorkflowBuilder(name="Pays").set_start_executor(Pays).add_edge(Pays, Pays).build()

    broken.add("Pays 1")
    await fails(make, 2, place)
    assert await noted(place.storage) == [("once", "Pays", "pay")]
    await goes_on(make, place)
    assert calls == ["paid 2", "paid 1", "paid 1", "paid 0"]


@pytest.mark.parametrize("name", ["", None, 7, b"pay", "\ud800"])
async def test_names_that_are_none(anywhere: CheckpointStorage | None, name: Any) -> None:
    async def do(ctx: WorkflowContext[Any, Any]) -> Any:
        await ctx.once(name, effect)

    assert isinstance(await cause(doing(do), anywhere), InvalidArgument)
    assert calls == []


async def test_what_is_no_function(anywhere: CheckpointStorage | None) -> None:
    async def do(ctx: WorkflowContext[Any, Any]) -> Any:
        await ctx.once("pay", "no function")  # type: ignore[call-overload]

    error = await cause(doing(do), anywhere)
    assert isinstance(error, WrongType)
    assert "once('pay', ...)" in str(error)


async def test_names_of_all_kinds(place: Place) -> None:
    strange = ['"', "a/b", "ä\u2028", "x" * 3_000, "\0", '["turn", "Does"]']

    async def do(ctx: WorkflowContext[Any, Any]) -> Any:
        results = [await ctx.once(name, effect, name) for name in strange]
        note("Does")
        return results

    broken.add("Does")
    await fails(lambda: doing(do), 1, place)
    assert [key[2] for key in await noted(place.storage)] == strange
    found = await goes_on(lambda: doing(do), place)
    assert found.outputs == [[f"result {number}" for number in range(1, 7)]]


# -- doing it again --------------------------------------------------------------------------------


async def test_a_retry_does_not_repeat(anywhere: CheckpointStorage | None) -> None:
    async def do(ctx: WorkflowContext[Any, Any]) -> Any:
        first = await ctx.once("first", effect)
        if ctx.attempt == 1:
            raise ConnectionError
        second = await ctx.once("second", effect)
        if ctx.attempt == 2:
            raise ConnectionError
        return first, second

    assert await outcome(doing(do, attempts=3), anywhere) == [("result 1", "result 2")]
    assert len(calls) == 2


async def test_an_exception_is_not_kept(anywhere: CheckpointStorage | None) -> None:
    async def flaky() -> str:
        calls.append("flaky")
        if len(calls) < 3:
            raise ConnectionError
        return "done"

    async def do(ctx: WorkflowContext[Any, Any]) -> Any:
        return await ctx.once("flaky", flaky)

    assert await outcome(doing(do, attempts=3), anywhere) == ["done"]
    assert len(calls) == 3


async def test_an_exception_of_a_thread_is_the_users(anywhere: CheckpointStorage | None) -> None:
    def stop() -> None:
        raise StopIteration

    def refuse() -> None:
        raise PermissionError("no")

    async def do(ctx: WorkflowContext[Any, Any]) -> Any:
        with pytest.raises(PermissionError, match="no"):
            await ctx.once("refuse", refuse)
        await ctx.once("stop", stop)

    assert isinstance(await cause(doing(do), anywhere), RuntimeError)


def test_a_timeout_and_a_retry_do_not_repeat(anywhere: CheckpointStorage | None) -> None:
    async def do(ctx: WorkflowContext[Any, Any]) -> Any:
        result = await ctx.once("first", effect)
        if ctx.attempt == 1:
            await asyncio.sleep(3600)
        return result

    assert run_seeded(lambda: outcome(doing(do, attempts=2, timeout=10), anywhere), 0) == ["result 1"]
    assert len(calls) == 1


async def test_a_function_that_is_cut_by_a_timeout_is_called_again(
    anywhere: CheckpointStorage | None,
) -> None:
    async def slow() -> str:
        calls.append("slow")
        if len(calls) == 1:
            await asyncio.sleep(3600)
        return "done"

    async def do(ctx: WorkflowContext[Any, Any]) -> Any:
        return await ctx.once("slow", slow)

    assert run_seeded(lambda: outcome(doing(do, attempts=2, timeout=10), anywhere), 0) == ["done"]
    assert len(calls) == 2


async def test_a_failed_turn_does_not_repeat_what_it_did(place: Place) -> None:
    async def do(ctx: WorkflowContext[Any, Any]) -> Any:
        results = [await ctx.once("first", effect, 1), await ctx.once("second", effect, 2)]
        note("Does")
        return [*results, await ctx.once("third", effect, 3)]

    for _ in range(3):
        broken.add("Does")
        if not calls:
            await fails(lambda: doing(do), 1, place)
        else:
            with pytest.raises(ExecutorFailed):
                await outputs_of(doing(do).resume(run_id=RUN, storage=await place.reopened()))
        assert calls == [(1,), (2,)]
        assert await noted(place.storage) == [("once", "Does", "first"), ("once", "Does", "second")]
    found = await goes_on(lambda: doing(do), place)
    assert found.outputs == [["result 1", "result 2", "result 3"]]
    assert calls == [(1,), (2,), (3,)]


async def test_beside_a_turn_that_fails(place: Place) -> None:
    """The turn is over, so are its effects; the one that failed has some as well."""

    class Pays(Executor):
        @handler
        async def work(self, message: int, ctx: WorkflowContext[Any, Any]) -> Any:
            result = await ctx.once("pay", effect, str(self.id))
            note(self.id)
            return result

    def make() -> Workflow:
        return fan([Pays.bind(id=name) for name in ("a", "b", "c")]).build()

    broken.add("b")
    await fails(make, 1, place)
    assert sorted(await noted(place.storage)) == [
        ("once", "a", "pay"),
        ("once", "b", "pay"),
        ("once", "c", "pay"),
        ("turn", "a"),
        ("turn", "c"),
    ]
    found = await goes_on(make, place)
    assert ran == ["b", "collect"]
    assert sorted(calls) == [("a",), ("b",), ("c",)]
    assert sorted(found.outputs[0]) == ["result 1", "result 2", "result 3"]


async def test_several_at_the_same_time(place: Place) -> None:
    async def do(ctx: WorkflowContext[Any, Any]) -> Any:
        results = await asyncio.gather(*(ctx.once(f"pay {n}", effect, n) for n in range(50)))
        note("Does")
        return results

    broken.add("Does")
    before = place.storage.counters.commits
    await fails(lambda: doing(do), 1, place)
    assert len(await noted(place.storage)) == 50
    assert place.storage.counters.commits - before < 10, "they are written together"
    found = await goes_on(lambda: doing(do), place)
    assert len(found.outputs[0]) == 50
    assert sorted(calls) == [(number,) for number in range(50)]


async def test_one_of_several_at_the_same_time_fails(place: Place) -> None:
    async def pay(number: int) -> str:
        await effect(number)
        if number == 3 and "three" in broken:
            raise ConnectionError
        return f"paid {number}"

    async def do(ctx: WorkflowContext[Any, Any]) -> Any:
        paying = [ctx.once(f"pay {number}", pay, number) for number in range(5)]
        results = await asyncio.gather(*paying, return_exceptions=True)
        if "three" in broken:
            raise ConnectionError
        return results

    broken.add("three")
    await fails(lambda: doing(do), 1, place)
    found = await goes_on(lambda: doing(do), place)
    assert found.outputs == [[f"paid {number}" for number in range(5)]]
    assert sorted(calls) == [(0,), (1,), (2,), (3,), (3,), (4,)]


async def test_in_a_response_handler(place: Place) -> None:
    class Ask(Executor):
        @handler
        async def ask(self, number: int, ctx: WorkflowContext) -> None:
            await ctx.request_info(number, response_type=str, request_id="q")

        @response_handler
        async def answered(self, number: int, text: str, ctx: WorkflowContext[None, Any]) -> None:
            result = await ctx.once("pay", effect, text, ctx.idempotency_key)
            note("Ask")
            await ctx.yield_output(result)

    def make() -> Workflow:
        return WorkflowBuilder(name="Ask").set_start_executor(Ask).build()

    await soon(make().run(1, run_id=RUN, storage=place.storage))
    broken.add("Ask")
    with pytest.raises(ExecutorFailed):
        await outputs_of(make().resume(run_id=RUN, responses={"q": "yes"}, storage=place.storage))
    assert await noted(place.storage) == [("once", "Ask", "pay")]
    found = await goes_on(make, place)
    assert found.outputs == ["result 1"]
    assert [call[0] for call in calls] == ["yes"]


async def test_in_nested_workflows(place: Place) -> None:
    """Each has effects of its own, though they have the same names."""

    class Pays(Executor):
        @handler
        async def work(self, number: int, ctx: WorkflowContext[Any, Any]) -> Any:
            result = await ctx.once("pay", effect, ctx.executor_id, ctx.idempotency_key)
            note(ctx.executor_id)
            return f"{ctx.executor_id} {result}"

    def make() -> Workflow:
        inner = WorkflowBuilder(name="Inner").set_start_executor(Pays).build()
        return fan([WorkflowExecutor(inner, id=name) for name in "ab"]).build()

    broken.add("b#1/Pays")
    await fails(make, 1, place)
    found = await goes_on(make, place)
    assert ran == ["b#1/Pays", "collect"]
    assert sorted(call[0] for call in calls) == ["a#1/Pays", "b#1/Pays"]
    assert len({call[1] for call in calls}) == 2
    assert len(found.outputs[0]) == 2


async def test_in_the_hooks(place: Place) -> None:
    """``on_checkpointing`` belongs to the turn; ``on_checkpoint_restored`` does not."""

    class Hooked(Executor):
        @handler
        async def work(self, left: int, ctx: WorkflowContext[int]) -> None:
            note(f"Hooked {left}")
            if left:
                await ctx.send_message(left - 1)

        async def on_checkpointing(self, ctx: WorkflowContext[Any, Any]) -> None:
            await ctx.once("backup", effect, ctx.superstep)

        async def on_checkpoint_restored(self, ctx: WorkflowContext[Any, Any]) -> None:
            if "restored" in broken:
                await ctx.once("restored", effect, "restored")

    def make() -> Workflow:
        return WorkflowBuilder(name="H").set_start_executor(Hooked).add_edge(Hooked, Hooked).build()

    broken.add("Hooked 1")
    await fails(make, 2, place)
    broken.add("restored")
    with pytest.raises(ExecutorFailed) as caught:
        await make().resume(run_id=RUN, storage=place.storage)
    assert isinstance(caught.value.__cause__, GraphError)
    assert "used once('restored', ...); it may only read" in str(caught.value.__cause__)
    assert calls == [(1,)]
    await goes_on(make, place)
    assert calls == [(1,), (2,), (3,)]


async def test_after_the_turn(anywhere: CheckpointStorage | None) -> None:
    contexts: list[WorkflowContext[Any, Any]] = []

    async def do(ctx: WorkflowContext[Any, Any]) -> Any:
        contexts.append(ctx)

    await outcome(doing(do), anywhere)
    with pytest.raises(TurnOver):
        await contexts[0].once("late", effect)
    assert calls == []


async def test_one_that_outlives_its_turn(memory: Place) -> None:
    """A handler that did not wait for it: what comes of it belongs to no later turn."""
    free = asyncio.Event()
    left_behind: list[asyncio.Task[Any]] = []

    async def pay(left: int) -> str:
        calls.append(left)
        if left == 2:
            await free.wait()
        return f"paid {left}"

    class Careless(Executor):
        @handler(retry=TWICE)
        async def work(self, left: int, ctx: WorkflowContext[int, Any]) -> None:
            if left == 2:
                left_behind.append(asyncio.ensure_future(ctx.once("pay", pay, left)))
                await asyncio.sleep(0)
                await ctx.send_message(left - 1)
                return
            first = await ctx.once("other", effect, "other")
            free.set()
            await asyncio.wait(left_behind)
            if ctx.attempt == 1:
                raise ConnectionError
            note("Careless")
            await ctx.yield_output((first, await ctx.once("pay", pay, left)))

    def make() -> Workflow:
        return WorkflowBuilder(name="C").set_start_executor(Careless).add_edge(Careless, Careless).build()

    broken.add("Careless")
    await fails(make, 2, memory)
    assert isinstance(left_behind[0].exception(), TurnOver)
    assert calls == [2, ("other",)]
    assert await noted(memory.storage) == [("once", "Careless", "other")]
    found = await goes_on(make, memory)
    assert found.outputs == [("result 2", "paid 1")]
    assert calls == [2, ("other",), 1]


# -- when it is durable ----------------------------------------------------------------------------


async def test_it_is_durable_when_it_returns(memory: Place) -> None:
    """Not before: the handler waits for the journal, and others go on meanwhile."""
    gate = Gate(memory.storage.store, 3)  # behind the input and superstep 1
    went_on: list[str] = []

    class Pays(Executor):
        @handler
        async def work(self, number: int, ctx: WorkflowContext[Any, Any]) -> Any:
            result = await ctx.once("pay", effect)
            went_on.append(result)
            assert ("once", "Pays", "pay") in await noted(memory.storage)
            return result

    class Beside(Executor):
        @handler
        async def work(self, number: int, ctx: WorkflowContext[Any, Any]) -> Any:
            await gate.reached.wait()
            for _ in range(20):
                await asyncio.sleep(0)
            assert went_on == []
            gate.opened.set()
            return "beside"

    workflow = fan([Pays, Beside]).build()
    assert await outcome(workflow, CheckpointStorage(gate)) == [["result 1", "beside"]]
    assert went_on == ["result 1"]


@pytest.mark.parametrize("seed", range(5))
def test_it_is_durable_when_it_returns_in_another_attempt(seed: int) -> None:
    """The first attempt runs out of time while its result is being written."""

    class Pays(Executor):
        @handler(retry=TWICE, timeout=60)
        async def work(self, number: int, ctx: WorkflowContext[None, Any]) -> None:
            attempts.append(ctx.attempt)
            result = await ctx.once("pay", effect)
            durable.append(await noted(storage) != [])
            await ctx.yield_output(result)

    attempts: list[int] = []
    durable: list[bool] = []
    storage = InMemoryCheckpointStorage()

    async def main() -> list[Any]:
        gate = Gate(storage.store, 2)
        workflow = WorkflowBuilder(name="Pays").set_start_executor(Pays).build()
        run = await workflow.start(1, run_id=RUN, storage=CheckpointStorage(gate))
        await asyncio.sleep(90)  # the second attempt is under way
        assert attempts == [1, 2]
        gate.opened.set()
        return (await run.wait_for_completion()).outputs

    assert run_seeded(main, seed) == ["result 1"]
    assert durable == [True], "once returned, but the journal had nothing of it"
    assert len(calls) == 1


class NoNotes(Wrapped):
    """Cannot write notes while there is something wrong."""

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        if commit.notes and not commit.records and "disk" in broken:
            raise StorageError("the disk is full")
        return await self.inner.commit(commit)


async def test_a_result_that_cannot_be_written_fails_the_turn(memory: Place) -> None:
    async def do(ctx: WorkflowContext[Any, Any]) -> Any:
        await ctx.once("pay", effect)
        calls.append("went on")

    broken.add("disk")
    error = await cause(doing(do), CheckpointStorage(NoNotes(memory.storage.store)))
    assert isinstance(error, StorageError)
    assert calls == [()]


async def test_a_result_that_cannot_be_written_fails_all_attempts(memory: Place) -> None:
    """Another attempt does not repeat the effect, but it must not go on behind it either: a crash would repeat it."""

    async def do(ctx: WorkflowContext[Any, Any]) -> Any:
        result = await ctx.once("pay", effect)
        calls.append(f"went on in attempt {ctx.attempt}")
        return result

    broken.add("disk")
    error = await cause(doing(do, attempts=3), CheckpointStorage(NoNotes(memory.storage.store)))
    assert isinstance(error, StorageError)
    assert calls == [()]


async def test_a_result_that_can_be_written_later_is_not_repeated(memory: Place) -> None:
    async def do(ctx: WorkflowContext[Any, Any]) -> Any:
        if ctx.attempt == 3:
            broken.clear()
        result = await ctx.once("pay", effect)
        assert await noted(memory.storage) == [("once", "Does", "pay")]
        return result

    broken.add("disk")
    storage = CheckpointStorage(NoNotes(memory.storage.store))
    assert await outcome(doing(do, attempts=3), storage) == ["result 1"]
    assert len(calls) == 1


@pytest.mark.parametrize("leave", ["close", "cancel"])
async def test_a_run_that_is_left_while_a_result_is_written(memory: Place, leave: str) -> None:
    gate = Gate(memory.storage.store, 2)

    async def do(ctx: WorkflowContext[Any, Any]) -> Any:
        result = await ctx.once("pay", effect)
        note("Does")
        return result

    run = await doing(do).start(1, run_id=RUN, storage=CheckpointStorage(gate))
    await soon(gate.reached.wait())
    leaving = asyncio.ensure_future(getattr(run, leave)())
    await asyncio.sleep(0)
    gate.opened.set()
    await soon(leaving)
    assert ran == []
    assert await noted(memory.storage) == [("once", "Does", "pay")]
    found = await goes_on(lambda: doing(do), memory)
    assert found.outputs == ["result 1"]
    assert len(calls) == 1


async def test_a_process_that_loses_the_run_behind_an_effect(place: Place) -> None:
    """What it journaled before is not repeated by the next one."""
    arrived = asyncio.Event()

    async def do(ctx: WorkflowContext[Any, Any]) -> Any:
        first = await ctx.once("first", effect, "first", ctx.idempotency_key)
        if not arrived.is_set():
            arrived.set()
            await asyncio.sleep(3600)
        return first, await ctx.once("second", effect, "second", ctx.idempotency_key)

    lost = await doing(do).start(1, run_id=RUN, storage=place.storage)
    await soon(arrived.wait())
    other = CheckpointStorage(place.storage.store)
    winner = await doing(do).resume(run_id=RUN, storage=other, take_over=True)
    assert (await soon(winner.wait_for_completion())).outputs == [("result 1", "result 2")]
    assert [call[0] for call in calls] == ["first", "second"]
    assert calls[0][1] == calls[1][1]
    await soon(lost.close())
    assert (await place.storage.list_runs())[0].status is RunStatus.COMPLETED


# -- keys ------------------------------------------------------------------------------------------


def keys() -> list[str]:
    """The keys that effects were called with."""
    return [call[-1] for call in calls]


async def test_keys_are_short_texts(anywhere: CheckpointStorage | None) -> None:
    async def do(ctx: WorkflowContext[Any, Any]) -> Any:
        assert ctx.idempotency_key == ctx.idempotency_key
        return ctx.idempotency_key

    (key,) = await outcome(doing(do), anywhere)
    assert isinstance(key, str)
    assert len(key) == 32
    assert key.isalnum()


async def test_keys_are_the_same_for_all_attempts(anywhere: CheckpointStorage | None) -> None:
    async def do(ctx: WorkflowContext[Any, Any]) -> Any:
        await effect(ctx.idempotency_key)
        if ctx.attempt < 3:
            raise ConnectionError

    await outcome(doing(do, attempts=3), anywhere)
    assert len(calls) == 3
    assert len(set(keys())) == 1


class Keyed(Executor):
    """An effect for each message of each of its turns."""

    @handler
    async def work(self, left: int, ctx: WorkflowContext[int, Any]) -> None:
        await effect(str(self.id), ctx.superstep, ctx.idempotency_key)
        note(f"{self.id} {left}")
        if left:
            for _ in range(2):
                await ctx.send_message(left - 1)


def keyed() -> Workflow:
    workers = [Keyed.bind(id=name) for name in "ab"]
    builder = WorkflowBuilder(name="Keyed").set_start_executor(start).add_fan_out_edges(start, workers)
    for worker in workers:
        builder.add_edge(worker, worker)
    return builder.build()


async def test_keys_differ_by_message_executor_superstep_and_run(anywhere: CheckpointStorage | None) -> None:
    for _ in range(2):
        await soon(keyed().run(2, storage=anywhere))
    assert len(calls) == 2 * 2 * (1 + 2 + 4)
    assert len(set(keys())) == len(calls)


async def test_keys_are_the_same_after_a_failure(place: Place) -> None:
    broken.add("a 1")
    await fails(keyed, 2, place)
    await goes_on(keyed, place)
    by_turn: dict[Any, list[str]] = {}
    for who, superstep, key in calls:
        by_turn.setdefault((who, superstep), []).append(key)
    # The first message of the turn that failed was handled twice, the second only when it went on.
    again = by_turn["a", 3]
    assert len(again) == 3
    assert again[0] == again[1]
    assert len(set(keys())) == len(calls) - 1


@pytest.mark.parametrize("leave", ["close", "cancel", "take over"])
async def test_keys_are_the_same_when_a_run_goes_on(place: Place, leave: str) -> None:
    arrived = asyncio.Event()

    async def do(ctx: WorkflowContext[Any, Any]) -> Any:
        await effect(ctx.idempotency_key)
        if not arrived.is_set():
            arrived.set()
            await asyncio.sleep(3600)

    run = await doing(do).start(1, run_id=RUN, storage=place.storage)
    await soon(arrived.wait())
    if leave != "take over":
        await soon(getattr(run, leave)())
    other = CheckpointStorage(place.storage.store)
    await outputs_of(doing(do).resume(run_id=RUN, storage=other, take_over=leave == "take over"))
    assert len(calls) == 2
    assert len(set(keys())) == 1
    await soon(run.close())


async def test_keys_are_others_after_going_back_and_in_forks(place: Place) -> None:
    """That is done in order to do things anew."""

    async def do(ctx: WorkflowContext[Any, Any]) -> Any:
        return await ctx.once("pay", effect, ctx.idempotency_key)

    run = await doing(do).start(1, run_id=RUN, storage=place.storage)
    await soon(run.wait_for_completion())
    first = run.checkpoints[0]
    for _ in range(2):
        await run.restore_checkpoint(first)
        await soon(run.wait_for_completion())
    await outputs_of(doing(do).resume(first, storage=place.storage))
    for _ in range(2):
        await outputs_of(doing(do).fork(first, storage=place.storage))
    assert len(calls) == 6
    assert len(set(keys())) == 6


async def test_keys_of_responses(place: Place) -> None:
    """The answer is a message like any other; answered twice after going back it has another key."""

    class Ask(Executor):
        @handler
        async def ask(self, number: int, ctx: WorkflowContext) -> None:
            for request_id in "ab":
                await ctx.request_info(number, response_type=str, request_id=request_id)
            await effect(ctx.idempotency_key)

        @response_handler
        async def answered(self, number: int, text: str, ctx: WorkflowContext[None, Any]) -> None:
            await effect(ctx.idempotency_key)

    run = await WorkflowBuilder(name="Ask").set_start_executor(Ask).build().start(1, storage=place.storage)
    await soon(run.wait_for_completion())
    asked = run.latest_checkpoint
    assert asked is not None
    for _ in range(2):
        await run.respond({"a": "yes", "b": "no"})
        await soon(run.wait_for_completion())
        await run.restore_checkpoint(asked)
        await soon(run.wait_for_completion())
    assert len(calls) == 5
    assert len(set(keys())) == 5


async def test_keys_and_effects_survive_a_change_of_the_graph(place: Place) -> None:
    """The run goes on where it was, and its journal with it: what was not journaled is repeated with the same key."""

    class Pays(Executor):
        @handler
        async def work(self, number: int, ctx: WorkflowContext[Any, Any]) -> Any:
            await ctx.once("journaled", effect, "journaled", ctx.idempotency_key)
            await effect("not journaled", ctx.idempotency_key)
            note("pays")
            return 1

    class Extra(Executor):
        @handler
        async def work(self, number: int) -> None:
            ran.append("extra")

    def changed() -> Workflow:
        builder = fan([Pays.bind(id="pays"), Trip])
        return builder.add_edge(Pays.bind(id="pays"), Extra).build()

    def unchanged() -> Workflow:
        return fan([Pays.bind(id="pays"), Trip]).build()

    broken.add("pays")
    await fails(unchanged, 1, place)
    broken.clear()
    ran.clear()
    run = await changed().resume(run_id=RUN, storage=await place.reopened(), allow_graph_change=True)
    await soon(run.wait_for_completion())
    assert sorted(ran) == ["extra", "pays"]
    assert [call[0] for call in calls] == ["journaled", "not journaled", "not journaled"]
    assert len(set(keys())) == 1


async def test_after_an_exception_the_name_is_free_again(anywhere: CheckpointStorage | None) -> None:
    tried: list[int] = []

    def flaky() -> str:
        tried.append(1)
        if len(tried) < 3:
            raise ConnectionError("not yet")
        return "done"

    async def do(ctx: WorkflowContext[Any, Any]) -> Any:
        while True:
            try:
                return await ctx.once("call", flaky)
            except ConnectionError:
                continue

    assert (await soon(doing(do).run(1, storage=anywhere))).outputs == ["done"]
    assert len(tried) == 3


async def test_an_effect_may_have_keyword_arguments_of_any_name(anywhere: CheckpointStorage | None) -> None:
    async def do(ctx: WorkflowContext[Any, Any]) -> Any:
        return await ctx.once(
            "mail", lambda name, function: f"{name} {function}", name="Ada", function="hello"
        )

    assert (await soon(doing(do).run(1, storage=anywhere))).outputs == ["Ada hello"]


async def test_an_effect_whose_result_cannot_be_stored_says_that_it_has_happened(memory: Place) -> None:
    async def do(ctx: WorkflowContext[Any, Any]) -> Any:
        return await ctx.once("lock", threading.Lock)

    error = await cause(doing(do), memory.storage)
    assert isinstance(error, NotCheckpointable)
    assert "The effect has happened" in str(error)
