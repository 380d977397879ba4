"""Plain ``def`` handlers that hang: whatever they do not belong to goes on, and a program ends without them."""

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast import (
    ExecutorFailed,
    ExecutorTimeout,
    Run,
    RunStatus,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
)
from tests.support import modules
from tests.support.durable import ROOT, Place
from tests.support.modules import threads
from tests.support.parts import Threads, handler_threads
from tests.support.runs import soon

BIG = 70_000
"""Bytes of a value that is packed in a thread."""


class Stuck:
    """Functions that hang until they are released."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.hanging = threading.Semaphore(0)

    def hang(self, number: int = 0) -> int:
        self.hanging.release()
        assert self.released.wait(60)
        return number

    def build(self, timeout: float | None = None) -> Workflow:
        def hang(number: int) -> int:
            return self.hang(number)

        return one(executor(id="hang", timeout=timeout)(hang))

    async def hangs(self, times: int = 1) -> None:
        """Wait until that many more of them hang; those that cannot begin are given up, and all are released."""
        try:
            async with asyncio.timeout(30):
                for _ in range(times):
                    while not self.hanging.acquire(blocking=False):  # noqa: ASYNC110 - a thread tells
                        await asyncio.sleep(0.001)  # in no thread: those of the event loop may be what hangs
        except TimeoutError:
            self.released.set()
            raise


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    stuck = Stuck()
    yield stuck
    stuck.released.set()


@executor(id="keep")
async def keep(size: int, ctx: WorkflowContext[None, int]) -> int:
    await ctx.queue_state_update("doc", os.urandom(size), scope_name="S")
    return size


@executor(id="double")
def double(number: int) -> int:
    return number * 2


def one(step: Any) -> Workflow:
    return WorkflowBuilder(name="One").set_start_executor(step).build()


async def read_again(place: Place) -> None:
    """Close the storage, and read what ``keep`` kept in run "big" as a new process does."""
    storage = await place.reopened()
    latest = await storage.get_latest(run_id="big")
    assert latest is not None
    assert len(await latest.read_state("doc", scope_name="S")) == BIG
    await storage.close()


async def test_handlers_that_hang_stop_no_other_run(place: Place, stuck: Stuck) -> None:
    """Of those that were given up there may be any number; here as many as there are threads, and twice."""
    for _ in range(2):
        runs: list[Run] = [
            await stuck.build().start(1, storage=place.storage) for _ in range(handler_threads.most)
        ]
        await stuck.hangs(handler_threads.most)
        await soon(asyncio.gather(*(run.cancel(grace=0) for run in runs)))
        assert {run.status for run in runs} == {RunStatus.CANCELLED}
    assert (await soon(one(double).run(4, storage=place.storage))).outputs == [8]
    assert (await soon(one(keep).run(BIG, run_id="big", storage=place.storage))).outputs == [BIG]
    await soon(read_again(place))


async def test_pool_of_the_event_loop_that_is_full_stops_no_run(place: Place, stuck: Stuck) -> None:
    """It belongs to the program, which may fill it with what it likes."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as pool:
        loop.set_default_executor(pool)
        hanging = loop.run_in_executor(None, stuck.hang)
        try:
            assert (await soon(one(double).run(4, storage=place.storage))).outputs == [8]
            assert (await soon(one(keep).run(BIG, run_id="big", storage=place.storage))).outputs == [BIG]
            await soon(place.storage.verify())
            await soon(read_again(place))
        finally:
            stuck.released.set()
            await hanging


async def test_handler_that_timed_out_is_replaced(stuck: Stuck, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules._async, "handler_threads", Threads("few", 1))
    with pytest.raises(ExecutorFailed) as failed:
        await soon(stuck.build(timeout=0.01).run(1))
    assert isinstance(failed.value.__cause__, ExecutorTimeout)
    assert (await soon(one(double).run(4))).outputs == [8]


# -- the threads themselves ------------------------------------------------------------------------


