"""Keys, scopes, hosts, caps and fuzzed calls."""

import re
import stat
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from starlette.routing import Route

from holdfast import InMemoryCheckpointStorage, InvalidArgument, RunInfo, StorageError, WrongType
from holdfast.server import AccessKeys, Principal, ServerOptions, create_app, run_app
from tests.service.conftest import Served
from tests.service.shop import greeting
from tests.service.test_runs import start

ZEROS = "0" * 64
# Each endpoint with the scope that it needs; None is open to all.
TABLE = [
    ("GET", "/healthz", None),
    ("GET", "/readyz", None),
    ("GET", "/openapi.json", "read"),
    ("GET", "/v1/workflows", "read"),
    ("GET", "/v1/workflows/Greet", "read"),
    ("GET", "/v1/workflows/Greet/graph", "read"),
    ("POST", "/v1/workflows/Greet/runs", "run"),
    ("GET", "/v1/runs", "read"),
    ("GET", "/v1/runs/r1", "read"),
    ("GET", "/v1/runs/r1/events", "read"),
    ("GET", "/v1/runs/r1/event-list", "read"),
    ("GET", "/v1/runs/r1/checkpoints", "read"),
    ("GET", "/v1/runs/r1/tree", "read"),
    ("POST", "/v1/runs/r1/responses", "answer"),
    ("POST", "/v1/runs/r1/messages", "run"),
    ("POST", "/v1/runs/r1/resume", "run"),
    ("POST", "/v1/runs/r1/fork", "run"),
    ("POST", "/v1/runs/r1/cancel", "run"),
    ("GET", "/v1/requests", "read"),
    ("GET", f"/v1/checkpoints/{ZEROS}", "read"),
    ("GET", f"/v1/checkpoints/{ZEROS}/values?part=state&name=a", "read"),
    ("POST", f"/v1/checkpoints/{ZEROS}/tags", "run"),
    ("GET", f"/v1/diff?a={ZEROS}&b={ZEROS}", "read"),
    ("GET", "/v1/store", "admin"),
    ("POST", "/api/workflows/Greet/run", "run"),
    ("GET", "/api/workflows/Greet/status/r1", "read"),
    ("POST", "/api/workflows/Greet/respond/r1", "answer"),
    ("POST", "/api/workflow/Greet/run", "run"),
    ("GET", "/api/workflow/Greet/status/r1", "read"),
    ("POST", "/api/workflow/Greet/respond/r1/x", "answer"),
    ("POST", "/api/agents/Greet/run", "run"),
]
HOLDERS = {
    "read": {"read", "run", "answer", "admin"},
    "run": {"run", "admin"},
    "answer": {"answer", "admin"},
    "admin": {"admin"},
}


def shape_of(path: str) -> str:
    """Return a path with its names left out."""
    return re.sub(
        rf"\{{[^}}]*\}}|{ZEROS}|\br1\b|(?<=/)x$", "*", path.partition("?")[0].replace("{name}", "Greet")
    )


def test_the_table_has_every_endpoint(served: Served) -> None:
    assert served.app is not None
    paths = served.app.openapi()["paths"]
    others = re.compile("/v1/workflows/(?!Greet)")
    there = {
        (method.upper(), path)
        for path, methods in paths.items()
        for method in methods
        if not others.match(path)
    }
    there |= {
        (method, route.path)
        for route in served.app.routes
        if isinstance(route, Route) and route.path.startswith("/api/")
        for method in route.methods or ()
        if method != "HEAD"
    }
    there.add(("GET", "/openapi.json"))
    assert {(method, shape_of(path)) for method, path, _ in TABLE} == {
        (method, shape_of(path)) for method, path in there
    }


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    TABLE,
    ids=[f"{method} {path.replace(ZEROS, chr(48))}" for method, path, _ in TABLE],
)
def test_who_may_do_what(served: Served, method: str, path: str, scope: str | None) -> None:
    with httpx.Client(base_url=served.url) as nobody:
        for headers in ({}, {"Authorization": "Bearer hf_wrong"}, {"Authorization": "Basic YTpi"}):
            reply = nobody.request(method, path, headers=headers)
            assert (reply.status_code == 401) == (scope is not None), reply.text
            assert ("www-authenticate" in reply.headers) == (scope is not None)
    if scope is not None:
        for holder in served.tokens:
            with served.client(holder) as client:
                status = client.request(method, path).status_code
                assert (status == 403) == (holder not in HOLDERS[scope]), (holder, status)
                assert status not in (401, 500)


def test_what_takes_a_run_from_others_is_for_admins(served: Served, client: httpx.Client) -> None:
    start(client, "Greet", "nobody", run_id="failed")
    with served.client("run") as runner:
        for body in ({"take_over": True}, {"allow_graph_change": True}):
            assert runner.post("/v1/runs/failed/resume", json=body).status_code == 403
            assert client.post("/v1/runs/failed/resume", json=body).status_code == 202


def test_who_may_run_may_not_approve(served: Served, client: httpx.Client) -> None:
    """Neither in the words of an agent, nor on a fork."""
    asked = start(client, "Order", "kelp", run_id="approval")
    with served.client("run") as runner, served.client("answer") as answerer:
        said = {"message": "3", "session_id": "approval"}
        assert runner.post("/api/agents/Order/run", json=said).status_code == 403
        answers = {"responses": {asked["requests"][0]["request_id"]: 3}}
        fork = runner.post("/v1/runs/approval/fork", json={"edits": answers})
        assert fork.status_code == 403
        assert client.get("/v1/runs/approval").json()["checkpoint_id"] == asked["checkpoint_id"]
        assert answerer.post("/v1/runs/approval/responses", json=answers).is_success


