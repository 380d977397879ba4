"""The command ``holdfast serve``: keys, signals, kills, several servers on one store, another build beside the old."""

import json
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest

from holdfast.cli.serve import _listen
from tests.faults.planted_service import planting
from tests.programs import ROOT
from tests.service.processes import PATIENCE, SHORT_LEASE, ServerProcess, check_takeover, command
from tests.service.test_runs import frames

Start: TypeAlias = Callable[..., ServerProcess]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Start]:
    """Start servers on one store; all are gone after the test."""
    begun: list[ServerProcess] = []

    def start(*options: str, **more: Any) -> ServerProcess:
        begun.append(ServerProcess(tmp_path / "runs.db", *options, **more))
        return begun[-1]

    yield start
    for one in begun:
        one.end()


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("serve", *arguments),
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE,
        check=False,
    )


def test_a_server_that_others_reach_needs_a_key(tmp_path: Path) -> None:
    store = ["--store", f"sqlite:///{tmp_path}/runs.db"]
    name = "tests.service.shop:greeting"
    for options in (["--host", "0.0.0.0"], ["--keys", str(tmp_path / "none.json")]):
        refused = run_command(name, *store, *options)
        assert (refused.returncode, "HOLDFAST_TOKEN" in refused.stderr) == (2, True)
    assert run_command(*store).returncode == 2
    assert "fastapi" not in run_command("--help").stderr
    assert not (tmp_path / "runs.db").exists()


def test_connections_send_at_once() -> None:
    """Whatever event loop accepts them: else the second part of a reply waits until the first is acknowledged."""
    with _listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


def test_keys_are_added_to_a_file(server: Start, tmp_path: Path) -> None:
    path = str(tmp_path / "keys.json")
    added = run_command("--keys", path, "--add-key", "kim:read,answer")
    token = added.stdout.strip()
    assert (added.returncode, token.startswith("hf_"), token in Path(path).read_text()) == (0, True, False)
    assert run_command("--add-key", "kim").returncode == 2
    assert run_command("--keys", path, "--add-key", "kim:write").returncode == 2
    one = server("--keys", path)
    headers = {"Authorization": f"Bearer {token}"}
    assert one.client.get("/v1/runs", headers=headers).status_code == 200
    assert (
        one.client.post("/v1/workflows/Greet/runs", json={"input": "a"}, headers=headers).status_code == 403
    )
    assert one.client.get("/v1/runs", headers={"Host": "evil.example"}).status_code == 421


def test_sigterm_ends_streams_and_lets_runs_finish(server: Start) -> None:
    one = server("--grace", "30", "--drain", "2")
    slow = one.post("/v1/workflows/Wait/runs", {"input": 5.0, "run_id": "slow"})
    asking = one.post("/v1/workflows/Refunds/runs", {"input": {"customer": "Ada"}}, wait=20)
    assert asking["status"] == "waiting"
    seen: list[str] = []
    waited: list[int] = []
    watcher, waiter, is_watching = one.connect(), one.connect(), threading.Event()
    waiter.get("/healthz").raise_for_status()  # it is connected, so that its request is on the way at once

    def watch() -> None:
        with watcher as client, client.stream("GET", f"/v1/runs/{asking['run_id']}/events") as response:
            is_watching.set()
            seen.extend(response.iter_lines())

    def wait() -> None:
        with closing(waiter) as client:
            reply = client.get(f"/v1/runs/{slow['run_id']}", headers={"Prefer": "wait=60"})
            waited.append(reply.status_code)

    threads = [threading.Thread(target=watch), threading.Thread(target=wait)]
    for thread in threads:
        thread.start()
    one.wait_for("slow", status="running")
    assert is_watching.wait(PATIENCE)
    one.process.send_signal(signal.SIGTERM)
    while one.client.get("/readyz").status_code == 200:
        pass
    assert one.client.get("/v1/runs").status_code == 200  # a balancer may not know yet
    for thread in threads:
        thread.join(PATIENCE)
    assert one.process.wait(PATIENCE) == 0
    assert any("come back with Last-Event-ID" in line for line in seen)
    assert waited == [200]
    two = server()
    run = two.client.get("/v1/runs/slow").json()
    assert (run["status"], run["outputs"]) == ("completed", ["waited 5"])


def test_runs_that_take_longer_than_the_grace_are_left_to_the_next(server: Start) -> None:
    one = server("--grace", "0")
    one.post("/v1/workflows/Wait/runs", {"input": 1.5, "run_id": "slow"})
    one.wait_for("slow", status="running")
    assert one.end(signal.SIGTERM) == 0
    two = server()
    assert two.wait_for("slow", status="completed")["outputs"] == ["waited 1.5"]


