"""Work that no cancellation cuts: what it gives, and when whoever waits hears of a cancellation."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from holdfast.runtime._async import run_uncancelled


def unheard(error: asyncio.CancelledError) -> None:
    pytest.fail("nobody was cancelled")


async def at_once() -> str:
    return "given"


async def after_pauses() -> str:
    for _ in range(3):
        await asyncio.sleep(0)
    return "given"


async def after_threads() -> str:
    for _ in range(2):
        await asyncio.to_thread(lambda: None)
    return "given"


async def after_a_task() -> str:
    return await asyncio.create_task(after_pauses())


WORK: list[Callable[[], Coroutine[Any, Any, str]]] = [at_once, after_pauses, after_threads, after_a_task]


@pytest.mark.parametrize("work", WORK)
async def test_gives_what_the_work_gives(work: Callable[[], Coroutine[Any, Any, str]]) -> None:
    assert await run_uncancelled(work(), unheard) == "given"


async def test_raises_what_the_work_raises() -> None:
    async def failing() -> None:
        await asyncio.sleep(0)
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        await run_uncancelled(failing(), unheard)


async def test_work_hears_what_its_future_failed_with() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    heard: list[str] = []

    async def work() -> str:
        try:
            await future
        except OSError as error:
            heard.append(str(error))
        await asyncio.sleep(0)
        return "mended"

    asyncio.get_running_loop().call_soon(future.set_exception, OSError("no space"))
    assert await run_uncancelled(work(), unheard) == "mended"
    assert heard == ["no space"]


@pytest.mark.parametrize("after", range(6))
@pytest.mark.parametrize("work", WORK[1:])
async def test_cancelled_it_goes_on(work: Callable[[], Coroutine[Any, Any, str]], after: int) -> None:
    """Cancelled before any of its steps, the work comes to its end, and the task hears of it once for each."""
    heard: list[asyncio.CancelledError] = []

    async def waiting() -> tuple[str, bool]:
        given = await run_uncancelled(work(), heard.append)
        return given, True

    task = asyncio.create_task(waiting())
    await asyncio.sleep(0)  # it has begun
    for _ in range(after):
        await asyncio.sleep(0)
    if task.done():
        return
    task.cancel()
    assert await task == ("given", True)
    assert len(heard) == 1


async def test_cancelled_twice_while_it_waits_for_one_thing() -> None:
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    heard: list[asyncio.CancelledError] = []

    async def work() -> str:
        return await future

    task = asyncio.create_task(_of(run_uncancelled(work(), heard.append)))
    await asyncio.sleep(0)
    task.cancel("one")
    task.cancel("two")
    await asyncio.sleep(0)
    assert not future.cancelled()
    future.set_result("given")
    assert await task == "given"
    assert len(heard) == 1  # as asyncio tells it: the second says nothing that the first did not


async def test_work_whose_future_is_cancelled_hears_of_it() -> None:
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def work() -> str:
        try:
            return await future
        except asyncio.CancelledError:
            return "went without"

    task = asyncio.create_task(_of(run_uncancelled(work(), unheard)))
    await asyncio.sleep(0)
    future.cancel()
    assert await task == "went without"


async def test_one_that_is_dropped_closes_its_work() -> None:
    closed: list[bool] = []

    async def work() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            closed.append(True)

    coroutine = _of(run_uncancelled(work(), unheard))
    coroutine.send(None)
    coroutine.close()
    assert closed == [True]


async def _of(awaited: Any) -> Any:
    return await awaited
