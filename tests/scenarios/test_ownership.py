"""Who drives a run: one at a time, whoever came first; a run that nobody drives any more is free for the next."""

import asyncio
import contextlib
import gc
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    CheckpointStorage,
    Executor,
    ExecutorCompletedEvent,
    ExecutorFailed,
    InMemoryCheckpointStorage,
    RequestAlreadyAnswered,
    Run,
    RunExists,
    RunPoisoned,
    RunStatus,
    RunTaken,
    StorageError,
    Store,
    SuperStepCompletedEvent,
    UnknownRequest,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowOutputEvent,
    executor,
    handler,
    response_handler,
)
from tests.support.durable import (
    KINDS,
    ON_DISK,
    Failing,
    Gate,
    Place,
    Slow,
    Wrapped,
    everything,
    head_of,
    info_of_run,
    outputs_of,
    storage_at,
    wrapped,
)
from tests.support.executors import Ask
from tests.support.inside import log_of, recorder_of
from tests.support.modules import run_owner
from tests.support.parts import (
    MOST_TAKEOVERS,
    Claim,
    Commit,
    Durability,
    Expected,
    Head,
    Letter,
    RunId,
    RunLog,
    is_held,
    this_process,
    wait_for_release,
)
from tests.support.runs import soon

DEAD = "nowhere:17:4711#1"
"""The owner of a run in a process that lives no longer, as far as any store can tell."""


@pytest.fixture
async def two(place: Place) -> AsyncIterator[tuple[CheckpointStorage, CheckpointStorage]]:
    """Two storages on the same place, as two parts of a program may have them."""
    if place.kind == "memory":
        yield place.storage, CheckpointStorage(place.storage.store)
        return
    async with storage_at(place.kind, place.folder) as other:
        yield place.storage, other


