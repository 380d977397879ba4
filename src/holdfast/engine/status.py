"""Where a run stands."""

from __future__ import annotations

from enum import StrEnum


class RunStatus(StrEnum):
    """Where a run stands.

    >>> RunStatus.COMPLETED.ended
    True
    """

    RUNNING = "running"
    WAITING = "waiting"
    """Nothing is left to do before a pending request is answered, or a time has come."""
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    """Someone called ``cancel``."""
    STOPPED = "stopped"
    """The caller left."""

    @property
    def ended(self) -> bool:
        """Whether the run is over: neither running nor waiting."""
        return self not in (RunStatus.RUNNING, RunStatus.WAITING)
