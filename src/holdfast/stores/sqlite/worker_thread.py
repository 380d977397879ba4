"""A thread that works for coroutines of any event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence, Sized
from enum import Enum
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeVar, cast

from holdfast.errors import StorageError

# A timer that is due within this, and this for each thing that shall be done, wants the event loop to itself.
_SOON_SECONDS = 0.01
_EACH_SECONDS = 0.0001


class Idle(Enum):
    """When nothing but the callback under way needs an event loop, or would be served by it soon."""

    NOW = "now"
    SOON = "soon"
    """When what is ready has had its turn, if nothing comes of that."""
    NO = "no"


class _Selector(Protocol):
    def get_map(self) -> Mapping[int, object]: ...


class _Insides(Protocol):
    """What the event loops of asyncio that wait for files are made of, in all versions of Python so far."""

    _ready: Sized
    _scheduled: Sequence[asyncio.TimerHandle]
    _selector: _Selector


def idle(loop: asyncio.AbstractEventLoop, things: int = 1) -> Idle:
    """When an event loop has nothing to do: no timer is due soon, and it waits for no connection, pipe or process.

    What is left are those who come from other threads. ``things`` is how many shall be done meanwhile. There is no
    public way to ask for that; ``NO`` for a loop that is made differently.
    """
    insides = cast(_Insides, loop)
    try:
        # One file is the loop's own, by which other threads wake it.
        if len(insides._selector.get_map()) > 1:
            return Idle.NO
        timers = insides._scheduled
        if timers and timers[0].when() - loop.time() <= _SOON_SECONDS + things * _EACH_SECONDS:
            return Idle.NO
        return Idle.SOON if insides._ready else Idle.NOW
    except (AttributeError, TypeError):
        return Idle.NO


Task = TypeVar("Task")


class Call(Generic[Task]):
    """A task that someone waits for."""

    __slots__ = ("doubtful", "error", "future", "loop", "result", "task")

    def __init__(self, task: Task) -> None:
        self.task = task
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.doubtful = False
        """Whether it may have been done already: whoever did it was interrupted."""

    def outcome(self) -> Any:
        """What came of it, once it is over."""
        if self.error is not None:
            raise self.error
        return self.result


def settle(calls: list[Call[Any]]) -> None:
    """Tell the callers: each event loop is woken once, and one that is closed by now disturbs nobody."""
    loops: dict[asyncio.AbstractEventLoop, list[Call[Any]]] = {calls[0].loop: calls}
    if len(calls) > 1:
        loops = {}
        for call in calls:
            loops.setdefault(call.loop, []).append(call)
    for loop, its_calls in loops.items():
        try:
            loop.call_soon_threadsafe(_tell, its_calls)
        except RuntimeError:
            pass


def _tell(calls: list[Call[Any]]) -> None:
    try:
        for call in calls:
            assert call.future is not None
            if call.future.done():  # its caller was cancelled
                continue
            if call.error is not None:
                call.future.set_exception(call.error)
            else:
                call.future.set_result(call.result)
    except BaseException:  # a signal: the others are told when it was heeded
        calls[0].loop.call_soon(_tell, calls)
        raise


_CLOSED = "the store was closed before it could do this; nothing was changed"
_BUSY = 100
"""So many times others are not waited for, in an event loop where that was in vain."""


class Lane(Generic[Task]):
    """A daemon thread, started with the first call, that takes all the calls that wait at once.

    ``work`` settles the calls that it is given; ``finish`` runs when the lane is stopped. Where several call, theirs
    are handed over when the event loop has gone once through all that is ready there: what many tasks ask for in one
    round, as they do when one answer woke them all, is then done at once. Who calls alone does not wait for that,
    unless ``work_at_once`` could do it then.

    ``work_at_once`` does calls in the thread of the event loop, if they are of the kind that takes less time than
    waking a thread and being woken by it; else it gives false, and nothing happened. It is asked only while nobody
    else needs the event loop: all who are there wait for these calls, after those who are ready had their turn. If a
    signal interrupts it, ``work`` gets the calls; they are ``doubtful`` then.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[list[Call[Task]]], None],
        finish: Callable[[], None] = lambda: None,
        work_at_once: Callable[[list[Call[Task]]], bool] | None = None,
    ) -> None:
        self._name = name
        self._work = work
        self._finish = finish
        self._work_at_once = work_at_once
        self._queue: SimpleQueue[Call[Task] | None] = SimpleQueue()
        self._gathered: dict[asyncio.AbstractEventLoop, list[Call[Task]]] = {}
        self._several = False
        self._busy = 0
        """How many times others are not waited for yet."""
        self._ended = False
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._stopped = False
        self._end: Call[None] | None = None

    async def call(self, task: Task) -> Any:
        """Have a task done, and wait for it."""
        if self._stopped:
            raise StorageError(_CLOSED)
        call = Call(task)
        loop = call.loop
        if (gathered := self._gathered.get(loop)) is None:
            alone = not self._several and self._queue.empty()
            when = self._idle(loop, 1) if alone else Idle.SOON
            if when is Idle.NOW and self._work_at_once is not None and self._work_at_once([call]):
                return call.outcome()
            if when is not Idle.SOON:
                call.future = loop.create_future()
                self._put([call])
                return await call.future
            loop.call_soon(self._hand_over, loop, True)
            gathered = self._gathered[loop] = []
        call.future = loop.create_future()
        gathered.append(call)
        return await call.future

    def _idle(self, loop: asyncio.AbstractEventLoop, calls: int) -> Idle:
        """When so many calls could be done in the thread of the event loop, as far as it was not in vain to wait."""
        when = Idle.NO if self._work_at_once is None else idle(loop, calls)
        if when is Idle.SOON and self._busy > 0:
            self._busy -= 1
            return Idle.NO
        return when

    def _hand_over(self, loop: asyncio.AbstractEventLoop, may_wait: bool) -> None:
        if loop not in self._gathered:  # the lane was stopped
            return
        calls = self._gathered[loop]
        try:
            when = self._idle(loop, len(calls)) if self._queue.empty() else Idle.NO
            if when is Idle.SOON and may_wait:
                loop.call_soon(self._hand_over, loop, False)
                return
            self._gathered.pop(loop, None)
            if when is Idle.NOW and self._work_at_once is not None and self._work_at_once(calls):
                self._several = len(calls) > 1
                _tell(calls)
                return
            if when is Idle.SOON:
                self._busy = _BUSY
            self._put(calls)
        except BaseException:  # a signal, of which those who wait do not have to know
            self._gathered.pop(loop, None)
            waiting = [call for call in calls if call.future is not None and not call.future.done()]
            for call in waiting:
                call.doubtful = True
            self._put(waiting)
            raise

    def _put(self, calls: list[Call[Task]]) -> None:
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
        """Let the thread end when it has done what it was given so far; it is not waited for."""
        self._stopped = True
        for loop in list(self._gathered):
            self._put(self._gathered.pop(loop, []))
        self._queue.put(None)

    async def close(self) -> None:
        """Stop the thread, and wait until it is gone."""
        self._end = Call(None)
        self._end.future = self._end.loop.create_future()
        self.stop()
        if self._thread is not None:
            await self._end.future
            self._thread.join()

    def _run(self) -> None:
        going = True
        while going:
            calls = self._waiting()
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
                settle(wanted)
            # Whoever waits for the next calls must not keep the last ones alive.
            del calls, wanted
        self._ended = True
        self._refuse_the_rest()
        try:
            self._finish()
        finally:
            if self._end is not None:
                settle([self._end])

    def _refuse_the_rest(self) -> None:
        """Tell those who called when the lane was stopped already; nobody takes their calls any more."""
        while True:
            try:
                call = self._queue.get_nowait()
            except Empty:
                return
            if call is not None:
                call.error = StorageError(_CLOSED)
                settle([call])

    def _waiting(self) -> list[Call[Task] | None]:
        """All calls that are there, at least one; None is the last of all."""
        queue = self._queue
        calls = [queue.get()]
        # Nobody else takes from it, so what is seen there can be had.
        while calls[-1] is not None and not queue.empty():
            calls.append(queue.get())
        return calls
