"""A browser's ``EventSource``: a page of another origin follows a run over a server that is killed."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.server import AccessKeys
from tests.service.browser import BrowserPage
from tests.service.processes import ServerProcess

FOLLOW = """
const source = new EventSource(%(stream)s);
source.onopen = () => tell({kind: "open"});
source.onerror = () => tell({kind: "error", state: source.readyState});
source.onmessage = message => {
  const event = JSON.parse(message.data);
  tell({kind: "event", id: message.lastEventId, name: event.event, request: event.request || null});
};
source.addEventListener("end", message => {
  source.close();
  tell({kind: "end", data: JSON.parse(message.data)});
});
fetch(%(cancel)s, {method: "POST", headers: {Authorization: "Bearer " + %(token)s}})
  .then(reply => tell({kind: "refused", status: reply.status}), error => tell({kind: "refused", status: 0}));
"""


@pytest.fixture
def page(tmp_path: Path) -> Iterator[BrowserPage]:
    one = BrowserPage(tmp_path / "browser")
    yield one
    one.close()


def hear_until(page: BrowserPage, heard: list[dict[str, Any]], kind: str, name: str | None = None) -> Any:
    """Take in what the page tells until it tells this."""
    while True:
        heard.append(page.hear())
        if heard[-1]["kind"] == kind and heard[-1].get("name") == name:
            return heard[-1]


def test_a_page_follows_a_run_over_a_server_that_is_killed(tmp_path: Path, page: BrowserPage) -> None:
    """It reads with a key of scope read in the address, since ``EventSource`` sends no headers."""
    path, keys_path = tmp_path / "runs.db", tmp_path / "keys.json"
    keys = AccessKeys()
    token = keys.add("page", ["read"])
    keys.save(keys_path)
    options = ("--keys", str(keys_path), "--cors-origin", page.origin)
    one = ServerProcess(path, *options, workflows="refunds")
    try:
        run = one.post(
            "/v1/workflows/Refunds/runs", {"input": {"customer": "Ada"}, "run_id": "seen"}, wait=20
        )
        here = f"{one.url}/v1/runs/{run['run_id']}"
        addresses = {"stream": f"{here}/events?access_token={token}", "cancel": f"{here}/cancel"}
        page.show(FOLLOW % {key: json.dumps(value) for key, value in (addresses | {"token": token}).items()})
        heard: list[dict[str, Any]] = []
        asked = hear_until(page, heard, "event", "RequestInfoEvent")["request"]["request_id"]
        while not any(one["kind"] == "refused" for one in heard):
            heard.append(page.hear())
        one.end(signal.SIGKILL)
        hear_until(page, heard, "error")
        one = ServerProcess(path, *options, "--port", one.url.rpartition(":")[2], workflows="refunds")
        one.post("/v1/runs/seen/responses", {"responses": {asked: {"approved": True}}}, key="answer")
        end = hear_until(page, heard, "end")
        listed = one.client.get("/v1/runs/seen/event-list", params={"limit": 1000}).json()["events"]
    finally:
        one.end()
    assert end["data"] == {"run_id": "seen", "status": "completed"}
    assert [told["id"] for told in heard if told["kind"] == "event"] == [
        event["event_id"] for event in listed
    ]
    assert [told["kind"] for told in heard].count("open") == 2
    assert [told["status"] for told in heard if told["kind"] == "refused"] == [403]
    assert {told["state"] for told in heard if told["kind"] == "error"} == {0}  # it connects again by itself
