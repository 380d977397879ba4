"""The hosting tutorial's route of agents: workflows that are talked to, with a run for each session."""

from __future__ import annotations

import json
import string
import uuid
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from holdfast.checkpoint.receipts import TalkKey
from holdfast.checkpoint.run_info import RunInfo
from holdfast.engine.status import RunStatus
from holdfast.errors import RunNotFound
from holdfast.server.access import check_scope
from holdfast.server.calls import Call, parse_json
from holdfast.server.dialects import Python, guarded, name_in, read_flag, read_text
from holdfast.server.replies import make_reply, make_text, read_outputs
from holdfast.server.service import RunOrder, derived_run_id

_SESSION_HEADER = "x-ms-session-id"
# All other characters, and the one that escapes them, are escaped in that header.
_PLAIN_IN_HEADERS = string.punctuation.replace("%", "") + " "
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
    return [
        Route("/api/agents/{name}/run", guarded(Python(), "run", talk, _SESSION_HEADER), methods=["POST"])
    ]


async def talk(call: Call) -> Response:
    """Send a message into the run of a session, or begin it, and reply with what the run says then."""
    service = call.service
    service.find_workflow(name_in(call))
    said = _read_message(call)
    run, moved_from = await _enter(call, said)
    settled = await call.wait_for(run, _LONGEST_WAIT, moved_from) if said.waits else None
    if settled is None:
        data = {"status": "accepted", "response": "Agent request accepted", "message": said.text}
        return _reply(make_reply({**data, "session_id": said.session_id}, 202), said)
    if settled.status is RunStatus.FAILED:
        return _reply(make_reply({"error": settled.reason, "session_id": said.session_id}, 500), said)
    text = await _words_of(call, settled)
    if not said.is_json:
        return _reply(make_text(text), said)
    data = {"status": "success", "response": text, "message": said.text}
    return _reply(make_reply({**data, "session_id": said.session_id}), said)


def _reply(response: Response, said: SaidMessage) -> Response:
    response.headers[_SESSION_HEADER] = quote(said.session_id, safe=_PLAIN_IN_HEADERS)
    return response


def _read_message(call: Call) -> SaidMessage:
    request, given = call.request, _read_object(call)
    is_json = given is not None
    if given is None:
        given = {"message": read_text(call.body)}
    text = given.get("message")
    if not isinstance(text, str) or not text.strip():
        raise HTTPException(400, "The message must be a text that is not empty.")
    named = request.query_params.get("session_id") or unquote(request.headers.get(_SESSION_HEADER, ""))
    session = given.get("session_id") or named or _new_session(call)
    if not isinstance(session, str):
        raise HTTPException(400, "'session_id' must be a text.")
    told = read_flag(request.headers.get(_WAIT_HEADER, ""))
    waits = given.get("wait_for_response", True) if told is None else told
    return SaidMessage(text, session, waits is not False, is_json)


def _read_object(call: Call) -> dict[str, Any] | None:
    """Return the object that a body is; None for one that is text.

    Clients that name no type for their JSON, as curl does, mean an object with a message all the same.
    """
    kind = call.request.headers.get("content-type", "").lower()
    if "json" in kind:
        given = call.json()
        if not isinstance(given, dict):
            raise HTTPException(400, "The body must be text, or an object with 'message'.")
        return given
    if kind.startswith("text/"):
        return None
    try:
        given = call.json()
    except HTTPException:
        return None
    return given if isinstance(given, dict) and "message" in given else None


def _new_session(call: Call) -> str:
    """Return the id of a new session; a call that is repeated with its key has the same."""
    key = call.store_key
    return uuid.uuid4().hex if key is None else derived_run_id(name_in(call), call.by, key)


async def _enter(call: Call, said: SaidMessage) -> tuple[RunInfo, RunInfo | None]:
    """Return the run that has the message now, and how it stood before, if it is still to move."""
    service, by = call.service, call.by
    # Whether a message answers a question may change while it is repeated: one key stands for both.
    key = None if call.store_key is None else TalkKey(call.store_key, said.text)
    try:
        run = await service.find_run(said.session_id, name_in(call))
    except RunNotFound:
        order = RunOrder(said.text, said.session_id, key=key, by=by)
        return await service.start(name_in(call), order)
    if await service.was_said(run, key):
        return run, run if await service.has_letters(run) else None
    pending = await service.storage.list_requests(run_id=run.run_id, limit=1)
    if pending:
        check_scope(call.principal, "answer")
        answer = _answer_of(said.text, pending[0].response_schema, service.options.max_depth)
        return await service.respond(run, {pending[0].request_id: answer}, key, by), run
    return await service.send(run, said.text, None, key, by), run


def _answer_of(text: str, schema: dict[str, Any], max_depth: int) -> Any:
    """Return the answer that a text means: itself, yes or no, or JSON."""
    kinds = {str(part.get("type")) for part in (schema, *schema.get("anyOf", ()))}
    if "string" in kinds:
        return text
    word = text.strip().lower().rstrip(".!")
    if "boolean" in kinds and word in (*_YES, *_NO):
        return word in _YES
    try:
        return parse_json(text.encode(), max_depth)
    except HTTPException as error:
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
