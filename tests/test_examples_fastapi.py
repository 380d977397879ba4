"""The web service of the examples, served by uvicorn in a process of its own, and its clients over a real socket."""

import json
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.programs import ROOT, blocks

EXAMPLE = ROOT / "examples" / "21_fastapi_host.py"
PAGE = ROOT / "docs" / "how-to" / "host-in-a-fastapi-app.md"
REFUND = {"customer": "Ada", "amount": 250}
# Nothing here takes so long: only a test that would hang is ended by it.
PATIENCE = 30.0


class Sent(NamedTuple):
    """An event of a stream as its client sees it."""

    id: str | None
    name: str
    data: Any


class Server:
    """A process that serves the app, with its database in a folder, and a client of it."""

    def __init__(self, folder: Path, *options: str) -> None:
        command = [sys.executable, "-W", "error", "-m", "uvicorn", f"--app-dir={EXAMPLE.parent}", "--port=0"]
        self._process = subprocess.Popen(
            [*command, *options, "--no-access-log", f"{EXAMPLE.stem}:app"],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        self._log: list[str] = []
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read_log)
        self._reader.start()
        if not self._ready.wait(PATIENCE) or self._process.poll() is not None:
            self.end(signal.SIGKILL)
            pytest.fail(f"the server did not start:\n{self.log}")
        (url,) = re.findall(r"http://\S+", self.log)
        self.client = httpx.Client(base_url=url, timeout=PATIENCE)

    @property
    def log(self) -> str:
        return "".join(self._log)

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._log.append(line)
            if "http://" in line:
                self._ready.set()
        self._ready.set()

    def end(self, how: signal.Signals) -> None:
        """End the process by a signal; do nothing if it has ended."""
        self._process.send_signal(how)
        try:
            self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            self._process.wait()
            self._reader.join()
            assert self._process.stderr is not None
            self._process.stderr.close()
            if hasattr(self, "client"):
                self.client.close()

    def submit(self, run_id: str) -> None:
        reply = self.client.post("/runs", params={"run_id": run_id}, json=REFUND)
        assert reply.status_code == 202, reply.text
        assert reply.json()["run_id"] == run_id

    def stream(self, run_id: str, last: str | None = None) -> Generator[Sent]:
        """Give the events of a run as a browser would: lines until an empty one are one event."""
        headers = {} if last is None else {"Last-Event-ID": last}
        with self.client.stream("GET", f"/runs/{run_id}/events", headers=headers) as response:
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            fields: dict[str, str] = {}
            for line in response.iter_lines():
                name, _, value = line.partition(":")
                if line and name:
                    fields[name] = value.removeprefix(" ")
                elif fields and not line:
                    yield Sent(fields.get("id"), fields.get("event", "message"), json.loads(fields["data"]))
                    fields = {}

    def watch(
        self, run_id: str, last: str | None = None, until: str = "WorkflowCompletedEvent"
    ) -> list[Sent]:
        """Return the events of a run behind the last one that was seen, up to a certain one."""
        seen: list[Sent] = []
        for sent in self.stream(run_id, last):
            seen.append(sent)
            if sent.data["event"] == until:
                return seen
        pytest.fail(f"the stream ended before {until}: {seen}\n{self.log}")

    def answer(self, run_id: str, decision: Any, by: str = "kim") -> httpx.Response:
        (request,) = self.client.get("/requests", params={"run_id": run_id}).json()
        path = f"/runs/{run_id}/requests/{request['request_id']}"
        return self.client.post(path, json=decision, params={"by": by})


