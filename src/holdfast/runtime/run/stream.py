"""The events of a run as those who follow it take them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from holdfast.checkpoint.events.events import WorkflowEvent
from holdfast.runtime.events.event_log import EventLog, Watcher

if TYPE_CHECKING:
    from holdfast.runtime.run.run import Run


class EventFeed(NamedTuple):
    """Gives a stream the events of its run, and what the run failed with; made by ``Run.event_feed``."""

    log: EventLog
    wait_here: Callable[[], None]
    """Wakes a waiting run in this event loop, if the one in which it came to rest is closed."""
    raise_failure: Callable[[], None]
    """Raises the error with which the run failed, if it failed."""


class RunWatch(AsyncIterator[WorkflowEvent]):
    """The events of a run that goes its own pace; made by ``Run.watch_stream``.

    No generator, because it has nothing to clean up: it can be dropped anywhere, also after its event loop.
    """

    def __init__(self, run: Run) -> None:
        self._run = run  # a run goes on by itself only as long as someone holds it
        self._feed = run.event_feed()
        self._watcher = self._feed.log.watch()
        self._taken: Iterator[WorkflowEvent] = iter(())
        self._over = False

    async def __anext__(self) -> WorkflowEvent:
        while not self._over:
            for event in self._taken:
                return event
            self._feed.wait_here()
            events = await self._feed.log.take(self._watcher)
            self._taken = iter(events)
            if not events:
                self._over = True
                self._feed.raise_failure()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Stop watching; the run goes on."""
        self._over = True


class RunStream(AsyncIterator[WorkflowEvent]):
    """The events of a run as they happen; made by ``Workflow.run_stream``.

    The run takes its next superstep when the events of the last one have been taken. Leaving the stream, by
    ``break``, ``aclose`` or the end of ``async with``, stops the run. After the last event it raises what the
    run failed with.

    >>> import asyncio
    >>> from holdfast import WorkflowBuilder, WorkflowOutputEvent, executor
    >>> @executor
    ... async def double(number: int) -> int:
    ...     return number * 2
    >>> workflow = WorkflowBuilder(name="Double").set_start_executor(double).build()
    >>> async def main():
    ...     async for event in workflow.run_stream(21):
    ...         if isinstance(event, WorkflowOutputEvent):
    ...             print(event.data)
    >>> asyncio.run(main())
    42
    """

    def __init__(self, run: Run | None, opening: Callable[[], Awaitable[Run]] | None = None) -> None:
        """Of a run, or of one that ``opening`` gives when the first event is asked for."""
        self._run = run
        self._opening = opening
        self._watcher = run.event_feed().log.watch() if run is not None else None
        self._events: AsyncGenerator[WorkflowEvent, None] | None = None

    @property
    def run(self) -> Run:
        """The run whose events these are; one that is resumed is there once its first event was taken."""
        if self._run is None:
            raise RuntimeError("the run of this stream is not there before its first event was taken")
        return self._run

    async def _opened(self) -> tuple[Run, Watcher]:
        if self._run is None:
            assert self._opening is not None
            self._run = await self._opening()
        if self._watcher is None:
            self._watcher = self._run.event_feed().log.watch()
        return self._run, self._watcher

    def __aiter__(self) -> AsyncGenerator[WorkflowEvent, None]:
        # Not kept here: so a break drops the last reference, and with it Python closes the generator at once.
        events, self._events = self._events, None
        return events if events is not None else _held(self._opened)

    def __anext__(self) -> Awaitable[WorkflowEvent]:
        if self._events is None:
            self._events = _held(self._opened)
        return self._events.__anext__()

    async def aclose(self) -> None:
        """Leave the stream and stop the run."""
        if self._run is not None:
            await self._run.close()
        if self._events is not None:
            try:
                await self._events.aclose()
            except RuntimeError:
                pass  # another task reads from it at this moment; it comes to its end by itself

    async def __aenter__(self) -> RunStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


async def _held(
    opened: Callable[[], Awaitable[tuple[Run, Watcher]]],
) -> AsyncGenerator[WorkflowEvent, None]:
    run, watcher = await opened()
    del opened  # it knows the stream, which may know this generator: dropping the one has to drop the other
    feed = run.event_feed()
    log = feed.log
    log.hold(watcher)
    run.begin()
    try:
        while events := await log.take(watcher):
            for event in events:
                yield event
        feed.raise_failure()
    finally:
        log.leave(watcher)
        await run.close()
