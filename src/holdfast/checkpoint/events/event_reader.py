"""Makes the events of a run again from the rows that its commits left."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.checkpoint.checkpoint_info import (
    Cause,
    CheckpointInfo,
    Phase,
    applied_supersteps,
    derive_start,
    moment,
    start_id,
)
from holdfast.checkpoint.codec.plain import (
    TEXT,
    TYPE,
    PlainValue,
    described_type,
    plain_of_bytes,
    value_of_plain,
)
from holdfast.checkpoint.codec.value_tree import NotATree
from holdfast.checkpoint.events.event_json import event_of_plain
from holdfast.checkpoint.events.events import (
    CheckpointSavedEvent,
    ExecutorCompletedEvent,
    ExecutorFailedEvent,
    ExecutorInvokedEvent,
    PendingRequest,
    RequestInfoEvent,
    SuperStepCompletedEvent,
    SuperStepStartedEvent,
    WorkflowCompletedEvent,
    WorkflowErrorEvent,
    WorkflowEvent,
    WorkflowOutputEvent,
    WorkflowStartedEvent,
    WorkflowStatusEvent,
    WorkflowWarningEvent,
    warning_of,
)
from holdfast.checkpoint.format.changes import Asked, Happened, Ref, sizes_in
from holdfast.checkpoint.format.event_row import CommitEvents, RestEvents, StepEvents, unpack_events
from holdfast.checkpoint.format.stored_content import content_of, pieces_of
from holdfast.checkpoint.read.catalog import RunCatalog
from holdfast.checkpoint.read.loader import changes_of, keyframe_of, whole
from holdfast.checkpoint.store import Depth, EventRow, Head
from holdfast.checkpoint.views import size_text
from holdfast.engine.status import RunStatus
from holdfast.errors import CheckpointCorrupt, UnknownType
from holdfast.graph.typing.types import TypeForm
from holdfast.ids import Digest, ExecutorId


class EventReader:
    """Reads the events of one run, with its types as far as this process knows them."""

    def __init__(self, catalog: RunCatalog, head: Head) -> None:
        self._head = head
        self._codec = catalog.codec_for(head.workflow_name, head.fingerprint)
        self._blobs = catalog.blobs(head.family)
        self._store = catalog.store

    async def read(self, row: EventRow) -> list[WorkflowEvent]:
        """Return the events of a row, without ids; raise ``ValueError`` if the row is not what was stored."""
        if not row.sound:
            raise ValueError("its seal is wrong")
        try:
            told = unpack_events(self._head.run_id, self._head.workflow_name, row.data)
        except Exception as error:
            raise ValueError(f"it cannot be read: {error}") from error
        if any(map(_is_left_out, _refs_in(told))):
            told = await self._put_in(told)
        content = await self._fetch(_refs_in(told))
        return list(_RowEvents(self, told, content).make())

    async def _put_in(self, told: CommitEvents) -> CommitEvents:
        """Return the events of a long row with the values that it leaves out, as far as checkpoints have them."""
        steps = [await self._put_in_step(step) for step in told.steps]
        rest = told.rest
        outputs = [ref for step in steps for _, ref in step.outputs]
        if rest is not None and rest.output is not None and outputs:
            rest = rest._replace(output=outputs[-1])
        return told._replace(steps=steps, rest=rest)

    async def _put_in_step(self, step: StepEvents) -> StepEvents:
        head, seq = self._head, step.header.seq
        records = await self._store.records(head.run_id, seq, seq, Depth.ALL)
        if not records or records[0].checkpoint_id != step.checkpoint_id:
            return step
        try:
            record = await whole(records[0], self._blobs)
            changes = changes_of(record, Depth.ALL)
            held = () if record.keyframe is None else keyframe_of(record, Depth.ALL).requests
        except CheckpointCorrupt:
            return step
        # Those that are asked again, by a fork for example, are only in what the run holds.
        data = {asked.request_id: asked.data for asked in (*held, *changes.requests)}
        asked = [
            (one._replace(data=data.get(one.request_id, one.data)), schema) for one, schema in step.asked
        ]
        return step._replace(happened=changes.happened, outputs=changes.outputs, asked=asked)

    async def _fetch(self, refs: Iterable[Ref]) -> Mapping[Digest, bytes]:
        """Return the blobs that are still there: those of a removed checkpoint may be gone."""
        content: dict[Digest, bytes] = {}
        for digest, size in sizes_in(refs).items():
            try:
                content |= await self._blobs.read({digest: size})
            except CheckpointCorrupt:
                continue
        return content

    @property
    def head(self) -> Head:
        """The head of the run when reading began."""
        return self._head

    def value(self, ref: Ref, content: Mapping[Digest, bytes]) -> Any:
        """Return a value; one of unknown types is plain, and one that is no longer kept says so."""
        try:
            data = content_of(ref.label, pieces_of(ref), content)
        except CheckpointCorrupt:
            text = f"{size_text(ref.size)}, which the events of the run do not keep"
            return PlainValue({TYPE: ref.label, TEXT: text})
        try:
            return self._codec.decode(data)
        except Exception:  # of a type that is unknown here, or was changed since
            try:
                return value_of_plain(plain_of_bytes(data))
            except NotATree as error:
                raise ValueError(f"a value in it cannot be read: {error}") from error

    def answer_type(self, asked: Asked, schema: str | None) -> TypeForm:
        """Return the type of the answer to a request; a description of it if it is unknown here."""
        try:
            return self._codec.decode_form(asked.form)
        except UnknownType:
            return described_type(asked.form, schema)


def _refs_in(told: CommitEvents) -> Iterator[Ref]:
    for step in told.steps:
        yield from (one.event for one in step.happened if one.event is not None)
        yield from (ref for _, ref in step.outputs)
        yield from (asked.data for asked, _ in step.asked)
    if told.rest is not None and told.rest.output is not None:
        yield told.rest.output


def _is_left_out(ref: Ref) -> bool:
    return ref.data is None and ref.digest is None and ref.parts is None


class _RowEvents:
    """Makes the events of one row, in the order in which a run shows them."""

    def __init__(self, reader: EventReader, told: CommitEvents, content: Mapping[Digest, bytes]) -> None:
        self._reader = reader
        self._told = told
        self._content = content
        self._completion = WorkflowCompletedEvent()
        """The event that an executor left for the end of the run."""

    def make(self) -> Iterator[WorkflowEvent]:
        told = self._told
        if told.is_moving:
            yield from self._moving()
        for number, step in enumerate(told.steps, 1):
            yield from self._step(step, number == len(told.steps) and told.rest is None)
        if told.rest is not None:
            yield from self._rest(told.rest)

    def _at(self, event: WorkflowEvent, superstep: int, time: datetime.datetime) -> WorkflowEvent:
        event.run_id = self._reader.head.run_id
        event.superstep, event.timestamp = superstep, time
        return event

    def _moving(self) -> Iterator[WorkflowEvent]:
        told = self._told
        superstep, time = told.superstep, moment(told.time)
        first = told.steps[0].header if told.steps else None
        if first is not None:
            superstep, time = applied_supersteps(first), moment(first.time)
        if told.begun is not None or (first is not None and first.cause is Cause.INPUT):
            started = WorkflowStartedEvent(self._reader.head.workflow_name, *told.team_size)
            yield self._at(started, superstep, time)
        yield self._at(WorkflowStatusEvent(RunStatus.RUNNING), superstep, time)
        if told.begun is not None and first is None:
            step = told.begun
            for event in _begin(CheckpointInfo(step.checkpoint_id, step.header, step.new_bytes), step):
                yield self._at(event, step.header.superstep, time)

    def _step(self, step: StepEvents, is_last: bool) -> Iterator[WorkflowEvent]:
        header = step.header
        info = CheckpointInfo(step.checkpoint_id, header, step.new_bytes)
        superstep, time = header.superstep, moment(header.time)
        events = self._happened(step)
        events += [WorkflowOutputEvent(self._value(ref), of) for of, ref in step.outputs]
        events += [RequestInfoEvent(self._request(asked, schema)) for asked, schema in step.asked]
        events.append(CheckpointSavedEvent(info))
        if header.phase is Phase.END:
            messages = header.message_count > 0 or step.is_buffered
            requests = header.request_count > 0
            events.append(SuperStepCompletedEvent(messages, requests, step.is_state_written, info))
        elif is_last:
            events += _begin(info, step)
        for event in events:
            yield self._at(event, superstep, time)
        if header.has_start:
            start = start_id(step.checkpoint_id)
            started = CheckpointInfo(start, derive_start(header, step.checkpoint_id), 0)
            for event in (CheckpointSavedEvent(started), *_begin(started, step)):
                yield self._at(event, superstep + 1, started.timestamp)

    def _happened(self, step: StepEvents) -> list[WorkflowEvent]:
        """Return the events of the turns, each behind its own, and then warnings and intermediate outputs."""
        happened = iter(step.happened)
        events: list[WorkflowEvent] = []
        for executor_id, count in step.ended:
            events += [self._event(next(happened)) for _ in range(count)]
            if executor_id:
                events.append(ExecutorCompletedEvent(executor_id))
        events += [self._event(one) for one in happened]
        for event in events:
            if isinstance(event, WorkflowCompletedEvent):
                self._completion = event
        return [event for event in events if not isinstance(event, WorkflowCompletedEvent)]

    def _event(self, happened: Happened) -> WorkflowEvent:
        if happened.warning is not None:
            kind, text = happened.warning
            return WorkflowWarningEvent(warning_of(kind, text), happened.executor_id)
        assert happened.event is not None
        value = self._value(happened.event)
        return value if isinstance(value, WorkflowEvent) else event_of_plain(happened.event.label, value)

    def _value(self, ref: Ref) -> Any:
        return self._reader.value(ref, self._content)

    def _request(self, asked: Asked, schema: str | None) -> PendingRequest:
        expires = None if asked.expiry is None else moment(asked.expiry.at)
        return PendingRequest(
            asked.request_id,
            self._value(asked.data),
            self._reader.answer_type(asked, schema),
            asked.executor_id,
            expires,
        )

    def _rest(self, rest: RestEvents) -> Iterator[WorkflowEvent]:
        told = self._told
        events: list[WorkflowEvent] = []
        if rest.executor_id:
            failed = ExecutorId(rest.executor_id)
            events.append(ExecutorFailedEvent(failed, _error(rest.cause or rest.error)))  # type: ignore[arg-type]
        waiting = tuple(rest.waiting_for.split())
        events.append(WorkflowStatusEvent(rest.status, waiting, rest.by or None))  # type: ignore[arg-type]
        if rest.error:
            events.append(WorkflowErrorEvent(_error(rest.error)))  # type: ignore[arg-type]
        if rest.status is RunStatus.COMPLETED:
            self._completion.data = None if rest.output is None else self._value(rest.output)
            events.append(self._completion)
        for event in events:
            yield self._at(event, told.superstep, moment(told.time))


def _begin(info: CheckpointInfo, step: StepEvents) -> Sequence[WorkflowEvent]:
    return [SuperStepStartedEvent(info), *(ExecutorInvokedEvent(*one) for one in step.invoked)]


def _error(described: str) -> PlainValue:
    kind, _, text = described.partition(": ")
    return PlainValue({TYPE: kind, TEXT: text})
