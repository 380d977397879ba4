"""Stores that do their work in the thread of the event loop: campaigns that open thousands of them wake no others."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from holdfast.checkpoint.threads import Threads
from holdfast.stores.common.worker_thread import PendingCall, WorkerThread


class _AtOnce:
    """Stands for the event loop of a call whose result is there before anyone waits for it."""

    def call_soon_threadsafe(self, function: Callable[..., Any], *args: Any) -> None:
        function(*args)


_at_once: Any = _AtOnce()


async def _work(self: WorkerThread[Any], task: Any) -> Any:
    call = PendingCall(task)
    call.future = call.loop.create_future()
    call.loop = _at_once
    self._work([call])
    return await call.future


async def _close(self: WorkerThread[Any]) -> None:
    self.stop()
    self._finish()


async def _call(self: Threads, function: Callable[[], Any]) -> Any:
    return function()


@contextmanager
def in_one_thread() -> Iterator[None]:
    """Let no store begin a thread."""
    with (
        patch.object(WorkerThread, "call", _work),
        patch.object(WorkerThread, "close", _close),
        patch.object(Threads, "call", _call),
    ):
        yield
