"""Messages on their way, requests that wait for answers, and the times at which these expire."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import NamedTuple, Protocol

from holdfast.engine.value import Value
from holdfast.graph.typing.types import TypeForm
from holdfast.ids import ExecutorId, RequestId


class Sent(NamedTuple):
    """A message as a turn sent it: along all its edges, or only those that lead to ``target``."""

    value: Value
    target: ExecutorId | None = None


class Expiry(NamedTuple):
    """The time at which a request expires, in microseconds since 1970; going back begins a time ``span`` anew."""

    at: int
    span: int | None = None


class Request(NamedTuple):
    """A question to the outside, and the executor that asked it."""

    request_id: RequestId
    executor_id: ExecutorId
    data: Value
    response_type: TypeForm
    expiry: Expiry | None = None


class Delivery(NamedTuple):
    """A message with the executor that will get it; the input of a run has no source.

    With a ``request`` the message is the response to it. With a request and a source it is an offer to answer it: the
    source is the executor that nests the workflow which asks.
    """

    target: ExecutorId
    value: Value
    source: ExecutorId | None = None
    request: Request | None = None


def offered_request(delivery: Delivery) -> Request | None:
    """Return the request that a delivery offers to an executor of the workflow around; None for other deliveries."""
    return delivery.request if delivery.source is not None else None


class Output(NamedTuple):
    """A value that the workflow gave out."""

    executor_id: ExecutorId
    value: Value


class Unrouted(NamedTuple):
    """A message that no edge took."""

    source: ExecutorId
    sent: Sent


class Expiring(Protocol):
    """A request that may expire."""

    @property
    def request_id(self) -> RequestId:
        """Its id."""
        ...

    @property
    def expiry(self) -> Expiry | None:
        """Until when it waits, if not for ever."""
        ...


class Expiries:
    """The times at which requests expire; the first is known without looking at the others.

    >>> from types import SimpleNamespace as Asked
    >>> at = {"a": Expiry(20), "b": Expiry(10), "c": None}
    >>> asked = {key: Asked(request_id=key, expiry=expiry) for key, expiry in at.items()}
    >>> times = Expiries(asked.values())
    >>> times.first(asked), times.until(15)
    (10, ['b'])
    >>> del asked["b"]
    >>> times.first(asked)
    20
    """

    __slots__ = ("_times",)

    def __init__(self, asked: Iterable[Expiring] = ()) -> None:
        self._times = [(one.expiry.at, one.request_id) for one in asked if one.expiry is not None]
        heapify(self._times)

    def add(self, asked: Iterable[Expiring]) -> None:
        """Add the times of requests that are pending from now on."""
        for one in asked:
            if one.expiry is not None:
                heappush(self._times, (one.expiry.at, one.request_id))

    def first(self, pending: Mapping[RequestId, Expiring]) -> int | None:
        """Return the time at which the first pending request expires; None if none does."""
        times = self._times
        while times:
            at, request_id = times[0]
            one = pending.get(request_id)
            if one is not None and one.expiry is not None and one.expiry.at == at:
                return at
            heappop(times)
        return None

    def until(self, time: int) -> list[RequestId]:
        """Return the requests that expire by this time, the soonest first; also those that are no longer pending."""
        found: set[tuple[int, RequestId]] = set()
        places = [0]
        while places:
            place = places.pop()
            if place < len(self._times) and self._times[place][0] <= time:
                found.add(self._times[place])
                places += (2 * place + 1, 2 * place + 2)  # no sooner than this one
        return [request_id for _, request_id in sorted(found)]
