"""Answers to requests: checks and converts them."""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import islice

from holdfast.engine.message import Request
from holdfast.engine.snapshot import Snapshot
from holdfast.engine.value import Captor, Value
from holdfast.errors import InvalidResponse, RequestAlreadyAnswered, UnknownRequest
from holdfast.graph.typing.conversion import Unconvertible, convert
from holdfast.ids import ExecutorId, RequestId

# So many pending requests are named in an error.
_LISTED = 20


def already_answered(request_ids: Sequence[str]) -> RequestAlreadyAnswered:
    """Return the error for answers that came too late."""
    listed = ", ".join(repr(str(request_id)) for request_id in request_ids)
    which = f"request {listed} was" if len(request_ids) == 1 else f"requests {listed} were"
    return RequestAlreadyAnswered(f"{which} answered before, or expired; only what comes first counts")


def check_answer(
    snapshot: Snapshot, request_id: str, answer: object, capture: Captor, taken: Container[RequestId] = ()
) -> Value:
    """Return the answer to a pending request, converted to its type and captured; ``taken`` are answered already."""
    if RequestId(request_id) in taken:
        raise already_answered([request_id])
    return convert_answer(find_request(snapshot, request_id), answer, capture)


def convert_answer(request: Request, answer: object, capture: Captor) -> Value:
    """Return an answer, converted to the type that its request asks for and captured."""
    try:
        converted = convert(answer, request.response_type)
    except Unconvertible as reason:
        raise invalid_response(request.request_id, request.executor_id, str(reason)) from reason
    except RecursionError:
        reason_text = "it is nested too deeply, or contains itself"
        raise invalid_response(request.request_id, request.executor_id, reason_text) from None
    return capture(converted, "response")


def invalid_response(request_id: RequestId, executor_id: ExecutorId, reason: str) -> InvalidResponse:
    """Return the error for an answer that does not fit its request."""
    return InvalidResponse(
        f"the response to request {request_id!r} of executor {executor_id!r} cannot be taken: {reason}"
    )


def find_request(snapshot: Snapshot, request_id: str) -> Request:
    """Return a pending request; raise ``RequestAlreadyAnswered`` or ``UnknownRequest`` if it is not pending."""
    key = RequestId(request_id)
    request: Request | None = snapshot.requests.get(key)
    if request is None and key in snapshot.answered:
        raise already_answered([request_id])
    if request is None:
        known = [repr(str(known)) for known in islice(snapshot.requests, _LISTED)]
        more = snapshot.requests.size - len(known)
        pending = (", ".join(known) or "none") + (f" and {more:,} more" if more else "")
        raise UnknownRequest(f"there is no request {request_id!r} in this run; pending are: {pending}")
    return request
