"""Clock, ids, chance and timers of runs, given to them so that tests can give others."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import NamedTuple, Protocol

from holdfast.ids import RunId
from holdfast.runtime.times import in_microseconds

# Not a function of its own, because it is called several times in each superstep.
_now = partial(datetime.datetime.now, datetime.UTC)


def _microseconds() -> int:
    return time.time_ns() // 1_000


def _new_run_id() -> RunId:
    return RunId(os.urandom(16).hex())


def _chance() -> float:
    import random  # here because few runs ever need it

    return random.random()


def _salt() -> bytes:
    # Drawn for many checkpoints at once, because asking the system takes longer than packing a header.
    try:
        return _drawn.pop()
    except IndexError:
        many = os.urandom(64 * _SALT)
        first, *others = [many[at : at + _SALT] for at in range(0, len(many), _SALT)]
        _drawn.extend(others)
        return first


_SALT = 16
_drawn: list[bytes] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drawn.clear)  # a child must not give what its parent gives, too


class Timer(Protocol):
    """A call that is to be made later."""

    def cancel(self) -> None:
        """Do not make the call."""
        ...


def _later(seconds: float, call: Callable[[], object]) -> Timer:
    import asyncio

    return asyncio.get_running_loop().call_later(min(seconds, _LONGEST_TIMER_SECONDS), call)


# Longer ones are set again: wall clocks are set and machines sleep, which timers do not see.
_LONGEST_TIMER_SECONDS = 3_600.0


class Environment(NamedTuple):
    """The clock, the source of ids, chance as numbers from 0 to 1, salt for the ids of checkpoints, and timers.

    The calls of ``later`` may come early; the caller looks at the clock, and asks again.
    """

    now: Callable[[], datetime.datetime] = _now
    new_run_id: Callable[[], RunId] = _new_run_id
    chance: Callable[[], float] = _chance
    salt: Callable[[], bytes] = _salt
    later: Callable[[float, Callable[[], object]], Timer] = _later

    def microseconds(self) -> Callable[[], int]:
        """Return a clock in microseconds since 1970: it is read in each superstep, and costs less without a date."""
        return _microseconds if self.now is _now else lambda: in_microseconds(self.now())


_current: ContextVar[Environment | None] = ContextVar("holdfast environment", default=None)


def current() -> Environment:
    """Return the current environment: the real one, unless a test gave another."""
    return _current.get() or Environment()


def use(environment: Environment) -> Callable[[], None]:
    """Make this the current environment; call the function that this returns to end that."""
    token = _current.set(environment)
    return lambda: _current.reset(token)
