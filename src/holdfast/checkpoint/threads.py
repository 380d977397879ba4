"""Threads that call functions for coroutines, apart from the pool of the event loop, which programs fill themselves."""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar, cast

T = TypeVar("T")

_logger = logging.getLogger("holdfast.threads")

# A thread that nobody needs for so long ends.
_IDLE_SECONDS = 10.0
# How long a call waits for a thread before that is told.
_PATIENCE_SECONDS = 30.0
# How long a process that ends waits for what is at work: as long as handlers have that are cancelled.
_GRACE_SECONDS = 5.0


class ThreadCall:
    """A function that is called in a thread, and the future of whoever waits for what it gives."""

    __slots__ = ("_context", "_function", "_loop", "_outcome", "future", "name", "waited_for_until")

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function: Callable[[], Any] | None = function
        self._context = contextvars.copy_context()
        self._loop = asyncio.get_running_loop()
        self._outcome: tuple[Any, BaseException | None] = (None, None)
        self.future: asyncio.Future[Any] = self._loop.create_future()
        named: object = getattr(function, "func", function)  # that of a partial
        self.name: str = getattr(named, "__qualname__", type(named).__name__)
        self.waited_for_until: float | None = None
        """Until when a process that ends waits for it, if its caller left it behind."""

    def run(self) -> None:
        """Call the function; what it gives or raises is kept until it is told."""
        function, self._function = self._function, None
        assert function is not None
        try:
            self._outcome = self._context.run(function), None
        except StopIteration as error:  # a future cannot carry it: waiting for it would never end
            raised = RuntimeError("the function raised StopIteration")
            raised.__cause__ = error
            self._outcome = None, raised
        except BaseException as error:
            self._outcome = None, error

    def fail(self, error: BaseException) -> None:
        """Let the caller have an error in place of a call that cannot be made."""
        self._outcome = None, error
        self.tell()

    def tell(self) -> None:
        """Let the caller have what came of it; an event loop that is closed by now has none."""
        try:
            self._loop.call_soon_threadsafe(self._settle)
        except RuntimeError:
            self._outcome = (None, None)

    def _settle(self) -> None:
        (result, error), self._outcome = self._outcome, (None, None)
        if self.future.done():  # its caller was cancelled
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class Threads:
    """Calls functions in daemon threads: in ``most`` at a time, and in one more for each that was left behind.

    A call is left behind if whoever waits for it is cancelled. Its thread goes on to the end of the function, but
    another takes its place: functions that hang keep no others from being called once nobody waits for them.

    >>> import asyncio
    >>> asyncio.run(Threads("example", 1).call(lambda: threading.current_thread().name))
    'example-1'
    """

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self.most = most
        self.forget()
        _all.append(self)

    def forget(self) -> None:
        """Have no threads: those of a process that forked are not those of its child."""
        self._changed = threading.Condition()
        self._numbers = itertools.count(1)
        self._waiting: deque[ThreadCall] = deque()
        self._at_work: set[ThreadCall] = set()
        self._left_behind: set[ThreadCall] = set()
        self._idle = 0
        self._threads = 0
        """The number of threads that are idle or at work, without those that were left behind."""

    async def call(self, function: Callable[[], T]) -> T:
        """Call a function in a thread, with the context variables of the caller, and return its result."""
        call = ThreadCall(function)
        with self._changed:
            self._waiting.append(call)
            crowded = not self._find_thread()
        complaint = None
        if crowded:
            complaint = asyncio.get_running_loop().call_later(_PATIENCE_SECONDS, self._complain, call)
        try:
            return cast(T, await call.future)
        except asyncio.CancelledError:
            self._leave(call)
            raise
        finally:
            if complaint is not None:
                complaint.cancel()
            del call  # else the traceback of what it raised would hold itself

    def _find_thread(self) -> bool:
        """Let a thread take what waits, a new one if there may be one more; false if all are at work."""
        if self._idle >= len(self._waiting):
            self._changed.notify()
        elif self._threads < self.most:
            name = f"{self._name}-{next(self._numbers)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the system has no more of them
                while self._waiting and not self._threads:  # nobody will ever take them
                    self._waiting.popleft().fail(error)
                return False
            self._threads += 1
            self._idle += 1
        else:
            return False
        return True

    def _leave(self, call: ThreadCall) -> None:
        """Nobody waits for a call any more: it is not begun, or does not count if it is under way."""
        with self._changed:
            if call in self._at_work:
                self._at_work.remove(call)
                call.waited_for_until = time.monotonic() + _GRACE_SECONDS
                self._left_behind.add(call)
                self._threads -= 1
                if self._waiting:
                    self._find_thread()
            elif call in self._waiting:
                self._waiting.remove(call)

    def _complain(self, call: ThreadCall) -> None:
        with self._changed:
            if call not in self._waiting:
                return
            names = sorted({other.name for other in self._at_work})
        _logger.warning(
            "%s has waited %g s for a thread: all %d of %s are at work, on %s. Give functions that may hang a "
            "timeout of their own; where many wait at once, let async ones await them",
            call.name,
            _PATIENCE_SECONDS,
            self.most,
            self._name,
            ", ".join(names[:10]),
        )

    # In a thread.

    def _work(self) -> None:
        while (call := self._next()) is not None:
            call.run()
            with self._changed:
                counts = call in self._at_work
                self._at_work.discard(call)
                self._left_behind.discard(call)
                self._idle += counts  # before anyone is told who may have the next call
            call.tell()
            if not counts:  # another took its place
                return
            del call  # who waits for the next one must not keep the last one alive

    def _next(self) -> ThreadCall | None:
        """The call that waits longest, once there is one; None if there was none for a while."""
        with self._changed:
            while not self._waiting:
                if not self._changed.wait(_IDLE_SECONDS) and not self._waiting:
                    self._idle -= 1
                    self._threads -= 1
                    return None
            self._idle -= 1
            call = self._waiting.popleft()
            self._at_work.add(call)
            return call

    # At the end of the process.

    def busy_until(self, begin: float) -> float:
        """Until when a process waits that began to end then: for nothing if there is nothing at work."""
        with self._changed:
            ends = [call.waited_for_until or 0.0 for call in self._left_behind]
            return max([*ends, begin + _GRACE_SECONDS if self._at_work or self._waiting else 0.0])


_all: list[Threads] = []


def _after_fork() -> None:
    for threads in _all:
        threads.forget()


def _at_exit() -> None:
    """Let what is at work come to its end, for some seconds: it cannot be stopped, only cut."""
    begin = time.monotonic()
    while any(threads.busy_until(begin) > time.monotonic() for threads in _all):
        time.sleep(0.005)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)

packing_threads = Threads("holdfast-packing", max(2, os.cpu_count() or 1))
"""Encode, hash and compress big values: no commit waits for anything else that is done in threads."""
reading_threads = Threads("holdfast-reading", max(2, os.cpu_count() or 1))
"""Check and compare big values that were read."""
upkeep_threads = Threads("holdfast-upkeep", 32)
"""Copy, inspect and close stores, each for as long as it takes."""
