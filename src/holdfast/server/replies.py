"""Runs, pages and values as replies."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from holdfast.checkpoint.checkpoint_info import microseconds, moment
from holdfast.checkpoint.run_info import RunInfo
from holdfast.checkpoint.storage import CheckpointStorage
from holdfast.engine.status import RunStatus
from holdfast.errors import CheckpointNotFound
from holdfast.ids import complaint_about_id
from holdfast.server.access import Principal
from holdfast.server.calls import Call, etag_of

_NO_STORE = {"Cache-Control": "no-store"}
_RANGE = re.compile(r"bytes=(\d{0,15})-(\d{0,15})")
# A run that moves may lose the checkpoint on which it stood a moment ago.
_TRIES = 5


def make_reply(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return data as JSON."""
    return Response(write_json(data), status, {**_NO_STORE, **(headers or {})}, "application/json")


def write_json(data: Any) -> bytes:
    """Return data as JSON in UTF-8, with escapes if a text contains half of a surrogate pair.

    >>> write_json(["käse", "\\udce9"])
    b'["k\\\\u00e4se","\\\\udce9"]'
    """
    try:
        return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(data, separators=(",", ":")).encode()


def make_text(text: str, status: int = 200) -> Response:
    """Return a text, without the half characters that UTF-8 cannot say."""
    return PlainTextResponse(text.encode(errors="replace"), status, _NO_STORE)


def run_form(run: RunInfo, principal: Principal) -> dict[str, Any]:
    """Return a run as lists show it; the traceback is for those who look after the server."""
    return run.to_dict() | ({} if principal.may("admin") else {"traceback": ""})


async def read_outputs(storage: CheckpointStorage, run: RunInfo) -> tuple[RunInfo, list[Any]]:
    """Return a run as it stands now, and its outputs as plain JSON."""
    for _ in range(_TRIES):
        try:
            checkpoint = await storage.load(run.checkpoint_id, values=False, plain=True)
            return run, await checkpoint.read_outputs()
        except CheckpointNotFound:
            run = await storage.get_run(run.run_id)
    raise HTTPException(503, "The run moves too fast to be read; try again.", {"Retry-After": "1"})


async def show_run(
    call: Call, run: RunInfo, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a run with its outputs and the requests that wait for answers."""
    storage = call.service.storage
    run, outputs = await read_outputs(storage, run)
    asked = await storage.list_requests(run_id=run.run_id, limit=None) if "answers" in run.waiting_for else []
    data = run_form(run, call.principal) | {
        "outputs": outputs,
        "requests": [request.to_dict() for request in asked],
    }
    return make_reply(data, status, {"ETag": etag_of(run), **(headers or {})})


async def show_change(
    call: Call, run: RunInfo, is_new: bool = False, since: RunInfo | None = None
) -> Response:
    """Reply to a change of a run: 202, or 200 with the run once it is settled, if the client waits for that.

    ``since`` is the run as it stood before a change that is still to move it on.
    """
    headers = {"Location": f"{base_of(call.request)}/v1/runs/{quote(run.run_id, safe='')}"} if is_new else {}
    if call.wait is not None:
        settled = await call.wait_for(run, call.wait, since)
        if settled is not None:
            return await show_run(call, settled, 200, headers | {"Preference-Applied": f"wait={call.wait:g}"})
        run = await call.service.find_run(run.run_id)
    return await show_run(call, run, 202, headers)


def base_of(request: Request) -> str:
    """Return the URL under which the service is called, also where it is mounted, without a slash at its end."""
    return str(request.base_url.replace(path=request.scope.get("root_path", ""))).rstrip("/")


# -- pages -----------------------------------------------------------------------------------------


def write_cursor(*parts: Any) -> str:
    """Return a place in a list as an opaque text."""
    return base64.urlsafe_b64encode(json.dumps(parts, separators=(",", ":")).encode()).decode().rstrip("=")


def read_cursor(text: str, *kinds: type) -> list[Any]:
    """Return the parts of a cursor; raise 422 if it is none.

    >>> read_cursor(write_cursor(5, "r1"), int, str)
    [5, 'r1']
    """
    try:
        parts = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True))
    except (ValueError, binascii.Error, RecursionError):
        parts = None
    if not isinstance(parts, list) or [type(part) for part in parts] != list(kinds):
        raise HTTPException(
            422, f"cursor={text[:100]!r} is no place in this list; give the 'next' of a page."
        )
    return parts


def cursor_of_run(run: RunInfo, is_newest: bool) -> str:
    """Return the place of a run in a list."""
    return write_cursor(microseconds(run.updated if is_newest else run.created), run.run_id)


def place_of_run(cursor: str) -> RunInfo:
    """Return a run that stands for a place in a list."""
    time, run_id = read_cursor(cursor, int, str)
    if complaint_about_id(run_id) or not 0 <= time < 1 << 60:
        raise HTTPException(422, "The cursor is no place in this list; give the 'next' of a page.")
    return RunInfo(run_id, "", RunStatus.WAITING, "", 0, moment(time), moment(time))


# -- values ----------------------------------------------------------------------------------------


def show_value(request: Request, value: Any) -> Response:
    """Return a value as JSON, or a text as it is if the client takes only that; all of it, or a range of bytes."""
    accepts = request.headers.get("accept", "*/*")
    is_text = isinstance(value, str) and "text/plain" in accepts and "json" not in accepts
    body = value.encode(errors="replace") if isinstance(value, str) and is_text else write_json(value)
    media_type = "text/plain; charset=utf-8" if is_text else "application/json"
    headers = {"Accept-Ranges": "bytes", "Cache-Control": "private, max-age=3600"}
    found = _RANGE.fullmatch(request.headers.get("range", "").strip())
    if found is None or (not found[1] and not found[2]):
        return Response(body, 200, headers, media_type)
    if found[1]:
        first, last = int(found[1]), int(found[2]) if found[2] else len(body) - 1
    else:
        first, last = max(0, len(body) - int(found[2])), len(body) - 1
    last = min(last, len(body) - 1)
    if first > last:
        raise HTTPException(416, "The value has no such bytes.", {"Content-Range": f"bytes */{len(body)}"})
    headers["Content-Range"] = f"bytes {first}-{last}/{len(body)}"
    return Response(body[first : last + 1], 206, headers, media_type)