class Scene:
    """A workflow of three executors whose second one waits when it is told to, and what was called in it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.entered = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.broken = False
        self.closing: asyncio.Future[None] | None = None

    def build(self) -> Workflow:
        @executor(id="first")
        async def first(text: str) -> str:
            self.calls.append("first")
            return text + "1"

        @executor(id="second")
        async def second(text: str) -> str:
            self.calls.append("second")
            self.entered.set()
            await self.go_on.wait()
            if self.broken:
                raise RuntimeError("broken")
            return text + "2"

        @executor(id="third")
        async def third(text: str, ctx: WorkflowContext[None, str]) -> str:
            self.calls.append("third")
            return text + "3"

        return (
            WorkflowBuilder(name="Three").set_start_executor(first).add_chain([first, second, third]).build()
        )

    async def driven(self, storage: CheckpointStorage, run_id: str = "mine") -> Run:
        """A run that is in the middle of its second superstep."""
        self.go_on.clear()
        self.entered.clear()
        run = await self.build().start("x", run_id=run_id, storage=storage)
        await soon(self.entered.wait())
        return run

    async def left(self, storage: CheckpointStorage, run_id: str = "mine") -> None:
        """Leave a run in the middle of its second superstep; from now on nothing waits."""
        run = await self.driven(storage, run_id)
        await run.close()
        self.go_on.set()

    async def orphaned(self, storage: CheckpointStorage, run_id: str = "mine") -> None:
        """A run whose process died in the middle of its second superstep."""
        await self.left(storage, run_id)
        await give_to(storage, DEAD, run_id)

    async def resumed(self, storage: CheckpointStorage, run_id: str = "mine", **options: Any) -> list[Any]:
        """The outputs of the run after a resume."""
        return await outputs_of(self.build().resume(run_id=run_id, storage=storage, **options))


@pytest.fixture
async def scene() -> Scene:
    return Scene()


async def give_to(storage: CheckpointStorage, owner: str, run_id: str = "mine", takeovers: int = 0) -> None:
    """Let the head of a run say that this owner drives it."""
    head = await head_of(storage, run_id)
    given = head._replace(
        status=RunStatus.RUNNING, owner=owner, token=head.token + 1, takeovers=takeovers, reason=""
    )
    await storage.store.commit(Commit(given, Expected(head.checkpoint_id, head.token)))


async def outcomes(*resuming: Awaitable[Run]) -> tuple[list[Run], list[BaseException]]:
    """The runs that were gained, and what the others got."""
    results = await soon(asyncio.gather(*resuming, return_exceptions=True))
    won = [result for result in results if isinstance(result, Run)]
    return won, [result for result in results if isinstance(result, BaseException)]


# -- one wins --------------------------------------------------------------------------------------


async def _interrupted(scene: Scene, storage: CheckpointStorage) -> None:
    await scene.orphaned(storage)


async def _stopped(scene: Scene, storage: CheckpointStorage) -> None:
    await scene.left(storage)


async def _failed(scene: Scene, storage: CheckpointStorage) -> None:
    scene.broken = True
    with pytest.raises(ExecutorFailed):
        await soon(scene.build().run("x", run_id="mine", storage=storage))
    scene.broken = False


async def _cancelled(scene: Scene, storage: CheckpointStorage) -> None:
    run = await scene.driven(storage)
    await run.cancel()
    scene.go_on.set()


@pytest.mark.parametrize("made", [_interrupted, _stopped, _failed, _cancelled])
async def test_of_two_concurrent_resumes_one_wins(
    two: tuple[CheckpointStorage, CheckpointStorage], scene: Scene, made: Callable[..., Awaitable[None]]
) -> None:
    await made(scene, two[0])
    scene.calls.clear()
    scene.go_on.clear()
    before = await head_of(two[0], "mine")
    won, lost = await outcomes(
        *(scene.build().resume(run_id="mine", storage=storage) for storage in two),
    )
    assert [type(error) for error in lost] == [RunTaken]
    assert "run mine" in str(lost[0])
    (winner,) = won
    scene.go_on.set()
    assert (await soon(winner.wait_for_completion())).outputs == ["x123"]
    assert scene.calls == ["second", "third"], "what the loser did not get it did not run"
    head = await head_of(two[1], "mine")
    assert head.token == before.token + 1, "the loser changed nothing"
    assert (head.status, head.owner, head.takeovers) == (RunStatus.COMPLETED, "", 0)
    assert (await two[1].verify()).ok


async def test_of_many_concurrent_resumes_one_wins(place: Place, scene: Scene) -> None:
    await scene.orphaned(place.storage)
    scene.go_on.clear()
    won, lost = await outcomes(
        *(scene.build().resume(run_id="mine", storage=place.storage) for _ in range(12))
    )
    assert ([type(error) for error in lost], len(won)) == ([RunTaken] * 11, 1)
    scene.go_on.set()
    assert (await soon(won[0].wait_for_completion())).outputs == ["x123"]
    listed = await place.storage.list_checkpoints(run_id="mine")
    assert [c.parent_id for c in listed] == [None, *(c.checkpoint_id for c in listed[:-1])]
    assert [c.seq for c in listed] == [1, 2, 3, 4, 5, 6]


async def test_of_two_who_go_back_at_once_one_wins(place: Place, scene: Scene) -> None:
    await scene.orphaned(place.storage)
    first = (await place.storage.list_checkpoints(run_id="mine"))[0]
    scene.go_on.clear()
    won, lost = await outcomes(*(scene.build().resume(first, storage=place.storage) for _ in range(2)))
    assert ([type(error) for error in lost], len(won)) == ([RunTaken], 1)
    scene.go_on.set()
    assert (await soon(won[0].wait_for_completion())).outputs == ["x123"]
    assert (await place.storage.verify()).ok


async def test_of_two_who_resume_behind_a_slow_disk_one_wins(
    storage: CheckpointStorage, scene: Scene
) -> None:
    """Both have read the head before either writes."""
    await scene.orphaned(storage)
    gate = Gate(storage.store, 1)
    slow = asyncio.ensure_future(scene.build().resume(run_id="mine", storage=CheckpointStorage(gate)))
    await soon(gate.reached.wait())
    assert await scene.resumed(storage) == ["x123"]
    before = await everything(storage, "mine")
    gate.opened.set()
    with pytest.raises(RunTaken, match="run mine was taken over"):
        await soon(slow)
    assert await everything(storage, "mine") == before


# -- while it is driven ----------------------------------------------------------------------------


async def test_run_that_is_driven_here_is_taken(place: Place, scene: Scene) -> None:
    run = await scene.driven(place.storage)
    before = await everything(place.storage, "mine")
    latest = run.checkpoints[-1]
    workflow = scene.build()

    async def streamed() -> None:
        async for _ in workflow.run_stream_from_checkpoint(latest.checkpoint_id, place.storage):
            raise AssertionError("an event of a run that is taken")

    for resuming in (
        workflow.resume(run_id="mine", storage=place.storage),
        workflow.resume(latest, storage=place.storage),
        workflow.resume(run.checkpoints[0].checkpoint_id, storage=place.storage),
        workflow.run_from_checkpoint(latest, place.storage),
        streamed(),
    ):
        with pytest.raises(RunTaken) as caught:
            await soon(resuming)
        said = str(caught.value)
        assert "run mine is driven by another run object of this process" in said
        assert "storage.respond" in said
        assert "take_over=True" in said
    assert await everything(place.storage, "mine") == before
    scene.go_on.set()
    assert (await soon(run.wait_for_completion())).outputs == ["x123"]


class Alive(Wrapped):
    """A store to which a process of another host is known."""

    async def living(self, processes: Collection[str]) -> Set[str]:
        return {*await self.inner.living(processes), "abc/far-away:31:99"} & set(processes)


async def test_run_that_another_process_drives_is_taken(place: Place, scene: Scene) -> None:
    await scene.left(place.storage)
    await give_to(place.storage, "abc/far-away:31:99#3")
    seen = wrapped(place.storage, Alive)
    before = await everything(seen, "mine")
    with pytest.raises(RunTaken, match="run mine is driven by process 31 on far-away;"):
        await scene.build().resume(run_id="mine", storage=seen)
    assert (await info_of_run(seen, "mine")).interrupted is False
    assert await everything(seen, "mine") == before
    assert (await info_of_run(place.storage, "mine")).interrupted is True
    assert await scene.resumed(seen, take_over=True) == ["x123"]


async def test_start_with_the_id_of_a_run_that_is_driven(place: Place, scene: Scene) -> None:
    run = await scene.driven(place.storage)
    before = await everything(place.storage, "mine")
    with pytest.raises(RunExists):
        await scene.build().start("x", run_id="mine", storage=place.storage)
    assert await everything(place.storage, "mine") == before
    scene.go_on.set()
    assert (await soon(run.wait_for_completion())).outputs == ["x123"]


async def test_who_takes_over_goes_on_and_the_other_changes_nothing(
    two: tuple[CheckpointStorage, CheckpointStorage], scene: Scene
) -> None:
    loser = await scene.driven(two[0])
    scene.entered.clear()
    winner = await scene.build().resume(run_id="mine", storage=two[1], take_over=True)
    await soon(scene.entered.wait())
    taken = await head_of(two[1], "mine")
    assert taken.takeovers == 1
    scene.go_on.set()
    with pytest.raises(RunTaken) as caught:
        await soon(loser.wait_for_completion())
    assert "run mine was taken over" in str(caught.value)
    assert "take_over=True" in str(caught.value)
    assert (await soon(winner.wait_for_completion())).outputs == ["x123"]
    assert (loser.status, winner.status) == (RunStatus.FAILED, RunStatus.COMPLETED)
    head = await head_of(two[0], "mine")
    assert (head.token, head.status, head.owner, head.reason) == (taken.token, RunStatus.COMPLETED, "", "")
    assert scene.calls.count("third") == 1
    listed = await two[0].list_checkpoints(run_id="mine")
    assert [c.seq for c in listed] == [1, 2, 3, 4, 5, 6]
    assert [c.checkpoint_id for c in winner.checkpoints] == [c.checkpoint_id for c in listed[2:]]
    assert (await two[0].verify()).ok


def restless(turn: Callable[[int], Awaitable[bool]]) -> Workflow:
    """A workflow of two executors that count up in turn, until ``turn`` says that it is enough."""

    def make(name: str) -> Any:
        @executor(id=name)
        async def count(number: int, ctx: WorkflowContext[int, int]) -> None:
            if await turn(number):
                await ctx.yield_output(number)
            else:
                await ctx.send_message(number + 1)

        return count

    tick, tock = make("tick"), make("tock")
    builder = WorkflowBuilder(name="Restless", max_iterations=1_000_000)
    return builder.set_start_executor(tick).add_edge(tick, tock).add_edge(tock, tick).build()


@pytest.mark.parametrize("from_checkpoint", [False, True])
async def test_taking_over_from_an_owner_that_commits_all_the_time(
    place: Place, from_checkpoint: bool
) -> None:
    """In one event loop, where the owner goes on as soon as a commit of its own is over."""
    enough, turns = False, asyncio.Semaphore(0)

    async def turn(number: int) -> bool:
        turns.release()
        return enough

    run = await restless(turn).start(1, run_id="mine", storage=place.storage)
    first = run.checkpoints[0]
    which: dict[str, Any] = {"checkpoint": first} if from_checkpoint else {"run_id": "mine"}
    try:
        for _ in range(5):
            await soon(turns.acquire())
            loser, run = run, await restless(turn).resume(**which, storage=place.storage, take_over=True)
            with pytest.raises(RunTaken):
                await soon(loser.wait_for_completion())
    finally:
        enough = True
    assert (await soon(run.wait_for_completion())).status is RunStatus.COMPLETED
    assert (await place.storage.verify()).ok


class Overtaken(Wrapped):
    """Its first commits come too late: another is faster each time."""

    def __init__(self, inner: Store, other: Callable[[], object], times: int) -> None:
        super().__init__(inner)
        self.other, self.times = other, times

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        if self.times:
            self.times -= 1
            await asyncio.to_thread(self.other)
        return await self.inner.commit(commit)


@pytest.mark.parametrize("from_checkpoint", [False, True])
async def test_taking_over_from_an_owner_that_is_faster(
    two: tuple[CheckpointStorage, CheckpointStorage], from_checkpoint: bool
) -> None:
    """One elsewhere that commits between what is read of the run and each attempt to become its owner."""
    entered, go_on = threading.Semaphore(0), threading.Semaphore(0)
    lost: list[BaseException] = []

    async def own_turn(number: int) -> bool:
        entered.release()
        assert await asyncio.to_thread(go_on.acquire, timeout=60)
        return False

    async def own() -> None:
        run = await restless(own_turn).start(1, run_id="mine", storage=two[0])
        try:
            await run.wait_for_completion()
        except RunTaken as error:
            lost.append(error)

    def let_owner_commit() -> None:
        go_on.release()
        assert entered.acquire(timeout=60)

    async def enough(number: int) -> bool:
        return True

    thread = threading.Thread(target=lambda: asyncio.run(own()))
    thread.start()
    try:
        assert await asyncio.to_thread(entered.acquire, timeout=60)
        first = (await two[1].list_checkpoints(run_id="mine"))[0]
        which: dict[str, Any] = {"checkpoint": first} if from_checkpoint else {"run_id": "mine"}
        slow = wrapped(two[1], lambda store: Overtaken(store, let_owner_commit, 7))
        result = restless(enough).resume(**which, storage=slow, take_over=True)
        assert await outputs_of(result) == [1 if from_checkpoint else 8], "what the owner committed counts"
    finally:
        go_on.release()
        await asyncio.to_thread(thread.join)
    assert len(lost) == 1
    assert (await two[1].verify()).ok


async def test_taking_over_with_an_answer_that_is_refused_leaves_the_run_to_its_owner(
    place: Place, scene: Scene
) -> None:
    run = await scene.driven(place.storage)
    before = await head_of(place.storage, "mine")
    with pytest.raises(UnknownRequest):
        await scene.build().resume(
            run_id="mine", storage=place.storage, take_over=True, responses={"nothing": 1}
        )
    assert await head_of(place.storage, "mine") == before
    scene.go_on.set()
    assert (await soon(run.wait_for_completion())).outputs == ["x123"]


@pytest.mark.parametrize("leave", ["close", "cancel"])
async def test_a_loser_that_is_left_changes_nothing(place: Place, scene: Scene, leave: str) -> None:
    loser = await scene.driven(place.storage)
    scene.entered.clear()
    winner = await scene.build().resume(run_id="mine", storage=place.storage, take_over=True)
    await soon(scene.entered.wait())
    before = await head_of(place.storage, "mine")
    await soon(getattr(loser, leave)())
    assert loser.status.ended
    assert await head_of(place.storage, "mine") == before
    scene.go_on.set()
    assert (await soon(winner.wait_for_completion())).outputs == ["x123"]


@pytest.mark.parametrize("how", ["resume", "run_from_checkpoint", "run_stream_from_checkpoint"])
async def test_checkpoint_of_a_run_that_still_moves(place: Place, scene: Scene, how: str) -> None:
    """Who wants an earlier checkpoint is told how to take the run over there, and can."""
    run = await scene.driven(place.storage)
    first, workflow = run.checkpoints[0], scene.build()

    async def outputs(**options: Any) -> list[Any]:
        if how == "resume":
            resumed = await workflow.resume(first, storage=place.storage, **options)
            return (await resumed.wait_for_completion()).outputs
        if how == "run_from_checkpoint":
            return (await workflow.run_from_checkpoint(first, place.storage, **options)).outputs
        stream = workflow.run_stream_from_checkpoint(first, place.storage, **options)
        return [event.data async for event in stream if isinstance(event, WorkflowOutputEvent)]

    with pytest.raises(RunTaken, match=r"'workflow.resume\(checkpoint, take_over=True\)'"):
        await soon(outputs())
    taking = asyncio.ensure_future(outputs(take_over=True))
    scene.entered.clear()
    await soon(scene.entered.wait())
    scene.go_on.set()
    assert await soon(taking) == ["x123"]
    with pytest.raises(RunTaken):
        await soon(run.wait_for_completion())
    assert scene.calls.count("first") == 2, "it went back to the beginning"
    assert (await place.storage.verify()).ok


class Ending(Wrapped):
    """A store whose run comes to its end right after someone looked at its head for the first time."""

    def __init__(self, inner: Store, end: Callable[[], Awaitable[object]]) -> None:
        super().__init__(inner)
        self.ends = [end]

    async def head(self, run_id: RunId) -> Head | None:
        head = await self.inner.head(run_id)
        if self.ends:
            await self.ends.pop()()
        return head


@pytest.mark.parametrize("going_back", [False, True])
async def test_a_run_that_ends_while_it_is_taken_over(place: Place, scene: Scene, going_back: bool) -> None:
    run = await scene.driven(place.storage)
    first = run.checkpoints[0]

    async def end() -> None:
        scene.go_on.set()
        await soon(run.wait_for_completion())

    taker = wrapped(place.storage, partial(Ending, end=end))
    taking: dict[str, Any] = {"checkpoint": first} if going_back else {"run_id": "mine"}
    resumed = await soon(scene.build().resume(**taking, storage=taker, take_over=True))
    assert (await soon(resumed.wait_for_completion())).outputs == ["x123"]
    assert scene.calls.count("first") == 1 + going_back
    assert run.status is RunStatus.COMPLETED
    assert (await place.storage.verify()).ok


async def test_a_loser_whose_handler_fails_does_not_fail_the_run(place: Place, scene: Scene) -> None:
    loser = await scene.driven(place.storage)
    await give_to(place.storage, DEAD)
    before = await head_of(place.storage, "mine")
    scene.broken = True
    scene.go_on.set()
    with pytest.raises(ExecutorFailed):
        await soon(loser.wait_for_completion())
    assert await head_of(place.storage, "mine") == before
    scene.broken = False
    assert await scene.resumed(place.storage) == ["x123"]


class Payment:
    """A workflow whose second executor pays when it is told to, and who paid."""

    def __init__(self) -> None:
        self.entered: asyncio.Queue[asyncio.Event] = asyncio.Queue()
        self.paid_by: list[str] = []
        self.who = ""
        self.stubborn = False

    def build(self, durability: Durability = "sync") -> Workflow:
        @executor(id="order")
        async def order(text: str) -> str:
            return text

        @executor(id="pay")
        async def pay(text: str, ctx: WorkflowContext[None, str]) -> str:
            who, go_on = self.who, asyncio.Event()
            self.entered.put_nowait(go_on)
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                if not self.stubborn:
                    raise
                await go_on.wait()
            await ctx.once("pay", self.paid_by.append, who)
            return text

        builder = WorkflowBuilder(name="Pay").with_durability(durability)
        return builder.set_start_executor(order).add_edge(order, pay).build()

    async def inside(self) -> asyncio.Event:
        """Wait until a handler is about to pay; what lets it go on."""
        return await soon(self.entered.get())


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("winner_first", [True, False])
async def test_a_loser_does_no_effect_any_more(
    place: Place, durability: Durability, winner_first: bool
) -> None:
    payment = Payment()
    workflow = payment.build(durability)
    payment.who = "loser"
    loser = await workflow.start("x", run_id="mine", storage=place.storage)
    async for event in loser.watch_stream():
        if isinstance(event, SuperStepCompletedEvent):  # with 'async' it is durable by now
            break
    lose = await payment.inside()
    payment.who = "winner"
    winner = await workflow.resume(run_id="mine", storage=place.storage, take_over=True)
    win = await payment.inside()
    if winner_first:
        win.set()
        await soon(winner.wait_for_completion())
    lose.set()
    with pytest.raises(RunTaken):
        await soon(loser.wait_for_completion())
    win.set()
    assert (await soon(winner.wait_for_completion())).outputs == ["x"]
    assert payment.paid_by == ["winner"]
    assert (await head_of(place.storage, "mine")).status is RunStatus.COMPLETED
    assert (await place.storage.verify()).ok


async def test_a_handler_that_outlives_its_run_does_no_effect_any_more(place: Place) -> None:
    payment = Payment()
    payment.stubborn = True
    run = await payment.build().start("x", run_id="mine", storage=place.storage)
    go_on = await payment.inside()
    await run.cancel(grace=0)
    go_on.set()
    (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "holdfast run mine"]
    await soon(asyncio.wait([task]))
    assert payment.paid_by == []
    assert (await head_of(place.storage, "mine")).status is RunStatus.CANCELLED


class StoppedClock:
    """A clock that goes on only when it is told to."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StoppedClock:
    """The clock by which a note says for how long who drives the run."""
    clock = StoppedClock()
    monkeypatch.setattr(run_owner, "monotonic", clock)
    return clock


