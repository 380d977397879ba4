"""The events of each superstep, made without their constructors.

A constructor first sets the run, the superstep and the time to nothing, though ``Teller.emit`` sets them to what they
are: with it an event costs twice as much, and four are made in each superstep, or six with a store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.ids import ExecutorId
from holdfast.runtime.events.events import (
    CheckpointSavedEvent,
    ExecutorCompletedEvent,
    ExecutorInvokedEvent,
    SuperStepCompletedEvent,
    SuperStepStartedEvent,
)

if TYPE_CHECKING:
    from holdfast.checkpoint.info import CheckpointInfo

_blank: Final = object.__new__


def superstep_started(checkpoint: CheckpointInfo | None) -> SuperStepStartedEvent:
    """The same as ``SuperStepStartedEvent``."""
    event = _blank(SuperStepStartedEvent)
    event.provisional = False
    event.checkpoint = checkpoint
    return event


def executor_invoked(executor_id: ExecutorId, message_count: int) -> ExecutorInvokedEvent:
    """The same as ``ExecutorInvokedEvent``."""
    event = _blank(ExecutorInvokedEvent)
    event.provisional = False
    event.executor_id = executor_id
    event.message_count = message_count
    return event


def executor_completed(executor_id: ExecutorId, replayed: bool) -> ExecutorCompletedEvent:
    """The same as ``ExecutorCompletedEvent``."""
    event = _blank(ExecutorCompletedEvent)
    event.provisional = False
    event.executor_id = executor_id
    event.replayed = replayed
    return event


def checkpoint_saved(checkpoint: CheckpointInfo) -> CheckpointSavedEvent:
    """The same as ``CheckpointSavedEvent``."""
    event = _blank(CheckpointSavedEvent)
    event.provisional = False
    event.checkpoint = checkpoint
    return event


def superstep_completed(messages: bool, requests: bool, state_updated: bool) -> SuperStepCompletedEvent:
    """The same as ``SuperStepCompletedEvent``, of which a checkpoint is not known yet."""
    event = _blank(SuperStepCompletedEvent)
    event.provisional = False
    event.has_pending_messages = messages
    event.has_pending_requests = requests
    event.state_updated = state_updated
    event.checkpoint = None
    return event
