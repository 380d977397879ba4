"""The requests that wait for answers, of all runs of a store; read without the classes of their workflows."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Container, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from heapq import nsmallest
from typing import Any, NamedTuple, TypeAlias

from holdfast.checkpoint.checkpoint_info import json_field, microseconds, moment
from holdfast.checkpoint.derived_starts import read_records
from holdfast.checkpoint.format.changes import Asked, sizes_in
from holdfast.checkpoint.format.record import read_header
from holdfast.checkpoint.format.stored_content import content_of, pieces_of
from holdfast.checkpoint.inbox import answer_key
from holdfast.checkpoint.read.catalog import RunCatalog
from holdfast.checkpoint.read.loader import load
from holdfast.checkpoint.read.reread import steadily
from holdfast.checkpoint.store import Depth, Head, RunQuery
from holdfast.engine.status import RunStatus
from holdfast.errors import CheckpointCorrupt, InvalidArgument
from holdfast.ids import Digest, RunId

# Runs of these may go on with an answer; one that was cancelled is not asked about any more.
_ASKING = frozenset({RunStatus.RUNNING, RunStatus.WAITING, RunStatus.STOPPED, RunStatus.FAILED})
_MOST_HEADS = 1000
_Place: TypeAlias = tuple[int, str, str]
"""The place of a request in the list: when it was asked, its run, and its id."""


@dataclass(frozen=True)
class RequestRecord:
    """A request of a stored run that waits for its answer, as ``storage.list_requests`` lists it.

    >>> from holdfast.checkpoint.checkpoint_info import moment
    >>> record = RequestRecord("r1", "Triage", "ask.2.1", "ask", "Deploy?", {"type": "boolean"}, moment(0), None)
    >>> record.to_dict()["asked_at"], record.cursor
    ('1970-01-01T00:00:00+00:00', '[0,"r1","ask.2.1"]')
    """

    run_id: str
    workflow_name: str
    request_id: str
    executor_id: str
    data: Any
    """The data of the request as plain JSON, with the names of types."""
    response_schema: dict[str, Any]
    """The JSON Schema of the answer."""
    asked_at: datetime
    expires_at: datetime | None
    """The time at which it expires; None if it waits for ever."""

    @property
    def cursor(self) -> str:
        """The place of the record in the list, for ``list_requests(after=...)``."""
        return json.dumps([microseconds(self.asked_at), self.run_id, self.request_id], separators=(",", ":"))

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain JSON; docs/reference/json-forms.md describes it."""
        return {one.name: json_field(getattr(self, one.name)) for one in fields(self)}


class _Found(NamedTuple):
    """A pending request of a run, whose data is not read yet."""

    asked_at: int
    run_id: RunId
    asked: Asked
    schema: str | None
    head: Head

    @property
    def key(self) -> _Place:
        """The place in the list."""
        return self.asked_at, self.run_id, self.asked.request_id


async def list_requests(
    catalog: RunCatalog,
    workflow_name: str | None,
    run_id: RunId | None,
    limit: int | None,
    after: str | RequestRecord | None,
) -> list[RequestRecord]:
    """Return the pending requests of one run, of a workflow or of all, oldest first.

    Those of one run raise if they are damaged; of many runs they are left out, and the next ones fill the page.
    """
    begin = None if after is None else _position(after)
    damaged: set[_Place] = set()
    while True:
        found = await _find(catalog, workflow_name, run_id, limit, begin, damaged)
        records: list[RequestRecord] = []
        for one in found:
            try:
                record = await _record(catalog, one)
            except CheckpointCorrupt as error:
                if run_id is not None:
                    raise
                catalog.left_out.tell(one.head, error)
                damaged.add(one.key)
            else:
                records += [] if record is None else [record]
        if limit is None or damaged.isdisjoint(one.key for one in found):
            return records


async def _find(
    catalog: RunCatalog,
    workflow_name: str | None,
    run_id: RunId | None,
    limit: int | None,
    begin: _Place | None,
    damaged: Container[_Place],
) -> list[_Found]:
    """Return the first pending requests behind a place, but for those whose data is known to be damaged."""
    found: list[_Found] = []
    async for head in _heads(catalog, workflow_name, run_id, begin):
        # No run asks before it begins: the rest are younger than all that are wanted.
        if limit is not None and len(found) == limit and head.created > found[-1].asked_at:
            break
        try:
            pending = await _pending(catalog, head)
        except CheckpointCorrupt as error:
            if run_id is not None:
                raise
            catalog.left_out.tell(head, error)
            continue
        found += [one for one in pending if (begin is None or one.key > begin) and one.key not in damaged]
        found = nsmallest(len(found) if limit is None else limit, found, key=lambda one: one.key)
    return found


