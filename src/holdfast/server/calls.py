"""The calls of clients: who calls, the JSON of the body, how long to wait, and the memory of repeated calls."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Header, Request
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from holdfast.checkpoint.checkpoint_info import microseconds
from holdfast.checkpoint.receipts import Verb
from holdfast.checkpoint.run_info import RunInfo
from holdfast.server.access import Authenticate, Principal, Scope, check_scope, find_principal
from holdfast.server.options import ServerOptions
from holdfast.server.service import KeyUsedAgain, Service

Model = TypeVar("Model", bound=BaseModel)

_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,9})", re.IGNORECASE)
_OPENERS, _CLOSERS = frozenset(b"[{"), frozenset(b"]}")
_QUOTE, _ESCAPE = ord('"'), ord("\\")
# Ways to wait, not part of what is asked for.
_WAITING = frozenset({"waitForResponse", "timeoutSeconds"})
_MOST_REMEMBERED, _MOST_BYTES = 10_000, 64_000_000
_REMEMBERED_SECONDS = 86_400.0


# -- bodies ----------------------------------------------------------------------------------------


async def read_body(request: Request, limit: int) -> bytes:
    """Return the body of a request; raise 413 if it is longer than allowed, without reading all of it."""
    told = request.headers.get("content-length", "")
    if told.isdecimal() and int(told) > limit:
        raise _too_long(limit)
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > limit:
                raise _too_long(limit)
            parts.append(part)
    except ClientDisconnect as error:
        raise HTTPException(400, "The client left before the end of the body.") from error
    return b"".join(parts)


def _too_long(limit: int) -> HTTPException:
    return HTTPException(413, f"The body has more than {limit:,} bytes.", {"Connection": "close"})


def parse_json(body: bytes, max_depth: int) -> Any:
    """Return the JSON of a body in UTF-8; raise 400 if it is none, and 422 if it is too deep or has half a character.

    >>> parse_json(b'{"a": [1]}', 2)
    {'a': [1]}
    """
    if depth_of(body) > max_depth:
        raise HTTPException(422, f"The JSON is nested more than {max_depth} levels deep.")
    try:
        value = json.loads(body.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"The body is no JSON: {str(error)[:200]}.") from error
    if b"\\ud" in body.lower():
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise HTTPException(422, "The JSON has a text with half of a surrogate pair.") from error
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not part of JSON")


def depth_of(body: bytes) -> int:
    """Return how deep arrays and objects of a JSON text are nested; it need not be valid.

    >>> depth_of(b'[{"a": "[[["}]')
    2
    """
    depth = deepest = 0
    is_text = is_escaped = False
    if body.count(b"[") + body.count(b"{") < 2:  # most bodies are small and flat
        return 1
    for character in body:
        if is_text:
            if is_escaped:
                is_escaped = False
            elif character == _ESCAPE:
                is_escaped = True
            elif character == _QUOTE:
                is_text = False
        elif character == _QUOTE:
            is_text = True
        elif character in _OPENERS:
            depth += 1
            deepest = max(deepest, depth)
        elif character in _CLOSERS:
            depth -= 1
    return deepest


# -- the head of a run -----------------------------------------------------------------------------


def etag_of(run: RunInfo) -> str:
    """Return the mark of a run's head: another one after every change of checkpoint, status or owner."""
    return f'"{run.checkpoint_id[:16]}.{microseconds(run.updated):x}"'


def check_match(if_match: str | None, run: RunInfo) -> None:
    """Raise 412 unless a run stands where its client thinks."""
    if if_match is None or if_match.strip() == "*":
        return
    if etag_of(run) not in [one.strip() for one in if_match.split(",")]:
        raise HTTPException(412, f"Run {run.run_id!r} has moved on; read it again.", {"ETag": etag_of(run)})


# -- calls that are repeated -----------------------------------------------------------------------


@dataclass
class _Remembered:
    digest: bytes
    reply: asyncio.Future[Response]
    since: float = field(default_factory=monotonic)
    size: int = 0
    """The bytes of the body of the reply, once it is there."""


class CallMemory:
    """Remembers replies by idempotency key, so that a repeated call gets the reply of the first.

    It is of this process. The storage makes sure that each call happens once, whoever repeats it and wherever: a call
    that was made at another server, or before a restart, is told how the run stands now.
    """

    def __init__(self) -> None:
        self._calls: OrderedDict[tuple[str, ...], _Remembered] = OrderedDict()
        self._size = 0
        """The bytes of the bodies of all replies."""

    async def once(
        self, name: tuple[str, ...], digest: bytes, act: Callable[[], Awaitable[Response]]
    ) -> Response:
        """Return the reply of the first call of a name; raise 422 if that had another body."""
        while (known := self._calls.get(name)) is not None:
            if monotonic() - known.since > _REMEMBERED_SECONDS:
                self._forget(name)
                break
            if known.digest != digest:
                raise KeyUsedAgain
            try:
                return await asyncio.shield(known.reply)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not known.reply.cancelled() or (task is not None and task.cancelling()):
                    raise  # this call was cancelled, not the first alone
        known = self._calls[name] = _Remembered(digest, asyncio.get_running_loop().create_future())
        try:
            reply = await act()
        except BaseException as error:
            if self._calls.get(name) is known:
                del self._calls[name]
            if not known.reply.done():
                if isinstance(error, Exception):
                    known.reply.set_exception(error)
                    known.reply.exception()  # retrieved: the first caller has it
                else:
                    known.reply.cancel()
            raise
        if not known.reply.done():
            known.reply.set_result(reply)
        if self._calls.get(name) is known:  # else it was forgotten while it was under way
            known.size = len(reply.body)
            self._size += known.size
        while self._calls and (len(self._calls) > _MOST_REMEMBERED or self._size > _MOST_BYTES):
            self._forget(next(iter(self._calls)))
        return reply

    def _forget(self, name: tuple[str, ...]) -> None:
        self._size -= self._calls.pop(name).size


