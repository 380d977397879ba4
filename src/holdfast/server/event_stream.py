"""Streams of server-sent events: durable ones from the store, and parts of outputs of runs that are driven here."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from time import monotonic
from typing import Literal, NamedTuple, TypeAlias

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.checkpoint.checkpoint_info import Phase, microseconds
from holdfast.checkpoint.events.events import SuperStepCompletedEvent, WorkflowEvent
from holdfast.checkpoint.run_info import RunInfo
from holdfast.checkpoint.storage import CheckpointStorage
from holdfast.server.change_feed import ChangeFeed, Follower
from holdfast.server.options import ServerOptions

Until: TypeAlias = Literal["over", "rest", "never"]
"""Says when a stream ends: once the run is over, once it rests or waits, or never."""

_PAGE = 200
_MOST_PAGES = 128
_PIECE = 65_536
_RETRY_MILLISECONDS = 2_000
_KEEP_ALIVE = b": keep-alive\n\n"
_GOING = b": the server stops; come back with Last-Event-ID\n\n"


class EventPage(NamedTuple):
    """Some events of a run as they are sent, the id of the last one, and the last superstep that they complete."""

    frames: bytes
    last: str | None
    superstep: int


class EventPages:
    """Reads events of runs, once for all who ask for the same ones at the same time."""

    def __init__(self, storage: CheckpointStorage) -> None:
        self._storage = storage
        self._pages: OrderedDict[tuple[str, int, str | None], asyncio.Task[EventPage | None]] = OrderedDict()

    async def read(self, run: RunInfo, after: str | None) -> EventPage | None:
        """Return the events of a run behind one, as far as they are there; None if there are none yet."""
        key = (run.run_id, microseconds(run.created), after)
        task = self._pages.get(key)
        if task is None:
            task = self._pages[key] = asyncio.create_task(self._read(run.run_id, after))
            task.add_done_callback(lambda done: self._keep(key, done))
        return await asyncio.shield(task)

    def _keep(self, key: tuple[str, int, str | None], task: asyncio.Task[EventPage | None]) -> None:
        """Keep a page that has events: these never change; one without may have some the next time."""
        if task.cancelled() or task.exception() is not None or task.result() is None:
            self._pages.pop(key, None)
        while len(self._pages) > _MOST_PAGES:
            self._pages.popitem(last=False)

    async def _read(self, run_id: str, after: str | None) -> EventPage | None:
        events = await self._storage.list_events(run_id, after, _PAGE)
        if not events:
            return None
        last = next((event.event_id for event in reversed(events) if event.event_id is not None), after)
        done = [event.superstep for event in events if isinstance(event, SuperStepCompletedEvent)]
        return EventPage(b"".join(map(frame_of, events)), last, max(done, default=0))


def frame_of(event: WorkflowEvent) -> bytes:
    """Return an event as a browser's EventSource takes it; one that comes from no storage has no id.

    >>> from holdfast import WorkflowOutputEvent
    >>> frame_of(WorkflowOutputEvent("hello", "greet")).decode().partition(",")[0]
    'data: {"event": "WorkflowOutputEvent"'
    """
    mark = "" if event.event_id is None else f"id: {event.event_id}\n"
    return f"{mark}data: {json.dumps(event.to_dict())}\n\n".encode()


def end_frame(run: RunInfo) -> bytes:
    """Return the last event of a stream, which says how the run stands."""
    return f"event: end\ndata: {json.dumps({'run_id': run.run_id, 'status': run.status.value})}\n\n".encode()


class EventSource:
    """Gives the events of one run to one client, from behind an event on."""

    def __init__(
        self, storage: CheckpointStorage, changes: ChangeFeed, pages: EventPages, options: ServerOptions
    ):
        self._storage = storage
        self._changes = changes
        self._pages = pages
        self._keep_alive = options.keep_alive

    async def frames(
        self, run: RunInfo, after: str | None, until: Until, closing: asyncio.Event
    ) -> AsyncGenerator[bytes, None]:
        """Give frames until the stream ends: the run is where it should be, or the server stops."""
        yield f"retry: {_RETRY_MILLISECONDS}\n\n".encode()
        told, quiet_since = await self._last_superstep(run), monotonic()
        async with self._changes.follow(run.run_id, wants_deltas=True) as follower:
            while not closing.is_set():
                deltas = _take_deltas(follower)
                if (page := await self._pages.read(run, after)) is not None:
                    after, told = page.last, max(told, page.superstep)
                    yield page.frames
                # What a commit told already needs no parts any more.
                fresh = [delta for delta in deltas if delta.superstep > told]
                if fresh:
                    yield b"".join(map(frame_of, fresh))
                if page is not None or fresh:
                    quiet_since = monotonic()
                    continue
                now = await self._storage.get_run(run.run_id)
                if is_there(now, until) and await self._pages.read(run, after) is None:
                    yield end_frame(now)
                    return
                await follower.wait(max(0.01, quiet_since + self._keep_alive - monotonic()))
                if monotonic() - quiet_since >= self._keep_alive:
                    quiet_since = monotonic()
                    yield _KEEP_ALIVE
        yield _GOING

    async def _last_superstep(self, run: RunInfo) -> int:
        """Return the last superstep that a run has completed."""
        info = await self._storage.load(run.checkpoint_id, values=False)
        return info.superstep if info.phase is Phase.END else info.superstep - 1


def _take_deltas(follower: Follower) -> Sequence[WorkflowEvent]:
    taken = list(follower.deltas)
    follower.deltas.clear()
    return taken


def is_there(run: RunInfo, until: Until) -> bool:
    """Return True if a run stands where a stream should end."""
    if until == "never":
        return False
    return run.status.ended or (until == "rest" and is_settled(run))


def is_settled(run: RunInfo) -> bool:
    """Return True if a run is over, or goes on only with an answer or a message from outside."""
    if run.status.ended:
        return True
    return bool({"answers", "messages"} & set(run.waiting_for))


class EventStream(Response):
    """Sends frames to a client until they end, the client leaves, or it is too slow to read."""

    media_type = "text/event-stream"

    def __init__(
        self, frames: AsyncGenerator[bytes, None], slow_client: float, release: Callable[[], None]
    ) -> None:
        """``release`` is called once when the stream is over."""
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._frames = frames
        self._slow_client = slow_client
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writing = asyncio.create_task(self._write(send))
        leaving = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait([writing, leaving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (writing, leaving):
                task.cancel()
            await asyncio.gather(writing, leaving, return_exceptions=True)
            self._release()
        if not writing.cancelled() and (error := writing.exception()) is not None:
            raise error

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async with aclosing(self._frames) as frames:
                async for frame in frames:
                    # In pieces: a server waits before it takes more, and keeps what it took until a client reads it.
                    for start in range(0, len(frame), _PIECE):
                        piece = frame[start : start + _PIECE]
                        async with asyncio.timeout(self._slow_client):
                            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            return  # the server closes the connection; the client comes back with Last-Event-ID


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
