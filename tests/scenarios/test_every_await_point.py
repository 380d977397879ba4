"""Whatever happens to a run, at whichever await point: no task is left, nobody is warned, status and events are right.

Each workflow first runs undisturbed on the seeded loop, to count its steps and to see its events. Then it runs again
for each step, and just before that step something happens to it: it is cancelled or closed, time jumps so that
handlers time out, a handler fails, its reader leaves or stops reading. Seeds change the order of everything else.
"""

import asyncio
import gc
import sys
import warnings
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast import (
    Executor,
    ExecutorCompletedEvent,
    ExecutorFailed,
    ExecutorFailedEvent,
    ExecutorTimeout,
    HoldfastError,
    RetryPolicy,
    Run,
    RunStatus,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowErrorEvent,
    WorkflowEvent,
    WorkflowExecutor,
    WorkflowStatusEvent,
    executor,
    handler,
    response_handler,
)
from tests.support.modules import event_log
from tests.support.modules import turn as turns
from tests.support.parts import RunLifecycle
from tests.support.runs import names, shape
from tests.support.seeded_loop import Deadlock, SteppedLoop
from tests.support.thorough import MORE

SEEDS = range(6 * MORE)


# -- what is disturbed -----------------------------------------------------------------------------


class Boom(Exception):
    """The failure that is injected."""


class Scene:
    """One run: its handlers come by here at each of their await points."""

    def __init__(self) -> None:
        self.open = 0
        self.fails = False
        self.failed = 0
        self.interrupted = 0
        self.told: list[WorkflowEvent] = []
        self.disturbing: list[asyncio.Task[Any]] = []
        self.expected: RunStatus | None = None

    async def work(self, pauses: int) -> None:
        """Await some times; clean up with awaits, however it ends."""
        self.open += 1
        cancelled = False
        try:
            for _ in range(pauses):
                await asyncio.sleep(0)
                if self.fails:
                    self.fails = False
                    self.failed += 1
                    raise Boom
        except asyncio.CancelledError:
            cancelled = True
            raise
        finally:
            try:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                self.interrupted += cancelled
                raise
            finally:
                self.open -= 1


scenes: list[Scene] = []
"""The scene of the run that goes on; handlers do not keep it in their fields, which are copied for attempts."""


@executor
async def start(text: str) -> str:
    return text


class Work(Executor):
    def __init__(self, id: str, pauses: int = 0) -> None:
        super().__init__(id)
        self.pauses = pauses

    @handler(timeout=100)
    async def work(self, text: str, ctx: WorkflowContext[str]) -> str:
        await ctx.append_state("log", str(self.id), scope_name="Shared")
        await scenes[-1].work(self.pauses)
        return text + str(self.id)


class Flaky(Executor):
    @handler(timeout=100, retry=RetryPolicy(attempts=2, backoff=1, jitter=0, retry_on=ConnectionError))
    async def work(self, text: str, ctx: WorkflowContext[str]) -> str:
        await scenes[-1].work(2)
        if ctx.attempt == 1:
            raise ConnectionError
        return text


class Ask(Executor):
    @handler(timeout=100)
    async def ask(self, text: str, ctx: WorkflowContext) -> None:
        await scenes[-1].work(1)
        await ctx.request_info(text, response_type=bool)

    @response_handler(timeout=100)
    async def answered(self, text: str, yes: bool, ctx: WorkflowContext[str]) -> str:
        await scenes[-1].work(2)
        return f"{text}: {yes}"


@executor
async def join(parts: list) -> str:
    await scenes[-1].work(1)
    return "".join(parts)


def fan_out(name: str, *pauses: int) -> Workflow:
    workers = [Work.bind(id=f"w{count}", pauses=count) for count in pauses]
    return (
        WorkflowBuilder(name=name)
        .set_start_executor(start)
        .add_fan_out_edges(start, workers)
        .add_fan_in_edges(workers, join)
        .build()
    )


def single() -> Workflow:
    return WorkflowBuilder(name="Single").set_start_executor(Work.bind(id="w", pauses=3)).build()


def fanned() -> Workflow:
    return fan_out("Fanned", 4, 0, 1)


def nested() -> Workflow:
    inner = WorkflowExecutor(fan_out("Inner", 2, 1), id="nest")
    last = Work.bind(id="last", pauses=1)
    return WorkflowBuilder(name="Nested").set_start_executor(start).add_chain([start, inner, last]).build()


def asking() -> Workflow:
    last = Work.bind(id="last", pauses=1)
    return WorkflowBuilder(name="Asking").set_start_executor(Ask).add_edge(Ask, last).build()