class Instalments:
    """A workflow that pays twice, and stands still between the two payments until it is told to go on."""

    def __init__(self) -> None:
        self.entered: asyncio.Queue[asyncio.Event] = asyncio.Queue()
        self.paid: list[str] = []

    def build(self) -> Workflow:
        @executor(id="pay")
        async def pay(text: str, ctx: WorkflowContext[None, str]) -> str:
            await ctx.once("first", self.pay, "first")
            go_on = asyncio.Event()
            self.entered.put_nowait(go_on)
            try:
                await go_on.wait()
            except asyncio.CancelledError:  # it outlives its run
                await go_on.wait()
            await ctx.once("second", self.pay, "second")
            return text

        return WorkflowBuilder(name="Pay").set_start_executor(pay).build()

    async def pay(self, what: str) -> None:
        self.paid.append(what)


async def test_effects_right_behind_each_other_ask_the_store_once_who_drives_the_run(
    place: Place, clock: StoppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    is_owned = RunLog.is_owned

    async def counted(self: RunLog) -> bool:
        asked.append(clock.time)
        return await is_owned(self)

    monkeypatch.setattr(RunLog, "is_owned", counted)

    @executor(id="pay")
    async def pay(text: str, ctx: WorkflowContext[None, str]) -> str:
        for number in range(8):
            await ctx.once(f"pay {number}", str, number)
            clock.time += 1.0 if number in (2, 5) else 0.001
        return text

    workflow = WorkflowBuilder(name="Pay").set_start_executor(pay).build()
    assert (await soon(workflow.run("x", storage=place.storage))).outputs == ["x"]
    assert [int(time) for time in asked] == [0, 1, 2]


async def test_a_loser_does_no_effect_behind_one_that_it_did_before(
    place: Place, clock: StoppedClock
) -> None:
    payment = Instalments()
    loser = await payment.build().start("x", run_id="mine", storage=place.storage)
    lose = await soon(payment.entered.get())
    winner = await payment.build().resume(run_id="mine", storage=place.storage, take_over=True)
    win = await soon(payment.entered.get())
    clock.time += 1.0
    lose.set()
    with pytest.raises(RunTaken):
        await soon(loser.wait_for_completion())
    assert payment.paid == ["first"]
    win.set()
    assert (await soon(winner.wait_for_completion())).outputs == ["x"]
    assert payment.paid == ["first", "second"]


async def test_a_note_says_nothing_once_its_run_was_cancelled(place: Place, clock: StoppedClock) -> None:
    payment = Instalments()
    run = await payment.build().start("x", run_id="mine", storage=place.storage)
    go_on = await soon(payment.entered.get())
    await run.cancel(grace=0)
    go_on.set()
    (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "holdfast run mine"]
    await soon(asyncio.wait([task]))
    assert payment.paid == ["first"]


async def test_run_can_be_taken_back(place: Place, scene: Scene) -> None:
    first = await scene.driven(place.storage)
    second = await scene.build().resume(run_id="mine", storage=place.storage, take_over=True)
    third = await scene.build().resume(run_id="mine", storage=place.storage, take_over=True)
    scene.go_on.set()
    for loser in (first, second):
        with pytest.raises(RunTaken):
            await soon(loser.wait_for_completion())
    assert (await soon(third.wait_for_completion())).outputs == ["x123"]


async def test_going_back_does_not_take_a_run_away_from_its_owner(place: Place, scene: Scene) -> None:
    loser = await scene.driven(place.storage)
    scene.entered.clear()
    winner = await scene.build().resume(run_id="mine", storage=place.storage, take_over=True)
    await soon(scene.entered.wait())
    before = await head_of(place.storage, "mine")
    with pytest.raises(RunTaken):  # while it does not know yet that it lost the run
        await soon(loser.restore_checkpoint(loser.checkpoints[0]))
    assert await head_of(place.storage, "mine") == before
    scene.go_on.set()
    assert (await soon(winner.wait_for_completion())).outputs == ["x123"]


async def test_going_back_with_a_run_that_was_lost(place: Place, scene: Scene) -> None:
    loser = await scene.driven(place.storage)
    winner = await scene.build().resume(run_id="mine", storage=place.storage, take_over=True)
    scene.go_on.set()
    with pytest.raises(RunTaken):
        await soon(loser.wait_for_completion())
    await soon(winner.wait_for_completion())
    # Nobody drives it now, so it is free for whoever comes.
    await soon(loser.restore_checkpoint(loser.checkpoints[0]))
    assert (await soon(loser.wait_for_completion())).outputs == ["x123"]
    assert (await place.storage.verify()).ok


async def test_fork_of_a_run_that_is_driven(place: Place, scene: Scene) -> None:
    run = await scene.driven(place.storage)
    before = await head_of(place.storage, "mine")
    forks = [await scene.build().fork(made, storage=place.storage) for made in run.checkpoints]
    assert await head_of(place.storage, "mine") == before
    scene.go_on.set()
    for going in (run, *forks):
        assert (await soon(going.wait_for_completion())).outputs == ["x123"]
    owners = {(await head_of(place.storage, going.run_id)).owner for going in (run, *forks)}
    assert owners == {""}


# -- free at once ----------------------------------------------------------------------------------


async def _stream_broken_off(scene: Scene, storage: CheckpointStorage) -> None:
    async for event in scene.build().run_stream("x", run_id="mine", storage=storage):
        if isinstance(event, ExecutorCompletedEvent) and event.executor_id == "first":
            break


async def _stream_closed(scene: Scene, storage: CheckpointStorage) -> None:
    async with scene.build().run_stream("x", run_id="mine", storage=storage) as stream:
        while not isinstance(await anext(stream), ExecutorCompletedEvent):
            pass


async def _stream_dropped(scene: Scene, storage: CheckpointStorage) -> None:
    stream = scene.build().run_stream("x", run_id="mine", storage=storage)
    while not isinstance(await anext(stream), ExecutorCompletedEvent):
        pass
    del stream


async def _awaited_run_cancelled(scene: Scene, storage: CheckpointStorage) -> None:
    scene.go_on.clear()
    task = asyncio.ensure_future(scene.build().run("x", run_id="mine", storage=storage))
    await soon(scene.entered.wait())
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _closed_in_a_handler(scene: Scene, storage: CheckpointStorage) -> None:
    run = await scene.driven(storage)
    await run.close()


async def _closed_behind_our_back(scene: Scene, storage: CheckpointStorage) -> None:
    """Whoever closes it waits for a handler that cleans up; the next one does not wait for them."""
    run = await scene.driven(storage)
    scene.closing = asyncio.ensure_future(run.close())
    await asyncio.sleep(0)


async def _cancelled_in_a_handler(scene: Scene, storage: CheckpointStorage) -> None:
    run = await scene.driven(storage)
    await run.cancel()


async def _out_of_time(scene: Scene, storage: CheckpointStorage) -> None:
    """Its time is over in the middle of the second superstep."""
    scene.go_on.clear()

    async def end(deadline: asyncio.Timeout) -> None:
        await scene.entered.wait()
        deadline.reschedule(0)

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(30) as deadline:
            ending = asyncio.ensure_future(end(deadline))
            await scene.build().run("x", run_id="mine", storage=storage)
    await ending


WAYS = [
    _stream_broken_off,
    _stream_closed,
    _stream_dropped,
    _awaited_run_cancelled,
    _closed_in_a_handler,
    _closed_behind_our_back,
    _cancelled_in_a_handler,
    _failed,
    _out_of_time,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__.strip("_"))
async def test_run_that_was_left_can_be_resumed_at_once(
    place: Place, scene: Scene, way: Callable[..., Awaitable[None]]
) -> None:
    await way(scene, place.storage)
    scene.go_on.set()
    assert await scene.resumed(place.storage) == ["x123"]
    head = await head_of(place.storage, "mine")
    assert (head.status, head.owner) == (RunStatus.COMPLETED, "")
    if scene.closing is not None:
        await soon(scene.closing)


async def test_resume_waits_for_a_handler_that_cleans_up(place: Place) -> None:
    entered, cleaning, clean, calls = asyncio.Event(), asyncio.Event(), asyncio.Event(), []

    @executor(id="tidy")
    async def tidy(text: str, ctx: WorkflowContext[None, str]) -> str:
        calls.append("called")
        if len(calls) == 1:
            try:
                entered.set()
                await asyncio.sleep(3600)
            finally:
                cleaning.set()
                await clean.wait()
                calls.append("clean")
        return text

    workflow = WorkflowBuilder(name="Tidy").set_start_executor(tidy).build()
    run = await workflow.start("x", run_id="mine", storage=place.storage)
    await soon(entered.wait())
    closing = asyncio.ensure_future(run.close())
    await soon(cleaning.wait())
    resuming = asyncio.ensure_future(outputs_of(workflow.resume(run_id="mine", storage=place.storage)))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not resuming.done()
    clean.set()
    assert await soon(resuming) == ["x"]
    await closing
    assert calls == ["called", "clean", "called"]


async def test_resume_that_was_cancelled_leaves_the_run_free(place: Place, scene: Scene) -> None:
    await scene.orphaned(place.storage)
    gate = Gate(place.storage.store, 1)
    resuming = asyncio.ensure_future(scene.build().resume(run_id="mine", storage=CheckpointStorage(gate)))
    await soon(gate.reached.wait())
    resuming.cancel()
    gate.opened.set()
    with pytest.raises(asyncio.CancelledError):
        await soon(resuming)
    assert await scene.resumed(place.storage) == ["x123"]


async def test_resume_that_is_refused_leaves_the_run_free(place: Place, scene: Scene) -> None:
    await scene.orphaned(place.storage)
    before = await everything(place.storage, "mine")
    with pytest.raises(Exception, match="there is no request 'nobody asked'"):
        await scene.build().resume(run_id="mine", storage=place.storage, responses={"nobody asked": 1})
    assert await everything(place.storage, "mine") == before
    assert await scene.resumed(place.storage) == ["x123"]


# -- event loops that end --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_resume_after_the_event_loop_ended_in_the_middle(kind: str, tmp_path: Path) -> None:
    place = Place(kind, tmp_path)
    scenes: list[Scene] = []

    async def begin() -> None:
        scenes.append(Scene())
        await scenes[0].driven(place.storage)

    async def go_on() -> None:
        listed = await info_of_run(place.storage, "mine")
        assert (listed.status, listed.interrupted) == (RunStatus.STOPPED, False)
        assert await Scene().resumed(place.storage) == ["x123"]
        await place.storage.close()

    asyncio.run(begin())
    asyncio.run(go_on())


@pytest.mark.parametrize("kind", KINDS)
def test_run_whose_event_loop_was_closed_is_interrupted(kind: str, tmp_path: Path) -> None:
    place = Place(kind, tmp_path)
    told: set[str] = set()
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _, what: told.add(what["message"]))
    held = [loop.run_until_complete(Scene().driven(place.storage))]
    loop.close()

    async def go_on() -> None:
        head = await head_of(place.storage, "mine")
        assert (head.status, head.owner.split("#")[0]) == (RunStatus.RUNNING, this_process())
        assert [run.run_id for run in await place.storage.list_runs(interrupted=True)] == ["mine"]
        assert await place.storage.list_runs(interrupted=False) == []
        assert await Scene().resumed(place.storage) == ["x123"]
        assert held[0].status is RunStatus.RUNNING, "it was there all the time"
        await place.storage.close()

    asyncio.run(go_on())
    held.clear()
    gc.collect()
    assert told <= {"Task was destroyed but it is pending!"}, (
        "what asyncio says of such a loop, and nothing else"
    )


