"""Functions that are not async run in a thread, so that the event loop goes on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast.checkpoint.threads import Threads

handler_threads = Threads("holdfast-handlers", 32)
"""Call what users write: it may hang, so nothing else is done in these threads."""


async def called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a function gives: awaited if it is async, else called in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    result = await in_thread(partial(function, *args, **kwargs), ())
    return await result if inspect.isawaitable(result) else result


async def in_thread(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """What a function gives that is called in a thread, with the context variables of the caller."""
    return await handler_threads.call(partial(function, *arguments))