def retrying() -> Workflow:
    workers: list[Any] = [Flaky, Work.bind(id="beside", pauses=2)]
    return (
        WorkflowBuilder(name="Retrying")
        .set_start_executor(start)
        .add_fan_out_edges(start, workers)
        .add_fan_in_edges(workers, join)
        .build()
    )


MAKERS = [single, fanned, nested, asking, retrying]


# -- the loop --------------------------------------------------------------------------------------


@contextmanager
def nobody_is_warned() -> Iterator[None]:
    """Warnings, and errors that nobody can catch, such as those of a coroutine that was thrown away."""
    unraisable: list[Any] = []
    hook, sys.unraisablehook = sys.unraisablehook, unraisable.append
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
            gc.collect()
    finally:
        sys.unraisablehook = hook
    assert not caught, [str(warning.message) for warning in caught]
    assert not unraisable, [str(error.exc_value) for error in unraisable]


Main = Callable[[SteppedLoop, Scene], Coroutine[Any, Any, Run]]


def play(main: Main, seed: int) -> tuple[Run, Scene, int]:
    """Run on the seeded loop; whatever is left behind is an error."""
    scene = Scene()
    scenes.append(scene)
    loop = SteppedLoop(seed)
    try:
        with nobody_is_warned():
            run: Run = loop.run_until_complete(main(loop, scene))
            steps = loop.steps
            # Only the generators of readers that left by 'break' may still have something to do.
            loop.run_until_complete(_settle())
            left = asyncio.all_tasks(loop)
            loop.close()
            assert not left, left
        assert not loop.errors, loop.errors
        assert scene.open == 0, "a handler has not ended"
    finally:
        scenes.pop()
    return run, scene, steps


async def _settle() -> None:
    for _ in range(300):
        await asyncio.sleep(0)
        if len(asyncio.all_tasks()) == 1:
            return


async def started(workflow: Workflow, loop: SteppedLoop, at: dict[int, Callable[[Run], None]]) -> Run:
    """Start a run; from here on steps are counted."""
    run = await workflow.start("x")
    loop.steps = 0
    loop.planned = {step: (lambda act=act: act(run)) for step, act in at.items()}  # type: ignore[misc]
    return run


async def brought_to_its_end(run: Run, scene: Scene) -> None:
    """Answer what is asked, until the run is over; keep all events."""
    while True:
        try:
            await run.wait_for_completion()
        except HoldfastError:
            pass
        # Whoever disturbed the run waits for it too, and sees it in its place.
        while scene.disturbing:
            await scene.disturbing.pop()
        scene.told += await _chapter(run)
        if run.status is not RunStatus.WAITING:
            return
        await run.respond({request.request_id: True for request in run.pending_requests})


async def _chapter(run: Run) -> list[WorkflowEvent]:
    events, failure = [], None
    try:
        async for event in run.watch_stream():
            events.append(event)
    except HoldfastError as error:
        failure = error
    told = [event.error for event in events if isinstance(event, WorkflowErrorEvent)]
    assert told == ([] if failure is None else [failure])
    return events


# -- what must hold --------------------------------------------------------------------------------


def durable(events: list[WorkflowEvent]) -> list[Any]:
    return [shape(event) for event in events if not event.provisional]


def ends(events: list[WorkflowEvent]) -> list[RunStatus]:
    return [event.status for event in events if isinstance(event, WorkflowStatusEvent) and event.status.ended]


class Undisturbed:
    """A workflow, and how it runs when nothing happens to it."""

    def __init__(self, make: Callable[[], Workflow], seed: int) -> None:
        self.workflow = make()
        run, scene, self.steps = play(self.main, seed)
        assert run.status is RunStatus.COMPLETED
        self.events = scene.told
        self.durable = durable(scene.told)

    async def main(self, loop: SteppedLoop, scene: Scene) -> Run:
        run = await started(self.workflow, loop, {})
        await brought_to_its_end(run, scene)
        return run

    def check(self, run: Run, events: list[WorkflowEvent], status: RunStatus) -> None:
        """Whether a disturbed run has this status, and told what it had to tell."""
        assert run.status is status
        assert run.result().status is status
        assert run.result().warnings == []
        if status is RunStatus.COMPLETED:
            assert durable(events) == self.durable
            return
        assert ends(events) == [status]
        told = [event for event in events if not event.provisional]
        if status is RunStatus.FAILED:
            error = told.pop()
            assert isinstance(error, WorkflowErrorEvent)
        ending = told.pop()
        assert isinstance(ending, WorkflowStatusEvent)
        assert ending.status is status
        failed = [position for position, event in enumerate(told) if isinstance(event, ExecutorFailedEvent)]
        assert failed or status is not RunStatus.FAILED
        if failed:
            # The others of that superstep finish; nothing else follows.
            told, after = told[: failed[0]], told[failed[0] :]
            assert all(isinstance(event, ExecutorCompletedEvent | ExecutorFailedEvent) for event in after)
            assert {event.superstep for event in after} == {ending.superstep}
        assert [shape(event) for event in told] == self.durable[: len(told)], names(told)


