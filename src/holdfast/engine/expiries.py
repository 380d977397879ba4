"""When pending questions expire: the first of them is known without looking at the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import Protocol

from holdfast.engine.message import Expiry
from holdfast.ids import RequestId


class Expiring(Protocol):
    """A question that may have a time until which it waits."""

    @property
    def request_id(self) -> RequestId:
        """Its id."""
        ...

    @property
    def expiry(self) -> Expiry | None:
        """Until when it waits, if not for ever."""
        ...


class Expiries:
    """The times of questions that expire. Those of questions that are no longer pending go when they are met.

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
        """Take note of questions that are pending from now on."""
        for one in asked:
            if one.expiry is not None:
                heappush(self._times, (one.expiry.at, one.request_id))

    def first(self, pending: Mapping[RequestId, Expiring]) -> int | None:
        """When the first of the pending questions expires, of which all were noted; None if none does."""
        times = self._times
        while times:
            at, request_id = times[0]
            one = pending.get(request_id)
            if one is not None and one.expiry is not None and one.expiry.at == at:
                return at
            heappop(times)
        return None

    def until(self, time: int) -> list[RequestId]:
        """The questions whose time is not later than this, the soonest first; also those that are no longer pending."""
        found: set[tuple[int, RequestId]] = set()
        places = [0]
        while places:
            place = places.pop()
            if place < len(self._times) and self._times[place][0] <= time:
                found.add(self._times[place])
                places += (2 * place + 1, 2 * place + 2)  # no sooner than this one
        return [request_id for _, request_id in sorted(found)]