def _position(after: str | RequestRecord) -> _Place:
    """Return the place of a cursor in the list."""
    text = after.cursor if isinstance(after, RequestRecord) else after
    try:
        asked_at, run_id, request_id = json.loads(text)
        return int(asked_at), str(run_id), str(request_id)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(
            f"after={after!r} is no place in a list of requests; give the last record of the page before, "
            f"or its cursor"
        ) from error


async def _heads(
    catalog: RunCatalog,
    workflow_name: str | None,
    run_id: RunId | None,
    begin: _Place | None,
) -> AsyncIterator[Head]:
    """Give the runs that may have requests behind a place, oldest first; a few at a time."""
    if run_id is not None:
        head = await catalog.head(run_id)
        if workflow_name in (None, head.workflow_name) and head.status in _ASKING:
            yield head
        return
    query = RunQuery(workflow_name, _ASKING, limit=100, updated_after=None if begin is None else begin[0])
    while page := await catalog.store.runs(query):
        for head in page:
            yield head
        if query.limit is None or len(page) < query.limit:
            return
        after = query.position_of(page[-1])
        query = query._replace(after=after, limit=min(2 * query.limit, _MOST_HEADS))


async def _pending(catalog: RunCatalog, head: Head) -> list[_Found]:
    """Return the requests of a run that wait for an answer; none if it was removed meanwhile."""
    known: Head | None = head

    async def look() -> list[_Found]:
        nonlocal known
        now, known = known or await catalog.store.head(head.run_id), None
        if now is None or now.status not in _ASKING or not await _has_requests(catalog, now):
            return []
        manifest = (await load(catalog.store, catalog.blobs(now.family), now, now.seq, Depth.ALL)).manifest
        left = {letter.key for letter in await catalog.store.inbox(now.run_id)}
        return [
            _Found(
                manifest.asked_at.get(asked.request_id, now.created),
                now.run_id,
                asked,
                manifest.schemas.get(asked.form),
                now,
            )
            for asked in manifest.requests.values()
            if answer_key(asked.request_id, asked.seq) not in left
        ]

    return await steadily(look)


async def _has_requests(catalog: RunCatalog, head: Head) -> bool:
    """Return True if a run has pending requests, by its head or by the header of its checkpoint."""
    if head.status is RunStatus.WAITING:
        return "answers" in head.waiting_for.split()
    records = await read_records(catalog.store, head.run_id, head.seq, head.seq, Depth.HEADERS)
    if not records:
        raise CheckpointCorrupt(
            f"run {head.run_id!r} has no checkpoint number {head.seq}, on which it stands"
        )
    return read_header(records[0]).request_count > 0


async def _record(catalog: RunCatalog, found: _Found) -> RequestRecord | None:
    """Return the record of a request, with its data; None if that was removed with its run meanwhile."""
    from holdfast.checkpoint.codec.plain import described_type, plain_of_bytes
    from holdfast.checkpoint.codec.value_tree import NotATree

    asked, head = found.asked, found.head
    wanted = sizes_in([asked.data])
    try:
        blobs: Mapping[Digest, bytes] = await catalog.blobs(head.family).read(wanted) if wanted else {}
    except CheckpointCorrupt:
        if await catalog.store.head(head.run_id) == head:
            raise
        return None
    try:
        data = plain_of_bytes(content_of(asked.data.label, pieces_of(asked.data), blobs))
    except NotATree as error:
        raise CheckpointCorrupt(
            f"request {asked.request_id!r} of run {head.run_id!r} cannot be read: {error}; "
            f"'await storage.verify()' lists what is affected"
        ) from error
    return RequestRecord(
        str(head.run_id),
        head.workflow_name,
        str(asked.request_id),
        str(asked.executor_id),
        data,
        described_type(asked.form, found.schema).schema,
        moment(found.asked_at),
        None if asked.expiry is None else moment(asked.expiry.at),
    )
