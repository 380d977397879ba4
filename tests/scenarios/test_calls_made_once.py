"""Calls with a key on a run: each is made once in the life of the run, by whomever and wherever it is repeated."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import (
    AlreadyResumed,
    Cause,
    CheckpointNotFound,
    CheckpointStorage,
    Executor,
    ExecutorFailed,
    InvalidArgument,
    KeyReused,
    Run,
    RunStatus,
    RunTaken,
    StorageError,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
    handler,
    response_handler,
)
from tests.support.durable import ON_DISK, Place, Wrapped, everything, info_of_run, storage_at
from tests.support.parts import Commit, Expected, Head, LeaveResult, Letter, RunId, Store
from tests.support.runs import soon

tries: list[str] = []
entered, go_on = asyncio.Event(), asyncio.Event()


class Brittle(Executor):
    """Fails, waits or asks if it is told to."""

    @handler
    async def act(self, text: str, ctx: WorkflowContext[None, str]) -> None:
        tries.append(text)
        if text == "fail":
            raise ValueError("broken")
        if text == "slow":
            entered.set()
            await go_on.wait()
        if text == "ask":
            await ctx.request_info("sure?", response_type=bool)
        await ctx.yield_output(text)

    @response_handler
    async def answered(self, question: str, yes: bool, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(f"answer {yes}")


def brittle_workflow(storage: CheckpointStorage) -> Workflow:
    return WorkflowBuilder(name="Brittle").set_start_executor(Brittle).with_checkpointing(storage).build()


async def failed(storage: CheckpointStorage) -> Workflow:
    """Return a workflow with the run ``r``, which failed."""
    workflow = brittle_workflow(storage)
    with pytest.raises(ExecutorFailed):
        await soon(workflow.run("fail", run_id="r"))
    return workflow


@pytest.fixture(autouse=True)
def _fresh() -> None:
    global entered, go_on
    entered, go_on = asyncio.Event(), asyncio.Event()
    tries.clear()


async def resume(workflow: Workflow, key: str) -> None:
    with pytest.raises(ExecutorFailed):
        await soon((await workflow.resume(run_id="r", key=key)).wait_for_completion())


# -- resume ----------------------------------------------------------------------------------------


async def test_a_resume_with_a_key_happens_once(place: Place) -> None:
    await resume(await failed(place.storage), "k")
    for _ in range(2):  # at once, and where nobody remembers anything
        before = (await everything(place.storage, "r"))[:2]
        workflow = brittle_workflow(place.storage)
        with pytest.raises(
            AlreadyResumed, match="run 'r' was resumed with key='k' before, so nothing was done"
        ):
            await workflow.resume(run_id="r", key="k")
        with pytest.raises(KeyReused, match="key='k': another call resumed run 'r' with this key"):
            await workflow.resume(run_id="r", key="k", allow_graph_change=True)
        assert (await everything(place.storage, "r"))[:2] == before
        await place.reopened()
    assert tries == ["fail"] * 2
    await resume(brittle_workflow(place.storage), "another")
    assert tries == ["fail"] * 3
    assert (await place.storage.verify()).ok


async def test_a_key_does_not_stand_for_another_checkpoint(place: Place) -> None:
    workflow = await failed(place.storage)
    first = (await place.storage.list_checkpoints(run_id="r"))[0]
    run = await workflow.resume(first, key="k")
    with pytest.raises(ExecutorFailed):
        await soon(run.wait_for_completion())
    with pytest.raises(AlreadyResumed):
        await workflow.resume(first.checkpoint_id, key="k")
    with pytest.raises(KeyReused):
        await workflow.resume(run_id="r", key="k")


async def test_a_run_with_nothing_to_do_remembers_that_it_was_resumed(place: Place) -> None:
    workflow = brittle_workflow(place.storage)
    await soon(workflow.run("ask", run_id="r"))
    before = (await everything(place.storage, "r"))[:2]
    run = await workflow.resume(run_id="r", key="k")
    assert run.status is RunStatus.WAITING
    await run.close()
    with pytest.raises(AlreadyResumed):
        await workflow.resume(run_id="r", key="k")
    assert (await everything(place.storage, "r"))[:2] == before


async def test_of_many_resumes_with_one_key_one_happens(place: Place) -> None:
    await failed(place.storage)
    storages = [place.storage] * 2
    if place.kind in ON_DISK:
        storages = [storage_at(place.kind, place.folder) for _ in range(2)]

    async def resume_once(number: int) -> str:
        workflow = brittle_workflow(storages[number % 2])
        try:
            run = await workflow.resume(run_id="r", key="k")
        except Exception as error:
            return type(error).__name__
        with pytest.raises(ExecutorFailed):
            await run.wait_for_completion()
        return "resumed"

    came = await soon(asyncio.gather(*map(resume_once, range(12))))
    assert came.count("resumed") == 1
    # Those who came while the run was driven may be told so; they can ask once more.
    assert set(came) <= {"resumed", "AlreadyResumed", "RunTaken"}
    assert tries == ["fail"] * 2
    for storage in set(storages) - {place.storage}:
        await storage.close()


async def test_of_many_who_take_a_run_over_with_one_key_one_does(place: Place) -> None:
    """Whoever comes later must not take it away from who took it over; those who race are told to try again."""
    workflow = brittle_workflow(place.storage)
    driver = await workflow.start("slow", run_id="r")
    await soon(entered.wait())

    async def take_over() -> Run | None:
        try:
            return await brittle_workflow(place.storage).resume(run_id="r", take_over=True, key="k")
        except (AlreadyResumed, RunTaken):
            return None

    (taken,) = [
        run for run in await soon(asyncio.gather(*(take_over() for _ in range(6)))) if run is not None
    ]
    with pytest.raises(AlreadyResumed):
        await brittle_workflow(place.storage).resume(run_id="r", take_over=True, key="k")
    go_on.set()
    assert (await soon(taken.wait_for_completion())).outputs == ["slow"]
    await driver.close()
    head = await info_of_run(place.storage, "r")
    assert (head.status, head.interrupted) == (RunStatus.COMPLETED, False)


class LosesCommits(Wrapped):
    """A store that is cut off from its disk for a while."""

    is_cut_off = False
    is_cut_off_after = 0
    """The number of commits that are still made, if that is the last."""

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        if self.is_cut_off:
            raise StorageError("the disk is gone")
        self.is_cut_off_after -= 1
        self.is_cut_off = self.is_cut_off_after == 0
        return await super().commit(commit)


async def test_a_resume_that_did_not_happen_can_be_repeated(place: Place) -> None:
    """The key is used up by the commit that moves the run, not before."""
    await failed(place.storage)
    store = LosesCommits(place.storage.store)
    workflow = brittle_workflow(CheckpointStorage(store))
    store.is_cut_off = True
    with pytest.raises(StorageError, match="the disk is gone"):
        await workflow.resume(run_id="r", key="k")
    store.is_cut_off = False
    await resume(workflow, "k")
    assert tries == ["fail"] * 2


async def test_a_key_is_free_until_what_was_asked_for_is_stored(place: Place) -> None:
    """To take a run over that its process left, and to go back to a checkpoint of it, are two commits."""

    @executor(id="first")
    async def first(text: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(text)

    def build(storage: CheckpointStorage) -> Workflow:
        builder = WorkflowBuilder(name="Two").set_start_executor(first).add_edge(first, Brittle)
        return builder.with_checkpointing(storage).build()

    async def go_back(storage: CheckpointStorage) -> None:
        run = await build(storage).resume(beginning, key="k")
        with pytest.raises(ExecutorFailed):
            await soon(run.wait_for_completion())

    with pytest.raises(ExecutorFailed):
        await soon(build(place.storage).run("fail", run_id="r"))
    beginning = (await place.storage.list_checkpoints(run_id="r"))[0]
    await leave_behind(place.storage.store, "r")
    store = LosesCommits(place.storage.store)
    store.is_cut_off_after = 1
    with pytest.raises(StorageError, match="the disk is gone"):
        await go_back(CheckpointStorage(store))
    await go_back(place.storage)
    causes = [one.cause for one in await place.storage.list_checkpoints(run_id="r")]
    assert causes.count(Cause.RESTORE) == 1
    with pytest.raises(AlreadyResumed):
        await go_back(place.storage)


async def leave_behind(store: Store, run_id: str) -> None:
    """Let a run look as if the process that drove it was killed."""
    head = await store.head(RunId(run_id))
    assert head is not None
    left = head._replace(status=RunStatus.RUNNING, owner="gone/1:1:1/x", token=head.token + 1)
    await store.commit(Commit(left, Expected(head.checkpoint_id, head.token)))


async def test_a_cancelled_run_that_waits_again_is_resumed_once(place: Place) -> None:
    workflow = brittle_workflow(place.storage)
    await rests(workflow)
    await place.storage.cancel("r")
    store = LosesCommits(place.storage.store)
    store.is_cut_off = True
    lost = await brittle_workflow(CheckpointStorage(store)).resume(run_id="r", key="k")
    await lost.close()
    assert (await info_of_run(place.storage, "r")).status is RunStatus.CANCELLED
    run = await workflow.resume(run_id="r", key="k")
    assert (await info_of_run(place.storage, "r")).status is RunStatus.WAITING
    await run.close()
    with pytest.raises(AlreadyResumed):
        await workflow.resume(run_id="r", key="k")


async def test_odd_arguments_with_a_key_are_refused_as_without(place: Place) -> None:
    workflow = brittle_workflow(place.storage)
    await is_over(workflow)
    first = (await place.storage.list_checkpoints(run_id="r"))[0]
    with pytest.raises(CheckpointNotFound):
        await workflow.resume("\ud800", key="k")
    for key in (None, "k"):
        with pytest.raises(InvalidArgument, match="contains a character that cannot be shown"):
            await place.storage.tag(first, "\ud800", key=key)
    await place.storage.tag(first, "kept", key="k")  # which was not used up
    with pytest.raises(KeyReused):
        await place.storage.tag(first, "another", key="k")
    with pytest.raises(InvalidArgument, match=r"remove='ab': must be a list of tags, like \['ab'\]"):
        await place.storage.tag(first, remove="ab")


DYING = """
import asyncio, os, signal, sys
from pathlib import Path
from holdfast import CheckpointStorage
from tests.scenarios.test_calls_made_once import brittle_workflow
from tests.support.durable import Wrapped, storage_at

