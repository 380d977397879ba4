"""Time spans and times as users give them, as microseconds since 1970."""

from __future__ import annotations

import datetime
import math

from holdfast.engine.message import Expiry
from holdfast.errors import InvalidArgument, WrongType

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
_LONGEST = datetime.timedelta(days=100 * 366)


def in_microseconds(time: datetime.datetime) -> int:
    """Return a time in microseconds since 1970, as it is stored."""
    return (time - _EPOCH) // _MICROSECOND


def as_time(microseconds: int) -> datetime.datetime:
    """Return a time in the form for users."""
    return _EPOCH + datetime.timedelta(microseconds=microseconds)


def expiry_of(given: object, now: datetime.datetime, what: str) -> Expiry:
    """Return the end of a time span or the time that was given; ``what`` names it in errors."""
    if isinstance(given, datetime.datetime):
        if given.tzinfo is None:
            raise InvalidArgument(
                f"{what}={given!r}: a time needs a time zone, say datetime.now(UTC) + timedelta(days=3)"
            )
        _check_span(given - now, given, what)
        return Expiry(in_microseconds(given))
    span = _span(given, what)
    return Expiry(in_microseconds(now + span), span // _MICROSECOND)


def _span(given: object, what: str) -> datetime.timedelta:
    if isinstance(given, datetime.timedelta):
        span = given
    elif isinstance(given, int | float) and not isinstance(given, bool):
        if not math.isfinite(given) or abs(given) > _LONGEST.total_seconds():
            raise InvalidArgument(f"{what}={given!r}: must be some seconds, of at most a hundred years")
        span = datetime.timedelta(seconds=given)
    else:
        raise WrongType(
            f"{what}={given!r}: must be seconds, a timedelta or a datetime, not {type(given).__name__}"
        )
    if span < datetime.timedelta(0):
        raise InvalidArgument(f"{what}={given!r}: must not be negative")
    _check_span(span, given, what)
    return span


def _check_span(span: datetime.timedelta, given: object, what: str) -> None:
    if span > _LONGEST:
        raise InvalidArgument(f"{what}={given!r}: that is in more than a hundred years")
