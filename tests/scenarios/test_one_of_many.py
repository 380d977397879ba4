"""What one thing costs does not depend on how many others there are. No clocks: what is done is counted."""

import asyncio
import datetime
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from holdfast import (
    CheckpointNotFound,
    CheckpointStorage,
    Executor,
    InMemoryCheckpointStorage,
    RequestExpired,
    Retention,
    Run,
    SqliteCheckpointStorage,
    Store,
    UnknownRequest,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    handler,
    response_handler,
)
from tests.support.durable import Wrapped
from tests.support.modules import connection
from tests.support.parts import Depth, Head, Record, RunId, RunQuery
from tests.support.runs import soon
from tests.support.steps import steps_of

FEW, MANY = 100, 2_000


class Ask(Executor):
    """Asks so many questions, and one more for each answer that says so."""

    expires: datetime.timedelta | None = None

    @handler
    async def ask(self, count: int, ctx: WorkflowContext) -> None:
        for number in range(count):
            expires = None if self.expires is None else self.expires * (number + 1)
            await ctx.request_info([number], str, request_id=f"ask{number}", expires=expires)

    @response_handler
    async def answered(self, question: list[int], answer: str, ctx: WorkflowContext[None, str]) -> None:
        if answer == "more":
            await ctx.request_info([*question, 0], str, request_id=f"more{question[0]}")


class AskInTime(Ask):
    expires = datetime.timedelta(days=1)

    @response_handler
    async def too_late(self, question: list[int], expired: RequestExpired, ctx: WorkflowContext) -> None:
        raise AssertionError(expired)


def asking(kind: type[Ask], nested: bool = False) -> Workflow:
    """One that asks in a nested workflow asks with the path of that."""
    asks = WorkflowBuilder(name="Asking").set_start_executor(kind).build()
    if not nested:
        return asks
    return WorkflowBuilder(name="Outer").set_start_executor(WorkflowExecutor(asks, id="sub")).build()


async def answer_run(run: Run, storage: CheckpointStorage | None, number: int) -> None:
    await run.respond({f"ask{number}": "more"})
    result = await run.wait_for_completion()
    assert result.outputs == []


async def answer_storage(run: Run, storage: CheckpointStorage | None, number: int) -> None:
    assert storage is not None
    await storage.respond(run.run_id, {f"ask{number}": "yes"})


async def answer_both(run: Run, storage: CheckpointStorage | None, number: int) -> None:
    """Each is used up before the next is left, so that the run moves on in between."""
    await answer_storage(run, storage, number)
    await run.wait_for_completion()


async def test_answer_to_a_nested_workflow_costs_the_same_among_any_number_of_requests() -> None:
    costs = []
    for count in (FEW, MANY):
        run = await asking(Ask, nested=True).start(count)
        first = await soon(run.wait_for_completion())
        waiting = [request.request_id for request in first.pending_requests]

        async def answer(request_id: str, run: Run = run) -> None:
            await run.respond({request_id: "yes"})
            await run.wait_for_completion()

        costs.append(median([(await steps_of(answer(waiting[number])))[0] for number in range(1, 6)]))
        await run.close()
    assert costs[1] <= costs[0] * 1.2


@pytest.mark.parametrize("kind", [Ask, AskInTime])
@pytest.mark.parametrize(
    ("answer", "stored"),
    [(answer_run, False), (answer_run, True), (answer_storage, True), (answer_both, True)],
)
async def test_answer_costs_the_same_among_any_number_of_requests(
    kind: type[Ask], answer: Any, stored: bool
) -> None:
    costs = []
    for count in (FEW, MANY):
        storage = InMemoryCheckpointStorage() if stored else None
        run = await asking(kind).start(count, storage=storage)
        await soon(run.wait_for_completion())
        await answer(run, storage, 0)
        costs.append(median([(await steps_of(answer(run, storage, number)))[0] for number in range(1, 6)]))
        await run.close()
    assert costs[1] <= costs[0] * 1.2


