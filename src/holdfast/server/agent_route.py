"""The hosting tutorial's route of agents: workflows that are talked to, with a run for each session."""

from __future__ import annotations

import json
import uuid
from typing import Any, NamedTuple
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from holdfast.checkpoint.run_info import RunInfo
from holdfast.engine.status import RunStatus
from holdfast.errors import RunNotFound
from holdfast.server.calls import Call
from holdfast.server.dialects import Python, guarded, name_in, read_flag, read_text
from holdfast.server.replies import read_outputs
from holdfast.server.service import RunOrder, derived_run_id

_SESSION_HEADER = "x-ms-session-id"
_WAIT_HEADER = "x-ms-wait-for-response"
_LONGEST_WAIT = 200.0
_YES, _NO = ("yes", "y", "true"), ("no", "n", "false")


class SaidMessage(NamedTuple):
    """A message to an agent, as a request has it."""

    text: str
    session_id: str
    waits: bool
    is_json: bool
    """True if the reply should be JSON, as the request was."""


def agent_routes() -> list[Route]:
    """Return the route by which workflows are talked to."""
    return [Route("/api/agents/{name}/run", guarded(Python(), "run", talk), methods=["POST"])]


async def talk(call: Call) -> Response:
    """Send a message into the run of a session, or begin it, and reply with what the run says then."""
    service = call.service
    service.find_workflow(name_in(call))
    said = _read_message(call)
    run, moved_from = await _enter(call, said)
    settled = await service.wait(run, _LONGEST_WAIT, moved_from) if said.waits else None
    if settled is None:
        data = {"status": "accepted", "response": "Agent request accepted", "message": said.text}
        return _reply(JSONResponse({**data, "session_id": said.session_id}, 202), said)
    if settled.status is RunStatus.FAILED:
        return _reply(JSONResponse({"error": settled.reason, "session_id": said.session_id}, 500), said)
    text = await _words_of(call, settled)
    if not said.is_json:
        return _reply(PlainTextResponse(text), said)
    data = {"status": "success", "response": text, "message": said.text}
    return _reply(JSONResponse({**data, "session_id": said.session_id}), said)


def _reply(response: Response, said: SaidMessage) -> Response:
    session = said.session_id  # headers are ASCII
    response.headers[_SESSION_HEADER] = session if session.isascii() else quote(session)
    return response


def _read_message(call: Call) -> SaidMessage:
    request = call.request
    is_json = "json" in request.headers.get("content-type", "").lower()
    given: dict[str, Any] = {"message": read_text(call.body)}
    if is_json:
        given = call.json()
        if not isinstance(given, dict):
            raise HTTPException(400, "The body must be text, or an object with 'message'.")
    text = given.get("message")
    if not isinstance(text, str) or not text.strip():
        raise HTTPException(400, "The message must be a text that is not empty.")
    session = given.get("session_id") or request.query_params.get("session_id") or _new_session(call)
    if not isinstance(session, str):
        raise HTTPException(400, "'session_id' must be a text.")
    told = read_flag(request.headers.get(_WAIT_HEADER, ""))
    waits = given.get("wait_for_response", True) if told is None else told
    return SaidMessage(text, session, waits is not False, is_json)


def _new_session(call: Call) -> str:
    """Return the id of a new session; a call that is repeated with its key has the same."""
    key = call.store_key
    return uuid.uuid4().hex if key is None else derived_run_id(name_in(call), call.by, key)


async def _enter(call: Call, said: SaidMessage) -> tuple[RunInfo, RunInfo | None]:
    """Return the run that has the message now, and how it stood before, if it is still to move."""
    service, by, key = call.service, call.by, call.store_key
    try:
        run = await service.find_run(said.session_id, name_in(call))
    except RunNotFound:
        order = RunOrder(said.text, said.session_id, key=key, by=by)
        return await service.start(name_in(call), order)
    used = await service.find_use_of_key(run, key)
    if used is not None:
        since = run if await service.moves_by(run, key) else None
        if used == "message":  # it is compared with the one that came; of answers only the receipt is there
            await service.send(run, said.text, None, key, by)
        return run, since
    pending = await service.storage.list_requests(run_id=run.run_id, limit=1)
    if pending:
        answer = _answer_of(said.text, pending[0].response_schema)
        return await service.respond(run, {pending[0].request_id: answer}, key, by), run
    return await service.send(run, said.text, None, key, by), run


def _answer_of(text: str, schema: dict[str, Any]) -> Any:
    """Return the answer that a text means: itself, yes or no, or JSON."""
    kinds = {str(part.get("type")) for part in (schema, *schema.get("anyOf", ()))}
    if "string" in kinds:
        return text
    word = text.strip().lower().rstrip(".!")
    if "boolean" in kinds and word in (*_YES, *_NO):
        return word in _YES
    try:
        return json.loads(text)
    except ValueError as error:
        raise HTTPException(
            400, f"The run asks for an answer that fits this schema: {json.dumps(schema)}"
        ) from error


async def _words_of(call: Call, run: RunInfo) -> str:
    """Return the question that a run asks, else all that it gave out since the last message."""
    pending = await call.service.storage.list_requests(run_id=run.run_id, limit=1)
    if pending:
        return _words(pending[0].data)
    _, outputs = await read_outputs(call.service.storage, run)
    return "\n\n".join(map(_words, outputs))


def _words(plain: Any) -> str:
    if isinstance(plain, dict):
        for name in ("question", "text"):
            if isinstance(plain.get(name), str):
                return str(plain[name])
        if isinstance(plain.get("messages"), list) and plain["messages"]:
            return _words(plain["messages"][-1])
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
