"""What handlers ask the outside, checked before anybody is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.engine.message import Expiry
from holdfast.errors import GraphError, InvalidArgument
from holdfast.graph.expired import RequestExpired
from holdfast.graph.types import TypeForm, type_name
from holdfast.ids import complaint_about_id
from holdfast.runtime.step.placed import Placed
from holdfast.runtime.times import expiry_of

if TYPE_CHECKING:
    import datetime


def check_answerable(placed: Placed, data: object, response_type: TypeForm) -> None:
    """Raise unless the executor has a handler for the answer."""
    if isinstance(response_type, str):
        raise InvalidArgument(f"response_type={response_type!r}: must be a type, not the name of one")
    if placed.spec.answerer(data, response_type) is None:
        raise GraphError(
            f"executor {placed.address!r} asks with a {type(data).__name__} for a {type_name(response_type)}, but has "
            f"no handler for the response; add: @response_handler async def answered(self, request: "
            f"{type(data).__name__}, response: {type_name(response_type)}, ctx: WorkflowContext)"
        )


def expiry_if_given(
    placed: Placed, data: object, expires: Any, now: Callable[[], datetime.datetime]
) -> Expiry | None:
    """When a question expires, if it does; raises unless the executor has a handler for that."""
    if expires is None:
        return None
    expiry = expiry_of(expires, now(), "expires")
    if placed.spec.answerer(data, RequestExpired) is None:
        raise GraphError(
            f"executor {placed.address!r} asks with a {type(data).__name__} and expires={expires!r}, but has no "
            f"handler for what happens then; add: @response_handler async def expired(self, request: "
            f"{type(data).__name__}, expired: RequestExpired, ctx: WorkflowContext)"
        )
    return expiry


def check_request_id(request_id: str) -> None:
    """Raise for an id that a user gave and that no request can have."""
    if complaint := complaint_about_id(request_id):
        raise InvalidArgument(f"request id {request_id!r} {complaint}")