def test_a_killed_server_loses_nothing_that_it_accepted(server: Start) -> None:
    one = server()
    accepted = [one.post("/v1/workflows/Wait/runs", {"input": 0.4})["run_id"] for _ in range(5)]
    accepted += [
        one.post("/v1/workflows/Greet/runs", {"input": str(number)})["run_id"] for number in range(10)
    ]
    asking = one.post("/v1/workflows/Refunds/runs", {"input": {"customer": "Ada"}}, wait=20)
    path = f"/v1/runs/{asking['run_id']}"
    before: list[str | None] = []
    with one.client.stream("GET", f"{path}/events") as response:
        for mark, _, data in frames(response.iter_lines()):
            before.append(mark)
            if data.get("event") == "RequestInfoEvent":
                break
    answer = {"responses": {asking["requests"][0]["request_id"]: {"approved": True}}}
    one.post(f"{path}/responses", answer, key="k")
    one.end(signal.SIGKILL)
    two = server()
    for run_id in accepted:
        run = two.wait_for(run_id, status="completed")
        assert len(run["outputs"]) == 1
    two.post(f"{path}/responses", answer, key="k")  # was it taken? it is given again
    assert two.wait_for(asking["run_id"], status="completed")["outputs"] == ["Ada gets 1"]
    with two.client.stream("GET", f"{path}/events", headers={"Last-Event-ID": str(before[-1])}) as response:
        after = [mark for mark, _, _ in frames(response.iter_lines()) if mark is not None]
    listed = two.client.get(f"{path}/event-list", params={"limit": 1000}).json()["events"]
    assert before + after == [event["event_id"] for event in listed]


def test_another_server_takes_over_from_one_that_is_killed(server: Start) -> None:
    check_takeover(server(prelude=SHORT_LEASE), server(prelude=SHORT_LEASE), signal.SIGKILL)


def test_another_server_takes_over_from_one_that_stands_still(server: Start) -> None:
    """With a short lease; ``tests.faults.service --stopped`` has the true one."""
    check_takeover(server(prelude=SHORT_LEASE), server(prelude=SHORT_LEASE), signal.SIGSTOP)


def test_planted_server_that_commits_for_runs_of_others(server: Start) -> None:
    planted = f"{SHORT_LEASE}\n{planting('any-token')}"
    with pytest.raises(AssertionError, match=r"changed afterwards|twice|checkpoints, not"):
        check_takeover(server(prelude=planted), server(prelude=SHORT_LEASE), signal.SIGSTOP)


def test_another_build_is_deployed_beside_the_old_one(server: Start) -> None:
    old = server(workflows="refunds")
    begun = old.post("/v1/workflows/Refunds/runs", {"input": {"customer": "Ada"}}, wait=20)
    new = server(workflows="refunds_v2")
    answer = {"responses": {begun["requests"][0]["request_id"]: {"approved": True}}}
    new.post(f"/v1/runs/{begun['run_id']}/responses", answer)
    assert new.wait_for(begun["run_id"], status="completed")["outputs"] == ["Ada gets 1"]
    fingerprints = {one.client.get("/v1/workflows/Refunds").json()["fingerprint"] for one in (old, new)}
    assert len(fingerprints) == 2
    old.end(signal.SIGTERM)
    late = new.post("/v1/workflows/Refunds/runs", {"input": {"customer": "Bo"}}, wait=20)
    answer = {"responses": {late["requests"][0]["request_id"]: {"approved": True}}}
    done = new.post(f"/v1/runs/{late['run_id']}/responses", answer, wait=20)
    assert (done["outputs"], done["seq"] > begun["seq"]) == (["Bo gets 1"], True)


def test_the_command_tells_where_it_listens(server: Start) -> None:
    one = server(workflows="greeting")
    form = json.loads((ROOT / "tests" / "command" / "json" / "serve.json").read_text())
    assert one.told == {**form, "url": one.url}


def test_the_document_names_what_is_served(server: Start) -> None:
    one = server(workflows="refunds_v2 refunds greeting")
    document = one.client.get("/openapi.json").json()
    assert {path for path in document["paths"] if path.endswith("/runs")} == {
        "/v1/runs", "/v1/workflows/Greet/runs", "/v1/workflows/Refunds/runs",
    }  # fmt: skip
    body = document["components"]["schemas"]["Refunds_StartBody"]["properties"]["input"]
    assert "customer" in json.dumps(body)
    with httpx.Client(base_url=one.url) as nobody:
        assert nobody.get("/openapi.json").status_code == 401