async def test_result_has_the_requests_that_were_pending_then() -> None:
    """Though they are looked for when somebody asks; each who asks has his own."""
    run = await asking(Ask).start(3)
    first = await soon(run.wait_for_completion())
    await run.respond({"ask1": "more"})
    second = await soon(run.wait_for_completion())
    assert [request.request_id for request in first.pending_requests] == ["ask0", "ask1", "ask2"]
    assert [request.request_id for request in second.pending_requests] == ["ask0", "ask2", "more1"]
    second.pending_requests[0].data.append("changed")
    assert second.pending_requests[0].data == [0, "changed"]
    assert run.result().pending_requests[0].data == first.pending_requests[0].data == [0]
    assert "more1" in repr(second)
    await run.cancel()
    assert run.result().pending_requests == []


async def test_answers_from_outside_follow_a_run_that_moves_and_goes_back() -> None:
    """What the storage remembers of a run is never what the run no longer is."""
    storage = InMemoryCheckpointStorage()
    run = await asking(Ask).start(5, storage=storage)
    await soon(run.wait_for_completion())
    asked = run.latest_checkpoint
    assert asked is not None
    await answer_both(run, storage, 0)
    with pytest.raises(UnknownRequest):
        await storage.respond(run.run_id, {"more0": "yes"})
    await run.respond({"ask1": "more"})
    await soon(run.wait_for_completion())
    await storage.respond(run.run_id, {"more1": "yes"})
    await soon(run.wait_for_completion())
    await run.restore_checkpoint(asked)
    await soon(run.wait_for_completion())
    with pytest.raises(UnknownRequest):
        await storage.respond(run.run_id, {"more1": "yes"})
    await storage.respond(run.run_id, {"ask0": "yes"})
    result = await soon(run.wait_for_completion())
    assert [request.request_id for request in result.pending_requests] == ["ask1", "ask2", "ask3", "ask4"]
    await run.close()


# -- one of many runs ------------------------------------------------------------------------------


class Count(Executor):
    """Counts down."""

    @handler
    async def count(self, left: int, ctx: WorkflowContext[int, int]) -> None:
        if left:
            await ctx.send_message(left - 1)


COUNT = WorkflowBuilder(name="Count").set_start_executor(Count).add_edge(Count, Count).build()
ASKING = asking(Ask)

Look = Callable[[CheckpointStorage], Awaitable[Sequence[Any]]]


async def first_page(storage: CheckpointStorage) -> Sequence[Any]:
    return [made.checkpoint_id for made in await storage.list_checkpoints(limit=10)]


async def second_page(storage: CheckpointStorage) -> Sequence[Any]:
    after = (await storage.list_checkpoints("Count", limit=10))[-1]
    return [made.checkpoint_id for made in await storage.list_checkpoints("Count", limit=10, after=after)]


async def verified_run(storage: CheckpointStorage) -> Sequence[Any]:
    report = await storage.verify(run_id="run3")
    assert (report.ok, report.runs) == (True, 1)
    return [report.checkpoints]


async def interrupted_runs(storage: CheckpointStorage) -> Sequence[Any]:
    return [run.run_id for run in await storage.list_runs(interrupted=True)]


async def waiting_runs(storage: CheckpointStorage) -> Sequence[Any]:
    return [run.run_id for run in await storage.list_runs(status="waiting")]


async def tree(storage: CheckpointStorage) -> Sequence[Any]:
    return (await storage.draw_tree("fork")).splitlines()


async def fill(storage: CheckpointStorage, runs: int) -> None:
    """So many runs that are over, one that waits, one that is interrupted, and a fork of one."""
    for number in range(0, runs, 4):
        await asyncio.gather(*(COUNT.run(4, f"run{number + one}", storage=storage) for one in range(4)))
    forked = (await storage.list_checkpoints(run_id="run5"))[3]
    await (await COUNT.fork(forked, run_id="fork", storage=storage)).wait_for_completion()
    await ASKING.run(1, "asks", storage=storage)
    left = await COUNT.start(4, run_id="left", storage=storage)
    await left.abandon()


