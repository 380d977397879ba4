"""The thread that works for coroutines: which calls it gets at once."""

import asyncio
import threading

import pytest

from holdfast.errors import StorageError
from holdfast.stores.sqlite.lane import Call, Lane, settle


class Work:
    """Notes what it is given, and does nothing before it may go on."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.begun = threading.Event()
        self.go = threading.Event()

    def __call__(self, calls: list[Call[str]]) -> None:
        self.batches.append([call.task for call in calls])
        self.begun.set()
        assert self.go.wait(60)
        for call in calls:
            call.result = call.task
        settle(calls)


async def busy(work: Work, lane: Lane[str]) -> asyncio.Task[str]:
    """A call that the thread has begun with."""
    call = asyncio.create_task(lane.call("first"))
    assert await asyncio.to_thread(work.begun.wait, 60)
    return call


async def test_those_whom_one_answer_woke_are_served_at_once_again() -> None:
    work = Work()
    lane = Lane("test", work)
    first = await busy(work, lane)

    async def calls(name: str) -> list[str]:
        return [await lane.call(f"{name} {number}") for number in range(3)]

    names = [f"task {number}" for number in range(50)]
    tasks = [asyncio.create_task(calls(name)) for name in names]
    for _ in range(3):  # one round of the loop: they call, one more: their calls are handed over
        await asyncio.sleep(0)
    work.go.set()
    assert await first == "first"
    assert [await task for task in tasks] == [[f"{name} {number}" for number in range(3)] for name in names]
    await lane.close()
    assert work.batches == [["first"], *([f"{name} {number}" for name in names] for number in range(3))]


async def test_who_calls_alone_waits_for_no_round_of_the_loop() -> None:
    work = Work()
    work.go.set()
    lane = Lane("test", work)
    for number in range(3):
        coroutine = lane.call(str(number))
        coroutine.send(None)  # no round of any loop has gone by
        assert await asyncio.to_thread(work.begun.wait, 60)
        work.begun.clear()
        coroutine.close()
    await lane.close()
    assert work.batches == [["0"], ["1"], ["2"]]


@pytest.mark.parametrize("takes", [True, False])
async def test_who_calls_alone_is_served_at_once_where_that_can_be(takes: bool) -> None:
    work = Work()
    work.go.set()

    def at_once(call: Call[str]) -> bool:
        call.result = f"{call.task} here"
        return takes

    lane = Lane("test", work, work_at_once=at_once)
    assert await lane.call("a") == ("a here" if takes else "a")
    await lane.close()
    assert work.batches == ([] if takes else [["a"]])


async def test_what_fails_at_once_is_told() -> None:
    def at_once(call: Call[str]) -> bool:
        call.error = StorageError(f"no {call.task}")
        return True

    lane = Lane("test", Work(), work_at_once=at_once)
    with pytest.raises(StorageError, match="no a"):
        await lane.call("a")
    await lane.close()


async def test_calls_that_are_not_handed_over_yet_are_done_before_the_end() -> None:
    work = Work()
    lane = Lane("test", work)
    first = await busy(work, lane)
    waiting = [asyncio.create_task(lane.call(name)) for name in "abc"]
    await asyncio.sleep(0)  # they have called
    work.go.set()
    await lane.close()
    assert [await call for call in (first, *waiting)] == ["first", "a", "b", "c"]
    with pytest.raises(StorageError, match="closed"):
        await lane.call("late")


def test_loops_in_two_threads_are_told_each_by_itself() -> None:
    work = Work()
    work.go.set()
    lane = Lane("test", work)

    async def many(name: str) -> list[str]:
        return await asyncio.gather(*(lane.call(f"{name} {number}") for number in range(200)))

    found: dict[str, list[str]] = {}

    def run(name: str) -> None:
        found[name] = asyncio.run(many(name))

    threads = [threading.Thread(target=run, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asyncio.run(lane.close())
    assert found == {name: [f"{name} {number}" for number in range(200)] for name in "ab"}