@pytest.mark.parametrize("kind", ON_DISK)
def test_two_event_loops_in_two_threads(kind: str, tmp_path: Path) -> None:
    """A run is driven in one; in the other it is taken, until it is over."""
    entered, go_on, results = threading.Event(), threading.Event(), []

    def build() -> Workflow:
        @executor(id="hold")
        async def hold(text: str, ctx: WorkflowContext[None, str]) -> str:
            entered.set()
            await asyncio.to_thread(go_on.wait, 30)
            return text + "!"

        return WorkflowBuilder(name="Hold").set_start_executor(hold).build()

    async def drive() -> None:
        async with storage_at(kind, tmp_path) as storage:
            results.append((await build().run("x", run_id="mine", storage=storage)).outputs)

    async def other() -> None:
        async with storage_at(kind, tmp_path) as storage:
            with pytest.raises(RunTaken, match="another run object of this process"):
                await build().resume(run_id="mine", storage=storage)
            # The object that drives the run belongs to the loop that it is in; nobody can wait for it in another.
            with pytest.raises(RunTaken):
                await build().start("x", run_id="mine", storage=storage, if_exists="attach")
            assert [run.run_id for run in await storage.list_runs(interrupted=False)] == ["mine"]
            # Another run is nobody's business.
            beside = await build().start("y", run_id="beside", storage=storage)
            go_on.set()
            assert (await soon(beside.wait_for_completion())).outputs == ["y!"]
            while (await info_of_run(storage, "mine")).status is RunStatus.RUNNING:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            assert await outputs_of(build().resume(run_id="mine", storage=storage)) == ["x!"]

    thread = threading.Thread(target=lambda: asyncio.run(drive()))
    thread.start()
    try:
        assert entered.wait(30)
        asyncio.run(asyncio.wait_for(other(), 30))
    finally:
        go_on.set()
        thread.join()
    assert results == [["x!"]]


