"""Threads that call functions for coroutines; separate from the pool of the event loop, which programs may fill."""

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

from holdfast.log_fields import NO_FIELDS, extra_fields, log_fields

T = TypeVar("T")

_logger = logging.getLogger("holdfast.threads")

# A thread ends when it was idle for so long.
_IDLE_SECONDS = 10.0
# A call that waits longer for a thread is reported in a warning.
_PATIENCE_SECONDS = 30.0
# A process that ends waits so long for running calls: as long as cancelled handlers have.
_GRACE_SECONDS = 5.0


class ThreadCall:
    """A function to call in a thread, and the future that gets its result."""

    __slots__ = ("_context", "_function", "_loop", "_outcome", "future", "name", "waited_for_until")

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function: Callable[[], Any] | None = function
        self._context = contextvars.copy_context()
        self._loop = asyncio.get_running_loop()
        self._outcome: tuple[Any, BaseException | None] = (None, None)
        self.future: asyncio.Future[Any] = self._loop.create_future()
        named: object = getattr(function, "func", function)  # a partial has the function in ``func``
        self.name: str = getattr(named, "__qualname__", type(named).__name__)
        self.waited_for_until: float | None = None
        """The time until which an ending process waits for it, if its caller left it behind."""

    def log_extra(self) -> dict[str, str]:
        """Return what log records about it have as ``extra``."""
        return extra_fields(*self._context.get(log_fields, NO_FIELDS))

    def run(self) -> None:
        """Call the function, and keep its result or error for ``tell``."""
        function, self._function = self._function, None
        assert function is not None
        try:
            self._outcome = self._context.run(function), None
        except StopIteration as error:  # a future cannot carry it: its waiter would never wake up
            raised = RuntimeError("the function raised StopIteration")
            raised.__cause__ = error
            self._outcome = None, raised
        except BaseException as error:
            self._outcome = None, error

    def fail(self, error: BaseException) -> None:
        """Give the caller an error because the call cannot be made."""
        self._outcome = None, error
        self.tell()

    def tell(self) -> None:
        """Give the caller the result or error, unless its event loop is closed by now."""
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
    """Calls functions in at most ``most`` daemon threads at a time, and in one more for each call that was left behind.

    A call is left behind if its caller is cancelled. Its thread goes on to the end of the function, but
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
        """Forget all threads: a forked child does not have those of its parent."""
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
            del call  # else the traceback of its error would refer to itself

    def _find_thread(self) -> bool:
        """Wake an idle thread, or start one if there may be one more; return False if all are busy."""
        if self._idle >= len(self._waiting):
            self._changed.notify()
        elif self._threads < self.most:
            name = f"{self._name}-{next(self._numbers)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the system allows no more threads
                while self._waiting and not self._threads:  # no thread will ever take these calls
                    self._waiting.popleft().fail(error)
                return False
            self._threads += 1
            self._idle += 1
        else:
            return False
        return True

    def _leave(self, call: ThreadCall) -> None:
        """Leave a call behind: drop it if it has not begun, and do not count its thread if it has."""
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
            extra=call.log_extra(),
        )

    # In a thread.

    def _work(self) -> None:
        while (call := self._next()) is not None:
            call.run()
            with self._changed:
                counts = call in self._at_work
                self._at_work.discard(call)
                self._left_behind.discard(call)
                self._idle += counts  # before a caller wakes up that may make the next call
            call.tell()
            if not counts:  # another thread took its place
                return
            del call  # must not stay alive while the thread waits for the next call

    def _next(self) -> ThreadCall | None:
        """Wait for a call and return the oldest; None if there was none for a while."""
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
        """Return the time until which a process that began to end at ``begin`` waits; 0 if nothing is running."""
        with self._changed:
            ends = [call.waited_for_until or 0.0 for call in self._left_behind]
            return max([*ends, begin + _GRACE_SECONDS if self._at_work or self._waiting else 0.0])


_all: list[Threads] = []


def _after_fork() -> None:
    for threads in _all:
        threads.forget()


def _at_exit() -> None:
    """Wait some seconds for running calls, which cannot be stopped."""
    begin = time.monotonic()
    while any(threads.busy_until(begin) > time.monotonic() for threads in _all):
        time.sleep(0.005)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)

packing_threads = Threads("holdfast-packing", max(2, os.cpu_count() or 1))
"""Encode, hash and compress big values, so that commits wait for no other work in threads."""
reading_threads = Threads("holdfast-reading", max(2, os.cpu_count() or 1))
"""Check and compare big values that were read."""
upkeep_threads = Threads("holdfast-upkeep", 32)
"""Copy, inspect and close stores, however long that takes."""
