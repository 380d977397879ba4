"""The hosting tutorial's routes in both dialects, called with curl as the tutorial does."""

import json
import subprocess
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from tests.service import shop
from tests.service.conftest import PATIENCE, Served


class Reply(NamedTuple):
    status: int
    body: Any
    kind: str


def curl(
    served: Served, method: str, path: str, body: str | None = None, *headers: str, scope: str = "admin"
) -> Reply:
    url = path if path.startswith("http") else served.url + path
    given = [f"Authorization: Bearer {served.tokens[scope]}", *headers]
    command = ["curl", "-sS", "-X", method, url, "-w", "\n%{http_code} %{content_type}"]
    command += [part for header in given for part in ("-H", header)]
    if body is not None:
        command += ["--data-binary", body]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=PATIENCE, check=True)
    text, _, last = done.stdout.rpartition("\n")
    status, _, kind = last.partition(" ")
    return Reply(int(status), json.loads(text) if "json" in kind else text, kind)


REFUND = json.dumps({"customer": "Ada", "amount": 5})


def test_the_dialect_of_dotnet(served: Served) -> None:
    started = curl(served, "POST", "/api/workflows/Greet/run?runId=net-1", "kelp")
    assert started == (
        202,
        {"runId": "net-1", "message": "Workflow orchestration started for Greet."},
        "application/json",
    )
    waited = curl(
        served, "POST", "/api/workflows/Greet/run?runId=net-2", "kelp", "x-ms-wait-for-response: TRUE"
    )
    assert waited[:2] == (200, {"runId": "net-2", "workflowStatus": "Completed", "result": "hello kelp"})
    status = curl(served, "GET", "/api/workflows/Greet/status/net-2")
    assert status[:2] == (200, {"runId": "net-2", "status": "Completed", "waitingForInput": None})
    text = curl(served, "POST", "/api/workflows/Greet/run?waitForResponse=on", "kelp", "Accept: text/plain")
    assert (text.status, text.body, text.kind) == (200, "hello kelp", "text/plain; charset=utf-8")
    both = curl(
        served,
        "POST",
        "/api/workflows/Greet/run?waitForResponse=1",
        "kelp",
        "Accept: text/plain, application/json",
    )
    assert both.body["result"] == "hello kelp"
    failed = curl(served, "POST", "/api/workflows/Greet/run?waitForResponse=y&timeoutSeconds=20", "nobody")
    assert (failed.status, failed.body["workflowStatus"], failed.body["result"]) == (200, "Failed", None)
    assert "nobody is there" in failed.body["error"]


def test_a_person_answers_in_the_dialect_of_dotnet(served: Served) -> None:
    begun = curl(served, "POST", "/api/workflows/Refunds/run?runId=net-3&waitForResponse=true", REFUND)
    assert begun.status == 202  # it waits for someone, so there is no result
    status = curl(served, "GET", "/api/workflows/Refunds/status/net-3").body
    (asked,) = status["waitingForInput"]
    assert (status["status"], asked["input"]["customer"]) == ("Running", "Ada")
    path = "/api/workflows/Refunds/respond/net-3"
    wrong = curl(
        served, "POST", path, json.dumps({"eventName": asked["eventName"], "response": {"approved": 5}})
    )
    assert (wrong.status, wrong.body["status"], set(wrong.body)) == (400, 400, {"status", "error"})
    body = json.dumps({"eventName": asked["eventName"], "response": {"approved": True}})
    assert curl(served, "POST", path, body)[:2] == (
        202,
        {
            "message": "Response sent to workflow.",
            "runId": "net-3",
            "eventName": asked["eventName"],
            "validated": True,
        },
    )
    assert curl(served, "POST", path, body).status == 409
    assert curl(served, "POST", path, '{"eventName": "nothing", "response": 1}').status == 404
    assert curl(served, "POST", path, "[1]").status == 400


