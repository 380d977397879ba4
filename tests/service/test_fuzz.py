"""Fuzzed paths, ids, headers and bodies: refused or done, never an error of the server, nothing outside the store."""

import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.service.conftest import Served
from tests.service.test_access import TABLE
from tests.service.test_runs import start

CALLS = 400
# Names that mean something to file systems, SQL, URLs, JSON or encodings.
NAMES = [
    "..", "../../outside/a", "/etc/passwd", "..\\..\\a", "C:\\a", "CON", "~", ".", "a/b", "a\0b", "a\nb", "%2e%2e",
    "%00", "%25", "'", '"', "'; DROP TABLE runs; --", "{}", "${HOME}", "#", "?", "@", " ", "x" * 300, "\u00e9",
    "e\u0301", "\u202e", "\U0001f600", "-", "--help", "null", "0", "-1", "1e999", "nan",
]  # fmt: skip
BODIES = [
    b"", b"{}", b"[]", b"null", b'"', b"\xff\xfe", b"\x00", b'{"responses": {"": 1}}', b'{"message": 1e999}',
    b"1" * 5000, b'{"input": "\\ud800"}', b'{"a": ' * 200, b'{"input": {"customer": {"$type": "Refund"}}}',
]  # fmt: skip
FIELDS = [
    "input", "run_id", "if_exists", "responses", "message", "target_id", "checkpoint_id", "take_over", "edits", "add",
    "remove", "eventName", "response", "session_id", "wait_for_response", "odd",
]  # fmt: skip
HEADERS = [
    "Idempotency-Key",
    "If-Match",
    "Prefer",
    "Last-Event-ID",
    "Range",
    "Accept",
    "x-ms-wait-for-response",
]
QUERIES = [
    "cursor",
    "limit",
    "after",
    "workflow",
    "run_id",
    "text",
    "name",
    "scope",
    "until",
    "runId",
    "timeoutSeconds",
]


@pytest.fixture(params=["runs.db", "runs"])
def fuzzed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    """A service on a store of either kind, beside files of others."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a").write_text("theirs")
    (tmp_path / "store").mkdir()
    one = Served(tmp_path / "store" / request.param)
    one.start()
    yield one
    one.stop()


def files_beside(served: Served) -> dict[str, str]:
    """Return the digests of all files that are not of the store, by path."""
    folder = served.path.parent.parent
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and not str(path).startswith(str(served.path))
    }


def fuzz_value(chance: random.Random, depth: int = 2) -> Any:
    """Return a value of JSON, of names that are known to hurt."""
    pick = chance.randrange(8 if depth else 5)
    if pick < 3:
        return chance.choice(NAMES)
    if pick < 5:
        return chance.choice([None, True, 0, -1, 2**70, 1.5, "kelp"])
    if pick == 5:
        return [fuzz_value(chance, depth - 1) for _ in range(chance.randrange(3))]
    return {
        chance.choice([*NAMES, *FIELDS]): fuzz_value(chance, depth - 1) for _ in range(chance.randrange(3))
    }


def fuzz_call(chance: random.Random) -> tuple[str, str, dict[str, str], bytes | None]:
    """Return a call that has something odd in its path, query, headers or body."""
    method, path, _ = chance.choice(TABLE)
    parts = path.partition("?")[0].split("/")
    if chance.random() < 0.6:
        name = chance.choice(NAMES)
        is_plain = name.isascii() and name.isprintable() and " " not in name and chance.random() < 0.3
        parts[chance.randrange(1, len(parts))] = name if is_plain else quote(name, safe="")
    query = "&".join(
        f"{chance.choice(QUERIES)}={quote(chance.choice(NAMES))}" for _ in range(chance.randrange(3))
    )
    headers = {}
    if chance.random() < 0.4:
        value = chance.choice(NAMES).encode("ascii", "ignore").decode()
        headers[chance.choice(HEADERS)] = "".join(filter(str.isprintable, value)).strip()
    body = None
    if method == "POST":
        given = {field: fuzz_value(chance) for field in chance.sample(FIELDS, chance.randrange(4))}
        body = chance.choice(BODIES) if chance.random() < 0.3 else json.dumps(given).encode()
    return method, "/".join(parts) + (f"?{query}" if query else ""), headers, body


def test_fuzzed_calls_fail_in_no_way_of_the_server(fuzzed: Served) -> None:
    chance = random.Random(5)
    with fuzzed.client() as client:
        start(client, "Refunds", {"customer": "Ada"}, run_id="r1")
        before, problems = files_beside(fuzzed), client.get("/v1/store").json()["problems"].keys()
        assert before.keys() == {"outside/a"}
        statuses = set()
        for _ in range(CALLS):
            method, target, headers, body = fuzz_call(chance)
            as_it_is = {"target": target.encode()}  # else the client would resolve dots, and quote again
            with client.stream(
                method, fuzzed.url, content=body, headers=headers, extensions=as_it_is
            ) as reply:
                statuses.add(reply.status_code)
                # A stream of a run that waits does not end; what it replied is seen by then.
                text = (
                    "" if "event-stream" in reply.headers.get("content-type", "") else reply.read().decode()
                )
            assert reply.status_code < 500, (method, target, headers, body, text)
        assert {200, 404, 422} <= statuses
        assert files_beside(fuzzed) == before
        assert client.get("/v1/store").json()["problems"].keys() <= problems


@pytest.mark.parametrize("name", NAMES)
def test_odd_ids_of_runs_stay_in_the_store(served: Served, client: httpx.Client, name: str) -> None:
    """Each is refused, or is the id of a run that is found by it."""
    for path, body in (
        ("/v1/workflows/Greet/runs", {"input": "kelp", "run_id": name}),
        ("/api/agents/Greet/run", {"message": "kelp", "session_id": name}),
        (f"/api/workflow/Greet/run?runId={quote(name, safe=chr(32))}", "kelp"),
    ):
        begun = client.post(path, json=body, headers={"Prefer": "wait=20"})
        assert begun.status_code in (200, 202, 400, 409, 422), (path, begun.text)
        if begun.is_success and path.startswith("/v1"):
            as_it_is = {"target": f"/v1/runs/{quote(name, safe='')}".encode()}
            assert client.get("/", extensions=as_it_is).json()["run_id"] == name
    assert {path.name.partition(".db")[0] for path in served.path.parent.iterdir()} <= {"runs"}
