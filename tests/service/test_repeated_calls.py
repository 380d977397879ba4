"""Calls that are repeated with an idempotency key, also at another server, and calls on a run that has moved on."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.service.conftest import Served
from tests.service.test_runs import WAIT, start


@pytest.fixture
def servers(serve: Callable[..., Served]) -> tuple[Served, Served]:
    """Two servers on one store, which remember nothing of each other."""
    return serve(), serve()


def seq_of(client: httpx.Client, run_id: str) -> int:
    return int(client.get(f"/v1/runs/{run_id}").json()["seq"])


def named_starts(if_exists: str) -> tuple[Any, Any]:
    kept = {"run_id": f"named-{if_exists}", "if_exists": if_exists}
    return {"input": "kelp", **kept}, {"input": "wrack", **kept}


def dialect_calls(client: httpx.Client) -> list[tuple[str, str, Any, Any]]:
    """Each POST of the tutorial's routes, as ``calls`` has them."""
    asking = [
        start(client, "Refunds", {"customer": "Ada"}, run_id=f"asking-{number}")["requests"][0]["request_id"]
        for number in range(2)
    ]
    start(client, "Order", "kelp", run_id="talk-asking")
    start(client, "Greet", "kelp", run_id="talk-over")
    yes, no = {"approved": True}, {"approved": False}
    net_yes, net_no = ({"eventName": asking[0], "response": answer} for answer in (yes, no))

    def say(session: str | None, one: str, two: str) -> tuple[Any, Any]:
        kept = {"session_id": session} if session else {}
        return {"message": one, **kept}, {"message": two, **kept}

    agents = "/api/agents"
    return [
        ("net start", "/api/workflows/Greet/run?waitForResponse=true", "kelp", "wrack"),
        ("net start by id", "/api/workflows/Greet/run?runId=net&waitForResponse=true", "kelp", "wrack"),
        ("net response", "/api/workflows/Refunds/respond/asking-0", net_yes, net_no),
        ("python start", "/api/workflow/Greet/run?waitForResponse=true", "kelp", "wrack"),
        ("python response", f"/api/workflow/Refunds/respond/asking-1/{asking[1]}", yes, no),
        ("agent, new", f"{agents}/Greet/run", *say(None, "kelp", "wrack")),
        ("agent, named", f"{agents}/Greet/run", *say("talk-new", "kelp", "wrack")),
        ("agent, further", f"{agents}/Greet/run", *say("talk-over", "dulse", "wrack")),
        ("agent, answer", f"{agents}/Order/run", *say("talk-asking", "3", "4")),
    ]


def settle(client: httpx.Client) -> list[tuple[str, int, str]]:
    """Return where all runs stand as soon as none has anything to do."""
    while True:
        runs = client.get("/v1/runs", params={"limit": 1000}).json()["runs"]
        if all(run["status"] != "running" and run["wake_at"] is None for run in runs):
            return [(run["run_id"], run["seq"], run["status"]) for run in runs]


def calls(client: httpx.Client) -> list[tuple[str, str, Any, Any]]:
    """Each POST: its name, path, body, and another body."""
    waiting = start(client, "Refunds", {"customer": "Ada"}, run_id="waiting")
    start(client, "Greet", "kelp", run_id="over")
    start(client, "Greet", "nobody", run_id="failed")
    request_id = waiting["requests"][0]["request_id"]
    yes, no = ({"responses": {request_id: {"approved": flag}}} for flag in (True, False))
    place = waiting["checkpoint_id"]
    return [
        ("start", "/v1/workflows/Greet/runs", {"input": "kelp"}, {"input": "wrack"}),
        ("start by id", "/v1/workflows/Greet/runs", *named_starts("raise")),
        ("start that goes on", "/v1/workflows/Greet/runs", *named_starts("continue")),
        *dialect_calls(client),
        ("message", "/v1/runs/over/messages", {"message": "a"}, {"message": "b"}),
        ("fork", "/v1/runs/waiting/fork", {}, {"edits": {"state": [{"key": "a", "value": 1}]}}),
        ("tag", f"/v1/checkpoints/{place}/tags", {"add": ["a"]}, {"add": ["b"]}),
        ("response", "/v1/runs/waiting/responses", yes, no),
        ("resume", "/v1/runs/failed/resume", {}, {"checkpoint_id": place}),
        ("cancel", "/v1/runs/failed/cancel", {}, {"no": 1}),
    ]


