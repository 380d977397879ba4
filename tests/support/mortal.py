"""Processes that die at any of their steps, while the world outside lives on."""

import asyncio
import gc
import operator
import random
import sys
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

from holdfast import CheckpointStorage, Phase, Run, StorageError, Workflow, WorkflowEvent
from tests.support.durable import Wrapped
from tests.support.journals import RUN, keys_of
from tests.support.parts import (
    Commit,
    Depth,
    Durability,
    Letter,
    MemoryStore,
    RunId,
    read_header,
    read_records,
)
from tests.support.seeded_loop import SeededLoop

T = TypeVar("T")


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine gives that never waits, as those of a store in memory."""
    try:
        coroutine.send(None)
    except StopIteration as over:
        result: T = over.value
        return result
    coroutine.close()
    raise AssertionError("it waited")


# -- the world outside -----------------------------------------------------------------------------


class Turn(NamedTuple):
    """A turn that a process began or ended."""

    process: int
    superstep: int
    executor: str


class Call(NamedTuple):
    """An effect on the outside."""

    process: int
    superstep: int
    executor: str
    name: str
    key: str


class Sight(NamedTuple):
    """An event that a process showed to someone outside."""

    process: int
    event: WorkflowEvent


class Left(NamedTuple):
    """What the store held when a process was over."""

    process: int
    superstep: int
    """The superstep under way, or the one that came next."""
    turns: frozenset[str]
    effects: frozenset[tuple[str, str]]
    """The results that the journal has, by executor and name."""


class World:
    """All that outlives a process: the store, the effects, and who saw what."""

    message = 1
    """What the run is started with."""

    def __init__(self, seed: int, store: MemoryStore | None = None, durability: Durability = "sync") -> None:
        self.random = random.Random(seed)
        self.durability = durability
        self.store = store or MemoryStore()
        self.processes = 0
        self.began: list[Turn] = []
        self.ended: list[Turn] = []
        self.calls: list[Call] = []
        self.returned: set[Call] = set()
        """The effects that were over for their handlers: ``once`` had returned."""
        self.ends: list[Left] = []
        self.broken: str | None = None
        """The executor that fails."""
        self.flaky = 0.0
        """How often a commit of nothing but notes fails."""
        self.seen: list[Sight] = []
        """What watchers were shown."""
        self.in_flight = 0
        self.most_in_flight = 0
        """How many commits of a process were under way at the same time."""

    @property
    def process(self) -> int:
        """The process in which this is asked, from 1."""
        return _living.get()

    def begin(self) -> None:
        """Whoever calls this is another process from now on, with all that it starts."""
        self.processes += 1
        self.in_flight = 0
        _living.set(self.processes)

    async def pause(self) -> None:
        """Let others go first, for a moment or for some milliseconds."""
        for _ in range(self.random.randrange(3)):
            await asyncio.sleep(0)
        if self.random.random() < 0.4:
            await asyncio.sleep(self.random.random() * 0.008)

    async def effect(self, superstep: int, executor: str, name: str, key: str) -> str:
        """Do something that a repetition would do again."""
        await self.pause()
        self.calls.append(Call(self.process, superstep, executor, name, key))
        await self.pause()
        return f"{name} of {executor} in {superstep}"

    def returns(self, superstep: int, executor: str, name: str) -> None:
        """A handler goes on behind the effect: from now on it may rely on it."""
        mine = (self.process, superstep, executor, name)
        self.returned.update(call for call in self.calls if call[:4] == mine)

    def left(self, process: int) -> Left:
        """What the store holds when a process is over."""
        head = at_once(self.store.head(RunId(RUN)))
        if head is None:
            return Left(process, 1, frozenset(), frozenset())
        keys = keys_of(at_once(self.store.notes(RunId(RUN))))
        turns = frozenset(key[1] for key in keys if key[0] == "turn")
        effects = frozenset((key[1], key[2]) for key in keys if key[0] == "once")
        (record,) = at_once(read_records(self.store, RunId(RUN), head.seq, head.seq, Depth.HEADERS))
        header = read_header(record)
        return Left(process, header.superstep + (header.phase is Phase.END), turns, effects)


_living: ContextVar[int] = ContextVar("living")
worlds: list[World] = []
"""The world in which handlers act; they do not keep it in their fields."""


# -- processes that die ----------------------------------------------------------------------------


class Death(BaseException):
    """The process is gone: nothing of it is cleaned up."""


class MortalLoop(SeededLoop):
    """The event loop of a process to which something happens just before one of its steps: else it dies."""

    def __init__(self, seed: int, step: int | None) -> None:
        super().__init__(seed)
        self.steps = 0
        self.step = step
        self.happens: Callable[[], object] | None = None

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.is_closed():  # else these are tasks of a dead process, which are thrown away
            super().call_exception_handler(context)

    def _step(self) -> None:
        if self.steps == self.step:
            if self.happens is None:
                raise Death
            self.happens()
        self.steps += 1
        super()._step()


class Mortal(Wrapped):
    """A store as one process sees it: it takes its time, and is out of reach once the process is dead."""

    def __init__(self, world: World) -> None:
        super().__init__(world.store)
        self._world = world
        self.dead = False

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        world = self._world
        world.in_flight += 1
        world.most_in_flight = max(world.most_in_flight, world.in_flight)
        await world.pause()
        if self.dead:
            raise Death
        chance = 1.0 if commit.records or not commit.notes or not world.flaky else world.random.random()
        if chance < world.flaky / 2:
            world.in_flight -= 1
            raise StorageError("the disk failed before it wrote")
        waiting = await self.inner.commit(commit)
        await world.pause()
        world.in_flight -= 1
        if chance < world.flaky:
            raise StorageError("the disk failed after it wrote")
        return waiting


Go = Callable[[Run], Coroutine[Any, Any, T]]
"""What a process does with its run."""


class Process:
    """One life: it begins the run of the world, or takes it up with a newly made workflow."""

    def __init__(self, world: World, make: Callable[[], Workflow], seed: int, step: int | None) -> None:
        self.loop = MortalLoop(seed, step)
        self._world = world
        self._make = make
        self._store = Mortal(world)

    def live(self, go: Go[T]) -> T | None:
        """What comes of it; None if it died."""
        world, loop = self._world, self.loop
        worlds.append(world)
        try:
            result: T = loop.run_until_complete(self._main(go))
            loop.run_until_complete(_settled())
            left = asyncio.all_tasks(loop)
            assert not left, left
            assert not loop.errors, loop.errors
            return result
        except Death:
            _graves.append(asyncio.all_tasks(loop))
            return None
        finally:
            world.ends.append(world.left(world.processes))
            self._store.dead = True
            loop.close()
            worlds.pop()

    async def _main(self, go: Go[T]) -> T:
        world, storage = self._world, CheckpointStorage(self._store)
        world.begin()
        if at_once(world.store.head(RunId(RUN))) is None:
            return await go(await self._make().start(world.message, run_id=RUN, storage=storage))
        return await go(await self._make().resume(run_id=RUN, storage=storage))


async def _settled() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


_graves: list[set[asyncio.Task[Any]]] = []
"""What is left of processes that died. Were it thrown away while another one lives, its handlers would be closed
there, and what they do then would happen in the event loop of that process."""


def _collect() -> None:
    while gc.collect():  # what is closed may bring others to life, for once
        pass


def bury(least: int = 30) -> None:
    """Throw away what is left of dead processes; no event loop may be running.

    In a thread, which has no event loop: what handlers do when they are closed cannot be put off to any.
    """
    if len(_graves) >= least:
        _graves.clear()
        thread = threading.Thread(target=_collect)
        thread.start()
        thread.join()


@contextmanager
def silent_deaths() -> Iterator[None]:
    """What is left of processes that died is thrown away in ``bury`` only, and nobody wants to hear of its tasks."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    gc.collect()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
            bury(least=0)
    finally:
        gc.enable()
        sys.unraisablehook = hook


Counts = TypeVar("Counts", bound=tuple[int, ...])


def try_seeds(none: Counts, seeds: range, act: Callable[[int], Counts]) -> Counts:
    """Act with each seed; return the sums of what was counted, beginning with ``none``."""
    sums = none
    for seed in seeds:
        try:
            seen = act(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        finally:
            bury()
        sums = type(none)(*map(operator.add, sums, seen))
    return sums
