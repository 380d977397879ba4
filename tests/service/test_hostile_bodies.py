"""Bodies, headers and values that are no proper text, or not what they seem: refused, or shown, and never a failure."""

import json
import logging
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.service.conftest import PATIENCE, Served
from tests.service.test_runs import WAIT, start

HALVES = {
    "raw bytes": b'{"input": {"customer": "\xed\xa0\x80"}}',
    "an escape": b'{"input": {"customer": "\\ud800"}}',
    "UTF-16": '{"input": {"customer": "\\ud800"}}'.encode("utf-16"),
    "UTF-16 without a mark": '{"input": {"customer": "x"}}'.encode("utf-16-le"),
    "UTF-32": '{"input": {"customer": "x"}}'.encode("utf-32-be"),
    "another alphabet": '{"input": {"customer": "käse"}}'.encode("latin-1"),
}


@pytest.mark.parametrize("body", HALVES.values(), ids=HALVES)
def test_what_is_no_text_is_refused_before_it_is_stored(client: httpx.Client, body: bytes) -> None:
    before = client.get("/v1/runs", params={"limit": 1000}).json()["runs"]
    reply = client.post("/v1/workflows/Refunds/runs", content=body, headers=WAIT)
    assert reply.status_code in (400, 422)
    fork = client.post("/v1/runs/none/fork", content=body.replace(b"input", b"edits"))
    assert fork.status_code in (400, 404, 422)
    assert client.get("/v1/runs", params={"limit": 1000}).json()["runs"] == before
    assert client.get("/v1/requests").status_code == 200


def test_an_answer_in_words_is_as_proper_as_any(client: httpx.Client) -> None:
    start(client, "Refunds", {"customer": "Ada"}, run_id="words")
    start(client, "Order", "kelp", run_id="count")
    plain = {"content-type": "text/plain"}
    for path, words in (
        ("/api/agents/Refunds/run?session_id=words", '{"approved": true, "remark": "\\ud800"}'),
        ("/api/agents/Order/run?session_id=count", "[" * 1_000),
        ("/api/agents/Order/run?session_id=count", "[" * 100_000),
    ):
        reply = client.post(path, content=words, headers=plain)
        assert (reply.status_code, reply.json()["error"][:22]) == (400, "The run asks for an an")
    assert client.get("/v1/requests").status_code == 200


def test_depth_is_counted_in_the_text_that_is_read(serve: Callable[..., Served]) -> None:
    nested = '{"input": {"a": "∰", "b": ' + "[" * 50 + "]" * 50 + "}}"
    with serve(max_depth=10).client() as client:
        for encoding in ("utf-8", "utf-16-le"):
            reply = client.post("/v1/workflows/Refunds/runs", content=nested.encode(encoding))
            assert reply.status_code in (400, 422), encoding
        assert client.get("/v1/runs").json()["runs"] == []


def test_half_characters_of_workflows_are_shown(client: httpx.Client) -> None:
    """A handler may well make them: this is the name of a file that is no UTF-8."""
    made = os.fsdecode(b"caf\xe9.txt")
    run = start(client, "Greet", "a file", run_id="half")
    assert run["outputs"] == [made]
    assert client.get("/v1/runs/half").json()["outputs"] == [made]
    for path in ("/v1/runs/half/event-list", "/v1/runs", f"/v1/checkpoints/{run['checkpoint_id']}"):
        assert client.get(path).status_code == 200, path
    for path in ("/api/workflow/Greet/run", "/api/workflows/Greet/run"):
        told = client.post(f"{path}?waitForResponse=true", content="a file")
        assert (told.status_code, made in json.dumps(told.json(), ensure_ascii=False)) == (200, True), path
    words = client.post("/api/agents/Greet/run", content="a file", headers={"content-type": "text/plain"})
    assert (words.status_code, words.text) == (200, "caf?.txt")


@pytest.fixture
def without_logs() -> Iterator[None]:
    """Reports of tests travel between processes as UTF-8, which cannot say half of a character."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("without_logs")
def test_a_failure_with_half_a_character_leaves_lists_alone(client: httpx.Client) -> None:
    reply = client.post("/v1/workflows/Greet/runs", json={"input": "no file", "run_id": "bad"}, headers=WAIT)
    assert (reply.status_code, reply.json()["status"]) == (200, "failed")
    for path in ("/v1/runs", "/v1/runs/bad", "/v1/runs/bad/event-list", "/api/workflow/Greet/status/bad"):
        assert client.get(path).status_code == 200, path


@pytest.mark.parametrize("place", ["9" * 5_000, "9" * 10, "-1", "x", "²"], ids=lambda place: place[:12])
def test_a_message_that_is_not_there_is_not_edited(client: httpx.Client, place: str) -> None:
    if client.get("/v1/runs/edited").status_code == 404:
        start(client, "Refunds", {"customer": "Ada"}, run_id="edited")
    reply = client.post("/v1/runs/edited/fork", json={"edits": {"messages": {place: 1}}})
    assert reply.status_code == 422


@pytest.mark.parametrize("run_id", [".", ".."])
def test_a_run_has_no_id_that_addresses_take_for_a_folder(client: httpx.Client, run_id: str) -> None:
    given: dict[str, Any] = {"input": "kelp", "run_id": run_id}
    assert client.post("/v1/workflows/Greet/runs", json=given).status_code == 422
    assert (
        client.post("/api/agents/Greet/run", json={"message": "x", "session_id": run_id}).status_code == 400
    )
    if client.get("/v1/runs/origin").status_code == 404:
        start(client, "Refunds", {"customer": "Ada"}, run_id="origin")
    assert client.post("/v1/runs/origin/fork", json={"run_id": run_id}).status_code == 422


def test_a_message_for_another_session_is_another_call(client: httpx.Client) -> None:
    def say(session: str) -> httpx.Response:
        headers = {"Idempotency-Key": "k1", "x-ms-session-id": session, "content-type": "text/plain"}
        return client.post("/api/agents/Greet/run", content="kelp", headers=headers)

    assert say("one").headers["x-ms-session-id"] == "one"
    assert say("two").status_code == 422
    assert say("one").text == "hello kelp"


def test_a_key_in_the_address_is_for_streams_alone(served: Served) -> None:
    with httpx.Client(base_url=served.url) as nobody:
        path = "/api/workflow/Greet/respond/run/events"
        reply = nobody.post(path, params={"access_token": served.tokens["admin"]}, json={})
        assert reply.status_code == 401


def test_two_names_for_a_service_are_none(serve: Callable[..., Served]) -> None:
    own = serve(allowed_hosts=("127.0.0.1",))
    address = own.url.removeprefix("http://").split(":")
    for names, status in ((("127.0.0.1",), b"200"), (("evil.example", "127.0.0.1"), b"421")):
        with socket.create_connection((address[0], int(address[1])), PATIENCE) as connection:
            hosts = "".join(f"Host: {name}\r\n" for name in names)
            head = f"GET /healthz HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n"
            connection.sendall(head.encode())
            assert connection.recv(100).split(b" ")[1] in (status, b"400" if len(names) > 1 else status)


def test_pages_of_other_origins_may_read_where_a_run_is(serve: Callable[..., Served]) -> None:
    with serve(cors_origins=("https://page.example",)).client() as client:
        told = client.get("/v1/runs", headers={"Origin": "https://page.example"}).headers
        assert {"ETag", "Location"} <= set(told["access-control-expose-headers"].split(", "))
