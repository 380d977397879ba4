"""``VirtualTime``: a clock that tests move by hand."""

from __future__ import annotations

import asyncio
import datetime
import heapq
import itertools
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self, TypeVar

from holdfast.errors import InvalidArgument
from holdfast.runtime.environment import Environment, use

T = TypeVar("T")

_BEGIN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class VirtualTime:
    """A clock that stands still until ``advance`` moves it, for runs that sleep for days.

    Workflows and hosts that are made inside its context use it.

    >>> import asyncio
    >>> from datetime import timedelta
    >>> from holdfast import InMemoryCheckpointStorage, WorkflowBuilder, WorkflowContext, executor
    >>> @executor
    ... async def remind(text: str, ctx: WorkflowContext[None, str]) -> str:
    ...     await ctx.sleep(timedelta(days=30))
    ...     return text
    >>> async def main():
    ...     with VirtualTime() as time:
    ...         builder = WorkflowBuilder(name="Remind").set_start_executor(remind)
    ...         workflow = builder.with_checkpointing(InMemoryCheckpointStorage()).build()
    ...         result = await time.pass_until(workflow.run("rent"))
    ...         return result.outputs, time.now().date()
    >>> asyncio.run(main())
    (['rent'], datetime.date(2026, 1, 31))
    """

    def __init__(self, begin: datetime.datetime = _BEGIN) -> None:
        if begin.tzinfo is None:
            raise InvalidArgument(
                f"begin={begin!r}: a time needs a time zone, say datetime(2026, 1, 1, tzinfo=UTC)"
            )
        self._now = begin
        self._timers: list[tuple[datetime.datetime, int, _Timer]] = []
        self._numbers = itertools.count()
        self._waiting: list[asyncio.Future[None]] = []
        self._end: Callable[[], None] | None = None

    def __enter__(self) -> Self:
        self._end = use(Environment(now=self.now, later=self._later))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._end is not None:
            self._end()
            self._end = None

    def now(self) -> datetime.datetime:
        """Return the current virtual time."""
        return self._now

    async def timer(self) -> None:
        """Wait until a timer is set: then the clock can be moved."""
        if self.next_timer() is None:
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting

    def next_timer(self) -> datetime.datetime | None:
        """Return the time of the next timer; None if there is none."""
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    async def advance(self, span: datetime.timedelta | float = 0, *, days: float = 0) -> None:
        """Move the clock on, by seconds, a timedelta or days, and run the timers on the way."""
        seconds = span.total_seconds() if isinstance(span, datetime.timedelta) else span
        target = self._now + datetime.timedelta(days=days, seconds=seconds)
        while (next_timer := self.next_timer()) is not None and next_timer <= target:
            self._now = max(next_timer, self._now)
            _, _, timer = heapq.heappop(self._timers)
            timer.call()
            await asyncio.sleep(0)
        self._now = target
        await asyncio.sleep(0)

    async def pass_until(self, awaitable: Awaitable[T]) -> T:
        """Await something and return its result; whenever a timer is set, move the clock there."""
        awaited = asyncio.ensure_future(awaitable)
        try:
            while not awaited.done():
                timer = asyncio.ensure_future(self.timer())
                await asyncio.wait([awaited, timer], return_when=asyncio.FIRST_COMPLETED)
                timer.cancel()
                next_timer = self.next_timer()
                if not awaited.done() and next_timer is not None:
                    await self.advance(next_timer - self._now)
        finally:
            awaited.cancel()
        return awaited.result()

    def _later(self, seconds: float, call: Callable[[], object]) -> _Timer:
        timer = _Timer(call)
        if seconds <= 0:  # due at once, so the clock need not be moved for it
            asyncio.get_running_loop().call_soon(lambda: timer.call())
            return timer
        # Rounded up, so that no timer is early.
        span = datetime.timedelta(microseconds=-(-seconds * 1_000_000 // 1))
        heapq.heappush(self._timers, (self._now + span, next(self._numbers), timer))
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
        return timer


def _nothing() -> None:
    pass


class _Timer:
    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True
        self.call = _nothing  # it stays in the heap for a while; what it would have called can be freed
