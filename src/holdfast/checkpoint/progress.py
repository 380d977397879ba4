"""Progress of long work, and work in threads that is waited for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeAlias, TypeVar

from holdfast.checkpoint.threads import upkeep_threads

T = TypeVar("T")

Progress: TypeAlias = Callable[[int, int], object]
"""Called with how much is done, and of how much; an error that it raises ends the work."""


class Steps:
    """Counts the steps of work that goes over the same things in several passes.

    >>> steps = Steps(lambda done, total: print(done, "of", total), passes=2)
    >>> steps.more(3)
    >>> steps.done(2)
    2 of 6
    """

    def __init__(self, progress: Progress | None, passes: int = 1) -> None:
        self._progress = progress
        self._passes = passes
        self._done = self._total = 0
        self.interruption: BaseException | None = None
        """The error that ``progress`` raised, if it did."""

    def more(self, steps: int) -> None:
        """Add steps that became known, in each pass."""
        self._total += steps * self._passes

    def again(self, steps: int) -> None:
        """Add steps that have to be done once more."""
        self._total += steps

    def done(self, steps: int) -> None:
        """Report that so many more steps are done."""
        self._done += steps
        if steps and self._progress is not None:
            try:
                self._progress(self._done, self._total)
            except BaseException as error:
                self.interruption = error
                raise

    def over(self) -> None:
        """Report that all steps are done, also those that turned out not to exist."""
        self.done(self._total - self._done)


async def run_in_thread(call: Callable[[], T]) -> T:
    """Call a function in a thread; returns only when the thread is done with it, also if the caller is cancelled.

    So the caller can close files that the function uses.
    """
    # The result goes through a list because threads and futures keep it for some time, and it may be large.
    results: list[T] = []
    work = asyncio.ensure_future(upkeep_threads.call(lambda: results.append(call())))
    try:
        await asyncio.shield(work)
        return results.pop()
    except asyncio.CancelledError:
        await _wait_until_done(work)
        raise


async def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Await work to its end also if the caller is cancelled, who learns of it afterwards."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await _wait_until_done(task)
        raise


async def run_with_progress(work: Callable[[Callable[[int, int], None]], T], progress: Progress | None) -> T:
    """Call ``work`` in a thread, and ``progress`` in the event loop for each report of it.

    If ``progress`` raises, or the caller is cancelled, the next report ends the work; this returns when it has ended.
    """
    loop = asyncio.get_running_loop()
    reports: asyncio.Queue[tuple[int, int] | None] = asyncio.Queue()
    stopped = threading.Event()

    def report(done: int, total: int) -> None:
        if stopped.is_set():
            raise Stopped
        loop.call_soon_threadsafe(reports.put_nowait, (done, total))

    task = asyncio.ensure_future(upkeep_threads.call(partial(work, report)))
    task.add_done_callback(lambda _: reports.put_nowait(None))
    try:
        while (numbers := await reports.get()) is not None:
            if progress is not None:
                progress(*numbers)
        return task.result()
    except BaseException:
        stopped.set()
        await _wait_until_done(task)
        raise


class Stopped(Exception):
    """Raised in the thread to end work that is not wanted any more."""


async def _wait_until_done(work: asyncio.Future[T]) -> None:
    """Wait for work that cannot be cancelled, even if this task is cancelled."""
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:
            continue
    if not work.cancelled():
        work.exception()  # marks it as seen: the caller gets another error