Start = Callable[..., Server]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a server on the database of the test; those that run at its end are ended."""
    servers: list[Server] = []

    def start_server(*options: str) -> Server:
        servers.append(Server(tmp_path, *options))
        return servers[-1]

    yield start_server
    for server in servers:
        server.end(signal.SIGKILL)


def kinds(events: list[Sent]) -> list[str]:
    return [sent.data["event"] for sent in events]


def outputs(events: list[Sent]) -> list[Any]:
    return [sent.data["data"] for sent in events if sent.data["event"] == "WorkflowOutputEvent"]


def test_a_run_from_its_input_to_its_output(start: Start) -> None:
    server = start()
    server.submit("r1")
    asked = server.watch("r1", until="RequestInfoEvent")
    assert asked[-1].data["request"]["data"] == {"$type": "Refund", **REFUND}
    (request,) = server.client.get("/requests").json()
    assert (request["run_id"], request["executor_id"]) == ("r1", "Approve")
    assert sorted(request["response_schema"]["properties"]) == ["approved", "remark"]
    assert server.answer("r1", {"approved": True}).status_code == 200
    rest = server.watch("r1", asked[-1].id)
    assert outputs(rest) == ["Ada gets 250"]
    assert [run["status"] for run in server.client.get("/runs").json()] == ["completed"]
    assert server.client.get("/runs/r1").json()["workflow_name"] == "Refunds"
    assert server.client.get("/requests").json() == []
    assert "Traceback" not in server.log, server.log


def test_a_client_that_reconnects_for_each_event_sees_each_once(start: Start) -> None:
    server = start()
    server.submit("r1")
    seen: list[Sent] = []
    while len(seen) < 100 and "WorkflowCompletedEvent" not in kinds(seen[-1:]):
        with closing(server.stream("r1", seen[-1].id if seen else None)) as stream:
            seen.append(next(stream))
        if seen[-1].data["event"] == "RequestInfoEvent":
            assert server.answer("r1", {"approved": True}).status_code == 200
    assert seen == server.watch("r1")
    assert len({sent.id for sent in seen}) == len(seen) > 10
    assert all(sent.id == sent.data["event_id"] for sent in seen)
    assert "Traceback" not in server.log, server.log


def test_a_server_that_is_killed_between_question_and_answer(start: Start) -> None:
    first = start()
    first.submit("r1")
    asked = first.watch("r1", until="RequestInfoEvent")
    first.end(signal.SIGKILL)
    second = start()
    assert second.answer("r1", {"approved": False, "remark": "too late"}).status_code == 200
    rest = second.watch("r1", asked[-1].id)
    assert outputs(rest) == ["Ada gets nothing: too late"]
    assert asked + rest == second.watch("r1")


def test_a_server_that_is_killed_right_after_input_and_answer(start: Start) -> None:
    first = start()
    first.submit("r1")
    first.end(signal.SIGKILL)
    second = start()
    asked = second.watch("r1", until="RequestInfoEvent")
    assert second.answer("r1", {"approved": True}).status_code == 200
    second.end(signal.SIGKILL)
    third = start()
    rest = third.watch("r1", asked[-1].id)
    assert outputs(rest) == ["Ada gets 250"]
    assert asked + rest == third.watch("r1")


def test_two_servers_share_a_database(start: Start) -> None:
    one, other = start(), start()
    one.submit("r1")
    asked = other.watch("r1", until="RequestInfoEvent")
    assert one.answer("r1", {"approved": True}).status_code == 200
    rest = other.watch("r1", asked[-1].id)
    assert asked + rest == one.watch("r1")
    assert outputs(rest) == ["Ada gets 250"]


def test_a_stream_stays_open_while_the_run_waits(start: Start) -> None:
    server = start()
    server.submit("r1")
    seen: list[Sent] = []
    for sent in server.stream("r1"):
        seen.append(sent)
        if sent.data.get("status") == "waiting" and "RequestInfoEvent" in kinds(seen):
            assert server.answer("r1", {"approved": True}).status_code == 200
        if sent.data["event"] == "WorkflowCompletedEvent":
            break
    assert outputs(seen) == ["Ada gets 250"]


def test_a_cancelled_run_is_over(start: Start) -> None:
    server = start()
    server.submit("r1")
    server.watch("r1", until="RequestInfoEvent")
    server.client.post("/runs/r1/cancel", params={"by": "kim"}).raise_for_status()
    assert any(sent.data.get("status") == "cancelled" for sent in server.stream("r1"))
    assert server.client.get("/runs/r1").json()["by"] == "kim"
    assert server.client.get("/requests").json() == []
    assert [run["run_id"] for run in server.client.get("/runs?status=cancelled").json()] == ["r1"]
    assert server.client.get("/runs?status=waiting").json() == []


def test_errors_have_a_status_and_a_message(start: Start) -> None:
    server = start()
    client = server.client
    server.submit("r1")
    server.watch("r1", until="RequestInfoEvent")
    refused = server.answer("r1", {"approved": "perhaps"})
    assert (refused.status_code, refused.json()["error"]) == (422, "InvalidResponse")
    assert "response.approved: a str, not bool: 'perhaps'" in refused.json()["detail"]
    assert server.answer("r1", ["no decision"]).status_code == 422
    taken = client.post("/runs?run_id=r1", json=REFUND)
    assert (taken.status_code, taken.json()["error"]) == (409, "RunExists")
    assert client.post("/runs", json={"customer": "Ada"}).status_code == 422
    assert client.get("/runs?status=asleep").json()["error"] == "InvalidArgument"
    unknown = client.post("/runs/r1/requests/nobody-asked", json={"approved": True})
    assert (unknown.status_code, unknown.json()["error"]) == (404, "UnknownRequest")
    (request,) = client.get("/requests").json()
    assert server.answer("r1", {"approved": True}).status_code == 200
    again = client.post(f"/runs/r1/requests/{request['request_id']}", json={"approved": True})
    assert again.status_code == 409
    server.watch("r1")
    again = client.post(f"/runs/r1/requests/{request['request_id']}", json={"approved": True})
    assert again.status_code == 409
    assert "Traceback" not in server.log, server.log


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/runs/r2"),
        ("GET", "/runs/r2/events"),
        ("POST", "/runs/r2/requests/Approve.1.1"),
        ("POST", "/runs/r2/cancel"),
    ],
)
def test_a_run_that_is_not_there_is_not_found(start: Start, method: str, path: str) -> None:
    reply = start().client.request(method, path, json={})
    assert (reply.status_code, reply.json()["error"]) == (404, "RunNotFound")
    assert "'r2'" in reply.json()["detail"]


def test_an_id_that_is_none_is_refused_before_the_stream(start: Start) -> None:
    server = start()
    server.submit("r1")
    reply = server.client.get("/runs/r1/events", headers={"Last-Event-ID": "yesterday"})
    assert (reply.status_code, reply.json()["error"]) == (422, "InvalidArgument")
    assert "'yesterday'" in reply.json()["detail"]


def test_an_id_that_the_run_does_not_have_begins_anew(start: Start) -> None:
    server = start()
    server.submit("r1")
    with server.client.stream("GET", "/runs/r1/events", headers={"Last-Event-ID": "999.0"}) as response:
        marker, first = islice((line for line in response.iter_lines() if line.startswith("data: ")), 2)
    assert json.loads(marker.removeprefix("data: "))["warning"]["kind"] == "MissedEvents"
    assert json.loads(first.removeprefix("data: "))["event_id"] == "1.0"


def test_an_error_of_the_storage_is_in_the_log_and_not_in_the_reply(start: Start, tmp_path: Path) -> None:
    server = start()
    with sqlite3.connect(tmp_path / "refunds.db") as database:
        database.execute("DROP TABLE runs")
    database.close()
    reply = server.client.get("/runs")
    assert (reply.status_code, reply.text) == (500, "Internal Server Error")
    server.end(signal.SIGTERM)
    assert "StorageError" in server.log


def test_clients_that_left_hold_nothing(start: Start) -> None:
    server = start()  # it waits for open streams as long as there are any
    server.submit("r1")
    server.watch("r1", until="RequestInfoEvent")
    for _ in range(5):
        with closing(server.stream("r1")) as stream:
            next(stream)
    server.end(signal.SIGTERM)
    assert "Application shutdown complete" in server.log
    assert "Traceback" not in server.log, server.log


def test_a_server_with_open_streams_ends_when_it_is_told_to(start: Start) -> None:
    server = start("--timeout-graceful-shutdown=1")
    server.submit("r1")
    with closing(server.stream("r1")) as stream:
        next(stream)
        server.end(signal.SIGTERM)
    assert "Application shutdown complete" in server.log
    after = start()
    after.watch("r1", until="RequestInfoEvent")
    assert after.answer("r1", {"approved": True}).status_code == 200
    assert outputs(after.watch("r1")) == ["Ada gets 250"]


def test_the_page_shows_the_example() -> None:
    page = PAGE.read_text(encoding="utf-8")
    shown = [block for block in blocks(page) if block.language in ("python", "text")]
    source = EXAMPLE.read_text(encoding="utf-8").partition('"""\n\nimport')
    program, _, output = ("import" + source[2]).partition("\n# Output:\n")
    assert "\n\n".join(block.text for block in shown if block.language == "python") == program
    assert "".join(f"# {line}\n" for line in shown[-1].text.splitlines()) == output
