"""Starting, watching, answering and cancelling runs over a real socket."""

import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.service import shop
from tests.service.conftest import Served

WAIT = {"Prefer": "wait=20"}


def start(client: httpx.Client, name: str, value: Any, **more: Any) -> dict[str, Any]:
    reply = client.post(f"/v1/workflows/{name}/runs", json={"input": value, **more}, headers=WAIT)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def frames(lines: Iterator[str]) -> Iterator[tuple[str | None, str, Any]]:
    """Give the events of a stream: id, name and data."""
    mark, name = None, "message"
    for line in lines:
        field, _, value = line.partition(": ")
        if field == "id":
            mark = value
        elif field == "event":
            name = value
        elif field == "data":
            yield mark, name, json.loads(value)
            mark, name = None, "message"


def test_a_run_is_started_and_waited_for(client: httpx.Client) -> None:
    run = start(client, "Greet", "kelp", run_id="greet-1")
    assert (run["run_id"], run["status"], run["outputs"]) == ("greet-1", "completed", ["hello kelp"])
    reply = client.post("/v1/workflows/Greet/runs", json={"input": "kelp"})
    assert reply.status_code == 202
    assert reply.headers["location"] == f"{client.base_url}/v1/runs/{reply.json()['run_id']}"
    later = client.get(reply.headers["location"], headers=WAIT)
    assert (later.status_code, later.json()["outputs"]) == (200, ["hello kelp"])
    assert later.headers["etag"] != reply.headers["etag"]
    assert later.headers["preference-applied"] == "wait=20"


def test_a_problem_is_over_when_the_run_went_on(client: httpx.Client) -> None:
    given = {"input": "nobody", "run_id": "mended"}
    assert client.post("/v1/workflows/Greet/runs", json=given, headers=WAIT).json()["status"] == "failed"
    assert "mended" in client.get("/v1/store").json()["problems"]
    shop.arrived.add("nobody")
    try:
        resumed = client.post("/v1/runs/mended/resume", headers=WAIT)
    finally:
        shop.arrived.clear()
    assert resumed.json()["status"] == "completed"
    assert "mended" not in client.get("/v1/store").json()["problems"]


def test_a_run_asks_and_is_answered(client: httpx.Client) -> None:
    run = start(client, "Refunds", {"customer": "Ada", "amount": 5})
    (request,) = run["requests"]
    assert (run["status"], run["waiting_for"], request["data"]["customer"]) == ("waiting", ["answers"], "Ada")
    assert request["response_schema"]["properties"]["approved"] == {"type": "boolean"}
    path = f"/v1/runs/{run['run_id']}/responses"
    wrong = client.post(path, json={"responses": {request["request_id"]: {"approved": "perhaps"}}})
    assert (wrong.status_code, wrong.json()["type"]) == (422, "urn:holdfast:problem:InvalidResponse")
    right = client.post(
        path, json={"responses": {request["request_id"]: {"approved": True}}}, headers=WAIT
    ).json()
    assert (right["status"], right["outputs"]) == ("completed", ["Ada gets 5"])
    again = client.post(path, json={"responses": {request["request_id"]: {"approved": True}}})
    assert again.status_code == 409
    page = client.get(f"/v1/runs/{run['run_id']}/checkpoints").json()["checkpoints"]
    assert {one["by"] for one in page if one["cause"] in ("input", "response")} == {"admin"}


def test_a_failed_run_says_why(client: httpx.Client, served: Served) -> None:
    run = start(client, "Greet", "nobody")
    assert (run["status"], "nobody is there" in run["reason"], "greet" in run["traceback"]) == (
        "failed",
        True,
        True,
    )
    with served.client("read") as reader:
        assert reader.get(f"/v1/runs/{run['run_id']}").json()["traceback"] == ""
    resumed = client.post(f"/v1/runs/{run['run_id']}/resume", headers=WAIT)
    assert (resumed.status_code, resumed.json()["status"]) == (200, "failed")


def test_a_finished_run_goes_on_with_a_message(client: httpx.Client) -> None:
    run = start(client, "Greet", "kelp")
    path = f"/v1/runs/{run['run_id']}"
    sent = client.post(f"{path}/messages", json={"message": "wrack"}, headers=WAIT)
    assert (sent.status_code, sent.json()["outputs"]) == (200, ["hello wrack"])
    assert client.post(f"{path}/messages", json={"message": 5}).status_code == 422
    nobody = client.post(f"{path}/messages", json={"message": "x", "target_id": "nobody"})
    assert (nobody.status_code, "has no executor 'nobody'" in nobody.json()["detail"]) == (422, True)
    assert client.post(f"{path}/resume").status_code == 409


def test_a_run_is_cancelled(client: httpx.Client) -> None:
    begun = client.post("/v1/workflows/Wait/runs", json={"input": 60.0}).json()
    path = f"/v1/runs/{begun['run_id']}"
    cancelled = client.post(f"{path}/cancel", headers=WAIT).json()
    assert (cancelled["status"], cancelled["by"]) == ("cancelled", "admin")
    assert client.post(f"{path}/cancel", headers=WAIT).json()["status"] == "cancelled"


