"""The service as an ASGI function app, called as the worker of Azure Functions calls it."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import azure.functions as func
import pytest

from holdfast import SqliteCheckpointStorage
from holdfast.server import AccessKeys, create_app
from tests.service.shop import all_workflows

HOST = "https://shop.azurewebsites.net"
Call = Callable[..., Awaitable[Any]]


@pytest.fixture
async def call(tmp_path: Path) -> AsyncIterator[Call]:
    """Give a function that calls the function app; it begins with the first call, as on Azure."""
    keys = AccessKeys()
    token = keys.add("kim")
    async with SqliteCheckpointStorage(tmp_path / "runs.db") as storage:
        app = func.AsgiFunctionApp(create_app(all_workflows(), storage, keys), func.AuthLevel.FUNCTION)
        (function,) = app.get_functions()
        assert json.loads(function.get_function_json())["bindings"][0]["route"] == "/{*route}"

        async def send(method: str, path: str, body: Any = None, **headers: str) -> Any:
            address, _, query = path.partition("?")
            request = func.HttpRequest(
                method=method,
                url=HOST + path,
                headers={"host": "shop.azurewebsites.net", "authorization": f"Bearer {token}", **headers},
                params=dict(part.split("=") for part in query.split("&") if part),
                route_params={"route": address.lstrip("/")},
                body=b"" if body is None else json.dumps(body).encode(),
            )
            return await function.get_user_function()(request, None)

        yield send
        await app.middleware.notify_shutdown()
        app.startup_task_done = False  # else it is shut down once more when it is collected


async def test_runs_are_started_answered_and_read(call: Call) -> None:
    order = {"input": {"customer": "Ada"}, "run_id": "r1"}
    begun = await call("POST", "/v1/workflows/Refunds/runs", order, prefer="wait=20")
    run = json.loads(begun.get_body())
    assert (begun.status_code, run["status"]) == (200, "waiting")
    assert begun.headers["location"] == f"{HOST}/v1/runs/r1"
    answers = {"responses": {run["requests"][0]["request_id"]: {"approved": True}}}
    done = await call("POST", "/v1/runs/r1/responses", answers, prefer="wait=20")
    assert json.loads(done.get_body())["outputs"] == ["Ada gets 1"]
    stream = await call("GET", "/v1/runs/r1/events")  # complete, since the run is over
    assert stream.mimetype.startswith("text/event-stream")
    assert stream.get_body().rstrip().endswith(b'"status": "completed"}')
    problem = await call("GET", "/v1/runs/nobody")
    assert (problem.status_code, problem.mimetype) == (404, "application/problem+json")


async def test_the_routes_of_the_tutorial_stand_below_api(call: Call) -> None:
    waits = "?waitForResponse=true&timeoutSeconds=20"
    started = await call("POST", f"/api/workflow/Nested/run{waits}", {"customer": "Ada"})
    run = json.loads(started.get_body())
    path = run["statusQueryGetUri"].removeprefix(HOST)
    (asked,) = json.loads((await call("GET", path)).get_body())["pendingHumanInputRequests"]
    assert "%2F" in asked["respondUrl"]
    answered = await call("POST", asked["respondUrl"].removeprefix(HOST), {"approved": True})
    assert answered.status_code == 200, answered.get_body()
    net = await call("POST", f"/api/workflows/Greet/run{waits}", "kelp")
    assert json.loads(net.get_body())["workflowStatus"] == "Completed"
