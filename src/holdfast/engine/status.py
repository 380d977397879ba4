"""The status of a run."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, TypeAlias

WaitingFor: TypeAlias = Literal["answers", "time", "messages"]
"""The reasons to wait: answers to requests, the end of a sleep, messages that a fan-in still needs."""


class RunStatus(StrEnum):
    """The status of a run.

    >>> RunStatus.COMPLETED.ended
    True
    """

    RUNNING = "running"
    WAITING = "waiting"
    """Nothing is left to do before a pending request is answered, a time has come, or a fan-in gets more messages."""
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    """Someone called ``cancel``."""
    STOPPED = "stopped"
    """The caller left."""

    @property
    def ended(self) -> bool:
        """True if the run is over: neither running nor waiting."""
        return self not in (RunStatus.RUNNING, RunStatus.WAITING)


def waiting_for(requests: object, asleep: object, buffers: object) -> tuple[WaitingFor, ...]:
    """Return the reasons why a run at rest waits, given its pending requests, its sleep and the buffers of its fan-ins.

    It waits for messages only where nothing else can bring any.

    >>> waiting_for(["approve?"], None, {}), waiting_for([], None, {"join": ["a"]}), waiting_for([], None, {})
    (('answers',), ('messages',), ())
    """
    found: list[WaitingFor] = []
    if requests:
        found.append("answers")
    if asleep:
        found.append("time")
    if buffers and not found:
        found.append("messages")
    return tuple(found)