def test_owners_have_names_of_their_own_in_all_threads() -> None:
    names: list[str] = []

    def make() -> None:
        names.extend([Claim().name for _ in range(1000)])

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=make) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert len(set(names)) == len(names) == 8000


# -- listing ---------------------------------------------------------------------------------------


async def test_interrupted_runs_are_listed(place: Place) -> None:
    scenes = {name: Scene() for name in ("driven", "orphan", "stopped", "cancelled", "failed", "completed")}
    await scenes["stopped"].left(place.storage, "stopped")
    await scenes["orphan"].orphaned(place.storage, "orphan")
    cancelled = await scenes["cancelled"].driven(place.storage, "cancelled")
    await cancelled.cancel()
    scenes["failed"].broken = True
    with pytest.raises(ExecutorFailed):
        await soon(scenes["failed"].build().run("x", run_id="failed", storage=place.storage))
    await soon(scenes["completed"].build().run("x", run_id="completed", storage=place.storage))
    driven = await scenes["driven"].driven(place.storage, "driven")

    async def ids(**asked: Any) -> set[str]:
        return {run.run_id for run in await place.storage.list_runs(**asked)}

    assert await ids(interrupted=True) == {"orphan"}
    assert await ids(interrupted=False) == set(scenes) - {"orphan"}
    assert await ids(interrupted=True, status=RunStatus.RUNNING) == {"orphan"}
    assert await ids(interrupted=False, status=RunStatus.RUNNING) == {"driven"}
    assert await ids(interrupted=True, status=RunStatus.STOPPED) == set()
    assert await ids(interrupted=True, limit=1) == {"orphan"}
    assert await ids() == set(scenes)
    assert await scenes["orphan"].resumed(place.storage, "orphan") == ["x123"]
    assert await ids(interrupted=True) == set()
    scenes["driven"].go_on.set()
    await soon(driven.wait_for_completion())


