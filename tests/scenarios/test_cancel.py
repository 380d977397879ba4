"""Cancel and close: handlers have time to clean up, those that do not end are left behind, nothing of them counts."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from holdfast import (
    Executor,
    ExecutorInvokedEvent,
    HoldfastError,
    InvalidArgument,
    RequestInfoExecutor,
    RetryPolicy,
    Run,
    RunEnded,
    RunStatus,
    StubbornHandler,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    WorkflowStatusEvent,
    WorkflowWarningEvent,
    executor,
    handler,
)
from tests.support.runs import events_of, names, pauses, soon, taken
from tests.support.seeded_loop import run_seeded

pytestmark = pytest.mark.usefixtures("nothing_is_left_running")

SEEDS = range(10)


@dataclass
class Progress(WorkflowEvent):
    """An event of a user."""

    percent: int = 0


@executor
async def start(text: str) -> str:
    return text


def fanned(*workers: Any) -> Workflow:
    return WorkflowBuilder(name="Fanned").set_start_executor(start).add_fan_out_edges(start, workers).build()


def after_start(work: Any) -> Workflow:
    return WorkflowBuilder(name="Single").set_start_executor(start).add_edge(start, work).build()


async def cancelled_without_waiting(run: Run) -> None:
    """Cancel in virtual time: no time passes unless a handler has to be left behind."""
    began = asyncio.get_running_loop().time()
    await run.cancel(grace=1000)
    assert run.result().warnings == []
    assert asyncio.get_running_loop().time() == began


async def settled(condition: Callable[[], bool], pause: float = 0) -> None:
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(pause)
    raise AssertionError("it never came to that")


class Scene:
    """What a test and its handlers tell one another; handlers reach it from outside their fields."""

    def __init__(self) -> None:
        self.waiting = asyncio.Event()
        self.told: list[str] = []


class Endless(Executor):
    """Waits until it is cancelled, then takes its time to clean up."""

    transient = ("scene",)

    def __init__(self, scene: Scene, id: str = "endless", cleanup: int = 0) -> None:
        super().__init__(id)
        self.scene, self.cleanup = scene, cleanup

    @handler
    async def wait(self, text: str, ctx: WorkflowContext[str, str]) -> str:
        await ctx.yield_output("not to be seen")
        self.scene.told.append(f"{self.id} waits")
        self.scene.waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.scene.told.append(f"{self.id} is cancelled")
            await pauses(self.cleanup)
            self.scene.told.append(f"{self.id} is clean")
        return text


class Swallow(Executor):
    """Keeps its cancellation to itself and returns as if nothing had happened."""

    def __init__(self, scene: Scene, id: str = "swallow") -> None:
        super().__init__(id)
        self.scene = scene

    @handler
    async def wait(self, text: str, ctx: WorkflowContext[str, str]) -> str:
        await ctx.queue_state_update("key", "mine", scope_name="Shared")
        self.scene.waiting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.scene.told.append(f"{self.id} goes on")
        await ctx.yield_output("not to be seen")
        return text


@executor
async def never(text: str) -> None:
    raise AssertionError("a superstep after the cancelled one")


# -- cancelled -------------------------------------------------------------------------------------


async def test_status_and_events_of_a_cancelled_run() -> None:
    scene = Scene()
    run = await after_start(Endless.bind(scene)).start("x")
    beside = asyncio.create_task(taken(run))
    await scene.waiting.wait()
    assert run.status.value == "running"
    await soon(run.cancel())
    assert run.status is RunStatus.CANCELLED
    assert run.status.ended
    events = await soon(beside)
    assert names(events) == [
        "0 WorkflowStarted",
        "0 WorkflowStatus running",
        "1 SuperStepStarted",
        "1 ExecutorInvoked start",
        "1 ExecutorCompleted start",
        "1 SuperStepCompleted",
        "2 SuperStepStarted",
        "2 ExecutorInvoked endless",
        "2 WorkflowStatus cancelled",
    ]
    assert await taken(run) == events
    result = await soon(run.wait_for_completion())
    assert (result.status, result.outputs, result.pending_requests) == (RunStatus.CANCELLED, [], [])
    assert run.snapshot.superstep == 1
    assert result.warnings == []
    await run.cancel()
    await run.close()
    assert run.status is RunStatus.CANCELLED


async def test_closed_run_is_stopped() -> None:
    scene = Scene()
    run = await after_start(Endless.bind(scene)).start("x")
    await scene.waiting.wait()
    await soon(run.close())
    assert run.status is RunStatus.STOPPED
    assert names(await taken(run))[-1] == "2 WorkflowStatus stopped"


@pytest.mark.parametrize("leave", [Run.cancel, Run.close])
async def test_ended_run_stays_as_it_is(leave: Callable[[Run], Any]) -> None:
    run = await WorkflowBuilder().set_start_executor(start).build().start("x")
    await run.wait_for_completion()
    before = await taken(run)
    await leave(run)
    assert run.status is RunStatus.COMPLETED
    assert await taken(run) == before


async def test_cancelled_run_takes_no_responses() -> None:
    scene = Scene()
    run = await after_start(Endless.bind(scene)).start("x")
    await scene.waiting.wait()
    await run.cancel()
    with pytest.raises(RunEnded) as caught:
        await run.send_response("ask.1.1", True)
    assert str(caught.value) == f"run {run.run_id} is cancelled; it takes no responses: start a new run"


# -- grace -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cleanup", [0, 1, 10])
async def test_cancel_waits_for_handlers_to_clean_up(cleanup: int) -> None:
    scene = Scene()
    ids = ("a", "b", "c")
    run = await fanned(*(Endless.bind(scene, id=id, cleanup=cleanup) for id in ids)).start("x")
    await scene.waiting.wait()
    await pauses(3)
    await soon(run.cancel())
    assert sorted(scene.told[3:]) == sorted(
        f"{id} is {what}" for id in ids for what in ("cancelled", "clean")
    )
    assert run.status is RunStatus.CANCELLED
    assert run.result().warnings == []


async def test_state_and_results_of_a_handler_that_swallows_its_cancellation_do_not_count() -> None:
    scene = Scene()
    builder = WorkflowBuilder().set_start_executor(start).add_edge(start, Swallow.bind(scene))
    run = await builder.add_edge("swallow", never).build().start("x")
    await scene.waiting.wait()
    before = run.snapshot
    await soon(run.cancel())
    assert scene.told == ["swallow goes on"]
    assert run.status is RunStatus.CANCELLED
    assert run.snapshot is before
    assert (await run.wait_for_completion()).outputs == []
    events = await taken(run)
    assert names(events)[-1] == "2 WorkflowStatus cancelled"
    assert "2 SuperStepCompleted" not in names(events)


@pytest.mark.parametrize("order", ["swallow first", "swallow last"])
def test_one_that_swallows_does_not_keep_others_from_being_cancelled(order: str) -> None:
    async def main() -> None:
        scene = Scene()
        workers = [Swallow.bind(scene, id="swallow"), Endless.bind(scene, id="endless", cleanup=3)]
        run = await fanned(*(workers if order == "swallow first" else reversed(workers))).start("x")
        await scene.waiting.wait()
        await pauses(40)
        await cancelled_without_waiting(run)
        assert sorted(scene.told[1:]) == ["endless is cancelled", "endless is clean", "swallow goes on"]
        assert run.status is RunStatus.CANCELLED
        assert run.result().warnings == []

    for seed in SEEDS:
        run_seeded(main, seed)


async def test_handler_that_fails_while_it_is_cancelled() -> None:
    waiting = asyncio.Event()

    @executor
    async def work(text: str) -> str:
        try:
            waiting.set()
            await asyncio.Event().wait()
        finally:
            raise ValueError("while cleaning up")
        return text

    run = await after_start(work).start("x")
    await waiting.wait()
    await soon(run.cancel())
    assert run.status is RunStatus.CANCELLED
    assert (await run.wait_for_completion()).status is RunStatus.CANCELLED


def test_handler_that_fails_while_it_is_cancelled_is_not_tried_again() -> None:
    async def main() -> None:
        waiting = asyncio.Event()
        attempts = []

        @executor(retry=RetryPolicy(attempts=3, backoff=0))
        async def work(text: str, ctx: WorkflowContext) -> None:
            attempts.append(ctx.attempt)
            waiting.set()
            try:
                await asyncio.Event().wait()
            finally:
                raise ConnectionError("while cleaning up")

        run = await after_start(work).start("x")
        await waiting.wait()
        await cancelled_without_waiting(run)
        assert attempts == [1]
        assert run.status is RunStatus.CANCELLED

    for seed in SEEDS:
        run_seeded(main, seed)


def test_messages_that_a_cancelled_turn_has_not_handled_yet() -> None:
    async def main() -> None:
        scene = Scene()
        seen = []

        @executor
        async def send(text: str, ctx: WorkflowContext[str]) -> None:
            for letter in text:
                await ctx.send_message(letter)

        @executor
        async def swallow(letter: str) -> None:
            seen.append(letter)
            scene.waiting.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass

        workflow = WorkflowBuilder().set_start_executor(send).add_edge(send, swallow).build()
        run = await workflow.start("abc")
        await scene.waiting.wait()
        await cancelled_without_waiting(run)
        assert seen == ["a"]
        assert run.status is RunStatus.CANCELLED

    for seed in SEEDS:
        run_seeded(main, seed)


def test_wait_between_attempts_is_cut_short() -> None:
    async def main() -> None:
        @executor(retry=RetryPolicy(attempts=3, backoff=50, jitter=0))
        async def work(text: str) -> None:
            raise ValueError("no")

        run = await after_start(work).start("x")
        await asyncio.sleep(10)
        await run.cancel()
        assert asyncio.get_running_loop().time() == 10
        assert run.status is RunStatus.CANCELLED
        assert names(await taken(run))[-2:] == ["2 ExecutorFailed work", "2 WorkflowStatus cancelled"]

    for seed in SEEDS:
        run_seeded(main, seed)


@pytest.mark.parametrize("leave", [Run.cancel, Run.close])
@pytest.mark.parametrize("grace", [-1, float("nan")])
async def test_grace_that_cannot_be_meant(leave: Any, grace: float) -> None:
    scene = Scene()
    run = await after_start(Endless.bind(scene)).start("x")
    await scene.waiting.wait()
    with pytest.raises(InvalidArgument) as caught:
        await leave(run, grace=grace)
    assert str(caught.value) == f"grace={grace!r}: must be 0 or more seconds"
    assert run.status.value == "running"
    await run.cancel()


# -- left behind -----------------------------------------------------------------------------------


class Stubborn(Executor):
    """Goes on after its cancellation until it is let go."""

    def __init__(self, scene: Scene, let_go: asyncio.Event, id: str = "stubborn") -> None:
        super().__init__(id)
        self.scene, self.let_go = scene, let_go

    @handler
    async def wait(self, text: str, ctx: WorkflowContext[str, str]) -> str:
        self.scene.told.append(f"{self.id} waits")
        self.scene.waiting.set()
        while not self.let_go.is_set():
            try:
                await self.let_go.wait()
            except asyncio.CancelledError:
                self.scene.told.append(f"{self.id} does not care")
        await ctx.add_event(Progress(percent=99))
        await ctx.add_event(Progress(percent=50, provisional=True))
        await ctx.yield_output("not to be seen")
        self.scene.told.append(f"{self.id} ends")
        return text


def stubborn_warnings(events: list[WorkflowEvent]) -> list[str]:
    return [
        event.message
        for event in events
        if isinstance(event, WorkflowWarningEvent) and isinstance(event.warning, StubbornHandler)
    ]


@pytest.mark.parametrize("beside", [0, 2])
def test_handler_that_never_ends_is_left_behind(beside: int) -> None:
    async def main() -> None:
        scene, let_go = Scene(), asyncio.Event()
        others = [Endless.bind(scene, id=f"e{number}", cleanup=2) for number in range(beside)]
        run = await fanned(Stubborn.bind(scene, let_go), *others).start("x")
        watched = asyncio.create_task(taken(run))
        await settled(lambda: len(scene.told) == beside + 1)
        began = asyncio.get_running_loop().time()
        await run.cancel(grace=2.5)
        assert asyncio.get_running_loop().time() == began + 2.5
        assert run.status is RunStatus.CANCELLED
        assert sorted(told for told in scene.told if told.endswith("clean")) == [
            f"e{number} is clean" for number in range(beside)
        ]
        events = await watched
        (warning,) = stubborn_warnings(events)
        assert warning == (
            f"a handler in superstep 2 of run {run.run_id} did not end within 2.5 s after it was cancelled and was "
            f"left behind; let CancelledError through, and use 'finally' to clean up"
        )
        assert names(events)[-2:] == ["2 WorkflowWarning", "2 WorkflowStatus cancelled"]
        assert [type(warning) for warning in run.result().warnings] == [StubbornHandler]
        result = await asyncio.wait_for(run.wait_for_completion(), timeout=1)
        assert result.status is RunStatus.CANCELLED
        let_go.set()
        await settled(lambda: "stubborn ends" in scene.told)
        await pauses(30)

    for seed in SEEDS:
        run_seeded(main, seed)


def test_nothing_of_what_was_left_behind_is_seen() -> None:
    async def main() -> None:
        scene, let_go = Scene(), asyncio.Event()
        run = await after_start(Stubborn.bind(scene, let_go)).start("x")
        await scene.waiting.wait()
        await run.cancel(grace=1)
        before, snapshot = await taken(run), run.snapshot
        let_go.set()
        await pauses(50)
        assert scene.told[-1] == "stubborn ends"
        assert run.snapshot is snapshot
        assert run.status is RunStatus.CANCELLED
        assert run.result().outputs == []
        assert names(await taken(run)) == names(before)

    for seed in SEEDS:
        run_seeded(main, seed)


def test_waiting_for_a_run_that_left_a_handler_behind_does_not_wait_for_the_handler() -> None:
    async def main() -> None:
        scene, let_go = Scene(), asyncio.Event()
        run = await after_start(Stubborn.bind(scene, let_go)).start("x")
        beside = asyncio.create_task(run.wait_for_completion())
        await scene.waiting.wait()
        await run.cancel(grace=1)
        try:
            for waiting in (beside, run.wait_for_completion()):
                result = await asyncio.wait_for(waiting, timeout=10)
                assert result.status is RunStatus.CANCELLED
        finally:
            let_go.set()
            await pauses(50)

    run_seeded(main, seed=0)


def test_leaving_a_stream_whose_handler_never_ends() -> None:
    async def main() -> None:
        scene, let_go = Scene(), asyncio.Event()
        stream = after_start(Stubborn.bind(scene, let_go)).run_stream("x")
        async with stream:
            async for event in stream:
                if isinstance(event, ExecutorInvokedEvent) and event.superstep == 2:
                    await scene.waiting.wait()
                    break
        assert stream.run.status is RunStatus.STOPPED
        assert len(stubborn_warnings(await taken(stream.run))) == 1
        let_go.set()
        await pauses(50)

    run_seeded(main, seed=0)


async def test_sync_function_is_left_in_its_thread() -> None:
    waiting, go_on, gone_on = threading.Event(), threading.Event(), threading.Event()

    @executor
    def work(text: str) -> str:
        waiting.set()
        go_on.wait(30)
        gone_on.set()
        return "late"

    run = await after_start(work).start("x")
    await asyncio.to_thread(waiting.wait, 30)
    try:
        await soon(run.cancel(grace=1000))
        assert not gone_on.is_set()
        assert run.status is RunStatus.CANCELLED
        before = await taken(run)
        assert names(before)[-1] == "2 WorkflowStatus cancelled"
    finally:
        go_on.set()
    await asyncio.to_thread(gone_on.wait, 30)
    await pauses(10)
    assert await taken(run) == before
    assert run.result().outputs == []


async def test_several_sync_functions_are_left_in_their_threads() -> None:
    go_on = threading.Event()
    waiting: list[str] = []

    class Block(Executor):
        @handler
        def work(self, text: str) -> str:
            waiting.append(text)
            go_on.wait(30)
            return "late"

    run = await fanned(Block.bind(id="a"), Block.bind(id="b")).start("x")
    await settled(lambda: len(waiting) == 2, pause=0.001)
    try:
        await soon(run.cancel(grace=1000))
        assert run.status is RunStatus.CANCELLED
    finally:
        go_on.set()


# -- more than once --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "status"),
    [
        (Run.cancel, Run.cancel, RunStatus.CANCELLED),
        (Run.cancel, Run.close, RunStatus.CANCELLED),
        (Run.close, Run.cancel, RunStatus.STOPPED),
        (Run.close, Run.close, RunStatus.STOPPED),
    ],
)
@pytest.mark.parametrize("between", [0, 1, 3, 6])
@pytest.mark.parametrize("wide", [1, 3])
def test_leaving_twice_while_handlers_clean_up(
    first: Any, second: Any, status: RunStatus, between: int, wide: int
) -> None:
    """The second does not take from the first the time that handlers were given, and both wait for them."""

    async def main() -> None:
        scene = Scene()
        ids = [f"e{number}" for number in range(wide)]
        run = await fanned(
            *(Endless.bind(scene, id=id, cleanup=4 * position) for position, id in enumerate(ids, 1))
        ).start("x")
        await settled(lambda: len(scene.told) == wide)
        one = asyncio.create_task(first(run))
        await settled(lambda: any(told.endswith("is cancelled") for told in scene.told))
        await pauses(between)
        other = asyncio.create_task(second(run))
        await asyncio.wait([one, other], return_when=asyncio.FIRST_COMPLETED)
        clean = sorted(told.split()[0] for told in scene.told if told.endswith("clean"))
        assert clean == ids
        await asyncio.gather(one, other)
        assert run.status is status
        events = await taken(run)
        assert names(events)[-1] == f"2 WorkflowStatus {status}"
        assert stubborn_warnings(events) == []
        ends = [event for event in events if isinstance(event, WorkflowStatusEvent) and event.status.ended]
        assert len(ends) == 1

    for seed in SEEDS:
        run_seeded(main, seed)


async def test_cancel_many_times_at_once() -> None:
    scene = Scene()
    run = await after_start(Endless.bind(scene, cleanup=5)).start("x")
    await scene.waiting.wait()
    await soon(asyncio.gather(*(run.cancel() for _ in range(5)), run.close()))
    assert run.status is RunStatus.CANCELLED
    assert scene.told[1:] == ["endless is cancelled", "endless is clean"]
    assert names(await taken(run))[-1] == "2 WorkflowStatus cancelled"


# -- at odd moments --------------------------------------------------------------------------------


@pytest.mark.parametrize(("leave", "status"), [(Run.cancel, "cancelled"), (Run.close, "stopped")])
async def test_run_that_has_only_just_started(leave: Callable[[Run], Any], status: str) -> None:
    run = await after_start(never).start("x")
    watched = asyncio.create_task(taken(run))
    await leave(run)
    assert run.status.value == status
    assert names(await soon(watched)) == [f"0 WorkflowStatus {status}"]
    assert (await soon(run.wait_for_completion())).status.value == status
    assert run.snapshot.superstep == 0


def test_cancelled_canceller() -> None:
    """Who gives up waiting for the end has cancelled all the same."""

    async def main(seed: int) -> None:
        scene = Scene()
        run = await after_start(Endless.bind(scene, cleanup=5)).start("x")
        began = []

        async def cancel() -> None:
            began.append(True)
            await run.cancel()

        await pauses(seed % 8)
        canceller = asyncio.create_task(cancel())
        await pauses(seed % 5)
        canceller.cancel()
        await asyncio.wait([canceller])
        watched = asyncio.create_task(taken(run))
        await pauses(30)
        if began:
            assert run.status is RunStatus.CANCELLED
        await run.cancel()
        assert names(await watched)[-1].endswith("WorkflowStatus cancelled")

    for seed in range(40):
        run_seeded(partial(main, seed), seed)


async def test_run_task_that_is_cancelled_before_it_began_by_the_loop_itself() -> None:
    """As ``asyncio.run`` does with all tasks at its end: who watches is not left waiting."""
    before = asyncio.all_tasks()
    run = await after_start(never).start("x")
    watched = asyncio.create_task(taken(run))
    (task,) = [task for task in asyncio.all_tasks() - before if task is not watched]
    task.cancel()
    await pauses(5)
    assert run.status is RunStatus.STOPPED
    assert names(await soon(watched))[-1] == "0 WorkflowStatus stopped"


def test_handler_that_cancels_its_own_run() -> None:
    async def main() -> None:
        runs: list[Run] = []
        told = []

        @executor
        async def work(text: str) -> str:
            try:
                await runs[0].cancel()
            finally:
                told.append("cleaned up")
            raise AssertionError("went on")

        for workflow in (after_start(work), fanned(work, Endless.bind(Scene()))):
            runs[:] = [await workflow.start("x")]
            result = await runs[0].wait_for_completion()
            assert result.status is RunStatus.CANCELLED
            assert names(await taken(runs[0]))[-1] == "2 WorkflowStatus cancelled"
        assert told == ["cleaned up"] * 2

    for seed in SEEDS:
        run_seeded(main, seed)


@pytest.mark.parametrize(("leave", "status"), [(Run.cancel, "cancelled"), (Run.close, "stopped")])
async def test_leaving_inside_watch_stream(leave: Callable[[Run], Any], status: str) -> None:
    scene = Scene()
    run = await after_start(Endless.bind(scene)).start("x")
    seen = []
    async for event in run.watch_stream():
        seen.append(event)
        if isinstance(event, ExecutorInvokedEvent) and event.superstep == 2:
            await soon(leave(run))
    assert names(seen)[-2:] == ["2 ExecutorInvoked endless", f"2 WorkflowStatus {status}"]


async def test_cancelling_inside_a_run_stream() -> None:
    scene = Scene()
    stream = after_start(Endless.bind(scene)).run_stream("x")
    seen = []
    async for event in stream:
        seen.append(event)
        if isinstance(event, ExecutorInvokedEvent) and event.superstep == 2:
            await soon(stream.run.cancel())
    assert names(seen)[-1] == "2 WorkflowStatus cancelled"
    assert stream.run.status is RunStatus.CANCELLED


async def test_caller_of_run_is_cancelled() -> None:
    scene = Scene()
    caller = asyncio.create_task(after_start(Endless.bind(scene, cleanup=5)).run("x"))
    await scene.waiting.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(caller)
    assert scene.told[1:] == ["endless is cancelled", "endless is clean"]


async def test_caller_of_run_runs_out_of_time() -> None:
    scene = Scene()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(after_start(Endless.bind(scene, cleanup=5)).run("x"), timeout=0.005)
    assert scene.told[1:] == ["endless is cancelled", "endless is clean"]


async def test_who_waits_for_completion_may_stop_waiting() -> None:
    scene = Scene()
    run = await after_start(Endless.bind(scene)).start("x")
    waiter = asyncio.create_task(run.wait_for_completion())
    await scene.waiting.wait()
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert run.status.value == "running"
    await run.cancel()


# -- waiting runs ----------------------------------------------------------------------------------


def asking() -> Workflow:
    ask = RequestInfoExecutor(id="ask", response_type=bool)
    return WorkflowBuilder(name="Asking").set_start_executor(ask).build()


async def test_cancel_of_a_waiting_run() -> None:
    run = await asking().start("Deploy?")
    assert (await run.wait_for_completion()).status is RunStatus.WAITING
    await run.cancel()
    assert run.status is RunStatus.CANCELLED
    assert names(await taken(run))[-2:] == ["1 WorkflowStatus waiting", "1 WorkflowStatus cancelled"]
    assert (await run.wait_for_completion()).status is RunStatus.CANCELLED
    with pytest.raises(RunEnded):
        await run.send_response("ask.1.1", True)


async def test_close_of_a_waiting_run_lets_it_wait() -> None:
    run = await asking().start("Deploy?")
    await run.wait_for_completion()
    await run.close()
    await run.close()
    assert run.status.value == "waiting"
    assert len(run.pending_requests) == 1
    await run.send_response("ask.1.1", True)
    assert (await run.wait_for_completion()).outputs == [True]


async def test_cancel_right_after_an_answer() -> None:
    run = await asking().start("Deploy?")
    result = await run.wait_for_completion()
    await run.send_response("ask.1.1", True)
    await run.cancel()
    assert run.status is RunStatus.CANCELLED
    assert names(await taken(run)) == ["1 WorkflowStatus cancelled"]
    assert (await run.wait_for_completion()).outputs == []
    with pytest.raises(RunEnded):
        await result.respond({"ask.1.1": True})


def test_cancel_while_a_response_comes_in() -> None:
    async def main(seed: int) -> None:
        run = await asking().start("Deploy?")
        await run.wait_for_completion()

        async def answer() -> str:
            await pauses(seed % 7)
            try:
                await run.send_response("ask.1.1", True)
            except HoldfastError as error:
                return type(error).__name__
            return "taken"

        answering = asyncio.create_task(answer())
        watching = asyncio.create_task(taken(run))
        await pauses(seed // 7)
        completed = run.status is RunStatus.COMPLETED
        await run.cancel()
        said = await answering
        assert run.status is (RunStatus.COMPLETED if completed else RunStatus.CANCELLED)
        assert said in ("taken", "RunEnded")
        await watching
        last = await taken(run)
        assert names(last)[-1] == ("1 WorkflowCompleted" if completed else "1 WorkflowStatus cancelled") or (
            names(last)[-1].startswith("2 ")
        )
        assert run.pending_requests == [] or run.status is RunStatus.CANCELLED

    for seed in range(60):
        run_seeded(partial(main, seed), seed)


# -- the next run ----------------------------------------------------------------------------------


async def test_instance_of_a_cancelled_run_may_serve_the_next() -> None:
    class Gate(Executor):
        def __init__(self) -> None:
            super().__init__("gate")

        @handler
        async def wait(self, text: str, ctx: WorkflowContext[None, str]) -> str:
            if text == "wait":
                await asyncio.Event().wait()
            return text

    workflow = WorkflowBuilder().set_start_executor(Gate()).build()
    run = await workflow.start("wait")
    await pauses(3)
    await run.cancel()
    assert names(await events_of(workflow, "go"))[-1] == "1 WorkflowCompleted go"
