"""The routes below ``/v1`` that look at what is stored, and tag it.

Checkpoints (``/checkpoints``, ``/diff``, and of a run its ``/checkpoints`` and ``/tree``), the requests of all runs
(``/requests``) and the store (``/store``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from starlette.exceptions import HTTPException
from starlette.responses import Response

from holdfast.checkpoint.checkpoint import Checkpoint
from holdfast.checkpoint.run_info import RunInfo
from holdfast.checkpoint.storage import CheckpointStorage
from holdfast.engine.status import RunStatus
from holdfast.errors import RunNotFound
from holdfast.graph.context import DEFAULT_SHARED_SCOPE
from holdfast.server.calls import AdminReader, Reader, Runner
from holdfast.server.forms import (
    CheckpointForm,
    CheckpointPage,
    CheckpointPartsForm,
    RequestPage,
    StoreForm,
    TagsBody,
    TreeForm,
)
from holdfast.server.replies import make_reply, read_cursor, run_form, show_value, write_cursor
from holdfast.server.run_routes import Cursor, PageSize, RunName, body_of
from holdfast.server.service import telling_of_key

router = APIRouter(prefix="/v1")

CheckpointName = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]
PartName = Literal["state", "executor", "message", "request", "output"]
_MOST_PROBLEMS = 100
# Runs of one family that a tree shows.
_MOST_RELATIVES = 1_000
_NOT_SET = object()


# -- requests --------------------------------------------------------------------------------------


@router.get("/requests", response_model=RequestPage)
async def list_requests(
    call: Reader,
    workflow: Annotated[str | None, Query(max_length=200)] = None,
    run_id: Annotated[str | None, Query(min_length=1, max_length=200)] = None,
    limit: PageSize = 50,
    cursor: Cursor = None,
) -> Response:
    """List the requests of all runs that wait for an answer, those that were asked first before others."""
    after = None if cursor is None else read_cursor(cursor, str)[0]
    found = await call.service.storage.list_requests(workflow, run_id, limit + 1, after)
    page = found[:limit]
    following = write_cursor(page[-1].cursor) if len(found) > limit else None
    return make_reply({"requests": [one.to_dict() for one in page], "next": following})


# -- checkpoints -----------------------------------------------------------------------------------


@router.get("/runs/{run_id}/checkpoints", response_model=CheckpointPage)
async def list_checkpoints(
    call: Reader, run_id: RunName, limit: PageSize = 50, cursor: Cursor = None
) -> Response:
    """List the checkpoints of a run, oldest first."""
    after = None if cursor is None else read_cursor(cursor, str)[0]
    found = await call.service.storage.list_checkpoints(run_id=run_id, limit=limit + 1, after=after)
    page = found[:limit]
    following = write_cursor(page[-1].checkpoint_id) if len(found) > limit else None
    return make_reply({"checkpoints": [one.to_dict() for one in page], "next": following})


@router.get("/checkpoints/{checkpoint_id}", response_model=CheckpointPartsForm)
async def show_checkpoint(call: Reader, checkpoint_id: CheckpointName) -> Response:
    """Show a checkpoint, and which values it holds; ``/values`` gives them one by one."""
    found = await call.service.storage.load(checkpoint_id, values=False, plain=True)
    return make_reply({"checkpoint": found.to_dict(), "parts": list(_parts_of(found))})


def _parts_of(found: Checkpoint) -> Iterator[dict[str, Any]]:
    for scope, values in found.scopes.items():
        for key, size in values.sizes().items():
            yield {"part": "state", "scope": scope, "name": key, "bytes": size}
    yield from ({"part": "executor", "name": executor_id} for executor_id in found.executor_states)
    for place, message in enumerate(found.messages):
        yield {
            "part": "message",
            "name": str(place),
            "source": message.source_id,
            "target": message.target_id,
        }
    for request in found.pending_requests:
        yield {"part": "request", "name": request.request_id, "executor_id": request.executor_id}
    yield from ({"part": "output", "name": str(place)} for place in range(len(found.outputs)))


@router.get(
    "/checkpoints/{checkpoint_id}/values",
    response_class=Response,
    responses={
        200: {"content": {"application/json": {}, "text/plain": {}}, "description": "The value."},
        206: {"content": {"application/json": {}, "text/plain": {}}, "description": "A range of its bytes."},
    },
)
async def read_value(
    call: Reader,
    checkpoint_id: CheckpointName,
    part: PartName,
    name: Annotated[
        str, Query(max_length=2000, description="The key of state, the id, or the place in the list.")
    ],
    scope: Annotated[
        str | None, Query(max_length=2000, description="Of state; else the default scope.")
    ] = None,
) -> Response:
    """Give one value of a checkpoint as plain JSON; ``Range: bytes=0-999`` gives a part of it.

    With ``Accept: text/plain`` a text is given as it is.
    """
    storage = call.service.storage
    if part == "state":
        found = await storage.load(checkpoint_id, values=False, plain=True)
        value = await found.read_state(name, _NOT_SET, scope)
        if value is _NOT_SET:
            full = await storage.load(checkpoint_id, plain=True)  # those of nested workflows have a path
            values: Mapping[str, Any] = full.scopes.get(scope or DEFAULT_SHARED_SCOPE) or {}
            value = values.get(name, _NOT_SET)
    elif part == "output":
        outputs = await (await storage.load(checkpoint_id, values=False, plain=True)).read_outputs()
        value = _item(outputs, name)
    else:
        value = _pick(await storage.load(checkpoint_id, plain=True), part, name)
    if value is _NOT_SET:
        raise HTTPException(404, f"The checkpoint has no {part} {name!r}.")
    return show_value(call.request, value)


def _item(values: list[Any], name: str) -> Any:
    return values[int(name)] if name.isdecimal() and len(name) < 10 and int(name) < len(values) else _NOT_SET


def _pick(found: Checkpoint, part: PartName, name: str) -> Any:
    if part == "executor":
        kept = found.executor_states.get(name, _NOT_SET)
        return dict(kept) if isinstance(kept, Mapping) else kept
    if part == "message":
        message = _item(found.messages, name)
        return message if message is _NOT_SET else message.data
    return next((one.data for one in found.pending_requests if one.request_id == name), _NOT_SET)


@router.post(
    "/checkpoints/{checkpoint_id}/tags",
    response_model=CheckpointForm,
    openapi_extra=body_of(TagsBody),
)
async def tag_checkpoint(call: Runner, checkpoint_id: CheckpointName) -> Response:
    """Give a checkpoint tags, or take some from it; one with a tag is kept, whatever the retention says."""
    given = call.read(TagsBody)
    storage = call.service.storage

    async def act() -> Response:
        found = await storage.load(checkpoint_id, values=False)
        await call.find_run(found.run_id, "tag")
        with telling_of_key():
            await storage.tag(checkpoint_id, *given.add, remove=given.remove, key=call.store_key, by=call.by)
        return make_reply((await storage.load(checkpoint_id, values=False)).to_dict())

    return await call.once(act)


@router.get(
    "/diff", response_class=Response, responses={200: {"content": {"application/json": {}, "text/plain": {}}}}
)
async def diff_checkpoints(
    call: Reader,
    a: Annotated[str, Query(pattern="^[0-9a-f]{64}$")],
    b: Annotated[str, Query(pattern="^[0-9a-f]{64}$")],
) -> Response:
    """Compare two checkpoints, of any runs; with ``Accept: text/plain`` for people."""
    found = await call.service.storage.diff(a, b)
    if "text/plain" in call.request.headers.get("accept", ""):
        return Response(str(found), media_type="text/plain; charset=utf-8")
    return make_reply(found.to_dict())


# -- the tree --------------------------------------------------------------------------------------


@router.get("/runs/{run_id}/tree", response_model=TreeForm, responses={200: {"content": {"text/plain": {}}}})
async def show_tree(call: Reader, run_id: RunName, limit: PageSize = 200, cursor: Cursor = None) -> Response:
    """Show the run that a run descends from, all forks of that, and their checkpoints by pages.

    With ``Accept: text/plain`` all of it is drawn, for people.
    """
    storage = call.service.storage
    run = await storage.get_run(run_id)
    if "text/plain" in call.request.headers.get("accept", ""):
        return Response(await storage.draw_tree(run_id), media_type="text/plain; charset=utf-8")
    family = await _find_family(storage, run)
    names = [member.run_id for member in family]
    current, after = (names[0], None) if cursor is None else read_cursor(cursor, str, str)
    if current not in names:
        raise HTTPException(422, "The cursor is no place in this tree; give the 'next' of a page.")
    page: list[Checkpoint] = []
    following = None
    for position, name in enumerate(names[names.index(current) :], names.index(current)):
        page += await storage.list_checkpoints(run_id=name, limit=limit + 1 - len(page), after=after or None)
        after = None
        if len(page) > limit:
            page = page[:limit]
            following = write_cursor(page[-1].run_id, page[-1].checkpoint_id)
            break
        if len(page) == limit and position + 1 < len(names):
            following = write_cursor(names[position + 1], "")
            break
    return make_reply(
        {
            "runs": [run_form(member, call.principal) for member in family],
            "checkpoints": [one.to_dict() for one in page],
            "next": following,
        }
    )


async def _find_family(storage: CheckpointStorage, run: RunInfo) -> list[RunInfo]:
    """Return the run that a run descends from, and forks of that, as far as they are there."""
    first = run
    while first.forked_from is not None:
        try:
            first = await storage.get_run(first.forked_from.run_id)
        except RunNotFound:
            break
    family = [first]
    for member in family:  # grows
        if len(family) >= _MOST_RELATIVES:
            break
        family += await storage.list_runs(forked_from=member.run_id, limit=_MOST_RELATIVES)
    return family


# -- the store -------------------------------------------------------------------------------------


@router.get("/store", response_model=StoreForm)
async def show_store(
    call: AdminReader,
    sizes: Annotated[bool, Query(description="Also what takes the room, which reads all records.")] = False,
) -> Response:
    """Show the store: its format, the number of runs by status, and runs that cannot go on here."""
    service, storage = call.service, call.service.storage
    info = await storage.store.open()
    problems = list(service.host.problems.items())[-_MOST_PROBLEMS:]
    statistics = (await storage.statistics()).to_dict() if sizes else None
    return make_reply(
        {
            "store_id": info.store_id,
            "format": f"{info.major}.{info.minor}",
            "runs": {status.value: await storage.count_runs(status=status) for status in RunStatus},
            "active": len(service.host.active),
            "problems": {run_id: f"{type(error).__name__}: {error}" for run_id, error in problems},
            "sizes": statistics,
        }
    )
