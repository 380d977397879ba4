"""Calls that are repeated with an idempotency key, also at another server, and calls on a run that has moved on."""

import asyncio
import hashlib
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from holdfast import SqliteCheckpointStorage
from holdfast.checkpoint.receipts import Receipt, use_up
from holdfast.ids import RunId
from holdfast.server.forms import ForkBody
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
            # At another server, which has only the store to go by.
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


def test_calls_are_repeated_after_the_run_went_on(servers: tuple[Served, Served]) -> None:
    """What others did since stays as it is, also for a client that says where it thought the run to be."""
    with servers[0].client() as client, servers[1].client() as other:
        run = start(client, "Refunds", {"customer": "Ada"}, run_id="asking")
        path, place = "/v1/runs/asking", f"/v1/checkpoints/{run['checkpoint_id']}/tags"
        headers = {"Idempotency-Key": "k", "If-Match": client.get(path).headers["etag"]}
        assert client.post(place, json={"add": ["a"]}, headers=headers).status_code == 200
        assert client.post(f"{path}/cancel", headers=headers).json()["status"] == "cancelled"
        message = {"message": {"customer": "Bob"}}
        client.post(f"{path}/messages", json=message, headers={**headers, "If-Match": "*", **WAIT})
        client.post(place, json={"remove": ["a"]})
        before = settle(client)
        assert other.post(place, json={"add": ["a"]}, headers=headers).json()["tags"] == []
        again = other.post(f"{path}/cancel", headers=headers)
        assert (again.status_code, again.json()["status"]) == (202, "waiting")
        assert other.post(f"{path}/messages", json=message, headers=headers).is_success
        assert other.post(f"{path}/resume", headers=headers).status_code == 412  # it never was
        assert settle(client) == before


def test_a_start_of_the_tutorial_is_repeated_alike(servers: tuple[Served, Served]) -> None:
    """Who did not wait is told that it started, also if it is over by now; how to wait is no part of the call."""
    with servers[0].client() as client, servers[1].client() as other:
        for dialect in ("workflow", "workflows"):
            path, headers = f"/api/{dialect}/Greet/run", {"Idempotency-Key": dialect}
            first = client.post(path, content="kelp", headers=headers)
            settle(client)
            late = other.post(path, content="kelp", headers=headers)
            assert (late.status_code, late.json()) == (202, first.json() | without_place(late.json()))
            waits = {"waitForResponse": "true", "timeoutSeconds": "20"}
            assert client.post(path, content="kelp", headers=headers, params=waits).status_code == 202


