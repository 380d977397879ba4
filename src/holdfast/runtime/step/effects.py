"""Effects and sleeps of a turn: done once, however often the turn is run."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.engine.value import NotAtHand, Value
from holdfast.errors import InvalidArgument, NotCheckpointable, WrongType
from holdfast.ids import ExecutorId
from holdfast.runtime._async import call_function
from holdfast.runtime.durable.journal import is_sleep, sleep_name
from holdfast.runtime.environment import Environment
from holdfast.runtime.step.state_scope import check_text
from holdfast.runtime.times import expiry_of, in_microseconds

if TYPE_CHECKING:
    from holdfast.runtime.step.context import TurnServices


class Asleep(BaseException):
    """Ends the call of a handler that sleeps; it is called again when the time is over."""

    def __init__(self, until: int) -> None:
        super().__init__()
        self.until = until


class Effects:
    """The effects and sleeps of one turn; those that the journal has are not done again."""

    def __init__(self, run: TurnServices, address: ExecutorId, superstep: int) -> None:
        self._run = run
        self._address = address
        self._superstep = superstep
        self._names: set[str] = set()
        self._sleeps = 0

    async def once(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        message_number: int,
        check_open: Callable[[], None],
    ) -> Any:
        """Return the result of a function, or the kept one of this name; ``check_open`` raises after the turn."""
        kept_as = self._name_in_journal(name, message_number)
        if not callable(function):
            raise WrongType(
                f"executor {self._address!r}: once({name!r}, ...) takes a function and its arguments, not a "
                f"{type(function).__name__}"
            )
        journal = self._run.journal
        kept = journal.result(self._superstep, self._address, kept_as)
        if kept is None:
            await journal.ready()
            try:
                result = await call_function(function, args, kwargs)
            except BaseException:
                self._names.discard(kept_as)  # nothing of it is kept: the handler may try again
                raise
            check_open()  # what outlives its turn must not be noted as part of another
            kept = self._capture(name, result)
            await journal.keep(self._superstep, self._address, kept_as, kept)
        else:  # an attempt before may have been cut while this was on its way
            await journal.settled()
        while True:
            try:
                return kept.load()
            except NotAtHand as absent:
                await absent.fetch()

    def _name_in_journal(self, name: str, message_number: int) -> str:
        """Return the name of an effect in the journal; raise if it is used twice for one message."""
        if callable(name):
            raise InvalidArgument("the name of an effect comes first: once('pay', pay, ...)")
        if type(name) is not str or not name or is_sleep(name):
            raise InvalidArgument(f"once({name!r}, ...): the name of an effect is a str that is not empty")
        check_text(name, "name of once")
        # A turn may handle several messages, each of which has effects of its own.
        kept_as = name if message_number <= 1 else f"{name}\x1f{message_number}"
        if kept_as in self._names:
            raise InvalidArgument(
                f"executor {self._address!r} used once({name!r}, ...) twice for one message in superstep "
                f"{self._superstep}; give each effect a name of its own, say with a number: once('{name} 2', ...)"
            )
        self._names.add(kept_as)
        return kept_as

    def _capture(self, name: str, result: object) -> Value:
        try:
            return self._run.capture(result, f"result of once({name!r})")
        except NotCheckpointable as error:
            raise NotCheckpointable(
                f"{error}. The effect has happened, and will happen again when the turn is run again: let its function "
                f"return plain data, or declare the type with @checkpointable"
            ) from error

    async def sleep(self, delay: object, until: object, message_number: int) -> None:
        """Wait until a time that is journaled; with storage raise ``Asleep`` if that is yet to come."""
        if (delay is None) == (until is None):
            raise InvalidArgument(
                "sleep takes a time span, as in sleep(3600), or a time, as in sleep(until=time)"
            )
        run = self._run
        name = sleep_name(message_number, self._sleeps)
        self._sleeps += 1
        kept = run.journal.result(self._superstep, self._address, name)
        if kept is None:
            wakes = end_of_sleep(delay, until, run.environment.now())
            await run.journal.keep(self._superstep, self._address, name, run.capture(wakes, "sleep"))
        else:
            await run.journal.settled()
            wakes = kept.load()
        if in_microseconds(run.environment.now()) >= wakes:
            return
        if run.durable:
            raise Asleep(wakes)
        await _wait_until(wakes, run.environment)


def end_of_sleep(delay: object, until: object, now: datetime.datetime) -> int:
    """Return the end of a sleep, of which either is given."""
    if delay is not None and not isinstance(delay, int | float | datetime.timedelta):
        raise WrongType(f"delay={delay!r}: must be seconds or a timedelta; for a time say sleep(until=...)")
    if until is not None and not isinstance(until, datetime.datetime):
        raise WrongType(f"until={until!r}: must be a datetime; for a time span say sleep(...)")
    return expiry_of(delay, now, "delay").at if until is None else expiry_of(until, now, "until").at


async def _wait_until(wakes: int, environment: Environment) -> None:
    """Wait in place."""
    while (left := wakes - in_microseconds(environment.now())) > 0:
        woken = asyncio.Event()
        timer = environment.later(left / 1_000_000, woken.set)
        try:
            await woken.wait()
        finally:
            timer.cancel()
