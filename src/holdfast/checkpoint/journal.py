"""Outcomes of finished turns and results of ``once`` as notes of the journal, and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import ormsgpack

from holdfast.checkpoint.format.changes import Ref, sizes_in
from holdfast.checkpoint.format.document import Table, refs_of
from holdfast.checkpoint.format.stored_form import plain_form, stored_form
from holdfast.checkpoint.store import Note
from holdfast.checkpoint.values import BlobSource, Encoder, restored
from holdfast.checkpoint.write.encode import ValueNamer
from holdfast.checkpoint.write.log import NoteDraft
from holdfast.engine.message import Expiry, Output, Request, Sent
from holdfast.engine.persistent import Chain
from holdfast.engine.state import Append, Change, Changes, Drop, Place, Put, Scope, Update
from holdfast.engine.superstep import Outcome
from holdfast.engine.value import Value
from holdfast.errors import CheckpointCorrupt, GraphChanged
from holdfast.graph.graph import path_of
from holdfast.graph.state_key import Merge, MergeRule, find_declared_merge
from holdfast.ids import Digest, ExecutorId, RequestId

MergeFor: TypeAlias = Callable[[Scope, str], MergeRule | None]
"""The merge that is declared for a key."""

Told: TypeAlias = "tuple[ExecutorId | None, Value | tuple[str, str]]"
"""An event that a turn added: the user's own, or the kind and the text of a warning."""


class Journaled(NamedTuple):
    """A turn that is over, as the journal has it."""

    outcome: Outcome
    events: Sequence[Told] = ()
    attempt: int = 1

    def sent(self) -> Iterator[Value]:
        """The values that went out of it; not those of state, which may be big and are read when someone asks."""
        yield from (sent.value for sent in self.outcome.messages)
        yield from (output.value for output in self.outcome.outputs)
        yield from self.outcome.responses.values()
        yield from (request.data for request in self.outcome.requests)
        yield from (told for _, told in self.events if not isinstance(told, tuple))


class Contents(NamedTuple):
    """The contents of a journal."""

    turns: Mapping[ExecutorId, Journaled]
    results: Mapping[tuple[ExecutorId, str], Value]
    """The results of ``once``, by executor and name."""
    digests: frozenset[Digest]
    """The blobs that it names."""


_PUT, _APPEND, _DROP, _UPDATE, _PUT_ANYWAY = 0, 1, 2, 3, 4


def turn_draft(turn: Journaled, encoder: Encoder, merge_for: MergeFor) -> NoteDraft:
    """The note for a turn that is over."""

    def make(names: ValueNamer) -> Note:
        table = Table()

        def add(value: Value) -> int:
            return table.add(names.ref(value))

        outcome = turn.outcome
        document = {
            "turn": outcome.executor_id,
            "attempt": turn.attempt,
            "messages": [[add(sent.value), sent.target] for sent in outcome.messages],
            "changes": [
                [list(scope), key, *_pack_change(change, merge_for(scope, key), add)]
                for (scope, key), change in outcome.changes.items()
            ],
            "outputs": [[output.executor_id, add(output.value)] for output in outcome.outputs],
            "requests": [
                [
                    request.request_id,
                    request.executor_id,
                    add(request.data),
                    encoder.codec.encode_form(request.response_type, "response_type"),
                    *(request.expiry or ()),
                ]
                for request in outcome.requests
            ],
            "events": [
                [executor_id, None, *what] if isinstance(what, tuple) else [executor_id, add(what)]
                for executor_id, what in turn.events
            ],
        }
        if outcome.responses:
            document["responses"] = [[known, add(value)] for known, value in outcome.responses.items()]
        return _note(["turn", outcome.executor_id], document, table)

    return NoteDraft(list(_values_of(turn)), make)


def result_draft(executor_id: ExecutorId, name: str, result: Value) -> NoteDraft:
    """The note for what ``once`` gave."""

    def make(names: ValueNamer) -> Note:
        table = Table()
        document = {"once": executor_id, "name": name, "result": table.add(names.ref(result))}
        return _note(["once", executor_id, name], document, table)

    return NoteDraft([result], make)


def _note(key: list[str], document: dict[str, Any], table: Table) -> Note:
    whole = {**document, "values": table.entries, "content": table.content}
    return Note(json.dumps(key, ensure_ascii=False), stored_form(ormsgpack.packb(whole)))


def _values_of(turn: Journaled) -> Iterator[Value]:
    yield from turn.sent()
    for change in turn.outcome.changes.values():
        if isinstance(change, Put):
            yield change.value
        elif isinstance(change, Append):
            yield from change.items
        elif isinstance(change, Update):
            yield from change.updates


def _pack_change(change: Change, rule: MergeRule | None, add: Callable[[Value], int]) -> list[Any]:
    match change:
        case Put():
            return [_PUT if rule is None else _PUT_ANYWAY, add(change.value)]
        case Append():
            return [_APPEND, [add(item) for item in change.items]]
        case Update():
            name = change.rule.value if isinstance(change.rule, Merge) else None
            return [_UPDATE, [add(value) for value in change.updates], name]
        case Drop():
            return [_DROP]