def without_place(reply: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a reply that name the server."""
    return {name: value for name, value in reply.items() if name.endswith("Uri")}


def test_a_cancelled_run_asks_nothing(client: httpx.Client) -> None:
    run = start(client, "Refunds", {"customer": "Ada"}, run_id="too-late")
    answers = {"responses": {run["requests"][0]["request_id"]: {"approved": True}}}
    client.post("/v1/runs/too-late/cancel")
    late = client.post("/v1/runs/too-late/responses", json=answers)
    assert (late.status_code, "resume it first" in late.json()["detail"]) == (409, True)
    assert client.post("/v1/runs/too-late/resume", headers=WAIT).json()["status"] == "waiting"
    paid = client.post("/v1/runs/too-late/responses", json=answers, headers=WAIT)
    assert paid.json()["outputs"] == ["Ada gets 1"]


def test_a_resume_is_repeated_once_the_run_is_over(servers: tuple[Served, Served]) -> None:
    with servers[0].client() as client, servers[1].client() as other:
        start(client, "Greet", "nobody", run_id="failed")
        path, headers = "/v1/runs/failed", {"Idempotency-Key": "k", **WAIT}
        first = client.post(f"{path}/resume", headers=headers)
        assert (first.status_code, first.json()["status"]) == (200, "failed")
        client.post(f"{path}/messages", json={"message": "kelp"}, headers=WAIT)
        before = settle(client)
        late = other.post(f"{path}/resume", headers=headers)
        assert (late.status_code, late.json()["status"]) == (200, client.get(path).json()["status"])
        assert settle(client) == before


async def delete(served: Served, checkpoint_id: str) -> None:
    async with SqliteCheckpointStorage(served.path) as storage:
        await storage.delete(checkpoint_id)


@pytest.mark.parametrize("named", [{}, {"run_id": "forked"}])
def test_a_fork_is_repeated_after_the_run_went_on(
    servers: tuple[Served, Served], named: dict[str, str]
) -> None:
    """Also if the checkpoint is gone by then; another body makes no second fork, whatever id it names."""
    with servers[0].client() as client, servers[1].client() as other:
        run = start(client, "Refunds", {"customer": "Ada"}, run_id="asking")
        place, path = run["checkpoint_id"], "/v1/runs/asking/fork"
        headers = {"Idempotency-Key": "k", "If-Match": client.get("/v1/runs/asking").headers["etag"]}
        body = {"checkpoint_id": place, **named}
        first = client.post(path, json=body, headers=headers)
        answer = {"responses": {run["requests"][0]["request_id"]: {"approved": True}}}
        client.post("/v1/runs/asking/responses", json=answer, headers=WAIT)
        asyncio.run(delete(servers[0], place))
        before = settle(client)
        again = other.post(path, json=body, headers=headers)
        assert (again.status_code, again.json()["run_id"]) == (202, first.json()["run_id"])
        another = other.post(path, json={**body, "run_id": "another"}, headers=headers)
        assert another.status_code == 422
        assert settle(client) == before
        taken = {"checkpoint_id": client.get("/v1/runs/asking").json()["checkpoint_id"], "run_id": "asking"}
        for _ in range(2):
            refused = other.post(path, json=taken, headers={"Idempotency-Key": "k2"})
            assert (refused.status_code, refused.json()["title"]) == (409, "Run exists")


def test_a_fork_of_another_call_is_not_passed_off_as_its_own(servers: tuple[Served, Served]) -> None:
    with servers[0].client() as client, servers[1].client() as other:
        start(client, "Refunds", {"customer": "Ada"}, run_id="asked")
        path, body = "/v1/runs/asked/fork", {"run_id": "twin"}
        assert client.post(path, json=body, headers={"Idempotency-Key": "k1"}).status_code == 202
        theirs = {**body, "edits": {"state": [{"key": "note", "value": "walnut"}]}}
        for caller in (client, other, client):
            refused = caller.post(path, json=theirs, headers={"Idempotency-Key": "k2"})
            assert (refused.status_code, refused.json()["title"]) == (409, "Run exists")
        assert other.post(path, json=body, headers={"Idempotency-Key": "k1"}).status_code == 202
        of_fork = other.post(
            "/v1/runs/twin/fork", json={"run_id": "third"}, headers={"Idempotency-Key": "k1"}
        )
        assert (of_fork.status_code, of_fork.json()["run_id"]) == (202, "third")


def test_a_fork_that_was_never_stored_looks_where_the_run_stands(served: Served) -> None:
    """The server was killed once the key was used up, and the run went on."""
    with served.client() as client:
        run = start(client, "Refunds", {"customer": "Ada"}, run_id="moved")
        headers = {"Idempotency-Key": "k", "If-Match": client.get("/v1/runs/moved").headers["etag"]}
        key = "http " + hashlib.sha256(b"admin\nk").hexdigest()

        async def use_key_up() -> None:
            receipt = Receipt.of("fork", key, ForkBody.model_validate({}).model_dump_json())
            async with SqliteCheckpointStorage(served.path) as storage:
                await use_up(storage.store, RunId("moved"), receipt)

        asyncio.run(use_key_up())
        answer = {"responses": {run["requests"][0]["request_id"]: {"approved": True}}}
        client.post("/v1/runs/moved/responses", json=answer, headers=WAIT)
        assert client.post("/v1/runs/moved/fork", json={}, headers=headers).status_code == 412
        del headers["If-Match"]
        assert client.post("/v1/runs/moved/fork", json={}, headers=headers).status_code == 202
        assert client.post("/v1/runs/moved/fork", json={"run_id": "x"}, headers=headers).status_code == 422


def test_of_many_who_say_the_same_one_is_heard(servers: tuple[Served, Served]) -> None:
    """Whoever comes when the question is answered already must not say it as a message."""

    def say(number: int) -> str:
        with servers[number % 2].client() as client:
            body = {"message": "3", "session_id": "talk"}
            reply = client.post("/api/agents/Order/run", json=body, headers={"Idempotency-Key": "same"})
            return reply.raise_for_status().json()["response"]

    with servers[0].client() as client:
        start(client, "Order", "kelp", run_id="talk")
        with ThreadPoolExecutor(8) as pool:
            heard = set(pool.map(say, range(16)))
        made = client.get("/v1/runs/talk/checkpoints", params={"limit": 100}).json()["checkpoints"]
    assert len(heard) == 1
    assert [one["cause"] for one in made].count("response") == 1
    assert "message" not in {one["cause"] for one in made}


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
