"""Refusals and failures as problem details (RFC 9457), which reveal nothing of the inside."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from holdfast.errors import HoldfastError, UnknownType

MEDIA_TYPE = "application/problem+json"
_STATUSES = {"not_found": 404, "conflict": 409, "invalid": 422, "limit": 429, "storage": 503, "failed": 500}
_TYPE = "urn:holdfast:problem:"
_HIDDEN = "It was not your request; the log of the server has more."

_logger = logging.getLogger("holdfast.server")


def make_problem(
    status: int,
    detail: str,
    kind: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return a problem as a response; ``kind`` is the name of an error."""
    title = HTTPStatus(status).phrase if kind is None else _title_of(kind)
    body: dict[str, Any] = {"type": "about:blank" if kind is None else _TYPE + kind, "title": title}
    body |= {"status": status, "detail": detail}
    return Response(json.dumps(body), status, dict(headers or {}), MEDIA_TYPE)


def problem_of(error: HoldfastError) -> Response:
    """Return the problem that tells a client of an error; those of the inside go to the log."""
    status = status_of(error)
    if status >= 500:
        _logger.error("a request failed: %s", error, exc_info=error)
    return make_problem(status, detail_of(error), type(error).__name__)


def status_of(error: HoldfastError) -> int:
    """Return the status of HTTP for an error.

    >>> from holdfast import RunNotFound
    >>> status_of(RunNotFound("there is no run 'r1'"))
    404
    """
    # A type that is unknown here: the build that knows it runs elsewhere.
    return 409 if isinstance(error, UnknownType) else _STATUSES[error.kind]


def detail_of(error: HoldfastError) -> str:
    """Return the text of an error for clients: without the hint for programs, and nothing of errors of the inside.

    >>> from holdfast import RunExists, StorageError
    >>> detail_of(RunExists("run 'r1' is there already; choose another id, or use 'workflow.resume(...)'"))
    "run 'r1' is there already"
    >>> detail_of(StorageError("/var/lib/x.db: disk full"))
    'It was not your request; the log of the server has more.'
    """
    status = status_of(error)
    if status >= 500:
        return _HIDDEN
    return str(error).partition("; ")[0] if status in (404, 409) else str(error)


def _title_of(kind: str) -> str:
    """Return the name of an error as a sentence has it: ``RunNotFound`` is "Run not found"."""
    return " ".join(re.findall("[A-Z][a-z]*", kind)).capitalize()
