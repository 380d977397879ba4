"""The routes of Agent Framework's hosting tutorial, in the dialect of .NET and in that of Python."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.checkpoint.pending_requests import RequestRecord
from holdfast.checkpoint.run_info import RunInfo
from holdfast.engine.status import RunStatus
from holdfast.errors import HoldfastError, WrongType
from holdfast.server.access import Scope
from holdfast.server.calls import Call, admit, read_body
from holdfast.server.problems import detail_of, problem_of, status_of
from holdfast.server.replies import base_of, make_reply, make_text, read_outputs
from holdfast.server.service import KeyUsedAgain, RunOrder

_STATUS_NAMES = {
    RunStatus.COMPLETED: "Completed",
    RunStatus.FAILED: "Failed",
    RunStatus.CANCELLED: "Terminated",
}
_TRUE, _FALSE = ("true", "1", "yes", "y", "on"), ("false", "0", "no", "n", "off")
_RUN_ID = re.compile(r"(?!@)[^/\\#?\x00-\x1f\x7f-\x9f]{1,100}")
_LONGEST_WAIT, _USUAL_WAIT = 200, 10
_LONGEST_KEY = 200
_TYPE_NAMES = {"boolean": "bool", "integer": "int", "number": "float", "string": "str", "null": "NoneType"}


def name_in(call: Call) -> str:
    """Return the name of the workflow in the path of a call."""
    return str(call.request.path_params["name"])


async def find_run_in(call: Call) -> RunInfo:
    """Return the run in the path of a call, which is one of the workflow there."""
    return await call.service.find_run(str(call.request.path_params["run_id"]), name_in(call))


class StartedRun(NamedTuple):
    """A started run, and its outputs if the client waited until it was over, else None."""

    run: RunInfo
    outputs: Sequence[Any] | None = None

    @property
    def status(self) -> str | None:
        """The name of the status of a run that was waited for; None for one that only was started."""
        return None if self.outputs is None else _STATUS_NAMES.get(self.run.status)


class Dialect(Protocol):
    """Reads and writes the bodies of one dialect."""

    prefix: str

    def read_input(self, call: Call) -> Sequence[Any]:
        """Return the inputs that a body may mean; the first that the workflow takes counts."""
        ...

    def show_start(self, call: Call, outcome: StartedRun) -> Response:
        """Reply to a start."""
        ...

    async def show_status(self, call: Call, run: RunInfo) -> Response:
        """Reply with how a run stands."""
        ...

    async def respond(self, call: Call, run: RunInfo) -> Response:
        """Answer a request of a run."""
        ...

    def refuse(self, status: int, text: str) -> Response:
        """Reply with an error."""
        ...


_Handler: TypeAlias = Callable[[Call], Awaitable[Response]]


# -- both dialects ---------------------------------------------------------------------------------


def dialect_routes() -> list[Route]:
    """Return the routes of both dialects."""
    routes = []
    dialects: tuple[Dialect, ...] = (DotNet(), Python())
    for dialect in dialects:
        here = dialect.prefix
        tail = "/{request_id:path}" if isinstance(dialect, Python) else ""
        routes += [
            Route(f"{here}/{{name}}/run", guarded(dialect, "run", _starter(dialect)), methods=["POST"]),
            Route(
                f"{here}/{{name}}/status/{{run_id}}",
                guarded(dialect, "read", _teller(dialect)),
                methods=["GET"],
            ),
            Route(
                f"{here}/{{name}}/respond/{{run_id}}{tail}",
                guarded(dialect, "answer", _responder(dialect)),
                methods=["POST"],
            ),
        ]
    return routes


def guarded(
    dialect: Dialect, scope: Scope, handle: _Handler, *headers: str
) -> Callable[[Request], Awaitable[Response]]:
    """Return a handler that admits those with the scope, and replies to errors as the dialect does.

    ``headers`` are those that say what is asked for: calls that are repeated have the same there.
    """

    async def handler(request: Request) -> Response:
        try:
            call = await _admit(request, scope)
            told = (request.headers.get(name, "") for name in headers)
            return await call.once(lambda: handle(call), *told)
        except HTTPException as error:
            is_unfit = error.status_code == 422 and not isinstance(error, KeyUsedAgain)
            reply = dialect.refuse(400 if is_unfit else error.status_code, str(error.detail))
            reply.headers.update(error.headers or {})
            return reply
        except HoldfastError as error:
            status = status_of(error)
            if status >= 500:
                problem_of(error)  # which logs it
            return dialect.refuse(400 if status == 422 else status, detail_of(error))

    return handler


async def _admit(request: Request, scope: Scope) -> Call:
    """Return the call that a request makes, with the body and the idempotency key of one that changes something."""
    service, principal = await admit(request, scope)
    if request.method != "POST":
        return Call(request, service, principal)
    key = request.headers.get("idempotency-key")
    if key is not None and not 1 <= len(key) <= _LONGEST_KEY:
        raise HTTPException(400, f"'Idempotency-Key' must have 1 to {_LONGEST_KEY} characters.")
    return Call(request, service, principal, await read_body(request, service.options.max_body), key)


def _starter(dialect: Dialect) -> _Handler:
    async def start(call: Call) -> Response:
        request, name = call.request, name_in(call)
        waits, seconds, run_id = _wants_to_wait(request), _timeout(request), _run_id(request)
        workflow = call.service.find_workflow(name)
        inputs = dialect.read_input(call)
        value = next((one for one in inputs if _takes(workflow, one)), inputs[0])
        run, _ = await call.service.start(name, RunOrder(value, run_id, key=call.store_key, by=call.by))
        settled = await call.wait_for(run, seconds) if waits else None
        if settled is None or settled.status not in _STATUS_NAMES:
            return dialect.show_start(call, StartedRun(run))
        return dialect.show_start(call, StartedRun(*await read_outputs(call.service.storage, settled)))

    return start


def _takes(workflow: Any, value: Any) -> bool:
    try:
        workflow.read_input(value)
    except WrongType:
        return False
    return True


def _teller(dialect: Dialect) -> _Handler:
    async def show(call: Call) -> Response:
        return await dialect.show_status(call, await find_run_in(call))

    return show


def _responder(dialect: Dialect) -> _Handler:
    async def respond(call: Call) -> Response:
        return await dialect.respond(call, await find_run_in(call))

    return respond


def _wants_to_wait(request: Request) -> bool:
    told = read_flag(request.headers.get("x-ms-wait-for-response", ""))
    if told is not None:
        return told
    given = request.query_params.get("waitForResponse")
    wanted = False if given is None else read_flag(given)
    if wanted is None:
        raise HTTPException(400, "'waitForResponse' must be a boolean value.")
    return wanted


def read_flag(text: str) -> bool | None:
    """Return the flag that a text says, in any case; None if it says none.

    >>> read_flag("YES"), read_flag("off"), read_flag("perhaps")
    (True, False, None)
    """
    word = text.strip().lower()
    return True if word in _TRUE else False if word in _FALSE else None


def _timeout(request: Request) -> float:
    given = request.query_params.get("timeoutSeconds", str(_USUAL_WAIT))
    if not given.isascii() or not given.isdecimal() or not 1 <= int(given[:10]) <= _LONGEST_WAIT:
        raise HTTPException(400, f"'timeoutSeconds' must be a whole number from 1 to {_LONGEST_WAIT}.")
    return float(given)


def _run_id(request: Request) -> str | None:
    given = request.query_params.get("runId")
    if given is not None and _RUN_ID.fullmatch(given) is None:
        raise HTTPException(
            400, "'runId' must have 1 to 100 characters, not begin with '@', and have none of / \\ # ?."
        )
    return given


async def _pending(call: Call, run: RunInfo) -> list[RequestRecord]:
    if run.status is not RunStatus.WAITING:
        return []
    return await call.service.storage.list_requests(run_id=run.run_id, limit=None)


# -- .NET ------------------------------------------------------------------------------------------


class DotNet:
    """The dialect of .NET: camel case, texts as inputs, the last output as the result."""

    prefix = "/api/workflows"

    def read_input(self, call: Call) -> Sequence[Any]:
        text = read_text(call.body)
        try:
            return [text, call.json()]
        except HTTPException:
            return [text]

    def show_start(self, call: Call, outcome: StartedRun) -> Response:
        run_id, is_text = outcome.run.run_id, _wants_text(call.request)
        if outcome.status is None:
            message = f"Workflow orchestration started for {name_in(call)}."
            if is_text:
                return make_text(f"{message} Orchestration runId: {run_id}", 202)
            return make_reply({"runId": run_id, "message": message}, 202)
        result = outcome.outputs[-1] if outcome.outputs else None
        if is_text:
            return make_text(result if isinstance(result, str) else json.dumps(result))
        data = {"runId": run_id, "workflowStatus": outcome.status, "result": result}
        return make_reply(data | ({"error": outcome.run.reason} if outcome.run.reason else {}))

    async def show_status(self, call: Call, run: RunInfo) -> Response:
        waiting = [{"eventName": one.request_id, "input": one.data} for one in await _pending(call, run)]
        status = _STATUS_NAMES.get(run.status, "Running")
        return make_reply({"runId": run.run_id, "status": status, "waitingForInput": waiting or None})

    async def respond(self, call: Call, run: RunInfo) -> Response:
        given = call.json()
        if (
            not isinstance(given, dict)
            or not isinstance(given.get("eventName"), str)
            or "response" not in given
        ):
            raise HTTPException(400, "The body must be an object with 'eventName' and 'response'.")
        name = given["eventName"]
        await call.service.respond(run, {name: given["response"]}, call.store_key, call.by)
        data = {
            "message": "Response sent to workflow.",
            "runId": run.run_id,
            "eventName": name,
            "validated": True,
        }
        return make_reply(data, 202)

    def refuse(self, status: int, text: str) -> Response:
        return make_reply({"status": status, "error": text}, status)


def _wants_text(request: Request) -> bool:
    accepts = request.headers.get("accept", "").lower()
    return "text/" in accepts and "json" not in accepts


def read_text(body: bytes) -> str:
    """Return a body as text; raise 400 if it is none."""
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise HTTPException(400, "The body is no text in UTF-8.") from error


# -- Python ----------------------------------------------------------------------------------------


class Python:
    """The dialect of Python: durable function names, JSON or text as inputs, all outputs."""

    prefix = "/api/workflow"

    def read_input(self, call: Call) -> Sequence[Any]:
        text = read_text(call.body)
        try:
            return [call.json(), text]
        except HTTPException:
            return [text]

    def show_start(self, call: Call, outcome: StartedRun) -> Response:
        run_id = outcome.run.run_id
        if outcome.status is not None:
            data = {"instanceId": run_id, "runtimeStatus": outcome.status, "output": outcome.outputs}
            return make_reply(data | ({"error": outcome.run.reason} if outcome.run.reason else {}))
        here, name = _base(call), quote(run_id, safe="")
        data = {
            "instanceId": run_id,
            "statusQueryGetUri": f"{here}/status/{name}",
            "respondUri": f"{here}/respond/{name}/{{requestId}}",
            "message": "Workflow started",
        }
        return make_reply(data, 202)

    async def show_status(self, call: Call, run: RunInfo) -> Response:
        run, outputs = await read_outputs(call.service.storage, run)
        data: dict[str, Any] = {
            "instanceId": run.run_id,
            "runtimeStatus": _STATUS_NAMES.get(run.status, "Running"),
            "customStatus": None,
            "output": outputs if run.status in _STATUS_NAMES else None,
            "error": run.reason or None,
            "createdTime": run.created.isoformat(),
            "lastUpdatedTime": run.updated.isoformat(),
        }
        pending = await _pending(call, run)
        if pending:
            data["pendingHumanInputRequests"] = [_describe(call, run, one) for one in pending]
        return make_reply(data)

    async def respond(self, call: Call, run: RunInfo) -> Response:
        request_id = str(call.request.path_params["request_id"])
        answer = call.json()
        await call.service.respond(run, {request_id: answer}, call.store_key, call.by)
        message = "Response delivered successfully"
        return make_reply({"message": message, "instanceId": run.run_id, "requestId": request_id})

    def refuse(self, status: int, text: str) -> Response:
        return make_reply({"error": text}, status)


def _base(call: Call) -> str:
    return f"{base_of(call.request)}{Python.prefix}/{quote(name_in(call), safe='')}"


def _describe(call: Call, run: RunInfo, record: RequestRecord) -> dict[str, Any]:
    data, schema = record.data, record.response_schema
    kind = data.get("$type", "dict") if isinstance(data, dict) else type(data).__name__
    answer = schema.get("title") or _TYPE_NAMES.get(str(schema.get("type")), str(schema.get("type", "Any")))
    place = f"{quote(run.run_id, safe='')}/{quote(record.request_id, safe='')}"
    return {
        "requestId": record.request_id,
        "sourceExecutor": record.executor_id,
        "requestData": data,
        "requestType": kind,
        "responseType": answer,
        "respondUrl": f"{_base(call)}/respond/{place}",
    }
