"""The inbox of a run: letters with answers, messages and cancellations, which anyone may leave for its owner."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from time import time_ns
from typing import Any, NamedTuple, TypeAlias

import ormsgpack

from holdfast.checkpoint.codec.registry import checkpointable
from holdfast.checkpoint.format.changes import Asked
from holdfast.checkpoint.format.record import digest_of
from holdfast.checkpoint.format.stored_form import plain_form, stored_form
from holdfast.checkpoint.ownership import is_driven
from holdfast.checkpoint.read.loader import BlobReader, LatestManifests
from holdfast.checkpoint.read.snapshots import request_of
from holdfast.checkpoint.store import MOST_LETTERS, Commit, Expected, Head, Letter, Store
from holdfast.checkpoint.values import Encoded, Encoder, class_of
from holdfast.engine.answers import already_answered, check_answer
from holdfast.engine.message import Request
from holdfast.engine.persistent import Layered
from holdfast.engine.snapshot import Snapshot
from holdfast.engine.status import RunStatus
from holdfast.engine.value import Value
from holdfast.errors import (
    HeadMoved,
    InvalidArgument,
    LimitExceeded,
    RunNotFound,
    UnknownRequest,
    UnknownType,
)
from holdfast.graph.context import RequestExpired, SubWorkflowRequest
from holdfast.ids import ExecutorId, RequestId

# An answer of this type needs no declaration: every storage can hold it.
checkpointable(name="holdfast.RequestExpired")(RequestExpired)
# One that was sent on is found again by its id, which has the type of its answer.
checkpointable(name="SubWorkflowRequest", exclude=("response_type",))(SubWorkflowRequest)


class Answer(NamedTuple):
    """An answer to a request; ``asked_by`` is the seq of the checkpoint that asked it."""

    request_id: RequestId
    asked_by: int
    value: Value
    by: str | None = None


class Cancel(NamedTuple):
    """A call for the run to end as CANCELLED."""

    by: str | None = None


class Message(NamedTuple):
    """A further input: to the start executor, or to ``target``."""

    target: ExecutorId | None
    value: Value
    by: str | None


Wish: TypeAlias = Answer | Cancel | Message


class GivenAnswers(NamedTuple):
    """Answers by the ids of their requests, and the person or program that gives them."""

    responses: Mapping[str, Any]
    by: str | None = None


def answer_letter(request_id: RequestId, asked_by: int, value: Encoded, by: str | None = None) -> Letter:
    """Make the letter with an answer; a request that is asked again can be answered again."""
    document = {
        "request": request_id,
        "asked_by": asked_by,
        "label": value.label,
        "value": value.data,
        "by": by,
    }
    return Letter(answer_key(request_id, asked_by), stored_form(ormsgpack.packb(document)))


def answer_key(request_id: RequestId, asked_by: int) -> str:
    """Return the key of the letter with an answer."""
    return json.dumps(["answer", asked_by, request_id], ensure_ascii=False)


def cancel_letter(salt: bytes, by: str | None = None) -> Letter:
    """Make a letter that cancels a run; ``salt`` makes its key unique."""
    document = {"cancel": True, "by": by}
    return Letter(json.dumps(["cancel", salt.hex()]), stored_form(ormsgpack.packb(document)))


def message_letters(value: Encoded, target: str | None, key: str | None, by: str | None) -> list[Letter]:
    """Make the letter with a further input; one with a key has a second one, which tells the same message by its body.

    All letters of a call are left, or none: so a key that was used before is refused alone if the message was another.
    """
    document = {"message": target, "label": value.label, "value": value.data, "by": by}
    body = stored_form(ormsgpack.packb(document))
    if key is None:
        return [Letter(json.dumps(["message", "", secrets.token_hex(8)]), body)]
    named = ["message", key]
    digest = digest_of(ormsgpack.packb([target, value.label, value.data])).hex()
    return [Letter(_key_of(named), body), Letter(_key_of([*named, digest]), stored_form(b"\xc0"))]


def _key_of(parts: list[str]) -> str:
    return json.dumps(parts, ensure_ascii=False)


async def leave_message(
    store: Store, head: Head, value: Encoded, target: str | None, key: str | None, by: str | None
) -> Head:
    """Leave a further input for a run; one that was left before with the same key is not left again.

    Returns the head of the run at that moment. Raises ``InvalidArgument`` if the key was used for another message,
    ``LimitExceeded`` if too many letters wait.
    """
    letters = message_letters(value, target, key, by)
    left = await store.leave(head.run_id, 0, letters, MOST_LETTERS)
    if left.head is None:
        raise RunNotFound(f"run {head.run_id!r} was removed while a message was sent to it")
    if left.is_full:
        raise LimitExceeded(
            "letters",
            MOST_LETTERS,
            f"run {head.run_id!r} ({left.head.status.value}) takes no further message: {MOST_LETTERS:,} letters wait "
            f"for it already. Nothing was sent, and nothing is lost: let a Host or 'workflow.resume' go on with the "
            f"run, then send again",
        )
    if left.refused and len(left.refused) < len(letters):
        raise InvalidArgument(
            f"key={key!r}: another message was sent to run {head.run_id!r} with this key; a key stands for one message "
            f"in the life of a run"
        )
    return left.head


def asks_to_cancel(letter: Letter) -> bool:
    """Return True if a letter cancels the run."""
    return letter.key.startswith('["cancel"')


def read_letter(letter: Letter, encoder: Encoder) -> Wish | None:
    """Read a letter; return None if it cannot be read, since nobody can act on it."""
    try:
        document = ormsgpack.unpackb(plain_form(letter.data))
        if "cancel" in document:
            return Cancel(document["by"])
        if "message" in document:
            kind = class_of(document["label"], encoder.codec)
            value = Encoded(encoder, kind, data=document["value"])
            return Message(document["message"], value, document["by"])
        kind = class_of(document["label"], encoder.codec)
        value = Encoded(encoder, kind, data=document["value"])
        return Answer(RequestId(document["request"]), document["asked_by"], value, document["by"])
    except Exception:
        return None


async def leave_answers(
    store: Store,
    head: Head,
    blobs: BlobReader,
    encoder: Encoder,
    given: GivenAnswers,
    latest: LatestManifests | None = None,
) -> Head:
    """Leave answers to pending requests of a run, all or none; return the head of the run at that moment."""
    responses, by = given
    manifest = await (latest or LatestManifests()).read(store, blobs, head)
    # Only the requests that are answered are decoded: there may be many others, of types that are not known here.
    answered = {
        RequestId(request_id): _read_request(head, manifest.requests[RequestId(request_id)], encoder, blobs)
        for request_id in responses
        if request_id in manifest.requests
    }
    pending: Layered[RequestId, Any] = Layered(manifest.requests)
    snapshot = Snapshot(requests=pending.change(answered), answered=Layered(manifest.answered))
    values = {
        RequestId(request_id): check_answer(snapshot, request_id, answer, encoder)
        for request_id, answer in responses.items()
    }
    letters = {
        request_id: answer_letter(request_id, manifest.requests[request_id].seq, value, by)  # type: ignore[arg-type]
        for request_id, value in values.items()
    }
    left = await store.leave(head.run_id, head.seq, list(letters.values()))
    if left.refused:
        refused = frozenset(left.refused)
        raise already_answered([known for known, letter in letters.items() if letter.key in refused])
    if left.head is None:
        raise UnknownRequest(f"run {head.run_id} was removed while it was answered")
    return left.head


def _read_request(head: Head, asked: Asked, encoder: Encoder, blobs: BlobReader) -> Request:
    try:
        return request_of(asked, encoder, blobs)
    except UnknownType as error:
        raise UnknownType(
            f"request {asked.request_id!r} of run {head.run_id} asks for a type that is not known here: build workflow "
            f"{head.workflow_name!r} with this storage first, or declare the type with @checkpointable ({error})"
        ) from error


async def cancel_run(store: Store, head: Head, by: str | None = None) -> Head:
    """Cancel a run, at once if nobody drives it, else by a letter to its owner; return its head afterwards."""
    while not head.status.ended:
        if await is_driven(store, head):
            letter = cancel_letter(secrets.token_bytes(8), by)
            left = (await store.leave(head.run_id, head.seq, [letter])).head
            if left is None or left.status is RunStatus.RUNNING:
                return left or head
            head = left  # the run came to rest before it could see the letter
        else:
            status = head._replace(
                status=RunStatus.CANCELLED,
                token=head.token + 1,
                owner="",
                takeovers=0,
                reason="",
                traceback="",
                wake_at=None,
                waiting_for="",
                by=by or "",
                updated=max(time_ns() // 1_000, head.updated + 1),
            )
            if await _end_run(store, head, status):
                return status
            head = await store.head(head.run_id) or status
    await _end_run(store, head, head)
    return head


async def _end_run(store: Store, head: Head, new: Head) -> bool:
    """Replace the head of a run that is over and take its cancel letters; return False if someone was faster."""
    letters = await store.inbox(head.run_id)
    wishes = tuple(letter.key for letter in letters if asks_to_cancel(letter))
    if new == head and not wishes:
        return True
    if new.status is RunStatus.CANCELLED:
        new = new._replace(letters_known=len(letters) - len(wishes))
    try:
        await store.commit(Commit(new, Expected(head.checkpoint_id, head.token), taken=wishes))
    except HeadMoved:
        return False
    return True