def test_a_stream_shows_durable_events_and_parts_of_outputs(client: httpx.Client) -> None:
    word = "kelp" * 10  # it takes a while to spell
    begun = client.post("/v1/workflows/Spell/runs", json={"input": word}).json()
    with client.stream("GET", f"/v1/runs/{begun['run_id']}/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        seen = list(frames(response.iter_lines()))
    names = [data.get("event", name) for _, name, data in seen]
    assert names[-2:] == ["WorkflowCompletedEvent", "end"]
    deltas = [data["data"] for _, _, data in seen if data.get("event") == "OutputDeltaEvent"]
    assert deltas
    assert word.endswith("".join(deltas))
    assert names.index("OutputDeltaEvent") < names.index("WorkflowOutputEvent")
    ids = [mark for mark, _, _ in seen if mark is not None]
    assert ids == sorted(set(ids), key=lambda mark: [int(part) for part in mark.split(".")])
    assert seen[-1][2] == {"run_id": begun["run_id"], "status": "completed"}


def test_a_stream_goes_on_behind_the_last_event(client: httpx.Client) -> None:
    run = start(client, "Refunds", {"customer": "Ada"})
    path = f"/v1/runs/{run['run_id']}"
    with client.stream("GET", f"{path}/events", params={"until": "rest"}) as response:
        first = [mark for mark, _, _ in frames(response.iter_lines()) if mark is not None]
    answer = {run["requests"][0]["request_id"]: {"approved": False, "remark": "late"}}
    client.post(f"{path}/responses", json={"responses": answer}, headers=WAIT)
    with client.stream("GET", f"{path}/events", headers={"Last-Event-ID": first[3]}) as response:
        rest = [mark for mark, _, _ in frames(response.iter_lines()) if mark is not None]
    with client.stream("GET", f"{path}/events") as response:
        whole = [mark for mark, _, _ in frames(response.iter_lines()) if mark is not None]
    assert first[:4] + rest == whole
    assert client.get(f"{path}/events", headers={"Last-Event-ID": whole[-1]}).status_code == 204
    listed = client.get(f"{path}/event-list", params={"limit": 1000}).json()["events"]
    assert [event["event_id"] for event in listed] == whole
    assert client.get(f"{path}/events", headers={"Last-Event-ID": "soon"}).status_code == 422


def test_many_watch_one_run(client: httpx.Client, serve: Callable[..., Served]) -> None:
    own = serve(max_streams=3)
    with own.client() as found:
        begun = found.post("/v1/workflows/Wait/runs", json={"input": 600.0}).json()
        url = f"/v1/runs/{begun['run_id']}/events"
        with (
            found.stream("GET", url) as one,
            found.stream("GET", url) as two,
            found.stream("GET", url) as three,
        ):
            refused = found.get(url)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
            found.post(f"/v1/runs/{begun['run_id']}/cancel")
            told = [[mark for mark, _, _ in frames(each.iter_lines())] for each in (one, two, three)]
        assert told[0] == told[1] == told[2]
        assert found.get(url, headers={"Last-Event-ID": str(told[0][-2])}).status_code == 204


def test_a_client_that_does_not_read_is_dropped_and_may_come_back(serve: Callable[..., Served]) -> None:
    own = serve(slow_client=2.0, max_streams=1)
    with own.client() as found:
        for _ in range(5):  # more than the buffers of two sockets hold
            order = {"input": "x" * 900_000, "run_id": "long", "if_exists": "continue"}
            found.post("/v1/workflows/Greet/runs", json=order, headers=WAIT)
        url = "/v1/runs/long/events"
        listed = found.get("/v1/runs/long/event-list", params={"limit": 1000}).json()["events"]
        with socket.socket() as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.connect(("127.0.0.1", int(own.url.rpartition(":")[2])))
            lines = [f"GET {url} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {own.tokens['read']}"]
            lazy.sendall("\r\n".join([*lines, "", ""]).encode())
            assert lazy.recv(12) == b"HTTP/1.1 200"
            seen: list[str] = []
            while not seen:  # until the only place is free, though the lazy one is still connected
                with found.stream("GET", url, params={"after": listed[0]["event_id"]}) as reply:
                    if reply.status_code == 200:
                        seen = [mark for mark, _, _ in frames(reply.iter_lines()) if mark is not None]
            assert seen == [event["event_id"] for event in listed[1:]]


def test_streams_show_that_they_live(serve: Callable[..., Served]) -> None:
    own = serve(keep_alive=0.05)
    with own.client() as found:
        begun = found.post(
            "/v1/workflows/Refunds/runs", json={"input": {"customer": "Ada"}}, headers=WAIT
        ).json()
        with found.stream("GET", f"/v1/runs/{begun['run_id']}/events") as response:
            alive = 0
            for line in response.iter_lines():
                alive += line == ": keep-alive"
                if alive == 3:
                    break


def test_waiting_ends_when_its_time_is_over(client: httpx.Client) -> None:
    reply = client.post("/v1/workflows/Wait/runs", json={"input": 60.0}, headers={"Prefer": "wait=0"})
    assert (reply.status_code, "preference-applied" in reply.headers) == (202, False)
    client.post(f"/v1/runs/{reply.json()['run_id']}/cancel")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/runs/nobody", 404),
        ("/v1/runs/" + "x" * 300, 422),
        ("/v1/runs/a%23b", 422),
        ("/v1/workflows/Nothing", 404),
        ("/v1/checkpoints/" + "0" * 64, 404),
        ("/v1/checkpoints/short", 422),
        ("/v1/nothing", 404),
        ("/v1/runs/%2e%2e", 404),
        ("/v1/runs?cursor=5", 422),
        ("/v1/runs?status=odd", 422),
        ("/v1/runs?created_after=2026-01-01T00:00:00", 422),
    ],
)
def test_what_is_not_there_is_a_problem(client: httpx.Client, path: str, status: int) -> None:
    reply = client.get(path)
    assert reply.status_code == status
    assert reply.headers["content-type"] == "application/problem+json"
    problem = reply.json()
    assert (problem["status"], set(problem)) == (status, {"type", "title", "status", "detail"})
    assert "storage." not in problem["detail"]
