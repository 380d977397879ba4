"""The routes below ``/v1`` of workflows (``/workflows``) and runs (``/runs``), without those of their checkpoints."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Path, Query
from pydantic import AwareDatetime, BeforeValidator
from starlette.exceptions import HTTPException
from starlette.responses import Response

from holdfast.checkpoint.run_info import RunInfo
from holdfast.runtime.durable.fork_edits import ForkEdits
from holdfast.server.access import check_scope
from holdfast.server.calls import Answerer, Call, Reader, Runner, check_match, seconds_to_wait
from holdfast.server.event_stream import EventStream, is_there
from holdfast.server.forms import (
    EditsBody,
    ForkBody,
    MessageBody,
    NoBody,
    ResponsesBody,
    ResumeBody,
    RunPage,
    RunResultForm,
    StartBody,
    StatusName,
    WorkflowForm,
    WorkflowPage,
)
from holdfast.server.replies import (
    cursor_of_run,
    make_reply,
    place_of_run,
    run_form,
    show_change,
    show_run,
)
from holdfast.server.service import ForkOrder, ResumeOrder, RunOrder

router = APIRouter(prefix="/v1")

# More than any checkpoint has messages, and fewer than a number may have.
_MOST_DIGITS = 9
RunName = Annotated[str, Path(min_length=1, max_length=200)]


def _check_moment(text: str) -> str:
    if not _MOMENT.match(text):  # a number would be taken for seconds since 1970
        raise ValueError("must be a date and time with a zone, like 2026-03-01T12:00:00Z")
    return text


_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]")
Moment = Annotated[AwareDatetime, BeforeValidator(_check_moment)]
PageSize = Annotated[int, Query(ge=1, le=1000)]
Cursor = Annotated[str | None, Query(max_length=2000, pattern="^[A-Za-z0-9_-]+$")]


def body_of(model: type, required: bool = True) -> dict[str, Any]:
    """Return the description of a body that is read as a model."""
    reference = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": reference}}}}


ACCEPTED: dict[int | str, Any] = {202: {"model": RunResultForm, "description": "Accepted; the run goes on."}}


# -- workflows -------------------------------------------------------------------------------------


@router.get("/workflows", response_model=WorkflowPage)
async def list_workflows(call: Reader) -> Response:
    """List the workflows that are served here, with the schemas of their inputs and outputs."""
    found = [
        {
            "name": workflow.name,
            "fingerprint": workflow.fingerprint,
            "input_schema": workflow.input_schema,
            "output_schema": workflow.output_schema,
        }
        for workflow in call.service.workflows.values()
    ]
    return make_reply({"workflows": found})


@router.get("/workflows/{name}", response_model=WorkflowForm)
async def show_workflow(call: Reader, name: RunName) -> Response:
    """Show a workflow: its executors, edges and schemas."""
    return make_reply(call.service.find_workflow(name).to_dict())


@router.get(
    "/workflows/{name}/graph",
    responses={200: {"content": {"application/json": {}, "text/vnd.mermaid": {}, "text/vnd.graphviz": {}}}},
)
async def show_graph(
    call: Reader, name: RunName, format: Literal["json", "mermaid", "dot"] = "json"
) -> Response:
    """Show the graph of a workflow as JSON, as Mermaid text, or for Graphviz."""
    workflow = call.service.find_workflow(name)
    if format == "mermaid":
        return Response(workflow.to_mermaid(), media_type="text/vnd.mermaid; charset=utf-8")
    if format == "dot":
        return Response(workflow.to_dot(), media_type="text/vnd.graphviz; charset=utf-8")
    kept = ("name", "fingerprint", "start", "executors", "edges", "workflows")
    data = workflow.to_dict()
    return make_reply({key: data[key] for key in kept})


@router.post(
    "/workflows/{name}/runs",
    response_model=RunResultForm,
    responses=ACCEPTED,
    openapi_extra=body_of(StartBody),
)
async def start_run(call: Runner, name: RunName) -> Response:
    """Start a run: 202 with its id, or with ``Prefer: wait=30`` 200 once it is over or waits for someone."""
    given = call.read(StartBody)

    async def act() -> Response:
        order = RunOrder(given.input, given.run_id, given.if_exists, call.store_key, call.by)
        run, since = await call.service.start(name, order)
        return await show_change(call, run, is_new=True, since=since)

    return await call.once(act)


# -- runs ------------------------------------------------------------------------------------------


@router.get("/runs", response_model=RunPage)
async def list_runs(
    call: Reader,
    workflow: Annotated[str | None, Query(max_length=200)] = None,
    status: StatusName | None = None,
    interrupted: bool | None = None,
    text: Annotated[str | None, Query(min_length=1, max_length=200)] = None,
    forked_from: Annotated[str | None, Query(min_length=1, max_length=200)] = None,
    created_after: Moment | None = None,
    created_before: Moment | None = None,
    updated_after: Moment | None = None,
    updated_before: Moment | None = None,
    order: Literal["newest", "oldest"] = "newest",
    limit: PageSize = 50,
    cursor: Cursor = None,
) -> Response:
    """List runs, the last changed first, or with ``order=oldest`` as they were created."""
    is_newest = order == "newest"
    found = await call.service.storage.list_runs(
        workflow,
        status,
        interrupted,
        limit + 1,
        None if cursor is None else place_of_run(cursor),
        newest_first=is_newest,
        created_after=created_after,
        created_before=created_before,
        updated_after=updated_after,
        updated_before=updated_before,
        text=text,
        forked_from=forked_from,
    )
    page = found[:limit]
    following = cursor_of_run(page[-1], is_newest) if len(found) > limit else None
    return make_reply({"runs": [run_form(run, call.principal) for run in page], "next": following})


@router.get("/runs/{run_id}", response_model=RunResultForm)
async def show_one_run(
    call: Reader,
    run_id: RunName,
    prefer: Annotated[
        str | None, Header(max_length=1000, description="'wait=30' waits until it is settled.")
    ] = None,
) -> Response:
    """Show a run with its outputs and open requests; with ``Prefer: wait=30`` once it is settled."""
    run = await call.find_run(run_id)
    seconds = seconds_to_wait(prefer, call.service.options)
    settled = None if seconds is None else await call.wait_for(run, seconds)
    if settled is not None:
        return await show_run(call, settled, 200, {"Preference-Applied": f"wait={seconds:g}"})
    return await show_run(call, run if seconds is None else await call.find_run(run_id))


@router.get(
    "/runs/{run_id}/events",
    response_class=Response,
    responses={
        200: {"content": {"text/event-stream": {}}, "description": "Server-sent events."},
        204: {"description": "All events of a run that is over were seen."},
    },
)
async def watch_run(
    call: Reader,
    run_id: RunName,
    after: Annotated[str | None, Query(pattern=r"^\d{1,15}\.\d{1,15}$")] = None,
    until: Literal["over", "rest", "never"] = "over",
    last_event_id: Annotated[str | None, Header(pattern=r"^\d{1,15}\.\d{1,15}$")] = None,
) -> Response:
    """Stream the durable events of a run, whichever process drives it, and parts of outputs if this one does.

    ``Last-Event-ID`` goes on behind an event without a gap or a double. The stream ends with an event ``end`` when the
    run is over, with ``until=rest`` also when it waits for someone. A client that comes back then gets 204, on which
    browsers stop.
    """
    run = await call.find_run(run_id)
    seen = last_event_id or after
    if (
        seen is not None
        and is_there(run, until)
        and not await call.service.storage.list_events(run_id, seen, 1)
    ):
        return Response(status_code=204)
    stream: EventStream = call.service.watch(run, seen, until)
    return stream


@router.get(
    "/runs/{run_id}/event-list",
    response_class=Response,
    responses={200: {"content": {"application/json": {}}}},
)
async def list_run_events(
    call: Reader,
    run_id: RunName,
    after: Annotated[str | None, Query(pattern=r"^\d{1,15}\.\d{1,15}$")] = None,
    limit: PageSize = 200,
) -> Response:
    """List the durable events of a run that are there now; ``next`` is the ``after`` of the next page."""
    events = await call.service.storage.list_events(run_id, after, limit)
    last = next((event.event_id for event in reversed(events) if event.event_id is not None), None)
    is_full = len(events) >= limit
    return make_reply({"events": [event.to_dict() for event in events], "next": last if is_full else None})


@router.post(
    "/runs/{run_id}/responses",
    response_model=RunResultForm,
    responses=ACCEPTED,
    openapi_extra=body_of(ResponsesBody),
)
async def respond(call: Answerer, run_id: RunName) -> Response:
    """Answer requests of a run, all or none; they are checked against the schemas of the requests."""
    given = call.read(ResponsesBody)

    async def act() -> Response:
        run = await call.find_run(run_id, "respond")
        moves = await call.service.moves_by(run, call.store_key, "respond")
        answered = await call.service.respond(run, given.responses, call.store_key, call.by)
        return await show_change(call, answered, since=answered if moves else None)

    return await call.once(act)


@router.post(
    "/runs/{run_id}/messages",
    response_model=RunResultForm,
    responses=ACCEPTED,
    openapi_extra=body_of(MessageBody),
)
async def send_message(call: Runner, run_id: RunName) -> Response:
    """Send a further message to a run, to its start executor or to another one; also if the run is over."""
    given = call.read(MessageBody)

    async def act() -> Response:
        run = await call.find_run(run_id, "message")
        moves = await call.service.moves_by(run, call.store_key, "message")
        sent = await call.service.send(run, given.message, given.target_id, call.store_key, call.by)
        return await show_change(call, sent, since=sent if moves else None)

    return await call.once(act)


@router.post(
    "/runs/{run_id}/cancel",
    response_model=RunResultForm,
    responses=ACCEPTED,
    openapi_extra=body_of(NoBody, required=False),
)
async def cancel_run(call: Runner, run_id: RunName) -> Response:
    """Cancel a run: at once if nobody else drives it, else whoever does ends it soon."""
    call.read(NoBody)

    async def act() -> Response:
        run = await call.find_run(run_id, "cancel")
        return await show_change(call, await call.service.cancel(run, call.store_key, call.by))

    return await call.once(act)


@router.post(
    "/runs/{run_id}/resume",
    response_model=RunResultForm,
    responses=ACCEPTED,
    openapi_extra=body_of(ResumeBody, required=False),
)
async def resume_run(call: Runner, run_id: RunName) -> Response:
    """Go on with a run that failed, was stopped or cancelled, or go back to one of its checkpoints."""
    given = call.read(ResumeBody)
    if given.take_over or given.allow_graph_change:
        check_scope(call.principal, "admin")

    async def act() -> Response:
        run = await call.find_run(run_id, "resume")
        order = ResumeOrder(
            given.checkpoint_id, given.take_over, given.allow_graph_change, call.store_key, call.by
        )
        return await show_change(call, await call.service.resume(run, order))

    return await call.once(act)


@router.post(
    "/runs/{run_id}/fork",
    response_model=RunResultForm,
    responses=ACCEPTED,
    openapi_extra=body_of(ForkBody, required=False),
)
async def fork_run(call: Runner, run_id: RunName) -> Response:
    """Begin a new run at a checkpoint of this one, with edits; this one stays as it is.

    To answer its requests needs the scope ``answer``, too.
    """
    given = call.read(ForkBody)
    if given.edits.responses:
        check_scope(call.principal, "answer")

    async def act() -> Response:
        run = await call.find_run(run_id, "fork")
        new_id = given.run_id or _id_of_fork(call, run)
        order = ForkOrder(new_id, given.model_dump_json(), call.store_key, call.by)
        fork = await call.service.find_fork(run, order)
        if fork is None:  # also if the key was used and the server killed before it stored the fork
            check_match(call.if_match, run)
            fork = await _make_fork(call, run, given, order)
        return await show_change(call, fork, is_new=True)

    return await call.once(act)


def _id_of_fork(call: Call, run: RunInfo) -> str | None:
    """Return the id of the fork that a key stands for."""
    if call.store_key is None:
        return None
    named = hashlib.sha256(f"{run.run_id}\n{call.store_key}".encode()).hexdigest()[:32]
    return f"fork-{named}"


async def _make_fork(call: Call, run: RunInfo, given: ForkBody, order: ForkOrder) -> RunInfo:
    checkpoint_id = given.checkpoint_id or run.checkpoint_id
    place = await call.service.storage.load(checkpoint_id, values=False)
    if place.run_id != run.run_id:
        raise HTTPException(422, f"Checkpoint {checkpoint_id!r} is one of run {place.run_id!r}.")
    edits = await read_edits(call, checkpoint_id, given.edits)
    return await call.service.fork(run, checkpoint_id, edits, order)


async def read_edits(call: Call, checkpoint_id: str, given: EditsBody) -> ForkEdits:
    """Return edits as the core takes them, with messages and values of the types that they replace."""
    checkpoint = await call.service.storage.load(checkpoint_id, plain=True)
    workflow = call.service.workflows.get(checkpoint.workflow_name)
    messages: dict[int, Any] = {}
    targets = [message.target_id for message in checkpoint.messages]
    for place, value in given.messages.items():
        if not place.isdecimal() or len(place) > _MOST_DIGITS or int(place) >= len(targets):
            raise HTTPException(422, f"The checkpoint has no message {place!r}; it has {len(targets)}.")
        is_known = workflow is not None and targets[int(place)] in workflow.graph.executors
        messages[int(place)] = (
            workflow.read_input(value, targets[int(place)]) if is_known and workflow is not None else value
        )
    messages |= dict.fromkeys(given.drop_messages, ForkEdits.DROP)
    sent = [
        (one.target_id, one.message if workflow is None else workflow.read_input(one.message, one.target_id))
        for one in given.send
    ]
    return ForkEdits(
        {(one.scope, one.key) if one.scope is not None else one.key: one.value for one in given.state},
        messages,
        sent,
        given.requests | dict.fromkeys(given.drop_requests, ForkEdits.DROP),
        given.responses,
    )
