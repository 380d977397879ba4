"""Functions that are not async run in a thread, so that the event loop goes on."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any


async def called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a function gives: awaited if it is async, else called in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    result = await in_thread(partial(function, *args, **kwargs), ())
    return await result if inspect.isawaitable(result) else result


async def in_thread(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """What a function gives that is called in a thread, with the context variables of the caller."""

    def call() -> Any:
        try:
            return function(*arguments)
        except StopIteration as error:  # a future cannot carry it: waiting for it would never end
            raise RuntimeError("the function raised StopIteration") from error

    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(None, contextvars.copy_context().run, call)