Disturbance = Callable[[SteppedLoop, Scene, Run], None]


def disturbed(undisturbed: Undisturbed, seed: int, at: dict[int, Disturbance]) -> tuple[Run, Scene]:
    async def main(loop: SteppedLoop, scene: Scene) -> Run:
        planned: dict[int, Callable[[Run], None]] = {
            step: (lambda run, act=act: act(loop, scene, run))  # type: ignore[misc]
            for step, act in at.items()
        }
        run = await started(undisturbed.workflow, loop, planned)
        await brought_to_its_end(run, scene)
        return run

    run, scene, _ = play(main, seed)
    return run, scene


def leaving(leave: Callable[[Run], Coroutine[Any, Any, None]], status: RunStatus) -> Disturbance:
    """Cancel or close, in a task of its own; afterwards the run is over and its handlers are."""

    def disturb(loop: SteppedLoop, scene: Scene, run: Run) -> None:
        async def act() -> None:
            goes_on = run.status is RunStatus.RUNNING or (
                run.status is RunStatus.WAITING and status is RunStatus.CANCELLED
            )
            if goes_on and scene.expected is None:
                scene.expected = status
            before = run.status
            await leave(run)
            assert run.status is (scene.expected if goes_on else before)
            assert scene.open == 0 or not run.status.ended, "it did not wait for the handlers"

        scene.disturbing.append(loop.create_task(act()))

    return disturb


cancel = leaving(Run.cancel, RunStatus.CANCELLED)
close = leaving(Run.close, RunStatus.STOPPED)


def every_point(make: Callable[[], Workflow], act: Callable[[Undisturbed, int, int], None]) -> None:
    """Call with each step of the undisturbed run, for each seed."""
    for seed in SEEDS:
        undisturbed = Undisturbed(make, seed)
        assert undisturbed.steps > 5
        for step in range(undisturbed.steps + 1):
            try:
                act(undisturbed, seed, step)
            except BaseException as error:
                error.add_note(f"disturbed before step {step} of {undisturbed.steps}, seed {seed}")
                raise


# -- left by those who hold it ---------------------------------------------------------------------


def check_leaving(make: Callable[[], Workflow], *disturbances: Disturbance, apart: int = 0) -> None:
    def act(undisturbed: Undisturbed, seed: int, step: int) -> None:
        at = {step + number * apart: each for number, each in enumerate(disturbances)}
        run, scene = disturbed(undisturbed, seed, at)
        undisturbed.check(run, scene.told, scene.expected or RunStatus.COMPLETED)
        assert scene.interrupted == 0, "a handler was cancelled again while it cleaned up"

    every_point(make, act)


@pytest.mark.parametrize("make", MAKERS)
def test_cancelled(make: Callable[[], Workflow]) -> None:
    check_leaving(make, cancel)


@pytest.mark.parametrize("make", MAKERS)
def test_closed(make: Callable[[], Workflow]) -> None:
    check_leaving(make, close)


@pytest.mark.parametrize("apart", [1, 3, 7])
@pytest.mark.parametrize("make", [single, fanned, retrying])
def test_cancelled_twice(make: Callable[[], Workflow], apart: int) -> None:
    check_leaving(make, cancel, cancel, apart=apart)


@pytest.mark.parametrize("apart", [1, 4])
@pytest.mark.parametrize("make", [fanned, asking])
def test_closed_and_cancelled(make: Callable[[], Workflow], apart: int) -> None:
    check_leaving(make, close, cancel, apart=apart)


def give_up(loop: SteppedLoop, scene: Scene, run: Run) -> None:
    """Cancel, and cancel the one who cancels: the run is cancelled all the same."""

    async def leave() -> None:
        if not run.status.ended:
            scene.expected = RunStatus.CANCELLED
        await run.cancel()

    async def act() -> None:
        canceller = asyncio.ensure_future(leave())
        await asyncio.sleep(0)
        canceller.cancel()
        await asyncio.wait([canceller])

    scene.disturbing.append(loop.create_task(act()))


@pytest.mark.parametrize("make", [single, fanned, asking])
def test_cancelled_by_one_who_gives_up(make: Callable[[], Workflow]) -> None:
    check_leaving(make, give_up)


