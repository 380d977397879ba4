"""Removing whole runs that have been over for some time."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import (
    CheckpointStorage,
    Executor,
    RunNotFound,
    RunStatus,
    Store,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    response_handler,
)
from holdfast.errors import InvalidArgument, WrongType
from holdfast.testing import VirtualTime
from tests.support.durable import Place, Wrapped, head_of, wrapped
from tests.support.modules import old_runs
from tests.support.parts import Commit, Expected, KnownMarks, RunId

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
MONTH = timedelta(days=30)
BIG = "kelp" * 100_000


class Work(Executor):
    """Completes, fails or asks, as its message says; keeps a big value."""

    @handler
    async def work(self, what: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.queue_state_update("big", f"{what} {BIG}", scope_name="S")
        if what == "fail":
            raise ValueError("no")
        if what == "ask":
            await ctx.request_info("go on?", response_type=bool, request_id="q")
        else:
            await ctx.yield_output(what)

    @response_handler
    async def answered(self, asked: str, yes: bool, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(f"{asked} {yes}")


def workflow(storage: CheckpointStorage) -> Workflow:
    return WorkflowBuilder(name="Work").set_start_executor(Work).with_checkpointing(storage).build()


async def make(storage: CheckpointStorage, run_id: str, what: str = "done", long_ago: bool = True) -> None:
    """Make a run, in 2020 unless it is to be a new one."""
    with VirtualTime(LONG_AGO) if long_ago else VirtualTime(datetime.now(UTC)):
        try:
            await workflow(storage).run(what, run_id=run_id)
        except Exception:
            assert what == "fail"


async def leave_as(storage: CheckpointStorage, run_id: str, status: RunStatus) -> None:
    """Give a run another status, as if whoever drove it had ended that way."""
    head = await head_of(storage, run_id)
    changed = head._replace(status=status, token=head.token + 1)
    await storage.store.commit(Commit(changed, Expected(head.checkpoint_id, head.token)))


async def ids(storage: CheckpointStorage) -> set[str]:
    return {run.run_id for run in await storage.list_runs(limit=None)}


async def blobs_of(storage: CheckpointStorage, family: str) -> int:
    return len((await storage.store.mark(RunId(family))).sizes)


async def test_runs_that_are_over_for_long_go_with_their_values(place: Place) -> None:
    storage = place.storage
    await make(storage, "done")
    await make(storage, "failed", "fail")
    await make(storage, "waits", "ask")
    await make(storage, "new", long_ago=False)
    assert await blobs_of(storage, "done")
    would = await storage.prune_runs(MONTH, dry_run=True)
    assert await ids(storage) == {"done", "failed", "waits", "new"}

    report = await storage.prune_runs(MONTH)
    assert set(report.run_ids) == {"done", "failed"}
    assert (report.runs, report.blobs, report.skipped) == (2, 1, 0)
    assert report.bytes > 0
    assert (would.runs, would.checkpoints, would.blobs, would.bytes) == (
        report.runs,
        report.checkpoints,
        report.blobs,
        report.bytes,
    )
    storage = await place.reopened()
    assert await ids(storage) == {"waits", "new"}
    assert await blobs_of(storage, "done") == 0
    assert (await storage.verify()).ok
    with pytest.raises(RunNotFound):
        await workflow(storage).resume(run_id="done")
    assert (await storage.prune_runs(MONTH)).runs == 0


async def test_a_status_narrows_it(storage: CheckpointStorage) -> None:
    await make(storage, "done")
    await make(storage, "failed", "fail")
    assert (await storage.prune_runs(MONTH, status=RunStatus.FAILED)).run_ids == ("failed",)
    assert await ids(storage) == {"done"}


async def test_cancelled_and_stopped_runs_go(place: Place) -> None:
    storage = place.storage
    await make(storage, "cancelled", "ask")
    await storage.cancel("cancelled")
    await make(storage, "stopped", "ask")
    await leave_as(storage, "stopped", RunStatus.STOPPED)
    assert set((await storage.prune_runs(timedelta(0))).run_ids) == {"cancelled", "stopped"}


async def test_a_fork_keeps_what_it_shares_with_the_removed_run(place: Place) -> None:
    storage = place.storage
    await make(storage, "origin", "ask")
    first = await storage.get_latest(run_id="origin")
    assert first is not None
    fork = await workflow(storage).fork(first, run_id="fork")
    await fork.close()
    await storage.cancel("origin")
    would = await storage.prune_runs(timedelta(0), status="cancelled", dry_run=True)
    report = await storage.prune_runs(timedelta(0), status="cancelled")
    assert report.run_ids == would.run_ids == ("origin",)
    assert report.blobs == would.blobs == 0

    storage = await place.reopened()
    latest = await storage.get_latest(run_id="fork")
    assert latest is not None
    assert (await storage.load(latest)).scopes["S"]["big"] == f"ask {BIG}"
    run = await workflow(storage).resume(run_id="fork", responses={"q": True})
    assert (await run.wait_for_completion()).outputs == ["go on? True"]
    assert (await storage.verify()).ok


async def test_a_run_with_a_tag_or_with_letters_stays_and_is_counted(place: Place) -> None:
    storage = place.storage
    for run_id in ("tagged", "written", "plain"):
        await make(storage, run_id, "ask")
    latest = await storage.get_latest(run_id="tagged")
    assert latest is not None
    await storage.tag(latest, "keep")
    for run_id in ("tagged", "plain"):
        await storage.cancel(run_id)
    await storage.respond("written", {"q": True})
    await leave_as(storage, "written", RunStatus.STOPPED)
    report = await storage.prune_runs(timedelta(0))
    assert report.run_ids == ("plain",)
    assert report.skipped == 2
    assert await ids(storage) == {"tagged", "written"}


class Meanwhile(Wrapped):
    """Lets something happen right before a run is removed."""

    def __init__(self, inner: Store, happens: Callable[[], Any]) -> None:
        super().__init__(inner)
        self._happens = happens

    async def remove_run(self, run_id: RunId, expected: Expected, known: KnownMarks | None = None) -> bool:
        await self._happens()
        return await self.inner.remove_run(run_id, expected, known)


async def test_a_run_that_is_resumed_meanwhile_stays(place: Place) -> None:
    await make(place.storage, "failed", "fail")
    await make(place.storage, "other", "fail")
    taken: list[Any] = []

    async def resume() -> None:
        if not taken:
            run = await workflow(place.storage).resume(run_id="failed")
            taken.append(run)
            try:
                await run.wait_for_completion()
            except Exception:
                pass

    storage = wrapped(place.storage, lambda inner: Meanwhile(inner, resume))
    report = await storage.prune_runs(MONTH)
    assert (report.run_ids, report.skipped) == (("other",), 1)
    assert await ids(place.storage) == {"failed"}
    assert (await place.storage.verify()).ok


@pytest.mark.parametrize("what", ["letter", "tag"])
async def test_a_run_that_gets_a_letter_or_a_tag_meanwhile_stays(place: Place, what: str) -> None:
    storage = place.storage
    await make(storage, "done")
    await make(storage, "other")
    (first, *_) = await storage.list_checkpoints(run_id="done")

    async def arrive() -> None:
        if what == "letter":
            await storage.send("done", "more")
        else:
            await storage.tag(first, "kept")

    report = await wrapped(storage, lambda inner: Meanwhile(inner, once(arrive))).prune_runs(MONTH)
    assert (report.run_ids, report.skipped) == (("other",), 1)
    if what == "letter":
        result = await (await workflow(storage).resume(run_id="done")).wait_for_completion()
        assert result.outputs == ["more"]
    else:
        assert (await storage.list_checkpoints(run_id="done"))[0].tags == ("kept",)


def once(happens: Callable[[], Any]) -> Callable[[], Any]:
    """Let something happen the first time only."""
    left = [happens]

    async def happen() -> None:
        if left:
            await left.pop()()

    return happen


async def test_a_run_of_which_a_checkpoint_was_deleted_is_pruned(place: Place) -> None:
    await make(place.storage, "done")
    (first, *_) = await place.storage.list_checkpoints(run_id="done")
    await place.storage.delete(first)
    assert (await place.storage.prune_runs(MONTH)).run_ids == ("done",)


async def test_a_run_that_someone_else_removes_meanwhile_is_skipped(place: Place) -> None:
    await make(place.storage, "done")

    async def remove() -> None:
        await place.storage.delete_run("done")

    report = await wrapped(place.storage, lambda inner: Meanwhile(inner, remove)).prune_runs(MONTH)
    assert (report.runs, report.skipped) == (0, 1)


async def test_it_may_be_interrupted_and_leaves_no_values_behind(place: Place) -> None:
    for number in range(4):
        await make(place.storage, f"r{number}")

    def stop(done: int, total: int) -> None:
        assert total == 4
        if done == 2:
            raise KeyError("enough")

    with pytest.raises(KeyError):
        await place.storage.prune_runs(MONTH, progress=stop)
    left = await ids(place.storage)
    assert len(left) == 2
    for number in range(4):
        assert await blobs_of(place.storage, f"r{number}") == (f"r{number}" in left)
    assert (await place.storage.prune_runs(MONTH)).runs == 2


async def test_a_cancelled_prune_sweeps_the_family_that_it_began(place: Place) -> None:
    await make(place.storage, "done")
    await make(place.storage, "other")

    async def cancel() -> None:
        if first:
            first.pop()
        else:
            prune.cancel()

    first = [True]
    storage = wrapped(place.storage, lambda inner: Meanwhile(inner, cancel))
    prune = asyncio.ensure_future(storage.prune_runs(MONTH))
    with pytest.raises(asyncio.CancelledError):
        await prune
    left = await ids(place.storage)
    for run_id in ("done", "other"):
        assert await blobs_of(place.storage, run_id) == (run_id in left)
    assert (await place.storage.prune_runs(MONTH)).runs == len(left)


async def test_many_pages_of_runs_and_a_bounded_list_of_ids(
    storage: CheckpointStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(old_runs, "_PAGE", 2)
    monkeypatch.setattr(old_runs, "_MOST_IDS", 3)
    for number in range(5):
        await make(storage, f"r{number}")
    report = await storage.prune_runs(MONTH)
    assert (report.runs, len(report.run_ids)) == (5, 3)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"older_than": 30}, WrongType, "older_than=30: give a timedelta"),
        ({"older_than": timedelta(-1)}, InvalidArgument, "must not be negative"),
        ({"status": "running"}, InvalidArgument, "only runs that are over can be pruned"),
        ({"status": RunStatus.WAITING}, InvalidArgument, "only runs that are over can be pruned"),
        ({"status": "gone"}, InvalidArgument, "there is no such status"),
        ({"dry_run": 1}, WrongType, "dry_run=1"),
        ({"progress": 1}, WrongType, "progress=1"),
    ],
)
async def test_wrong_arguments_are_refused(
    storage: CheckpointStorage, given: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        await storage.prune_runs(**given)


async def test_a_span_longer_than_time_itself_removes_nothing(storage: CheckpointStorage) -> None:
    await make(storage, "done")
    assert (await storage.prune_runs(timedelta.max)).runs == 0
