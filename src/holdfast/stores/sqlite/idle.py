"""Whether an event loop would notice that its thread does something else for a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence, Sized
from enum import Enum
from typing import Protocol, cast

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