class Dies(Wrapped):
    async def commit(self, commit):
        if sys.argv[3] == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        await super().commit(commit)
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    storage = storage_at(sys.argv[1], Path(sys.argv[2]))
    await brittle_workflow(CheckpointStorage(Dies(storage.store))).resume(run_id="r", key="k")

asyncio.run(main())
"""


@pytest.mark.parametrize("kind", ON_DISK)
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_process_that_is_killed_resumes_once_or_not(kind: str, moment: str, tmp_path: Path) -> None:
    place = Place(kind, tmp_path)
    await failed(place.storage)
    await place.storage.close()
    command = [sys.executable, "-c", DYING, kind, str(tmp_path), moment]
    assert (await asyncio.to_thread(subprocess.run, command, check=False)).returncode == -signal.SIGKILL
    workflow = brittle_workflow(await place.reopened())
    if moment == "before":
        await resume(workflow, "k")
    else:
        with pytest.raises(AlreadyResumed):
            await workflow.resume(run_id="r", key="k")
        assert (await info_of_run(place.storage, "r")).interrupted  # which a host goes on with
    await place.storage.close()


async def test_answers_are_made_once_by_a_key_of_their_own(place: Place) -> None:
    workflow = brittle_workflow(place.storage)
    await soon(workflow.run("ask", run_id="r"))
    (request,) = await place.storage.list_requests(run_id="r")
    with pytest.raises(
        InvalidArgument, match=r"not the answers that come with it; give these with 'storage\.respond"
    ):
        await workflow.resume(responses={request.request_id: True}, run_id="r", key="k")
    with pytest.raises(InvalidArgument, match="1 to"):
        await workflow.resume(run_id="r", key="")


# -- cancel ----------------------------------------------------------------------------------------


async def rests(workflow: Workflow) -> None:
    await soon(workflow.run("ask", run_id="r"))


async def is_over(workflow: Workflow) -> None:
    await soon(workflow.run("done", run_id="r"))


async def is_driven(workflow: Workflow) -> Run:
    run = await workflow.start("slow", run_id="r")
    await soon(entered.wait())
    return run


@pytest.mark.parametrize("stands", [rests, is_over, is_driven])
async def test_a_cancel_with_a_key_happens_once(
    place: Place, stands: Callable[[Workflow], Awaitable[Run | None]]
) -> None:
    """What the run does later is not cancelled by a call that is repeated."""
    workflow = brittle_workflow(place.storage)
    driven = await stands(workflow)
    await place.storage.cancel("r", key="k", by="kim")
    if driven is not None:
        assert (await soon(driven.wait_for_completion())).status is RunStatus.CANCELLED
    go_on.set()
    await soon(workflow.run("ask", run_id="r", if_exists="continue"))
    assert (await place.storage.cancel("r", key="k")).status is RunStatus.WAITING
    await place.reopened()
    assert (await place.storage.cancel("r", key="k")).status is RunStatus.WAITING
    assert (await place.storage.cancel("r", key="another")).status is RunStatus.CANCELLED


async def test_of_many_cancels_with_one_key_all_succeed(place: Place) -> None:
    await rests(brittle_workflow(place.storage))
    done = await soon(asyncio.gather(*(place.storage.cancel("r", key="k") for _ in range(8))))
    assert {run.status for run in done} == {RunStatus.CANCELLED}


class Rival(Wrapped):
    """A store in which somebody else is faster: before letters are left, or behind a read head."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.before_leaving: list[Callable[[], Awaitable[object]]] = []
        self.behind_head: list[Callable[[], Awaitable[object]]] = []

    async def head(self, run_id: RunId) -> Head | None:
        head: Head | None = await self.inner.head(run_id)
        while self.behind_head:
            await self.behind_head.pop()()
        return head

    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        while self.before_leaving:
            await self.before_leaving.pop()()
        left: LeaveResult = await self.inner.leave(run_id, since, letters, most)
        return left


