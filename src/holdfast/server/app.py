"""The ASGI app: routes, refusals, and the life of the service behind them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.checkpoint.storage import CheckpointStorage
from holdfast.errors import HoldfastError, InvalidArgument, KeyReused
from holdfast.ids import RunId
from holdfast.server import checkpoint_routes, run_routes
from holdfast.server.access import Authenticate, check_scope, find_principal
from holdfast.server.agent_route import agent_routes
from holdfast.server.calls import CallMemory
from holdfast.server.dialects import dialect_routes
from holdfast.server.openapi import describe_api
from holdfast.server.options import ServerOptions
from holdfast.server.problems import make_problem, problem_of
from holdfast.server.replies import make_reply
from holdfast.server.service import KeyUsedAgain, Service
from holdfast.workflow import Workflow

_READY_SECONDS = 2.0
# What pages of other origins may read, besides the usual.
_EXPOSED = (
    "ETag",
    "Location",
    "Retry-After",
    "Preference-Applied",
    "Content-Range",
    "Accept-Ranges",
    "x-ms-session-id",
)
_DESCRIPTION = "Runs of workflows: start, watch, answer, fork and cancel them."


def create_app(
    workflows: Workflow | Sequence[Workflow],
    storage: CheckpointStorage,
    authenticate: Authenticate | None = None,
    options: ServerOptions | None = None,
) -> FastAPI:
    """Return an ASGI app that serves workflows whose runs are in a storage, and drives these runs while it is up.

    Several builds of one name may be given, the newest first: it gets new runs, and older runs go on with theirs.
    ``authenticate`` finds the ``Principal`` of a request, as ``AccessKeys`` does; without it everyone may do
    everything, so the app around it has to guard it. The storage stays open when the app ends.

    To mount it in another app, run its life with ``run_app`` in the lifespan of that.

    >>> from holdfast import InMemoryCheckpointStorage, WorkflowBuilder, executor
    >>> @executor
    ... def shout(text: str) -> str:
    ...     return text.upper()
    >>> workflow = WorkflowBuilder(name="Shout").set_start_executor(shout).build()
    >>> app = create_app(workflow, InMemoryCheckpointStorage())
    >>> "/v1/workflows/Shout/runs" in app.openapi()["paths"]
    True
    """
    if authenticate is not None and not callable(authenticate):
        raise InvalidArgument(
            "authenticate is a function that takes a request and returns a Principal or None"
        )
    builds = [workflows] if isinstance(workflows, Workflow) else list(workflows)
    service = Service(builds, storage, options or ServerOptions())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    app = FastAPI(
        title="Holdfast",
        version=_version(),
        description=_DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.service, app.state.authenticate, app.state.memory = service, authenticate, CallMemory()
    app.include_router(run_routes.router)
    app.include_router(checkpoint_routes.router)
    app.router.routes.extend([*dialect_routes(), *agent_routes()])
    _add_health(app, service)
    _add_document(app, service)
    _add_refusals(app)
    given = service.options
    if given.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(given.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=_EXPOSED,
        )
    if given.allowed_hosts:
        app.add_middleware(HostCheck, allowed=given.allowed_hosts)
    return app


def run_app(app: FastAPI) -> AbstractAsyncContextManager[Any]:
    """Return the life of an app that ``create_app`` made, for the lifespan of an app in which it is mounted.

    >>> import asyncio
    >>> from holdfast import InMemoryCheckpointStorage, WorkflowBuilder, executor
    >>> @executor
    ... def shout(text: str) -> str:
    ...     return text.upper()
    >>> app = create_app(WorkflowBuilder(name="Shout").set_start_executor(shout).build(), InMemoryCheckpointStorage())
    >>> async def main() -> bool:
    ...     async with run_app(app):
    ...         return app.state.service.is_ready
    >>> asyncio.run(main())
    True
    """
    return app.router.lifespan_context(app)


def _version() -> str:
    try:
        return version("holdfast")
    except PackageNotFoundError:
        return "0+unknown"


def _add_health(app: FastAPI, service: Service) -> None:
    open_to_all: dict[str, Any] = {"openapi_extra": {"security": []}, "response_class": PlainTextResponse}

    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz", **open_to_all)
    async def check_health() -> Response:
        """Say that the process answers."""
        return PlainTextResponse("ok\n")

    @app.head("/readyz", include_in_schema=False)
    @app.get("/readyz", **open_to_all)
    async def check_ready() -> Response:
        """Say whether it takes requests: it is up, nobody stops it, and its store can be read."""
        if service.is_ready:
            try:
                async with asyncio.timeout(_READY_SECONDS):
                    await service.storage.store.head(RunId("ready"))
                return PlainTextResponse("ready\n")
            except (HoldfastError, TimeoutError):
                pass
        return make_problem(503, "The service is not ready.", headers={"Retry-After": "1"})


def _add_document(app: FastAPI, service: Service) -> None:
    known: dict[str, Any] = {}

    def describe() -> dict[str, Any]:
        if not known:
            known.update(describe_api(app, service.workflows))
        return known

    app.openapi = describe  # type: ignore[method-assign]

    @app.get("/openapi.json", include_in_schema=False)
    async def show_document(request: Request) -> Response:
        check_scope(await find_principal(app.state.authenticate, request), "read")
        root = request.scope.get("root_path", "")
        return make_reply({**describe(), "servers": [{"url": root}]} if root else describe())


def _add_refusals(app: FastAPI) -> None:
    @app.exception_handler(HoldfastError)
    async def refuse(_: Request, error: HoldfastError) -> Response:
        return problem_of(error)

    @app.exception_handler(HTTPException)
    async def refuse_call(_: Request, error: HTTPException) -> Response:
        kind = KeyReused.__name__ if isinstance(error, KeyUsedAgain) else None
        return make_problem(error.status_code, str(error.detail), kind, error.headers)

    @app.exception_handler(RequestValidationError)
    async def refuse_arguments(_: Request, error: RequestValidationError) -> Response:
        told = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:5])
        return make_problem(422, f"An argument does not fit: {told}.")

    @app.exception_handler(Exception)
    async def fail(_: Request, __: Exception) -> Response:
        return make_problem(500, "It was not your request; the log of the server has more.")


class HostCheck:
    """Refuses requests that call the service by another name, as a web page does that rebinds a name of its own."""

    def __init__(self, app: ASGIApp, allowed: Sequence[str]) -> None:
        self._app = app
        self._allowed = frozenset(name.lower() for name in allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        names = [_name_of_host(value) for name, value in scope.get("headers", ()) if name == b"host"]
        if scope["type"] != "http" or (len(names) == 1 and names[0] in self._allowed):
            await self._app(scope, receive, send)
            return
        refusal: Callable[..., Any] = make_problem(421, "The service is not called by this name.")
        await refusal(scope, receive, send)


def _name_of_host(header: bytes) -> str:
    """Return the name in a Host header, without the port.

    >>> _name_of_host(b"LOCALHOST:8080"), _name_of_host(b"[::1]:80")
    ('localhost', '[::1]')
    """
    text = header.decode("latin-1").lower()
    return text.partition("]")[0] + "]" if text.startswith("[") else text.partition(":")[0]
