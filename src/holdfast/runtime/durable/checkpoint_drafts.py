"""Drafts of the checkpoints that a run makes between the ends of its supersteps, and of how it failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.checkpoint.checkpoint_info import Cause, Phase
from holdfast.checkpoint.journal import Told
from holdfast.checkpoint.write.checkpoint_draft import CheckpointDraft
from holdfast.checkpoint.write.log import NO_FAILURE, Failure
from holdfast.engine.message import Request
from holdfast.engine.snapshot import FurtherInput, Snapshot, status_at_rest
from holdfast.engine.status import RunStatus
from holdfast.engine.value import Value
from holdfast.errors import ExecutorFailed
from holdfast.ids import RequestId


def draft_answers(
    snapshot: Snapshot, responses: Mapping[RequestId, Value], answered_by: Mapping[RequestId, str]
) -> CheckpointDraft:
    """Return the checkpoint that delivers answers to pending requests."""
    # In the order in which they are delivered: that of the requests, of which there may be many more.
    ordered = (
        responses
        if len(responses) == 1
        else {known: responses[known] for known in snapshot.requests if known in responses}
    )
    return CheckpointDraft(
        Phase.START,
        snapshot.superstep + 1,
        Cause.RESPONSE,
        RunStatus.RUNNING,
        responses=ordered,
        since_input=0,
        answered_by=answered_by,
        by=", ".join(dict.fromkeys(answered_by[known] for known in ordered if known in answered_by)) or None,
    )


def draft_asking_again(
    snapshot: Snapshot, requests: Sequence[Request], warnings: Sequence[Told]
) -> CheckpointDraft:
    """Return the checkpoint that asks requests again, with the warnings that say why."""
    moves = bool(snapshot.deliveries)
    return CheckpointDraft(
        Phase.START if moves else Phase.END,
        snapshot.superstep + moves,
        Cause.REQUEST,
        RunStatus.RUNNING if moves else status_at_rest(snapshot),
        happened=warnings,
        asked_again=requests,
    )


def draft_input(superstep: int, further: FurtherInput, by: str | None) -> CheckpointDraft:
    """Return the checkpoint that delivers a further input."""
    return CheckpointDraft(Phase.START, superstep, Cause.MESSAGE, RunStatus.RUNNING, further=further, by=by)


def describe_failure(error: BaseException | None) -> Failure:
    """Return what the head of a run says of the error that ended it."""
    if error is None:
        return NO_FAILURE
    from holdfast.runtime.events.notices import traceback_text  # runs seldom fail

    executor_id = error.executor_id if isinstance(error, ExecutorFailed) else ""
    cause = error.__cause__ if executor_id else None
    return Failure(
        _describe_error(error),
        traceback_text(error),
        executor_id or "",
        "" if cause is None else _describe_error(cause),
    )


def _describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:1_000]
