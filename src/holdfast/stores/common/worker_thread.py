"""A thread that works for coroutines of any event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence, Sized
from enum import Enum
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeVar, cast

from holdfast.errors import StorageError

# A timer that is due within this time, plus this for each call, needs the event loop for itself.
_SOON_SECONDS = 0.01
_EACH_SECONDS = 0.0001


class LoopIdle(Enum):
    """Says when an event loop has nothing to do but the callback under way."""

    NOW = "now"
    SOON = "soon"
    """After the callbacks that are ready now, if they start nothing new."""
    NO = "no"


class _Selector(Protocol):
    def get_map(self) -> Mapping[int, object]: ...


class _LoopInternals(Protocol):
    """The private parts of asyncio's selector event loops, the same in all versions of Python so far."""

    _ready: Sized
    _scheduled: Sequence[asyncio.TimerHandle]
    _selector: _Selector


def check_idle(loop: asyncio.AbstractEventLoop, calls: int = 1) -> LoopIdle:
    """Say when an event loop has nothing to do: no timer is due soon, and no connection, pipe or process is watched.

    Only other threads can wake it then. ``calls`` is how many calls shall be done meanwhile. asyncio has no public way
    to ask for that; ``NO`` for a loop that is made differently.
    """
    internals = cast(_LoopInternals, loop)
    try:
        # One file is the loop's own, by which other threads wake it.
        if len(internals._selector.get_map()) > 1:
            return LoopIdle.NO
        timers = internals._scheduled
        if timers and timers[0].when() - loop.time() <= _SOON_SECONDS + calls * _EACH_SECONDS:
            return LoopIdle.NO
        return LoopIdle.SOON if internals._ready else LoopIdle.NOW
    except (AttributeError, TypeError):
        return LoopIdle.NO


Task = TypeVar("Task")


class PendingCall(Generic[Task]):
    """A task with the coroutine that waits for it, and its result or error when it is done."""

    __slots__ = ("doubtful", "error", "future", "loop", "postponed", "result", "task")

    def __init__(self, task: Task) -> None:
        self.task = task
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.doubtful = False
        """True if the task may have been done already, by work that a signal interrupted."""
        self.postponed = False
        """True if it could not be done at once with others, and is left to the thread."""

    def get_result(self) -> Any:
        """Return the result of a call that is done, or raise its error."""
        if self.error is not None:
            raise self.error
        return self.result


def settle_calls(calls: list[PendingCall[Any]]) -> None:
    """Give each caller its result; wake each event loop once, and pass over those that are closed by now."""
    loops: dict[asyncio.AbstractEventLoop, list[PendingCall[Any]]] = {calls[0].loop: calls}
    if len(calls) > 1:
        loops = {}
        for call in calls:
            loops.setdefault(call.loop, []).append(call)
    for loop, its_calls in loops.items():
        try:
            loop.call_soon_threadsafe(_set_results, its_calls)
        except RuntimeError:
            pass


def _set_results(calls: list[PendingCall[Any]]) -> None:
    try:
        for call in calls:
            assert call.future is not None
            if call.future.done():  # its caller was cancelled
                continue
            if call.error is not None:
                call.future.set_exception(call.error)
            else:
                call.future.set_result(call.result)
    except BaseException:  # a signal: the others get theirs after its handler
        calls[0].loop.call_soon(_set_results, calls)
        raise


_CLOSED = "the store was closed before it could do this; nothing was changed"
_BUSY_TURNS = 100
"""The number of calls that do not wait for an event loop to become idle, after one waited in vain."""