async def test_runs_that_wait_or_are_over_have_no_owner(place: Place) -> None:
    waiting = asking()
    runs = [await waiting.start(f"q{number}", storage=place.storage) for number in range(30)]
    for run in runs:
        await soon(run.wait_for_completion())
        head = await head_of(place.storage, run.run_id)
        assert (head.status, head.owner) == (RunStatus.WAITING, "")
        claim = recorder_of(run).claim
        assert not is_held(claim.name)
    scene = Scene()
    for made in (_stopped, _failed, _cancelled):
        await made(scene, wrapped(place.storage, partial(Renamed, name=made.__name__)))
        assert (await head_of(place.storage, made.__name__)).owner == ""


class Renamed(Wrapped):
    """A store that calls the run ``mine`` otherwise."""

    def __init__(self, inner: Any, name: str) -> None:
        super().__init__(inner)
        self.name = RunId(name)

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        head = commit.head._replace(run_id=self.name, family=self.name)
        records = tuple(record._replace(run_id=self.name) for record in commit.records)
        return await self.inner.commit(commit._replace(head=head, records=records))


def asking() -> Workflow:
    return WorkflowBuilder(name="Ask").set_start_executor(Ask).build()


async def test_a_waiting_run_may_be_resumed_by_many_and_one_answer_counts(place: Place) -> None:
    workflow = asking()
    first = await workflow.start("?", run_id="mine", storage=place.storage)
    await soon(first.wait_for_completion())
    before = await everything(place.storage, "mine")
    second = await workflow.resume(run_id="mine", storage=place.storage)
    await soon(second.wait_for_completion())
    assert (second.status, await everything(place.storage, "mine")) == (RunStatus.WAITING, before)
    await second.respond({"Ask.1.1": "yes"})
    assert (await soon(second.wait_for_completion())).outputs == ["? yes"]
    with pytest.raises(Exception, match="was answered before"):
        await first.respond({"Ask.1.1": "no"})
    assert await outputs_of(workflow.resume(run_id="mine", storage=place.storage)) == ["? yes"]


@pytest.mark.parametrize("kind", ON_DISK)
async def test_nothing_shows_a_process_that_closed_its_storage(
    kind: str, tmp_path: Path, scene: Scene
) -> None:
    def places() -> list[Path]:
        return list(tmp_path.rglob("*"))

    def present() -> list[Path]:
        return [path for path in places() if path.parent.name.endswith("owners")]

    first, second = storage_at(kind, tmp_path), storage_at(kind, tmp_path)
    await soon(scene.build().run("x", run_id="a", storage=first))
    await soon(scene.build().run("x", run_id="b", storage=second))
    assert len(present()) == 1, "one file for a process"
    await first.close()
    assert len(present()) == 1
    await second.close()
    assert present() == []
    assert not any("owners" in path.name for path in places())


# -- attaching -------------------------------------------------------------------------------------


async def test_attaching_gives_the_object_that_drives_the_run(place: Place, scene: Scene) -> None:
    run = await scene.driven(place.storage)
    before = await everything(place.storage, "mine")
    for workflow in (scene.build(), scene.build()):
        attached = await workflow.start("x", run_id="mine", storage=place.storage, if_exists="attach")
        assert attached is run
    assert await everything(place.storage, "mine") == before
    scene.go_on.set()
    assert (await soon(run.wait_for_completion())).outputs == ["x123"]
    assert scene.calls == ["first", "second", "third"]


async def test_attaching_gives_the_one_who_took_the_run_over(place: Place, scene: Scene) -> None:
    await scene.driven(place.storage)
    winner = await scene.build().resume(run_id="mine", storage=place.storage, take_over=True)
    attached = await scene.build().start("x", run_id="mine", storage=place.storage, if_exists="attach")
    assert attached is winner
    scene.go_on.set()
    assert (await soon(winner.wait_for_completion())).outputs == ["x123"]


@pytest.mark.parametrize("made", [_interrupted, _stopped, _failed, _cancelled])
async def test_attaching_resumes_a_run_that_nobody_drives(
    place: Place, scene: Scene, made: Callable[..., Awaitable[None]]
) -> None:
    await made(scene, place.storage)
    scene.calls.clear()
    run = await scene.build().start("x", run_id="mine", storage=place.storage, if_exists="attach")
    assert (await soon(run.wait_for_completion())).outputs == ["x123"]
    assert scene.calls == ["second", "third"]


async def test_attaching_to_a_run_that_waits_or_is_over_writes_nothing(place: Place) -> None:
    workflow = asking()
    run = await workflow.start("?", run_id="mine", storage=place.storage)
    await soon(run.wait_for_completion())
    before = await everything(place.storage, "mine")
    attached = await workflow.start("?", run_id="mine", storage=place.storage, if_exists="attach")
    assert [r.request_id for r in (await soon(attached.wait_for_completion())).pending_requests] == [
        "Ask.1.1"
    ]
    assert await everything(place.storage, "mine") == before
    await attached.respond({"Ask.1.1": "yes"})
    await soon(attached.wait_for_completion())
    before = await everything(place.storage, "mine")
    over = await workflow.start("?", run_id="mine", storage=place.storage, if_exists="attach")
    assert (await soon(over.wait_for_completion())).outputs == ["? yes"]
    assert await everything(place.storage, "mine") == before


async def test_attaching_to_a_run_that_is_being_closed_goes_on_with_it(
    storage: CheckpointStorage, scene: Scene
) -> None:
    """Whoever attaches wants the run to go on, not to share in its end."""
    run = await scene.driven(storage)
    gate = Gate(storage.store, 1)
    log_of(run).store = gate
    closing = asyncio.ensure_future(run.close())
    await soon(gate.reached.wait())
    scene.go_on.set()
    attaching = asyncio.ensure_future(
        scene.build().start("x", run_id="mine", storage=storage, if_exists="attach")
    )
    for _ in range(10):
        await asyncio.sleep(0)
    gate.opened.set()
    await soon(closing)
    assert (await soon((await soon(attaching)).wait_for_completion())).outputs == ["x123"]


# -- finished runs ---------------------------------------------------------------------------------


async def test_finished_run_can_be_resumed_by_all_and_nothing_is_written(place: Place, scene: Scene) -> None:
    await soon(scene.build().run("x", run_id="mine", storage=place.storage))
    before = await everything(place.storage, "mine")
    won, lost = await outcomes(
        *(scene.build().resume(run_id="mine", storage=place.storage) for _ in range(5)),
        scene.build().resume(run_id="mine", storage=place.storage, take_over=True),
    )
    assert lost == []
    for run in won:
        assert (await soon(run.wait_for_completion())).outputs == ["x123"]
        assert run.status is RunStatus.COMPLETED
        await run.close()
        await run.cancel()
    assert await everything(place.storage, "mine") == before
    assert scene.calls == ["first", "second", "third"]


