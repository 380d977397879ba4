"""What may happen to a run while something else happens to it: answers, cancels, commits that fail or are in doubt."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast import (
    CheckpointStorage,
    Executor,
    RunStatus,
    RunTaken,
    StorageError,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    response_handler,
)
from tests.support.inside import recorder_of, runner_of
from tests.support.modules import lifecycle
from tests.support.parts import NO_RUN_CONTEXT, Commit, LeaveResult, Letter, MemoryStore, RunId, RunStart
from tests.support.runs import soon

effects: list[bool] = []


@pytest.fixture(autouse=True)
def _no_effects() -> None:
    effects.clear()


class Ask(Executor):
    @handler
    async def ask(self, text: str, ctx: WorkflowContext) -> None:
        await ctx.request_info(text, response_type=bool, request_id="q")

    @response_handler
    async def answered(self, text: str, answer: bool, ctx: WorkflowContext[None, bool]) -> None:
        effects.append(answer)
        await ctx.yield_output(answer)


def asking(storage: CheckpointStorage) -> Workflow:
    return WorkflowBuilder(name="Ask").set_start_executor(Ask).with_checkpointing(storage).build()


class Gated(MemoryStore):
    """A store whose next call of each kind may be told to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.entered: dict[str, asyncio.Event] = {}
        self.opened: dict[str, asyncio.Event] = {}
        self.fails = False

    def gate(self, name: str) -> None:
        self.entered[name], self.opened[name] = asyncio.Event(), asyncio.Event()

    async def _pass(self, name: str) -> None:
        if name in self.entered:
            self.entered.pop(name).set()
            await self.opened[name].wait()

    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        left = await super().leave(run_id, since, letters, most)
        await self._pass("left")
        return left

    async def inbox(self, run_id: RunId) -> Sequence[Letter]:
        letters = await super().inbox(run_id)
        await self._pass("inbox")
        return letters

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        await self._pass("cancelling" if commit.head.status is RunStatus.CANCELLED else "answering")
        if self.fails and commit.taken:
            self.fails = False
            raise StorageError("the disk is full")
        return await super().commit(commit)


async def test_an_answer_does_not_bring_back_a_run_that_is_being_cancelled() -> None:
    """Nothing may happen after cancel() returned; the answer is in the inbox, for whoever resumes the run."""
    store = Gated()
    storage = CheckpointStorage(store)
    run = await asking(storage).start("?", run_id="mine")
    await soon(run.wait_for_completion())
    left = store.entered["left"] = asyncio.Event()
    store.opened["left"] = asyncio.Event()
    store.gate("cancelling")
    cancelling = store.entered["cancelling"]
    answering = asyncio.ensure_future(run.respond({"q": True}))
    await soon(left.wait())
    leaving = asyncio.ensure_future(run.cancel())
    await soon(cancelling.wait())
    store.opened["left"].set()
    await soon(answering)
    store.opened["cancelling"].set()
    await soon(leaving)
    for _ in range(20):
        await asyncio.sleep(0)
    assert run.status is RunStatus.CANCELLED
    assert (await storage.list_runs())[0].status is RunStatus.CANCELLED
    assert effects == []
    resumed = await asking(storage).resume(run_id="mine")
    assert (await soon(resumed.wait_for_completion())).outputs == [True]


async def test_who_looks_while_a_commit_is_under_way_loses_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit that takes an answer fails: the answer has to be there still."""
    monkeypatch.setattr(lifecycle, "_INBOX_SECONDS", 0.001)
    store = Gated()
    storage = CheckpointStorage(store)
    run = await asking(storage).start("?", run_id="mine")
    await soon(run.wait_for_completion())
    store.fails = True
    entered = store.entered["answering"] = asyncio.Event()
    store.opened["answering"] = asyncio.Event()
    await run.respond({"q": True})
    await soon(entered.wait())
    await asyncio.sleep(0.02)  # looks now and then
    store.opened["answering"].set()
    with pytest.raises(StorageError):
        await soon(run.wait_for_completion())
    resumed = await asking(storage).resume(run_id="mine")
    assert (await soon(resumed.wait_for_completion())).outputs == [True]
    assert effects == [True]


async def test_an_owner_in_doubt_is_not_taken_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two take over at once, and of the first nobody knows whether its commit happened: one of them owns the run."""
    store = MemoryStore()
    storage = CheckpointStorage(store)
    workflow = asking(storage)
    begun = workflow._new_run(RunStart("?", None, NO_RUN_CONTEXT), "mine", None)
    await begun.open()
    recorder_of(begun).release_claim()
    winner: list[Any] = []
    real = store.commit

    async def doubtful(commit: Commit) -> Sequence[Letter]:
        monkeypatch.setattr(store, "commit", real)
        winner.append(await workflow.resume(run_id="mine"))
        raise StorageError("it may have happened or not")

    monkeypatch.setattr(store, "commit", doubtful)
    with pytest.raises((StorageError, RunTaken)):
        await workflow.resume(run_id="mine")
    assert (await soon(winner[0].wait_for_completion())).status is RunStatus.WAITING


