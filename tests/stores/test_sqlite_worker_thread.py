"""The thread that works for coroutines: which calls it gets at once."""

import asyncio
import threading

import pytest

from holdfast.errors import StorageError
from holdfast.stores.common.worker_thread import _BUSY_TURNS, PendingCall, WorkerThread, settle_calls


class Work:
    """Notes what it is given, and does nothing before it may go on."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.begun = threading.Event()
        self.go = threading.Event()

    def __call__(self, calls: list[PendingCall[str]]) -> None:
        self.batches.append([call.task for call in calls])
        self.begun.set()
        assert self.go.wait(60)
        for call in calls:
            call.result = call.task
        settle_calls(calls)


async def busy(work: Work, worker: WorkerThread[str]) -> asyncio.Task[str]:
    """A call that the thread has begun with."""
    call = asyncio.create_task(worker.call("first"))
    assert await asyncio.to_thread(work.begun.wait, 60)
    return call


async def test_those_whom_one_answer_woke_are_served_at_once_again() -> None:
    work = Work()
    worker = WorkerThread("test", work)
    first = await busy(work, worker)

    async def calls(name: str) -> list[str]:
        return [await worker.call(f"{name} {number}") for number in range(3)]

    names = [f"task {number}" for number in range(50)]
    tasks = [asyncio.create_task(calls(name)) for name in names]
    for _ in range(3):  # one round of the loop: they call, one more: their calls are handed over
        await asyncio.sleep(0)
    work.go.set()
    assert await first == "first"
    assert [await task for task in tasks] == [[f"{name} {number}" for number in range(3)] for name in names]
    await worker.close()
    assert work.batches == [["first"], *([f"{name} {number}" for name in names] for number in range(3))]


async def test_who_calls_alone_waits_for_no_round_of_the_loop() -> None:
    work = Work()
    work.go.set()
    worker = WorkerThread("test", work)
    for number in range(3):
        coroutine = worker.call(str(number))
        coroutine.send(None)  # no round of any loop has gone by
        assert await asyncio.to_thread(work.begun.wait, 60)
        work.begun.clear()
        coroutine.close()
    await worker.close()
    assert work.batches == [["0"], ["1"], ["2"]]


class Here:
    """Does calls in the thread of the event loop, and notes how many together."""

    def __init__(self, takes: bool = True) -> None:
        self.takes = takes
        self.groups: list[int] = []

    def __call__(self, calls: list[PendingCall[str]]) -> bool:
        self.groups.append(len(calls))
        for call in calls:
            call.result = f"{call.task} here"
        return self.takes


@pytest.mark.parametrize("takes", [True, False])
async def test_who_calls_alone_is_served_at_once_where_that_can_be(takes: bool) -> None:
    work = Work()
    work.go.set()
    worker = WorkerThread("test", work, work_at_once=Here(takes))
    assert await worker.call("a") == ("a here" if takes else "a")
    await worker.close()
    assert work.batches == ([] if takes else [["a"]])


async def _called(worker: WorkerThread[str], times: int = 3) -> list[list[str]]:
    """Return what twenty tasks get, each of which calls several times."""

    async def calls(name: str) -> list[str]:
        return [await worker.call(f"{name}{number}") for number in range(times)]

    return await asyncio.gather(*(calls(name) for name in TASKS))


TASKS = "abcdefghijklmnopqrst"


async def test_what_all_who_are_there_call_for_is_done_at_once() -> None:
    here = Here()
    worker = WorkerThread("test", Work(), work_at_once=here)
    assert await _called(worker) == [[f"{name}{number} here" for number in range(3)] for name in TASKS]
    assert here.groups == [20, 20, 20]
    await worker.close()


async def test_what_cannot_be_done_at_once_the_thread_does_together() -> None:
    work = Work()
    work.go.set()
    worker = WorkerThread("test", work, work_at_once=Here(takes=False))
    assert await _called(worker) == [[f"{name}{number}" for number in range(3)] for name in TASKS]
    await worker.close()
    assert [len(batch) for batch in work.batches] == [20, 20, 20]


async def test_tasks_that_always_have_more_to_do_are_not_waited_for() -> None:
    work = Work()
    work.go.set()
    here = Here()
    worker = WorkerThread("test", work, work_at_once=here)
    loop, ready = asyncio.get_running_loop(), list[asyncio.Handle]()

    def go_round() -> None:
        ready[:] = [loop.call_soon(go_round)]

    go_round()
    assert await asyncio.wait_for(_called(worker), 60)
    ready[0].cancel()
    assert here.groups == []
    await worker.close()


@pytest.mark.parametrize("done", [True, False])
def test_a_signal_while_several_are_served_leaves_nobody_waiting(done: bool) -> None:
    """Ctrl-C comes amid what the thread of the event loop does for others, or just behind it."""
    interrupts = [KeyboardInterrupt()]
    doubted: list[str] = []

    def at_once(calls: list[PendingCall[str]]) -> bool:
        for call in calls:
            call.result = f"{call.task} here"
        if interrupts:
            raise interrupts.pop()
        return True

    def work(calls: list[PendingCall[str]]) -> None:
        for call in calls:
            if not call.doubtful or not done:
                call.result = call.task
            doubted.extend(call.task for call in calls if call.doubtful)
        settle_calls(calls)

    worker = WorkerThread("test", work, work_at_once=at_once)
    loop = asyncio.SelectorEventLoop()
    try:
        called = loop.create_task(_called(worker, 2))
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(called)
        found = loop.run_until_complete(called)
        loop.run_until_complete(worker.close())
    finally:
        loop.close()
    first = " here" if done else ""
    assert found == [[f"{name}0{first}", f"{name}1 here"] for name in TASKS]
    assert set(doubted) == {f"{name}0" for name in TASKS}


class Interrupting(asyncio.Future[str]):
    """Is interrupted when it is told."""

    interrupts = 1

    def set_result(self, result: str) -> None:
        if Interrupting.interrupts:
            Interrupting.interrupts -= 1
            raise KeyboardInterrupt
        super().set_result(result)


def test_a_signal_while_several_are_told_leaves_nobody_waiting() -> None:
    work = Work()
    work.go.set()
    worker = WorkerThread("test", work, work_at_once=Here())
    loop = asyncio.SelectorEventLoop()
    made: list[int] = []

    def future() -> asyncio.Future[str]:
        made.append(1)
        return Interrupting(loop=loop) if len(made) == 10 else asyncio.Future(loop=loop)

    loop.create_future = future  # type: ignore[method-assign]
    Interrupting.interrupts = 1
    try:
        called = loop.create_task(_called(worker, 1))
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(called)
        found = loop.run_until_complete(called)
        assert {first.removesuffix(" here") for (first,) in found} == {f"{name}0" for name in TASKS}
        loop.run_until_complete(worker.close())
    finally:
        loop.close()


async def test_others_who_are_never_done_are_waited_for_once() -> None:
    work = Work()
    work.go.set()
    worker = WorkerThread("test", work, work_at_once=Here())
    loop, ready, rounds = asyncio.get_running_loop(), list[asyncio.Handle](), 0

    def go_round() -> None:
        nonlocal rounds
        rounds += 1
        ready[:] = [loop.call_soon(go_round)]

    go_round()
    assert await worker.call("first") == "first"
    work.begun.clear()
    for number in range(_BUSY_TURNS):
        before = rounds
        call = worker.call(str(number))
        call.send(None)
        assert (rounds, work.begun.wait(60)) == (before, True)
        work.begun.clear()
        call.close()
    ready[0].cancel()
    await worker.close()
    assert len(work.batches) == 1 + _BUSY_TURNS


@pytest.mark.parametrize("started", [True, False])
async def test_who_calls_while_the_lane_is_closed_elsewhere_is_refused(started: bool) -> None:
    """The last call of all may come behind what the thread takes as the last."""
    work = Work()
    work.go.set()
    closing: list[WorkerThread[str]] = []

    def at_once(calls: list[PendingCall[str]]) -> bool:
        if closing:
            closing.pop().stop()
            for thread in threading.enumerate():
                if thread.name == "closed worker":
                    thread.join(60)
        return False

    worker = WorkerThread("closed worker", work, work_at_once=at_once)
    if started:
        assert await worker.call("a") == "a"
    closing.append(worker)
    with pytest.raises(StorageError, match="closed"):
        await asyncio.wait_for(worker.call("b"), 60)


async def test_what_fails_at_once_is_told() -> None:
    def at_once(calls: list[PendingCall[str]]) -> bool:
        for call in calls:
            call.error = StorageError(f"no {call.task}")
        return True

    worker = WorkerThread("test", Work(), work_at_once=at_once)
    with pytest.raises(StorageError, match="no a"):
        await worker.call("a")
    found = await asyncio.gather(worker.call("b"), worker.call("c"), return_exceptions=True)
    assert [str(error) for error in found] == ["no b", "no c"]
    await worker.close()


async def test_calls_that_are_not_handed_over_yet_are_done_before_the_end() -> None:
    work = Work()
    worker = WorkerThread("test", work)
    first = await busy(work, worker)
    waiting = [asyncio.create_task(worker.call(name)) for name in "abc"]
    await asyncio.sleep(0)  # they have called
    work.go.set()
    await worker.close()
    assert [await call for call in (first, *waiting)] == ["first", "a", "b", "c"]
    with pytest.raises(StorageError, match="closed"):
        await worker.call("late")


def test_loops_in_two_threads_are_told_each_by_itself() -> None:
    work = Work()
    work.go.set()
    worker = WorkerThread("test", work)

    async def many(name: str) -> list[str]:
        return await asyncio.gather(*(worker.call(f"{name} {number}") for number in range(200)))

    found: dict[str, list[str]] = {}

    def run(name: str) -> None:
        found[name] = asyncio.run(many(name))

    threads = [threading.Thread(target=run, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asyncio.run(worker.close())
    assert found == {name: [f"{name} {number}" for number in range(200)] for name in "ab"}