def test_a_stream_takes_its_key_from_the_address(served: Served, client: httpx.Client) -> None:
    start(client, "Greet", "kelp", run_id="seen")
    with httpx.Client(base_url=served.url) as nobody:
        given = {"access_token": served.tokens["read"]}
        assert nobody.get("/v1/runs/seen/events", params=given).status_code == 200
        assert nobody.get("/v1/runs/seen", params=given).status_code == 401


def test_a_wrong_key_is_told_from_none(served: Served) -> None:
    with httpx.Client(base_url=served.url) as nobody:
        wrong = nobody.get("/v1/runs", headers={"Authorization": "Bearer hf_of-somebody-else"})
        assert (wrong.status_code, wrong.json()["detail"]) == (401, "This key is not known here.")
        assert nobody.get("/v1/runs").json()["detail"].startswith("A key is needed")


def test_the_service_is_called_by_its_names(serve: Callable[..., Served]) -> None:
    own = serve(allowed_hosts=("127.0.0.1", "[::1]"))
    with own.client() as client:
        assert client.get("/v1/runs").status_code == 200
        for name in ("evil.example", "127.0.0.1.evil.example", ""):
            reply = client.get("/v1/runs", headers={"Host": name})
            assert reply.status_code in (400, 421), name


def test_no_origin_is_allowed_unless_asked(client: httpx.Client, serve: Callable[..., Served]) -> None:
    asked = {"Origin": "https://page.example", "Access-Control-Request-Method": "GET"}
    assert "access-control-allow-origin" not in client.options("/v1/runs", headers=asked).headers
    with serve(cors_origins=("https://page.example",)).client() as other:
        reply = other.options("/v1/runs", headers=asked)
        assert reply.headers["access-control-allow-origin"] == "https://page.example"


def test_bodies_are_capped(serve: Callable[..., Served]) -> None:
    path = "/v1/workflows/Greet/runs"
    with serve(max_body=1000, max_depth=10, max_waiters=1).client() as client:
        assert client.post(path, json={"input": "x" * 2000}).status_code == 413
        assert client.post(path, content=iter([b"x" * 600] * 3)).status_code == 413
        assert client.post(path, content=b'{"input": ' + b"[" * 11 + b"]" * 11 + b"}").status_code == 422
        assert client.post(path, content=b'{"input": "\\ud800"}').status_code == 422
        assert client.post(path, content=b"{").status_code == 400
        assert client.post(path, content=b'{"input": NaN}').status_code == 400
        assert client.post(path, content=b'{"input": "x", "odd": 1}').status_code == 422
        assert client.post(path, content=b"").status_code == 422


def test_keys_are_kept_as_digests(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    keys = AccessKeys.from_file(path)
    token = keys.add("kim", ["answer"])
    keys.save(path)
    assert token not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert AccessKeys.from_file(path).find(token) == Principal("kim", {"answer"})
    assert [entry.name for entry in tmp_path.iterdir()] == ["keys.json"]
    for text in (
        "{}",
        "[]",
        '{"keys": [{"name": "a", "scopes": ["odd"], "sha256": "' + ZEROS + '"}]}',
        "\x00",
    ):
        path.write_text(text)
        with pytest.raises(InvalidArgument, match="no file of keys"):
            AccessKeys.from_file(path)


def test_what_cannot_be_served() -> None:
    storage = InMemoryCheckpointStorage()
    with pytest.raises(InvalidArgument, match="needs the workflows"):
        create_app([], storage)
    with pytest.raises(WrongType, match="takes workflows"):
        create_app(["shop:workflow"], storage)  # type: ignore[list-item]
    with pytest.raises(WrongType, match="takes a storage"):
        create_app(greeting(), "runs.db")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="authenticate"):
        create_app(greeting(), storage, "secret")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="max_body"):
        ServerOptions(max_body=0)
    with pytest.raises(InvalidArgument, match="allowed_hosts"):
        ServerOptions(allowed_hosts="localhost")  # type: ignore[arg-type]
    for token in ("short", "with spaces in the token", "ümlaut-ümlaut-ümlaut"):
        with pytest.raises(InvalidArgument, match="at least 16"):
            AccessKeys().add("kim", token=token)
    with pytest.raises(InvalidArgument, match="scopes"):
        Principal("kim", ["write"])


@pytest.mark.parametrize(
    ("error", "status"), [(StorageError("/secret/place: full"), 503), (RuntimeError("/secret/place"), 500)]
)
async def test_problems_reveal_nothing_of_the_inside(error: Exception, status: int) -> None:
    class Broken(InMemoryCheckpointStorage):
        async def get_run(self, run_id: str) -> RunInfo:
            raise error

    app = create_app(greeting(), Broken())
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with run_app(app), httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        for path in ("/v1/runs/r1", "/api/workflow/Greet/status/r1"):
            reply = await client.get(path)
            assert reply.status_code == status
            assert "secret" not in reply.text
            assert "not your request" in reply.text


async def test_an_app_that_is_not_up_says_so() -> None:
    app = create_app(greeting(), InMemoryCheckpointStorage())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        assert (await client.get("/healthz")).status_code == 200
        for path in ("/readyz", "/v1/runs"):
            assert (await client.get(path)).status_code == 503
        async with run_app(app):
            assert (await client.get("/readyz")).status_code == 200
            assert (await client.get("/v1/runs")).json() == {"runs": [], "next": None}
            app.state.service.announce_stop()
            assert (await client.get("/readyz")).status_code == 503
