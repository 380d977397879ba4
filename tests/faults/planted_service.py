"""Bugs on purpose in a service: each campaign of it must find those that it is there for.

A process of a server plants one in itself before it serves anything; it is gone with the process.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from starlette.exceptions import HTTPException

from holdfast.server import event_stream, run_routes, service
from holdfast.server.event_stream import EventPage, EventPages, EventSource
from holdfast.server.service import RunOrder, Service
from holdfast.stores.sqlite.store import SqliteStore
from tests.support.parts import Commit, Expected, Letter


def planting(name: str) -> str:
    """Return the lines with which a process plants a bug in itself."""
    return f"from tests.faults.planted_service import BUGS; BUGS[{name!r}]()"


def replace(owner: object, name: str, value: object) -> None:
    """Give a class or module another part."""
    setattr(owner, name, value)


def plant_any_token() -> None:
    """Let the store take every commit of a run that is there, whoever took the run since."""
    commit = SqliteStore.commit

    async def take(self: SqliteStore, given: Commit) -> Sequence[Letter]:
        head = await self.head(given.head.run_id)
        if head is not None and given.expected is not None:
            given = given._replace(expected=Expected(head.checkpoint_id, head.token))
        return await commit(self, given)

    replace(SqliteStore, "commit", take)


def plant_gap() -> None:
    """Leave out the first event of each stream that goes on behind another one."""
    read = EventPages._read

    async def skip(self: EventPages, run_id: str, after: str | None) -> EventPage | None:
        page = await read(self, run_id, after)
        if page is None or after is None:
            return page
        return page._replace(frames=page.frames.partition(b"\n\n")[2])

    replace(EventPages, "_read", skip)


def plant_double() -> None:
    """Begin each stream with the last event that the client has seen."""
    frames = EventSource.frames

    async def repeat(
        self: EventSource, run: Any, after: str | None, *more: Any
    ) -> AsyncGenerator[bytes, None]:
        if after is not None:
            seen = [event for event in await self._storage.list_events(run.run_id) if event.event_id == after]
            yield b"".join(map(event_stream.frame_of, seen))
        async for frame in frames(self, run, after, *more):
            yield frame

    replace(EventSource, "frames", repeat)


def plant_new_ids() -> None:
    """Forget idempotency keys, and lose one reply of five, so that clients repeat what was done."""
    start = Service.start

    async def forget(self: Service, name: str, given: RunOrder) -> Any:
        started = await start(self, name, given)
        if random.random() < 0.2:
            raise HTTPException(503, "The reply is lost.")
        return started

    replace(service, "derived_run_id", lambda *_: secrets.token_hex(8))
    replace(Service, "start", forget)


def plant_leak() -> None:
    """Keep 100 MB a second at requests that change a run: as much if a busy machine serves few of them."""
    kept: list[bytes] = []
    last = time.monotonic()
    show: Any = vars(run_routes)["show_change"]

    async def keep(*given: Any, **more: Any) -> Any:
        nonlocal last
        now = time.monotonic()
        kept.append(b"x" * int(100_000_000 * min(now - last, 1.0)))  # written, so that it is resident
        last = now
        return await show(*given, **more)

    replace(run_routes, "show_change", keep)


BUGS = {
    "any-token": plant_any_token,
    "gap": plant_gap,
    "double": plant_double,
    "new-ids": plant_new_ids,
    "leak": plant_leak,
}
