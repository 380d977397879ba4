"""Whether an event loop would notice that its thread does something else for a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence, Sized
from typing import Protocol, cast

_SOON_SECONDS = 0.01
"""A timer that is due within this wants the event loop to itself."""


class _Selector(Protocol):
    def get_map(self) -> Mapping[int, object]: ...


class _Insides(Protocol):
    """What the event loops of asyncio that wait for files are made of, in all versions of Python so far."""

    _ready: Sized
    _scheduled: Sequence[asyncio.TimerHandle]
    _selector: _Selector


def is_idle(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether nothing but the callback under way needs the event loop now, or would be served by it soon.

    Nothing else is ready, no timer is due soon, and it waits for no connection, pipe or process: what is left are those
    who come from other threads. There is no public way to ask for that; False for a loop that is made differently.
    """
    insides = cast(_Insides, loop)
    try:
        # One file is the loop's own, by which other threads wake it.
        if insides._ready or len(insides._selector.get_map()) > 1:
            return False
        timers = insides._scheduled
        return not timers or timers[0].when() - loop.time() > _SOON_SECONDS
    except (AttributeError, TypeError):
        return False
