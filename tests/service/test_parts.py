"""Parts of the service alone: the memory of repeated calls, and streams whose clients are slow or leave."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Message

from holdfast.server import calls
from holdfast.server.calls import CallMemory
from holdfast.server.event_stream import EventStream
from tests.support.runs import soon


async def test_replies_are_forgotten_when_they_take_too_much_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_MOST_BYTES", 250)
    memory, acted = CallMemory(), []

    async def call(name: str) -> bytes:
        async def act() -> Response:
            acted.append(name)
            return Response(b"x" * 100)

        return bytes((await memory.once((name,), b"digest", act)).body)

    for name in ("a", "b", "b", "c", "c"):
        assert len(await call(name)) == 100
    assert acted == ["a", "b", "c"]
    await call("a")  # pushed out by c
    assert acted == ["a", "b", "c", "a"]


async def test_a_call_that_failed_may_be_tried_again() -> None:
    memory, tries = CallMemory(), []
    gate = asyncio.Event()

    async def act() -> Response:
        tries.append(1)
        await gate.wait()
        if len(tries) == 1:
            raise HTTPException(409, "taken")
        return Response(b"done")

    first = asyncio.ensure_future(memory.once(("k",), b"d", act))
    second = asyncio.ensure_future(memory.once(("k",), b"d", act))
    await asyncio.sleep(0)
    with pytest.raises(HTTPException, match="another request"):
        await memory.once(("k",), b"other", act)
    gate.set()
    for one in (first, second):
        with pytest.raises(HTTPException, match="taken"):
            await one
    assert (await memory.once(("k",), b"d", act)).body == b"done"
    assert len(tries) == 2


async def test_a_client_that_does_not_read_is_dropped() -> None:
    closed, released = [], []

    async def frames() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b": more\n\n"
        finally:
            closed.append(True)

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()  # the buffers of the connection are full

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError("it is never set")

    stream = EventStream(frames(), 0.01, lambda: released.append(True))
    await soon(stream({"type": "http"}, receive, send))
    assert (closed, released) == ([True], [True])


async def test_a_stream_ends_when_its_client_leaves() -> None:
    released = []

    async def frames() -> AsyncGenerator[bytes, None]:
        yield b": one\n\n"
        await asyncio.Event().wait()

    async def send(_: Message) -> None: ...

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    await soon(EventStream(frames(), 60, lambda: released.append(True))({"type": "http"}, receive, send))
    assert released == [True]