# -- failing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", MAKERS)
def test_failing(make: Callable[[], Workflow]) -> None:
    statuses = set()

    def fail(loop: SteppedLoop, scene: Scene, run: Run) -> None:
        scene.fails = True

    def act(undisturbed: Undisturbed, seed: int, step: int) -> None:
        run, scene = disturbed(undisturbed, seed, {step: fail})
        undisturbed.check(run, scene.told, RunStatus.FAILED if scene.failed else RunStatus.COMPLETED)
        statuses.add(run.status)
        if scene.failed:
            assert isinstance(cause(scene.told), Boom)

    every_point(make, act)
    assert statuses == {RunStatus.FAILED, RunStatus.COMPLETED}


def cause(events: list[WorkflowEvent]) -> BaseException | None:
    (error,) = [event.error for event in events if isinstance(event, WorkflowErrorEvent)]
    assert isinstance(error, ExecutorFailed)
    return error.__cause__


@pytest.mark.parametrize("make", MAKERS)
def test_running_out_of_time(make: Callable[[], Workflow]) -> None:
    statuses = set()

    def jump(loop: SteppedLoop, scene: Scene, run: Run) -> None:
        loop.jump(1000)

    def act(undisturbed: Undisturbed, seed: int, step: int) -> None:
        run, scene = disturbed(undisturbed, seed, {step: jump})
        assert run.status in (RunStatus.FAILED, RunStatus.COMPLETED)
        undisturbed.check(run, scene.told, run.status)
        statuses.add(run.status)
        if run.status is RunStatus.FAILED:
            assert isinstance(cause(scene.told), ExecutorTimeout)

    every_point(make, act)
    assert statuses == {RunStatus.FAILED, RunStatus.COMPLETED}


@pytest.mark.parametrize("make", [single, fanned, retrying])
def test_running_out_of_time_and_cancelled(make: Callable[[], Workflow]) -> None:
    """Both before the same step: a timeout must not eat the cancellation."""

    def both(loop: SteppedLoop, scene: Scene, run: Run) -> None:
        loop.jump(1000)
        cancel(loop, scene, run)

    def act(undisturbed: Undisturbed, seed: int, step: int) -> None:
        run, scene = disturbed(undisturbed, seed, {step: both})
        assert run.status in (RunStatus.CANCELLED, RunStatus.FAILED, RunStatus.COMPLETED)
        undisturbed.check(run, scene.told, scene.expected or run.status)

    every_point(make, act)


# -- streams and watchers --------------------------------------------------------------------------


def reading(leave: str) -> Callable[[Undisturbed, int, int], None]:
    """Read a stream and leave it: after its nth event, or by cancellation before the nth step."""

    def act(undisturbed: Undisturbed, seed: int, point: int) -> None:
        async def main(loop: SteppedLoop, scene: Scene) -> Run:
            stream = undisturbed.workflow.run_stream("x")
            began: list[bool] = []

            async def read() -> None:
                began.append(True)
                async for event in stream:
                    scene.told.append(event)
                    if leave != "cancellation" and len(scene.told) > point:
                        return
                    if isinstance(event, WorkflowStatusEvent) and event.status is RunStatus.WAITING:
                        await stream.run.respond({r.request_id: True for r in stream.run.pending_requests})

            async def read_inside() -> None:
                async with stream:
                    await read()

            reader = loop.create_task(read_inside() if leave == "with" else read())
            if leave == "cancellation":
                loop.steps = 0
                loop.planned = {point: reader.cancel}
            await asyncio.wait([reader])
            if not reader.cancelled():
                reader.result()
            if leave == "aclose" or not began:
                await stream.aclose()
            if leave != "break":
                assert stream.run.status is not RunStatus.RUNNING
                assert scene.open == 0
            return stream.run

        run, scene, _ = play(main, seed)
        assert scene.interrupted == 0, "a handler was cancelled again while it cleaned up"
        expected = [event for event in undisturbed.events if not event.provisional]
        told = [event for event in scene.told if not event.provisional]
        assert [shape(event) for event in told] == durable(expected[: len(told)])
        assert run.status in (RunStatus.STOPPED, RunStatus.WAITING, RunStatus.COMPLETED)
        if run.status is RunStatus.COMPLETED:
            assert names(expected[: len(told) + 2])[-2:] == names(expected)[-2:], "it was left in the middle"

    return act


@pytest.mark.parametrize("leave", ["break", "aclose", "with", "cancellation"])
@pytest.mark.parametrize("make", MAKERS)
def test_stream_left_early(make: Callable[[], Workflow], leave: str) -> None:
    every_point(make, reading(leave))


