"""Work that no cancellation cuts, done in the task of whoever waits for it."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


@types.coroutine
def whole(
    work: Coroutine[Any, Any, T], cancelled: Callable[[asyncio.CancelledError], None]
) -> Generator[Any, None, T]:
    """What ``work`` gives. It goes on also when the task that waits for it is cancelled; then ``cancelled`` is told.

    A task of its own would do the same, but costs two more iterations of the event loop, in every superstep. The price
    is that the work must not look at the task in which it is done, as timeouts and task groups do.
    """
    try:
        while True:
            try:
                future = work.send(None)
            except StopIteration as over:
                result: T = over.value
                return result
            try:
                yield None if future is None else _Uncut(future)
            except asyncio.CancelledError as error:
                if future is None or not future.cancelled():
                    cancelled(error)
            except Exception:
                pass  # what the future failed with, which it says to the work itself
    finally:
        work.close()


class _Uncut:
    """A future for which a task waits without being able to cancel it.

    To a task anything with these methods is a future. One that does not let itself be cancelled makes the task put its
    cancellation off until it is woken: by then the future is done.
    """

    __slots__ = ("_asyncio_future_blocking", "add_done_callback", "get_loop")

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self.get_loop = future.get_loop
        self.add_done_callback = future.add_done_callback
        # The promise of a future that it is awaited: given to the task by this one, in place of that one.
        self._asyncio_future_blocking = True
        future._asyncio_future_blocking = False

    def cancel(self, msg: object = None) -> bool:
        return False
