"""Messages on their way, and questions that wait for their answers."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.engine.value import Value
from holdfast.graph.types import TypeForm
from holdfast.ids import ExecutorId, RequestId


class Sent(NamedTuple):
    """A message as a turn sent it: along all its edges, or only those that lead to ``target``."""

    value: Value
    target: ExecutorId | None = None


class Expiry(NamedTuple):
    """Until when a question waits, in microseconds since 1970; where it was a time span, going back begins it anew."""

    at: int
    span: int | None = None


class Request(NamedTuple):
    """A question to the outside, and who asked it."""

    request_id: RequestId
    executor_id: ExecutorId
    data: Value
    response_type: TypeForm
    expiry: Expiry | None = None


class Delivery(NamedTuple):
    """A message bound to the executor that will get it; the input of a run has no source.

    With a ``request`` the message is the response to it.
    """

    target: ExecutorId
    value: Value
    source: ExecutorId | None = None
    request: Request | None = None


class Output(NamedTuple):
    """A value that the workflow gave out."""

    executor_id: ExecutorId
    value: Value


class Unrouted(NamedTuple):
    """A message that no edge took."""

    source: ExecutorId
    sent: Sent
