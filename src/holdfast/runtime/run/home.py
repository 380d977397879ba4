"""Where the checkpoints of a run are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from holdfast.ids import RunId

if TYPE_CHECKING:
    from holdfast.checkpoint.info import CheckpointInfo
    from holdfast.runtime.events.event_log import EventLog
    from holdfast.runtime.step.runner import Runner


class Home(Protocol):
    """What finds the checkpoints of a run, and drives it from one of them on."""

    async def check(self, checkpoint: str | CheckpointInfo, run_id: RunId) -> None:
        """Raise unless the run can go on from there."""
        ...

    async def runner_at(self, checkpoint: str | CheckpointInfo, run_id: RunId, log: EventLog) -> Runner:
        """What drives the run from that checkpoint on."""
        ...

    async def runner_where_it_stands(self, run_id: RunId, log: EventLog) -> Runner:
        """What goes on with the run; raises ``RunTaken`` if someone else does."""
        ...
