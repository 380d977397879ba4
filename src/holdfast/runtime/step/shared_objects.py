"""Objects that all turns of a run share as long as one process drives it, such as the counter of a budget."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from holdfast.engine.state import Scope, State
from holdfast.engine.value import NotAtHand, Value
from holdfast.errors import HoldfastWarning
from holdfast.runtime.durable.journal import Journal

T = TypeVar("T")


class RunView(NamedTuple):
    """The run at the time when a shared object of it is made."""

    state: State
    journal: Journal

    async def values_of(self, scope_name: str, wanted: Callable[[str], bool]) -> list[tuple[str, Any]]:
        """Return the wanted keys of a shared scope of the run, not of workflows nested in it, with their values."""
        values = self.state.get(Scope(None, scope_name), {})
        return [(key, await load_value(value)) for key, value in values.items() if wanted(key)]

    async def journaled(self, wanted: Callable[[str], bool]) -> list[Any]:
        """Return the results of ``once`` in the superstep under way whose names are wanted."""
        return [await load_value(value) for (_, name), value in list(self.journal.results) if wanted(name)]


@runtime_checkable
class CommitFollower(Protocol):
    """A shared object that acts on each superstep once it is durable; a crash may come before it does."""

    async def after_commit(self) -> list[HoldfastWarning]:
        """Do what had to wait for the commit; return warnings about what could not be done, and raise nothing."""
        ...


class SharedObjects:
    """The shared objects of one run, by the functions that make them."""

    def __init__(self) -> None:
        self._made: dict[Callable[..., Any], asyncio.Future[Any]] = {}
        self.followers: list[CommitFollower] = []
        """Those of the objects that act when a superstep is durable."""

    async def get(self, make: Callable[[RunView], Awaitable[T]], view: RunView) -> T:
        """Return the object that ``make`` made; let it make one for the first who asks."""
        made = self._made.get(make)
        if made is None:
            made = self._made[make] = asyncio.ensure_future(make(view))
            made.add_done_callback(lambda done: self._note(make, done))
        found: T = await asyncio.shield(made)
        return found

    def _note(self, make: Callable[..., Any], done: asyncio.Future[Any]) -> None:
        if done.cancelled() or done.exception() is not None:
            self._made.pop(make, None)
        elif isinstance(done.result(), CommitFollower):
            self.followers.append(done.result())

    async def after_commit(self) -> list[HoldfastWarning]:
        """Let objects act on a superstep that is durable; return their warnings."""
        return [warning for follower in self.followers for warning in await follower.after_commit()]


async def load_value(value: Value) -> Any:
    """Return a value of the state, fetched if it is not at hand."""
    while True:
        try:
            return value.load()
        except NotAtHand as absent:
            await absent.fetch()