async def test_calls_wait_for_a_thread_and_are_not_begun_once_nobody_waits(stuck: Stuck) -> None:
    few = Threads("few", 2)
    begun: list[str] = []
    first, second = (asyncio.ensure_future(few.call(stuck.hang)) for _ in range(2))
    await stuck.hangs(2)
    third = asyncio.ensure_future(few.call(lambda: begun.append("third")))
    fourth = asyncio.ensure_future(few.call(lambda: begun.append("fourth")))
    await asyncio.sleep(0)
    third.cancel()
    await asyncio.wait([third])
    assert begun == []
    first.cancel()  # another thread takes its place
    await soon(fourth)
    assert begun == ["fourth"]
    stuck.released.set()
    assert await soon(second) == 0


async def test_calls_fail_when_no_thread_can_be_started(
    stuck: Stuck, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that waited for a thread which was left behind: nobody would ever take them."""
    few = Threads("few", 1)
    hanging = asyncio.ensure_future(few.call(stuck.hang))
    await stuck.hangs()
    waiting = [asyncio.ensure_future(few.call(lambda: None)) for _ in range(2)]
    await asyncio.sleep(0)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        hanging.cancel()
        await asyncio.wait([hanging])
        assert hanging.cancelled()
        for call in (*waiting, few.call(lambda: None)):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await soon(call)
    assert await soon(few.call(lambda: 1)) == 1


async def test_threads_are_as_few_as_can_be_and_named() -> None:
    few = Threads("named", 3)
    names = {await few.call(lambda: threading.current_thread().name) for _ in range(20)}
    assert names == {"named-1"}
    barrier = threading.Barrier(3)
    await soon(asyncio.gather(*(few.call(barrier.wait) for _ in range(6))))
    names = {thread.name for thread in threading.enumerate() if thread.name.startswith("named-")}
    assert names == {"named-1", "named-2", "named-3"}


async def test_long_waiting_for_a_thread_is_told(
    stuck: Stuck, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(threads, "_PATIENCE_SECONDS", 0.0)
    few = Threads("few", 1)
    hanging = asyncio.ensure_future(few.call(stuck.hang))
    await stuck.hangs()
    with caplog.at_level(logging.WARNING, "holdfast.threads"):
        waiting = asyncio.ensure_future(few.call(lambda: None))
        async with asyncio.timeout(30):
            while not caplog.messages:  # noqa: ASYNC110 - a log tells nobody
                await asyncio.sleep(0)
    assert "all 1 of few are at work, on Stuck.hang" in caplog.messages[0]
    stuck.released.set()
    await soon(asyncio.gather(hanging, waiting))


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ("release.wait(1_000)", "left\n"),  # nobody waits for what hangs
        (
            "said.wait(60); time.sleep(0.3); print('done', flush=True)",
            "left\ndone\n",
        ),  # but what only takes a while may end
    ],
)
def test_program_ends_without_handlers_that_hang(ending: str, said: str) -> None:
    program = f"""
import asyncio, threading, time
from holdfast import WorkflowBuilder, executor
from holdfast.checkpoint import threads
threads._GRACE_SECONDS = {0.1 if "release" in ending else 60}
release, begun, said = threading.Event(), threading.Event(), threading.Event()
@executor
def work(number: int) -> int:
    begun.set()
    {ending}
    return number
async def main():
    run = await WorkflowBuilder(name="W").set_start_executor(work).build().start(1)
    await asyncio.to_thread(begun.wait)
    await run.cancel(grace=0)
    print("left", flush=True)
    said.set()
asyncio.run(main())
"""
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == said


def test_child_has_threads_of_its_own() -> None:
    program = """
import asyncio, os
from holdfast.runtime._async import handler_threads
async def main(text):
    await handler_threads.call(lambda: print(text, flush=True))
asyncio.run(main("parent"))
if child := os.fork():
    os.waitpid(child, 0)
else:
    asyncio.run(main("child"))
"""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "parent\nchild\n"