# -- takeovers -------------------------------------------------------------------------------------


async def _taken_over(scene: Scene, storage: CheckpointStorage, owner: str = DEAD) -> Head:
    """Let a process take the run over and die before its next checkpoint; where the run stands then."""
    scene.go_on.clear()
    scene.entered.clear()
    run = await scene.build().resume(run_id="mine", storage=storage)
    await soon(scene.entered.wait())
    head = await head_of(storage, "mine")
    await give_to(storage, owner, takeovers=head.takeovers)
    await run.close()
    return head


async def test_takeovers_are_counted_until_the_next_checkpoint(place: Place, scene: Scene) -> None:
    await scene.orphaned(place.storage)
    for number in (1, 2, 3):
        assert (await _taken_over(scene, place.storage)).takeovers == number
    run = await scene.build().resume(run_id="mine", storage=place.storage)
    assert (await head_of(place.storage, "mine")).takeovers == 4
    scene.go_on.set()
    await soon(run.wait_for_completion())
    assert (await head_of(place.storage, "mine")).takeovers == 0


async def test_a_note_in_the_journal_counts_as_progress(place: Place) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    @executor(id="pay")
    async def pay(text: str, ctx: WorkflowContext[None, str]) -> str:
        await ctx.once("pay", lambda: "paid")
        entered.set()
        await go_on.wait()
        return text

    workflow = WorkflowBuilder(name="Pay").set_start_executor(pay).build()
    run = await workflow.start("x", run_id="mine", storage=place.storage)
    await soon(entered.wait())
    await give_to(place.storage, DEAD, takeovers=MOST_TAKEOVERS - 1)
    await run.close()
    entered.clear()
    resumed = await workflow.resume(run_id="mine", storage=place.storage)
    await soon(entered.wait())
    assert (await head_of(place.storage, "mine")).takeovers == MOST_TAKEOVERS, "nothing was noted anew"
    go_on.set()
    assert (await soon(resumed.wait_for_completion())).outputs == ["x"]

    go_on.clear()
    entered.clear()
    other = await workflow.start("y", run_id="other", storage=place.storage)
    await soon(entered.wait())
    await other.close()
    await give_to(place.storage, DEAD, "other", takeovers=2)

    @executor(id="pay")
    async def pay_more(text: str, ctx: WorkflowContext[None, str]) -> str:
        await ctx.once("pay more", lambda: "paid more")
        entered.set()
        await go_on.wait()
        return text

    entered.clear()
    again = WorkflowBuilder(name="Pay").set_start_executor(pay_more).build()
    resumed = await again.resume(run_id="other", storage=place.storage)
    await soon(entered.wait())
    assert (await head_of(place.storage, "other")).takeovers == 0
    go_on.set()
    await soon(resumed.wait_for_completion())


async def test_taking_over_from_the_living_is_counted_too(place: Place, scene: Scene) -> None:
    await scene.driven(place.storage)
    for number in (1, 2):
        last = await scene.build().resume(run_id="mine", storage=place.storage, take_over=True)
        assert (await head_of(place.storage, "mine")).takeovers == number
    scene.go_on.set()
    assert (await soon(last.wait_for_completion())).outputs == ["x123"]
    assert (await head_of(place.storage, "mine")).takeovers == 0


async def test_run_that_kills_whoever_takes_it_over_fails(place: Place, scene: Scene) -> None:
    await scene.orphaned(place.storage)
    for _ in range(MOST_TAKEOVERS):
        await _taken_over(scene, place.storage)
    checkpoints = await place.storage.list_checkpoints(run_id="mine")
    scene.calls.clear()
    with pytest.raises(RunPoisoned) as caught:
        await scene.build().resume(run_id="mine", storage=place.storage)
    said = str(caught.value)
    assert "run mine is FAILED now" in said
    assert f"{MOST_TAKEOVERS} processes" in said
    listed = await info_of_run(place.storage, "mine")
    assert (listed.status, listed.interrupted) == (RunStatus.FAILED, False)
    assert listed.reason.startswith("RunPoisoned: ")
    head = await head_of(place.storage, "mine")
    assert (head.owner, head.takeovers) == ("", 0)
    assert await place.storage.list_checkpoints(run_id="mine") == checkpoints
    assert scene.calls == []
    # Once more, on purpose.
    scene.go_on.set()
    assert await scene.resumed(place.storage) == ["x123"]


async def test_poisoned_run_goes_on_from_an_earlier_checkpoint(place: Place, scene: Scene) -> None:
    await scene.orphaned(place.storage)
    await give_to(place.storage, DEAD, takeovers=MOST_TAKEOVERS)
    first = (await place.storage.list_checkpoints(run_id="mine"))[0]
    with pytest.raises(RunPoisoned):
        await scene.build().resume(run_id="mine", storage=place.storage)
    assert await outputs_of(scene.build().resume(first, storage=place.storage)) == ["x123"]