async def test_a_cancel_that_came_too_late_does_not_cancel_a_resume() -> None:
    """It was meant for a run that failed before it saw the letter."""
    entered, go_on = asyncio.Event(), asyncio.Event()
    broken = True

    class Work(Executor):
        @handler
        async def work(self, text: str, ctx: WorkflowContext[None, str]) -> None:
            entered.set()
            await go_on.wait()
            if broken:
                raise ValueError("broken")
            await ctx.yield_output(text)

    storage = CheckpointStorage(MemoryStore())
    workflow = WorkflowBuilder(name="Work").set_start_executor(Work).with_checkpointing(storage).build()
    run = await workflow.start("x", run_id="mine")
    await soon(entered.wait())
    await storage.cancel("mine")
    go_on.set()
    with pytest.raises(Exception, match="broken"):
        await soon(run.wait_for_completion())
    broken = False
    resumed = await workflow.resume(run_id="mine")
    assert (await soon(resumed.wait_for_completion())).outputs == ["x"]


async def test_a_resume_that_is_given_up_leaves_the_run_as_it_was() -> None:
    class Boom(Executor):
        @handler
        async def work(self, text: str, ctx: WorkflowContext) -> None:
            raise ValueError("boom")

    class Slow(MemoryStore):
        slow = False

        async def join(self) -> None:
            if self.slow:
                await asyncio.sleep(3600)
            await super().join()

    store = Slow()
    storage = CheckpointStorage(store)
    workflow = WorkflowBuilder(name="Boom").set_start_executor(Boom).with_checkpointing(storage).build()
    with pytest.raises(Exception, match="boom"):
        await workflow.run("x", run_id="mine")
    before = await store.head(RunId("mine"))
    store.slow = True
    resuming = asyncio.ensure_future(workflow.resume(run_id="mine"))
    for _ in range(20):
        await asyncio.sleep(0)
    resuming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await resuming
    assert await store.head(RunId("mine")) == before


class Say(Executor):
    """Keeps what it is told, each once a test lets it go on."""

    def __init__(self, entered: asyncio.Queue[tuple[str, asyncio.Event]]) -> None:
        super().__init__()
        self.entered = entered

    @handler
    async def say(self, text: str, ctx: WorkflowContext) -> None:
        go_on = asyncio.Event()
        self.entered.put_nowait((text, go_on))
        await go_on.wait()
        await ctx.append_state("said", text, scope_name="S")


async def test_a_message_is_delivered_once_though_a_look_into_the_inbox_ends_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The look began before the commit that takes the message, and ends while the message is worked on."""
    monkeypatch.setattr(lifecycle, "_INBOX_SECONDS", 0.001)
    store, entered = Gated(), asyncio.Queue[tuple[str, asyncio.Event]]()
    storage = CheckpointStorage(store)
    builder = WorkflowBuilder(name="Say").set_start_executor(Say(entered))
    run = await builder.with_checkpointing(storage).build().start("one", run_id="r")
    _, one_is_done = await soon(entered.get())
    await storage.send("r", "two")
    while not runner_of(run).inputs.waiting:  # noqa: ASYNC110  # a first look finds it
        await asyncio.sleep(0.001)
    store.gate("inbox")
    looked = store.entered["inbox"]
    await soon(looked.wait())
    one_is_done.set()
    text, two_is_done = await soon(entered.get())
    store.opened["inbox"].set()
    for _ in range(50):
        await asyncio.sleep(0)
    two_is_done.set()
    assert text == "two"
    assert (await soon(run.wait_for_completion())).status is RunStatus.COMPLETED
    assert (await storage.load((await storage.get_run("r")).checkpoint_id)).scopes["S"]["said"] == [
        "one",
        "two",
    ]