class WorkerThread(Generic[Task]):
    """A daemon thread, started with the first call, that takes all the calls that wait at once.

    ``work`` settles the calls that it is given; ``finish`` runs when the worker is stopped. Calls of several tasks are
    handed over when the event loop has gone once through all that is ready there: what many tasks ask for in one
    round, as they do when one answer woke them all, is then done together. A task that calls alone does not wait for
    that, unless ``work_at_once`` could do it then.

    ``work_at_once`` does calls in the thread of the event loop, if they take less time than waking a thread and being
    woken by it; else it returns False, and nothing happened. It is used only while nobody else needs the event loop:
    all tasks there wait for these calls, after those that are ready had their turn. If a signal interrupts it,
    ``work`` gets the calls; they are ``doubtful`` then. Of several calls it may leave some to the thread, as
    ``postponed``.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[list[PendingCall[Task]]], None],
        finish: Callable[[], None] = lambda: None,
        work_at_once: Callable[[list[PendingCall[Task]]], bool] | None = None,
    ) -> None:
        self._name = name
        self._work = work
        self._finish = finish
        self._work_at_once = work_at_once
        self._queue: SimpleQueue[PendingCall[Task] | None] = SimpleQueue()
        self._gathered: dict[asyncio.AbstractEventLoop, list[PendingCall[Task]]] = {}
        self._several = False
        """True if the last calls came together."""
        self._busy_turns = 0
        """Counts the calls that still do not wait for an event loop to become idle."""
        self._ended = False
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._stopped = False
        self._end: PendingCall[None] | None = None

    async def call(self, task: Task) -> Any:
        """Have a task done, and wait for its result."""
        if self._stopped:
            raise StorageError(_CLOSED)
        call = PendingCall(task)
        loop = call.loop
        if (gathered := self._gathered.get(loop)) is None:
            alone = not self._several and self._queue.empty()
            when = self._check_idle(loop, 1) if alone else LoopIdle.SOON
            if when is LoopIdle.NOW and self._work_at_once is not None and self._work_at_once([call]):
                return call.get_result()
            if when is not LoopIdle.SOON:
                call.future = loop.create_future()
                self._put([call])
                return await call.future
            loop.call_soon(self._hand_over, loop, True)
            gathered = self._gathered[loop] = []
        call.future = loop.create_future()
        gathered.append(call)
        return await call.future

    def _check_idle(self, loop: asyncio.AbstractEventLoop, calls: int) -> LoopIdle:
        """Say when so many calls could be done in the thread of the event loop."""
        when = LoopIdle.NO if self._work_at_once is None else check_idle(loop, calls)
        if when is LoopIdle.SOON and self._busy_turns > 0:
            self._busy_turns -= 1
            return LoopIdle.NO
        return when

    def _hand_over(self, loop: asyncio.AbstractEventLoop, may_wait: bool) -> None:
        if loop not in self._gathered:  # the worker was stopped
            return
        calls = self._gathered[loop]
        try:
            when = self._check_idle(loop, len(calls)) if self._queue.empty() else LoopIdle.NO
            if when is LoopIdle.SOON and may_wait:
                loop.call_soon(self._hand_over, loop, False)
                return
            self._gathered.pop(loop, None)
            if when is LoopIdle.NOW and self._work_at_once is not None and self._work_at_once(calls):
                self._several = len(calls) > 1
                postponed = [call for call in calls if call.postponed]
                _set_results([call for call in calls if not call.postponed] if postponed else calls)
                if postponed:
                    self._put(postponed)
                return
            if when is LoopIdle.SOON:
                self._busy_turns = _BUSY_TURNS
            self._put(calls)
        except BaseException:  # a signal, which does not concern the callers
            self._gathered.pop(loop, None)
            waiting = [call for call in calls if call.future is not None and not call.future.done()]
            for call in waiting:
                call.doubtful = True
            self._put(waiting)
            raise

    def _put(self, calls: list[PendingCall[Task]]) -> None:
        for call in calls:
            self._queue.put(call)
        if self._thread is None:
            self._start()
        if self._ended:  # behind the last that the thread takes
            self._refuse_the_rest()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._thread = thread

    def stop(self) -> None:
        """Let the thread end when it has done the calls that it was given; do not wait for it."""
        self._stopped = True
        for loop in list(self._gathered):
            self._put(self._gathered.pop(loop, []))
        self._queue.put(None)

    async def close(self) -> None:
        """Stop the thread, and wait until it is gone."""
        self._end = PendingCall(None)
        self._end.future = self._end.loop.create_future()
        self.stop()
        if self._thread is not None:
            await self._end.future
            self._thread.join()

    def _run(self) -> None:
        going = True
        while going:
            calls = self._take_all()
            self._several = len(calls) > 1
            if calls[-1] is None:
                going = False
            wanted = [call for call in calls if call is not None]
            try:
                if wanted:
                    self._work(wanted)
            except BaseException as error:  # whatever it is: nobody may wait forever
                for call in wanted:
                    call.error = error
                settle_calls(wanted)
            # Waiting for the next calls must not keep the last ones alive.
            del calls, wanted
        self._ended = True
        self._refuse_the_rest()
        try:
            self._finish()
        finally:
            if self._end is not None:
                settle_calls([self._end])

    def _refuse_the_rest(self) -> None:
        """Fail the calls that came after the worker was stopped; nobody takes them any more."""
        while True:
            try:
                call = self._queue.get_nowait()
            except Empty:
                return
            if call is not None:
                call.error = StorageError(_CLOSED)
                settle_calls([call])

    def _take_all(self) -> list[PendingCall[Task] | None]:
        """Wait for a call, and return it with all others that wait; None is the last of all."""
        queue = self._queue
        calls = [queue.get()]
        # No other thread takes from the queue, so get() does not block while it is not empty.
        while calls[-1] is not None and not queue.empty():
            calls.append(queue.get())
        return calls
