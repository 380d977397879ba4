"""Parts of the service alone: the memory of repeated calls, and streams whose clients are slow or leave."""

import asyncio
from collections.abc import AsyncGenerator

import httpx
import pytest
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from holdfast import InMemoryCheckpointStorage
from holdfast.server import ServerOptions, calls, create_app, run_app
from holdfast.server.calls import CallMemory
from holdfast.server.event_stream import EventStream
from tests.service.conftest import PATIENCE
from tests.service.shop import all_workflows
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


async def test_room_is_given_back_whatever_becomes_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies that expire, and calls that are pushed out while they are under way, take none."""
    monkeypatch.setattr(calls, "_MOST_REMEMBERED", 1)
    monkeypatch.setattr(calls, "_REMEMBERED_SECONDS", -1.0)
    monkeypatch.setattr(calls, "_MOST_BYTES", 1_000)
    memory, gate = CallMemory(), asyncio.Event()

    async def act() -> Response:
        await gate.wait()
        return Response(b"x" * 100)

    under_way = [asyncio.ensure_future(memory.once((str(number),), b"d", act)) for number in range(5)]
    await asyncio.sleep(0)
    gate.set()
    assert [len((await one).body) for one in under_way] == [100] * 5
    for _ in range(20):
        assert len((await memory.once(("again",), b"d", act)).body) == 100
    assert memory._size == sum(one.size for one in memory._calls.values()) == 100


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


async def test_a_call_whose_first_client_left_is_made_by_the_next() -> None:
    memory, tries = CallMemory(), []

    async def act() -> Response:
        tries.append(1)
        if len(tries) == 1:
            await asyncio.Event().wait()
        return Response(b"done")

    calls_of_key = [asyncio.ensure_future(memory.once(("k",), b"d", act)) for _ in range(3)]
    await asyncio.sleep(0)
    calls_of_key[1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await calls_of_key[1]
    assert not calls_of_key[2].done()
    calls_of_key[0].cancel()
    assert (await soon(calls_of_key[2])).body == b"done"
    assert len(tries) == 2


async def test_a_client_that_leaves_gives_its_place_to_another() -> None:
    app = create_app(all_workflows(), InMemoryCheckpointStorage(), options=ServerOptions(max_waiters=1))
    gone = asyncio.Event()
    requests: list[Message] = [{"type": "http.request", "body": b'{"input": 600.0}', "more_body": False}]
    sent: list[Message] = []

    async def receive() -> Message:
        if requests:
            return requests.pop(0)
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/workflows/Wait/runs",
        "query_string": b"",
        "headers": [(b"prefer", b"wait=200"), (b"content-type", b"application/json")],
    }
    async with run_app(app):
        waiting = asyncio.ensure_future(app(scope, receive, send))
        async with asyncio.timeout(PATIENCE):
            while app.state.service._waiters == 0:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
        assert not sent
        gone.set()
        await soon(waiting)
        assert app.state.service._waiters == 0
        for run in await app.state.service.storage.list_runs():
            await app.state.service.storage.cancel(run.run_id)


@pytest.mark.parametrize("key", [None, "k"])
async def test_who_has_a_key_may_come_back_for_the_reply(
    key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is remembered, so the wait goes on though the client left."""
    asked: list[bool] = []

    async def wait(*given: object) -> None:
        asked.append(given[-1] is not None)

    app = create_app(all_workflows(), InMemoryCheckpointStorage())
    monkeypatch.setattr(app.state.service, "wait", wait)
    headers = {"Prefer": "wait=20"} | ({} if key is None else {"Idempotency-Key": key})
    transport = httpx.ASGITransport(app)
    async with run_app(app), httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        reply = await client.post("/v1/workflows/Greet/runs", json={"input": "kelp"}, headers=headers)
    assert (reply.status_code, asked) == (202, [key is None])


async def test_two_that_are_cut_off_at_once_make_nothing() -> None:
    memory, tries = CallMemory(), []

    async def act() -> Response:
        tries.append(1)
        await asyncio.Event().wait()
        return Response(b"done")

    both = [asyncio.ensure_future(memory.once(("k",), b"d", act)) for _ in range(2)]
    await asyncio.sleep(0)
    for one in both:
        one.cancel()
    for one in both:
        with pytest.raises(asyncio.CancelledError):
            await soon(one)
    assert tries == [1]


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


async def test_a_client_that_leaves_within_a_body_is_no_failure() -> None:
    parts: list[Message] = [
        {"type": "http.request", "body": b"{", "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> Message:
        return parts.pop(0)

    request = Request({"type": "http", "method": "POST", "headers": []}, receive)
    with pytest.raises(HTTPException, match="The client left before the end of the body") as caught:
        await calls.read_body(request, 1_000)
    assert caught.value.status_code == 400


async def test_links_have_the_path_at_which_the_service_is_mounted() -> None:
    flows, outer = create_app(all_workflows(), InMemoryCheckpointStorage()), FastAPI()
    outer.mount("/deep/flows", flows)
    transport = httpx.ASGITransport(outer)
    async with run_app(flows), httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        made = await client.post("/deep/flows/v1/workflows/Greet/runs", json={"input": "kelp"})
        assert made.headers["location"].startswith("http://shop/deep/flows/v1/runs/")
        assert (await client.get(made.headers["location"])).status_code == 200
        document = (await client.get("/deep/flows/openapi.json")).json()
        assert document["servers"] == [{"url": "/deep/flows"}]
        told = (await client.post("/deep/flows/api/workflow/Greet/run", content="kelp")).json()
        assert (await client.get(told["statusQueryGetUri"])).status_code == 200
