"""Tells those who follow runs of changes, with one query for all of them, and at once for runs that are driven here."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import time_ns

from holdfast.checkpoint.events.events import OutputDeltaEvent
from holdfast.checkpoint.store import RunQuery, Store
from holdfast.errors import HoldfastError
from holdfast.runtime.run.run import Run

# Changes so old are looked at again: clocks of hosts differ, and commits become visible late.
_OVERLAP_MICROSECONDS = 2_000_000
_PAGE = 500
# Parts of outputs that wait for a client; later ones push out the first.
_MOST_DELTAS = 1_000

_logger = logging.getLogger("holdfast.server")


class Follower:
    """Waits for changes of one run, and gets the parts of outputs that its handlers stream."""

    def __init__(self, run_id: str, wants_deltas: bool) -> None:
        self.run_id = run_id
        self.wants_deltas = wants_deltas
        self.deltas: deque[OutputDeltaEvent] = deque(maxlen=_MOST_DELTAS)
        self._changed = asyncio.Event()

    def tell(self) -> None:
        """Let it look at the run again."""
        self._changed.set()

    async def wait(self, seconds: float) -> bool:
        """Wait until something may have changed, or the time is over; return False in that case."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return True


class ChangeFeed:
    """Looks for changed runs as long as someone follows one."""

    def __init__(self, store: Store, poll: float, find_run: Callable[[str], Run | None]) -> None:
        """``find_run`` gives the object of a run that is driven here."""
        self._store = store
        self._poll = poll
        self._find_run = find_run
        self._followers: dict[str, set[Follower]] = {}
        self._task: asyncio.Task[None] | None = None
        self._pumps: dict[str, asyncio.Task[None]] = {}
        self._seen: dict[str, tuple[int, int]] = {}

    @asynccontextmanager
    async def follow(self, run_id: str, wants_deltas: bool = False) -> AsyncIterator[Follower]:
        """Give a follower of a run."""
        follower = Follower(run_id, wants_deltas)
        self._followers.setdefault(run_id, set()).add(follower)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look(), name="holdfast changes")
        run = self._find_run(run_id)
        if run is not None:
            self.began(run)
        try:
            yield follower
        finally:
            others = self._followers[run_id]
            others.discard(follower)
            if not others:
                del self._followers[run_id]

    def began(self, run: Run) -> None:
        """Follow a run that is driven here, if anyone follows it."""
        if run.run_id in self._followers and run.run_id not in self._pumps:
            pump = asyncio.create_task(self._pass_on(run), name=f"holdfast changes of {run.run_id}")
            self._pumps[run.run_id] = pump
            pump.add_done_callback(lambda _: self._pumps.pop(run.run_id, None))

    def tell(self, run_id: str | None = None) -> None:
        """Let those who follow a run look at it, or all."""
        ids = list(self._followers) if run_id is None else [run_id]
        for known in ids:
            for follower in self._followers.get(known, ()):
                follower.tell()

    async def close(self) -> None:
        """Look no more."""
        tasks = [task for task in (self._task, *self._pumps.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _pass_on(self, run: Run) -> None:
        """Tell followers of each event of a run, and give them what its handlers stream."""
        try:
            async for event in run.watch_stream():
                followers = self._followers.get(run.run_id)
                if not followers:
                    return
                for follower in followers:
                    if isinstance(event, OutputDeltaEvent):
                        if not follower.wants_deltas:
                            continue
                        follower.deltas.append(event)
                    follower.tell()
        except Exception:  # the run failed, which the storage tells; this only passes events on
            pass
        finally:
            self.tell(run.run_id)

    async def _look(self) -> None:
        """Find runs that changed, again and again."""
        mark = time_ns() // 1_000 - _OVERLAP_MICROSECONDS
        while self._followers:
            try:
                mark = await self._look_since(mark)
            except HoldfastError as error:  # a store that cannot be read now may be later
                _logger.warning("looking for changed runs failed: %s", error)
            await asyncio.sleep(self._poll)
        self._seen.clear()

    async def _look_since(self, mark: int) -> int:
        """Tell of runs that changed since a time; return the time from which to look next."""
        query = RunQuery(limit=_PAGE, newest=True, updated_after=mark)
        newest, seen = mark, dict[str, tuple[int, int]]()
        while page := await self._store.runs(query):
            for head in page:
                newest = max(newest, head.updated)
                seen[head.run_id] = (head.token, head.updated)
                if self._seen.get(head.run_id) != seen[head.run_id]:
                    self.tell(head.run_id)
            if len(page) < _PAGE:
                break
            query = query._replace(after=query.position_of(page[-1]))
        self._seen = seen
        return max(mark, newest - _OVERLAP_MICROSECONDS)
