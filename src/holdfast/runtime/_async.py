"""Helpers for coroutines: uncancelled work, weak callbacks, and functions that run in threads."""

from __future__ import annotations

import asyncio
import inspect
import types
import weakref
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, ParamSpec, TypeVar

from holdfast.checkpoint.threads import Threads

T = TypeVar("T")


@types.coroutine
def run_uncancelled(
    work: Coroutine[Any, Any, T], cancelled: Callable[[asyncio.CancelledError], None]
) -> Generator[Any, None, T]:
    """Do ``work`` to its end, also when the task that awaits it is cancelled; call ``cancelled`` then.

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
    """A future that a task awaits without being able to cancel it.

    To a task anything with these methods is a future. One that does not let itself be cancelled makes the task put its
    cancellation off until it is woken: by then the future is done.
    """

    __slots__ = ("_asyncio_future_blocking", "add_done_callback", "cancelled", "get_loop")

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self.get_loop = future.get_loop
        self.cancelled = future.cancelled  # for work within such work
        self.add_done_callback = future.add_done_callback
        # A future sets this flag to promise that it is awaited: here this one does, in place of that one.
        self._asyncio_future_blocking = True
        future._asyncio_future_blocking = False

    def cancel(self, msg: object = None) -> bool:
        return False


P = ParamSpec("P")


def weak_callback(method: Callable[P, None]) -> Callable[P, None]:
    """Return a function that calls a method as long as its object is there.

    Two objects that hold each other stay, with all that they hold, until the garbage collector comes.
    """
    found = weakref.WeakMethod(method)

    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        there = found()
        if there is not None:
            there(*args, **kwargs)

    return call


handler_threads = Threads("holdfast-handlers", 32)
"""Threads for functions of users: these may hang, so nothing else runs here."""


async def call_function(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of a function: awaited if it is async, else called in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    result = await run_in_thread(partial(function, *args, **kwargs), ())
    return await result if inspect.isawaitable(result) else result


async def run_in_thread(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Return the result of a function that is called in a thread, with the context variables of the caller."""
    return await handler_threads.call(partial(function, *arguments))