async def test_a_repeated_cancel_says_how_the_run_stands_now(place: Place) -> None:
    await rests(brittle_workflow(place.storage))
    rival = Rival(place.storage.store)
    rival.behind_head.append(lambda: place.storage.cancel("r", key="k"))
    assert (await CheckpointStorage(rival).cancel("r", key="k")).status is RunStatus.CANCELLED


async def test_a_cancel_that_comes_as_the_run_rests_leaves_nothing_behind(place: Place) -> None:
    """What waits for nobody would keep the run from being removed later."""
    workflow = brittle_workflow(place.storage)
    run = await workflow.start("slow", run_id="r")
    await soon(entered.wait())
    rival = Rival(place.storage.store)
    rival.before_leaving.append(run.close)
    assert (await CheckpointStorage(rival).cancel("r", key="k")).status in (
        RunStatus.STOPPED,
        RunStatus.CANCELLED,
    )
    assert list(await place.storage.store.inbox(RunId("r"))) == []
    assert (await place.storage.prune_runs(timedelta(0))).runs == 1


# -- tags ------------------------------------------------------------------------------------------


async def test_tags_with_a_key_are_given_once(place: Place) -> None:
    await is_over(brittle_workflow(place.storage))
    storage, (first, *_) = place.storage, await place.storage.list_checkpoints(run_id="r")

    async def tags() -> tuple[str, ...]:
        return (await place.storage.load(first.checkpoint_id, values=False)).tags

    await storage.tag(first, "a", "b", key="k", by="kim")
    await storage.tag(first, "c", remove=["a"], key="k2")
    assert await tags() == ("b", "c")
    await storage.untag(first)
    for _ in range(2):
        await storage.tag(first, "a", "b", key="k")
        with pytest.raises(
            KeyReused, match="other tags were given to, or taken from, a checkpoint of run 'r'"
        ):
            await storage.tag(first, "a", key="k")
        assert await tags() == ()
        storage = await place.reopened()
    with pytest.raises(InvalidArgument, match="tag 'a' is both given and removed"):
        await storage.tag(first, "a", remove=["a"], key="k3")
    with pytest.raises(CheckpointNotFound):
        await storage.tag("00" * 32, "a", key="k3")
    await storage.tag(first, "a", key="k3")
    assert await tags() == ("a",)


async def test_keys_of_different_calls_and_of_forks_are_apart(place: Place) -> None:
    workflow = brittle_workflow(place.storage)
    await rests(workflow)
    first = (await place.storage.list_checkpoints(run_id="r"))[0]
    fork = await workflow.fork(first, run_id="f")
    await soon(fork.wait_for_completion())
    for run_id in ("r", "f"):
        (request,) = await place.storage.list_requests(run_id=run_id)
        await place.storage.respond(run_id, {request.request_id: True}, key="k")
        await place.storage.send(run_id, "more", key="k")
        assert (await place.storage.cancel(run_id, key="k")).status is RunStatus.CANCELLED
    await place.storage.tag(first, "a", key="k")


async def test_of_two_changes_of_tags_with_one_key_one_is_told(place: Place) -> None:
    await is_over(brittle_workflow(place.storage))
    first = (await place.storage.list_checkpoints(run_id="r"))[0]
    calls = (place.storage.tag(first, tag, key="k") for tag in ("a", "b"))
    came = await soon(asyncio.gather(*calls, return_exceptions=True))
    assert sorted(type(one).__name__ for one in came) == ["KeyReused", "NoneType"]