class Meeting(Wrapped):
    """Commits nothing before three want to."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.three = asyncio.Barrier(3)

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        await self.three.wait()
        return await self.inner.commit(commit)


async def test_of_those_who_find_a_poisoned_run_none_goes_on(place: Place, scene: Scene) -> None:
    await scene.orphaned(place.storage)
    await give_to(place.storage, DEAD, takeovers=MOST_TAKEOVERS)
    scene.calls.clear()
    meeting = wrapped(place.storage, Meeting)  # all have looked before one of them writes
    won, lost = await outcomes(*(scene.build().resume(run_id="mine", storage=meeting) for _ in range(3)))
    assert won == []
    assert {type(error) for error in lost} <= {RunPoisoned, RunTaken}, lost
    assert RunPoisoned in {type(error) for error in lost}
    assert scene.calls == []
    assert await scene.resumed(place.storage) == ["x123"]


async def test_poison_does_not_hold_off_who_takes_over_on_purpose(place: Place, scene: Scene) -> None:
    await scene.orphaned(place.storage)
    await give_to(place.storage, DEAD, takeovers=MOST_TAKEOVERS)
    assert await scene.resumed(place.storage, take_over=True) == ["x123"]
    assert (await head_of(place.storage, "mine")).takeovers == 0


async def test_a_failure_that_was_seen_is_no_death(place: Place, scene: Scene) -> None:
    """Takeovers before a failure do not count against the run when someone resumes it afterwards."""
    await scene.orphaned(place.storage)
    await give_to(place.storage, DEAD, takeovers=MOST_TAKEOVERS - 1)
    scene.broken = True
    scene.go_on.set()
    with pytest.raises(ExecutorFailed):
        await scene.resumed(place.storage)
    scene.broken = False
    await _taken_over(scene, place.storage)
    scene.go_on.set()
    assert await scene.resumed(place.storage) == ["x123"]


# -- moments ---------------------------------------------------------------------------------------


class HaltsAfter(Wrapped):
    """Its nth commit happens, but whoever made it does not hear of it before it is let on."""

    def __init__(self, inner: Any, nth: int) -> None:
        super().__init__(inner)
        self.left = nth
        self.reached, self.on = asyncio.Event(), asyncio.Event()

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        letters: Sequence[Letter] = await self.inner.commit(commit)
        self.left -= 1
        if self.left == 0:
            self.reached.set()
            await soon(self.on.wait())
        return letters


async def test_run_that_has_just_been_answered_is_driven(storage: CheckpointStorage) -> None:
    """That it goes on is in the store before the one who goes on with it knows."""
    halting = HaltsAfter(storage.store, 3)
    run = await asking().start("?", run_id="mine", storage=CheckpointStorage(halting))
    await soon(run.wait_for_completion())
    await run.respond({"Ask.1.1": "yes"})
    await soon(halting.reached.wait())
    assert (await info_of_run(storage, "mine")).status is RunStatus.RUNNING
    assert await storage.list_runs(interrupted=True) == []
    with pytest.raises(RunTaken):
        await asking().resume(run_id="mine", storage=storage)
    halting.on.set()
    assert (await soon(run.wait_for_completion())).outputs == ["? yes"]


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
async def test_run_whose_commit_was_not_heard_of_is_driven(
    storage: CheckpointStorage, scene: Scene, nth: int
) -> None:
    halting = HaltsAfter(storage.store, nth)
    starting = asyncio.ensure_future(
        scene.build().start("x", run_id="mine", storage=CheckpointStorage(halting))
    )
    await soon(halting.reached.wait())
    over = nth == 4
    assert (await info_of_run(storage, "mine")).status is (RunStatus.COMPLETED if over else RunStatus.RUNNING)
    assert await storage.list_runs(interrupted=True) == []
    if not over:
        with pytest.raises(RunTaken):
            await scene.build().resume(run_id="mine", storage=storage)
    halting.on.set()
    assert (await soon((await soon(starting)).wait_for_completion())).outputs == ["x123"]


def test_who_waits_for_a_loop_that_is_closed_meanwhile_goes_on() -> None:
    other = asyncio.new_event_loop()

    async def make() -> Claim:
        claim = Claim()
        claim.leaving = True
        return claim

    claim = other.run_until_complete(make())

    async def wait() -> bool:
        waiting = asyncio.ensure_future(wait_for_release(claim.name))
        await asyncio.sleep(0.005)
        assert not waiting.done()
        other.close()
        return await asyncio.wait_for(waiting, 30)

    try:
        assert asyncio.run(wait())
    finally:
        other.close()


async def test_waiting_object_does_not_take_back_a_run_that_another_drives(place: Place) -> None:
    """It may go back only where nobody goes on."""
    entered, go_on = asyncio.Event(), asyncio.Event()

    class Slow(Executor):
        @handler
        async def ask(self, text: str, ctx: WorkflowContext) -> None:
            await ctx.request_info(text, response_type=str)

        @response_handler
        async def answered(self, text: str, answer: str, ctx: WorkflowContext[None, str]) -> None:
            entered.set()
            await go_on.wait()
            await ctx.yield_output(f"{text} {answer}")

    workflow = WorkflowBuilder(name="Ask").set_start_executor(Slow).build()
    first = await workflow.start("?", run_id="mine", storage=place.storage)
    await soon(first.wait_for_completion())
    second = await workflow.resume(run_id="mine", storage=place.storage, responses={"Slow.1.1": "yes"})
    await soon(entered.wait())
    before = await head_of(place.storage, "mine")
    with pytest.raises(RunTaken):
        await soon(first.restore_checkpoint(first.checkpoints[0]))
    with pytest.raises(RequestAlreadyAnswered):
        await soon(first.respond({"Slow.1.1": "no"}))
    await soon(first.close())
    assert await head_of(place.storage, "mine") == before
    go_on.set()
    assert (await soon(second.wait_for_completion())).outputs == ["? yes"]


# -- disks that fail, callers that leave -----------------------------------------------------------


@pytest.mark.parametrize("happens", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("nth", range(1, 5))
async def test_run_whose_disk_failed_is_free(place: Place, scene: Scene, nth: int, happens: bool) -> None:
    """Also if the disk does not come back before the run has given up."""
    failing = CheckpointStorage(Failing(place.storage.store, nth, happens, times=2))
    run = scene.build().start("x", run_id="mine", storage=failing)
    try:
        await soon((await run).wait_for_completion())
    except StorageError:
        pass
    listed = await place.storage.list_runs()
    if not listed:
        assert (nth, happens) == (1, False)
        return
    assert (listed[0].status is RunStatus.RUNNING) is listed[0].interrupted
    assert await scene.resumed(place.storage) == ["x123"]
    assert scene.calls.count("third") <= 2
    assert (await place.storage.verify()).ok


@pytest.mark.parametrize("take_over", [False, True])
async def test_resume_that_is_cancelled_anywhere_leaves_the_run_free(take_over: bool) -> None:
    """After as many steps of the event loop as it takes; then the run can be resumed, and nothing was lost."""
    finished = False
    for steps in range(500):
        scene = Scene()
        storage = InMemoryCheckpointStorage()
        await scene.orphaned(storage)
        slow = wrapped(storage, Slow)
        resuming = asyncio.ensure_future(
            scene.build().resume(run_id="mine", storage=slow, take_over=take_over)
        )
        for _ in range(steps):
            await asyncio.sleep(0)
        finished = resuming.done()
        resuming.cancel()
        await asyncio.wait([resuming])
        if finished:
            await resuming.result().close()
        info = await info_of_run(storage, "mine")
        assert info.status in (RunStatus.RUNNING, RunStatus.STOPPED, RunStatus.COMPLETED)
        assert info.interrupted is (info.status is RunStatus.RUNNING), steps
        assert await scene.resumed(storage) == ["x123"], steps
        assert (await head_of(storage, "mine")).owner == ""
        if finished:
            break
    assert finished, "the last time it was through before it was cancelled"


@pytest.mark.parametrize("kind", ON_DISK)
def test_several_workers_share_the_runs_of_one_storage(kind: str, tmp_path: Path) -> None:
    """Three event loops in three threads look for runs that nobody drives; each run is finished by one of them."""
    names = [f"run{number}" for number in range(9)]
    effects: list[tuple[str, str]] = []
    problems: list[BaseException] = []
    ready = threading.Barrier(3, timeout=30)

    def build(broken: bool = False) -> Workflow:
        @executor(id="begin")
        async def begin(text: str) -> str:
            return text

        @executor(id="work")
        async def work(text: str, ctx: WorkflowContext[str]) -> str:
            if broken:
                raise RuntimeError("broken")
            effects.append((ctx.run_id, "work"))
            await asyncio.sleep(0.001)
            return text

        @executor(id="end")
        async def end(text: str, ctx: WorkflowContext[None, str]) -> str:
            effects.append((ctx.run_id, "end"))
            return text

        builder = WorkflowBuilder(name="Shared").set_start_executor(begin)
        return builder.add_chain([begin, work, end]).build()

    async def prepare() -> None:
        async with storage_at(kind, tmp_path) as storage:
            for number, name in enumerate(names):
                with pytest.raises(ExecutorFailed):
                    await build(broken=True).run(name, run_id=name, storage=storage)
                if number % 3 == 0:
                    await give_to(storage, DEAD, name)

    async def work(storage: CheckpointStorage) -> None:
        while runs := [run for run in await storage.list_runs() if run.status is not RunStatus.COMPLETED]:
            for run in runs:
                with contextlib.suppress(RunTaken):
                    resumed = await build().resume(run_id=run.run_id, storage=storage)
                    await resumed.wait_for_completion()

    async def worker() -> None:
        async with storage_at(kind, tmp_path) as storage:
            await asyncio.to_thread(ready.wait)
            await asyncio.wait_for(work(storage), 60)

    def run_worker() -> None:
        try:
            asyncio.run(worker())
        except BaseException as error:
            problems.append(error)

    asyncio.run(prepare())
    threads = [threading.Thread(target=run_worker) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert sorted(effects) == sorted((name, role) for name in names for role in ("work", "end"))