def test_the_dialect_of_python(served: Served) -> None:
    started = curl(served, "POST", "/api/workflow/Greet/run?runId=py-1", '"kelp"')
    here = f"{served.url}/api/workflow/Greet"
    assert started[:2] == (
        202,
        {
            "instanceId": "py-1",
            "statusQueryGetUri": f"{here}/status/py-1",
            "respondUri": f"{here}/respond/py-1/{{requestId}}",
            "message": "Workflow started",
        },
    )
    waited = curl(served, "POST", "/api/workflow/Greet/run?waitForResponse=true", "kelp")  # no JSON: a text
    assert (waited.status, set(waited.body)) == (200, {"instanceId", "runtimeStatus", "output"})
    assert (waited.body["runtimeStatus"], waited.body["output"]) == ("Completed", ["hello kelp"])
    status = curl(served, "GET", f"{here}/status/{waited.body['instanceId']}").body
    assert set(status) == {
        "instanceId", "runtimeStatus", "customStatus", "output", "error", "createdTime", "lastUpdatedTime",
    }  # fmt: skip
    assert (status["customStatus"], status["output"], status["error"]) == (None, ["hello kelp"], None)


def test_a_person_answers_in_the_dialect_of_python(served: Served) -> None:
    curl(served, "POST", "/api/workflow/Refunds/run?runId=py%202&waitForResponse=true", REFUND)
    status = curl(served, "GET", "/api/workflow/Refunds/status/py%202").body
    (asked,) = status["pendingHumanInputRequests"]
    assert (asked["sourceExecutor"], asked["requestType"], asked["responseType"]) == (
        "Approve",
        "Refund",
        "Decision",
    )
    assert asked["respondUrl"] == (
        f"{served.url}/api/workflow/Refunds/respond/py%202/{quote(asked['requestId'], safe='')}"
    )
    answered = curl(served, "POST", asked["respondUrl"], '{"approved": false, "remark": "late"}')
    message = "Response delivered successfully"
    assert answered[:2] == (200, {"message": message, "instanceId": "py 2", "requestId": asked["requestId"]})
    again = curl(served, "POST", asked["respondUrl"], '{"approved": true}')
    assert (again.status, set(again.body)) == (409, {"error"})


def test_ids_of_nested_requests_are_encoded(served: Served) -> None:
    begun = curl(served, "POST", "/api/workflow/Nested/run?waitForResponse=true", REFUND).body["instanceId"]
    (asked,) = curl(served, "GET", f"/api/workflow/Nested/status/{begun}").body["pendingHumanInputRequests"]
    assert "/" in asked["requestId"]
    assert "/" not in asked["respondUrl"].rpartition("%2F")[2]
    assert curl(served, "POST", asked["respondUrl"], '{"approved": true}').status == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/{}/Greet/run?waitForResponse=perhaps", 400),
        ("/api/{}/Greet/run?timeoutSeconds=0", 400),
        ("/api/{}/Greet/run?timeoutSeconds=201", 400),
        ("/api/{}/Greet/run?timeoutSeconds=soon", 400),
        ("/api/{}/Greet/run?runId=", 400),
        ("/api/{}/Greet/run?runId=%40a", 400),
        ("/api/{}/Greet/run?runId=a%2Fb", 400),
        ("/api/{}/Greet/run?runId=a%5Cb", 400),
        ("/api/{}/Greet/run?runId=a%0Ab", 400),
        (f"/api/{{}}/Greet/run?runId={'x' * 101}", 400),
        ("/api/{}/Nothing/run", 404),
    ],
)
@pytest.mark.parametrize("dialect", ["workflow", "workflows"])
def test_calls_that_are_refused(served: Served, dialect: str, path: str, status: int) -> None:
    reply = curl(served, "POST", path.format(dialect), "kelp")
    assert (reply.status, "error" in reply.body, "status" in reply.body) == (
        status,
        True,
        dialect == "workflows",
    )


def test_a_header_that_cannot_be_read_is_ignored(served: Served) -> None:
    path = "/api/workflow/Greet/run?waitForResponse=true"
    assert curl(served, "POST", path, "kelp", "x-ms-wait-for-response: perhaps").status == 200
    assert curl(served, "POST", path, "kelp", "x-ms-wait-for-response: no").status == 202


@pytest.mark.parametrize("dialect", ["workflow", "workflows"])
def test_a_run_of_another_workflow_is_not_there(served: Served, dialect: str) -> None:
    begun = curl(served, "POST", f"/api/{dialect}/Greet/run", "kelp").body
    run_id = begun.get("runId") or begun["instanceId"]
    assert curl(served, "GET", f"/api/{dialect}/Greet/status/{run_id}").status == 200
    assert curl(served, "GET", f"/api/{dialect}/Refunds/status/{run_id}").status == 404
    assert curl(served, "POST", f"/api/{dialect}/Greet/run?runId={run_id}", "wrack").status == 409
    assert curl(served, "POST", f"/api/{dialect}/Greet/run", "kelp", scope="read").status == 403


