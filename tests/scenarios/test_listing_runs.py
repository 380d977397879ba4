"""Lists of runs for people: the newest first, by times, by text, and how many there are."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    CheckpointStorage,
    Executor,
    ExecutorFailed,
    ForkOrigin,
    HoldfastError,
    Host,
    InMemoryCheckpointStorage,
    InvalidArgument,
    RequestExpired,
    Retention,
    RunNotFound,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WrongType,
    executor,
    handler,
    open_storage,
    response_handler,
)


async def test_a_fork_says_where_it_comes_from(storage: CheckpointStorage) -> None:
    run = await doubling().start(1, run_id="first", storage=storage)
    await run.wait_for_completion()
    begun = run.checkpoints[0]
    for name in ("fork", "other"):
        await (await doubling().fork(begun, run_id=name, storage=storage)).wait_for_completion()
    end = (await storage.list_checkpoints(run_id="fork"))[-1]
    await (await doubling().fork(end, run_id="of fork", storage=storage)).wait_for_completion()
    found = {info.run_id: info.forked_from for info in await storage.list_runs()}
    assert found == {
        "first": None,
        "fork": ForkOrigin("first", begun.checkpoint_id),
        "other": ForkOrigin("first", begun.checkpoint_id),
        "of fork": ForkOrigin("fork", end.checkpoint_id),
    }
    assert await ids(storage, forked_from="first") == ["fork", "other"]
    assert await ids(storage, forked_from="first", newest_first=True, status="completed") == ["other", "fork"]
    assert await ids(storage, forked_from="fork") == ["of fork"]
    assert await ids(storage, forked_from="nobody") == []
    # A fork that goes back is still the fork that it was, and so it is where the first run is gone.
    run = await doubling().resume(run_id="fork", storage=storage)
    await run.restore_checkpoint((await storage.list_checkpoints(run_id="fork"))[0])
    await run.wait_for_completion()
    await storage.prune(Retention.latest_only())
    await storage.delete_run("first")
    assert await ids(storage, forked_from="first") == ["fork", "other"]
    (info,) = await storage.list_runs(forked_from="fork")
    assert info.to_dict()["forked_from"] == {"run_id": "fork", "checkpoint_id": end.checkpoint_id}


async def test_a_fork_that_moves_to_another_storage_says_where_it_comes_from(
    storage: CheckpointStorage, tmp_path: Path
) -> None:
    run = await doubling().start(1, run_id="first", storage=storage)
    await run.wait_for_completion()
    fork = await doubling().fork(run.checkpoints[0], run_id="fork", storage=storage)
    await fork.wait_for_completion()
    await storage.export_run("fork", tmp_path / "fork.export")
    other = InMemoryCheckpointStorage()
    moved = await other.import_run(tmp_path / "fork.export")
    assert moved.forked_from == ForkOrigin("first", run.checkpoints[0].checkpoint_id)


NAIVE = datetime(2026, 5, 1, tzinfo=UTC).replace(tzinfo=None)


@executor(id="double")
def double(number: int) -> int:
    return 20 // number


def doubling(name: str = "Double") -> Workflow:
    return WorkflowBuilder(name=name).set_start_executor(double).build()


@pytest.fixture(params=["memory", "file", "sqlite"])
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[CheckpointStorage]:
    urls = {"memory": "memory:", "file": f"file:{tmp_path}/runs", "sqlite": f"sqlite:///{tmp_path}/runs.db"}
    async with open_storage(urls[request.param]) as storage:
        yield storage


async def ids(storage: CheckpointStorage, **filters: Any) -> list[str]:
    found = await storage.list_runs(**filters)
    if "after" not in filters and "limit" not in filters:
        counted = {name: value for name, value in filters.items() if name != "newest_first"}
        assert await storage.count_runs(**counted) == len(found)
    return [run.run_id for run in found]


async def test_the_newest_come_first_and_the_last_page_knows_where_it_ended(
    storage: CheckpointStorage,
) -> None:
    for number in range(5):
        await doubling().run(1, run_id=f"r{number}", storage=storage)
    assert await ids(storage, newest_first=True) == ["r4", "r3", "r2", "r1", "r0"]
    first = await storage.list_runs(newest_first=True, limit=2)
    # The run that ended the page and one that was to come move on; another one begins.
    for run_id in ("r3", "r1"):
        run = await doubling().resume(run_id=run_id, storage=storage)
        await run.restore_checkpoint(run.checkpoints[0])
        await run.wait_for_completion()
    await doubling().run(1, run_id="r5", storage=storage)
    assert await ids(storage, newest_first=True, after=first[-1]) == ["r2", "r0"]
    assert await ids(storage, newest_first=True) == ["r5", "r1", "r3", "r4", "r2", "r0"]
    # An id alone means the place where the run is now.
    assert await ids(storage, newest_first=True, after="r3") == ["r4", "r2", "r0"]


async def test_one_run_is_listed_by_its_id(storage: CheckpointStorage) -> None:
    for name in ("first", "second"):
        await doubling().run(1, run_id=name, storage=storage)
    assert [await storage.get_run("first"), await storage.get_run("second")] == await storage.list_runs()
    with pytest.raises(RunNotFound, match="third"):
        await storage.get_run("third")


async def test_pages_go_on_behind_a_run_that_was_removed(storage: CheckpointStorage) -> None:
    for number in range(4):
        await doubling().run(1, run_id=f"r{number}", storage=storage)
    oldest = await storage.list_runs(limit=2)
    newest = await storage.list_runs(limit=3, newest_first=True)
    await storage.delete_run("r1")
    assert await ids(storage, after=oldest[-1]) == ["r2", "r3"]
    assert await ids(storage, after=newest[-1], newest_first=True) == ["r0"]
    with pytest.raises(RunNotFound, match="r1"):
        await storage.list_runs(after="r1")


async def test_runs_by_times(storage: CheckpointStorage) -> None:
    for number in range(3):
        await doubling().run(1, run_id=f"r{number}", storage=storage)
    _, second, third = await storage.list_runs()
    assert await ids(storage, created_after=second.created) == ["r1", "r2"]
    assert await ids(storage, created_before=second.created) == ["r0"]
    assert await ids(storage, updated_after=third.updated) == ["r2"]
    assert await ids(storage, updated_before=third.updated, newest_first=True) == ["r1", "r0"]
    elsewhere = second.created.astimezone(timezone(timedelta(hours=9)))
    assert await ids(storage, created_after=elsewhere, created_before=third.created) == ["r1"]
    assert await ids(storage, updated_after=datetime.now(UTC) + timedelta(days=9000)) == []
    assert await ids(storage, updated_after=datetime.min.replace(tzinfo=UTC)) == ["r0", "r1", "r2"]


async def test_runs_by_text(storage: CheckpointStorage) -> None:
    await doubling("Refunds").run(1, run_id="order-17", storage=storage)
    await doubling("ORDERS").run(1, run_id="a", storage=storage)
    with pytest.raises(ExecutorFailed):
        await doubling().run(0, run_id="b", storage=storage)
    await doubling().run(1, run_id="c", storage=storage)
    await storage.tag((await storage.list_checkpoints(run_id="c"))[0], "Before the order")
    await doubling().run(2, run_id="d", storage=storage)
    assert await ids(storage, text="order") == ["order-17", "a", "c"]
    assert await ids(storage, text="ORDER", newest_first=True) == ["c", "a", "order-17"]
    assert await ids(storage, text="zerodivision") == ["b"]
    assert await ids(storage, text="order", workflow_name="Double") == ["c"]
    assert await ids(storage, text="%") == []
    assert await ids(storage, text="20") == []  # a value
    assert len(await ids(storage, text="")) == 5
    assert await ids(storage, text="order", interrupted=True) == []
    assert await ids(storage, text="order", interrupted=False) == ["order-17", "a", "c"]


@pytest.mark.parametrize("verb", ["list_runs", "count_runs"])
@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"created_after": NAIVE}, InvalidArgument, "created_after.*no time zone.*tzinfo=UTC"),
        ({"updated_before": NAIVE}, InvalidArgument, "updated_before.*no time zone"),
        ({"created_before": "yesterday"}, WrongType, "created_before='yesterday'.*datetime"),
        ({"updated_after": 17}, WrongType, "updated_after=17.*datetime"),
        ({"text": 17}, WrongType, "text=17"),
        ({"status": "asleep"}, InvalidArgument, "asleep"),
    ],
)
async def test_bad_filters_are_named(
    verb: str, arguments: dict[str, Any], error: type[HoldfastError], words: str
) -> None:
    with pytest.raises(error, match=words):
        await getattr(InMemoryCheckpointStorage(), verb)(**arguments)


async def test_newest_first_is_a_flag() -> None:
    with pytest.raises(WrongType, match="newest_first='yes'"):
        await InMemoryCheckpointStorage().list_runs(newest_first="yes")  # type: ignore[arg-type]


class Asks(Executor):
    @handler
    async def ask(self, text: str, ctx: WorkflowContext[str]) -> None:
        if "q" in text:
            await ctx.request_info("sure?", response_type=bool, request_id="q")
        if "e" in text:
            await ctx.request_info("soon?", response_type=bool, request_id="e", expires=timedelta(hours=2))
        if "s" in text:
            await ctx.send_message(text)

    @response_handler
    async def answered(self, request: str, answer: bool | RequestExpired, ctx: WorkflowContext[None]) -> None:
        pass


class Sleeps(Executor):
    @handler
    async def sleep(self, text: str, ctx: WorkflowContext[None]) -> None:
        await ctx.sleep(timedelta(hours=1))


@pytest.mark.parametrize(
    ("text", "waiting_for", "hours"),
    [
        ("q", ("answers",), None),
        ("e", ("answers",), 2),
        ("qe", ("answers",), 2),
        ("s", ("time",), 1),
        ("qs", ("answers", "time"), 1),
        ("es", ("answers", "time"), 1),
        ("qes", ("answers", "time"), 1),
    ],
)
async def test_a_run_that_waits_says_for_whom_and_until_when(
    text: str, waiting_for: tuple[str, ...], hours: int | None
) -> None:
    """For a person, for a time, or both; a question that expires is for a person, and wakes the run by itself."""
    storage = InMemoryCheckpointStorage()
    asking = WorkflowBuilder(name="Waits").set_start_executor(Asks).add_edge(Asks, Sleeps).build()
    run = await asking.start(text, run_id="r", storage=storage)
    async with asyncio.timeout(10):
        while run.status == "running":  # noqa: ASYNC110
            await asyncio.sleep(0)
    (info,) = await storage.list_runs()
    assert (info.status, info.waiting_for) == ("waiting", waiting_for)
    # Less than a minute passed since the run began, or the test would have ended.
    assert hours == (
        None if info.wake_at is None else round((info.wake_at - info.created) / timedelta(hours=1))
    )
    assert (run.waiting_for, run.wake_at) == (info.waiting_for, info.wake_at)
    if "e" in text and "s" not in text:
        await storage.respond("r", {"e": True})
        await Host(storage, asking).wake_due()
        (info,) = await storage.list_runs()
        assert (info.waiting_for, info.wake_at) == ((("answers",), None) if "q" in text else ((), None))
    await run.close()
