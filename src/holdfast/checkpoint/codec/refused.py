"""Why a value or stored data is refused, before the place of it is known."""

from __future__ import annotations


class Refused(Exception):
    """A value cannot be kept; the text says what it is and what to do, the path is found afterwards."""


class TooDeep(Refused):
    """A value contains itself or is nested too deeply."""


class Unknown(Exception):
    """Stored data does not fit the types of today; the text says which and what to do."""


class Malformed(Exception):
    """Stored bytes are no encoding of anything."""