def sizes_in_note(note: Note) -> dict[Digest, int]:
    """The blobs that a note names, which is no bundle, with their sizes; raises ``CheckpointCorrupt``."""
    try:
        document = ormsgpack.unpackb(plain_form(note.data))
        return sizes_in(refs_of(document["values"], document["content"]))
    except Exception as error:
        raise CheckpointCorrupt(
            f"the note {note.key} in the journal of a run cannot be read: {error!r}"
        ) from error


def done_by(note: Note) -> tuple[str | None, str | None]:
    """Return the executor of a note, and the name of an effect that was done once, as far as its key tells."""
    try:
        _, executor_id, *name = json.loads(note.key)
    except (ValueError, TypeError, RecursionError):
        return None, None
    return str(executor_id), str(name[0]) if name else None


def read_journal(
    notes: Sequence[Note], encoder: Encoder, source: BlobSource, merge_for: MergeFor, rename: Rename
) -> Contents:
    """Read notes; raise ``CheckpointCorrupt``, or ``GraphChanged`` where a merge is no longer declared."""
    turns: dict[ExecutorId, Journaled] = {}
    results: dict[tuple[ExecutorId, str], Value] = {}
    digests: set[Digest] = set()
    for note in notes:
        try:
            document = ormsgpack.unpackb(plain_form(note.data))
            refs = refs_of(document["values"], document["content"])
            digests.update(sizes_in(refs))
            reader = _Reader(refs, encoder, source, merge_for, rename)
            if "once" in document:
                executor_id = reader.address(document["once"])
                results[executor_id, document["name"]] = reader.value(document["result"])
            else:
                turn = reader.turn(document)
                turns[turn.outcome.executor_id] = turn
        except GraphChanged:
            raise
        except Exception as error:
            raise CheckpointCorrupt(
                f"the note {note.key} in the journal of a run cannot be read: {error!r}; go on without the journal, by "
                f"'workflow.resume' from a checkpoint of an earlier superstep, or by 'workflow.fork' from any"
            ) from error
    return Contents(turns, results, frozenset(digests))


Rename: TypeAlias = Callable[[str], str]
"""The address of an executor in the graph as it is now."""


class _Reader:
    """Reads one note."""

    def __init__(
        self, refs: Sequence[Ref], encoder: Encoder, source: BlobSource, merge_for: MergeFor, rename: Rename
    ) -> None:
        self._values = [restored(ref, encoder, source) for ref in refs]
        self._codec = encoder.codec
        self._merge_for = merge_for
        self._rename = rename

    def value(self, number: int) -> Value:
        return self._values[number]

    def address(self, text: str) -> ExecutorId:
        return ExecutorId(self._rename(text))

    def turn(self, document: Mapping[str, Any]) -> Journaled:
        outcome = Outcome(
            self.address(document["turn"]),
            [
                Sent(self.value(number), None if target is None else self._target(document["turn"], target))
                for number, target in document["messages"]
            ],
            self._changes(document["changes"]),
            [Output(self.address(who), self.value(number)) for who, number in document["outputs"]],
            tuple(
                Request(
                    RequestId(request_id),
                    self.address(who),
                    self.value(number),
                    self._codec.decode_form(form),
                    Expiry(*expiry) if expiry else None,
                )
                for request_id, who, number, form, *expiry in document["requests"]
            ),
            {RequestId(known): self.value(number) for known, number in document.get("responses", ())},
        )
        events: list[Told] = [
            (
                None if who is None else self.address(who),
                (warning[0], warning[1]) if number is None else self.value(number),
            )
            for who, number, *warning in document["events"]
        ]
        return Journaled(outcome, events, document["attempt"])

    def _target(self, source: str, target: str) -> ExecutorId:
        """To whom a message was sent: as the graph of its source calls that executor."""
        path = path_of(source)
        return ExecutorId(self._rename(path + target)[len(self._rename(path)) :])

    def _changes(self, document: Sequence[Any]) -> Changes:
        changes: dict[Place, Change] = {}
        for (owner, name, path), key, *packed in document:
            renamed = None if owner is None else self.address(owner)
            scope = Scope(renamed, name, self._rename(path))
            changes[scope, key] = self._change(scope, key, *packed)
        return changes

    def _change(self, scope: Scope, key: str, kind: int, what: Any = None, rule: str | None = None) -> Change:
        declared = self._merge_for(scope, key)
        if kind == _PUT and declared is not None:  # declared since: two writes that conflicted can be merged
            return Update((self.value(what),), declared)
        if kind in (_PUT, _PUT_ANYWAY):
            return Put(self.value(what))
        if kind == _APPEND:
            return Append(Chain.of([self.value(number) for number in what]))
        if kind == _DROP:
            return Drop()
        if kind != _UPDATE:
            raise ValueError(f"there is no change of kind {kind!r}")
        found = declared or (Merge(rule) if rule is not None else find_declared_merge(None, key))
        if found is None:
            raise GraphChanged(
                f"the journal has an update for key {key!r} of {scope}, whose merge was a function that is no longer "
                f"declared; declare it again, or go back to the checkpoint to run its turn again"
            )
        return Update(tuple(self.value(number) for number in what), found)
