"""Lists, checkpoints, values, differences, trees and the store, over a real socket."""

from pathlib import Path
from typing import Any

import httpx

from tests.service.conftest import Served
from tests.service.test_runs import WAIT, start
from tests.support.durable_damage import SqliteDamage


def refund(client: httpx.Client, customer: str) -> dict[str, Any]:
    run = start(client, "Refunds", {"customer": customer, "amount": 7})
    answer = {run["requests"][0]["request_id"]: {"approved": True}}
    reply = client.post(f"/v1/runs/{run['run_id']}/responses", json={"responses": answer}, headers=WAIT)
    return dict(reply.json())


def checkpoints_of(client: httpx.Client, run_id: str) -> list[dict[str, Any]]:
    return list(client.get(f"/v1/runs/{run_id}/checkpoints", params={"limit": 1000}).json()["checkpoints"])


def test_lists_come_by_pages(client: httpx.Client) -> None:
    made = [start(client, "Greet", "kelp", run_id=f"page-{number}")["run_id"] for number in range(5)]
    for order, expected in (("newest", made[::-1]), ("oldest", made)):
        seen, cursor = [], None
        while True:
            params: dict[str, Any] = {"text": "page-", "order": order, "limit": 2} | (
                {"cursor": cursor} if cursor else {}
            )
            page = client.get("/v1/runs", params=params).json()
            seen += [run["run_id"] for run in page["runs"]]
            cursor = page["next"]
            if cursor is None:
                break
        assert seen == expected
    first = client.get("/v1/runs/page-0/checkpoints", params={"limit": 1}).json()
    second = client.get("/v1/runs/page-0/checkpoints", params={"limit": 1, "cursor": first["next"]}).json()
    assert [one["seq"] for one in first["checkpoints"] + second["checkpoints"]] == [1, 2]
    assert (
        client.get("/v1/runs", params={"workflow": "Greet", "status": "failed", "text": "page-"}).json()[
            "runs"
        ]
        == []
    )


