"""Processes that drive runs, as one test can have many of them: each can be held, cut off and left standing.

Time stands still unless it is told to pass, and ``settle`` waits until nothing can move any more. So what happens is
the same each time, also with stores that work in threads.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import copy_context
from typing import Any, TypeVar

from holdfast import CheckpointStorage, Run, Store
from holdfast.errors import StorageError
from tests.support.inside import recorder_of
from tests.support.machine_workflow import DESK
from tests.support.machine_writer import AFTER
from tests.support.model import NotDone
from tests.support.parts import Commit, Letter

T = TypeVar("T")


class Dead(StorageError):
    """What a process gets of a store after it died; nobody is there to see it."""


class Broken(Exception):
    """What a handler raises that was told to fail."""


class StillLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock stands still."""

    now = 0.0

    def time(self) -> float:
        return self.now

    @property
    def has_work(self) -> bool:
        """Whether anything but timers is left to do; asked by the task that runs."""
        return bool(self._ready)  # type: ignore[attr-defined]


class World:
    """The event loop, what is under way in stores, and what was paid."""

    def __init__(self) -> None:
        self.loop = StillLoop()
        self.paid: list[str] = []
        """The idempotency key of each payment; its number is the ticket."""
        self._busy = 0
        self._idle = asyncio.Event()

    async def stored(self, work: Awaitable[T]) -> T:
        """Something that a store does, perhaps in a thread."""
        self._busy += 1
        self._idle.clear()
        try:
            return await work
        finally:
            self._busy -= 1
            if not self._busy:
                self._idle.set()

    async def settle(self) -> None:
        """Wait until all that can move has moved."""
        quiet = 0
        while quiet < 3:
            if self._busy:
                await self._idle.wait()
            await asyncio.sleep(0)
            quiet = 0 if self._busy or self.loop.has_work else quiet + 1

    async def outcomes(self, *calls: asyncio.Task[T]) -> list[tuple[T | None, BaseException | None]]:
        """What calls give or raise; those that do not come to an end now are given up, with ``NotDone``."""
        await self.settle()
        given_up = [call for call in calls if not call.done()]
        for call in given_up:
            call.cancel()
        await self.settle()
        return [
            (None, NotDone())
            if call in given_up
            else (None, call.exception())
            if call.exception() is not None
            else (call.result(), None)
            for call in calls
        ]

    async def pass_time(self, seconds: float) -> None:
        """Let timers ring that are set for the time until then."""
        self.loop.now += seconds
        await self.settle()

    def end(self) -> None:
        """Close the event loop, in which nothing may be left."""
        left = asyncio.all_tasks(self.loop)
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        assert not left or sys.exc_info()[1] is not None, left


class Wire:
    """A store as one process sees it: the process can die, and its checkpoints can be held on their way."""

    def __init__(self, store: Store, world: World) -> None:
        self._store = store
        self._world = world
        self._cut = False
        self._hold = ""
        self._held: asyncio.Future[bool] | None = None

    def hold_next(self, where: str) -> None:
        """Hold the next commit with checkpoints, before it is stored or behind that."""
        self._hold = where

    @property
    def holds(self) -> bool:
        """Whether a commit stands here."""
        return self._held is not None

    def let_through(self, broken: bool = False) -> None:
        """Let the commit that stands here go on its way, or tell its writer of an error in its place."""
        assert self._held is not None
        self._held.set_result(broken)
        self._held = None

    def cut(self) -> None:
        """The process is dead: nothing of it arrives any more."""
        self._cut = True

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        where = self._hold if commit.records else ""
        if not where:
            return await self._call(self._store.commit, commit)
        self._hold = ""
        waiting = await self._call(self._store.commit, commit) if where == AFTER else ()
        self._held = asyncio.get_running_loop().create_future()
        if await self._held:
            raise StorageError("the disk is full, as the test wants it to be")
        return waiting if where == AFTER else await self._call(self._store.commit, commit)

    async def _call(self, method: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        if self._cut:
            raise Dead("this process is dead")
        return await self._world.stored(method(*args))

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        async def called(*args: Any) -> Any:
            return await self._call(method, *args)

        return called


class Process:
    """One process that drives one run, and the turns that stand at its desk."""

    def __init__(self, store: Store, world: World) -> None:
        self.wire = Wire(store, world)
        self.storage = CheckpointStorage(self.wire)
        self.run: Run | None = None
        self.dead = False
        self._world = world
        self._standing: dict[str, asyncio.Future[bool]] = {}

    # What turns ask of it.

    async def stand(self, executor_id: str) -> None:
        """Stand here until ``let_go``."""
        assert executor_id not in self._standing, f"{executor_id} has two turns at once"
        self._standing[executor_id] = waiting = asyncio.get_running_loop().create_future()
        try:
            fails = await waiting
        finally:
            del self._standing[executor_id]
        if fails:
            raise Broken(f"{executor_id} was told to fail")

    async def pay(self, key: str) -> int:
        """Pay, and give the number of this payment."""
        self._world.paid.append(key)
        return len(self._world.paid)

    # What happens to it.

    @property
    def turns(self) -> set[str]:
        """The executors whose turns stand here."""
        return set(self._standing)

    def let_go(self, executor_id: str, fails: bool = False) -> None:
        """Let a turn go on, or fail."""
        self._standing[executor_id].set_result(fails)

    def begin(self, call: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """Call something; the turns of runs that begin thereby stand at this desk."""
        context = copy_context()
        context.run(DESK.set, self)
        return asyncio.get_running_loop().create_task(call(), context=context)

    def die(self) -> None:
        """What a kill does: nothing arrives in the store any more, and nobody holds the run."""
        self.wire.cut()
        self.dead = True
        assert self.run is not None
        recorder_of(self.run).release_claim()

    async def end(self) -> None:
        """Clean up after the test."""
        self.wire.cut()
        if self.wire.holds:
            self.wire.let_through(broken=True)
        if self.run is not None:
            await self.run.cancel()