# -- agents -----------------------------------------------------------------------------------------


def test_a_workflow_is_talked_to_as_an_agent(served: Served) -> None:
    path, json_type = "/api/agents/Greet/run", "Content-Type: application/json"
    assert curl(served, "POST", path, "kelp", "Content-Type: text/plain")[:2] == (200, "hello kelp")
    for name in ("kelp", "dulse"):
        body = json.dumps({"message": name, "session_id": "talk-1"})
        reply = curl(served, "POST", path, body, json_type)
        assert reply.body == {
            "status": "success",
            "response": f"hello {name}",
            "message": name,
            "session_id": "talk-1",
        }
    later = curl(served, "POST", path, json.dumps({"message": "kelp", "wait_for_response": False}), json_type)
    assert (later.status, later.body["status"]) == (202, "accepted")
    failed = curl(served, "POST", path, "nobody")
    assert failed.status == 500
    assert "nobody is there" in failed.body["error"]


def test_an_agent_that_asks_replies_with_its_question(served: Served) -> None:
    def say(message: str) -> Reply:
        body = json.dumps({"message": message, "session_id": "talk-2"})
        return curl(served, "POST", "/api/agents/Order/run", body, "Content-Type: application/json")

    assert say("kelp").body["response"] == "How many of kelp?"
    assert say("many").status == 400
    assert say("3").body["response"] == "Really 3 of kelp?"
    assert say("Yes.").body["response"] == "3 of kelp are on their way"


def test_a_session_is_named_in_any_place(served: Served) -> None:
    path = "/api/agents/Greet/run"
    plain = "Content-Type: text/plain"
    header = curl(served, "POST", path, "kelp", plain, "x-ms-session-id: talk-3")
    query = curl(served, "POST", f"{path}?session_id=talk-3", "dulse", plain)
    untyped = curl(served, "POST", path, json.dumps({"message": "wrack", "session_id": "talk-3"}))
    assert (header.status, query.status) == (200, 200)
    assert (untyped.body["session_id"], untyped.body["response"]) == ("talk-3", "hello wrack")
    with served.client() as client:
        made = client.get("/v1/runs/talk-3/checkpoints").json()["checkpoints"]
    assert [one["cause"] for one in made].count("message") == 2


def test_the_name_of_a_session_comes_back_as_it_was(served: Served) -> None:
    """In a header it is escaped: also where it looks as if it was."""
    path, name = "/api/agents/Greet/run", "50%25off, käse"
    with served.client() as client:
        first = client.post(path, json={"message": "kelp", "session_id": name})
        told = first.headers["x-ms-session-id"]
        again = client.post(
            path, content="dulse", headers={"content-type": "text/plain", "x-ms-session-id": told}
        )
        assert (told, again.headers["x-ms-session-id"]) == ("50%2525off, k%C3%A4se",) * 2
        run = client.get(f"/v1/runs/{quote(name, safe='')}").json()
    assert run["run_id"] == name
    assert again.text == "hello dulse"


def test_the_reply_is_that_of_the_last_message(served: Served) -> None:
    """Also if messages before it wait, because the run failed with them."""

    def say(message: str) -> Reply:
        body = json.dumps({"message": message, "session_id": "talk-4"})
        return curl(served, "POST", "/api/agents/Greet/run", body, "Content-Type: application/json")

    assert [say("nobody").status, say("dulse").status] == [500, 500]
    shop.arrived.add("nobody")
    try:
        assert say("wrack").body["response"].endswith("hello wrack")
    finally:
        shop.arrived.clear()


@pytest.mark.parametrize(
    ("name", "body", "status"),
    [
        ("Nothing", {"message": "x"}, 404),
        ("Greet", {"message": " "}, 400),
        ("Greet", {"message": 5}, 400),
        ("Greet", ["x"], 400),
        ("Greet", {"message": "x", "session_id": 5}, 400),
        ("Greet", {"message": "x", "session_id": "a/../b\n"}, 400),
    ],
)
def test_wrong_messages_to_agents_are_refused(served: Served, name: str, body: Any, status: int) -> None:
    path = f"/api/agents/{name}/run"
    reply = curl(served, "POST", path, json.dumps(body), "Content-Type: application/json")
    assert (reply.status, set(reply.body)) == (status, {"error"})