def test_a_repeated_call_changes_nothing(servers: tuple[Served, Served]) -> None:
    with servers[0].client() as client, servers[1].client() as other:
        for name, path, body, another in calls(client):
            headers = {**WAIT, "Idempotency-Key": f"key of {name}"}
            first = client.post(path, json=body, headers=headers)
            assert first.is_success, (name, first.text)
            if answered := re.search(r"asking-\d", path):  # the tutorial's routes for answers cannot wait
                while client.get(f"/v1/runs/{answered[0]}").json()["status"] != "completed":
                    pass
            before = settle(client)
            again = client.post(path, json=body, headers=headers)
            assert (again.status_code, again.content) == (first.status_code, first.content), name
            assert client.post(path, json=another, headers=headers).status_code == 422, name
            assert settle(client) == before, name
            # At another server, which has only the store to go by; there resume alone would be tried again.
            if name == "resume":
                continue
            if name not in ("tag", "cancel", "agent, answer"):
                wrong = other.post(path, json=another, headers=headers)
                assert wrong.status_code == 422, (name, wrong.text)
            late = other.post(path, json=body, headers=headers)
            assert late.is_success, (name, late.text)
            assert settle(client) == before, name


def test_a_start_is_repeated_after_the_run_went_on(servers: tuple[Served, Served]) -> None:
    path, headers = "/v1/workflows/Greet/runs", {**WAIT, "Idempotency-Key": "early"}
    with servers[0].client() as client, servers[1].client() as other:
        run = client.post(path, json={"input": "kelp"}, headers=headers).json()
        client.post(f"/v1/runs/{run['run_id']}/messages", json={"message": "wrack"}, headers=WAIT)
        late = other.post(path, json={"input": "kelp"}, headers=headers)
        assert (late.status_code, late.json()["outputs"]) == (200, ["hello wrack"])
        assert other.post(path, json={"input": "wrack"}, headers=headers).status_code == 422


def test_of_many_calls_with_one_key_one_acts(servers: tuple[Served, Served]) -> None:
    def post(number: int) -> tuple[int, str]:
        with servers[number % 2].client() as client:
            headers = {"Idempotency-Key": "same", **WAIT}
            reply = client.post("/v1/workflows/Greet/runs", json={"input": "kelp"}, headers=headers)
            return reply.status_code, reply.json()["run_id"]

    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(post, range(16)))
    assert len(found) == 1
    with servers[0].client() as client:
        assert len(client.get("/v1/runs").json()["runs"]) == 1


def test_keys_belong_to_their_principals(client: httpx.Client, served: Served) -> None:
    with served.client("run") as runner:
        headers = {"Idempotency-Key": "mine", **WAIT}
        one = client.post("/v1/workflows/Greet/runs", json={"input": "a"}, headers=headers).json()
        two = runner.post("/v1/workflows/Greet/runs", json={"input": "b"}, headers=headers).json()
        assert (one["outputs"], two["outputs"]) == (["hello a"], ["hello b"])


def test_ids_that_are_taken(client: httpx.Client) -> None:
    path = "/v1/workflows/Greet/runs"
    start(client, "Greet", "kelp", run_id="taken")
    assert client.post(path, json={"input": "kelp", "run_id": "taken"}).status_code == 409
    attached = client.post(
        path, json={"input": "kelp", "run_id": "taken", "if_exists": "attach"}, headers=WAIT
    )
    assert attached.json()["outputs"] == ["hello kelp"]
    other = client.post(path, json={"input": "wrack", "run_id": "taken", "if_exists": "attach"})
    assert (other.status_code, other.json()["title"]) == (409, "Run exists")
    further = client.post(
        path, json={"input": "wrack", "run_id": "taken", "if_exists": "continue"}, headers=WAIT
    )
    assert (further.status_code, further.json()["outputs"]) == (200, ["hello wrack"])
    assert client.post(path, json={"input": "kelp", "if_exists": "attach"}).status_code == 422


def test_a_run_that_moved_on_is_not_changed(client: httpx.Client) -> None:
    run = start(client, "Refunds", {"customer": "Ada"})
    path = f"/v1/runs/{run['run_id']}"
    mark = client.get(path).headers["etag"]
    answer = {"responses": {run["requests"][0]["request_id"]: {"approved": True}}}
    for target, body in (("responses", answer), ("cancel", {}), ("messages", {"message": {"customer": "B"}})):
        stale = client.post(f"{path}/{target}", json=body, headers={"If-Match": '"old"'})
        assert (stale.status_code, stale.headers["etag"]) == (412, mark)
    assert (
        client.post(f"{path}/responses", json=answer, headers={"If-Match": mark, **WAIT}).status_code == 200
    )
    for target in ("fork", "resume"):
        assert client.post(f"{path}/{target}", json={}, headers={"If-Match": mark}).status_code == 412