@pytest.fixture
def database_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many steps the virtual machines of all databases take."""
    count = [0]
    connect = connection._connect

    def step() -> None:
        count[0] += 1

    def counting(place: Any) -> sqlite3.Connection:
        connection = connect(place)
        connection.set_progress_handler(step, 1)
        return connection

    monkeypatch.setattr(connection, "_connect", counting)
    return count


LOOKS = [first_page, second_page, verified_run, interrupted_runs, waiting_runs, tree]


async def test_looking_at_some_runs_of_a_database_costs_the_same_among_any_number(
    database_steps: list[int], tmp_path: Path
) -> None:
    costs: list[dict[str, int]] = []
    for runs in (20, 200):
        async with SqliteCheckpointStorage(tmp_path / f"{runs}.db") as storage:
            await fill(storage, runs)
        costs.append({})
        async with SqliteCheckpointStorage(tmp_path / f"{runs}.db") as storage:
            await storage.open()
            for look in LOOKS:
                before = database_steps[0]
                found = await look(storage)
                costs[-1][look.__name__] = database_steps[0] - before
                assert found, look
            assert await interrupted_runs(storage) == ["left"]
            assert await waiting_runs(storage) == ["asks"]
    for name, cost in costs[0].items():
        assert costs[1][name] <= cost * 1.2 + 50, name


class Given(Wrapped):
    """A store that knows how many heads and records it gave."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.given = 0

    async def runs(self, query: RunQuery) -> Sequence[Head]:
        found = await self.inner.runs(query)
        self.given += len(found)
        return found

    async def records(self, run_id: RunId, first: int, last: int, depth: Depth) -> Sequence[Record]:
        found = await self.inner.records(run_id, first, last, depth)
        self.given += len(found)
        return found


async def test_looking_at_some_runs_asks_no_store_for_others() -> None:
    costs: list[dict[str, int]] = []
    for runs in (20, 200):
        whole = InMemoryCheckpointStorage()
        await fill(whole, runs)
        costs.append({})
        for look in LOOKS:
            store = Given(whole.store)
            await look(CheckpointStorage(store))
            costs[-1][look.__name__] = store.given
    for name, given in costs[0].items():
        assert costs[1][name] <= given * 1.2, name


async def test_pages_over_many_runs_are_the_whole_list() -> None:
    """Runs that overlap, one of which began long ago and moves on, and one that keeps only its last checkpoints."""
    storage = InMemoryCheckpointStorage()
    slow = await ASKING.start(3, run_id="slow", storage=storage)
    for number in range(12):
        await asyncio.gather(*(COUNT.run(3, f"{number}-{one}", storage=storage) for one in range(3)))
        if number in (4, 8):
            await slow.respond({f"ask{number // 4}": "yes"})
            await soon(slow.wait_for_completion())
    kept = WorkflowBuilder(name="Kept").set_start_executor(Count).add_edge(Count, Count)
    await kept.with_retention(Retention.keep_last(3)).build().run(6, "kept", storage=storage)
    await storage.delete((await storage.list_checkpoints(run_id="5-1"))[3].checkpoint_id)
    await slow.close()
    whole = [made.checkpoint_id for made in await storage.list_checkpoints()]
    assert whole == [
        made.checkpoint_id
        for made in sorted(await storage.list_checkpoints(), key=lambda made: (made.timestamp, made.seq))
    ]
    for size in (1, 7, 50):
        pages: list[str] = []
        while page := await storage.list_checkpoints(limit=size, after=pages[-1] if pages else None):
            assert len(page) <= size
            pages += [made.checkpoint_id for made in page]
        assert pages == whole
    with pytest.raises(CheckpointNotFound, match="no such checkpoint among those that are listed"):
        await storage.list_checkpoints("Kept", after=whole[0])
