"""Errors of the codec before the path of the refused part is known."""

from __future__ import annotations


class NotStorable(Exception):
    """Raised for a value that cannot be stored; the text says why and what to do, the path is found afterwards."""


class TooDeep(NotStorable):
    """Raised for a value that contains itself or is nested too deeply."""


class Unknown(Exception):
    """Raised for stored data that does not fit the types of today; the text says which and what to do."""


class Malformed(Exception):
    """Raised for stored bytes that are no encoded value."""
