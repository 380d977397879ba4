"""Questions that expire: the answer or the end of their time, whichever is first."""

import asyncio
import datetime
from collections.abc import Mapping, Sequence
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    CheckpointStorage,
    Executor,
    GraphError,
    Host,
    InMemoryCheckpointStorage,
    InvalidArgument,
    InvalidResponse,
    RequestAlreadyAnswered,
    RequestExpired,
    RequestInfoExecutor,
    Run,
    RunEnded,
    RunStatus,
    StorageError,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    WrongType,
    executor,
    handler,
    response_handler,
)
from holdfast.testing import VirtualTime
from tests.support.durable import Place, Wrapped, info_of_run
from tests.support.inside import introduce, never_wake, task_of
from tests.support.parts import LeaveResult, Letter, RunId
from tests.support.runs import cause_of_failure, soon

HOUR = 3_600
DAY = timedelta(days=1)


class Ask(Executor):
    """Asks each of the questions that it gets, by name and for how long it waits."""

    @handler
    async def ask(self, questions: dict[str, float | None], ctx: WorkflowContext) -> None:
        for name, hours in questions.items():
            expires = None if hours is None else timedelta(hours=hours)
            await ctx.request_info(name, response_type=bool, request_id=name, expires=expires)

    @response_handler
    async def answered(self, name: str, yes: bool, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(f"{name}: {yes}")

    @response_handler
    async def late(self, name: str, expired: RequestExpired, ctx: WorkflowContext[None, str]) -> None:
        assert expired.request_id == name
        await ctx.yield_output(f"{name}: expired {expired.expires:%d %H:%M}")


def asking(name: str = "Asking") -> Workflow:
    return WorkflowBuilder(name=name).set_start_executor(Ask.bind(id="ask")).build()


async def asked(
    storage: CheckpointStorage | None, questions: Mapping[str, float | None], workflow: Workflow | None = None
) -> Run:
    """A run that waits for answers."""
    run_id = None if storage is None else "r"
    run = await (workflow or asking()).start(dict(questions), run_id=run_id, storage=storage)
    assert (await soon(run.wait_for_completion())).status is RunStatus.WAITING
    return run


async def at_rest(run: Run) -> list[Any]:
    """The outputs of a run, once nothing drives it."""
    await soon(asyncio.wait([task_of(run)]))
    return run.result().outputs


async def advance(time: VirtualTime, run: Run, hours: float) -> list[Any]:
    """What the run gave out so many hours later."""
    before = task_of(run)
    await time.advance(hours * HOUR)
    for _ in range(2_000):  # a run that is woken has another task, once it has looked into its storage
        if task_of(run) is not before or (run.wake_at or time.now()) > time.now():
            break
        await asyncio.sleep(0.001)
    return await at_rest(run)


# -- one question ----------------------------------------------------------------------------------


async def test_a_question_that_nobody_answers_expires(place: Place, time: VirtualTime) -> None:
    end = time.now() + DAY
    run = await asked(place.storage, {"q": 24})
    assert [request.expires for request in run.pending_requests] == [end]
    assert (run.wake_at, (await info_of_run(place.storage, "r")).wake_at) == (end, end)
    await time.advance(DAY - timedelta(seconds=1))
    assert run.status is RunStatus.WAITING
    assert await advance(time, run, 1) == ["q: expired 02 00:00"]
    assert (run.status, run.wake_at, run.pending_requests) == (RunStatus.COMPLETED, None, [])
    info = await info_of_run(place.storage, "r")
    assert (info.status, info.wake_at) == (RunStatus.COMPLETED, None)
    with pytest.raises(RequestAlreadyAnswered):
        await place.storage.respond("r", {"q": True})
    assert list(await place.storage.store.inbox(RunId("r"))) == []


async def test_an_answer_in_time_counts(place: Place, time: VirtualTime) -> None:
    run = await asked(place.storage, {"q": 24})
    await time.advance(23 * HOUR)
    await run.send_response("q", True)
    assert await at_rest(run) == ["q: True"]
    assert time.next_timer() is None
    await time.advance(2 * HOUR)
    assert (run.status, run.result().outputs) == (RunStatus.COMPLETED, ["q: True"])


async def test_a_question_without_an_end_waits_for_ever(
    time: VirtualTime, storage: CheckpointStorage
) -> None:
    run = await asked(storage, {"q": None})
    assert ([request.expires for request in run.pending_requests], run.wake_at) == ([None], None)
    assert (await info_of_run(storage, "r")).wake_at is None
    assert time.next_timer() is None


async def test_questions_expire_without_storage(time: VirtualTime) -> None:
    run = await asked(None, {"q": 24, "p": 2, "n": None})
    assert run.wake_at == time.now() + timedelta(hours=2)
    assert await advance(time, run, 2) == ["p: expired 01 02:00"]
    assert run.result().status is RunStatus.WAITING
    await run.send_response("n", True)
    assert await at_rest(run) == ["p: expired 01 02:00", "n: True"]
    assert await advance(time, run, 22) == ["p: expired 01 02:00", "n: True", "q: expired 02 00:00"]
    assert run.status is RunStatus.COMPLETED


async def test_a_result_that_is_held_expires_too(time: VirtualTime, storage: CheckpointStorage) -> None:
    for given in (storage, None):
        result = await soon(asking().run({"q": 1}, storage=given))
        assert result.status is RunStatus.WAITING
        assert result._run is not None
        assert await advance(time, result._run, 1) == [f"q: expired 01 {1 if given else 2:02}:00"]
        with pytest.raises(RunEnded):
            await result.respond({"q": True})


async def test_questions_expire_one_by_one(place: Place, time: VirtualTime) -> None:
    run = await asked(place.storage, {"a": 3, "b": 1, "c": None, "d": 1, "e": 2})
    assert await advance(time, run, 1) == ["b: expired 01 01:00", "d: expired 01 01:00"]
    assert run.wake_at == time.now() + timedelta(hours=1)
    await run.send_response("e", True)
    await at_rest(run)
    assert run.wake_at == time.now() + timedelta(hours=2)
    assert (await info_of_run(place.storage, "r")).wake_at == run.wake_at
    assert (await advance(time, run, 2))[2:] == ["e: True", "a: expired 01 03:00"]
    assert run.result().status is RunStatus.WAITING
    assert (await info_of_run(place.storage, "r")).wake_at is None
    await run.send_response("c", False)
    assert (await at_rest(run))[4:] == ["c: False"]


async def test_a_question_expires_while_nobody_drives_the_run(place: Place, time: VirtualTime) -> None:
    run = await asked(place.storage, {"q": 1, "p": 5})
    never_wake(run)
    await time.advance(2 * HOUR)
    storage = await place.reopened()
    resumed = await asking().resume(run_id="r", storage=storage)
    assert await at_rest(resumed) == ["q: expired 01 01:00"]
    assert [request.request_id for request in resumed.pending_requests] == ["p"]


async def test_an_answer_that_is_given_with_a_resume_counts_though_it_is_late(
    time: VirtualTime, storage: CheckpointStorage
) -> None:
    """Nobody noticed that the time was over: the first that is stored counts."""
    run = await asked(storage, {"q": 1})
    never_wake(run)
    await time.advance(2 * HOUR)
    resumed = await asking().resume(run_id="r", responses={"q": True}, storage=storage)
    assert await at_rest(resumed) == ["q: True"]


# -- one winner ------------------------------------------------------------------------------------


async def test_of_an_answer_before_the_end_and_the_end_the_answer_counts(
    place: Place, time: VirtualTime
) -> None:
    """Another process leaves it, and this one notices only when the time is over."""
    run = await asked(place.storage, {"q": 1})
    other = await elsewhere(place)
    await other.respond("r", {"q": True})
    assert await advance(time, run, 1) == ["q: True"]
    assert list(await place.storage.store.inbox(RunId("r"))) == []
    await other.close() if other is not place.storage else None


async def elsewhere(place: Place) -> CheckpointStorage:
    """The storage as another process sees it."""
    other = (
        CheckpointStorage(place.storage.store)
        if place.kind == "memory"
        else Place(place.kind, place.folder).storage
    )
    introduce(asking(), other)  # so that its types are known
    return other


class Interposed(Wrapped):
    """Does something just before or after a letter is left, once."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.before: Any = None
        self.after: Any = None

    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        before, self.before = self.before, None
        if before is not None:
            await before()
        left: LeaveResult = await self.inner.leave(run_id, since, letters)
        after, self.after = self.after, None
        if after is not None:
            await after()
        return left


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_answer_from_elsewhere_at_the_moment_of_the_end(when: str, time: VirtualTime) -> None:
    inner = InMemoryCheckpointStorage()
    store = Interposed(inner.store)
    storage = CheckpointStorage(store)
    other = CheckpointStorage(inner.store)
    introduce(asking(), other)
    run = await asked(storage, {"q": 1})
    said: list[Any] = []

    async def answer() -> None:
        try:
            await other.respond("r", {"q": True})
            said.append("taken")
        except RequestAlreadyAnswered as error:
            said.append(error)

    setattr(store, when, answer)
    outputs = await advance(time, run, 1)
    if when == "before":
        assert (outputs, said) == (["q: True"], ["taken"])
    else:
        assert outputs == ["q: expired 01 01:00"]
        assert isinstance(said[0], RequestAlreadyAnswered)
    assert run.status is RunStatus.COMPLETED
    assert list(await inner.store.inbox(RunId("r"))) == []


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_answer_from_here_at_the_moment_of_the_end(when: str, time: VirtualTime) -> None:
    inner = InMemoryCheckpointStorage()
    store = Interposed(inner.store)
    run = await asked(CheckpointStorage(store), {"q": 1})
    said: list[Any] = []

    async def answer() -> None:
        try:
            await run.send_response("q", True)
            said.append("taken")
        except RequestAlreadyAnswered as error:
            said.append(error)

    setattr(store, when, answer)
    outputs = await advance(time, run, 1)
    assert len(said) == 1
    assert outputs == (["q: True"] if said == ["taken"] else ["q: expired 01 01:00"])
    assert run.status is RunStatus.COMPLETED
    assert list(await inner.store.inbox(RunId("r"))) == []


async def test_the_end_and_an_answer_race_in_any_order(time: VirtualTime) -> None:
    """Whatever came between: one of them counts, and whoever answered is told which."""
    counted = []
    for pauses in range(14):
        storage = InMemoryCheckpointStorage()
        run = await asked(storage, {"q": 1})
        advancing = asyncio.ensure_future(time.advance(HOUR))
        for _ in range(pauses):
            await asyncio.sleep(0)
        try:
            await run.send_response("q", True)
            taken = True
        except (RequestAlreadyAnswered, RunEnded):
            taken = False
        await advancing
        (output,) = await at_rest(run)
        assert (output == "q: True") is taken
        assert run.status is RunStatus.COMPLETED
        counted.append(taken)
    assert set(counted) == {True, False}


async def test_two_processes_notice_the_end(time: VirtualTime, storage: CheckpointStorage) -> None:
    run = await asked(storage, {"q": 1})
    host = Host(CheckpointStorage(storage.store), asking())
    await asyncio.gather(time.advance(HOUR), host.wake_due())
    await host.wake_due()
    latest = await storage.get_latest(run_id="r")
    assert latest is not None
    loaded = await storage.load(latest.checkpoint_id)
    assert list(loaded.outputs) == ["q: expired 01 01:00"]
    assert loaded.status is RunStatus.COMPLETED
    await asyncio.sleep(0)
    assert run.status in (RunStatus.COMPLETED, RunStatus.WAITING)


async def test_nobody_else_can_say_that_a_question_expired(
    time: VirtualTime, storage: CheckpointStorage
) -> None:
    run = await asked(storage, {"q": 1, "n": None})
    for name in ("q", "n"):
        with pytest.raises(InvalidResponse):
            await run.send_response(name, RequestExpired(name, time.now()))
    assert await advance(time, run, 1) == ["q: expired 01 01:00"]


# -- while the run does something else -------------------------------------------------------------


class Busy(Executor):
    """Works in a long superstep while its question waits."""

    gate: asyncio.Event
    works: asyncio.Event

    @handler
    async def begin(self, text: str, ctx: WorkflowContext[int]) -> None:
        await ctx.request_info(text, response_type=bool, request_id="q", expires=HOUR)
        await ctx.send_message(1)

    @handler
    async def work(self, number: int, ctx: WorkflowContext[int, str]) -> None:
        Busy.works.set()
        await Busy.gate.wait()
        await ctx.yield_output("worked")

    @response_handler
    async def answered(self, name: str, yes: bool, ctx: WorkflowContext[int, str]) -> None:
        await ctx.yield_output(f"{name}: {yes}")

    @response_handler
    async def late(self, name: str, expired: RequestExpired, ctx: WorkflowContext[int, str]) -> None:
        await ctx.yield_output(f"{name}: expired")


def busy() -> Workflow:
    Busy.gate, Busy.works = asyncio.Event(), asyncio.Event()
    one = Busy.bind(id="busy")
    return WorkflowBuilder(name="Busy").set_start_executor(one).add_edge(one, one).build()


@pytest.mark.parametrize("stored", [True, False])
async def test_a_question_expires_during_a_long_superstep(stored: bool, time: VirtualTime) -> None:
    """That is noticed at its barrier."""
    run = await busy().start("q", storage=InMemoryCheckpointStorage() if stored else None)
    await soon(Busy.works.wait())
    assert run.wake_at is None
    await time.advance(2 * HOUR)
    assert (run.status, run.pending_requests[0].expires) == (
        RunStatus.RUNNING,
        time.now() - timedelta(hours=1),
    )
    Busy.gate.set()
    result = await soon(run.wait_for_completion())
    assert (result.status, result.outputs) == (RunStatus.COMPLETED, ["worked", "q: expired"])


@pytest.mark.parametrize("stored", [True, False])
async def test_an_answer_during_a_long_superstep_counts_though_it_is_late(
    stored: bool, time: VirtualTime
) -> None:
    run = await busy().start("q", storage=InMemoryCheckpointStorage() if stored else None)
    await soon(Busy.works.wait())
    await time.advance(2 * HOUR)
    await run.send_response("q", True)
    Busy.gate.set()
    assert (await soon(run.wait_for_completion())).outputs == ["worked", "q: True"]


class AskAndSleep(Ask):
    """Asks, and sleeps for a day in the next superstep."""

    @handler
    async def begin(self, hours: float, ctx: WorkflowContext[str]) -> None:
        await ctx.request_info("q", response_type=bool, request_id="q", expires=hours * HOUR)
        await ctx.send_message("sleep")

    @handler
    async def nap(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.sleep(24 * HOUR)
        await ctx.yield_output("awake")


@pytest.mark.parametrize("hours", [1, 24, 48])
async def test_a_question_expires_while_the_run_sleeps(hours: int, place: Place, time: VirtualTime) -> None:
    """It is taken when the sleep is over; until then nobody is woken for it."""
    one = AskAndSleep.bind(id="ask")
    workflow = WorkflowBuilder(name="Both").set_start_executor(one).add_edge(one, one).build()
    run = await workflow.start(float(hours), run_id="r", storage=place.storage)
    await soon(run.wait_for_completion())
    wakes = time.now() + DAY
    assert (run.wake_at, (await info_of_run(place.storage, "r")).wake_at) == (wakes, wakes)
    task = task_of(run)
    await time.advance(23 * HOUR)
    assert await Host(place.storage, workflow).wake_due() == 0
    assert (task_of(run), run.status) == (task, RunStatus.WAITING)
    outputs = await advance(time, run, 1)
    if hours == 48:
        assert (outputs, run.wake_at) == (["awake"], time.now() + DAY)
        outputs = await advance(time, run, 24)
    assert outputs == [
        "awake",
        f"q: expired 0{3 if hours == 48 else 2 if hours == 24 else 1} {hours % 24:02}:00",
    ]
    assert run.status is RunStatus.COMPLETED


# -- where it was asked ----------------------------------------------------------------------------


async def test_a_question_of_a_nested_workflow_expires(place: Place, time: VirtualTime) -> None:
    @executor(id="last")
    async def last(text: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(f"outer {text}")

    inner = WorkflowExecutor(asking("Inner"), id="inner")
    workflow = WorkflowBuilder(name="Outer").set_start_executor(inner).add_edge(inner, last).build()
    run = await asked(place.storage, {"q": 1}, workflow)
    assert run.pending_requests[0].executor_id == "inner#1/ask"
    assert await advance(time, run, 1) == ["outer q: expired 01 01:00"]
    assert run.status is RunStatus.COMPLETED


class Again(Executor):
    """Asks anew each time."""

    @handler
    async def ask(self, times: int, ctx: WorkflowContext) -> None:
        await ctx.request_info(times, response_type=bool, expires=HOUR)

    @response_handler
    async def late(self, times: int, given: bool | RequestExpired, ctx: WorkflowContext[None, str]) -> None:
        if isinstance(given, RequestExpired) and times:
            await ctx.request_info(times - 1, response_type=bool, expires=HOUR)
        else:
            await ctx.yield_output(f"{times} {isinstance(given, RequestExpired)}")


async def test_a_question_that_expired_is_asked_anew(time: VirtualTime, storage: CheckpointStorage) -> None:
    workflow = WorkflowBuilder(name="Again").set_start_executor(Again.bind(id="again")).build()
    run = await workflow.start(2, storage=storage)
    await soon(run.wait_for_completion())
    assert await advance(time, run, 1) == []
    assert await advance(time, run, 1) == []
    assert run.wake_at == time.now() + timedelta(hours=1)
    assert await advance(time, run, 1) == ["0 True"]


class Until(Ask):
    @handler
    async def until(self, day: int, ctx: WorkflowContext) -> None:
        for name, expires in (("time", datetime.datetime(2026, 1, day, tzinfo=UTC)), ("span", DAY)):
            await ctx.request_info(name, response_type=bool, request_id=name, expires=expires)


def until() -> Workflow:
    return WorkflowBuilder(name="Until").set_start_executor(Until.bind(id="ask")).build()


async def test_going_back_and_forks_begin_a_span_anew_but_no_time(place: Place, time: VirtualTime) -> None:
    run = await until().start(3, run_id="r", storage=place.storage)
    await soon(run.wait_for_completion())
    begin = time.now()
    assert [request.expires for request in run.pending_requests] == [begin + 2 * DAY, begin + DAY]
    where = run.latest_checkpoint
    assert where is not None
    await time.advance(12 * HOUR)
    anew = [begin + 2 * DAY, begin + 1.5 * DAY]
    fork = await until().fork(where, run_id="f", storage=place.storage)
    await at_rest(fork)
    assert [request.expires for request in fork.pending_requests] == anew
    assert run.wake_at == begin + DAY
    await run.restore_checkpoint(where)
    await at_rest(run)
    assert [request.expires for request in run.pending_requests] == anew
    assert (run.wake_at, fork.wake_at) == (begin + 1.5 * DAY, begin + 1.5 * DAY)
    for run_id in ("r", "f"):
        info = await info_of_run(place.storage, run_id)
        assert info.wake_at == begin + 1.5 * DAY
    # What another process finds is the same.
    never_wake(run)
    storage = await place.reopened()
    resumed = await until().resume(run_id="r", storage=storage)
    await at_rest(resumed)
    assert [request.expires for request in resumed.pending_requests] == anew
    outputs = await advance(time, resumed, 24)
    assert outputs == ["span: expired 02 12:00"]
    assert await advance(time, resumed, 24) == ["span: expired 02 12:00", "time: expired 03 00:00"]


async def test_going_back_behind_an_expiry_asks_again(time: VirtualTime, storage: CheckpointStorage) -> None:
    run = await asked(storage, {"q": 1})
    where = run.latest_checkpoint
    assert where is not None
    assert await advance(time, run, 1) == ["q: expired 01 01:00"]
    await run.restore_checkpoint(where)
    assert await at_rest(run) == []
    await run.send_response("q", True)
    assert await at_rest(run) == ["q: True"]
    await time.advance(HOUR)
    await run.restore_checkpoint(where)
    await at_rest(run)
    assert await advance(time, run, 1) == ["q: expired 01 03:00"]


async def test_a_question_moves_to_another_storage(place: Place, time: VirtualTime, tmp_path: Path) -> None:
    run = await asked(place.storage, {"q": 1})
    await place.storage.export_run("r", tmp_path / "run.export")
    other = InMemoryCheckpointStorage()
    info = await other.import_run(tmp_path / "run.export")
    assert (info.status, info.wake_at) == (RunStatus.WAITING, run.wake_at)
    await time.advance(HOUR)
    await at_rest(run)
    assert await Host(other, asking()).wake_due() == 1
    assert (await info_of_run(other, "r")).status is RunStatus.COMPLETED


# -- how it is said --------------------------------------------------------------------------------


class NoHandler(Executor):
    @handler
    async def ask(self, expires: float, ctx: WorkflowContext) -> None:
        await ctx.request_info("deploy?", response_type=bool, expires=expires)

    @response_handler
    async def answered(self, name: str, yes: bool, ctx: WorkflowContext) -> None:
        pass


async def test_a_question_that_expires_needs_a_handler_for_that(time: VirtualTime) -> None:
    workflow = WorkflowBuilder(name="No").set_start_executor(NoHandler.bind(id="ask")).build()
    error = await cause_of_failure(workflow, 5.0, GraphError)
    assert "executor 'ask' asks with a str and expires=5.0, but has no handler" in str(error)
    assert "@response_handler async def expired(self, request: str, expired: RequestExpired" in str(error)


@pytest.mark.parametrize(
    ("expires", "kind", "said"),
    [
        (-1, InvalidArgument, "expires=-1: must not be negative"),
        ("1 day", WrongType, "expires='1 day': must be seconds, a timedelta or a datetime, not str"),
        (datetime.datetime(2027, 1, 1), InvalidArgument, "needs a time zone"),  # noqa: DTZ001
        (timedelta(days=99_999), InvalidArgument, "in more than a hundred years"),
    ],
)
async def test_nonsense_is_refused(expires: Any, kind: type[Exception], said: str) -> None:
    class Odd(Ask):
        @handler
        async def odd(self, text: str, ctx: WorkflowContext) -> None:
            await ctx.request_info(text, response_type=bool, expires=expires)

    error = await cause_of_failure(
        WorkflowBuilder(name="Odd").set_start_executor(Odd.bind(id="o")).build(), "x", kind
    )
    assert said in str(error)


@pytest.mark.parametrize("stored", [True, False])
async def test_a_question_whose_time_is_over_expires_at_once(stored: bool, time: VirtualTime) -> None:
    result = await soon(asking().run({"q": 0}, storage=InMemoryCheckpointStorage() if stored else None))
    assert (result.status, result.outputs) == (RunStatus.COMPLETED, ["q: expired 01 00:00"])


class Patient(RequestInfoExecutor):
    @handler
    async def ask(self, message: object, ctx: WorkflowContext[Any, Any]) -> None:
        await ctx.request_info(message, response_type=self.response_type, expires=HOUR)


async def test_an_executor_that_sends_on_any_response_sends_on_that_it_expired(
    time: VirtualTime, storage: CheckpointStorage
) -> None:
    workflow = (
        WorkflowBuilder(name="P").set_start_executor(Patient.bind(id="ask", response_type=bool)).build()
    )
    run = await workflow.start("Deploy?", storage=storage)
    await soon(run.wait_for_completion())
    (request,) = run.pending_requests
    (output,) = await advance(time, run, 1)
    assert output == RequestExpired(request.request_id, time.now())


async def test_cancelling_a_run_whose_question_waits(time: VirtualTime, storage: CheckpointStorage) -> None:
    run = await asked(storage, {"q": 1})
    await storage.cancel("r")
    await time.advance(HOUR)
    await asyncio.sleep(0)
    assert (await soon(run.wait_for_completion())).status is RunStatus.CANCELLED
    assert run.result().outputs == []


async def test_a_storage_that_fails_at_the_end_leaves_the_question_open(time: VirtualTime) -> None:
    """The run fails as with any error of a storage; resumed, it lets the question expire."""
    store = FailsToLeave(InMemoryCheckpointStorage().store)
    storage = CheckpointStorage(store)
    run = await asked(storage, {"q": 1})
    store.fails = True
    assert await advance(time, run, 1) == []
    assert run.status is RunStatus.FAILED
    store.fails = False
    assert await at_rest(await asking().resume(run_id="r", storage=storage)) == ["q: expired 01 01:00"]


class FailsToLeave(Wrapped):
    fails = False

    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        if self.fails:
            raise StorageError("the disk is gone")
        left: LeaveResult = await self.inner.leave(run_id, since, letters)
        return left