def test_requests_of_all_runs_come_by_pages(client: httpx.Client) -> None:
    made = [start(client, "Refunds", {"customer": name})["run_id"] for name in ("Ada", "Bo", "Cy")]
    seen, cursor = [], None
    while True:
        page = client.get("/v1/requests", params={"limit": 1} | ({"cursor": cursor} if cursor else {})).json()
        seen += [request["run_id"] for request in page["requests"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert [run_id for run_id in seen if run_id in made] == made
    (one,) = client.get("/v1/requests", params={"run_id": made[1]}).json()["requests"]
    assert one["data"] == {"$type": "Refund", "customer": "Bo", "amount": 1}


def test_a_damaged_run_does_not_hide_the_others(tmp_path: Path) -> None:
    served = Served(tmp_path / "runs.db")
    served.start()
    with served.client() as client:
        for name in ("Ada", "Bo"):
            start(client, "Refunds", {"customer": name}, run_id=name)
    served.stop()
    SqliteDamage(tmp_path, "Ada").record(2, "header")
    served = Served(tmp_path / "runs.db")
    served.start()
    try:
        with served.client() as client:
            assert [one["run_id"] for one in client.get("/v1/requests").json()["requests"]] == ["Bo"]
            assert {one["run_id"] for one in client.get("/v1/runs").json()["runs"]} == {"Ada", "Bo"}
            assert client.get("/v1/requests", params={"run_id": "Ada"}).status_code == 503
    finally:
        served.stop()


def test_values_are_given_one_by_one_and_by_range(client: httpx.Client) -> None:
    run = start(client, "Refunds", {"customer": "Ada Lovelace"})
    place = f"/v1/checkpoints/{run['checkpoint_id']}"
    shown = client.get(place).json()
    assert shown["checkpoint"]["run_id"] == run["run_id"]
    parts = {(one["part"], one["name"]) for one in shown["parts"]}
    request_id = run["requests"][0]["request_id"]
    assert parts == {("state", "customer"), ("request", request_id)}
    state = {"part": "state", "name": "customer", "scope": "Case"}
    whole = client.get(f"{place}/values", params=state)
    assert (whole.json(), whole.headers["accept-ranges"]) == ("Ada Lovelace", "bytes")
    text = client.get(f"{place}/values", params=state, headers={"Accept": "text/plain", "Range": "bytes=4-"})
    assert (text.status_code, text.text, text.headers["content-range"]) == (206, "Lovelace", "bytes 4-11/12")
    tail = client.get(f"{place}/values", params=state, headers={"Accept": "text/plain", "Range": "bytes=-3"})
    assert tail.text == "ace"
    beyond = client.get(f"{place}/values", params=state, headers={"Range": "bytes=99-"})
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, "bytes */14")
    request = client.get(f"{place}/values", params={"part": "request", "name": request_id}).json()
    assert request["customer"] == "Ada Lovelace"
    for part, name in (
        ("state", "nothing"),
        ("output", "0"),
        ("message", "9"),
        ("executor", "x"),
        ("request", "x"),
    ):
        assert client.get(f"{place}/values", params={"part": part, "name": name}).status_code == 404


def test_outputs_and_messages_are_values(client: httpx.Client) -> None:
    run = refund(client, "Ada")
    last = f"/v1/checkpoints/{run['checkpoint_id']}/values"
    assert client.get(last, params={"part": "output", "name": "0"}).json() == "Ada gets 7"
    first = checkpoints_of(client, run["run_id"])[0]["checkpoint_id"]
    message = client.get(f"/v1/checkpoints/{first}/values", params={"part": "message", "name": "0"}).json()
    assert message == {"$type": "Refund", "customer": "Ada", "amount": 7}


def test_two_checkpoints_are_compared(client: httpx.Client) -> None:
    run = refund(client, "Ada")
    first, *_, last = (one["checkpoint_id"] for one in checkpoints_of(client, run["run_id"]))
    found = client.get("/v1/diff", params={"a": first, "b": last}).json()
    assert [one["new"]["value"] for one in found["outputs"]] == ["Ada gets 7"]
    text = client.get("/v1/diff", params={"a": first, "b": last}, headers={"Accept": "text/plain"}).text
    assert "Ada gets 7" in text


def test_a_fork_begins_with_edits_and_stands_in_the_tree(client: httpx.Client) -> None:
    run = refund(client, "Ada")
    path = f"/v1/runs/{run['run_id']}"
    asking = next(one for one in checkpoints_of(client, run["run_id"]) if one["request_count"])
    edits = {
        "state": [{"scope": "Case", "key": "customer", "value": "Bo"}],
        "responses": {"Approve.1.1": {"approved": False, "remark": "late"}},
    }
    body = {"checkpoint_id": asking["checkpoint_id"], "run_id": "forked", "edits": edits}
    forked = client.post(f"{path}/fork", json=body, headers=WAIT)
    assert (forked.status_code, forked.json()["outputs"]) == (200, ["Ada gets nothing: late"])
    place = f"/v1/checkpoints/{forked.json()['checkpoint_id']}/values"
    assert client.get(place, params={"part": "state", "scope": "Case", "name": "customer"}).json() == "Bo"
    whole = client.get("/v1/runs/forked/tree", params={"limit": 1000}).json()
    assert [one["run_id"] for one in whole["runs"]] == [run["run_id"], "forked"]
    seen, cursor = [], None
    while True:
        page = client.get(f"{path}/tree", params={"limit": 2} | ({"cursor": cursor} if cursor else {})).json()
        seen += page["checkpoints"]
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == whole["checkpoints"]
    assert "forked" in client.get(f"{path}/tree", headers={"Accept": "text/plain"}).text
    assert (
        client.post("/v1/runs/forked/fork", json={"checkpoint_id": asking["checkpoint_id"]}).status_code
        == 422
    )
    wrong = client.post(f"{path}/fork", json={"edits": {"messages": {"7": 1}}})
    assert wrong.status_code == 422


def test_messages_and_requests_are_edited_as_their_types(client: httpx.Client) -> None:
    run = refund(client, "Ada")
    first = checkpoints_of(client, run["run_id"])[0]["checkpoint_id"]
    body = {"checkpoint_id": first, "edits": {"messages": {"0": {"customer": "Cy"}}}}
    forked = client.post(f"/v1/runs/{run['run_id']}/fork", json=body, headers=WAIT).json()
    assert forked["requests"][0]["data"]["customer"] == "Cy"
    asking = next(one for one in checkpoints_of(client, run["run_id"]) if one["request_count"])
    other = {"Approve.1.1": {"customer": "Di", "amount": 3}}
    body = {"checkpoint_id": asking["checkpoint_id"], "edits": {"requests": other}}
    forked = client.post(f"/v1/runs/{run['run_id']}/fork", json=body, headers=WAIT).json()
    assert forked["requests"][0]["data"] == {"$type": "Refund", "customer": "Di", "amount": 3}
    dropped = client.post(
        f"/v1/runs/{run['run_id']}/fork",
        json={"checkpoint_id": first, "edits": {"drop_messages": [0]}},
        headers=WAIT,
    ).json()
    assert (dropped["status"], dropped["requests"]) == ("completed", [])


def test_a_run_goes_back_to_a_checkpoint(client: httpx.Client) -> None:
    run = refund(client, "Ada")
    asking = next(one for one in checkpoints_of(client, run["run_id"]) if one["request_count"])
    back = client.post(
        f"/v1/runs/{run['run_id']}/resume", json={"checkpoint_id": asking["checkpoint_id"]}, headers=WAIT
    ).json()
    assert (back["status"], back["waiting_for"], len(back["requests"])) == ("waiting", ["answers"], 1)
    assert back["restored_at"] is not None


def test_checkpoints_are_tagged(client: httpx.Client) -> None:
    run = start(client, "Greet", "kelp")
    path = f"/v1/checkpoints/{run['checkpoint_id']}/tags"
    tagged = client.post(path, json={"add": ["good", "a/b"]}).json()
    assert (tagged["tags"], tagged["tagged_by"]) == (["good", "a/b"], {"good": "admin", "a/b": "admin"})
    assert client.post(path, json={"remove": ["good"]}).json()["tags"] == ["a/b"]
    assert client.post(path, json={"add": [""]}).status_code == 422


def test_the_graph_is_shown(client: httpx.Client) -> None:
    names = [one["name"] for one in client.get("/v1/workflows").json()["workflows"]]
    assert names == ["Refunds", "Greet", "Spell", "Order", "Wait", "Nested"]
    assert client.get("/v1/workflows/Refunds/graph").json()["start"] == "Approve"
    drawn = client.get("/v1/workflows/Refunds/graph", params={"format": "mermaid"})
    assert (drawn.headers["content-type"], "flowchart" in drawn.text) == (
        "text/vnd.mermaid; charset=utf-8",
        True,
    )
    assert "digraph" in client.get("/v1/workflows/Refunds/graph", params={"format": "dot"}).text


def test_the_store_is_shown(client: httpx.Client) -> None:
    start(client, "Greet", "kelp")
    store = client.get("/v1/store", params={"sizes": True}).json()
    assert store["runs"]["completed"] > 0
    assert store["sizes"]["total"]["checkpoints"] > 0
    assert client.get("/v1/store").json()["sizes"] is None