@pytest.mark.parametrize("leave", ["break", "cancellation"])
@pytest.mark.parametrize("make", [single, fanned, asking])
def test_stream_left_early_where_others_have_their_turn_at_each_barrier(
    make: Callable[[], Workflow], leave: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "LONGEST_STRETCH_SECONDS", -1)
    every_point(make, reading(leave))


@pytest.mark.parametrize("leave", ["stop reading", "break", "cancellation"])
@pytest.mark.parametrize("make", MAKERS)
def test_watcher_that_leaves_or_stops_reading(make: Callable[[], Workflow], leave: str) -> None:
    """The run takes no notice."""

    def act(undisturbed: Undisturbed, seed: int, point: int) -> None:
        async def main(loop: SteppedLoop, scene: Scene) -> Run:
            run = await started(undisturbed.workflow, loop, {})
            over = asyncio.Event()
            seen: list[WorkflowEvent] = []

            async def watch() -> None:
                async for event in run.watch_stream():
                    seen.append(event)
                    if len(seen) > point and leave == "break":
                        return
                    if len(seen) > point and leave == "stop reading":
                        await over.wait()

            watcher = loop.create_task(watch())
            if leave == "cancellation":
                loop.planned = {point: watcher.cancel}
            await brought_to_its_end(run, scene)
            over.set()
            await asyncio.wait([watcher])
            assert watcher.cancelled() or watcher.exception() is None
            assert names(seen) == names(scene.told)[: len(seen)]
            return run

        run, scene, _ = play(main, seed)
        undisturbed.check(run, scene.told, RunStatus.COMPLETED)

    every_point(make, act)


# -- planted ---------------------------------------------------------------------------------------
# Bugs that the tests above must notice; were they not noticed, those tests would show nothing.


def test_planted_task_that_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def cancel_only(tasks: Any) -> None:
        for task in tasks:
            task.cancel()

    monkeypatch.setattr(turns, "_end", cancel_only)
    with pytest.raises(AssertionError):
        check_leaving(fanned, cancel)


def test_planted_task_that_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forget(tasks: Any) -> None: ...

    monkeypatch.setattr(turns, "_end", forget)
    with pytest.raises(AssertionError):
        check_leaving(fanned, cancel)


def test_planted_end_without_a_status_event(monkeypatch: pytest.MonkeyPatch) -> None:
    def emit(self: RunLifecycle, event: WorkflowEvent) -> None:
        if not (isinstance(event, WorkflowStatusEvent) and event.status.ended):
            self.runner.emit([event])

    monkeypatch.setattr(RunLifecycle, "emit", emit)
    with pytest.raises(AssertionError):
        check_leaving(single, close)


def test_planted_cancel_that_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def leave(self: RunLifecycle, status: RunStatus, grace: float) -> None:
        self.leaving = status
        assert self.task is not None
        self.task.cancel()

    monkeypatch.setattr(RunLifecycle, "leave", leave)
    with pytest.raises((AssertionError, Deadlock)):
        check_leaving(single, cancel)


def test_planted_event_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    end = RunLifecycle.end

    def end_twice(self: RunLifecycle, status: RunStatus) -> None:
        end(self, status)
        if status is RunStatus.CANCELLED:
            self.emit(WorkflowStatusEvent(status))

    monkeypatch.setattr(RunLifecycle, "end", end_twice)
    with pytest.raises(AssertionError):
        check_leaving(fanned, cancel)


def test_planted_watcher_that_holds_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = event_log.EventLog.watch

    def watch_and_hold(self: event_log.EventLog) -> event_log.Watcher:
        watcher = watch(self)
        self.hold(watcher)
        return watcher

    monkeypatch.setattr(event_log.EventLog, "watch", watch_and_hold)
    with pytest.raises((AssertionError, Deadlock)):
        test_watcher_that_leaves_or_stops_reading(fanned, "stop reading")


def test_planted_error_that_nobody_retrieves(monkeypatch: pytest.MonkeyPatch) -> None:
    async def raise_alone() -> None:
        raise Boom

    def disturb(loop: SteppedLoop, scene: Scene, run: Run) -> None:
        planted = loop.create_task(raise_alone())
        planted.add_done_callback(lambda task: None)

    with pytest.raises(AssertionError, match="never retrieved"):
        check_leaving(single, disturb)


def test_planted_coroutine_that_is_never_awaited() -> None:
    def disturb(loop: SteppedLoop, scene: Scene, run: Run) -> None:
        run.cancel()  # type: ignore[unused-coroutine]

    with pytest.raises(AssertionError, match="never awaited"):
        check_leaving(single, disturb)
