"""What must not depend on how long a run is, or on how often things were done before."""

from typing import Any

import pytest

from holdfast import (
    Executor,
    GraphError,
    InMemoryCheckpointStorage,
    Limits,
    Merge,
    RetryPolicy,
    WorkflowBuilder,
    WorkflowContext,
    executor,
    handler,
    response_handler,
)
from tests.support.parts import (
    GONE,
    Append,
    Delivery,
    Depth,
    Layered,
    Outcome,
    Scope,
    Snapshot,
    Update,
    apply,
    capture,
    differs,
    read_header,
    read_records,
)


async def test_retry_after_a_reset_puts_the_fresh_fields_back() -> None:
    class Remember(Executor):
        checkpointed = ("words",)

        def __init__(self) -> None:
            super().__init__()
            self.words: list[str] = []

        async def reset(self) -> None:
            self.words = []

        @handler(retry=RetryPolicy(attempts=2, backoff=0))
        async def remember(self, word: str, ctx: WorkflowContext[None, Any]) -> None:
            self.words.append(word)
            if ctx.attempt == 1:
                raise ConnectionError
            await ctx.yield_output(list(self.words))

    workflow = WorkflowBuilder().set_start_executor(Remember()).build()
    assert (await workflow.run("first")).outputs == [["first"]]
    assert (await workflow.run("second")).outputs == [["second"]]


def test_difference_at_the_front_of_something_long() -> None:
    assert differs([0] * 20_000, [1] + [0] * 19_999)


@pytest.mark.parametrize("unsure", [False, True])
def test_what_is_too_long_to_compare_cannot_be_told(unsure: bool) -> None:
    assert differs([0.5] * 20_000, [float(x) / 2 for x in [1] * 20_000], unsure=unsure) is unsure


async def test_long_checkpointed_field_keeps_its_last_change() -> None:
    class Long(Executor):
        checkpointed = ("numbers",)

        def __init__(self) -> None:
            super().__init__()
            self.numbers = [0] * 20_000

        @handler
        async def change(self, number: int, ctx: WorkflowContext[int]) -> None:
            self.numbers[-1] = number
            if number < 3:
                await ctx.send_message(number + 1)

    workflow = WorkflowBuilder().set_start_executor(Long).add_edge(Long, Long).build()
    run = await workflow.start(1)
    await run.wait_for_completion()
    (fields,) = [keys for scope, keys in run.snapshot.state.items() if scope.name == "fields"]
    assert fields["numbers"].load()[-1] == 3


async def test_factory_that_returns_one_executor_again_and_again_is_refused() -> None:
    class Count(Executor):
        @handler
        async def count(self, number: int) -> int:
            return number

    one = Count()
    workflow = WorkflowBuilder().register_executor(lambda: one, name="c").set_start_executor("c").build()
    with pytest.raises(
        GraphError, match=r"^register_executor\(name='c'\): the factory returned the same executor"
    ):
        await workflow.run(1)


@pytest.mark.parametrize("before", [0, 1, 31, 32, 33, 100, 1000])
def test_order_is_that_of_the_last_change_however_much_there_is(before: int) -> None:
    mapping = Layered[str, int]().change({f"k{number}": number for number in range(before)})
    mapping = mapping.change({"a": 1}).change({"b": 2}).change({"a": GONE}).change({"a": 3})
    assert list(mapping)[-2:] == ["b", "a"]
    assert len(mapping) == before + 2


async def test_request_asked_again_under_its_old_id_comes_last() -> None:
    class Ask(Executor):
        @handler
        async def ask(self, text: str, ctx: WorkflowContext) -> None:
            for request_id in ("one", "two"):
                await ctx.request_info(text, response_type=str, request_id=request_id)

        @response_handler
        async def answered(self, text: str, response: str, ctx: WorkflowContext) -> None:
            await ctx.request_info(response, response_type=str, request_id="one")

    result = await WorkflowBuilder().set_start_executor(Ask).build().run("?")
    result = await result.respond({"one": "again"})
    assert [request.request_id for request in result.pending_requests] == ["two", "one"]


@pytest.mark.parametrize(
    ("current", "item"), [(["a"], "b"), ("a", "b"), (b"a", b"b")], ids=["list", "str", "bytes"]
)
async def test_append_where_an_appending_merge_is_declared_costs_what_the_item_costs(
    current: Any, item: Any
) -> None:
    """The delta holds the item, not the whole value."""

    class Grow(Executor):
        @handler
        async def grow(self, number: int, ctx: WorkflowContext[int, Any]) -> None:
            if number == 0:
                await ctx.queue_state_update("log", current, scope_name="Log")
                await ctx.send_message(1)
            elif number == 1:
                await ctx.append_state("log", item, scope_name="Log")
                await ctx.send_message(2)
            else:
                await ctx.yield_output(await ctx.read_state("log", scope_name="Log"))

    builder = WorkflowBuilder().set_start_executor(Grow).add_edge(Grow, Grow)
    workflow = builder.with_state_merge("Log", "log", Merge.APPEND).build()
    whole = [*current, item] if isinstance(current, list) else current + item
    assert (await workflow.run(0)).outputs == [whole]

    limits, place = Limits(), (Scope(None, "Log"), "log")
    graph = workflow.graph
    start = Snapshot(deliveries=(Delivery(graph.start, capture(0, "input", 10)),))
    put = Outcome(graph.start, changes={place: Update((capture(current, "s", 99),), Merge.APPEND)})
    after = apply(graph, start, [put], limits).snapshot
    piece = [item] if isinstance(current, list) else item
    more = Outcome(graph.start, changes={place: Update((capture(piece, "s", 99),), Merge.APPEND)})
    write = apply(graph, after, [more], limits).delta.writes[place]
    assert isinstance(write, Append)
    assert len(write.items) == 1


@pytest.mark.parametrize("appends", [False, True])
async def test_resume_replays_few_records_however_many_there_are(appends: bool) -> None:
    @executor
    async def count(number: int, ctx: WorkflowContext[int, int]) -> None:
        if appends:
            await ctx.append_state("history", "x" * 1_000)
        else:
            await ctx.queue_state_update("number", number)
        await (ctx.send_message(number + 1) if number < 600 else ctx.yield_output(number))

    storage = InMemoryCheckpointStorage()
    workflow = WorkflowBuilder(max_iterations=700).set_start_executor(count).add_edge(count, count).build()
    run = await workflow.run(1, storage=storage)
    records = await read_records(storage.store, run.run_id, 1, 2_000, Depth.ALL)
    headers = [read_header(record) for record in records]
    assert len(headers) == 1_200
    assert max(header.seq - header.replay_from for header in headers) < 256
    assert sum(record.new_bytes for record in records) < 600 * (2_500 if appends else 700)