# -- the call itself -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """A request of a client that may do what it asks for."""

    request: Request
    service: Service
    principal: Principal
    body: bytes = b""
    key: str | None = None
    if_match: str | None = None
    wait: float | None = None

    @property
    def by(self) -> str | None:
        """The person or program that calls."""
        return self.principal.by

    def read(self, model: type[Model]) -> Model:
        """Return the body as a model; an empty one has no fields."""
        value = parse_json(self.body, self.service.options.max_depth) if self.body.strip() else {}
        try:
            return model.model_validate(value, strict=True)
        except ValidationError as error:
            told = "; ".join(
                f"{'.'.join(map(str, one['loc'])) or 'body'}: {one['msg']}" for one in error.errors()[:5]
            )
            raise HTTPException(422, f"The body does not fit: {told}.") from error

    async def once(self, act: Callable[[], Awaitable[Response]], *asked_in_headers: str) -> Response:
        """Act, unless a call with the same idempotency key did so before: its reply is given then."""
        if self.key is None:
            return await act()
        memory: CallMemory = self.request.app.state.memory
        name = (self.principal.name, self.request.method, self.request.url.path, self.key)
        asked = sorted(one for one in self.request.query_params.multi_items() if one[0] not in _WAITING)
        digest = hashlib.sha256(self.body + b"\n" + repr((asked, asked_in_headers)).encode()).digest()
        return await memory.once(name, digest, act)

    async def wait_for(self, run: RunInfo, seconds: float, since: RunInfo | None = None) -> RunInfo | None:
        """Wait until a run is settled, as the service does, or until the client leaves.

        A call with a key waits on: its reply is remembered for those who repeat it.
        """
        has_left = self.request.is_disconnected if self.key is None else None
        return await self.service.wait(run, seconds, since, has_left)

    @property
    def store_key(self) -> str | None:
        """The key by which the storage knows the call: of this principal, of a length that it takes."""
        if self.key is None:
            return None
        return "http " + hashlib.sha256(f"{self.principal.name}\n{self.key}".encode()).hexdigest()

    def json(self) -> Any:
        """Return the body as JSON; raise 400 if it is none."""
        return parse_json(self.body, self.service.options.max_depth)

    async def find_run(self, run_id: str, verb: Verb | None = None) -> RunInfo:
        """Return the run that the call is about, which stands where the client thinks.

        A call that was made before is only told what came of it, so it does not matter where the run stands by now.
        """
        run = await self.service.find_run(run_id)
        if verb is None or not await self.service.was_made(run, self.store_key, verb):
            check_match(self.if_match, run)
        return run


def seconds_to_wait(prefer: str | None, options: ServerOptions) -> float | None:
    """Return the seconds that a ``Prefer`` header asks to wait, at most those allowed; None if it asks for none.

    >>> seconds_to_wait("respond-async, wait=30", ServerOptions()), seconds_to_wait("return=minimal", ServerOptions())
    (30.0, None)
    """
    found = _WAIT.search(prefer or "")
    return None if found is None else min(float(found[1]), options.max_wait)


def find_service(request: Request) -> Service:
    """Return the service of an app; raise 503 if its life has not begun."""
    service: Service = request.app.state.service
    if not service.takes_calls:
        raise HTTPException(503, "The service is starting or stopping.", {"Retry-After": "1"})
    return service


async def admit(request: Request, scope: Scope) -> tuple[Service, Principal]:
    """Return the service and the principal of a request that may do what needs a scope."""
    service = find_service(request)
    authenticate: Authenticate | None = request.app.state.authenticate
    principal = await find_principal(authenticate, request)
    check_scope(principal, scope)
    return service, principal


def reads(scope: Scope) -> Any:
    """Return the dependency of routes that only look."""

    async def make(request: Request) -> Call:
        service, principal = await admit(request, scope)
        return Call(request, service, principal)

    return Depends(make)


def changes(scope: Scope) -> Any:
    """Return the dependency of routes that change something, with their headers."""

    async def make(
        request: Request,
        idempotency_key: Annotated[
            str | None,
            Header(
                min_length=1,
                max_length=200,
                description="Makes the call once: a repeated one changes nothing.",
            ),
        ] = None,
        if_match: Annotated[
            str | None,
            Header(max_length=1000, description="The ETag of the run; 412 if it has moved on since."),
        ] = None,
        prefer: Annotated[
            str | None,
            Header(max_length=1000, description="'wait=30' waits up to 30 seconds for the run to settle."),
        ] = None,
    ) -> Call:
        service, principal = await admit(request, scope)
        body = await read_body(request, service.options.max_body)
        wait = seconds_to_wait(prefer, service.options)
        return Call(request, service, principal, body, idempotency_key, if_match, wait)

    return Depends(make)


Reader = Annotated[Call, reads("read")]
AdminReader = Annotated[Call, reads("admin")]
Runner = Annotated[Call, changes("run")]
Answerer = Annotated[Call, changes("answer")]
