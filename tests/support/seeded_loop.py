"""An event loop without real time and without luck: a seed decides in which order ready callbacks run.

asyncio promises first come, first served, so code may come to rely on it, or on one task being faster than
another. Here any ready callback may be the next, and sleeping costs nothing: time jumps to the next timer when
nothing else is left to do. The same seed gives the same order, so what one seed finds can be looked at again.
"""

import asyncio
import heapq
import random
import sys
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextvars import Context
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


# The type checker is not told that this is an event loop: it would ask for sockets and pipes.
_NoIO: Any = asyncio.AbstractEventLoop


class Deadlock(Exception):
    """Nothing is ready and no timer is set, but the main task is not done."""


class SeededLoop(_NoIO):  # type: ignore[misc]
    """Runs callbacks in an order that only the seed decides; it has no threads and no sockets."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._ready: list[asyncio.Handle] = []
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timers_made = 0
        self._now = 0.0
        self._running = False
        self._closed = False
        self._generators: weakref.WeakSet[AsyncGenerator[Any, Any]] = weakref.WeakSet()
        self.errors: list[dict[str, Any]] = []

    # What asyncio asks of a loop.

    def time(self) -> float:
        return self._now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._timers_made += 1
        heapq.heappush(self._timers, (when, self._timers_made, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are passed over when their time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **kwargs: Any) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, **kwargs)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> NoReturn:
        raise RuntimeError("threads finish when they like; use async handlers with this loop")

    # Running.

    def run_until_complete(self, future: Any) -> Any:
        """Run until ``future`` is done; raises ``Deadlock`` if it never will be."""
        main = asyncio.ensure_future(future, loop=self)
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(self._generators.add, lambda generator: self._close_soon(generator))
        asyncio._set_running_loop(self)
        self._running = True
        try:
            while not main.done():
                self._step()
        finally:
            self._running = False
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)
        return main.result()

    def _close_soon(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._closing = self.create_task(generator.aclose())

    def _step(self) -> None:
        while self._timers and (not self._ready or self._timers[0][0] <= self._now):
            when, _, timer = heapq.heappop(self._timers)
            if not timer.cancelled():
                self._now = max(self._now, when)
                self._ready.append(timer)
        if not self._ready:
            raise Deadlock("nothing is ready and no timer is set")
        handle = self._ready.pop(self._random.randrange(len(self._ready)))
        if not handle.cancelled():
            handle._run()


class SteppedLoop(SeededLoop):
    """Counts its steps and does something just before one of them."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.steps = 0
        self.planned: dict[int, Callable[[], object]] = {}

    def _step(self) -> None:
        planned = self.planned.pop(self.steps, None)
        if planned is not None:
            planned()
        self.steps += 1
        super()._step()

    def jump(self, seconds: float) -> None:
        """Let time pass at once."""
        self._now += seconds


def run_seeded(make: Callable[[], Coroutine[Any, Any, T]], seed: int) -> T:
    """What the coroutine returns when it runs in the order of ``seed``; whatever it left running is an error."""
    loop = SeededLoop(seed)
    try:
        result: T = loop.run_until_complete(make())
        loop.run_until_complete(_settle())
        left = asyncio.all_tasks(loop)
    finally:
        loop.close()
    assert not loop.errors, loop.errors
    assert not left, left
    return result


async def _settle() -> None:
    """Give generators that were dropped the chance to close."""
    for _ in range(100):
        await asyncio.sleep(0)
