"""How far long work has come, and threads that are waited for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeAlias, TypeVar

from holdfast.checkpoint.threads import upkeep_threads

T = TypeVar("T")

Progress: TypeAlias = Callable[[int, int], object]
"""Is told how much is done, and of how much; what it raises ends the work."""


class Steps:
    """Counts what is done of work that goes over the same things several times.

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
        """What the one who is told raised, if anything."""

    def more(self, steps: int) -> None:
        """There is more to do than was known."""
        self._total += steps * self._passes

    def again(self, steps: int) -> None:
        """So much of what was done has to be done once more."""
        self._total += steps

    def done(self, steps: int) -> None:
        """So much more is done."""
        self._done += steps
        if steps and self._progress is not None:
            try:
                self._progress(self._done, self._total)
            except BaseException as error:
                self.interruption = error
                raise

    def over(self) -> None:
        """All is done, also what turned out not to be there."""
        self.done(self._total - self._done)


async def finished(call: Callable[[], T]) -> T:
    """What ``call`` gives, in a thread that is at its end when this is, also when whoever waits is cancelled.

    So the files that it uses can be closed then.
    """
    # By hand, because the machinery of threads and futures lets go of a result only some time later: it may be large.
    results: list[T] = []
    work = asyncio.ensure_future(upkeep_threads.call(lambda: results.append(call())))
    try:
        await asyncio.shield(work)
        return results.pop()
    except asyncio.CancelledError:
        await _ended(work)
        raise


async def watched(work: Callable[[Callable[[int, int], None]], T], progress: Progress | None) -> T:
    """What ``work`` gives, in a thread, with ``progress`` called here for each report of it.

    If that raises, or if whoever waits is cancelled, its next report ends the work, and this when it has ended.
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
        while (told := await reports.get()) is not None:
            if progress is not None:
                progress(*told)
        return task.result()
    except BaseException:
        stopped.set()
        await _ended(task)
        raise


class Stopped(Exception):
    """Nobody wants the work any more."""


async def _ended(work: asyncio.Future[T]) -> None:
    """Wait until work is over that goes on whatever happens here."""
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:
            continue
    if not work.cancelled():
        work.exception()  # whoever waits hears of something else
