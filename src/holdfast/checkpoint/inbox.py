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
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.stored_form import plain_form, stored_form
from holdfast.checkpoint.ownership import is_driven
from holdfast.checkpoint.read.loader import BlobReader, LatestManifests
from holdfast.checkpoint.read.snapshots import request_of
from holdfast.checkpoint.receipts import Receipt, TalkKey, is_receipt, key_reused, use_up, was_called
from holdfast.checkpoint.store import MOST_LETTERS, Commit, Expected, Head, Letter, Store
from holdfast.checkpoint.values import Encoded, Encoder, class_of
from holdfast.checkpoint.write.event_rows import status_row
from holdfast.engine.answers import already_answered, check_answer, invalid_response
from holdfast.engine.message import Request
from holdfast.engine.persistent import Layered
from holdfast.engine.snapshot import Snapshot
from holdfast.engine.status import RunStatus
from holdfast.engine.value import Value
from holdfast.errors import (
    HeadMoved,
    LimitExceeded,
    RunNotFound,
    UnknownRequest,
    UnknownType,
)
from holdfast.graph.context import RequestExpired, SubWorkflowRequest
from holdfast.graph.typing.conversion import Unconvertible
from holdfast.ids import ExecutorId, RequestId

# An answer of this type needs no declaration: every storage can hold it.
checkpointable(name="holdfast.RequestExpired")(RequestExpired)
# One that was sent on is found again by its id, which has the type of its answer.
checkpointable(name="SubWorkflowRequest", exclude=("response_type",))(SubWorkflowRequest)


class Answer(NamedTuple):
    """An answer to a request; ``asked_by`` is the seq of the checkpoint that asked it."""

    request_id: RequestId
    asked_by: int
    value: Value | None
    """None if the letter is broken, and only its key can be read."""
    by: str | None = None
    is_json: bool = False
    """True if it is plain JSON, which has yet to be converted to the type that the request asks for."""


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
    """Answers by the ids of their requests, the person or program that gives them, and a key that makes it once."""

    responses: Mapping[str, Any]
    by: str | None = None
    key: str | None = None


def answer_letter(
    request_id: RequestId, asked_by: int, value: Encoded, by: str | None = None, is_json: bool = False
) -> Letter:
    """Make the letter with an answer; a request that is asked again can be answered again."""
    document = {
        "request": request_id,
        "asked_by": asked_by,
        "label": value.label,
        "value": value.data,
        "by": by,
    }
    if is_json:
        document["json"] = True
    return Letter(answer_key(request_id, asked_by), stored_form(ormsgpack.packb(document)))


def answer_key(request_id: RequestId, asked_by: int) -> str:
    """Return the key of the letter with an answer."""
    return json.dumps(["answer", asked_by, request_id], ensure_ascii=False)


def cancel_letter(salt: bytes, by: str | None = None) -> Letter:
    """Make a letter that cancels a run; ``salt`` makes its key unique."""
    document = {"cancel": True, "by": by}
    return Letter(json.dumps(["cancel", salt.hex()]), stored_form(ormsgpack.packb(document)))


def message_receipt(value: Encoded, target: str | None, key: str) -> Receipt:
    """Make the receipt of a further input that has a key."""
    return Receipt.of("message", key, [target, value.label, value.data])


def message_letters(value: Encoded, target: str | None, key: str | None, by: str | None) -> list[Letter]:
    """Make the letter with a further input, and those of its receipt; the first of these is the input if it can be.

    All letters of a call are left, or none: so a key that was used before is refused alone if the message was another.
    """
    document = {"message": target, "label": value.label, "value": value.data, "by": by}
    body = stored_form(ormsgpack.packb(document))
    nameless = Letter(json.dumps(["message", "", secrets.token_hex(8)]), body)
    if key is None:
        return [nameless]
    first, second = message_receipt(value, target, key).letters
    return [nameless, first, second] if isinstance(key, TalkKey) else [first._replace(data=body), second]


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
    if key is not None and left.refused:
        receipt = message_receipt(value, target, key)
        if not {*receipt.names} <= {*left.refused}:
            raise key_reused(head.run_id, receipt)
    return left.head


def asks_to_cancel(letter: Letter) -> bool:
    """Return True if a letter cancels the run."""
    return letter.key.startswith('["cancel"')


def read_letter(letter: Letter, encoder: Encoder) -> Wish | None:
    """Read a letter; return None if it cannot be read, since nobody can act on it.

    Of a broken answer the key still names the request, which has to be asked again: its key is used up.
    """
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
        request_id, asked_by, is_json = document["request"], document["asked_by"], document.get("json", False)
        return Answer(RequestId(request_id), asked_by, value, document["by"], is_json)
    except Exception:
        return _read_answer_key(letter.key)


def _read_answer_key(key: str) -> Answer | None:
    try:
        kind, asked_by, request_id = json.loads(key)
    except (TypeError, ValueError, RecursionError):
        return None
    return Answer(RequestId(request_id), asked_by, None) if kind == "answer" else None


async def leave_answers(
    store: Store,
    head: Head,
    blobs: BlobReader,
    encoder: Encoder,
    given: GivenAnswers,
    latest: LatestManifests | None = None,
) -> Head:
    """Leave answers to pending requests of a run, all or none; return the head of the run at that moment.

    An answer whose type is not known here is plain JSON: it is checked against the schema that is stored with the run,
    and whoever drives the run converts it.
    """
    receipt = None if given.key is None else _receipt_of_answers(given.key, given.responses, encoder)
    if receipt is not None and await was_called(store, head.run_id, receipt):
        return head
    manifest = await (latest or LatestManifests()).read(store, blobs, head)
    letters = _answer_letters(manifest, blobs, encoder, given)
    # The key of a receipt may have been used at any time, that of an answer only since the request was asked.
    since, receipts = (head.seq, ()) if receipt is None else (0, receipt.letters)
    left = await store.leave(head.run_id, since, [*letters.values(), *receipts])
    if left.refused:
        if receipt is not None and left.head is not None and await was_called(store, head.run_id, receipt):
            return left.head
        # Also if one is pending again by now: that may be another question of the same id.
        refused = frozenset(left.refused)
        raise already_answered([known for known, letter in letters.items() if letter.key in refused])
    if left.head is None:
        raise UnknownRequest(f"run {head.run_id} was removed while it was answered")
    return left.head


