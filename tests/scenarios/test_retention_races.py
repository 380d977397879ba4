"""Whatever happens between any two things that a prune asks of the store: nothing that is kept is lost."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from holdfast import (
    CheckpointStorage,
    InMemoryCheckpointStorage,
    Retention,
    Run,
    RunStatus,
    Store,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
)
from tests.support.durable import Wrapped
from tests.support.modules import prune as pruning
from tests.support.parts import BlobReader, Commit, Depth, Digest, Head, Letter, RunId, sizes_in_note
from tests.support.retained import content
from tests.support.runs import soon
from tests.support.small_limits import small_limits

SIZE = 3_000
LATEST = Retention.latest_only()


class Stepping:
    """A run that makes a superstep when it is told to; its values come again after a while."""

    def __init__(self, retention: Retention | None = None) -> None:
        self.retention = retention
        self.steps = asyncio.Queue[None]()
        self.done = asyncio.Event()
        self.noting = False
        self.run: Run

    def build(self) -> Workflow:
        @executor(id="step")
        async def step(left: int, ctx: WorkflowContext[int, Any]) -> None:
            if self.noting:
                noted = await ctx.once("note", lambda: content(-left, SIZE))
                await ctx.queue_state_update("noted", noted, scope_name="S")
            self.done.set()
            await self.steps.get()
            await ctx.queue_state_update("toggle", content(left // 2 % 2, SIZE), scope_name="S")
            await ctx.append_state("seen", content(left, SIZE), scope_name="S")
            if left > 1:
                await ctx.send_message(left - 1)
            else:
                await ctx.yield_output(len(await ctx.read_state("seen", scope_name="S")))

        builder = WorkflowBuilder(name="Step", max_iterations=999).set_start_executor(step)
        builder.add_edge(step, step)
        return (builder if self.retention is None else builder.with_retention(self.retention)).build()

    async def start(self, storage: CheckpointStorage, steps: int) -> None:
        self.run = await self.build().start(steps, run_id="r", storage=storage)
        await soon(self.done.wait())

    async def go_on(self, steps: int) -> None:
        """Let it make so many supersteps, if there are any."""
        for _ in range(steps):
            if self.run.status is not RunStatus.RUNNING:
                return
            self.done.clear()
            self.steps.put_nowait(None)
            ended = asyncio.ensure_future(self.run.wait_for_completion())
            began = asyncio.ensure_future(self.done.wait())
            await soon(asyncio.wait([ended, began], return_when=asyncio.FIRST_COMPLETED))
            for waiting in (ended, began):
                waiting.cancel()


class Between(Wrapped):
    """A store that lets something happen before the nth thing that it is asked for."""

    def __init__(self, inner: Store, nth: int, happen: Callable[[], Awaitable[Any]]) -> None:
        super().__init__(inner)
        self.nth, self.happen, self.calls = nth, happen, 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)

        async def call(*arguments: Any) -> Any:
            self.calls += 1
            if self.calls == self.nth:
                await self.happen()
            return await method(*arguments)

        return call

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        raise AssertionError("who prunes commits nothing")


async def nothing_is_lost(storage: CheckpointStorage, stepping: Stepping, steps: int) -> None:
    """Look at everything, go on in another object, and come to the end."""
    report = await storage.verify()
    assert report.ok, report.problems
    for checkpoint in await storage.list_checkpoints():
        await storage.load(checkpoint)
    await stepping.run.close()
    stepping.done.clear()
    stepping.run = await stepping.build().resume(run_id="r", storage=storage)
    for _ in range(steps):
        stepping.steps.put_nowait(None)
    assert (await soon(stepping.run.wait_for_completion())).outputs == [steps]
    assert (await storage.verify()).ok


async def raced(
    nth: int,
    policy: Retention | None,
    happen: Callable[[CheckpointStorage, Stepping], Awaitable[Any]],
    retention: Retention | None = None,
    noting: bool = False,
    before: int = 9,
) -> bool:
    """Prune a run with something happening before the nth question to the store; whether there was one."""
    storage, steps = InMemoryCheckpointStorage(), 24
    stepping = Stepping(retention)
    stepping.noting = noting
    await stepping.start(storage, steps)
    await stepping.go_on(before)
    between = Between(storage.store, nth, lambda: happen(storage, stepping))
    await CheckpointStorage(between).prune(policy)
    await nothing_is_lost(storage, stepping, steps)
    return between.calls >= nth


async def at_every_moment(
    happen: Callable[[CheckpointStorage, Stepping], Awaitable[Any]], policy: Retention = LATEST, **how: Any
) -> int:
    """Let something happen at every moment of a prune; how many there were."""
    nth = 1
    with small_limits(inline=512, keyframe=900, largest_part=1 << 18, compress=1 << 20):
        while await raced(nth, policy, happen, **how):
            nth += 1
    return nth - 1


def going_on(steps: int) -> Callable[[CheckpointStorage, Stepping], Awaitable[None]]:
    return lambda storage, stepping: stepping.go_on(steps)


@pytest.mark.parametrize("steps", [1, 2, 3, 12])
@pytest.mark.parametrize("noting", [False, True], ids=["", "noting"])
@pytest.mark.parametrize("retention", [None, LATEST], ids=["full history", "latest only"])
async def test_the_run_goes_on_meanwhile(steps: int, noting: bool, retention: Retention | None) -> None:
    assert await at_every_moment(going_on(steps), retention=retention, noting=noting) > 7


@pytest.mark.parametrize("policy", [LATEST, Retention.keep_last(2)])
async def test_someone_else_prunes_meanwhile(policy: Retention) -> None:
    async def prune(storage: CheckpointStorage, stepping: Stepping) -> None:
        await storage.prune(policy)
        await stepping.go_on(2)
        await storage.prune(policy)

    assert await at_every_moment(prune) > 8


async def test_a_fork_begins_and_its_origin_is_pruned_meanwhile() -> None:
    async def fork(storage: CheckpointStorage, stepping: Stepping) -> None:
        there = await storage.list_checkpoints(run_id="r")
        forked = await stepping.build().fork(there[len(there) // 2], storage=storage)
        await forked.close()
        await storage.prune(LATEST, run_id="r")

    for policy in (LATEST, Retention.full_history()):
        assert await at_every_moment(fork, policy, noting=True) > 4


async def test_the_run_is_taken_back_meanwhile() -> None:
    async def take_back(storage: CheckpointStorage, stepping: Stepping) -> None:
        there = await storage.list_checkpoints(run_id="r")
        await stepping.run.close()
        stepping.done.clear()
        stepping.run = await stepping.build().resume(there[len(there) // 2], storage=storage)
        await soon(stepping.done.wait())

    assert await at_every_moment(take_back) > 8


async def test_the_run_is_deleted_and_made_again_meanwhile() -> None:
    async def make_again(storage: CheckpointStorage, stepping: Stepping) -> None:
        await stepping.run.close()
        await storage.delete_run("r")
        stepping.done.clear()
        await stepping.start(storage, 24)
        await stepping.go_on(5)

    assert await at_every_moment(make_again) > 8


# -- these tests would notice ----------------------------------------------------------------------


def _discard_ignores_the_mark(patch: pytest.MonkeyPatch) -> None:
    from tests.support.parts import MemoryStore

    straight = MemoryStore.discard

    async def discard(self: MemoryStore, family: RunId, mark: int, digests: Sequence[Digest]) -> int:
        return await straight(self, family, 1 << 60, digests)

    patch.setattr(MemoryStore, "discard", discard)


def _reads_the_journal_last(patch: pytest.MonkeyPatch) -> None:
    """What is noted becomes a record after the records were read, and before the journal is."""

    async def named_by(store: Store, head: Head, blobs: BlobReader, but: Any) -> pruning._NamedBlobs:
        named: set[Digest] = set()
        latest = await store.head(head.run_id) or head
        for record in await store.records(head.run_id, 1, latest.seq, Depth.ALL):
            named |= await pruning._digests_in(store, record, blobs)
        for note in await store.notes(head.run_id):
            named |= sizes_in_note(note).keys()
        return pruning._NamedBlobs(named, 0)

    patch.setattr(pruning, "_find_named_by_run", named_by)


def _forks_need_nothing(patch: pytest.MonkeyPatch) -> None:
    from tests.support.parts import MemoryStore

    straight = MemoryStore.commit

    async def commit(self: MemoryStore, commit: Commit) -> Sequence[Letter]:
        return await straight(self, commit._replace(needs=()))

    patch.setattr(MemoryStore, "commit", commit)


@pytest.mark.parametrize(
    ("bug", "test"),
    [
        (_discard_ignores_the_mark, lambda: test_the_run_goes_on_meanwhile(3, False, None)),
        (_reads_the_journal_last, lambda: test_the_run_goes_on_meanwhile(1, True, LATEST)),
        (_forks_need_nothing, test_a_fork_begins_and_its_origin_is_pruned_meanwhile),
    ],
    ids=["the mark is ignored", "the journal is read last", "forks need nothing"],
)
async def test_a_planted_bug_is_found(
    bug: Callable[[pytest.MonkeyPatch], None], test: Callable[[], Awaitable[None]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        bug(patch)
        with pytest.raises(Exception, match=r"missing|lost|verify|Problem|corrupt"):
            await test()
