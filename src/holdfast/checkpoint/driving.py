"""What those who do not drive a run may do to it: see whether anyone does, leave answers, cancel it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from time import time_ns
from typing import Any

from holdfast.checkpoint.format.changes import Asked
from holdfast.checkpoint.inbox import answer_letter, asks_to_cancel, cancel_letter
from holdfast.checkpoint.owner import is_held, process_of, this_process
from holdfast.checkpoint.read.loading import Blobs, LatestManifests
from holdfast.checkpoint.read.restoring import request_of
from holdfast.checkpoint.store import Commit, Expected, Head, Store
from holdfast.checkpoint.values import Encoder
from holdfast.engine.answers import already_answered, checked_answer
from holdfast.engine.message import Request
from holdfast.engine.persistent import Layered
from holdfast.engine.snapshot import Snapshot
from holdfast.engine.status import RunStatus
from holdfast.errors import HeadMoved, UnknownRequest, UnknownType
from holdfast.ids import RequestId


async def is_driven(store: Store, head: Head, known: dict[str, bool] | None = None) -> bool:
    """Whether a run is RUNNING and what drives it lives; ``known`` is what was found of processes just before."""
    if head.status is not RunStatus.RUNNING:
        return False
    process = process_of(head.owner)
    if process == this_process():
        return is_held(head.owner)
    known = {} if known is None else known
    if process not in known:
        known[process] = await store.lives(process)
    return known[process]


async def leave_answers(
    store: Store,
    head: Head,
    blobs: Blobs,
    encoder: Encoder,
    responses: Mapping[str, Any],
    latest: LatestManifests | None = None,
) -> Head:
    """Leave answers to pending requests of a run, all or none; gives where the run stood then."""
    manifest = await (latest or LatestManifests()).read(store, blobs, head)
    # Of the others only the names are needed: their types may not be known here, and there may be many.
    answered = {
        RequestId(request_id): _asked_here(head, manifest.requests[RequestId(request_id)], encoder, blobs)
        for request_id in responses
        if request_id in manifest.requests
    }
    pending: Layered[RequestId, Any] = Layered(manifest.requests)
    snapshot = Snapshot(requests=pending.changed(answered), answered=Layered(manifest.answered))
    values = {
        RequestId(request_id): checked_answer(snapshot, request_id, answer, encoder)
        for request_id, answer in responses.items()
    }
    letters = {
        request_id: answer_letter(request_id, manifest.requests[request_id].seq, value)  # type: ignore[arg-type]
        for request_id, value in values.items()
    }
    left = await store.leave(head.run_id, head.seq, list(letters.values()))
    if left.refused:
        refused = frozenset(left.refused)
        raise already_answered([known for known, letter in letters.items() if letter.key in refused])
    if left.head is None:
        raise UnknownRequest(f"run {head.run_id} was removed while it was answered")
    return left.head


def _asked_here(head: Head, asked: Asked, encoder: Encoder, blobs: Blobs) -> Request:
    try:
        return request_of(asked, encoder, blobs)
    except UnknownType as error:
        raise UnknownType(
            f"request {asked.request_id!r} of run {head.run_id} asks for a type that is not known here: build workflow "
            f"{head.workflow_name!r} with this storage first, or declare the type with @checkpointable ({error})"
        ) from error


async def cancel(store: Store, head: Head) -> Head:
    """Cancel a run: at once if nobody drives it, else its owner is asked to; gives where the run stood then."""
    while not head.status.ended:
        if await is_driven(store, head):
            letter = cancel_letter(secrets.token_bytes(8))
            left = (await store.leave(head.run_id, head.seq, [letter])).head
            if left is None or left.status is RunStatus.RUNNING:
                return left or head
            head = left  # it came to rest before it could see the letter
        else:
            status = head._replace(
                status=RunStatus.CANCELLED,
                token=head.token + 1,
                owner="",
                takeovers=0,
                reason="",
                wake_at=None,
                waiting_for="",
                updated=max(time_ns() // 1_000, head.updated + 1),
            )
            if await _replaced(store, head, status):
                return status
            head = await store.head(head.run_id) or status
    await _replaced(store, head, head)
    return head


async def _replaced(store: Store, head: Head, new: Head) -> bool:
    """Let a run that is over stand as ``new`` says, with no wish left to cancel it; whether nobody was faster."""
    wishes = tuple(letter.key for letter in await store.inbox(head.run_id) if asks_to_cancel(letter))
    if new == head and not wishes:
        return True
    try:
        await store.commit(Commit(new, Expected(head.checkpoint_id, head.token), taken=wishes))
    except HeadMoved:
        return False
    return True