def _receipt_of_answers(key: str, responses: Mapping[str, Any], encoder: Encoder) -> Receipt:
    encoded = {known: encoder(answer, "response") for known, answer in sorted(responses.items())}
    return Receipt.of("respond", key, [[known, one.label, one.data] for known, one in encoded.items()])


def _answer_letters(
    manifest: Manifest, blobs: BlobReader, encoder: Encoder, given: GivenAnswers
) -> dict[RequestId, Letter]:
    """Return the letters with answers to pending requests, of their types or as JSON if these are not known here."""
    responses, by, _ = given
    # Only the requests that are answered are decoded: there may be many others, of types that are not known here.
    known: dict[RequestId, Request] = {}
    unknown: dict[RequestId, UnknownType] = {}
    for request_id in map(RequestId, responses):
        if (asked := manifest.requests.get(request_id)) is not None:
            try:
                known[request_id] = request_of(asked, encoder, blobs)
            except UnknownType as error:
                unknown[request_id] = error
    pending: Layered[RequestId, Any] = Layered(manifest.requests)
    snapshot = Snapshot(requests=pending.change(known), answered=Layered(manifest.answered))
    letters: dict[RequestId, Letter] = {}
    for request_id, answer in zip(map(RequestId, responses), responses.values(), strict=True):
        if is_json := request_id in unknown:
            asked = manifest.requests[request_id]
            value = _check_json_answer(asked, manifest.schemas.get(asked.form), answer, encoder)
        else:
            value = check_answer(snapshot, request_id, answer, encoder)  # type: ignore[assignment]
        seq = manifest.requests[request_id].seq
        letters[request_id] = answer_letter(request_id, seq, value, by, is_json)
    return letters


def _check_json_answer(asked: Asked, schema: str | None, answer: object, encoder: Encoder) -> Encoded:
    """Return an answer as JSON that fits the stored schema of its type; raise if it is no JSON or does not fit."""
    from holdfast.checkpoint.codec.plain import described_type  # most who answer have the types
    from holdfast.graph.typing.json_check import NotJson, check_json, plain_json

    described = described_type(asked.form, schema)
    here = f"{described!r} is not known here, so the answer is given as JSON"
    try:
        plain = plain_json(answer)
        check_json(plain, described.schema)
    except NotJson as error:
        raise UnknownType(
            f"request {asked.request_id!r} asks for a type that is not known here, {described!r}: give plain JSON that "
            f"fits its schema, which 'storage.list_requests' has, or build the workflow with this storage first, or "
            f"declare the type with @checkpointable ({error})"
        ) from None
    except Unconvertible as error:
        reason = f"{error} ({here}: 'response_schema' in 'storage.list_requests' describes it)"
        raise invalid_response(asked.request_id, asked.executor_id, reason) from None
    except RecursionError:
        reason = "it is nested too deeply, or contains itself"
        raise invalid_response(asked.request_id, asked.executor_id, reason) from None
    return encoder(plain, "response")


async def cancel_run(store: Store, head: Head, by: str | None = None, receipt: Receipt | None = None) -> Head:
    """Cancel a run, at once if nobody drives it, else by a letter to its owner; return its head afterwards.

    With a receipt it happens once: a call that was made before changes nothing.
    """
    while True:
        # Behind the reading of the head: so of two who find the receipt missing only one can move the run on.
        if receipt is not None and await was_called(store, head.run_id, receipt):
            return await store.head(head.run_id) or head
        if head.status.ended:
            break
        if await is_driven(store, head):
            letters = [cancel_letter(secrets.token_bytes(8), by), *(receipt.letters if receipt else ())]
            left = await store.leave(head.run_id, 0 if receipt else head.seq, letters)
            if left.head is None or (left.head.status is RunStatus.RUNNING and not left.refused):
                return left.head or head
            # The run came to rest before it could see the letter, or somebody else was here with the same key.
            head, receipt = left.head, receipt if left.refused else None
        else:
            cancelled = head._replace(
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
            if await _end_run(store, head, cancelled, receipt):
                return cancelled
            head = await store.head(head.run_id) or cancelled
    await _end_run(store, head, head)
    if receipt is not None:
        await use_up(store, head.run_id, receipt)
    return head


async def _end_run(store: Store, head: Head, new: Head, receipt: Receipt | None = None) -> bool:
    """Replace the head of a run that is over and take its cancel letters; return False if someone was faster."""
    letters = await store.inbox(head.run_id)
    wishes = tuple(letter.key for letter in letters if asks_to_cancel(letter) or is_receipt(letter))
    if new == head and not wishes:
        return True
    if new.status is RunStatus.CANCELLED:
        new = new._replace(letters_known=len(letters) - len(wishes))
    expected = Expected(head.checkpoint_id, head.token)
    events = () if new.status is head.status else (await status_row(store, new),)
    kept, names = ((), ()) if receipt is None else (receipt.letters, receipt.names)
    try:
        await store.commit(Commit(new, expected, taken=(*wishes, *names), letters=kept, events=events))
    except HeadMoved:
        return False
    return True
